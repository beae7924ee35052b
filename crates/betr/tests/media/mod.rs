//! The pool's index is as wide as suits the medium: counted at the device, in virtual time.

use crate::common::simulate;
use ashlar_block::{Checked, Device, IoContext, Layer, Medium};
use ashlar_devices::Memory;
use ashlar_emulated::Emulated;
use ashlar_env::{Env, Instant};
use ashlar_models::ModelFile;
use ashlar_pool::{Compression, Config, Creation, Pool, Txn};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes, Lba};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
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
