//! Accepting changes: under the lock of the name, the condition is looked at, room is promised, and the change takes its
//! number and its place in the queue. From then on everybody sees it.

use crate::Regions;
use crate::format::{ATTRIBUTES_MAX, attributes_to, inline_room};
use crate::layout::Kind;
use crate::shared::{Pending, Put, Queue, Room, Shared, WAIT_MAX, What};
use crate::space::RESERVE;
use crate::write::Force;
use ashlar_objects::{Condition, Durability, Error, Name, Result, Stat};
use ashlar_units::BLOCK_LEN;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Share of a large block from which an object goes into one: the rest is lost. The thesis leaves it open.
const LARGE_FROM_EIGHTHS: u64 = 7;

/// Where an object of this size goes, and how many blocks of payload it has.
pub(crate) fn shape_of(shared: &Shared, name: &Name, put: &Put) -> (Kind, u32) {
    let attributes = attributes_to(&put.attributes).len();
    let large = shared.disk.layout.shape.large;
    let fits = |blocks: u64, extents: usize| {
        attributes as u64 <= inline_room(name.as_bytes().len(), blocks as usize, extents) as u64
    };
    if put.size + attributes as u64 <= inline_room(name.as_bytes().len(), 0, 0) as u64 {
        return (Kind::Small, 0);
    }
    let data = put.size.div_ceil(BLOCK_LEN as u64);
    let spill = if fits(data, crate::format::EXTENTS_MAX) { 0 } else { attributes.div_ceil(BLOCK_LEN) as u64 };
    let blocks = data + spill;
    let size = put.size.max(put.expected.min(large * BLOCK_LEN as u64)).div_ceil(BLOCK_LEN as u64);
    let is_large = blocks <= large && (size + spill) * 8 >= large * LARGE_FROM_EIGHTHS;
    (if is_large { Kind::Large } else { Kind::Small }, blocks as u32)
}

impl Shared {
    /// Most blocks of an object that goes into a small region by its size.
    pub(crate) fn largest_small(&self) -> u64 {
        let large = self.disk.layout.shape.large;
        (large * LARGE_FROM_EIGHTHS).div_ceil(8).max(1)
    }
}

impl Room {
    fn add(&mut self, kind: Kind, blocks: u32) {
        if kind == Kind::Large {
            self.units += 1;
        } else {
            self.slots += 1;
            self.blocks += u64::from(blocks);
        }
    }

    /// Whether what is promised fits, with free regions taking whatever kind is needed.
    fn holds(&self, promised: &Room, shared: &Shared) -> bool {
        let shape = &shared.disk.layout.shape;
        let regions = |needed: u64, has: u64, each: u64| needed.saturating_sub(has).div_ceil(each.max(1));
        let large = regions(promised.units, self.units, shape.units);
        let small = regions(promised.slots, self.slots, shape.onodes).max(regions(
            promised.blocks,
            self.blocks,
            shape.small.saturating_sub(shared.largest_small() - 1),
        ));
        large + small <= self.free_regions.saturating_sub(RESERVE)
    }
}

impl Shared {
    /// Refuses what is too large.
    pub(crate) fn admit(&self, put: &Put) -> Result<()> {
        let too_large = |what, size, limit| {
            if size > limit { Err(Error::TooLarge { what, size, limit }) } else { Ok(()) }
        };
        too_large("an object", put.size, self.config.large_block.0)?;
        let attributes = ashlar_objects::attributes_len(&put.attributes);
        too_large("a set of attributes", attributes, crate::ATTRIBUTES_LIMIT)?;
        // Each key and value has a few bytes beside it.
        too_large("a set of attributes", attributes_to(&put.attributes).len() as u64, ATTRIBUTES_MAX)
    }

    /// Puts a change into the queue, if there is room for it. Under the lock of its name.
    fn enqueue(&self, name: &Name, id: u128, what: What, sync: bool) -> Result<Arc<Pending>, What> {
        let mut queue = self.queue.lock();
        let mut promised = queue.promised;
        if let What::Put(put) = &what {
            let (kind, blocks) = shape_of(self, name, put);
            promised.add(kind, blocks);
            if !queue.room.holds(&promised, self) {
                return Err(what);
            }
        }
        queue.promised = promised;
        queue.number += 1;
        let number = queue.number;
        let (done, refused) = (OnceLock::new(), AtomicBool::new(false));
        let pending = Arc::new(Pending { id, name: name.clone(), number, what, sync, refused, done });
        queue.bytes += pending.bytes();
        queue.log_bytes += pending.log_bytes();
        if let What::Put(put) = &pending.what {
            for (id, name) in &put.ends {
                let ended = Pending {
                    id: *id,
                    name: name.clone(),
                    number,
                    what: What::Deleted,
                    sync: false,
                    refused: AtomicBool::new(false),
                    done: OnceLock::new(),
                };
                queue.pending.insert(*id, Arc::new(ended));
                self.names.remove(name);
                self.count(name, false);
            }
            self.names.add(name);
        } else {
            self.names.remove(name);
            self.count(name, false);
        }
        queue.pending.insert(id, pending.clone());
        queue.order.push(pending.clone());
        Ok(pending)
    }

