//! I/O counts (section 6, check 2 of the digest), fragmentation, two stores on one device, and many objects in little memory.

use ashlar_block::{Checked, Device};
use ashlar_devices::{Filled, Memory as Ram};
use ashlar_env::sim::simulate;
use ashlar_objects::{Change, Condition, Durability, Engine, List, Name, Put};
use ashlar_regions::{Config, Kind, Memory, Regions, Tidy, format};
use ashlar_units::{Blocks, Bytes as Size};
use bytes::Bytes;
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).expect("a valid name")
}

fn asynchronous() -> Put {
    let change = Change { condition: Condition::Any, durability: Durability::Async };
    Put { change, ..Put::default() }
}

struct Counted {
    device: Arc<Checked>,
    seen: [u64; 3],
}

impl Counted {
    /// Reads, writes and flushes since the last call.
    fn since(&mut self) -> [u64; 3] {
        let counters = self.device.counters();
        let now = [&counters.reads, &counters.writes, &counters.flushes].map(|count| count.load(Ordering::Relaxed));
        std::array::from_fn(|index| now[index] - std::mem::replace(&mut self.seen[index], now[index]))
    }
}

#[test]
fn objects_cost_the_reads_and_writes_that_the_thesis_says() {
    simulate(1, |env| async move {
        let device = Arc::new(Checked::new(Arc::new(Filled::new(Blocks(8_000_000_000 / 4096))), env.clone()));
        let shared: Device = device.clone();
        format(&env, &shared, Config::default()).await.expect("a fresh device");
        let store = Regions::open(&env, shared.clone(), Memory::default()).await.expect("a store");
        let mut counted = Counted { device, seen: [0; 3] };
        let large = || vec![Bytes::from(vec![7; 512 << 10])];
        let small = || vec![Bytes::from(vec![7; 40_000])];
        // What is not there brings the pages of the table into memory.
        for number in 0..12_000 {
            store.stat(&name(&format!("none {number}"))).await.expect_err("not there");
        }
        // The first of either kind tells the log that a region is written from now on.
        store.put(&name("first large"), large(), Put::default()).await.expect("room");
        store.put(&name("first small"), small(), Put::default()).await.expect("room");
        counted.since();
        for number in 0..20 {
            store.put(&name(&format!("large {number}")), large(), Put::default()).await.expect("room");
            assert_eq!(counted.since(), [0, 1, 0], "a synchronous large create is one write, that reaches the medium");
            store.put(&name(&format!("small {number}")), small(), Put::default()).await.expect("room");
            assert_eq!(counted.since(), [0, 2, 1], "a synchronous small one is data and onode");
            let tiny = vec![Bytes::from_static(b"a few bytes")];
            store.put(&name(&format!("tiny {number}")), tiny, Put::default()).await.expect("room");
            assert_eq!(counted.since(), [0, 1, 1], "one that fits into its onode is the onode");
            store.delete(&name(&format!("tiny {number}")), Change::default()).await.expect("there");
            assert_eq!(counted.since(), [0, 1, 0], "a synchronous deletion is one record of the log");
        }
    });
}

#[test]
fn reads_are_one_of_large_objects_and_two_of_small_ones() {
    simulate(2, |env| async move {
        let device = Arc::new(Checked::new(Arc::new(Ram::new(Blocks(400 << 8))), env.clone()));
        let shared: Device = device.clone();
        let config = Config { region: Size::mib(32), ..Config::default() };
        format(&env, &shared, config).await.expect("a fresh device");
        let store = Regions::open(&env, shared.clone(), Memory::default()).await.expect("a store");
        for number in 0..8 {
            let content = vec![Bytes::from(vec![number; 512 << 10])];
            store.put(&name(&format!("large {number}")), content, asynchronous()).await.expect("room");
            let content = vec![Bytes::from(vec![number; 40_000])];
            store.put(&name(&format!("small {number}")), content, asynchronous()).await.expect("room");
        }
        store.close().await.expect("close");
        drop(store);
        let store = Regions::open(&env, shared, Memory::default()).await.expect("a store");
        let mut counted = Counted { device, seen: [0; 3] };
        // What is not there brings every page of the table into memory.
        for number in 0..3000 {
            store.stat(&name(&format!("none {number}"))).await.expect_err("not there");
        }
        counted.since();
        for number in 0..8 {
            let object =
                store.get(&name(&format!("large {number}")), 0..u64::MAX, Condition::Any).await.expect("there");
            assert!(object.data.concat() == vec![number; 512 << 10]);
            assert_eq!(counted.since(), [1, 0, 0], "a large object is read at once, with its onode");
            let object =
                store.get(&name(&format!("small {number}")), 0..u64::MAX, Condition::Any).await.expect("there");
            assert!(object.data.concat() == vec![number; 40_000]);
            assert_eq!(counted.since(), [2, 0, 0], "a small one is its onode and its blocks");
            store.get(&name(&format!("small {number}")), 0..u64::MAX, Condition::Any).await.expect("there");
            assert_eq!(counted.since(), [1, 0, 0], "whose onode is in memory then");
        }
    });
}

