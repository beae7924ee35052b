//! Recovery: the log behind the newest superblock is applied again.
//!
//! Two passes. The first follows the chain of leads and learns which batches were surely durable, because a later lead
//! says so. The second verifies each batch and applies its operations. Only the tail that was never flushed may be cut;
//! damage before it is reported.

use crate::format::{Lead, LogPosition, Operation, Stream, VolumeKind, decode_body};
use crate::map::{Form, Lost, decode};
use crate::scan::Scanner;
use crate::stream::Chain;
use crate::{Rule, Shared};
use ashlar_block::{Error, Kind, Result};
use ashlar_index::{Key, Message};
use bytes::Bytes;

/// What a batch turned out to be.
enum Verified {
    /// As it was written; this is its body.
    Whole(Bytes),
    /// Its body is not what was written.
    BodyTorn,
    /// Its payload is not what was written.
    PayloadTorn,
}

impl Shared {
    /// Applies what the log holds behind `position`; gives where it goes on.
    pub(crate) async fn replay(&self, position: LogPosition) -> Result<Chain> {
        let mut chain = Chain { seq: position.seq, link: position.chain, durable: position.seq - 1 };
        if position.at.uid == 0 {
            return Ok(chain);
        }
        let mut scanner = Scanner::new(self);
        let leads = self.follow(&mut scanner, position, &mut chain).await?;
        let durable = chain.durable;
        let mut chain = Chain { seq: position.seq, link: position.chain, durable };
        for lead in leads {
            let torn = |what: &str| {
                let message = format!(
                    "the log is damaged: the {what} of batch {} in segment {:#x} at block {} does not match its checksum, \
                     and the batch was durable; restore from a snapshot or backup, or cut the log there with \
                     `ashlar check --repair`",
                    lead.seq, lead.uid, lead.at
                );
                if lead.seq <= durable { self.cut_log(message) } else { Ok(()) }
            };
            let verify_payload = lead.seq > durable && self.keeps(Rule::VerifyTail);
            let body = match self.verified(&mut scanner, &lead, verify_payload).await {
                Ok(Verified::Whole(body)) => body,
                Ok(Verified::BodyTorn) => {
                    torn("body")?;
                    break;
                }
                Ok(Verified::PayloadTorn) => break,
                Err(error) => {
                    self.unreadable(lead.uid, lead.at, &error)?;
                    break;
                }
            };
            self.adopt_replayed(lead.uid)?;
            let (_, operations) = decode_body(&lead, &body)?;
            operations.into_iter().try_for_each(|operation| self.reapply(operation))?;
            chain.link = chain.after(lead.body_crc);
            chain.seq += 1;
        }
        chain.durable = chain.seq - 1;
        Ok(chain)
    }

    /// Follows the chain of leads; notes in `chain` what they say was durable.
    async fn follow(&self, scanner: &mut Scanner<'_>, position: LogPosition, chain: &mut Chain) -> Result<Vec<Lead>> {
        let (mut uid, mut at, mut next) = (position.at.uid, position.at.used, position.next.uid);
        let mut leads = Vec::new();
        loop {
            let expected =
                |lead: &Lead| lead.stream == Stream::Log && lead.seq == chain.seq && lead.chain == chain.link;
            let mut found = self.lead(scanner, uid, at).await?.filter(expected);
            if found.is_none() && next != 0 {
                found = self.lead(scanner, next, 0).await?.filter(expected);
            }
            let Some(lead) = found else { break };
            (uid, at, next) = (lead.uid, lead.at + lead.blocks(), lead.next.uid);
            chain.durable = chain.durable.max(lead.durable);
            chain.link = chain.after(lead.body_crc);
            chain.seq += 1;
            leads.push(lead);
        }
        // The chain ends here. Was something behind it written after its missing batch was durable? Then that is damage.
        for (uid, from) in [(uid, at), (next, 0)] {
            let later = if uid == 0 { None } else { self.later_lead(scanner, uid, from, chain.seq).await? };
            if let Some(lead) = later {
                let message = format!(
                    "the log is damaged: batch {} in segment {uid:#x} at or behind block {from} was durable and is gone \
                     (batch {} says so); restore from a snapshot or backup, or cut the log there with \
                     `ashlar check --repair`",
                    chain.seq, lead.seq
                );
                self.cut_log(message)?;
            }
        }
        Ok(leads)
    }

