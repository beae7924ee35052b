//! Prices of the thesis (sections 4.4.3 and 4.4.5.4): dot products, and one sum for what is written back.

use super::bill::{Bill, Cause};
use crate::predict::step::{Cached, Chain, Kind, Step};
use crate::trace::Op;
use crate::vector::{Family, Vector};

const KB: f64 = 1024.0;

/// Prices a chain.
pub fn price(vector: &Vector, bill: &mut Bill, fragment_bytes: f64, chain: &mut Chain) {
    for step in chain.iter_mut().filter(|step| !step.ignored) {
        let mut once = |step: &mut Step, cause, family: Family| {
            bill.add(vector, step, cause, vector.once(family, 1.0), 0.0, family.name());
        };
        match (step.kind, step.op) {
            (Kind::Lookup, _) => once(step, lookup_cause(step.cached), lookup(step)),
            (Kind::Create, _) => once(step, Cause::Creates, Family::CR),
            (Kind::Cut, _) if step.size == 0 => {}
            (Kind::Cut, _) => {
                let family = if step.held_whole { Family::TR } else { Family::TRC };
                let terms = vector.sized(family, step.size as f64 / KB);
                bill.add(vector, step, Cause::Removes, terms, 0.0, family.name());
            }
            (Kind::Call, _) if step.failed => {}
            (Kind::Call, Some(op)) => match op {
                Op::Read | Op::Getdents => read(vector, bill, fragment_bytes, step),
                Op::Write => {
                    once(step, Cause::Writes, Family::WRO);
                    bill.add(vector, step, Cause::Writes, vector.once(Family::WRC, step.done as f64 / KB), 0.0, "WRC");
                }
                Op::Open => once(step, Cause::Opens, Family::OPEN),
                Op::Close if !vector.has(Family::CLOSE) => {}
                Op::Close => once(step, Cause::Opens, Family::CLOSE),
                Op::Unlink => once(step, Cause::Removes, Family::RM),
                Op::Rmdir => once(step, Cause::Removes, Family::RMDIR),
                Op::Mkdir => once(step, Cause::Creates, Family::MKDIR),
                Op::Stat | Op::Access => once(step, Cause::Attributes, Family::STAT),
                Op::Chmod | Op::Chown | Op::Utimes => once(step, Cause::Attributes, Family::CHMOD),
                Op::Rename => once(step, Cause::Renames, Family::RENAME),
                Op::Truncate => {}
                other => *bill.unpriced.entry(other.name()).or_default() += 1,
            },
            (Kind::Call, None) => {}
        }
    }
}

/// Which result stands for a lookup.
fn lookup(step: &Step) -> Family {
    match (step.cached, step.sequential) {
        (Cached::Hit | Cached::Negative, true) => Family::LUS_BC,
        (Cached::Hit | Cached::Negative, false) => Family::LUR_BC,
        (Cached::Attributes, true) => Family::LUS_AC,
        (Cached::Attributes, false) => Family::LUR_AC,
        (_, true) => Family::LUS_NC,
        (_, false) => Family::LUR_NC,
    }
}

pub(super) fn lookup_cause(cached: Cached) -> Cause {
    match cached {
        Cached::Hit | Cached::Negative | Cached::Unknown => Cause::CachedLookups,
        _ => Cause::UncachedLookups,
    }
}

fn read(vector: &Vector, bill: &mut Bill, fragment_bytes: f64, step: &mut Step) {
    let missing = (step.misses as f64 * fragment_bytes / KB).min(step.done as f64 / KB);
    if step.misses > 0 {
        let (family, cause) = match step.sequential {
            true => (Family::RD, Cause::SequentialReads),
            false => (Family::RRD, Cause::RandomReads),
        };
        bill.add(vector, step, cause, vector.sized(family, missing), 0.0, family.name());
    } else {
        bill.add(vector, step, Cause::CachedReads, vector.once(Family::RDO, 1.0), 0.0, "RDO");
    }
    let rest = step.done as f64 / KB - missing;
    if rest > 0.0 {
        bill.add(vector, step, Cause::CachedReads, vector.once(Family::RDC, rest), 0.0, "RDC");
    }
}

/// How much slower a fixed job is beside a program that writes so many KB a second, by interpolation; 0.1 is 10 %.
pub fn slowdown(vector: &Vector, kb_per_second: f64) -> Option<f64> {
    let alone = vector.of(Family::WR).find(|(rate, _)| *rate == 0)?.1.mean;
    let mut points = vector.of(Family::WR).map(|(rate, value)| (rate as f64, value.mean / alone - 1.0));
    let mut last = points.next()?;
    for point in points {
        if kb_per_second < point.0 {
            return Some(last.1 + (kb_per_second - last.0).max(0.0) / (point.0 - last.0) * (point.1 - last.1));
        }
        last = point;
    }
    Some(last.1)
}

/// Equation 4: what calls wait in all for what is written back, in the unit of the times. `latency` is that of all calls,
/// `run` the time from the first to the last.
pub fn overhead(slowdown: f64, latency: f64, run: f64) -> f64 {
    let utilization = if run > 0.0 { (latency / run).min(1.0) } else { 1.0 };
    slowdown * latency * utilization
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector::Value;

    #[test]
    fn equations_1_and_2() {
        let mut vector = Vector::default();
        for (family, time) in [(Family::LUR_NC, 6.347), (Family::LUR_BC, 0.012), (Family::CR, 6.794)] {
            vector.set(family, 0, Value::exact(time));
        }
        let lookup = |cached| Step { kind: Kind::Lookup, op: Some(Op::Open), cached, ..Step::default() };
        let mut chain: Chain = [Cached::Hit, Cached::Hit, Cached::Hit, Cached::Miss, Cached::Miss].map(lookup).into();
        chain.push(Step { kind: Kind::Create, op: Some(Op::Open), ..Step::default() });
        let mut bill = Bill::new(0);
        price(&vector, &mut bill, 1024.0, &mut chain);
        assert_eq!(chain.iter().map(|step| step.predicted_ns).sum::<u64>(), 19_524_000);
        assert!((bill.total() - 19.524).abs() < 1e-9);
        let uses: Vec<f64> = bill.uses.values().map(|(uses, _)| *uses).collect();
        assert_eq!(uses, [3.0, 2.0, 1.0], "hits, misses, creations");
    }

    #[test]
    fn equation_4() {
        let mut vector = Vector::default();
        for (rate, seconds) in [(0, 10.0), (400, 11.0), (600, 11.78)] {
            vector.set(Family::WR, rate, Value::exact(seconds));
        }
        let slowdown = slowdown(&vector, 500.0).expect("measured");
        assert!((slowdown - 0.139).abs() < 1e-12, "{slowdown}");
        assert!((slowdown * 10.0 - 1.39).abs() < 1e-12);
        assert!((overhead(slowdown, 10.0, 25.0) - 0.556).abs() < 1e-12);
        assert!((overhead(slowdown, 10.0, 5.0) - 1.39).abs() < 1e-12, "utilization is at most one");
        assert!((super::slowdown(&vector, 9e9).expect("measured") - 0.178).abs() < 1e-12);
        assert_eq!(super::slowdown(&Vector::default(), 5.0), None);
    }
}
