//! Carrying out a write: journal, places, flushes; and what happens when a member fails in it.

use crate::array::{Array, Crew, Journaling, Roll, SEQUENCES, Seat, Work, lacking};
use crate::format::{PartHead, Standing, Superblock, is_sequence};
use crate::journal::{Reserved, Wait};
use crate::member::{Class, Member, all};
use crate::rules::Rule;
use ashlar_block::{Durability, Error, IoContext, Kind, Result};
use ashlar_units::Lba;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

impl Array {
    /// A number for a write, greater than any before.
    pub(crate) async fn number(&self) -> Result<u64> {
        loop {
            let number = self.sequence.fetch_add(1, Ordering::AcqRel);
            if number >= self.roll.read().sequence_end {
                let _changing = self.changing.lock().await;
                if number >= self.roll.read().sequence_end {
                    self.roll.write().sequence_end = number + SEQUENCES;
                    self.write_superblocks().await?;
                }
            }
            if is_sequence(number) {
                return Ok(number);
            }
        }
    }

    /// Writes blocks so that a power cut leaves all of them or none.
    pub(crate) async fn commit(
        &self,
        context: IoContext,
        crew: &Crew,
        work: Work,
        durability: Durability,
    ) -> Result<()> {
        if work.is_empty() {
            return Ok(());
        }
        // The caller holds its groups. A write that broke off in them may be in the journal, and be done by the next opening:
        // nobody may write behind it what it has not seen.
        self.admit_write()?;
        let journaled = self.options.journal == Journaling::Members;
        let entry = if journaled { Some(self.log(context, crew, &work).await?) } else { None };
        let in_place = if journaled { Durability::Cached } else { durability };
        let write = async |(slot, blocks): (&usize, &BTreeMap<Lba, (Class, Bytes)>)| match crew.member(*slot) {
            Some(member) => (*slot, member.write(context, blocks, in_place).await),
            None => (*slot, Ok(())),
        };
        let outcomes = all(usize::MAX, work.iter().map(write)).await;
        self.excuse(outcomes).await?;
        if let Some(entry) = entry {
            self.journal.lock().placed(entry);
            self.moved.notify_waiters();
        }
        Ok(())
    }

    /// Writes an entry to the journal; returns its number when it is durable.
    async fn log(&self, context: IoContext, crew: &Crew, work: &Work) -> Result<u64> {
        let needs: Vec<(usize, usize)> = work.iter().map(|(slot, blocks)| (*slot, blocks.len())).collect();
        let reserved = self.reserve(context, &needs).await?;
        let participants = reserved.parts.iter().fold(0, |bits, (slot, _)| bits | 1 << slot);
        let write = async |(slot, at): &(usize, Lba)| {
            let (Some(member), Some(blocks)) = (crew.member(*slot), work.get(slot)) else { return (*slot, Ok(())) };
            let mut payload = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
            blocks.values().for_each(|(_, data)| payload.update(data));
            let head = PartHead {
                sequence: reserved.sequence,
                released: reserved.released,
                participants,
                payload: payload.finalize(),
                targets: blocks.keys().copied().collect(),
            };
            let head = head.encode(self.id, self.salt, *slot);
            let pieces = std::iter::once(head).chain(blocks.values().map(|(_, data)| data.clone())).collect();
            if let Err(error) = member.write_journal(context, *at, pieces).await {
                return (*slot, Err(error));
            }
            self.journal.lock().noted(*slot, reserved.released);
            let flushed = match self.keeps(Rule::JournalBeforePlace) {
                true => self.flush_member(context, *slot, member).await,
                false => Ok(()),
            };
            (*slot, flushed)
        };
        let outcomes = all(usize::MAX, reserved.parts.iter().map(write)).await;
        self.excuse(outcomes).await?;
        Ok(reserved.sequence)
    }

