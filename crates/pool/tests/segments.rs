//! Segments are filled to their end: an extent that is stored block by block continues in the next one.

use ashlar_block::{Checked, Device};
use ashlar_devices::Memory;
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_pool::{Compression, Config, Creation, Pool, Txn, Volume};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A batch of one extent leaves room for all but two blocks of the next.
const SEGMENT: Blocks = Blocks(64);
const SEGMENTS: u64 = 180;
/// A chunk of the map: the longest extent.
const CHUNK: u64 = 32;
const CHUNKS: u64 = 200;

fn data(chunk: u64, stamp: u64) -> Vec<u8> {
    (0..CHUNK).flat_map(|block| (chunk << 32 | block << 16 | stamp).to_le_bytes().repeat(BLOCK_LEN / 8)).collect()
}

async fn write(volume: &Volume, chunk: u64, stamp: u64) {
    let mut txn = Txn::new();
    volume.write(&mut txn, Lba(chunk * CHUNK), &data(chunk, stamp).into());
    volume.pool().commit(txn).await.expect("committed");
    // Each is a batch by itself.
    volume.pool().sync_all().await.expect("synced");
}

async fn verify(volume: &Volume, stamp: impl Fn(u64) -> u64) {
    for chunk in 0..CHUNKS {
        let read = volume.read(Lba(chunk * CHUNK), Blocks(CHUNK)).await.expect("it can be read").concat();
        assert!(read == data(chunk, stamp(chunk)), "chunk {chunk}");
    }
}

async fn open(env: &Env, device: &Device) -> Pool {
    let config = Config { memory: Size::mib(16), compression: Compression::Off, ..Config::default() };
    Pool::open(env, vec![device.clone()], config).await.expect("it opens")
}

async fn fill(env: Env) {
    let memory: Device = Arc::new(Memory::new(Blocks(SEGMENTS * SEGMENT.0 + 300)));
    let counted = Arc::new(Checked::new(memory, env.clone()));
    let device: Device = counted.clone();
    Pool::create(&env, std::slice::from_ref(&device), Creation { segment: Some(SEGMENT), force: false })
        .await
        .expect("created");
    let pool = open(&env, &device).await;
    let volume = pool.create_volume("v").await.expect("a volume");
    let free = pool.status().free;
    for chunk in 0..CHUNKS {
        write(&volume, chunk, 1).await;
    }
    let before = counted.counters().reads.load(Relaxed);
    verify(&volume, |_| 1).await;
    let reads = counted.counters().reads.load(Relaxed) - before;
    assert!(reads <= CHUNKS + CHUNKS / 10, "what continues in the next segment is read with the rest: {reads} reads");
    let segment = SEGMENT.0 * BLOCK_LEN as u64;
    let taken = (free - pool.status().free).div_ceil(segment);
    let batches = (CHUNKS * (CHUNK + 1)).div_ceil(SEGMENT.0);
    // The reserve follows what is used, and the log has a segment in hand.
    assert!(taken <= batches * 11 / 10 + 4, "{taken} segments of {SEGMENT} for {batches} full ones");
    drop((pool, volume));

    // What the log replays, and then what the cleaner moves, is the same.
    let pool = open(&env, &device).await;
    let volume = pool.volume("v").expect("the volume");
    verify(&volume, |_| 1).await;
    for round in 2..8 {
        for chunk in (0..CHUNKS).filter(|chunk| chunk % 3 != 0) {
            write(&volume, chunk, round).await;
        }
        verify(&volume, |chunk| if chunk % 3 == 0 { 1 } else { round }).await;
    }
    assert!(pool.status().moved > 0, "nothing had to be moved");
    let checked = pool.check(|_, _| {}).await.expect("checked");
    assert!(checked.damaged.is_empty(), "{checked:?}");
    pool.close().await.expect("closed");
}

#[test]
fn segments_are_filled_to_their_end() {
    let sim = Sim::new(1, Schedule::Fifo);
    let env = sim.env();
    sim.run(fill(env)).expect("no deadlock");
}
