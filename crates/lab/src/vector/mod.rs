//! A system vector: what each operation costs on a file system, measured once, or made up for one that does not exist.
//!
//! A text file. A line is `NAME VALUE`, with units as the thesis has them (table 4.4, appendix A.4); `#` begins a comment.
//! Behind the value may stand `se=` (standard error of the mean, in the same unit), `n=` (how many were measured) and `q=`
//! (quantiles of single times, [`PROBABILITIES`]). Lines `@name TEXT`, `@origin measured|emulated|modelled` and
//! `@note TEXT` say what it is of. So a file of the thesis is one of ours, and any of ours can be edited with the hand.

#[cfg(test)]
mod fuzz;
mod keys;
mod text;

pub use keys::{Described, FAMILIES, Family, Key, Unit};

use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Probabilities of the quantiles that a result keeps.
pub const PROBABILITIES: [f64; 9] = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0];

/// One result.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Value {
    /// The mean, in the unit of the family.
    pub mean: f64,
    /// Its standard error, in the same unit.
    pub error: f64,
    /// How many were measured; zero if that is not known.
    pub count: u64,
    /// Quantiles at [`PROBABILITIES`] of single times, in the same unit.
    pub quantiles: Option<[f64; PROBABILITIES.len()]>,
}

impl Value {
    /// A number of which no more is known.
    pub fn exact(mean: f64) -> Value {
        Value { mean, error: 0.0, count: 0, quantiles: None }
    }

    /// Of single times; `None` without any. The largest times stay in: they are what people wait for.
    pub fn of(mut times: Vec<f64>) -> Option<Value> {
        let count = times.len();
        let mean = times.iter().sum::<f64>() / count as f64;
        let variance =
            times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count.max(2).wrapping_sub(1) as f64;
        times.sort_by(f64::total_cmp);
        let quantile = |p: f64| times.get(((p * count as f64).ceil() as usize).saturating_sub(1)).copied();
        let mut quantiles = [0.0; PROBABILITIES.len()];
        for (to, p) in quantiles.iter_mut().zip(PROBABILITIES) {
            *to = quantile(p)?;
        }
        let error = (variance / count as f64).sqrt();
        Some(Value { mean, error, count: count as u64, quantiles: Some(quantiles) })
    }

    /// The quantile of probability `p` as a multiple of the mean; 1 where none are known.
    pub fn relative_quantile(&self, p: f64) -> f64 {
        let Some(quantiles) = self.quantiles.filter(|_| self.mean > 0.0) else { return 1.0 };
        let above = PROBABILITIES.iter().position(|bound| p <= *bound).unwrap_or(PROBABILITIES.len() - 1);
        let Some(below) = above.checked_sub(1) else { return quantiles[0] / self.mean };
        let share = (p - PROBABILITIES[below]) / (PROBABILITIES[above] - PROBABILITIES[below]);
        (quantiles[below] + share.clamp(0.0, 1.0) * (quantiles[above] - quantiles[below])) / self.mean
    }
}

/// Where the numbers of a vector come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Measured on the thing itself.
    #[default]
    Measured,
    /// Measured on an emulated device.
    Emulated,
    /// Made up, or edited.
    Modelled,
}

/// What each operation costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vector {
    /// What it is of.
    pub name: String,
    /// Where its numbers come from.
    pub source: Source,
    /// What a reader should know.
    pub notes: Vec<String>,
    values: BTreeMap<Key, Value>,
}

/// A time as a sum of parts of results.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    /// Results, how often each counts, and milliseconds of one.
    parts: [Option<(Key, f64, f64)>; 2],
}

impl Terms {
    /// Results, how often each counts, and milliseconds of one.
    pub fn iter(&self) -> impl Iterator<Item = (Key, f64, f64)> {
        self.parts.into_iter().flatten()
    }

    /// The sum, milliseconds.
    pub fn milliseconds(&self) -> f64 {
        self.iter().map(|(_, weight, each)| weight * each).sum()
    }

    fn one(key: Key, weight: f64, each: f64) -> Terms {
        Terms { parts: [Some((key, weight, each)), None] }
    }
}

impl Vector {
    /// A vector without results.
    pub fn named(name: impl Into<String>) -> Vector {
        Vector { name: name.into(), ..Vector::default() }
    }

    /// Sets a result.
    pub fn set(&mut self, family: Family, size: u64, value: Value) {
        self.values.insert(Key { family, size }, value);
    }

