//! Checkpoints: memtables become nodes, a superblock makes them the truth, and space that nothing needs is freed.

use crate::accounts::{Accounts, DeadKey, Ownership};
use crate::format::{LogPosition, SlotRecord, Stream, Superblock, VolumeKind, VolumeRecord, superblock_slots};
use crate::map::{Lost, Map, Run};
use crate::nodes::address;
use crate::space::{Claim, Usage};
use crate::{CATALOG, Epoch, Pool, Rule, Shared, VolumeState};
use ashlar_block::{Durability, Error, IoContext, Kind, Result};
use ashlar_index::{Errands, Message, NodePtr, Tree};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const CHECKPOINT: IoContext = IoContext::background("checkpoint");
/// Commits that nobody syncs are made durable after this time.
const SYNC_INTERVAL: Duration = Duration::from_secs(5);
/// The same while the pool is full: somebody may wait for what was deleted.
const FULL_INTERVAL: Duration = Duration::from_millis(500);
/// A dirty pool is checkpointed at least this often, counted in sync intervals.
const CHECKPOINT_INTERVALS: u32 = 12;
/// So long without a commit, and what was deleted may be freed before anybody needs the room, if half of it is taken.
const CALM: Duration = Duration::from_millis(500);
/// How often one looks whether readers of emptied segments have come to their end.
const DRAIN_STEP: Duration = Duration::from_micros(500);

/// Cached nodes that are verified at each such time: some 4 ms of work.
const SCRUB_BYTES: u64 = 32 << 20;

/// What a freeze took out of the log's state.
struct Frozen {
    usage: Usage,
    lost: HashMap<u64, Vec<Run>>,
    position: LogPosition,
    ticket: u64,
}

/// What a checkpoint does besides.
#[derive(Default)]
pub(crate) struct Chores {
    /// Pending deletes sink to the leaves, so that what they free is freed now.
    pub(crate) thorough: bool,
    /// Errands by tree.
    pub(crate) errands: BTreeMap<u64, Errands>,
    /// A snapshot to take: its number, the volume, and the record without its root.
    pub(crate) snapshot: Option<(u64, u64, VolumeRecord)>,
    /// Space that destroyed snapshots free or leave to older ones.
    pub(crate) accounts: Accounts,
}

/// A tree that changed, its new root, and the bytes of its nodes.
type Changed = (Arc<Tree<Map>>, Option<NodePtr>, u64);

impl Pool {
    /// Writes a checkpoint: what was committed before is then in the tree, and the log before it is no longer needed.
    pub async fn checkpoint(&self) -> Result<()> {
        let _one = self.0.checkpointing.lock().await;
        self.checkpoint_locked(Chores::default()).await
    }

    /// Frees what can be freed: pending deletes sink to the leaves, then segments are cleaned until writes can go on. `rounds`
    /// of it had been done when the caller found no space: all who found none at that time share one round more, since each
    /// takes from the reserve until readers are gone. When no more is left than a checkpoint may need, only deletions may ask
    /// for one, and who comes after a deletion. Whether the round gained anything.
    pub(crate) async fn make_space(&self, rounds: u64, deleting: bool) -> Result<bool> {
        let shared = &self.0;
        let _search = shared.searching.lock().await;
        if shared.space_rounds.load(Ordering::Acquire) != rounds {
            return Ok(shared.space_gained.load(Ordering::Acquire));
        }
        let is_short = || if deleting { shared.space.is_scarce() } else { shared.space.spare() == 0 };
        let mut gained = {
            let _one = shared.checkpointing.lock().await;
            self.drain(|| shared.space.is_scarce()).await?;
            let deleted = shared.deleted.swap(false, Ordering::AcqRel);
            if shared.space.is_scarce() && !deleting && !deleted {
                return Ok(false);
            }
            let before = shared.space.emptying();
            self.checkpoint_locked(Chores { thorough: true, ..Chores::default() }).await?;
            shared.space.emptying() > before
        };
        // What readers keep is free before long, and so need not be made.
        gained |= self.drain(is_short).await?;
        while self.should_clean() && self.clean().await? {
            gained = true;
        }
        gained |= self.drain(is_short).await?;
        shared.space_gained.store(gained, Ordering::Release);
        shared.space_rounds.fetch_add(1, Ordering::AcqRel);
        Ok(gained)
    }

