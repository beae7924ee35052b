//! Five ways of scrubbing under errors as a field study has them (Schroeder, Damouras and Gill, FAST '10, section 5).
//!
//! Errors of a fortnight lie in bursts with gaps ([`crate::idr`]). When each came is not known, only in which fortnight, so
//! the study makes three assumptions about it ([`Times`]), and compares by the mean time to detection.
//!
//! Departs: the study's own times, those of detection in its traces, are not public. A pass goes on in its time whatever was
//! read ahead. Plain staggered reading sweeps a region at once where it hits; by its order alone it could gain nothing.

use super::errors::LatentError;
use super::policy::{Order, Policy, REGION};
use crate::idr::DriveModel;
use ashlar_models::Chance;

/// Hours of a fortnight.
const FORTNIGHT: f64 = 14.0 * 24.0;
/// Bytes of a sector.
const SECTOR: f64 = 512.0;
/// Bytes within which errors came at once, by the first method.
const NEAR: f64 = 50e6;
/// Bytes in an hour when reading is accelerated: 7000 sectors a second.
const FAST: f64 = 7000.0 * SECTOR * 3600.0;

/// What is assumed about when errors came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// Method 1: those within 50 MB of each other at once.
    Near,
    /// Method 2: all of a fortnight at once.
    Together,
    /// Method 3, the adversary's: each by itself.
    Apart,
}

/// A way of scrubbing. All read a disk once in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scrub {
    /// From the first byte to the last.
    Standard,
    /// The same; after an error the next 128 MB at once.
    Local,
    /// The same; after an error the rest of the disk at once.
    Accelerated,
    /// Staggered; where it hits, the region at the ordinary rate.
    Staggered,
    /// Staggered; where it hits, the region fast.
    AcceleratedStaggered,
}

/// Errors of a disk that has some in a fortnight, in the order of their places. They begin within `interval` hours.
pub fn errors(model: &DriveModel, capacity: f64, times: Times, interval: f64, chance: &mut Chance) -> Vec<LatentError> {
    let sectors = model.fortnight((capacity / SECTOR) as u64, chance);
    let begin = interval * chance.unit();
    let mut at = begin + FORTNIGHT * chance.unit();
    let mut before = 0.0;
    let error = |sector: u64| {
        let place = sector as f64 * SECTOR;
        let anew = match times {
            Times::Near => place - before > NEAR,
            Times::Together => false,
            Times::Apart => true,
        };
        if anew {
            at = begin + FORTNIGHT * chance.unit();
        }
        before = place;
        LatentError { at, place }
    };
    sectors.into_iter().map(error).collect()
}

