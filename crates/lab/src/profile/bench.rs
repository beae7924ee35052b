//! What benchmarks share: a directory, a clock, and where results go.

use crate::stand::Stand;
use crate::vector::{Family, Source, Value, Vector};
use ashlar_env::host::preemptions;
use ashlar_models::Chance;
use rustix::fs::{Mode, OFlags, openat};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Directories of a set of files: enough that file systems spread them.
pub const DIRECTORIES: usize = 16;
/// What needs no device: such a call that takes very much longer than others waited for one, or for somebody else.
const IN_MEMORY: [Family; 20] = [
    Family::OPEN,
    Family::CR,
    Family::RM,
    Family::STAT,
    Family::MKDIR,
    Family::RMDIR,
    Family::RENAME,
    Family::CHMOD,
    Family::TR,
    Family::CLOSE,
    Family::CLD,
    Family::FSTAT,
    Family::RMC,
    Family::RMD,
    Family::LINK,
    Family::SYMLINK,
    Family::READLINK,
    Family::GETXA,
    Family::SETXA,
    Family::UTIMES,
];
/// Such a call counts as so many medians at most.
const MEDIANS: f64 = 100.0;

/// Of single times of calls in memory.
pub fn in_memory(mut times: Vec<f64>) -> Option<Value> {
    times.sort_by(f64::total_cmp);
    let most = MEDIANS * times.get(times.len() / 2).copied().unwrap_or(0.0);
    times.iter_mut().for_each(|time| *time = time.min(most));
    Value::of(times)
}

/// Most results of one kind.
const SAMPLES_MAX: usize = 20_000;
/// Longest buffer.
pub const BUFFER: usize = 4 << 20;

/// Times something that does not take long.
pub struct Clock {
    began: Instant,
    preemptions: u64,
}

/// A time, milliseconds, and whether another thread had the processor meanwhile.
#[derive(Clone, Copy)]
pub struct Time {
    pub milliseconds: f64,
    pub disturbed: bool,
}

impl Clock {
    pub fn start() -> Clock {
        let preemptions = preemptions();
        Clock { began: Instant::now(), preemptions }
    }

    /// The time since then. One that was disturbed counts too: threads of the file system may have done it.
    pub fn stop(self) -> Time {
        let time = self.began.elapsed();
        Time { milliseconds: time.as_secs_f64() * 1e3, disturbed: preemptions() != self.preemptions }
    }
}

impl Time {
    /// The same with another number.
    pub fn map(self, of: impl FnOnce(f64) -> f64) -> Time {
        Time { milliseconds: of(self.milliseconds).max(0.0), ..self }
    }
}

/// See the module above.
pub struct Bench<'a> {
    stand: &'a mut Stand,
    /// Bytes that may be taken.
    pub space: u64,
    /// Chance.
    pub chance: Chance,
    /// What is written: no two blocks alike, none compressible.
    pub buffer: Vec<u8>,
    stop: &'a AtomicBool,
    until: Instant,
    part: Duration,
    round: u64,
    results: BTreeMap<(Family, u64), Vec<f64>>,
    vector: Vector,
    cold: bool,
    kept: u64,
    disturbed: u64,
    notes: Vec<String>,
}

