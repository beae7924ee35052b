//! Audits in passes, and repairs of what was taken away.

use super::*;
use crate::inode::Placed;
use crate::{Options, Zones};
use ashlar_block::Device;
use ashlar_devices::PowerCut;
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_inodes::Lost;
use ashlar_pool::{Config, Creation, Damaged, Holds, Part, Pool};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};
use ashlar_vfs::{DirEntry, FileSystem, NewNode, WriteMode};
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
        // Parity would put right what is damaged here.
        let config = Config { parity: false, ..Config::default() };
        let pool = Pool::open(env, vec![device.clone() as Device], config).await.expect("opened");
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

/// All inodes that names lead to from the root, with their paths.
async fn walk(betr: &Betr) -> BTreeMap<u64, String> {
    let mut found = BTreeMap::from([(ROOT, String::new())]);
    let mut ahead = vec![ROOT];
    while let Some(directory) = ahead.pop() {
        let mut names: Vec<(Vec<u8>, FileKind)> = Vec::new();
        let mut add = |entry: DirEntry<'_>| {
            names.push((entry.name.to_vec(), entry.kind));
            true
        };
        betr.readdir(directory, 0, false, &mut add).await.expect("listed");
        for (name, kind) in names.into_iter().filter(|(name, _)| name != b"." && name != b"..") {
            let ino = betr.lookup(directory, &name).await.expect("what is listed is there").ino;
            let path = format!("{}/{}", found[&directory], String::from_utf8_lossy(&name));
            assert!(found.insert(ino, path).is_none() || kind != FileKind::Directory, "a directory has one name");
            ahead.extend(Some(ino).filter(|_| kind == FileKind::Directory));
        }
    }
    found
}

