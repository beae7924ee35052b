//! Bulk loads: nothing is lost or half there after a power cut, they cost what is said, and what cannot be is refused.

use ashlar_block::{Checked, Device, Kind};
use ashlar_devices::{Memory, PowerCut, Tearing};
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_pool::{Compression, Config, Creation, Pool, Txn, Volume};
use ashlar_units::{Blocks, Bytes};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const CAPACITY: Blocks = Blocks(64 * 256 + 300);
/// Loads in steps of 128 KiB.
const SMALL: Bytes = Bytes(2 << 20);

fn run<F: Future<Output = ()> + Send + 'static>(seed: u64, schedule: Schedule, test: impl FnOnce(Env) -> F) {
    let sim = Sim::new(seed, schedule);
    let env = sim.env();
    sim.run(test(env)).expect("no deadlock");
}

async fn pool_on(env: &Env, device: Device, memory: Bytes) -> Volume {
    let creation = Creation { segment: Some(Blocks(256)), force: false };
    Pool::create(env, std::slice::from_ref(&device), creation).await.expect("created");
    let pool = open(env, device, memory).await;
    pool.create_volume("v").await.expect("a volume")
}

async fn open(env: &Env, device: Device, memory: Bytes) -> Pool {
    let config = Config { memory, compression: Compression::Off, ..Config::default() };
    Pool::open(env, vec![device], config).await.expect("opened")
}

fn key(index: u64) -> [u8; 9] {
    let mut key = *b"k........";
    key[1..].copy_from_slice(&index.to_be_bytes());
    key
}

