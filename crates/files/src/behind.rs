//! Write-behind: small writes from the page cache are acknowledged before they are compressed and logged.
//!
//! Whoever closes a file waits until the kernel has written it back, so what a write costs is on the way of every program
//! that makes many small files. Here another worker does that work meanwhile. What a caller can observe stays the same:
//! all that could see the data of an inode, or miss them, waits for its pending write first.
//!
//! - Only writes of the page cache ([`WriteMode::writeback`]), of at most [`SMALL`] bytes, or [`WHOLE`] at the beginning of a
//!   file; one of an inode at a time, and [`PENDING_MAX`] bytes in all; such data are lost in a crash anyway unless a sync follows, and a sync waits for them.
//! - Only while the engine says that there is room ([`FileSystem::roomy`]), so that a full disk is told to whom it concerns.
//!   A file that would become too long is told at once, too. Should a write fail all the same, the next sync of the file, or of the file system, says so; until it has, nothing
//!   more is left behind.
//! - Renames wait for all writes, so that a file which replaces another is never there before its data.

use ashlar_block::Kind;
use ashlar_env::Env;
use ashlar_units::Bytes;
use ashlar_vfs::*;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// Longest write that is left behind, in bytes.
const SMALL: u64 = 128 << 10;
/// Longest one at the beginning of a file, which may be all of it. Later pieces of large files come several at once, and
/// would wait for each other.
const WHOLE: u64 = 1 << 20;
/// Bytes that may be pending.
const PENDING_MAX: u64 = 4 << 20;
/// Room that there must be for it: other writes take some meanwhile.
const ROOM: Bytes = Bytes(64 << 20);

/// A file system whose small writes are done behind the caller's back.
pub struct WriteBehind<F> {
    engine: Arc<F>,
    env: Env,
    shared: Arc<Shared>,
    room: Bytes,
    careless: bool,
}

#[derive(Default)]
struct Shared {
    pending: Mutex<Pending>,
    /// Bytes pending; not zero while anything is.
    bytes: AtomicU64,
    /// Writes that ended.
    ended: AtomicU64,
    done: Notify,
}

#[derive(Default)]
struct Pending {
    inodes: HashSet<Ino>,
    /// What the next sync tells; no more than were pending at once.
    failed: HashMap<Ino, Error>,
}

impl Shared {
    fn is_idle(&self) -> bool {
        self.bytes.load(Ordering::SeqCst) == 0
    }

    /// Notes a pending write, unless there is one already, too much is pending, or a failure is untold.
    fn begin(self: &Arc<Self>, ino: Ino, len: u64) -> Option<Mark> {
        let mut pending = self.pending.lock();
        let too_much = self.bytes.load(Ordering::SeqCst) + len > PENDING_MAX;
        if too_much || !pending.failed.is_empty() || !pending.inodes.insert(ino) {
            return None;
        }
        self.bytes.fetch_add(len, Ordering::SeqCst);
        let never = ashlar_block::Error::new(Kind::Failed, "a write ended before it was done").into();
        Some(Mark { shared: self.clone(), ino, len, outcome: Err(never) })
    }

    /// Waits until `is_over` holds of the inodes with pending writes.
    async fn until(&self, is_over: impl Fn(&HashSet<Ino>) -> bool) {
        while !self.is_idle() {
            let mut done = std::pin::pin!(self.done.notified());
            done.as_mut().enable();
            if is_over(&self.pending.lock().inodes) {
                return;
            }
            done.await;
        }
    }

    /// The failure that a sync of this inode must tell.
    fn failure(&self, ino: Ino) -> Result<()> {
        self.pending.lock().failed.remove(&ino).map_or(Ok(()), Err)
    }

    fn any_failure(&self) -> Result<()> {
        let mut pending = self.pending.lock();
        let error = pending.failed.drain().next();
        error.map_or(Ok(()), |(_, error)| Err(error))
    }
}

