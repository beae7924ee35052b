//! Files of which the kernel has an outdated number of blocks.
//!
//! With write-back Linux does not count blocks itself, and asks for them again only after a close. Of a file that stays open, `stat`
//! would tell for ever those of the last time: of a new one none, `du` as well, and `tar -S`, which takes a file without blocks for
//! one hole, would archive zeros. So after its data came, the kernel is told to forget an inode's attributes: shortly after,
//! once for many writes, and at once when they are made durable. It is not told of an inode of which it asked meanwhile.

use ashlar_vfs::Ino;
use parking_lot::Mutex;
use std::collections::HashSet;

/// Inodes whose data came since the kernel last asked for their attributes.
#[derive(Default)]
pub(crate) struct Outdated(Mutex<HashSet<Ino>>);

impl Outdated {
    /// Data came.
    pub(crate) fn note(&self, ino: Ino) {
        self.0.lock().insert(ino);
    }
    /// Whether data came; from now on it counts as told.
    pub(crate) fn take(&self, ino: Ino) -> bool {
        self.0.lock().remove(&ino)
    }
    /// All of them.
    pub(crate) fn take_all(&self) -> HashSet<Ino> {
        std::mem::take(&mut self.0.lock())
    }
}
