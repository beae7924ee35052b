//! Many more pairs than memory has room for, in random order, or sorted, or loaded: how long it takes, and how many bytes are written for each byte
//! of a pair. The same pairs can be given to other stores: see docs/benchmarks.md.

use crate::watch::{Watch, report};
use crate::{SEED, VALUE_LEN, key};
use ashlar_block::{Checked, Counters, Device, Medium};
use ashlar_devices::{FileDevice, Memory, OpenOptions};
use ashlar_env::real::Real;
use ashlar_pool::{Compression, Config, Creation, Pool, Txn, Volume};
use ashlar_units::Bytes as Size;
use bytes::Bytes;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

const PAIRS_PER_TXN: u64 = 100;
/// Bytes of a pair.
const PAIR_LEN: u64 = 16 + VALUE_LEN as u64;
/// Room beside three times what the pairs take: half as much again as nodes take is kept for a checkpoint.
const ROOM: u64 = 4 << 30;
/// Pairs that are looked up afterwards.
const LOOKUPS: u64 = 200_000;

/// How the pairs come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Random,
    Sorted,
    /// Sorted, as a bulk load.
    Load,
}

impl Order {
    fn key(self, index: u64) -> [u8; 16] {
        if self == Order::Random { key(index) } else { (u128::from(index) | (1 << 127)).to_be_bytes() }
    }
    fn row(self) -> &'static str {
        match self {
            Order::Random => "fill: random inserts",
            Order::Sorted => "fill: sorted inserts",
            Order::Load => "fill: loaded",
        }
    }
}

/// What to fill.
pub struct Options {
    /// How many pairs.
    pub pairs: u64,
    /// The pool's memory.
    pub memory: Size,
    /// A block device whose contents are lost, or a file; else memory.
    pub device: Option<PathBuf>,
    /// What it is taken for; else what it says.
    pub medium: Option<Medium>,
    order: Order,
}

impl Options {
    /// Reads `--pairs=`, `--memory=` (bytes), `--device=`, `--medium=` (disk, flash) and `--order=` (random, sorted, load).
    pub fn parse(arguments: impl Iterator<Item = String>) -> Options {
        let (memory, order) = (Size(100 << 20), Order::Random);
        let mut options = Options { pairs: 10_000_000, memory, device: None, medium: None, order };
        for argument in arguments {
            match argument.split_once('=') {
                Some(("--pairs", count)) => options.pairs = count.parse().expect("a number of pairs"),
                Some(("--medium", "disk")) => options.medium = Some(Medium::Disk),
                Some(("--medium", "flash")) => options.medium = Some(Medium::Flash),
                Some(("--memory", bytes)) => options.memory = Size(bytes.parse().expect("a number of bytes")),
                Some(("--order", "sorted")) => options.order = Order::Sorted,
                Some(("--order", "load")) => options.order = Order::Load,
                Some(("--device", path)) => options.device = Some(path.into()),
                _ => {}
            }
        }
        options
    }
}

/// Bytes that do not compress, others for each pair.
fn value(index: u64) -> Bytes {
    let mut value = [0; VALUE_LEN];
    Pcg64Mcg::seed_from_u64(index).fill_bytes(&mut value);
    Bytes::copy_from_slice(&value)
}

/// Makes a pool, fills it, waits until all of it is in its tree, and looks some pairs up.
pub fn fill(options: Options) {
    let real = Real::start(2).expect("io_uring is needed");
    let env = real.env();
    real.block_on(async move {
        let capacity = Size(options.pairs * PAIR_LEN * 3 + ROOM);
        let device: Device = match &options.device {
            None => Arc::new(Memory::new(capacity.to_blocks_up())),
            Some(path) => {
                let how = OpenOptions { create: Some(capacity), ..OpenOptions::default() };
                Arc::new(FileDevice::open(path, &how, env.clone()).expect("the device opens"))
            }
        };
        let counted = Arc::new(Checked::new(device, env.clone()));
        let devices: [Device; 1] = [counted.clone()];
        let creation = Creation { force: options.device.is_some(), ..Creation::default() };
        Pool::create(&env, &devices, creation).await.expect("a pool");
        let Options { memory, medium, .. } = options;
        let config = Config { memory, medium, compression: Compression::Off, ..Config::default() };
        let pool = Pool::open(&env, devices.to_vec(), config).await.expect("it opens");
        let volume = pool.create_volume("v").await.expect("a volume");
        put_all(&volume, &options, counted.counters()).await;
        look_up(&volume, &options, counted.counters()).await;
        pool.close().await.expect("it closes");
    });
    let peak = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak =
        peak.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    report("fill: peak memory of the process", "MiB", peak.unwrap_or(f64::NAN) / 1024.0);
}

async fn put_all(volume: &Volume, options: &Options, counters: &Counters) {
    let user = (options.pairs * PAIR_LEN) as f64;
    let written = || counters.written_bytes.load(Ordering::Relaxed) as f64;
    let (before, began, watch) = (written(), Instant::now(), Watch::start());
    if options.order == Order::Load {
        let mut load = volume.load();
        for index in 0..options.pairs {
            load.put(&options.order.key(index), value(index)).await.expect("a pair is loaded");
        }
        load.finish().await.expect("the load ends");
    } else {
        for first in (0..options.pairs).step_by(PAIRS_PER_TXN as usize) {
            let mut txn = Txn::new();
            for index in first..(first + PAIRS_PER_TXN).min(options.pairs) {
                volume.put(&mut txn, &options.order.key(index), value(index));
            }
            volume.commit(txn).await.expect("an insert");
        }
    }
    volume.pool().sync_all().await.expect("a sync");
    watch.report(options.order.row(), "/s", options.pairs as f64);
    report("fill: until the last is durable", "s", began.elapsed().as_secs_f64());
    report("fill: written until then for each byte", "bytes", (written() - before) / user);
    volume.pool().checkpoint().await.expect("a checkpoint");
    report("fill: until all is in the tree", "s", began.elapsed().as_secs_f64());
    report("fill: written for each byte", "bytes", (written() - before) / user);
    let used = volume.pool().status().used as f64;
    report("fill: space for each byte", "bytes", used / user);
}

async fn look_up(volume: &Volume, options: &Options, counters: &Counters) {
    let mut random = Pcg64Mcg::seed_from_u64(SEED);
    let before = counters.read_bytes.load(Ordering::Relaxed);
    let watch = Watch::start();
    for _ in 0..LOOKUPS {
        let index = random.next_u64() % options.pairs;
        let found = volume.get(&options.order.key(index)).await.expect("a lookup");
        assert_eq!(found.as_deref(), Some(&value(index)[..]), "every pair is there");
    }
    watch.report("fill: random lookups", "/s", LOOKUPS as f64);
    let read = counters.read_bytes.load(Ordering::Relaxed) - before;
    report("fill: read for each lookup", "bytes", read as f64 / LOOKUPS as f64);
}