    /// Frees emptied segments, and while it is short waits for those that readers keep: all of them come to their end without
    /// who waits here, and a check gives way. Whether some became free.
    async fn drain(&self, is_short: impl Fn() -> bool) -> Result<bool> {
        let shared = &self.0;
        let mut freed = false;
        loop {
            shared.admit()?;
            freed |= shared.release_drained();
            if !is_short() || shared.is_drained() {
                return Ok(freed);
            }
            shared.env.sleep(DRAIN_STEP).await;
        }
    }

    /// A checkpoint now, while there is still room for it.
    pub(crate) async fn checkpoint_in_time(&self) -> Result<()> {
        let _one = self.0.checkpointing.lock().await;
        if self.0.note_pending() { self.checkpoint_locked(Chores::default()).await } else { Ok(()) }
    }

    pub(crate) async fn checkpoint_locked(&self, chores: Chores) -> Result<()> {
        let result = self.checkpoint_inner(chores).await;
        // A checkpoint that fails half-way leaves frozen memtables that no later one could tell from its own.
        result.map_err(|error| self.0.poisoned(error))
    }

    async fn checkpoint_inner(&self, mut chores: Chores) -> Result<()> {
        let shared = &self.0;
        // Without room for it, it would stop half-way, for good.
        let is_short = || {
            shared.note_pending();
            shared.space.is_scarce()
        };
        self.drain(is_short).await?;
        let generation = shared.generation.load(Ordering::Relaxed) + 1;
        let frozen = shared.freeze(generation)?;
        let mut accounts = std::mem::take(&mut chores.accounts);
        accounts.add(frozen.usage);
        for (id, runs) in &frozen.lost {
            accounts.drop_runs(&shared.ownership(*id), runs);
        }
        // Not those of snapshots: their nodes belong to others too, and there is nothing to push down.
        let live = |volume: &&VolumeState| matches!(volume.kind, VolumeKind::Live { .. });
        let trees: Vec<_> = shared.volumes.read().values().filter(live).map(|volume| volume.tree.clone()).collect();
        let mut roots: Vec<Changed> = Vec::new();
        for tree in trees {
            let mut errands = chores.errands.remove(&tree.id()).unwrap_or_default();
            errands.thorough |= chores.thorough;
            if !tree.is_dirty() && errands.is_empty() {
                continue;
            }
            let owner = shared.ownership(tree.id());
            errands.foreign = owner.foreign;
            let written_before = shared.node_bytes();
            let flushed = tree.flush(self, shared.limits, errands).await?;
            let replaced: u64 = flushed.replaced.iter().map(|node| u64::from(node.len)).sum();
            let nodes = self.nodes(tree.id()).saturating_add(shared.node_bytes() - written_before);
            accounts.drop_nodes(&owner, &flushed.replaced);
            accounts.drop_runs(&owner, &flushed.lost.runs);
            shared.forget_nodes(&flushed.replaced);
            if flushed.root != tree.root() || tree.is_dirty() {
                let nodes = if flushed.root.is_some() { nodes.saturating_sub(replaced) } else { 0 };
                roots.push((tree, flushed.root, nodes));
            }
        }
        accounts.add(std::mem::take(&mut *shared.node_usage.lock()));

        let errands = chores.errands.remove(&CATALOG).unwrap_or_default();
        let catalog_usage = self.write_catalog(&roots, &accounts, chores.snapshot, errands).await?;
        shared.written(Stream::Log, frozen.ticket).await?;
        for stream in [Stream::Nodes, Stream::Cold] {
            shared.seal_side(stream).await?;
        }
        if shared.keeps(Rule::DataBeforeSuperblock) {
            shared.flush_devices().await?;
        }
        self.write_superblock(generation, frozen.position).await?;

        for (tree, root, nodes) in roots {
            tree.install(root);
            if let Some(volume) = shared.volumes.write().get_mut(&tree.id()) {
                volume.nodes = nodes;
            }
        }
        shared.generation.store(generation, Ordering::Relaxed);
        shared.durable.fetch_max(frozen.position.seq - 1, Ordering::AcqRel);
        shared.log.lock().stream.note_announced(frozen.position.seq - 1);
        shared.retire(&accounts.usage, &catalog_usage);
        shared.note_pending();
        Ok(())
    }

