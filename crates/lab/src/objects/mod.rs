//! Object stores that age and are measured, in virtual time on an emulated disk (Wang, *Storage Management in Large
//! Distributed Object-Based Storage Systems*, UC Santa Cruz 2006, sections 7 and 8).
//!
//! Everything runs in one simulation: engine, the disk's model and the clock. Requests are whole objects in a closed loop, one
//! after the other, as in the thesis. Objects are full of one byte, and blocks full of it take no memory ([`Filled`]); the
//! engine computes and compares checksums of them all the same. The processor takes no time.

mod mix;

pub use mix::{Mix, MixError, Request};

use crate::history::synthetic::streams::Streams;
use crate::history::{Act, Builder};
use ashlar_block::{Checked, Device};
use ashlar_devices::{FILL, Filled};
use ashlar_emulated::Emulated;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_models::{Chance, ModelFile};
use ashlar_objects::{Change, Condition, Durability, Engine, Error, Name, Put};
use ashlar_regions::{Config, Memory, Regions, Status};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size};
use bytes::Bytes;
use mix::Held;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
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
    /// Seconds of virtual time; emulated.
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

/// A store on an emulated disk.
pub struct Bench {
    sim: Sim,
    disk: Arc<Checked>,
    memory: Memory,
    store: Option<Regions>,
    /// Objects, as they were written last.
    live: Vec<Held>,
    next: u64,
    chance: Chance,
    fill: Bytes,
}

fn told(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

fn interrupted() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "interrupted")
}

fn name(object: u64) -> io::Result<Name> {
    Name::new(format!("{object:016x}").into_bytes()).map_err(told)
}

impl Bench {
    /// An empty region store on a disk of `size` bytes, as slow as `model`.
    ///
    /// # Errors
    /// A size that does not fit, a model that does not build.
    pub fn new(size: Size, model: &ModelFile, config: Config, memory: Memory, seed: u64) -> io::Result<Bench> {
        let sim = Sim::new(seed, Schedule::Fifo);
        let child: Device = Arc::new(Filled::new(Blocks(size.0 / BLOCK_LEN as u64)));
        let emulated = Emulated::new(child, model, seed, sim.env()).map_err(told)?;
        let disk = Arc::new(Checked::new(Arc::new(emulated), sim.env()));
        let fill = Bytes::from(vec![FILL; config.large_block.0 as usize]);
        let (live, chance) = (Vec::new(), Chance::new(seed));
        let mut bench = Bench { sim, disk, memory, store: None, live, next: 0, chance, fill };
        let (env, device): (_, Device) = (bench.sim.env(), bench.disk.clone());
        bench.run(async move { ashlar_regions::format(&env, &device, config).await.map_err(told) })??;
        bench.reopen()?;
        Ok(bench)
    }

    /// Runs something in the simulation until it ends.
    fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> io::Result<T> {
        self.sim.run(work).map_err(|_| told("the engine waits for nobody: a defect of this program"))
    }