/// A pending write. However it ends, nobody waits for it any longer.
struct Mark {
    shared: Arc<Shared>,
    ino: Ino,
    len: u64,
    outcome: Result<()>,
}

impl Mark {
    fn end(mut self, outcome: Result<()>) {
        self.outcome = outcome;
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut pending = self.shared.pending.lock();
        pending.inodes.remove(&self.ino);
        if let Err(error) = std::mem::replace(&mut self.outcome, Ok(())) {
            pending.failed.insert(self.ino, error);
        }
        self.shared.bytes.fetch_sub(self.len, Ordering::SeqCst);
        self.shared.ended.fetch_add(1, Ordering::SeqCst);
        drop(pending);
        self.shared.done.notify_waiters();
    }
}

impl<F: FileSystem> WriteBehind<F> {
    /// Puts write-behind before an engine.
    pub fn new(env: Env, engine: Arc<F>) -> WriteBehind<F> {
        WriteBehind { engine, env, shared: Arc::default(), room: ROOM, careless: false }
    }

    /// Needs so much room; 64 MiB unless told.
    pub fn with_room(mut self, room: Bytes) -> WriteBehind<F> {
        self.room = room;
        self
    }

    /// Breaks the rule that whoever could see pending writes waits for them: for explorations, which must notice.
    #[doc(hidden)]
    pub fn careless(mut self) -> WriteBehind<F> {
        self.careless = true;
        self
    }

    /// The engine. What it has lacks what is pending.
    pub fn engine(&self) -> &Arc<F> {
        &self.engine
    }

    /// Waits until nothing is pending.
    pub async fn settle(&self) {
        self.shared.until(HashSet::is_empty).await;
    }

    async fn settled(&self, ino: Ino) -> &F {
        if !self.careless {
            self.shared.until(|inodes| !inodes.contains(&ino)).await;
        }
        &self.engine
    }
}

