//! The Fast File System of 4.4BSD as the thesis ages it (sections 2.1.3 and 3.3): where it puts things, and nothing else.
//!
//! It holds no data and no names: a map of free fragments for each cylinder group, and for each file where its blocks are.
//! The baseline is FFS with the improved clustering of Smith and Seltzer (1996); [`Variant`] has the two changes that the thesis judges by
//! ageing.
//!
//! Invariants (checked by a model in the tests)
//!  1. A fragment belongs to one file at most; the counts of each group are those of its map.
//!  2. The block that is pointed to first by an indirect block, and that indirect block, lie in the first group with at least
//!     an average number of free blocks, of those from that of the inode on (the baseline).
//!
//! Departs
//!  * The thesis has the first indirect block send a file to *another* group; the code of 4.4BSD (`ffs_blkpref`) takes that of the
//!    inode if it has as many free blocks as the others. That is rare on an empty file system, and not on an old one.
//!  * A file that is written again from within a block gets a new last block; FFS would extend its fragments where they are.
//!  * The search for a cluster begins at the preferred place and goes round in its group; that of FFS ends at the group's end.
//!  * No rotational positions: disks have not told theirs since before the thesis.

mod alloc;
pub mod bench;
mod group;
#[cfg(test)]
mod tests;

use crate::age::{Alive, Look, Refusal, Subject};
use crate::history::{ROOT, Writing};
use crate::layout::{Free, HOT_NS, Layout, Lying, Tally};
use alloc::{Allocator, NoRoom};
use ashlar_survey::layout::Score;
use ashlar_units::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::str::FromStr;
use xxhash_rust::xxh3::Xxh3;

/// Bytes of a block (Table 3.1).
pub const BLOCK: u64 = 8192;
/// Bytes of a fragment (Table 3.1).
pub const FRAGMENT: u64 = 1024;
/// Fragments of a block.
pub const FRAGMENTS: u32 = (BLOCK / FRAGMENT) as u32;
/// Blocks that an inode points to itself.
pub const DIRECT: u64 = 12;
/// Blocks that an indirect block points to.
pub const POINTERS: u64 = BLOCK / 4;
/// Blocks that are put together, at most: 56 KB (Table 3.1).
pub const CLUSTER: u64 = 7;
/// Bytes of a cylinder group: 1,024 MB in 63 (Table 3.1), as whole blocks.
pub const GROUP_BYTES: u64 = (1024 << 20) / 63 / BLOCK * BLOCK;
/// Share of the fragments that only the superuser may use.
pub const RESERVE: f64 = 0.1;

const _: () = assert!(FRAGMENTS == 8, "a byte of the map is a block");

/// What is changed about FFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// Nothing.
    #[default]
    Baseline,
    /// The first indirect block does not send a file to another group (section 3.3.1).
    NoSwitch,
    /// The fragment at the end of a file goes behind its last block, if that place is free (section 3.3.2).
    SmartFrag,
}

impl FromStr for Variant {
    type Err = String;
    fn from_str(text: &str) -> Result<Variant, String> {
        match text {
            "baseline" => Ok(Variant::Baseline),
            "noswitch" => Ok(Variant::NoSwitch),
            "smartfrag" => Ok(Variant::SmartFrag),
            _ => Err(format!("{text:?} is no variant of FFS; there are baseline, noswitch and smartfrag")),
        }
    }
}

/// Whether the block with this number (from zero) begins in another group than the block before it.
pub fn switches(variant: Variant, block: u64) -> bool {
    let first = if variant == Variant::NoSwitch { DIRECT + POINTERS } else { DIRECT };
    block >= first && (block - DIRECT).is_multiple_of(POINTERS)
}

/// Whether an indirect block is allocated before the block with this number.
pub fn needs_indirect(block: u64) -> bool {
    block >= DIRECT && (block - DIRECT).is_multiple_of(POINTERS)
}

/// Some fragments of a file that lie together, in its order. Addresses are in fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first.
    pub at: u64,
    /// How many.
    pub len: u32,
}

/// A file.
#[derive(Clone, Debug, Default)]
pub struct FfsFile {
    /// The group of its inode.
    pub group: u32,
    /// Its blocks in order, one by one; the last may be a fragment of several fragments.
    pub blocks: Vec<Piece>,
    /// Its indirect blocks.
    pub indirect: Vec<u64>,
    /// When it was last written, by the time of the history.
    pub written_ns: i64,
}

/// See the module.
pub struct Ffs {
    allocator: Allocator,
    variant: Variant,
    files: HashMap<u64, FfsFile>,
    /// Group of each directory.
    directories: HashMap<u64, u32>,
    now_ns: i64,
}

/// What is special about the layout of FFS.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct FfsLayout {
    /// What is changed about it.
    pub variant: Variant,
    /// Cylinder groups.
    pub groups: u32,
    /// Share of the fragments that is in use, of those that files can have.
    pub used: f64,
    /// Share of the free space that lies in fragments of blocks.
    pub free_in_fragments: f64,
    /// Of files of two blocks, the share whose blocks adjoin.
    pub two_blocks_adjoin: f64,
    /// A number that differs when any block lies elsewhere, as 16 hexadecimal digits.
    pub hash: String,
}

impl Ffs {
    /// An empty file system of whole groups.
    pub fn new(size: Bytes, variant: Variant) -> Result<Ffs, String> {
        let groups = size.0 / GROUP_BYTES;
        if !(2..=1 << 16).contains(&groups) {
            return Err(format!(
                "{size} is no size for FFS: at least two groups of {} and at most 65,536",
                Bytes(GROUP_BYTES)
            ));
        }
        let allocator = Allocator::new(groups as u32, variant);
        let directories = HashMap::from([(ROOT, 0)]);
        Ok(Ffs { allocator, variant, files: HashMap::new(), directories, now_ns: 0 })
    }

