//! What operations cost the device (section 6 of the digest): checks 3, 5, 7, 9 and 10 of BetrFS 0.2, counted at the device.

mod common;
mod media;

use ashlar_betr::{Betr, Options, Zones};
use ashlar_block::{Checked, Device};
use ashlar_devices::Memory;
use ashlar_emulated::Emulated;
use ashlar_env::{Env, Instant};
use ashlar_models::ModelFile;
use ashlar_pool::{Compression, Config, Creation, Pool};
use ashlar_units::{Blocks, Bytes};
use ashlar_vfs::{DirEntry, FileKind, FileSystem, Ino, ROOT, RenameMode, WriteMode};
use common::{node, simulate};
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// What a disk did: requests and bytes, and how long it took, in virtual time.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    reads: u64,
    read: u64,
    writes: u64,
    written: u64,
    took: Duration,
}

struct House {
    env: Env,
    device: Arc<Checked>,
}

impl House {
    async fn build(env: &Env, capacity: u64, zones: Zones) -> House {
        let contents: Device = Arc::new(Memory::new(Blocks(capacity / 4096)));
        let model = ModelFile::preset("wd-re3").expect("a preset");
        let disk = Emulated::new(contents, &model, 0, env.clone()).expect("it fits");
        let device = Arc::new(Checked::new(Arc::new(disk), env.clone()));
        let house = House { env: env.clone(), device };
        let creation = Creation { segment: Some(Blocks(512)), force: false };
        Pool::create(env, &[house.device.clone() as Device], creation).await.expect("created");
        let pool = house.pool().await;
        Betr::format(&pool.create_volume("v").await.expect("a volume"), 0, 0, zones).await.expect("formatted");
        pool.close().await.expect("closed");
        house
    }
    async fn pool(&self) -> Pool {
        let config = Config { compression: Compression::Off, ..Config::default() };
        Pool::open(&self.env, vec![self.device.clone() as Device], config).await.expect("opened")
    }
    async fn open(&self) -> (Pool, Arc<Betr>) {
        let pool = self.pool().await;
        let betr = Betr::open(pool.volume("v").expect("the volume"), Options::default()).await.expect("a file system");
        (pool, betr)
    }
    /// What a scan of files with so many bytes takes when nothing is in memory.
    async fn scan_cold(&self, open: (Pool, Arc<Betr>), bytes: u64) -> Cost {
        self.close(open).await;
        let open = self.open().await;
        let before = self.cost();
        assert_eq!(scan(&open.1).await, bytes);
        let cost = self.since(before);
        self.close(open).await;
        cost
    }
    async fn close(&self, (pool, betr): (Pool, Arc<Betr>)) {
        betr.close().await.expect("closed");
        drop(betr);
        pool.close().await.expect("closed");
    }
    /// All that the device did until now.
    fn cost(&self) -> Cost {
        let counters = self.device.counters();
        let [reads, read] = [&counters.reads, &counters.read_bytes].map(|count| count.load(Relaxed));
        let [writes, written] = [&counters.writes, &counters.written_bytes].map(|count| count.load(Relaxed));
        Cost { reads, read, writes, written, took: self.env.now().since(Instant(0)) }
    }
    /// What it did since.
    fn since(&self, before: Cost) -> Cost {
        let now = self.cost();
        Cost {
            reads: now.reads - before.reads,
            read: now.read - before.read,
            writes: now.writes - before.writes,
            written: now.written - before.written,
            took: now.took - before.took,
        }
    }
}

/// Makes a file and writes so many bytes, a MiB at a time.
async fn make(betr: &Betr, parent: Ino, name: &str, len: u64) -> Ino {
    let file = betr.create(parent, name.as_bytes(), node(FileKind::File)).await.expect("made").ino;
    fill(betr, file, len).await;
    file
}

async fn fill(betr: &Betr, file: Ino, len: u64) {
    let mut at = 0;
    while at < len {
        let piece = MIB.min(len - at);
        // No two are alike, and nothing is there to compress.
        let mut data = vec![0; piece as usize];
        Pcg64Mcg::seed_from_u64(file << 32 | at).fill_bytes(&mut data);
        betr.write(file, at, data.into(), WriteMode::default()).await.expect("written");
        at += piece;
    }
}

