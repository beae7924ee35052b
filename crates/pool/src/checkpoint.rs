//! Checkpoints: memtables become nodes, a superblock makes them the truth, and space that nothing needs is freed.

use crate::format::{LogPosition, SlotRecord, Stream, Superblock, VolumeRecord, superblock_slots};
use crate::map::{Lost, Map, Run};
use crate::space::{Claim, Usage, slot_of};
use crate::{Epoch, Pool, Shared};
use ashlar_block::{Durability, Error, IoContext, Kind, Result};
use ashlar_index::{Message, NodePtr, Tree};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const CHECKPOINT: IoContext = IoContext::background("checkpoint");
/// Commits that nobody syncs are made durable after this time.
const SYNC_INTERVAL: Duration = Duration::from_secs(5);
/// A dirty pool is checkpointed at least this often, counted in sync intervals.
const CHECKPOINT_INTERVALS: u32 = 12;

/// What a freeze took out of the log's state.
struct Frozen {
    usage: Usage,
    lost: Vec<Run>,
    position: LogPosition,
    ticket: u64,
}

impl Pool {
    /// Writes a checkpoint: what was committed before is then in the tree, and the log before it is no longer needed.
    pub async fn checkpoint(&self) -> Result<()> {
        let _one = self.0.checkpointing.lock().await;
        self.checkpoint_locked(false).await
    }

    /// Frees what can be freed: pending range deletes sink to the leaves.
    pub(crate) async fn make_space(&self) -> Result<()> {
        let _one = self.0.checkpointing.lock().await;
        self.checkpoint_locked(true).await?;
        self.0.release_drained();
        Ok(())
    }

    pub(crate) async fn checkpoint_locked(&self, thorough: bool) -> Result<()> {
        let result = self.checkpoint_inner(thorough).await;
        // A checkpoint that fails half-way leaves frozen memtables that no later one could tell from its own.
        result.map_err(|error| self.0.poisoned(error))
    }

    async fn checkpoint_inner(&self, thorough: bool) -> Result<()> {
        let shared = &self.0;
        shared.admit()?;
        let generation = shared.generation.load(Ordering::Relaxed) + 1;
        let frozen = shared.freeze()?;
        let mut usage = frozen.usage;
        shared.subtract(&mut usage, &frozen.lost);

        let trees: Vec<_> = shared.volumes.read().values().map(|volume| volume.tree.clone()).collect();
        let mut roots = Vec::new();
        for tree in trees.iter().filter(|tree| tree.is_dirty() || thorough) {
            let flushed = tree.flush(self, shared.limits, thorough).await?;
            shared.subtract_nodes(&mut usage, &flushed.replaced);
            shared.subtract(&mut usage, &flushed.lost.runs);
            roots.push((tree.clone(), flushed.root));
        }
        shared.take_node_usage(&mut usage);

        let catalog_usage = self.write_catalog(&roots, &usage).await?;
        shared.written(Stream::Log, frozen.ticket).await?;
        for stream in [Stream::Nodes, Stream::Cold] {
            shared.seal_side(stream).await?;
        }
        shared.flush_devices().await?;
        self.write_superblock(generation, frozen.position).await?;

        for (tree, root) in roots {
            tree.install(root);
        }
        shared.generation.store(generation, Ordering::Relaxed);
        shared.durable.fetch_max(frozen.position.seq - 1, Ordering::AcqRel);
        shared.retire(&usage, &catalog_usage);
        Ok(())
    }

    /// Volume roots and segment records go into the catalog, and the catalog onto the medium.
    async fn write_catalog(&self, roots: &[(Arc<Tree<Map>>, Option<NodePtr>)], usage: &Usage) -> Result<Usage> {
        let shared = &self.0;
        let catalog = &shared.catalog;
        let mut ignored = Lost::default();
        for (tree, root) in roots {
            let name = shared.volumes.read().get(&tree.id()).map(|volume| volume.name.clone());
            let record = VolumeRecord { name: name.unwrap_or_default(), root: *root };
            catalog.apply(VolumeRecord::key(tree.id()), Message::Put(record.encode()), &mut ignored);
        }
        for (slot, record) in shared.space.records(usage) {
            let message = record.map_or(Message::Delete, |record| Message::Put(record.encode()));
            catalog.apply(SlotRecord::key(slot), message, &mut ignored);
        }
        catalog.freeze();
        let flushed = catalog.flush(self, shared.limits, false).await?;
        catalog.install(flushed.root);
        let mut usage = Usage::new();
        shared.take_node_usage(&mut usage);
        shared.subtract_nodes(&mut usage, &flushed.replaced);
        Ok(usage)
    }

