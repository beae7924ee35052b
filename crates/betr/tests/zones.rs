//! Zones, files without names, and power cuts in moves of several transactions; with the negative control of each rule.

mod common;

use ashlar_betr::{Betr, Options, Rule, Zones};
use ashlar_block::Device;
use ashlar_devices::{PowerCut, Tearing};
use ashlar_env::Env;
use ashlar_pool::{Config, Creation, Pool};
use ashlar_units::{Blocks, Bytes};
use ashlar_vfs::{Errno, FileKind, FileSystem, Ino, ROOT, RenameMode, WriteMode};
use common::{node, simulate};
use std::sync::Arc;
use std::time::Duration;

const SMALL: Zones = Zones { smallest: Bytes(8 << 10), largest: Bytes(8 << 10), inline: Bytes(8 << 10) };

struct House {
    env: Env,
    device: Arc<PowerCut>,
    options: Options,
}

impl House {
    async fn build(env: &Env, zones: Zones, options: Options) -> House {
        let device = Arc::new(PowerCut::new(Blocks(64 << 10), env.clone(), Duration::from_micros(50)));
        let creation = Creation { segment: Some(Blocks(512)), force: false };
        Pool::create(env, &[device.clone() as Device], creation).await.expect("created");
        let house = House { env: env.clone(), device, options };
        let pool = house.pool().await;
        Betr::format(&pool.create_volume("v").await.expect("a volume"), 0, 0, zones).await.expect("formatted");
        pool.close().await.expect("closed");
        house
    }
    async fn pool(&self) -> Pool {
        Pool::open(&self.env, vec![self.device.clone() as Device], Config::default()).await.expect("opened")
    }
    async fn open(&self) -> (Pool, Arc<Betr>) {
        let pool = self.pool().await;
        let betr =
            Betr::open(pool.volume("v").expect("the volume"), self.options.clone()).await.expect("a file system");
        (pool, betr)
    }
    fn cut(&mut self) {
        self.device = Arc::new(self.device.after_cut(Tearing::ALL, self.env.clone()));
    }
}

/// Makes a directory with so many files of so many bytes.
async fn fill(betr: &Betr, name: &[u8], files: u64, len: usize) -> Ino {
    let directory = betr.mkdir(ROOT, name, node(FileKind::Directory)).await.expect("made").ino;
    for index in 0..files {
        let file =
            betr.create(directory, format!("file {index}").as_bytes(), node(FileKind::File)).await.expect("made");
        betr.write(file.ino, 0, vec![7; len].into(), WriteMode::default()).await.expect("written");
        betr.forget(file.ino, 1).await;
    }
    directory
}

async fn wrong(betr: &Betr) -> Vec<String> {
    betr.audit().await.expect("audited").wrong
}

#[test]
fn directories_become_zones_and_are_merged_again() {
    simulate(1, |env| async move {
        let house = House::build(&env, SMALL, Options::default()).await;
        let (_pool, betr) = house.open().await;
        let directory = fill(&betr, b"d", 100, 500).await;
        assert!(betr.counters().splits > 0, "100 files of 500 bytes are more than a zone may have");
        betr.syncfs().await.expect("synced");
        let audit = betr.audit().await.expect("audited");
        assert_eq!((audit.wrong, audit.entries), (Vec::<String>::new(), 101));
        assert!(audit.largest <= SMALL.largest.0, "{} bytes move with a directory", audit.largest);
        for index in 0..90 {
            betr.unlink(directory, format!("file {index}").as_bytes()).await.expect("removed");
        }
        betr.syncfs().await.expect("synced");
        assert_eq!(betr.counters().merges, 1, "what is left fits into the zone above");
        let audit = betr.audit().await.expect("audited");
        assert_eq!((audit.wrong, audit.entries, audit.zones), (Vec::<String>::new(), 11, 1));
    });
}

