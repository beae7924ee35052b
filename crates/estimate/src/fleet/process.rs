//! How uncorrectable errors come to the drives of a model.
//!
//! A part of the drives is prone to them, the others never have any (a frailty of two values). A prone drive has a month with
//! errors by a hazard that grows linearly with its cycles (section 5.3 of the paper), and after a month with errors also by
//! chance of its own (section 5.6). Neither what is read nor how many bits flip matters (sections 5.1 and 5.2).
//!
//! Departs: the paper publishes no such process. Its numbers were fitted here: drives and days with errors of Table 2, a
//! month after a month with errors in 30 %, and 2 % of all months. Where Table 2 wants more months than that even if all
//! drives are prone alike (MLC-B, SLC-A, SLC-D and both eMLC), there are more.

use super::wear;
use crate::solve::root;
use crate::ssd::SsdModel;
use ashlar_models::{Chance, normal_quantile};

/// Mean days of a month.
pub const DAYS: f64 = 365.0 / 12.0;
/// Part of the months after one with errors that have errors (Figure 7).
const NEXT: f64 = 0.30;
/// Part of all months with errors (Figure 7).
const MONTHS: f64 = 0.02;
/// Logarithmic deviation of how fast drives of a model wear. The paper gives the mean only; so some per cent of the drives
/// come beyond three times the mean, as where the paper's plots end.
const SPEEDS: f64 = 0.8;
/// Speeds that expectations are summed over.
const NODES: u32 = 16;

/// How uncorrectable errors come to the drives of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Process {
    /// Part of the drives that can have any.
    pub prone: f64,
    /// How often a prone drive's errors begin in a month, at mean wear.
    pub onset: f64,
    /// Probability that a month with errors makes the next one have some too.
    pub again: f64,
    /// Mean days with errors in a month that has any.
    pub days: f64,
    /// Months of the study: in these, drives come to their mean wear.
    pub study: usize,
}

/// What is expected of drives that are prone.
#[derive(Clone, Copy, Debug)]
struct Expected {
    /// Part that has any error.
    any: f64,
    /// Part of the months with errors.
    months: f64,
    /// Of a month after such a one, the probability that errors begin in it.
    begins: f64,
}

impl Process {
    /// The process that has the field study's numbers of a model.
    pub fn of(model: &SsdModel) -> Process {
        let study = months(model.years);
        let with = |onset: f64| {
            let again = again(onset, study);
            (again, expected(onset, again, study, study))
        };
        let any = |onset: f64| expected(onset, 0.0, study, study).any;
        // All drives prone alike, or fewer and more often, so that few enough months have errors.
        let least = root(model.ue_drives, 0.02, |onset| (any(onset), f64::NAN));
        let share = |onset: f64| {
            let expected = with(onset).1;
            model.ue_drives / expected.any * expected.months
        };
        let onset = if share(least) >= MONTHS { least } else { root(MONTHS, least, |onset| (share(onset), f64::NAN)) };
        let (again, expected) = with(onset);
        let prone = (model.ue_drives / expected.any).min(1.0);
        let days = (model.ue_days * DAYS / (prone * expected.months)).max(1.0);
        Process { prone, onset, again, days, study }
    }

    /// Part of the drives that have any error in their first months.
    pub fn drives(&self, months: usize) -> f64 {
        self.prone * expected(self.onset, self.again, months, self.study).any
    }

    /// The probability that a prone drive at mean wear has had an error in the last `hours`.
    pub fn recent(&self, hours: f64) -> f64 {
        let onset = -(-self.onset).exp_m1();
        let next = |with: f64, without: f64| with * (self.again + (1.0 - self.again) * onset) + without * onset;
        // Without errors in the window, by whether its last month has errors outside of it.
        let mut with = onset / (1.0 - (1.0 - onset) * self.again);
        let mut without = 1.0 - with;
        let mut left = hours / (24.0 * DAYS);
        loop {
            with *= self.missed(left.min(1.0));
            left -= 1.0;
            if left <= 0.0 {
                return 1.0 - with - without;
            }
            let then = next(with, without);
            (with, without) = (then, with + without - then);
        }
    }

    /// The probability that all days with errors of a month with any lie outside of a part of it.
    fn missed(&self, part: f64) -> f64 {
        // The mean of (1 - part)^k, where k is geometric from 1 with mean `days`.
        let outside = 1.0 - part;
        outside / (self.days - (self.days - 1.0) * outside)
    }

    /// Days with errors of each month of one drive, which wears `speed` times as fast as the mean.
    pub fn draw(&self, speed: f64, months: usize, chance: &mut Chance) -> Vec<u8> {
        let prone = chance.unit() < self.prone;
        let mut before = false;
        let month = |month: usize| {
            let onset = -(-self.onset * wear(speed * part(month, self.study))).exp_m1();
            let happens = if before { self.again + (1.0 - self.again) * onset } else { onset };
            before = prone && chance.unit() < happens;
            if before { geometric(self.days, chance).min(DAYS) as u8 } else { 0 }
        };
        (0..months).map(month).collect()
    }
}

/// Months of a time.
pub fn months(years: f64) -> usize {
    (years * 12.0).round().max(1.0) as usize
}

/// The middle of a month, as a part of the study.
pub fn part(month: usize, study: usize) -> f64 {
    (month as f64 + 0.5) / study as f64
}

/// How fast a drive wears, of mean 1, by a standard normal number.
pub fn speed(normal: f64) -> f64 {
    (SPEEDS * normal - SPEEDS * SPEEDS / 2.0).exp()
}

/// A whole number from 1 on, geometrically distributed.
pub fn geometric(mean: f64, chance: &mut Chance) -> f64 {
    if mean <= 1.0 { 1.0 } else { 1.0 + ((1.0 - chance.unit()).ln() / (1.0 - 1.0 / mean).ln()).floor() }
}

/// The `again` with which a month after one with errors has some as often as in the field.
fn again(onset: f64, study: usize) -> f64 {
    let mut again = 0.0;
    // What begins in such months hardly depends on `again`, so a few steps suffice.
    for _ in 0..10 {
        let begins = expected(onset, again, study, study).begins;
        again = ((NEXT - begins) / (1.0 - begins)).max(0.0);
    }
    again
}

/// What is expected of prone drives, over all speeds of wear.
fn expected(onset: f64, again: f64, months: usize, study: usize) -> Expected {
    let (mut none, mut with, mut pairs, mut firsts) = (0.0, 0.0, 0.0, 0.0);
    for node in 0..NODES {
        let speed = speed(normal_quantile((f64::from(node) + 0.5) / f64::from(NODES)));
        let (mut left, mut before) = (1.0, 0.0);
        for month in 0..months {
            let begins = -(-onset * wear(speed * part(month, study))).exp_m1();
            let follows = again + (1.0 - again) * begins;
            left *= 1.0 - begins;
            (pairs, firsts) = (pairs + before * begins, firsts + before);
            before = before * follows + (1.0 - before) * begins;
            with += before;
        }
        none += left;
    }
    let nodes = f64::from(NODES);
    let begins = if firsts > 0.0 { pairs / firsts } else { 0.0 };
    Expected { any: 1.0 - none / nodes, months: with / nodes / months as f64, begins }
}
