//! The paper's experiments through the engine's own code, on an emulated WD RE3 in virtual time.
//!
//! Here is one disk without an array; `raid.rs` has RAID-4 over five, and Table 2. A store takes pieces of the disk that are
//! spread all over it, and before each measured request the head is sent to a random place of the whole disk, as in section
//! 5.1, so that seeks are not shorter than on a full disk.

mod pieces;
pub mod raid;

use ashlar_block::{BlockDevice, Device, IoContext, Result, strand};
use ashlar_devices::{FILL, Filled};
use ashlar_emulated::Emulated;
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_models::disk::Scheduler;
use ashlar_models::{ModelFile, Spec};
use ashlar_proximal::{Config, Creation, Engine, Placement, Status, Victims};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use pieces::{Pieces, Shape};
use std::sync::Arc;
use std::time::Duration;

const CONTEXT: IoContext = IoContext::foreground("experiment");
/// Blocks of an extent: 16 MiB, as in the paper.
pub const EXTENT: u64 = 4096;
/// Blocks of a serial read: the paper's fan-out.
pub const READ: u64 = 974;
/// Of the store, the extents take this part.
const FULL: f64 = 0.89;
/// A revolution of the WD RE3.
pub const REVOLUTION: Duration = Duration::from_nanos(8_333_333);

/// What is tried.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Extents of 16 MiB.
    pub extents: u64,
    /// Random updates of 4 KiB for each extent.
    pub updates: u64,
    /// Staging, in percent of the store; none means that each update goes straight to the disk.
    pub staging: Option<f64>,
    /// Which staged blocks are destaged.
    pub victims: Victims,
    /// Where they go.
    pub placement: Placement,
    /// Part of the updates that go to a tenth of the blocks; 0.1 is uniform.
    pub skew: f64,
    /// A snapshot is taken after a third and after two thirds of the updates, so that blocks cannot go back.
    pub snapshots: bool,
    /// Whether the disk takes time; contents and counts are the same without.
    pub timed: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            extents: 12,
            updates: 2000,
            staging: Some(1.0),
            victims: Victims::All,
            placement: Placement::Holes,
            skew: 0.1,
            snapshots: false,
            timed: true,
        }
    }
}

/// Serial reads of everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scan {
    /// MB/s of the disk while it reads.
    pub mb_s: f64,
    /// Mean response time of a read, ms.
    pub response_ms: f64,
    /// Mean requests of a read at the disk.
    pub requests: f64,
}

/// What came out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// As it was written.
    pub fresh: Scan,
    /// After the updates.
    pub aged: Scan,
    /// Mean time of a batch of destaging, ms.
    pub batch_ms: f64,
    /// What the engine counted while it was updated.
    pub status: Status,
    /// Requests for writing at the disk, for each update.
    pub writes_per_update: f64,
    /// The same, for each revolution of the time that updating took.
    pub writes_per_revolution: f64,
}

/// A WD RE3, which takes its time if that is asked for. Specimens differ.
fn disk(env: &Env, timed: bool, specimen: u64) -> Result<Device> {
    let disk: Device = Arc::new(Filled::new(Blocks(1_000_204_886_016 / BLOCK_LEN as u64)));
    let model = ModelFile::preset("wd-re3").expect("a preset");
    Ok(if timed { Arc::new(Emulated::new(disk, &model, specimen, env.clone())?) } else { disk })
}

/// Sends the head of a disk somewhere, and waits until it is there.
async fn displace(env: Env, disk: Device) -> Result<()> {
    disk.read(CONTEXT, Lba(env.random() % disk.geometry().capacity.0), Blocks(1)).await.map(drop)
}

/// Runs an experiment; the same seed gives the same.
pub fn run(seed: u64, setup: Setup) -> Outcome {
    let sim = Sim::new(seed, Schedule::Fifo);
    let env = sim.env();
    sim.run(async move { experiment(env, setup).await.expect("devices in memory do not fail") }).expect("no deadlock")
}

async fn experiment(env: Env, setup: Setup) -> Result<Outcome> {
    let disk = disk(&env, setup.timed, 1)?;
    let used = setup.extents * EXTENT;
    let blocks = Blocks(((used as f64 / FULL) as u64).next_multiple_of(256) + 512);
    // The first allocation range has the label, and no extent.
    let shape = Shape { head: 256, piece: EXTENT, count: blocks.0 };
    let slice = Arc::new(Pieces::new(disk.clone(), shape, env.clone()));
    let staging: Device = Arc::new(Filled::new(Blocks(1 << 20)));
    Engine::create(&env, &(slice.clone() as Device), &staging, Creation::default()).await?;
    let staged = setup.staging.map_or(64, |percent| (blocks.0 as f64 * percent / 100.0) as u64);
    let config = Config {
        small_max: if setup.staging.is_some() { Size::kib(168) } else { Size(0) },
        staged_max: Some(Blocks(staged)),
        victims: setup.victims,
        placement: setup.placement,
        log_bytes: Size::mib(256),
        ..Config::default()
    };
    let engine = Engine::open(&env, slice.clone(), staging, config).await?;
    let run = Run { env, engine, disk, slice, setup };
    run.fill().await?;
    let fresh = run.scan().await?;
    let mut outcome = run.update().await?;
    (outcome.fresh, outcome.aged) = (fresh, run.scan().await?);
    Ok(outcome)
}

