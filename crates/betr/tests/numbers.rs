//! Inodes are found by their numbers when nothing of them is in memory, as a server of file handles asks for them.

mod common;

use ashlar_betr::{Betr, Options, Rule, Zones};
use ashlar_block::Device;
use ashlar_devices::Memory;
use ashlar_env::Env;
use ashlar_pool::{Config, Creation, Pool, Txn, Volume};
use ashlar_units::{Blocks, Bytes};
use ashlar_vfs::{Attr, Errno, FileKind, FileSystem, Ino, ROOT, RenameMode, Result};
use common::{node, simulate};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeMap;
use std::sync::Arc;

async fn volume(env: &Env) -> Volume {
    let device: Device = Arc::new(Memory::new(Blocks(1 << 15)));
    Pool::create(env, std::slice::from_ref(&device), Creation { segment: Some(Blocks(512)), force: false })
        .await
        .expect("created");
    let pool = Pool::open(env, vec![device], Config::default()).await.expect("opened");
    pool.create_volume("v").await.expect("a volume")
}

async fn made(env: &Env, zones: Zones) -> (Volume, Arc<Betr>) {
    let volume = volume(env).await;
    Betr::format(&volume, 0, 0, zones).await.expect("formatted");
    let betr = Betr::open(volume.clone(), Options::default()).await.expect("opened");
    (volume, betr)
}

/// Looks a number up, and lets go of what it found.
async fn numbered(betr: &Betr, ino: Ino) -> Result<Attr> {
    let attr = betr.lookup(ino, b".").await?;
    betr.forget(ino, 1).await;
    assert_eq!(attr.ino, ino);
    Ok(attr)
}

async fn make(betr: &Betr, parent: Ino, name: &[u8], kind: FileKind) -> Ino {
    let attr = match kind {
        FileKind::Directory => betr.mkdir(parent, name, node(kind)).await,
        _ => betr.create(parent, name, node(kind)).await,
    };
    attr.expect("made").ino
}

#[test]
fn what_left_memory_is_found_by_its_number_wherever_it_went() {
    simulate(1, |env| async move {
        let (volume, betr) = made(&env, Zones::default()).await;
        let above = make(&betr, ROOT, b"above", FileKind::Directory).await;
        let below = make(&betr, above, b"below", FileKind::Directory).await;
        let file = make(&betr, below, b"file", FileKind::File).await;
        let twice = make(&betr, below, b"twice", FileKind::File).await;
        let gone = make(&betr, below, b"gone", FileKind::File).await;
        betr.link(twice, ROOT, b"other").await.expect("linked");
        betr.rename((ROOT, b"above"), (ROOT, b"moved"), RenameMode::Replace).await.expect("moved");
        betr.rename((below, b"file"), (above, b"file"), RenameMode::Replace).await.expect("moved");
        betr.unlink(below, b"twice").await.expect("unlinked");
        betr.unlink(below, b"gone").await.expect("removed");
        for (ino, count) in [(above, 1), (below, 1), (file, 1), (twice, 2), (gone, 1)] {
            betr.forget(ino, count).await;
        }
        assert_eq!(betr.inodes_in_memory(), 1, "the root alone");
        for ino in [twice, file, below, above] {
            assert_eq!(
                numbered(&betr, ino).await.expect("found").links,
                if ino == file || ino == twice { 1 } else { 2 + u32::from(ino == above) }
            );
            assert_eq!(betr.inodes_in_memory(), 1, "what led to {ino} has left again");
        }
        assert_eq!(numbered(&betr, gone).await.expect_err("removed").errno, Errno::Stale);
        assert_eq!(numbered(&betr, 1 << 30).await.expect_err("never made").errno, Errno::Stale);
        // The directory above, from nothing but the number of the one below.
        betr.lookup(below, b".").await.expect("found");
        assert_eq!(betr.lookup(below, b"..").await.expect("found").ino, above);
        betr.forget(above, 1).await;
        betr.forget(below, 1).await;
        assert_eq!(betr.inodes_in_memory(), 1);
        // With another server.
        betr.close().await.expect("closed");
        let betr = Betr::open(volume, Options::default()).await.expect("opened");
        assert!(numbered(&betr, file).await.is_ok() && numbered(&betr, twice).await.is_ok());
        assert_eq!(betr.audit().await.expect("audited").wrong, Vec::<String>::new());
    });
}

#[test]
fn without_ways_the_audit_and_whoever_asks_by_number_notice() {
    simulate(3, |env| async move {
        let volume = volume(&env).await;
        Betr::format(&volume, 0, 0, Zones::default()).await.expect("formatted");
        let options = Options { without: Some(Rule::NoteWays), ..Options::default() };
        let betr = Betr::open(volume, options).await.expect("opened");
        let file = make(&betr, ROOT, b"file", FileKind::File).await;
        betr.forget(file, 1).await;
        assert_eq!(numbered(&betr, file).await.expect_err("no way was noted").errno, Errno::Stale);
        let wrong = betr.audit().await.expect("audited").wrong;
        assert_eq!(wrong, [format!("inode {file} is not found by its number")]);
    });
}

