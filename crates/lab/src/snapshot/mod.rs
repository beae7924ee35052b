//! A file system as it was: every file, by inode number, and the free space.
//!
//! Invariants
//!  1. Entries stand in order of inode number, one for each inode; further names only count. So two snapshots are compared
//!     by reading both once.
//!  2. The root's parent is itself, and its name is empty.
//!  3. A snapshot is in its place only when it is whole.
//!
//! Costs    an `openat`, a `statx` and two `ioctl` for each file; memory for sorting, as the caller says.
//! Departs  the thesis's snapshots have no names; these have them, or a keyed hash of each, since a directory decides
//!          where a modern file system puts a file.

mod format;
#[cfg(test)]
pub(crate) mod fuzz;
pub mod listing;
mod take;

pub use format::{Closing, Header, SnapshotReader};
pub use take::{Listed, Names, TakeOptions, Taken, list, take};
