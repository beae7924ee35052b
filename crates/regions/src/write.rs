//! Writing what waits: places are chosen now (delayed allocation), neighbours are written together, and the table and the
//! log are told.

use crate::Regions;
use crate::change::shape_of;
use crate::disk::{UPKEEP, WRITE, Write};
use crate::format::{Batch, EXTENTS_MAX, Entry, Onode, Place, Record, attributes_to, crc, inline_room};
use crate::layout::Kind;
use crate::rules::Rule;
use crate::shared::{Pending, Put, RETIREMENTS_MAX, Retired, Shared, What, Writer};
use crate::space::{Taken, Urgency};
use crate::table::Grown;
use ashlar_block::{Durability, Error as BlockError, Kind as ErrorKind, ResultExt};
use ashlar_env::ring::AlignedBuf;
use ashlar_objects::{Error, Result};
use ashlar_units::BLOCK_LEN;
use bytes::{Bytes, BytesMut};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Objects in one batch from which it counts as a burst (section 6.1.1 leaves it open).
const BURST: usize = 32;

/// What must be durable when a batch is written, whatever it says itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Force {
    /// Data and onodes.
    pub flush: bool,
    /// Retirements.
    pub log: bool,
}

/// A copy that found its place.
struct Placed {
    pending: Arc<Pending>,
    onode: Arc<Onode>,
}

impl Regions {
    /// Writes everything that waits. It goes on if the caller does not wait for it.
    pub(crate) async fn drain(&self, force: Force) -> Result<()> {
        let me = self.clone();
        let task = self.0.env.spawn(async move {
            let mut writer = me.0.writer.lock().await;
            me.0.drain(&mut writer, force).await
        });
        task.await
    }

    /// Writes everything that waits, unless somebody has written this meanwhile.
    pub(crate) async fn drain_until(&self, pending: &Arc<Pending>) -> Result<()> {
        let (me, wanted) = (self.clone(), pending.clone());
        let task = self.0.env.spawn(async move {
            let mut writer = me.0.writer.lock().await;
            match wanted.done.get() {
                Some(done) => done.clone(),
                None => me.0.drain(&mut writer, Force::default()).await,
            }
        });
        task.await?;
        pending.done.get().cloned().unwrap_or(Ok(()))
    }
}

impl Shared {
    /// Writes the queue.
    pub(crate) async fn drain(&self, writer: &mut Writer, force: Force) -> Result<()> {
        self.alive()?;
        let batch = std::mem::take(&mut self.queue.lock().order);
        let mut homeless = Vec::new();
        let mut outcome = Ok(());
        // What comes after a composition is written when that counts: nothing later may survive what it builds on.
        let composes = |pending: &Arc<Pending>| matches!(&pending.what, What::Put(put) if !put.ends.is_empty());
        let mut parts = batch.split_inclusive(composes).peekable();
        if parts.peek().is_none() {
            outcome = self.process(writer, &[], force, &mut homeless).await;
        }
        while let Some(part) = parts.next().filter(|_| outcome.is_ok()) {
            let force = if parts.peek().is_none() { force } else { Force::default() };
            outcome = self.process(writer, part, force, &mut homeless).await;
        }
        if let Err(error) = &outcome {
            self.fail(error);
        }
        let outcome = outcome.map_err(Error::from);
        let room = self.measure();
        let kept = {
            let mut queue = self.queue.lock();
            queue.room = room;
            let mut kept = Vec::new();
            for pending in &batch {
                let is_homeless = homeless.iter().any(|other| Arc::ptr_eq(other, pending));
                if is_homeless && !pending.sync {
                    // It was accepted: it stays in memory until there is room.
                    kept.push(pending.clone());
                    continue;
                }
                self.unpromise(&mut queue, pending);
                let _ = pending.done.set(if is_homeless { Err(Error::NoSpace) } else { outcome.clone() });
                if outcome.is_ok() {
                    forget(&mut queue.pending, pending);
                }
            }
            let any = !kept.is_empty();
            queue.order.splice(..0, kept);
            any
        };
        for pending in homeless.iter().filter(|pending| pending.sync) {
            self.revert(pending).await?;
        }
        self.note_log(writer);
        outcome.and(if kept { Err(Error::NoSpace) } else { Ok(()) })
    }

