//! Blocks that somebody read a short while ago. The kernel's page cache reads a page before a part of it is changed, and later writes
//! all of it: what comes back is compared with what was read, and only what differs is stored, as a piece. A block that is written
//! anew lies somewhere else, and on a disk whoever then reads the file on end waits for the head at each.
//!
//! Of each block there are digests of its parts, so that little memory is taken. They hold for one *epoch* of an inode's contents, which
//! ends with any change of what is stored that is not said to [leave it as it is known](keep_epoch): whoever forgets to say so loses
//! digests and nothing else.

use crate::data::PIECE_LEN_MAX;
use crate::inode::{Inode, State};
use crate::{Betr, Options, Rule};
use ashlar_block::Medium;
use ashlar_inodes::BLOCK;
use ashlar_pool::Pool;
use ashlar_pool::patches::Piece;
use ashlar_units::BLOCK_LEN;
use ashlar_vfs::Ino;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Bytes of a part.
const PART_LEN: usize = 256;
const PARTS: usize = BLOCK_LEN / PART_LEN;
/// Longest read that is noted, in blocks: a page of a database. Who reads more at once does not go on to change parts of it.
const READ_BLOCKS_MAX: usize = 4;
/// Longest write that is compared, in blocks.
const WRITE_BLOCKS_MAX: u64 = 16;
/// Blocks that are kept: what a disk reads at random until the kernel writes back, which it does after half a minute.
const BLOCKS_MAX: usize = 1 << 14;
/// A block, with its share of the table.
const BLOCK_MEMORY: usize = 384;
/// Part of what may be [held beside](ashlar_pool::Pool::held_beside) the pool's memory.
const SHARE: usize = 8;

/// XXH3 with a seed that nobody knows: of 2^128 parts that differ from another, one has its digest.
type Digest = u128;

/// A block as it is.
#[derive(Clone, Debug)]
struct Block {
    parts: [Digest; PARTS],
    /// Bytes of pieces over it, at most.
    pieces: usize,
    epoch: u64,
}

/// Since when the contents of an inode are as they are known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Epoch {
    /// Never the same of two inodes, or of two lives of one in memory; 0: nothing is known.
    number: u64,
    /// What [`State::version`] was then.
    version: u64,
}

/// What is known of an inode's contents is so still, although [`State::version`] is not `before` any more. The caller has kept others
/// from changing them since.
pub(crate) fn keep_epoch(state: &mut State, before: u64) {
    if state.own.epoch.version == before {
        state.own.epoch.version = state.version;
    }
}

/// What a write changes in a block that is known.
#[derive(Debug)]
pub(crate) struct Change {
    /// What differs; `None`: so much that the block is better written anew.
    pub(crate) pieces: Option<Vec<Piece>>,
    becomes: Block,
}

/// What a write changes in the blocks that are known.
pub(crate) type Changes = BTreeMap<u64, Change>;

/// Blocks by inode and number. The oldest give way.
#[derive(Debug)]
pub(crate) struct Seen {
    known: Mutex<Known>,
    blocks_max: usize,
    seed: u64,
    epochs: AtomicU64,
    /// Digests are kept when contents change in another way: see [`Rule::ForgetChanged`].
    careless: bool,
}

/// Blocks by inode and number, and where in [`Known::order`] each is.
#[derive(Debug, Default)]
struct Known {
    blocks: HashMap<(Ino, u64), (usize, Block)>,
    /// What came in which order, in a ring; what was forgotten stays here until its turn.
    order: Vec<(Ino, u64)>,
    next: usize,
}

impl Known {
    fn put(&mut self, at: (Ino, u64), block: Block, most: usize) {
        if let Some((_, old)) = self.blocks.get_mut(&at) {
            *old = block;
            return;
        }
        let slot = if self.order.len() < most { self.order.len() } else { self.next };
        if slot == self.order.len() {
            self.order.push(at);
        } else {
            let oldest = std::mem::replace(&mut self.order[slot], at);
            if self.blocks.get(&oldest).is_some_and(|(own, _)| *own == slot) {
                self.blocks.remove(&oldest);
            }
            self.next = (slot + 1) % most;
        }
        self.blocks.insert(at, (slot, block));
    }
}

impl Seen {
    /// For a pool on disks that changes; on flash a block is as near as any other, and nothing is noted.
    pub(crate) fn new(pool: &Pool, options: &Options) -> Seen {
        let blocks_max = match pool.medium() {
            Medium::Disk if !options.read_only => BLOCKS_MAX.min(pool.held_beside(BLOCK_MEMORY) / SHARE),
            _ => 0,
        };
        let careless = options.without == Some(Rule::ForgetChanged);
        let seed = pool.env().random();
        Seen { known: Mutex::default(), blocks_max, seed, epochs: AtomicU64::new(0), careless }
    }

    /// The number of an inode's epoch; 0: contents have changed since.
    fn epoch(&self, state: &State) -> u64 {
        let Epoch { number, version } = state.own.epoch;
        if version == state.version || self.careless { number } else { 0 }
    }

    /// The same; if it is over, another one begins.
    fn begin(&self, state: &mut State) -> u64 {
        if self.epoch(state) == 0 {
            let number = 1 + self.epochs.fetch_add(1, Ordering::Relaxed);
            state.own.epoch = Epoch { number, version: state.version };
        }
        state.own.epoch.number
    }

    fn digests(&self, block: &[u8]) -> [Digest; PARTS] {
        std::array::from_fn(|part| xxh3_128_with_seed(&block[part * PART_LEN..(part + 1) * PART_LEN], self.seed))
    }

