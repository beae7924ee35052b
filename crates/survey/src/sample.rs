//! Which parts of the data are read (Harnik et al., FAST '16, algorithm 3), and what is read together.
//!
//! Data are cut into *units* of 32 KiB to 1 MiB, none of which crosses a file. A unit is in the sample if a fast hash of
//! what names it lies below the fraction that is to be read. So sampling needs no state, a larger sample contains a smaller
//! one, and reading in ascending order is free.
//!
//! Departs: the paper names a unit by volume and offset, so that the copies of a file are sampled apart, and at 5 % only
//! one pair in 400 is seen. Here files that probably have content in common form a *group*: those of equal name and size,
//! of equal name and directory's name (versions of one tree), of equal size (copies under another name), of equal name. A
//! unit is named by its group and offset (a *cluster*), so copies and versions are sampled together or not at all. How
//! often content occurs within a cluster is then known exactly, and only what clusters share among each other must be
//! estimated. Groups stay below a two-thousandth of the data. Each cluster is still in the sample with the same
//! probability, so all expectations are those of the paper: a bad guess at what belongs together costs width, not truth.

/// A number that depends on both, as if by chance: the finaliser of splitmix64 over their sum.
pub fn mix(one: u64, other: u64) -> u64 {
    let mut mixed = one.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ other.wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^= mixed >> 32;
    mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^= mixed >> 29;
    mixed = mixed.wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 32)
}

/// `FastHash` of the paper: a number from 0 up to and without 1.
pub fn fast_hash(seed: u64, id: u64) -> f64 {
    (mix(seed ^ 0x5eed, id) >> 11) as f64 / (1u64 << 53) as f64
}

/// A part of the data, by bounds of [`fast_hash`]: from 0 to 0.01, then from 0.01 to 0.06.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// From here on.
    pub from: f64,
    /// Up to and without this.
    pub to: f64,
}

impl Share {
    /// Everything.
    pub const ALL: Share = Share { from: 0.0, to: 1.0 };
    /// Whether a unit is in it.
    pub fn has(&self, seed: u64, id: u64) -> bool {
        let hash = fast_hash(seed, id);
        self.from <= hash && hash < self.to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_join_without_gap_or_overlap() {
        let ids = |from, to| -> Vec<u64> { (0..200_000).filter(|id| Share { from, to }.has(9, *id)).collect() };
        let (first, second, both) = (ids(0.0, 0.01), ids(0.01, 0.06), ids(0.0, 0.06));
        let mut joined = [first.clone(), second.clone()].concat();
        joined.sort_unstable();
        assert_eq!(joined, both);
        assert_eq!(first.len() + second.len(), both.len());
        assert!((both.len() as f64 / 12_000.0 - 1.0).abs() < 0.05, "{}", both.len());
        assert_eq!(ids(0.0, 1.0).len(), 200_000);
    }
}
