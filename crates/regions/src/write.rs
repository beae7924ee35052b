//! Writing what waits: places are chosen now (delayed allocation), neighbours are written together, and the table and the
//! log are told.

use crate::Regions;
use crate::disk::{UPKEEP, WRITE};
use crate::format::{Batch, Entry, Record};
use crate::layout::Kind;
use crate::place::Placed;
use crate::rules::Rule;
use crate::shared::{Pending, RETIREMENTS_MAX, Retired, Shared, What, Writer};
use crate::space::Urgency;
use crate::table::Grown;
use ashlar_block::{Durability, Error as BlockError, Kind as ErrorKind, ResultExt};
use ashlar_objects::{Error, Result};
use ashlar_units::BLOCK_LEN;
use std::collections::HashMap;
use std::sync::Arc;

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

impl Regions {
    /// Writes everything that waits. It goes on if the caller does not wait for it.
    pub(crate) async fn drain(&self, force: Force) -> Result<()> {
        let me = self.clone();
        let task = self.0.env.spawn_here(async move {
            let mut writer = me.0.writer.lock().await;
            me.0.drain(&mut writer, force).await
        });
        task.await
    }

    /// Writes everything that waits, unless somebody has written this meanwhile.
    pub(crate) async fn drain_until(&self, pending: &Arc<Pending>) -> Result<()> {
        let (me, wanted) = (self.clone(), pending.clone());
        let task = self.0.env.spawn_here(async move {
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
        let mut last: HashMap<u128, usize, crate::table::BuildSpread> =
            HashMap::with_capacity_and_hasher(batch.len(), Default::default());
        for (index, pending) in batch.iter().enumerate() {
            last.insert(pending.id, index);
            if let What::Put(put) = &pending.what {
                last.extend(put.ends.iter().map(|(id, _)| (*id, index)));
            }
        }
        let replaced = |index: usize, pending: &Pending| last.get(&pending.id) != Some(&index);

        // All their room at once: growing step by step touches twice as much memory that the kernel has to clear.
        let mut placed = Vec::with_capacity(batch.len());
        let urgency = if batch.len() >= BURST { Urgency::Burst } else { Urgency::Usual };
        for (index, pending) in batch.iter().enumerate() {
            let What::Put(put) = &pending.what else { continue };
            if replaced(index, pending) && put.ends.is_empty() {
                continue;
            }
            match self.place(pending, put, urgency).await? {
                Some(copy) => placed.push(copy),
                None => homeless.push(pending.clone()),
            }
        }

        let sync = force.flush || batch.iter().any(|pending| pending.sync);
        let composes = placed.iter().any(|placed| placed.onode.provisional);
        let lone_large = batch.len() == 1 && placed.iter().any(|placed| placed.kind == Kind::Large);
        let forced = lone_large && sync && !force.flush && !composes && self.keeps(Rule::FlushOnSync);
        let durability = if forced { Durability::Forced } else { Durability::Cached };
        let refused = self.write_copies(writer, &mut placed, homeless, durability).await?;
        if sync && writer.unflushed && (!forced || refused) && self.keeps(Rule::FlushOnSync) {
            self.flush(writer).await?;
        }
        self.publish(writer, batch, &placed, &replaced).await?;

        let deletes = batch.iter().any(|pending| pending.sync && matches!(pending.what, What::Deleted));
        let must = deletes && self.keeps(Rule::FlushOnSync);
        if must || composes || refused || force.log || writer.records.len() > RETIREMENTS_MAX {
            self.flush_log(writer).await?;
        }
        Ok(())
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
            Err(error) if error.is_damage() => {
                let mut space = self.space.lock();
                space.condemn(entry.place.region);
                space.uncount(entry.place.region, hidden);
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