impl<'a> Bench<'a> {
    pub fn new(stand: &'a mut Stand, space: u64, seed: u64, stop: &'a AtomicBool) -> Bench<'a> {
        let mut chance = Chance::new(seed);
        let buffer = (0..BUFFER / 8).flat_map(|_| chance.below(u64::MAX).to_le_bytes()).collect();
        Bench {
            stand,
            space,
            chance,
            buffer,
            stop,
            until: Instant::now(),
            part: Duration::ZERO,
            round: 0,
            results: BTreeMap::new(),
            vector: Vector::default(),
            cold: true,
            kept: 0,
            disturbed: 0,
            notes: Vec::new(),
        }
    }

    /// A group begins, with so much time.
    pub fn begin(&mut self, time: Duration) -> io::Result<()> {
        self.until = Instant::now() + time;
        self.part = time;
        Ok(())
    }

    /// It ends: its files go.
    pub fn end(&mut self) -> io::Result<()> {
        for entry in std::fs::read_dir(self.stand.path())? {
            let path = entry?.path();
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }?;
        }
        self.settle()
    }

    /// Everything is written: what one benchmark left does not burden the next.
    pub fn settle(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(self.stand.path())?)?)
    }

    /// Whether there is time for another round; at least one is made. Fails after Ctrl-C.
    pub fn more(&mut self, rounds: u64) -> io::Result<bool> {
        if self.stop.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
        }
        Ok(rounds == 0 || Instant::now() < self.until)
    }

    /// The time of this group.
    pub fn part(&self) -> Duration {
        self.part
    }

    /// Gives what begins now a part of it.
    pub fn until_part(&mut self, part: f64) {
        self.until = Instant::now() + self.part.mul_f64(part);
    }

    /// A set of empty directories that no round had before. Those of the round before go.
    pub fn directories(&mut self) -> io::Result<Vec<OwnedFd>> {
        if self.round > 0 && self.above().exists() {
            std::fs::remove_dir_all(self.above())?;
        }
        self.round += 1;
        let above = self.stand.path().join(format!("r{}", self.round));
        std::fs::create_dir(&above)?;
        let make = |index: usize| {
            let path = above.join(format!("d{index}"));
            std::fs::create_dir(&path)?;
            Ok(rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
        };
        (0..DIRECTORIES).map(make).collect()
    }

    /// In another order.
    pub fn shuffle<T>(&mut self, mut values: Vec<T>) -> Vec<T> {
        for at in (1..values.len()).rev() {
            values.swap(at, self.chance.below(at as u64 + 1) as usize);
        }
        values
    }

    /// The directory of the last set.
    pub fn above(&self) -> PathBuf {
        self.stand.path().join(format!("r{}", self.round))
    }

    /// Makes what is in memory go. All descriptors of files in it must be closed.
    pub fn cold(&mut self) -> io::Result<()> {
        let coldness = self.stand.cold()?;
        if !coldness.is_cold() && std::mem::take(&mut self.cold) {
            self.notes.push(format!("what is called uncached: {coldness}"));
        }
        Ok(())
    }

    pub fn was_cold(&self) -> bool {
        self.cold
    }

    /// Does something and keeps its time.
    pub fn time<T, E: Into<io::Error>>(
        &mut self,
        family: Family,
        size: u64,
        work: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> io::Result<T> {
        let clock = Clock::start();
        let done = work(&self.buffer);
        let time = clock.stop();
        let done = done.map_err(|error| {
            let error: io::Error = error.into();
            io::Error::new(error.kind(), format!("{}: {error}", family.name()))
        })?;
        self.keep(family, size, time);
        Ok(done)
    }

    /// Keeps a result that was measured otherwise.
    pub fn keep(&mut self, family: Family, size: u64, Time { milliseconds, disturbed }: Time) {
        self.disturbed += u64::from(disturbed);
        self.kept += 1;
        let results = self.results.entry((family, size)).or_default();
        if results.len() < SAMPLES_MAX {
            results.push(milliseconds);
        }
    }

    /// Sets a number.
    pub fn set(&mut self, family: Family, size: u64, value: Value) {
        self.vector.set(family, size, value);
    }

    /// What was kept of a result.
    pub fn value(&self, family: Family, size: u64) -> Option<Value> {
        Value::of(self.results.get(&(family, size))?.clone())
    }

    /// Sets a result as a part of the difference of two values.
    pub fn difference(&mut self, family: Family, one: Option<Value>, other: Option<Value>, parts: f64) {
        let (Some(one), Some(other)) = (one, other) else { return };
        let part = |time: f64| ((time - other.mean) / parts).max(0.0);
        let value = Value {
            mean: part(one.mean),
            error: one.error.hypot(other.error) / parts,
            count: one.count.min(other.count),
            quantiles: one.quantiles.map(|quantiles| quantiles.map(part)),
        };
        self.set(family, 0, value);
    }

    /// Takes the mean of a result that was set off all times of another.
    pub fn subtract(&mut self, family: Family, part: Family) {
        let Some(part) = self.vector.number(part) else { return };
        self.results.get_mut(&(family, 0)).into_iter().flatten().for_each(|time| *time = (*time - part).max(0.0));
    }

    /// Sets a rate of KB a second: of times for so many KB.
    pub fn rate(&mut self, family: Family, size: u64, kb: f64, time: &Value) {
        if time.mean <= 0.0 {
            return;
        }
        let rate = |time: f64| kb * 1e3 / time.max(1e-9);
        let quantiles = time.quantiles.map(|quantiles| {
            // The slowest call has the least rate; what is drawn from them are times, so the shape is kept and not the order.
            quantiles.map(|quantile| rate(time.mean) * quantile / time.mean)
        });
        let error = rate(time.mean) * time.error / time.mean;
        self.set(family, size, Value { mean: rate(time.mean), error, count: time.count, quantiles });
    }

    /// The vector, of all that was kept.
    pub fn into_vector(mut self, name: &str, source: Source) -> Vector {
        for ((family, size), times) in std::mem::take(&mut self.results) {
            let value = if IN_MEMORY.contains(&family) { in_memory(times) } else { Value::of(times) };
            if let Some(value) = value {
                match family.unit() {
                    crate::vector::Unit::Rate => self.rate(family, size, size as f64, &value),
                    _ => self.vector.set(family, size, value),
                }
            }
        }
        if self.disturbed > 0 {
            let text = format!("during {} of {} calls other threads had the processor", self.disturbed, self.kept);
            self.notes.push(text);
        }
        let mut vector = self.vector;
        (vector.name, vector.source) = (name.into(), source);
        vector.notes.append(&mut self.notes);
        vector
    }

    pub fn stand(&self) -> &Stand {
        self.stand
    }
}

/// Opens a file of a directory.
pub fn open(directory: impl AsFd, name: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat(directory, name, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))
}

/// Makes a file of so many bytes.
pub fn make(directory: impl AsFd, name: &str, bytes: u64, from: &[u8]) -> io::Result<OwnedFd> {
    let file = open(directory, name, OFlags::CREATE | OFlags::RDWR | OFlags::TRUNC)?;
    fill(&file, bytes, from)?;
    Ok(file)
}

/// Writes so many bytes at the end of what was written.
pub fn fill(file: impl AsFd, bytes: u64, from: &[u8]) -> io::Result<()> {
    let mut left = bytes as usize;
    while left > 0 {
        left -= rustix::io::write(&file, &from[..left.min(from.len())])?.min(left);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_the_device_is_no_price_of_a_call_in_memory() {
        let times = |longest: f64| [vec![1.0; 99], vec![longest]].concat();
        let mean = |longest: f64| in_memory(times(longest)).expect("there are some").mean;
        assert_eq!([20.0, 100.0, 10_000.0].map(mean), [1.19, 1.99, 1.99]);
        assert_eq!(in_memory(Vec::new()), None);
    }
}
