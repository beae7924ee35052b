//! Acceptance checks of the estimator that need no bytes.

use super::histogram::expected;
use super::synthetic::{long_tailed, sample};
use super::{Range, Sample, Slack, range};
use ashlar_models::Chance;

fn exact(whole: &[f64], share: f64) -> Sample {
    let mut counts = expected(whole, whole.len(), share);
    counts.push(0.0);
    let noise = counts.iter().map(|count| (count + 1.0f64).sqrt()).collect();
    let total = whole.iter().zip(1..).map(|(values, copies)| values * f64::from(copies)).sum();
    Sample { counts, noise, beyond: (0.0, 0.0), share, total }
}

#[test]
fn distinct_data_are_distinct() {
    for share in [0.01, 0.05, 0.2] {
        let range = range(&exact(&[1e6], share), Slack::Paper(0.5)).expect("an answer");
        assert!((range.low / 1e6 - 1.0).abs() < 1e-3 && (range.high / 1e6 - 1.0).abs() < 1e-6, "{share}: {range:?}");
    }
}

#[test]
fn pairs_that_look_as_expected_are_pairs() {
    for share in [0.01, 0.05, 0.2] {
        let range = range(&exact(&[0.0, 5e5], share), Slack::Paper(0.5)).expect("an answer");
        assert!(range.distance < 1e-3, "{share}: {range:?}");
        assert!((range.low / 1e6 - 0.5).abs() < 2e-3 && (range.high / 1e6 - 0.5).abs() < 2e-3, "{share}: {range:?}");
    }
}

struct Runs {
    inside: usize,
    width: f64,
}

fn runs(whole: &[u64], share: f64, slack: Slack, runs: u64) -> Runs {
    let total: f64 = whole.iter().zip(1..).map(|(values, copies)| *values as f64 * f64::from(copies)).sum();
    let truth = whole.iter().sum::<u64>() as f64 / total;
    let (mut inside, mut width) = (0, 0.0);
    for seed in 0..runs {
        let Range { low, high, .. } = range(&sample(&mut Chance::new(seed), whole, share), slack).expect("an answer");
        inside += usize::from(low / total <= truth && truth <= high / total);
        width += (high - low) / total / runs as f64;
    }
    Runs { inside, width }
}

/// The digest's prototype: widths 0.35–0.39, 0.17–0.19 and 0.03–0.04 at 1, 5 and 15 %, truth inside in 16 to 20 of 20.
#[test]
fn a_long_tail_is_as_wide_as_in_the_prototype() {
    let whole = long_tailed(1e7);
    for (share, least, most) in [(0.01, 0.32, 0.42), (0.05, 0.155, 0.205), (0.15, 0.02, 0.05)] {
        let found = runs(&whole, share, Slack::Paper(0.5), 20);
        assert!(found.inside >= 16, "{share}: {} of 20 inside", found.inside);
        assert!((least..most).contains(&found.width), "{share}: {}", found.width);
    }
}

/// Widths at the ends are far below those in the middle.
#[test]
fn ranges_are_narrow_where_all_or_nothing_is_shared() {
    let middle = runs(&long_tailed(1e7), 0.01, Slack::Paper(0.5), 5).width;
    let mut shared = vec![0; 40];
    shared[32] = 300_000;
    let ends = [runs(&[10_000_000], 0.01, Slack::Paper(0.5), 5).width, runs(&shared, 0.01, Slack::Paper(0.5), 5).width];
    assert!(ends.iter().all(|end| *end < middle / 4.0), "{ends:?} {middle}");
}

/// Few classes fit exactly, and the paper's slack shrinks to a point beside the truth; the measured noise does not.
#[test]
fn few_classes_need_the_floor() {
    let whole = [5_000_000, 1_250_000, 830_000];
    let paper = runs(&whole, 0.01, Slack::Paper(0.5), 20);
    let floor = runs(&whole, 0.01, Slack::Noise(2.5), 40);
    assert!(paper.inside <= 10, "the negative control: {} of 20 inside", paper.inside);
    assert!(floor.inside >= 38, "{} of 40 inside, {} wide", floor.inside, floor.width);
}

#[test]
fn measured_noise_covers_the_long_tail() {
    let whole = long_tailed(1e7);
    for share in [0.01, 0.05, 0.15] {
        let found = runs(&whole, share, Slack::Noise(2.5), 20);
        assert!(found.inside >= 19, "{share}: {} of 20 inside, {} wide", found.inside, found.width);
    }
}
