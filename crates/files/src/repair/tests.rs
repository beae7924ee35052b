//! Repairs of what was taken away.

use super::*;
use ashlar_block::Device;
use ashlar_devices::PowerCut;
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_pool::{Config, Creation, Holds, Part, Pool};
use ashlar_units::BLOCK_LEN;
use ashlar_vfs::{DirEntry, FileSystem, NewNode, WriteMode};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

fn node(kind: FileKind) -> NewNode {
    NewNode { kind, permissions: 0o755, uid: 7, gid: 7, device: 0, umask: 0, open: false }
}

/// Bytes without zeros.
fn data(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 + 1).collect()
}

const SMALL: usize = 300;
/// Outgrows the small range.
const LARGE: usize = 1_500_000;

/// Directories in each other with small and large files, symbolic links and files with two names.
async fn tree(files: &Files, directories: u64) {
    let mut parent = ROOT;
    for index in 0..directories {
        let name = format!("directory {index}");
        let child = files.mkdir(parent, name.as_bytes(), node(FileKind::Directory)).await.expect("made").ino;
        for (name, len) in [(&b"small"[..], SMALL), (b"linked", 10), (b"large", LARGE)] {
            if len == LARGE && index % 8 != 3 {
                continue;
            }
            let file = files.create(child, name, node(FileKind::File)).await.expect("made").ino;
            files.write(file, 0, data(len).into(), WriteMode::default()).await.expect("written");
            if name == b"linked" {
                files.link(file, ROOT, format!("link {index}").as_bytes()).await.expect("linked");
            }
        }
        files.symlink(child, b"symbolic", b"small", node(FileKind::Symlink)).await.expect("made");
        parent = if index % 3 == 0 { child } else { parent };
    }
    files.syncfs().await.expect("synced");
}

fn with_tree<F: Future<Output = ()> + Send + 'static>(
    directories: u64,
    test: impl FnOnce(Volume, Arc<Files>) -> F + Send + 'static,
) {
    on_device(directories, |_, _, volume, files| test(volume, files));
}

fn on_device<F: Future<Output = ()> + Send + 'static>(
    directories: u64,
    test: impl FnOnce(Env, Arc<PowerCut>, Volume, Arc<Files>) -> F + Send + 'static,
) {
    let sim = Sim::new(1, Schedule::Random);
    let env = sim.env();
    let run = async move {
        let device = Arc::new(PowerCut::new(Blocks(64 * 512), env.clone(), Duration::ZERO));
        Pool::create(&env, &[device.clone() as Device], Creation::default()).await.expect("made");
        let pool = open_pool(&env, &device).await;
        let volume = pool.create_volume("v").await.expect("made");
        Files::format(&volume, 0, 0).await.expect("formatted");
        let files = open(&volume).await;
        tree(&files, directories).await;
        test(env, device, volume, files).await;
    };
    sim.run(run).expect("no deadlock");
}

async fn open_pool(env: &Env, device: &Arc<PowerCut>) -> Pool {
    // Parity would put right what is damaged here.
    let config = Config { parity: false, ..Config::default() };
    Pool::open(env, vec![device.clone() as Device], config).await.expect("opened")
}

async fn open(volume: &Volume) -> Arc<Files> {
    Files::open(volume.clone(), Options::default()).await.expect("opened")
}

/// Nothing is wrong, and names lead to all that is there: the first path of each inode.
async fn assert_whole(files: &Files) -> BTreeMap<Ino, String> {
    let audit = files.audit().await.expect("audited");
    assert_eq!(audit.wrong, Vec::<String>::new());
    let mut found = BTreeMap::from([(ROOT, String::new())]);
    let mut ahead = vec![ROOT];
    while let Some(directory) = ahead.pop() {
        let mut names: Vec<(Vec<u8>, FileKind)> = Vec::new();
        let mut add = |entry: DirEntry<'_>| {
            names.push((entry.name.to_vec(), entry.kind));
            true
        };
        files.readdir(directory, 0, false, &mut add).await.expect("listed");
        for (name, kind) in names.into_iter().filter(|(name, _)| name != b"." && name != b"..") {
            let ino = files.lookup(directory, &name).await.expect("what is listed is there").ino;
            let path = format!("{}/{}", found[&directory], String::from_utf8_lossy(&name));
            found.entry(ino).or_insert(path);
            ahead.extend(Some(ino).filter(|_| kind == FileKind::Directory));
        }
    }
    assert_eq!(found.len() as u64, audit.inodes, "{found:?}");
    found
}