    async fn process(
        &self,
        writer: &mut Writer,
        batch: &[Arc<Pending>],
        force: Force,
        homeless: &mut Vec<Arc<Pending>>,
    ) -> Result<(), BlockError> {
        // What a later change of the same batch replaces, or takes as a part, is never written.
        let mut last: HashMap<u128, usize, crate::table::BuildSpread> = HashMap::default();
        for (index, pending) in batch.iter().enumerate() {
            last.insert(pending.id, index);
            if let What::Put(put) = &pending.what {
                last.extend(put.ends.iter().map(|(id, _)| (*id, index)));
            }
        }
        let replaced = |index: usize, pending: &Pending| last.get(&pending.id) != Some(&index);

        let (mut placed, mut writes) = (Vec::new(), Vec::new());
        let mut lone_large = batch.len() == 1;
        for (index, pending) in batch.iter().enumerate() {
            let What::Put(put) = &pending.what else { continue };
            if replaced(index, pending) && put.ends.is_empty() {
                continue;
            }
            let urgency = if batch.len() >= BURST { Urgency::Burst } else { Urgency::Usual };
            match self.place(pending, put, urgency).await? {
                Some((onode, kind, payload)) => {
                    lone_large &= kind == Kind::Large;
                    self.lay_out(&onode, kind, payload, &mut writes);
                    placed.push(Placed { pending: pending.clone(), onode: Arc::new(onode) });
                }
                None => homeless.push(pending.clone()),
            }
        }

        self.log_opens(writer).await?;
        let sync = force.flush || batch.iter().any(|pending| pending.sync);
        let composes = placed.iter().any(|placed| placed.onode.provisional);
        let wrote = !writes.is_empty();
        if lone_large && sync && wrote && !force.flush && !composes && self.keeps(Rule::FlushOnSync) {
            self.disk.write_all(WRITE, writes, Durability::Forced).await?;
        } else {
            self.disk.write_all(WRITE, writes, Durability::Cached).await?;
            writer.unflushed |= wrote;
            if sync && writer.unflushed && self.keeps(Rule::FlushOnSync) {
                self.flush(writer).await?;
            }
        }
        self.publish(writer, batch, &placed, &replaced).await?;

        let deletes = batch.iter().any(|pending| pending.sync && matches!(pending.what, What::Deleted));
        let must = deletes && self.keeps(Rule::FlushOnSync);
        if must || composes || force.log || writer.records.len() > RETIREMENTS_MAX {
            self.flush_log(writer).await?;
        }
        Ok(())
    }

    /// Finds a place for an object and describes it. `None`: there is none.
    async fn place(
        &self,
        pending: &Pending,
        put: &Put,
        urgency: Urgency,
    ) -> Result<Option<(Onode, Kind, Payload)>, BlockError> {
        let (wanted, blocks) = shape_of(self, &pending.name, put);
        let payload = Payload::of(self, pending, put, blocks);
        let large_fits = u64::from(blocks) <= self.disk.layout.shape.large && blocks > 0;
        let kinds = if wanted == Kind::Large || !large_fits { [wanted, Kind::Small] } else { [wanted, Kind::Large] };
        for kind in kinds {
            let Some((place, extents)) = self.take(kind, blocks, urgency, pending.name.is_reserved()).await? else {
                continue;
            };
            if kind == Kind::Small {
                self.counts.fragments.fetch_add(extents.len().max(1) as u64, Ordering::Relaxed);
                self.counts.placed_small.fetch_add(1, Ordering::Relaxed);
            }
            let birth = self.kind_of(place.region).map_or(0, |(_, birth)| birth);
            let late = pending.number <= self.frozen.load(Ordering::Relaxed);
            let onode = Onode {
                name: pending.name.clone(),
                id: pending.id,
                place,
                birth,
                version: pending.number,
                generation: if late { self.number() } else { pending.number },
                provisional: !put.ends.is_empty() && self.keeps(Rule::CommitCompose),
                size: put.size,
                modified: put.modified,
                checksum: put.checksum,
                attributes: put.attributes.clone(),
                spill: payload.spill,
                extents,
                crcs: payload.crcs.clone(),
                inline: payload.inline.clone(),
            };
            return Ok(Some((onode, kind, payload)));
        }
        Ok(None)
    }

