//! Ageing: a history applied to a file system (thesis, section 3.2.2).
//!
//! The thesis replays records as fast as it can, because in FFS their order alone decides where files lie. A file system
//! that chooses places when dirty pages are written back decides by time too: a file that is deleted before never gets a
//! place. So here a clock runs with the history, and what Linux would have written back by then is written back, file by
//! file, before the next record ([`clock`]); the rest of the time is left out.
//!
//! Invariants
//!  1. What is done depends on the history, the options and the seed alone, not on how fast it goes or where it was stopped;
//!     only what the file system refuses depends on it, and that is written down ([`state`]).
//!  2. A record counts as done when all of it was done; the one that was under way when the program was killed is done again.
//!
//! Departs  the kernel's own flusher runs by the real clock and may write earlier what the history's clock has not reached;
//!          at 20,000 records a second that is seldom. A write has its size and may be synced, where the thesis knows sizes of
//!          files alone.

pub mod clock;
pub mod image;
mod own;
mod page;
mod real;
pub mod scale;
pub mod state;
mod subject;
pub mod years;

pub use own::{Own, OwnSpeed};
pub use page::page;
pub use real::Directory;
pub use subject::{Look, Refusal, Subject};

use crate::frames::FrameError;
use crate::history::{Act, ROOT, Record};
use crate::layout::Free;
use ashlar_units::Bytes;
use clock::{Clock, Writeback};
use scale::Scale;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use state::State;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use years::Source;

/// Points of the layout over time.
pub const POINTS: u64 = 40;

/// What to do when the file system is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WhenFull {
    /// Leave the file out, with all that happens to it later, and go on.
    #[default]
    Skip,
    /// End.
    Stop,
}

/// How a history is applied.
#[derive(Clone, Copy, Debug)]
pub struct AgeOptions {
    /// How much of it, and how often.
    pub scale: Scale,
    /// What happens to dirty files.
    pub writeback: Writeback,
    /// What to do when the file system is full.
    pub when_full: WhenFull,
    /// Decides what is left to chance.
    pub seed: u64,
}

/// How the layout was at one time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Records of the history that were done.
    pub record: u64,
    /// Time of the history in days.
    pub day: f64,
    /// Files alive.
    pub files: u64,
    /// Share of the file system in use.
    pub used: f64,
    /// Layout score of a sample of the files, where it is known.
    pub score: Option<f64>,
    /// Mean number of pieces of those files.
    pub pieces_per_file: f64,
    /// Free space.
    pub free: Option<Free>,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Done {
    /// Records of the history.
    pub records: u64,
    /// Operations for them: a record is left out, or done for each copy.
    pub operations: u64,
    /// Files made.
    pub created: u64,
    /// Files and directories deleted.
    pub deleted: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Files written back because the time had come.
    pub written_back: u64,
    /// Files synced because the history says so.
    pub synced: u64,
    /// Files that were left out because the file system was full.
    pub refused: u64,
    /// The first record that met a full file system.
    pub first_full: Option<u64>,
    /// Operations on what had been left out.
    pub skipped: u64,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} records, {} operations: {} files made, {} deleted, {} written, {} written back in time, {} synced",
            self.records,
            self.operations,
            self.created,
            self.deleted,
            Bytes(self.written_bytes),
            self.written_back,
            self.synced
        )?;
        let Some(first) = self.first_full else { return Ok(()) };
        let Done { refused, skipped, .. } = self;
        write!(
            f,
            "; the file system was full: {refused} files left out, the first at record {first}; {skipped} operations passed over"
        )
    }
}

