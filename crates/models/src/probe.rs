//! What the latency of writes says about a memory card (Boboila and Desnoyers, FAST '10, section 3.3).
//!
//! Works from outside, on a model or on a real device ([`Timed`]): writes one page after another, and looks for slow ones. The
//! stride must be at least an erase block, so that addresses a stride apart lie in different blocks of one zone.

use crate::io::{Refused, Request};
use crate::model::{Model, closed_loop};

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Findings {
    /// Writes of one page from one slow write to the next; 1 if each is slow.
    pub updates_per_log: u64,
    /// Blocks that take updates at once before all writes are slow.
    pub log_blocks: u64,
    /// Slow writes from one very slow one to the next, if there are such: static wear levelling.
    pub static_wear_every: Option<u64>,
}

/// Most log blocks that are looked for.
pub const LOG_BLOCKS_MAX: u64 = 16;
/// Slow writes that are looked at for static wear levelling.
const MERGES: usize = 1000;

/// What takes writes and says how long each took.
pub trait Timed {
    /// Why it could not write.
    type Error;
    /// Latencies of `count` writes of `page` bytes, one after another, at the addresses of `place`, nanoseconds.
    fn latencies(&mut self, count: u64, page: u64, place: &dyn Fn(u64) -> u64) -> Result<Vec<u64>, Self::Error>;
}

/// A model in virtual time.
struct Virtual<'a> {
    model: &'a mut dyn Model,
    now_ns: u64,
}

impl Timed for Virtual<'_> {
    type Error = Refused;
    fn latencies(&mut self, count: u64, page: u64, place: &dyn Fn(u64) -> u64) -> Result<Vec<u64>, Refused> {
        let mut written = 0..count;
        let mut latencies = Vec::with_capacity(count as usize);
        let next = || written.next().map(|i| Request::write(place(i), page));
        self.now_ns = closed_loop(self.model, self.now_ns, 1, next, |done| latencies.push(done.response_ns()))?.end_ns;
        Ok(latencies)
    }
}

/// The distance of neighbouring positions at which `holds`, if at least half of them have the same: chance has no period.
fn period(values: &[u64], holds: impl Fn(u64) -> bool) -> Option<u64> {
    let positions: Vec<usize> = (0..values.len()).filter(|&index| holds(values[index])).collect();
    let mut distances: Vec<usize> = positions.windows(2).map(|pair| pair[1] - pair[0]).collect();
    distances.sort_unstable();
    let median = *distances.get(distances.len() / 2)?;
    let same = distances.iter().filter(|distance| **distance == median).count();
    (2 * same >= distances.len()).then_some(median as u64)
}

/// Writes patterns to a model, and says what it found. It takes some 100,000 page writes.
pub fn probe(model: &mut dyn Model, page: u64, stride: u64) -> Result<Findings, Refused> {
    probe_device(&mut Virtual { model, now_ns: 0 }, page, stride, u64::MAX)
}

/// The same with any device. After about `writes_max` page writes the search for static wear levelling ends. Of addresses, the
/// first [`LOG_BLOCKS_MAX`] strides are written.
pub fn probe_device<T: Timed>(device: &mut T, page: u64, stride: u64, writes_max: u64) -> Result<Findings, T::Error> {
    // One address: the period of slow writes.
    let constant = device.latencies(2000, page, &|_| 0)?;
    let mut written = 2000;
    let mut sorted = constant.clone();
    sorted.sort_unstable();
    // Most writes are fast; the very fastest may be chance.
    let fast_ns = sorted[sorted.len() / 4];
    let slow = |latency_ns: u64| latency_ns > 3 * fast_ns;
    let updates_per_log = period(&constant, slow).unwrap_or(1);
    // Addresses in turn: the least number of blocks for which every write is slow. Each number of blocks begins with
    // writes that are not looked at, until the logs of the one before are gone.
    let mut log_blocks = 0;
    for blocks in (1..=LOG_BLOCKS_MAX).take_while(|_| updates_per_log > 1) {
        let turns = device.latencies(40 * blocks, page, &|i| (i % blocks) * stride)?;
        written += 40 * blocks;
        if turns[20 * blocks as usize..].iter().all(|&latency_ns| slow(latency_ns)) {
            break;
        }
        log_blocks = blocks;
    }
    // One address for long: slow writes that are slower than others.
    let mut merges = Vec::with_capacity(MERGES);
    while merges.len() < MERGES && written < writes_max {
        let count = (1000 * updates_per_log).min(writes_max - written).max(1);
        let some = device.latencies(count, page, &|_| 0)?;
        written += count;
        merges.extend(some.into_iter().filter(|&latency_ns| updates_per_log == 1 || slow(latency_ns)));
    }
    let mut sorted = merges.clone();
    sorted.sort_unstable();
    let median_ns = sorted.get(sorted.len() / 2).copied().unwrap_or(u64::MAX / 8);
    let static_wear_every = period(&merges, |latency_ns| latency_ns * 5 > median_ns * 6);
    Ok(Findings { updates_per_log, log_blocks, static_wear_every })
}
