//! Where everything lies on the device, and how large it is.
//!
//! ```text
//! 0, 1          superblock, by turns
//! map           two slots: a record for each region, as of a checkpoint
//! log           a ring
//! table         base part of the object lookup table
//! regions       all of one size
//! tail          what does not fill a region: one for tables alone, with heads as others have
//! map           again
//! last two      the superblocks again
//! ```
//!
//! Stores of version 1 have no tail: what does not fill a region is left over.

use crate::format::{MAP_ENTRY_LEN, MAP_HEADER_LEN, PAGE_ENTRIES, VERSION};
use ashlar_block::{Error, Result};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};

/// Region of the thesis (section 5.2).
pub const REGION: Size = Size::mib(256);
/// Large block of the thesis: the stripe unit of its file system.
pub const LARGE_BLOCK: Size = Size::kib(512);
/// Small blocks for each onode of a small region (the thesis's 8192 onodes for 65,536 blocks).
pub const SMALL_BLOCKS_PER_ONODE: u64 = 8;
/// Bytes at the front of a head before its bitmaps.
pub const HEAD_HEADER_LEN: usize = 64;
/// Fewest regions: one for index nodes, one of either kind, one that stays free.
pub const REGIONS_MIN: u64 = 4;
/// Most regions, which bounds what is kept of every region in memory. With regions of 256 MiB they are 64 TiB.
pub const REGIONS_MAX: u64 = 1 << 18;
/// Blocks of the largest region: 4 GiB.
const REGION_BLOCKS_MAX: u64 = 1 << 20;
/// Blocks of the largest large block: an onode has a checksum for each.
pub const LARGE_BLOCKS_MAX: u64 = 512;
/// Fewest blocks of tables in a tail: for less, its heads are not worth writing.
const TAIL_MIN: u64 = 16;
/// The first version whose stores have a tail.
const TAIL_SINCE: u16 = 2;
/// Superblocks at either end.
const SUPERBLOCKS: u64 = 2;

/// How a store is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Size of a region.
    pub region: Size,
    /// Size of a large block, and of the largest object.
    pub large_block: Size,
    /// Expected mean size of objects, by which the lookup table is made so large that about half of it is used.
    pub object_mean: Size,
    /// Small blocks for each onode of a small region: fewer for stores of small objects.
    pub blocks_per_onode: u64,
    /// Size of the log of retirements.
    pub log: Size,
    /// Replace whatever the device holds.
    pub force: bool,
}

impl Default for Config {
    /// The thesis's sizes, and a log of 4 MiB.
    fn default() -> Config {
        Config {
            region: REGION,
            large_block: LARGE_BLOCK,
            object_mean: Size::kib(250),
            blocks_per_onode: SMALL_BLOCKS_PER_ONODE,
            log: Size::mib(4),
            force: false,
        }
    }
}

/// What a region holds.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Nothing: it takes a kind when it is used.
    Free,
    /// Units of one large block and its onode.
    Large,
    /// A table of onodes, and small blocks.
    Small,
    /// Pages of the lookup table's extensible part, and nodes of the index of names.
    Table,
}

impl Kind {
    /// The stored number.
    pub fn to_byte(self) -> u8 {
        self as u8
    }
    /// The kind of this number.
    pub fn from_byte(byte: u8) -> Option<Kind> {
        [Kind::Free, Kind::Large, Kind::Small, Kind::Table].get(usize::from(byte)).copied()
    }
}

/// Sizes of what lies in a region, in blocks from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks of the region.
    pub blocks: u64,
    /// Blocks of a head; there are two, by turns.
    pub head: u64,
    /// Blocks of a large block.
    pub large: u64,
    /// Units of a large region.
    pub units: u64,
    /// Onodes of a small region.
    pub onodes: u64,
    /// Small blocks of a small region.
    pub small: u64,
    /// Blocks of a table region.
    pub table: u64,
}

impl Shape {
    /// The shape of regions of this many blocks with large blocks of this many, and an onode for this many small blocks.
    pub fn of(blocks: u64, large: u64, per_onode: u64) -> Shape {
        let bits = blocks + 128;
        let head = (HEAD_HEADER_LEN as u64 + bits.div_ceil(8) + 16).div_ceil(BLOCK_LEN as u64);
        let body = blocks - 2 * head;
        // The head of a large region has a whole large block, so that its units are aligned.
        let units = (blocks - large.max(2 * head)) / (large + 1);
        let onodes = body.div_ceil(per_onode + 1);
        Shape { blocks, head, large, units, onodes, small: body - onodes, table: body }
    }
    /// Bits of the bitmap of onodes, and of that of blocks, for a kind.
    pub fn bits(&self, kind: Kind) -> (u64, u64) {
        match kind {
            Kind::Free => (0, 0),
            Kind::Large => (self.units, 0),
            Kind::Small => (self.onodes, self.small),
            Kind::Table => (0, self.table),
        }
    }
    fn large_head(&self) -> u64 {
        self.large.max(2 * self.head)
    }
}

