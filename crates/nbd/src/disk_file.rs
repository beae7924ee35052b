//! A device as the one file of a file system: `losetup` makes a block device of it, and any kernel file system can be made
//! on that.
//!
//! The file has the size of the device, for ever. Reads and writes of any length go to the device as they come; with
//! `Options::direct` of the mount the kernel keeps no copy. Holes are punched by discarding.

use crate::bytewise::{ByteDevice, Zeroing};
use ashlar_block::Durability;
use ashlar_vfs::{
    Attr, DirEntry, Errno, FallocateMode, FileKind, FileSystem, Ino, NAME_LEN_MAX, Name, NewNode, ROOT, RenameMode,
    Result, SeekWhat, SetAttr, SetTime, StatFs, Time, WriteMode, XattrMode,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;

/// Inode number of the file.
const FILE: Ino = 2;

/// A root directory with one file, which is the device.
pub struct DiskFile {
    device: Arc<ByteDevice>,
    name: Vec<u8>,
    read_only: bool,
    /// Of the root and of the file. They are not kept.
    attributes: Mutex<[Attr; 2]>,
    env: ashlar_env::Env,
}

impl DiskFile {
    /// The device as a file of this name. Fails if that can be no name.
    pub fn new(device: Arc<ByteDevice>, name: &Name, read_only: bool, env: ashlar_env::Env) -> Result<DiskFile> {
        if name.is_empty() || name.len() > NAME_LEN_MAX || name == b"." || name == b".." || name.contains(&b'/') {
            return Err(Errno::Invalid.into());
        }
        let now = Time::from(env.wall());
        let root = Attr { links: 2, ..Attr::plain(ROOT, FileKind::Directory, 0o755).at(now) };
        let size = device.size().0;
        let permissions = if read_only { 0o400 } else { 0o600 };
        let file = Attr { size, allocated: size, ..Attr::plain(FILE, FileKind::File, permissions).at(now) };
        Ok(DiskFile { device, name: name.into(), read_only, attributes: Mutex::new([root, file]), env })
    }

    fn attributes(&self, ino: Ino) -> Result<Attr> {
        let attributes = *self.attributes.lock();
        attributes.into_iter().find(|attr| attr.ino == ino).ok_or_else(|| Errno::Stale.into())
    }

    fn file_only(ino: Ino) -> Result<()> {
        match ino {
            FILE => Ok(()),
            ROOT => Err(Errno::IsDirectory.into()),
            _ => Err(Errno::Stale.into()),
        }
    }

    /// Checks a range that is to be changed.
    fn changeable(&self, ino: Ino, offset: u64, len: u64) -> Result<()> {
        Self::file_only(ino)?;
        if self.read_only {
            return Err(Errno::ReadOnly.into());
        }
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.device.size().0);
        if fits { Ok(()) } else { Err(Errno::NoSpace.into()) }
    }
}

/// Answers a request that would make or change names.
fn fixed<T>() -> Result<T> {
    Err(Errno::NotPermitted.into())
}

