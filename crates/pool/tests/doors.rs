//! Devices that hold no pool, or not the whole pool, or another one: each gives an error that says what to do.

use ashlar_block::{Device, Durability, Error, IoContext, Kind};
use ashlar_devices::{Joined, Memory, PowerCut, Tearing};
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_pool::format::{RING_SLOTS, Superblock, crc, superblock_slots};
use ashlar_pool::{Compression, Config, Creation, Pool, Txn};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

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

/// What `use_pool` wrote is there; so many segments of 1 MiB are.
async fn holds(env: &Env, devices: &[Device], segments: u64) {
    let pool = Pool::open(env, devices.to_vec(), Config::default()).await.expect("opened");
    assert_eq!(pool.status().capacity, segments << 20);
    let read = pool.volume("v").expect("there").read(Lba(3), Blocks(3)).await.expect("readable").concat();
    assert!(read.len() == 3 * BLOCK_LEN && read.iter().all(|byte| *byte == 7));
    pool.close().await.expect("closed");
}

/// Opens and takes what the devices became larger by; how many it was, and what was too little.
async fn enlarge(env: &Env, devices: &[Device]) -> (usize, usize) {
    let pool = Pool::open(env, devices.to_vec(), Config::default()).await.expect("opened");
    let seen = pool.unused_ends().0;
    let enlarged = pool.enlarge().await.expect("it grows");
    let taken = enlarged.taken.iter().map(|(_, size)| size.0).sum::<u64>();
    assert_eq!((taken, pool.unused_ends().0), (seen, 0));
    assert_eq!(pool.enlarge().await.expect("nothing").taken, []);
    pool.close().await.expect("closed");
    (enlarged.taken.len(), enlarged.left.len())
}

/// Fills what a pool has with a block for each number, and finds all of them again after opening.
async fn fill(env: &Env, devices: &[Device], segments: u64) {
    let blocks = segments * 256 / 2;
    let block =
        |number: u64| Bytes::from([number.to_le_bytes(), (!number).to_le_bytes()].concat().repeat(BLOCK_LEN / 16));
    let config = Config { compression: Compression::Off, ..Config::default() };
    let pool = Pool::open(env, devices.to_vec(), config).await.expect("opened");
    let volume = pool.volume("v").expect("there");
    for number in 100..blocks {
        let mut txn = Txn::new();
        volume.write(&mut txn, Lba(number), &block(number));
        volume.commit(txn).await.expect("there is room");
    }
    pool.close().await.expect("closed");
    let pool = Pool::open(env, devices.to_vec(), config).await.expect("opened");
    let volume = pool.volume("v").expect("there");
    for number in 100..blocks {
        assert_eq!(volume.read(Lba(number), Blocks(1)).await.expect("readable"), [block(number)]);
    }
    assert_eq!(pool.check(|_, _| ()).await.expect("checked").damaged, []);
    pool.close().await.expect("closed");
}

#[test]
fn enlarged_devices() {
    run(|env| async move {
        let one = |device: &Device| [device.clone()];
        let device = memory(CAPACITY);
        pool_on(&env, &one(&device)).await;
        assert_eq!(enlarge(&env, &one(&device)).await, (0, 0));
        // 12 segments and their superblocks are the least.
        let little = resized(&device, CAPACITY + Blocks(12 * 256 + 271)).await;
        assert_eq!(enlarge(&env, &one(&little)).await, (0, 1));
        holds(&env, &one(&little), 20).await;
        let larger = resized(&little, CAPACITY + Blocks(12 * 256 + 272)).await;
        assert_eq!(enlarge(&env, &one(&larger)).await, (1, 0));
        holds(&env, &one(&larger), 32).await;
        let largest = resized(&larger, CAPACITY + Blocks(50 * 256)).await;
        assert_eq!(enlarge(&env, &one(&largest)).await, (1, 0));
        holds(&env, &one(&largest), 67).await;
        fill(&env, &one(&largest), 67).await;
        // As large as before, it lacks the last part, and says so; as one of several it may become larger as well.
        let said = ["device 3 of 3 is missing", "as large as then"];
        refused(&env, vec![resized(&largest, CAPACITY + Blocks(12 * 256 + 272)).await], Kind::Failed, &said).await;
        let cut = resized(&largest, CAPACITY + Blocks(40 * 256)).await;
        refused(&env, vec![cut], Kind::Failed, &["device 3 of 3 is missing", "is cut short"]).await;
        let pool = Pool::open(&env, vec![largest.clone()], Config::default()).await.expect("opened");
        let second = memory(CAPACITY);
        pool.grow(second.clone(), false, || Ok(())).await.expect("it grows");
        pool.close().await.expect("closed");
        let second = resized(&second, CAPACITY + Blocks(16 * 256)).await;
        let both = [second, largest];
        assert_eq!(enlarge(&env, &both).await, (1, 0));
        holds(&env, &both, 67 + 20 + 14).await;
        fill(&env, &both, 67 + 20 + 14).await;
    });
}

