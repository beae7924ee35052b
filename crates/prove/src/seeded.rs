//! Chance from a seed, for what does not run in the simulated runtime.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Dice that fall as the seed says.
pub(crate) struct Dice(Pcg64Mcg);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(Pcg64Mcg::seed_from_u64(seed))
    }
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.random_range(0..end)
    }
    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }
}