#[test]
fn what_is_deep_lies_in_several_zones() {
    simulate(2, |env| async move {
        let house = House::build(&env, Zones::default(), Options::default()).await;
        let (_pool, betr) = house.open().await;
        let mut all = vec![ROOT];
        for depth in 0..130 {
            let name = vec![b'n'; 1 + depth % 255];
            let parent = all[all.len() - 1];
            all.push(betr.mkdir(parent, &name, node(FileKind::Directory)).await.expect("made").ino);
        }
        betr.rename((all[3], b"nnnn"), (ROOT, b"moved"), RenameMode::Replace).await.expect("moved");
        let audit = betr.audit().await.expect("audited");
        assert_eq!(audit.wrong, Vec::<String>::new());
        assert!(audit.zones >= 4, "130 directories in each other are in {} zones", audit.zones);
        // Deep below deep.
        betr.rename((ROOT, b"moved"), (all[2], b"again"), RenameMode::Replace).await.expect("moved");
        assert_eq!(wrong(&betr).await, Vec::<String>::new());
    });
}

/// A file that is in use without a name, while the directory that held it moves.
async fn read_after_move(env: Env, without: Option<Rule>) -> Vec<u8> {
    let house = House::build(&env, Zones::default(), Options { without, ..Options::default() }).await;
    let (_pool, betr) = house.open().await;
    let directory = fill(&betr, b"d", 1, 100).await;
    let file = betr.lookup(directory, b"file 0").await.expect("there").ino;
    betr.unlink(directory, b"file 0").await.expect("removed");
    betr.rename((ROOT, b"d"), (ROOT, b"e"), RenameMode::Replace).await.expect("moved");
    let read = betr.read(file, 0, 1000).await.expect("read").concat();
    betr.forget(file, 1).await;
    if without.is_none() {
        assert_eq!(wrong(&betr).await, Vec::<String>::new());
    }
    read
}

#[test]
fn contents_without_a_name_survive_moves() {
    assert_eq!(simulate(3, |env| read_after_move(env, None)), vec![7; 100]);
    let broken = simulate(3, |env| read_after_move(env, Some(Rule::EvacuateBeforeMoving)));
    assert_ne!(broken, vec![7; 100], "nothing notices that the contents stayed behind");
}

#[test]
fn what_is_made_in_a_new_directory_is_found_at_once() {
    let found = |without| {
        simulate(8, move |env| async move {
            let house = House::build(&env, Zones::default(), Options { without, ..Options::default() }).await;
            let (_pool, betr) = house.open().await;
            let directory = fill(&betr, b"d", 3, 0).await;
            assert!(betr.lookup(directory, b"file 3").await.is_err_and(|error| error.errno == Errno::NotFound));
            // By all ways in which a name is given: made, linked, moved here, moved within.
            let file = betr.create(ROOT, b"above", node(FileKind::File)).await.expect("made").ino;
            betr.link(file, directory, b"linked").await.expect("linked");
            betr.rename((ROOT, b"above"), (directory, b"moved"), RenameMode::Replace).await.expect("moved");
            let mut names = vec!["file 0", "file 1", "file 2", "linked", "moved"];
            if without.is_none() {
                betr.rename((directory, b"file 0"), (directory, b"again"), RenameMode::Replace).await.expect("moved");
                names[0] = "again";
                assert!(betr.lookup(directory, b"file 0").await.is_err());
            }
            let mut found = 0;
            for name in &names {
                found += usize::from(betr.lookup(directory, name.as_bytes()).await.is_ok());
            }
            (found, names.len())
        })
    };
    assert_eq!(found(None), (5, 5));
    assert_eq!(found(Some(Rule::NoteNames)), (0, 5), "nothing notices that names are not noted");
}

