//! Streaming mode: counters for the highest digests alone (section 3.2 of the paper).
//!
//! A sketch of parts, merged, is the sketch of the whole, bit for bit; so it can be taken by several machines, and volumes
//! can be added later. Its ranges are wider than those of a base sample.

use super::{NoAnswer, Range, Sample, Slack, range};
use std::collections::BTreeMap;

/// How often each of the highest digests occurred.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Sketch {
    values_max: usize,
    values: BTreeMap<u64, u64>,
    /// Digests from here on are counted.
    from: u64,
}

impl Sketch {
    /// An empty sketch of at most so many values.
    pub fn new(values_max: usize) -> Sketch {
        Sketch { values_max: values_max.max(1), values: BTreeMap::new(), from: 0 }
    }
    /// Sees an occurrence.
    pub fn count(&mut self, value: u64) {
        self.add(value, 1);
    }
    fn add(&mut self, value: u64, count: u64) {
        if value < self.from {
            return;
        }
        *self.values.entry(value).or_default() += count;
        if self.values.len() > self.values_max
            && let Some((lowest, _)) = self.values.pop_first()
        {
            self.from = self.from.max(lowest.saturating_add(1));
        }
    }
    /// Adds another sketch of the same size.
    pub fn merge(&mut self, other: &Sketch) {
        self.from = self.from.max(other.from);
        self.values = self.values.split_off(&self.from);
        other.values.range(self.from..).for_each(|(value, count)| self.add(*value, *count));
    }
    /// Part of the digests that is counted: δ.
    pub fn covered(&self) -> f64 {
        1.0 - self.from as f64 / 2f64.powi(64)
    }
    /// The range of distinct values of the whole, of which `share` was sampled, with a slack of so many standard
    /// deviations. That of the covered part of the digests is within it.
    pub fn range(&self, share: f64, slack: f64) -> Result<Range, NoAnswer> {
        let rows = self.values.values().copied().max().unwrap_or(0).min(60) as usize;
        let mut counts = vec![0.0; rows];
        let (mut mass, mut popular) = (0.0, 0.0);
        for &count in self.values.values() {
            match counts.get_mut(count as usize - 1) {
                Some(row) => {
                    *row += 1.0;
                    mass += count as f64;
                }
                None => popular += 1.0,
            }
        }
        let noise = counts.iter().map(|count: &f64| (count + 1.0).sqrt()).collect();
        let found =
            range(&Sample { counts, noise, beyond: (0.0, 0.0), share, total: mass / share }, Slack::Noise(slack))?;
        let whole = |distinct: f64| (distinct + popular) / self.covered();
        let covered = if self.from == 0 { 0.0 } else { 2.0 / (self.values.len() as f64).sqrt() };
        let (low, high) = (whole(found.low) * (1.0 - covered), whole(found.high) * (1.0 + covered));
        Ok(Range { low, best: whole(found.best), high, ..found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::mix;

    #[test]
    fn sketches_of_parts_are_the_sketch_of_the_whole() {
        let values: Vec<u64> = (0..30_000).map(|index| mix(1, index % 11_000)).collect();
        let sketch = |values: &[u64]| {
            let mut sketch = Sketch::new(500);
            values.iter().for_each(|value| sketch.count(*value));
            sketch
        };
        let whole = sketch(&values);
        let mut merged = sketch(&values[..7000]);
        merged.merge(&sketch(&values[7000..7100]));
        merged.merge(&sketch(&values[7100..]));
        assert_eq!(merged, whole);
        assert!((whole.covered() * 11_000.0 / 500.0 - 1.0).abs() < 0.2, "{}", whole.covered());
    }

    #[test]
    fn the_range_holds_the_truth() {
        // 200,000 values, half of them twice.
        let mut sketch = Sketch::new(20_000);
        for value in 0..200_000u64 {
            for copy in 0..=value % 2 {
                if crate::sample::fast_hash(3, mix(value, copy)) < 0.15 {
                    sketch.count(mix(7, value));
                }
            }
        }
        let range = sketch.range(0.15, 2.5).expect("an answer");
        assert!(range.low <= 200_000.0 && 200_000.0 <= range.high, "{range:?}");
        assert!((range.high - range.low) / 300_000.0 < 0.2, "{range:?}");
    }
}
