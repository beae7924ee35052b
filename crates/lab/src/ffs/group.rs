//! A cylinder group: which fragments of it are free.

use super::FRAGMENTS;

/// A block all of whose fragments are free.
const WHOLE: u8 = 0xff;

/// See the module. Blocks and fragments are counted from the group's beginning.
#[derive(Clone)]
pub(super) struct Group {
    /// A byte for each block, a bit for each of its fragments: set if it is free.
    map: Vec<u8>,
    pub blocks_free: u32,
    /// Free fragments of blocks that are not free as a whole.
    pub fragments_free: u32,
    /// Runs of such fragments by length.
    runs: [u32; FRAGMENTS as usize],
    pub inodes_free: u32,
    pub directories: u32,
}

/// Runs of free fragments in a block that is not free as a whole: where each begins, and its length.
fn runs(byte: u8) -> impl Iterator<Item = (u32, u32)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = (u32::from(byte) | 1 << FRAGMENTS) >> at;
        let from = at + rest.trailing_zeros();
        if from >= FRAGMENTS {
            return None;
        }
        let len = (u32::from(byte) >> from).trailing_ones();
        at = from + len;
        Some((from, len))
    })
}

fn mask(from: u32, len: u32) -> u8 {
    (((1u32 << len) - 1) << from) as u8
}

impl Group {
    pub(super) fn new(blocks: u32, reserved: u32, inodes: u32) -> Group {
        let map = (0..blocks).map(|block| if block < reserved { 0 } else { WHOLE }).collect();
        Group {
            map,
            blocks_free: blocks - reserved,
            fragments_free: 0,
            runs: [0; FRAGMENTS as usize],
            inodes_free: inodes,
            directories: 0,
        }
    }

    /// Free fragments in all.
    pub(super) fn free(&self) -> u64 {
        u64::from(self.blocks_free) * u64::from(FRAGMENTS) + u64::from(self.fragments_free)
    }

    pub(super) fn map(&self) -> &[u8] {
        &self.map
    }

    fn set(&mut self, block: usize, byte: u8) {
        let Some(old) = self.map.get_mut(block) else { return };
        let old = std::mem::replace(old, byte);
        for (byte, sign) in [(old, -1i32), (byte, 1)] {
            if byte == WHOLE {
                self.blocks_free = self.blocks_free.saturating_add_signed(sign);
                continue;
            }
            self.fragments_free = self.fragments_free.saturating_add_signed(sign * byte.count_ones() as i32);
            for (_, len) in runs(byte) {
                let count = &mut self.runs[len as usize];
                *count = count.saturating_add_signed(sign);
            }
        }
    }

    /// Whether so many whole blocks are free from `block` on.
    pub(super) fn is_free(&self, block: usize, len: usize) -> bool {
        self.map.get(block..block + len).is_some_and(|bytes| bytes.iter().all(|byte| *byte == WHOLE))
    }

    /// Takes whole blocks.
    pub(super) fn take(&mut self, block: usize, len: usize) {
        (block..block + len).for_each(|block| self.set(block, 0));
    }

    /// The first run of so many free blocks from `near` on, round the group.
    pub(super) fn find(&self, near: usize, len: usize) -> Option<usize> {
        if self.blocks_free < len as u32 {
            return None;
        }
        self.find_within(near, self.map.len(), len)
            .or_else(|| self.find_within(0, near.min(self.map.len()) + len - 1, len))
    }

    fn find_within(&self, from: usize, to: usize, len: usize) -> Option<usize> {
        let mut run = 0;
        for (index, byte) in self.map.iter().enumerate().take(to).skip(from) {
            run = if *byte == WHOLE { run + 1 } else { 0 };
            if run == len {
                return Some(index + 1 - len);
            }
        }
        None
    }

    /// Takes so many fragments of a block that is in use already, from the smallest run that has them: the policy of FFS.
    /// Returns the block and the first fragment in it.
    pub(super) fn take_fragments(&mut self, near: usize, count: u32) -> Option<(usize, u32)> {
        let best = (count..FRAGMENTS).find(|len| self.runs[*len as usize] > 0)?;
        let (after, before) = (near..self.map.len(), 0..near.min(self.map.len()));
        for block in after.chain(before) {
            let byte = self.map[block];
            if byte == WHOLE {
                continue;
            }
            if let Some((from, _)) = runs(byte).find(|(_, len)| *len == best) {
                self.set(block, byte & !mask(from, count));
                return Some((block, from));
            }
        }
        None
    }

    /// Takes the first fragments of a free block; the others are free.
    pub(super) fn split(&mut self, block: usize, count: u32) {
        self.set(block, WHOLE & !mask(0, count));
    }

    /// Frees fragments of a block.
    pub(super) fn free_fragments(&mut self, block: usize, from: u32, count: u32) {
        let byte = self.map.get(block).copied().unwrap_or(0);
        self.set(block, byte | mask(from, count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn runs_of_a_byte() {
        assert_eq!(runs(0).count(), 0);
        assert_eq!(runs(0b1011_0001).collect::<Vec<_>>(), [(0, 1), (4, 2), (7, 1)]);
        assert_eq!(runs(0b0111_1111).collect::<Vec<_>>(), [(0, 7)]);
    }

    proptest! {
        #[test]
        fn counts_are_those_of_the_map(steps in prop::collection::vec((0..4u8, 0..20usize, 1..8u32), 0..200)) {
            let mut group = Group::new(20, 2, 10);
            let mut held: Vec<(usize, u32, u32)> = Vec::new();
            for (kind, near, count) in steps {
                match kind {
                    0 => if let Some(block) = group.find(near, (count as usize).min(3)) {
                        let len = (count as usize).min(3);
                        prop_assert!(block >= 2 && group.is_free(block, len));
                        group.take(block, len);
                        held.extend((block..block + len).map(|block| (block, 0, 8)));
                    },
                    1 => if let Some((block, from)) = group.take_fragments(near, count) {
                        held.push((block, from, count));
                    },
                    2 => if let Some(block) = group.find(near, 1) {
                        group.split(block, count);
                        held.push((block, 0, count));
                    },
                    _ => if !held.is_empty() {
                        let (block, from, count) = held.swap_remove(near % held.len());
                        group.free_fragments(block, from, count);
                    },
                }
                let mut used = [[false; 8]; 20];
                for (block, from, count) in &held {
                    for fragment in *from..from + count {
                        prop_assert!(!std::mem::replace(&mut used[*block][fragment as usize], true));
                    }
                }
                let free = |block: &[bool; 8]| block.iter().filter(|used| !**used).count() as u32;
                prop_assert_eq!(group.blocks_free, used[2..].iter().filter(|block| free(block) == 8).count() as u32);
                prop_assert_eq!(group.fragments_free, used[2..].iter().map(free).filter(|free| *free < 8).sum::<u32>());
            }
        }
    }
}