    /// Whether there is room for one more object of this size beside what waits.
    fn has_room(&self, size: u64) -> bool {
        let blocks = size.min(self.config.large_block.0).div_ceil(BLOCK_LEN as u64) as u32;
        let queue = self.queue.lock();
        [Kind::Large, Kind::Small].into_iter().filter(|kind| *kind == Kind::Small || blocks > 0).any(|kind| {
            let mut promised = queue.promised;
            promised.add(kind, blocks);
            queue.room.holds(&promised, self)
        })
    }

    pub(crate) fn unpromise(&self, queue: &mut Queue, pending: &Pending) {
        queue.bytes = queue.bytes.saturating_sub(pending.bytes());
        queue.log_bytes = queue.log_bytes.saturating_sub(pending.log_bytes());
        if let What::Put(put) = &pending.what {
            let (kind, blocks) = shape_of(self, &pending.name, put);
            let mut room = Room::default();
            room.add(kind, blocks);
            let promised = &mut queue.promised;
            promised.units = promised.units.saturating_sub(room.units);
            promised.slots = promised.slots.saturating_sub(room.slots);
            promised.blocks = promised.blocks.saturating_sub(room.blocks);
        }
    }
}

impl Regions {
    /// Waits until changes may come in: while the log is nearly full, or too much waits, what is there goes first.
    async fn enter(&self, size: u64) -> Result<()> {
        let shared = &self.0;
        if !shared.has_room(size) {
            self.drain(Force { flush: true, log: true }).await?;
            // Each round gives one region back, or nothing.
            while !shared.has_room(size) && self.make_room().await? {}
        }
        loop {
            shared.alive()?;
            let log_blocks = shared.disk.layout.log_blocks;
            let wants = shared.wants_checkpoint.load(Ordering::Relaxed);
            if shared.log_used.load(Ordering::Relaxed) * 8 > log_blocks * 5 {
                self.checkpoint().await?;
                continue;
            }
            if wants && shared.wants_checkpoint.swap(false, Ordering::Relaxed) {
                let me = self.clone();
                drop(shared.env.spawn(async move { me.checkpoint().await }));
            }
            let (bytes, log_bytes) = {
                let queue = shared.queue.lock();
                (queue.bytes, queue.log_bytes)
            };
            if bytes > shared.memory.waiting() || log_bytes * 8 > log_blocks * BLOCK_LEN as u64 {
                self.drain(Force::default()).await?;
                if shared.queue.lock().bytes > shared.memory.waiting() {
                    self.drain(Force { flush: true, log: true }).await?;
                }
            }
            return Ok(());
        }
    }

    /// The object that a change makes of what is there: `make` is asked under the lock of the name, after the condition.
    pub(crate) async fn change(
        &self,
        name: &Name,
        condition: Condition,
        durability: Durability,
        size: u64,
        make: impl AsyncFnOnce(Option<u64>) -> Result<Put>,
    ) -> Result<Stat> {
        let shared = &self.0;
        self.enter(size).await?;
        let id = shared.id(name);
        let sync = durability == Durability::Sync;
        let (pending, stat) = {
            let _gate = shared.gate.read().await;
            let _lock = shared.locks[(id % shared.locks.len() as u128) as usize].lock().await;
            let version = shared.version(id).await?;
            if !condition.holds(version) {
                return Err(Error::Condition(name.clone()));
            }
            let put = make(version).await?;
            shared.admit(&put)?;
            let (size, modified, checksum) = (put.size, put.modified, put.checksum);
            let attributes = put.attributes.clone();
            let pending = self.queue(name, id, What::Put(put), sync).await?;
            if version.is_none() {
                shared.count(name, true);
            }
            let version = pending.number;
            (pending, Stat { name: name.clone(), size, version, modified, checksum, attributes })
        };
        self.settle(&pending).await?;
        Ok(stat)
    }

