//! Cleaning in the background: a fragmented region is emptied, objects lie in one piece again, and users do not wait for it.

use ashlar_block::Device;
use ashlar_devices::Memory as Ram;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_objects::{Change, Condition, Durability, Engine, Name, Put};
use ashlar_regions::{Config, Kind, Memory, Regions, Tidy, format};
use ashlar_units::{Blocks, Bytes as Size};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

const CONFIG: Config = Config {
    region: Size::mib(8),
    large_block: Size::kib(64),
    object_mean: Size::kib(16),
    blocks_per_onode: 2,
    log: Size::mib(1),
    force: false,
};
const TIDY: Tidy = Tidy { extents: 2, free: 0.2, every: Duration::from_secs(1) };
/// Pairs of objects, of which the smaller one goes.
const PAIRS: u32 = 130;

fn name(number: u32) -> Name {
    Name::new(format!("object {number}").into_bytes()).expect("a name")
}

/// Three blocks and eight by turns; what comes later has none.
fn data(number: u32) -> Bytes {
    let len = if number >= 2 * PAIRS { 100 } else { [12_000, 32_000][number as usize % 2] };
    vec![number as u8; len].into()
}

#[test]
fn a_fragmented_region_is_cleaned_while_users_go_on() {
    let sim = Sim::new(1, Schedule::Random);
    let env = sim.env();
    let body = async move {
        let device: Device = Arc::new(Ram::new(Blocks(80 << 8)).with_delay(env.clone(), Duration::from_micros(200)));
        format(&env, &device, CONFIG).await.expect("a fresh device");
        let store = Regions::open(&env, device, Memory::default()).await.expect("a store");
        let change = Change { condition: Condition::Any, durability: Durability::Async };
        for number in 0..2 * PAIRS {
            store.put(&name(number), vec![data(number)], Put { change, ..Put::default() }).await.expect("room");
        }
        store.sync().await.expect("a device in memory");
        // Every other object goes: what is free lies in holes of three blocks, and those that are left have eight.
        for number in (0..2 * PAIRS).step_by(2) {
            store.delete(&name(number), change).await.expect("it is there");
        }
        store.sync().await.expect("a device in memory");
        let worst = |status: ashlar_regions::Status| {
            let small = status.regions.into_iter().filter(|region| region.kind == Kind::Small && region.fill > 0.2);
            small.filter_map(|region| region.fragmentation).fold(0.0, f64::max)
        };
        let before = worst(store.status(true).await.expect("a map"));
        assert!(before > 0.9, "{before}");
        // Three holes are enough for one.
        assert_eq!(store.tidy(&Tidy { extents: 3, ..TIDY }).await.expect("a look"), None);

        store.keep_tidy(TIDY);
        let (mut longest, mut number) = (Duration::ZERO, 1000);
        while store.status(false).await.expect("a map").cleaned == 0 {
            let began = env.now();
            store.put(&name(number), vec![data(number)], Put::default()).await.expect("room");
            longest = longest.max(env.now().since(began));
            number += 1;
            env.sleep(Duration::from_millis(30)).await;
            assert!(number < 4000, "nothing is cleaned");
        }
        // Virtual time: one round of 256 onodes at most, of which a hundred are moved, each in a few operations of 0.1 ms.
        assert!(longest < Duration::from_millis(250), "a user waited for {longest:?}");
        let status = store.status(false).await.expect("a map");
        assert!(status.moved >= 60, "{}", status.moved);
        env.sleep(Duration::from_secs(20)).await;
        let after = worst(store.status(true).await.expect("a map"));
        assert!(after < before, "{after} after {before}");
        for number in (1..2 * PAIRS).step_by(2).chain(1000..number) {
            let object = store.get(&name(number), 0..u64::MAX, Condition::Any).await.expect("it is there");
            assert!(object.data.concat() == data(number)[..]);
        }
        assert!(store.check(None, false).await.expect("check").is_clean());
        let cleaned = store.status(false).await.expect("a map").cleaned;
        env.sleep(Duration::from_secs(20)).await;
        assert_eq!(store.status(false).await.expect("a map").cleaned, cleaned, "what is tidy is left alone");
    };
    sim.run(body).expect("no deadlock");
}
