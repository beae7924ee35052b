//! Repairs and replacements (Table 5 of the paper).
//!
//! Repairs come more often to some drives than to others: the rate of a drive has a gamma distribution whose variance gives
//! the part of the drives that are repaired. A repair fails with the probability that gives the part that is replaced.
//!
//! Departs: with days between repairs and repaired drives of Table 5, 55 to 85 % of the repaired drives are repaired once,
//! and not 96 % as section 6.3 says; both cannot hold for the same four years.

use crate::solve::root;
use crate::ssd::SsdModel;
use ashlar_models::Chance;

/// How drives of a model are repaired in the years of the study.
#[derive(Clone, Copy, Debug)]
pub struct Repairs {
    /// Mean repairs of a drive.
    pub mean: f64,
    /// Shape of the gamma distribution of rates.
    shape: f64,
    /// Part of the repairs after which the drive is replaced.
    pub fails: f64,
}

/// What became of a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Repairs.
    pub times: u32,
    /// One of them failed.
    pub replaced: bool,
}

impl Repairs {
    /// Those of a model.
    pub fn of(model: &SsdModel) -> Repairs {
        let mean = model.years * 365.0 / f64::from(model.days_between_repairs);
        // Part of the drives with any event of a mean: 1 - (1 + mean / shape)^-shape, which grows with the shape.
        let shape =
            root(model.repaired_percent / 100.0, 1.0, |shape| (1.0 - (1.0 + mean / shape).powf(-shape), f64::NAN));
        let failing = ((1.0 - model.replaced_percent / 100.0).powf(-1.0 / shape) - 1.0) * shape;
        Repairs { mean, shape, fails: failing / mean }
    }

    /// One drive.
    pub fn draw(&self, chance: &mut Chance) -> Repaired {
        let rate = self.mean * chance.gamma(self.shape) / self.shape;
        let mut repaired = Repaired::default();
        let mut passed = 0.0;
        loop {
            passed -= (1.0 - chance.unit()).ln();
            if passed > rate {
                return repaired;
            }
            repaired.times += 1;
            repaired.replaced |= chance.unit() < self.fails;
        }
    }
}
