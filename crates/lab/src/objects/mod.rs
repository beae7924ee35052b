//! Object stores that age and are measured (Wang, *Storage Management in Large Distributed Object-Based Storage Systems*, UC
//! Santa Cruz 2006, sections 7 and 8): our region store in virtual time on an emulated disk ([`OnRegions`]), and file systems of
//! the kernel in real time on the same ([`OnFiles`]).
//!
//! Requests are whole objects in a closed loop, one after the other, as in the thesis. For one seed they are the same for all
//! stores, the ageing's too.

mod files;
mod mix;
mod regions;

pub use files::{Aged, FilesOptions, OnFiles};
pub use mix::{Mix, MixError, Request};
pub use regions::{OnRegions, RegionsOptions};

use crate::history::synthetic::streams::Streams;
use crate::history::{Act, Builder};
use crate::stand::DeviceUse;
use ashlar_emulated::Record;
use ashlar_models::Chance;
use mix::Held;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory for the sorting of a history; more goes to a file without a name.
const SORTED: usize = 64 << 20;
/// Requests between two looks at the clock of people.
const STRIDE: u64 = 256;

/// What some requests took. 1 MB is 10^6 bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Outcome {
    /// Requests.
    pub requests: u64,
    /// Those that found no room.
    pub refused: u64,
    /// Bytes of objects that were read.
    pub read_bytes: u64,
    /// Bytes of objects that were written.
    pub written_bytes: u64,
    /// Seconds: of virtual time for our store, else of real time; emulated.
    pub seconds: f64,
    /// Bytes of objects in a second, MB/s; emulated.
    pub mb_s: f64,
    /// Reads of the device.
    pub device_reads: u64,
    /// Writes of the device.
    pub device_writes: u64,
    /// Bytes that the device read and wrote.
    pub device_bytes: u64,
    /// Flushes of the device.
    pub device_flushes: u64,
}

/// Where the time of an emulated disk went, and how well real time kept to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct DiskTime {
    /// Requests.
    pub requests: u64,
    /// Seconds of moving the arm.
    pub seek_s: f64,
    /// Seconds of waiting for the medium to come round.
    pub rotation_s: f64,
    /// Seconds of moving data.
    pub transfer_s: f64,
    /// By how much requests were done later than the model says, on average, microseconds: the error of real time. Zero in
    /// virtual time.
    pub late_mean_us: f64,
    /// The latest one, microseconds.
    pub late_max_us: f64,
}

impl DiskTime {
    fn add(&mut self, record: &Record) {
        const S: f64 = 1e-9;
        let late_us = record.late_ns as f64 / 1e3;
        self.late_mean_us = (self.late_mean_us * self.requests as f64 + late_us) / (self.requests + 1) as f64;
        self.late_max_us = self.late_max_us.max(late_us);
        self.requests += 1;
        self.seek_s += record.seek_ns as f64 * S;
        self.rotation_s += record.rotation_ns as f64 * S;
        self.transfer_s += record.transfer_ns as f64 * S;
    }
}

/// What holds objects, by their numbers.
pub trait Subject {
    /// Writes an object, in place of the one that there may be; false if there was no room.
    fn put(&mut self, object: u64, size: u64, sync: bool) -> io::Result<bool>;
    /// Reads an object.
    fn get(&mut self, object: u64, size: u64) -> io::Result<()>;
    /// Deletes an object.
    fn delete(&mut self, object: u64) -> io::Result<()>;
    /// While it ages: the time of the history.
    fn at(&mut self, now_ns: i64) -> io::Result<()>;
    /// Makes everything durable.
    fn sync(&mut self) -> io::Result<()>;
    /// Seconds since some time.
    fn seconds(&self) -> f64;
    /// What the device has done so far.
    fn device(&self) -> DeviceUse;
}

/// A store under way.
pub struct Bench<S> {
    subject: S,
    /// Objects, as they were written last.
    live: Vec<Held>,
    next: u64,
    chance: Chance,
}

fn interrupted() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "interrupted")
}

