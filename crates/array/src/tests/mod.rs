//! Arrays in the simulated runtime.

mod conforms;
mod counts;
mod faulty;
mod members;
mod strands;
mod versions;

use crate::{Array, Creation, JOURNAL_MIN, Level, NamedDevice, Options};
use ashlar_block::{BlockDevice, Device, Durability, IoContext};
use ashlar_devices::Memory;
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_faults::Faulty;
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

const CONTEXT: IoContext = IoContext::foreground("test");
/// A stripe unit of which nine make a group, so that small arrays have many stripes.
const CREATION: Creation = Creation { level: Level::Raid5, unit: Blocks(7), journal: JOURNAL_MIN, force: false };

/// Devices in memory, with faults to come.
struct Rig {
    env: Env,
    disks: Vec<Arc<Faulty>>,
}

impl Rig {
    /// Devices with room for so many groups.
    fn new(env: &Env, groups: &[u64]) -> Rig {
        let disk = |(seed, groups): (u64, &u64)| {
            let blocks = Blocks(2 + JOURNAL_MIN.0 + groups * 64);
            let memory = Memory::new(blocks).with_delay(env.clone(), Duration::from_micros(5));
            Arc::new(Faulty::new(Arc::new(memory), seed, env.clone()))
        };
        Rig { env: env.clone(), disks: (0..).zip(groups).map(disk).collect() }
    }
    fn named(&self) -> Vec<NamedDevice> {
        let disk =
            |(slot, disk): (usize, &Arc<Faulty>)| NamedDevice { name: format!("disk{slot}"), device: disk.clone() };
        self.disks.iter().enumerate().map(disk).collect()
    }
    async fn create(&self, level: Level) {
        let creation = Creation { level, ..CREATION };
        Array::create(&self.env, &self.named(), creation, |_, _| ()).await.expect("an array can be made");
    }
    async fn open(&self) -> Arc<Array> {
        self.open_with(Options::default()).await
    }
    async fn open_with(&self, options: Options) -> Arc<Array> {
        Arc::new(Array::open(&self.env, self.named(), 0, options).await.expect("the array opens"))
    }
    /// Everything on a disk fails from now on.
    fn kill(&self, slot: usize) {
        self.fault(slot, "removed");
    }
    fn fault(&self, slot: usize, text: &str) {
        self.disks[slot].inject(text.parse().expect("a fault")).expect("room for a fault");
    }
    async fn heal(&self, slot: usize) {
        self.disks[slot].clear(None).await.expect("faults can be cleared");
    }
    /// A fresh disk of the same size.
    fn spare(&self, slot: usize) -> NamedDevice {
        let capacity = self.disks[slot].geometry().capacity;
        NamedDevice { name: "spare".into(), device: Arc::new(Memory::new(capacity)) }
    }
}

/// Runs a test with a rig, under several seeds.
fn with_rig<F: Future<Output = ()> + Send + 'static>(groups: &[u64], seeds: u64, body: impl Fn(Rig) -> F) {
    for seed in 0..seeds {
        eprintln!("seed {seed}");
        let sim = Sim::new(seed, Schedule::Random);
        let rig = Rig::new(&sim.env(), groups);
        sim.run(body(rig)).expect("no deadlock");
    }
}

/// A block that says what it is.
fn block(stamp: u64) -> Bytes {
    (0..BLOCK_LEN as u64 / 8)
        .flat_map(|word| (stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word).to_le_bytes())
        .collect()
}

async fn write(array: &Array, at: u64, stamps: impl IntoIterator<Item = u64>) -> ashlar_block::Result<()> {
    let pieces = stamps.into_iter().map(block).collect();
    BlockDevice::write(array, CONTEXT, Lba(at), pieces, Durability::Cached).await
}

async fn read(array: &Array, at: u64) -> ashlar_block::Result<Bytes> {
    BlockDevice::read(array, CONTEXT, Lba(at), Blocks(1)).await
}

/// All blocks hold what is their number's stamp.
async fn verify(array: &Array, stamp: impl Fn(u64) -> u64) {
    let capacity = array.shape().capacity();
    let data = BlockDevice::read(array, CONTEXT, Lba(0), capacity).await.expect("everything can be read");
    for (at, seen) in data.chunks(BLOCK_LEN).enumerate() {
        assert!(seen == block(stamp(at as u64)), "block {at} of {capacity} is wrong");
    }
}

/// Writes all blocks, each with its number's stamp.
async fn fill(array: &Array, stamp: impl Fn(u64) -> u64) {
    let capacity = array.shape().capacity().0;
    write(array, 0, (0..capacity).map(stamp)).await.expect("everything can be written");
}

fn as_device(array: Arc<Array>) -> Device {
    array
}
