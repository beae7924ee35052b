//! Table 2 of the paper: updates of extents on RAID-4 of five emulated WD RE3, through the engine and the array.
//!
//! As in section 5.1 the heads of all disks are sent to random places before each batch, and the time that takes is not
//! counted. A batch ends when the disks have flushed it. Staging takes no time, as in the paper.

use super::pieces::{Pieces, Shape, Spent};
use super::{CONTEXT, EXTENT, FULL, READ, REVOLUTION, disk, displace};
use ashlar_array::{Array, Creation, Journaling, Level, NamedDevice, Options};
use ashlar_block::{Capability, Device, Durability, Extent, Geometry, IoContext, Layer, Result, Run, blocks_of};
use ashlar_devices::{FILL, Filled};
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_pool::{Compression, Pool, Txn};
use ashlar_proximal::{Config, Engine, Placement, Victims};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Disks: four with data, and one with parity.
const DISKS: usize = 5;
/// Journal of a member, when it has one.
const JOURNAL: Blocks = Blocks(4096);
/// Blocks on a member of the rows before the first extent: a group and the checksum block of the next, and one row.
const BEFORE: u64 = 65;
/// Blocks on a member of four extents: they have 4,096 rows, which are 65 groups and one row.
const PIECE: u64 = 65 * 64;

/// A row of Table 2.
#[derive(Clone, Copy, Debug)]
pub struct Paper {
    /// Staging, in percent.
    pub staging: f64,
    /// Mean response time of a batch, ms.
    pub response_ms: f64,
    /// User writes of a batch.
    pub writes: f64,
    /// Disk I/Os of a batch.
    pub ios: f64,
    /// I/Os for each revolution of a drive.
    pub per_revolution: f64,
}

const fn paper(staging: f64, response_ms: f64, writes: f64, ios: f64, per_revolution: f64) -> Paper {
    Paper { staging, response_ms, writes, ios, per_revolution }
}

/// Table 2, but for its first row.
pub const TABLE_2: [Paper; 8] = [
    paper(1.0, 129.5, 47.5, 295.3, 5.3),
    paper(2.0, 155.0, 85.2, 465.3, 7.2),
    paper(3.0, 182.9, 119.7, 614.8, 8.1),
    paper(4.0, 227.6, 149.3, 723.7, 7.7),
    paper(5.0, 235.9, 179.1, 847.6, 8.7),
    paper(6.0, 278.4, 226.1, 1014.7, 9.0),
    paper(7.0, 315.4, 259.5, 1151.5, 9.0),
    paper(8.0, 320.9, 254.8, 1166.7, 8.7),
];

/// The first row of Table 2: every update in place.
pub const IN_PLACE: Paper = paper(0.0, 16.8, 1.0, 8.0, 2.0);

/// What updates the extents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    /// The proximal engine, with staging for so many blocks of each extent.
    Proximal(f64, Placement),
    /// The array, one update after another.
    InPlace,
    /// A pool of which the extents take this part; 64 updates are made durable at a time.
    Pool(f64),
}

/// What is tried.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Extents of 16 MiB.
    pub extents: u64,
    /// What updates them.
    pub way: Way,
    /// Random updates of 4 KiB for each extent.
    pub updates: u64,
    /// The paper's array has no journal.
    pub journal: Journaling,
    /// Requests outstanding on one disk, at most; 8 in the paper.
    pub queue: usize,
    /// Whether the disks take time; counts are the same without.
    pub timed: bool,
}

/// What a drive did for a batch, in the mean.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drive {
    /// Blocks read and written in place, by the array's counters.
    pub ios: f64,
    /// Requests to the drive.
    pub requests: f64,
    /// Of these, writes to the journal.
    pub journal: f64,
    /// Time in which it had any request, ms.
    pub busy_ms: f64,
}

impl Drive {
    /// I/Os in a revolution of the time in which it was busy.
    pub fn per_revolution(&self) -> f64 {
        self.ios / (self.busy_ms / 1e3 / REVOLUTION.as_secs_f64()).max(1e-9)
    }
}

