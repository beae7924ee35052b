//! The conformance suite, and what it reaches too seldom: large objects, growth from class to class, a full pool.

use crate::{Objects, Options, audit};
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_objects::{At, Change, Condition, Engine, Error, Name, Put, Store, checksum};
use ashlar_pool::{Config, Creation, Pool};
use ashlar_units::{Blocks, Bytes as Size};
use bytes::Bytes;
use std::sync::Arc;

const CREATION: Creation = Creation { segment: Some(Blocks(256)), force: false };

async fn objects(env: &Env, megabytes: u64) -> Objects {
    let device: ashlar_block::Device = Arc::new(ashlar_devices::Memory::new(Size::mib(megabytes).to_blocks_down()));
    Pool::create(env, std::slice::from_ref(&device), CREATION).await.expect("a pool");
    let config = Config { memory: Size::mib(16), ..Config::default() };
    let pool = Pool::open(env, vec![device], config).await.expect("the pool");
    let volume = pool.create_volume("objects").await.expect("a volume");
    Objects::format(&volume).await.expect("an empty volume");
    Objects::open(volume, "objects of a test".into(), Options::default()).await.expect("objects")
}

ashlar_objects::conformance!(pool, |env: Env| async move { Arc::new(objects(&env, 192).await) as Store });

fn run<F: Future<Output = ()> + Send + 'static>(test: impl FnOnce(Env) -> F) {
    let sim = Sim::new(1, Schedule::Random);
    let future = test(sim.env());
    sim.run(future).expect("no deadlock");
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).expect("a name")
}

/// Bytes that the pool cannot make fewer.
fn noise(len: usize, seed: u8) -> Bytes {
    ashlar_fuzz::incompressible(u64::from(seed), len).into()
}

async fn holds(objects: &Objects, key: &str, expected: &[u8]) {
    let object = objects.get(&name(key), 0..u64::MAX, Condition::Any).await.expect(key);
    assert!(object.data.concat() == expected, "{key} differs");
    assert_eq!(object.stat.checksum, checksum(&[Bytes::copy_from_slice(expected)]), "{key}");
    let middle = expected.len() as u64 / 2;
    let part = objects.get(&name(key), middle..middle + 5000, Condition::Any).await.expect(key);
    let end = (middle as usize + 5000).min(expected.len());
    assert!(part.data.concat() == expected[middle as usize..end], "the middle of {key} differs");
}

/// Contents in pieces: whole extents, which are written as they come, and others; the last one of any length.
#[test]
fn contents_may_come_in_any_pieces() {
    const EXTENT: usize = 128 << 10;
    run(|env| async move {
        let objects = objects(&env, 192).await;
        for (number, lens) in [
            vec![4 * EXTENT, 4 * EXTENT, EXTENT, 1],
            vec![0, EXTENT, 0, 5000, 0],
            vec![EXTENT, 4096, EXTENT],
            vec![1, EXTENT],
            vec![EXTENT + 1, 2 * EXTENT],
            vec![4 * EXTENT; 16],
            vec![0, 0],
        ]
        .into_iter()
        .enumerate()
        {
            let whole = noise(lens.iter().sum(), number as u8);
            let mut rest = whole.clone();
            let pieces = lens.iter().map(|len| rest.split_to(*len)).collect();
            let key = format!("pieces {number}");
            objects.put(&name(&key), pieces, Put::default()).await.expect("a put");
            holds(&objects, &key, &whole).await;
        }
    });
}

