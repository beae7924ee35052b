//! A pool that many writers fill: they are refused, nothing that was acknowledged is lost, and deleting makes room.

use ashlar_block::{Device, Kind};
use ashlar_devices::PowerCut;
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_pool::{Compression, Config, Creation, Pool, Txn, Volume};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes, Lba};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const WRITERS: u64 = 12;
/// Blocks of a transaction.
const STRIDE: u64 = 32;
/// How often a writer that was refused tries again, as a kernel does with its pages.
const STUBBORN: usize = 30;
/// Blocks that each writer has for itself.
const OWN: u64 = 1 << 20;

fn data(first: u64, stamp: u8) -> Vec<u8> {
    (first..first + STRIDE).flat_map(|at| [(at as u8) ^ stamp; BLOCK_LEN]).collect()
}

async fn write(volume: &Volume, first: u64, stamp: u8) -> ashlar_block::Result<()> {
    let mut txn = Txn::new();
    volume.write(&mut txn, Lba(first), &data(first, stamp).into());
    volume.commit(txn).await.map(drop)
}

/// Writes until it was refused often enough. How many transactions were acknowledged.
async fn fill(env: Env, volume: Volume, writer: u64, stamp: u8) -> u64 {
    let (mut done, mut refused) = (0, 0);
    while refused < STUBBORN {
        match write(&volume, writer * OWN + done * STRIDE, stamp).await {
            Ok(()) => done += 1,
            Err(error) => {
                assert_eq!(error.kind(), Kind::NoSpace, "writer {writer}: {error}");
                refused += 1;
                env.sleep(Duration::from_micros(100)).await;
            }
        }
    }
    done
}

/// Reads all the time, so that emptied segments cannot be used again at once.
async fn keep_reading(env: Env, volume: Volume, ended: Arc<AtomicBool>) {
    while !ended.load(Ordering::Relaxed) {
        for writer in 0..WRITERS {
            volume.read(Lba(writer * OWN), Blocks(STRIDE)).await.expect("read");
            env.sleep(Duration::from_micros(30)).await;
        }
    }
}

async fn discard(volume: &Volume, first: u64, count: u64) {
    let mut txn = Txn::new().deleting();
    volume.discard(&mut txn, Lba(first), Blocks(count));
    volume.commit(txn).await.expect("a full pool takes deletions");
}

/// Deletes a little, and writes what is free again, on the full pool. Nothing of its own remains at the end.
async fn churn(volume: Volume, writer: u64, done: u64) {
    for at in (0..done).rev().step_by(3) {
        let first = writer * OWN + at * STRIDE;
        discard(&volume, first, STRIDE).await;
        if let Err(error) = write(&volume, first, 77).await {
            assert_eq!(error.kind(), Kind::NoSpace, "writer {writer}: {error}");
        }
    }
    discard(&volume, writer * OWN, OWN).await;
}

async fn fill_by_all(env: &Env, volume: &Volume, stamp: u8) -> Vec<u64> {
    let ended = Arc::new(AtomicBool::new(false));
    let reader = env.spawn(keep_reading(env.clone(), volume.clone(), ended.clone()));
    let writers: Vec<_> =
        (0..WRITERS).map(|writer| env.spawn(fill(env.clone(), volume.clone(), writer, stamp))).collect();
    let mut done = Vec::new();
    for writer in writers {
        done.push(writer.await);
    }
    ended.store(true, Ordering::Relaxed);
    reader.await;
    done
}

fn run(seed: u64) {
    let sim = Sim::new(seed, Schedule::Random);
    let env = sim.env();
    let test = async move {
        let device: Device = Arc::new(PowerCut::new(Blocks(48 * 128 + 300), env.clone(), Duration::from_micros(50)));
        let creation = Creation { segment: Some(Blocks(128)), force: false };
        Pool::create(&env, std::slice::from_ref(&device), creation).await.expect("made");
        let config = Config { memory: Bytes::mib(2), compression: Compression::Off, ..Config::default() };
        let pool = Pool::open(&env, vec![device], config).await.expect("opened");
        let volume = pool.create_volume("v").await.expect("made");
        for stamp in 1..4 {
            let done = fill_by_all(&env, &volume, stamp).await;
            assert!(
                done.iter().sum::<u64>() * STRIDE > 48 * 128 / 2,
                "seed {seed}, round {stamp}: half of the pool is for data: {done:?}, {:?}",
                pool.status()
            );
            pool.sync_all().await.expect("a full pool can sync");
            for (writer, &done) in done.iter().enumerate() {
                for first in (0..done).map(|at| writer as u64 * OWN + at * STRIDE) {
                    let read = volume.read(Lba(first), Blocks(STRIDE)).await.expect("read").concat();
                    assert!(read == data(first, stamp), "writer {writer} reads other data at {first}");
                }
            }
            let churn = |(writer, &done): (usize, &u64)| env.spawn(churn(volume.clone(), writer as u64, done));
            for writer in done.iter().enumerate().map(churn).collect::<Vec<_>>() {
                writer.await;
            }
            env.sleep(Duration::from_secs(6)).await;
            let status = pool.status();
            assert!(
                status.free > status.capacity / 2,
                "seed {seed}, round {stamp}: nobody asks, and it is free: {status:?}"
            );
        }
        let checked = pool.check(|_, _| {}).await.expect("checked");
        assert_eq!((checked.damaged, checked.miscounted), (vec![], vec![]));
        pool.close().await.expect("closed");
    };
    sim.run(test).unwrap_or_else(|_| panic!("deadlock"));
}