/// Nothing is wrong, and names lead to all that is there.
async fn assert_whole(betr: &Betr) -> BTreeMap<u64, String> {
    let audit = audited(betr, usize::MAX).await;
    assert_eq!(audit.wrong, Vec::<String>::new());
    let found = walk(betr).await;
    for ino in found.keys() {
        assert_eq!(betr.lookup(*ino, b".").await.expect("it is found by its number").ino, *ino);
    }
    assert_eq!(found.len() as u64, audit.inodes, "{found:?}");
    found
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
fn ways_that_are_gone_or_lead_elsewhere_are_mended() {
    with_tree(12, |house, betr| async move {
        let volume = house.volume();
        let look = async |parent, name: &[u8]| betr.lookup(parent, name).await.expect("there").ino;
        let first = look(ROOT, b"directory 0").await;
        let inos =
            [first, look(first, b"directory 1").await, look(first, b"directory 2").await, look(ROOT, b"link 3").await];
        betr.close().await.expect("closed");
        drop(betr);
        let key = |ino: u64| keys::numbered(keys::WAY, ino);
        change(&volume, |txn| {
            volume.delete(txn, &key(inos[0]));
            volume.put(txn, &key(inos[1]), Way::Name { directory: inos[1], position: 7 }.encode());
            volume.put(txn, &key(inos[2]), Bytes::from_static(b"no way"));
            volume.put(txn, &key(inos[3]), Way::Zone(1).encode());
            volume.put(txn, &key(900_000), Way::Name { directory: ROOT, position: 3 }.encode());
            volume.put(txn, &key(900_001), Way::Name { directory: 900_001, position: 3 }.encode());
        })
        .await;
        let betr = house.betr().await;
        let mut wrong: Vec<String> = inos.iter().map(|ino| format!("inode {ino} is not found by its number")).collect();
        wrong.sort_unstable();
        assert_eq!(audited(&betr, usize::MAX).await.wrong, wrong);
        for (ino, expected) in
            [(inos[0], Errno::Stale), (inos[1], Errno::Io), (inos[2], Errno::Io), (900_001, Errno::Io)]
        {
            let refused = betr.lookup(ino, b".").await.expect_err("there is no way to it");
            assert_eq!(refused.errno, expected, "inode {ino}");
        }
        drop(betr);
        let told = Betr::repair(&volume, &[]).await.expect("mended");
        assert!(told.iter().any(|told| told.contains('6')), "four are put and two are gone: {told:?}");
        let betr = house.betr().await;
        assert_whole(&betr).await;
        for ino in inos {
            assert_eq!(betr.lookup(ino, b".").await.expect("found").ino, ino);
        }
        assert_eq!(betr.lookup(900_000, b".").await.expect_err("nothing").errno, Errno::Stale);
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
        change(&volume, |txn| volume.delete_range(txn, &low, &high)).await;
        let told = Betr::repair(&volume, &[(low, Some(high))]).await.expect("mended");
        assert!(!told.is_empty(), "{told:?}");
        let betr = Betr::open(volume.clone(), Options::default()).await.expect("opened");
        assert_whole(&betr).await;
    });
}

/// Whatever leaf is lost, the repair ends, and nothing is wrong or out of reach behind it.
#[test]
fn any_names_may_be_lost() {
    for part in 0..12 {
        with_tree(30, move |house, betr| async move {
            let volume = house.volume();
            betr.close().await.expect("closed");
            drop(betr);
            let page = volume.page(&[keys::META], Some(&[keys::META + 1]), 1 << 20).await.expect("a page");
            let all: Vec<Vec<u8>> = page.entries.iter().map(|(key, _)| key.to_vec()).collect();
            let (low, high) = (all[all.len() * part / 12].clone(), all.get(all.len() * (part + 1) / 12).cloned());
            let high = high.unwrap_or_else(|| vec![keys::META + 1]);
            change(&volume, |txn| volume.delete_range(txn, &low, &high)).await;
            Betr::repair(&volume, &[(low, Some(high))]).await.expect("mended");
            let betr = Betr::open(volume.clone(), Options::default()).await.expect("opened");
            assert_whole(&betr).await;
            assert_eq!(Betr::repair(&volume, &[]).await.expect("nothing to do"), Vec::<String>::new());
        });
    }
}

#[test]
fn what_lost_its_name_is_brought_to_lost_and_found() {
    with_tree(12, |house, betr| async move {
        let volume = house.volume();
        let look = async |parent: u64, name: &str| betr.lookup(parent, name.as_bytes()).await.expect("there").ino;
        let [plain, deep] = ["plain", "deep"];
        let mut made = Vec::new();
        for name in [plain, deep] {
            made.push(betr.mkdir(ROOT, name.as_bytes(), node(FileKind::Directory)).await.expect("made").ino);
        }
        let below = betr.mkdir(made[1], b"below", node(FileKind::Directory)).await.expect("made").ino;
        let bottom = betr.mkdir(below, b"bottom", node(FileKind::Directory)).await.expect("made").ino;
        for (parent, name, len) in
            [(made[0], "small", 300), (made[0], "large", 40_000), (bottom, "small", 301), (below, "kept", 302)]
        {
            let file = betr.create(parent, name.as_bytes(), node(FileKind::File)).await.expect("made").ino;
            let data: Vec<u8> = (0..len).map(|at| (at % 251) as u8 + 1).collect();
            betr.write(file, 0, data.into(), WriteMode::default()).await.expect("written");
        }
        betr.syncfs().await.expect("synced");
        let (small, large) = (look(made[0], "small").await, look(made[0], "large").await);
        let twice = look(ROOT, "link 3").await;
        let place = |ino: u64| betr.inode(ino).expect("in memory").place();
        let zone = place(twice);
        assert_eq!(zone.depth(), 0, "a file with two names has a zone");
        // Names of two files, a directory and one below it, and the root of a zone.
        let gone: Vec<Vec<u8>> = [place(small), place(large), place(made[1]), place(below), zone]
            .iter()
            .map(|at| keys::of(keys::META, at))
            .collect();
        betr.close().await.expect("closed");
        drop(betr);
        change(&volume, |txn| gone.iter().for_each(|key| volume.delete(txn, key))).await;
        let told = Betr::repair(&volume, &[]).await.expect("mended");
        assert!(told.iter().any(|told| told.contains("brought 3 files and directories")), "{told:?}");
        let betr = Betr::open(volume.clone(), Options::default()).await.expect("opened");
        let found = assert_whole(&betr).await;
        let read = async |ino: u64| betr.read(ino, 0, 1 << 20).await.expect("read").concat();
        let data = |len: usize| (0..len).map(|at| (at % 251) as u8 + 1).collect::<Vec<u8>>();
        assert_eq!(found[&small], format!("/lost+found/#{small}"));
        assert_eq!(read(small).await, data(300), "to the byte, as its last piece says");
        assert_eq!(found[&large], format!("/lost+found/#{large}"));
        let bytes = read(large).await;
        assert_eq!((&bytes[..40_000], bytes.len() - 40_000), (&data(40_000)[..], 960), "to its last block");
        let paths: Vec<&String> = found.values().collect();
        assert!(paths.contains(&&format!("/lost+found/#{below}/kept")), "{paths:?}");
        assert!(paths.contains(&&format!("/lost+found/#{below}/bottom/small")), "{paths:?}");
        assert_eq!(read(twice).await, vec![7; 10], "a name led to its zone, so it keeps its place");
        assert!(!found[&twice].contains("lost+found"));
        assert_eq!(Betr::repair(&volume, &[]).await.expect("nothing to do"), Vec::<String>::new());
    });
}

#[test]
fn ranges_of_nobody_are_found_in_several_passes() {
    with_tree(12, |house, betr| async move {
        let volume = house.volume();
        change(&volume, |txn| {
            for range in [900, 901, 905] {
                volume.write(txn, keys::range_base(range) + Blocks(3), &vec![9; 8192].into());
            }
        })
        .await;
        for per_pass in [1, 2, 5, 1000] {
            let mut found = Vec::new();
            betr.stray_ranges(per_pass, |range| found.push(range)).await.expect("looked");
            assert_eq!(found, [900, 901, 905], "{per_pass} at a time");
        }
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
            let lost: Vec<_> = damaged.iter().filter_map(|damage| damage.lost.clone()).collect();
            assert_eq!(lost.len(), chosen.len(), "{damaged:?}");
            let told = Betr::repair(&house.volume(), &lost).await.expect("mended");
            assert!(!told.is_empty());
            // The node stays in its place, below a range delete, since nobody knows what it took.
            let damaged = house.pool.check(|_, _| {}).await.expect("checked").damaged;
            let what: Vec<_> = damaged.iter().map(|damage| &damage.what).collect();
            assert_eq!(what, vec![&Damaged::Nothing; chosen.len()], "{told:?}");
            let betr = house.betr().await;
            assert!(betr.damage().is_none());
            let left = assert_whole(&betr).await;
            assert!(left.len() > 300, "most of it is still there: {}", left.len());
            betr.mkdir(ROOT, b"new", node(FileKind::Directory)).await.expect("it takes changes");
            betr.close().await.expect("closed");
        });
    }
}

