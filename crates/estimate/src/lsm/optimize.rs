//! Level sizes that make the model's write amplification least (section 6 of the paper).
//!
//! Departs: the paper gives the model to a nonlinear solver; a search along each size in turn finds the same optimum,
//! since the amplification has one minimum along each.

use super::designs::{leveldb, total};
use super::popularity::Keys;

/// Rounds over all sizes, at most.
const ROUNDS_MAX: usize = 200;
/// Sizes are found to this part.
const TOLERANCE: f64 = 1e-4;
/// 1 - golden ratio.
const GOLDEN: f64 = 0.381_966_011_250_105;

/// What was found.
#[derive(Clone, Debug)]
pub struct Optimum {
    /// Sizes of levels 1 to L-1, items.
    pub sizes: Vec<f64>,
    /// Evaluations of the model.
    pub evaluations: u64,
}

/// The best sizes of as many levels as `sizes` has, beginning there.
pub fn optimize(keys: &impl Keys, memtable: f64, sizes: &[f64]) -> Optimum {
    let mut sizes = sizes.to_vec();
    let mut evaluations = 0;
    let mut at = |sizes: &[f64]| {
        evaluations += 1;
        total(&leveldb(keys, memtable, sizes))
    };
    for round in 0..ROUNDS_MAX {
        let before = sizes.clone();
        for level in 0..sizes.len() {
            // Sizes stay in order.
            let least = if level == 0 { 1.0 } else { sizes[level - 1] };
            let most = sizes.get(level + 1).copied().unwrap_or(keys.keys() * 0.999);
            // Coarsely at first, and finely when the rest is nearly right.
            let tolerance = if round < 4 { 0.02 } else { TOLERANCE };
            let mut one = |size: f64| {
                let mut trial = sizes.clone();
                trial[level] = size.exp();
                at(&trial)
            };
            sizes[level] = golden(least.ln(), most.ln(), tolerance, &mut one).exp();
        }
        let moved = |(new, old): (&f64, &f64)| (new / old - 1.0).abs();
        if round >= 4 && sizes.iter().zip(&before).map(moved).fold(0.0, f64::max) < 4.0 * TOLERANCE {
            break;
        }
    }
    Optimum { sizes, evaluations }
}

/// The minimum of a function with one, by golden section.
fn golden(mut low: f64, mut high: f64, tolerance: f64, function: &mut impl FnMut(f64) -> f64) -> f64 {
    let (mut one, mut other) = (low + GOLDEN * (high - low), high - GOLDEN * (high - low));
    let (mut at_one, mut at_other) = (function(one), function(other));
    while high - low > tolerance {
        if at_one < at_other {
            (high, other, at_other) = (other, one, at_one);
            one = low + GOLDEN * (high - low);
            at_one = function(one);
        } else {
            (low, one, at_one) = (one, other, at_other);
            other = high - GOLDEN * (high - low);
            at_other = function(other);
        }
    }
    (low + high) / 2.0
}