/// Keys of one transaction, and the length of their values.
const KEYS: u64 = 24;
const VALUE_LEN: usize = 1500;

fn key(writer: u64, number: u64) -> Vec<u8> {
    // Spread over the whole tree.
    let hash = (number << 8 | writer).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    [b"k".as_slice(), &hash.to_be_bytes(), &writer.to_be_bytes(), &number.to_be_bytes()].concat()
}

/// Does not compress.
fn value(writer: u64, number: u64) -> Vec<u8> {
    let mut word = number << 8 | writer | 1 << 60;
    let next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (word >> 56) as u8
    };
    std::iter::repeat_with(next).take(VALUE_LEN).collect()
}

async fn put(volume: &Volume, writer: u64, first: u64) -> ashlar_block::Result<()> {
    let mut txn = Txn::new();
    (first..first + KEYS).for_each(|number| volume.put(&mut txn, &key(writer, number), value(writer, number)));
    volume.commit(txn).await.map(drop)
}

async fn delete(volume: &Volume, writer: u64, numbers: impl Iterator<Item = u64>) {
    let numbers: Vec<u64> = numbers.collect();
    for some in numbers.chunks(100) {
        let mut txn = Txn::new().deleting();
        some.iter().for_each(|&number| volume.delete(&mut txn, &key(writer, number)));
        volume.commit(txn).await.expect("a full pool takes deletions");
    }
}

/// Puts keys until it was refused often enough, and deletes and puts some on the full pool. How many there are then.
async fn fill_with_keys(env: Env, volume: Volume, writer: u64) -> u64 {
    let (mut done, mut refused) = (0, 0);
    while refused < STUBBORN / 2 {
        match put(&volume, writer, done).await {
            Ok(()) => done += KEYS,
            Err(error) => {
                assert_eq!(error.kind(), Kind::NoSpace, "writer {writer}: {error}");
                refused += 1;
                env.sleep(Duration::from_micros(100)).await;
                if refused % 5 == 0 && done > 0 {
                    done -= KEYS;
                    delete(&volume, writer, done..done + KEYS).await;
                }
            }
        }
    }
    done
}

/// The index takes most of the pool, and what is put into it is spread over all of it.
fn run_with_keys(seed: u64) {
    let sim = Sim::new(seed, Schedule::Random);
    let env = sim.env();
    let test = async move {
        let device: Device = Arc::new(PowerCut::new(Blocks(48 * 128 + 300), env.clone(), Duration::from_micros(50)));
        let creation = Creation { segment: Some(Blocks(128)), force: false };
        Pool::create(&env, std::slice::from_ref(&device), creation).await.expect("made");
        let config = Config { memory: Bytes::mib(4), compression: Compression::Off, ..Config::default() };
        let pool = Pool::open(&env, vec![device], config).await.expect("opened");
        let volume = pool.create_volume("v").await.expect("made");
        for round in 1..4 {
            let fill = |writer| env.spawn(fill_with_keys(env.clone(), volume.clone(), writer));
            let mut done = Vec::new();
            for writer in (0..4).map(fill).collect::<Vec<_>>() {
                done.push(writer.await);
            }
            eprintln!("round {round}: {done:?} {:?}", pool.status());
            pool.sync_all().await.expect("a full pool can sync");
            for (writer, &done) in done.iter().enumerate() {
                let writer = writer as u64;
                for number in 0..done {
                    let read = volume.get(&key(writer, number)).await.expect("read");
                    assert!(read.is_some_and(|read| read == value(writer, number)), "key {number} of {writer}");
                }
                delete(&volume, writer, 0..done).await;
            }
        }
        let checked = pool.check(|_, _| {}).await.expect("checked");
        assert_eq!((checked.damaged, checked.miscounted), (vec![], vec![]));
        pool.close().await.expect("closed");
    };
    sim.run(test).unwrap_or_else(|_| panic!("deadlock"));
}

#[test]
fn a_pool_full_of_keys_takes_deletions() {
    for seed in 0..2 {
        eprintln!("seed {seed}");
        run_with_keys(seed);
    }
}

#[test]
fn many_writers_fill_a_pool_and_it_takes_deletions() {
    for seed in 0..12 {
        eprintln!("seed {seed}");
        run(seed);
    }
}