    /// Takes a place, loading bitmaps as needed.
    pub(crate) async fn take(
        &self,
        kind: Kind,
        blocks: u32,
        urgency: Urgency,
        hidden: bool,
    ) -> Result<Option<(Place, Vec<crate::format::Extent>)>, BlockError> {
        loop {
            let birth = self.number();
            let taken = self.space.lock().take(kind, blocks, birth, urgency, hidden);
            match taken {
                Taken::At(place, extents) => return Ok(Some((place, extents))),
                Taken::Full => return Ok(None),
                Taken::Load(region) => match self.load(region).await {
                    // A damaged region is condemned by now, and not asked again.
                    Err(error) if error.kind() == ErrorKind::Corrupt => {}
                    other => other?,
                },
            }
        }
    }

    /// The writes that bring a copy to its place: one for a large object, data and onode for a small one.
    pub(crate) fn lay_out(&self, onode: &Onode, kind: Kind, payload: Payload, writes: &mut Vec<Write>) {
        let layout = &self.disk.layout;
        let image = onode.encode(self.disk.key, self.disk.store);
        let at = layout.onode(onode.place.region, kind, onode.place.slot);
        let blocks = payload.crcs.len() as u64;
        if kind == Kind::Large {
            let mut pieces = payload.pieces;
            pieces.push(image);
            writes.push(Write { at: ashlar_units::Lba(at.0 - blocks), pieces });
            return;
        }
        let mut pieces = payload.pieces.into_iter();
        let mut rest = Bytes::new();
        for extent in &onode.extents {
            let (mut wanted, mut taken) = (extent.count as usize * BLOCK_LEN, Vec::new());
            while wanted > 0 {
                if rest.is_empty() {
                    let Some(next) = pieces.next() else { break };
                    rest = next;
                    continue;
                }
                let piece = rest.split_to(wanted.min(rest.len()));
                wanted -= piece.len();
                taken.push(piece);
            }
            writes.push(Write { at: layout.data(onode.place.region, kind, extent.block), pieces: taken });
        }
        writes.push(Write { at, pieces: vec![image] });
    }

