//! One pass over the data: what is read, in which order, by whom, and what becomes of it.
//!
//! One thread opens files and tells the kernel what will be read, unless that is in the page cache; several look at the bytes, and the
//! caller's collects what they find, in the order of the units, so that a scan can be taken up again after any of them.

use crate::analyse::{Analyser, Outcome, Plan, ReadAt};
use crate::careful::{self, Careful, Damage};
use crate::listing::{Entry, Troubles};
use crate::sample::{Share, mix};
use crate::source::{Kind, Reader, Source, give_way};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Batches of units that are open, at most: enough to keep a disk busy.
const AHEAD: usize = 8;
/// Small units that change hands at once: waking a thread for each costs more than looking at it.
const BATCH: usize = 64;
/// Batches are so many times as large where files are in the page cache: they are not open before their turn comes.
const CACHED: usize = 4;
/// Units of which it is asked whether they are.
const PROBES: usize = 8;
/// Bytes of a batch, but for its last unit.
const BATCH_BYTES: u64 = 1 << 20;
/// Bytes of a unit of a full scan.
pub const FULL_UNIT: u64 = 64 << 20;
/// What the kernel is told to read of a unit beforehand.
const ANNOUNCED: u64 = 2 << 20;

/// How long a wait does not look whether it should end.
const SLICE: Duration = Duration::from_millis(50);

/// A part of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Unit {
    /// Its file: an index of the listing's entries.
    pub entry: u32,
    /// Its number in the file.
    pub number: u32,
}

/// How to scan.
pub struct Scan<'a> {
    /// What.
    pub source: &'a Source,
    /// What to look for.
    pub plan: &'a Plan,
    /// Bytes of a unit.
    pub unit_bytes: u64,
    /// It costs much to get to a place again: see [`crate::probe::Probe`].
    pub far: bool,
    /// Everything is one cluster: a full scan.
    pub full: bool,
    /// Threads that look at bytes.
    pub threads: usize,
    /// Bytes per second, at most.
    pub bandwidth: Option<u64>,
    /// Give way to all other requests.
    pub idle: bool,
    /// Ctrl-C.
    pub stop: &'a AtomicBool,
}

/// What one unit gave.
pub struct Done {
    /// Which.
    pub unit: Unit,
    /// Its cluster.
    pub cluster: u32,
    /// Where in the sample its cluster is.
    pub place: u64,
    /// Its file is the first of its size in its group.
    pub first: bool,
    /// The class of that group.
    pub stratum: u8,
    /// What was found.
    pub outcome: Outcome,
    /// It changed since it was listed.
    pub changed: bool,
    /// Why nothing of it could be read.
    pub error: Option<String>,
    /// What could not be read of it.
    pub damages: Vec<Damage>,
    /// Bytes that are missing.
    pub missing: u64,
    /// Ctrl-C came meanwhile: not all of it was looked at.
    pub cut: bool,
}

/// Units that change hands at once, their files unless they are to be opened yet, and the number of the batch.
struct Batch<'a> {
    sequence: u64,
    units: &'a [Unit],
    opened: Vec<io::Result<Reader>>,
}

/// What names a unit for sampling: copies and versions of a file have equal ones.
pub fn cluster(entry: &Entry, number: u32) -> u64 {
    mix(entry.group, u64::from(number))
}