    /// A result.
    pub fn get(&self, key: Key) -> Option<&Value> {
        self.values.get(&key)
    }

    /// All results, in the order of files.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &Value)> {
        self.values.iter().map(|(key, value)| (*key, value))
    }

    /// The results of a sized family, by size.
    pub fn of(&self, family: Family) -> impl DoubleEndedIterator<Item = (u64, &Value)> {
        let keys = Key { family, size: 0 }..=Key { family, size: u64::MAX };
        self.values.range(keys).map(|(key, value)| (key.size, value))
    }

    /// Whether there is any result of a family.
    pub fn has(&self, family: Family) -> bool {
        self.of(family).next().is_some()
    }

    /// The number of a family that has one.
    pub fn number(&self, family: Family) -> Option<f64> {
        self.get(Key { family, size: 0 }).map(|value| value.mean)
    }

    /// Milliseconds of one occurrence. Of a rate, of one KB.
    pub fn once(&self, family: Family, weight: f64) -> Option<Terms> {
        let key = Key { family, size: 0 };
        let value = self.get(key)?;
        let each = if family.unit() == Unit::Rate { 1e3 / value.mean } else { value.mean };
        Some(Terms::one(key, weight, each))
    }

    /// Milliseconds for `kb` kilobytes (or so many at once, for families that count those): between two results that were
    /// measured in proportion to the distance from each, below the smallest as the smallest, above the largest at its
    /// rate.
    pub fn sized(&self, family: Family, kb: f64) -> Option<Terms> {
        let rate = family.unit() == Unit::Rate;
        let each = |size: u64, value: &Value| match rate {
            true => size.max(1) as f64 * 1e3 / value.mean,
            false => value.mean,
        };
        let (mut below, mut above) = (None, None);
        for (size, value) in self.of(family) {
            match size as f64 <= kb {
                true => below = Some((size, value)),
                false => {
                    above = Some((size, value));
                    break;
                }
            }
        }
        let key = |size| Key { family, size };
        Some(match (below, above) {
            (None, None) => return None,
            (None, Some((size, value))) => Terms::one(key(size), 1.0, each(size, value)),
            (Some((size, value)), None) => Terms::one(key(size), (kb / size.max(1) as f64).max(1.0), each(size, value)),
            (Some((low, one)), Some((high, other))) => {
                let share = (kb - low as f64) / (high - low) as f64;
                let low = (key(low), 1.0 - share, each(low, one));
                Terms { parts: [Some(low), Some((key(high), share, each(high, other)))] }
            }
        })
    }

    /// The relative standard error of a result.
    pub fn relative_error(&self, key: Key) -> f64 {
        self.get(key).filter(|value| value.mean > 0.0).map_or(0.0, |value| value.error / value.mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_between_sizes() {
        let mut vector = Vector::default();
        vector.set(Family::TR, 4, Value::exact(1.0));
        vector.set(Family::TR, 16, Value::exact(4.0));
        vector.set(Family::RD, 8, Value::exact(1000.0));
        let tr = |kb| vector.sized(Family::TR, kb).expect("measured").milliseconds();
        assert_eq!((tr(0.0), tr(4.0), tr(10.0), tr(16.0), tr(32.0)), (1.0, 1.0, 2.5, 4.0, 8.0));
        let rd = |kb| vector.sized(Family::RD, kb).expect("measured").milliseconds();
        assert_eq!((rd(8.0), rd(80.0), rd(1.0)), (8.0, 80.0, 8.0));
        assert_eq!(vector.sized(Family::TRC, 1.0), None);
    }

    #[test]
    fn quantiles_keep_the_tail() {
        let value = Value::of((1..=1000).map(f64::from).collect()).expect("some");
        assert_eq!((value.mean, value.count), (500.5, 1000));
        assert_eq!(value.quantiles, Some([10.0, 100.0, 250.0, 500.0, 750.0, 900.0, 990.0, 999.0, 1000.0]));
        let expected = (999.0f64 * 1000.0 * 1001.0 / 12.0 / 999.0 / 1000.0).sqrt();
        assert!((value.error - expected).abs() < 1e-9, "{} {expected}", value.error);
        assert_eq!(value.relative_quantile(0.5), 500.0 / 500.5);
        assert_eq!(value.relative_quantile(0.0), 10.0 / 500.5);
        assert_eq!(Value::of(Vec::new()), None);
    }
}
