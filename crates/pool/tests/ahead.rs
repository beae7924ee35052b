//! Reading ahead: reads give what they would give without it, it saves requests, and takes no more memory than is set aside.

use ashlar_block::{Checked, Device};
use ashlar_devices::Memory;
use ashlar_env::Env;
use ashlar_env::sim::simulate;
use ashlar_pool::{Compression, Config, Creation, Pool, Txn, Volume, Wanted};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes, Lba};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const CAPACITY: Blocks = Blocks(64 * 256);
/// A chunk of the map: the longest extent.
const CHUNK: u64 = 32;

async fn build(env: &Env, memory: Bytes, compression: Compression) -> (Arc<Checked>, Volume) {
    let device = Arc::new(Checked::new(Arc::new(Memory::new(CAPACITY)), env.clone()));
    let creation = Creation { segment: Some(Blocks(256)), force: false };
    Pool::create(env, &[device.clone() as Device], creation).await.expect("created");
    let config = Config { memory, compression, ..Config::default() };
    let pool = Pool::open(env, vec![device.clone() as Device], config).await.expect("opened");
    (device, pool.create_volume("v").await.expect("a volume"))
}

/// A block of this version: half of it random, so that it compresses.
fn block(at: u64, version: u64) -> Vec<u8> {
    let mut random = Pcg64Mcg::seed_from_u64(at << 32 | version);
    let mut block = vec![version as u8; BLOCK_LEN];
    random.fill(&mut block[..BLOCK_LEN / 2]);
    block
}

async fn write(volume: &Volume, at: u64, count: u64, version: u64) {
    let mut txn = Txn::new();
    let data: Vec<u8> = (at..at + count).flat_map(|at| block(at, version)).collect();
    volume.write(&mut txn, Lba(at), &data.into());
    volume.commit(txn).await.expect("committed");
}

#[test]
fn what_is_read_is_what_was_written_last() {
    for seed in 0..40 {
        simulate(seed, move |env| async move {
            let compression = if seed % 2 == 0 { Compression::Off } else { Compression::Lz4 };
            let (_, volume) = build(&env, Bytes(8 << 20), compression).await;
            let mut random = Pcg64Mcg::seed_from_u64(seed);
            let mut model: BTreeMap<u64, u64> = BTreeMap::new();
            const END: u64 = 40 * CHUNK;
            for version in 1..300 {
                let at = random.random_range(0..END);
                let count = random.random_range(1..=2 * CHUNK).min(END - at);
                match random.random_range(0..10) {
                    0..3 => {
                        write(&volume, at, count, version).await;
                        model.extend((at..at + count).map(|at| (at, version)));
                    }
                    3 => {
                        let mut txn = Txn::new();
                        volume.discard(&mut txn, Lba(at), Blocks(count));
                        volume.commit(txn).await.expect("committed");
                        model.retain(|block, _| !(at..at + count).contains(block));
                    }
                    4 => volume.pool().sync_all().await.expect("synced"),
                    5 => volume.pool().checkpoint().await.expect("a checkpoint"),
                    6 => {
                        let any = |_| {
                            let at = random.random_range(0..END);
                            Wanted::Blocks(Lba(at), Blocks(random.random_range(1..=CHUNK).min(END - at)))
                        };
                        drop(env.spawn(volume.read_ahead((0..6).map(any).collect()).await));
                    }
                    _ => {
                        let found = volume.read(Lba(at), Blocks(count)).await.expect("read").concat();
                        let expected =
                            |at: u64| model.get(&at).map_or(vec![0; BLOCK_LEN], |version| block(at, *version));
                        assert_eq!(found, (at..at + count).flat_map(expected).collect::<Vec<u8>>(), "seed {seed}");
                    }
                }
            }
        });
    }
}

