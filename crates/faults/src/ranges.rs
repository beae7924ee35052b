//! A set of blocks as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that are kept at most. A removal that would make more also takes what lies behind it in its range.
pub(crate) const RANGES_MAX: usize = 1 << 20;

/// Blocks, as ranges that neither touch nor overlap: start and end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockSet(BTreeMap<u64, u64>);

impl BlockSet {
    /// Adds blocks.
    pub fn insert(&mut self, mut blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        while let Some((start, end)) = self.0.range(..=blocks.end).next_back().map(|(start, end)| (*start, *end)) {
            if end < blocks.start {
                break;
            }
            self.0.remove(&start);
            blocks = blocks.start.min(start)..blocks.end.max(end);
        }
        self.0.insert(blocks.start, blocks.end);
    }

    /// Takes blocks out; returns how many were in.
    pub fn remove(&mut self, blocks: Range<u64>) -> u64 {
        let mut removed = 0;
        while let Some(found) = self.first_in(blocks.clone()) {
            let (start, end) = self.0.range(..=found.start).next_back().map_or((0, 0), |(start, end)| (*start, *end));
            self.0.remove(&start);
            if start < found.start {
                self.0.insert(start, found.start);
            }
            if found.end < end && self.0.len() < RANGES_MAX {
                self.0.insert(found.end, end);
            }
            removed += found.end - found.start;
        }
        removed
    }

    /// The first of these blocks that are in the set, as far as they go without a gap.
    pub fn first_in(&self, blocks: Range<u64>) -> Option<Range<u64>> {
        if blocks.is_empty() {
            return None;
        }
        let before = self.0.range(..=blocks.start).next_back().filter(|(_, end)| **end > blocks.start);
        let (start, end) = before.or_else(|| self.0.range(blocks.start..blocks.end).next())?;
        Some(blocks.start.max(*start)..blocks.end.min(*end))
    }

    /// Number of ranges.
    #[cfg(test)]
    pub fn ranges(&self) -> usize {
        self.0.len()
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// The ranges, in order.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(start, end)| *start..*end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #![proptest_config(ashlar_fuzz::config(2000))]
        #[test]
        fn it_holds_what_a_set_of_numbers_holds(changes in prop::collection::vec((any::<bool>(), 0..60u64, 0..20u64), 0..40), at in 0..60u64, len in 0..30u64) {
            let (mut set, mut model) = (BlockSet::default(), BTreeSet::new());
            for (add, start, len) in changes {
                if add {
                    set.insert(start..start + len);
                    model.extend(start..start + len);
                } else {
                    let before = model.len();
                    model.retain(|block| !(start..start + len).contains(block));
                    prop_assert_eq!(set.remove(start..start + len), (before - model.len()) as u64);
                }
                prop_assert_eq!(set.iter().flatten().collect::<BTreeSet<_>>(), model.clone());
                prop_assert!(set.iter().zip(set.iter().skip(1)).all(|(one, next)| one.end < next.start));
            }
            let first = model.range(at..at + len).next().copied();
            prop_assert_eq!(set.first_in(at..at + len).map(|found| found.start), first);
            if let Some(found) = set.first_in(at..at + len) {
                prop_assert!(found.end <= at + len && found.clone().all(|block| model.contains(&block)));
                prop_assert!(found.end == at + len || !model.contains(&found.end));
            }
        }
    }
}
