//! How many distinct values there are, from a sample (Harnik, Khaitzin, Sotnikov, FAST '16; Valiant and Valiant, 2013).
//!
//! Given is how many values occurred once, twice, … in the sample (its *duplication frequency histogram*). Linear programs
//! find the histograms of the whole that explain it well, and of those the ones with the fewest and with the most distinct
//! values. The answer is that range; every value in it is equally credible.
//!
//! All amounts may be weighted: bytes of chunks instead of chunks (so that chunks may differ in length), or bytes after
//! compression (section 3.3 of the paper), as long as the total has the same weights.
//!
//! Departs: the paper's slack, `Opt + α √Opt`, comes from how well the best explanation fits, and vanishes when the
//! sample has few classes and fits exactly, so that the range shrinks to a point beside the truth. [`Slack::Noise`]
//! instead takes the standard deviation of each number of the histogram, which the caller measured, and asks how far the
//! number of distinct values can be moved before the fit becomes implausible ([`profile`]). The linear programs of the paper
//! remain for comparison ([`Slack::Paper`]).

pub mod base;
pub mod histogram;
pub mod nnls;
pub mod profile;
#[cfg(test)]
mod proofs;
pub mod sketch;
#[cfg(test)]
pub mod synthetic;

use histogram::{column, mesh};
use microlp::{ComparisonOp, OptimizationDirection, Problem, Solution, Variable};

/// What a sample showed.
#[derive(Clone, Debug)]
pub struct Sample {
    /// At index `i - 1` the weight of the values that occurred `i` times.
    pub counts: Vec<f64>,
    /// Standard deviations of these, where they are known.
    pub noise: Vec<f64>,
    /// Values that occurred more often than there are counts: their weight, and its standard deviation. They are known, and no part
    /// of the answer.
    pub beyond: (f64, f64),
    /// Probability of each occurrence to be in the sample.
    pub share: f64,
    /// Weight of all occurrences of the others, by the share.
    pub total: f64,
}

/// Which explanations are good enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Slack {
    /// As in the paper: `Δ ≤ Opt + α √Opt`.
    Paper(f64),
    /// As near as samples are that miss by at most so many standard deviations; two are 95 of 100 samples.
    Noise(f64),
}

/// Distinct values, in the unit of the sample's total.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// At least.
    pub low: f64,
    /// Of the best explanation.
    pub best: f64,
    /// At most.
    pub high: f64,
    /// The distance of the best explanation: of absolute values with the paper's slack, else of squares.
    pub distance: f64,
}

/// There is no range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("the program for a sample of {share} has no answer: {what}")]
pub struct NoAnswer {
    share: f64,
    what: String,
}

/// Entries of a column that are smaller than this share of its largest are left out: the solver wants coefficients within
/// six orders of magnitude.
const SMALLEST: f64 = 1e-6;

struct Program<'a> {
    sample: &'a Sample,
    /// What each row is divided by.
    scale: Vec<f64>,
    mesh: Vec<u64>,
    columns: Vec<Vec<f64>>,
}

impl Sample {
    fn no_answer(&self, what: impl Into<String>) -> NoAnswer {
        NoAnswer { share: self.share, what: what.into() }
    }
}

/// What a program is to find.
#[derive(Clone, Copy, PartialEq)]
enum Goal {
    Nearest,
    Fewest(f64),
    Most(f64),
}

impl Program<'_> {
    fn new(sample: &Sample) -> Program<'_> {
        let rows = sample.counts.len();
        let mesh = mesh(rows, sample.share);
        let columns = mesh.iter().map(|&copies| column(copies, rows, sample.share)).collect();
        let scale = sample.counts.iter().map(|count| (count + 1.0).sqrt()).collect();
        Program { sample, scale, mesh, columns }
    }

    /// Variables are the shares of the mass that have each number of copies, and two slacks per row.
    fn solve(&self, goal: Goal) -> Result<(Solution, f64), NoAnswer> {
        let direction =
            if let Goal::Most(_) = goal { OptimizationDirection::Maximize } else { OptimizationDirection::Minimize };
        let mut problem = Problem::new(direction);
        let nearest = goal == Goal::Nearest;
        let shares: Vec<Variable> = (self.mesh.iter())
            .map(|&copies| problem.add_var(if nearest { 0.0 } else { 1.0 / copies as f64 }, (0.0, 1.0)))
            .collect();
        let cost = if nearest { 1.0 } else { 0.0 };
        let mut slacks = Vec::new();
        for (row, count) in self.sample.counts.iter().enumerate() {
            let scale = self.scale[row];
            let over = problem.add_var(cost, (0.0, f64::INFINITY));
            let under = problem.add_var(cost, (0.0, f64::INFINITY));
            slacks.extend([over, under]);
            let mut terms = vec![(over, 1.0), (under, -1.0)];
            for ((share, &copies), column) in shares.iter().zip(&self.mesh).zip(&self.columns) {
                if column[row] > SMALLEST {
                    terms.push((*share, column[row] * self.sample.total / copies as f64 / scale));
                }
            }
            let least = terms.iter().map(|term| term.1.abs()).fold(0.0, f64::max) * SMALLEST;
            terms.retain(|term| term.1.abs() >= least);
            problem.add_constraint(&*terms, ComparisonOp::Eq, count / scale);
        }
        let all: Vec<_> = shares.iter().map(|share| (*share, 1.0)).collect();
        problem.add_constraint(&*all, ComparisonOp::Eq, 1.0);
        if let Goal::Fewest(distance) | Goal::Most(distance) = goal {
            let all: Vec<_> = slacks.iter().map(|slack| (*slack, 1.0)).collect();
            problem.add_constraint(&*all, ComparisonOp::Le, distance);
        }
        let fail = |what: String| self.sample.no_answer(what);
        let outcome = problem.solve().map_err(|error| fail(error.to_string()))?;
        let solution = outcome.into_solution().map_err(|_| fail("it was interrupted".into()))?;
        let distinct = shares
            .iter()
            .zip(&self.mesh)
            .map(|(share, &copies)| solution.var_value(*share) / copies as f64)
            .sum::<f64>();
        Ok((solution, distinct * self.sample.total))
    }
}

/// The range of the number of distinct values.
pub fn range(sample: &Sample, slack: Slack) -> Result<Range, NoAnswer> {
    if sample.total <= 0.0 || sample.counts.iter().all(|count| *count == 0.0) {
        return Ok(Range { low: 0.0, best: 0.0, high: sample.total.max(0.0), distance: 0.0 });
    }
    if sample.share >= 1.0 {
        let distinct = sample.counts.iter().sum();
        return Ok(Range { low: distinct, best: distinct, high: distinct, distance: 0.0 });
    }
    let alpha = match slack {
        Slack::Noise(deviations) => return profile::range(sample, deviations),
        Slack::Paper(alpha) => alpha,
    };
    let program = Program::new(sample);
    let (nearest, best) = program.solve(Goal::Nearest)?;
    let distance = nearest.objective().max(0.0);
    let bound = distance + alpha * distance.sqrt();
    // Room for what the solver calls equal.
    let bound = bound * (1.0 + 1e-9) + 1e-6;
    let (_, low) = program.solve(Goal::Fewest(bound))?;
    let (_, high) = program.solve(Goal::Most(bound))?;
    Ok(Range { low: low.min(best), best, high: high.max(best), distance })
}
