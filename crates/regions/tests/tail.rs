//! What lies behind the last whole region: tables, as long as they fit there.

mod scene;

use ashlar_block::Device;
use ashlar_devices::Memory as Ram;
use ashlar_env::sim::simulate;
use ashlar_objects::{Change, Condition, Durability, Engine, List, Name, Put};
use ashlar_regions::{Kind, Layout, Memory, Regions, format};
use ashlar_units::Blocks;
use bytes::Bytes;
use scene::CONFIG;
use std::ops::Bound;
use std::sync::Arc;

const OBJECTS: u32 = 1500;

/// Long names, with little in common.
fn name(number: u32) -> Name {
    let mut text = ashlar_fuzz::incompressible(u64::from(number), 300);
    text.splice(..0, format!("{number:06}").into_bytes());
    Name::new(text).expect("a name")
}

/// The capacity with a tail of just so many blocks.
fn capacity(tail: u64) -> Blocks {
    let has = |capacity: &u64| Layout::new(Blocks(*capacity), &CONFIG).expect("a layout").tail == tail;
    Blocks((20_000..21_000).find(has).expect("every number of blocks is left somewhere"))
}

/// Fills a store, reads it back after opening it again, and empties it. The regions of tables, and how full the tail was.
fn fill(tail: u64, seed: u64, check: impl FnOnce(usize, Option<f64>) + Send + 'static) {
    simulate(seed, move |env| async move {
        let device: Device = Arc::new(Ram::new(capacity(tail)));
        format(&env, &device, CONFIG).await.expect("a fresh device");
        let store = Regions::open(&env, device.clone(), Memory::default()).await.expect("a store");
        let change = Change { condition: Condition::Any, durability: Durability::Async };
        for number in 0..OBJECTS {
            let put = Put { change, ..Put::default() };
            store.put(&name(number), vec![Bytes::from(number.to_string())], put).await.expect("room");
            if number % 500 == 0 {
                store.checkpoint().await.expect("a checkpoint");
            }
        }
        store.close().await.expect("close");
        drop(store);
        let store = Regions::open(&env, device, Memory::default()).await.expect("a store");
        let status = store.status(true).await.expect("a map");
        let tables = status.regions.iter().filter(|region| region.kind == Kind::Table).count();
        check(tables, status.tail.map(|tail| tail.fill));
        let request = List { prefix: vec![], from: Bound::Unbounded, limit: OBJECTS as usize + 1 };
        let listed = store.list(request).await.expect("a list").objects;
        assert_eq!(listed.len(), OBJECTS as usize);
        assert!((0..).zip(&listed).all(|(number, stat)| stat.name == name(number)), "names are in their order");
        assert!(store.check(None, false).await.expect("a check").is_clean());
        for number in 0..OBJECTS {
            store.delete(&name(number), change).await.expect("it is there");
        }
        store.close().await.expect("close");
        assert_eq!(store.usage().objects, 0);
        assert!(store.check(None, false).await.expect("a check").is_clean());
    });
}

#[test]
fn tables_lie_in_the_tail_and_take_no_region() {
    fill(500, 1, |tables, tail| {
        assert_eq!(tables, 0);
        assert!(tail.is_some_and(|fill| (0.2..1.0).contains(&fill)), "{tail:?}");
    });
}

#[test]
fn tables_that_the_tail_does_not_hold_go_on_in_a_region() {
    fill(20, 2, |tables, tail| {
        assert_eq!(tables, 1);
        assert!(tail.is_some_and(|fill| fill > 0.0), "{tail:?}");
    });
}

#[test]
fn tables_take_a_region_where_there_is_no_tail() {
    fill(0, 3, |tables, tail| assert_eq!((tables, tail), (1, None)));
}
