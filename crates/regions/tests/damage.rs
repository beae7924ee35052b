//! Damage (section 6, checks 6 and 7 of the digest): only the region that is hit suffers, everything else stays as it was, also
//! while the region is repaired; what is lost has a name.

use ashlar_block::{Device, Durability, IoContext};
use ashlar_devices::Memory as Ram;
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_objects::{Change, Condition, Engine, List, Name, Put, Stat};
use ashlar_regions::{Config, Kind, Layout, Memory, Regions, format};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

const CAPACITY: Blocks = Blocks(40 << 8);
const CONTEXT: IoContext = IoContext::foreground("test");
const CONFIG: Config = Config {
    region: Size::mib(2),
    large_block: Size::kib(64),
    object_mean: Size::kib(16),
    blocks_per_onode: 8,
    log: Size::mib(1),
    force: false,
};

struct Scene {
    env: Env,
    device: Device,
    layout: Layout,
    objects: BTreeMap<Name, (Stat, Vec<u8>)>,
}

fn run<F: Future<Output = ()> + Send + 'static>(seed: u64, body: impl FnOnce(Env) -> F) {
    let sim = Sim::new(seed, Schedule::Random);
    let env = sim.env();
    sim.run(body(env)).expect("no deadlock");
}

/// A store of 200 large, small and tiny objects, closed.
async fn scene(env: Env) -> Scene {
    let device: Device = Arc::new(Ram::new(CAPACITY));
    format(&env, &device, CONFIG).await.expect("a fresh device");
    let store = Regions::open(&env, device.clone(), Memory::default()).await.expect("a store");
    let mut objects = BTreeMap::new();
    for number in 0..200u32 {
        let name = Name::new(format!("object {number}").into_bytes()).expect("a name");
        let len = [65_536, 30_000, 9000, 100][number as usize % 4];
        let data: Vec<u8> = (0..len).map(|at| (at as u32 * 31 + number * 7 + at as u32 / 251) as u8).collect();
        let stat = store.put(&name, vec![data.clone().into()], Put::default()).await.expect("room");
        objects.insert(name, (stat, data));
    }
    store.close().await.expect("close");
    let layout = Layout::new(CAPACITY, &CONFIG).expect("a layout");
    Scene { env, device, layout, objects }
}

impl Scene {
    async fn open(&self) -> Regions {
        Regions::open(&self.env, self.device.clone(), Memory::default()).await.expect("a store")
    }

    /// Fills blocks with noise.
    async fn scribble(&self, at: Lba, count: u64) {
        let noise: Vec<u8> = (0..count as usize * BLOCK_LEN).map(|_| self.env.random() as u8).collect();
        self.device.write(CONTEXT, at, vec![noise.into()], Durability::Cached).await.expect("a device");
    }

    async fn flip(&self, at: Lba, byte: usize, bit: u8) {
        let mut block = self.device.read(CONTEXT, at, Blocks(1)).await.expect("a device").to_vec();
        block[byte] ^= 1 << bit;
        self.device.write(CONTEXT, at, vec![Bytes::from(block)], Durability::Cached).await.expect("a device");
    }

    /// Regions of this kind that hold something.
    async fn regions(&self, kind: Kind) -> Vec<u32> {
        let store = self.open().await;
        let status = store.status(true).await.expect("a map");
        store.close().await.expect("close");
        let found = status.regions.iter().filter(|region| region.kind == kind && region.fill > 0.0);
        found.map(|region| region.region).collect()
    }

    async fn region(&self, kind: Kind) -> u32 {
        self.regions(kind).await[0]
    }

    /// Blocks of all regions but these.
    async fn others(&self, but: &[u32]) -> Vec<Bytes> {
        let mut images = Vec::new();
        for other in (0..self.layout.regions as u32).filter(|other| !but.contains(other)) {
            let at = self.layout.region(other);
            images.push(self.device.read(CONTEXT, at, Blocks(self.layout.shape.blocks)).await.expect("a device"));
        }
        images
    }