    /// Queues a change; if there is no room, what waits is written and what was deleted is given back first.
    async fn queue(&self, name: &Name, id: u128, what: What, sync: bool) -> Result<Arc<Pending>> {
        let what = match self.0.enqueue(name, id, what, sync) {
            Ok(pending) => return Ok(pending),
            Err(what) => what,
        };
        self.drain(Force { flush: true, log: true }).await?;
        self.0.enqueue(name, id, what, sync).map_err(|_| Error::NoSpace)
    }

    /// Deletes an object.
    pub(crate) async fn end(&self, name: &Name, condition: Condition, durability: Durability) -> Result<()> {
        let shared = &self.0;
        self.enter(0).await?;
        let id = shared.id(name);
        let pending = {
            let _gate = shared.gate.read().await;
            let _lock = shared.locks[(id % shared.locks.len() as u128) as usize].lock().await;
            let version = shared.version(id).await?;
            if !condition.holds(version) {
                return Err(Error::Condition(name.clone()));
            }
            if version.is_none() {
                return Err(Error::NotFound(name.clone()));
            }
            self.queue(name, id, What::Deleted, durability == Durability::Sync).await?
        };
        self.settle(&pending).await
    }

    /// Makes one object of others. The locks of all names are taken in order.
    pub(crate) async fn join(
        &self,
        name: &Name,
        parts: &[Name],
        condition: Condition,
        durability: Durability,
        make: impl AsyncFnOnce() -> Result<Put>,
    ) -> Result<Stat> {
        let shared = &self.0;
        self.enter(0).await?;
        let id = shared.id(name);
        let ids: Vec<u128> = parts.iter().map(|part| shared.id(part)).collect();
        let count = shared.locks.len() as u128;
        let mut order: Vec<usize> = ids.iter().chain([&id]).map(|id| (id % count) as usize).collect();
        order.sort_unstable();
        order.dedup();
        let (pending, stat) = {
            let _gate = shared.gate.read().await;
            let mut held = Vec::with_capacity(order.len());
            for lock in order {
                held.push(shared.locks[lock].lock().await);
            }
            let version = shared.version(id).await?;
            if !condition.holds(version) {
                return Err(Error::Condition(name.clone()));
            }
            let mut distinct: Vec<u128> = ids.clone();
            distinct.sort_unstable();
            distinct.dedup();
            if distinct.len() < parts.len() || ids.contains(&id) {
                return Err(Error::Misuse(format!("{name} is composed of itself, or of a part that is given twice")));
            }
            for (part, id) in parts.iter().zip(&ids) {
                if shared.version(*id).await?.is_none() {
                    return Err(Error::NotFound(part.clone()));
                }
            }
            let mut put = make().await?;
            put.ends = ids.into_iter().zip(parts.iter().cloned()).collect();
            shared.admit(&put)?;
            let log: u64 = parts.iter().map(|part| 48 + part.as_bytes().len() as u64).sum();
            let limit = shared.disk.layout.log_blocks * BLOCK_LEN as u64 / 4;
            if log > limit {
                return Err(Error::TooLarge { what: "the list of parts", size: log, limit });
            }
            let (size, modified, checksum) = (put.size, put.modified, put.checksum);
            let attributes = put.attributes.clone();
            let pending = self.queue(name, id, What::Put(put), durability == Durability::Sync).await?;
            if version.is_none() {
                shared.count(name, true);
            }
            let version = pending.number;
            (pending, Stat { name: name.clone(), size, version, modified, checksum, attributes })
        };
        self.settle(&pending).await?;
        Ok(stat)
    }

    /// Waits for what was asked to be durable; sees that the rest does not wait too long.
    async fn settle(&self, pending: &Arc<Pending>) -> Result<()> {
        let shared = &self.0;
        if pending.sync {
            return self.drain_until(pending).await;
        }
        let alone = {
            let mut queue = shared.queue.lock();
            !std::mem::replace(&mut queue.timer, true)
        };
        if alone {
            let (weak, env) = (Arc::downgrade(shared), shared.env.clone());
            drop(shared.env.spawn(async move {
                env.sleep(WAIT_MAX).await;
                if let Some(shared) = weak.upgrade() {
                    shared.queue.lock().timer = false;
                    // Who comes next learns of an error.
                    let _ = Regions(shared).drain(Force { flush: false, log: true }).await;
                }
            }));
        }
        Ok(())
    }
}
