//! The trait, method by method.

use crate::Files;
use crate::data::SIZE_MAX;
use ashlar_inodes::{self as inodes, InodeStore};
use ashlar_vfs::{
    Attr, DirEntry, FallocateMode, FileKind, FileSystem, Ino, Name, NewNode, RenameMode, Result, SeekWhat, SetAttr,
    StatFs, WriteMode, XattrMode,
};
use bytes::Bytes;

impl FileSystem for Files {
    async fn lookup(&self, parent: Ino, name: &Name) -> Result<Attr> {
        self.look_up(parent, name).await
    }
    fn surplus(&self) -> Vec<Ino> {
        self.table.surplus(self.inodes.most(self.table.len()))
    }
    fn roomy(&self, len: u64) -> bool {
        self.admit_change().is_ok() && self.volume.pool().has_room(len)
    }
    async fn calm(&self) {
        self.volume.pool().calm().await;
    }
    fn len_max(&self) -> u64 {
        SIZE_MAX
    }
    async fn forget(&self, ino: Ino, count: u64) {
        inodes::forget(self, ino, count).await;
    }
    async fn getattr(&self, ino: Ino) -> Result<Attr> {
        inodes::counted_attr(self, &self.load(ino).await?).await
    }
    async fn setattr(&self, ino: Ino, changes: SetAttr) -> Result<Attr> {
        inodes::set_attr(self, ino, changes).await
    }
    async fn readlink(&self, ino: Ino) -> Result<Bytes> {
        self.load(ino).await?.state().record.link_target()
    }
    async fn create(&self, parent: Ino, name: &Name, new: NewNode) -> Result<Attr> {
        self.make(parent, name, new, &[]).await
    }
    async fn tmpfile(&self, parent: Ino, new: NewNode) -> Result<Attr> {
        self.make_nameless(parent, new).await
    }
    async fn mkdir(&self, parent: Ino, name: &Name, new: NewNode) -> Result<Attr> {
        self.make(parent, name, NewNode { kind: FileKind::Directory, open: false, ..new }, &[]).await
    }
    async fn symlink(&self, parent: Ino, name: &Name, target: &[u8], new: NewNode) -> Result<Attr> {
        self.make(parent, name, NewNode { kind: FileKind::Symlink, open: false, ..new }, target).await
    }
    async fn link(&self, ino: Ino, parent: Ino, name: &Name) -> Result<Attr> {
        self.add_link(ino, parent, name).await
    }
    async fn unlink(&self, parent: Ino, name: &Name) -> Result<()> {
        self.remove(parent, name, false).await
    }
    async fn rmdir(&self, parent: Ino, name: &Name) -> Result<()> {
        self.remove(parent, name, true).await
    }
    async fn rename(&self, from: (Ino, &Name), to: (Ino, &Name), mode: RenameMode) -> Result<()> {
        self.move_name(from, to, mode).await
    }
    async fn open(&self, ino: Ino, truncate: bool) -> Result<()> {
        let inode = self.load(ino).await?;
        inode.state().handles += 1;
        if truncate {
            inodes::set_attr(self, ino, SetAttr { size: Some(0), ..SetAttr::default() }).await?;
        }
        Ok(())
    }
    async fn release(&self, ino: Ino) {
        inodes::release(self, ino).await;
    }
    async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<Bytes>> {
        self.read_data(ino, offset, len).await
    }
    async fn write(&self, ino: Ino, offset: u64, data: Bytes, how: WriteMode) -> Result<()> {
        self.write_data(ino, offset, data, how).await
    }
    async fn fsync(&self, ino: Ino, _data_only: bool) -> Result<()> {
        inodes::make_durable(self, &self.load(ino).await?).await
    }
    async fn syncfs(&self) -> Result<()> {
        self.write_back().await?;
        Ok(self.pool().sync_all().await?)
    }
    async fn readdir(
        &self,
        ino: Ino,
        cookie: u64,
        attributes: bool,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        self.list(ino, cookie, attributes, sink).await
    }
    async fn getxattr(&self, ino: Ino, name: &Name) -> Result<Bytes> {
        inodes::get_xattr(self, ino, name).await
    }
    async fn setxattr(&self, ino: Ino, name: &Name, value: &[u8], mode: XattrMode) -> Result<()> {
        inodes::set_xattr(self, ino, name, value, mode).await
    }
    async fn listxattr(&self, ino: Ino) -> Result<Vec<Bytes>> {
        inodes::list_xattrs(self, ino).await
    }
    async fn removexattr(&self, ino: Ino, name: &Name) -> Result<()> {
        inodes::remove_xattr(self, ino, name).await
    }
    async fn fallocate(&self, ino: Ino, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        self.allocate(ino, offset, len, mode).await
    }
    async fn seek(&self, ino: Ino, offset: u64, what: SeekWhat) -> Result<u64> {
        self.find_data(ino, offset, what).await
    }
    async fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        self.copy_data(from, to, len).await
    }
    async fn statfs(&self) -> Result<StatFs> {
        Ok(inodes::statfs(self.pool()))
    }
}
