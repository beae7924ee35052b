//! The base sample: a histogram from 50,000 counters (section 3.2 of the paper).
//!
//! Departs: "sample C chunks from the data set", read literally, makes the rule `y_i = |{j: c_j = i}| p N / (i C)` too low
//! (by the factor p where all is distinct), since it asks how often something occurs in the sample that need not be in it. The base must be
//! drawn from the sample: then each of the `i` occurrences of a value in the sample is drawn with the same probability.

use std::collections::HashMap;

/// Counters of the paper.
pub const BASE: usize = 50_000;

/// Counts how often a few values occur.
#[derive(Default, Clone, Debug)]
pub struct Base {
    /// How often a value was drawn, and how often it was counted.
    values: HashMap<u64, (u32, u32)>,
    draws: u64,
}

impl Base {
    /// Draws an occurrence.
    pub fn draw(&mut self, value: u64) {
        self.values.entry(value).or_default().0 += 1;
        self.draws += 1;
    }
    /// Sees an occurrence in the sample, the drawn ones included.
    pub fn count(&mut self, value: u64) {
        if let Some(value) = self.values.get_mut(&value) {
            value.1 = value.1.saturating_add(1);
        }
    }
    /// Occurrences that were drawn.
    pub fn draws(&self) -> u64 {
        self.draws
    }
    /// The histogram of a sample of `occurrences` that the counts stand for: counts, and their standard deviations, with
    /// what drawing added.
    pub fn histogram(&self, occurrences: f64) -> (Vec<f64>, Vec<f64>) {
        let mut drawn: Vec<u64> = Vec::new();
        for (draws, count) in self.values.values() {
            let count = *count as usize;
            if count == 0 {
                continue;
            }
            drawn.resize(drawn.len().max(count), 0);
            drawn[count - 1] += u64::from(*draws);
        }
        let scale = |index: usize| occurrences / (index as f64 + 1.0) / self.draws.max(1) as f64;
        let counts = drawn.iter().enumerate().map(|(index, drawn)| *drawn as f64 * scale(index)).collect();
        // Draws are a Poisson number each; a value may be drawn as often as it occurs, and then counts so often.
        let noise =
            drawn.iter().enumerate().map(|(index, drawn)| (*drawn as f64 + 1.0).sqrt() * scale(index)).collect();
        (counts, noise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_models::Chance;

    /// Values `0..distinct`, each with its number of copies, of which each is in the sample with probability `share`; of
    /// those, and with `literal` of all, one in `every` is drawn.
    fn mean(copies: &dyn Fn(u64) -> u64, distinct: u64, share: f64, runs: u64, literal: bool) -> (Vec<f64>, Vec<f64>) {
        let (mut means, mut truths) = (vec![0.0; 4], vec![0.0; 4]);
        for seed in 0..runs {
            let mut chance = Chance::new(seed);
            let (mut base, mut sample) = (Base::default(), Vec::new());
            let mut occurrences = 0;
            for value in 0..distinct {
                let mut count = 0;
                for _ in 0..copies(value) {
                    let sampled = chance.unit() < share;
                    let drawn = chance.unit() < if literal { 0.1 * share } else { 0.1 };
                    count += usize::from(sampled);
                    if drawn && (sampled || literal) {
                        base.draw(value);
                    }
                    if sampled {
                        sample.push(value);
                    }
                }
                occurrences += count;
                if (1..=4).contains(&count) {
                    truths[count - 1] += 1.0 / runs as f64;
                }
            }
            sample.iter().for_each(|value| base.count(*value));
            let (counts, _) = base.histogram(occurrences as f64);
            counts.iter().zip(&mut means).for_each(|(count, mean)| *mean += count / runs as f64);
        }
        (means, truths)
    }

    /// However much is counted, the base takes what its draws take: far less than the 10 MB of the paper.
    #[test]
    fn a_base_does_not_grow_with_what_is_counted() {
        let mut base = Base::default();
        (0..BASE as u64).for_each(|value| base.draw(value));
        (0..2_000_000).for_each(|value| base.count(value));
        let bytes = base.values.capacity() * 8 / 7 * (size_of::<(u64, (u32, u32))>() + 1);
        assert!(base.values.len() == BASE && bytes < 4 << 20, "{bytes}");
    }

    #[test]
    fn a_nested_base_is_right_on_average() {
        let (means, truths) = mean(&|value| 1 + value % 8, 1000, 0.5, 1000, false);
        for (row, (mean, truth)) in means.iter().zip(&truths).enumerate() {
            assert!((mean / truth - 1.0).abs() < 0.01, "row {}: {mean} for {truth}", row + 1);
        }
    }

    /// Negative control: the rule read literally is low by the factor p on distinct data.
    #[test]
    fn the_literal_base_rule_fails() {
        let (means, truths) = mean(&|_| 1, 40_000, 0.1, 20, true);
        let factor = means[0] / truths[0];
        assert!((factor - 0.1).abs() < 0.01, "it is low by {factor}");
        let (means, truths) = mean(&|_| 1, 40_000, 0.1, 20, false);
        assert!((means[0] / truths[0] - 1.0).abs() < 0.01, "{means:?} {truths:?}");
    }
}