    fn ask<T: Send + 'static, F>(&self, work: impl FnOnce(Regions) -> F) -> io::Result<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        self.run(work(self.store.clone().ok_or_else(|| told("the store is closed"))?))
    }

    /// Closes the store and opens it again, with empty caches.
    ///
    /// # Errors
    /// Those of the store.
    pub fn reopen(&mut self) -> io::Result<()> {
        if self.store.is_some() {
            self.ask(|store| async move { store.close().await.map_err(told) })??;
            self.store = None;
        }
        let (env, device, memory) = (self.sim.env(), self.disk.clone(), self.memory);
        let opened = self.run(async move { Regions::open(&env, device, memory).await.map_err(told) })??;
        self.store = Some(opened);
        Ok(())
    }

    /// Seconds of virtual time since it began.
    pub fn seconds(&self) -> f64 {
        self.sim.env().now().0 as f64 / 1e9
    }

    /// Objects in the store.
    pub fn objects(&self) -> u64 {
        self.live.len() as u64
    }

    /// The map of the store.
    ///
    /// # Errors
    /// Those of the store.
    pub fn status(&self) -> io::Result<Status> {
        self.ask(|store| async move { store.status(true).await.map_err(told) })?
    }

    /// Writes an object; false if there was no room.
    fn put(&self, object: u64, size: u64, sync: bool) -> io::Result<bool> {
        let limit = self.fill.len() as u64;
        if size > limit {
            let (size, limit) = (Size(size), Size(limit));
            return Err(told(format!(
                "an object of {size} does not fit into a large block of {limit}: make those larger"
            )));
        }
        let (name, data) = (name(object)?, vec![self.fill.slice(..size as usize)]);
        let durability = if sync { Durability::Sync } else { Durability::Async };
        let change = Change { durability, ..Change::default() };
        let put = Put { change, expected: Some(size), ..Put::default() };
        match self.ask(|store| async move { store.put(&name, data, put).await })? {
            Ok(_) => Ok(true),
            Err(Error::NoSpace) => Ok(false),
            Err(error) => Err(told(error)),
        }
    }

    fn get(&self, object: u64) -> io::Result<()> {
        let name = name(object)?;
        let read = self.ask(|store| async move { store.get(&name, 0..u64::MAX, Condition::Any).await })?;
        read.map(drop).map_err(told)
    }

    fn delete(&self, object: u64) -> io::Result<()> {
        let name = name(object)?;
        let change = Change { durability: Durability::Async, ..Change::default() };
        self.ask(|store| async move { store.delete(&name, change).await })?.map_err(told)
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
            match record.act {
                Act::Create { size, how, .. } => {
                    let object = self.next;
                    self.next += 1;
                    if self.put(object, size, how.sync)? {
                        outcome.written_bytes += size;
                        live.insert(record.id, Held { object, size });
                    } else {
                        outcome.refused += 1;
                    }
                }
                Act::Delete => {
                    if let Some(held) = live.remove(&record.id) {
                        self.delete(held.object)?;
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
                    self.get(held.object)?;
                    outcome.read_bytes += held.size;
                }
                Request::Write { size, sync } => {
                    let object = self.next;
                    self.next += 1;
                    if self.put(object, size, sync)? {
                        outcome.written_bytes += size;
                        self.live.push(Held { object, size });
                    } else {
                        outcome.refused += 1;
                    }
                }
                Request::Rewrite { index, sync } => {
                    let held = self.live[index];
                    if self.put(held.object, held.size, sync)? {
                        outcome.written_bytes += held.size;
                    } else {
                        outcome.refused += 1;
                    }
                }
            }
        }
        self.ended(before, outcome)
    }

    fn begin(&self) -> (f64, [u64; 5]) {
        (self.seconds(), self.counts())
    }

    fn counts(&self) -> [u64; 5] {
        let counters = self.disk.counters();
        [&counters.reads, &counters.writes, &counters.flushes, &counters.read_bytes, &counters.written_bytes]
            .map(|counter| counter.load(Ordering::Relaxed))
    }

    /// Everything is durable: that counts, too.
    fn ended(&self, (began, before): (f64, [u64; 5]), outcome: Outcome) -> io::Result<Outcome> {
        self.ask(|store| async move { store.sync().await })?.map_err(told)?;
        let seconds = self.seconds() - began;
        let after = self.counts();
        let [device_reads, device_writes, device_flushes, read, written] =
            std::array::from_fn(|index| after[index] - before[index]);
        let mb_s = (outcome.read_bytes + outcome.written_bytes) as f64 / 1e6 / seconds.max(1e-9);
        let device_bytes = read + written;
        Ok(Outcome { seconds, mb_s, device_reads, device_writes, device_flushes, device_bytes, ..outcome })
    }
}

#[cfg(test)]
mod tests;