#[test]
fn data_are_written_once() {
    let cost = simulate(1, |env| async move {
        let house = House::build(&env, 1 << 30, Zones::default()).await;
        let open = house.open().await;
        let before = house.cost();
        let file = make(&open.1, ROOT, "large", 256 * MIB).await;
        open.1.fsync(file, false).await.expect("durable");
        house.close(open).await;
        house.since(before)
    });
    let share = cost.written as f64 / (256 * MIB) as f64;
    assert!((1.0..1.05).contains(&share), "{share} bytes for each byte, the last checkpoint with them");
}

/// Of removing a file of so many bytes, when the file system was just opened: until it is durable, and until a checkpoint.
fn removing(len: u64) -> (Cost, Cost) {
    simulate(2, move |env| async move {
        let house = House::build(&env, 1 << 30, Zones::default()).await;
        let open = house.open().await;
        make(&open.1, ROOT, "large", len).await;
        house.close(open).await;
        let open = house.open().await;
        let before = house.cost();
        open.1.unlink(ROOT, b"large").await.expect("removed");
        open.1.syncfs().await.expect("durable");
        let durable = house.since(before);
        house.close(open).await;
        (durable, house.since(before))
    })
}

#[test]
fn removing_costs_the_same_whatever_the_size() {
    let (least, least_all) = removing(4 * MIB);
    for len in [16 * MIB, 64 * MIB, 256 * MIB] {
        let (durable, all) = removing(len);
        assert_eq!((durable.reads, durable.writes), (least.reads, least.writes), "{len} bytes: {durable:?}, {least:?}");
        assert!(all.took < 2 * least_all.took, "{len} bytes, with a checkpoint: {all:?}, {least_all:?}");
    }
}

#[test]
fn overwriting_a_file_reads_nothing_of_it() {
    let cost = simulate(3, |env| async move {
        let house = House::build(&env, 1 << 30, Zones::default()).await;
        let open = house.open().await;
        make(&open.1, ROOT, "large", 64 * MIB).await;
        house.close(open).await;
        let open = house.open().await;
        let file = open.1.lookup(ROOT, b"large").await.expect("there").ino;
        let before = house.cost();
        fill(&open.1, file, 64 * MIB).await;
        open.1.syncfs().await.expect("durable");
        let cost = house.since(before);
        house.close(open).await;
        cost
    });
    assert_eq!(cost.read, 0, "{cost:?}");
}

/// Of reading a file of 64 MiB on end, cold: after pages of it were read, changed by some bytes and written whole, as the page cache
/// does, and made durable.
fn reading_overwritten(pages: u64) -> Cost {
    simulate(8, move |env| async move {
        let house = House::build(&env, 1 << 30, Zones::default()).await;
        let open = house.open().await;
        let file = make(&open.1, ROOT, "large", 64 * MIB).await;
        open.1.fsync(file, false).await.expect("durable");
        let mut dice = Pcg64Mcg::seed_from_u64(8);
        for _ in 0..pages {
            let at = dice.random_range(0..64 * MIB / 4096) * 4096;
            let mut page = open.1.read(file, at, 4096).await.expect("read").concat();
            dice.fill_bytes(&mut page[1000..1004]);
            open.1.write(file, at, page.into(), WriteMode::default()).await.expect("written");
        }
        open.1.fsync(file, false).await.expect("durable");
        house.scan_cold(open, 64 * MIB).await
    })
}

#[test]
fn reading_a_file_takes_what_it_took_before_pages_of_it_were_changed() {
    let [clean, overwritten] = [0, 600].map(reading_overwritten);
    assert!(overwritten.took.mul_f64(0.95) < clean.took, "{overwritten:?}, of what is clean {clean:?}");
}

