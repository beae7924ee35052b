//! Free extents of a region, by place and by length.

use crate::bits::Bits;
use crate::format::Extent;
use std::collections::{BTreeMap, BTreeSet};

/// What the thesis keeps as an array of counters by length and a list of large extents (section 5.3.1): here an ordered set,
/// which answers for every length.
#[derive(Clone, Debug, Default)]
pub struct FreeExtents {
    by_start: BTreeMap<u32, u32>,
    /// Length, and where.
    by_len: BTreeSet<(u32, u32)>,
}

impl FreeExtents {
    /// The clear bits.
    pub fn of(used: &Bits) -> FreeExtents {
        let by_start: BTreeMap<u32, u32> = used.clear_runs().into_iter().collect();
        let by_len = by_start.iter().map(|(start, len)| (*len, *start)).collect();
        FreeExtents { by_start, by_len }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_start.len()
    }

    /// The longest, in blocks.
    pub fn longest(&self) -> u32 {
        self.by_len.last().map_or(0, |(len, _)| *len)
    }

    /// Gives blocks back.
    pub fn insert(&mut self, extent: Extent) {
        let Extent { mut block, mut count } = extent;
        if let Some((&start, &len)) = self.by_start.range(..block).next_back()
            && start + len == block
        {
            self.remove(start, len);
            (block, count) = (start, count + len);
        }
        if let Some(&len) = self.by_start.get(&(block + count)) {
            self.remove(block + count, len);
            count += len;
        }
        self.by_start.insert(block, count);
        self.by_len.insert((count, block));
    }

    fn remove(&mut self, start: u32, len: u32) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }

    /// Takes `count` blocks from the front of the free extent at `start`.
    fn take(&mut self, start: u32, len: u32, count: u32) -> Extent {
        self.remove(start, len);
        if count < len {
            self.by_start.insert(start + count, len - count);
            self.by_len.insert((len - count, start + count));
        }
        Extent { block: start, count }
    }

    /// Takes these blocks out, where they are free.
    pub fn claim(&mut self, extent: Extent) {
        let Some((&start, &len)) = self.by_start.range(..=extent.block).next_back() else { return };
        if start + len < extent.block + extent.count {
            return;
        }
        self.take(start, len, len);
        let (before, end) = (extent.block - start, extent.block + extent.count);
        for (block, count) in [(start, before), (end, start + len - end)] {
            if count > 0 {
                self.insert(Extent { block, count });
            }
        }
    }

    /// Pre-allocation (section 6.1.3): in how many fragments `blocks` would lie; `None` if in more than `most`, or if there
    /// are not so many. Nothing is taken.
    pub fn fragments(&self, blocks: u32, most: usize) -> Option<usize> {
        let mut left = blocks;
        let mut largest = self.by_len.iter().rev();
        for fragments in 0..=most {
            if left == 0 {
                return Some(fragments);
            }
            if self.exact(left).is_some() {
                return (fragments < most).then_some(fragments + 1);
            }
            left = left.saturating_sub(largest.next()?.0);
        }
        None
    }

    fn exact(&self, len: u32) -> Option<(u32, u32)> {
        self.by_len.range((len, 0)..(len + 1, 0)).next().copied()
    }

    /// Takes `blocks` (section 6.1.3): an extent of just that length; else from the largest (worst fit), until all is had.
    /// The caller has asked [`fragments`](Self::fragments) before.
    pub fn allocate(&mut self, blocks: u32) -> Vec<Extent> {
        let (mut left, mut taken) = (blocks, Vec::new());
        while left > 0 {
            let Some((len, start)) = self.exact(left).or_else(|| self.by_len.last().copied()) else { break };
            let count = len.min(left);
            taken.push(self.take(start, len, count));
            left -= count;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extents_are_those_of_a_bitmap(steps in prop::collection::vec((any::<bool>(), 1..40u32, any::<u32>()), 1..80)) {
            let mut used = Bits::new(700);
            let mut free = FreeExtents::of(&used);
            let mut held: Vec<Vec<Extent>> = Vec::new();
            for (take, blocks, dice) in steps {
                if take {
                    let Some(fragments) = free.fragments(blocks, 8) else { continue };
                    let longest = free.longest();
                    let exact = used.clear_runs().iter().any(|run| run.1 == blocks);
                    let taken = free.allocate(blocks);
                    prop_assert_eq!(taken.len(), fragments, "pre-allocation tells what allocation does");
                    prop_assert_eq!(taken.iter().map(|extent| extent.count).sum::<u32>(), blocks);
                    prop_assert!(!exact || taken.len() == 1);
                    prop_assert!(exact || longest < blocks || taken.len() == 1, "worst fit");
                    for bit in taken.iter().flat_map(|extent| extent.block..extent.block + extent.count) {
                        prop_assert!(!used.set(bit, true), "given twice");
                    }
                    held.push(taken);
                } else if !held.is_empty() {
                    for extent in held.swap_remove(dice as usize % held.len()) {
                        free.insert(extent);
                        (extent.block..extent.block + extent.count).for_each(|bit| assert!(used.set(bit, false)));
                    }
                }
                let runs: Vec<(u32, u32)> = free.by_start.clone().into_iter().collect();
                prop_assert_eq!(&runs, &used.clear_runs());
                prop_assert_eq!(free.by_len.len(), runs.len());
            }
            let all = free.clone();
            if let Some((start, len)) = used.clear_runs().first().copied() {
                let extent = Extent { block: start + len / 2, count: 1 };
                free.claim(extent);
                used.set(extent.block, true);
                prop_assert_eq!(free.by_start.clone().into_iter().collect::<Vec<_>>(), used.clear_runs());
                free.insert(extent);
                prop_assert_eq!(free.by_start, all.by_start);
            }
        }
    }
}
