//! One conformance body for every object engine.
//!
//! `conformance!(memory, |env| async move { ... -> Store })` in a test module runs a model under random operations, edges,
//! listings, and changes that race, in the simulated runtime, with printed seeds. The store must be empty, and have room
//! for 16 MiB. Crashes are each engine's own exploration.

use crate::{
    At, Attributes, Change, Condition, Durability, Error, List, NAME_MAX, Name, Object, Put, Stat, Store, checksum,
};
use ashlar_env::Env;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;

/// A name of a few, so that operations meet; some are long, some are bytes that are no text.
fn name(env: &Env) -> Name {
    let number = env.random() % 24;
    let name = match number % 6 {
        0 => vec![b'n'; NAME_MAX - number as usize],
        1 => vec![0xff, number as u8],
        2 => vec![0, number as u8],
        _ => format!("dir/{number}").into_bytes(),
    };
    Name::new(name).expect("a valid name")
}

/// Contents that tell from which operation they are, in one to three pieces. Most are small; some pass a large block.
fn contents(env: &Env, stamp: u64) -> Vec<Bytes> {
    let len = match env.random() % 10 {
        0 => 0,
        1..6 => env.random() % 10_000,
        6..9 => env.random() % 150_000,
        _ => env.random() % 1_200_000,
    };
    let data: Bytes = (0..len).map(|at| (stamp ^ at ^ (at >> 8).wrapping_mul(stamp | 1)) as u8).collect();
    let cuts = [env.random() % (len + 1), env.random() % (len + 1)].map(|cut| cut as usize);
    let (low, high) = (cuts[0].min(cuts[1]), cuts[0].max(cuts[1]));
    vec![data.slice(..low), data.slice(low..high), data.slice(high..)]
}

fn attributes(env: &Env, stamp: u64) -> Attributes {
    let value = vec![stamp as u8; (env.random() % 400) as usize];
    (0..env.random() % 4).map(|key| (format!("key {key}"), Bytes::from(value.clone()))).collect()
}

struct Known {
    data: Vec<u8>,
    stat: Stat,
}

/// What the store should hold.
#[derive(Default)]
struct Model {
    objects: BTreeMap<Name, Known>,
    /// Largest version of each name so far.
    versions: BTreeMap<Name, Vec<u64>>,
}

impl Model {
    fn version(&self, name: &Name) -> Option<u64> {
        self.objects.get(name).map(|known| known.stat.version)
    }

    /// A condition that may hold or not.
    fn condition(&self, env: &Env, name: &Name) -> Condition {
        match env.random() % 8 {
            0 => Condition::Absent,
            1 => Condition::Present,
            2 => Condition::Version(self.version(name).unwrap_or(1)),
            3 => Condition::Version(env.random()),
            _ => Condition::Any,
        }
    }

    /// Compares what the store says about a change with what it should have done, and remembers it.
    fn changed(&mut self, name: &Name, data: Vec<u8>, attributes: Attributes, stat: &Stat) {
        assert_eq!(&stat.name, name);
        assert_eq!(stat.size, data.len() as u64);
        assert_eq!(stat.attributes, attributes);
        assert_eq!(stat.checksum, checksum(&[data.clone().into()]), "checksum of {name}");
        let versions = self.versions.entry(name.clone()).or_default();
        assert!(!versions.contains(&stat.version), "version {} of {name} comes again", stat.version);
        versions.push(stat.version);
        self.objects.insert(name.clone(), Known { data, stat: stat.clone() });
    }

    /// The error that a change must meet, if any.
    fn refusal(&self, name: &Name, condition: Condition, needs: bool) -> Option<Error> {
        if !condition.holds(self.version(name)) {
            return Some(Error::Condition(name.clone()));
        }
        (needs && self.version(name).is_none()).then(|| Error::NotFound(name.clone()))
    }
}

