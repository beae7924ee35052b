//! The range by profile likelihood: of all numbers of distinct values, those that some whole explains nearly as well as the
//! best one does.
//!
//! Numbers of the histogram are taken as normal with the deviations that were measured, so the sum of squares of what an
//! explanation misses them by, in deviations, is the logarithm of its likelihood. One number is asked for, whatever the
//! others are; so an answer is in the range if the best explanation with that answer has a sum at most `z²` above the least
//! of all (Wilks 1938; with bounds on the variables: Rust and Burrus 1972, whose conjecture that this covers holds in our
//! tests and not in general). Two deviations are 95 of 100 samples.
//!
//! Departs: the paper, and Valiant and Valiant, ask of each single number that it is missed by little, and take the extremes
//! of all explanations that do so; since all of them are not off at once by as much, that range is wider than it need be.
//!
//! The first row, of values seen once, is what the others leave of a mass that is known, so it is no row here but the
//! condition that shares add up to one. Values that are seen more often than there are rows are a row of their own. They are
//! certainly seen, so nothing is to be estimated of them (as of the abundant species of Chao and Lee, 1992); a share of the mass
//! is a share of that of values that are not.

use super::histogram::{column, mesh};
use super::nnls::Matrix;
use super::{NoAnswer, Range, Sample};

/// Weight of conditions, in deviations.
const EXACT: f64 = 1e5;
/// Steps for each bound, at most.
const STEPS: usize = 15;
/// A bound is found when its sum is too large by this part of what is allowed.
const CLOSE: f64 = 0.04;

struct Profile {
    /// By number of copies: expected rows in deviations.
    columns: Vec<Vec<f64>>,
    target: Vec<f64>,
    /// Distinct values by mass, for each column.
    distinct: Vec<f64>,
}

impl Profile {
    fn new(sample: &Sample) -> Profile {
        let rows = sample.counts.len().max(3);
        let count = |row: usize| sample.counts.get(row).copied().unwrap_or(0.0);
        let event = sample.noise.last().copied().unwrap_or(0.0);
        let least = 1e-9 * sample.total;
        let noise = |row: usize| sample.noise.get(row).copied().unwrap_or(event).max(least);
        let beyond_noise = sample.beyond.1.max(event).max(least);
        let of = |&copies: &u64| {
            let column = column(copies, rows, sample.share);
            let unseen = (copies as f64 * (-sample.share).ln_1p()).exp();
            let seen: f64 = column.iter().sum();
            let beyond = (1.0 - unseen - seen).max(0.0);
            // Values by the mass of those that are not beyond.
            let mass: f64 = column.iter().zip(1..).map(|(part, times)| part * f64::from(times)).sum();
            let values = sample.share / mass.max(f64::MIN_POSITIVE);
            let scaled = (1..rows).map(|row| column[row] * values * sample.total / noise(row));
            let scaled = scaled.chain([beyond * values * sample.total / beyond_noise]).collect();
            (scaled, (1.0 - beyond) * values)
        };
        let mut target: Vec<f64> = (1..rows).map(|row| count(row) / noise(row)).collect();
        target.push(sample.beyond.0 / beyond_noise);
        let (columns, distinct) = mesh(rows, sample.share).iter().map(of).unzip();
        Profile { columns, target, distinct }
    }

    /// Least sum of squares, of all explanations or of those with a share of distinct values; and that share.
    fn least(&self, distinct: Option<f64>) -> Option<(f64, f64)> {
        let mut target = self.target.clone();
        target.push(EXACT);
        target.extend(distinct.map(|share| share * EXACT));
        let condition = |(column, share): (&Vec<f64>, &f64)| {
            let mut column = column.clone();
            column.push(EXACT);
            column.extend(distinct.map(|_| share * EXACT));
            column
        };
        let columns = self.columns.iter().zip(&self.distinct).map(condition).collect();
        let (x, sum) = Matrix { columns }.nonnegative(&target)?;
        let share: f64 = x.iter().zip(&self.distinct).map(|(x, share)| x * share).sum();
        Some((sum, share))
    }

    /// The share of distinct values between `inside` and `outside` whose explanation has the sum `most`; `outside` if even
    /// that has less. The sum is convex, and nearly a parabola around the best share, where it is `sum`.
    fn bound(&self, best: f64, sum: f64, outside: f64, most: f64) -> f64 {
        let least = |share| self.least(Some(share)).map_or(f64::INFINITY, |(sum, _)| sum);
        let (mut inside, mut outside) = ((best, sum), (outside, least(outside)));
        if outside.1 <= most {
            return outside.0;
        }
        for step in 0..STEPS {
            let part = ((most - sum) / (outside.1 - sum)).sqrt();
            let parabola = best + (outside.0 - best) * part;
            let between = (parabola - inside.0) * (parabola - outside.0) < 0.0;
            // Every third step halves, lest one end stays where it is.
            let next = if between && step % 3 < 2 { parabola } else { f64::midpoint(inside.0, outside.0) };
            let found = (next, least(next));
            if found.1 > most {
                outside = found;
                if found.1 - most <= CLOSE * (most - sum) {
                    break;
                }
            } else {
                inside = found;
            }
        }
        // What is known not to fit is the bound, so that rounding widens.
        outside.0
    }
}

/// The range within `deviations`.
pub fn range(sample: &Sample, deviations: f64) -> Result<Range, NoAnswer> {
    let profile = Profile::new(sample);
    let (sum, best) = profile.least(None).ok_or_else(|| sample.no_answer("least squares do not converge"))?;
    let most = sum + deviations * deviations;
    let [low, high] = [0.0, 1.0].map(|outside| profile.bound(best, sum, outside, most) * sample.total);
    Ok(Range { low, best: best * sample.total, high, distance: sum })
}
