//! What the latency of writes says about a memory card (Boboila and Desnoyers, FAST '10, section 3.3).
//!
//! Works from outside, on a model or on a real device ([`Timed`]): writes one page after another, and looks for slow ones. The
//! stride must be at least an erase block, so that addresses a stride apart lie in different blocks of one zone.

use crate::io::{Refused, Request};
use crate::model::{Model, closed_loop};
use std::cmp::Reverse;
use std::collections::BTreeMap;

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
/// Slow writes that are looked at for static wear levelling. After what was written before, some moves are left out at first.
const MERGES: usize = 1500;

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

/// Latencies with no others between them, of which the longer is so many times the shorter, may belong to two classes.
const GAP: f64 = 1.1;
/// Pairs of slow writes at the same distance that are no chance.
const PAIRS_MIN: usize = 3;

/// Writes that come at one distance and are slower than all others, but for a few.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Slow {
    /// From one to the next.
    every: u64,
    /// They take longer than this.
    above_ns: u64,
}

impl Slow {
    /// Looks for them among those that take longer than `least_ns`, where others take `usual_ns`. Every gap between latencies is
    /// tried; the best one leaves the fewest slow writes outside of their distance, and the least slowness below. Slowness is
    /// taken by its logarithm, or a pause of the machine would weigh more than all the rest.
    fn find(latencies: &[u64], usual_ns: u64, least_ns: u64) -> Option<Slow> {
        let mut sorted: Vec<u64> = latencies.iter().copied().filter(|&latency_ns| latency_ns > least_ns).collect();
        sorted.sort_unstable();
        let gaps = sorted.windows(2).filter(|pair| pair[1] as f64 > GAP * pair[0] as f64);
        let borders = std::iter::once(least_ns).chain(gaps.map(|pair| pair[0] + (pair[1] - pair[0]) / 2));
        let slowness = |latency_ns: u64| (latency_ns as f64 / usual_ns.max(1) as f64).ln();
        let all: f64 = sorted.iter().map(|&latency_ns| slowness(latency_ns)).sum();
        let mut best: Option<(f64, Slow)> = None;
        for above_ns in borders {
            let is_slow = |at: usize| latencies.get(at).is_some_and(|&latency_ns| latency_ns > above_ns);
            let slow: Vec<usize> = (0..latencies.len()).filter(|&at| is_slow(at)).collect();
            let Some(every) = most_frequent(slow.windows(2).map(|pair| pair[1] - pair[0])) else { continue };
            let pairs = slow.iter().filter(|&&at| is_slow(at + every)).count();
            let explained: Vec<usize> = slow.iter().copied().filter(|&at| has_other(at, every, is_slow)).collect();
            // A period goes through all writes, and most slow ones are its own. Two distances may take turns, as where a log takes
            // 27 and a half.
            let through = 2 * explained.len() * every >= latencies.len();
            if every < 2 || pairs < PAIRS_MIN || !through || 2 * explained.len() < slow.len() {
                continue;
            }
            let own = explained.len() as f64 / slow.len() as f64;
            let share = explained.iter().map(|&at| slowness(latencies[at])).sum::<f64>() / all;
            if best.is_none_or(|(score, _)| own * share > score) {
                best = Some((own * share, Slow { every: every as u64, above_ns }));
            }
        }
        best.map(|(_, slow)| slow)
    }
}

/// Whether there is another slow write at a distance from one.
fn has_other(at: usize, every: usize, is_slow: impl Fn(usize) -> bool) -> bool {
    is_slow(at + every) || at >= every && is_slow(at - every)
}