/// What a change did: refused as it should be, or done and described.
fn outcome(model: &Model, name: &Name, condition: Condition, needs: bool, seen: Result<Stat, Error>) -> Option<Stat> {
    match (model.refusal(name, condition, needs), seen) {
        (Some(expected), seen) => {
            assert_eq!(seen, Err(expected), "{name} under {condition:?}");
            None
        }
        (None, seen) => Some(seen.unwrap_or_else(|error| panic!("{name} under {condition:?}: {error}"))),
    }
}

/// Random operations against a model of what every object holds.
///
/// # Panics
/// When the store breaks the contract.
pub async fn random_operations(env: Env, store: Store, operations: u64) {
    let mut model = Model::default();
    for stamp in 0..operations {
        let name = name(&env);
        let condition = model.condition(&env, &name);
        let durability = if env.random().is_multiple_of(2) { Durability::Sync } else { Durability::Async };
        let change = Change { condition, durability };
        match env.random() % 12 {
            0..4 => {
                let (data, attributes) = (contents(&env, stamp), attributes(&env, stamp));
                let expected = env.random().is_multiple_of(4).then(|| env.random() % (1 << 21));
                let put = Put { change, expected, attributes: attributes.clone() };
                let seen = store.put(&name, data.clone(), put).await;
                if let Some(stat) = outcome(&model, &name, condition, false, seen) {
                    model.changed(&name, data.concat(), attributes, &stat);
                }
            }
            4..6 => write(&env, &store, &mut model, &name, stamp, change).await,
            6 => {
                let attributes = attributes(&env, stamp);
                let seen = store.set_attributes(&name, attributes.clone(), change).await;
                if let Some(stat) = outcome(&model, &name, condition, true, seen) {
                    let data = model.objects[&name].data.clone();
                    model.changed(&name, data, attributes, &stat);
                }
            }
            7 => compose(&env, &store, &mut model, &name, stamp, change).await,
            8 => {
                let seen = store.delete(&name, change).await;
                match model.refusal(&name, condition, true) {
                    Some(expected) => assert_eq!(seen, Err(expected)),
                    None => {
                        seen.unwrap_or_else(|error| panic!("delete {name}: {error}"));
                        model.objects.remove(&name);
                    }
                }
            }
            9 => store.sync().await.expect("sync"),
            _ => {
                let (a, b) = (env.random() % 200_000, env.random() % 200_000);
                let range = a.min(b)..a.max(b);
                let seen = store.get(&name, range.clone(), condition).await;
                match model.refusal(&name, condition, true) {
                    Some(expected) => assert_eq!(seen, Err(expected)),
                    None => {
                        let known = &model.objects[&name];
                        let end = range.end.min(known.stat.size);
                        let expected = &known.data[range.start.min(end) as usize..end as usize];
                        let Object { stat, data } = seen.unwrap_or_else(|error| panic!("read {name}: {error}"));
                        assert_eq!(stat, known.stat);
                        assert!(data.concat() == expected, "operation {stamp}: {name} differs in {range:?}");
                    }
                }
            }
        }
    }
    everything(&store, &model).await;
}

async fn write(env: &Env, store: &Store, model: &mut Model, name: &Name, stamp: u64, change: Change) {
    let data = contents(env, stamp);
    let size = model.objects.get(name).map_or(0, |known| known.data.len());
    let (at, offset) = match env.random() % 3 {
        0 => (At::End, size),
        1 => (At::Offset(size as u64 / 2), size / 2),
        _ => {
            let offset = env.random() % (size as u64 + 20_000);
            (At::Offset(offset), offset as usize)
        }
    };
    let seen = store.write(name, at, data.clone(), change).await;
    if let Some(stat) = outcome(model, name, change.condition, true, seen) {
        let (mut whole, data) = (model.objects[name].data.clone(), data.concat());
        if !data.is_empty() {
            whole.resize(whole.len().max(offset + data.len()), 0);
            whole[offset..offset + data.len()].copy_from_slice(&data);
        }
        let attributes = model.objects[name].stat.attributes.clone();
        model.changed(name, whole, attributes, &stat);
    }
}