#[test]
fn damaged_superblocks_of_enlarged_devices() {
    run(|env| async move {
        let device = memory(CAPACITY);
        pool_on(&env, std::slice::from_ref(&device)).await;
        // Where what the pool has ends is known, wherever the device ends.
        let larger = resized(&device, CAPACITY + Blocks(14 * 256)).await;
        let noise = || vec![Bytes::from(vec![0xee; 16 * BLOCK_LEN])];
        let (back, behind) = (Lba(CAPACITY.0 - 16), Lba(CAPACITY.0));
        let damaged = resized(&larger, CAPACITY + Blocks(14 * 256)).await;
        damaged.write(TEST, back, noise(), Durability::Forced).await.expect("room");
        holds(&env, &[damaged], 20).await;
        enlarge(&env, std::slice::from_ref(&larger)).await;
        let end = Lba(CAPACITY.0 + 14 * 256 - 16);
        for at in [Lba(0), back, behind, end] {
            let damaged = resized(&larger, CAPACITY + Blocks(14 * 256)).await;
            damaged.write(TEST, at, noise(), Durability::Forced).await.expect("room");
            holds(&env, std::slice::from_ref(&damaged), 32).await;
            // The rings are whole again.
            damaged
                .write(TEST, if at == Lba(0) { back } else { Lba(0) }, noise(), Durability::Forced)
                .await
                .expect("room");
            holds(&env, &[damaged], 32).await;
        }
        // An old image of the device, with what it became larger by still behind.
        let old = resized(&larger, CAPACITY + Blocks(14 * 256)).await;
        let all = device.read(TEST, Lba(0), CAPACITY).await.expect("readable");
        old.write(TEST, Lba(0), vec![all], Durability::Forced).await.expect("room");
        refused(&env, vec![old.clone()], Kind::Corrupt, &["out of date", "give the device the size of the copy"]).await;
        holds(&env, &[resized(&old, CAPACITY).await], 20).await;
        let copy = memory(Blocks(14 * 256));
        let part = larger.read(TEST, behind, Blocks(14 * 256)).await.expect("readable");
        copy.write(TEST, Lba(0), vec![part], Durability::Forced).await.expect("room");
        refused(&env, vec![copy], Kind::Corrupt, &["a copy of a part", "name the device itself"]).await;
    });
}

/// Power that fails at any write of taking more of a device leaves a pool that goes on, with it or without, and takes it later, also
/// when another device was added meanwhile.
#[test]
fn enlarging_that_is_cut_off() {
    run(|env| async move {
        let (mut without, mut with) = (0, 0);
        for operations in 0.. {
            let medium = Arc::new(PowerCut::new(CAPACITY, env.clone(), Duration::from_micros(1)));
            pool_on(&env, &[medium.clone() as Device]).await;
            let pool = Pool::open(&env, vec![medium.clone() as Device], Config::default()).await.expect("opened");
            medium.enlarge(Blocks(20 * 256));
            medium.cut_after(operations);
            let enlarged = pool.enlarge().await;
            drop(pool);
            let device: Device = Arc::new(medium.after_cut(Tearing::ALL, env.clone()));
            let pool = Pool::open(&env, vec![device.clone()], Config::default()).await.expect("opened");
            let segments = pool.status().capacity >> 20;
            *(if segments == 20 { &mut without } else { &mut with }) += 1;
            let second = memory(CAPACITY);
            pool.grow(second.clone(), false, || Ok(())).await.expect("it grows");
            pool.close().await.expect("closed");
            let both = [second, device];
            holds(&env, &both, segments + 20).await;
            assert_eq!(enlarge(&env, &both).await, (usize::from(segments == 20), 0));
            holds(&env, &both, 58).await;
            if enlarged.is_ok() {
                break;
            }
        }
        assert!(without > 2 && with > 2, "{without} times without, {with} with");
    });
}

/// Before it is written to or listed.
#[test]
fn one_device_too_many() {
    run(|env| async move {
        let mut devices: Vec<Device> = (0..64).map(|_| memory(Blocks(12 * 256 + 272))).collect();
        pool_on(&env, &devices).await;
        let pool = Pool::open(&env, devices.clone(), Config::default()).await.expect("opened");
        let another = memory(CAPACITY);
        let grown = pool.grow(another.clone(), false, || panic!("it is not listed")).await;
        let said = grown.expect_err("there are 64").to_string();
        assert!(said.contains("can have 64 devices"), "{said}");
        pool.close().await.expect("closed");
        refused(&env, vec![another], Kind::Misuse, &["holds no pool"]).await;
        // Nor does one of them have room for a part.
        devices[5] = resized(&devices[5], CAPACITY + Blocks(20 * 256)).await;
        let pool = Pool::open(&env, devices.clone(), Config::default()).await.expect("opened");
        let said = pool.enlarge().await.expect_err("there are 64").to_string();
        assert!(said.contains("parts of enlarged ones"), "{said}");
        pool.close().await.expect("closed");
        holds(&env, &devices, 64 * 12).await;
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
