//! How popular keys are, and how many different ones there are among some requests (section 3 of the paper).

use super::traced::Traced;
use crate::common::Refused;
use crate::solve::root;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Neighbouring ranks are taken together while they differ by less than this factor: 12,500 groups for 10^8 keys.
pub const RATIO: f64 = 1.001;
/// The same for the optimizer, which evaluates a model some thousand times and is then checked with the finer one.
pub const RATIO_COARSE: f64 = 1.02;
/// Most keys: numbers of requests are then still exact.
pub const KEYS_MAX: f64 = 1e15;

/// How requests are spread over keys.
#[derive(Clone, Debug, PartialEq)]
pub enum Distribution {
    /// All keys alike.
    Uniform,
    /// The key of rank i is asked for in proportion to i^-s.
    Zipf(f64),
    /// As a trace showed it.
    Trace(Arc<Traced>),
}

impl FromStr for Distribution {
    type Err = String;
    fn from_str(text: &str) -> Result<Distribution, String> {
        let refuse =
            || format!("{text:?} is no distribution: write uniform, or zipf:S with S from 0.01 to 3, as in zipf:0.99");
        if text == "uniform" {
            return Ok(Distribution::Uniform);
        }
        let skew: f64 = text.strip_prefix("zipf:").ok_or_else(refuse)?.parse().map_err(|_| refuse())?;
        if (0.01..=3.0).contains(&skew) { Ok(Distribution::Zipf(skew)) } else { Err(refuse()) }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Uniform => f.write_str("uniform"),
            Distribution::Zipf(skew) => write!(f, "zipf:{skew}"),
            Distribution::Trace(traced) => traced.fmt(f),
        }
    }
}

/// Keys of nearly the same popularity.
#[derive(Clone, Copy, Debug)]
struct Group {
    count: f64,
    /// -ln(1 - p): a key is absent from n requests with the probability exp(-rate n).
    rate: f64,
    /// Probability of each.
    probability: f64,
}

/// The three primitives of the paper, and DInterval. Sizes and requests are in items.
pub trait Keys {
    /// All keys there are.
    fn keys(&self) -> f64;
    /// Different keys that are expected in some requests.
    fn unique(&self, requests: f64) -> f64;
    /// The requests in which `unique` different keys are expected; infinite for all keys.
    fn requests(&self, unique: f64) -> f64;
    /// Requests between two compactions of the same key in a level of `size` items that is compacted in turn.
    fn dinterval(&self, size: f64) -> f64;
    /// Size of two tables that become one.
    fn merge(&self, one: f64, other: f64) -> f64 {
        self.unique(self.requests(one) + self.requests(other))
    }
}

/// Popularity of keys, in groups.
#[derive(Clone, Debug)]
pub struct Popularity {
    keys: f64,
    groups: Vec<Group>,
}

impl Popularity {
    /// The popularity of `keys` keys with a distribution.
    pub fn new(keys: f64, distribution: &Distribution) -> Result<Popularity, Refused> {
        Popularity::grouped(keys, distribution, RATIO)
    }

    /// The same with groups of ranks within a factor of `ratio`.
    pub fn grouped(keys: f64, distribution: &Distribution, ratio: f64) -> Result<Popularity, Refused> {
        crate::common::within("the number of keys", keys, 2.0, KEYS_MAX)?;
        let keys = keys.floor();
        let sums = match distribution {
            Distribution::Uniform => vec![(keys, keys)],
            Distribution::Zipf(skew) => zipf(keys, *skew, ratio),
            Distribution::Trace(traced) => traced.sums(keys),
        };
        Ok(Popularity::from_sums(keys, sums))
    }

    /// Groups of count and weight.
    fn from_sums(keys: f64, sums: Vec<(f64, f64)>) -> Popularity {
        let all: f64 = sums.iter().map(|(_, sum)| sum).sum();
        let groups = sums.into_iter().map(|(count, sum)| {
            let probability = sum / count / all;
            Group { count, rate: -(-probability).ln_1p(), probability }
        });
        Popularity { keys, groups: groups.collect() }
    }