async fn compose(env: &Env, store: &Store, model: &mut Model, name: &Name, stamp: u64, change: Change) {
    let mut parts: Vec<Name> = model.objects.keys().filter(|part| *part != name).cloned().collect();
    parts.retain(|_| env.random().is_multiple_of(4));
    let attributes = attributes(env, stamp);
    let put = Put { change, expected: None, attributes: attributes.clone() };
    let seen = store.compose(name, &parts, put).await;
    if let Some(stat) = outcome(model, name, change.condition, false, seen) {
        let data = parts.iter().flat_map(|part| model.objects.remove(part).expect("a part").data).collect();
        model.changed(name, data, attributes, &stat);
    }
}

/// The listing, page by page, and every object in it are those of the model.
async fn everything(store: &Store, model: &Model) {
    let mut from = Bound::Unbounded;
    let mut listed = Vec::new();
    loop {
        let page = store.list(List { prefix: vec![], from, limit: 5 }).await.expect("list");
        assert!(page.objects.len() <= 5 && (!page.more || page.objects.len() == 5));
        listed.extend(page.objects);
        match listed.last() {
            Some(last) if page.more => from = Bound::Excluded(last.name.clone()),
            _ => break,
        }
    }
    let expected: Vec<&Stat> = model.objects.values().map(|known| &known.stat).collect();
    assert_eq!(listed.iter().collect::<Vec<_>>(), expected);
    assert_eq!(store.usage().objects, expected.len() as u64);
    for known in model.objects.values() {
        let object = store.get(&known.stat.name, 0..u64::MAX, Condition::Any).await.expect("read");
        assert!(object.data.concat() == known.data, "{} differs", known.stat.name);
        assert_eq!(object.stat, known.stat);
        assert_eq!(store.stat(&known.stat.name).await.as_ref(), Ok(&known.stat));
    }
}

/// Limits, empty objects, ranges past the end, pages and prefixes of listings, parts that are wrong.
///
/// # Panics
/// When the store breaks the contract.
pub async fn edges(store: Store) {
    let named = |text: &str| Name::new(text.as_bytes().to_vec()).expect("a valid name");
    let limits = store.limits();
    assert!(limits.attributes >= 8192 && limits.unit > 0 && limits.unit <= limits.object, "{limits:?}");
    for text in ["a", "a/1", "a/2", "a/2/x", "a0", "b"] {
        let stat = store.put(&named(text), vec![], Put::default()).await.expect("an empty object");
        assert_eq!((stat.size, stat.checksum), (0, checksum(&[])));
        let object = store.get(&named(text), 7..u64::MAX, Condition::Any).await.expect("nothing");
        assert_eq!(object.data.concat(), []);
    }
    let cases = [
        ("a/", Bound::Unbounded, 10, &["a/1", "a/2", "a/2/x"][..], false),
        ("a/", Bound::Unbounded, 2, &["a/1", "a/2"], true),
        ("a/", Bound::Unbounded, 3, &["a/1", "a/2", "a/2/x"], false),
        ("a/", Bound::Excluded(named("a/2")), 10, &["a/2/x"], false),
        ("a/", Bound::Included(named("a/2")), 10, &["a/2", "a/2/x"], false),
        ("a/", Bound::Included(named("a0")), 10, &[], false),
        ("", Bound::Included(named("a0")), 10, &["a0", "b"], false),
        ("c", Bound::Unbounded, 10, &[], false),
    ];
    for (prefix, from, limit, expected, more) in cases {
        let page = store.list(List { prefix: prefix.into(), from, limit }).await.expect("list");
        let names: Vec<Name> = page.objects.into_iter().map(|stat| stat.name).collect();
        assert_eq!(names, expected.iter().map(|text| named(text)).collect::<Vec<_>>(), "under {prefix:?}");
        assert_eq!(page.more, more, "under {prefix:?}");
    }
    for parts in [&["b"][..], &["a", "a"]] {
        let parts: Vec<Name> = parts.iter().map(|text| named(text)).collect();
        let refused = store.compose(&named("b"), &parts, Put::default()).await;
        assert!(matches!(refused, Err(Error::Misuse(_))), "{parts:?}: {refused:?}");
    }
    let missing = store.compose(&named("b"), &[named("a"), named("none")], Put::default()).await;
    assert_eq!(missing, Err(Error::NotFound(named("none"))));
    store.stat(&named("a")).await.expect("a part of what was not composed is still there");
    let large = Attributes::from([("key".into(), Bytes::from(vec![0; limits.attributes as usize]))]);
    let refused = store.put(&named("a"), vec![], Put { attributes: large, ..Put::default() }).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
    let full = Attributes::from([("key".into(), Bytes::from(vec![7; limits.attributes as usize - 3]))]);
    let put = Put { attributes: full.clone(), ..Put::default() };
    assert_eq!(store.put(&named("a"), vec![], put).await.expect("attributes at the limit").attributes, full);
    assert_eq!(store.stat(&named("a")).await.expect("there").attributes, full);
    for at in [limits.object, u64::MAX] {
        let far = store.write(&named("b"), At::Offset(at), vec![Bytes::from_static(b"x")], Change::default()).await;
        assert!(matches!(far, Err(Error::TooLarge { .. } | Error::NoSpace)), "at {at}: {far:?}");
    }
}

