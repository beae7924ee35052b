//! Which images a power cut could have left.
//!
//! A *window* lies between two honoured flushes. At a cut, what a flush covered is on the medium, and so are forced writes;
//! of the other operations any set may be missing, and a write that is there may be torn at the medium's atomic unit.
//! Operations that are there come in their order, which only matters where they overlap.

use super::medium::{Contents, Event, Record, ZEROS};
use crate::seeded::Dice;
use ashlar_units::{BLOCK, BLOCK_LEN, Bytes as Size};
use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Windows of at most this many operations are cut in every possible way (without tearing).
const EXHAUSTIVE_MAX: usize = 3;
/// Cuts made in a row, all of which give known images, before there are held to be no more.
const KNOWN_IN_A_ROW_MAX: u64 = 2_000;

/// One way for the power to fail. Numbers of operations are places in the record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cut {
    /// Operations before this one were asked for.
    pub at: usize,
    /// Those that did not reach the medium.
    pub lost: BTreeSet<usize>,
    /// Writes of which only these atomic units reached it.
    pub torn: BTreeMap<usize, BTreeSet<usize>>,
}

impl Cut {
    fn orderly(at: usize) -> Cut {
        Cut { at, ..Cut::default() }
    }
}

impl Record {
    /// Operations before `at` that may be lost there.
    pub(super) fn unflushed(&self, at: usize) -> Vec<usize> {
        let covered = |event: &Event| if let Event::Flush { covers } = event { *covers } else { 0 };
        let events = self.events.get(..at).unwrap_or_default();
        let begin = events.iter().map(covered).max().unwrap_or(0);
        let volatile = |event: &Event| matches!(event, Event::Write { forced: false, .. } | Event::Discard { .. });
        (begin..at).filter(|index| self.events.get(*index).is_some_and(volatile)).collect()
    }

    /// What was said before `at`.
    pub(super) fn marks(&self, at: usize) -> Vec<&str> {
        let mut marks = Vec::new();
        for event in self.events.iter().take(at) {
            if let Event::Mark(text) = event {
                marks.push(text.as_str());
            }
        }
        marks
    }

    /// Blocks that this cut leaves different from the base.
    pub(super) fn image(&self, cut: &Cut, atomic: Size) -> Contents {
        let mut image = Contents::new();
        for (index, event) in self.events.iter().enumerate().take(cut.at) {
            match event {
                _ if cut.lost.contains(&index) => {}
                Event::Write { at, data, .. } => {
                    let torn = cut.torn.get(&index);
                    for (block, start) in (at.0..).zip((0..data.len()).step_by(BLOCK_LEN)) {
                        let new = data.slice(start..start + BLOCK_LEN);
                        let new =
                            torn.map_or(new.clone(), |units| self.tear(&image, block, &new, start, units, atomic));
                        image.insert(block, new);
                    }
                }
                Event::Discard { at, count } => {
                    image.extend((at.0..at.0 + count.0).map(|block| (block, ZEROS.clone())));
                }
                Event::Flush { .. } | Event::Mark(_) => {}
            }
        }
        image.retain(|block, data| self.base.get(block).unwrap_or(&ZEROS) != data);
        image
    }

    /// A block of which only some units are new. `start` is its place in the write, in bytes.
    fn tear(
        &self,
        image: &Contents,
        block: u64,
        new: &Bytes,
        start: usize,
        units: &BTreeSet<usize>,
        atomic: Size,
    ) -> Bytes {
        let unit = atomic.0.min(BLOCK.0) as usize;
        let old = image.get(&block).or_else(|| self.base.get(&block)).unwrap_or(&ZEROS);
        let mut mixed = BytesMut::with_capacity(BLOCK_LEN);
        for (number, (old, new)) in (start / unit..).zip(old.chunks(unit).zip(new.chunks(unit))) {
            mixed.extend_from_slice(if units.contains(&number) { new } else { old });
        }
        mixed.freeze()
    }

    /// The windows, as ranges of events. A flush ends one, and what it does not cover stays volatile in the next.
    fn windows(&self) -> Vec<Range<usize>> {
        let mut windows = Vec::new();
        let mut begin = 0;
        for (index, event) in self.events.iter().enumerate() {
            if matches!(event, Event::Flush { covers } if *covers > 0) {
                windows.push(begin..index);
                begin = index + 1;
            }
        }
        windows.push(begin..self.events.len());
        windows
    }
}

