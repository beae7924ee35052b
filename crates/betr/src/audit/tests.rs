//! Audits in passes, and repairs of what was taken away.

use super::*;
use crate::inode::Placed;
use crate::{Options, Zones};
use ashlar_block::Device;
use ashlar_devices::PowerCut;
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_pool::{Config, Creation, Damaged, Holds, Part, Pool};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};
use ashlar_vfs::{FileSystem, NewNode, WriteMode};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

fn node(kind: FileKind) -> NewNode {
    NewNode { kind, permissions: 0o755, uid: 0, gid: 0, device: 0, umask: 0, open: false }
}

/// A tree with several zones, files with several names, and a large file.
async fn tree(betr: &Betr, directories: u64) {
    let mut parent = ROOT;
    for index in 0..directories {
        let name = format!("directory {index}");
        let child = betr.mkdir(parent, name.as_bytes(), node(FileKind::Directory)).await.expect("made").ino;
        for (name, len) in [(&b"small"[..], 300), (b"linked", 10), (b"large", 40_000)] {
            let file = betr.create(child, name, node(FileKind::File)).await.expect("made").ino;
            betr.write(file, 0, vec![7; len].into(), WriteMode::default()).await.expect("written");
            if name == b"linked" {
                betr.link(file, ROOT, format!("link {index}").as_bytes()).await.expect("linked");
            }
        }
        parent = if index % 3 == 0 { child } else { parent };
    }
    betr.syncfs().await.expect("synced");
}

/// A pool with one volume.
struct House {
    env: Env,
    device: Arc<PowerCut>,
    pool: Pool,
}

impl House {
    fn volume(&self) -> Volume {
        self.pool.volume("v").expect("the volume")
    }
    async fn open(env: &Env, device: Arc<PowerCut>) -> House {
        let pool = Pool::open(env, vec![device.clone() as Device], Config::default()).await.expect("opened");
        House { env: env.clone(), device, pool }
    }
    async fn reopen(self) -> House {
        self.pool.close().await.expect("closed");
        House::open(&self.env, self.device).await
    }
    async fn betr(&self) -> Arc<Betr> {
        Betr::open(self.volume(), Options::default()).await.expect("a file system")
    }
}

fn with_tree<F: Future<Output = ()> + Send + 'static>(
    directories: u64,
    test: impl FnOnce(House, Arc<Betr>) -> F + Send + 'static,
) {
    let sim = Sim::new(1, Schedule::Random);
    let env = sim.env();
    let run = async move {
        let device = Arc::new(PowerCut::new(Blocks(64 << 10), env.clone(), Duration::ZERO));
        let creation = Creation { segment: Some(Blocks(512)), force: false };
        Pool::create(&env, &[device.clone() as Device], creation).await.expect("created");
        let house = House::open(&env, device).await;
        let volume = house.pool.create_volume("v").await.expect("a volume");
        let zones = Zones { smallest: Size(2 << 10), largest: Size(4 << 10), inline: Size(1 << 10) };
        Betr::format(&volume, 0, 0, zones).await.expect("formatted");
        let betr = house.betr().await;
        tree(&betr, directories).await;
        test(house, betr).await;
    };
    sim.run(run).expect("no deadlock");
}

/// What a repair leaves behind: names of which nobody knows where they lay.
fn unreachable(what: &str) -> bool {
    what.contains("that is gone") || what.contains("names, not")
}

async fn audited(betr: &Betr, seen_per_pass: usize) -> Audit {
    let (audit, findings) = betr.audit_by(seen_per_pass).await.expect("audited");
    Audit { wrong: findings.sentences(), ..audit }
}

/// Takes keys away, or puts others.
async fn change(volume: &Volume, change: impl FnOnce(&mut Txn)) {
    let mut txn = Txn::new();
    change(&mut txn);
    volume.commit(txn).await.expect("changed");
}

#[test]
fn passes_find_the_same_as_one() {
    with_tree(40, |house, betr| async move {
        let volume = house.volume();
        let whole = audited(&betr, usize::MAX).await;
        assert_eq!(whole.wrong, Vec::<String>::new());
        assert!(whole.zones > 41, "files with several names have zones, and some directories: {}", whole.zones);
        for each in [1, 7, 30] {
            assert_eq!(audited(&betr, each).await, whole, "{each} at a time");
        }
        let root = Place::root_of(keys::ROOT_ZONE);
        let gone = keys::of(keys::META, &Place::root_of(whole.zones / 2 + 2));
        let gone = match volume.get(&gone).await.expect("read") {
            Some(_) => gone,
            None => keys::of(keys::META, &root.child(betr.position_of(b"directory 0"))),
        };
        change(&volume, |txn| {
            volume.delete(txn, &gone);
            volume.overlay(txn, &keys::of(keys::SUMS, &root), patches::sums([5, -5]));
            volume.put(txn, &keys::data(&root, 77, 3), patches::piece(0, b"nobody's"));
        })
        .await;
        let whole = audited(&betr, usize::MAX).await;
        assert!(whole.wrong.len() >= 3, "{:?}", whole.wrong);
        for each in [1, 7, 30] {
            assert_eq!(audited(&betr, each).await.wrong, whole.wrong, "{each} at a time");
        }
    });
}