    /// Reads every object: those that read as they should, and those that do not. Wrong data are never returned.
    async fn read_all(&self, store: &Regions) -> (usize, Vec<Name>) {
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

    async fn listed(&self, store: &Regions) -> Vec<Name> {
        let request = List { prefix: vec![], from: Bound::Unbounded, limit: 1000 };
        store.list(request).await.expect("list").objects.into_iter().map(|stat| stat.name).collect()
    }
}

#[test]
fn a_scribbled_head_costs_nothing_but_its_own_repair() {
    for kind in [Kind::Large, Kind::Small] {
        run(1, move |env| async move {
            let scene = scene(env).await;
            let region = scene.region(kind).await;
            // Every checkpoint writes the heads of table regions.
            let changing = [scene.regions(Kind::Table).await, vec![region]].concat();
            scene.scribble(scene.layout.head(region, 0), 2 * scene.layout.shape.head).await;
            let before = scene.others(&changing).await;
            let store = scene.open().await;
            assert_eq!(scene.read_all(&store).await, (200, vec![]), "objects are found without heads");
            let found = store.check(Some(region), false).await.expect("check");
            assert!(!found.problems.is_empty() && found.lost.is_empty() && found.damaged.is_empty(), "{found:?}");
            // Online: the repair runs beside readers.
            let repair = scene.env.spawn({
                let store = store.clone();
                async move { store.check(Some(region), true).await }
            });
            assert_eq!(scene.read_all(&store).await, (200, vec![]), "also during the repair");
            assert!(repair.await.expect("repair").repaired);
            let again = store.check(None, false).await.expect("check");
            assert!(again.is_clean(), "{again:?}");
            assert!(scene.others(&changing).await == before, "other regions are as they were");
            store.close().await.expect("close");
            drop(store);
            let store = scene.open().await;
            assert_eq!(scene.read_all(&store).await, (200, vec![]));
        });
    }
}

#[test]
fn a_scribbled_onode_is_one_lost_object_with_a_name() {
    for kind in [Kind::Large, Kind::Small] {
        run(2, move |env| async move {
            let scene = scene(env).await;
            let region = scene.region(kind).await;
            scene.scribble(scene.layout.onode(region, kind, 3), 1).await;
            let store = scene.open().await;
            let (good, bad) = scene.read_all(&store).await;
            assert_eq!((good, bad.len()), (199, 1));
            let found = store.check(Some(region), false).await.expect("check");
            assert_eq!(found.lost, [bad[0].to_string()], "{found:?}");
            let repaired = store.check(Some(region), true).await.expect("repair");
            assert_eq!(repaired.lost, [bad[0].to_string()]);
            assert!(store.check(None, false).await.expect("check").is_clean());
            assert_eq!((store.usage().objects, scene.listed(&store).await.len()), (199, 199));
            assert!(!scene.listed(&store).await.contains(&bad[0]));
            store.put(&bad[0], vec![], Put::default()).await.expect("it can be made again");
            store.delete(&bad[0], Change::default()).await.expect("and deleted");
        });
    }
}

#[test]
fn a_wiped_lookup_table_is_made_again_from_regions() {
    run(3, |env| async move {
        let scene = scene(env).await;
        let table = (scene.layout.page(0), scene.layout.pages);
        let before = scene.device.read(CONTEXT, table.0, Blocks(table.1)).await.expect("a device");
        let zeros = Bytes::from(vec![0; table.1 as usize * BLOCK_LEN]);
        scene.device.write(CONTEXT, table.0, vec![zeros], Durability::Cached).await.expect("a device");
        let store = scene.open().await;
        assert_eq!(scene.read_all(&store).await.0, 0, "nothing is found, and that is an error, not an absence");
        let repaired = store.check(None, true).await.expect("repair");
        assert_eq!((repaired.pages_rebuilt, repaired.lost.len()), (table.1, 0), "{repaired:?}");
        assert_eq!(scene.read_all(&store).await, (200, vec![]));
        assert_eq!(scene.listed(&store).await.len(), 200);
        store.close().await.expect("close");
        // The same entries; a page does not keep them in order.
        let after = scene.device.read(CONTEXT, table.0, Blocks(table.1)).await.expect("a device");
        let entries = |image: &[u8]| {
            let mut all: Vec<Vec<u8>> =
                image.chunks(BLOCK_LEN).flat_map(|page| page[40..].chunks_exact(40)).map(<[u8]>::to_vec).collect();
            all.sort_unstable();
            all
        };
        assert!(entries(&before) == entries(&after), "the table is what it was");
    });
}

#[test]
fn superblocks_and_the_map_have_copies() {
    run(4, |env| async move {
        let scene = scene(env).await;
        // Everything before the log: both superblocks and both slots of the map.
        scene.scribble(Lba(0), scene.layout.log(0).0).await;
        let store = scene.open().await;
        assert_eq!(scene.read_all(&store).await, (200, vec![]));
        store.close().await.expect("close");
        drop(store);
        // And then those at the end, of which the first have been written again.
        let map = scene.layout.map(0)[1];
        scene.scribble(map, CAPACITY.0 - map.0).await;
        let store = scene.open().await;
        assert_eq!(scene.read_all(&store).await, (200, vec![]));
        drop(store);
        scene.scribble(Lba(0), 2).await;
        scene.scribble(Lba(CAPACITY.0 - 2), 2).await;
        let refused = Regions::open(&scene.env, scene.device.clone(), Memory::default()).await.map(drop);
        assert!(refused.expect_err("no superblock is left").to_string().contains("holds no region store"));
    });
}

#[test]
fn turned_bits_in_a_region_leave_every_other_object_as_it_is() {
    for seed in 0..12 {
        run(seed, move |env| async move {
            let scene = scene(env).await;
            let kind = if seed % 2 == 0 { Kind::Large } else { Kind::Small };
            let region = scene.region(kind).await;
            for _ in 0..6 {
                let block = scene.env.random() % scene.layout.shape.blocks;
                let at = Lba(scene.layout.region(region).0 + block);
                scene.flip(at, scene.env.random() as usize % BLOCK_LEN, scene.env.random() as u8 % 8).await;
            }
            let store = scene.open().await;
            let (good, bad) = scene.read_all(&store).await;
            assert!(bad.len() <= 6 && good + bad.len() == 200);
            let found = store.check(Some(region), true).await.expect("repair");
            let mut told: Vec<String> = found.lost.iter().chain(&found.damaged).cloned().collect();
            told.sort_unstable();
            let mut expected: Vec<String> = bad.iter().map(ToString::to_string).collect();
            expected.sort_unstable();
            assert_eq!(told, expected, "every object that suffered is named, and no other");
            assert_eq!(scene.read_all(&store).await.0, good);
            assert!(store.check(None, false).await.expect("check").problems.is_empty());
        });
    }
}