/// Hours that errors wait to be found, all together. They are in the order of their places; `interval` are the hours of a pass.
pub fn waited(scrub: Scrub, order: Order, interval: f64, errors: &[LatentError]) -> f64 {
    let rate = order.capacity / interval;
    let staggered = matches!(scrub, Scrub::Staggered | Scrub::AcceleratedStaggered);
    let policy = if staggered { Policy::Staggered { rate } } else { Policy::Sequential { rate } };
    let read = |error: &LatentError| {
        let passes = error.at / interval;
        error.at + (order.part(&policy, error.place) - passes).rem_euclid(1.0) * interval
    };
    let reads: Vec<f64> = errors.iter().map(read).collect();
    let mut found = reads.clone();
    let mut by_time: Vec<usize> = (0..errors.len()).collect();
    by_time.sort_by(|one, other| reads[*one].total_cmp(&reads[*other]));
    for hit in by_time {
        // Found before by what was read ahead.
        if found[hit] < reads[hit] {
            continue;
        }
        let (now, place) = (reads[hit], errors[hit].place);
        let (from, to, speed) = match scrub {
            Scrub::Standard => continue,
            Scrub::Local => (place, place + REGION, FAST),
            Scrub::Accelerated => (place, order.capacity, FAST),
            Scrub::Staggered => ((place / REGION).floor() * REGION, (place / REGION).floor() * REGION + REGION, rate),
            Scrub::AcceleratedStaggered => {
                ((place / REGION).floor() * REGION, (place / REGION).floor() * REGION + REGION, FAST)
            }
        };
        let first = errors.partition_point(|error| error.place < from);
        for (error, found) in errors[first..].iter().zip(&mut found[first..]) {
            if error.place >= to {
                break;
            }
            let then = now + (error.place - from) / speed;
            if error.at <= now && then < *found {
                *found = then;
            }
        }
    }
    errors.iter().zip(&found).map(|(error, found)| found - error.at).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idr::DRIVE_MODELS;

    const CAPACITY: f64 = 500e9;
    /// Disks of each model.
    const DISKS: u32 = 400;

    /// By which part a way of scrubbing lowers the mean time to detection, by that of standard scrubbing, and the standard error
    /// of that: mean over models.
    fn gain(scrub: Scrub, times: Times, days: f64, segment: f64) -> (f64, f64) {
        let interval = days * 24.0;
        let order = Order { capacity: CAPACITY, segment };
        let (mut gain, mut variance) = (0.0, 0.0);
        let models = DRIVE_MODELS.len() as f64;
        for model in &DRIVE_MODELS {
            let mut chance = Chance::new(10);
            let (mut standard, mut less, mut squares) = (0.0, 0.0, 0.0);
            for _ in 0..DISKS {
                let errors = errors(model, CAPACITY, times, interval, &mut chance);
                // Of a disk the mean, so that the few with thousands of errors do not decide.
                let of = |scrub| waited(scrub, order, interval, &errors) / errors.len() as f64;
                let (one, other) = (of(Scrub::Standard), of(scrub));
                standard += one;
                less += one - other;
                squares += (one - other).powi(2);
            }
            let disks = f64::from(DISKS);
            gain += less / standard / models;
            variance += (squares / disks - (less / disks).powi(2)) * disks / (standard * models).powi(2);
        }
        (gain, variance.sqrt())
    }

    /// Check 6 of the digest: local reading gains nothing; staggered reading gains where errors came together, and hardly anything
    /// where each came by itself. (The study has 10 to 20 % by the times of its traces.)
    #[test]
    fn staggered_reading_gains_where_errors_came_together() {
        for days in [7.0, 14.0] {
            let of = |scrub, times| gain(scrub, times, days, 1e6);
            let (local, _) = of(Scrub::Local, Times::Together);
            assert!(local.abs() < 0.005, "local, {days} days: {local}");
            let together = of(Scrub::Staggered, Times::Together);
            let fast = of(Scrub::AcceleratedStaggered, Times::Together);
            let apart = of(Scrub::Staggered, Times::Apart);
            println!("{days} days: together {together:?}, fast {fast:?}, apart {apart:?}");
            assert!(together.0 > 3.0 * together.1 && together.0 < 0.2, "{days} days: {together:?}");
            assert!(fast.0 >= together.0, "{days} days: {fast:?} {together:?}");
            assert!(apart.0 - 3.0 * apart.1 < 0.05 && apart.0 > -3.0 * apart.1, "{days} days: {apart:?}");
            assert!(together.0 - apart.0 > -3.0 * together.1.hypot(apart.1), "{days} days: {together:?} {apart:?}");
        }
    }

    /// Check 7: the size of segments matters little up to a quarter of a region, and whole regions gain nothing.
    #[test]
    fn segments_may_be_large() {
        let [small, usual, quarter, whole] =
            [1e3, 1e6, 32e6, REGION].map(|segment| gain(Scrub::Staggered, Times::Together, 14.0, segment));
        println!("{small:?} {usual:?} {quarter:?} {whole:?}");
        assert!((small.0 - usual.0).abs() < 0.2 * usual.0, "{small:?} {usual:?}");
        assert!(quarter.0 > 0.5 * usual.0 - 3.0 * quarter.1, "{quarter:?} {usual:?}");
        assert!(whole.0.abs() < 3.0 * whole.1 + 0.005, "{whole:?}");
    }
}