/// What came out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// Batches.
    pub batches: u64,
    /// Mean user writes of a batch.
    pub writes: f64,
    /// Mean response time of a batch.
    pub response_ms: f64,
    /// The last drive has the parity.
    pub drives: [Drive; DISKS],
    /// Updates in a second of the disks' time.
    pub updates_per_s: f64,
    /// Serial reads of all extents before and after the updates, MB/s of the group.
    pub scans: [f64; 2],
}

impl Measured {
    /// Disk I/Os of a batch.
    pub fn ios(&self) -> f64 {
        self.drives.iter().map(|drive| drive.ios).sum()
    }
    /// I/Os for each revolution, averaged over the drives, as in the paper.
    pub fn per_revolution(&self) -> f64 {
        self.drives.iter().map(Drive::per_revolution).sum::<f64>() / DISKS as f64
    }
    /// A data drive in the mean, and the parity drive.
    pub fn data_and_parity(&self) -> [Drive; 2] {
        let (data, parity) = self.drives.split_at(DISKS - 1);
        let mean = |of: fn(&Drive) -> f64| data.iter().map(of).sum::<f64>() / data.len() as f64;
        let data = Drive {
            ios: mean(|drive| drive.ios),
            requests: mean(|drive| drive.requests),
            journal: mean(|drive| drive.journal),
            busy_ms: mean(|drive| drive.busy_ms),
        };
        [data, parity[0]]
    }
}

/// The array, as who updates sees it: its batches are timed, and the heads are elsewhere before each.
struct Group {
    env: Env,
    timed: bool,
    disks: Vec<Device>,
    members: Vec<Arc<Pieces>>,
    array: Array,
    counting: AtomicBool,
    batches: AtomicU64,
    spent_ns: AtomicU64,
}

impl Group {
    async fn new(env: &Env, setup: &Setup) -> Result<Arc<Group>> {
        let journal = if setup.journal == Journaling::Off { ashlar_array::JOURNAL_MIN } else { JOURNAL };
        let full = if let Way::Pool(full) = setup.way { full } else { FULL };
        let rows = (setup.extents as f64 * EXTENT as f64 / full / 4.0) as u64 + 64;
        // Whole stripes are whole groups by fours.
        let groups = rows.div_ceil(63).next_multiple_of(4);
        let head = 2 + journal.0;
        let shape = Shape { head: head + BEFORE, piece: PIECE, count: head + groups * 64 };
        let disks = (0..DISKS as u64).map(|slot| disk(env, setup.timed, slot)).collect::<Result<Vec<_>>>()?;
        let members: Vec<Arc<Pieces>> =
            disks.iter().map(|disk| Arc::new(Pieces::new(disk.clone(), shape, env.clone()))).collect();
        let named =
            |(slot, member): (usize, &Arc<Pieces>)| NamedDevice { name: format!("disk{slot}"), device: member.clone() };
        let devices: Vec<NamedDevice> = members.iter().enumerate().map(named).collect();
        Array::create(env, &devices, Creation { journal, ..Creation::new(Level::Raid4) }, |_, _| ()).await?;
        let options = Options { journal: setup.journal, queue: setup.queue, ..Options::default() };
        let array = Array::open(env, devices, 0, options).await?;
        Ok(Arc::new(Group {
            env: env.clone(),
            timed: setup.timed,
            disks,
            members,
            array,
            counting: AtomicBool::new(false),
            batches: AtomicU64::new(0),
            spent_ns: AtomicU64::new(0),
        }))
    }

    /// Sends the heads elsewhere.
    async fn displace(&self) -> Result<()> {
        if self.timed {
            let moves: Vec<_> =
                self.disks.iter().map(|disk| self.env.spawn(displace(self.env.clone(), disk.clone()))).collect();
            for moved in moves {
                moved.await?;
            }
        }
        Ok(())
    }

    /// A batch, or the end of one.
    async fn count<T>(&self, batches: u64, work: impl Future<Output = Result<T>>) -> Result<T> {
        if !self.counting.load(Ordering::Relaxed) {
            return work.await;
        }
        if batches > 0 {
            self.displace().await?;
        }
        let began = self.env.now();
        let done = work.await;
        self.batches.fetch_add(batches, Ordering::Relaxed);
        self.spent_ns.fetch_add(self.env.now().since(began).as_nanos() as u64, Ordering::Relaxed);
        done
    }

