//! Where latent sector errors lie on a disk that has some (Table 1 and section 3 of the paper).
//!
//! Departs: the paper gives exponents of Pareto distributions without limits. With exponents below 0.2 most draws would
//! lie beyond any disk, so all are cut: gaps at the size of the disk, lengths and counts at 10,000.

use ashlar_models::Chance;

/// Most errors of a disk, and sectors of a burst.
const COUNT_MAX: f64 = 1e4;
/// Part of the errors that lie in the first tenth of a disk, beside those that would anyway: all in all 37 %, of 20 to 50 % in
/// the paper.
pub const CROWDED: f64 = 0.3;

/// What one model of drive showed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriveModel {
    /// Its name in the paper; A, D and E are nearline drives, the others enterprise drives.
    pub name: &'static str,
    /// Part of the bursts that are of one sector.
    pub single: f64,
    /// Exponent of the length of the others.
    pub length: f64,
    /// Exponent of the gap between bursts.
    pub gap: f64,
    /// Exponent of errors in two weeks.
    pub fortnight: f64,
    /// Exponent of errors in the life of a drive that has any.
    pub life: f64,
}

const fn model(name: &'static str, single: f64, length: f64, gap: f64, fortnight: f64, life: f64) -> DriveModel {
    DriveModel { name, single, length, gap, fortnight, life }
}

/// Table 1.
pub const DRIVE_MODELS: [DriveModel; 8] = [
    model("A-1", 0.9, 1.21, 0.008, 0.73, 0.58),
    model("D-2", 0.98, 1.79, 0.022, 0.93, 0.81),
    model("E-1", 0.98, 1.35, 0.158, 0.63, 0.34),
    model("E-2", 0.96, 1.17, 0.128, 0.82, 0.44),
    model("k-2", 0.97, 1.2, 0.017, 0.80, 0.63),
    model("k-3", 0.97, 1.15, 0.00045, 0.70, 0.58),
    model("n-3", 0.93, 1.25, 0.077, 0.45, 0.31),
    model("o-2", 0.97, 1.44, 0.05, 0.22, 0.11),
];

/// How errors lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placing {
    /// In bursts of Pareto lengths, one after another with Pareto gaps: as on real disks.
    Clustered,
    /// In bursts of geometric lengths with the same mean, anywhere: as analysis assumed before. The negative control.
    Independent,
}

impl DriveModel {
    /// The model of a name.
    pub fn find(name: &str) -> Option<DriveModel> {
        DRIVE_MODELS.into_iter().find(|model| model.name == name)
    }

    /// Bad sectors of a disk that has some: each once, in order.
    pub fn errors(&self, sectors: u64, placing: Placing, chance: &mut Chance) -> Vec<u64> {
        let count = pareto(1.0, COUNT_MAX, self.life, chance) as usize;
        self.lying(count, sectors, placing, chance)
    }

    /// Bad sectors that come to a disk in a fortnight in which it gets some: each once, in order, in bursts.
    pub fn fortnight(&self, sectors: u64, chance: &mut Chance) -> Vec<u64> {
        let count = pareto(1.0, COUNT_MAX, self.fortnight, chance) as usize;
        self.lying(count, sectors, Placing::Clustered, chance)
    }

    /// So many bad sectors: each once, in order.
    fn lying(&self, count: usize, sectors: u64, placing: Placing, chance: &mut Chance) -> Vec<u64> {
        let mut bad: Vec<u64> = Vec::with_capacity(count);
        let mut place = location(sectors, chance);
        while bad.len() < count {
            let length = match placing {
                Placing::Clustered => self.length(chance),
                Placing::Independent => geometric(self.mean_length(), chance),
            };
            let length = length.min((count - bad.len()) as u64);
            bad.extend((0..length).map(|offset| (place + offset) % sectors));
            place = match placing {
                Placing::Clustered => place + length + pareto(1.0, sectors as f64, self.gap, chance) as u64,
                Placing::Independent => location(sectors, chance),
            } % sectors;
        }
        bad.sort_unstable();
        bad.dedup();
        bad
    }

    fn length(&self, chance: &mut Chance) -> u64 {
        if chance.unit() < self.single { 1 } else { pareto(2.0, COUNT_MAX, self.length, chance) as u64 }
    }

    /// Mean sectors of a burst, as they are drawn (without rounding down).
    fn mean_length(&self) -> f64 {
        self.single + (1.0 - self.single) * pareto_mean(2.0, COUNT_MAX, self.length)
    }
}

/// Where a burst lies.
fn location(sectors: u64, chance: &mut Chance) -> u64 {
    if chance.unit() < CROWDED { chance.below((sectors / 10).max(1)) } else { chance.below(sectors) }
}

/// A Pareto distribution from `least`, cut at `most`.
pub fn pareto(least: f64, most: f64, exponent: f64, chance: &mut Chance) -> f64 {
    let kept = 1.0 - (least / most).powf(exponent);
    (least * (1.0 - chance.unit() * kept).powf(-1.0 / exponent)).min(most)
}

/// The mean of a Pareto distribution from `least`, cut at `most`.
pub fn pareto_mean(least: f64, most: f64, exponent: f64) -> f64 {
    // a/(1-a) (G^(1-a) - L^(1-a)) / (L^-a - G^-a); at 1 both factors have no value, and beside it the mean is smooth.
    let a = if (exponent - 1.0).abs() < 1e-7 { 1.0 + 1e-7 } else { exponent };
    a / (1.0 - a) * (most.powf(1.0 - a) - least.powf(1.0 - a)) / (least.powf(-a) - most.powf(-a))
}

/// From 1, with a mean.
fn geometric(mean: f64, chance: &mut Chance) -> u64 {
    let stop = (1.0 / mean).min(1.0);
    if stop >= 1.0 { 1 } else { 1 + ((1.0 - chance.unit()).ln() / (1.0 - stop).ln()) as u64 }
}
