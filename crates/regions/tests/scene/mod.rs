//! A store of 200 objects on a device in memory, for tests that damage it.

#![allow(dead_code, reason = "each test file uses a part")]

use ashlar_block::{Device, Durability, IoContext};
use ashlar_devices::Memory as Ram;
use ashlar_env::Env;
use ashlar_objects::{Condition, Engine, List, Name, Put, Stat};
use ashlar_regions::{Config, Kind, Layout, Memory, Recovered, Regions, Status, format};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

pub const CAPACITY: Blocks = Blocks(40 << 8);
pub const CONTEXT: IoContext = IoContext::foreground("test");
pub const CONFIG: Config = Config {
    region: Size::mib(2),
    large_block: Size::kib(64),
    object_mean: Size::kib(16),
    blocks_per_onode: 8,
    log: Size::mib(1),
    force: false,
};

pub struct Scene {
    pub env: Env,
    pub device: Device,
    pub layout: Layout,
    pub objects: BTreeMap<Name, (Stat, Vec<u8>)>,
}

/// A store of 200 large, small and tiny objects, closed.
pub async fn scene(env: Env) -> Scene {
    let device: Device = Arc::new(Ram::new(CAPACITY));
    format(&env, &device, CONFIG).await.expect("a fresh device");
    let store = Regions::open(&env, device.clone(), Memory::default()).await.expect("a store");
    let mut objects = BTreeMap::new();
    for number in 0..200u32 {
        let name = Name::new(format!("object {number}").into_bytes()).expect("a name");
        objects.insert(name.clone(), put(&store, &name, number).await);
    }
    store.close().await.expect("close");
    let layout = Layout::new(CAPACITY, &CONFIG).expect("a layout");
    Scene { env, device, layout, objects }
}

/// Puts an object that follows from a number: large, small or tiny.
async fn put(store: &Regions, name: &Name, number: u32) -> (Stat, Vec<u8>) {
    let len = [65_536, 30_000, 9000, 100][number as usize % 4];
    let data: Vec<u8> = (0..len).map(|at| (at as u32 * 31 + number * 7 + at as u32 / 251) as u8).collect();
    let stat = store.put(name, vec![data.clone().into()], Put::default()).await.expect("room");
    (stat, data)
}

impl Scene {
    /// Puts one more object, or another in the place of one.
    pub async fn put(&mut self, store: &Regions, name: &Name, number: u32) {
        self.objects.insert(name.clone(), put(store, name, number).await);
    }

    pub async fn open_with_report(&self) -> (Regions, Recovered) {
        let opened = Regions::open_with_report(&self.env, self.device.clone(), Memory::default());
        opened.await.expect("a store")
    }

    pub async fn open(&self) -> Regions {
        Regions::open(&self.env, self.device.clone(), Memory::default()).await.expect("a store")
    }

    /// Fills blocks with noise.
    pub async fn scribble(&self, at: Lba, count: u64) {
        let noise: Vec<u8> = (0..count as usize * BLOCK_LEN).map(|_| self.env.random() as u8).collect();
        self.device.write(CONTEXT, at, vec![noise.into()], Durability::Cached).await.expect("a device");
    }

    pub async fn flip(&self, at: Lba, byte: usize, bit: u8) {
        let mut block = self.device.read(CONTEXT, at, Blocks(1)).await.expect("a device").to_vec();
        block[byte] ^= 1 << bit;
        self.device.write(CONTEXT, at, vec![Bytes::from(block)], Durability::Cached).await.expect("a device");
    }

    /// Regions of this kind that hold something.
    pub async fn regions(&self, kind: Kind) -> Vec<u32> {
        let store = self.open().await;
        let status = store.status(true).await.expect("a map");
        store.close().await.expect("close");
        of_kind(&status, kind)
    }

    /// The same, of an open store.
    pub async fn regions_of(&self, store: &Regions, kind: Kind) -> Vec<u32> {
        of_kind(&store.status(true).await.expect("a map"), kind)
    }

    pub fn name(&self, name: &str) -> Name {
        Name::new(name.as_bytes().to_vec()).expect("a name")
    }

    pub async fn region(&self, kind: Kind) -> u32 {
        self.regions(kind).await[0]
    }

    /// Blocks of all regions but these.
    pub async fn others(&self, but: &[u32]) -> Vec<Bytes> {
        let mut images = Vec::new();
        for other in (0..self.layout.parts() as u32).filter(|other| !but.contains(other)) {
            let at = self.layout.region(other);
            images.push(
                self.device.read(CONTEXT, at, Blocks(self.layout.shape_of(other).blocks)).await.expect("a device"),
            );
        }
        images
    }

    /// Reads every object: those that read as they should, and those that do not. Wrong data are never returned.
    pub async fn read_all(&self, store: &Regions) -> (usize, Vec<Name>) {
        let (mut good, mut bad) = (0, Vec::new());
        for (name, (stat, data)) in &self.objects {
            match store.get(name, 0..u64::MAX, Condition::Any).await {
                Ok(object) => {
                    assert_eq!(&object.stat, stat);
                    assert!(object.data.concat() == *data, "{name} has changed");
                    good += 1;
                }
                Err(error) => {
                    assert!(error.to_string().contains("object "), "the error names the object: {error}");
                    bad.push(name.clone());
                }
            }
        }
        (good, bad)
    }

    pub async fn listed(&self, store: &Regions) -> Vec<Name> {
        let request = List { prefix: vec![], from: Bound::Unbounded, limit: 1000 };
        store.list(request).await.expect("list").objects.into_iter().map(|stat| stat.name).collect()
    }
}

fn of_kind(status: &Status, kind: Kind) -> Vec<u32> {
    let found = status.regions.iter().chain(&status.tail).filter(|region| region.kind == kind && region.fill > 0.0);
    found.map(|region| region.region).collect()
}