impl<S: Subject> Bench<S> {
    /// A store with these objects.
    fn with(subject: S, live: Vec<Held>, seed: u64) -> Bench<S> {
        let next = live.iter().map(|held| held.object + 1).max().unwrap_or(0);
        Bench { subject, live, next, chance: Chance::new(seed) }
    }

    /// Objects in the store.
    pub fn objects(&self) -> u64 {
        self.live.len() as u64
    }

    /// Ages the store by two streams at once. Returns what that took; `seen` gets the requests so far.
    ///
    /// # Errors
    /// Those of the store, or `Interrupted`.
    pub fn age(&mut self, streams: &Streams, stop: &AtomicBool, seen: &dyn Fn(u64)) -> io::Result<Outcome> {
        let mut builder = Builder::new(SORTED, &std::env::temp_dir());
        streams.run(&mut builder, stop, &|_| {})?;
        let before = self.begin();
        let mut live: HashMap<u64, Held> = HashMap::new();
        let mut outcome = Outcome::default();
        builder.ordered(stop, |record| {
            self.subject.at(record.at_ns)?;
            match record.act {
                Act::Create { size, how, .. } => {
                    let object = self.next;
                    self.next += 1;
                    if self.subject.put(object, size, how.sync)? {
                        outcome.written_bytes += size;
                        live.insert(record.id, Held { object, size });
                    } else {
                        outcome.refused += 1;
                    }
                }
                Act::Delete => {
                    if let Some(held) = live.remove(&record.id) {
                        self.subject.delete(held.object)?;
                    }
                }
                Act::MakeDirectory { .. } | Act::Modify { .. } | Act::Move { .. } => return Ok(()),
            }
            outcome.requests += 1;
            if outcome.requests.is_multiple_of(STRIDE) {
                seen(outcome.requests);
            }
            Ok(())
        })?;
        self.live.extend(live.into_values());
        self.live.sort_unstable_by_key(|held| held.object);
        self.ended(before, outcome)
    }

    /// Does a workload of so many requests. `seen` gets the requests so far.
    ///
    /// # Errors
    /// Those of the store, or `Interrupted`.
    pub fn measure(&mut self, mix: &Mix, requests: u64, stop: &AtomicBool, seen: &dyn Fn(u64)) -> io::Result<Outcome> {
        let mut plan = mix.plan(&self.live, requests);
        let before = self.begin();
        let mut outcome = Outcome::default();
        while let Some(request) = plan.next(&self.live, &mut self.chance) {
            if outcome.requests.is_multiple_of(STRIDE) {
                seen(outcome.requests);
                if stop.load(Ordering::Acquire) {
                    return Err(interrupted());
                }
            }
            outcome.requests += 1;
            match request {
                Request::Read(index) => {
                    let held = self.live[index];
                    self.subject.get(held.object, held.size)?;
                    outcome.read_bytes += held.size;
                }
                Request::Write { size, sync } => {
                    let object = self.next;
                    self.next += 1;
                    if self.subject.put(object, size, sync)? {
                        outcome.written_bytes += size;
                        self.live.push(Held { object, size });
                    } else {
                        outcome.refused += 1;
                    }
                }
                Request::Rewrite { index, sync } => {
                    let held = self.live[index];
                    if self.subject.put(held.object, held.size, sync)? {
                        outcome.written_bytes += held.size;
                    } else {
                        outcome.refused += 1;
                    }
                }
            }
        }
        self.ended(before, outcome)
    }

    fn begin(&self) -> (f64, DeviceUse) {
        (self.subject.seconds(), self.subject.device())
    }

    /// Everything is durable: that counts, too.
    fn ended(&mut self, (began, before): (f64, DeviceUse), outcome: Outcome) -> io::Result<Outcome> {
        self.subject.sync()?;
        let seconds = self.subject.seconds() - began;
        let device = self.subject.device().since(&before);
        let mb_s = (outcome.read_bytes + outcome.written_bytes) as f64 / 1e6 / seconds.max(1e-9);
        Ok(Outcome {
            seconds,
            mb_s,
            device_reads: device.reads,
            device_writes: device.writes,
            device_flushes: device.flushes,
            device_bytes: device.read_bytes + device.written_bytes,
            ..outcome
        })
    }
}

#[cfg(test)]
mod tests;
