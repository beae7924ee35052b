//! Writes that fail: the place is given up, the object goes elsewhere, and everything else goes on. Only where there is no
//! other place (the log, the superblock, the base part of the table) and when a flush fails does the store stop.

mod scene;

use ashlar_block::Kind as ErrorKind;
use ashlar_devices::Memory as Ram;
use ashlar_env::Env;
use ashlar_env::sim::simulate;
use ashlar_faults::Faulty;
use ashlar_objects::{Change, Condition, Durability, Engine, Error, Name, Put};
use ashlar_regions::{Health, Kind, Layout, Memory, Regions, format};
use ashlar_units::{Blocks, Lba};
use bytes::Bytes;
use scene::{CAPACITY, CONFIG};
use std::sync::Arc;

struct Ground {
    env: Env,
    faulty: Arc<Faulty>,
    layout: Layout,
}

impl Ground {
    async fn new(env: Env) -> Ground {
        let faulty = Arc::new(Faulty::new(Arc::new(Ram::new(CAPACITY)), 7, env.clone()));
        format(&env, &(faulty.clone() as _), CONFIG).await.expect("a fresh device");
        Ground { env, faulty, layout: Layout::new(CAPACITY, &CONFIG).expect("a layout") }
    }

    async fn open(&self) -> Regions {
        Regions::open(&self.env, self.faulty.clone(), Memory::default()).await.expect("a store")
    }

    fn inject(&self, fault: &str, at: Lba, count: Blocks) {
        let (from, end) = (at.0 * 4096, (at.0 + count.0) * 4096);
        // A device is removed as a whole.
        let range = if fault == "removed" { String::new() } else { format!(" at {from}..{end}") };
        let fault = format!("{fault}{range}").parse().expect("a fault");
        self.faulty.inject(fault).expect("it can be");
    }
}

fn name(number: u32) -> Name {
    Name::new(format!("object {number}").into_bytes()).expect("a name")
}

fn data(number: u32) -> Bytes {
    let len = [65_536, 30_000, 9000, 100][number as usize % 4];
    (0..len).map(|at: u32| (at * 31 + number * 7 + at / 251) as u8).collect::<Vec<u8>>().into()
}

fn change(number: u32) -> Change {
    let durability = if number % 8 < 4 { Durability::Sync } else { Durability::Async };
    Change { condition: Condition::Any, durability }
}

async fn put_all(store: &Regions, numbers: std::ops::Range<u32>) -> Result<(), Error> {
    for number in numbers {
        store.put(&name(number), vec![data(number)], Put { change: change(number), ..Put::default() }).await?;
    }
    store.sync().await
}

async fn read_all(store: &Regions, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let object = store.get(&name(number), 0..u64::MAX, Condition::Any).await.expect("it is there");
        assert!(object.data.concat() == data(number)[..], "object {number} has changed");
    }
}

async fn damaged(store: &Regions) -> Vec<(u32, Kind)> {
    let status = store.status(true).await.expect("a map");
    let damaged = status.regions.iter().filter(|region| region.health == Health::Damaged);
    damaged.map(|region| (region.region, region.kind)).collect()
}

#[test]
fn a_place_that_takes_no_writes_costs_its_region_and_nothing_else() {
    simulate(1, |env| async move {
        let ground = Ground::new(env).await;
        let store = ground.open().await;
        put_all(&store, 0..40).await.expect("room");
        // The next unit and the next onodes and blocks of the regions in use.
        let status = store.status(true).await.expect("a map");
        let of = |kind| status.regions.iter().find(|region| region.kind == kind).expect("one is in use").region;
        let (large, small) = (of(Kind::Large), of(Kind::Small));
        ground.inject("read-only", ground.layout.onode(large, Kind::Large, 14), Blocks(1));
        ground.inject("write-error", ground.layout.onode(small, Kind::Small, 50), Blocks(2));
        put_all(&store, 40..200).await.expect("other places take them");
        read_all(&store, 0..200).await;
        assert_eq!(damaged(&store).await.len(), 2, "both regions are known to be bad");
        store.close().await.expect("close");
        drop(store);
        let store = ground.open().await;
        read_all(&store, 0..200).await;
        assert_eq!(store.usage().objects, 200);
        let mut bad = damaged(&store).await;
        bad.sort_unstable();
        let mut expected = vec![(large, Kind::Large), (small, Kind::Small)];
        expected.sort_unstable();
        assert_eq!(bad, expected, "it is known for good");
        // When the places are mended, a repair takes the regions into use again.
        ground.faulty.clear(None).await.expect("mended");
        let repaired = store.check(None, true).await.expect("repair");
        assert!(repaired.lost.is_empty() && repaired.damaged.is_empty(), "{repaired:?}");
        assert_eq!(damaged(&store).await, []);
        assert!(store.check(None, false).await.expect("check").is_clean());
        put_all(&store, 200..260).await.expect("room");
        read_all(&store, 0..260).await;
    });
}

