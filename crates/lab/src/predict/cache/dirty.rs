//! Dirty data, and when Linux writes them back (mm/page-writeback.c, fs/fs-writeback.c).
//!
//! A file that is dirty for [`Limits::expire_ns`] is written in full at the next wake-up, every [`Limits::wake_ns`]. Beyond
//! [`Limits::background`] files are written, the longest dirty first, at the rate of the device; who writes while more than
//! half way from there to [`Limits::most`] is dirty waits until it is less. What is given up before costs nothing.
//!
//! A file system that sets space apart for each dirty file (btrfs, by the worst case of its metadata) takes so many and no
//! more: [`Limits::files`]. Who makes one more dirty waits until all others are written.

use crate::predict::step::Change;
use crate::vector::{Family, Vector};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// When dirty data are written back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Blocks from which on they are written back at once.
    pub background: u64,
    /// Blocks at which nobody may write.
    pub most: u64,
    /// Age at which they are written back, nanoseconds.
    pub expire_ns: u64,
    /// How often it is looked, nanoseconds.
    pub wake_ns: u64,
    /// Blocks a second that the device takes.
    pub rate: f64,
    /// Files that may be dirty.
    pub files: u64,
    /// What is waited for each of them when there are more, nanoseconds.
    pub file_wait_ns: u64,
}

impl Limits {
    /// Of a vector; where it does not say, as Linux has it with so many blocks of memory.
    pub fn of(vector: &Vector, memory_blocks: u64) -> Limits {
        let blocks = |family, default: u64| vector.number(family).map_or(default, |kb| (kb / 4.0) as u64);
        let seconds = |family, default: f64| (vector.number(family).unwrap_or(default) * 1e9) as u64;
        let background = blocks(Family::DIRTYBG, memory_blocks / 10);
        Limits {
            background,
            most: blocks(Family::DIRTYMAX, memory_blocks / 5).max(background),
            expire_ns: seconds(Family::EXPIRE, 30.0),
            wake_ns: seconds(Family::WAKE, 5.0).max(1_000_000),
            rate: vector.number(Family::WBRATE).map_or(f64::INFINITY, |kb| kb / 4.0).max(1.0),
            files: vector.number(Family::DIRTYFILES).map_or(u64::MAX, |files| files as u64),
            file_wait_ns: vector.number(Family::DIRTYWAIT).map_or(0, |milliseconds| (milliseconds * 1e6) as u64),
        }
    }
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Blocks.
    pub blocks: u64,
    /// Runs of neighbours.
    pub runs: u64,
}

impl Written {
    fn add(&mut self, other: Written) {
        self.blocks += other.blocks;
        self.runs += other.runs;
    }
}

#[derive(Debug, Default)]
struct File {
    since_ns: u64,
    blocks: BTreeSet<u64>,
}

/// What is dirty.
#[derive(Debug)]
pub struct Dirty {
    limits: Limits,
    files: HashMap<u64, File>,
    /// Files by the time since when they are dirty.
    by_age: BTreeSet<(u64, u64)>,
    /// What files have that is not durable.
    changes: BTreeMap<u64, Change>,
    count: u64,
    forced: Written,
    looked_ns: u64,
    drained_ns: u64,
}

impl Dirty {
    /// Nothing.
    pub fn new(limits: Limits) -> Dirty {
        Dirty {
            limits,
            files: HashMap::new(),
            by_age: BTreeSet::new(),
            changes: BTreeMap::new(),
            count: 0,
            forced: Written::default(),
            looked_ns: 0,
            drained_ns: 0,
        }
    }