/// Lists and reads all that is below a directory, in the order in which it is listed; gives how many bytes there are.
async fn scan(betr: &Betr) -> u64 {
    let (mut directories, mut seen) = (vec![ROOT], 0);
    while let Some(directory) = directories.pop() {
        let (mut below, mut files) = (Vec::new(), Vec::new());
        let take = &mut |entry: DirEntry<'_>| {
            match entry.kind {
                _ if entry.name == b"." || entry.name == b".." => {}
                FileKind::Directory => below.push(entry.ino),
                _ => files.push(entry.ino),
            }
            true
        };
        betr.readdir(directory, 0, true, take).await.expect("listed");
        for file in files {
            let mut at = 0;
            while let Some(len) =
                Some(betr.read(file, at, 1 << 20).await.expect("read").concat().len()).filter(|len| *len > 0)
            {
                at += len as u64;
            }
            seen += at;
        }
        directories.extend(below.into_iter().rev());
    }
    seen
}

/// Directories in one of the root's, with files of 4,000 bytes, which are made by turns.
async fn fill_directories(betr: &Betr, directories: usize, files: usize) {
    let top = betr.mkdir(ROOT, b"top", node(FileKind::Directory)).await.expect("made").ino;
    let mut made = Vec::new();
    for directory in 0..directories {
        let name = format!("directory {directory}");
        made.push(betr.mkdir(top, name.as_bytes(), node(FileKind::Directory)).await.expect("made").ino);
    }
    for file in 0..files {
        for directory in &made {
            make(betr, *directory, &format!("file {file}"), 4000).await;
        }
    }
}

/// Cost of a scan, and of the dearest of some renames, of 100 directories with 20 files each, which were made by turns.
fn scan_and_rename(zone: u64) -> (Cost, Cost) {
    simulate(4, move |env| async move {
        let zones = Zones { smallest: Bytes(zone), largest: Bytes(zone), inline: Bytes(4 << 10) };
        let house = House::build(&env, 1 << 30, zones).await;
        let open = house.open().await;
        fill_directories(&open.1, 100, 20).await;
        assert_eq!(open.1.audit().await.expect("audited").wrong, Vec::<String>::new());
        let scan = house.scan_cold(open, 2000 * 4000).await;
        let mut dearest = Cost::default();
        for (parent, name) in [(None, "top"), (Some("top, moved"), "directory 7"), (Some("top, moved"), "directory 70")]
        {
            let open = house.open().await;
            let parent = match parent {
                Some(parent) => open.1.lookup(ROOT, parent.as_bytes()).await.expect("there").ino,
                None => ROOT,
            };
            let before = house.cost();
            let to = format!("{name}, moved");
            let (from, to) = ((parent, name.as_bytes()), (parent, to.as_bytes()));
            open.1.rename(from, to, RenameMode::Replace).await.expect("moved");
            open.1.syncfs().await.expect("durable");
            let cost = house.since(before);
            dearest = if cost.written > dearest.written { cost } else { dearest };
            house.close(open).await;
        }
        (scan, dearest)
    })
}

#[test]
fn a_scan_of_many_directories_reads_much_at_once() {
    let cost = simulate(4, async |env| {
        let house = House::build(&env, 1 << 30, Zones::default()).await;
        let open = house.open().await;
        fill_directories(&open.1, 400, 50).await;
        house.scan_cold(open, 20_000 * 4000).await
    });
    // All that there is, once, in requests of 400 KiB and more: reading ahead does not end with a node's children.
    assert!(cost.read < 90 * MIB && cost.read / cost.reads > 400 << 10, "{cost:?}");
}

