//! Where the files of an ext4 file system are (Linux, `Documentation/filesystems/ext4`): superblock, group descriptors, tables
//! of inodes, trees of extents, directories. What files hold is not looked at.
//!
//! Known are file systems with blocks of 4 KiB, and files with extents; what is inside inodes, in blocks of the old kind or
//! allocated and never written belongs to no file. The journal is not looked at.

use super::{Disk, Extent, File, Found, u16_at, u32_at};
use std::collections::HashMap;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64;

const SUPERBLOCK: u64 = 1024;
const BLOCK: u64 = 4096;
/// Bytes that are read at once.
const READ: u64 = 1 << 20;
/// Bytes of group descriptors: those of 128 TiB.
const DESCRIPTORS_MAX: u64 = 64 << 20;
/// The deepest tree of extents that Linux makes.
const DEPTH_MAX: u64 = 5;

/// Bits of `s_feature_incompat`, of `s_feature_ro_compat`, of `bg_flags` and of `i_flags`.
const META_BG: u64 = 0x10;
const WIDE: u64 = 0x80;
const CHECKSUMS: u64 = 0x10 | 0x400;
const INODES_UNUSED: u64 = 1;
const EXTENTS: u64 = 0x8_0000;

/// Bits of `i_mode`.
const KIND: u64 = 0xf000;
const REGULAR: u64 = 0x8000;
const DIRECTORY: u64 = 0x4000;

/// Extents longer than this are allocated and not written.
const WRITTEN_MAX: u64 = 32768;

/// Whether what begins so is ext2, ext3 or ext4.
pub(super) fn is(first: &[u8]) -> bool {
    u16_at(first, SUPERBLOCK as usize + 56) == Some(0xef53)
}

/// What the superblock says.
struct Super {
    groups: u64,
    inodes_per_group: u64,
    inode_size: u64,
    descriptor: u64,
    /// Groups say how many of their inodes were never used.
    says_unused: bool,
}

impl Super {
    fn read(disk: &mut Disk<'_>) -> Option<Super> {
        let bytes = disk.bytes(0, BLOCK)?;
        let own = bytes.get(SUPERBLOCK as usize..)?;
        let (incompatible, read_only) = (u32_at(own, 96)?, u32_at(own, 100)?);
        let wide = incompatible & WIDE != 0;
        let blocks = u32_at(own, 4)? | if wide { u32_at(own, 0x150)? << 32 } else { 0 };
        let (per_group, inodes_per_group) = (u32_at(own, 32)?, u32_at(own, 40)?);
        let (inode_size, descriptor) = (u16_at(own, 88)?, if wide { u16_at(own, 254)? } else { 32 });
        let is_known = is(&bytes)
            && u32_at(own, 24)? == 2
            && incompatible & META_BG == 0
            && per_group > 0
            && (128..=BLOCK).contains(&inode_size)
            && inode_size.is_power_of_two()
            && (32..=1024).contains(&descriptor);
        let groups = if per_group > 0 { blocks.div_ceil(per_group) } else { 0 };
        let says_unused = read_only & CHECKSUMS != 0;
        is_known.then_some(Super { groups, inodes_per_group, inode_size, descriptor, says_unused })
    }

    /// Where tables of inodes begin, and bytes of inodes in use.
    fn tables(&self, disk: &mut Disk<'_>) -> Option<Vec<(u64, u64)>> {
        let len = self.groups.checked_mul(self.descriptor).filter(|len| *len <= DESCRIPTORS_MAX)?;
        let bytes = disk.bytes(BLOCK, len)?;
        let table = |group: &[u8]| {
            let wide = self.descriptor >= 64;
            let high = |at| if wide { u32_at(group, at) } else { Some(0) };
            let at = u32_at(group, 8)? | high(0x28)? << 32;
            let unused = u16_at(group, 0x1c)? | (high(0x30)? >> 16) << 16;
            let used = match () {
                () if !self.says_unused => self.inodes_per_group,
                () if u16_at(group, 0x12)? & INODES_UNUSED != 0 => 0,
                () => self.inodes_per_group.saturating_sub(unused),
            };
            Some((at.checked_mul(BLOCK)?, used * self.inode_size))
        };
        bytes.chunks_exact(self.descriptor as usize).map(table).collect()
    }
}

/// What the tables of inodes tell.
#[derive(Default)]
struct Inodes {
    found: Found,
    /// Numbers of the files.
    numbers: Vec<u32>,
    /// Blocks of directories, with their numbers.
    directories: Vec<(u64, u32)>,
    /// Blocks of trees of extents that are still to be read: block, levels below it, whose.
    trees: Vec<(u64, u64, Owner)>,
}

#[derive(Clone, Copy)]
enum Owner {
    File(u32),
    Directory(u32),
}

impl Inodes {
    /// An inode of the table.
    fn inode(&mut self, number: u32, bytes: &[u8], disk: &Disk<'_>) -> Option<()> {
        let (kind, links, flags) = (u16_at(bytes, 0)? & KIND, u16_at(bytes, 26)?, u32_at(bytes, 32)?);
        if links == 0 || flags & EXTENTS == 0 {
            return None;
        }
        let owner = match kind {
            REGULAR => {
                self.found.files.push(File { name: u64::from(number), parent: 0 });
                self.numbers.push(number);
                Owner::File(self.found.files.len() as u32 - 1)
            }
            DIRECTORY => Owner::Directory(number),
            _ => return None,
        };
        self.node(bytes.get(40..100)?, None, owner, disk)
    }