    /// Tells the table what is where now, and the log what is not any more.
    async fn publish(
        &self,
        writer: &mut Writer,
        batch: &[Arc<Pending>],
        placed: &[Placed],
        replaced: &impl Fn(usize, &Pending) -> bool,
    ) -> Result<(), BlockError> {
        let mut placed = placed.iter().peekable();
        for (index, pending) in batch.iter().enumerate() {
            match &pending.what {
                What::Deleted if !replaced(index, pending) => {
                    self.publish_end(writer, pending.id, &pending.name, pending.number).await?;
                }
                What::Deleted => {}
                What::Put(put) => {
                    let Some(Placed { onode, .. }) = placed.next_if(|placed| Arc::ptr_eq(&placed.pending, pending))
                    else {
                        continue;
                    };
                    let entry = Entry { place: onode.place, generation: onode.generation, version: onode.version };
                    self.publish_copy(writer, onode.id, entry, onode.name.is_reserved()).await?;
                    self.onodes.insert(onode.id, onode.clone());
                    if onode.provisional {
                        writer.records.push(Record::Commit { generation: onode.generation });
                    }
                    for (id, name) in &put.ends {
                        self.publish_end(writer, *id, name, pending.number).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The object is here now; where it was before is given back.
    pub(crate) async fn publish_copy(
        &self,
        writer: &mut Writer,
        id: u128,
        entry: Entry,
        hidden: bool,
    ) -> Result<(), BlockError> {
        let before = match self.table.set(&self.disk, id, entry, None).await? {
            Grown::Done(before) => before,
            Grown::Full => {
                let birth = self.number();
                let taken = self.space.lock().take_table(1, birth);
                let full = || BlockError::new(ErrorKind::NoSpace, "no region is left for the lookup table");
                let (region, block) = taken.ok_or_else(full)?;
                let at = self.disk.layout.data(region, Kind::Table, block);
                writer.records.push(Record::Page { at });
                match self.table.set(&self.disk, id, entry, Some(at)).await? {
                    Grown::Done(before) => before,
                    Grown::Full => return Err(BlockError::corrupt("a bucket of the lookup table stays full")),
                }
            }
        };
        if let Some(before) = before {
            writer.records.push(Record::Retire { place: before.place, generation: before.generation });
            self.retire(writer, id, before, hidden).await?;
        }
        Ok(())
    }

    async fn publish_end(
        &self,
        writer: &mut Writer,
        id: u128,
        name: &ashlar_objects::Name,
        at: u64,
    ) -> Result<(), BlockError> {
        // What never reached the device needs no record.
        if let Some(before) = self.table.remove(&self.disk, id).await? {
            let last = Some((before.place, before.generation));
            writer.records.push(Record::Delete { id, name: name.clone(), at, last });
            self.retire(writer, id, before, name.is_reserved()).await?;
            self.onodes.remove(&id);
        }
        Ok(())
    }

    /// Puts a copy that does not count any more into quarantine.
    async fn retire(&self, writer: &mut Writer, id: u128, entry: Entry, hidden: bool) -> Result<(), BlockError> {
        let Some((kind, _)) = self.kind_of(entry.place.region) else { return Ok(()) };
        let known = match kind {
            Kind::Large => self.load(entry.place.region).await.map(|()| (Vec::new(), 0)),
            _ => {
                // Where its blocks are, only its onode knows.
                let onode = self.onode(id, entry).await;
                let loaded = self.load(entry.place.region).await;
                onode.and_then(|onode| loaded.map(|()| (onode.extents.clone(), onode.crcs.len() as u32)))
            }
        };
        match known {
            Ok((extents, blocks)) => {
                self.space.lock().quarantine(entry.place, hidden);
                let retired = Retired { place: entry.place, extents, blocks };
                if self.keeps(Rule::Quarantine) {
                    writer.retired.push(retired);
                } else {
                    self.space.lock().release(retired.place, &retired.extents, retired.blocks);
                }
                Ok(())
            }
            // Its blocks stay taken until the region is repaired.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Failed) => {
                self.condemn(entry.place.region);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Tells the log which regions begin to be written.
    pub(crate) async fn log_opens(&self, writer: &mut Writer) -> Result<(), BlockError> {
        if self.keeps(Rule::OpenBeforeOnode) {
            let opens = std::mem::take(&mut self.space.lock().opens);
            self.write_log(writer, opens).await?;
        }
        Ok(())
    }

    pub(crate) async fn flush(&self, writer: &mut Writer) -> Result<(), BlockError> {
        self.disk.device.flush(WRITE).await?;
        writer.unflushed = false;
        Ok(())
    }

    /// Makes all records durable, and gives back what they retire.
    pub(crate) async fn flush_log(&self, writer: &mut Writer) -> Result<(), BlockError> {
        if writer.records.is_empty() && self.space.lock().opens.is_empty() {
            return Ok(());
        }
        // Whatever replaces a copy is durable before the log says that the copy does not count.
        if writer.unflushed && self.keeps(Rule::CopyBeforeRetire) {
            self.flush(writer).await?;
        }
        let mut records = std::mem::take(&mut self.space.lock().opens);
        records.append(&mut writer.records);
        self.write_log(writer, records).await?;
        let mut space = self.space.lock();
        for retired in std::mem::take(&mut writer.retired) {
            space.release(retired.place, &retired.extents, retired.blocks);
        }
        Ok(())
    }

    /// Appends records to the log, as one batch.
    async fn write_log(&self, writer: &mut Writer, records: Vec<Record>) -> Result<(), BlockError> {
        if records.is_empty() {
            return Ok(());
        }
        let batch = Batch { seq: writer.seq, records };
        let image = batch.encode(self.disk.key, self.disk.store);
        let (blocks, layout) = ((image.len() / BLOCK_LEN) as u64, &self.disk.layout);
        if writer.seq - writer.start + blocks > layout.log_blocks {
            let message = "the log is full, and no checkpoint came in time: make stores with a larger log";
            return Err(BlockError::new(ErrorKind::Failed, message));
        }
        // A ring: what passes its end goes on at its front. The front first, so that the batch is whole when its head is.
        let until_end = (layout.log_blocks - writer.seq % layout.log_blocks).min(blocks);
        let (head, tail) =
            (image.slice(..until_end as usize * BLOCK_LEN), image.slice(until_end as usize * BLOCK_LEN..));
        let durability = Durability::Forced;
        if !tail.is_empty() {
            self.disk.device.write(UPKEEP, layout.log(writer.seq + until_end), vec![tail], durability).await?;
        }
        self.disk.device.write(UPKEEP, layout.log(writer.seq), vec![head], durability).await.within(|| "log".into())?;
        writer.seq += blocks;
        Ok(())
    }

    /// There was no room for an object after all: it is as if the change had not been asked for.
    async fn revert(&self, pending: &Pending) -> Result<(), BlockError> {
        if self.waiting(pending.id).is_none() && self.table.get(&self.disk, pending.id).await?.is_none() {
            self.names.remove(&pending.name);
            self.count(&pending.name, false);
        }
        if let What::Put(put) = &pending.what {
            for (_, name) in &put.ends {
                self.names.add(name);
                self.count(name, true);
            }
        }
        Ok(())
    }
}

/// Forgets a change that the table knows by now, unless there is a newer one.
fn forget(pending: &mut HashMap<u128, Arc<Pending>, crate::table::BuildSpread>, done: &Pending) {
    let mut forget = |id: u128| {
        if pending.get(&id).is_some_and(|newest| newest.number == done.number) {
            pending.remove(&id);
        }
    };
    forget(done.id);
    if let What::Put(put) = &done.what {
        put.ends.iter().for_each(|(id, _)| forget(*id));
    }
}

/// What goes into data blocks, and what into the onode.
pub struct Payload {
    /// Whole blocks.
    pub(crate) pieces: Vec<Bytes>,
    pub(crate) crcs: Vec<u32>,
    pub(crate) spill: u32,
    pub(crate) inline: Option<Bytes>,
}

impl Payload {
    fn of(shared: &Shared, pending: &Pending, put: &Put, blocks: u32) -> Payload {
        if blocks == 0 {
            let inline = Some(put.data.concat().into());
            return Payload { pieces: Vec::new(), crcs: Vec::new(), spill: 0, inline };
        }
        debug_assert!(put.size <= shared.config.large_block.0);
        let attributes = attributes_to(&put.attributes);
        let data = put.size.div_ceil(BLOCK_LEN as u64) as usize;
        let fits = attributes.len() <= inline_room(pending.name.as_bytes().len(), data, EXTENTS_MAX);
        let mut pieces = Vec::with_capacity(2);
        let spill = if fits { 0 } else { attributes.len() as u32 };
        if !fits {
            let mut image = BytesMut::from(&attributes[..]);
            image.resize(attributes.len().next_multiple_of(BLOCK_LEN), 0);
            pieces.push(image.freeze());
        }
        pieces.extend(whole_blocks(&put.data, put.size));
        let crcs = pieces.iter().flat_map(|piece| piece.chunks(BLOCK_LEN)).map(crc).collect();
        Payload { pieces, crcs, spill, inline: None }
    }
}

/// The contents filled up to whole blocks: as they are, if they are whole.
fn whole_blocks(data: &[Bytes], size: u64) -> Vec<Bytes> {
    if data.iter().all(|piece| piece.len().is_multiple_of(BLOCK_LEN)) {
        return data.iter().filter(|piece| !piece.is_empty()).cloned().collect();
    }
    let len = (size as usize).next_multiple_of(BLOCK_LEN);
    let mut whole = AlignedBuf::any(len);
    let mut at = 0;
    for piece in data {
        whole.as_mut()[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
    whole.as_mut()[at..].fill(0);
    vec![whole.freeze(len)]
}