struct Run {
    env: Env,
    engine: Engine,
    disk: Device,
    slice: Arc<Pieces>,
    setup: Setup,
}

impl Run {
    async fn fill(&self) -> Result<()> {
        let data = Bytes::from(vec![FILL; 256 * BLOCK_LEN]);
        for extent in 0..self.setup.extents as u32 {
            self.engine.create_extent(extent, Blocks(EXTENT)).await?;
            for part in 0..EXTENT / 256 {
                self.engine.write(extent, part * 256, vec![data.clone()]).await?;
            }
        }
        self.engine.flush().await
    }

    /// Sends the head somewhere, and waits until the disk is quiet.
    async fn displace(&self) -> Result<()> {
        if self.setup.timed { displace(self.env.clone(), self.disk.clone()).await } else { Ok(()) }
    }

    /// Reads every extent in random order, up to 974 blocks at a time.
    async fn scan(&self) -> Result<Scan> {
        let mut order: Vec<u32> = (0..self.setup.extents as u32).collect();
        for index in (1..order.len()).rev() {
            order.swap(index, self.env.random() as usize % (index + 1));
        }
        let (mut time, mut reads, mut requests) = (Duration::ZERO, 0u64, 0);
        for extent in order {
            let mut at = 0;
            while at < EXTENT {
                let count = READ.min(EXTENT - at);
                self.displace().await?;
                let (began, before) = (self.env.now(), self.slice.spent().reads);
                let data = self.engine.read(extent, at, Blocks(count)).await?;
                assert!(data.iter().all(|byte| *byte == FILL), "the layout lost data");
                time += self.env.now().since(began);
                requests += self.slice.spent().reads - before;
                reads += 1;
                at += count;
            }
        }
        let bytes = (self.setup.extents * EXTENT) as f64 * BLOCK_LEN as f64;
        Ok(Scan {
            mb_s: bytes / time.as_secs_f64().max(1e-9) / 1e6,
            response_ms: time.as_secs_f64() * 1e3 / reads as f64,
            requests: requests as f64 / reads as f64,
        })
    }

    fn victim(&self) -> (u32, u64) {
        let blocks = self.setup.extents * EXTENT;
        // A tenth of the blocks, all over the extents.
        let hot = (self.env.random() % 1000) < ((self.setup.skew - 0.1) / 0.9 * 1000.0) as u64;
        let block = if hot { self.env.random() % (blocks / 10) * 10 } else { self.env.random() % blocks };
        ((block / EXTENT) as u32, block % EXTENT)
    }

    async fn update(&self) -> Result<Outcome> {
        let data = Bytes::from(vec![FILL; BLOCK_LEN]);
        let all = self.setup.extents * self.setup.updates;
        let (before, began) = (self.slice.spent().writes, self.env.now());
        let status = self.engine.status();
        for update in 0..all {
            if self.setup.snapshots && update > 0 && update.is_multiple_of(all / 3) {
                if let Some(oldest) = self.engine.snapshots().first() {
                    self.engine.destroy_snapshot(oldest).await?;
                }
                self.engine.create_snapshot(&format!("at {update}")).await?;
            }
            let (extent, offset) = self.victim();
            self.engine.write(extent, offset, vec![data.clone()]).await?;
        }
        self.engine.flush().await?;
        let time = self.env.now().since(began);
        let writes = (self.slice.spent().writes - before) as f64;
        let done = self.engine.status();
        let batches = (done.batches - status.batches).max(1);
        Ok(Outcome {
            batch_ms: time.as_secs_f64() * 1e3 / batches as f64,
            status: done,
            writes_per_update: writes / all as f64,
            writes_per_revolution: writes * REVOLUTION.as_secs_f64() / time.as_secs_f64().max(1e-9),
            ..Outcome::default()
        })
    }
}

/// Mean time of strands of `size` reads of 4 KiB in one extent, ms: issued in ascending or in random order, to a drive that
/// takes the shortest positioning time first or the order of arrival, and settles on its own track or does not.
pub fn strand_ms(seed: u64, size: usize, ascending: bool, scheduler: Scheduler, same_track_ms: Option<f64>) -> f64 {
    const STRANDS: u32 = 200;
    let sim = Sim::new(seed, Schedule::Fifo);
    let env = sim.env();
    let run = async move {
        let mut model = ModelFile::preset("wd-re3").expect("a preset");
        if let Spec::Disk(disk) = &mut model.model {
            disk.queue.scheduler = scheduler;
            disk.seek.same_track_ms = same_track_ms;
            disk.cache.read_ahead = "0KiB".into();
        }
        let whole = 1_000_204_886_016 / BLOCK_LEN as u64;
        let disk = Emulated::new(Arc::new(Filled::new(Blocks(whole))), &model, 1, env.clone())?;
        let mut time = Duration::ZERO;
        for _ in 0..STRANDS {
            let start = env.random() % (whole - EXTENT);
            let mut blocks: Vec<u64> = (0..size).map(|_| start + env.random() % EXTENT).collect();
            if ascending {
                blocks.sort_unstable();
            }
            let began = env.now();
            strand(8, blocks.into_iter().map(|at| BlockDevice::read(&disk, CONTEXT, Lba(at), Blocks(1)))).await?;
            time += env.now().since(began);
        }
        Ok::<f64, ashlar_block::Error>(time.as_secs_f64() * 1e3 / f64::from(STRANDS))
    };
    sim.run(run).expect("no deadlock").expect("the emulated disk does not fail")
}