impl Scan<'_> {
    /// The units of a share, in the order in which they lie.
    pub fn units(&self, seed: u64, share: Share) -> Vec<Unit> {
        let mut units = Vec::new();
        for (index, entry) in self.source.listing.entries.iter().enumerate() {
            let mut add = |number: u64| {
                let unit = Unit { entry: index as u32, number: number as u32 };
                if self.full || share.has(seed, cluster(entry, unit.number)) {
                    units.push(unit);
                }
            };
            if !entry.sparse {
                (0..entry.size.div_ceil(self.unit_bytes)).for_each(&mut add);
                continue;
            }
            // Of a file with holes, only units with data: there may be very many without.
            let mut last = None;
            let found = self.source.reader(entry).and_then(|reader| {
                reader.data(entry, 0, entry.size, &mut |from, to| {
                    let first = from / self.unit_bytes;
                    let first = if last == Some(first) { first + 1 } else { first };
                    let end = to.div_ceil(self.unit_bytes);
                    (first..end).for_each(&mut add);
                    last = Some(end.saturating_sub(1));
                    !self.stop.load(Ordering::Acquire)
                })
            });
            if found.is_err() {
                // Opening it again says why.
                add(0);
            }
        }
        units
    }

    /// Looks at units and gives what each held to `collect`, in order, until that says to stop.
    pub fn run(&self, units: &[Unit], mut collect: impl FnMut(Done) -> io::Result<bool>) -> io::Result<()> {
        let pace = Pace::new(self.bandwidth);
        let halt = AtomicBool::new(false);
        let (to_workers, jobs) = sync_channel::<Batch<'_>>(AHEAD);
        let (to_us, results) = sync_channel::<(u64, Vec<Done>)>(AHEAD);
        let jobs = Mutex::new(jobs);
        let (pace, halt, jobs) = (&pace, &halt, &jobs);
        std::thread::scope(|scope| {
            scope.spawn(move || self.open(units, to_workers, halt));
            for _ in 0..self.threads.max(1) {
                let to_us = to_us.clone();
                scope.spawn(move || self.work(jobs, pace, halt, to_us));
            }
            drop(to_us);
            let collected = in_order(&results, &mut collect, halt);
            halt.store(true, Ordering::Release);
            // Whoever waits to hand something over goes on, and ends.
            results.iter().for_each(drop);
            collected
        })
    }

    fn open<'u>(&self, units: &'u [Unit], to_workers: SyncSender<Batch<'u>>, halt: &AtomicBool) {
        give_way(self.idle);
        // Who asks a bucket waits for each answer; more of them do so side by side.
        let most = if self.source.kind == Kind::Bucket { 1 } else { BATCH };
        let mut sequence = 0;
        let mut send = |units, opened| {
            let sent = !halt.load(Ordering::Acquire) && to_workers.send(Batch { sequence, units, opened }).is_ok();
            sequence += 1;
            sent
        };
        let mut rest = units;
        while !rest.is_empty() {
            let mut many = self.first(&mut rest, CACHED * most, CACHED as u64 * BATCH_BYTES);
            if self.is_cached(many) {
                if !send(many, Vec::new()) {
                    return;
                }
                continue;
            }
            while !many.is_empty() {
                let some = self.first(&mut many, most, BATCH_BYTES);
                if !send(some, self.announce(some)) {
                    return;
                }
            }
        }
    }

    /// Takes units from the beginning, but no more than so many nor, without the last of them, of so many bytes.
    fn first<'u>(&self, units: &mut &'u [Unit], most: usize, bytes: u64) -> &'u [Unit] {
        let mut sum = 0;
        let fits = |unit: &&Unit| {
            let fits = sum < bytes;
            sum += self.data_bytes(**unit);
            fits
        };
        let count = units.iter().take(most).take_while(fits).count();
        let (first, rest) = units.split_at(count);
        *units = rest;
        first
    }

    fn open_unit(&self, unit: Unit) -> io::Result<Reader> {
        let entry = &self.source.listing.entries[unit.entry as usize];
        let opened = self.source.reader(entry);
        if let Ok(reader) = &opened
            && !self.full
            && self.source.listing.whole(entry).size > self.unit_bytes
        {
            reader.read_no_more();
        }
        opened
    }

    /// Whether many units are in the page cache: mostly they are if some of them are.
    fn is_cached(&self, units: &[Unit]) -> bool {
        let is_cached = |unit: &Unit| {
            let entry = &self.source.listing.entries[unit.entry as usize];
            let (from, to) = self.bounds(entry, *unit);
            let pieces = self.source.listing.pieces(entry, from, to);
            let begin = pieces.first().map_or(from, |(begin, _)| *begin);
            self.open_unit(*unit).is_ok_and(|reader| reader.is_cached(begin))
        };
        units.len() > PROBES && units.iter().step_by(units.len() / PROBES).all(is_cached)
    }

    /// Opens files and tells the kernel what will be read of them. Of what is in the page cache, to tell of each file would be a fifth of
    /// the calls that a small one costs.
    fn announce(&self, units: &[Unit]) -> Vec<io::Result<Reader>> {
        let opened: Vec<_> = units.iter().map(|unit| self.open_unit(*unit)).collect();
        for (unit, reader) in units.iter().zip(&opened) {
            let Ok(reader) = reader else { continue };
            let entry = &self.source.listing.entries[unit.entry as usize];
            let (from, to) = self.bounds(entry, *unit);
            for (from, to) in self.source.listing.pieces(entry, from, to) {
                let begin = from.saturating_sub(self.plan.lead());
                // The last chunks mostly end there.
                let behind = if self.far { self.plan.tail() } else { 0 };
                reader.announce(begin, from - begin + (to - from).min(ANNOUNCED) + behind);
            }
        }
        opened
    }

    fn work(
        &self,
        batches: &Mutex<Receiver<Batch<'_>>>,
        pace: &Pace,
        halt: &AtomicBool,
        results: SyncSender<(u64, Vec<Done>)>,
    ) {
        give_way(self.idle);
        let mut analyser = Analyser::new(self.plan);
        loop {
            let batch = batches.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(Batch { sequence, units, opened }) = batch else { return };
            if halt.load(Ordering::Acquire) {
                // Taken all the same, so that nobody waits to hand over more.
                continue;
            }
            let mut opened = opened.into_iter();
            let look = |unit: &Unit| {
                let reader = opened.next().unwrap_or_else(|| self.open_unit(*unit));
                self.unit(&mut analyser, *unit, reader, pace)
            };
            let done = units.iter().map(look).collect();
            if results.send((sequence, done)).is_err() {
                return;
            }
        }
    }

    fn unit(&self, analyser: &mut Analyser, unit: Unit, reader: io::Result<Reader>, pace: &Pace) -> Done {
        let entry = self.source.listing.entries[unit.entry as usize];
        let place = cluster(&entry, unit.number);
        // Zero is what a full scan has.
        let number = if self.full { 0 } else { ((place >> 32) ^ place) as u32 | 1 };
        let mut done = Done {
            unit,
            cluster: number,
            place,
            first: entry.first,
            stratum: entry.stratum,
            outcome: Outcome::default(),
            changed: false,
            error: None,
            damages: Vec::new(),
            missing: 0,
            cut: false,
        };
        let (from, to) = self.bounds(&entry, unit);
        let opened = reader.and_then(|reader| {
            let stretches = self.source.stretches(&reader, &entry, from, to)?;
            Ok((reader, stretches))
        });
        let failed = |done: Done, error: io::Error| {
            let (outcome, damages) = (Outcome::default(), Vec::new());
            Done { outcome, damages, error: Some(error.to_string()), missing: self.data_bytes(unit), ..done }
        };
        let (reader, stretches) = match opened {
            Ok(opened) => opened,
            Err(error) => return failed(done, error),
        };
        let Careful { inner, block } = self.source.careful(&reader);
        let mut from = Careful { inner: Paced { inner, pace, stop: self.stop }, block };
        for stretch in stretches {
            done.damages.extend(careful::stretch(analyser, &mut from, &stretch, &mut done.outcome));
        }
        // What is read on beyond the end belongs to others.
        done.damages.retain(|damage| !self.full || damage.offset < to);
        done.missing = done.damages.iter().map(|damage| damage.len).sum();
        done.cut = self.stop.load(Ordering::Acquire);
        match self.source.changed(&reader, &entry) {
            Ok(changed) => Done { changed, ..done },
            Err(error) => failed(done, error),
        }
    }

    fn bounds(&self, entry: &Entry, unit: Unit) -> (u64, u64) {
        let from = u64::from(unit.number) * self.unit_bytes;
        (from, (from + self.unit_bytes).min(entry.size))
    }

    /// Bytes of data in a unit; of a file with holes, an upper bound.
    pub fn data_bytes(&self, unit: Unit) -> u64 {
        let entry = &self.source.listing.entries[unit.entry as usize];
        let (from, to) = self.bounds(entry, unit);
        let bytes = to.saturating_sub(from);
        if entry.sparse { bytes.min(entry.data) } else { bytes }
    }

    /// The troubles of a unit, by the path of its file.
    pub fn note(&self, done: &Done, unreadable: &mut Troubles, changed: &mut Troubles) {
        let entry = &self.source.listing.entries[done.unit.entry as usize];
        if let Some(error) = &done.error {
            unreadable.add(&self.path(entry), error);
        }
        for damage in &done.damages {
            unreadable.add_range(&self.path(entry), damage);
        }
        if done.changed {
            changed.add(&self.path(entry), "it changed since the scan began");
        }
    }

    fn path(&self, entry: &Entry) -> std::path::PathBuf {
        if matches!(self.source.kind, Kind::Tree | Kind::Bucket) {
            self.source.listing.path(entry)
        } else {
            Path::new(&self.source.path).to_path_buf()
        }
    }
}

