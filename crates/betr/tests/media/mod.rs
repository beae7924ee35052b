//! The pool's index is as wide as suits the medium: counted at the device, in virtual time.

use crate::common::simulate;
use ashlar_block::{Checked, Device, IoContext, Layer, Medium};
use ashlar_devices::Memory;
use ashlar_emulated::Emulated;
use ashlar_env::{Env, Instant};
use ashlar_models::ModelFile;
use ashlar_pool::{Compression, Config, Creation, Pool, Txn};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes, Lba};
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

const PAIRS: u64 = 60_000;
const LOOKUPS: u64 = 400;

/// What filling a dictionary wrote, and what lookups in it read and how long they took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    written: u64,
    read: u64,
    took: Duration,
}

/// Keys in random order, each once.
fn key(index: u64) -> [u8; 16] {
    let mut key = [b'k'; 16];
    Pcg64Mcg::seed_from_u64(index).fill_bytes(&mut key[1..]);
    key
}

async fn fill_and_look(env: Env, model: &'static str, medium: Option<Medium>) -> Cost {
    let contents: Device = Arc::new(Memory::new(Blocks(1 << 15)));
    let model = ModelFile::preset(model).expect("a preset");
    let emulated = Emulated::new(contents, &model, 0, env.clone()).expect("it fits");
    let device = Arc::new(Checked::new(Arc::new(emulated), env.clone()));
    let devices = vec![device.clone() as Device];
    Pool::create(&env, &devices, Creation { segment: Some(Blocks(512)), force: false }).await.expect("created");
    let config =
        Config { compression: Compression::Off, memory: Bytes::mib(2), medium, scrub: false, ..Config::default() };
    let pool = Pool::open(&env, devices, config).await.expect("opened");
    let volume = pool.create_volume("v").await.expect("a volume");
    for first in (0..PAIRS).step_by(100) {
        let mut txn = Txn::new();
        for index in first..first + 100 {
            let mut value = vec![0; 100];
            Pcg64Mcg::seed_from_u64(!index).fill_bytes(&mut value);
            volume.put(&mut txn, &key(index), value);
        }
        volume.commit(txn).await.expect("an insert");
    }
    pool.checkpoint().await.expect("a checkpoint");
    let counters = device.counters();
    let [written, read] = [&counters.written_bytes, &counters.read_bytes].map(|count| count.load(Relaxed));
    let began = env.now().since(Instant(0));
    for lookup in 0..LOOKUPS {
        let found = volume.get(&key(lookup * 149 % PAIRS)).await.expect("a lookup");
        assert!(found.is_some(), "pair {lookup} is lost");
    }
    let read = counters.read_bytes.load(Relaxed) - read;
    let took = env.now().since(Instant(0)) - began;
    pool.close().await.expect("closed");
    Cost { written, read, took }
}

fn cost(model: &'static str, medium: Option<Medium>) -> Cost {
    simulate(1, move |env| fill_and_look(env, model, medium))
}

#[test]
fn an_index_on_flash_is_narrower_which_saves_bytes() {
    let (flash, as_disk) = (cost("ssd-tlc", None), cost("ssd-tlc", Some(Medium::Disk)));
    println!("on flash: {flash:?}; with the index of a disk: {as_disk:?}");
    assert_eq!(flash, cost("ssd-tlc", Some(Medium::Flash)), "the device says what it is");
    assert!(flash.written < as_disk.written, "{flash:?} and {as_disk:?}");
    assert!(flash.read < as_disk.read, "{flash:?} and {as_disk:?}");
    assert!(flash.took < as_disk.took, "{flash:?} and {as_disk:?}");
}

#[test]
fn a_disk_has_a_wide_index() {
    assert_eq!(cost("wd-re3", None), cost("wd-re3", Some(Medium::Disk)));
}

/// What was written in random order is checked in the order in which it lies: beside reading as much from one end, it takes little more.
async fn check(env: Env) -> (Duration, Duration) {
    let contents: Device = Arc::new(Memory::new(Blocks(1 << 16)));
    let model = ModelFile::preset("wd-re3").expect("a preset");
    let emulated = Emulated::new(contents, &model, 0, env.clone()).expect("it fits");
    let device = Arc::new(Checked::new(Arc::new(emulated), env.clone()));
    let devices = vec![device.clone() as Device];
    Pool::create(&env, &devices, Creation { segment: Some(Blocks(512)), force: false }).await.expect("created");
    let config = Config { compression: Compression::Off, memory: Bytes::mib(16), scrub: false, ..Config::default() };
    let pool = Pool::open(&env, devices.clone(), config).await.expect("opened");
    let volume = pool.create_volume("v").await.expect("a volume");
    for first in (0..PAIRS).step_by(60) {
        let mut txn = Txn::new();
        for index in first..first + 60 {
            volume.put(&mut txn, &key(index), vec![1; 100]);
        }
        let at = first / 60 * 617 % 1000 * 32;
        volume.write(&mut txn, Lba(at), &vec![at as u8; 16 * BLOCK_LEN].into());
        volume.commit(txn).await.expect("an insert");
    }
    pool.close().await.expect("closed");
    let pool = Pool::open(&env, devices, config).await.expect("opened");
    let (read, began) = (device.counters().read_bytes.load(Relaxed), env.now());
    let checked = pool.check(|_, _| {}).await.expect("checked");
    assert!(checked.extents >= 1000 && checked.damaged.is_empty(), "{checked:?}");
    let took = env.now().since(began);
    let blocks = Bytes(device.counters().read_bytes.load(Relaxed) - read).to_blocks_up().0;
    let began = env.now();
    for at in (0..blocks).step_by(256) {
        device.read(IoContext::foreground("test"), Lba(at), Blocks(256)).await.expect("read");
    }
    (took, env.now().since(began))
}