#[test]
fn repairing_a_region_costs_the_same_on_a_disk_ten_times_as_large() {
    let costs: Arc<Mutex<Vec<[u64; 3]>>> = Arc::default();
    for capacity in [8_000_000_000, 80_000_000_000] {
        let costs = costs.clone();
        simulate(4, move |env| async move {
            let device = Arc::new(Checked::new(Arc::new(Filled::new(Blocks(capacity / 4096))), env.clone()));
            let shared: Device = device.clone();
            format(&env, &shared, Config::default()).await.expect("a fresh device");
            let store = Regions::open(&env, shared.clone(), Memory::default()).await.expect("a store");
            for number in 0..40 {
                let content = vec![Bytes::from(vec![7; if number % 2 == 0 { 512 << 10 } else { 40_000 }])];
                store.put(&name(&number.to_string()), content, Put::default()).await.expect("room");
            }
            let regions = store.status(true).await.expect("a status").regions;
            let small =
                regions.iter().position(|region| region.kind == Kind::Small).expect("one took the small objects");
            let mut counted = Counted { device, seen: [0; 3] };
            counted.since();
            let done = store.check(Some(small as u32), true).await.expect("repair");
            assert!(done.lost.is_empty() && done.damaged.is_empty(), "{done:?}");
            costs.lock().push(counted.since());
        });
    }
    let costs = costs.lock();
    assert!(costs[0][0] > 0, "a repair believes nothing that it has not read: {costs:?}");
    assert_eq!(costs[0], costs[1], "reads, writes and flushes");
}

#[test]
fn a_check_of_everything_reads_the_table_a_few_times_and_not_once_for_each_region() {
    simulate(5, |env| async move {
        let device = Arc::new(Checked::new(Arc::new(Filled::new(Blocks(20_000_000_000 / 4096))), env.clone()));
        let shared: Device = device.clone();
        let config = Config { region: Size::mib(4), large_block: Size::kib(64), ..Config::default() };
        format(&env, &shared, config).await.expect("a fresh device");
        // The table does not fit.
        let store = Regions::open(&env, shared.clone(), Memory { bytes: Size::mib(1), ..Memory::default() })
            .await
            .expect("a store");
        for number in 0..2_000 {
            let content = vec![Bytes::from(vec![7; 64 << 10])];
            store.put(&name(&number.to_string()), content, asynchronous()).await.expect("room");
        }
        store.sync().await.expect("durable");
        let status = store.status(false).await.expect("a status");
        let used = status.regions.iter().filter(|region| region.kind == Kind::Large).count();
        assert!(used > 30, "{used} regions");
        let mut counted = Counted { device, seen: [0; 3] };
        counted.since();
        let done = store.check(None, false).await.expect("check");
        assert!(done.is_clean() && done.objects == 2_000, "{done:?}");
        let pages = (20_000_000_000u64 / 256_000 * 2).div_ceil(101);
        let [reads, ..] = counted.since();
        assert!(reads < 4 * (pages + 2_000), "{reads} reads; the table has {pages} pages, {used} regions are in use");
    });
}

#[test]
fn two_stores_on_one_device_are_refused() {
    simulate(3, |env| async move {
        let device: Device = Arc::new(Ram::new(Blocks(100 << 8)));
        let config =
            Config { region: Size::mib(4), large_block: Size::kib(64), log: Size::mib(1), ..Config::default() };
        format(&env, &device, config).await.expect("a fresh device");
        let again = format(&env, &device, config).await.expect_err("it holds a store");
        assert!(again.to_string().contains("force"), "{again}");
        let store = Regions::open(&env, device.clone(), Memory::default()).await.expect("a store");
        let refused = Regions::open(&env, device.clone(), Memory::default()).await.map(drop).expect_err("it is open");
        assert!(refused.to_string().contains("open on memory already"), "{refused}");
        // Through another stack on the same device, as another process would: the first is stopped at its next checkpoint.
        let other: Device = Arc::new(Checked::new(device.clone(), env.clone()));
        let second = Regions::open(&env, other, Memory::default()).await.expect("nobody can know");
        store.put(&name("a"), vec![], asynchronous()).await.expect("room");
        let fenced = store.close().await.expect_err("the second store owns the device");
        assert!(fenced.to_string().contains("somebody else"), "{fenced}");
        drop((store, second));
    });
}