    /// A batch as far as it must hold to be applied.
    async fn verified(&self, scanner: &mut Scanner<'_>, lead: &Lead, payload: bool) -> Result<Verified> {
        let Some(body) = scanner.body(lead).await? else { return Ok(Verified::BodyTorn) };
        // Payload that was flushed is verified when it is read; here only what may be torn is.
        let whole = !payload || scanner.payload_holds(lead).await?;
        Ok(if whole { Verified::Whole(body) } else { Verified::PayloadTorn })
    }

    /// The lead at a place where the log may go on. One that the device cannot read is not taken for the end of the log.
    async fn lead(&self, scanner: &mut Scanner<'_>, uid: u64, at: u32) -> Result<Option<Lead>> {
        match scanner.lead(uid, at).await {
            Err(error) if error.kind() == Kind::Failed => self.unreadable(uid, at, &error).map(|()| None),
            found => found,
        }
    }

    fn unreadable(&self, uid: u64, at: u32, error: &Error) -> Result<()> {
        self.cut_log(format!(
            "the log cannot be read on from segment {uid:#x} at block {at} ({error}), and may hold what was durable; restore \
             from a snapshot or backup, or cut the log there with `ashlar check --repair`"
        ))
    }

    /// Damage in what was durable: an error, unless the log may be cut there.
    fn cut_log(&self, damage: String) -> Result<()> {
        if !self.config.cut_log {
            return Err(Error::corrupt(damage));
        }
        let _ = self.cut.set(damage);
        Ok(())
    }

    /// A lead in the rest of a segment that says that batch `seq` was durable.
    async fn later_lead(&self, scanner: &mut Scanner<'_>, uid: u64, from: u32, seq: u64) -> Result<Option<Lead>> {
        let mut at = from;
        while u64::from(at) < self.layout.segment.0 {
            match scanner.lead(uid, at).await {
                Ok(Some(lead)) if lead.stream == Stream::Log && lead.durable >= seq => return Ok(Some(lead)),
                Ok(Some(lead)) => at += lead.blocks(),
                // What cannot be read says nothing.
                Ok(None) => at += 1,
                Err(error) if error.kind() == Kind::Failed => at += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The superblock's list of segments does not have what was begun behind it.
    fn adopt_replayed(&self, uid: u64) -> Result<()> {
        if self.keeps(Rule::AdoptReplayed) { self.space.adopt(uid, 0, 0) } else { Ok(()) }
    }

    /// Applies one operation of the log to memtables and accounts.
    fn reapply(&self, operation: Operation) -> Result<()> {
        let (Operation::Put(id, ..)
        | Operation::Delete(id, ..)
        | Operation::Patch(id, ..)
        | Operation::DeleteRange(id, ..)) = &operation;
        if matches!(self.volumes.read().get(id).map(|volume| volume.kind), Some(VolumeKind::Snapshot { .. })) {
            return Err(Error::corrupt(format!("the log changes volume {id}, which is a snapshot")));
        }
        let tree =
            self.tree(*id).map_err(|_| Error::corrupt(format!("the log changes volume {id}, which does not exist")))?;
        let mut lost = Lost::default();
        let key = |bytes: &Bytes| Key::from_slice(bytes);
        match &operation {
            Operation::Put(_, at, value) => tree.apply(key(at), Message::Put(value.clone()), &mut lost),
            Operation::Delete(_, at) => tree.apply(key(at), Message::Delete, &mut lost),
            Operation::DeleteRange(_, low, high) => tree.delete_range(low, high, &mut lost),
            Operation::Patch(_, at, value) if crate::patches::check(at, value)? => {
                tree.apply(key(at), Message::Patch(value.clone()), &mut lost);
            }
            Operation::Patch(_, at, value) => {
                for run in decode(value)?.iter().filter(|run| run.form != Form::Hole) {
                    // The extent's segment may hold nothing else that the superblock knows.
                    self.adopt_replayed(run.uid)?;
                    self.log.lock().count(run);
                }
                tree.apply(key(at), Message::Patch(value.clone()), &mut lost);
            }
        }
        self.log.lock().lose(*id, lost);
        Ok(())
    }
}