    /// Volume roots, dead lists and segment records go into the catalog, and the catalog onto the medium.
    async fn write_catalog(
        &self,
        roots: &[Changed],
        accounts: &Accounts,
        snapshot: Option<(u64, u64, VolumeRecord)>,
        errands: Errands,
    ) -> Result<Usage> {
        let shared = &self.0;
        let catalog = &shared.catalog;
        let mut ignored = Lost::default();
        let changed = |id: u64| roots.iter().find(|(tree, ..)| tree.id() == id);
        for (tree, root, nodes) in roots {
            let record = shared.volumes.read().get(&tree.id()).map(|volume| VolumeRecord {
                name: volume.name.clone(),
                root: *root,
                nodes: *nodes,
                kind: volume.kind,
            });
            if let Some(record) = record {
                catalog.apply(VolumeRecord::key(tree.id()), Message::Put(record.encode()), &mut ignored);
            }
        }
        if let Some((id, of, record)) = snapshot {
            let (root, nodes) = match changed(of) {
                Some((_, root, nodes)) => (*root, *nodes),
                None => (shared.tree(of)?.root(), self.nodes(of)),
            };
            let record = VolumeRecord { root, nodes, ..record };
            catalog.apply(VolumeRecord::key(id), Message::Put(record.encode()), &mut ignored);
        }
        for (key, weight) in &accounts.dead {
            let key = key.encode();
            let before = catalog.get(self, &key).await?;
            let before = before.map_or(Ok(0), |sum| DeadKey::decode_entry(&key, &sum).map(|(_, sum)| sum))?;
            let sum = Bytes::copy_from_slice(&(before + weight).to_le_bytes());
            catalog.apply(key, Message::Put(sum), &mut ignored);
        }
        for (slot, record) in shared.space.records(&accounts.usage)? {
            let message = record.map_or(Message::Delete, |record| Message::Put(record.encode()));
            catalog.apply(SlotRecord::key(slot), message, &mut ignored);
        }
        catalog.freeze();
        let flushed = catalog.flush(self, shared.limits, errands).await?;
        catalog.install(flushed.root);
        shared.forget_nodes(&flushed.replaced);
        let mut accounts = Accounts::default();
        accounts.add(std::mem::take(&mut *shared.node_usage.lock()));
        accounts.drop_nodes(&Ownership::default(), &flushed.replaced);
        shared.space.verify_catalog(&accounts.usage)?;
        Ok(accounts.usage)
    }

    async fn write_superblock(&self, generation: u64, log: LogPosition) -> Result<()> {
        let shared = &self.0;
        for (index, place) in shared.layout.places().enumerate() {
            let superblock = Superblock {
                pool: shared.pool,
                generation,
                born: shared.space.born(),
                device: index as u32,
                part_of: place.part_of,
                devices: shared.layout.records(),
                segment: shared.layout.segment,
                catalog: shared.catalog.root(),
                log,
            };
            let image = superblock.encode();
            for slot in superblock_slots(place.record.capacity, generation) {
                place.device.write(CHECKPOINT, slot, vec![image.clone()], Durability::Cached).await?;
                shared.counted.superblocks.fetch_add(image.len() as u64, Ordering::Relaxed);
            }
            place.dirty.store(true, Ordering::Release);
        }
        if shared.keeps(Rule::FreeAfterSuperblock) { shared.flush_devices().await } else { Ok(()) }
    }

    /// Syncs every few seconds and checkpoints when due, until the pool is closed.
    pub(crate) async fn background(self) {
        let shared = &self.0;
        let mut quiet = 0;
        while !shared.stopped.load(Ordering::Acquire) {
            let interval = if shared.space.is_overdrawn() { FULL_INTERVAL } else { SYNC_INTERVAL };
            let due = shared.env.within(interval, shared.due.notified()).await.is_some();
            quiet += 1;
            let dirty = shared.volumes.read().values().any(|volume| volume.tree.is_dirty());
            let checkpoint = due || (dirty && quiet >= CHECKPOINT_INTERVALS);
            let pool = self.clone();
            match shared.env.spawn_aside(async move { pool.background_round(checkpoint).await }).await {
                Ok(true) => shared.due.notify_one(), // as soon as it can be
                Ok(false) if checkpoint => quiet = 0,
                Ok(false) => {}
                Err(_) => return, // the pool is poisoned: every caller learns it
            }
        }
    }

