use crate::{Config, Creation, Engine, ExtentDevice, Placement, Shape, Victims, open_volume};
use ashlar_block::{Device, Durability, IoContext, Kind};
use ashlar_devices::{Memory, PowerCut, Tearing};
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim, simulate};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Small ranges, so that small devices have many.
const SHAPE: Shape = Shape { range: Blocks(16), area: 8, group: Blocks(64) };
const CREATION: Creation = Creation { shape: SHAPE, segment: Some(Blocks(256)), force: false };

fn config() -> Config {
    Config {
        small_max: Size::kib(32),
        staged_max: Some(Blocks(128)),
        memory: Size::mib(4),
        log_bytes: Size::mib(1),
        ..Config::default()
    }
}

fn devices(data: u64) -> (Device, Device) {
    (Arc::new(Memory::new(Blocks(data))), Arc::new(Memory::new(Blocks(26 * 256 + 300))))
}

async fn opened(env: &Env, data: u64, config: Config) -> Engine {
    let (data, staging) = devices(data);
    Engine::create(env, &data, &staging, CREATION).await.expect("created");
    Engine::open(env, data, staging, config).await.expect("opened")
}

fn block(stamp: u64) -> Vec<u8> {
    (0..BLOCK_LEN as u64 / 8).flat_map(|word| (stamp.rotate_left(20) ^ word).to_le_bytes()).collect()
}

/// Blocks of extents by the stamp that wrote them.
type Model = BTreeMap<(u32, u64), u64>;

async fn verify(engine: &Engine, snapshot: Option<&str>, model: &Model, lengths: &BTreeMap<u32, Blocks>) {
    for (extent, length) in lengths {
        let data = match snapshot {
            None => engine.read(*extent, 0, *length).await,
            Some(name) => engine.read_snapshot(name, *extent, 0, *length).await,
        };
        for (offset, seen) in data.expect("read").chunks(BLOCK_LEN).enumerate() {
            let stamp = model.get(&(*extent, offset as u64));
            let expected = stamp.map_or_else(|| vec![0; BLOCK_LEN], |stamp| block(*stamp));
            assert!(seen == expected, "extent {extent} block {offset} of {snapshot:?} is not {stamp:?}");
        }
    }
}

/// No block has two pointers, none is lost, and none is in use for nothing.
async fn accounts(engine: &Engine) {
    let checked = engine.check().await.expect("checked");
    assert!(checked.is_sound(), "{checked:?}");
}

async fn random_operations(env: Env, config: Config, operations: u64) {
    let (data, staging) = devices(1500);
    Engine::create(&env, &data, &staging, CREATION).await.expect("created");
    let mut engine = Engine::open(&env, data.clone(), staging.clone(), config).await.expect("opened");
    let mut model = Model::new();
    let mut snapshots: BTreeMap<String, (Model, BTreeMap<u32, Blocks>)> = BTreeMap::new();
    for extent in 0..3 {
        engine.create_extent(extent, Blocks(150)).await.expect("created");
    }
    for stamp in 1..=operations {
        let extents: Vec<u32> = engine.extents().into_keys().collect();
        let extent = extents[env.random() as usize % extents.len()];
        let at = env.random() % 150;
        match env.random() % 100 {
            0..50 => {
                let most = if env.random().is_multiple_of(8) { 60 } else { 3 };
                let count = (1 + env.random() % most).min(150 - at);
                let data: Vec<u8> = (at..at + count).flat_map(|at| block(stamp << 16 | at)).collect();
                engine.write(extent, at, vec![data.into()]).await.expect("written");
                (at..at + count).for_each(|at| _ = model.insert((extent, at), stamp << 16 | at));
            }
            50..80 => {
                let count = (env.random() % 40).min(150 - at);
                let seen = engine.read(extent, at, Blocks(count)).await.expect("read");
                for (offset, seen) in (at..).zip(seen.chunks(BLOCK_LEN)) {
                    let stamp = model.get(&(extent, offset));
                    let expected = stamp.map_or_else(|| vec![0; BLOCK_LEN], |stamp| block(*stamp));
                    assert!(seen == expected, "operation {stamp:?}: extent {extent} block {offset}");
                }
            }
            80..84 => {
                let count = (1 + env.random() % 60).min(150 - at);
                engine.discard(extent, at, Blocks(count)).await.expect("discarded");
                model.retain(|(other, offset), _| *other != extent || !(at..at + count).contains(offset));
            }
            84..88 => engine.flush().await.expect("flushed"),
            88..91 => engine.destage().await.expect("destaged"),
            91..93 if snapshots.len() < 3 => {
                let name = format!("s{stamp}");
                engine.create_snapshot(&name).await.expect("kept");
                snapshots.insert(name, (model.clone(), engine.extents()));
            }
            93..95 => {
                if let Some((name, (model, lengths))) = snapshots.pop_first() {
                    verify(&engine, Some(&name), &model, &lengths).await;
                    engine.destroy_snapshot(&name).await.expect("destroyed");
                }
            }
            95 => {
                engine.delete_extent(extent).await.expect("deleted");
                model.retain(|(other, _), _| *other != extent);
                engine.create_extent(extent, Blocks(150)).await.expect("created again");
            }
            _ => {
                engine.close().await.expect("closed");
                engine = Engine::open(&env, data.clone(), staging.clone(), config).await.expect("opened again");
            }
        }
        if stamp % 50 == 0 {
            accounts(&engine).await;
        }
    }
    verify(&engine, None, &model, &engine.extents()).await;
    for (name, (model, lengths)) in &snapshots {
        verify(&engine, Some(name), model, lengths).await;
    }
    for name in snapshots.keys() {
        engine.destroy_snapshot(name).await.expect("destroyed");
    }
    accounts(&engine).await;
}