async fn forget(volume: &Volume, gone: &[Vec<u8>]) {
    let mut txn = Txn::new();
    gone.iter().for_each(|key| volume.delete(&mut txn, key));
    volume.commit(txn).await.expect("changed");
}

async fn forget_range(volume: &Volume, low: &[u8], high: Option<&[u8]>) {
    let mut txn = Txn::new();
    volume.delete_range(&mut txn, low, high.unwrap_or(b"z"));
    volume.commit(txn).await.expect("changed");
}

/// Whatever part of the dictionary is lost, nothing is wrong or out of reach behind the repair.
#[test]
fn any_keys_may_be_lost() {
    const PARTS: usize = 24;
    for part in 0..PARTS {
        with_tree(24, move |volume, files| async move {
            let before = assert_whole(&files).await;
            files.close().await.expect("closed");
            drop(files);
            let page = volume.page(b"A", Some(b"z"), 1 << 20).await.expect("a page");
            let all: Vec<Vec<u8>> = page.entries.iter().map(|(key, _)| key.to_vec()).collect();
            let (low, high) = (all[all.len() * part / PARTS].clone(), all.get(all.len() * (part + 1) / PARTS).cloned());
            forget_range(&volume, &low, high.as_deref()).await;
            let told = Files::repair(&volume, &[(low, high)]).await.expect("mended");
            assert!(!told.is_empty());
            let files = open(&volume).await;
            assert!(files.damage().is_none());
            let after = assert_whole(&files).await;
            assert!(after.len() * 10 > before.len() * 8, "most of it is still there: {told:?}");
            let made = files.create(ROOT, b"new", node(FileKind::File)).await.expect("made").ino;
            assert!(before.keys().all(|ino| *ino < made), "{made} is in use");
            let large = files.create(ROOT, b"new and large", node(FileKind::File)).await.expect("made").ino;
            files.write(large, 0, vec![1; LARGE].into(), WriteMode::default()).await.expect("a slot of its own");
            for (ino, path) in after.iter().filter(|(_, path)| path.ends_with("/large")) {
                let read = files.read(*ino, 0, LARGE).await.expect("read").concat();
                assert_eq!(read, data(LARGE), "{path}");
            }
        });
    }
}

#[test]
fn what_lost_its_name_keeps_the_rest() {
    with_tree(8, |volume, files| async move {
        let before = assert_whole(&files).await;
        let ino_of = |path: &str| *before.iter().find(|(_, found)| found.ends_with(path)).expect("there").0;
        let [small, large, symbolic] =
            ["directory 4/small", "directory 3/large", "directory 4/symbolic"].map(|path| ino_of(&format!("/{path}")));
        let directory = ino_of("/directory 0");
        files.close().await.expect("closed");
        drop(files);
        let page = volume.page(&[keys::ENTRY], Some(&[keys::ENTRY + 1]), 1 << 20).await.expect("a page");
        let lost = [small, large, symbolic, directory];
        let gone = page.entries.iter().filter(|(_, value)| lost.contains(&Entry::decode(value).expect("valid").ino));
        let gone: Vec<Vec<u8>> = gone.map(|(key, _)| key.to_vec()).collect();
        assert_eq!(gone.len(), lost.len());
        forget(&volume, &gone).await;
        let told = Files::repair(&volume, &[]).await.expect("mended");
        assert!(told.iter().any(|told| told.contains("brought 4 files and directories")), "{told:?}");
        let files = open(&volume).await;
        let after = assert_whole(&files).await;
        for ino in lost {
            assert_eq!(after[&ino], format!("/lost+found/#{ino}"));
            assert_eq!(files.getattr(ino).await.expect("there").uid, 7, "with its owner");
        }
        assert_eq!(files.read(small, 0, 1 << 20).await.expect("read").concat(), data(SMALL));
        assert_eq!(files.read(large, 0, 1 << 21).await.expect("read").concat(), data(LARGE));
        assert_eq!(after.len(), before.len() + 1, "and lost+found itself");
        assert_eq!(Files::repair(&volume, &[]).await.expect("nothing to do"), Vec::<String>::new());
    });
}