/// Where everything lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Version of the format.
    pub version: u16,
    /// Blocks of the device.
    pub capacity: u64,
    /// Blocks of one slot of the map.
    pub map_blocks: u64,
    /// Blocks of the log.
    pub log_blocks: u64,
    /// Pages of the base part.
    pub pages: u64,
    /// Number of regions, without the tail.
    pub regions: u64,
    /// Blocks of the tail; none if it is not worth having.
    pub tail: u64,
    /// What lies in each region.
    pub shape: Shape,
}

impl Layout {
    /// The layout of a device on which a store is made now.
    ///
    /// # Errors
    /// A configuration that makes no sense, or does not fit.
    pub fn new(capacity: Blocks, config: &Config) -> Result<Layout> {
        Layout::of_version(VERSION, capacity, config)
    }

    /// The layout of a device whose store has this version of the format.
    ///
    /// # Errors
    /// As [`new`](Layout::new).
    pub fn of_version(version: u16, capacity: Blocks, config: &Config) -> Result<Layout> {
        let blocks = |what: &str, size: Size, low: u64, high: u64| {
            let count = size.0 / BLOCK_LEN as u64;
            if !size.0.is_multiple_of(BLOCK_LEN as u64) || count < low || count > high {
                let (low, high) = (Blocks(low).to_bytes(), Blocks(high).to_bytes());
                return Err(Error::misuse(format!("{what} is a multiple of 4KiB from {low} to {high}, not {size}")));
            }
            Ok(count)
        };
        let region = blocks("a region", config.region, 64, REGION_BLOCKS_MAX)?;
        let large = blocks("a large block", config.large_block, 4, LARGE_BLOCKS_MAX)?;
        let log_blocks = blocks("the log", config.log, 16, 1 << 18)?;
        if large * 4 > region {
            return Err(Error::misuse("a region holds at least four large blocks: make it larger, or them smaller"));
        }
        if !(1..=64).contains(&config.blocks_per_onode) {
            return Err(Error::misuse("a small region has an onode for 1 to 64 blocks"));
        }
        if config.object_mean.0 < 512 {
            return Err(Error::misuse("the mean size of objects is at least 512 bytes"));
        }
        let objects = capacity.to_bytes().0 / config.object_mean.0;
        let pages = (objects * 2).div_ceil(PAGE_ENTRIES as u64).max(4);
        // The tail has a record too.
        let most = capacity.0 / region + u64::from(version >= TAIL_SINCE);
        let map_blocks = (MAP_HEADER_LEN as u64 + most * MAP_ENTRY_LEN as u64).div_ceil(BLOCK_LEN as u64).max(1);
        let fixed = 2 * SUPERBLOCKS + 4 * map_blocks + log_blocks + pages;
        let regions = capacity.0.saturating_sub(fixed) / region;
        if !(REGIONS_MIN..=REGIONS_MAX).contains(&regions) {
            return Err(Error::misuse(format!(
                "a device of {} has room for {regions} regions of {}; {REGIONS_MIN} to {REGIONS_MAX} are needed: choose another \
                 size of regions",
                capacity.to_bytes(),
                config.region
            )));
        }
        let shape = Shape::of(region, large, config.blocks_per_onode);
        let left = capacity.0 - fixed - regions * region;
        let has_tail = version >= TAIL_SINCE && left >= 2 * shape.head + TAIL_MIN;
        let tail = if has_tail { left } else { 0 };
        Ok(Layout { version, capacity: capacity.0, map_blocks, log_blocks, pages, regions, tail, shape })
    }

