//! What happened to a file system: files and directories made, changed, moved and deleted, in order of time.
//!
//! A history holds only what leaves traces in the state of a file system (thesis, section 3.2.1). It is made of snapshots
//! ([`diff`]), of the commits of a git repository ([`git`]), or of parameters ([`synthetic`]); [`Builder`] puts whatever
//! they say into an order that can be carried out.
//!
//! Invariants of a file of history, which [`Builder`] makes and [`HistoryReader`] checks
//!  1. Times do not fall.
//!  2. What a record names is there: its directory was made before and is not deleted yet, and it is made once before it is
//!     changed, moved or deleted. A directory is empty when it is deleted. (The reader leaves this to who carries it out.)
//!
//! Departs  the thesis has creation, deletion and modification; here a file can move, and a write has a size and may be
//!          followed by a sync, since modern file systems choose places by both.

mod builder;
pub mod diff;
mod format;
#[cfg(test)]
mod fuzz;
pub mod git;
mod record;
mod short;
mod stats;
pub mod synthetic;

pub use builder::{Builder, Tidied};
pub use format::{Header, HistoryReader};
pub use record::{Act, ROOT, Record, Writing};
pub use short::ShortLived;
pub use stats::{Closing, Stats};
