//! Proximal layout: small updates wait in staging until many of them have neighbours, and then move next to these.
//!
//! A disk serves several requests in one revolution when they lie within about a hundred tracks. So small writes go to a
//! staging device (flash), which is their full home, not a cache; when enough of them are there, those of one extent and
//! neighbourhood (a *group*) move to the disk together, near the blocks before and after them, as one ascending strand.
//! Large writes go straight to the disk.
//!
//! Invariants
//!  1. What was acknowledged by a flush is durable: in staging, or on the disk with a durable pointer to it.
//!  2. Each block of the disk has at most one pointer in the live extents that is not masked by staged data.
//!  3. A block of the disk is overwritten only if no durable state needs it: it was free in a durable state, or what
//!     supersedes it is durable in staging.
//!  4. Every block read is verified against the checksum beside its pointer.
//!
//! Layout    `format.rs`: the staging device holds an Ashlar pool with the staged data, the pointers and the map of free
//!           blocks; the data device holds a label and data, nothing else.
//! Needs     a device flush is a barrier; what was not flushed may be lost, torn or reordered, on each device by itself.
//! Promises  no repair after a crash; snapshots of all extents at once.
//! Costs     a small write is one write of the pool; a batch of destaging is its writes, one flush of the data device and one
//!           transaction of the pool. docs/proximal.md counts them.
//! Departs   docs/proximal.md: the pool's log is the staging log and its index has the pointers; victims are chosen by
//!           density and heat; a block goes back to its old place when nothing holds that.
//!
//! The design follows Schindler, Shete and Smith, *Improving Throughput for Small Disk Requests with Proximal I/O*, FAST '11.

#![warn(missing_docs)]

mod check;
mod destage;
mod engine;
pub mod format;
#[cfg(test)]
mod fuzz;
mod install;
mod open;
mod place;
mod rules;
mod snapshots;
mod space;
mod stage;
mod table;
#[cfg(test)]
mod tests;
mod volume;

pub use check::Checked;
pub use engine::{Engine, Status};
pub use format::EXTENT_BLOCKS_MAX;
pub use install::DISCARD_MAX;
pub use rules::Rule;
pub use volume::{ExtentDevice, open_volume};

use ashlar_block::{Error, Result};
use ashlar_units::{Blocks, Bytes as Size};

/// Where neighbours are: what the engine must know of the disk. It need not be exact; one value serves for generations of disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Allocation range: about a track, and the stripe unit of an array below. A power of two, 16 blocks to 4 MiB.
    pub range: Blocks,
    /// Allocation ranges of a proximal range: within it, a seek takes no longer than a switch of tracks.
    pub area: u64,
    /// Blocks of an extent that are destaged together; whole leaves of 32 blocks.
    pub group: Blocks,
}

impl Shape {
    /// Disks of 7,200 revolutions: ranges of 1 MiB, a hundred of them near each other.
    pub const NEARLINE: Shape = Shape { range: Blocks(256), area: 100, group: Blocks(25_600) };
    /// Disks of 10,000 revolutions and more: ranges of 512 KiB.
    pub const ENTERPRISE: Shape = Shape { range: Blocks(128), area: 100, group: Blocks(12_800) };

    /// Blocks of a proximal range.
    pub fn area_blocks(&self) -> u64 {
        self.range.0.saturating_mul(self.area)
    }

    /// Refuses what makes no sense.
    pub fn check(&self) -> Result<()> {
        let range = self.range.0.is_power_of_two() && (16..=1 << 10).contains(&self.range.0);
        let area =
            (4..=1024).contains(&self.area) && self.area_blocks().is_multiple_of(64) && self.area_blocks() <= 1 << 20;
        let group = self.group.0.is_multiple_of(format::LEAF) && (format::LEAF..=1 << 20).contains(&self.group.0);
        if range && area && group {
            return Ok(());
        }
        let message = format!(
            "allocation ranges of {} blocks, {} of them near each other, groups of {} blocks: a range has a power of two of 16 to \
             1024 blocks, an area 4 to 1024 ranges and at most 4 GiB, a group a multiple of 32 blocks and at most 4 GiB",
            self.range.0, self.area, self.group.0
        );
        Err(Error::misuse(message))
    }
}

/// Which staged blocks are destaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Victims {
    /// The densest groups first, without blocks that were overwritten while staged, until a quarter of staging is free.
    #[default]
    Densest,
    /// All, as in the paper.
    All,
}

/// Where destaged blocks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Placement {
    /// To their own old places, where nothing else holds them; else to holes near their neighbours.
    #[default]
    Own,
    /// To holes near their neighbours, as in the paper.
    Holes,
    /// To the next holes of the disk, as a write-anywhere file system without cleaning: for comparison.
    Anywhere,
}

/// How a store is made.
#[derive(Clone, Copy, Debug)]
pub struct Creation {
    /// Where neighbours are.
    pub shape: Shape,
    /// Segment of the staging pool; by default by its size.
    pub segment: Option<Blocks>,
    /// Overwrite devices that hold a store.
    pub force: bool,
}

impl Default for Creation {
    fn default() -> Creation {
        Creation { shape: Shape::NEARLINE, segment: None, force: false }
    }
}

/// How an open store behaves.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Writes of more go straight to the disk: about where a random write takes as long as reading a track.
    pub small_max: Size,
    /// Requests of a strand at the disk at once.
    pub outstanding: usize,
    /// Allocation ranges that are tried near the neighbours, before any is taken.
    pub probes: u64,
    /// Most staged blocks; by default half of what the pool on the staging device can hold beside the pointers.
    pub staged_max: Option<Blocks>,
    /// Which staged blocks are destaged.
    pub victims: Victims,
    /// Where destaged blocks go.
    pub placement: Placement,
    /// Bound on caches of pointers and maps and on the pool's memory, beside about 100 bytes for each staged block.
    pub memory: Size,
    /// The log of the staging pool between checkpoints; opening reads no more.
    pub log_bytes: Size,
    /// A rule to break, for explorations that must notice.
    pub without: Option<Rule>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            small_max: Size::kib(168),
            outstanding: 8,
            probes: 100,
            staged_max: None,
            victims: Victims::default(),
            placement: Placement::default(),
            memory: Size::mib(128),
            log_bytes: Size::mib(64),
            without: None,
        }
    }
}