/// All paths, with the contents of files: `None` where they cannot be read.
async fn contents(betr: &Betr) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    for (ino, path) in walk(betr).await {
        if betr.getattr(ino).await.expect("there").kind == FileKind::File {
            found.insert(path, betr.read(ino, 0, 1 << 20).await.ok().map(|pieces| pieces.concat()));
        } else {
            found.insert(path, None);
        }
    }
    found
}

/// Makes names anew in the root and below, some of them of things that are lost, small and large.
async fn write_more(betr: &Betr, directories: u64) {
    for index in 0..directories {
        let name = format!("directory {index}");
        let child = match betr.lookup(ROOT, name.as_bytes()).await {
            Ok(found) => found.ino,
            Err(_) => betr.mkdir(ROOT, name.as_bytes(), node(FileKind::Directory)).await.expect("made").ino,
        };
        for (name, len) in [(&b"small"[..], 300), (b"later", 500), (b"large", 40_000)] {
            let file = match betr.lookup(child, name).await {
                Ok(found) => found.ino,
                Err(_) => betr.create(child, name, node(FileKind::File)).await.expect("made").ino,
            };
            betr.write(file, 0, vec![9; len].into(), WriteMode::default()).await.expect("written");
        }
    }
    betr.syncfs().await.expect("synced");
}

/// Damages nodes by chance: those that `may` be.
async fn damage(house: &House, seed: u64, count: usize, may: impl Fn(&Holds) -> bool) -> usize {
    house.pool.checkpoint().await.expect("written");
    let anatomy = house.pool.anatomy().await.expect("read").into_iter();
    let places: Vec<u64> = anatomy
        .filter(|region| matches!(&region.part, Part::Node { catalog: false, holds } if may(holds)))
        .map(|region| region.at + region.len / 2)
        .collect();
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for _ in 0..count {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        let at = places[(word % places.len() as u64) as usize];
        house.device.corrupt(Lba(at / BLOCK_LEN as u64), at as usize % BLOCK_LEN);
    }
    places.len()
}

