//! How many blocks of a drive go bad in the field, and whether a chip does (Tables 4 and 5, section 6 of the paper).
//!
//! A drive has a handful of bad blocks or hundreds. Half of the drives with two or more come to 200 or more (Figure 8).
//!
//! Departs: the paper has the median and the mean only. Here 47 % of the drives with bad blocks have fewer than the median and
//! 10 % have exactly that; those with many have a Pareto distribution that a tenth of lies below 200, that is cut at 100,000,
//! and whose exponent gives the mean. Figure 8 is said to hold for MLC above all; it is taken for all models.

use crate::idr::{pareto, pareto_mean};
use crate::solve::root;
use crate::ssd::SsdModel;
use ashlar_models::Chance;

/// Bad blocks that half of the drives with two come to (Figure 8).
const MANY: f64 = 200.0;
/// Part of the drives with many that have fewer than that.
const FEWER: f64 = 0.1;
/// Most bad blocks of a drive: ours.
const MOST: f64 = 1e5;
/// Part of the drives with bad blocks that have fewer than the median.
const BELOW: f64 = 0.47;
/// Part that has exactly the median.
const AT: f64 = 0.10;
/// Part of the chips that are lost by their bad blocks; the others by days with errors (section 6.2).
const BY_BLOCKS: f64 = 2.0 / 3.0;

/// How blocks and chips of a model go bad in the years of the study.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    /// Part of the drives with bad blocks.
    pub any: f64,
    median: u32,
    /// Part of those with one.
    one: f64,
    /// Part with many.
    pub many: f64,
    exponent: f64,
    least: f64,
    /// From so many on, a chip is lost.
    pub chip_from: f64,
    /// Probability that a drive with many, but not so many, loses one.
    chip_otherwise: f64,
}

/// What became of a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bad {
    /// Bad blocks.
    pub blocks: u32,
    /// A chip was lost.
    pub chip: bool,
}

impl Blocks {
    /// Those of a model.
    pub fn of(model: &SsdModel) -> Blocks {
        let (percent, median, mean) = model.bad_blocks;
        let (any, middle) = (percent / 100.0, f64::from(median));
        // The later the median, the fewer have one: as many as keep the parts of the others positive.
        let one = 0.62 - 0.08 * middle;
        let many = (1.0 - one) / 2.0 / (1.0 - FEWER);
        let rest = 1.0 - BELOW - AT - many;
        let few = one + between(median).map(|count| f64::from(count) * spread(one, median)).sum::<f64>();
        let of_many = (f64::from(mean) - few - AT * middle - rest * (middle + 2.0)) / many;
        let least = |exponent: f64| MANY * (1.0 - FEWER).powf(1.0 / exponent);
        // The mean falls with the exponent.
        let inverse = root(of_many, 1.3, |inverse| (pareto_mean(least(1.0 / inverse), MOST, 1.0 / inverse), f64::NAN));
        let (exponent, least) = (1.0 / inverse, least(1.0 / inverse));
        let chips = model.bad_chip_percent / 100.0;
        let above = (chips * BY_BLOCKS / (any * many)).min(1.0);
        let (from, to) = (least.powf(-exponent), MOST.powf(-exponent));
        let chip_from = (to + above * (from - to)).powf(-1.0 / exponent);
        let chip_otherwise = ((chips - any * many * above) / (any * many * (1.0 - above))).clamp(0.0, 1.0);
        Blocks { any, median, one, many, exponent, least, chip_from, chip_otherwise }
    }

    /// One drive.
    pub fn draw(&self, chance: &mut Chance) -> Bad {
        if chance.unit() >= self.any {
            return Bad::default();
        }
        let place = chance.unit();
        if place < self.many {
            let blocks = pareto(self.least, MOST, self.exponent, chance);
            let chip = blocks >= self.chip_from || chance.unit() < self.chip_otherwise;
            return Bad { blocks: blocks as u32, chip };
        }
        let place = place - self.many;
        let blocks = match place {
            _ if place < self.one => 1,
            _ if place < BELOW => 2 + ((place - self.one) / spread(self.one, self.median)) as u32,
            _ if place < BELOW + AT => self.median,
            _ => self.median + super::process::geometric(2.0, chance) as u32,
        };
        Bad { blocks, chip: false }
    }
}

/// Counts above one and below the median.
fn between(median: u32) -> std::ops::Range<u32> {
    2..median
}

/// The part that each of these has.
fn spread(one: f64, median: u32) -> f64 {
    (BELOW - one) / between(median).len().max(1) as f64
}
