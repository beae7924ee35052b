//! Our region store. Everything runs in one simulation: engine, the disk's model and the clock. Objects are full of one byte,
//! and blocks full of it take no memory ([`Filled`]); the engine computes and compares checksums of them all the same. The
//! processor takes no time but what is said for each request: with none at all a write that must reach the medium would follow
//! another one without losing a turn of the disk, which no host does.

use super::{Bench, DiskTime, Subject};
use crate::stand::DeviceUse;
use ashlar_block::{Checked, Device};
use ashlar_devices::{FILL, Filled};
use ashlar_emulated::Emulated;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_models::ModelFile;
use ashlar_objects::{Change, Condition, Durability, Engine, Error, Name, Put};
use ashlar_regions::{Config, Memory, Regions, Status};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size};
use bytes::Bytes;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A region store on an emulated disk, in virtual time.
pub struct OnRegions {
    sim: Sim,
    disk: Arc<Checked>,
    time: Arc<Mutex<DiskTime>>,
    memory: Memory,
    store: Option<Regions>,
    fill: Bytes,
    /// What the host takes for a request.
    host: Duration,
}

fn told(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

fn name(object: u64) -> io::Result<Name> {
    Name::new(format!("{object:016x}").into_bytes()).map_err(told)
}

/// What a store is measured on.
#[derive(Clone, Debug)]
pub struct RegionsOptions {
    /// Bytes of the disk.
    pub size: Size,
    /// How slow it is.
    pub model: ModelFile,
    /// Sizes of the store.
    pub config: Config,
    /// Its memory.
    pub memory: Memory,
    /// What the host takes before each request.
    pub host: Duration,
    /// Decides what is left to chance.
    pub seed: u64,
}

impl Bench<OnRegions> {
    /// An empty region store.
    ///
    /// # Errors
    /// A size that does not fit, a model that does not build.
    pub fn new(options: &RegionsOptions) -> io::Result<Self> {
        Ok(Bench::with(OnRegions::new(options)?, Vec::new(), options.seed))
    }

    /// Closes the store and opens it again, with empty caches.
    ///
    /// # Errors
    /// Those of the store.
    pub fn reopen(&mut self) -> io::Result<()> {
        self.subject.reopen()
    }

    /// The map of the store.
    ///
    /// # Errors
    /// Those of the store.
    pub fn status(&self) -> io::Result<Status> {
        self.subject.ask(|store| async move { store.status(true).await.map_err(told) })?
    }

    /// Where the disk's time went since this was asked last.
    pub fn disk_time(&self) -> DiskTime {
        std::mem::take(&mut *self.subject.time.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl OnRegions {
    fn new(options: &RegionsOptions) -> io::Result<OnRegions> {
        let RegionsOptions { size, ref model, config, memory, host, seed } = *options;
        let sim = Sim::new(seed, Schedule::Fifo);
        let child: Device = Arc::new(Filled::new(Blocks(size.0 / BLOCK_LEN as u64)));
        let time = Arc::new(Mutex::new(DiskTime::default()));
        let sums = time.clone();
        let emulated = Emulated::new(child, model, seed, sim.env()).map_err(told)?;
        let emulated = emulated
            .with_trace(Arc::new(move |record| sums.lock().unwrap_or_else(PoisonError::into_inner).add(record)));
        let disk = Arc::new(Checked::new(Arc::new(emulated), sim.env()));
        let fill = Bytes::from(vec![FILL; config.large_block.0 as usize]);
        let mut made = OnRegions { sim, disk, time, memory, store: None, fill, host };
        let (env, device): (_, Device) = (made.sim.env(), made.disk.clone());
        made.run(async move { ashlar_regions::format(&env, &device, config).await.map_err(told) })??;
        made.reopen()?;
        Ok(made)
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

    /// A request, behind what the host takes for it.
    fn request<T: Send + 'static, F>(&self, work: impl FnOnce(Regions) -> F) -> io::Result<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let (env, host) = (self.sim.env(), self.host);
        self.ask(|store| {
            let work = work(store);
            async move {
                env.sleep(host).await;
                work.await
            }
        })
    }

    fn reopen(&mut self) -> io::Result<()> {
        if self.store.is_some() {
            self.ask(|store| async move { store.close().await.map_err(told) })??;
            self.store = None;
        }
        let (env, device, memory) = (self.sim.env(), self.disk.clone(), self.memory);
        let opened = self.run(async move { Regions::open(&env, device, memory).await.map_err(told) })??;
        self.store = Some(opened);
        Ok(())
    }
}

impl Subject for OnRegions {
    fn put(&mut self, object: u64, size: u64, sync: bool) -> io::Result<bool> {
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
        match self.request(|store| async move { store.put(&name, data, put).await })? {
            Ok(_) => Ok(true),
            Err(Error::NoSpace) => Ok(false),
            Err(error) => Err(told(error)),
        }
    }

    fn get(&mut self, object: u64, _size: u64) -> io::Result<()> {
        let name = name(object)?;
        let read = self.request(|store| async move { store.get(&name, 0..u64::MAX, Condition::Any).await })?;
        read.map(drop).map_err(told)
    }

    fn delete(&mut self, object: u64) -> io::Result<()> {
        let name = name(object)?;
        let change = Change { durability: Durability::Async, ..Change::default() };
        self.request(|store| async move { store.delete(&name, change).await })?.map_err(told)
    }

    /// The store has its own clock, and the next request comes when the one before is done.
    fn at(&mut self, _now_ns: i64) -> io::Result<()> {
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.ask(|store| async move { store.sync().await })?.map_err(told)
    }

    fn seconds(&self) -> f64 {
        self.sim.env().now().0 as f64 / 1e9
    }

    fn device(&self) -> DeviceUse {
        let counters = self.disk.counters();
        let [reads, read_bytes, writes, written_bytes, flushes] =
            [&counters.reads, &counters.read_bytes, &counters.writes, &counters.written_bytes, &counters.flushes]
                .map(|counter| counter.load(Ordering::Relaxed));
        DeviceUse { reads, read_bytes, writes, written_bytes, flushes, busy_s: 0.0 }
    }
}
