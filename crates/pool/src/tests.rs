//! The pool against a model, with power cuts.

use crate::*;
use ashlar_block::Device;
use ashlar_devices::{PowerCut, Tearing};
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const CAPACITY: Blocks = Blocks(24 << 10);
const SPACE: u64 = 600;
const KEYS: u64 = 40;

fn small() -> Config {
    Config { memory: Size(2 << 20), log_bytes: Size(1 << 20), ..Config::default() }
}

/// Block contents by number of the write that made them, and dictionary values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    blocks: BTreeMap<u64, u64>,
    keys: BTreeMap<u64, u64>,
}

/// One block: its stamp repeated, or noise that does not compress.
fn block(stamp: u64) -> Vec<u8> {
    let mut word = stamp;
    (0..BLOCK_LEN / 8)
        .flat_map(|_| {
            if stamp.count_ones().is_multiple_of(2) {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            }
            word.to_le_bytes()
        })
        .collect()
}

async fn check(volume: &Volume, model: &Model) -> Result<(), String> {
    let mut at = 0;
    for piece in volume.read(Lba(0), Blocks(SPACE)).await.map_err(|error| error.to_string())? {
        for bytes in piece.chunks(BLOCK_LEN) {
            let expected = model.blocks.get(&at).map_or_else(|| vec![0; BLOCK_LEN], |stamp| block(*stamp));
            if bytes != expected {
                return Err(format!("block {at} is not what write {:?} stored", model.blocks.get(&at)));
            }
            at += 1;
        }
    }
    for key in 0..KEYS {
        let value = volume.get(&dictionary_key(key)).await.map_err(|error| error.to_string())?;
        let expected = model.keys.get(&key).map(|stamp| Bytes::copy_from_slice(&stamp.to_le_bytes()));
        if value != expected {
            return Err(format!("key {key} is {value:?}, not {expected:?}"));
        }
    }
    Ok(())
}

fn dictionary_key(key: u64) -> Vec<u8> {
    [b"k".as_slice(), &key.to_be_bytes()].concat()
}

/// One random transaction; changes the model too.
async fn change(env: &Env, volume: &Volume, model: &mut Model, stamp: u64) -> Txn {
    let mut txn = Txn::new();
    if env.random().is_multiple_of(8) {
        // References are read from what is committed, so sharing comes first in its transaction.
        let (from, to) = (env.random() % (SPACE / 2), SPACE / 2 + env.random() % (SPACE / 2));
        let count = (1 + env.random() % 100).min(SPACE / 2 - from).min(SPACE - to);
        let (from, to) = if env.random().is_multiple_of(2) { (from, to) } else { (to, from) };
        let remap = env.random().is_multiple_of(2);
        let shared = if remap {
            volume.remap(&mut txn, Lba(from), Lba(to), Blocks(count)).await
        } else {
            volume.share(&mut txn, Lba(from), volume, Lba(to), Blocks(count)).await
        };
        if shared.is_err() {
            return Txn::new(); // the power failed
        }
        for index in 0..count {
            let source = model.blocks.get(&(from + index)).copied();
            match source {
                Some(stamp) => _ = model.blocks.insert(to + index, stamp),
                None => _ = model.blocks.remove(&(to + index)),
            }
            if remap {
                model.blocks.remove(&(from + index));
            }
        }
    }
    for _ in 0..1 + env.random() % 3 {
        let at = env.random() % SPACE;
        match env.random() % 8 {
            0..=3 => {
                let count = (1 + env.random() % 70).min(SPACE - at);
                let data: Vec<u8> = (at..at + count).flat_map(|at| block(stamp + 4 * at)).collect();
                volume.write(&mut txn, Lba(at), &data.into());
                (at..at + count).for_each(|at| _ = model.blocks.insert(at, stamp + 4 * at));
            }
            4 => {
                let count = (1 + env.random() % 400).min(SPACE - at);
                volume.discard(&mut txn, Lba(at), Blocks(count));
                (at..at + count).for_each(|at| _ = model.blocks.remove(&at));
            }
            5 | 6 => {
                let key = env.random() % KEYS;
                volume.put(&mut txn, &dictionary_key(key), stamp.to_le_bytes().to_vec());
                model.keys.insert(key, stamp);
            }
            _ => {
                let (low, high) = (env.random() % KEYS, env.random() % KEYS);
                if low < high {
                    volume.delete_range(&mut txn, &dictionary_key(low), &dictionary_key(high));
                    model.keys.retain(|key, _| !(low..high).contains(key));
                }
            }
        }
    }
    txn
}

