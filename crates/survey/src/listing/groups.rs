//! Which files are sampled together: see [`crate::sample`].

use super::{Entry, Listing, STRATA};
use crate::sample::mix;
use std::os::unix::ffi::OsStrExt;
use xxhash_rust::xxh3::xxh3_64;

/// Files of this size and more have equal sizes seldom by chance.
const SIZE_TELLS: u64 = 32 << 10;
/// A cluster, of a unit of each file of a group, is at most one such part of all data: noise grows with clusters. With a
/// 200th instead, ranges of 9 GB of packages were 0.090 wide instead of 0.058.
const CLUSTER_PART: u64 = 2000;
/// Bytes that a cluster may have of little data.
const CLUSTER_MIN: u64 = 64 << 10;
impl Listing {
    /// Puts files together that probably have content in common, so that they are sampled together: see
    /// [`crate::sample`]. What is likeliest comes first, and a cluster, of a unit of each file of a group, does not grow
    /// beyond a small part of all data.
    pub fn group(&mut self, unit_bytes: u64) {
        let data = self.data_bytes();
        let whole = |entry: &Entry| self.name(entry.name_at, entry.name_len).as_bytes();
        // Keys hold the names of their directories.
        let part =
            |entry: &Entry, from_end: usize| whole(entry).rsplit(|byte| *byte == b'/').nth(from_end).map_or(0, xxh3_64);
        let name = |entry: &Entry| self.inner(entry).map_or_else(|| part(entry, 0), |inner| inner.name);
        let parent_outside = |entry: &Entry| match self.directories.get((entry.directory as usize).wrapping_sub(1)) {
            Some((_, at, len)) => xxh3_64(self.name(*at, *len).as_bytes()),
            None => part(entry, 1),
        };
        let parent = |entry: &Entry| self.inner(entry).map_or_else(|| parent_outside(entry), |inner| inner.parent);
        let mut groups = Groups::new(&self.entries, unit_bytes, data);
        groups.join(Likeness::Strong, |entry| mix(name(entry), entry.size));
        groups.join(Likeness::Weak, |entry| mix(name(entry), parent(entry)));
        groups.join(Likeness::Weak, name);
        // Small files have equal sizes by chance.
        groups.join(Likeness::Weak, |entry| if entry.size < SIZE_TELLS { entry.identity } else { entry.size });
        let roots: Vec<u32> = (0..self.entries.len() as u32).map(|index| groups.root(index)).collect();
        let mut order: Vec<u32> = (0..roots.len() as u32).collect();
        order.sort_unstable_by_key(|index| {
            let entry = &self.entries[*index as usize];
            (roots[*index as usize], entry.size, entry.identity)
        });
        let names: Vec<u64> = roots.iter().map(|root| self.entries[*root as usize].identity).collect();
        self.entries.iter_mut().zip(names).for_each(|(entry, name)| entry.group = name);
        for same in order.chunk_by(|one, other| roots[*one as usize] == roots[*other as usize]) {
            let (mut sizes, mut last) = (0usize, None);
            for index in same {
                let entry = &mut self.entries[*index as usize];
                entry.first = last != Some(entry.size);
                sizes += usize::from(entry.first);
                last = Some(entry.size);
            }
            let stratum = (sizes.next_power_of_two().ilog2() as usize).min(STRATA - 1) as u8;
            same.iter().for_each(|index| self.entries[*index as usize].stratum = stratum);
        }
    }
}

/// What equal keys say of two files.
#[derive(Clone, Copy, PartialEq)]
enum Likeness {
    /// They are copies: as many as fit into a group.
    Strong,
    /// They are copies or versions, unless so many have the key that it says nothing.
    Weak,
}

/// Disjoint groups of files.
struct Groups<'a> {
    entries: &'a [Entry],
    /// The file above in the tree of the group; of its root the root itself.
    above: Vec<u32>,
    /// Of roots: bytes of the group in one cluster of the sample.
    bytes: Vec<u64>,
    unit_bytes: u64,
    /// Bytes of all files.
    data: u64,
}

impl Groups<'_> {
    fn new(entries: &[Entry], unit_bytes: u64, data: u64) -> Groups<'_> {
        let bytes = entries.iter().map(|entry| entry.size.min(unit_bytes)).collect();
        Groups { entries, above: (0..entries.len() as u32).collect(), bytes, unit_bytes, data }
    }

    fn root(&mut self, index: u32) -> u32 {
        let mut at = index;
        while self.above[at as usize] != at {
            // Halves the way for those who come later.
            let above = self.above[at as usize];
            self.above[at as usize] = self.above[above as usize];
            at = above;
        }
        at
    }

    /// Joins groups that have a key in common, as far as they stay small.
    fn join(&mut self, likeness: Likeness, key: impl Fn(&Entry) -> u64) {
        // By identity, not by inode number: the same tree has the same groups wherever it lies.
        let mut keys: Vec<(u64, u64, u32)> =
            self.entries.iter().zip(0..).map(|(entry, index)| (key(entry), entry.identity, index)).collect();
        keys.sort_unstable();
        for same in keys.chunk_by(|one, other| one.0 == other.0) {
            if same.len() < 2 {
                continue;
            }
            let size = |(.., index): &(u64, u64, u32)| self.entries[*index as usize].size.min(self.unit_bytes);
            let most = (self.data / CLUSTER_PART).max(CLUSTER_MIN);
            if likeness != Likeness::Strong && same.iter().map(size).sum::<u64>() > most {
                continue;
            }
            same.windows(2).for_each(|pair| self.unite(pair[0].2, pair[1].2, most));
        }
    }

    /// Makes one group of those of two files, if it stays small.
    fn unite(&mut self, one: u32, other: u32, most: u64) {
        let [one, other] = [one, other].map(|index| self.root(index));
        let bytes = self.bytes[one as usize] + self.bytes[other as usize];
        if one != other && bytes <= most {
            self.above[other as usize] = one;
            self.bytes[one as usize] = bytes;
        }
    }
}
