//! When and where latent errors come, by age and by use (section 3 of the paper).
//!
//! Departs: the paper takes its distributions of distance and time from plots of another paper. Here they are piecewise,
//! through the points that both texts give: half of the errors of a cluster within 10 MB of its first, 80 % within 128 MB;
//! 80 % within an hour of the one before. Beyond these, a gigabyte and 300 hours are our limits.

use ashlar_models::Chance;

/// Hours of a month here.
pub const MONTH: f64 = 720.0;
/// Most errors that follow the first of a cluster.
const FOLLOWING_MAX: f64 = 100.0;
/// Farthest that errors of a cluster lie from the first, bytes.
const FAR: f64 = 1e9;
/// Longest time between errors of a cluster, hours: so that most come in the first month.
const LATE: f64 = 300.0;

/// An error: when it comes, in hours, and where, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentError {
    /// Hour.
    pub at: f64,
    /// Byte.
    pub place: f64,
}

/// How reliable a class of drives is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriveClass {
    /// Errors for each byte of use; 1/this is the mean use between clusters.
    pub error_rate: f64,
    /// How many bytes read wear as much as one written.
    pub read_weight: f64,
    /// Part of the drives with a cluster by age in 24 months.
    pub aged: f64,
}

impl DriveClass {
    /// Bytes of use until the next cluster.
    pub fn next_use(&self, chance: &mut Chance) -> f64 {
        ((1.0 + 0.2 * chance.normal()) / self.error_rate).max(0.0)
    }

    /// Hour of the cluster by age, if there is one in the first 24 months; the first two months have half of the rate.
    pub fn aged_at(&self, chance: &mut Chance) -> Option<f64> {
        if chance.unit() >= self.aged {
            return None;
        }
        // Weights 1/2, 1/2, 1, 1, … of 24 months.
        let place = chance.unit() * 23.0;
        let month = if place < 1.0 { place * 2.0 } else { place + 1.0 };
        Some(month * MONTH)
    }
}

/// The part of clusters with at least `count` errors after the first.
pub fn following_at_least(count: f64) -> f64 {
    1.04 * count.powf(-0.185) - 0.42
}

/// Errors after the first of a cluster.
pub fn following(chance: &mut Chance) -> u32 {
    let place = chance.unit();
    if place > 0.62 {
        return 0;
    }
    ((place + 0.42) / 1.04).powf(-1.0 / 0.185).min(FOLLOWING_MAX) as u32
}

/// A cluster that begins at an hour.
pub fn cluster(at: f64, capacity: f64, chance: &mut Chance) -> Vec<LatentError> {
    let first = LatentError { at, place: chance.unit() * capacity };
    let mut errors = vec![first];
    let mut now = at;
    for _ in 0..following(chance) {
        let late = chance.unit() >= 0.8;
        now += if late { LATE.powf(chance.unit()) } else { chance.unit() };
        let far = chance.unit();
        let part = chance.unit();
        let distance = match () {
            () if far < 0.5 => 1e7 * part,
            () if far < 0.8 => 1e7 + (128e6 - 1e7) * part,
            () => 128e6 * (FAR / 128e6).powf(part),
        };
        let side = if chance.unit() < 0.5 { -1.0 } else { 1.0 };
        errors.push(LatentError { at: now, place: (first.place + side * distance).clamp(0.0, capacity - 1.0) });
    }
    errors
}