/// A directory in use is removed, and another one gets its name, and with that its place.
#[test]
fn a_removed_directory_takes_nothing_of_its_successor() {
    simulate(4, |env| async move {
        let house = House::build(&env, Zones::default(), Options::default()).await;
        let (_pool, betr) = house.open().await;
        let above = fill(&betr, b"a", 0, 0).await;
        let old = betr.mkdir(above, b"d", node(FileKind::Directory)).await.expect("made").ino;
        betr.rmdir(above, b"d").await.expect("removed");
        let new = betr.mkdir(above, b"d", node(FileKind::Directory)).await.expect("made").ino;
        let file = betr.create(new, b"file", node(FileKind::File)).await.expect("made").ino;
        assert_eq!(betr.lookup(old, b"file").await.expect_err("nothing is in it").errno, Errno::NotFound);
        betr.rename((ROOT, b"a"), (ROOT, b"b"), RenameMode::Replace).await.expect("moved");
        assert_eq!(betr.lookup(new, b"file").await.expect("it has moved along").ino, file);
        assert_eq!(wrong(&betr).await, Vec::<String>::new());
        betr.forget(old, 1).await;
        assert_eq!(betr.lookup(new, b"file").await.expect("it is still there").ino, file);
        assert_eq!(wrong(&betr).await, Vec::<String>::new());
    });
}

/// A file in use lies where a removed directory was; a move to that place, of several transactions, fails for want of space.
#[test]
fn a_failed_move_takes_nothing_that_lay_there() {
    simulate(5, |env| async move {
        let zones = Zones { largest: Bytes(64 << 20), ..Zones::default() };
        let options = Options { part_len_max: 64 << 10, ..Options::default() };
        let house = House::build(&env, zones, options).await;
        let (pool, betr) = house.open().await;
        let directory = fill(&betr, b"t", 1, 100).await;
        let file = betr.lookup(directory, b"file 0").await.expect("there").ino;
        betr.unlink(directory, b"file 0").await.expect("removed");
        betr.rmdir(ROOT, b"t").await.expect("removed");
        let moving = betr.mkdir(ROOT, b"d", node(FileKind::Directory)).await.expect("made").ino;
        let noise = |len: usize| (0..len / 8).flat_map(|_| env.random().to_le_bytes()).collect::<Vec<u8>>();
        for index in 0..2000u64 {
            let file =
                betr.create(moving, format!("file {index}").as_bytes(), node(FileKind::File)).await.expect("made");
            betr.write(file.ino, 0, noise(8000).into(), WriteMode::default()).await.expect("written");
            betr.forget(file.ino, 1).await;
        }
        let large = betr.create(ROOT, b"large", node(FileKind::File)).await.expect("made").ino;
        let mut at = 0;
        // Room for half of what moves.
        while pool.status().free > 8 << 20 {
            betr.write(large, at, noise(1 << 20).into(), WriteMode::default()).await.expect("written");
            at += 1 << 20;
        }
        let moved = betr.rename((ROOT, b"d"), (ROOT, b"t"), RenameMode::Replace).await;
        assert_eq!(moved.expect_err("there is no room for a copy").errno, Errno::NoSpace);
        assert_eq!(betr.read(file, 0, 1000).await.expect("read").concat(), vec![7; 100]);
        betr.lookup(moving, b"file 1999").await.expect("it stayed");
        betr.forget(file, 1).await;
        betr.unlink(ROOT, b"large").await.expect("removed");
        pool.sync_all().await.expect("synced");
        assert_eq!(wrong(&betr).await, Vec::<String>::new());
    });
}

/// A file in use loses its name, and the power fails: what the audit says then.
async fn cut_with_an_orphan(env: Env, without: Option<Rule>) -> Vec<String> {
    let mut house = House::build(&env, Zones::default(), Options { without, ..Options::default() }).await;
    let (pool, betr) = house.open().await;
    let directory = fill(&betr, b"d", 2, 100).await;
    let file = betr.lookup(directory, b"file 0").await.expect("there").ino;
    betr.unlink(directory, b"file 0").await.expect("removed");
    betr.fsync(file, false).await.expect("synced");
    betr.syncfs().await.expect("synced");
    drop((pool, betr));
    house.cut();
    let (_pool, betr) = house.open().await;
    wrong(&betr).await
}

