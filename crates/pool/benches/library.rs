//! What the pool costs by itself: a device in memory, no kernel, no disk.
//!
//! `cargo xtask bench library` runs this, several times, and prints medians beside the bars. Each line of the output is one
//! figure, as JSON: the row, its unit and its value.

mod fill;
mod watch;

use ashlar_block::Device;
use ashlar_devices::Memory;
use ashlar_env::Env;
use ashlar_env::real::Real;
use ashlar_pool::{Compression, Config, Creation, Pool, Txn, Volume};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use watch::Watch;

/// The program's own allocator, so that figures carry over.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SEED: u64 = 1;
/// Large enough that nothing has to be cleaned.
const DEVICE: Size = Size(256 << 30);
/// Every node stays cached: lookups are warm. An eighth is for memtables, so the pairs below are pushed into the tree once.
const MEMORY: Size = Size(1 << 30);
const LOOKUPS: u64 = 2_000_000;
/// Blocks that are mapped in extents of 128 KiB: 16 GiB.
const LARGE_BLOCKS: u64 = 4 << 20;
/// Blocks that are mapped one by one in random order: 4 GiB.
const SMALL_BLOCKS: u64 = 1 << 20;
const STREAM: Size = Size(8 << 30);
const STREAM_PIECE: usize = 1 << 20;
const KEYS: u64 = 1_000_000;
const KEYS_PER_TXN: u64 = 100;
const VALUE_LEN: usize = 100;
const COMMIT_TIME: Duration = Duration::from_secs(1);
/// Longest delay of an operation on the slow device; the mean is half of it.
const DELAY_MAX: Duration = Duration::from_micros(200);

fn main() {
    let only: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|only| name.contains(only.as_str()));
    // It takes minutes, so it must be asked for.
    if only.iter().any(|only| only == "fill") {
        return fill::fill(fill::Options::parse(std::env::args().skip(1)));
    }
    if wanted("lookup") {
        with_pool(1, None, |pool| map_lookups(pool, "large", LARGE_BLOCKS, STREAM_PIECE / BLOCK_LEN, false));
        with_pool(1, None, |pool| map_lookups(pool, "4 KiB", SMALL_BLOCKS, 1, true));
    }
    if wanted("stream") {
        with_pool(2, None, stream);
    }
    if wanted("keys") {
        with_pool(1, None, |pool| keys(pool, 1));
        with_pool(1, None, |pool| keys(pool, KEYS_PER_TXN));
    }
    for committers in [1, 2, 4, 8, 16] {
        if wanted("commit") {
            with_pool(2, None, move |pool| commits(pool, "commits", committers));
            with_pool(2, Some(DELAY_MAX), move |pool| commits(pool, "commits, 0-200 us per operation", committers));
        }
    }
}

/// Runs a measurement on a new pool, on an executor with this number of threads.
fn with_pool<F: Future<Output = ()> + Send + 'static>(
    threads: usize,
    delay: Option<Duration>,
    measure: impl FnOnce(Volume) -> F + Send + 'static,
) {
    let real = Real::start(threads).expect("io_uring is needed");
    let env = real.env();
    real.block_on(async move {
        let volume = new_volume(&env, delay).await;
        let pool = volume.pool().clone();
        measure(volume).await;
        pool.close().await.expect("a pool in memory closes");
    });
}

async fn new_volume(env: &Env, delay: Option<Duration>) -> Volume {
    let memory = Memory::new(DEVICE.to_blocks_up());
    let device: Device = Arc::new(match delay {
        Some(delay) => memory.with_delay(env.clone(), delay),
        None => memory,
    });
    let devices = [device];
    Pool::create(env, &devices, Creation::default()).await.expect("a pool in memory");
    let config = Config { memory: MEMORY, compression: Compression::Off, ..Config::default() };
    let pool = Pool::open(env, devices.to_vec(), config).await.expect("it opens");
    pool.create_volume("v").await.expect("a volume")
}

fn random_bytes(len: usize) -> Bytes {
    let mut bytes = vec![0; len];
    Pcg64Mcg::seed_from_u64(SEED).fill_bytes(&mut bytes);
    bytes.into()
}

async fn write(volume: &Volume, at: u64, data: &Bytes) {
    let mut txn = Txn::new();
    volume.write(&mut txn, Lba(at), data);
    volume.commit(txn).await.expect("a write");
}