#[test]
fn what_was_fetched_is_not_fetched_again_and_has_its_bound() {
    simulate(1, |env| async move {
        let memory = Bytes(32 << 20);
        let (device, volume) = build(&env, memory, Compression::Off).await;
        let extents: Vec<(Lba, Blocks)> = (0..40).map(|index| (Lba(index * 7 * CHUNK), Blocks(CHUNK))).collect();
        for (at, count) in &extents {
            write(&volume, at.0, count.0, 1).await;
        }
        volume.pool().checkpoint().await.expect("a checkpoint");
        let before = volume.pool().status().memory;
        let reads = || device.counters().reads.load(Relaxed);
        let start = reads();
        // 2 MiB are set aside: 16 of the 40 extents, which lie together.
        let wanted = extents.iter().map(|(at, count)| Wanted::Blocks(*at, *count)).collect();
        env.spawn(volume.read_ahead(wanted).await).await;
        let fetched = reads() - start;
        assert!((1..=4).contains(&fetched), "{fetched} reads for 16 extents that lie together");
        let held = volume.pool().status().memory - before;
        assert!(held == memory.0 / 16, "{held} bytes are kept");
        let start = reads();
        for (at, count) in &extents[..16] {
            let found = volume.read(*at, *count).await.expect("read").concat();
            assert_eq!(found[..BLOCK_LEN], block(at.0, 1));
        }
        assert_eq!(reads() - start, 0, "read from memory");
        // The next ones take the place of those that were read, and these the place of the oldest.
        for (extents, fetched) in [(&extents[16..24], 3), (&extents[8..16], 0), (&extents[24..40], 4)] {
            let start = reads();
            let wanted = extents.iter().map(|(at, count)| Wanted::Blocks(*at, *count)).collect();
            env.spawn(volume.read_ahead(wanted).await).await;
            assert!(reads() - start <= fetched, "{} reads", reads() - start);
            assert_eq!(volume.pool().status().memory - before, memory.0 / 16);
        }
        let start = reads();
        for (at, count) in &extents[24..40] {
            volume.read(*at, *count).await.expect("read");
        }
        assert_eq!(reads() - start, 0, "all of the last ones");
    });
}

#[test]
fn all_extents_of_a_range_are_fetched() {
    simulate(2, |env| async move {
        let (device, volume) = build(&env, Bytes(64 << 20), Compression::Lz4).await;
        const COUNT: u64 = CHUNK + 2;
        let places: Vec<u64> = (0..8).map(|index| index * 7 * CHUNK).collect();
        for at in &places {
            write(&volume, *at, COUNT, 1).await;
        }
        volume.pool().checkpoint().await.expect("a checkpoint");
        let wanted = places.iter().map(|at| Wanted::Blocks(Lba(*at), Blocks(COUNT))).collect();
        env.spawn(volume.read_ahead(wanted).await).await;
        let reads = device.counters().reads.load(Relaxed);
        for at in &places {
            // A compressed extent is read in parts, each of which needs all of it.
            volume.read(Lba(*at), Blocks(3)).await.expect("read");
            volume.read(Lba(*at + 3), Blocks(CHUNK - 3)).await.expect("read");
            volume.read(Lba(*at + CHUNK), Blocks(2)).await.expect("read");
        }
        assert_eq!(device.counters().reads.load(Relaxed), reads);
    });
}

#[test]
fn what_blocks_will_take_is_learnt_and_so_many_fit() {
    for (compression, least, most) in [(Compression::Off, CHUNK, CHUNK), (Compression::Lz4, CHUNK / 2, CHUNK * 2 / 3)] {
        simulate(3, move |env| async move {
            let (device, volume) = build(&env, Bytes(16 << 20), compression).await;
            let extents: Vec<Lba> = (0..120).map(|index| Lba(index * 2 * CHUNK)).collect();
            for at in &extents {
                write(&volume, at.0, CHUNK, 1).await;
            }
            volume.pool().checkpoint().await.expect("a checkpoint");
            let cost = || volume.ahead_cost(Blocks(CHUNK));
            assert_eq!(cost(), CHUNK * BLOCK_LEN as u64, "nothing is known to be smaller than it looks");
            let (first, rest) = extents.split_at(80);
            for lot in first.chunks(4) {
                let wanted = lot.iter().map(|at| Wanted::Blocks(*at, Blocks(CHUNK))).collect();
                env.spawn(volume.read_ahead(wanted).await).await;
            }
            let learnt = cost() / BLOCK_LEN as u64;
            assert!((least..=most).contains(&learnt), "{learnt} blocks for {CHUNK}, {compression:?}");
            let fit = &rest[..rest.len().min((volume.ahead_memory() / cost()) as usize)];
            assert!(fit.len() as u64 * cost() > volume.ahead_memory() / 2, "{} extents fit", fit.len());
            let wanted = fit.iter().map(|at| Wanted::Blocks(*at, Blocks(CHUNK))).collect();
            env.spawn(volume.read_ahead(wanted).await).await;
            let reads = device.counters().reads.load(Relaxed);
            for at in fit {
                volume.read(*at, Blocks(CHUNK)).await.expect("read");
            }
            assert_eq!(device.counters().reads.load(Relaxed), reads, "all of them were kept");
        });
    }
}
