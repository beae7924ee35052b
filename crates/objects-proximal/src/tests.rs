//! The conformance suite, and what it reaches too seldom: objects of all classes, and what is left of those that ceased.

use crate::{Extents, audit, format, open};
use ashlar_block::Device;
use ashlar_devices::Memory;
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_objects::{At, Change, Condition, Engine, Name, Put, Store, checksum};
use ashlar_objects_pool::{Objects, Options};
use ashlar_proximal::{Config, Creation, Shape};
use ashlar_units::{Blocks, Bytes as Size};
use bytes::Bytes;
use std::sync::Arc;

const CREATION: Creation = Creation {
    shape: Shape { range: Blocks(16), area: 8, group: Blocks(64) },
    segment: Some(Blocks(256)),
    force: false,
};

fn config() -> Config {
    let memory = Size::mib(16);
    Config {
        small_max: Size::kib(64),
        staged_max: Some(Blocks(256)),
        memory,
        log_bytes: Size::mib(4),
        ..Config::default()
    }
}

fn devices(mib: u64) -> (Device, Device) {
    let device = |mib| -> Device { Arc::new(Memory::new(Size::mib(mib).to_blocks_down())) };
    (device(mib), device(48))
}

async fn objects(env: &Env, (data, staging): &(Device, Device)) -> Objects<Extents> {
    let devices = (data.clone(), staging.clone());
    open(env, devices, config(), "objects of a test".into(), Options::default()).await.expect("objects")
}

async fn made(env: &Env, mib: u64) -> Objects<Extents> {
    let devices = devices(mib);
    format(env, &devices.0, &devices.1, CREATION).await.expect("made");
    objects(env, &devices).await
}

ashlar_objects::conformance!(proximal, |env: Env| async move { Arc::new(made(&env, 192).await) as Store });

fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).expect("a name")
}

async fn holds(objects: &Objects<Extents>, key: &str, expected: &[u8]) {
    let object = objects.get(&name(key), 0..u64::MAX, Condition::Any).await.expect(key);
    assert!(object.data.concat() == expected, "{key} differs");
    assert_eq!(object.stat.checksum, checksum(&[Bytes::copy_from_slice(expected)]), "{key}");
}

async fn is_sound(objects: &Objects<Extents>, count: u64) {
    let engine = objects.contents().engine();
    let found = audit(engine).await.expect("an audit");
    assert_eq!((found.objects, found.building, found.wrong), (count, 0, vec![]));
    let checked = engine.check().await.expect("a check");
    assert!(checked.is_sound(), "{checked:?}");
}

#[test]
fn objects_of_all_sizes_change_cease_and_are_found_again() {
    let sim = Sim::new(1, Schedule::Random);
    let env = sim.env();
    sim.run(async move {
        let devices = devices(96);
        format(&env, &devices.0, &devices.1, CREATION).await.expect("made");
        let store = objects(&env, &devices).await;
        let noise = |len, seed| Bytes::from(ashlar_fuzz::incompressible(seed, len));
        let mut known: Vec<(String, Vec<u8>)> = Vec::new();
        for (number, len) in (0..).zip([0, 1, 4096, 65_536, 65_537, 1 << 20, (1 << 20) + 1, 20_000_001]) {
            let (key, data) = (format!("{number}"), noise(len, number));
            store.put(&name(&key), vec![data.clone()], Put::default()).await.expect("a put");
            known.push((key, data.to_vec()));
        }
        is_sound(&store, 8).await;
        for (number, (key, data)) in known.iter_mut().enumerate() {
            let more = noise(100 + number * 30_000, 99);
            store.write(&name(key), At::End, vec![more.clone()], Change::default()).await.expect("a write");
            data.extend_from_slice(&more);
            holds(&store, key, data).await;
        }
        // What is replaced or deleted, of however many blocks, leaves nothing.
        let (last, rest) = known.split_last_mut().expect("eight");
        store.put(&name(&last.0), vec![noise(10, 7)], Put::default()).await.expect("a put");
        last.1 = noise(10, 7).to_vec();
        let parts: Vec<Name> = rest[..7].iter().map(|(key, _)| name(key)).collect();
        let whole: Vec<u8> = rest[..7].iter().flat_map(|(_, data)| data.clone()).collect();
        store.compose(&name("all"), &parts, Put::default()).await.expect("composed");
        store.contents().engine().destage().await.expect("destaged");
        let after = async |store: &Objects<Extents>| {
            holds(store, "all", &whole).await;
            holds(store, "7", &noise(10, 7)).await;
            is_sound(store, 2).await;
        };
        after(&store).await;
        drop(store);
        let store = objects(&env, &devices).await;
        after(&store).await;
        store.delete(&name("all"), Change::default()).await.expect("deleted");
        is_sound(&store, 1).await;
        let status = store.contents().engine().status();
        assert!(status.staged <= 1, "{status:?}");
    })
    .expect("no deadlock");
}
