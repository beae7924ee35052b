//! What fuzz targets share. For tests only: it counts every allocation.
//!
//! A fuzz target is a property test in a module named `fuzz`; `cargo xtask soak` finds it by that name. Each feeds its
//! decoder with three kinds of input: what the encoder wrote (which must come back), the same with [`Edit`]s, and
//! [`noise`]. Where a checksum guards a decoder, the target computes it again after the edits. The decoder must answer,
//! and must not take more memory than [`bounded`] allows.
//!
//! A run is determined by its seed and its number of cases, `PROPTEST_RNG_SEED` and `PROPTEST_CASES`.

mod sketch;

pub use sketch::{image_of, sketch};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngSeed};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// How a target runs: `cases` inputs from one fixed seed, unless the environment says otherwise.
pub fn config(cases: u32) -> Config {
    let given = Config::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { given.cases } else { cases };
    let rng_seed = if given.rng_seed == RngSeed::Random { RngSeed::Fixed(0) } else { given.rng_seed };
    Config { cases, rng_seed, failure_persistence: None, ..given }
}

/// A change of some bytes.
#[derive(Clone, Debug)]
pub enum Edit {
    /// One bit turns.
    Flip(Index, u8),
    /// A little-endian number of 1, 2, 4 or 8 bytes, at or near a limit.
    Number(Index, u8, u64),
    /// Bytes go.
    Remove(Index, u8),
    /// Bytes come in.
    Insert(Index, Vec<u8>),
    /// Bytes stand twice.
    Repeat(Index, u8),
    /// Everything from here on goes.
    Cut(Index),
}

impl Edit {
    /// Changes `bytes`.
    pub fn apply(&self, bytes: &mut Vec<u8>) {
        let len = bytes.len();
        let place = |at: &Index| at.index(len + 1);
        let range = |at: &Index, count: u8| place(at)..(place(at) + usize::from(count)).min(len);
        match self {
            Edit::Flip(at, bit) => bytes.get_mut(place(at)).into_iter().for_each(|byte| *byte ^= 1 << (bit % 8)),
            Edit::Number(at, size, value) => {
                let number = value.to_le_bytes();
                bytes.iter_mut().skip(place(at)).zip(&number[..1 << (size % 4)]).for_each(|(to, from)| *to = *from);
            }
            Edit::Remove(at, count) => drop(bytes.drain(range(at, *count))),
            Edit::Insert(at, new) => drop(bytes.splice(place(at)..place(at), new.iter().copied())),
            Edit::Repeat(at, count) => {
                let copy = bytes[range(at, *count)].to_vec();
                bytes.splice(place(at)..place(at), copy);
            }
            Edit::Cut(at) => bytes.truncate(place(at)),
        }
    }

    /// Changes `bytes` and keeps their number: what does not fit any more goes, what is missing is zeros.
    pub fn apply_in_place(&self, bytes: &mut [u8]) {
        let mut edited = bytes.to_vec();
        self.apply(&mut edited);
        edited.resize(bytes.len(), 0);
        bytes.copy_from_slice(&edited);
    }
}

/// One to four changes.
pub fn edits() -> impl Strategy<Value = Vec<Edit>> {
    prop::collection::vec(edit(), 1..5)
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<Index>;
    // One less and one more than where counts, signs and sizes turn over.
    let limit = prop_oneof![
        0..4u64,
        (0..64u32, 0..3u64).prop_map(|(power, above)| (1u64 << power).wrapping_add(above).wrapping_sub(1)),
        (0..4u64).prop_map(|below| u64::MAX - below),
        any::<u64>(),
    ];
    prop_oneof![
        4 => (at(), any::<u8>()).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        6 => (at(), any::<u8>(), limit).prop_map(|(at, size, value)| Edit::Number(at, size, value)),
        1 => (at(), 1..40u8).prop_map(|(at, count)| Edit::Remove(at, count)),
        1 => (at(), noise(40)).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        1 => (at(), 1..80u8).prop_map(|(at, count)| Edit::Repeat(at, count)),
        1 => at().prop_map(Edit::Cut),
    ]
}

/// Bytes that no compressor makes shorter, the same for a seed.
pub fn incompressible(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Any bytes.
pub fn noise(len_max: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..=len_max)
}

/// `valid` with one to four changes.
pub fn damaged(valid: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    (valid, edits()).prop_map(|(mut bytes, edits)| {
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        bytes
    })
}

/// What a decoder must stand: mostly valid bytes with changes, sometimes noise.
pub fn hostile(valid: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![7 => damaged(valid), 1 => noise(600)]
}

/// Does `work`.
///
/// # Panics
/// If the memory that this thread held for it at any moment exceeds `bytes_max`.
pub fn bounded<T>(bytes_max: u64, work: impl FnOnce() -> T) -> T {
    let mut outcome = None;
    // Caught, since the counter must not be left by a panic.
    let work = std::panic::AssertUnwindSafe(work);
    let used = allocation_counter::measure(|| outcome = Some(std::panic::catch_unwind(work))).bytes_max;
    match outcome.expect("the work was done") {
        Err(panic) => std::panic::resume_unwind(panic),
        Ok(_) if used > bytes_max => panic!("it took {used} bytes of memory; {bytes_max} would do"),
        Ok(value) => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_beyond_the_bound_is_noticed() {
        bounded(1 << 12, || vec![0u8; 1 << 11]);
        let caught = std::panic::catch_unwind(|| bounded(1 << 12, || drop(vec![0u8; 1 << 13])));
        let caught = caught.expect_err("too much").downcast::<String>().expect("a sentence");
        assert!(caught.contains("8192 bytes"), "{caught}");
    }

    #[test]
    fn panics_pass_through_the_bound() {
        for _ in 0..100 {
            std::panic::catch_unwind(|| bounded(1, || panic!("expected"))).expect_err("the panic of the work");
        }
    }

    proptest! {
        #![proptest_config(config(2000))]
        #[test]
        fn edits_fit_any_bytes(mut bytes in noise(60), edits in edits()) {
            let len = bytes.len();
            let mut fixed = bytes.clone();
            for edit in &edits {
                edit.apply(&mut bytes);
                edit.apply_in_place(&mut fixed);
            }
            prop_assert_eq!(fixed.len(), len);
        }
    }
}