    /// Blocks of a file are dirty now. Returns for how long who wrote them waits, nanoseconds.
    pub fn write(&mut self, inode: u64, blocks: std::ops::Range<u64>, now_ns: u64) -> u64 {
        let file = self.files.entry(inode).or_default();
        let mut wait_ns = 0;
        if file.blocks.is_empty() && blocks.start < blocks.end {
            file.since_ns = now_ns;
            self.by_age.insert((now_ns, inode));
            if self.by_age.len() as u64 > self.limits.files {
                wait_ns = self.limits.file_wait_ns.saturating_mul(self.limits.files);
                let others: Vec<u64> =
                    self.by_age.iter().map(|(_, other)| *other).filter(|other| *other != inode).collect();
                others.into_iter().for_each(|other| {
                    let written = self.clean(other);
                    self.forced.add(written);
                });
            }
        }
        let file = self.files.entry(inode).or_default();
        self.count += blocks.map(|block| u64::from(file.blocks.insert(block))).sum::<u64>();
        let free_run = self.limits.background.midpoint(self.limits.most);
        let excess = self.count.saturating_sub(free_run);
        wait_ns.saturating_add((excess as f64 / self.limits.rate * 1e9) as u64)
    }

    /// Blocks that were written since somebody asked because too many files were dirty. Who waited for that has paid.
    pub fn take_forced(&mut self) -> u64 {
        std::mem::take(&mut self.forced).blocks
    }

    /// A file has something that is not durable. A new file stays one until then.
    pub fn changed(&mut self, inode: u64, change: Change) {
        let rank =
            |change| [Change::Nothing, Change::Over, Change::Grown, Change::New].iter().position(|at| *at == change);
        let is = self.changes.entry(inode).or_default();
        if *is != Change::Names && (change == Change::Names || rank(change) > rank(*is)) {
            *is = change;
        }
    }

    /// Dirty blocks of a file.
    pub fn of(&self, inode: u64) -> u64 {
        self.files.get(&inode).map_or(0, |file| file.blocks.len() as u64)
    }

    /// Dirty blocks of all files.
    #[cfg(test)]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether a block is dirty.
    pub fn has(&self, inode: u64, block: u64) -> bool {
        self.files.get(&inode).is_some_and(|file| file.blocks.contains(&block))
    }

    /// What of a file was not durable; it is now, and its blocks are clean.
    pub fn sync(&mut self, inode: u64) -> (Change, Written) {
        (self.changes.remove(&inode).unwrap_or_default(), self.clean(inode))
    }

    /// Everything is made durable.
    pub fn sync_all(&mut self) -> Written {
        self.changes.clear();
        let inodes: Vec<u64> = self.files.keys().copied().collect();
        let mut written = Written::default();
        inodes.into_iter().for_each(|inode| written.add(self.clean(inode)));
        written
    }

    /// The content of a file from a block on is given up; returns how many of those were dirty.
    pub fn cut(&mut self, inode: u64, from: u64) -> u64 {
        let Some(file) = self.files.get_mut(&inode) else { return 0 };
        let gone = file.blocks.split_off(&from).len() as u64;
        self.count -= gone;
        if file.blocks.is_empty() {
            self.by_age.remove(&(file.since_ns, inode));
            self.files.remove(&inode);
        }
        gone
    }

    /// The file is gone.
    pub fn forget(&mut self, inode: u64) {
        self.changes.remove(&inode);
    }

    /// Time passes; returns what was written back since.
    pub fn advance(&mut self, now_ns: u64) -> Written {
        let mut written = Written::default();
        if now_ns / self.limits.wake_ns > self.looked_ns / self.limits.wake_ns {
            let wake = now_ns - now_ns % self.limits.wake_ns;
            while let Some(&(since, inode)) = self.by_age.first()
                && since.saturating_add(self.limits.expire_ns) <= wake
            {
                written.add(self.clean(inode));
            }
        }
        self.looked_ns = self.looked_ns.max(now_ns);
        if self.count <= self.limits.background {
            self.drained_ns = now_ns;
            return written;
        }
        let passed = now_ns.saturating_sub(self.drained_ns) as f64 / 1e9;
        let mut may = (passed * self.limits.rate) as u64;
        // Whole files, as the flusher takes a large bite of each; what is too early is made up by the next.
        while self.count > self.limits.background
            && let Some(&(_, inode)) = self.by_age.first()
            && may >= self.of(inode).min(BITE)
        {
            let bite = self.bite(inode);
            may = may.saturating_sub(bite.blocks);
            written.add(bite);
            self.drained_ns = now_ns;
        }
        written
    }