impl<F: FileSystem> FileSystem for WriteBehind<F> {
    async fn write(&self, ino: Ino, offset: u64, data: bytes::Bytes, how: WriteMode) -> Result<()> {
        let len = data.len() as u64;
        let len_max = if offset == 0 { WHOLE } else { SMALL };
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.engine.len_max());
        let may_wait = how.writeback && !how.sync && !how.clear_setid && (1..=len_max).contains(&len) && fits;
        loop {
            let engine = self.settled(ino).await;
            if !may_wait || !engine.roomy(self.room.0) {
                return engine.write(ino, offset, data, how).await;
            }
            let Some(mark) = self.shared.begin(ino, len) else {
                if !self.careless && self.shared.pending.lock().inodes.contains(&ino) {
                    continue;
                }
                return engine.write(ino, offset, data, how).await;
            };
            let engine = self.engine.clone();
            drop(self.env.spawn_aside(async move { mark.end(engine.write(ino, offset, data, how).await) }));
            return Ok(());
        }
    }

    async fn lookup(&self, parent: Ino, name: &Name) -> Result<Attr> {
        let ended = self.shared.ended.load(Ordering::SeqCst);
        let attr = self.engine.lookup(parent, name).await?;
        if self.shared.is_idle() && self.shared.ended.load(Ordering::SeqCst) == ended {
            return Ok(attr);
        }
        // A write of this inode may have been under way.
        let now = self.settled(attr.ino).await.getattr(attr.ino).await;
        if now.is_err() {
            self.engine.forget(attr.ino, 1).await;
        }
        now
    }
    async fn readdir(
        &self,
        ino: Ino,
        cookie: u64,
        attributes: bool,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        if attributes {
            self.settle().await;
        }
        self.engine.readdir(ino, cookie, attributes, sink).await
    }
    async fn forget(&self, ino: Ino, count: u64) {
        self.settled(ino).await.forget(ino, count).await;
    }
    async fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.settled(ino).await.getattr(ino).await
    }
    async fn setattr(&self, ino: Ino, changes: SetAttr) -> Result<Attr> {
        // Other attributes than the size have nothing to do with the data, and the kernel sets them right after writing back.
        match changes.size {
            Some(_) => self.settled(ino).await.setattr(ino, changes).await,
            None => self.engine.setattr(ino, changes).await,
        }
    }
    async fn link(&self, ino: Ino, parent: Ino, name: &Name) -> Result<Attr> {
        self.settled(ino).await.link(ino, parent, name).await
    }
    async fn rename(&self, from: (Ino, &Name), to: (Ino, &Name), mode: RenameMode) -> Result<()> {
        self.settle().await;
        self.engine.rename(from, to, mode).await
    }
    async fn open(&self, ino: Ino, truncate: bool) -> Result<()> {
        self.settled(ino).await.open(ino, truncate).await
    }
    async fn release(&self, ino: Ino) {
        self.settled(ino).await.release(ino).await;
    }
    async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<bytes::Bytes>> {
        self.settled(ino).await.read(ino, offset, len).await
    }
    async fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        self.settled(ino).await.fsync(ino, data_only).await?;
        self.shared.failure(ino)
    }
    async fn syncfs(&self) -> Result<()> {
        self.settle().await;
        self.engine.syncfs().await?;
        self.shared.any_failure()
    }
    async fn fallocate(&self, ino: Ino, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        self.settled(ino).await.fallocate(ino, offset, len, mode).await
    }
    async fn seek(&self, ino: Ino, offset: u64, what: SeekWhat) -> Result<u64> {
        self.settled(ino).await.seek(ino, offset, what).await
    }
    async fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        self.settled(from.0).await;
        self.settled(to.0).await.copy_range(from, to, len).await
    }

    fn surplus(&self) -> Vec<Ino> {
        self.engine.surplus()
    }
    fn roomy(&self, len: u64) -> bool {
        self.engine.roomy(len)
    }
    async fn calm(&self) {
        self.engine.calm().await;
    }
    fn keeps_attributes_by_names(&self) -> bool {
        self.engine.keeps_attributes_by_names()
    }
    fn len_max(&self) -> u64 {
        self.engine.len_max()
    }
    async fn readlink(&self, ino: Ino) -> Result<bytes::Bytes> {
        self.engine.readlink(ino).await
    }
    async fn create(&self, parent: Ino, name: &Name, new: NewNode) -> Result<Attr> {
        self.engine.create(parent, name, new).await
    }
    async fn tmpfile(&self, parent: Ino, new: NewNode) -> Result<Attr> {
        self.engine.tmpfile(parent, new).await
    }
    async fn mkdir(&self, parent: Ino, name: &Name, new: NewNode) -> Result<Attr> {
        self.engine.mkdir(parent, name, new).await
    }
    async fn symlink(&self, parent: Ino, name: &Name, target: &[u8], new: NewNode) -> Result<Attr> {
        self.engine.symlink(parent, name, target, new).await
    }
    async fn unlink(&self, parent: Ino, name: &Name) -> Result<()> {
        self.engine.unlink(parent, name).await
    }
    async fn rmdir(&self, parent: Ino, name: &Name) -> Result<()> {
        self.engine.rmdir(parent, name).await
    }
    async fn getxattr(&self, ino: Ino, name: &Name) -> Result<bytes::Bytes> {
        self.engine.getxattr(ino, name).await
    }
    async fn setxattr(&self, ino: Ino, name: &Name, value: &[u8], mode: XattrMode) -> Result<()> {
        self.engine.setxattr(ino, name, value, mode).await
    }
    async fn listxattr(&self, ino: Ino) -> Result<Vec<bytes::Bytes>> {
        self.engine.listxattr(ino).await
    }
    async fn removexattr(&self, ino: Ino, name: &Name) -> Result<()> {
        self.engine.removexattr(ino, name).await
    }
    async fn statfs(&self) -> Result<StatFs> {
        self.engine.statfs().await
    }
}