    /// Blocks from `first` on were read, with so many bytes of pieces over each. The caller holds the inode's lock.
    pub(crate) fn note(&self, inode: &Inode, first: u64, parts: &[Bytes], pieces: &BTreeMap<u64, usize>) {
        let len: usize = parts.iter().map(Bytes::len).sum();
        if self.blocks_max == 0 || len > READ_BLOCKS_MAX * BLOCK_LEN {
            return;
        }
        let epoch = self.begin(&mut inode.state());
        let whole = if let [whole] = parts { whole.clone() } else { parts.concat().into() };
        for (number, block) in (first..).zip(whole.chunks_exact(BLOCK_LEN)) {
            let pieces = pieces.get(&number).copied().unwrap_or(0);
            let block = Block { parts: self.digests(block), pieces, epoch };
            self.known.lock().put((inode.ino, number), block, self.blocks_max);
        }
    }

    /// Whether a write of the `count` blocks from `first` on is compared with what is known of them.
    pub(crate) fn compares(&self, ino: Ino, first: u64, count: u64) -> bool {
        if self.blocks_max == 0 || count > WRITE_BLOCKS_MAX {
            return false;
        }
        let known = self.known.lock();
        (first..first + count).any(|block| known.blocks.contains_key(&(ino, block)))
    }

    /// Blocks were written: of some it is known what they have become, and nothing of the others.
    fn adopt(&self, ino: Ino, written: Range<u64>, mut changes: Changes) {
        if self.blocks_max == 0 {
            return;
        }
        let mut known = self.known.lock();
        if written.end - written.start > known.blocks.len() as u64 {
            known.blocks.retain(|at, _| at.0 != ino || !written.contains(&at.1));
            return;
        }
        for block in written {
            match (changes.remove(&block), known.blocks.get_mut(&(ino, block))) {
                (Some(change), Some((_, known))) => *known = change.becomes,
                _ => drop(known.blocks.remove(&(ino, block))),
            }
        }
    }
}

impl Betr {
    /// What a write changes in the blocks inside the file of which all is written, as far as these are known. The caller holds the
    /// inode's lock for writing.
    pub(crate) fn changes_of(&self, inode: &Inode, offset: u64, data: &Bytes) -> Changes {
        let (size, epoch) = {
            let state = inode.state();
            (state.record.size, self.seen.epoch(&state))
        };
        let (first, last) = (offset.div_ceil(BLOCK), size.min(offset + data.len() as u64) / BLOCK);
        let mut changes = Changes::new();
        if first < last && self.seen.compares(inode.ino, first, last - first) {
            for block in first..last {
                let known = self.seen.known.lock().blocks.get(&(inode.ino, block)).map(|(_, known)| known.clone());
                if let Some(known) = known.filter(|known| known.epoch == epoch) {
                    let from = (block * BLOCK - offset) as usize;
                    let data = data.slice(from..from + BLOCK_LEN);
                    changes.insert(block, known.change(self.seen.digests(&data), &data));
                }
            }
        }
        changes
    }

    /// A write has changed these blocks, and nothing else of what is stored of the inode since `version`. The caller has held its lock
    /// for writing since then.
    pub(crate) fn adopt_changes(&self, inode: &Inode, written: Range<u64>, changes: Changes, version: u64) {
        self.seen.adopt(inode.ino, written, changes);
        keep_epoch(&mut inode.state(), version);
    }
}

impl Block {
    /// What it takes to make `data` of it, which have these digests.
    fn change(&self, parts: [Digest; PARTS], data: &Bytes) -> Change {
        let differs: Vec<usize> = (0..PARTS).filter(|part| self.parts[*part] != parts[*part]).collect();
        let pieces: Vec<Piece> = differs
            .chunk_by(|one, next| one + 1 == *next)
            .map(|run| (run[0] * PART_LEN, (run[run.len() - 1] + 1) * PART_LEN))
            .map(|(from, to)| Piece { offset: from, bytes: data.slice(from..to) })
            .collect();
        let len = self.pieces + differs.len() * PART_LEN;
        let (pieces, len) = if len <= PIECE_LEN_MAX { (Some(pieces), len) } else { (None, 0) };
        Change { pieces, becomes: Block { parts, pieces: len, epoch: self.epoch } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn put(known: &mut Known, number: u64, epoch: u64, most: usize) {
        known.put((7, number), Block { parts: [0; PARTS], pieces: 0, epoch }, most);
    }

    proptest! {
        #[test]
        fn what_is_known_is_the_newest_and_not_forgotten(
            most in 1usize..8,
            steps in proptest::collection::vec((0u64..12, any::<bool>()), 0..200),
        ) {
            let (mut known, mut newest) = (Known::default(), BTreeMap::new());
            for (epoch, (number, forget)) in (1..).zip(steps) {
                if forget {
                    known.blocks.remove(&(7, number));
                    newest.remove(&number);
                } else {
                    put(&mut known, number, epoch, most);
                    newest.insert(number, epoch);
                    prop_assert!(known.blocks.contains_key(&(7, number)), "what came last is there");
                }
                prop_assert!(known.blocks.len() <= most && known.order.len() <= most);
                for ((_, number), (_, block)) in &known.blocks {
                    prop_assert_eq!(newest.get(number), Some(&block.epoch));
                }
            }
        }
    }

    #[test]
    fn the_oldest_blocks_give_way() {
        let mut known = Known::default();
        for number in 0..100 {
            put(&mut known, number, 1, 8);
            let mut left: Vec<u64> = known.blocks.keys().map(|(_, number)| *number).collect();
            left.sort_unstable();
            assert_eq!(left, ((number + 1).saturating_sub(8)..=number).collect::<Vec<_>>());
        }
    }
}