    async fn reserve(&self, context: IoContext, needs: &[(usize, usize)]) -> Result<Reserved> {
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            moved.as_mut().enable();
            let wait = match self.journal.lock().reserve(needs) {
                Ok(reserved) => return Ok(reserved),
                Err(wait) => wait,
            };
            self.admit_write()?;
            match wait {
                Wait::Placed => moved.await,
                Wait::Flush => self.flush_all(context).await?,
                Wait::Mark(slot, at, released) => self.mark(context, slot, at, released).await?,
            }
        }
    }

    /// Says durably on a member that entries are released.
    async fn mark(&self, context: IoContext, slot: usize, at: Lba, released: u64) -> Result<()> {
        // One at a time, so that the older of the two marks is the one that is overwritten.
        let _changing = self.changing.lock().await;
        let Some(member) = self.crew().member(slot).cloned() else { return Ok(()) };
        let head = PartHead { sequence: released, released, participants: 0, payload: 0, targets: Vec::new() };
        let write = async {
            member.write_journal(context, at, vec![head.encode(self.id, self.salt, slot)]).await?;
            self.flush_member(context, slot, &member).await
        };
        match write.await {
            Ok(()) => self.journal.lock().marked(slot, released),
            Err(error) => self.fail(slot, &error).await?,
        }
        Ok(())
    }

    /// Makes durable what a member was given, and notes what that settles.
    pub(crate) async fn flush_member(&self, context: IoContext, slot: usize, member: &Member) -> Result<()> {
        let covered = member.flush(context, || self.journal.lock().flush_begins(slot)).await?;
        if let Some(covered) = covered {
            self.journal.lock().flush_ended(slot, covered);
            self.moved.notify_waiters();
        }
        Ok(())
    }

    /// Flushes all members.
    pub(crate) async fn flush_all(&self, context: IoContext) -> Result<()> {
        let crew = self.crew();
        let flush = async |slot: usize| match crew.member(slot) {
            Some(member) => (slot, self.flush_member(context, slot, member).await),
            None => (slot, Ok(())),
        };
        let outcomes = all(usize::MAX, (0..crew.len()).map(flush)).await;
        self.excuse(outcomes).await
    }

    /// Members that failed are listed, as long as the others are enough.
    async fn excuse(&self, outcomes: Vec<(usize, Result<()>)>) -> Result<()> {
        for (slot, outcome) in outcomes {
            if let Err(error) = outcome {
                let _changing = self.changing.lock().await;
                self.fail(slot, &error).await?;
            }
        }
        Ok(())
    }

    /// Lists a member as failed; an error if the others are too few. The caller holds `changing`.
    pub(crate) async fn fail(&self, slot: usize, error: &Error) -> Result<()> {
        {
            let mut roll = self.roll.write();
            let Some(seat) = roll.seats.get(slot) else { return Ok(()) };
            // Listed already, unless that broke the array.
            let Some(member) = seat.member.clone() else { return self.admit_write() };
            let standing = std::mem::replace(&mut roll.seats[slot].listed.standing, Standing::Failed);
            if let Some(zone) = lacking(&self.shape, &roll.seats) {
                roll.seats[slot].listed.standing = standing;
                drop(roll);
                self.broken.store(true, Ordering::Release);
                self.moved.notify_waiters();
                let message = format!(
                    "member {slot} ({}) failed, and rows {}.. cannot do without it: {error}",
                    member.name(),
                    self.shape.zones[zone].row
                );
                return Err(Error::new(Kind::Failed, message));
            }
            roll.seats[slot].member = None;
        }
        self.journal.lock().forget(slot);
        self.moved.notify_waiters();
        if self.keeps(Rule::FailureBeforeAnswer) { self.write_superblocks().await } else { Ok(()) }
    }

    /// Writes the roll to all members. The caller holds `changing`.
    pub(crate) async fn write_superblocks(&self) -> Result<()> {
        let context = IoContext::foreground("array superblock");
        loop {
            let (superblock, crew) = {
                let mut roll = self.roll.write();
                roll.generation += 1;
                (self.superblock(&roll), Crew(roll.seats.clone()))
            };
            let write = async |slot: usize| {
                let Some(member) = crew.member(slot) else { return (slot, Ok(())) };
                let block = Superblock { slot, ..superblock.clone() }.encode();
                let at = Lba(superblock.generation % 2);
                let written = member.device().write(context, at, vec![block], Durability::Forced).await;
                (slot, written)
            };
            let outcomes = all(usize::MAX, (0..crew.len()).map(write)).await;
            let failed = outcomes.into_iter().find_map(|(slot, outcome)| outcome.err().map(|error| (slot, error)));
            let Some((slot, error)) = failed else { return Ok(()) };
            let mut roll = self.roll.write();
            let standing = std::mem::replace(&mut roll.seats[slot].listed.standing, Standing::Failed);
            if lacking(&self.shape, &roll.seats).is_some() {
                roll.seats[slot].listed.standing = standing;
                self.broken.store(true, Ordering::Release);
                return Err(error.within(format!("superblock of member {slot}")));
            }
            roll.seats[slot].member = None;
            drop(roll);
            self.journal.lock().forget(slot);
        }
    }

    fn superblock(&self, roll: &Roll) -> Superblock {
        Superblock {
            array: self.id,
            level: self.shape.level,
            unit: self.unit,
            journal: self.journal_blocks,
            slot: 0,
            generation: roll.generation,
            sequence_end: roll.sequence_end,
            salt: self.salt,
            members: roll.seats.iter().map(Seat::durably).collect(),
        }
    }
}