impl FileSystem for DiskFile {
    async fn lookup(&self, parent: Ino, name: &Name) -> Result<Attr> {
        match name {
            _ if parent != ROOT => Err(Errno::NotDirectory.into()),
            b"." | b".." => self.attributes(ROOT),
            name if name == self.name => self.attributes(FILE),
            _ => Err(Errno::NotFound.into()),
        }
    }
    async fn forget(&self, _ino: Ino, _count: u64) {}
    async fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.attributes(ino)
    }
    async fn setattr(&self, ino: Ino, changes: SetAttr) -> Result<Attr> {
        let now = Time::from(self.env.wall());
        let mut attributes = self.attributes.lock();
        let attr = attributes.iter_mut().find(|attr| attr.ino == ino).ok_or(Errno::Stale)?;
        if changes.size.is_some_and(|size| size != attr.size) {
            return fixed();
        }
        let time = |change: Option<SetTime>, old: Time| match change {
            None => old,
            Some(SetTime::Now) => now,
            Some(SetTime::To(time)) => time,
        };
        attr.permissions = changes.permissions.unwrap_or(attr.permissions);
        attr.uid = changes.uid.unwrap_or(attr.uid);
        attr.gid = changes.gid.unwrap_or(attr.gid);
        attr.accessed = time(changes.accessed, attr.accessed);
        attr.modified = time(changes.modified, attr.modified);
        attr.changed = changes.changed.unwrap_or(now);
        Ok(*attr)
    }
    async fn readlink(&self, _ino: Ino) -> Result<Bytes> {
        Err(Errno::Invalid.into())
    }
    async fn create(&self, _parent: Ino, _name: &Name, _new: NewNode) -> Result<Attr> {
        fixed()
    }
    async fn tmpfile(&self, _parent: Ino, _new: NewNode) -> Result<Attr> {
        Err(Errno::Unsupported.into())
    }
    async fn mkdir(&self, _parent: Ino, _name: &Name, _new: NewNode) -> Result<Attr> {
        fixed()
    }
    async fn symlink(&self, _parent: Ino, _name: &Name, _target: &[u8], _new: NewNode) -> Result<Attr> {
        fixed()
    }
    async fn link(&self, _ino: Ino, _parent: Ino, _name: &Name) -> Result<Attr> {
        fixed()
    }
    async fn unlink(&self, _parent: Ino, _name: &Name) -> Result<()> {
        fixed()
    }
    async fn rmdir(&self, _parent: Ino, _name: &Name) -> Result<()> {
        fixed()
    }
    async fn rename(&self, _from: (Ino, &Name), _to: (Ino, &Name), _mode: RenameMode) -> Result<()> {
        fixed()
    }
    async fn open(&self, ino: Ino, _truncate: bool) -> Result<()> {
        Self::file_only(ino)
    }
    async fn release(&self, _ino: Ino) {}
    async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<Bytes>> {
        Self::file_only(ino)?;
        let len = self.device.size().0.saturating_sub(offset).min(len as u64) as usize;
        if len == 0 {
            return Ok(Vec::new());
        }
        Ok(vec![self.device.read(offset, len).await?])
    }
    async fn write(&self, ino: Ino, offset: u64, data: Bytes, how: WriteMode) -> Result<()> {
        self.changeable(ino, offset, data.len() as u64)?;
        let durability = if how.sync { Durability::Forced } else { Durability::Cached };
        Ok(self.device.write(offset, data, durability).await?)
    }
    async fn fsync(&self, ino: Ino, _data_only: bool) -> Result<()> {
        Self::file_only(ino)?;
        self.syncfs().await
    }
    async fn syncfs(&self) -> Result<()> {
        if self.read_only { Ok(()) } else { Ok(self.device.flush().await?) }
    }
    async fn readdir(
        &self,
        ino: Ino,
        cookie: u64,
        attributes: bool,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        if ino != ROOT {
            return Err(Errno::NotDirectory.into());
        }
        let attr = attributes.then(|| self.attributes(FILE)).transpose()?;
        let entries = [
            DirEntry { ino: ROOT, cookie: 1, kind: FileKind::Directory, name: b".", attr: None },
            DirEntry { ino: ROOT, cookie: 2, kind: FileKind::Directory, name: b"..", attr: None },
            DirEntry { ino: FILE, cookie: 3, kind: FileKind::File, name: &self.name, attr },
        ];
        // Stops at the first that the sink does not take.
        let _ = entries.into_iter().filter(|entry| entry.cookie > cookie).all(sink);
        Ok(())
    }
    async fn getxattr(&self, _ino: Ino, _name: &Name) -> Result<Bytes> {
        Err(Errno::NoData.into())
    }
    async fn setxattr(&self, _ino: Ino, _name: &Name, _value: &[u8], _mode: XattrMode) -> Result<()> {
        Err(Errno::Unsupported.into())
    }
    async fn listxattr(&self, _ino: Ino) -> Result<Vec<Bytes>> {
        Ok(Vec::new())
    }
    async fn removexattr(&self, _ino: Ino, _name: &Name) -> Result<()> {
        Err(Errno::NoData.into())
    }
    async fn fallocate(&self, ino: Ino, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        let keep_space = match mode {
            FallocateMode::Punch => false,
            FallocateMode::Zero { .. } => true,
            // A device cannot promise space, and does not move.
            FallocateMode::Reserve { .. } | FallocateMode::Collapse | FallocateMode::Insert => {
                return Err(Errno::Unsupported.into());
            }
        };
        // As for other files, punching may pass the end.
        let len = if keep_space { len } else { len.min(self.device.size().0.saturating_sub(offset)) };
        self.changeable(ino, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        Ok(self.device.zero(offset, len, Zeroing { keep_space, only_fast: false }).await?)
    }
    async fn seek(&self, ino: Ino, offset: u64, what: SeekWhat) -> Result<u64> {
        Self::file_only(ino)?;
        let end = self.device.size().0;
        if offset >= end {
            return Err(Errno::NoSuchAddress.into());
        }
        let mut at = offset;
        while at < end {
            let (hole, len) = self.device.extent(at, end - at).await?;
            if hole == (what == SeekWhat::Hole) {
                return Ok(at);
            }
            at += len;
        }
        if what == SeekWhat::Hole { Ok(end) } else { Err(Errno::NoSuchAddress.into()) }
    }
    async fn copy_range(&self, _from: (Ino, u64), _to: (Ino, u64), _len: u64) -> Result<u64> {
        Err(Errno::Unsupported.into())
    }
    async fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs { capacity: self.device.size().0, free: 0, files: 1, files_free: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_devices::Memory;
    use ashlar_env::sim::{Schedule, Sim};
    use ashlar_units::Blocks;

    const SIZE: u64 = 64 * 4096;

    fn disk(env: ashlar_env::Env) -> DiskFile {
        let device = Arc::new(ByteDevice::new(Arc::new(Memory::new(Blocks(SIZE / 4096))), "test"));
        DiskFile::new(device, b"disk0", false, env).expect("a name")
    }

    #[test]
    fn it_is_a_file_of_the_size_of_the_device() {
        let sim = Sim::new(1, Schedule::Random);
        let disk = disk(sim.env());
        let run = sim.run(async move {
            assert_eq!(disk.lookup(ROOT, b"disk0").await.expect("the file").size, SIZE);
            assert_eq!(disk.lookup(ROOT, b"disk1").await.expect_err("no such file").errno, Errno::NotFound);
            let resize = SetAttr { size: Some(SIZE - 1), ..SetAttr::default() };
            assert_eq!(disk.setattr(FILE, resize).await.expect_err("a device").errno, Errno::NotPermitted);
            let mut names = Vec::new();
            let mut sink = |entry: DirEntry<'_>| {
                names.push((entry.cookie, entry.name.to_vec()));
                names.len() < 2
            };
            disk.readdir(ROOT, 0, true, &mut sink).await.expect("a listing");
            assert_eq!(names, [(1, b".".to_vec()), (2, b"..".to_vec())]);

            let how = WriteMode::default();
            disk.write(FILE, 10_000, Bytes::from_static(b"across the blocks"), how).await.expect("in range");
            assert_eq!(disk.read(FILE, 10_000, 17).await.expect("in range").concat(), b"across the blocks");
            let end = Bytes::from_static(b"end");
            disk.write(FILE, SIZE - 3, end.clone(), how).await.expect("in range");
            assert_eq!(disk.read(FILE, SIZE - 3, 100).await.expect("short at the end").concat(), b"end");
            assert_eq!(disk.read(FILE, SIZE, 100).await.expect("nothing behind it"), Vec::<Bytes>::new());
            assert_eq!(disk.write(FILE, SIZE - 2, end, how).await.expect_err("no room").errno, Errno::NoSpace);
        });
        run.expect("no deadlock");
    }

    #[test]
    fn holes_are_punched_and_found() {
        let sim = Sim::new(2, Schedule::Random);
        let disk = disk(sim.env());
        let run = sim.run(async move {
            let data = Bytes::from(vec![7; 5 * 4096]);
            disk.write(FILE, 4096, data, WriteMode::default()).await.expect("in range");
            let seek = async |at, what| disk.seek(FILE, at, what).await.map_err(|error| error.errno);
            assert_eq!(seek(0, SeekWhat::Data).await, Ok(4096));
            assert_eq!(seek(5000, SeekWhat::Hole).await, Ok(6 * 4096));
            assert_eq!(seek(6 * 4096, SeekWhat::Data).await, Err(Errno::NoSuchAddress));
            // Half a block on both sides becomes zeros, what lies between a hole. Past the end there is nothing.
            disk.fallocate(FILE, 6000, 8000, FallocateMode::Punch).await.expect("in range");
            disk.fallocate(FILE, SIZE - 10, 4096, FallocateMode::Punch).await.expect("cut at the end");
            assert_eq!(seek(4096, SeekWhat::Hole).await, Ok(8192));
            assert_eq!(seek(8192, SeekWhat::Data).await, Ok(12288));
            let found = disk.read(FILE, 5999, 8002).await.expect("in range").concat();
            assert!(found[0] == 7 && found[8001] == 7 && found[1..8001].iter().all(|byte| *byte == 0));
            let keep = FallocateMode::Zero { keep_size: true };
            disk.fallocate(FILE, 16384, 4096, keep).await.expect("in range");
            assert_eq!(seek(16384, SeekWhat::Data).await, Ok(16384), "zeros that keep their space");
            let reserve = FallocateMode::Reserve { keep_size: true };
            assert_eq!(disk.fallocate(FILE, 0, 1, reserve).await.expect_err("no promise").errno, Errno::Unsupported);
        });
        run.expect("no deadlock");
    }
}
