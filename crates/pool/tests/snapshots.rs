//! Snapshots beside changes that go through the whole pool.

use ashlar_block::Device;
use ashlar_devices::Memory;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_pool::{Config, Creation, Pool, Txn, Volume};
use ashlar_units::{Blocks, Bytes as Size, Lba};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// So many keys of such a size make a tree with interior nodes, and the last of them stay pending there.
const KEYS: u64 = 200;
const VALUE_LEN: usize = 2000;

async fn put(volume: &Volume, keys: impl Iterator<Item = u64>, stamp: u8) {
    let mut txn = Txn::new();
    for key in keys {
        // Values that do not compress, so that nodes have their size.
        let mut word = key << 8 | u64::from(stamp) | 1 << 60;
        let value = std::iter::repeat_with(|| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (word >> 56) as u8
        });
        volume.put(
            &mut txn,
            &[b"k".as_slice(), &key.to_be_bytes()].concat(),
            value.take(VALUE_LEN).collect::<Vec<u8>>(),
        );
    }
    volume.commit(txn).await.expect("committed");
    volume.pool().checkpoint().await.expect("a checkpoint");
}

async fn clean_check(pool: &Pool) {
    let checked = pool.check(|_, _| {}).await.expect("checked");
    assert_eq!((checked.damaged, checked.miscounted), (vec![], vec![]));
}

fn run<F: Future<Output = ()> + Send + 'static>(memory: Size, test: impl FnOnce(Pool) -> F + Send + 'static) {
    let sim = Sim::new(1, Schedule::Fifo);
    let env = sim.env();
    let done = sim.run(async move {
        let devices: Vec<Device> = vec![Arc::new(Memory::new(Blocks(40 * 256 + 300)))];
        let creation = Creation { segment: Some(Blocks(256)), force: false };
        Pool::create(&env, &devices, creation).await.expect("created");
        let pool = Pool::open(&env, devices, Config { memory, ..Config::default() }).await.expect("opened");
        test(pool).await;
    });
    done.expect("no deadlock");
}

#[test]
fn destroying_a_volume_leaves_the_nodes_of_snapshots_alone() {
    run(Size::mib(64), |pool| async move {
        let volume = pool.create_volume("v").await.expect("made");
        put(&volume, 0..KEYS, 0).await;
        put(&volume, (0..KEYS).step_by(20), 1).await;
        pool.create_snapshot("v", "s").await.expect("taken");
        pool.create_volume("other").await.expect("made");
        pool.destroy_volume("other").await.expect("destroyed");
        clean_check(&pool).await;
        put(&volume, 0..KEYS, 2).await;
        pool.destroy_snapshot("v@s").await.expect("destroyed");
        clean_check(&pool).await;
    });
}

#[test]
fn a_snapshot_may_be_named_like_a_volume() {
    run(Size::mib(8), |pool| async move {
        for name in ["v", "monday"] {
            pool.create_volume(name).await.expect("made");
        }
        pool.create_snapshot("v", "monday").await.expect("its full name is v@monday");
        for (name, said) in
            [("monday", "there is a snapshot v@monday already"), ("", "is no name"), ("a@b", "is no name")]
        {
            let error = pool.create_snapshot("v", name).await.map(drop).expect_err("refused");
            assert!(error.to_string().contains(said), "{error}");
        }
    });
}

/// Fills segments with keys and extents of which most are replaced, so that there is something to move.
async fn scatter(volume: &Volume) {
    put(volume, 0..KEYS, 0).await;
    for round in 0..6u8 {
        let mut txn = Txn::new();
        for at in 0..20u64 {
            if round == 0 || at % 4 != 0 {
                volume.write(&mut txn, Lba(at * 32), &vec![round ^ at as u8; 9000].into());
            }
        }
        volume.commit(txn).await.expect("committed");
        put(volume, (0..KEYS).step_by(3), round).await;
    }
}

#[test]
fn cleaning_ends_when_the_cache_has_no_room() {
    // So little that no node is ever cached.
    run(Size::kib(64), |pool| async move {
        let volume = pool.create_volume("v").await.expect("made");
        scatter(&volume).await;
        let before = pool.status().moved;
        while pool.clean().await.expect("cleaned") {}
        assert!(pool.status().moved > before, "there was something to move");
        clean_check(&pool).await;
    });
}

#[test]
fn cleaning_does_not_wait_for_ever_for_those_who_share() {
    run(Size::mib(8), |pool| async move {
        let volume = pool.create_volume("v").await.expect("made");
        scatter(&volume).await;
        // A transaction keeps its references still, and its commit would wait for the space that cleaning is to gain.
        let mut txn = Txn::new();
        volume.share(&mut txn, Lba(0), &volume, Lba(10_000), Blocks(3)).await.expect("shared");
        let before = pool.status().moved;
        let cleaned = Arc::new(AtomicBool::new(false));
        pool.env().spawn({
            let (pool, cleaned) = (pool.clone(), cleaned.clone());
            async move {
                while pool.clean().await.expect("cleaned") {}
                cleaned.store(true, Ordering::Relaxed);
            }
        });
        pool.env().sleep(Duration::from_secs(10)).await;
        assert!(cleaned.load(Ordering::Relaxed), "cleaning waits for a transaction that may wait for it");
        assert_eq!(pool.status().moved, before, "and moves nothing meanwhile");
        volume.commit(txn).await.expect("committed");
        while pool.clean().await.expect("cleaned") {}
        assert!(pool.status().moved > before, "now there is something to move");
        let (copy, original) = (volume.read(Lba(10_000), Blocks(3)).await, volume.read(Lba(0), Blocks(3)).await);
        assert_eq!(copy.expect("read"), original.expect("read"));
        clean_check(&pool).await;
    });
}
