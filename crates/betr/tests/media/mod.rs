//! The pool's index is as wide as suits the medium: counted at the device, in virtual time.

use crate::common::simulate;
use ashlar_block::{Checked, Device, Medium};
use ashlar_devices::Memory;
use ashlar_emulated::Emulated;
use ashlar_env::{Env, Instant};
use ashlar_models::ModelFile;
use ashlar_pool::{Compression, Config, Creation, Pool, Txn};
use ashlar_units::{Blocks, Bytes};
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
