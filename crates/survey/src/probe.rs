//! Whether it costs much to get to another place: some places are read, and timed.
//!
//! What the kernel says of a disk is not asked. Between a file and its disks lies what has no disk or says something else: btrfs, ZFS, a
//! network, a loop; and virtual disks call themselves rotating whatever they are.

use crate::analyse::ReadAt;
use crate::sample::mix;
use crate::source::{Kind, Source};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Places that are tried, at most, and those that must not be in the page cache for an answer.
const PLACES: usize = 15;
const NEEDED: usize = 3;
/// Bytes that are read at each.
const READ: usize = 4096;
/// A place that is further takes an arm, or as long as one: a turn of a disk takes 4 to 11 ms, a read of flash 0.1 to 1.
const FAR: Duration = Duration::from_millis(2);
/// With three answers, no more are waited for than these take together.
const PATIENCE: Duration = Duration::from_millis(500);

/// What is known of a medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// To get to a place costs as much as to read some hundred kilobytes there.
    pub far: bool,
    /// Bytes that were read to learn it.
    pub read: u64,
}

impl Source {
    /// Reads some places that the seed says. Buckets are far, and what is in the page cache is not.
    pub fn probe(&self, seed: u64, stop: &AtomicBool) -> Probe {
        if self.kind == Kind::Bucket {
            return Probe { far: true, read: 0 };
        }
        let (began, mut took) = (Instant::now(), Vec::new());
        for (entry, at) in self.places(seed) {
            let enough = took.len() >= NEEDED && began.elapsed() > PATIENCE;
            if stop.load(Ordering::Acquire) || enough {
                break;
            }
            took.extend(self.time(entry, at));
        }
        took.sort_unstable();
        let far = took.len() >= NEEDED && took[took.len() / 2] > FAR;
        Probe { far, read: (took.len() * READ) as u64 }
    }

    /// Files and offsets by chance, each byte as likely as any other; not in the order in which they lie.
    fn places(&self, seed: u64) -> Vec<(usize, u64)> {
        let total = self.listing.data_bytes().max(1);
        let mut wanted: Vec<(usize, u64)> = (0..PLACES).map(|nth| (nth, mix(!seed, nth as u64) % total)).collect();
        wanted.sort_unstable_by_key(|(_, byte)| *byte);
        let (mut found, mut before) = (Vec::new(), 0);
        let mut wanted = wanted.into_iter().peekable();
        for (index, entry) in self.listing.entries.iter().enumerate() {
            while let Some((nth, byte)) = wanted.next_if(|(_, byte)| *byte < before + entry.data) {
                found.push((nth, index, (byte - before) & !(READ as u64 - 1)));
            }
            before += entry.data;
        }
        found.sort_unstable();
        found.into_iter().map(|(_, index, at)| (index, at)).collect()
    }

    /// How long it takes to read a place; `None` if it cannot be read, or is in the page cache.
    fn time(&self, entry: usize, at: u64) -> Option<Duration> {
        let entry = &self.listing.entries[entry];
        let reader = self.reader(entry).ok()?;
        let mut from = None;
        reader
            .data(entry, at, entry.size, &mut |begin, _| {
                from = Some(begin);
                false
            })
            .ok()?;
        let from = from?;
        if reader.is_cached(from) {
            return None;
        }
        reader.read_no_more();
        let began = Instant::now();
        let read = self.careful(&reader).inner.read_at(from, &mut [0; READ]);
        read.is_ok().then(|| began.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::Access;
    use crate::listing::Look;
    use crate::tests::Directory;
    use std::path::Path;

    fn source(path: &Path, stop: &AtomicBool) -> Source {
        let look = Look { now: 0, memory: 1 << 20, stop, progress: &|_| {} };
        Source::open(path, &Access::default(), look).expect("listed")
    }

    #[test]
    fn places_are_in_the_data_and_any_byte_is_as_likely_as_another() {
        let directory = Directory::new();
        std::fs::write(directory.0.join("a"), vec![1; 1 << 20]).expect("written");
        std::fs::write(directory.0.join("b"), vec![2; 3 << 20]).expect("written");
        std::fs::write(directory.0.join("empty"), "").expect("written");
        let stop = AtomicBool::new(false);
        let source = source(&directory.0, &stop);
        let large = source.listing.entries.iter().position(|entry| entry.size == 3 << 20).expect("listed");
        let mut inside = 0;
        for seed in 0..200 {
            let places = source.places(seed);
            assert_eq!(places.len(), PLACES);
            for (entry, at) in places {
                assert!(at < source.listing.entries[entry].data && at.is_multiple_of(READ as u64));
                inside += usize::from(entry == large);
            }
        }
        let share = inside as f64 / (200 * PLACES) as f64;
        assert!((share - 0.75).abs() < 0.03, "{share} of the places are in three quarters of the data");
    }

    #[test]
    fn what_was_just_written_is_near() {
        let directory = Directory::new();
        std::fs::write(directory.0.join("a"), vec![1; 1 << 20]).expect("written");
        let stop = AtomicBool::new(false);
        assert_eq!(source(&directory.0, &stop).probe(1, &stop), Probe::default());
    }
}