#[test]
fn a_check_reads_in_the_order_in_which_things_lie() {
    let (took, at_best) = simulate(1, check);
    println!("a check took {took:?}, and {at_best:?} reading as much from one end");
    assert!(took < at_best * 2, "a check took {took:?}, and {at_best:?} reading as much from one end");
}

/// Times of reads of a block each by somebody who reads at random, and of syncs after a small write by somebody else, sorted; and
/// bytes that a stream wrote in a second meanwhile, if there is one.
struct Beside {
    reads: Vec<Duration>,
    syncs: Vec<Duration>,
    streamed: f64,
}

impl Beside {
    fn tell(&self, what: &str) {
        let of = |times: &[Duration]| (times[times.len() / 2], times[times.len() * 9 / 10], times[times.len() - 1]);
        println!(
            "{what}: reads {:?}, syncs {:?}; median, nine of ten, all; {:.1} MB/s",
            of(&self.reads),
            of(&self.syncs),
            self.streamed / 1e6
        );
    }
}

async fn beside(env: Env, stream: bool) -> Beside {
    const FILLED: u64 = 1 << 13;
    let contents: Device = Arc::new(Memory::new(Blocks(1 << 18)));
    let model = ModelFile::preset("wd-re3").expect("a preset");
    let device: Device = Arc::new(Emulated::new(contents, &model, 0, env.clone()).expect("it fits"));
    Pool::create(&env, std::slice::from_ref(&device), Creation::default()).await.expect("created");
    let config = Config { compression: Compression::Off, memory: Bytes::mib(512), scrub: false, ..Config::default() };
    let pool = Pool::open(&env, vec![device], config).await.expect("opened");
    let volume = pool.create_volume("v").await.expect("a volume");
    let piece = bytes::Bytes::from(vec![7; 64 * BLOCK_LEN]);
    for at in (0..FILLED).step_by(64) {
        let mut txn = Txn::new();
        volume.write(&mut txn, Lba(at), &piece);
        volume.commit(txn).await.expect("written");
    }
    pool.checkpoint().await.expect("a checkpoint");
    let (over, began) = (Arc::new(AtomicBool::new(false)), env.now());
    let written = Arc::new(AtomicU64::new(0));
    // As many at once as a kernel that writes back has.
    let writers: Vec<_> = (0..if stream { 32 } else { 0 })
        .map(|writer| {
            let (volume, piece, over, written) = (volume.clone(), piece.clone(), over.clone(), written.clone());
            let pool = pool.clone();
            env.spawn(async move {
                let mut at = FILLED + writer * 64;
                while !over.load(Relaxed) {
                    let mut txn = Txn::new();
                    volume.write(&mut txn, Lba(at), &piece);
                    pool.make_room(&mut txn).await.expect("room");
                    volume.commit(txn).await.expect("written");
                    written.fetch_add(piece.len() as u64, Relaxed);
                    at += 32 * 64;
                }
            })
        })
        .collect();
    env.sleep(Duration::from_secs(1)).await;
    let syncs = {
        let (env, volume, pool) = (env.clone(), volume.clone(), pool.clone());
        env.clone().spawn(async move {
            let mut times = Vec::new();
            for index in 0..20 {
                let mut txn = Txn::new();
                volume.put(&mut txn, &key(index), vec![1; 100]);
                let began = env.now();
                let seq = volume.commit(txn).await.expect("committed");
                pool.sync(seq).await.expect("durable");
                times.push(env.now().since(began));
            }
            times
        })
    };
    let (mut dice, mut reads) = (Pcg64Mcg::seed_from_u64(1), Vec::new());
    for _ in 0..100 {
        let began = env.now();
        volume.read(Lba(dice.random_range(0..FILLED)), Blocks(1)).await.expect("read");
        reads.push(env.now().since(began));
    }
    let mut syncs = syncs.await;
    over.store(true, Relaxed);
    let streamed = written.load(Relaxed) as f64 / env.now().since(began).as_secs_f64();
    for writer in writers {
        writer.await;
    }
    pool.close().await.expect("closed");
    reads.sort_unstable();
    syncs.sort_unstable();
    Beside { reads, syncs, streamed }
}

#[test]
fn nobody_waits_long_beside_a_stream() {
    let [quiet, beside] = [false, true].map(|stream| simulate(1, move |env| beside(env, stream)));
    quiet.tell("alone");
    beside.tell("beside a stream");
    let median = |times: &[Duration]| times[times.len() / 2];
    assert!(median(&beside.reads) < 4 * median(&quiet.reads));
    assert!(median(&beside.syncs) < 5 * median(&quiet.syncs));
    assert!(beside.reads.iter().chain(&beside.syncs).all(|time| *time < Duration::from_secs(1)));
    assert!(beside.streamed > 50e6, "the stream gets its share, too");
}
