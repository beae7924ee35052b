//! Devices that hold no pool, or not the whole pool, or another one: each gives an error that says what to do.

use ashlar_block::{Device, Durability, Error, IoContext, Kind};
use ashlar_devices::{Joined, Memory};
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_pool::format::{RING_SLOTS, Superblock, crc, superblock_slots};
use ashlar_pool::{Config, Creation, Pool, Txn};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;
use std::sync::Arc;

const CAPACITY: Blocks = Blocks(20 * 256 + 300);
const TEST: IoContext = IoContext::foreground("test");

fn run<F: Future<Output = ()> + Send + 'static>(test: impl FnOnce(Env) -> F) {
    let sim = Sim::new(1, Schedule::Fifo);
    let env = sim.env();
    sim.run(test(env)).expect("no deadlock");
}

fn memory(capacity: Blocks) -> Device {
    Arc::new(Memory::new(capacity))
}

async fn pool_on(env: &Env, devices: &[Device]) {
    let creation = Creation { segment: Some(Blocks(256)), force: false };
    Pool::create(env, devices, creation).await.expect("created");
    use_pool(env, devices).await;
}

/// Opens, writes and closes: some checkpoints.
async fn use_pool(env: &Env, devices: &[Device]) {
    let pool = Pool::open(env, devices.to_vec(), Config::default()).await.expect("opened");
    let volume = match pool.volume("v") {
        Some(volume) => volume,
        None => pool.create_volume("v").await.expect("made"),
    };
    let mut txn = Txn::new();
    volume.write(&mut txn, Lba(3), &Bytes::from(vec![7; 3 * BLOCK_LEN]));
    volume.commit(txn).await.expect("committed");
    pool.checkpoint().await.expect("a checkpoint");
    pool.close().await.expect("closed");
}

async fn refusal(env: &Env, devices: Vec<Device>) -> Error {
    match Pool::open(env, devices, Config::default()).await {
        Ok(_) => panic!("it was opened"),
        Err(error) => error,
    }
}

/// Opening fails with this kind, and says all of this.
async fn refused(env: &Env, devices: Vec<Device>, kind: Kind, said: &[&str]) {
    let error = refusal(env, devices).await;
    assert_eq!(error.kind(), kind, "{error}");
    for words in said {
        assert!(error.to_string().contains(words), "{words:?} is not in: {error}");
    }
}

/// The first blocks of a device, on one of another size.
async fn resized(device: &Device, capacity: Blocks) -> Device {
    let copy = memory(capacity);
    let count = Blocks(capacity.0.min(device.geometry().capacity.0));
    if count > Blocks(0) {
        let data = device.read(TEST, Lba(0), count).await.expect("read");
        copy.write(TEST, Lba(0), vec![data], Durability::Cached).await.expect("written");
    }
    copy
}

/// Changes every superblock that has these bytes in its beginning, and seals it with a good checksum if told so.
async fn edit_superblocks(device: &Device, seal: bool, change: impl Fn(&mut [u8])) {
    for at in (0..RING_SLOTS).flat_map(|slot| superblock_slots(device.geometry().capacity, slot)) {
        let mut bytes = device.read(TEST, at, Blocks(2)).await.expect("read").to_vec();
        if !Superblock::is_trace(&bytes) {
            continue;
        }
        change(&mut bytes);
        if seal {
            bytes[12..16].fill(0);
            let sum = crc(&bytes);
            bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        }
        device.write(TEST, at, vec![bytes.into()], Durability::Cached).await.expect("written");
    }
}

#[test]
fn devices_without_a_pool() {
    run(|env| async move {
        for blocks in [0, 1, 15, 16, 17, 300, 600, 5000] {
            let said = ["memory: holds no pool", "ashlar pool create", "check the path"];
            refused(&env, vec![memory(Blocks(blocks))], Kind::Misuse, &said).await;
        }
        let foreign = memory(CAPACITY);
        let data = Bytes::from(vec![0xa5; 64 * BLOCK_LEN]);
        foreign.write(TEST, Lba(0), vec![data], Durability::Cached).await.expect("written");
        refused(&env, vec![foreign], Kind::Misuse, &["holds no pool", "check the path"]).await;
        refused(&env, vec![], Kind::Misuse, &["name at least one device"]).await;
    });
}