#[test]
fn heads_and_nodes_that_cannot_be_written_cost_no_object() {
    simulate(2, |env| async move {
        let ground = Ground::new(env).await;
        let store = ground.open().await;
        put_all(&store, 0..100).await.expect("room");
        store.checkpoint().await.expect("a checkpoint");
        let status = store.status(true).await.expect("a map");
        for region in status.regions.iter().chain(&status.tail).filter(|region| region.kind != Kind::Free) {
            // Heads; of a table region all of it.
            let whole = region.kind == Kind::Table;
            let shape = ground.layout.shape_of(region.region);
            let blocks = if whole { shape.blocks } else { 2 * shape.head };
            ground.inject("read-only", ground.layout.region(region.region), Blocks(blocks));
        }
        put_all(&store, 100..200).await.expect("room");
        store.close().await.expect("the checkpoint is written without them");
        drop(store);
        let store = ground.open().await;
        read_all(&store, 0..200).await;
        ground.faulty.clear(None).await.expect("mended");
        let repaired = store.check(None, true).await.expect("repair");
        assert!(repaired.lost.is_empty() && repaired.damaged.is_empty(), "{repaired:?}");
        assert!(store.check(None, false).await.expect("check").is_clean());
        let list = ashlar_objects::List { prefix: vec![], from: std::ops::Bound::Unbounded, limit: 1000 };
        assert_eq!(store.list(list).await.expect("a list").objects.len(), 200);
    });
}

#[test]
fn a_full_device_refuses_and_goes_on() {
    simulate(3, |env| async move {
        let ground = Ground::new(env).await;
        let store = ground.open().await;
        put_all(&store, 0..8).await.expect("room");
        let first = ground.layout.region(0);
        ground.inject("full", first, Blocks(CAPACITY.0 - first.0));
        let sync = Put::default();
        let refused = store.put(&name(8), vec![data(8)], sync.clone()).await.expect_err("the device is full");
        assert!(matches!(refused, Error::NoSpace), "{refused}");
        assert!(matches!(store.stat(&name(8)).await, Err(Error::NotFound(_))), "it is as if nobody had asked");
        read_all(&store, 0..8).await;
        // What was accepted before anybody could know stays in memory until there is room, and is durable then.
        let put = Put { change: change(13), ..Put::default() };
        store.put(&name(13), vec![data(13)], put).await.expect("it is accepted");
        store.sync().await.expect_err("it cannot be durable");
        ground.faulty.clear(None).await.expect("there is room again");
        store.sync().await.expect("room");
        drop(store);
        let store = ground.open().await;
        read_all(&store, 13..14).await;
        store.put(&name(8), vec![data(8)], sync).await.expect("room");
        read_all(&store, 0..9).await;
        assert_eq!(damaged(&store).await, [], "no place is bad for want of room");
    });
}

#[test]
fn where_there_is_no_other_place_the_store_stops_until_it_is_opened_again() {
    let log = Layout::new(CAPACITY, &CONFIG).expect("a layout").log(0);
    for (fault, at, count) in [("read-only", log, 256), ("removed", Lba(0), CAPACITY.0), ("write-error", Lba(0), 2)] {
        simulate(4, move |env| async move {
            let ground = Ground::new(env).await;
            let store = ground.open().await;
            put_all(&store, 0..8).await.expect("room");
            store.checkpoint().await.expect("a checkpoint");
            ground.inject(fault, at, Blocks(count));
            let mut stopped = None;
            for number in 8..40 {
                stopped = put_all(&store, number..number + 1).await.and(store.checkpoint().await).err();
            }
            let stopped = stopped.expect("nothing can be promised");
            let Error::Storage(error) = &stopped else { panic!("{fault}: {stopped}") };
            assert_eq!(error.kind(), ErrorKind::Poisoned, "{fault}: {error}");
            assert!(error.to_string().contains("open the store again"), "{error}");
            ground.faulty.clear(None).await.expect("mended");
            drop(store);
            let store = ground.open().await;
            read_all(&store, 0..8).await;
            put_all(&store, 8..40).await.expect("room");
            read_all(&store, 0..40).await;
        });
    }
}