    /// Both places of the superblock of this number.
    pub fn superblocks(capacity: Blocks, commit: u64) -> [Lba; 2] {
        let slot = commit % SUPERBLOCKS;
        [Lba(slot), Lba(capacity.0 - SUPERBLOCKS + slot)]
    }
    /// Both places of a slot of the map.
    pub fn map(&self, slot: u8) -> [Lba; 2] {
        let at = u64::from(slot % 2) * self.map_blocks;
        [Lba(SUPERBLOCKS + at), Lba(self.capacity - SUPERBLOCKS - 2 * self.map_blocks + at)]
    }
    /// The block of the log with this sequence number.
    pub fn log(&self, seq: u64) -> Lba {
        Lba(SUPERBLOCKS + 2 * self.map_blocks + seq % self.log_blocks)
    }
    /// A page of the base part.
    pub fn page(&self, page: u64) -> Lba {
        Lba(SUPERBLOCKS + 2 * self.map_blocks + self.log_blocks + page)
    }
    /// Whether this is a page of the base part.
    pub fn is_base(&self, at: Lba) -> bool {
        (self.page(0)..self.page(self.pages)).contains(&at)
    }
    /// Regions, and the tail, which has the number behind the last region.
    pub fn parts(&self) -> u64 {
        self.regions + u64::from(self.tail > 0)
    }
    /// Whether this is the number of the tail.
    pub fn is_tail(&self, region: u32) -> bool {
        self.tail > 0 && u64::from(region) == self.regions
    }
    /// What lies in a region. The tail has room for tables alone.
    pub fn shape_of(&self, region: u32) -> Shape {
        if u64::from(region) < self.regions {
            return self.shape;
        }
        let table = self.tail.saturating_sub(2 * self.shape.head);
        Shape { blocks: self.tail, units: 0, onodes: 0, small: 0, table, ..self.shape }
    }
    /// The first block of a region.
    pub fn region(&self, region: u32) -> Lba {
        Lba(self.page(self.pages).0 + u64::from(region) * self.shape.blocks)
    }
    /// The region that this block lies in.
    pub fn region_of(&self, at: Lba) -> Option<u32> {
        let from_first = at.0.checked_sub(self.region(0).0)?;
        let region = from_first / self.shape.blocks;
        let inside = from_first < self.regions * self.shape.blocks + self.tail;
        inside.then_some(region as u32)
    }
    /// A slot of a region's head.
    pub fn head(&self, region: u32, slot: u8) -> Lba {
        Lba(self.region(region).0 + u64::from(slot % 2) * self.shape.head)
    }
    /// The onode in a slot of a region of this kind.
    pub fn onode(&self, region: u32, kind: Kind, slot: u32) -> Lba {
        let slot = u64::from(slot);
        let at = match kind {
            Kind::Large => self.shape.large_head() + slot * (self.shape.large + 1) + self.shape.large,
            _ => 2 * self.shape.head + slot,
        };
        Lba(self.region(region).0 + at)
    }
    /// A data block of a small or table region.
    pub fn data(&self, region: u32, kind: Kind, block: u32) -> Lba {
        let front = 2 * self.shape.head + if kind == Kind::Small { self.shape.onodes } else { 0 };
        Lba(self.region(region).0 + front + u64::from(block))
    }
    /// The data block of a region of this kind that lies at `at`.
    pub fn block_of(&self, region: u32, kind: Kind, at: Lba) -> Option<u32> {
        let block = at.0.checked_sub(self.data(region, kind, 0).0)?;
        (block < self.shape_of(region).bits(kind).1).then_some(block as u32)
    }