/// Different images, each once: those that every search should see, then sampled ones.
pub(super) struct Cuts<'a> {
    record: &'a Record,
    atomic: Size,
    dice: Dice,
    /// Still to come, last first.
    fixed: Vec<Cut>,
    windows: Vec<Range<usize>>,
    seen: HashSet<(u64, usize)>,
    /// Cuts that led to an image that had been seen.
    pub alike: u64,
}

impl<'a> Cuts<'a> {
    pub(super) fn new(record: &'a Record, atomic: Size, seed: u64, images_max: u64) -> Cuts<'a> {
        let mut dice = Dice::new(seed);
        let windows = record.windows();
        let mut fixed = fixed(record, &windows);
        // At most half of the budget, so that there is room for what is lost and reordered. The end comes always: if the
        // check rejects even that, it is the check that should be looked at.
        let room = (images_max as usize / 2).max(1);
        while fixed.len() > room {
            fixed.swap_remove(dice.below(fixed.len() as u64) as usize);
        }
        fixed.sort_by_key(|cut| std::cmp::Reverse(cut.at));
        fixed.push(Cut::orderly(record.events.len()));
        // Windows without a write have only one image.
        let matters = |window: &Range<usize>| !window.is_empty() && !record.unflushed(window.end).is_empty();
        let windows = windows.into_iter().filter(matters).collect();
        Cuts { record, atomic, dice, fixed, windows, seen: HashSet::new(), alike: 0 }
    }

    /// A cut by chance.
    fn sample(&mut self) -> Option<Cut> {
        if self.windows.is_empty() {
            return None;
        }
        let window = self.dice.pick(&self.windows);
        let at = window.start + 1 + self.dice.below(window.len() as u64) as usize;
        let pending = self.record.unflushed(at);
        let mut cut = Cut::orderly(at);
        if pending.is_empty() {
            return Some(cut);
        }
        match self.dice.below(5) {
            0 => cut.lost.extend([self.dice.pick(&pending)]),
            1 => {
                let kept = self.dice.pick(&pending);
                cut.lost.extend(pending.iter().filter(|index| **index != kept));
            }
            2 => {
                let first = self.dice.below(pending.len() as u64) as usize;
                let len = self.dice.below((pending.len() - first) as u64) as usize;
                cut.lost.extend(&pending[first..first + len + 1]);
            }
            _ => {
                let odds = 2 + self.dice.below(4);
                cut.lost.extend(pending.iter().filter(|_| self.dice.one_in(odds)));
            }
        }
        if self.dice.one_in(3) {
            self.tear(&mut cut, &pending);
        }
        Some(cut)
    }

    /// Tears one of the writes that reached the medium, if there is one of several units.
    fn tear(&mut self, cut: &mut Cut, pending: &[usize]) {
        let units = |index: usize| match self.record.events.get(index) {
            Some(Event::Write { data, .. }) => data.len() / self.atomic.0 as usize,
            _ => 0,
        };
        let can: Vec<usize> = pending.iter().copied().filter(|i| !cut.lost.contains(i) && units(*i) > 1).collect();
        if can.is_empty() {
            return;
        }
        let index = self.dice.pick(&can);
        let count = units(index);
        let kept = if self.dice.one_in(2) {
            (0..1 + self.dice.below(count as u64 - 1) as usize).collect()
        } else {
            (0..count).filter(|_| self.dice.one_in(2)).collect()
        };
        cut.torn.insert(index, kept);
    }

    /// The next cut that leaves an image which none before it left.
    pub(super) fn next_new(&mut self) -> Option<(Cut, Contents)> {
        for _ in 0..KNOWN_IN_A_ROW_MAX {
            let cut = match self.fixed.pop() {
                Some(cut) => cut,
                None => self.sample()?,
            };
            let image = self.record.image(&cut, self.atomic);
            if self.seen.insert((hash(&image), self.record.marks(cut.at).len())) {
                return Some((cut, image));
            }
            self.alike += 1;
        }
        None
    }
}

/// Around each flush and mark: with everything that was asked for, and with nothing that may be lost. Windows with few
/// operations in every way.
fn fixed(record: &Record, windows: &[Range<usize>]) -> Vec<Cut> {
    let mut cuts = Vec::new();
    for window in windows {
        let marks = (window.clone()).filter(|index| matches!(record.events.get(*index), Some(Event::Mark(_))));
        for at in marks.map(|mark| mark + 1).chain([window.end]) {
            let pending = record.unflushed(at);
            if pending.len() <= EXHAUSTIVE_MAX {
                for set in 0..1_u32 << pending.len() {
                    let lost = (0..).zip(&pending).filter(|(bit, _)| set >> bit & 1 == 1).map(|(_, index)| *index);
                    cuts.push(Cut { at, lost: lost.collect(), torn: BTreeMap::new() });
                }
            } else {
                cuts.push(Cut::orderly(at));
                cuts.push(Cut { at, lost: pending.into_iter().collect(), torn: BTreeMap::new() });
            }
        }
    }
    cuts
}

/// Of the contents alone, not of the way to them.
fn hash(image: &Contents) -> u64 {
    image
        .iter()
        .fold(0, |sum: u64, (block, data)| sum.wrapping_add(xxh3_64_with_seed(data, xxh3_64(&block.to_le_bytes()))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_units::{Blocks, Lba};

    fn write(at: u64, byte: u8, blocks: usize) -> Event {
        Event::Write { at: Lba(at), data: Bytes::from(vec![byte; blocks * BLOCK_LEN]), forced: false }
    }
    fn record(events: Vec<Event>) -> Record {
        Record { events, ..Record::default() }
    }
    fn firsts(image: &Contents) -> Vec<(u64, u8)> {
        image.iter().map(|(block, data)| (*block, data[0])).collect()
    }

    #[test]
    fn only_what_no_flush_covers_is_lost() {
        let honoured = Event::Flush { covers: 1 };
        let forced = Event::Write { at: Lba(3), data: Bytes::from(vec![3; BLOCK_LEN]), forced: true };
        let record = record(vec![write(1, 1, 1), honoured, Event::Mark("one".into()), write(2, 2, 1), forced]);
        let mut images = BTreeSet::new();
        let mut cuts = Cuts::new(&record, BLOCK, 1, 1000);
        while let Some((cut, image)) = cuts.next_new() {
            let blocks: Vec<u64> = image.keys().copied().collect();
            let marks = record.marks(cut.at).len();
            assert!(marks == 0 || blocks.contains(&1), "{cut:?} lost what a flush covered");
            assert!(cut.at < 5 || blocks.contains(&3), "{cut:?} lost a forced write");
            images.insert((blocks, marks));
        }
        let expected = [(vec![], 0), (vec![1], 0), (vec![1], 1), (vec![1, 2], 1), (vec![1, 3], 1), (vec![1, 2, 3], 1)];
        assert_eq!(images, expected.into_iter().collect(), "each image, and no other");
    }

    #[test]
    fn flushes_that_are_dropped_cover_nothing() {
        let events = vec![write(1, 1, 1), Event::Flush { covers: 0 }, Event::Mark("one".into())];
        let record = record(events);
        let mut cuts = Cuts::new(&record, BLOCK, 1, 1000);
        let all: Vec<(usize, usize)> = std::iter::from_fn(|| cuts.next_new())
            .map(|(cut, image)| (image.len(), record.marks(cut.at).len()))
            .collect();
        assert!(all.contains(&(0, 1)), "marked and lost: {all:?}");
    }

    #[test]
    fn what_was_written_beside_a_flush_is_not_covered() {
        let record = record(vec![write(1, 1, 1), write(2, 2, 1), Event::Flush { covers: 1 }, write(3, 3, 1)]);
        assert_eq!(record.unflushed(2), [0, 1]);
        assert_eq!(record.unflushed(4), [1, 3]);
    }

    #[test]
    fn writes_overlap_in_their_order_and_tear_at_units() {
        let mut discarded =
            record(vec![write(1, 1, 3), write(2, 2, 1), Event::Discard { at: Lba(3), count: Blocks(1) }]);
        assert_eq!(firsts(&discarded.image(&Cut::orderly(3), BLOCK)), [(1, 1), (2, 2)]);
        let lost = Cut { lost: [1, 2].into(), ..Cut::orderly(3) };
        assert_eq!(firsts(&discarded.image(&lost, BLOCK)), [(1, 1), (2, 1), (3, 1)]);
        let torn = Cut { torn: [(0, [2].into())].into(), ..Cut::orderly(1) };
        assert_eq!(firsts(&discarded.image(&torn, BLOCK)), [(3, 1)]);
        discarded.base = std::sync::Arc::new([(1, Bytes::from(vec![9; BLOCK_LEN]))].into());
        let sectors = Cut { torn: [(0, [1, 8].into())].into(), ..Cut::orderly(1) };
        let image = discarded.image(&sectors, Size(512));
        assert_eq!((image[&1][511], image[&1][512], image[&1][1024]), (9, 1, 9));
        assert_eq!((image[&2][0], image[&2][512]), (1, 0));
    }
}
