//! Inodes in memory, and where each of them is.
//!
//! An inode knows the directory that it lies in, not its path: when a directory moves or becomes a zone of its own, all below
//! follows. So the directories above an inode in memory are in memory.
//!
//! Invariants
//!  1. Places change only under [`Betr::shape`] held for writing; who computes a key holds it for reading until the commit.
//!  2. Whoever commits a change of an inode's record holds its lock for writing from reading the record to the commit, or
//!     the shape for writing. Locks of several inodes are taken in order of their numbers, after the shape.
//!  3. What is read from the dictionary becomes an inode only if no inode left memory since before the reading: see
//!     [`Table::admit`].

use crate::Betr;
use crate::keys::Place;
use crate::record::Record;
use ashlar_pool::Seq;
use ashlar_vfs::{Errno, Ino, ROOT, Result};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};

const SHARDS: usize = 64;

/// A name of an inode.
#[derive(Clone)]
pub(crate) struct Above {
    pub(crate) directory: Arc<Inode>,
    pub(crate) position: u64,
    pub(crate) name: Bytes,
}

impl Above {
    pub(crate) fn is(&self, directory: &Arc<Inode>, position: u64) -> bool {
        Arc::ptr_eq(&self.directory, directory) && self.position == position
    }
}

/// Where an inode is.
#[derive(Clone)]
pub(crate) enum Spot {
    /// Under its only name, in the zone of the directory above.
    Named(Above),
    /// The root of a zone; one of its names, if that is known and not the root directory.
    Root(u64, Option<Above>),
    /// Without a name: its contents lie where they lay when it had one.
    Orphan(Place),
}

/// What is known of an inode.
pub(crate) struct State {
    pub(crate) record: Record,
    pub(crate) spot: Spot,
    /// References that the door holds.
    pub(crate) lookups: u64,
    /// Open handles that the door counts.
    pub(crate) handles: u64,
    /// The record in memory is newer than the one in the dictionary: times.
    pub(crate) dirty: bool,
    /// The newest commit that concerns this inode.
    pub(crate) seq: Seq,
    /// Stored blocks of a sparse file, if they have been counted since it changed.
    pub(crate) counted: Option<u64>,
    /// Goes up with every change of what is stored.
    pub(crate) version: u64,
    /// Everything of it is gone.
    pub(crate) reaped: bool,
    /// Of a directory: bytes added below since its sums were looked at.
    pub(crate) grown: u64,
}

impl State {
    pub(crate) fn new(record: Record, spot: Spot, seq: Seq) -> State {
        State {
            record,
            spot,
            lookups: 0,
            handles: 0,
            dirty: false,
            seq,
            counted: None,
            version: 0,
            reaped: false,
            // How much was added before is not known.
            grown: u64::MAX / 2,
        }
    }
    /// What is stored has changed.
    pub(crate) fn stored_changed(&mut self) {
        self.counted = None;
        self.version += 1;
    }
    pub(crate) fn is_used(&self) -> bool {
        self.lookups > 0 || self.handles > 0
    }
    pub(crate) fn above(&self) -> Option<&Above> {
        match &self.spot {
            Spot::Named(above) | Spot::Root(_, Some(above)) => Some(above),
            _ => None,
        }
    }
    pub(crate) fn is_root_of_zone(&self) -> bool {
        matches!(self.spot, Spot::Root(..))
    }
}

/// An inode.
pub(crate) struct Inode {
    pub(crate) ino: Ino,
    state: Mutex<State>,
    /// Shared: reading contents. Exclusive: everything that changes the record, the contents or a directory.
    pub(crate) lock: Arc<RwLock<()>>,
    /// Asked for since the clock hand last came by.
    recent: AtomicBool,
}

impl Inode {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
    pub(crate) fn record(&self) -> Record {
        self.state().record.clone()
    }

    /// Where it is, as keys have it. The caller holds the shape.
    pub(crate) fn place(self: &Arc<Self>) -> Place {
        let mut positions = Vec::new();
        let mut at = self.clone();
        loop {
            let next = match &at.state().spot {
                Spot::Orphan(place) => return place.clone(), // nothing lies below an orphan
                Spot::Root(zone, _) => {
                    positions.reverse();
                    return Place::at(*zone, &positions);
                }
                Spot::Named(above) => {
                    positions.push(above.position);
                    above.directory.clone()
                }
            };
            at = next;
        }
    }

    /// The directories from this one up to the root of its zone. The caller holds the shape.
    pub(crate) fn up_to_zone(self: &Arc<Self>) -> Vec<Arc<Inode>> {
        let mut all = vec![self.clone()];
        loop {
            let next = match &all[all.len() - 1].state().spot {
                Spot::Named(above) => above.directory.clone(),
                _ => break,
            };
            all.push(next);
        }
        all
    }
}

/// All inodes in memory.
pub(crate) struct Table {
    shards: [Mutex<HashMap<Ino, Arc<Inode>>>; SHARDS],
    /// Inodes that left.
    evictions: AtomicU64,
    /// Where the clock hand is: see [`Table::surplus`].
    hand: AtomicUsize,
}

