//! Writers that nobody could tell that there is no space.
//!
//! With write-back the kernel takes data before anybody knows whether there is room for them. When their write fails later, it
//! tells whoever syncs or closes the file; a program that only writes would go on for ever. So the kernel is told to forget the
//! inode's attributes: at the next `write` it asks for them, on behalf of an open file, and gets the error instead, once. A read
//! that reaches the end asks in the same way; but who reads has mostly asked for the attributes by `fstat` before, and then the
//! error is dropped: a writer that goes on learns of its next failure.

use ashlar_vfs::Ino;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

/// More inodes are not remembered.
const MAX: usize = 1 << 16;

/// Inodes of which a write from the page cache found no space.
#[derive(Default)]
pub(crate) struct Refusals {
    inodes: Mutex<HashSet<Ino>>,
    /// How many: mostly none.
    count: AtomicUsize,
}

impl Refusals {
    /// Whether it is remembered.
    pub(crate) fn note(&self, ino: Ino) -> bool {
        let mut inodes = self.inodes.lock();
        if inodes.len() < MAX {
            inodes.insert(ino);
        }
        self.count.store(inodes.len(), Ordering::Release);
        inodes.contains(&ino)
    }

    /// Whether it was remembered; it is no more.
    pub(crate) fn take(&self, ino: Ino) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut inodes = self.inodes.lock();
        let taken = inodes.remove(&ino);
        self.count.store(inodes.len(), Ordering::Release);
        taken
    }
}
