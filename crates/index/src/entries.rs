//! What a node in memory has beside its bytes, so that a lookup touches few of them: a table of its entries, sorted by numbers that
//! their keys begin with, and a sum of each.

/// Where an entry is, and enough of its key for most of a search.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    /// First eight bytes of its key behind the node's common prefix, big-endian.
    pub(crate) head: u64,
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

/// Index of the first of these entries, sorted by their heads, whose head is at least `wanted`. Numbers of chunks and
/// hashes of names are spread evenly, so that a guess by proportion is near: two cache lines are touched, not ten.
/// `span` has the heads of the first and the last, beside what a search has looked at already.
pub(crate) fn first_at_least(entries: &[Entry], span: (u64, u64), wanted: u64) -> usize {
    let (first, last) = span;
    if wanted <= first || entries.is_empty() {
        return 0;
    }
    if wanted > last {
        return entries.len();
    }
    let per_head = (entries.len() - 1) as f64 / (last - first) as f64;
    let near = |from: f64, heads: f64| ((from + heads * per_head) as usize).min(entries.len() - 1);
    let share = near(0.0, (wanted - first) as f64);
    // Among hundreds that are spread by chance that is off by ten or so; by proportion from there, by two or three.
    let found = entries[share].head;
    let distance = wanted.abs_diff(found) as f64;
    let guess = near(share as f64, if found < wanted { distance } else { -distance });
    // From the guess on in steps that double, until what is wanted lies between `low` and `high`.
    let (mut low, mut high, mut step) = (0, guess, 1);
    if entries[guess].head < wanted {
        (low, high) = (guess + 1, entries.len());
        while low + step < high && entries[low + step].head < wanted {
            low += step + 1;
            step *= 2;
        }
        high = high.min(low + step);
    } else {
        while step <= high && entries[high - step].head >= wanted {
            high -= step;
            step *= 2;
        }
        low = high.saturating_sub(step).max(low);
    }
    low + entries[low..high].partition_point(|entry| entry.head < wanted)
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
            let entries: Vec<Entry> = heads.iter().map(|head| Entry { head: *head, at: 0, sum: 0 }).collect();
            let span = heads.first().zip(heads.last()).map_or((0, 0), |(first, last)| (*first, *last));
            let near = heads.iter().flat_map(|head| [head.saturating_sub(1), *head, head.saturating_add(1)]);
            for wanted in near.chain(others) {
                prop_assert_eq!(first_at_least(&entries, span, wanted), heads.partition_point(|head| *head < wanted));
            }
        }
    }
}