#[test]
fn random_operations_agree_with_a_model() {
    let placements = [Placement::Own, Placement::Holes, Placement::Anywhere];
    for seed in 0..12 {
        let victims = if seed % 2 == 0 { Victims::Densest } else { Victims::All };
        let config = Config { placement: placements[seed as usize % 3], victims, ..config() };
        println!("seed {seed}: {config:?}");
        simulate(seed, |env| random_operations(env, config, 300));
    }
}

async fn device(env: Env) -> Device {
    let engine = opened(&env, 1500, config()).await;
    Arc::new(ExtentDevice::new(engine, 7, Blocks(500)).await.expect("an extent"))
}
ashlar_block::conformance!(extent, device);

#[test]
fn devices_that_hold_a_store_are_not_overwritten_nor_mixed() {
    simulate(1, |env| async move {
        let (data, staging) = devices(1500);
        let (other_data, other_staging) = devices(1500);
        Engine::create(&env, &data, &staging, CREATION).await.expect("created");
        Engine::create(&env, &other_data, &other_staging, CREATION).await.expect("created");
        let again = Engine::create(&env, &data, &devices(10).1, CREATION).await.expect_err("it holds data");
        assert!(again.to_string().contains("--force"), "{again}");
        let mixed = Engine::open(&env, other_data, staging, config()).await.map(drop).expect_err("mixed");
        assert_eq!(mixed.kind(), Kind::Misuse);
        assert!(mixed.to_string().contains("is not the data device"), "{mixed}");
    });
}

#[test]
fn damage_on_the_disk_is_named() {
    simulate(2, |env| async move {
        let (data, staging) = devices(1500);
        Engine::create(&env, &data, &staging, CREATION).await.expect("created");
        let engine = Engine::open(&env, data.clone(), staging, config()).await.expect("opened");
        engine.create_extent(1, Blocks(100)).await.expect("created");
        engine.write(1, 3, vec![Bytes::from(block(9))]).await.expect("written");
        engine.destage().await.expect("destaged");
        let inner = &*engine.0;
        let at = inner.pointers(&inner.extents, 1, 0..100).await.expect("pointers")[&3].at;
        let wrong = vec![Bytes::from(block(10))];
        let context = ashlar_block::IoContext::foreground("test");
        data.write(context, ashlar_units::Lba(at), wrong, Default::default()).await.expect("written");
        let error = engine.read(1, 0, Blocks(10)).await.expect_err("it is damaged");
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.to_string().contains("extent 1, block 3"), "{error}");
        engine.read(1, 4, Blocks(6)).await.expect("the rest is whole");
    });
}

