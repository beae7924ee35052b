//! The trait, method by method. Each holds the shape for reading, or for writing if it moves a directory; not while a device
//! flushes, since those who move a directory wait for all others, and all that come later for them.

use crate::Betr;
use crate::data::SIZE_MAX;
use crate::rename::{Hold, Moved};
use ashlar_inodes::{self as inodes, InodeStore};
use ashlar_vfs::{
    Attr, DirEntry, FallocateMode, FileKind, FileSystem, Ino, Name, NewNode, RenameMode, Result, SeekWhat, SetAttr,
    StatFs, WriteMode, XattrMode,
};
use bytes::Bytes;
use tokio::sync::RwLockReadGuard;

impl Betr {
    async fn still(&self) -> RwLockReadGuard<'_, ()> {
        self.shape.read().await
    }

    /// After a change: zones that it made too large are divided. That nothing is lost if that fails is why it may.
    async fn tidy<T>(&self, done: Result<T>) -> Result<T> {
        if done.is_ok() {
            drop(self.maintain().await);
        }
        done
    }
}

/// Runs a change with the shape held, and tidies up behind it.
macro_rules! change {
    ($self:ident, $work:expr) => {{
        let done = {
            let _shape = $self.still().await;
            $work.await
        };
        $self.tidy(done).await
    }};
}

impl FileSystem for Betr {
    async fn lookup(&self, parent: Ino, name: &Name) -> Result<Attr> {
        let _shape = self.still().await;
        self.look_up(parent, name).await
    }
    fn surplus(&self) -> Vec<Ino> {
        self.table.all.surplus(self.inodes.most(self.table.all.len()))
    }
    fn roomy(&self, len: u64) -> bool {
        self.admit_change().is_ok() && self.volume.pool().has_room(len)
    }
    async fn calm(&self) {
        self.volume.pool().calm().await;
    }
    fn keeps_attributes_by_names(&self) -> bool {
        true
    }
    fn len_max(&self) -> u64 {
        SIZE_MAX
    }
    async fn forget(&self, ino: Ino, count: u64) {
        let _shape = self.still().await;
        inodes::forget(self, ino, count).await;
    }
    async fn getattr(&self, ino: Ino) -> Result<Attr> {
        let inode = self.inode(ino)?;
        let attr = inode.attr();
        if attr.estimated.is_none() {
            return Ok(attr);
        }
        let _shape = self.still().await;
        inodes::counted_attr(self, &inode).await
    }
    async fn setattr(&self, ino: Ino, changes: SetAttr) -> Result<Attr> {
        change!(self, inodes::set_attr(self, ino, changes))
    }
    async fn readlink(&self, ino: Ino) -> Result<Bytes> {
        self.inode(ino)?.state().record.link_target()
    }
    async fn create(&self, parent: Ino, name: &Name, new: NewNode) -> Result<Attr> {
        change!(self, self.make(parent, name, new, &[]))
    }
    async fn tmpfile(&self, parent: Ino, new: NewNode) -> Result<Attr> {
        let _shape = self.still().await;
        self.make_nameless(parent, new).await
    }
    async fn mkdir(&self, parent: Ino, name: &Name, new: NewNode) -> Result<Attr> {
        let new = NewNode { kind: FileKind::Directory, open: false, ..new };
        change!(self, self.make(parent, name, new, &[]))
    }
    async fn symlink(&self, parent: Ino, name: &Name, target: &[u8], new: NewNode) -> Result<Attr> {
        let new = NewNode { kind: FileKind::Symlink, open: false, ..new };
        change!(self, self.make(parent, name, new, target))
    }
    async fn link(&self, ino: Ino, parent: Ino, name: &Name) -> Result<Attr> {
        change!(self, self.add_link(ino, parent, name))
    }
    async fn unlink(&self, parent: Ino, name: &Name) -> Result<()> {
        change!(self, self.remove(parent, name, false))
    }
    async fn rmdir(&self, parent: Ino, name: &Name) -> Result<()> {
        change!(self, self.remove(parent, name, true))
    }
    async fn rename(&self, from: (Ino, &Name), to: (Ino, &Name), mode: RenameMode) -> Result<()> {
        let moved = change!(self, self.move_name(from, to, mode, Hold::Inodes))?;
        if moved == Moved::TakesShape {
            let moved = {
                let _shape = self.shape.write().await;
                self.move_name(from, to, mode, Hold::Shape).await
            };
            self.tidy(moved).await?;
        }
        Ok(())
    }
    async fn open(&self, ino: Ino, truncate: bool) -> Result<()> {
        let inode = self.inode(ino)?;
        inode.state().handles += 1;
        if truncate {
            self.setattr(ino, SetAttr { size: Some(0), ..SetAttr::default() }).await?;
        }
        Ok(())
    }
    async fn release(&self, ino: Ino) {
        let _shape = self.still().await;
        inodes::release(self, ino).await;
    }
    async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<Bytes>> {
        let shape = self.still().await;
        self.read_data(Some(shape), ino, offset, len).await
    }
    async fn write(&self, ino: Ino, offset: u64, data: Bytes, how: WriteMode) -> Result<()> {
        let prepared = self.prepare(ino, offset, &data).await?;
        change!(self, self.write_data(ino, offset, data, how, prepared))?;
        if how.sync { self.fsync(ino, true).await } else { Ok(()) }
    }
    async fn fsync(&self, ino: Ino, _data_only: bool) -> Result<()> {
        let inode = self.inode(ino)?;
        {
            let _shape = self.still().await;
            inodes::write_newer(self, &inode).await?;
        }
        inodes::sync_commits(self, &inode).await
    }
    async fn syncfs(&self) -> Result<()> {
        self.write_back().await?;
        drop(self.merge_small().await);
        Ok(self.pool().sync_all().await?)
    }
    async fn readdir(
        &self,
        ino: Ino,
        cookie: u64,
        attributes: bool,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        let _shape = self.still().await;
        self.list(ino, cookie, attributes, sink).await
    }
    async fn getxattr(&self, ino: Ino, name: &Name) -> Result<Bytes> {
        inodes::get_xattr(self, ino, name).await
    }
    async fn setxattr(&self, ino: Ino, name: &Name, value: &[u8], mode: XattrMode) -> Result<()> {
        change!(self, inodes::set_xattr(self, ino, name, value, mode))
    }
    async fn listxattr(&self, ino: Ino) -> Result<Vec<Bytes>> {
        inodes::list_xattrs(self, ino).await
    }
    async fn removexattr(&self, ino: Ino, name: &Name) -> Result<()> {
        change!(self, inodes::remove_xattr(self, ino, name))
    }
    async fn fallocate(&self, ino: Ino, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        change!(self, self.allocate(ino, offset, len, mode))
    }
    async fn seek(&self, ino: Ino, offset: u64, what: SeekWhat) -> Result<u64> {
        let _shape = self.still().await;
        self.find_data(ino, offset, what).await
    }
    async fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        change!(self, self.copy_data(from, to, len))
    }
    async fn statfs(&self) -> Result<StatFs> {
        Ok(inodes::statfs(self.pool()))
    }
}
