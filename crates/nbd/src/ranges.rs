//! Who writes which blocks: a write of part of a block reads the block, changes it and writes it back, and nobody else
//! may write the block meanwhile. Writes of whole blocks may overlap each other as they like.

use parking_lot::Mutex;
use std::ops::Range;
use tokio::sync::Notify;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Whole,
    Part,
}

#[derive(Default)]
struct Held {
    ranges: Vec<(u64, Range<u64>, Kind)>,
    parts: usize,
    waiting: usize,
    next: u64,
}

/// Ranges of blocks that are being written.
#[derive(Default)]
pub(crate) struct Ranges {
    held: Mutex<Held>,
    released: Notify,
}

/// Releases its range when dropped.
pub(crate) struct Guard<'a> {
    ranges: &'a Ranges,
    number: u64,
}

impl Ranges {
    /// For a write of whole blocks.
    pub(crate) async fn whole(&self, blocks: Range<u64>) -> Guard<'_> {
        self.take(blocks, Kind::Whole).await
    }
    /// For a write of a part of a block.
    pub(crate) async fn part(&self, blocks: Range<u64>) -> Guard<'_> {
        self.take(blocks, Kind::Part).await
    }

    async fn take(&self, blocks: Range<u64>, kind: Kind) -> Guard<'_> {
        if let Some(number) = self.try_take(&blocks, kind) {
            return Guard { ranges: self, number };
        }
        self.held.lock().waiting += 1;
        let number = loop {
            let mut released = std::pin::pin!(self.released.notified());
            released.as_mut().enable();
            if let Some(number) = self.try_take(&blocks, kind) {
                break number;
            }
            released.await;
        };
        self.held.lock().waiting -= 1;
        Guard { ranges: self, number }
    }

    fn try_take(&self, blocks: &Range<u64>, kind: Kind) -> Option<u64> {
        let mut held = self.held.lock();
        let excludes = |(_, range, other): &(u64, Range<u64>, Kind)| {
            (kind == Kind::Part || *other == Kind::Part) && range.start < blocks.end && blocks.start < range.end
        };
        if (kind == Kind::Part || held.parts > 0) && held.ranges.iter().any(excludes) {
            return None;
        }
        held.next += 1;
        held.parts += usize::from(kind == Kind::Part);
        let number = held.next;
        held.ranges.push((number, blocks.clone(), kind));
        Some(number)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let mut held = self.ranges.held.lock();
        if let Some(index) = held.ranges.iter().position(|(number, ..)| *number == self.number) {
            let (_, _, kind) = held.ranges.swap_remove(index);
            held.parts -= usize::from(kind == Kind::Part);
        }
        if held.waiting > 0 {
            self.ranges.released.notify_waiters();
        }
    }
}