#[test]
fn large_objects_are_built_grow_and_are_composed() {
    run(|env| async move {
        let objects = objects(&env, 192).await;
        let large = noise(20_000_001, 1);
        objects.put(&name("large"), vec![large.slice(..7), large.slice(7..)], Put::default()).await.expect("a put");
        holds(&objects, "large", &large).await;
        // From small to medium, by appending and by a write behind the end.
        let mut grown = noise(1_000_000, 2).to_vec();
        objects.put(&name("grown"), vec![grown.clone().into()], Put::default()).await.expect("a put");
        for (at, len) in [(At::End, 100_000), (At::Offset(3_000_001), 10), (At::Offset(5), 9_000_000), (At::End, 1)] {
            let data = noise(len, 3);
            let offset = match at {
                At::End => grown.len(),
                At::Offset(at) => at as usize,
            };
            objects.write(&name("grown"), at, vec![data.clone()], Change::default()).await.expect("a write");
            grown.resize(grown.len().max(offset + len), 0);
            grown[offset..offset + len].copy_from_slice(&data);
            holds(&objects, "grown", &grown).await;
        }
        // Parts that end at blocks and parts that do not.
        let parts = [8 << 20, 8 << 20, 5_000_000, 4096, 3_000_000];
        let parts: Vec<(Name, Bytes)> =
            (0..).zip(parts).map(|(number, len)| (name(&format!("part {number}")), noise(len, number))).collect();
        for (part, data) in &parts {
            objects.put(part, vec![data.clone()], Put::default()).await.expect("a part");
        }
        let names: Vec<Name> = parts.iter().map(|(part, _)| part.clone()).collect();
        let whole: Vec<u8> = parts.iter().flat_map(|(_, data)| data.to_vec()).collect();
        objects.compose(&name("grown"), &names, Put::default()).await.expect("composed");
        holds(&objects, "grown", &whole).await;
        assert_eq!(objects.stat(&names[0]).await, Err(Error::NotFound(names[0].clone())));
        let found = audit(&objects.volume).await.expect("an audit");
        assert_eq!(found.wrong, Vec::<String>::new());
        assert_eq!((found.objects, found.bytes), (2, (large.len() + whole.len()) as u64));
        assert_eq!(objects.usage().objects, 2);
    });
}

#[test]
fn what_fails_leaves_nothing() {
    run(|env| async move {
        let objects = objects(&env, 40).await;
        let keep = noise(100_000, 1);
        objects.put(&name("keep"), vec![keep.clone()], Put::default()).await.expect("a put");
        for len in [9 << 20, 60 << 20] {
            let change = Change { condition: Condition::Absent, ..Change::default() };
            let refused = objects.put(&name("keep"), vec![noise(len, 2)], Put { change, ..Put::default() }).await;
            assert_eq!(refused, Err(Error::Condition(name("keep"))));
        }
        assert_eq!(objects.put(&name("huge"), vec![noise(60 << 20, 3)], Put::default()).await, Err(Error::NoSpace));
        let found = audit(&objects.volume).await.expect("an audit");
        assert_eq!((found.objects, found.wrong), (1, vec![]));
        holds(&objects, "keep", &keep).await;
        // The pool is not full of what was given up.
        for round in 0..12 {
            objects.put(&name("again"), vec![noise(8 << 20, round)], Put::default()).await.expect("room");
        }
        let many: Vec<Name> = (0..257).map(|number| name(&number.to_string())).collect();
        let refused = objects.compose(&name("many"), &many, Put::default()).await;
        assert!(matches!(refused, Err(Error::TooLarge { what: "a list of parts", .. })), "{refused:?}");
    });
}

#[test]
fn opening_clears_what_was_being_built_and_goes_on_counting() {
    run(|env| async move {
        let objects = objects(&env, 64).await;
        let first = objects.put(&name("a"), vec![noise(10, 1)], Put::default()).await.expect("a put");
        let place = objects.numbers_place().await;
        let mut building = objects.build(place).await.expect("a building");
        objects.append(&mut building, &[noise(3_000_000, 1)]).await.expect("room");
        let found = audit(&objects.volume).await.expect("an audit");
        assert_eq!((found.building, found.wrong), (1, vec![]));
        let volume = objects.volume.clone();
        drop(objects);
        let objects = Objects::open(volume.clone(), "again".into(), Options::default()).await.expect("objects");
        let found = audit(&objects.volume).await.expect("an audit");
        assert_eq!((found.building, found.wrong), (0, vec![]));
        assert_eq!(objects.usage().objects, 1);
        let second = objects.put(&name("a"), vec![], Put::default()).await.expect("a put");
        assert!(second.version > first.version);
        Objects::format(&volume).await.expect_err("it holds objects");
    });
}
