//! Objects on a disk in self-contained regions of two block sizes.
//!
//! Feng Wang, *OBFS: storage management on an object-storage device*, PhD thesis, UC Santa Cruz, 2006. A *large region* holds
//! objects of about the size of a large block, each in one unit of data and onode that is written and read at once; a
//! *small region* holds a table of onodes and small blocks in few extents. Regions take their kind when they are used and
//! give it up when they are empty. What is where follows from the onodes; a table, a log of what ended, and bitmaps of each
//! region make that quick. `docs/regions.md` tells the whole, with what is otherwise than in the thesis.
//!
//! Invariants
//!  1. A copy of an object is never changed in place: every change makes a new copy, with a larger number, elsewhere.
//!  2. Of the copies of an object that are on the device, the newest that is whole counts, unless the log ends it.
//!  3. Space of a copy is reused only when a durable record says that it does not count.
//!  4. A checkpoint becomes the truth by one superblock, when everything that it describes is durable.
//!  5. Every I/O of objects and tables stays in one region and off its head.

mod bits;
mod change;
mod check;
mod checkpoint;
mod clean;
mod disk;
mod engine;
mod extents;
mod format;
#[cfg(test)]
mod fuzz;
mod layout;
mod names;
mod open;
mod place;
mod read;
mod recover;
mod repair;
mod rules;
mod shared;
mod space;
mod status;
mod table;
mod tidy;
#[cfg(test)]
mod versions;
mod write;

pub use check::{Checked, Progress};
pub use clean::Cleaned;
pub use layout::{Config, Kind, LARGE_BLOCK, Layout, REGION, Shape};
pub use open::{format, open, striped};
pub use recover::Recovered;
pub use rules::Rule;
pub use shared::Memory;
pub use status::{Health, RegionStatus, Status};
pub use tidy::Tidy;

use std::sync::{Arc, Weak};

/// Most bytes of attributes that an object takes.
const ATTRIBUTES_LIMIT: u64 = 12 << 10;

/// An open store. Cheap to clone.
#[derive(Clone)]
pub struct Regions(pub(crate) Arc<shared::Shared>);

/// A store that this does not keep open.
#[derive(Clone)]
pub struct WeakRegions(Weak<shared::Shared>);

impl Regions {
    /// A way back to the store, as long as others keep it open.
    pub fn downgrade(&self) -> WeakRegions {
        WeakRegions(Arc::downgrade(&self.0))
    }
}

impl WeakRegions {
    /// The store, if it is still open.
    pub fn upgrade(&self) -> Option<Regions> {
        self.0.upgrade().map(Regions)
    }
}
