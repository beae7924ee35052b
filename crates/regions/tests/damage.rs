//! Damage (section 6, checks 6 and 7 of the digest): only the region that is hit suffers, everything else stays as it was, also
//! while the region is repaired; what is lost has a name.

mod scene;

use ashlar_block::Durability;
use ashlar_env::sim::simulate;
use ashlar_objects::{Change, Engine, Put};
use ashlar_regions::{Kind, Memory, Regions};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;
use scene::{CAPACITY, CONTEXT, Scene, scene};

#[test]
fn a_scribbled_head_costs_nothing_but_its_own_repair() {
    for kind in [Kind::Large, Kind::Small] {
        simulate(1, move |env| async move {
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
fn heads_that_are_lost_with_the_power_bring_nothing_back_and_free_nothing() {
    for kind in [Kind::Large, Kind::Small] {
        simulate(1, move |env| async move {
            let mut scene = scene(env).await;
            let store = scene.open().await;
            // Old copies lie where new ones may go: some objects change, some end, and a checkpoint forgets how.
            for number in 0..60 {
                let name = scene.name(&format!("object {number}"));
                if number < 40 {
                    scene.put(&store, &name, number + 1000).await;
                } else {
                    store.delete(&name, Change::default()).await.expect("it is there");
                    scene.objects.remove(&name);
                }
            }
            store.checkpoint().await.expect("room");
            for number in 200..240 {
                let name = scene.name(&format!("object {number}"));
                scene.put(&store, &name, number).await;
            }
            store.sync().await.expect("a device");
            let regions = scene.regions_of(&store, kind).await;
            drop(store);
            for region in regions {
                scene.scribble(scene.layout.head(region, 0), 2 * scene.layout.shape.head).await;
            }
            let (store, report) = scene.open_with_report().await;
            assert!(!report.damage.is_empty(), "it is told");
            let all = scene.objects.len();
            let sound = async |scene: &Scene, store: &Regions| {
                assert_eq!(scene.read_all(store).await, (scene.objects.len(), vec![]));
                assert_eq!(scene.listed(store).await.len(), scene.objects.len(), "nothing came back");
                assert_eq!(store.usage().objects, scene.objects.len() as u64);
            };
            sound(&scene, &store).await;
            // What was written since lies in regions that are whole again: nothing is put over what they hold.
            for number in 240..300 {
                let name = scene.name(&format!("object {number}"));
                scene.put(&store, &name, number).await;
            }
            assert_eq!(scene.objects.len(), all + 60);
            sound(&scene, &store).await;
        });
    }
}

#[test]
fn a_scribbled_onode_is_one_lost_object_with_a_name() {
    for kind in [Kind::Large, Kind::Small] {
        simulate(2, move |env| async move {
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
    simulate(3, |env| async move {
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
    simulate(4, |env| async move {
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
        simulate(seed, move |env| async move {
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

/// Blocks of the index of names, all of which lie in table regions: there are too few objects for other pages there.
async fn spoil_names(scene: &Scene) -> Vec<u32> {
    let tables = scene.regions(Kind::Table).await;
    for table in &tables {
        scene.scribble(scene.layout.data(*table, Kind::Table, 0), scene.layout.shape_of(*table).table).await;
    }
    tables
}

#[test]
fn a_damaged_index_of_names_is_made_again_from_regions() {
    simulate(5, |env| async move {
        let scene = scene(env).await;
        let changing = spoil_names(&scene).await;
        let before = scene.others(&changing).await;
        let store = scene.open().await;
        assert_eq!(scene.read_all(&store).await, (200, vec![]), "objects are found by name without it");
        let request = ashlar_objects::List { prefix: vec![], from: std::ops::Bound::Unbounded, limit: 1000 };
        store.list(request).await.expect_err("it is an error, not an empty list");
        let found = store.check(None, false).await.expect("check");
        assert!(!found.problems.is_empty() && found.lost.is_empty() && !found.repaired, "{found:?}");
        let repair = scene.env.spawn({
            let store = store.clone();
            async move { store.check(None, true).await }
        });
        assert_eq!(scene.read_all(&store).await, (200, vec![]), "also during the repair");
        let repaired = repair.await.expect("repair");
        assert!(repaired.names_rebuilt && repaired.lost.is_empty() && repaired.damaged.is_empty(), "{repaired:?}");
        assert_eq!(scene.listed(&store).await, scene.objects.keys().cloned().collect::<Vec<_>>());
        let again = store.check(None, false).await.expect("check");
        assert!(again.is_clean(), "{again:?}");
        store.close().await.expect("close");
        drop(store);
        let store = scene.open().await;
        assert_eq!(scene.listed(&store).await.len(), 200);
        let used = |status: ashlar_regions::Status| {
            let tables = status.regions.iter().chain(&status.tail).filter(|region| region.kind == Kind::Table);
            tables.map(|table| table.fill * scene.layout.shape_of(table.region).table as f64).sum::<f64>()
        };
        let blocks = used(store.status(true).await.expect("a map"));
        assert!(blocks < 8.5, "the room of the damaged nodes is given back: {blocks} blocks are used");
        let changing = [changing, scene.regions_of(&store, Kind::Table).await].concat();
        assert!(changing.len() > 2 || scene.others(&changing).await == before, "other regions are as they were");
    });
}

#[test]
fn a_store_with_a_damaged_index_of_names_mends_it_when_it_must_change_it() {
    simulate(6, |env| async move {
        let scene = scene(env).await;
        spoil_names(&scene).await;
        let store = scene.open().await;
        let (gone, new) = (scene.objects.keys().next().expect("one").clone(), scene.name("a new object"));
        store.put(&new, vec![Bytes::from_static(b"new")], Put::default()).await.expect("room");
        store.delete(&gone, Change::default()).await.expect("it is there");
        store.close().await.expect("a checkpoint");
        drop(store);
        let store = scene.open().await;
        let mut expected: Vec<_> = scene.objects.keys().filter(|name| **name != gone).cloned().chain([new]).collect();
        expected.sort();
        assert_eq!(scene.listed(&store).await, expected);
        assert!(store.check(None, false).await.expect("check").is_clean());
    });
}