    async fn write_superblock(&self, generation: u64, log: LogPosition) -> Result<()> {
        let shared = &self.0;
        for (index, device) in shared.layout.devices.iter().enumerate() {
            let superblock = Superblock {
                pool: shared.pool,
                generation,
                born: shared.space.born(),
                device: index as u32,
                devices: shared.records.clone(),
                segment: shared.layout.segment,
                catalog: shared.catalog.root(),
                log,
            };
            let image = superblock.encode();
            for slot in superblock_slots(shared.records[index].capacity, generation) {
                device.write(CHECKPOINT, slot, vec![image.clone()], Durability::Cached).await?;
            }
            shared.dirty[index].store(true, Ordering::Release);
        }
        shared.flush_devices().await
    }

    /// Syncs every few seconds and checkpoints when due, until the pool is closed.
    pub(crate) async fn background(self) {
        let shared = &self.0;
        let mut quiet = 0;
        while !shared.stopped.load(Ordering::Acquire) {
            let due = {
                let mut due = std::pin::pin!(shared.due.notified());
                let mut tick = std::pin::pin!(shared.env.sleep(SYNC_INTERVAL));
                std::future::poll_fn(|context| {
                    if due.as_mut().poll(context).is_ready() {
                        return std::task::Poll::Ready(true);
                    }
                    tick.as_mut().poll(context).map(|()| false)
                })
                .await
            };
            quiet += 1;
            let dirty = shared.volumes.read().values().any(|volume| volume.tree.is_dirty());
            let result = if due || (dirty && quiet >= CHECKPOINT_INTERVALS) {
                quiet = 0;
                self.checkpoint().await
            } else {
                self.sync_all().await
            };
            shared.release_drained();
            if result.is_err() {
                return; // the pool is poisoned: every caller learns it
            }
        }
    }

    /// Writes everything and stops background work. The pool accepts nothing afterwards.
    pub async fn close(self) -> Result<()> {
        let shared = &self.0;
        shared.stopped.store(true, Ordering::Release);
        shared.due.notify_one();
        let result = self.checkpoint().await;
        shared.poisoned(Error::new(Kind::Poisoned, "the pool is closed"));
        result
    }
}

impl Shared {
    /// Ends the epoch: the log's open batch is sealed, memtables freeze, and replay would begin here.
    fn freeze(self: &Arc<Self>) -> Result<Frozen> {
        let volumes = self.volumes.read();
        let mut log = self.log.lock();
        let mut sealed = Vec::new();
        if log.stream.segment.is_none() {
            log.stream.make_room(0, 0, &self.space, &self.layout, Claim::Reserve, &mut sealed)?;
        }
        if log.stream.has_open_batch() {
            log.stream.seal(&self.layout, &mut sealed);
            self.expect(Stream::Log, &sealed);
        }
        volumes.values().for_each(|volume| volume.tree.freeze());
        self.space.begin_epoch();
        log.bytes = 0;
        let position = LogPosition {
            at: log.stream.segment.unwrap_or_default(),
            next: log.stream.next.unwrap_or_default(),
            seq: log.stream.chain.seq,
            chain: log.stream.chain.link,
        };
        let usage = std::mem::take(&mut log.usage);
        let lost = std::mem::take(&mut log.lost);
        let ticket = log.stream.last_ticket();
        drop(log);
        drop(volumes);
        self.start_writes(sealed);
        Ok(Frozen { usage, lost, position, ticket })
    }

    fn subtract(&self, usage: &mut Usage, runs: &[Run]) {
        for run in runs {
            *usage.entry(slot_of(run.uid)).or_default() -= run.weight() as i64;
        }
    }
    fn subtract_nodes(&self, usage: &mut Usage, nodes: &[NodePtr]) {
        for node in nodes {
            self.cache.remove(&(node.uid, node.offset));
            *usage.entry(slot_of(node.uid)).or_default() -= i64::from(node.len);
        }
    }
    fn take_node_usage(&self, usage: &mut Usage) {
        for (slot, bytes) in std::mem::take(&mut *self.node_usage.lock()) {
            *usage.entry(slot).or_default() += bytes;
        }
    }

    /// Seals, writes and waits for a side stream.
    async fn seal_side(&self, stream: Stream) -> Result<()> {
        let mut sealed = Vec::new();
        let ticket = {
            let mut state = self.side(stream).lock();
            if state.has_open_batch() {
                state.seal(&self.layout, &mut sealed);
                self.expect(stream, &sealed);
            }
            state.last_ticket()
        };
        for batch in sealed {
            self.write(stream, batch).await?;
        }
        self.written(stream, ticket).await
    }

    /// After the superblock: emptied segments wait for readers of older epochs.
    fn retire(&self, usage: &Usage, catalog_usage: &Usage) {
        let emptied = self.space.settle(usage, catalog_usage);
        let old = std::mem::replace(&mut *self.epoch.write(), Arc::new(Epoch));
        self.draining.lock().push_back((old, emptied));
        self.release_drained();
    }

    pub(crate) fn release_drained(&self) {
        let mut draining = self.draining.lock();
        while draining.front().is_some_and(|(epoch, _)| Arc::strong_count(epoch) == 1) {
            if let Some((_, slots)) = draining.pop_front() {
                self.space.release(&slots);
            }
        }
    }
}