/// Section 6, checks 3 and 4 of the digest, on a device of the thesis's size: two streams of creations and deletions, the
/// larger objects of exactly a large block.
fn age(requests: u64, fill: f64) {
    simulate(4, move |env| async move {
        let device: Device = Arc::new(Filled::new(Blocks(8_000_000_000 / 4096)));
        format(&env, &device, Config::default()).await.expect("a fresh device");
        let store = Regions::open(&env, device, Memory::default()).await.expect("a store");
        let content = Bytes::from(vec![ashlar_devices::FILL; 512 << 10]);
        let mut rng = Pcg64Mcg::seed_from_u64(fill.to_bits());
        let mut objects: Vec<(u64, u64)> = Vec::new();
        let (mut bytes, target) = (0, (8e9 * fill) as u64);
        for number in 0..requests {
            let creates = rng.random_bool(if bytes < target { 0.9 } else { 0.1 });
            if creates || objects.is_empty() {
                let size = if rng.random_bool(0.8) { 512 << 10 } else { rng.random_range(1..=128u64) * 4096 };
                let data = vec![content.slice(..size as usize)];
                store.put(&name(&number.to_string()), data, asynchronous()).await.expect("room");
                objects.push((number, size));
                bytes += size;
            } else {
                let (gone, size) = objects.swap_remove(rng.random_range(0..objects.len()));
                let change = Change { condition: Condition::Any, durability: Durability::Async };
                store.delete(&name(&gone.to_string()), change).await.expect("there");
                bytes -= size;
            }
        }
        store.close().await.expect("close");
        let status = store.status(true).await.expect("a map");
        let of = |kind| status.regions.iter().filter(|region| region.kind == kind).count();
        eprintln!(
            "{requests} requests at {fill}: {} objects, {} large, {} small, {} table, {} free regions, {:.2} fragments",
            objects.len(),
            of(Kind::Large),
            of(Kind::Small),
            of(Kind::Table),
            of(Kind::Free),
            status.fragments_mean
        );
        assert_eq!(status.objects, objects.len() as u64);
        assert!(status.fragments_mean < 2.0, "{}", status.fragments_mean);
        assert!(of(Kind::Free) >= 3 && status.regions.len() == 29, "{status:?}");
        assert_eq!((status.cleaned, status.moved), (0, 0));
        let due = store.tidy(&Tidy::default()).await.expect("a look");
        assert_eq!(due, None, "cleaning in the background finds nothing to do");
    });
}

#[test]
fn aging_leaves_small_objects_in_few_fragments_and_regions_free() {
    // As many requests as in the thesis take half a minute, four million many.
    let soak = std::env::var_os("ASHLAR_SOAK").is_some();
    for requests in if soak { &[300_000, 4_000_000][..] } else { &[16_000] } {
        [0.2, 0.4, 0.6, 0.8].into_iter().for_each(|fill| age(*requests, fill));
    }
}

#[test]
fn many_objects_in_little_memory_are_listed_in_order_and_found_again() {
    const OBJECTS: u32 = 6000;
    simulate(5, |env| async move {
        let device: Device = Arc::new(Ram::new(Blocks(64 << 8)));
        let config = Config {
            region: Size::mib(4),
            large_block: Size::kib(64),
            object_mean: Size::kib(64),
            blocks_per_onode: 1,
            log: Size::mib(1),
            force: false,
        };
        format(&env, &device, config).await.expect("a fresh device");
        let memory = Memory { bytes: Size::kib(512), without: None };
        let store = Regions::open(&env, device.clone(), memory).await.expect("a store");
        // Sixty times the objects that the table was made for on average: every bucket goes on in the extensible part.
        for number in 0..OBJECTS {
            let data = vec![Bytes::from(number.to_string())];
            store.put(&name(&format!("{:08}", number.reverse_bits())), data, asynchronous()).await.expect("room");
        }
        store.sync().await.expect("sync");
        drop(store);
        let store = Regions::open(&env, device.clone(), memory).await.expect("a store");
        let (mut from, mut count) = (Bound::Unbounded, 0);
        loop {
            let page = store.list(List { prefix: vec![], from, limit: 999 }).await.expect("list");
            count += page.objects.len() as u32;
            assert!(page.objects.is_sorted_by(|a, b| a.name < b.name));
            let Some(last) = page.objects.last().filter(|_| page.more) else { break };
            from = Bound::Excluded(last.name.clone());
        }
        assert_eq!((count, store.usage().objects), (OBJECTS, u64::from(OBJECTS)));
        for number in 0..OBJECTS {
            let object = name(&format!("{:08}", number.reverse_bits()));
            let read = store.get(&object, 0..u64::MAX, Condition::Any).await.expect("there");
            assert_eq!(read.data.concat(), number.to_string().into_bytes());
            store.delete(&object, asynchronous().change).await.expect("there");
        }
        store.close().await.expect("close");
        assert_eq!(store.usage().objects, 0);
        let checked = store.check(None, false).await.expect("check");
        assert!(checked.is_clean(), "{checked:?}");
    });
}
