//! What a file engine offers and a front door needs: POSIX files, by inode number, as one async trait.
//!
//! The trait speaks the kernel's language (lookup by parent and name, stable directory cookies) because that is what FUSE
//! asks for, but nothing in it is FUSE: tests drive the same trait in process. Permission checks belong to the door (the
//! kernel makes them, with `default_permissions`); everything else belongs to the engine.

pub mod acl;
pub mod clear;
mod engine;
mod error;
mod types;

pub use engine::Engine;
pub use error::{Errno, Error, Result};
pub use types::*;

use bytes::Bytes;
use std::future::Future;

/// A POSIX file system. Every method may run concurrently with every other.
///
/// Inode numbers stay valid while the kernel holds them: each [`Attr`] returned by `lookup`, `create`, `mkdir`, `mknod`,
/// `symlink`, `link`, `tmpfile` or handed to a directory sink with attributes counts one reference, `forget` gives
/// references back. An unlinked file lives until its references and open handles are gone.
pub trait FileSystem: Send + Sync + 'static {
    /// Finds `name` in directory `parent`.
    fn lookup(&self, parent: Ino, name: &Name) -> impl Future<Output = Result<Attr>> + Send;
    /// Inodes that the engine would like to get back, because it holds too many in memory. Who can, drops what it caches of
    /// them and gives back the references; nothing depends on it but memory.
    fn surplus(&self) -> Vec<Ino> {
        Vec::new()
    }
    /// Whether writes of so many bytes are sure to find room, and a working device, as far as can be told now. An engine that
    /// does not know says no.
    fn roomy(&self, len: u64) -> bool {
        let _ = len;
        false
    }
    /// Lets others have their turn, and returns when what was changed has gone where it belongs, if much has not: whoever changes much
    /// while nobody waits for it asks now and then, so that those who do wait find a processor, and room.
    fn calm(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
    /// Whether attributes lie by the names, so that a listing with them reads little more than one without.
    fn keeps_attributes_by_names(&self) -> bool {
        false
    }
    /// The most that a file can be long, in bytes.
    fn len_max(&self) -> u64 {
        i64::MAX as u64
    }
    /// Gives back `count` references.
    fn forget(&self, ino: Ino, count: u64) -> impl Future<Output = ()> + Send;
    /// Attributes of an inode.
    fn getattr(&self, ino: Ino) -> impl Future<Output = Result<Attr>> + Send;
    /// Changes attributes, all or none; a size change truncates or extends.
    fn setattr(&self, ino: Ino, changes: SetAttr) -> impl Future<Output = Result<Attr>> + Send;
    /// Target of a symbolic link.
    fn readlink(&self, ino: Ino) -> impl Future<Output = Result<Bytes>> + Send;
    /// Makes a file, device node, fifo or socket; with `open`, opens it too.
    fn create(&self, parent: Ino, name: &Name, new: NewNode) -> impl Future<Output = Result<Attr>> + Send;
    /// Makes a file without a name (`O_TMPFILE`); `link` may name it later.
    fn tmpfile(&self, parent: Ino, new: NewNode) -> impl Future<Output = Result<Attr>> + Send;
    /// Makes a directory.
    fn mkdir(&self, parent: Ino, name: &Name, new: NewNode) -> impl Future<Output = Result<Attr>> + Send;
    /// Makes a symbolic link.
    fn symlink(
        &self,
        parent: Ino,
        name: &Name,
        target: &[u8],
        new: NewNode,
    ) -> impl Future<Output = Result<Attr>> + Send;
    /// Adds a name to an existing inode.
    fn link(&self, ino: Ino, parent: Ino, name: &Name) -> impl Future<Output = Result<Attr>> + Send;
    /// Removes a name that is not a directory.
    fn unlink(&self, parent: Ino, name: &Name) -> impl Future<Output = Result<()>> + Send;
    /// Removes an empty directory.
    fn rmdir(&self, parent: Ino, name: &Name) -> impl Future<Output = Result<()>> + Send;
    /// Moves a name: [`RenameMode`] says what becomes of the target, and of the old name.
    fn rename(&self, from: (Ino, &Name), to: (Ino, &Name), mode: RenameMode)
    -> impl Future<Output = Result<()>> + Send;
    /// Counts an open handle on a file; `release` gives it back.
    fn open(&self, ino: Ino, truncate: bool) -> impl Future<Output = Result<()>> + Send;
    /// Gives back an open handle.
    fn release(&self, ino: Ino) -> impl Future<Output = ()> + Send;
    /// Reads up to `len` bytes; short only at the end of the file. The pieces follow each other.
    fn read(&self, ino: Ino, offset: u64, len: usize) -> impl Future<Output = Result<Vec<Bytes>>> + Send;
    /// Writes all of `data`.
    fn write(&self, ino: Ino, offset: u64, data: Bytes, how: WriteMode) -> impl Future<Output = Result<()>> + Send;
    /// Makes the file durable: data and size, and unless `data_only` all attributes.
    fn fsync(&self, ino: Ino, data_only: bool) -> impl Future<Output = Result<()>> + Send;
    /// Makes the whole file system durable.
    fn syncfs(&self) -> impl Future<Output = Result<()>> + Send;
    /// Lists a directory from behind `cookie` (0: from the start) until `sink` returns false, which means that it did not
    /// take the entry: no reference is counted for it. With `attributes`, entries
    /// carry them and count one reference each, except `.` and `..`.
    fn readdir(
        &self,
        ino: Ino,
        cookie: u64,
        attributes: bool,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> impl Future<Output = Result<()>> + Send;
    /// Value of an extended attribute.
    fn getxattr(&self, ino: Ino, name: &Name) -> impl Future<Output = Result<Bytes>> + Send;
    /// Sets an extended attribute.
    fn setxattr(&self, ino: Ino, name: &Name, value: &[u8], mode: XattrMode)
    -> impl Future<Output = Result<()>> + Send;
    /// Names of all extended attributes.
    fn listxattr(&self, ino: Ino) -> impl Future<Output = Result<Vec<Bytes>>> + Send;
    /// Removes an extended attribute.
    fn removexattr(&self, ino: Ino, name: &Name) -> impl Future<Output = Result<()>> + Send;
    /// Reserves, punches, zeroes, collapses or inserts a range.
    fn fallocate(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Next data or hole at or behind `offset`.
    fn seek(&self, ino: Ino, offset: u64, what: SeekWhat) -> impl Future<Output = Result<u64>> + Send;
    /// Copies a range between files, by sharing where blocks align; gives the bytes copied.
    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> impl Future<Output = Result<u64>> + Send;
    /// Space and limits.
    fn statfs(&self) -> impl Future<Output = Result<StatFs>> + Send;
}
