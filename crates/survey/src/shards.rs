//! Reuse distances and miss ratios in bounded memory: SHARDS of fixed size (Waldspurger et al., FAST '15).
//!
//! A reference is looked at if a hash of what it names lies below a threshold, so every reference to a thing is looked at
//! or none. When more than a fixed number of things are known, the threshold falls. Distances are divided by the share
//! that is looked at; the count of references is corrected as SHARDS-adj does.

use crate::sample::mix;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Things that are known at once.
const KNOWN_MAX: usize = 16 << 10;
/// Hashes lie below this.
const HASHES: u64 = 1 << 24;
/// Buckets of distances for each doubling.
const BUCKETS: f64 = 8.0;

struct Last {
    time: u64,
    /// The reference's number among all.
    number: u64,
    hash: u64,
}

/// Distances between references to the same things.
pub struct Distances {
    threshold: u64,
    known: HashMap<u64, Last>,
    by_hash: BTreeSet<(u64, u64)>,
    /// Order of last references: a Fenwick tree over times, which are given anew when it is full.
    tree: Vec<u32>,
    time: u64,
    references: u64,
    /// By bucket of the distance: references, of the present threshold.
    histogram: BTreeMap<u32, f64>,
    cold: f64,
    sampled: f64,
    between_sum: f64,
    between_count: f64,
}

impl Default for Distances {
    fn default() -> Distances {
        Distances {
            threshold: HASHES,
            known: HashMap::new(),
            by_hash: BTreeSet::new(),
            tree: vec![0; 4 * KNOWN_MAX + 1],
            time: 0,
            references: 0,
            histogram: BTreeMap::new(),
            cold: 0.0,
            sampled: 0.0,
            between_sum: 0.0,
            between_count: 0.0,
        }
    }
}

impl Distances {
    /// A reference to a thing.
    pub fn reference(&mut self, thing: u64) {
        self.references += 1;
        let hash = mix(0x5a4d, thing) % HASHES;
        if hash >= self.threshold {
            return;
        }
        if self.time as usize + 1 >= self.tree.len() {
            self.renumber();
        }
        self.time += 1;
        self.sampled += 1.0;
        let last = Last { time: self.time, number: self.references, hash };
        self.change(self.time, true);
        match self.known.insert(thing, last) {
            Some(before) => {
                // Things that were referenced since: those with a later last reference, itself not.
                let later = self.sum(self.time) - self.sum(before.time) - 1;
                self.change(before.time, false);
                let distance = f64::from(later) / self.share();
                *self.histogram.entry(bucket(distance)).or_insert(0.0) += 1.0;
                self.between_sum += (self.references - before.number) as f64;
                self.between_count += 1.0;
            }
            None => {
                self.cold += 1.0;
                self.by_hash.insert((hash, thing));
                if self.known.len() > KNOWN_MAX {
                    self.lower();
                }
            }
        }
    }

    fn share(&self) -> f64 {
        self.threshold as f64 / HASHES as f64
    }

    /// Forgets the things with the highest hash, and looks at fewer from now on.
    fn lower(&mut self) {
        let Some(&(highest, _)) = self.by_hash.last() else { return };
        while let Some(&(hash, thing)) = self.by_hash.last() {
            if hash < highest {
                break;
            }
            self.by_hash.pop_last();
            if let Some(last) = self.known.remove(&thing) {
                self.change(last.time, false);
                debug_assert_eq!(last.hash, hash);
            }
        }
        let factor = highest as f64 / self.threshold as f64;
        self.threshold = highest;
        self.histogram.values_mut().for_each(|count| *count *= factor);
        self.cold *= factor;
        self.sampled *= factor;
    }

    /// Gives last references the times 1, 2, … in their order.
    fn renumber(&mut self) {
        let mut order: Vec<(u64, u64)> = self.known.iter().map(|(thing, last)| (last.time, *thing)).collect();
        order.sort_unstable();
        self.tree.fill(0);
        self.time = 0;
        for (_, thing) in order {
            self.time += 1;
            let time = self.time;
            if let Some(last) = self.known.get_mut(&thing) {
                last.time = time;
            }
            self.change(time, true);
        }
    }

    fn change(&mut self, time: u64, more: bool) {
        let mut at = time as usize;
        while let Some(node) = self.tree.get_mut(at) {
            *node = if more { *node + 1 } else { *node - 1 };
            at += at & at.wrapping_neg();
        }
    }

