//! Where FFS puts blocks, fragments and inodes.

use super::group::Group;
use super::{BLOCK, CLUSTER, DIRECT, FRAGMENT, FRAGMENTS, FfsFile, GROUP_BYTES, Piece, RESERVE, Variant};
use super::{needs_indirect, switches};
use std::collections::BTreeMap;

/// Blocks of a group.
const GROUP_BLOCKS: u32 = (GROUP_BYTES / BLOCK) as u32;
/// Inodes of a group: one for each block, as `newfs` has it by default (four fragments and more).
const INODES: u32 = GROUP_BLOCKS;
/// Blocks of a group that no file gets: superblock, map, and inodes of 128 bytes.
const RESERVED: u32 = 2 + (INODES as u64 * 128).div_ceil(BLOCK) as u32;

/// There is no room: what is left is the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

pub(super) struct Allocator {
    groups: Vec<Group>,
    variant: Variant,
    free: u64,
    total: u64,
}

impl Allocator {
    pub(super) fn new(groups: u32, variant: Variant) -> Allocator {
        let groups = vec![Group::new(GROUP_BLOCKS, RESERVED, INODES); groups as usize];
        let total = groups.iter().map(Group::free).sum();
        Allocator { groups, variant, free: total, total }
    }

    /// Fragments that files could have.
    pub(super) fn fragments(&self) -> u64 {
        self.total
    }

    pub(super) fn groups_count(&self) -> u32 {
        self.groups.len() as u32
    }

    /// Share of the fragments in use.
    pub(super) fn used(&self) -> f64 {
        1.0 - self.free as f64 / self.total.max(1) as f64
    }

    pub(super) fn free_in_fragments(&self) -> f64 {
        let fragments: u64 = self.groups.iter().map(|group| u64::from(group.fragments_free)).sum();
        fragments as f64 / self.free.max(1) as f64
    }

    /// Free ranges by length, as [`crate::layout::Free`] has them.
    pub(super) fn free_by_length(&self) -> Vec<(u64, u64, u64)> {
        let mut by_length = BTreeMap::<u64, (u64, u64)>::new();
        let mut add = |run: u64| {
            let bytes = run * FRAGMENT;
            if bytes > 0 {
                let range = by_length.entry(bytes.next_power_of_two()).or_default();
                *range = (range.0 + 1, range.1 + bytes);
            }
        };
        for group in &self.groups {
            let mut run = 0;
            for byte in group.map() {
                for fragment in 0..FRAGMENTS {
                    if byte >> fragment & 1 == 1 {
                        run += 1;
                    } else {
                        add(std::mem::take(&mut run));
                    }
                }
            }
            add(run);
        }
        by_length.into_iter().map(|(bound, (count, bytes))| (bound, count, bytes)).collect()
    }

    /// The group of an address.
    pub(super) fn group_of(&self, at: u64) -> u32 {
        (at / u64::from(GROUP_BLOCKS * FRAGMENTS)) as u32
    }

    fn address(group: u32, block: usize, fragment: u32) -> u64 {
        (u64::from(group) * u64::from(GROUP_BLOCKS) + block as u64) * u64::from(FRAGMENTS) + u64::from(fragment)
    }

    fn place(&self, at: u64) -> (u32, usize, u32) {
        let block = at / u64::from(FRAGMENTS);
        let (group, block) = (block / u64::from(GROUP_BLOCKS), block % u64::from(GROUP_BLOCKS));
        (group as u32, block as usize, (at % u64::from(FRAGMENTS)) as u32)
    }

    /// A group for a directory: of those with at least an average number of free inodes the one with the fewest directories.
    pub(super) fn directory_group(&mut self) -> u32 {
        let average =
            self.groups.iter().map(|group| u64::from(group.inodes_free)).sum::<u64>() / self.groups.len() as u64;
        let fits = (0..).zip(&self.groups).filter(|(_, group)| u64::from(group.inodes_free) >= average);
        let group = fits.min_by_key(|(_, group)| group.directories).map_or(0, |(index, _)| index);
        let chosen = &mut self.groups[group as usize];
        chosen.directories += 1;
        chosen.inodes_free = chosen.inodes_free.saturating_sub(1);
        group
    }