/// Bytes that do not compress; another time, others.
fn value(index: u64, time: u64) -> Vec<u8> {
    let mut word = (index << 1 | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(time);
    let mut next = || {
        word = (word ^ (word >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(7);
        word
    };
    (0..12).flat_map(|_| next().to_le_bytes()).collect()
}

/// Loads every `by`th key below `end`, from `first` on.
async fn load(volume: &Volume, (first, end, by): (u64, u64, u64), time: u64) -> ashlar_block::Result<()> {
    let mut load = volume.load();
    for index in (first..end).step_by(by as usize) {
        load.put(&key(index), value(index, time)).await?;
    }
    load.finish().await
}

async fn time_of(volume: &Volume, index: u64) -> Option<u64> {
    let found = volume.get(&key(index)).await.expect("readable")?;
    let time = (1..=3).find(|time| value(index, *time) == found[..]);
    Some(time.unwrap_or_else(|| panic!("key {index} has something else")))
}

async fn verify_pool(pool: &Pool) {
    let checked = pool.check(|_, _| {}).await.expect("it can be checked");
    assert!(checked.damaged.is_empty() && checked.miscounted.is_empty(), "{checked:?}");
}

#[test]
fn a_load_that_is_cut_off_left_whole_steps_from_its_beginning() {
    const PAIRS: u64 = 8_000;
    let mut partial = 0;
    for seed in 0..12 {
        let (sender, receiver) = std::sync::mpsc::channel();
        run(seed, Schedule::Random, move |env| async move {
            let medium = Arc::new(PowerCut::new(CAPACITY, env.clone(), Duration::from_micros(50)));
            let volume = pool_on(&env, medium.clone(), SMALL).await;
            // Every fourth key is there before, some of them only in the memtable.
            load(&volume, (0, PAIRS / 2, 4), 1).await.expect("loaded");
            for index in (PAIRS / 2..PAIRS).step_by(4) {
                let mut txn = Txn::new();
                volume.put(&mut txn, &key(index), value(index, 1));
                volume.commit(txn).await.expect("committed");
            }
            volume.pool().sync_all().await.expect("synced");
            medium.cut_after(env.random() % 120);
            let done = load(&volume, (0, PAIRS, 2), 2).await;
            drop(volume);
            let survivor: Device = Arc::new(medium.after_cut(Tearing::ALL, env.clone()));
            let pool = open(&env, survivor, SMALL).await;
            let volume = pool.volume("v").expect("it is there");
            let mut reached = 0;
            for index in 0..PAIRS {
                let expected = index.is_multiple_of(4).then_some(1);
                match time_of(&volume, index).await {
                    Some(2) if index.is_multiple_of(2) && reached == index => reached += 2,
                    found => assert_eq!(found, expected, "key {index}, after the first {reached} were loaded"),
                }
            }
            assert!(done.is_err() || reached >= PAIRS, "what was finished is there: {reached}");
            verify_pool(&pool).await;
            pool.close().await.expect("closed");
            sender.send((1..PAIRS).contains(&reached)).expect("somebody listens");
        });
        partial += u32::from(receiver.recv().expect("it ended"));
    }
    assert!(partial > 0, "some were cut off in the middle");
}

#[test]
fn loads_go_past_those_who_write_and_read() {
    const PAIRS: u64 = 3_000;
    for seed in 0..4 {
        run(seed, Schedule::Random, |env| async move {
            let device = Memory::new(CAPACITY).with_delay(env.clone(), Duration::from_micros(50));
            let volume = pool_on(&env, Arc::new(device), SMALL).await;
            let ended = Arc::new(AtomicBool::new(false));
            // Somebody writes odd keys, and looks whether what was seen of the load stays.
            let (writer, stop) = (volume.clone(), ended.clone());
            let other = env.clone();
            let writing = env.spawn(async move {
                let (mut written, mut seen) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    let mut txn = Txn::new();
                    let index = (2 * written + 1) % PAIRS;
                    writer.put(&mut txn, &key(index), value(index, 3));
                    writer.commit(txn).await.expect("committed");
                    assert_eq!(time_of(&writer, index).await, Some(3));
                    written += 1;
                    while seen < PAIRS && time_of(&writer, seen).await.is_some() {
                        seen += 2;
                    }
                    assert!(seen == 0 || time_of(&writer, seen - 2).await == Some(2), "it was there");
                    other.sleep(Duration::from_micros(other.random() % 200)).await;
                }
                written.min(PAIRS / 2)
            });
            load(&volume, (0, PAIRS, 2), 2).await.expect("loaded");
            ended.store(true, Ordering::Relaxed);
            let written = writing.await;
            for index in 0..PAIRS {
                let expected = if index.is_multiple_of(2) { Some(2) } else { (index / 2 < written).then_some(3) };
                assert_eq!(time_of(&volume, index).await, expected, "key {index}");
            }
            verify_pool(volume.pool()).await;
        });
    }
}

#[test]
fn each_byte_is_written_once() {
    const PAIRS: u64 = 60_000;
    run(1, Schedule::Fifo, |env| async move {
        let counted = Arc::new(Checked::new(Arc::new(Memory::new(CAPACITY)), env.clone()));
        let volume = pool_on(&env, counted.clone(), Bytes(64 << 20)).await;
        let before = counted.counters().written_bytes.load(Ordering::Relaxed);
        load(&volume, (0, PAIRS, 1), 1).await.expect("loaded");
        let written = counted.counters().written_bytes.load(Ordering::Relaxed) - before;
        let user = PAIRS * (9 + 96);
        assert!(written < user * 6 / 5, "{written} bytes for {user}");
        for index in (0..PAIRS).step_by(97) {
            assert_eq!(time_of(&volume, index).await, Some(1));
        }
    });
}

#[test]
fn a_full_pool_refuses_a_load_and_goes_on() {
    run(1, Schedule::Fifo, |env| async move {
        let device: Device = Arc::new(Memory::new(Blocks(20 * 256 + 300)));
        let volume = pool_on(&env, device.clone(), SMALL).await;
        let mut time = 0;
        let refused = loop {
            time += 1;
            let mut next = volume.load();
            let mut outcome = Ok(());
            for index in 0..20_000u64 {
                outcome = next.put(&[&b"n"[..], &[time], &index.to_be_bytes()].concat(), value(index, 1)).await;
                if outcome.is_err() {
                    break;
                }
            }
            match outcome {
                Err(error) => {
                    // Nothing may come behind what is not there.
                    let more = next.put(b"o", &b"more"[..]).await.expect_err("a step before it failed");
                    let end = next.finish().await.expect_err("a step before it failed");
                    assert_eq!((more.kind(), end.kind()), (error.kind(), error.kind()));
                    break error;
                }
                Ok(()) => next.finish().await.expect("what is left of a step that had room"),
            }
        };
        assert_eq!(refused.kind(), Kind::NoSpace, "{refused}");
        let mut txn = Txn::new().deleting();
        volume.delete_range(&mut txn, b"n", b"o");
        volume.commit(txn).await.expect("a full pool takes deletions");
        load(&volume, (0, 5_000, 1), 2).await.expect("there is room again");
        assert_eq!(time_of(&volume, 4_999).await, Some(2));
        verify_pool(volume.pool()).await;
        drop(volume);
        let pool = open(&env, device, SMALL).await;
        let volume = pool.volume("v").expect("it is there");
        assert_eq!(time_of(&volume, 4_999).await, Some(2), "it was durable");
    });
}

#[test]
fn what_cannot_be_loaded_is_refused() {
    run(1, Schedule::Fifo, |env| async move {
        let volume = pool_on(&env, Arc::new(Memory::new(CAPACITY)), SMALL).await;
        let mut load = volume.load();
        load.put(&key(5), &b"five"[..]).await.expect("the first");
        for index in [5, 4] {
            let error = load.put(&key(index), &b"again"[..]).await.expect_err("not above the one before");
            assert_eq!(error.kind(), Kind::Misuse, "{error}");
        }
        let error = load.put(&key(6), vec![0; 1 << 20]).await.expect_err("too large");
        assert_eq!(error.kind(), Kind::Misuse, "{error}");
        load.finish().await.expect("what was taken is there");
        assert_eq!(volume.get(&key(5)).await.expect("readable").as_deref(), Some(&b"five"[..]));

        let snapshot = volume.pool().create_snapshot("v", "s").await.expect("a snapshot");
        let mut load = snapshot.load();
        load.put(&key(7), &b"seven"[..]).await.expect("it waits");
        let error = load.finish().await.expect_err("a snapshot does not change");
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
        volume.pool().checkpoint().await.expect("nothing is poisoned");
    });
}
