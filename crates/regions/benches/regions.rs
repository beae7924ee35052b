//! What the region store costs by itself: a device in memory that has all its room, no kernel, no disk, no `sync`.
//!
//! `cargo xtask bench regions` runs this, several times, and prints medians beside the bars. Each line of the output is one
//! figure, as JSON: the row, its unit and its value.

#[path = "../../pool/benches/watch/mod.rs"]
mod watch;

use ashlar_block::{Device, Durability as Written, IoContext};
use ashlar_devices::Memory as Ram;
use ashlar_env::Env;
use ashlar_env::real::{Real, small_pages};
use ashlar_objects::{Change, Condition, Durability, Engine, Name, Put};
use ashlar_regions::{Config, Memory, Regions, format};
use ashlar_units::{Bytes as Size, Lba};
use bytes::Bytes;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::sync::Arc;
use watch::Watch;

/// The program's own allocator, so that figures carry over.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CONTEXT: IoContext = IoContext::foreground("bench");
const DEVICE: Size = Size(4 << 30);
const SMALL: usize = 4096;
/// As many as the onodes of 4 GiB allow where there is one for eight blocks: 7,281 in a region.
const SMALL_PUTS: u64 = 80_000;
const LARGE: usize = 512 << 10;
const LARGE_PUTS: u64 = 4_000;
/// Contents are taken from so many different bytes, which no cache of the processor holds.
const CONTENTS: usize = 128 << 20;

fn main() {
    let only: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let wanted = move |name: &str| only.is_empty() || only.iter().any(|only| name.contains(only.as_str()));
    // As the servers do.
    small_pages();
    let real = Real::start(1).expect("io_uring is needed");
    let env = real.env();
    real.block_on(async move {
        let mut contents = vec![0; CONTENTS];
        Pcg64Mcg::seed_from_u64(1).fill_bytes(&mut contents);
        let contents = Bytes::from(contents);
        let device: Device = Arc::new(Ram::new(DEVICE.to_blocks_up()));
        fill(&device).await;
        if wanted("small") {
            for (what, blocks_per_onode) in [("", 8), (", an onode for each block", 1)] {
                // A store of small objects has a table for as many.
                let object_mean = Size::kib(16);
                let config = Config { blocks_per_onode, object_mean, force: true, ..Config::default() };
                let store = fresh(&env, &device, config).await;
                let seconds = puts(&store, &contents, SMALL, SMALL_PUTS).await;
                seconds.report(&format!("puts of 4 KiB{what}"), "/s", SMALL_PUTS as f64);
                gets(&store, &contents, SMALL, SMALL_PUTS).await;
            }
        }
        if wanted("large") {
            let store = fresh(&env, &device, Config { force: true, ..Config::default() }).await;
            let seconds = puts(&store, &contents, LARGE, LARGE_PUTS).await;
            seconds.report("puts of 512 KiB", "GB/s", LARGE_PUTS as f64 * LARGE as f64 / 1e9);
            gets(&store, &contents, LARGE, LARGE_PUTS).await;
        }
    });
}

/// Gives the device all its memory: clearing it is the system's cost, and not that of a store.
async fn fill(device: &Device) {
    let piece = Bytes::from(vec![0; 1 << 20]);
    for at in (0..DEVICE.to_blocks_up().0).step_by(256) {
        device.write(CONTEXT, Lba(at), vec![piece.clone()], Written::Cached).await.expect("a device in memory");
    }
}

async fn fresh(env: &Env, device: &Device, config: Config) -> Regions {
    format(env, device, config).await.expect("room");
    Regions::open(env, device.clone(), Memory::default()).await.expect("a store")
}

fn name(number: u64) -> Name {
    Name::new(format!("bench/object/{number:012}")).expect("a name")
}

/// Contents of an object: as many bytes from somewhere.
fn content(contents: &Bytes, size: usize, number: u64) -> Bytes {
    let places = (contents.len() / size) as u64;
    contents.slice((number.wrapping_mul(7919) % places) as usize * size..).slice(..size)
}

/// Puts objects, and has everything written, though not made durable, at the end.
async fn puts(store: &Regions, contents: &Bytes, size: usize, count: u64) -> Watch {
    let change = Change { condition: Condition::Any, durability: Durability::Async };
    let watch = Watch::start();
    for number in 0..count {
        let put = Put { change, ..Put::default() };
        store.put(&name(number), vec![content(contents, size, number)], put).await.expect("room");
    }
    store.sync().await.expect("a device in memory");
    watch
}

/// Reads what was written, and compares some of it.
async fn gets(store: &Regions, contents: &Bytes, size: usize, count: u64) {
    let unit = if size == SMALL { "/s" } else { "GB/s" };
    let watch = Watch::start();
    for step in 0..count {
        let number = step.wrapping_mul(7919) % count;
        let object = store.get(&name(number), 0..u64::MAX, Condition::Any).await.expect("it is there");
        if step % 64 == 0 {
            assert!(object.data.concat() == content(contents, size, number), "object {number} has changed");
        }
    }
    let done = if size == SMALL { count as f64 } else { count as f64 * size as f64 / 1e9 };
    watch.report(&format!("gets of {}", Size(size as u64)), unit, done);
}