    pub(super) fn free_directory(&mut self, group: u32) {
        let group = &mut self.groups[group as usize];
        group.directories = group.directories.saturating_sub(1);
        group.inodes_free += 1;
    }

    pub(super) fn take_inode(&mut self, near: u32) -> Result<u32, NoRoom> {
        let group = self.rehash(near, |group| (group.inodes_free > 0).then_some(())).ok_or(NoRoom)?.0;
        self.groups[group as usize].inodes_free -= 1;
        Ok(group)
    }

    pub(super) fn free_inode(&mut self, group: u32) {
        self.groups[group as usize].inodes_free += 1;
    }

    /// Asks a group, then those that `ffs_hashalloc` asks: at distances of 1, 2, 4 and so on, each from the one before; then
    /// all others in order, from the second behind the first.
    fn rehash<T>(&self, near: u32, mut ask: impl FnMut(&Group) -> Option<T>) -> Option<(u32, T)> {
        let count = self.groups_count();
        let mut order = vec![near % count];
        let (mut at, mut step) = (near % count, 1);
        while step < count {
            at = (at + step) % count;
            order.push(at);
            step *= 2;
        }
        order.extend((2..count).map(|distance| (near + distance) % count));
        order.into_iter().find_map(|group| Some((group, ask(self.groups.get(group as usize)?)?)))
    }

    /// Frees the blocks of a file from this one on.
    pub(super) fn truncate(&mut self, file: &mut FfsFile, keep: u64) {
        let keep = keep.min(file.blocks.len() as u64);
        for piece in file.blocks.drain(keep as usize..) {
            let (group, block, fragment) = {
                let block = piece.at / u64::from(FRAGMENTS);
                let (group, block) = (block / u64::from(GROUP_BLOCKS), block % u64::from(GROUP_BLOCKS));
                (group as usize, block as usize, (piece.at % u64::from(FRAGMENTS)) as u32)
            };
            self.groups[group].free_fragments(block, fragment, piece.len);
            self.free += u64::from(piece.len);
        }
        let indirect = (DIRECT..keep).step_by(super::POINTERS as usize).count();
        for at in file.indirect.drain(indirect..).collect::<Vec<_>>() {
            let (group, block, _) = self.place(at);
            self.groups[group as usize].free_fragments(block, 0, FRAGMENTS);
            self.free += u64::from(FRAGMENTS);
        }
        // A block that was a fragment is written again as a whole one, or as another fragment.
        if file.blocks.last().is_some_and(|last| last.len < FRAGMENTS) {
            self.truncate(file, keep - 1);
        }
    }

    /// Writes a file from its last block on, up to `size` bytes.
    pub(super) fn extend(&mut self, file: &mut FfsFile, size: u64) -> Result<(), NoRoom> {
        let blocks = size.div_ceil(BLOCK);
        // Only a file without indirect blocks ends with a fragment.
        let tail = if blocks <= DIRECT { ((size % BLOCK).div_ceil(FRAGMENT) as u32) % FRAGMENTS } else { 0 };
        let whole = if tail > 0 { blocks - 1 } else { blocks };
        let wanted = whole.saturating_sub(file.blocks.len() as u64) * u64::from(FRAGMENTS) + u64::from(tail);
        if (self.free as f64) < wanted as f64 + self.total as f64 * RESERVE {
            return Err(NoRoom);
        }
        while (file.blocks.len() as u64) < whole {
            self.extend_cluster(file, whole)?;
        }
        if tail > 0 {
            let piece = self.take_tail(file, tail)?;
            file.blocks.push(piece);
        }
        Ok(())
    }

    /// Where the next block of a file should be.
    fn wanted(&self, file: &FfsFile) -> (u32, usize) {
        match file.blocks.last() {
            None => (file.group, RESERVED as usize),
            Some(last) => {
                let (group, block, _) = self.place(last.at);
                (group, block + 1)
            }
        }
    }