    /// The boundary check, on every I/O of objects and tables: it stays in one region, away from its head, or in the base
    /// part.
    ///
    /// # Errors
    /// [`ashlar_block::Kind::Corrupt`]: whoever asks believes something wrong.
    pub fn check(&self, at: Lba, count: Blocks) -> Result<()> {
        let last = Lba(at.0.saturating_add(count.0.max(1) - 1));
        let base = self.is_base(at) && self.is_base(last);
        let inside =
            |region: u32| self.region_of(last) == Some(region) && at.0 >= self.region(region).0 + 2 * self.shape.head;
        if base || self.region_of(at).is_some_and(inside) {
            return Ok(());
        }
        Err(Error::corrupt(format!("an I/O of {count} at {at} would leave its region or touch a region's head")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 6, check 1 of the digest, with onodes of 4 KiB where the thesis has 512 bytes.
    #[test]
    fn sizes_are_those_of_the_thesis() {
        let shape = Shape::of(REGION.0 / 4096, LARGE_BLOCK.0 / 4096, SMALL_BLOCKS_PER_ONODE);
        // (256 MiB - 512 KiB) / (512 KiB + 4 KiB)
        assert_eq!(shape.units, 507);
        // One onode for eight blocks: of 65,536 blocks less two heads of three.
        assert_eq!((shape.head, shape.onodes, shape.small), (3, 7282, 58_248));
        assert!(shape.small.div_ceil(SMALL_BLOCKS_PER_ONODE) <= shape.onodes);
        // The digest's 29 regions on 8 GB.
        let layout = Layout::new(Blocks(8_000_000_000 / 4096), &Config::default()).expect("a layout");
        assert_eq!(layout.regions, 29);
        // What is left would be three quarters of one.
        assert_eq!(layout.tail, 8_000_000_000 / 4096 - 29 * 65_536 - (4 + 4 + 1024 + 619));
        // 16 TB are 2^16 regions of 256 MB, less what lies before them.
        let layout = Layout::new(Blocks((1 << 44) / 4096), &Config::default()).expect("a layout");
        assert!((65_536 - 40..65_536).contains(&layout.regions), "{layout:?}");
        // Base part for 2 M objects on 500 GB: two places for each, 101 on a page.
        let layout = Layout::new(Blocks(500_000_000_000 / 4096), &Config::default()).expect("a layout");
        assert_eq!(layout.pages, (500_000_000_000u64 / 256_000 * 2).div_ceil(101));
    }

    #[test]
    fn nothing_overlaps_and_boundaries_are_checked() {
        for (region, large) in [(64, 4), (256, 16), (65_536, 128), (1 << 20, 512)] {
            let config = Config {
                region: Blocks(region).to_bytes(),
                large_block: Blocks(large).to_bytes(),
                ..Config::default()
            };
            let layout = Layout::new(Blocks(region * 9 + 9000), &config).expect("a layout");
            let shape = layout.shape;
            for number in [0, 1, layout.regions as u32 - 1] {
                let end = layout.region(number).0 + shape.blocks;
                let last_unit = layout.onode(number, Kind::Large, shape.units as u32 - 1);
                assert!(last_unit.0 < end);
                let first_unit = layout.onode(number, Kind::Large, 0).0 - shape.large;
                assert!(first_unit >= layout.head(number, 1).0 + shape.head);
                assert_eq!(layout.data(number, Kind::Small, shape.small as u32).0, end);
                assert_eq!(layout.onode(number, Kind::Small, shape.onodes as u32), layout.data(number, Kind::Small, 0));
                layout.check(last_unit, Blocks(1)).expect("inside");
                layout.check(Lba(end - 1), Blocks(2)).expect_err("it leaves the region");
                layout.check(layout.head(number, 1), Blocks(1)).expect_err("a head");
            }
            layout.check(layout.log(0), Blocks(1)).expect_err("the log");
            layout.check(layout.page(0), Blocks(1)).expect("a page");
            layout.check(layout.page(layout.pages - 1), Blocks(2)).expect_err("behind the last page");
            let bits = shape.onodes + shape.small;
            assert!(shape.head * 4096 >= HEAD_HEADER_LEN as u64 + bits.div_ceil(8));
            let tail = layout.regions as u32;
            assert!(layout.is_tail(tail) && layout.tail < shape.blocks && layout.parts() == layout.regions + 1);
            let end = layout.region(tail).0 + layout.tail;
            assert_eq!(end, layout.map(0)[1].0);
            assert_eq!(layout.data(tail, Kind::Table, layout.shape_of(tail).table as u32).0, end);
            layout.check(layout.data(tail, Kind::Table, 0), Blocks(16)).expect("inside");
            layout.check(layout.head(tail, 1), Blocks(1)).expect_err("a head");
            layout.check(Lba(layout.region(tail).0 - 1), Blocks(2)).expect_err("it leaves the region");
            layout.check(Lba(end - 1), Blocks(2)).expect_err("it leaves the tail");
            assert_eq!((layout.region_of(Lba(end - 1)), layout.region_of(Lba(end))), (Some(tail), None));
        }
    }

    #[test]
    fn a_tail_is_what_is_left_where_that_is_worth_it() {
        let config = Config { region: Blocks(64).to_bytes(), large_block: Blocks(4).to_bytes(), ..Config::default() };
        let layouts = |version| {
            (2000..2200).map(move |capacity| Layout::of_version(version, Blocks(capacity), &config).expect("a layout"))
        };
        for layout in layouts(2) {
            let left = layout.map(0)[1].0 - layout.region(layout.regions as u32).0;
            assert!(left < 64, "{layout:?}");
            assert_eq!(layout.tail, if left >= 18 { left } else { 0 });
            assert_eq!(layout.parts(), layout.regions + u64::from(left >= 18));
            let map = MAP_HEADER_LEN as u64 + layout.parts() * MAP_ENTRY_LEN as u64;
            assert!(map <= layout.map_blocks * BLOCK_LEN as u64, "the map has a record of the tail: {layout:?}");
        }
        assert!(layouts(2).any(|layout| layout.tail == 0) && layouts(2).any(|layout| layout.tail == 63));
        for layout in layouts(1) {
            assert_eq!((layout.tail, layout.parts()), (0, layout.regions));
            assert_eq!(layout.region_of(layout.region(layout.regions as u32)), None, "nothing lies there");
        }
    }
}