    /// A node of a tree of extents; `levels` are those that must be below it, unless it is a root.
    fn node(&mut self, bytes: &[u8], levels: Option<u64>, owner: Owner, disk: &Disk<'_>) -> Option<()> {
        let (magic, count, depth) = (u16_at(bytes, 0)?, u16_at(bytes, 2)?, u16_at(bytes, 6)?);
        if magic != 0xf30a || depth > DEPTH_MAX || levels.is_some_and(|levels| levels != depth) {
            return None;
        }
        for entry in bytes.get(12..)?.chunks_exact(12).take(count as usize) {
            if depth > 0 {
                self.trees.push((u32_at(entry, 4)? | u16_at(entry, 8)? << 32, depth - 1, owner));
                continue;
            }
            let len = u16_at(entry, 4)?;
            let (first, at) = (u32_at(entry, 0)?, u32_at(entry, 8)? | u16_at(entry, 6)? << 32);
            let begin = disk.begin + at * BLOCK;
            let end = begin + len * BLOCK;
            if len > WRITTEN_MAX || at == 0 || end > disk.end.next_multiple_of(BLOCK) {
                continue;
            }
            match owner {
                Owner::File(file) => self.found.extents.push(Extent { file, offset: first * BLOCK, begin, end }),
                Owner::Directory(number) => {
                    let room = disk.limits.files.saturating_sub(self.directories.len()) as u64;
                    self.directories.extend((at..at + len.min(room)).map(|block| (block, number)));
                }
            }
        }
        self.fits(disk)
    }

    fn fits(&self, disk: &Disk<'_>) -> Option<()> {
        let held = self.found.extents.len() + self.found.files.len() + self.trees.len() + self.directories.len();
        (held <= disk.limits.files).then_some(())
    }
}

/// All files with extents of the file system that a disk holds.
pub(super) fn files(disk: &mut Disk<'_>) -> Option<Found> {
    let told = Super::read(disk)?;
    let tables = told.tables(disk)?;
    // Better none of it than a part.
    let used = tables.iter().fold(0u64, |sum, (_, used)| sum.saturating_add(*used));
    if used > disk.limits.read.saturating_sub(disk.read) {
        return None;
    }
    let (mut inodes, mut ranges, mut firsts) = (Inodes::default(), Vec::new(), Vec::new());
    for (group, (at, used)) in tables.into_iter().enumerate() {
        for from in (0..used).step_by(READ as usize) {
            let begin = at.checked_add(from)?;
            ranges.push(begin..begin.checked_add(READ.min(used - from))?);
            firsts.push(group as u64 * told.inodes_per_group + from / told.inode_size);
        }
    }
    disk.each(&ranges, |disk, index, bytes| {
        for (number, inode) in (firsts[index] + 1..).zip(bytes.chunks_exact(told.inode_size as usize)) {
            // An inode that makes no sense is of no file.
            let _ = inodes.inode(number as u32, inode, disk);
        }
        inodes.fits(disk)
    })?;
    while !inodes.trees.is_empty() {
        let mut trees = std::mem::take(&mut inodes.trees);
        trees.sort_unstable_by_key(|(block, ..)| *block);
        let ranges: Vec<Range<u64>> = trees.iter().map(|(block, ..)| block * BLOCK..(block + 1) * BLOCK).collect();
        disk.each(&ranges, |disk, index, bytes| {
            let (_, levels, owner) = trees[index];
            let _ = inodes.node(bytes, Some(levels), owner, disk);
            inodes.fits(disk)
        })?;
    }
    let names = names(inodes.directories, disk);
    for (file, number) in inodes.found.files.iter_mut().zip(&inodes.numbers) {
        if let Some((name, directory)) = names.get(number) {
            *file = File { name: *name, parent: names.get(directory).map_or(0, |(name, _)| *name) };
        }
    }
    Some(inodes.found)
}

/// Hashes of names by number of inode, with the number of the directory; of several names, of the least hash.
fn names(mut blocks: Vec<(u64, u32)>, disk: &mut Disk<'_>) -> HashMap<u32, (u64, u32)> {
    blocks.sort_unstable();
    let mut names = HashMap::new();
    let runs = blocks.chunk_by(|one, other| one.0 + 1 == other.0).flat_map(|run| run.chunks((READ / BLOCK) as usize));
    let runs: Vec<&[(u64, u32)]> = runs.collect();
    let ranges: Vec<Range<u64>> =
        runs.iter().map(|run| run[0].0 * BLOCK..(run[0].0 + run.len() as u64) * BLOCK).collect();
    // What cannot be read, or is more than there is room for, leaves its files without names.
    let _ = disk.each(&ranges, |disk, index, bytes| {
        for (block, (_, directory)) in bytes.chunks_exact(BLOCK as usize).zip(runs[index]) {
            entries(block, |number, name| {
                let found = (xxh3_64(name), *directory);
                let known = names.entry(number).or_insert(found);
                *known = found.min(*known);
            });
        }
        (names.len() <= disk.limits.files).then_some(())
    });
    names
}

/// The entries of a block of a directory, without itself and the one above.
fn entries(block: &[u8], mut each: impl FnMut(u32, &[u8])) {
    let mut at = 0;
    while let Some((number, len, name_len)) = entry(block, at) {
        let name = block.get(at + 8..at + 8 + name_len).unwrap_or_default();
        if number > 0 && !name.is_empty() && name != b"." && name != b".." {
            each(number, name);
        }
        at += len;
    }
}

/// The number, the length and the length of the name of the entry at an offset.
fn entry(block: &[u8], at: usize) -> Option<(u32, usize, usize)> {
    let (number, len) = (u32_at(block, at)? as u32, u16_at(block, at + 4)? as usize);
    let name_len = usize::from(*block.get(at + 6)?);
    (len >= 12 && name_len + 8 <= len).then_some((number, len, name_len))
}
