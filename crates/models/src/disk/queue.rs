//! The order of service.

use super::spec::{Parameters, Scheduler};
use crate::io::{Id, Kind, Request};
use std::ops::RangeInclusive;

/// A request that waits for the mechanism.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub id: Id,
    pub submitted_ns: u64,
    pub ready_ns: u64,
    pub request: Request,
    pub sector: u64,
    pub cylinder: u32,
    pub surface: u32,
    /// Angle of the first sector.
    pub angle_ns: u64,
}

/// Where the arm is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arm {
    pub cylinder: u32,
    pub surface: u32,
    /// The sector that follows on what was read or written last.
    pub next_sector: u64,
}

impl Arm {
    /// Time to get ready at a request. None is needed for the sectors that follow on the last, on the same cylinder.
    pub fn seek_ns(&self, held: &Held, is: &Parameters) -> u64 {
        if held.sector == self.next_sector && held.cylinder == self.cylinder {
            return 0;
        }
        if let Some(stay_ns) = is.same_track_ns
            && (held.cylinder, held.surface) == (self.cylinder, self.surface)
        {
            return stay_ns;
        }
        let curve = if held.request.kind == Kind::Write { &is.write_seek } else { &is.read_seek };
        curve.time_ns(held.cylinder.abs_diff(self.cylinder))
    }
}

/// Index of the request to serve next; there is at least one. Reads inside `ahead` need no positioning.
pub(super) fn choose(
    held: &[Held],
    arm: &Arm,
    now_ns: u64,
    is: &Parameters,
    age_weight: f64,
    ahead: Option<RangeInclusive<u64>>,
) -> usize {
    let best = match is.scheduler {
        Scheduler::Fifo => least(held, |held| held.id),
        Scheduler::Elevator => {
            let from = if arm.next_sector == u64::MAX { 0 } else { arm.next_sector };
            least(held, |held| (held.sector < from, held.sector, held.id))
        }
        Scheduler::Sptf => shortest(held, arm, now_ns, is, age_weight, ahead),
    };
    best.unwrap_or(0)
}

fn least<K: Ord>(held: &[Held], key: impl Fn(&Held) -> K) -> Option<usize> {
    held.iter().enumerate().min_by_key(|(_, held)| key(held)).map(|(index, _)| index)
}

/// The request with the least positioning time, less `age_weight` times its age (aged SPTF; Jacobson and Wilkes 1991).
fn shortest(
    held: &[Held],
    arm: &Arm,
    now_ns: u64,
    is: &Parameters,
    age_weight: f64,
    ahead: Option<RangeInclusive<u64>>,
) -> Option<usize> {
    let credit = |held: &Held| (now_ns.saturating_sub(held.submitted_ns) as f64 * age_weight) as i64;
    let credit_max = if age_weight > 0.0 { held.iter().map(credit).max().unwrap_or(0) } else { 0 };
    let mut best: Option<(i64, Id, usize)> = None;
    // Seeks of this many cylinders and more cannot win, whatever the rotation.
    let mut too_far = u32::MAX;
    for (index, held) in held.iter().enumerate() {
        let streams = held.request.kind == Kind::Read && ahead.as_ref().is_some_and(|run| run.contains(&held.sector));
        let distance = held.cylinder.abs_diff(arm.cylinder);
        if !streams && distance >= too_far {
            continue;
        }
        let seek_ns = if streams { 0 } else { arm.seek_ns(held, is) };
        if let Some((least, ..)) = best
            && distance > 0
            && seek_ns as i64 - credit_max > least
        {
            too_far = distance;
            continue;
        }
        let wait_ns = if streams { 0 } else { is.geometry.wait_ns(held.angle_ns, now_ns + seek_ns) };
        let credit = if age_weight > 0.0 { credit(held) } else { 0 };
        let cost = ((seek_ns + wait_ns) as i64 - credit, held.id, index);
        if best.is_none_or(|best| cost < best) {
            best = Some(cost);
        }
    }
    best.map(|(_, _, index)| index)
}
