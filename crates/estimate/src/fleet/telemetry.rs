//! What a drive's counters show month by month: cycles, reads, and bits that flip.
//!
//! None of it decides about uncorrectable errors; that is the finding of the paper that matters most here. So that it can be
//! seen that a test would notice, [`overflow`] is the rule that analysis assumed before: uncorrectable is what has more
//! flipped bits than the code corrects.
//!
//! Departs: how reads and cycles vary is not published. Drives read with a logarithmic deviation of 1, months of a drive of
//! 0.8, so that what is corrected goes with what is read as in the study (above 0.9, section 5.1). Slopes are ours: by 50 % of the rate of a new drive for each mean wear of the study, as three models came to 3e-8 to
//! 8e-8 at their limit; by 15 % a year of age; and months of a drive are correlated by 0.8.

use super::process::part;
use super::wear;
use crate::ssd::SsdModel;
use ashlar_models::Chance;

/// Normal scores of the 95th and 99th percentile.
const SCORES: [f64; 2] = [1.644_854, 2.326_348];
/// How much the rate of flipped bits grows in a year of age, of that of a new drive.
const AGE: f64 = 0.15;
/// Correlation of the noise of one month with the next.
const KEPT: f64 = 0.8;
/// Logarithmic deviation of that noise.
const NOISE: f64 = 0.15;
/// Bits read in a month: median of drives.
const READ: f64 = 8e13;
/// Logarithmic deviation of what drives read, and of what months of a drive do.
const READS: [f64; 2] = [1.0, 0.8];

/// A month of a drive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Cycles of program and erase so far.
    pub cycles: f64,
    /// Years in the field.
    pub age: f64,
    /// Bits read.
    pub bits_read: f64,
    /// Flipped bits for each bit read.
    pub rber: f64,
}

impl Reading {
    /// Flipped bits that were corrected.
    pub fn corrected(&self) -> f64 {
        self.bits_read * self.rber
    }
}

/// The counters of one drive, which wears `speed` times as fast as the mean.
pub fn draw(model: &SsdModel, speed: f64, months: usize, chance: &mut Chance) -> Vec<Reading> {
    let base = rate(model, chance.normal());
    let reads = READ * (READS[0] * chance.normal()).exp();
    let mut noise = NOISE * chance.normal();
    let month = |month: usize| {
        let study = part(month, super::months(model.years));
        let (worn, age) = (speed * study, study * model.years);
        noise = KEPT * noise + NOISE * (1.0 - KEPT * KEPT).sqrt() * chance.normal();
        let aged = (1.0 + AGE * age) / (1.0 + AGE * model.years / 2.0);
        Reading {
            cycles: worn * f64::from(model.pe_mean),
            age,
            bits_read: reads * (READS[1] * chance.normal()).exp(),
            rber: base * wear(worn) * aged * noise.exp(),
        }
    };
    (0..months).map(month).collect()
}

/// The rate of flipped bits of a drive, by a standard normal number: median, 95th and 99th percentile are those of Table 3.
pub fn rate(model: &SsdModel, normal: f64) -> f64 {
    let [middle, high, highest] = model.rber.map(f64::ln);
    let log = if normal <= SCORES[0] {
        middle + normal * (high - middle) / SCORES[0]
    } else {
        high + (normal - SCORES[0]) * (highest - high) / (SCORES[1] - SCORES[0])
    };
    log.exp()
}

/// How many errors a month would have if they came where a code of so many bits overflows: its leading term, without a factor.
/// The negative control.
pub fn overflow(reading: &Reading, corrected: i32) -> f64 {
    reading.bits_read * reading.rber.powi(corrected + 1)
}