#[test]
fn what_had_no_name_is_forgotten_after_a_crash() {
    assert_eq!(simulate(4, |env| cut_with_an_orphan(env, None)), Vec::<String>::new());
    let broken = simulate(4, |env| cut_with_an_orphan(env, Some(Rule::NoteOrphans)));
    assert!(!broken.is_empty(), "nothing notices contents without a file");
}

/// The power fails at the `cut`th write of a move in several transactions; gives what is wrong afterwards.
async fn cut_in_a_move(env: Env, cut: u64, without: Option<Rule>) -> Vec<String> {
    let zones = Zones { largest: Bytes(4 << 20), ..Zones::default() };
    let options = Options { without, part_len_max: 64 << 10, ..Options::default() };
    let mut house = House::build(&env, zones, options).await;
    let (pool, betr) = house.open().await;
    fill(&betr, b"d", 100, 8000).await;
    betr.syncfs().await.expect("synced");
    house.device.cut_after(cut);
    let moved = betr.rename((ROOT, b"d"), (ROOT, b"e"), RenameMode::Replace).await;
    // Some of it is on the medium, some is not.
    let _ = betr.pool().sync_all().await;
    drop((pool, betr));
    house.cut();
    let (_pool, betr) = house.open().await;
    let mut wrong = wrong(&betr).await;
    let [old, new] = [betr.lookup(ROOT, b"d").await, betr.lookup(ROOT, b"e").await];
    let Some(directory) = old.as_ref().ok().xor(new.as_ref().ok()) else {
        wrong.push(format!("both names are there, or none; the move: {moved:?}"));
        return wrong;
    };
    for index in 0..100 {
        let name = format!("file {index}");
        let file = betr.lookup(directory.ino, name.as_bytes()).await.expect("there").ino;
        if betr.read(file, 0, 9000).await.expect("read").concat() != vec![7; 8000] {
            wrong.push(format!("{name} has changed"));
        }
    }
    wrong
}

#[test]
fn a_crash_in_a_move_leaves_all_or_nothing() {
    let mut noticed = 0;
    for cut in 0..12 {
        let wrong = simulate(cut, |env| cut_in_a_move(env, cut, None));
        assert_eq!(wrong, Vec::<String>::new(), "cut {cut}");
        noticed += u64::from(!simulate(cut, |env| cut_in_a_move(env, cut, Some(Rule::NoteBeforeBuilding))).is_empty());
    }
    assert!(noticed > 0, "nothing notices what an interrupted move leaves behind");
}

#[test]
fn small_overwrites_of_a_large_file_read_nothing_and_are_seen() {
    simulate(5, |env| async move {
        let house = House::build(&env, Zones::default(), Options::default()).await;
        let (pool, betr) = house.open().await;
        let file = betr.create(ROOT, b"large", node(FileKind::File)).await.expect("made").ino;
        let mut model: Vec<u8> = (0..2_000_000u32).map(|at| (at >> 7) as u8).collect();
        betr.write(file, 0, model.clone().into(), WriteMode::default()).await.expect("written");
        betr.syncfs().await.expect("synced");
        pool.checkpoint().await.expect("written");
        for _ in 0..500 {
            let at = (env.random() % (model.len() as u64 - 4)) as usize;
            let bytes = (env.random() as u32).to_le_bytes();
            model[at..at + 4].copy_from_slice(&bytes);
            betr.write(file, at as u64, bytes.to_vec().into(), WriteMode::default()).await.expect("written");
        }
        assert!(betr.read(file, 0, model.len()).await.expect("read").concat() == model, "bytes differ");
        assert_eq!(wrong(&betr).await, Vec::<String>::new());
        // The file has become a zone: it would take too long to move.
        assert_eq!(betr.counters().splits, 1);
        betr.unlink(ROOT, b"large").await.expect("removed");
        betr.forget(file, 1).await;
        assert_eq!(wrong(&betr).await, Vec::<String>::new());
    });
}