fn in_order(
    results: &Receiver<(u64, Vec<Done>)>,
    collect: &mut impl FnMut(Done) -> io::Result<bool>,
    halt: &AtomicBool,
) -> io::Result<()> {
    let (mut next, mut early) = (0, BTreeMap::new());
    while let Ok((sequence, batch)) = results.recv() {
        early.insert(sequence, batch);
        while let Some(batch) = early.remove(&next) {
            next += 1;
            for done in batch {
                if !collect(done)? {
                    halt.store(true, Ordering::Release);
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Holds readers back to so many bytes per second.
pub(crate) struct Pace {
    bytes_per_s: Option<u64>,
    /// When the next read may begin.
    next: Mutex<Instant>,
}

impl Pace {
    pub fn new(bytes_per_s: Option<u64>) -> Pace {
        Pace { bytes_per_s, next: Mutex::new(Instant::now()) }
    }
    /// Waits until so many bytes may be read; less if there is to be an end.
    fn wait(&self, bytes: usize, stop: &AtomicBool) {
        let Some(rate) = self.bytes_per_s else { return };
        let time = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        let now = Instant::now();
        let begin = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let begin = (*next).max(now);
            *next = begin + time;
            begin
        };
        wait_until(begin, stop);
    }
}

/// Waits, unless it is to end.
pub(crate) fn wait_until(until: Instant, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(SLICE));
    }
}

/// Reads at a pace, until it is to end.
pub(crate) struct Paced<'a, R> {
    pub inner: R,
    pub pace: &'a Pace,
    pub stop: &'a AtomicBool,
}

impl<R: ReadAt> ReadAt for Paced<'_, R> {
    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
        self.pace.wait(to.len(), self.stop);
        if self.stop.load(Ordering::Acquire) {
            // As if the file ended here; the unit is marked as cut, and counts for nothing.
            return Ok(0);
        }
        self.inner.read_at(offset, to)
    }

    fn announce(&self, offset: u64, len: u64) {
        self.inner.announce(offset, len);
    }
}