    /// Bytes that files can have, without the reserve.
    pub fn capacity(&self) -> Bytes {
        Bytes((self.allocator.fragments() as f64 * (1.0 - RESERVE)) as u64 * FRAGMENT)
    }

    /// The time of the history: files that are written now are as old.
    pub fn set_time(&mut self, now_ns: i64) {
        self.now_ns = now_ns;
    }

    /// A file.
    pub fn file(&self, id: u64) -> Option<&FfsFile> {
        self.files.get(&id)
    }

    /// Makes a directory in the group that the policy chooses.
    pub fn add_directory(&mut self, id: u64) -> u32 {
        let group = self.allocator.directory_group();
        self.directories.insert(id, group);
        group
    }

    /// Cuts a file to `keep` bytes and writes on to `size`; it is made if it is not there.
    pub fn write_file(&mut self, id: u64, parent: u64, keep: u64, size: u64) -> Result<(), NoRoom> {
        let mut file = match self.files.remove(&id) {
            Some(file) => file,
            None => {
                let near = self.directories.get(&parent).copied().unwrap_or(0);
                FfsFile { group: self.allocator.take_inode(near)?, ..FfsFile::default() }
            }
        };
        file.written_ns = self.now_ns;
        self.allocator.truncate(&mut file, keep / BLOCK);
        let written = self.allocator.extend(&mut file, size);
        self.files.insert(id, file);
        written
    }

    /// Deletes a file or directory.
    pub fn remove(&mut self, id: u64) {
        if let Some(mut file) = self.files.remove(&id) {
            self.allocator.truncate(&mut file, 0);
            self.allocator.free_inode(file.group);
        }
        if let Some(group) = self.directories.remove(&id) {
            self.allocator.free_directory(group);
        }
    }

    /// How the files lie.
    pub fn layout(&self) -> Layout {
        let mut tally = Tally::default();
        for file in self.files.values() {
            let (score, pieces) = score(&file.blocks);
            let away = file.blocks.first().map(|block| self.allocator.group_of(block.at).abs_diff(file.group));
            let bytes = file.blocks.iter().map(|block| u64::from(block.len) * FRAGMENT).sum();
            let hot = file.written_ns >= self.now_ns.saturating_sub(HOT_NS);
            tally.add(&Lying { bytes, score, pieces, away: away.map(u64::from), hot });
        }
        tally.finish(true, 0, Some(Free::new(self.allocator.free_by_length())))
    }

    /// What is special about it.
    pub fn special(&self) -> FfsLayout {
        let two = || self.files.values().filter(|file| file.blocks.len() == 2);
        let adjoin = two().filter(|file| score(&file.blocks).1 == 1).count();
        let mut hasher = Xxh3::new();
        let ordered: BTreeMap<_, _> = self.files.iter().collect();
        for (id, file) in ordered {
            hasher.update(&id.to_le_bytes());
            file.blocks.iter().for_each(|block| hasher.update(&(block.at << 8 | u64::from(block.len)).to_le_bytes()));
            file.indirect.iter().for_each(|at| hasher.update(&at.to_le_bytes()));
        }
        FfsLayout {
            variant: self.variant,
            groups: self.allocator.groups_count(),
            used: self.allocator.used() / (1.0 - RESERVE),
            free_in_fragments: self.allocator.free_in_fragments(),
            two_blocks_adjoin: adjoin as f64 / two().count().max(1) as f64,
            hash: format!("{:016x}", hasher.digest()),
        }
    }
}

/// The layout score of blocks, the last of which may be a fragment, and their number of pieces.
fn score(blocks: &[Piece]) -> (Score, u64) {
    let following = blocks.windows(2).filter(|pair| pair[0].at + u64::from(pair[0].len) == pair[1].at).count() as u64;
    let could = (blocks.len() as u64).saturating_sub(1);
    (Score { following, could }, blocks.len() as u64 - following)
}

impl Subject for Ffs {
    /// It is nowhere but in memory, so nothing is done again.
    fn repeating(&mut self, _again: bool) {}
    fn at(&mut self, now_ns: i64) {
        self.now_ns = now_ns;
    }
    fn make_directory(&mut self, id: u64, _alive: &Alive) -> Result<(), Refusal> {
        self.add_directory(id);
        Ok(())
    }
    fn write(&mut self, id: u64, _old: u64, keep: u64, _how: Writing, alive: &Alive) -> Result<(), Refusal> {
        let live = alive.get(&id).copied();
        let (parent, size) = live.map_or((ROOT, 0), |live| (live.parent, live.size));
        self.write_file(id, parent, keep, size).map_err(|NoRoom| Refusal::Full)
    }
    fn rename(&mut self, _id: u64, _from: (u64, u8), _alive: &Alive) -> Result<(), Refusal> {
        Ok(())
    }
    fn delete(&mut self, id: u64, _alive: &Alive) -> io::Result<()> {
        self.remove(id);
        Ok(())
    }
    fn give_up(&mut self, id: u64, _alive: &Alive) -> io::Result<()> {
        self.remove(id);
        Ok(())
    }
    /// Places are chosen when files are written.
    fn write_back(&mut self, _id: u64, _alive: &Alive) -> io::Result<()> {
        Ok(())
    }
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn look(&mut self, _alive: &Alive) -> io::Result<Look> {
        let layout = self.layout();
        let used = self.allocator.used() / (1.0 - RESERVE);
        let Layout { all, free, .. } = layout;
        Ok(Look { used, score: all.score, pieces_per_file: all.pieces_per_file, free })
    }
}
