//! Inodes in memory: loaded when they are first asked for. The invariants are those of `ashlar_inodes`.

use crate::Files;
use crate::data::SIZE_MAX;
use crate::keys::{self, Contents, Record, damaged, decode_record};
use ashlar_inodes::{Counted, InodeStore};
use ashlar_pool::{Applied, Txn, Volume};
use ashlar_vfs::{Errno, Ino, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// Where a name of it was last seen: the directory, and the position there. For [`crate::ahead`] alone: it may be gone.
pub(crate) type Seen = Option<(Ino, u64)>;
pub(crate) type State = ashlar_inodes::State<Contents, Seen>;
type Cell = OnceCell<Mutex<State>>;
/// Under the shared lock of an inode, its data are overwritten in place too.
pub(crate) type Inode = ashlar_inodes::Inode<Cell>;
pub(crate) type Table = ashlar_inodes::Table<Cell>;

impl Files {
    /// As [`InodeStore::load`], for a number that an entry names: it must exist.
    pub(crate) async fn named(&self, ino: Ino) -> Result<Arc<Inode>> {
        match self.load(ino).await {
            Err(error) if error.errno == Errno::Stale => {
                Err(damaged(format!("an entry names inode {ino}, which does not exist")).into())
            }
            other => other,
        }
    }
}

impl Files {
    /// Commits `txn` together with changed records; see [`Files::apply_records`].
    pub(crate) async fn commit_records(&self, txn: Txn, changed: Vec<(&Arc<Inode>, Record)>) -> Result<()> {
        Ok(self.apply_records(txn, changed).await?.settle().await.map(drop)?)
    }

    /// Applies `txn` together with changed records, which become those of these inodes before anybody sees one without another;
    /// see [`InodeStore::apply_record`]. The caller holds their locks.
    async fn apply_records(&self, mut txn: Txn, changed: Vec<(&Arc<Inode>, Record)>) -> Result<Applied<'_>> {
        changed.iter().for_each(|(_, record)| self.put_record(&mut txn, record));
        let applied = self.volume.apply(txn).await?;
        for (inode, record) in changed {
            let mut state = inode.state();
            state.adopt(record, applied.seq);
            state.stored_changed();
        }
        Ok(applied)
    }
}

impl InodeStore for Files {
    type Cell = Cell;
    const SIZE_MAX: u64 = SIZE_MAX;

    fn volume(&self) -> &Volume {
        &self.volume
    }
    fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    async fn load(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.table.shard(ino).entry(ino).or_insert_with(|| Inode::new(ino, OnceCell::new())).clone();
        inode.mark();
        let read = || async {
            let value = self.volume.get(&keys::inode(ino)).await?.ok_or(Errno::Stale)?;
            // Which commit concerned it last is not known any more, but it was not a later one.
            Ok::<_, ashlar_vfs::Error>(Mutex::new(State::new(decode_record(ino, &value)?, None, self.pool().newest())))
        };
        match inode.cell.get_or_try_init(read).await {
            Ok(_) => Ok(inode),
            Err(error) => {
                self.remove_unused(inode);
                Err(error)
            }
        }
    }

    async fn apply_record(&self, txn: Txn, inode: &Arc<Inode>, record: Record) -> Result<Applied<'_>> {
        self.apply_records(txn, vec![(inode, record)]).await
    }

    async fn write_record(&self, inode: &Arc<Inode>) -> Result<()> {
        let _lock = inode.lock.write().await;
        let record = inode.state().unwritten();
        match record.filter(|record| record.links > 0) {
            Some(record) => self.commit_record(Txn::new(), inode, record).await,
            None => Ok(()),
        }
    }

    async fn resize(&self, txn: Txn, inode: &Arc<Inode>, record: Record, size: u64) -> Result<()> {
        self.change_size(txn, inode, record, size).await
    }

    async fn count_stored(&self, inode: &Arc<Inode>) -> Result<Counted> {
        self.count_blocks(inode).await
    }

    async fn reap(&self, inode: &Arc<Inode>) -> Result<()> {
        let _lock = inode.lock.write().await;
        if inode.state().reaped {
            return Ok(());
        }
        self.reap_record(&inode.record()).await?;
        let mut state = inode.state();
        (state.dirty, state.reaped) = (false, true);
        Ok(())
    }

    fn remove_unused(&self, inode: Arc<Inode>) {
        let mut shard = self.table.shard(inode.ino);
        let unused = inode.cell.get().is_none_or(|state| {
            let state = state.lock();
            !state.is_used() && !state.dirty
        });
        let known = shard.get(&inode.ino).is_some_and(|known| Arc::ptr_eq(known, &inode));
        if unused && known && Arc::strong_count(&inode) == 2 {
            shard.remove(&inode.ino);
        }
        // Before the shard is free: of two who let go at once, the second must not find the first.
        drop(inode);
    }
}