/// Names are made, moved, linked, exchanged and removed at random, in zones that are divided and merged all the time; all that
/// has a name is found by its number, and nothing else.
#[test]
fn random_changes_of_names_leave_the_way_to_each() {
    for seed in 0..6 {
        simulate(seed, move |env| async move {
            let zones = Zones { smallest: Bytes(1 << 10), largest: Bytes(2 << 10), inline: Bytes(512) };
            let (_volume, betr) = made(&env, zones).await;
            let mut random = Pcg64Mcg::seed_from_u64(seed);
            let mut names: BTreeMap<(Ino, Vec<u8>), Ino> = BTreeMap::new();
            let (mut directories, mut all) = (vec![ROOT], vec![ROOT]);
            for step in 0..400 {
                let mut pick = || {
                    let name = format!("name {}", random.random_range(0..4)).into_bytes();
                    (directories[random.random_range(0..directories.len())], name)
                };
                let (from, to) = (pick(), pick());
                let choice = random.random_range(0..7);
                // Directories that were removed are asked for too: nobody holds them.
                let hold = async |ino: Ino| betr.lookup(ino, b".").await.is_ok();
                if !hold(from.0).await {
                    continue;
                }
                if !hold(to.0).await {
                    betr.forget(from.0, 1).await;
                    continue;
                }
                let changed: Result<()> = match choice {
                    0 | 1 => betr.mkdir(from.0, &from.1, node(FileKind::Directory)).await.map(|attr| {
                        directories.push(attr.ino);
                        all.push(attr.ino);
                    }),
                    2 => betr.create(from.0, &from.1, node(FileKind::File)).await.map(|attr| all.push(attr.ino)),
                    3 => match betr.lookup(from.0, &from.1).await {
                        Ok(attr) => {
                            let linked = betr.link(attr.ino, to.0, &to.1).await;
                            betr.forget(attr.ino, 1 + u64::from(linked.is_ok())).await;
                            linked.map(drop)
                        }
                        Err(error) => Err(error),
                    },
                    4 => match betr.unlink(from.0, &from.1).await {
                        Err(_) => betr.rmdir(from.0, &from.1).await,
                        done => done,
                    },
                    5 => betr.rename((from.0, &from.1), (to.0, &to.1), RenameMode::Exchange).await,
                    _ => betr.rename((from.0, &from.1), (to.0, &to.1), RenameMode::Replace).await,
                };
                if choice < 3 && changed.is_ok() {
                    betr.forget(all[all.len() - 1], 1).await;
                }
                betr.forget(from.0, 1).await;
                betr.forget(to.0, 1).await;
                if step % 50 == 49 {
                    betr.syncfs().await.expect("zones are merged");
                    assert_eq!(betr.audit().await.expect("audited").wrong, Vec::<String>::new(), "seed {seed}");
                    names = listed(&betr).await;
                    let named: Vec<Ino> = names.values().copied().collect();
                    for ino in &all {
                        let found = numbered(&betr, *ino).await;
                        match *ino == ROOT || named.contains(ino) {
                            true => drop(found.expect("what has a name has a way")),
                            false => assert_eq!(found.expect_err("removed").errno, Errno::Stale),
                        }
                    }
                    assert_eq!(betr.inodes_in_memory(), 1, "seed {seed}: nobody holds anything");
                }
            }
            assert!(names.len() > 10, "seed {seed}: {} names", names.len());
            assert!(betr.counters().splits > 3, "seed {seed}: {:?}", betr.counters());
        });
    }
}

/// All names from the root on.
async fn listed(betr: &Betr) -> BTreeMap<(Ino, Vec<u8>), Ino> {
    let (mut found, mut ahead) = (BTreeMap::new(), vec![ROOT]);
    while let Some(directory) = ahead.pop() {
        betr.lookup(directory, b".").await.expect("found");
        let mut names = Vec::new();
        let mut sink = |entry: ashlar_vfs::DirEntry<'_>| {
            names.push((entry.name.to_vec(), entry.ino, entry.kind));
            true
        };
        betr.readdir(directory, 0, false, &mut sink).await.expect("listed");
        betr.forget(directory, 1).await;
        for (name, ino, kind) in names.into_iter().filter(|(name, ..)| name != b"." && name != b"..") {
            ahead.extend(Some(ino).filter(|_| kind == FileKind::Directory));
            found.insert((directory, name), ino);
        }
    }
    found
}

/// A file system from before ways were kept is served as before: what left memory is not found by its number.
#[test]
fn an_older_file_system_has_no_ways_and_lacks_none() {
    simulate(2, |env| async move {
        let (volume, betr) = made(&env, Zones::default()).await;
        betr.close().await.expect("closed");
        drop(betr);
        for key in [&b"F"[..], b"z"] {
            let mut format = volume.get(key).await.expect("read").expect("a format").to_vec();
            assert_eq!(std::mem::replace(&mut format[0], 0x82), 0x83);
            let mut txn = Txn::new();
            volume.put(&mut txn, key, format);
            volume.commit(txn).await.expect("written");
        }
        assert!(Betr::made(&volume).await.expect("read"));
        let betr = Betr::open(volume.clone(), Options::default()).await.expect("opened");
        let directory = make(&betr, ROOT, b"directory", FileKind::Directory).await;
        betr.rename((ROOT, b"directory"), (ROOT, b"moved"), RenameMode::Replace).await.expect("moved");
        assert!(numbered(&betr, directory).await.is_ok(), "it is in memory");
        betr.forget(directory, 1).await;
        assert_eq!(numbered(&betr, directory).await.expect_err("it is not").errno, Errno::Stale);
        assert_eq!(volume.first(b"i", b"j", 1).await.expect("read").len(), 0, "none was written");
        assert_eq!(betr.audit().await.expect("audited").wrong, Vec::<String>::new());
        assert_eq!(Betr::repair(&volume, &[]).await.expect("nothing to do"), Vec::<String>::new());
    });
}