/// Why ageing ended early.
#[derive(Debug, thiserror::Error)]
pub enum AgeError {
    /// The history cannot be read.
    #[error("the history: {0}")]
    History(#[from] FrameError),
    /// The file system failed.
    #[error("record {0}: {1}")]
    Io(u64, io::Error),
    /// It is full, and that was to end it.
    #[error("record {0}: the file system is full; take a larger one, a lower --to, or --when-full skip")]
    Full(u64),
    /// Somebody stopped it.
    #[error("stopped after {0} records; the same command goes on from there")]
    Stopped(u64),
    /// Where it was cannot be kept.
    #[error("{0}")]
    State(#[from] io::Error),
}

/// What a file or directory is, as far as the driver must know.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// The directory that it is in.
    pub parent: u64,
    /// Bytes of its name.
    pub name_len: u8,
    /// Bytes that it has.
    pub size: u64,
    /// Whether it is a directory.
    pub directory: bool,
}

/// The files that are there.
pub type Alive = HashMap<u64, Live>;

struct Driver<'a, S: Subject> {
    subject: &'a mut S,
    options: &'a AgeOptions,
    alive: Alive,
    clock: Clock,
    done: Done,
    /// Outcomes that are known from before: operations that were refused.
    refused: HashSet<u64>,
    /// Operations below this number were done before, and are only remembered.
    before: u64,
    state: &'a mut State,
}

/// Applies a history from where `state` is. `total` is the number of its records, `seen` gets how many are done, `point` the
/// layout as it goes.
pub fn age<S: Subject>(
    history: &mut impl Source,
    total: u64,
    subject: &mut S,
    options: &AgeOptions,
    state: &mut State,
    stop: &AtomicBool,
    seen: &dyn Fn(u64),
) -> Result<(Done, Vec<Point>), AgeError> {
    let (alive, clock) = (Alive::new(), Clock::new(options.writeback));
    let (refused, before) = (state.take_refused(), state.position());
    let mut points = state.take_points();
    let mut driver = Driver { subject, options, alive, clock, done: Done::default(), refused, before, state };
    let (every, mut last_ns) = ((total / POINTS).max(1), 0);
    while let Some(record) = history.record()? {
        if stop.load(Ordering::Acquire) {
            return Err(AgeError::Stopped(driver.done.records.max(driver.before)));
        }
        let number = driver.done.records;
        last_ns = record.at_ns;
        driver.subject.repeating(number == driver.before);
        driver.subject.at(record.at_ns);
        driver.record(&record)?;
        driver.done.records += 1;
        if driver.done.records > driver.before {
            driver.state.advance(driver.done.records)?;
        }
        if driver.done.records.is_multiple_of(1024) {
            seen(driver.done.records);
        }
        let is_point = driver.done.records.is_multiple_of(every) || driver.done.records == total;
        if is_point && driver.done.records > driver.before && points.last().is_none_or(|last| last.record < number + 1)
        {
            let point = driver.point(record.at_ns).map_err(|error| AgeError::Io(number, error))?;
            driver.state.add_point(&point)?;
            points.push(point);
        }
    }
    let number = driver.done.records;
    // A history that was cut or lived again has another number of records than was said.
    if number > driver.before && points.last().is_some_and(|last| last.record < number) {
        let point = driver.point(last_ns).map_err(|error| AgeError::Io(number, error))?;
        driver.state.add_point(&point)?;
        points.push(point);
    }
    driver.subject.sync().map_err(|error| AgeError::Io(number, error))?;
    Ok((driver.done, points))
}

