//! Inodes: what file engines have in common that keep inodes in a volume's dictionary.
//!
//! An engine says where names and contents lie. Here is what does not depend on that: attributes and how they change, extended
//! attributes and access control lists, the table of inodes in memory, numbers, rules about names. An engine implements [`InodeStore`],
//! and what it offers to its door is in part what the functions here make of that.
//!
//! Invariants
//!  1. Whoever commits a change of an inode's record holds its lock for writing from reading the record to the commit, so
//!     that records reach the log in the order in which memory changed; or what keeps everybody else out, where an engine has that.
//!  2. Locks of several inodes are taken in order of their numbers: [`lock_all`].
//!  3. Only times, and whether a file has holes, are newer in memory than in the dictionary; [`Table::write_back`] writes them.
//!  4. A number is given after the dictionary has noted that it may be in use: [`Numbers`].
//!
//! Layout    head and tail of a [`Record`], keys of extended attributes, counters. What lies between, and all other keys, are the
//!           engine's.

mod ahead;
mod attributes;
mod contents;
mod fresh;
mod inode;
mod mend;
mod names;
mod numbers;
mod record;
mod room;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod uses;

pub use ahead::*;
pub use attributes::*;
pub use contents::*;
pub use fresh::*;
pub use inode::*;
pub use mend::*;
pub use names::*;
pub use numbers::*;
pub use record::{Contents, Record};
pub use room::*;
pub use uses::*;

use ashlar_pool::{Applied, Pool, Txn, Volume};
use ashlar_vfs::{Errno, Ino, Result, StatFs, Time};
use bytes::Bytes;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// Times that changed in memory alone are written after this long.
pub const WRITE_BACK_INTERVAL: Duration = Duration::from_secs(5);
/// Keys read at once.
pub const PAGE: usize = 1024;

/// An engine, as far as inodes go.
pub trait InodeStore: Send + Sync {
    /// What holds the state of an inode.
    type Cell: Cell;
    /// Longest file, in bytes.
    const SIZE_MAX: u64;

    /// Where everything is stored.
    fn volume(&self) -> &Volume;
    /// Whether nothing may change: of a snapshot, or because of damage.
    fn is_read_only(&self) -> bool;
    /// The inode with this number; `Stale` if there is none.
    fn load(&self, ino: Ino) -> impl Future<Output = Result<Arc<Inode<Self::Cell>>>> + Send;
    /// Applies `txn` together with a changed record, which is the inode's as soon as others see the transaction. An error says that
    /// nothing was applied; what comes of settling changes nothing any more. The caller holds the inode's lock.
    fn apply_record(
        &self,
        txn: Txn,
        inode: &Arc<Inode<Self::Cell>>,
        record: RecordOf<Self::Cell>,
    ) -> impl Future<Output = Result<Applied<'_>>> + Send;
    /// Settles what was applied with the record of an inode.
    fn settle_record(
        &self,
        applied: Applied<'_>,
        _inode: &Arc<Inode<Self::Cell>>,
    ) -> impl Future<Output = Result<()>> + Send {
        async { Ok(applied.settle().await.map(drop)?) }
    }
    /// Applies and settles.
    fn commit_record(
        &self,
        txn: Txn,
        inode: &Arc<Inode<Self::Cell>>,
        record: RecordOf<Self::Cell>,
    ) -> impl Future<Output = Result<()>> + Send {
        async move {
            let applied = self.apply_record(txn, inode, record).await?;
            self.settle_record(applied, inode).await
        }
    }
    /// Writes a record that is newer in memory.
    fn write_record(&self, inode: &Arc<Inode<Self::Cell>>) -> impl Future<Output = Result<()>> + Send;
    /// Changes the size of a file to no more than the longest, and what is in `txn`; `record` is the inode's with other changes
    /// applied. The caller holds the lock for writing.
    fn resize(
        &self,
        txn: Txn,
        inode: &Arc<Inode<Self::Cell>>,
        record: RecordOf<Self::Cell>,
        size: u64,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Counts the blocks of a sparse file that are stored.
    fn count_stored(&self, inode: &Arc<Inode<Self::Cell>>) -> impl Future<Output = Result<Counted>> + Send;
    /// Forgets an inode without names. Several may let go of it, one after another.
    fn reap(&self, inode: &Arc<Inode<Self::Cell>>) -> impl Future<Output = Result<()>> + Send;
    /// Drops an inode from memory that nobody uses. The caller's reference is the only one besides the table's.
    fn remove_unused(&self, inode: Arc<Inode<Self::Cell>>);

    /// What the clock says.
    fn now(&self) -> Time {
        Time::from(self.volume().pool().env().wall())
    }
    /// Refuses changes where nothing may change.
    fn admit_change(&self) -> Result<()> {
        if self.is_read_only() { Err(Errno::ReadOnly.into()) } else { Ok(()) }
    }
}

/// Notices that a name leads to an inode without names, again and again: then it is damaged, and whoever looks for it would look for
/// ever.
#[derive(Default)]
pub struct Gone {
    ino: Ino,
    times: u32,
}

impl Gone {
    /// How often that may be, since names come and go meanwhile.
    const TIMES: u32 = 100;

    /// A name led to this inode, which had none. The caller held the directory's lock since.
    ///
    /// # Errors
    /// If it has been the same too often.
    pub fn found(&mut self, ino: Ino) -> Result<()> {
        self.times = if self.ino == ino { self.times + 1 } else { 1 };
        self.ino = ino;
        if self.times < Gone::TIMES {
            return Ok(());
        }
        Err(ashlar_block::Error::corrupt(format!("a name leads to inode {ino}, which has no names")).into())
    }
}

/// Visits the keys from `low` on and below `high` in order, until a visit breaks off.
pub async fn visit(
    volume: &Volume,
    low: &[u8],
    high: &[u8],
    mut visit: impl FnMut(&[u8], &Bytes) -> Result<ControlFlow<()>> + Send,
) -> Result<()> {
    let mut low = low.to_vec();
    loop {
        let page = volume.page(&low, Some(high), PAGE).await?;
        for (key, value) in &page.entries {
            if visit(key, value)?.is_break() {
                return Ok(());
            }
        }
        match page.next {
            Some(next) => low = next.to_vec(),
            None => return Ok(()),
        }
    }
}

/// Space and limits of a file system in a pool.
pub fn statfs(pool: &Pool) -> StatFs {
    // Inodes are not counted: their number is bounded by space alone. Zeros say so, as they do for btrfs.
    let status = pool.status();
    StatFs { capacity: status.capacity, free: status.free, files: 0, files_free: 0 }
}