/// Costs of making, durably and with a checkpoint, and of scanning 200 directories with 20 files each, one directory behind the
/// other, of lengths like those of the kernel's sources: half of them below 4,175 bytes, a tenth above 31,246.
fn sources(inline: u64) -> (Cost, Cost) {
    simulate(6, async move |env| {
        let house = House::build(&env, 1 << 30, Zones { inline: Bytes(inline), ..Zones::default() }).await;
        let open = house.open().await;
        let before = house.cost();
        let (mut random, mut bytes) = (Pcg64Mcg::seed_from_u64(6), 0);
        for directory in 0..200 {
            let name = format!("directory {directory}");
            let new = open.1.mkdir(ROOT, name.as_bytes(), node(FileKind::Directory)).await.expect("made").ino;
            for file in 0..20 {
                // The sum of twelve is nearly normal.
                let normal: f64 = (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
                let len = (4175.0 * (1.57 * normal).exp()).clamp(100.0, 900_000.0) as u64;
                make(&open.1, new, &format!("file {file}"), len).await;
                bytes += len;
            }
        }
        house.close(open).await;
        let made = house.since(before);
        let open = house.open().await;
        (made, house.scan_cold(open, bytes).await)
    })
}

#[test]
fn larger_files_in_the_dictionary_make_filling_dear_and_scans_little_cheaper() {
    let costs = [4, 16, 64, 128].map(|inline| (inline, sources(inline << 10)));
    let [least, default, more, most] = costs.map(|(_, (made, scan))| (made.written, scan.took));
    assert!(Zones::default().inline == Bytes(16 << 10) && default.0 * 10 < least.0 * 12, "{costs:?}");
    assert!(default.0 * 12 < more.0 * 10 && more.0 < most.0, "{costs:?}");
    // What is not in the dictionary is read ahead across files.
    assert!(least.1 < most.1 * 7 / 4 && default.1 < more.1 * 4 / 3, "{costs:?}");
}

/// Costs of listing all and reading it, and of reading it without listing, of 60 directories with 10 files of 100 to 300 KB each, which
/// lie in ranges of blocks.
fn larger_files() -> (Cost, Cost) {
    simulate(7, async |env| {
        let house = House::build(&env, 1 << 30, Zones::default()).await;
        let open = house.open().await;
        let (mut random, mut bytes, mut names) = (Pcg64Mcg::seed_from_u64(7), 0, Vec::new());
        for directory in 0..60 {
            let directory = format!("directory {directory}");
            let new = open.1.mkdir(ROOT, directory.as_bytes(), node(FileKind::Directory)).await.expect("made").ino;
            for file in 0..10 {
                let len = random.random_range(100_000..300_000);
                make(&open.1, new, &format!("file {file}"), len).await;
                names.push((directory.clone(), format!("file {file}")));
                bytes += len;
            }
        }
        let scanned = house.scan_cold(open, bytes).await;
        let open = house.open().await;
        let before = house.cost();
        names.sort_by_cached_key(|_| random.random::<u64>());
        for (directory, file) in names {
            let directory = open.1.lookup(ROOT, directory.as_bytes()).await.expect("there").ino;
            let file = open.1.lookup(directory, file.as_bytes()).await.expect("there").ino;
            bytes -= open.1.read(file, 0, 1 << 20).await.expect("read").concat().len() as u64;
        }
        assert_eq!(bytes, 0);
        let cost = house.since(before);
        house.close(open).await;
        (scanned, cost)
    })
}

#[test]
fn who_goes_through_a_tree_gets_the_next_files_ahead_and_nobody_else_does() {
    let (scanned, by_name) = larger_files();
    assert!(scanned.took * 2 < by_name.took, "{scanned:?} {by_name:?}");
    assert!(scanned.read < by_name.read * 11 / 10 && by_name.read < 140 * MIB, "{scanned:?} {by_name:?}");
}

#[test]
fn larger_zones_make_scans_cheap_and_renames_dear() {
    let all = 1 << 40;
    let costs = [4 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, all].map(|zone| (zone, scan_and_rename(zone)));
    let took = |index: usize| costs[index].1.0.took;
    assert!(took(0) > 3 * took(3), "a zone for each file: {costs:?}");
    assert!(took(1) > 2 * took(3), "and one for each directory: {costs:?}");
    assert!(took(3) < took(5).mul_f64(1.25), "from the default on little is left to gain: {costs:?}");
    // It took 116 ms while files were not read ahead across directories.
    assert!(took(2) < Duration::from_millis(116) && took(3) < Duration::from_millis(116), "{costs:?}");
    assert!(costs.is_sorted_by_key(|(_, (_, rename))| rename.written), "{costs:?}");
    for (zone, (_, rename)) in &costs[..5] {
        assert!(
            rename.written < 2 * zone + (16 << 10),
            "a move writes contents and names of a zone at most: {costs:?}"
        );
    }
    assert!(costs[5].1.1.written > 8 * MIB, "without zones all of it moves: {costs:?}");
}

#[test]
fn a_directory_of_blocks_becomes_a_zone_when_it_is_as_large_as_one() {
    // TokuBench makes directories of 128 files: of a block each they are as large as the largest zone, which is noticed up to an
    // eighth before.
    for (files, expected) in [(111, 0), (129, 4)] {
        let splits = simulate(5, move |env| async move {
            let house = House::build(&env, 1 << 30, Zones::default()).await;
            let open = house.open().await;
            for directory in 0..4 {
                let name = format!("directory {directory}");
                let new = open.1.mkdir(ROOT, name.as_bytes(), node(FileKind::Directory)).await.expect("made").ino;
                for file in 0..files {
                    make(&open.1, new, &format!("file {file}"), 4096).await;
                }
            }
            let splits = open.1.counters().splits;
            house.close(open).await;
            splits
        });
        assert_eq!(splits, expected, "4 directories of {files} files");
    }
}

/// The longest of so many lookups of a name in memory, one each ms, while one makes a file durable again and again, and another
/// moves a file or a directory there and back.
async fn lookups_beside(env: Env, moved: &'static str) -> (Duration, Duration, u64) {
    let house = House::build(&env, 1 << 30, Zones::default()).await;
    let (pool, betr) = house.open().await;
    let directory = betr.mkdir(ROOT, b"d", node(FileKind::Directory)).await.expect("made").ino;
    make(&betr, directory, "file", 3000).await;
    let synced = make(&betr, ROOT, "synced", 4096).await;
    betr.syncfs().await.expect("synced");
    let over = Arc::new(AtomicBool::new(false));
    let syncs = {
        let (betr, over) = (betr.clone(), over.clone());
        env.spawn(async move {
            let mut syncs = 0;
            while !over.load(Relaxed) {
                fill(&betr, synced, 4 * MIB).await;
                betr.fsync(synced, false).await.expect("durable");
                syncs += 1;
            }
            syncs
        })
    };
    let moves = {
        let (env, betr, over) = (env.clone(), betr.clone(), over.clone());
        env.clone().spawn(async move {
            let parent = if moved == "file" { directory } else { ROOT };
            // The first time, leaves are read.
            betr.lookup(parent, b"moved").await.expect_err("nothing has this name yet");
            let (mut from, mut to, mut longest) = (moved, "moved", Duration::ZERO);
            while !over.load(Relaxed) {
                let began = env.now();
                betr.rename((parent, from.as_bytes()), (parent, to.as_bytes()), RenameMode::NoReplace)
                    .await
                    .expect("moved");
                longest = longest.max(env.now().since(began));
                std::mem::swap(&mut from, &mut to);
                env.sleep(Duration::from_millis(1)).await;
            }
            longest
        })
    };
    let mut longest = Duration::ZERO;
    for _ in 0..500 {
        let began = env.now();
        betr.lookup(ROOT, b"synced").await.expect("there");
        longest = longest.max(env.now().since(began));
        env.sleep(Duration::from_millis(1)).await;
    }
    over.store(true, Relaxed);
    let (longest_move, syncs) = (moves.await, syncs.await);
    house.close((pool, betr)).await;
    (longest, longest_move, syncs)
}

#[test]
fn nobody_waits_for_a_flush_because_something_moves() {
    for moved in ["file", "d"] {
        let (lookup, rename, syncs) = simulate(3, move |env| lookups_beside(env, moved));
        println!("{moved} moved: a lookup took {lookup:?}, a move {rename:?}, while {syncs} flushes ended");
        assert!(syncs > 10);
        assert!(lookup.max(rename) < Duration::from_millis(1), "a lookup took {lookup:?}, a move {rename:?}");
    }
}
