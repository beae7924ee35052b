//! What a node in memory has beside its bytes, so that a lookup touches few of them: a table of its entries, sorted by numbers that
//! their keys begin with, a guide to it, and a sum of each entry.

use std::ops::Range;

/// Where an entry is, and enough of its key for most of a search.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    /// How far its [`head`] lies behind that of the first entry, in 32 bits: see [`Guide`].
    pub(crate) distance: u32,
    /// Offset in the body.
    pub(crate) at: u32,
    /// [`quick_sum`] of its bytes when the node was read or made, which every lookup compares.
    pub(crate) sum: u32,
}

/// The first eight bytes as a number that sorts as they do; what is missing counts as zeros.
pub(crate) fn head(rest: &[u8]) -> u64 {
    rest.first_chunk().map_or_else(
        || rest.iter().enumerate().fold(0, |head, (index, byte)| head | u64::from(*byte) << (56 - 8 * index)),
        |first| u64::from_be_bytes(*first),
    )
}

const PARTS: usize = 32;

/// Where heads of a table lie, about: it is small and beside what a search has looked at already, so that a search touches one
/// or two cache lines of the table, not ten.
#[derive(Clone, Copy, Default)]
pub(crate) struct Guide {
    /// Heads of the first and the last entry.
    first: u64,
    last: u64,
    /// Distances are without this many low bits, so that the largest has no more than 32.
    dropped_bits: u32,
    /// Distances of one part differ in this many low bits.
    part_bits: u32,
    /// Index of the first entry of each part; beyond 2^16 the largest there is, whence a search has farther to go.
    starts: [u16; PARTS],
}

impl Guide {
    /// For entries whose first and last have these heads.
    pub(crate) fn new(first: u64, last: u64) -> Guide {
        let bits = u64::BITS - last.saturating_sub(first).leading_zeros();
        let dropped_bits = bits.saturating_sub(u32::BITS);
        let part_bits = (bits - dropped_bits).saturating_sub(PARTS.ilog2());
        Guide { first, last, dropped_bits, part_bits, starts: [0; PARTS] }
    }

    /// Distance of a head that lies between the first and the last.
    pub(crate) fn distance(&self, head: u64) -> u32 {
        ((head - self.first) >> self.dropped_bits) as u32
    }

    /// Learns where these entries lie, which are sorted by their distances.
    pub(crate) fn learn(&mut self, entries: &[Entry]) {
        let mut index = 0;
        for (part, start) in self.starts.iter_mut().enumerate() {
            let before = |entry: &&Entry| ((entry.distance >> self.part_bits) as usize) < part;
            index += entries[index..].iter().take_while(before).count();
            *start = u16::try_from(index).unwrap_or(u16::MAX);
        }
    }

    /// The entries that may have a key with this head: keys of those before are smaller, of those behind are larger. Usually it is one
    /// or none.
    pub(crate) fn candidates(&self, entries: &[Entry], head: u64) -> Range<usize> {
        if head < self.first || entries.is_empty() {
            return 0..0;
        }
        if head > self.last {
            return entries.len()..entries.len();
        }
        let wanted = self.distance(head);
        let start = first_at_least(entries, self.guess(entries.len(), wanted), wanted);
        let matches = |index: usize| entries.get(index).is_some_and(|entry| entry.distance == wanted);
        let alike = match (matches(start), matches(start + 1)) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => entries[start..].partition_point(|entry| entry.distance == wanted),
        };
        start..start + alike
    }

    /// About where the first of `len` entries is whose distance is at least `wanted`.
    fn guess(&self, len: usize, wanted: u32) -> usize {
        let part = (wanted >> self.part_bits) as usize;
        let start = |part: usize| self.starts.get(part).map_or(len, |start| usize::from(*start));
        // Heads of a part are spread evenly, mostly: numbers of chunks, hashes of names.
        let within = u64::from(wanted) & ((1 << self.part_bits) - 1);
        let entries = start(part + 1).saturating_sub(start(part)) as u64;
        (start(part) + ((entries * within) >> self.part_bits) as usize).min(len - 1)
    }
}

