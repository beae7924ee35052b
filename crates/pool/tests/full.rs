//! A pool that many writers fill: they are refused, nothing that was acknowledged is lost, and deleting makes room.

use ashlar_block::{Device, IoContext, Kind, Layer, Result};
use ashlar_devices::{PowerCut, Room, Tearing, Thin};
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_pool::{Compression, Config, Creation, Damaged, Pool, Txn, Volume};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes, Lba};
use bytes::Bytes as Piece;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const WRITERS: u64 = 12;
/// Blocks of its segments.
const BLOCKS: u64 = 48 * 128;
/// Blocks of a transaction.
const STRIDE: u64 = 32;
/// How often a writer that was refused tries again, as a kernel does with its pages.
const STUBBORN: usize = 30;
/// Blocks that each writer has for itself.
const OWN: u64 = 1 << 20;

/// Tries so many seeds; `ASHLAR_SEEDS` asks for more.
fn each_seed(usual: u64, test: impl Fn(u64)) {
    let count = std::env::var("ASHLAR_SEEDS").map_or(usual, |text| text.parse().expect("ASHLAR_SEEDS is a number"));
    for seed in 0..count {
        eprintln!("seed {seed}");
        test(seed);
    }
}

fn data(first: u64, stamp: u8) -> Vec<u8> {
    (first..first + STRIDE).flat_map(|at| [(at as u8) ^ stamp; BLOCK_LEN]).collect()
}

async fn write(volume: &Volume, first: u64, stamp: u8) -> Result<()> {
    let mut txn = Txn::new();
    volume.write(&mut txn, Lba(first), &data(first, stamp).into());
    volume.commit(txn).await.map(drop)
}

/// The same, each block by itself, as it comes to be when many write here and there.
async fn write_singly(volume: &Volume, first: u64, stamp: u8) -> Result<()> {
    let mut txn = Txn::new();
    let data = Piece::from(data(first, stamp));
    (0..STRIDE).zip(data.chunks(BLOCK_LEN)).for_each(|(at, block)| {
        volume.write(&mut txn, Lba(first + at), &data.slice_ref(block));
    });
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
async fn churn(volume: Volume, writer: u64, done: u64) -> u64 {
    for at in (0..done).rev().step_by(3) {
        let first = writer * OWN + at * STRIDE;
        discard(&volume, first, STRIDE).await;
        if let Err(error) = write(&volume, first, 77).await {
            assert_eq!(error.kind(), Kind::NoSpace, "writer {writer}: {error}");
        }
    }
    discard(&volume, writer * OWN, OWN).await;
    done
}

/// A small pool with one volume.
struct Place {
    env: Env,
    device: Arc<PowerCut>,
    /// Where the device's blocks take room from, if it is thin.
    room: Option<Room>,
    /// Blocks that the pool can have for segments.
    blocks: u64,
    memory: Bytes,
    pool: Pool,
    volume: Volume,
}

impl Place {
    /// With `thin` there is room for so many blocks of segments, and a device that tells that it is thin has twice as many.
    async fn make(env: Env, memory: Bytes, thin: Option<u64>) -> Place {
        let capacity = Blocks(thin.map_or(BLOCKS, |blocks| 2 * blocks) + 300);
        let device = Arc::new(PowerCut::new(capacity, env.clone(), Duration::from_micros(50)));
        let room = thin.map(|blocks| Room::new(capacity, Blocks(blocks + 300)));
        let creation = Creation { segment: Some(Blocks(128)), force: false };
        Pool::create(&env, &[on(&device, &room)], creation).await.expect("made");
        let pool = Place::open(&env, on(&device, &room), memory).await;
        let volume = pool.create_volume("v").await.expect("made");
        Place { env, device, room, blocks: thin.unwrap_or(BLOCKS), memory, pool, volume }
    }

    async fn open(env: &Env, device: Device, memory: Bytes) -> Pool {
        let config = Config { memory, compression: Compression::Off, ..Config::default() };
        Pool::open(env, vec![device], config).await.expect("a full pool opens")
    }

    /// Everything is synced, then the power fails and comes back.
    async fn cut(self) -> Place {
        self.pool.sync_all().await.expect("a full pool can sync");
        let device = Arc::new(self.device.after_cut(Tearing::ALL, self.env.clone()));
        let pool = Place::open(&self.env, on(&device, &self.room), self.memory).await;
        let volume = pool.volume("v").expect("it was made");
        Place { device, pool, volume, ..self }
    }

    /// Does what `does` says for each writer, all at once; what each gives.
    async fn all<F: Future<Output = u64> + Send + 'static>(&self, does: impl FnMut(u64) -> F) -> Vec<u64> {
        let mut given = Vec::new();
        for writer in (0..WRITERS).map(does).map(|task| self.env.spawn(task)).collect::<Vec<_>>() {
            given.push(writer.await);
        }
        given
    }
}