    /// Blocks by the array's counters, writes to the journal, and what each drive was asked for.
    fn drives(&self) -> Vec<([u64; 2], Spent)> {
        let members = self.array.status().members.into_iter();
        let counts = members.map(|member| [member.counts.blocks(), member.counts.journal_requests]);
        counts.zip(self.members.iter().map(|member| member.spent())).collect()
    }
}

impl Layer for Group {
    fn name(&self) -> String {
        "group".into()
    }
    fn geometry(&self) -> Geometry {
        Layer::geometry(&self.array)
    }
    fn measure(&self) -> Result<()> {
        Ok(())
    }
    fn capability(&self) -> Capability {
        Layer::capability(&self.array)
    }
    async fn read(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        Layer::read(&self.array, context, at, count).await
    }
    async fn write(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        Layer::write(&self.array, context, at, pieces, durability).await
    }
    async fn write_strand(
        &self,
        context: IoContext,
        runs: Vec<Run>,
        most: usize,
        durability: Durability,
    ) -> Result<()> {
        debug_assert!(runs.iter().all(|(_, pieces)| blocks_of(pieces) > Blocks(0)));
        self.count(1, Layer::write_strand(&self.array, context, runs, most, durability)).await
    }
    async fn flush(&self, context: IoContext) -> Result<()> {
        self.count(0, Layer::flush(&self.array, context)).await
    }
    async fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        Layer::discard(&self.array, context, at, count).await
    }
    async fn provision(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        Layer::provision(&self.array, context, at, count).await
    }
    async fn extent(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        Layer::extent(&self.array, context, at, count).await
    }
}

/// Runs an experiment; the same seed gives the same.
pub fn run(seed: u64, setup: Setup) -> Measured {
    let sim = Sim::new(seed, Schedule::Fifo);
    let env = sim.env();
    sim.run(async move { experiment(env, setup).await.expect("devices in memory do not fail") }).expect("no deadlock")
}

/// Who holds the extents.
enum Holder {
    Proximal(Engine),
    InPlace(Arc<Group>),
    Pool(Pool, ashlar_pool::Volume),
}

impl Holder {
    async fn new(env: &Env, group: &Arc<Group>, setup: &Setup) -> Result<Holder> {
        let device: Device = group.clone();
        match setup.way {
            Way::Proximal(staged, placement) => {
                let staging: Device = Arc::new(Filled::new(Blocks(1 << 20)));
                Engine::create(env, &device, &staging, ashlar_proximal::Creation::default()).await?;
                let config = Config {
                    staged_max: Some(Blocks((staged * setup.extents as f64) as u64)),
                    victims: Victims::All,
                    placement,
                    log_bytes: Size::mib(256),
                    ..Config::default()
                };
                let engine = Engine::open(env, device, staging, config).await?;
                for extent in 0..setup.extents as u32 {
                    engine.create_extent(extent, Blocks(EXTENT)).await?;
                }
                Ok(Holder::Proximal(engine))
            }
            Way::InPlace => Ok(Holder::InPlace(group.clone())),
            Way::Pool(_) => {
                Pool::create(env, std::slice::from_ref(&device), ashlar_pool::Creation::default()).await?;
                let config = ashlar_pool::Config { compression: Compression::Off, ..Default::default() };
                let pool = Pool::open(env, vec![device], config).await?;
                let volume = pool.create_volume("extents").await?;
                Ok(Holder::Pool(pool, volume))
            }
        }
    }

    /// Writes a stretch of an extent, or a block of it.
    async fn write(&self, extent: u64, at: u64, data: &Bytes) -> Result<()> {
        match self {
            Holder::Proximal(engine) => engine.write(extent as u32, at, vec![data.clone()]).await,
            Holder::InPlace(group) => {
                // The first range is left free, as the engine's label leaves it.
                let runs = vec![(Lba(256 + extent * EXTENT + at), vec![data.clone()])];
                Layer::write_strand(&**group, CONTEXT, runs, 1, Durability::Cached).await?;
                Layer::flush(&**group, CONTEXT).await
            }
            Holder::Pool(pool, volume) => {
                let mut txn = Txn::new();
                volume.write(&mut txn, Lba(extent * EXTENT + at), data);
                pool.commit(txn).await.map(drop)
            }
        }
    }

