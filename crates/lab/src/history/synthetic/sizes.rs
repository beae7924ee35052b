//! Sizes of files.

use ashlar_models::Chance;
use ashlar_units::Bytes;
use std::fmt;
use std::str::FromStr;

/// Agrawal et al. as Geriatrix has it: weights of 8 B, 32 B and so on by four, up to 8 MiB.
const AGRAWAL: [u64; 11] = [1, 7, 16, 40, 50, 46, 35, 20, 10, 4, 1];

/// The largest size of a lognormal distribution.
const LOGNORMAL_MAX: u64 = 256 << 20;

/// A distribution of sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sizes {
    /// Eleven sizes from 8 B to 8 MiB, by the weights of Agrawal et al.
    Agrawal,
    /// Impressions (FAST '09): body lognormal (9.48, 2.46), one file in 16,667 from a Pareto tail of 512 MiB and 0.91.
    Impressions,
    /// OBFS: 80 % of 512 KiB, 20 % even from 4 to 512 KiB.
    SynWrite,
    /// Even between two sizes in bytes, both included.
    Even(u64, u64),
    /// Gamma, by mean in bytes and shape: what FileBench has.
    Gamma(f64, f64),
    /// Lognormal, by median in bytes and the standard deviation of the logarithm; at most 256 MiB. 4 KiB and 1.8 have the mean
    /// of the thesis's file system (635 MB in 33,797 files).
    Lognormal(f64, f64),
}

/// Text that names no distribution.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "{0:?} is no distribution of sizes: write agrawal, impressions, synwrite, even:4KiB-512KiB, gamma:MEAN,SHAPE as in gamma:32KiB,1.5, or lognormal:MEDIAN,DEVIATION as in lognormal:4KiB,1.8"
)]
pub struct SizesError(String);

impl FromStr for Sizes {
    type Err = SizesError;
    fn from_str(text: &str) -> Result<Sizes, SizesError> {
        let wrong = || SizesError(text.into());
        let size = |text: &str| text.parse::<Bytes>().map(|size| size.0).map_err(|_| wrong());
        match text {
            "agrawal" => Ok(Sizes::Agrawal),
            "impressions" => Ok(Sizes::Impressions),
            "synwrite" => Ok(Sizes::SynWrite),
            _ => match text.split_once(':') {
                Some(("even", range)) => {
                    let (low, high) = range.split_once('-').ok_or_else(wrong)?;
                    let (low, high) = (size(low)?, size(high)?);
                    if low <= high && high <= 1 << 50 { Ok(Sizes::Even(low, high)) } else { Err(wrong()) }
                }
                Some(("gamma", rest)) => {
                    let (mean, shape) = rest.split_once(',').ok_or_else(wrong)?;
                    let (mean, shape) = (size(mean)? as f64, shape.parse::<f64>().map_err(|_| wrong())?);
                    let fits = (1.0..1e15).contains(&mean) && (0.05..=100.0).contains(&shape);
                    if fits { Ok(Sizes::Gamma(mean, shape)) } else { Err(wrong()) }
                }
                Some(("lognormal", rest)) => {
                    let (median, deviation) = rest.split_once(',').ok_or_else(wrong)?;
                    let (median, deviation) = (size(median)? as f64, deviation.parse::<f64>().map_err(|_| wrong())?);
                    let fits = (1.0..1e15).contains(&median) && (0.0..=10.0).contains(&deviation);
                    if fits { Ok(Sizes::Lognormal(median, deviation)) } else { Err(wrong()) }
                }
                _ => Err(wrong()),
            },
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sizes::Agrawal => f.write_str("agrawal"),
            Sizes::Impressions => f.write_str("impressions"),
            Sizes::SynWrite => f.write_str("synwrite"),
            Sizes::Even(low, high) => write!(f, "even:{low}-{high}"),
            Sizes::Gamma(mean, shape) => write!(f, "gamma:{mean},{shape}"),
            Sizes::Lognormal(median, deviation) => write!(f, "lognormal:{median},{deviation}"),
        }
    }
}

impl Sizes {
    /// A size by chance.
    pub fn draw(&self, chance: &mut Chance) -> u64 {
        match self {
            Sizes::Agrawal => {
                let mut at = chance.below(AGRAWAL.iter().sum());
                let index = AGRAWAL.iter().position(|weight| {
                    let here = at < *weight;
                    at = at.wrapping_sub(*weight);
                    here
                });
                8 << (2 * index.unwrap_or(0))
            }
            Sizes::Impressions if chance.unit() < 0.99994 => (9.48 + 2.46 * chance.normal()).exp().min(5e8) as u64,
            // Half of such a tail is beyond 1.1 GiB; it is cut where it would fill any disk.
            Sizes::Impressions => ((512u64 << 20) as f64 * (1.0 - chance.unit()).powf(-1.0 / 0.91)).min(64e9) as u64,
            Sizes::SynWrite if chance.unit() < 0.8 => 512 << 10,
            Sizes::SynWrite => (4 << 10) + chance.below(508 << 10),
            Sizes::Even(low, high) => low + chance.below(high - low + 1),
            Sizes::Gamma(mean, shape) => (chance.gamma(*shape) * mean / shape) as u64,
            Sizes::Lognormal(median, deviation) => {
                ((median.ln() + deviation * chance.normal()).exp() as u64).min(LOGNORMAL_MAX)
            }
        }
    }
}