/// Runs transactions until the power fails; gives every state that was committed, and how many were surely durable.
async fn work(env: &Env, pool: &Pool, volume: &Volume, start: Model, steps: u64) -> (Vec<Model>, usize) {
    let (mut states, mut durable) = (vec![start], 0);
    for step in 0..steps {
        let mut next = states.last().cloned().unwrap_or_default();
        let txn = change(env, volume, &mut next, (step + 1 + (env.random() << 20)) << 16).await;
        // A failed commit may or may not have happened: the power failed in it.
        let committed = pool.commit(txn).await;
        if committed.as_ref().is_err_and(|error| error.kind() == ashlar_block::Kind::NoSpace) {
            panic!("the pool leaks space: {:?}", pool.status());
        }
        states.push(next);
        let Ok(seq) = committed else { break };
        if env.random().is_multiple_of(4) {
            if pool.sync(seq).await.is_err() {
                break;
            }
            durable = states.len() - 1;
        }
        if env.random().is_multiple_of(16) && pool.checkpoint().await.is_err() {
            break;
        }
    }
    (states, durable)
}

/// Lives of a pool, each ended by a power cut.
fn explore(seed: u64, lives: u64, steps: u64) {
    let sim = Sim::new(seed, Schedule::Random);
    let env = sim.env();
    let outcome = sim.run(async move {
        let mut device = Arc::new(PowerCut::new(CAPACITY, env.clone(), Duration::from_micros(50)));
        let as_device = |device: &Arc<PowerCut>| vec![device.clone() as Device];
        Pool::create(&env, &as_device(&device), Creation { segment: Some(Blocks(256)), force: false }).await.unwrap();
        let pool = Pool::open(&env, as_device(&device), small()).await.unwrap();
        pool.create_volume("v").await.unwrap();
        pool.close().await.unwrap();
        let mut model = Model::default();
        for life in 0..lives {
            let pool = Pool::open(&env, as_device(&device), small()).await.unwrap();
            let volume = pool.volume("v").unwrap();
            check(&volume, &model).await.unwrap_or_else(|error| panic!("seed {seed} life {life} at start: {error}"));
            device.cut_after(env.random() % (steps * 3));
            let (states, durable) = work(&env, &pool, &volume, model.clone(), steps).await;
            check(&volume, states.last().unwrap()).await.ok();
            drop((pool, volume));
            device = Arc::new(device.after_cut(Tearing::ALL, env.clone()));
            let pool = Pool::open(&env, as_device(&device), small())
                .await
                .unwrap_or_else(|error| panic!("seed {seed} life {life}: {error}"));
            let volume = pool.volume("v").unwrap();
            let mut story = String::new();
            let mut survivor = None;
            for (index, state) in states.iter().enumerate().skip(durable).rev() {
                match check(&volume, state).await {
                    Ok(()) => {
                        survivor = Some(state.clone());
                        break;
                    }
                    Err(error) => story += &format!("state {index}: {error}\n"),
                }
            }
            model = survivor
                .unwrap_or_else(|| panic!("seed {seed} life {life}: no state from {durable} on survived:\n{story}"));
            let checked = pool.check(|_, _| {}).await.unwrap();
            assert_eq!((checked.damaged, checked.miscounted), (vec![], vec![]), "seed {seed} life {life}");
            pool.close().await.unwrap();
        }
    });
    outcome.expect("no deadlock");
}

#[test]
fn a_power_cut_leaves_a_prefix_that_holds_what_was_synced() {
    for seed in 0..20 {
        explore(seed, 6, 60);
    }
}
