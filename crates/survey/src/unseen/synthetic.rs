//! Samples of wholes that are known, without making any bytes.

use super::Sample;
use super::histogram::column;
use ashlar_models::Chance;

/// How many of `count` happen that have probability `part`.
pub fn binomial(chance: &mut Chance, count: u64, part: f64) -> u64 {
    let (mean, variance) = (count as f64 * part, count as f64 * part * (1.0 - part));
    if part <= 0.0 || count == 0 {
        return 0;
    }
    if part >= 1.0 {
        return count;
    }
    if variance > 100.0 {
        return (mean + variance.sqrt() * chance.normal()).round().clamp(0.0, count as f64) as u64;
    }
    if part > 0.5 {
        return count - binomial(chance, count, 1.0 - part);
    }
    // Distances between successes are geometric.
    let (mut at, mut found) = (0.0, 0);
    loop {
        at += ((1.0 - chance.unit()).ln() / (-part).ln_1p()).floor() + 1.0;
        if at > count as f64 {
            return found;
        }
        found += 1;
    }
}

/// A random sample of a whole in which `whole[j - 1]` values occur `j` times.
pub fn sample(chance: &mut Chance, whole: &[u64], share: f64) -> Sample {
    let mut counts = vec![0.0; whole.len()];
    let mut seen = 0.0;
    for (index, &values) in whole.iter().enumerate() {
        let (mut left, mut rest) = (values, 1.0);
        for (row, part) in column(index as u64 + 1, index + 1, share).into_iter().enumerate() {
            let found = binomial(chance, left, (part / rest).min(1.0));
            counts[row] += found as f64;
            seen += found as f64 * (row as f64 + 1.0);
            left -= found;
            rest -= part;
        }
    }
    while counts.last() == Some(&0.0) {
        counts.pop();
    }
    counts.push(0.0);
    let total: f64 = whole.iter().zip(1..).map(|(values, copies)| *values as f64 * f64::from(copies)).sum();
    let noise = counts.iter().map(|count| (count + 1.0).sqrt()).collect();
    Sample { counts, noise, beyond: (0.0, 0.0), share: seen / total, total }
}

/// Values by copies, `x_j ∝ j^-2.2` up to 40 copies, `occurrences` in all: the long-tailed set of the digest's check.
pub fn long_tailed(occurrences: f64) -> Vec<u64> {
    let weights: Vec<f64> = (1..=40).map(|copies| f64::from(copies).powf(-2.2)).collect();
    let mass: f64 = weights.iter().zip(1..).map(|(weight, copies)| weight * f64::from(copies)).sum();
    weights.iter().map(|weight| (weight * occurrences / mass).round() as u64).collect()
}