/// Of many who make the same object if it is absent, or change the same version, one succeeds; readers see only what one of
/// the writers wrote, whole.
///
/// # Panics
/// When the store breaks the contract.
pub async fn races(env: Env, store: Store) {
    const TASKS: u64 = 6;
    let name = Name::new(&b"contended"[..]).expect("a valid name");
    let body = |task: u64, round: u64| Bytes::from(vec![(task * 16 + round) as u8; 30_000 + task as usize]);
    for round in 0..6 {
        let version = store.stat(&name).await.ok().map(|stat| stat.version);
        let condition = version.map_or(Condition::Absent, Condition::Version);
        let writers: Vec<_> = (0..TASKS)
            .map(|task| {
                let (store, name, data) = (store.clone(), name.clone(), vec![body(task, round)]);
                let change = Change { condition, durability: Durability::Async };
                env.spawn(async move { store.put(&name, data, Put { change, ..Put::default() }).await })
            })
            .collect();
        let readers: Vec<_> = (0..TASKS)
            .map(|_| {
                let (store, name) = (store.clone(), name.clone());
                env.spawn(async move { store.get(&name, 0..u64::MAX, Condition::Any).await })
            })
            .collect();
        let mut winners = 0;
        for writer in writers {
            match writer.await {
                Ok(_) => winners += 1,
                Err(error) => assert_eq!(error, Error::Condition(name.clone())),
            }
        }
        assert_eq!(winners, 1, "round {round}: of those who asked for the same version");
        for reader in readers {
            match reader.await {
                Ok(object) => {
                    assert_eq!(object.stat.checksum, checksum(&object.data), "round {round}: a read of two versions");
                    assert_eq!(object.stat.size, crate::len_of(&object.data));
                }
                Err(error) => assert!(version.is_none() && error == Error::NotFound(name.clone()), "{error}"),
            }
        }
    }
}

/// Runs the conformance suite on what `$make` builds from an `Env`.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $make:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            fn run<F: Future<Output = ()> + Send + 'static>(body: fn(ashlar_env::Env, $crate::Store) -> F, seeds: u64) {
                for seed in 0..seeds {
                    eprintln!("conformance {} seed {seed}", stringify!($name));
                    let sim = ashlar_env::sim::Sim::new(seed, ashlar_env::sim::Schedule::Random);
                    let env = sim.env();
                    sim.run(async move {
                        let store: $crate::Store = $make(env.clone()).await;
                        body(env, store).await;
                    })
                    .expect("no deadlock");
                }
            }
            #[test]
            fn random_operations() {
                run(|env, store| $crate::conformance::random_operations(env, store, 200), 16);
            }
            #[test]
            fn edges() {
                run(|_, store| $crate::conformance::edges(store), 1);
            }
            #[test]
            fn races() {
                run($crate::conformance::races, 16);
            }
        }
    };
}