    fn clean(&mut self, inode: u64) -> Written {
        let Some(file) = self.files.remove(&inode) else { return Written::default() };
        self.by_age.remove(&(file.since_ns, inode));
        self.count -= file.blocks.len() as u64;
        run_count(&file.blocks)
    }

    /// Writes some blocks of a file; what is left is the youngest then.
    fn bite(&mut self, inode: u64) -> Written {
        let Some(file) = self.files.get_mut(&inode).filter(|file| file.blocks.len() as u64 > BITE) else {
            return self.clean(inode);
        };
        let Some(&end) = file.blocks.iter().nth(BITE as usize) else { return self.clean(inode) };
        let rest = file.blocks.split_off(&end);
        let written = run_count(&std::mem::replace(&mut file.blocks, rest));
        self.count -= written.blocks;
        self.by_age.remove(&(file.since_ns, inode));
        file.since_ns += 1;
        self.by_age.insert((file.since_ns, inode));
        written
    }
}

/// Blocks that are written of one file before the next has its turn: 4 MiB, `MIN_WRITEBACK_PAGES`.
const BITE: u64 = 1024;

fn run_count(blocks: &BTreeSet<u64>) -> Written {
    let mut written = Written::default();
    let mut last = None;
    for block in blocks {
        written.runs += u64::from(last.is_none_or(|last: u64| last + 1 != *block));
        written.blocks += 1;
        last = Some(*block);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn limits() -> Limits {
        let (expire_ns, wake_ns, file_wait_ns) = (30 * SECOND, 5 * SECOND, 7);
        Limits { background: 100, most: 200, expire_ns, wake_ns, rate: 50.0, files: u64::MAX, file_wait_ns }
    }

    #[test]
    fn so_many_files_and_no_more() {
        let mut dirty = Dirty::new(Limits { files: 2, ..limits() });
        assert_eq!([dirty.write(1, 0..3, 1), dirty.write(2, 0..1, 2), dirty.write(2, 1..2, 3)], [0; 3]);
        assert_eq!((dirty.write(3, 0..1, 4), dirty.take_forced()), (14, 5), "the others are written");
        assert_eq!((dirty.of(1), dirty.count()), (0, 1));
        assert_eq!((dirty.write(1, 5..6, 5), dirty.take_forced()), (0, 0));
    }

    #[test]
    fn old_data_are_written_and_given_up_ones_not() {
        let mut dirty = Dirty::new(limits());
        assert_eq!(dirty.write(1, 0..4, SECOND), 0);
        dirty.write(1, 8..10, 2 * SECOND);
        dirty.write(1, 0..4, 3 * SECOND);
        dirty.write(2, 0..5, 4 * SECOND);
        assert_eq!(dirty.cut(2, 1), 4);
        assert_eq!(dirty.advance(34 * SECOND), Written::default(), "looked at 30 s: not old enough");
        assert_eq!(dirty.advance(36 * SECOND), Written { blocks: 7, runs: 3 }, "both, at 35 s");
        assert_eq!(dirty.count(), 0);
        dirty.write(3, 0..2, 36 * SECOND);
        dirty.changed(3, Change::New);
        dirty.changed(3, Change::Over);
        assert_eq!(dirty.sync(3), (Change::New, Written { blocks: 2, runs: 1 }));
        assert_eq!(dirty.sync(3), (Change::Nothing, Written::default()));
    }

    #[test]
    fn who_writes_too_much_waits() {
        let mut dirty = Dirty::new(limits());
        assert_eq!(dirty.write(1, 0..150, 0), 0);
        assert_eq!(dirty.write(2, 0..50, 0), SECOND, "fifty blocks at fifty a second");
        assert_eq!(dirty.advance(SECOND).blocks, 0, "a file is written as a whole");
        assert_eq!(dirty.advance(3 * SECOND), Written { blocks: 150, runs: 1 });
        assert_eq!(dirty.advance(9 * SECOND).blocks, 0, "it is little enough");
        assert_eq!(dirty.count(), 50);
    }
}