/// The device as the pool sees it.
fn on(device: &Arc<PowerCut>, room: &Option<Room>) -> Device {
    match room {
        Some(room) => Arc::new(Thin::new(device.clone(), room.clone())),
        None => device.clone(),
    }
}

/// Runs a test on a small pool and checks the pool at the end.
fn on_a_pool<F>(seed: u64, memory: Bytes, thin: Option<u64>, test: impl FnOnce(Place) -> F + Send + 'static)
where
    F: Future<Output = Place> + Send + 'static,
{
    let sim = Sim::new(seed, Schedule::Random);
    let env = sim.env();
    let run = async move {
        let Place { pool, .. } = test(Place::make(env, memory, thin).await).await;
        let checked = pool.check(|_, _| {}).await.expect("checked");
        assert_eq!((checked.damaged, checked.miscounted), (vec![], vec![]));
        pool.close().await.expect("closed");
    };
    sim.run(run).unwrap_or_else(|_| panic!("seed {seed}: deadlock"));
}

async fn fill_by_all(place: &Place, stamp: u8) -> Vec<u64> {
    let Place { env, volume, .. } = place;
    let ended = Arc::new(AtomicBool::new(false));
    let reader = env.spawn(keep_reading(env.clone(), volume.clone(), ended.clone()));
    let done = place.all(|writer| fill(env.clone(), volume.clone(), writer, stamp)).await;
    ended.store(true, Ordering::Relaxed);
    reader.await;
    done
}

async fn verify(volume: &Volume, done: &[u64], stamp: u8) {
    for (writer, &done) in (0..).zip(done) {
        for first in (0..done).map(|at| writer * OWN + at * STRIDE) {
            let read = volume.read(Lba(first), Blocks(STRIDE)).await.expect("read").concat();
            assert!(read == data(first, stamp), "writer {writer} reads other data at {first}");
        }
    }
}

async fn data_three_times(mut place: Place) -> Place {
    for stamp in 1..4 {
        let done = fill_by_all(&place, stamp).await;
        let status = place.pool.status();
        assert!(done.iter().sum::<u64>() * STRIDE > place.blocks / 2, "half is for data: {done:?}, {status:?}");
        verify(&place.volume, &done, stamp).await;
        place = place.cut().await;
        verify(&place.volume, &done, stamp).await;
        place.all(|writer| churn(place.volume.clone(), writer, done[writer as usize])).await;
        place.env.sleep(Duration::from_secs(6)).await;
        let status = place.pool.status();
        let whole = if place.room.is_some() { place.blocks * BLOCK_LEN as u64 } else { status.capacity };
        assert!(status.free > whole / 2, "round {stamp}: nobody asks, and it is free: {status:?}");
    }
    place
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

async fn put(volume: &Volume, writer: u64, first: u64) -> Result<()> {
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

async fn verify_keys(volume: &Volume, done: &[u64]) {
    for (writer, &done) in (0..).zip(done) {
        for number in 0..done {
            let read = volume.get(&key(writer, number)).await.expect("read");
            assert!(read.is_some_and(|read| read == value(writer, number)), "key {number} of {writer}");
        }
    }
}

/// The index takes most of the pool, and what is put into it is spread over all of it.
async fn keys_three_times(mut place: Place) -> Place {
    for _ in 1..4 {
        let done = place.all(|writer| fill_with_keys(place.env.clone(), place.volume.clone(), writer)).await;
        let bytes = done.iter().sum::<u64>() * VALUE_LEN as u64;
        assert!(
            bytes > place.blocks * BLOCK_LEN as u64 / 4,
            "a quarter is for keys: {done:?}, {:?}",
            place.pool.status()
        );
        verify_keys(&place.volume, &done).await;
        place = place.cut().await;
        verify_keys(&place.volume, &done).await;
        for (writer, &done) in (0..).zip(&done) {
            delete(&place.volume, writer, 0..done).await;
        }
    }
    place
}

#[test]
fn a_pool_full_of_keys_takes_deletions() {
    each_seed(2, |seed| {
        on_a_pool(seed, Bytes::mib(4), None, keys_three_times);
    });
}

#[test]
fn many_writers_fill_a_pool_and_it_takes_deletions() {
    each_seed(12, |seed| {
        on_a_pool(seed, Bytes::mib(2), None, data_three_times);
    });
}

/// Others take the room that a thin device would have taken, at any time. What there is room for is used as in a pool of that size.
#[test]
fn a_pool_on_thin_devices_is_as_large_as_its_room() {
    each_seed(6, |seed| {
        on_a_pool(seed, Bytes::mib(2), Some(BLOCKS), data_three_times);
        on_a_pool(seed, Bytes::mib(4), Some(BLOCKS), keys_three_times);
    });
}

/// A thin device loses all room while many write, and has some again later.
async fn lost_and_regained(place: Place) -> Place {
    let (env, volume) = (place.env.clone(), place.volume.clone());
    let room = place.room.clone().expect("it is thin");
    let others = {
        let (env, room, pool) = (env.clone(), room.clone(), place.pool.clone());
        let after = place.blocks * BLOCK_LEN as u64 / 16 * (1 + env.random() % 5);
        env.clone().spawn(async move {
            while pool.status().used < after {
                env.sleep(Duration::from_micros(200)).await;
            }
            room.set(Blocks(0));
        })
    };
    let done = fill_by_all(&place, 1).await;
    others.await;
    let total = |done: &[u64]| done.iter().sum::<u64>() * STRIDE;
    assert!(total(&done) < place.blocks * 7 / 10, "others took the room in the middle: {done:?}");
    let status = place.pool.status();
    assert!(status.free < 1 << 20, "what has no room is not free: {status:?}");
    verify(&volume, &done, 1).await;
    discard(&volume, 0, STRIDE).await;
    // Without room it opens again, after a cut.
    let place = place.cut().await;
    let mut kept = done.clone();
    kept[0] = 0;
    verify(&place.volume, &kept, 1).await;
    place.all(|writer| churn(place.volume.clone(), writer, done[writer as usize])).await;
    room.set(Blocks(place.blocks));
    env.sleep(Duration::from_secs(20)).await;
    let again = fill_by_all(&place, 2).await;
    assert!(
        total(&again) > total(&done) && total(&again) > place.blocks * 6 / 10,
        "there is room again: {done:?}, {again:?}"
    );
    verify(&place.volume, &again, 2).await;
    place
}

#[test]
fn who_takes_the_room_of_a_thin_device_breaks_nothing() {
    each_seed(12, |seed| {
        on_a_pool(seed, Bytes::mib(2), Some(BLOCKS), lost_and_regained);
    });
}

/// Tells the device what is free all the time.
async fn keep_trimming(env: Env, pool: Pool, ended: Arc<AtomicBool>) {
    while !ended.load(Ordering::Relaxed) {
        pool.trim(|_, _| {}).await.expect("trimmed");
        env.sleep(Duration::from_micros(env.random() % 5000)).await;
    }
}

/// What is free is given back, also beside writers, and can be had again.
async fn given_back(mut place: Place) -> Place {
    let room = place.room.clone().expect("it is thin");
    let mut most = 0;
    for stamp in 1..4 {
        let ended = Arc::new(AtomicBool::new(false));
        let trimmer = place.env.spawn(keep_trimming(place.env.clone(), place.pool.clone(), ended.clone()));
        let done = fill_by_all(&place, stamp).await;
        ended.store(true, Ordering::Relaxed);
        trimmer.await;
        let total = done.iter().sum::<u64>() * STRIDE;
        assert!(total > place.blocks / 2 && total * 10 > most * 9, "round {stamp}: as much as ever: {total} {most}");
        most = most.max(total);
        assert!(room.left().0 < place.blocks / 4, "all of it is used: {}", room.left());
        verify(&place.volume, &done, stamp).await;
        place = place.cut().await;
        verify(&place.volume, &done, stamp).await;
        place.all(|writer| churn(place.volume.clone(), writer, done[writer as usize])).await;
        place.env.sleep(Duration::from_secs(6)).await;
        let before = room.left().0;
        let trimmed = place.pool.trim(|done, all| assert!(done <= all)).await.expect("trimmed");
        assert!(trimmed.unable.is_empty() && trimmed.bytes.0 > 0, "{trimmed:?}");
        let left = room.left().0;
        assert!(before < place.blocks / 2 && left > place.blocks * 5 / 8, "given back: {before} then {left}");
        if stamp == 2 {
            place = place.cut().await;
        }
    }
    place
}

#[test]
fn a_thin_device_gets_back_what_is_free() {
    each_seed(6, |seed| {
        on_a_pool(seed, Bytes::mib(2), Some(BLOCKS), given_back);
    });
}

/// Blocks that one writer gets into the pool until it is refused.
async fn blocks_that_fit(volume: &Volume, first: u64) -> u64 {
    let mut done = 0;
    loop {
        match write(volume, first + done, 3).await {
            Ok(()) => done += STRIDE,
            Err(error) => {
                assert_eq!(error.kind(), Kind::NoSpace, "{error}");
                break done;
            }
        }
    }
}

#[test]
fn where_one_thin_device_has_no_room_another_has() {
    let sim = Sim::new(5, Schedule::Random);
    let env = sim.env();
    let run = async move {
        let capacity = Blocks(BLOCKS + 300);
        let disk = |room: u64| -> (Device, Room) {
            let room = Room::new(capacity, Blocks(room + 300));
            let device = Arc::new(PowerCut::new(capacity, env.clone(), Duration::from_micros(50)));
            (Arc::new(Thin::new(device, room.clone())), room)
        };
        let ((first, _), (second, second_room), (third, _)) = (disk(BLOCKS / 2), disk(BLOCKS), disk(BLOCKS));
        let creation = Creation { segment: Some(Blocks(128)), force: false };
        Pool::create(&env, &[first.clone(), second.clone()], creation).await.expect("made");
        let config = Config { memory: Bytes::mib(2), compression: Compression::Off, ..Config::default() };
        let pool = Pool::open(&env, vec![first, second], config).await.expect("it opens");
        let volume = pool.create_volume("v").await.expect("made");
        let done = blocks_that_fit(&volume, 0).await;
        assert!(done > BLOCKS && pool.is_full_below(), "of {BLOCKS} and half as many: {done}");
        // The device has so many blocks beside its segments.
        assert!(second_room.left() <= Blocks(300), "all of it is used: {}", second_room.left());
        pool.grow(third, false, || Ok(())).await.expect("it grows");
        assert!(!pool.is_full_below(), "a third one has room");
        let more = blocks_that_fit(&volume, OWN).await;
        assert!(more > BLOCKS * 3 / 4, "of {BLOCKS}: {more}");
        let checked = pool.check(|_, _| {}).await.expect("checked");
        assert_eq!((checked.damaged, checked.miscounted), (vec![], vec![]));
        pool.close().await.expect("closed");
    };
    sim.run(run).unwrap_or_else(|_| panic!("deadlock"));
}

/// Negative control: a device that is thin and does not say so fails a write that was acknowledged, and the pool takes no more.
#[test]
fn a_device_that_is_thin_in_secret_stops_the_pool() {
    let sim = Sim::new(1, Schedule::Random);
    let env = sim.env();
    let run = async move {
        let Place { env, device, .. } = Place::make(env, Bytes::mib(2), None).await;
        let room = Room::new(Blocks(BLOCKS + 300), Blocks(BLOCKS / 2));
        let device: Device = Arc::new(Thin::new(device, room).in_secret());
        let creation = Creation { segment: Some(Blocks(128)), force: true };
        Pool::create(&env, std::slice::from_ref(&device), creation).await.expect("made");
        let pool = Place::open(&env, device, Bytes::mib(2)).await;
        let volume = pool.create_volume("v").await.expect("made");
        let mut at = 0;
        loop {
            match write(&volume, at, 1).await {
                Ok(()) => at += STRIDE,
                Err(error) => break error.kind(),
            }
        }
    };
    assert_eq!(sim.run(run).unwrap_or_else(|_| panic!("deadlock")), Kind::Poisoned);
}

/// Overwrites what is there, over and over, until the check has ended. How much was written.
async fn overwrite(volume: Volume, writer: u64, count: u64, ended: Arc<AtomicBool>) -> u64 {
    for at in 0.. {
        if ended.load(Ordering::Relaxed) {
            return at;
        }
        let first = writer * OWN + at % count * STRIDE;
        write(&volume, first, 2).await.expect("what is overwritten makes room for it");
    }
    unreachable!("the check ends")
}

/// What readers still want is not used for a checkpoint, and a checkpoint that began without room for it would have no end.
#[test]
fn a_pool_full_of_keys_takes_deletions_beside_slow_readers() {
    each_seed(12, |seed| {
        let sim = Sim::new(seed, Schedule::Random);
        let env = sim.env();
        let run = async move {
            let medium = PowerCut::new(Blocks(BLOCKS + 300), env.clone(), Duration::from_micros(50));
            let device: Device = Arc::new(medium.stumbling(1, 0..=u64::MAX, Duration::from_millis(40)));
            let creation = Creation { segment: Some(Blocks(128)), force: false };
            Pool::create(&env, std::slice::from_ref(&device), creation).await.expect("made");
            let pool = Place::open(&env, device, Bytes::mib(4)).await;
            let volume = pool.create_volume("v").await.expect("made");
            let ended = Arc::new(AtomicBool::new(false));
            let reading = |writer: u64| {
                let (env, volume, ended) = (env.clone(), volume.clone(), ended.clone());
                env.clone().spawn(async move {
                    while !ended.load(Ordering::Relaxed) {
                        let number = env.random() % (10 * KEYS);
                        let read = volume.get(&key(writer, number)).await.expect("a full pool can be read");
                        assert!(read.is_none_or(|read| read == value(writer, number)), "key {number} of {writer}");
                        env.sleep(Duration::from_micros(30)).await;
                    }
                })
            };
            let readers: Vec<_> = (0..WRITERS).map(reading).collect();
            let filling: Vec<_> =
                (0..WRITERS).map(|writer| env.spawn(fill_with_keys(env.clone(), volume.clone(), writer))).collect();
            for (writer, filling) in (0..).zip(filling) {
                let done = filling.await;
                delete(&volume, writer, 0..done).await;
            }
            ended.store(true, Ordering::Relaxed);
            for reader in readers {
                reader.await;
            }
            let checked = pool.check(|_, _| {}).await.expect("checked");
            assert_eq!((checked.damaged, checked.miscounted), (vec![], vec![]));
            pool.close().await.expect("closed");
        };
        sim.run(run).unwrap_or_else(|_| panic!("seed {seed}: deadlock"));
    });
}

/// Where the medium holds a block of bytes with this stamp.
async fn find(device: &PowerCut, stamp: u8) -> Lba {
    for lba in device.written_blocks() {
        let read = Layer::read(device, IoContext::foreground("test"), lba, Blocks(1)).await.expect("read");
        if read.iter().all(|byte| *byte == stamp) {
            return lba;
        }
    }
    panic!("no block of {stamp} is on the medium");
}

/// A check reads for long what it found, others need what became free meanwhile, and still it finds all that is damaged.
#[test]
fn writers_of_a_nearly_full_pool_go_on_beside_a_check() {
    // Stamps of what nobody changes.
    const MARK: u8 = 200;
    each_seed(4, |seed| {
        let sim = Sim::new(seed, Schedule::Random);
        let env = sim.env();
        let run = async move {
            let medium = PowerCut::new(Blocks(BLOCKS + 300), env.clone(), Duration::from_micros(50));
            // What the check reads of extents, mostly.
            let medium = Arc::new(medium.stumbling(1, 14..=20, Duration::from_millis(40)));
            let device: Device = medium.clone();
            let creation = Creation { segment: Some(Blocks(128)), force: false };
            Pool::create(&env, std::slice::from_ref(&device), creation).await.expect("made");
            let pool = Place::open(&env, device, Bytes::mib(2)).await;
            let volume = pool.create_volume("v").await.expect("made");
            let quiet = pool.create_volume("quiet").await.expect("made");
            // Blocks that nobody changes, of which each has a stamp: between those of the writers, and in a volume with a snapshot.
            let own = |writer: u64| (&volume, writer * OWN + OWN / 2, MARK + writer as u8);
            let other = |at: u64| (&quiet, at * 1000, MARK + 20 + at as u8);
            let marked: Vec<_> = (0..WRITERS).flat_map(|number| [own(number), other(number)]).collect();
            for (volume, at, stamp) in &marked {
                let mut txn = Txn::new();
                volume.write(&mut txn, Lba(*at), &vec![*stamp; BLOCK_LEN].into());
                pool.commit(txn).await.expect("there is room");
            }
            pool.create_snapshot("quiet", "s").await.expect("taken");
            let each = BLOCKS * 6 / 10 / STRIDE / WRITERS;
            for writer in 0..WRITERS {
                for at in 0..each {
                    write_singly(&volume, writer * OWN + at * STRIDE, 1).await.expect("there is room");
                }
            }
            pool.checkpoint().await.expect("a checkpoint");
            for (_, _, stamp) in &marked {
                medium.corrupt(find(&medium, *stamp).await, 1234);
            }
            let ended = Arc::new(AtomicBool::new(false));
            let writers: Vec<_> =
                (0..WRITERS).map(|writer| env.spawn(overwrite(volume.clone(), writer, each, ended.clone()))).collect();
            let checked = pool.check(|_, _| {}).await;
            ended.store(true, Ordering::Relaxed);
            let mut written = 0;
            for writer in writers {
                written += writer.await;
            }
            assert!(written * STRIDE > BLOCKS / 2, "the check was over after {written}: nothing is shown");
            let mut expected: Vec<_> = (0..WRITERS).map(|writer| ("v", own(writer).1)).collect();
            for volume in ["quiet", "quiet@s"] {
                expected.extend((0..WRITERS).map(|at| (volume, other(at).1)));
            }
            let again = pool.check(|_, _| {}).await;
            for checked in [checked, again] {
                let checked = checked.expect("checked");
                let mut found: Vec<_> =
                    checked.damaged.iter().map(|damage| (damage.volume.as_str(), damage.what.clone())).collect();
                found.sort_by_key(|(volume, what)| match what {
                    Damaged::Blocks(at, _) => (*volume != "v", *volume, at.0),
                    other => panic!("no index is damaged: {other:?}"),
                });
                let expected: Vec<_> =
                    expected.iter().map(|(volume, at)| (*volume, Damaged::Blocks(Lba(*at), Blocks(1)))).collect();
                assert_eq!(found, expected);
                assert_eq!(checked.miscounted, []);
            }
            pool.close().await.expect("closed");
        };
        sim.run(run).unwrap_or_else(|_| panic!("seed {seed}: deadlock"));
    });
}