/// As `ashlar check --repair`.
async fn repair(house: &House) -> Result<Vec<String>> {
    let damaged = house.pool.check(|_, _| {}).await.expect("checked").damaged;
    let lost: Vec<_> = damaged.into_iter().filter_map(|damage| damage.lost).collect();
    Betr::repair(&house.volume(), &lost).await
}

/// Whatever nodes are damaged, a repair changes nothing that can be read, and the next nothing at all.
#[test]
fn a_second_repair_keeps_what_was_written_since() {
    const DIRECTORIES: u64 = 700;
    for seed in 0..10 {
        with_tree(DIRECTORIES, move |house, betr| async move {
            betr.close().await.expect("closed");
            drop(betr);
            let leaves = |holds: &Holds| matches!(holds, Holds::Dictionary | Holds::Map | Holds::Both);
            damage(&house, seed, 1 + seed as usize % 3, leaves).await;
            let house = house.reopen().await;
            if repair(&house).await.is_err() {
                return; // both copies of the format are gone
            }
            let betr = house.betr().await;
            assert!(betr.damage().is_none());
            write_more(&betr, 40).await;
            let before = contents(&betr).await;
            assert!(before.len() > 100, "{}", before.len());
            betr.close().await.expect("closed");
            drop(betr);
            let house = house.reopen().await;
            assert_eq!(repair(&house).await.expect("mended"), Vec::<String>::new(), "seed {seed}");
            let betr = house.betr().await;
            assert_eq!(contents(&betr).await, before, "seed {seed}");
            // All is readable, zeros where blocks are lost.
            assert_whole(&betr).await;
            write_more(&betr, 60).await;
            let before = contents(&betr).await;
            betr.close().await.expect("closed");
            drop(betr);
            assert_eq!(repair(&house).await.expect("mended"), Vec::<String>::new(), "seed {seed}");
            assert_eq!(contents(&*house.betr().await).await, before, "seed {seed}");
        });
    }
}

/// Damages one leaf that meets this range of keys.
async fn damage_leaf(house: &House, low: &[u8], high: &[u8]) -> Vec<Lost> {
    house.pool.checkpoint().await.expect("written");
    let anatomy = house.pool.anatomy().await.expect("read").into_iter();
    let is_leaf = |part: &Part| {
        let leaves = [Holds::Dictionary, Holds::Map, Holds::Both];
        leaves.into_iter().any(|holds| *part == Part::Node { catalog: false, holds })
    };
    for region in anatomy.filter(|region| is_leaf(&region.part)) {
        let at = region.at + region.len / 2;
        let flip = || house.device.corrupt(Lba(at / BLOCK_LEN as u64), at as usize % BLOCK_LEN);
        flip();
        let damaged = house.pool.check(|_, _| {}).await.expect("checked").damaged;
        let lost: Vec<Lost> = damaged.into_iter().filter_map(|damage| damage.lost).collect();
        let meets = |(start, end): &Lost| &start[..] < high && end.as_deref().is_none_or(|end| low < end);
        if lost.iter().any(meets) {
            return lost;
        }
        flip();
    }
    panic!("no leaf has these keys");
}