#[test]
fn what_lost_its_attributes_keeps_name_and_contents() {
    with_tree(8, |volume, files| async move {
        let before = assert_whole(&files).await;
        let ino_of = |path: &str| *before.iter().find(|(_, found)| found.ends_with(path)).expect("there").0;
        let [small, large, symbolic] =
            ["directory 4/small", "directory 3/large", "directory 4/symbolic"].map(|path| ino_of(&format!("/{path}")));
        let directory = ino_of("/directory 0");
        files.close().await.expect("closed");
        drop(files);
        let lost = [small, large, symbolic, directory].map(|ino| (keys::inode(ino), Some(keys::inode(ino + 1))));
        for (low, high) in &lost {
            forget_range(&volume, low, high.as_deref()).await;
        }
        let told = Files::repair(&volume, &lost).await.expect("mended");
        assert!(told.iter().any(|told| told.contains("brought 1 files and directories")), "{told:?}");
        let files = open(&volume).await;
        let after = assert_whole(&files).await;
        for ino in [small, directory] {
            assert_eq!(after[&ino], before[&ino]);
        }
        let read = files.read(small, 0, 1 << 20).await.expect("read").concat();
        assert_eq!((&read[..SMALL], read.len()), (&data(SMALL)[..], 4096), "to its last block");
        // The slot of a large file does not say whose it was.
        assert!(!after.contains_key(&large) && !after.contains_key(&symbolic));
        let found = after.iter().find(|(_, path)| path.starts_with("/lost+found/")).expect("its blocks");
        assert_eq!(files.read(*found.0, 0, LARGE).await.expect("read").concat(), data(LARGE));
    });
}

#[test]
fn damaged_leaves_lose_what_they_held_and_the_rest_is_mended() {
    // At the ends and in the middle, alone, side by side and apart: of some six leaves.
    for chosen in [&[0][..], &[2], &[5], &[2, 3], &[0, 5], &[0, 2, 4]] {
        on_device(800, move |env, device, volume, files| async move {
            let before = assert_whole(&files).await.len();
            files.close().await.expect("closed");
            drop(files);
            let pool = volume.pool().clone();
            drop(volume);
            pool.checkpoint().await.expect("written");
            let leaf = Part::Node { catalog: false, holds: Holds::Dictionary };
            let leaves: Vec<u64> = pool
                .anatomy()
                .await
                .expect("read")
                .into_iter()
                .filter(|region| region.part == leaf)
                .map(|region| region.at + region.len / 2)
                .collect();
            assert!(leaves.len() >= 6, "{} leaves of the dictionary", leaves.len());
            for chosen in chosen {
                let at = leaves[chosen * (leaves.len() - 1) / 5];
                device.corrupt(Lba(at / BLOCK_LEN as u64), at as usize % BLOCK_LEN);
            }
            pool.close().await.expect("closed");
            let pool = open_pool(&env, &device).await;
            let damaged = pool.check(|_, _| {}).await.expect("checked").damaged;
            let lost: Vec<_> = damaged.iter().filter_map(|damage| damage.lost.clone()).collect();
            assert_eq!(lost.len(), chosen.len(), "{damaged:?}");
            let volume = pool.volume("v").expect("the volume");
            let told = Files::repair(&volume, &lost).await.expect("mended");
            assert!(!told.is_empty());
            let files = open(&volume).await;
            assert!(files.damage().is_none());
            let left = assert_whole(&files).await.len();
            assert!(left * 3 > before, "much of it is still there: {left} of {before}, {told:?}");
            files.mkdir(ROOT, b"new", node(FileKind::Directory)).await.expect("it takes changes");
            files.close().await.expect("closed");
        });
    }
}

/// Paths with the contents of files, small ones in full.
async fn contents(files: &Files) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    for (ino, path) in assert_whole(files).await {
        let is_file = files.getattr(ino).await.expect("there").kind == FileKind::File;
        let read = files.read(ino, 0, if is_file { 1 << 16 } else { 0 }).await;
        found.insert(path, read.ok().map(|pieces| pieces.concat()));
    }
    found
}

/// Names in the root and below, some of them of things that are lost.
async fn write_more(files: &Files, directories: u64) {
    for index in 0..directories {
        let name = format!("directory {index}");
        let child = match files.lookup(ROOT, name.as_bytes()).await {
            Ok(found) => found.ino,
            Err(_) => files.mkdir(ROOT, name.as_bytes(), node(FileKind::Directory)).await.expect("made").ino,
        };
        for name in [&b"small"[..], b"later"] {
            let file = match files.lookup(child, name).await {
                Ok(found) => found.ino,
                Err(_) => files.create(child, name, node(FileKind::File)).await.expect("made").ino,
            };
            files.write(file, 0, vec![9; SMALL].into(), WriteMode::default()).await.expect("written");
        }
    }
    files.syncfs().await.expect("synced");
}