#[test]
fn a_full_disk_says_so_and_space_comes_back() {
    simulate(3, |env| async move {
        let engine = opened(&env, 400, config()).await;
        engine.create_extent(1, Blocks(1000)).await.expect("created");
        let data = || vec![Bytes::from(vec![7; 50 * BLOCK_LEN])];
        let mut at = 0;
        let error = loop {
            match engine.write(1, at, data()).await {
                Ok(()) => at += 50,
                Err(error) => break error,
            }
        };
        assert_eq!((error.kind(), at), (Kind::NoSpace, 350));
        engine.discard(1, 0, Blocks(1000)).await.expect("discarded");
        engine.flush().await.expect("flushed");
        accounts(&engine).await;
        for at in 0..7 {
            engine.write(1, at * 50, data()).await.expect("there is room again");
        }
    });
}

async fn volume(env: Env) -> Device {
    let (data, staging) = devices(1500);
    Arc::new(open_volume(&env, (data, staging), Blocks(500), config(), Some(CREATION)).await.expect("a volume"))
}
ashlar_block::conformance!(volume_of_a_stack, volume);

#[test]
fn a_volume_is_made_only_where_nothing_is_and_found_again() {
    simulate(4, |env| async move {
        let context = IoContext::foreground("test");
        let (data, staging) = devices(1500);
        let open = async |make, length| {
            let opened = open_volume(&env, (data.clone(), staging.clone()), Blocks(length), config(), make).await;
            opened.map(|volume| Arc::new(volume) as Device)
        };
        let refused = |opened: ashlar_block::Result<Device>, what| opened.map(drop).expect_err(what);
        let error = refused(open(None, 500).await, "there is none");
        assert!(error.to_string().contains("make = true"), "{error}");
        data.write(context, Lba(0), vec![block(1).into()], Durability::Cached).await.expect("written");
        let error = refused(open(Some(CREATION), 500).await, "something is there");
        assert!(error.to_string().contains("is not empty"), "{error}");
        data.discard(context, Lba(0), Blocks(1)).await.expect("wiped");
        let volume = open(Some(CREATION), 500).await.expect("made");
        volume.write(context, Lba(7), vec![block(5).into()], Durability::Forced).await.expect("written");
        drop(volume);
        let volume = open(None, 500).await.expect("opened");
        assert_eq!(volume.read(context, Lba(7), Blocks(1)).await.expect("read"), block(5));
        drop(volume);
        let error = refused(open(None, 600).await, "of another size");
        assert_eq!(error.kind(), Kind::Misuse);
    });
}

/// Writes by one task that replace each other while another flushes: what was there before the flush never comes back.
#[test]
fn a_flush_covers_large_writes_that_are_replaced_meanwhile() {
    for seed in 0..40 {
        let sim = Sim::new(seed, Schedule::Random);
        let env = sim.env();
        let seen = sim.run(async move {
            let delay = Duration::from_micros(20);
            let data = Arc::new(PowerCut::new(Blocks(1500), env.clone(), delay));
            let staging = Arc::new(PowerCut::new(Blocks(26 * 256 + 300), env.clone(), delay));
            let (disk, flash) = (data.clone() as Device, staging.clone() as Device);
            Engine::create(&env, &disk, &flash, CREATION).await.expect("created");
            let engine = Engine::open(&env, disk, flash, config()).await.expect("opened");
            engine.create_extent(1, Blocks(20)).await.expect("created");
            let write = |stamp| {
                let all: Vec<u8> = (0..20).flat_map(|_| block(stamp)).collect();
                engine.write(1, 0, vec![all.into()])
            };
            write(1).await.expect("written");
            engine.flush().await.expect("flushed");
            write(2).await.expect("written");
            let other = engine.clone();
            let flush = env.spawn(async move { other.flush().await });
            write(3).await.expect("written");
            flush.await.expect("flushed");
            let (data, staging) =
                (data.after_cut(Tearing::ALL, env.clone()), staging.after_cut(Tearing::ALL, env.clone()));
            let engine = Engine::open(&env, Arc::new(data), Arc::new(staging), config()).await.expect("opened");
            engine.read(1, 0, Blocks(20)).await.expect("read")
        });
        let seen = seen.expect("no deadlock");
        let either = seen.chunks(BLOCK_LEN).all(|seen| seen == block(2) || seen == block(3));
        assert!(either, "seed {seed}: what was there before the flush is back");
    }
}
