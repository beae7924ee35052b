//! When Linux writes dirty files back, by the time of the history.
//!
//! The flusher wakes every 5 s and writes the files that have been dirty for 30 s or more, oldest first
//! (`dirty_writeback_centisecs`, `dirty_expire_centisecs`); and whenever more is dirty than the background threshold, it
//! writes the oldest until it is less.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};

/// How dirty files are written back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Writeback {
    /// After so long, nanoseconds.
    pub expire_ns: i64,
    /// The flusher looks so often, nanoseconds.
    pub wake_ns: i64,
    /// Bytes that may be dirty.
    pub background_bytes: u64,
}

impl Writeback {
    /// As Linux has it by default, with 10 % of 10 GiB as the background threshold.
    pub const LINUX: Writeback =
        Writeback { expire_ns: 30_000_000_000, wake_ns: 5_000_000_000, background_bytes: 1 << 30 };
}

/// The files that are dirty.
pub struct Clock {
    how: Writeback,
    /// By since when; entries of files that were cleaned or are dirty again stay until they come first.
    queue: VecDeque<(i64, u64)>,
    dirty: HashMap<u64, (i64, u64)>,
    bytes: u64,
}

impl Clock {
    /// Nothing is dirty.
    pub fn new(how: Writeback) -> Clock {
        Clock { how, queue: VecDeque::new(), dirty: HashMap::new(), bytes: 0 }
    }

    /// Bytes of a file became dirty. Returns what must be written for that.
    pub fn dirty(&mut self, id: u64, at_ns: i64, bytes: u64) -> Vec<u64> {
        // A file is as old as its first dirty page.
        let entry = self.dirty.entry(id).or_insert_with(|| {
            self.queue.push_back((at_ns, id));
            (at_ns, 0)
        });
        entry.1 = entry.1.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        let mut written = Vec::new();
        while self.bytes > self.how.background_bytes
            && let Some((since, oldest)) = self.queue.pop_front()
        {
            written.extend(self.take(since, oldest));
        }
        written
    }

    /// A file was synced or deleted.
    pub fn clean(&mut self, id: u64) {
        if let Some((_, bytes)) = self.dirty.remove(&id) {
            self.bytes -= bytes;
        }
    }

    /// What the flusher has written by `now_ns`, in order.
    pub fn due(&mut self, now_ns: i64) -> Vec<u64> {
        let woke_ns = now_ns - now_ns.rem_euclid(self.how.wake_ns.max(1));
        let mut written = Vec::new();
        while let Some((since, id)) = self.queue.front().copied()
            && since.saturating_add(self.how.expire_ns) <= woke_ns
        {
            self.queue.pop_front();
            written.extend(self.take(since, id));
        }
        written
    }

    fn take(&mut self, since: i64, id: u64) -> Option<u64> {
        self.dirty.get(&id).filter(|(found, _)| *found == since)?;
        self.clean(id);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    #[test]
    fn files_are_written_when_they_expire_and_the_flusher_wakes() {
        let mut clock = Clock::new(Writeback::LINUX);
        assert!(clock.dirty(1, S, 10).is_empty());
        assert!(clock.dirty(2, 4 * S, 10).is_empty());
        assert!(clock.dirty(1, 20 * S, 10).is_empty());
        assert!(clock.due(34 * S).is_empty(), "expired at 31 s, but the flusher wakes at 35 s");
        assert_eq!(clock.due(35 * S), [1, 2]);
        assert!(clock.due(1000 * S).is_empty());
        // Deleted before it expires: never written. Dirty again: by its new time.
        clock.dirty(3, 100 * S, 10);
        clock.clean(3);
        clock.dirty(3, 120 * S, 10);
        assert!(clock.due(130 * S).is_empty());
        assert_eq!(clock.due(150 * S), [3]);
    }

    #[test]
    fn too_much_is_written_oldest_first() {
        let mut clock = Clock::new(Writeback { background_bytes: 100, ..Writeback::LINUX });
        assert!(clock.dirty(1, 0, 60).is_empty());
        assert_eq!(clock.dirty(2, S, 50), [1]);
        assert_eq!(clock.dirty(3, S, 500), [2, 3]);
    }
}