/// The map's leaves: one of its own, and the one that the first keys of the dictionary share.
#[test]
fn files_whose_blocks_cannot_be_found_are_named_and_read_as_zeros() {
    for shared in [false, true] {
        with_tree(600, move |house, betr| async move {
            betr.close().await.expect("closed");
            drop(betr);
            let (low, high) = if shared { (vec![2], vec![3, 1]) } else { (vec![1], vec![1, 1]) };
            let lost = damage_leaf(&house, &low, &high).await;
            let house = house.reopen().await;
            let damaged = house.pool.check(|_, _| {}).await.expect("checked").damaged;
            let (first, count) = damaged[0].unmapped().expect("a part of the map");
            let betr = house.betr().await;
            let (all, more) = betr.files_in(first, count, usize::MAX).await.expect("looked");
            assert!(all.len() > 10 && more == 0, "{}", all.len());
            assert!(all.iter().all(|(path, offset, len)| path.ends_with("/large") && offset + len == 40_000));
            let (some, more) = betr.files_in(first, count, 7).await.expect("looked");
            assert_eq!((some.len() as u64, 7 + more), (7, all.len() as u64));
            let named: BTreeSet<String> = all.into_iter().map(|(path, ..)| path).collect();
            let before = contents(&betr).await;
            let unreadable = |(path, read): (&String, &Option<Vec<u8>>)| {
                (path.ends_with("/large") && read.is_none()).then(|| path.clone())
            };
            assert_eq!(before.iter().filter_map(unreadable).collect::<BTreeSet<_>>(), named);
            betr.close().await.expect("closed");
            drop(betr);
            let told = Betr::repair(&house.volume(), &lost).await.expect("mended");
            assert!(told.iter().any(|told| told.contains("they are zeros")), "{told:?}");
            let betr = house.betr().await;
            let after = contents(&betr).await;
            for (path, read) in &before {
                match named.contains(path) {
                    true => assert_eq!(after[path], Some(vec![0; 40_000]), "{path}"),
                    // A leaf that has both takes small files, too.
                    false if read.is_none() || !after.contains_key(path) => assert!(!path.ends_with("/large")),
                    false => assert_eq!(&after[path], read, "{path}"),
                }
            }
            betr.close().await.expect("closed");
            drop(betr);
            assert_eq!(repair(&house).await.expect("mended"), Vec::<String>::new());
        });
    }
}

/// What was written above a lost part of the map before the repair stays, though the rest of its chunk is lost.
#[test]
fn blocks_written_before_the_repair_stay() {
    with_tree(600, |house, betr| async move {
        let directory = betr.lookup(ROOT, b"directory 0").await.expect("there").ino;
        let large = betr.lookup(directory, b"large").await.expect("there").ino;
        let base = betr.inode(large).expect("in memory").record().contents.base();
        betr.close().await.expect("closed");
        drop(betr);
        let map = |block: u64| [&[1][..], &(block / 32).to_be_bytes()].concat();
        let lost = damage_leaf(&house, &map(base.0), &map(base.0 + 32)).await;
        let house = house.reopen().await;
        let volume = house.volume();
        change(&volume, |txn| volume.write(txn, base + Blocks(2), &vec![5; 2 * BLOCK_LEN].into())).await;
        house.pool.checkpoint().await.expect("written");
        Betr::repair(&volume, &lost).await.expect("mended");
        let read = volume.read(base, Blocks(10)).await.expect("all of it can be read").concat();
        let block = |at: usize| (read[at * BLOCK_LEN], read[(at + 1) * BLOCK_LEN - 1]);
        assert_eq!([0, 1, 2, 3, 4].map(block), [(0, 0), (0, 0), (5, 5), (5, 5), (0, 0)]);
        assert_eq!(repair(&house).await.expect("mended"), Vec::<String>::new());
        assert_eq!(volume.read(base, Blocks(10)).await.expect("read").concat(), read);
    });
}

#[test]
fn files_that_lost_small_changes_are_named() {
    with_tree(600, |house, betr| async move {
        let directory = betr.lookup(ROOT, b"directory 0").await.expect("there").ino;
        let large = betr.lookup(directory, b"large").await.expect("there").ino;
        betr.write(large, 5000, Bytes::from_static(b"ABCD"), WriteMode::default()).await.expect("written");
        betr.syncfs().await.expect("synced");
        let (low, high) = keys::contents(&betr.inode(large).expect("in memory").place(), large);
        assert_eq!(house.volume().first(&low, &high, 9).await.expect("read").len(), 1, "it is a piece");
        betr.close().await.expect("closed");
        drop(betr);
        let lost = damage_leaf(&house, &low, &high).await;
        let house = house.reopen().await;
        let told = Betr::repair(&house.volume(), &lost).await.expect("mended");
        assert!(told.iter().any(|told| told.starts_with("/directory 0/large: small changes may be lost")), "{told:?}");
        assert_eq!(told.iter().filter(|told| told.contains("small changes")).count(), 1, "{told:?}");
        assert_eq!(repair(&house).await.expect("mended"), Vec::<String>::new());
    });
}
