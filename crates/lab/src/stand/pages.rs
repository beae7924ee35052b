//! How many pages of a file system came into the page cache, and went, as the kernel itself counts them: programs at its
//! tracepoints `mm_filemap_add_to_page_cache` and `mm_filemap_delete_from_page_cache`.
//!
//! Counted is what belongs to inodes of the file system: data of files. Directories and other metadata of ext4 are pages of
//! the block device, those of xfs are in no page cache, and both are not counted; those of btrfs are pages of an inode of its
//! own, and are.

use ashlar_env::bpf::assembler::{Assembler, Do, Function, Register::*, When, Width};
use ashlar_env::bpf::{Attached, Kind, Map, Tracepoint};
use schemars::JsonSchema;
use serde::Serialize;
use std::io;

/// Pages of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PageUse {
    /// Pages of 4 KiB that came into the page cache.
    pub added: u64,
    /// Those that went: for want of memory, or as files were cut, removed or written to without the cache.
    pub removed: u64,
    /// Events that were not counted, as one came within another.
    pub missed: u64,
}

/// Counts for as long as it lives.
pub struct PageCounter {
    sums: Map,
    programs: [Attached; 2],
}

const ADDED: u32 = 0;
const REMOVED: u32 = 1;

impl PageCounter {
    /// Counts from now on what belongs to the file system with this number (as the kernel has it: 12 bits, then 20). Needs
    /// root; the error says what is missing.
    pub fn start(major: u32, minor: u32) -> io::Result<PageCounter> {
        let device = i32::try_from(u64::from(major) << 20 | u64::from(minor));
        let device =
            device.map_err(|_| io::Error::other(format!("the device {major}:{minor} has too large a number")))?;
        let sums = Map::new(Kind::Array, 4, 8, 2)?;
        let attach = |event: &str, which| {
            let point = Tracepoint::find(&format!("filemap/mm_filemap_{event}_page_cache"))?;
            Attached::numbered(&program(&point, &sums, device, which)?, point.number)
        };
        let programs = [attach("add_to", ADDED)?, attach("delete_from", REMOVED)?];
        Ok(PageCounter { sums, programs })
    }

    /// What was counted so far.
    pub fn count(&self) -> io::Result<PageUse> {
        let sum = |which: u32| -> io::Result<u64> {
            let value = self.sums.get(&which.to_ne_bytes())?;
            Ok(value.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes)))
        };
        let missed = self.programs.iter().map(Attached::missed).sum::<io::Result<u64>>()?;
        Ok(PageUse { added: sum(ADDED)?, removed: sum(REMOVED)?, missed })
    }
}

/// Adds the pages of each event on a device to a sum.
fn program(point: &Tracepoint, sums: &Map, device: i32, which: u32) -> io::Result<Vec<u64>> {
    let of = point.field("s_dev", 4).ok_or_else(|| io::Error::other("events of the page cache have no device"))?;
    let mut program = Assembler::default();
    let p = &mut program;
    let end = p.label();
    p.load(Width::Word, R7, R1, of);
    p.jump_if(R7, When::NotEqual, device, end);
    p.number(Do::Set, R6, 1);
    // Before there were large folios, each event was of one page.
    if let Some(order) = point.field("order", 1) {
        p.load(Width::Byte, R7, R1, order);
        p.number(Do::And, R7, 0x3f);
        p.register(Do::Left, R6, R7);
    }
    p.store_number(Width::Word, R10, -4, which as i32);
    p.map(R1, sums);
    p.register(Do::Set, R2, R10);
    p.number(Do::Add, R2, -4);
    p.call(Function::MapLookup);
    p.jump_if(R0, When::Equal, 0, end);
    p.add_atomic(R0, 0, R6);
    p.place(end);
    p.number(Do::Set, R0, 0);
    p.exit();
    Ok(program.finish())
}
