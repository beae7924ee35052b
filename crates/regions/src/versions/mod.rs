//! Stores of every version that was ever written, as they lie on their devices: they must open, be whole, and take changes.
//!
//! A new version gets a picture of its own: `cargo test -p ashlar-regions print_ -- --ignored --nocapture` prints it.

use crate::format::VERSION;
use crate::open::format_version;
use crate::{Config, Memory, Regions};
use ashlar_block::{Device, Durability, IoContext};
use ashlar_devices::Memory as Ram;
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_fuzz::{image_of, sketch};
use ashlar_objects::{Change, Condition, Engine, List, Name, Put};
use ashlar_units::{Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use std::ops::Bound;
use std::sync::Arc;

const CONTEXT: IoContext = IoContext::foreground("test");
/// Four regions, and behind them what a version may use as a tail.
const CAPACITY: Blocks = Blocks(28 + 4 * 64 + 40);
const CONFIG: Config = Config {
    region: Size::kib(256),
    large_block: Size::kib(16),
    object_mean: Size::kib(64),
    blocks_per_onode: 8,
    log: Size::kib(64),
    force: false,
};

fn run<F: Future<Output = ()> + Send + 'static>(body: impl FnOnce(Env) -> F) {
    let sim = Sim::new(1, Schedule::Fifo);
    let env = sim.env();
    sim.run(body(env)).expect("no deadlock");
}

fn name(number: u8) -> Name {
    Name::new(format!("object {number}").into_bytes()).expect("a name")
}

/// Tiny, small and large, nearly all zeros.
fn content(number: u8) -> Bytes {
    let mut content = vec![0; [100, 9000, 16 << 10][usize::from(number % 3)]];
    content[..8].copy_from_slice(b"contents");
    content[99] = number;
    content.into()
}

/// Makes a store with nine objects, of which one is deleted.
async fn make(env: &Env, version: u16) -> Vec<u8> {
    let device: Device = Arc::new(Ram::new(CAPACITY));
    format_version(env, &device, CONFIG, version).await.expect("a fresh device");
    let store = Regions::open(env, device.clone(), Memory::default()).await.expect("a store");
    for number in 0..9 {
        store.put(&name(number), vec![content(number)], Put::default()).await.expect("room");
    }
    store.close().await.expect("a checkpoint");
    store.delete(&name(4), Change::default()).await.expect("it is there");
    device.read(CONTEXT, Lba(0), CAPACITY).await.expect("a device").to_vec()
}

async fn listed(store: &Regions) -> Vec<Name> {
    let request = List { prefix: vec![], from: Bound::Unbounded, limit: 100 };
    store.list(request).await.expect("a list").objects.into_iter().map(|stat| stat.name).collect()
}

#[test]
#[ignore = "prints the picture of a new version"]
fn print_a_picture() {
    run(|env| async move { println!("{}", sketch(&make(&env, VERSION).await)) });
}

/// A store as this picture has it is opened, changed, and opened again.
fn opens(picture: &'static str, has_tail: bool) {
    run(move |env| async move {
        let device: Device = Arc::new(Ram::new(CAPACITY));
        let image = Bytes::from(image_of(picture, CAPACITY.to_bytes().0 as usize));
        device.write(CONTEXT, Lba(0), vec![image], Durability::Cached).await.expect("a device");
        let mut expected: Vec<u8> = (0..9).filter(|number| *number != 4).collect();
        for new in [4, 20, 21] {
            let store = Regions::open(&env, device.clone(), Memory::default()).await.expect("it opens");
            assert_eq!(store.status(true).await.expect("a map").tail.is_some(), has_tail);
            let mut names: Vec<Name> = expected.iter().map(|number| name(*number)).collect();
            names.sort();
            assert_eq!(listed(&store).await, names);
            for number in &expected {
                let object = store.get(&name(*number), 0..u64::MAX, Condition::Any).await.expect("it is there");
                assert!(object.data.concat() == content(*number), "object {number} is not what it was");
            }
            let found = store.check(None, false).await.expect("a check");
            assert!(found.is_clean(), "{found:?}");
            store.put(&name(new), vec![content(new)], Put::default()).await.expect("room");
            expected.push(new);
            store.close().await.expect("a checkpoint");
        }
    });
}

#[test]
fn stores_of_version_1_open_and_keep_their_layout() {
    opens(include_str!("1.txt"), false);
}

#[test]
fn stores_of_version_2_open() {
    opens(include_str!("2.txt"), true);
}

/// What made the first picture was the program of that time: what this one makes for it is the same.
#[test]
fn a_store_of_version_1_is_made_as_it_was() {
    run(|env| async move {
        let made = make(&env, 1).await;
        assert!(made == image_of(include_str!("1.txt"), made.len()), "it was not laid out so");
    });
}