impl<S: Subject> Driver<'_, S> {
    fn record(&mut self, record: &Record) -> Result<(), AgeError> {
        for id in self.clock.due(record.at_ns) {
            self.write_back(id)?;
        }
        let directory = matches!(record.act, Act::MakeDirectory { .. })
            || self.alive.get(&record.id).is_some_and(|live| live.directory);
        for copy in 0..self.options.scale.copies(record.id, directory, self.options.seed) {
            self.operation(&self.options.scale.copy(record, copy))?;
            self.done.operations += 1;
        }
        Ok(())
    }

    /// The operations of the record at hand were done in an earlier run.
    fn is_past(&self) -> bool {
        self.done.records < self.before
    }

    fn failed(&self, error: io::Error) -> AgeError {
        AgeError::Io(self.done.records, error)
    }

    fn write_back(&mut self, id: u64) -> Result<(), AgeError> {
        self.done.written_back += 1;
        if self.is_past() {
            return Ok(());
        }
        self.subject.write_back(id, &self.alive).map_err(|error| self.failed(error))
    }

    fn operation(&mut self, record: &Record) -> Result<(), AgeError> {
        let id = record.id;
        match record.act {
            Act::MakeDirectory { parent, name_len } | Act::Create { parent, name_len, .. } => {
                let fits = parent == ROOT || self.alive.get(&parent).is_some_and(|live| live.directory);
                if !fits || self.alive.contains_key(&id) {
                    self.done.skipped += 1;
                    return Ok(());
                }
                let directory = matches!(record.act, Act::MakeDirectory { .. });
                self.alive.insert(id, Live { parent, name_len, size: 0, directory });
                match record.act {
                    Act::Create { size, how, .. } => {
                        self.done.created += 1;
                        self.write(record, 0, size, how)
                    }
                    _ if self.attempt(|subject, alive| subject.make_directory(id, alive))? => Ok(()),
                    _ => self.lose(id),
                }
            }
            Act::Modify { keep, size, how } => match self.alive.get(&id) {
                Some(live) if !live.directory => self.write(record, keep, size, how),
                _ => self.skip(),
            },
            Act::Move { parent, name_len } => {
                let fits = parent == ROOT || self.alive.get(&parent).is_some_and(|live| live.directory);
                let Some(from) = self.alive.get(&id).copied().filter(|_| fits) else { return self.skip() };
                self.alive.insert(id, Live { parent, name_len, ..from });
                if !self.attempt(|subject, alive| subject.rename(id, (from.parent, from.name_len), alive))? {
                    // It stays where it was.
                    self.alive.insert(id, from);
                }
                Ok(())
            }
            Act::Delete => {
                if !self.alive.contains_key(&id) {
                    return self.skip();
                }
                self.clock.clean(id);
                self.done.deleted += 1;
                if !self.is_past() {
                    self.subject.delete(id, &self.alive).map_err(|error| self.failed(error))?;
                }
                self.alive.remove(&id);
                Ok(())
            }
        }
    }

    fn skip(&mut self) -> Result<(), AgeError> {
        self.done.skipped += 1;
        Ok(())
    }

    fn write(&mut self, record: &Record, keep: u64, size: u64, how: crate::history::Writing) -> Result<(), AgeError> {
        let id = record.id;
        let old = self.alive.get(&id).map_or(0, |live| live.size);
        let keep = keep.min(old).min(size);
        if let Some(live) = self.alive.get_mut(&id) {
            live.size = size;
        }
        if !self.attempt(|subject, alive| subject.write(id, old, keep, how, alive))? {
            return self.lose(id);
        }
        self.done.written_bytes += size - keep;
        if how.sync {
            self.done.synced += 1;
            self.clock.clean(id);
        } else if size > keep {
            for due in self.clock.dirty(id, record.at_ns, size - keep) {
                self.write_back(due)?;
            }
        }
        Ok(())
    }

    /// Does something that a full file system may refuse; tells whether it was done.
    fn attempt(&mut self, work: impl FnOnce(&mut S, &Alive) -> Result<(), Refusal>) -> Result<bool, AgeError> {
        let number = self.done.operations;
        let refused = if self.is_past() {
            self.refused.contains(&number)
        } else {
            match work(self.subject, &self.alive) {
                Ok(()) => false,
                Err(Refusal::Full) if self.options.when_full == WhenFull::Stop => {
                    return Err(AgeError::Full(self.done.records));
                }
                Err(Refusal::Full) => {
                    self.state.refuse(self.done.records, number)?;
                    true
                }
                Err(Refusal::Io(error)) => return Err(self.failed(error)),
            }
        };
        if refused {
            self.done.refused += 1;
            self.done.first_full.get_or_insert(self.done.records);
        }
        Ok(!refused)
    }

    /// What was refused is gone, with all that it was.
    fn lose(&mut self, id: u64) -> Result<(), AgeError> {
        if !self.is_past() {
            self.subject.give_up(id, &self.alive).map_err(|error| self.failed(error))?;
        }
        self.clock.clean(id);
        self.alive.remove(&id);
        Ok(())
    }

    fn point(&mut self, at_ns: i64) -> io::Result<Point> {
        let Look { used, score, pieces_per_file, free } = self.subject.look(&self.alive)?;
        let files = self.alive.values().filter(|live| !live.directory).count() as u64;
        let day = at_ns as f64 / 86_400e9;
        Ok(Point { record: self.done.records, day, files, used, score, pieces_per_file, free })
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