    /// Where an indirect block and the first block behind it should be, each for itself: at the beginning of a group.
    ///
    /// `ffs_blkpref` of 4.4BSD knows no block before one that an indirect block points to first. It takes the first group with
    /// at least an average number of free blocks, *from that of the inode on* (and one more for every 2,048 blocks): on an
    /// empty file system that is another group, since the file itself made this one fuller than the others; on an old one it
    /// may be the same. With NoSwitch, it is always that of the inode, as in the BSDs today; so it goes back to where the group
    /// begins, which on an empty file system is where it is.
    fn section(&self, file: &FfsFile, first: u64) -> (u32, usize) {
        let count = self.groups_count();
        if !switches(self.variant, first) {
            return (file.group, RESERVED as usize);
        }
        let average = self.groups.iter().map(|group| u64::from(group.blocks_free)).sum::<u64>() / u64::from(count);
        let fits = |group: &u32| u64::from(self.groups[*group as usize].blocks_free) >= average;
        let from = (u64::from(file.group) + first / super::POINTERS) % u64::from(count);
        let group = (0..count).map(|distance| (from as u32 + distance) % count).find(fits);
        (group.unwrap_or(file.group), RESERVED as usize)
    }

    /// Adds up to a cluster of blocks, together if that can be.
    fn extend_cluster(&mut self, file: &mut FfsFile, whole: u64) -> Result<(), NoRoom> {
        let first = file.blocks.len() as u64;
        let mut wanted = self.wanted(file);
        if needs_indirect(first) {
            wanted = self.section(file, first);
            let (at, _) = self.take_blocks(wanted.0, wanted.1, 1)?;
            file.indirect.push(at);
        }
        let (group, block) = wanted;
        // A cluster ends where the next indirect block begins.
        let limit = if first < DIRECT { DIRECT } else { first + super::POINTERS - (first - DIRECT) % super::POINTERS };
        let len = (whole.min(limit) - first).min(CLUSTER) as usize;
        let (at, got) = self.take_blocks(group, block, len)?;
        let each = (0..got as u64).map(|index| Piece { at: at + index * u64::from(FRAGMENTS), len: FRAGMENTS });
        file.blocks.extend(each);
        Ok(())
    }

    /// Takes so many blocks: at this place, else together in this group or another, else one where there is one. Returns
    /// the address of the first and how many.
    fn take_blocks(&mut self, group: u32, block: usize, len: usize) -> Result<(u64, usize), NoRoom> {
        let here = self.groups[group as usize].is_free(block, len);
        let found = if here { Some((group, block)) } else { None };
        let found = found.or_else(|| {
            let mut first = true;
            self.rehash(group, |asked| {
                let near = if std::mem::take(&mut first) { block } else { 0 };
                asked.find(near, len)
            })
        });
        match found {
            Some((group, block)) => {
                self.groups[group as usize].take(block, len);
                self.free -= len as u64 * u64::from(FRAGMENTS);
                Ok((Allocator::address(group, block, 0), len))
            }
            None if len > 1 => self.take_blocks(group, block, 1),
            None => Err(NoRoom),
        }
    }

    fn take_tail(&mut self, file: &FfsFile, count: u32) -> Result<Piece, NoRoom> {
        let (group, block) = self.wanted(file);
        let piece =
            |group: u32, block: usize, from: u32| Piece { at: Allocator::address(group, block, from), len: count };
        self.free -= u64::from(count);
        if self.variant == Variant::SmartFrag
            && !file.blocks.is_empty()
            && self.groups[group as usize].is_free(block, 1)
        {
            self.groups[group as usize].split(block, count);
            return Ok(piece(group, block, 0));
        }
        // Fragments of the same group, else a block of it, else the same of another group.
        let near = |asked: u32| if asked == group { block } else { 0 };
        let fits = |group: &Group| (group.free() >= u64::from(count)).then_some(());
        let mut asked = self.rehash(group, fits).map(|(group, ())| group);
        for distance in 0..self.groups_count() {
            let here = asked.take().unwrap_or((group + distance) % self.groups_count());
            let place = near(here);
            let found = &mut self.groups[here as usize];
            if let Some((block, from)) = found.take_fragments(place, count) {
                return Ok(piece(here, block, from));
            }
            if let Some(block) = found.find(place, 1) {
                found.split(block, count);
                return Ok(piece(here, block, 0));
            }
        }
        self.free += u64::from(count);
        Err(NoRoom)
    }
}
