//! Inodes in memory, and where each of them is.
//!
//! An inode knows the directory that it lies in, not its path: when a directory moves or becomes a zone of its own, all below
//! follows. So the directories above an inode in memory are in memory.
//!
//! Invariants
//!  1. Places of directories change only under [`Betr::shape`] held for writing, and that of a file under its lock held for
//!     writing; who computes a key holds the shape for reading until the commit, and for a key of a file its lock.
//!  2. Whoever commits a change of an inode's record holds its lock for writing from reading the record to the commit, or
//!     the shape for writing. Locks of several inodes are taken in order of their numbers, after the shape.
//!  3. What is read from the dictionary becomes an inode only if no inode left memory since before the reading: see
//!     [`Table::admit`].

use crate::Betr;
use crate::data::SIZE_MAX;
use crate::keys::Place;
use crate::record::{Contents, Record};
use crate::seen::{Epoch, keep_epoch};
use ashlar_inodes::{Counted, InodeStore};
use ashlar_pool::{Applied, Txn, Volume};
use ashlar_vfs::{Errno, Ino, ROOT, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Of a directory that was read: how much was added before is not known, so its sums are looked at with the next addition.
/// Who only removes, as `rm -r` does in every directory, does not look.
pub(crate) const GROWN_UNKNOWN: u64 = u64::MAX / 2;

/// What is noted of an inode besides its attributes.
pub struct Own {
    pub(crate) spot: Spot,
    /// Of a directory: bytes added below since its sums were looked at.
    pub(crate) grown: u64,
    /// Of a file: since when its contents are as they are known.
    pub(crate) epoch: Epoch,
}

impl Own {
    /// Of an inode that is read from the dictionary.
    pub(crate) fn at(spot: Spot) -> Own {
        Own { spot, grown: GROWN_UNKNOWN, epoch: Epoch::default() }
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

pub(crate) type State = ashlar_inodes::State<Contents, Own>;
type Cell = Mutex<State>;
/// Under the shared lock of an inode, contents are only read.
pub(crate) type Inode = ashlar_inodes::Inode<Cell>;

/// What follows from the spots of an inode and of those above it. The caller holds the shape.
pub(crate) trait Placed {
    /// Where it is, as keys have it.
    fn place(&self) -> Place;
    /// The directories from this one up to the root of its zone.
    fn up_to_zone(&self) -> Vec<Arc<Inode>>;
}

impl Placed for Arc<Inode> {
    fn place(&self) -> Place {
        let mut positions = Vec::new();
        let mut at = self.clone();
        loop {
            let next = match &at.state().own.spot {
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

    fn up_to_zone(&self) -> Vec<Arc<Inode>> {
        let mut all = vec![self.clone()];
        loop {
            let next = match &all[all.len() - 1].state().own.spot {
                Spot::Named(above) => above.directory.clone(),
                _ => break,
            };
            all.push(next);
        }
        all
    }
}

/// All inodes in memory.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) all: ashlar_inodes::Table<Cell>,
    /// Inodes that left.
    evictions: AtomicU64,
}

impl Table {
    /// Inodes that have left so far: see [`Table::admit`].
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::SeqCst)
    }
    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        let inode = self.all.shard(ino).get(&ino).cloned()?;
        inode.mark();
        Some(inode)
    }
    /// Adds what was read from the dictionary after `before` evictions, unless it is here. `None`: an inode left meanwhile,
    /// so it may have been this one, with changes that were not read. The caller reads again.
    pub(crate) fn admit(&self, before: u64, state: State) -> Option<Arc<Inode>> {
        let ino = state.record.ino;
        let mut shard = self.all.shard(ino);
        if let Some(inode) = shard.get(&ino) {
            return Some(inode.clone());
        }
        if self.evictions() != before {
            return None;
        }
        let inode = Inode::new(ino, Mutex::new(state));
        shard.insert(ino, inode.clone());
        Some(inode)
    }
}

impl Betr {
    /// The inode with this number, which somebody holds.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.table.get(ino).ok_or_else(|| Errno::Stale.into())
    }
}

/// Who calls what takes long holds the shape.
impl InodeStore for Betr {
    type Cell = Cell;
    const SIZE_MAX: u64 = SIZE_MAX;

    fn volume(&self) -> &Volume {
        &self.volume
    }
    fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    async fn load(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.inode(ino)
    }

    async fn apply_record(&self, mut txn: Txn, inode: &Arc<Inode>, record: Record) -> Result<Applied<'_>> {
        self.put_record(&mut txn, inode, &record);
        self.count_change(&mut txn, inode, &record);
        let applied = self.volume.apply(txn).await?;
        let mut state = inode.state();
        state.adopt(record, applied.seq);
        state.stored_changed();
        Ok(applied)
    }

    async fn settle_record(&self, applied: Applied<'_>, inode: &Arc<Inode>) -> Result<()> {
        applied.settle().await?;
        self.look_at_sums(inode).await
    }

    async fn write_record(&self, inode: &Arc<Inode>) -> Result<()> {
        let _lock = inode.lock.write().await;
        let (unwritten, version) = {
            let state = inode.state();
            (state.unwritten(), state.version)
        };
        let Some(record) = unwritten else { return Ok(()) };
        let applied = self.apply_record(Txn::new(), inode, record).await?;
        // These are times: contents are what they were.
        keep_epoch(&mut inode.state(), version);
        self.settle_record(applied, inode).await
    }

    async fn resize(&self, txn: Txn, inode: &Arc<Inode>, record: Record, size: u64) -> Result<()> {
        self.change_size(txn, inode, record, size).await
    }

    async fn count_stored(&self, inode: &Arc<Inode>) -> Result<Counted> {
        self.count_blocks(inode).await
    }

    async fn reap(&self, inode: &Arc<Inode>) -> Result<()> {
        let _lock = inode.lock.write().await;
        let record = {
            let state = inode.state();
            if state.reaped || state.is_used() {
                return Ok(());
            }
            state.record.clone()
        };
        let mut txn = Txn::new().deleting();
        self.forget_orphan(&mut txn, &inode.place(), &record);
        let applied = self.volume.apply(txn).await?;
        self.orphans.lock().remove(&inode.ino);
        {
            let mut state = inode.state();
            (state.dirty, state.reaped) = (false, true);
        }
        Ok(applied.settle().await.map(drop)?)
    }

    /// The directories above it follow, if nobody uses them either.
    fn remove_unused(&self, inode: Arc<Inode>) {
        let mut next = Some(inode);
        while let Some(inode) = next.take() {
            let mut shard = self.table.all.shard(inode.ino);
            let mut state = inode.state();
            let unused = !state.is_used() && (!state.dirty || state.reaped) && inode.ino != ROOT;
            if !unused || Arc::strong_count(&inode) != 2 {
                // Before the shard is free: of two who let go at once, the second must not find the first.
                drop(state);
                drop(inode);
                return;
            }
            if shard.remove(&inode.ino).is_some() {
                self.table.evictions.fetch_add(1, Ordering::SeqCst);
            }
            let spot = std::mem::replace(&mut state.own.spot, Spot::Root(0, None));
            drop((state, shard));
            if let Spot::Named(above) | Spot::Root(_, Some(above)) = spot {
                next = Some(above.directory);
            }
        }
    }
}