    /// The share of requests that ask for a key among those of the last `requests` requests.
    pub fn asked_again(&self, requests: f64) -> f64 {
        self.groups.iter().map(|group| group.count * group.probability * -(-group.rate * requests).exp_m1()).sum()
    }

    /// -ln(1 - Unique/N) and its derivative. It is a straight line for uniform keys, so Newton's method takes one step.
    pub(super) fn absent(&self, requests: f64) -> (f64, f64) {
        let (mut left, mut slope) = (0.0, 0.0);
        for group in &self.groups {
            let part = group.count * (-group.rate * requests).exp();
            left += part;
            slope += part * group.rate;
        }
        let unique = self.unique(requests);
        (-(-unique / self.keys).ln_1p(), slope / left)
    }

    /// Mean share of a level that is filled when keys are compacted every `interval` requests, and its derivative, as
    /// -ln(1 - share).
    pub(super) fn filled(&self, interval: f64) -> (f64, f64) {
        let (mut filled, mut slope) = (0.0, 0.0);
        for group in &self.groups {
            let a = group.rate * interval;
            let (value, derivative) = mean_filled(a);
            filled += group.count * value;
            slope += group.count * derivative * group.rate;
        }
        (-(-filled / self.keys).ln_1p(), slope / (self.keys - filled))
    }
}

/// 1 - (1 - exp(-a))/a and its derivative; as a series where that would lose digits.
fn mean_filled(a: f64) -> (f64, f64) {
    if a < 1e-4 {
        return (a / 2.0 - a * a / 6.0, 0.5 - a / 3.0);
    }
    let gone = -(-a).exp_m1();
    (1.0 - gone / a, (gone - a * (-a).exp()) / (a * a))
}

impl Keys for Popularity {
    fn keys(&self) -> f64 {
        self.keys
    }
    fn unique(&self, requests: f64) -> f64 {
        self.groups.iter().map(|group| group.count * -(-group.rate * requests).exp_m1()).sum()
    }
    fn requests(&self, unique: f64) -> f64 {
        if unique >= self.keys * (1.0 - 1e-13) {
            return f64::INFINITY;
        }
        if unique <= 0.0 { 0.0 } else { root(-(-unique / self.keys).ln_1p(), unique, |requests| self.absent(requests)) }
    }
    fn dinterval(&self, size: f64) -> f64 {
        if size >= self.keys * (1.0 - 1e-13) {
            return f64::INFINITY;
        }
        if size <= 0.0 { 0.0 } else { root(-(-size / self.keys).ln_1p(), 2.0 * size, |interval| self.filled(interval)) }
    }
}

/// Groups of ranks of the Zipf distribution: count, and the sum of i^-s.
fn zipf(keys: f64, skew: f64, ratio: f64) -> Vec<(f64, f64)> {
    let mut groups = Vec::new();
    let mut from = 1.0;
    while from <= keys {
        let end = (from * ratio).floor().max(from + 1.0).min(keys + 1.0);
        let sum = if from < 64.0 {
            (from as u64..end as u64).map(|i| (i as f64).powf(-skew)).sum()
        } else {
            sum(from, end, skew)
        };
        groups.push((end - from, sum));
        from = end;
    }
    groups
}

/// Sum of i^-s for `from` <= i < `end`, by Euler and Maclaurin's formula; from 64 on exact to 12 digits.
fn sum(from: f64, end: f64, skew: f64) -> f64 {
    let (first, last) = (from.powf(-skew), end.powf(-skew));
    let (log, rest) = ((end / from).ln(), 1.0 - skew);
    let integral = from.powf(rest) * if rest.abs() < 1e-9 { log } else { (rest * log).exp_m1() / rest };
    integral + (first - last) / 2.0 + skew / 12.0 * (first / from - last / end)
}