    /// Cleans if that is wanted; otherwise makes all durable, by a checkpoint or without. Whether it cleaned.
    async fn background_round(&self, checkpoint: bool) -> Result<bool> {
        let shared = &self.0;
        let deleted = shared.deleted.load(Ordering::Acquire);
        if self.should_clean() || (deleted && !checkpoint && shared.space.is_half_taken() && self.is_calm().await) {
            // What was deleted is free once it has sunk to the leaves.
            let rounds = shared.space_rounds.load(Ordering::Acquire);
            let cleaned = match deleted {
                true => self.make_space(rounds, true).await.map(|_| false)?,
                false => self.clean().await?,
            };
            if cleaned {
                return Ok(true);
            }
        }
        if checkpoint {
            self.checkpoint().await?;
        } else {
            self.sync_all().await?;
            self.announce().await?;
        }
        if shared.config.scrub {
            shared.scrub_cache();
        }
        shared.release_drained();
        Ok(false)
    }

    /// Whether nobody commits for a moment.
    async fn is_calm(&self) -> bool {
        let newest = self.newest();
        self.0.env.sleep(CALM).await;
        self.newest() == newest
    }

    /// Writes everything and stops background work. The pool accepts nothing afterwards.
    pub async fn close(self) -> Result<()> {
        let shared = &self.0;
        shared.stopped.store(true, Ordering::Release);
        shared.due.notify_one();
        shared.space.wanted.notify_one();
        let result = self.checkpoint().await;
        shared.poisoned(Error::new(Kind::Poisoned, "the pool is closed"));
        result
    }
}

impl Shared {
    /// Ends the epoch: the log's open batch is sealed, memtables freeze, and replay would begin here.
    fn freeze(self: &Arc<Self>, generation: u64) -> Result<Frozen> {
        let volumes = self.volumes.read();
        let mut log = self.log.lock();
        let mut sealed = Vec::new();
        if log.stream.segment.is_none() {
            log.stream.make_room(0, 0, &self.space, &self.layout, Claim::Reserve, &mut sealed)?;
        }
        if log.stream.has_open_batch() {
            log.stream.seal(&mut sealed);
            self.expect(Stream::Log, &sealed);
        }
        volumes.values().for_each(|volume| volume.tree.freeze());
        self.space.begin_epoch();
        log.bytes = 0;
        log.birth = generation + 1;
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

    /// Drops nodes from the cache that bad memory has changed: whoever wants them reads them from the medium again. A part
    /// of the cache at a time, all of it in turn.
    pub(crate) fn scrub_cache(&self) {
        let rounds = self.cache.bytes().div_ceil(SCRUB_BYTES).max(1);
        let turn = self.scrubs.fetch_add(1, Ordering::Relaxed) % rounds;
        let mine = |uid: u64, offset: u32| (uid ^ u64::from(offset / 4096)) % rounds == turn;
        let nodes = self.cache.iter().filter(|((uid, offset), _)| mine(*uid, *offset));
        let bad: Vec<_> = nodes.filter(|(_, node)| node.verify().is_err()).map(|(at, _)| at).collect();
        bad.into_iter().for_each(|at| self.cache.remove(at));
    }

    /// Bytes of nodes written since they were last accounted.
    fn node_bytes(&self) -> u64 {
        self.node_usage.lock().values().sum::<i64>().max(0) as u64
    }

    fn forget_nodes(&self, nodes: &[NodePtr]) {
        nodes.iter().for_each(|node| self.cache.remove(address(node)));
    }

    /// Seals, writes and waits for a side stream.
    pub(crate) async fn seal_side(&self, stream: Stream) -> Result<()> {
        let mut sealed = Vec::new();
        let ticket = {
            let mut state = self.side(stream).lock();
            if state.has_open_batch() {
                state.seal(&mut sealed);
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

    /// Whether no emptied segment waits for readers.
    fn is_drained(&self) -> bool {
        self.draining.lock().iter().all(|(_, slots)| slots.is_empty())
    }
    /// Whether emptied segments wait for readers, and are missed.
    pub(crate) fn wants_emptied(&self) -> bool {
        let waiting = self.draining.lock().iter().map(|(_, slots)| slots.len()).sum();
        waiting > 0 && (self.space.is_low() || self.space.is_much(waiting))
    }

    /// Frees what no reader keeps any more; whether that is anything.
    pub(crate) fn release_drained(&self) -> bool {
        let mut draining = self.draining.lock();
        let mut freed = false;
        while draining
            .front()
            .is_some_and(|(epoch, _)| Arc::strong_count(epoch) == 1 || !self.keeps(Rule::WaitForReaders))
        {
            if let Some((_, slots)) = draining.pop_front() {
                self.space.release(&slots);
                freed |= !slots.is_empty();
            }
        }
        freed
    }
}