#[test]
fn what_follows_from_the_rest_is_mended() {
    with_tree(40, |house, betr| async move {
        let volume = house.volume();
        let next = crate::open::read_counter(&volume).await.expect("a counter");
        let before = audited(&betr, usize::MAX).await;
        betr.close().await.expect("closed");
        drop(betr);
        let root = Place::root_of(keys::ROOT_ZONE);
        change(&volume, |txn| {
            for key in [keys::FORMAT, keys::NEXT_NUMBER, &keys::of(keys::META, &root)] {
                volume.delete(txn, key);
            }
            volume.overlay(txn, &keys::of(keys::SUMS, &root), patches::sums([5, -5]));
            volume.put(txn, &keys::data(&root, 77, 3), patches::piece(0, b"nobody's"));
        })
        .await;
        // It can be looked at meanwhile, and not changed.
        let damaged = Betr::open(volume.clone(), Options::default()).await.expect("readable");
        assert!(damaged.damage().is_some());
        assert!(damaged.lookup(ROOT, b"directory 0").await.is_ok());
        let refused = damaged.mkdir(ROOT, b"new", node(FileKind::Directory)).await.expect_err("nothing changes");
        assert_eq!(refused.errno, ashlar_vfs::Errno::ReadOnly);
        drop(damaged);
        let told = Betr::repair(&volume, &[]).await.expect("mended");
        assert_eq!(told.len(), 4, "{told:?}");
        let betr = Betr::open(volume.clone(), Options::default()).await.expect("opened");
        assert!(betr.damage().is_none());
        let after = audited(&betr, usize::MAX).await;
        assert_eq!(after, before);
        let made = betr.create(ROOT, b"new", node(FileKind::File)).await.expect("made").ino;
        assert!(made >= next - ashlar_inodes::NUMBER_LOT, "{made} may be in use: {next}");
        let large = betr.lookup(ROOT, b"directory 0").await.expect("there").ino;
        let large = betr.lookup(large, b"large").await.expect("there").ino;
        assert_eq!(betr.read(large, 0, 1 << 20).await.expect("read").concat(), vec![7; 40_000]);
        // Ranges and keys have paths.
        let record = betr.inode(large).expect("in memory").record();
        let (range, offset) = betr.range_at(record.contents.base() + Blocks(2));
        assert_eq!((range, offset), (record.contents.range, 8192));
        assert_eq!(betr.path_of_range(range).await.expect("read"), Some((large, "/directory 0/large".into())));
        let place = betr.inode(large).expect("in memory").place();
        assert_eq!(betr.path_at(&keys::of(keys::META, &place)).await.expect("read").as_deref(), Some("/directory 0"));
        assert_eq!(Betr::repair(&volume, &[]).await.expect("nothing to do"), Vec::<String>::new());
    });
}

#[test]
fn lost_keys_are_forgotten_and_the_rest_fits_together() {
    with_tree(40, |house, betr| async move {
        let volume = house.volume();
        betr.close().await.expect("closed");
        drop(betr);
        // A fifth of all names in the middle, as a leaf of the index would hold them.
        let page = volume.page(&[keys::META], Some(&[keys::META + 1]), 1 << 20).await.expect("a page");
        let all: Vec<Vec<u8>> = page.entries.iter().map(|(key, _)| key.to_vec()).collect();
        let (low, high) = (all[all.len() * 2 / 5].clone(), all[all.len() * 3 / 5].clone());
        let told = Betr::repair(&volume, &[(low, Some(high))]).await.expect("mended");
        assert!(told.len() >= 2, "{told:?}");
        let betr = Betr::open(volume.clone(), Options::default()).await.expect("opened");
        let left = audited(&betr, usize::MAX).await;
        assert!(left.wrong.iter().all(|what| unreachable(what)), "{:?}", left.wrong);
    });
}

#[test]
fn damaged_leaves_lose_what_they_held_and_the_rest_is_mended() {
    // Of seven: at the ends and in the middle, alone, side by side and apart.
    for chosen in [&[0][..], &[3], &[6], &[3, 4], &[0, 6], &[1, 3, 5]] {
        with_tree(4000, move |house, betr| async move {
            betr.close().await.expect("closed");
            drop(betr);
            house.pool.checkpoint().await.expect("written");
            let leaves: Vec<u64> = house
                .pool
                .anatomy()
                .await
                .expect("read")
                .into_iter()
                .filter(|region| region.part == Part::Node { catalog: false, holds: Holds::Dictionary })
                .map(|region| region.at + region.len / 2)
                .collect();
            assert!(leaves.len() >= 7, "{} leaves of the dictionary", leaves.len());
            for chosen in chosen {
                let at = leaves[chosen * (leaves.len() - 1) / 6];
                house.device.corrupt(Lba(at / BLOCK_LEN as u64), at as usize % BLOCK_LEN);
            }
            let house = house.reopen().await;
            let damaged = house.pool.check(|_, _| {}).await.expect("checked").damaged;
            let keys = |what: &Damaged| match what {
                Damaged::Keys(low, high) => Some((low.clone(), high.clone())),
                Damaged::Blocks(..) => None,
            };
            let lost: Vec<_> = damaged.iter().filter_map(|damage| keys(&damage.what)).collect();
            assert_eq!(lost.len(), chosen.len(), "{damaged:?}");
            let told = Betr::repair(&house.volume(), &lost).await.expect("mended");
            assert!(!told.is_empty());
            // The node stays in its place, below a range delete, since nobody knows what it took.
            let damaged = house.pool.check(|_, _| {}).await.expect("checked").damaged;
            assert_eq!(damaged.len(), chosen.len(), "{told:?}");
            let betr = house.betr().await;
            assert!(betr.damage().is_none());
            let left = audited(&betr, usize::MAX).await;
            assert!(left.wrong.iter().all(|what| unreachable(what)), "{:?}", left.wrong);
            assert!(left.entries > 300, "most of it is still there: {}", left.entries);
            betr.mkdir(ROOT, b"new", node(FileKind::Directory)).await.expect("it takes changes");
            betr.close().await.expect("closed");
        });
    }
}
