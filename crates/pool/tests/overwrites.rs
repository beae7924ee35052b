//! A pool that is mostly full of data and is overwritten block by block, at random, for a long time: it cleans, and refuses
//! nothing.

use ashlar_block::Device;
use ashlar_devices::Memory;
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_pool::{Compression, Config, Creation, Pool, Txn};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

const SEGMENT: Blocks = Blocks(64);
const SEGMENTS: u64 = 180;
/// Updates between two syncs.
const DURABLE: u64 = 64;

fn block(stamp: u64) -> Bytes {
    stamp.to_le_bytes().repeat(BLOCK_LEN / 8).into()
}

/// Fills so many hundredths of a pool, and overwrites each block `times` times in the mean.
async fn overwrite(env: Env, full: u64, times: u64, delay: Duration) {
    let memory = Memory::new(Blocks(SEGMENTS * SEGMENT.0 + 300)).with_delay(env.clone(), delay);
    let device: Device = Arc::new(memory);
    Pool::create(&env, std::slice::from_ref(&device), Creation { segment: Some(SEGMENT), force: false })
        .await
        .expect("made");
    let config = Config { memory: Size::mib(32), compression: Compression::Off, ..Config::default() };
    let pool = Pool::open(&env, vec![device], config).await.expect("it opens");
    let volume = pool.create_volume("v").await.expect("made");
    let blocks = SEGMENTS * SEGMENT.0 * full / 100;
    let mut stamps: Vec<u64> = (0..blocks).collect();
    let write = async |at: u64, stamp: u64| {
        let mut txn = Txn::new();
        volume.write(&mut txn, Lba(at), &block(stamp));
        pool.commit(txn).await
    };
    for at in 0..blocks {
        write(at, at).await.unwrap_or_else(|error| panic!("block {at} of {blocks}: {error}"));
    }
    pool.sync_all().await.expect("synced");
    for update in 0..blocks * times {
        let at = env.random() % blocks;
        stamps[at as usize] = blocks + update;
        if let Err(error) = write(at, blocks + update).await {
            panic!("update {update} of {blocks} blocks, {full} % of the pool: {error}; {:?}", pool.status());
        }
        if update % DURABLE == DURABLE - 1 {
            pool.sync_all().await.expect("synced");
        }
    }
    for (at, stamp) in (0..).zip(&stamps) {
        let data = volume.read(Lba(at), Blocks(1)).await.expect("it can be read").concat();
        assert!(data == block(*stamp), "block {at}");
    }
    println!("{full} %: {:?} at {:?}", pool.status(), env.now());
    pool.close().await.expect("closed");
}

#[test]
fn random_overwrites_of_a_fairly_full_pool_are_taken() {
    for (full, times, delay) in [(70, 3, 1), (70, 1, 2000)] {
        let sim = Sim::new(1, Schedule::Fifo);
        let env = sim.env();
        sim.run(overwrite(env, full, times, Duration::from_micros(delay))).expect("no deadlock");
    }
}
