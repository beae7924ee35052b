//! Checkpoints: bitmaps, the map, the table and the index of names as of one moment, and a superblock that says so. What
//! was in the log before is then not needed.

use crate::Regions;
use crate::disk::{UPKEEP, Write};
use crate::format::{Head, MapEntry, Superblock, encode_map};
use crate::layout::{Kind, Layout};
use crate::names::extent_of;
use crate::rules::Rule;
use crate::shared::{Shared, Writer};
use crate::write::Force;
use ashlar_block::{Durability, Error as BlockError, Kind as ErrorKind};
use ashlar_index::NodePtr;
use ashlar_objects::Result;
use ashlar_units::{Blocks, Lba};
use bytes::Bytes;
use std::sync::atomic::Ordering;

/// The store at one moment, as a checkpoint writes it.
struct Frozen {
    generation: u64,
    log_start: u64,
    pages: Vec<(Lba, Bytes)>,
    heads: Vec<Head>,
    entries: Vec<MapEntry>,
}

impl Regions {
    /// Writes a checkpoint.
    ///
    /// # Errors
    /// Those of the device; another process has opened the device.
    pub async fn checkpoint(&self) -> Result<()> {
        let me = self.clone();
        let task = self.0.env.spawn(async move {
            let outcome = me.0.write_checkpoint().await;
            if let Err(error) = &outcome {
                me.0.fail(error);
            }
            outcome
        });
        Ok(task.await?)
    }

    /// Writes what waits and a checkpoint, so that opening has nothing to recover.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn close(&self) -> Result<()> {
        self.drain(Force { flush: true, log: true }).await?;
        self.checkpoint().await
    }
}