/// Index of the first of these entries, sorted by their distances, whose distance is at least `wanted`.
fn first_at_least(entries: &[Entry], guess: usize, wanted: u32) -> usize {
    // From the guess on in steps that double, until what is wanted lies between `low` and `high`.
    let (mut low, mut high, mut step) = (0, guess, 1);
    if entries[guess].distance < wanted {
        (low, high) = (guess + 1, entries.len());
        while low + step < high && entries[low + step].distance < wanted {
            low += step + 1;
            step *= 2;
        }
        high = high.min(low + step);
    } else {
        while step <= high && entries[high - step].distance >= wanted {
            high -= step;
            step *= 2;
        }
        low = high.saturating_sub(step).max(low);
    }
    low + entries[low..high].partition_point(|entry| entry.distance < wanted)
}

/// Lanes of a sum. A multiple of eight bytes at a time, so that the compiler adds them side by side.
const LANES: usize = 4;
/// Whatever bit is set, plus or minus, the upper half of its product with this is neither none nor all: no carry makes up for it.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
const _: () = {
    let mut bit = 0;
    while bit < u64::BITS {
        let change = (ODD << bit) >> 32;
        assert!(change != 0 && change != 0xffff_ffff);
        bit += 1;
    }
};

/// A sum that changes with any one bit, and that is made in a fraction of a CRC's time: a lookup takes it of a kilobyte. It is for
/// what turns in memory alone, and is never stored. (A bit changes one lane by a power of two; times an odd number that changes the
/// upper half of the product, which is one of the terms that are added.)
pub(crate) fn quick_sum(bytes: &[u8]) -> u32 {
    let mut lanes = [0u64; LANES];
    let mut add = |lane: usize, word: u64| lanes[lane] = lanes[lane].wrapping_add(word);
    let (words, rest) = bytes.as_chunks();
    let (lines, last) = words.as_chunks::<LANES>();
    for line in lines {
        line.iter().enumerate().for_each(|(lane, word)| add(lane, u64::from_le_bytes(*word)));
    }
    last.iter().enumerate().for_each(|(lane, word)| add(lane, u64::from_le_bytes(*word)));
    // Of the last word the bytes that were not added: those before them are shifted out, so nothing is copied.
    add(
        LANES - 1,
        match bytes.last_chunk() {
            Some(end) if !rest.is_empty() => u64::from_le_bytes(*end) >> (8 * (size_of::<u64>() - rest.len())),
            Some(_) => 0,
            None => head(rest),
        },
    );
    let term = |(lane, sum): (usize, u64)| ((sum.wrapping_mul(ODD) >> 32) as u32).rotate_left(8 * lane as u32);
    lanes.into_iter().enumerate().map(term).fold(bytes.len() as u32, u32::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_bit_counts(bytes in proptest::collection::vec(any::<u8>(), 1..200)) {
            let sum = quick_sum(&bytes);
            for bit in 0..bytes.len() * 8 {
                let mut changed = bytes.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                prop_assert_ne!(quick_sum(&changed), sum);
            }
            prop_assert_ne!(quick_sum(&[&bytes[..], &[0]].concat()), sum);
        }

        #[test]
        fn guessing_finds_what_bisection_finds(
            mut heads in prop_oneof![
                proptest::collection::vec(any::<u64>(), 0..200),
                proptest::collection::vec(0u64..50, 0..200),
                proptest::collection::vec(any::<u64>().prop_map(|head| 1 << (head % 64)), 0..200),
            ],
            others in proptest::collection::vec(any::<u64>(), 10),
        ) {
            heads.sort_unstable();
            let ends = heads.first().zip(heads.last()).map_or((0, 0), |(first, last)| (*first, *last));
            let mut guide = Guide::new(ends.0, ends.1);
            let entry = |head: &u64| Entry { distance: guide.distance(*head), at: 0, sum: 0 };
            let entries: Vec<Entry> = heads.iter().map(entry).collect();
            guide.learn(&entries);
            let near = heads.iter().flat_map(|head| [head.saturating_sub(1), *head, head.saturating_add(1)]);
            for wanted in near.chain(others) {
                let found = guide.candidates(&entries, wanted);
                let same = heads.partition_point(|head| *head < wanted)..heads.partition_point(|head| *head <= wanted);
                prop_assert!(found.start <= same.start && same.end <= found.end);
                let outside = wanted < ends.0 || wanted > ends.1;
                let bits = if outside { 0 } else { guide.dropped_bits };
                prop_assert!(heads[found].iter().all(|head| head.abs_diff(wanted) < 1 << bits));
            }
        }
    }
}