    async fn flush(&self) -> Result<()> {
        match self {
            Holder::Proximal(engine) => engine.flush().await,
            Holder::InPlace(_) => Ok(()),
            Holder::Pool(pool, _) => pool.sync_all().await,
        }
    }

    async fn read(&self, extent: u64, at: u64, count: Blocks) -> Result<bool> {
        let is_filled = |data: &[u8]| data.iter().all(|byte| *byte == FILL);
        Ok(match self {
            Holder::Proximal(engine) => is_filled(&engine.read(extent as u32, at, count).await?),
            Holder::InPlace(group) => {
                is_filled(&Layer::read(&**group, CONTEXT, Lba(256 + extent * EXTENT + at), count).await?)
            }
            Holder::Pool(_, volume) => {
                volume.read(Lba(extent * EXTENT + at), count).await?.iter().all(|piece| is_filled(piece))
            }
        })
    }
}

async fn experiment(env: Env, setup: Setup) -> Result<Measured> {
    let group = Group::new(&env, &setup).await?;
    let holder = Holder::new(&env, &group, &setup).await?;
    let stretch = Bytes::from(vec![FILL; 256 * BLOCK_LEN]);
    for extent in 0..setup.extents {
        for part in 0..EXTENT / 256 {
            holder.write(extent, part * 256, &stretch).await?;
        }
    }
    holder.flush().await?;
    let fresh = scan(&env, &group, &holder, &setup).await?;
    let before = group.drives();
    // Whose batches are of another kind is timed as a whole.
    let whole = matches!(setup.way, Way::Pool(_));
    group.counting.store(!whole, Ordering::Relaxed);
    let began = env.now();
    let block = Bytes::from(vec![FILL; BLOCK_LEN]);
    let updates = setup.extents * setup.updates;
    for update in 0..updates {
        let at = env.random() % (setup.extents * EXTENT);
        holder.write(at / EXTENT, at % EXTENT, &block).await?;
        if whole && update % 64 == 63 {
            holder.flush().await?;
        }
    }
    group.counting.store(false, Ordering::Relaxed);
    let mut updates = updates;
    let spent = match &holder {
        Holder::Pool(..) => env.now().since(began),
        _ => Duration::from_nanos(group.spent_ns.load(Ordering::Relaxed)),
    };
    if let Holder::Proximal(engine) = &holder {
        updates -= engine.status().staged + engine.status().absorbed;
    }
    let batches = match &holder {
        Holder::Pool(..) => updates.div_ceil(64),
        _ => group.batches.load(Ordering::Relaxed),
    };
    let mut measured = Measured {
        batches,
        writes: updates as f64 / batches.max(1) as f64,
        response_ms: spent.as_secs_f64() * 1e3 / batches.max(1) as f64,
        updates_per_s: updates as f64 / spent.as_secs_f64().max(1e-9),
        ..Measured::default()
    };
    let mean = |of: u64| of as f64 / batches.max(1) as f64;
    for ((drive, ([ios, journal], spent)), ([ios_before, journal_before], before)) in
        measured.drives.iter_mut().zip(group.drives()).zip(before)
    {
        *drive = Drive {
            ios: mean(ios - ios_before),
            journal: mean(journal - journal_before),
            requests: mean(spent.reads + spent.writes - before.reads - before.writes),
            busy_ms: mean((spent.busy - before.busy).as_nanos() as u64) / 1e6,
        };
    }
    holder.flush().await?;
    measured.scans = [fresh, scan(&env, &group, &holder, &setup).await?];
    Ok(measured)
}

/// Reads every extent, up to 974 blocks at a time; MB/s while it reads.
async fn scan(env: &Env, group: &Group, holder: &Holder, setup: &Setup) -> Result<f64> {
    let mut time = Duration::ZERO;
    for extent in 0..setup.extents {
        let mut at = 0;
        while at < EXTENT {
            let count = READ.min(EXTENT - at);
            group.displace().await?;
            let began = env.now();
            assert!(holder.read(extent, at, Blocks(count)).await?, "extent {extent} has lost data");
            time += env.now().since(began);
            at += count;
        }
    }
    Ok((setup.extents * EXTENT * BLOCK_LEN as u64) as f64 / time.as_secs_f64().max(1e-9) / 1e6)
}