    fn sum(&self, time: u64) -> u32 {
        let (mut at, mut sum) = (time as usize, 0);
        while at > 0 {
            sum += self.tree.get(at).copied().unwrap_or(0);
            at &= at - 1;
        }
        sum
    }

    /// Different things, about.
    pub fn things(&self) -> f64 {
        self.known.len() as f64 / self.share()
    }
    /// References in all.
    pub fn references(&self) -> u64 {
        self.references
    }
    /// Mean number of references from one to a thing to the next.
    pub fn mean_between(&self) -> Option<f64> {
        (self.between_count > 0.0).then(|| self.between_sum / self.between_count)
    }
    /// Whether every reference was looked at, and nothing is estimated.
    pub fn is_exact(&self) -> bool {
        self.threshold == HASHES
    }

    /// Shares of references that miss in an LRU cache: sizes in things, ascending, with the miss ratio of each.
    pub fn miss_ratios(&self) -> Vec<(f64, f64)> {
        // SHARDS-adj: what was sampled too much or too little counts as hits of the smallest cache.
        let expected = self.references as f64 * self.share();
        let mut hits = expected - self.sampled;
        let mut curve = vec![(0.0, 1.0)];
        for (bucket, count) in &self.histogram {
            hits += count;
            let ratio = (1.0 - hits / expected.max(1.0)).clamp(0.0, 1.0);
            curve.push((bound(*bucket), ratio.min(curve.last().map_or(1.0, |last: &(f64, f64)| last.1))));
        }
        curve
    }
}

/// Distances 0, 1, 2, … to 8 have buckets of their own.
fn bucket(distance: f64) -> u32 {
    if distance < 8.0 { distance as u32 } else { (BUCKETS * (distance / 8.0).log2()) as u32 + 8 }
}

/// A cache of so many things hits all distances of a bucket.
fn bound(bucket: u32) -> f64 {
    if bucket < 8 { f64::from(bucket) + 1.0 } else { 8.0 * ((f64::from(bucket) - 7.0) / BUCKETS).exp2() + 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_models::Chance;

    /// Miss ratio of a real LRU cache.
    fn lru(references: &[u64], size: usize) -> f64 {
        let (mut order, mut last, mut misses) = (BTreeMap::new(), HashMap::new(), 0);
        for (time, thing) in references.iter().enumerate() {
            match last.insert(*thing, time) {
                Some(before) => drop(order.remove(&before)),
                None => misses += 1,
            }
            order.insert(time, *thing);
            if order.len() > size
                && let Some((_, gone)) = order.pop_first()
            {
                last.remove(&gone);
            }
        }
        f64::from(misses) / references.len() as f64
    }

    #[test]
    fn curves_are_those_of_a_cache() {
        let mut chance = Chance::new(3);
        // Squares of uniform numbers: some things are much more popular.
        for (things, exact) in [(5000u64, true), (200_000, false)] {
            let references: Vec<u64> = (0..300_000).map(|_| (chance.unit().powi(2) * things as f64) as u64).collect();
            let mut distances = Distances::default();
            references.iter().for_each(|thing| distances.reference(*thing));
            assert_eq!(distances.is_exact(), exact);
            let curve = distances.miss_ratios();
            for part in [0.05, 0.2, 0.5] {
                let size = (part * things as f64) as usize;
                let found = curve.iter().rev().find(|(bound, _)| *bound <= size as f64).expect("small caches").1;
                let truth = lru(&references, size);
                assert!((found - truth).abs() < 0.04, "{things} {part}: {found} for {truth}");
            }
            let distinct = references.iter().collect::<std::collections::HashSet<_>>().len() as f64;
            assert!((distances.things() / distinct - 1.0).abs() < 0.03, "{} of {distinct}", distances.things());
        }
    }

    #[test]
    fn distances_of_a_loop() {
        let mut distances = Distances::default();
        (0..1000u64).for_each(|number| distances.reference(number % 10));
        assert_eq!(distances.mean_between(), Some(10.0));
        let (size, ratio) = *distances.miss_ratios().last().expect("some");
        assert_eq!(size, bound(bucket(9.0)));
        assert!((ratio - 0.01).abs() < 1e-9, "{ratio}");
    }
}