/// From a block to its extent, on one core: every node is cached and the memtable is empty.
async fn map_lookups(volume: Volume, what: &str, blocks: u64, blocks_per_write: usize, random: bool) {
    let mut random_state = Pcg64Mcg::seed_from_u64(SEED);
    let data = random_bytes(blocks_per_write * BLOCK_LEN);
    let writes = blocks / blocks_per_write as u64;
    for index in 0..writes {
        // An odd multiplier permutes the blocks, whose number is a power of two.
        let index = if random { index.wrapping_mul(0x9e37_79b9_7f4a_7c15) % writes } else { index };
        write(&volume, index * blocks_per_write as u64, &data).await;
    }
    volume.pool().checkpoint().await.expect("a checkpoint");
    let watch = Watch::start();
    for _ in 0..LOOKUPS {
        let at = Lba(random_state.next_u64() % blocks);
        let runs = volume.runs(at, Blocks(1)).await.expect("a lookup");
        assert_eq!(runs.len(), 1, "every block is mapped");
    }
    watch.report(&format!("map lookups, {what} extents"), "/s", LOOKUPS as f64);
}

/// Sequential writes of 1 MiB and reads of the same; checksums are on, as always.
async fn stream(volume: Volume) {
    // More than caches hold.
    let pieces: Vec<Bytes> = (0..64).map(|_| random_bytes(STREAM_PIECE)).collect();
    let (count, blocks) = (STREAM.0 / STREAM_PIECE as u64, (STREAM_PIECE / BLOCK_LEN) as u64);
    let watch = Watch::start();
    for index in 0..count {
        write(&volume, index * blocks, &pieces[index as usize % pieces.len()]).await;
    }
    volume.pool().sync_all().await.expect("a sync");
    watch.report("sequential write, 1 MiB", "GB/s", STREAM.0 as f64 / 1e9);
    let watch = Watch::start();
    for index in 0..count {
        let pieces = volume.read(Lba(index * blocks), Blocks(blocks)).await.expect("a read");
        assert_eq!(pieces.iter().map(Bytes::len).sum::<usize>(), STREAM_PIECE, "a read is whole");
    }
    watch.report("sequential read, 1 MiB", "GB/s", STREAM.0 as f64 / 1e9);
}

/// Random keys of 16 bytes.
fn key(index: u64) -> [u8; 16] {
    let mixed = (u128::from(index) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    (mixed.rotate_left(64) | (1 << 127)).to_be_bytes()
}

async fn keys(volume: Volume, keys_per_txn: u64) {
    let value = random_bytes(VALUE_LEN);
    let watch = Watch::start();
    for first in (0..KEYS).step_by(keys_per_txn as usize) {
        let mut txn = Txn::new();
        for index in first..first + keys_per_txn {
            volume.put(&mut txn, &key(index), value.clone());
        }
        volume.commit(txn).await.expect("an insert");
    }
    volume.pool().sync_all().await.expect("a sync");
    watch.report(&format!("random inserts, {keys_per_txn} per transaction"), "/s", KEYS as f64);
    if keys_per_txn > 1 {
        return;
    }
    volume.pool().checkpoint().await.expect("a checkpoint");
    let mut random = Pcg64Mcg::seed_from_u64(SEED);
    let watch = Watch::start();
    for _ in 0..KEYS {
        let found = volume.get(&key(random.next_u64() % KEYS)).await.expect("a lookup");
        assert!(found.is_some(), "every key is there");
    }
    watch.report("random point lookups", "/s", KEYS as f64);
}

/// Tasks that each put a key and wait until it is durable, again and again.
async fn commits(volume: Volume, what: &str, committers: u64) {
    let env = volume.pool().env().clone();
    let done = Arc::new(AtomicU64::new(0));
    let (began, watch) = (Instant::now(), Watch::start());
    let tasks: Vec<_> = (0..committers)
        .map(|committer| {
            let (volume, done) = (volume.clone(), done.clone());
            env.spawn(async move {
                let value = random_bytes(VALUE_LEN);
                while began.elapsed() < COMMIT_TIME {
                    let mut txn = Txn::new();
                    let index = done.fetch_add(1, Ordering::Relaxed) * 16 + committer;
                    volume.put(&mut txn, &key(index), value.clone());
                    let seq = volume.commit(txn).await.expect("a commit");
                    volume.pool().sync(seq).await.expect("a sync");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
    watch.report(&format!("{what}, {committers} at once"), "/s", done.load(Ordering::Relaxed) as f64);
}