impl Shared {
    async fn write_checkpoint(&self) -> Result<(), BlockError> {
        let _one = self.checkpointing.lock().await;
        self.wants_checkpoint.store(false, Ordering::Relaxed);
        let commit = self.commit.load(Ordering::Relaxed) + 1;
        self.fence().await?;
        let mut frozen = {
            let _gate = self.gate.write().await;
            let mut writer = self.writer.lock().await;
            self.drain_all(&mut writer).await?;
            if self.keeps(Rule::FlushBeforeSuperblock) {
                self.flush_log(&mut writer).await?;
                self.flush(&mut writer).await?;
            }
            self.freeze(&writer, commit)
        };
        let outcome = self.write_frozen(&mut frozen, commit).await;
        self.table.written(outcome.is_err());
        let (root, replaced) = outcome?;

        self.names.install(root, &replaced, commit);
        self.commit.store(commit, Ordering::Relaxed);
        let mut writer = self.writer.lock().await;
        writer.start = frozen.log_start;
        self.log_used.store(writer.seq - writer.start, Ordering::Relaxed);
        drop(writer);
        let mut space = self.space.lock();
        for (number, entry) in frozen.entries.iter().enumerate() {
            let region = &mut space.regions[number].entry;
            region.head = entry.head;
            // A region that took another kind meanwhile is as new.
            if region.birth == entry.birth {
                region.generation = entry.generation;
            }
        }
        if self.keeps(Rule::FreeAfterSuperblock) {
            self.free_nodes(&mut space, &replaced);
        }
        space.forget(self.memory.regions(&self.config));
        self.counts.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Makes everything durable that finds room. What finds none stays in memory; its copy will have a number beyond that of a
    /// checkpoint that comes next.
    pub(crate) async fn drain_all(&self, writer: &mut Writer) -> Result<(), BlockError> {
        match self.drain(writer, Force { flush: true, log: true }).await {
            Err(ashlar_objects::Error::NoSpace) | Ok(()) => Ok(()),
            Err(ashlar_objects::Error::Storage(error)) => Err(error),
            Err(other) => Err(BlockError::new(ErrorKind::Failed, other.to_string())),
        }
    }

    fn free_nodes(&self, space: &mut crate::space::Space, replaced: &[NodePtr]) {
        for (region, extent) in replaced.iter().filter_map(|ptr| extent_of(&self.disk, ptr)) {
            space.give_table(region, extent);
        }
    }

    /// Refuses to go on if another process has opened the device since.
    async fn fence(&self) -> Result<(), BlockError> {
        let newest = newest_superblock(&self.disk.device).await?;
        if newest.epoch == self.epoch && newest.store == self.disk.store {
            return Ok(());
        }
        let message = "the device was opened or formatted by somebody else since: nothing more is written here";
        Err(BlockError::new(ErrorKind::Poisoned, message))
    }

    /// Everything as it is now. Nothing is being written, and nothing is in quarantine.
    fn freeze(&self, writer: &Writer, commit: u64) -> Frozen {
        self.names.freeze();
        let pages = self.table.freeze(&self.disk);
        let generation = self.queue.lock().number;
        self.frozen.store(generation, Ordering::Relaxed);
        let mut space = self.space.lock();
        space.free_empty();
        let mut heads = Vec::new();
        let mut entries = Vec::with_capacity(space.regions.len());
        let store = self.disk.store;
        for (number, region) in space.regions.iter_mut().enumerate() {
            let changed = std::mem::take(&mut region.changed);
            region.opened = false;
            let mut entry = region.entry;
            if let Some(state) = region.state.as_ref().filter(|_| changed && entry.kind != Kind::Table) {
                entry.head ^= 1;
                entry.generation = generation;
                heads.push(Head {
                    store,
                    region: number as u32,
                    kind: entry.kind,
                    birth: entry.birth,
                    generation,
                    commit,
                    slots: state.slots.clone(),
                    blocks: state.blocks.clone(),
                });
            }
            entries.push(entry);
        }
        Frozen { generation, log_start: writer.seq, pages, heads, entries }
    }

    /// Writes what was frozen; the new root of the index of names, and nodes that it does not need.
    async fn write_frozen(
        &self,
        frozen: &mut Frozen,
        commit: u64,
    ) -> Result<(Option<NodePtr>, Vec<NodePtr>), BlockError> {
        let writes = frozen.pages.iter().map(|(at, image)| Write { at: *at, pieces: vec![image.clone()] }).collect();
        self.disk.write_all(UPKEEP, writes, Durability::Cached).await?;
        if !self.keeps(Rule::FreeAfterSuperblock) {
            let root: Vec<NodePtr> = self.names.root().into_iter().collect();
            self.free_nodes(&mut self.space.lock(), &root);
        }
        let (root, replaced) = match self.names.flush(&self.disk, &self.space).await {
            // The index does not take what it is to know: then it is made anew. What it knows beyond this checkpoint is durable.
            Err(error) if error.is_damage() => {
                let _gate = self.gate.write().await;
                let mut writer = self.writer.lock().await;
                self.drain_all(&mut writer).await?;
                self.rebuild_names(&mut writer).await?;
                self.names.freeze();
                self.names.flush(&self.disk, &self.space).await?
            }
            flushed => flushed?,
        };
        self.freeze_tables(frozen, &replaced, commit);
        for head in &frozen.heads {
            let entry = &mut frozen.entries[head.region as usize];
            match self.disk.write_head(head, entry.head).await {
                Ok(()) => {}
                // What it says follows from the onodes: a repair makes it anew, and nothing goes there until then.
                Err(error) if error.kind() == ErrorKind::Failed => {
                    entry.corrupt = true;
                    self.condemn(head.region);
                }
                Err(error) => return Err(error),
            }
        }
        let slot = 1 - self.map_slot.load(Ordering::Relaxed);
        let map = encode_map(self.disk.key, commit, self.disk.store, &frozen.entries);
        for at in self.disk.layout.map(slot) {
            self.disk.device.write(UPKEEP, at, vec![map.clone()], Durability::Cached).await?;
        }
        if self.keeps(Rule::FlushBeforeSuperblock) {
            self.disk.device.flush(UPKEEP).await?;
        }
        let superblock = Superblock {
            version: self.disk.layout.version,
            store: self.disk.store,
            key: self.disk.key,
            hash_key: self.hash_key,
            config: self.config,
            capacity: Blocks(self.disk.layout.capacity),
            commit,
            epoch: self.epoch,
            map_slot: slot,
            map_commit: commit,
            log_start: frozen.log_start,
            generation: frozen.generation,
            names: root,
        };
        write_superblock(&self.disk.device, &superblock).await?;
        self.map_slot.store(slot, Ordering::Relaxed);
        Ok((root, replaced))
    }

    /// Table regions as they are after the new nodes were written, without the nodes that the new root does not need.
    fn freeze_tables(&self, frozen: &mut Frozen, replaced: &[NodePtr], commit: u64) {
        let space = self.space.lock();
        for number in 0..space.regions.len() {
            let region = &space.regions[number];
            let Some(state) = region.state.as_ref().filter(|_| region.entry.kind == Kind::Table) else { continue };
            let (mut entry, mut blocks) = (region.entry, state.blocks.clone());
            for (_, extent) in replaced
                .iter()
                .filter_map(|ptr| extent_of(&self.disk, ptr))
                .filter(|(region, _)| *region == number as u32)
            {
                let freed = (extent.block..extent.block + extent.count).filter(|block| blocks.get(*block)).count();
                crate::space::mark(&mut blocks, &extent, false);
                entry.free_blocks += freed as u32;
            }
            entry.head ^= 1;
            entry.generation = frozen.generation;
            frozen.entries[number] = entry;
            frozen.heads.push(Head {
                store: self.disk.store,
                region: number as u32,
                kind: Kind::Table,
                birth: entry.birth,
                generation: frozen.generation,
                commit,
                slots: state.slots.clone(),
                blocks,
            });
        }
    }
}

/// Writes both copies of a superblock, one after the other.
pub async fn write_superblock(device: &ashlar_block::Device, superblock: &Superblock) -> Result<(), BlockError> {
    let image = superblock.encode();
    for at in Layout::superblocks(superblock.capacity, superblock.commit) {
        device.write(UPKEEP, at, vec![image.clone()], Durability::Forced).await?;
    }
    Ok(())
}

/// The newest superblock of a device.
///
/// # Errors
/// There is none: the device holds no store, or all four are damaged.
pub async fn newest_superblock(device: &ashlar_block::Device) -> Result<Superblock, BlockError> {
    let (mut newest, mut why): (Option<Superblock>, Option<BlockError>) = (None, None);
    let capacity = device.geometry().capacity;
    if capacity.0 < 8 {
        return Err(BlockError::misuse(format!("{} is too small for a region store", device.name())));
    }
    for at in [0, 1].into_iter().flat_map(|commit| Layout::superblocks(capacity, commit)) {
        let read = device.read(UPKEEP, at, Blocks(1)).await;
        match read.and_then(|image| Superblock::decode(&image)) {
            Ok(found) if newest.as_ref().is_none_or(|newest| newest.commit < found.commit) => newest = Some(found),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Failed && newest.is_none() => return Err(error),
            Err(error) => why = Some(error),
        }
    }
    match (newest, why) {
        (Some(newest), _) if newest.capacity.0 <= capacity.0 => Ok(newest),
        (Some(newest), _) => Err(BlockError::corrupt(format!(
            "{} was made for {} and has {}: part of it is missing",
            device.name(),
            newest.capacity.to_bytes(),
            capacity.to_bytes()
        ))),
        (None, why) => {
            let why = why.map_or(String::new(), |error| format!(" ({error})"));
            let message = format!("{} holds no region store{why}: format it first", device.name());
            Err(BlockError::new(ErrorKind::Corrupt, message))
        }
    }
}