impl Default for Table {
    fn default() -> Table {
        let shards = std::array::from_fn(|_| Mutex::default());
        Table { shards, evictions: AtomicU64::new(0), hand: AtomicUsize::new(0) }
    }
}

impl Table {
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Arc<Inode>>> {
        &self.shards[ino as usize % SHARDS]
    }
    /// Inodes that have left so far: see [`Table::admit`].
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::SeqCst)
    }
    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        let inode = self.shard(ino).lock().get(&ino).cloned()?;
        inode.recent.store(true, Ordering::Relaxed);
        Some(inode)
    }
    /// Adds what was read from the dictionary after `before` evictions, unless it is here. `None`: an inode left meanwhile,
    /// so it may have been this one, with changes that were not read. The caller reads again.
    pub(crate) fn admit(&self, before: u64, state: State) -> Option<Arc<Inode>> {
        let ino = state.record.ino;
        let mut shard = self.shard(ino).lock();
        if let Some(inode) = shard.get(&ino) {
            return Some(inode.clone());
        }
        if self.evictions() != before {
            return None;
        }
        Some(Self::insert_into(&mut shard, state))
    }
    /// Adds a new inode.
    pub(crate) fn insert(&self, state: State) -> Arc<Inode> {
        Self::insert_into(&mut self.shard(state.record.ino).lock(), state)
    }
    fn insert_into(shard: &mut HashMap<Ino, Arc<Inode>>, state: State) -> Arc<Inode> {
        let (ino, recent) = (state.record.ino, AtomicBool::new(true));
        let inode = Arc::new(Inode { ino, state: Mutex::new(state), lock: Arc::default(), recent });
        shard.insert(ino, inode.clone());
        inode
    }
    /// Drops an inode that nobody uses, and then the directories above it. The caller's reference is the only one besides the
    /// table's.
    pub(crate) fn remove_unused(&self, inode: Arc<Inode>) {
        let mut next = Some(inode);
        while let Some(inode) = next.take() {
            let mut shard = self.shard(inode.ino).lock();
            let mut state = inode.state();
            let unused = !state.is_used() && (!state.dirty || state.reaped) && inode.ino != ROOT;
            if !unused || Arc::strong_count(&inode) != 2 {
                return;
            }
            if shard.remove(&inode.ino).is_some() {
                self.evictions.fetch_add(1, Ordering::SeqCst);
            }
            let spot = std::mem::replace(&mut state.spot, Spot::Root(0, None));
            drop((state, shard));
            if let Spot::Named(above) | Spot::Root(_, Some(above)) = spot {
                next = Some(above.directory);
            }
        }
    }
    /// Every inode that is newer in memory than in the dictionary.
    pub(crate) fn dirty(&self) -> Vec<Arc<Inode>> {
        let is_dirty = |inode: &&Arc<Inode>| inode.state().dirty;
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().values().filter(is_dirty).cloned().collect::<Vec<_>>())
            .collect()
    }
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
    /// With more than `most` inodes: about as many as it takes to be an eighth below, by second chance.
    pub(crate) fn surplus(&self, most: usize) -> Vec<Ino> {
        let held = self.len();
        let wanted = if held > most { held - most / 8 * 7 } else { 0 };
        let mut chosen = Vec::new();
        for _ in 0..2 * SHARDS {
            if chosen.len() >= wanted {
                break;
            }
            let shard = self.hand.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let idle = |inode: &&Arc<Inode>| !inode.recent.swap(false, Ordering::Relaxed) && inode.ino != ROOT;
            chosen.extend(self.shards[shard].lock().values().filter(idle).map(|inode| inode.ino));
        }
        chosen
    }
}

impl Betr {
    /// The inode with this number, which somebody holds.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.table.get(ino).ok_or_else(|| Errno::Stale.into())
    }

    /// Lets go of an inode: if nobody uses it, it is written, and forgotten or, without names, reaped. The caller holds the
    /// shape, and no lock of the inode.
    pub(crate) async fn let_go(&self, inode: Arc<Inode>) {
        let (used, dirty, gone) = {
            let state = inode.state();
            (state.is_used(), state.dirty, state.record.links == 0)
        };
        if !used {
            if gone {
                // If this fails, the orphan's key makes the next opening try again.
                drop(self.reap(&inode).await);
            } else if dirty {
                drop(self.write_record(&inode).await);
            }
            self.table.remove_unused(inode);
        }
    }
}

/// Locks inodes for writing, in order of their numbers; the same inode may be named twice.
pub(crate) async fn lock_all(inodes: &[&Arc<Inode>]) -> Vec<OwnedRwLockWriteGuard<()>> {
    let mut order: Vec<&Arc<Inode>> = inodes.to_vec();
    order.sort_by_key(|inode| inode.ino);
    order.dedup_by_key(|inode| inode.ino);
    let mut guards = Vec::with_capacity(order.len());
    for inode in order {
        guards.push(inode.lock.clone().write_owned().await);
    }
    guards
}