#[test]
fn devices_that_cannot_hold_a_pool() {
    run(|env| async move {
        for blocks in [0, 1, 16, 300, 600] {
            let made = Pool::create(&env, &[memory(Blocks(blocks))], Creation::default()).await;
            let error = made.expect_err("too small");
            assert!(error.to_string().contains("is too small") && error.to_string().contains("at least"), "{error}");
        }
        for (segment, said) in [(1 << 21, "too large"), (3, "power of two"), (1, "make them larger")] {
            let creation = Creation { segment: Some(Blocks(segment)), force: false };
            let made = Pool::create(&env, &[memory(Blocks(1 << 30))], creation).await;
            let error = made.expect_err("no segment").to_string();
            assert!(error.contains(said), "{said:?} is not in: {error}");
        }
    });
}

#[test]
fn truncated_devices() {
    run(|env| async move {
        let device = memory(CAPACITY);
        pool_on(&env, std::slice::from_ref(&device)).await;
        for blocks in [16, 17, 100, 300, 3000, CAPACITY.0 - 1] {
            let short = resized(&device, Blocks(blocks)).await;
            let sizes = [format!("({CAPACITY})"), format!("({blocks} blocks)")];
            let said = ["is cut short", "restore its full size", &sizes[0], &sizes[1]];
            refused(&env, vec![short], Kind::Corrupt, &said).await;
        }
        // Longer is fine: the end is simply not used.
        use_pool(&env, &[resized(&device, CAPACITY + Blocks(1000)).await]).await;
    });
}

#[test]
fn damaged_superblocks() {
    run(|env| async move {
        let sound = memory(CAPACITY);
        pool_on(&env, std::slice::from_ref(&sound)).await;
        let device = resized(&sound, CAPACITY).await;
        edit_superblocks(&device, false, |bytes| bytes[40] ^= 1).await;
        let said = ["no superblock is readable", "restore", "--force"];
        refused(&env, vec![device.clone()], Kind::Corrupt, &said).await;
        let made = Pool::create(&env, std::slice::from_ref(&device), Creation::default()).await;
        assert!(made.expect_err("data may be there").to_string().contains("--force"));
        Pool::create(&env, std::slice::from_ref(&device), Creation { force: true, segment: None })
            .await
            .expect("forced");

        let device = resized(&sound, CAPACITY).await;
        edit_superblocks(&device, true, |bytes| bytes[..8].copy_from_slice(b"OTHERFS\0")).await;
        refused(&env, vec![device], Kind::Misuse, &["holds no pool", "check the path"]).await;

        let device = resized(&sound, CAPACITY).await;
        edit_superblocks(&device, true, |bytes| bytes[8..10].copy_from_slice(&9u16.to_le_bytes())).await;
        let said = ["memory", "format version 9", "use a newer ashlar"];
        refused(&env, vec![device], Kind::Unsupported, &said).await;

        let device = resized(&sound, CAPACITY).await;
        edit_superblocks(&device, true, |bytes| bytes[16] = 4).await;
        refused(&env, vec![device], Kind::Unsupported, &["features 0x4", "use a newer ashlar"]).await;
    });
}

#[test]
fn exchanged_devices() {
    run(|env| async move {
        let (a, b) = ([memory(CAPACITY), memory(CAPACITY)], [memory(CAPACITY), memory(CAPACITY)]);
        pool_on(&env, &a).await;
        pool_on(&env, &b).await;
        let pair = |first: &Device, second: &Device| vec![first.clone(), second.clone()];
        refused(&env, pair(&a[0], &b[1]), Kind::Misuse, &["belongs to another pool", "check the list"]).await;
        refused(&env, pair(&a[0], &a[0]), Kind::Misuse, &["the same device", "name each once"]).await;
        for one in &a {
            refused(&env, vec![one.clone()], Kind::Failed, &["of 2 is missing", "name all devices"]).await;
        }
        // The order does not matter, and one too many is refused.
        use_pool(&env, &pair(&a[1], &a[0])).await;
        let three = vec![a[0].clone(), a[1].clone(), memory(CAPACITY)];
        refused(&env, three, Kind::Misuse, &["no part of the pool", "2 devices are all there"]).await;
        let said = ["holds nothing of the pool", "1 of 2 devices are there", "would destroy"];
        for lost in [pair(&a[0], &memory(CAPACITY)), pair(&memory(CAPACITY), &a[1])] {
            refused(&env, lost, Kind::Misuse, &said).await;
        }
        // A copy of one device from before.
        let old = resized(&b[1], CAPACITY).await;
        use_pool(&env, &b).await;
        refused(&env, pair(&b[0], &old), Kind::Corrupt, &["out of date", "name the device itself"]).await;
        // Two devices that were one: the pool's layers are not those that it was made on.
        let joined: Device = Arc::new(Joined::new(pair(&a[0], &a[1])));
        let error = refusal(&env, vec![joined]).await.to_string();
        assert!(error.contains("of 2 is missing") && error.contains("name all devices"), "{error}");
    });
}