/// The value that is there most often, and the least of such.
fn most_frequent(values: impl Iterator<Item = usize>) -> Option<usize> {
    let mut counts = BTreeMap::<usize, usize>::new();
    values.for_each(|value| *counts.entry(value).or_default() += 1);
    counts.into_iter().max_by_key(|&(value, count)| (count, Reverse(value))).map(|(value, _)| value)
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
    let period = Slow::find(&constant, fast_ns, 3 * fast_ns);
    let updates_per_log = period.map_or(1, |slow| slow.every);
    let slow = |latency_ns: u64| period.is_some_and(|slow| latency_ns > slow.above_ns);
    // Addresses in turn: the least number of blocks for which every write is slow. Each number of blocks begins with
    // writes that are not looked at, until the logs of the one before are gone.
    let mut log_blocks = 0;
    for blocks in (1..=LOG_BLOCKS_MAX).take_while(|_| updates_per_log > 1) {
        let turns = device.latencies(40 * blocks, page, &|i| (i % blocks) * stride)?;
        written += 40 * blocks;
        let looked_at = &turns[20 * blocks as usize..];
        // All but a few, which may have been late for another reason, and counted as none.
        if 10 * looked_at.iter().filter(|&&latency_ns| slow(latency_ns)).count() >= 9 * looked_at.len() {
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
        // What is slow by chance stands mostly outside of the period.
        let is_slow = |at: usize| some.get(at).is_some_and(|&latency_ns| slow(latency_ns));
        let is_merge = |at: usize| is_slow(at) && has_other(at, updates_per_log as usize, is_slow);
        let merged = (0..some.len()).filter(|&at| period.is_none() || is_merge(at));
        merges.extend(merged.map(|at| some[at]));
    }
    let mut sorted = merges.clone();
    sorted.sort_unstable();
    let median_ns = sorted.get(sorted.len() / 2).copied().unwrap_or(u64::MAX / 8);
    // What is as slow as a merge to other writes is one, if only the long run shows it.
    let found = Slow::find(&merges, median_ns, median_ns / 5 * 6);
    let static_wear_every = found.filter(|slow| slow.above_ns < 3 * median_ns).map(|slow| slow.every);
    Ok(Findings { updates_per_log, log_blocks, static_wear_every })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::Chance;
    use crate::spec::ModelFile;

    const STRIDE: u64 = 4 << 20;
    const FAST_NS: u64 = 750_000;
    const SLOW_NS: u64 = 24_000_000;

    /// Latencies as of a busy machine: all a little longer or shorter, one in a hundred 2 to 3 ms late, and one in a thousand
    /// late by as much as the slow ones or more.
    fn disturbed(latency_ns: u64, chance: &mut Chance) -> u64 {
        let late_ns = match chance.below(1000) {
            0 => 20_000_000 + chance.below(200_000_000),
            1..=10 => 2_000_000 + chance.below(1_000_000),
            _ => 0,
        };
        (latency_ns as f64 * (0.97 + 0.06 * chance.unit())) as u64 + late_ns
    }

    struct Disturbed<T> {
        device: T,
        chance: Chance,
    }

    impl<T: Timed> Timed for Disturbed<T> {
        type Error = T::Error;
        fn latencies(&mut self, count: u64, page: u64, place: &dyn Fn(u64) -> u64) -> Result<Vec<u64>, T::Error> {
            let latencies = self.device.latencies(count, page, place)?;
            Ok(latencies.into_iter().map(|latency_ns| disturbed(latency_ns, &mut self.chance)).collect())
        }
    }

    /// Every so many writes are slow; none, if it is zero.
    struct Regular {
        every: u64,
        written: u64,
    }

    impl Timed for Regular {
        type Error = Refused;
        fn latencies(&mut self, count: u64, _: u64, _: &dyn Fn(u64) -> u64) -> Result<Vec<u64>, Refused> {
            let from = self.written;
            self.written += count;
            let is_slow = |number: u64| self.every > 0 && number.is_multiple_of(self.every);
            Ok((from..from + count).map(|number| if is_slow(number) { SLOW_NS } else { FAST_NS }).collect())
        }
    }

    #[test]
    fn strays_hide_no_period() {
        for seed in 1..=40 {
            let mut chance = Chance::new(seed);
            let period = Regular { every: 63, written: 1 }.latencies(2000, 4096, &|_| 0).expect("it writes");
            let latencies: Vec<u64> = period.iter().map(|&latency_ns| disturbed(latency_ns, &mut chance)).collect();
            let slow = Slow::find(&latencies, FAST_NS, 3 * FAST_NS).unwrap_or_else(|| panic!("seed {seed}"));
            assert_eq!(slow.every, 63, "seed {seed}");
            assert!((4_000_000..SLOW_NS).contains(&slow.above_ns), "seed {seed}: {slow:?}");
        }
    }

    /// Logs of 55 pages in writes of two, where one write in ten has to wait.
    #[test]
    fn distances_that_take_turns_are_a_period() {
        for seed in 1..=40 {
            let mut chance = Chance::new(seed);
            let latencies: Vec<u64> = (1..=2000u64)
                .map(|number| {
                    let full = number * 2 / 55 > (number - 1) * 2 / 55;
                    let late_ns = if chance.below(10) == 0 { 3_000_000 + chance.below(7_000_000) } else { 0 };
                    disturbed(if full { SLOW_NS } else { 2 * FAST_NS }, &mut chance) + late_ns
                })
                .collect();
            let slow = Slow::find(&latencies, 2 * FAST_NS, 6 * FAST_NS).unwrap_or_else(|| panic!("seed {seed}"));
            assert!([27, 28].contains(&slow.every), "seed {seed}: {slow:?}");
        }
    }

    #[test]
    fn strays_are_no_period() {
        for seed in 1..=40 {
            let device = Regular { every: 0, written: 1 };
            let mut disturbed = Disturbed { device, chance: Chance::new(seed) };
            let found = probe_device(&mut disturbed, 4096, STRIDE, 200_000).expect("it writes");
            assert_eq!(found, Findings { updates_per_log: 1, log_blocks: 0, static_wear_every: None }, "seed {seed}");
        }
    }

    /// As many slow writes as a period has, by chance; with more of them, some lie at equal distances.
    #[test]
    fn chance_is_no_period() {
        for (seed, one_in) in (1..=200).flat_map(|seed| [300, 63, 20, 5, 3].map(|one_in| (seed, one_in))) {
            let mut chance = Chance::new(seed);
            let latency = |_| if chance.below(one_in) == 0 { SLOW_NS } else { FAST_NS };
            let latencies: Vec<u64> = (0..2000).map(latency).collect();
            let found = Slow::find(&latencies, FAST_NS, 3 * FAST_NS);
            assert_eq!(found, None, "seed {seed}, one in {one_in}");
        }
    }

    #[test]
    fn cards_are_found_out_on_a_busy_machine() {
        for (name, page, updates_per_log, log_blocks, static_wear_every) in
            [("usb-house", 4096, 63, 1, None), ("usb-memorex", 2048, 55, 4, Some(138))]
        {
            for seed in 1..=5 {
                let mut model = ModelFile::preset(name).expect("a preset").build(0).expect("it is sound");
                let device = Virtual { model: model.as_mut(), now_ns: 0 };
                let mut disturbed = Disturbed { device, chance: Chance::new(seed) };
                let found = probe_device(&mut disturbed, page, STRIDE, u64::MAX).expect("it writes");
                let card = Findings { updates_per_log, log_blocks, static_wear_every };
                assert_eq!(found, card, "{name}, seed {seed}");
            }
        }
    }
}