/// As `ashlar check --repair`.
async fn repair(pool: &Pool) -> Result<Vec<String>> {
    let damaged = pool.check(|_, _| {}).await.expect("checked").damaged;
    let lost: Vec<_> = damaged.into_iter().filter_map(|damage| damage.lost).collect();
    Files::repair(&pool.volume("v").expect("the volume"), &lost).await
}

/// Whatever leaves are damaged, a repair changes nothing that can be read, and the next nothing at all.
#[test]
fn a_second_repair_keeps_what_was_written_since() {
    for seed in 0..8u64 {
        on_device(500, move |env, device, volume, files| async move {
            files.close().await.expect("closed");
            drop(files);
            let pool = volume.pool().clone();
            drop(volume);
            pool.checkpoint().await.expect("written");
            let is_leaf = |part: &Part| {
                let leaves = [Holds::Dictionary, Holds::Map, Holds::Both];
                leaves.into_iter().any(|holds| *part == Part::Node { catalog: false, holds })
            };
            let anatomy = pool.anatomy().await.expect("read").into_iter();
            let leaves: Vec<u64> =
                anatomy.filter(|region| is_leaf(&region.part)).map(|at| at.at + at.len / 2).collect();
            for chosen in 0..1 + seed % 3 {
                let at = leaves[((seed * 5 + chosen * 7) % leaves.len() as u64) as usize];
                device.corrupt(Lba(at / BLOCK_LEN as u64), at as usize % BLOCK_LEN);
            }
            pool.close().await.expect("closed");
            let pool = open_pool(&env, &device).await;
            if repair(&pool).await.is_err() {
                return; // both copies of the format are gone
            }
            let files = open(&pool.volume("v").expect("the volume")).await;
            write_more(&files, 40).await;
            let before = contents(&files).await;
            files.close().await.expect("closed");
            drop(files);
            pool.close().await.expect("closed");
            let pool = open_pool(&env, &device).await;
            assert_eq!(repair(&pool).await.expect("mended"), Vec::<String>::new(), "seed {seed}");
            let files = open(&pool.volume("v").expect("the volume")).await;
            assert_eq!(contents(&files).await, before, "seed {seed}");
        });
    }
}

#[test]
fn names_with_equal_hashes_are_found_when_one_before_them_is_lost() {
    const NAMES: u64 = 9;
    with_tree(1, |volume, files| async move {
        files.close().await.expect("closed");
        drop(files);
        let one_chain = || Files::open(volume.clone(), Options { hash_bits: 1, ..Options::default() });
        let files = one_chain().await.expect("opened");
        let directory = files.mkdir(ROOT, b"chain", node(FileKind::Directory)).await.expect("made").ino;
        let name = |index: u64| format!("name {index}").into_bytes();
        for index in 0..NAMES {
            files.create(directory, &name(index), node(FileKind::File)).await.expect("made");
        }
        files.unlink(directory, &name(5)).await.expect("removed");
        // Its name, out of reach too, has to go.
        let without_inode = files.lookup(directory, &name(7)).await.expect("there").ino;
        files.close().await.expect("closed");
        drop(files);
        let lost = [0, 3, 4];
        let mut gone = lost.map(|index| keys::entry(directory, COLLISIONS_MAX + index)).to_vec();
        gone.push(keys::inode(without_inode));
        forget(&volume, &gone).await;

        let files = one_chain().await.expect("opened");
        assert!(files.lookup(directory, &name(1)).await.is_err(), "the test would show nothing");
        let wrong = files.audit().await.expect("audited").wrong;
        let out_of_reach = wrong.iter().filter(|wrong| wrong.contains("no lookup finds")).count();
        assert_eq!(out_of_reach as u64, NAMES - lost.len() as u64 - 1, "{wrong:?}");
        files.close().await.expect("closed");
        drop(files);

        Files::repair(&volume, &[]).await.expect("mended");
        let files = one_chain().await.expect("opened");
        assert_eq!(files.audit().await.expect("audited").wrong, Vec::<String>::new());
        for index in 0..NAMES {
            let found = files.lookup(directory, &name(index)).await.is_ok();
            assert_eq!(found, ![5, 7].contains(&index) && !lost.contains(&index), "name {index}");
        }
        files.create(directory, &name(0), node(FileKind::File)).await.expect("the place of one that is gone");
        assert_eq!(files.audit().await.expect("audited").wrong, Vec::<String>::new());
    });
}
