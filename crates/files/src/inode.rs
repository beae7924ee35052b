//! Inodes in memory.
//!
//! Invariants
//!  1. Whoever commits a change of an inode's record holds its lock for writing from reading the record to the commit, so
//!     that records reach the log in the order in which memory changed.
//!  2. Locks of several inodes are taken in order of their numbers.

use crate::Files;
use crate::keys::{self, Record, damaged};
use ashlar_pool::Seq;
use ashlar_vfs::{Errno, Ino, ROOT, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::{OnceCell, OwnedRwLockWriteGuard, RwLock};

const SHARDS: usize = 64;

/// What is known of an inode.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) record: Record,
    /// References that the door holds.
    pub(crate) lookups: u64,
    /// Open handles that the door counts.
    pub(crate) handles: u64,
    /// The record in memory is newer than the one in the dictionary.
    pub(crate) dirty: bool,
    /// The newest commit that concerns this inode.
    pub(crate) seq: Seq,
    /// Stored blocks of a sparse file, if they have been counted since it changed.
    pub(crate) counted: Option<u64>,
    /// Goes up with every change of what is stored.
    pub(crate) version: u64,
    /// Its record, attributes and data are gone.
    pub(crate) reaped: bool,
}

impl State {
    pub(crate) fn new(record: Record) -> State {
        State {
            record,
            lookups: 0,
            handles: 0,
            dirty: false,
            seq: Seq::default(),
            counted: None,
            version: 0,
            reaped: false,
        }
    }
    /// What is stored has changed.
    pub(crate) fn stored_changed(&mut self) {
        self.counted = None;
        self.version += 1;
    }
    fn is_used(&self) -> bool {
        self.lookups > 0 || self.handles > 0
    }
}

pub(crate) struct Inode {
    pub(crate) ino: Ino,
    state: OnceCell<Mutex<State>>,
    /// Shared: reading data, and overwriting it in place. Exclusive: everything that changes the record or a directory.
    pub(crate) lock: Arc<RwLock<()>>,
    /// Asked for since the clock hand last came by.
    recent: AtomicBool,
}

impl Inode {
    fn new(ino: Ino, state: OnceCell<Mutex<State>>) -> Inode {
        Inode { ino, state, lock: Arc::default(), recent: AtomicBool::new(true) }
    }
    /// The state, which is there once an inode has left the table's care.
    pub(crate) fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.get().expect("an inode is handed out when it is loaded").lock()
    }
    pub(crate) fn record(&self) -> Record {
        self.state().record.clone()
    }
}

/// All inodes in memory.
pub(crate) struct Table {
    shards: [Mutex<HashMap<Ino, Arc<Inode>>>; SHARDS],
    /// Where the clock hand is: see [`Table::surplus`].
    hand: AtomicUsize,
}

impl Default for Table {
    fn default() -> Table {
        Table { shards: std::array::from_fn(|_| Mutex::default()), hand: AtomicUsize::new(0) }
    }
}

impl Table {
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Arc<Inode>>> {
        &self.shards[ino as usize % SHARDS]
    }
    /// The inode in memory, loaded or not.
    fn entry(&self, ino: Ino) -> Arc<Inode> {
        let make = || Arc::new(Inode::new(ino, OnceCell::new()));
        self.shard(ino).lock().entry(ino).or_insert_with(make).clone()
    }
    /// Adds a new inode.
    pub(crate) fn insert(&self, ino: Ino, state: State) -> Arc<Inode> {
        let inode = Arc::new(Inode::new(ino, OnceCell::new_with(Some(Mutex::new(state)))));
        self.shard(ino).lock().insert(ino, inode.clone());
        inode
    }
    /// Drops an inode that nobody uses. The caller's reference is the only one besides the table's.
    pub(crate) fn remove_unused(&self, inode: &Arc<Inode>) {
        let mut shard = self.shard(inode.ino).lock();
        let unused = inode.state.get().is_none_or(|state| {
            let state = state.lock();
            !state.is_used() && !state.dirty
        });
        if unused
            && Arc::strong_count(inode) == 2
            && shard.get(&inode.ino).is_some_and(|known| Arc::ptr_eq(known, inode))
        {
            shard.remove(&inode.ino);
        }
    }
    /// Every inode that is newer in memory than in the dictionary.
    pub(crate) fn dirty(&self) -> Vec<Arc<Inode>> {
        let is_dirty = |inode: &&Arc<Inode>| inode.state.get().is_some_and(|state| state.lock().dirty);
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

impl Files {
    /// The inode with this number; `Stale` if there is none.
    pub(crate) async fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.table.entry(ino);
        inode.recent.store(true, Ordering::Relaxed);
        let loaded = inode
            .state
            .get_or_try_init(|| async {
                let value = self.volume.get(&keys::inode(ino)).await?.ok_or(Errno::Stale)?;
                let mut state = State::new(Record::decode(&value)?);
                // Which commit concerned it last is not known any more, but it was not a later one.
                state.seq = self.pool().newest();
                Ok::<_, ashlar_vfs::Error>(Mutex::new(state))
            })
            .await;
        match loaded {
            Ok(_) => Ok(inode),
            Err(error) => {
                self.table.remove_unused(&inode);
                Err(error)
            }
        }
    }

    /// As [`Files::inode`], for a number that an entry names: it must exist.
    pub(crate) async fn named(&self, ino: Ino) -> Result<Arc<Inode>> {
        match self.inode(ino).await {
            Err(error) if error.errno == Errno::Stale => {
                Err(damaged(format!("an entry names inode {ino}, which does not exist")).into())
            }
            other => other,
        }
    }

    /// Lets go of an inode: if nobody uses it, it is written, and forgotten or, without names, reaped.
    pub(crate) async fn let_go(&self, inode: Arc<Inode>) {
        let (used, dirty, links) = {
            let state = inode.state();
            (state.is_used(), state.dirty, state.record.links)
        };
        if !used {
            if links == 0 {
                // If this fails, the orphan's key makes the next opening try again.
                drop(self.reap(&inode).await);
            } else if dirty {
                drop(self.write_record(&inode).await);
            }
            self.table.remove_unused(&inode);
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
