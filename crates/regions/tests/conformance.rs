//! The contract of object stores, on devices in memory.

use ashlar_block::Device;
use ashlar_devices::Memory as Ram;
use ashlar_env::Env;
use ashlar_objects::Store;
use ashlar_regions::{Config, Memory, format, open};
use ashlar_units::{Blocks, Bytes as Size};
use std::sync::Arc;
use std::time::Duration;

async fn small_regions(env: Env) -> Store {
    let delayed = Ram::new(Blocks(48 << 8)).with_delay(env.clone(), Duration::from_micros(40));
    let device: Device = Arc::new(delayed);
    let config = Config {
        region: Size::mib(2),
        large_block: Size::kib(64),
        object_mean: Size::kib(16),
        blocks_per_onode: 8,
        log: Size::mib(1),
        force: false,
    };
    format(&env, &device, config).await.expect("a fresh device");
    let memory = Memory { bytes: Size::mib(4), without: None };
    open(&env, device, memory).await.expect("a store")
}
ashlar_objects::conformance!(small_regions, small_regions);

/// Large blocks as the thesis has them, on 64 MiB regions.
async fn thesis_blocks(env: Env) -> Store {
    let device: Device = Arc::new(Ram::new(Blocks(400 << 8)));
    let config = Config { region: Size::mib(64), log: Size::mib(1), ..Config::default() };
    format(&env, &device, config).await.expect("a fresh device");
    open(&env, device, Memory::default()).await.expect("a store")
}
ashlar_objects::conformance!(thesis_blocks, thesis_blocks);
