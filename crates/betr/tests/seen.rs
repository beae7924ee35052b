//! What the page cache reads and writes back: only what differs is stored, and it is always right.

mod common;

use ashlar_betr::{Betr, Options, Rule, Zones};
use ashlar_block::{Checked, Device, Medium};
use ashlar_devices::Memory;
use ashlar_env::Env;
use ashlar_pool::{Compression, Config, Creation, Pool};
use ashlar_units::{Blocks, Bytes as Size};
use ashlar_vfs::{FallocateMode, FileKind, FileSystem, Ino, ROOT, RenameMode, SetAttr, WriteMode};
use common::{node, simulate};
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const PAGE: usize = 4096;

struct House {
    device: Arc<Checked>,
    pool: Pool,
    betr: Arc<Betr>,
}

async fn house(env: &Env, medium: Option<Medium>, memory: Size, options: Options) -> House {
    let device = Arc::new(Checked::new(Arc::new(Memory::new(Blocks(1 << 15))), env.clone()));
    let devices = vec![device.clone() as Device];
    Pool::create(env, &devices, Creation { segment: Some(Blocks(256)), force: false }).await.expect("created");
    let config = Config { compression: Compression::Off, medium, memory, scrub: false, ..Config::default() };
    let pool = Pool::open(env, devices, config).await.expect("opened");
    let volume = pool.create_volume("v").await.expect("a volume");
    Betr::format(&volume, 0, 0, Zones::default()).await.expect("formatted");
    let betr = Betr::open(volume, options).await.expect("a file system");
    House { device, pool, betr }
}

impl House {
    async fn close(self) {
        self.betr.close().await.expect("closed");
        drop(self.betr);
        self.pool.close().await.expect("closed");
    }
    fn written(&self) -> u64 {
        self.device.counters().written_bytes.load(Relaxed)
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Mostly zeros, and ones in whole parts, so that contents come again.
fn few(dice: &mut Pcg64Mcg, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 1024);
    while bytes.len() < len {
        let run = if dice.random_ratio(1, 20) { dice.random_range(1..600) } else { 256 * dice.random_range(1..4) };
        bytes.resize(bytes.len() + run, u8::from(dice.random_ratio(1, 8)));
    }
    bytes.truncate(len);
    bytes
}

async fn file(betr: &Betr, name: &[u8], contents: &[u8]) -> Ino {
    let ino = betr.create(ROOT, name, node(FileKind::File)).await.expect("made").ino;
    write(betr, ino, 0, contents).await;
    ino
}

async fn write(betr: &Betr, ino: Ino, at: usize, bytes: &[u8]) {
    betr.write(ino, at as u64, bytes.to_vec().into(), WriteMode::default()).await.expect("written");
}

async fn read(betr: &Betr, ino: Ino, at: usize, len: usize) -> Vec<u8> {
    betr.read(ino, at as u64, len).await.expect("read").concat()
}

/// Bytes that reach the device when 200 pages of a file were read, changed by four bytes each, and written whole.
fn overwrite(medium: Medium) -> u64 {
    simulate(1, move |env| async move {
        let house = house(&env, Some(medium), Size::mib(64), Options::default()).await;
        let mut contents = noise(1, 1000 * PAGE);
        let ino = file(&house.betr, b"large", &contents).await;
        house.betr.syncfs().await.expect("synced");
        house.pool.checkpoint().await.expect("a checkpoint");
        let before = house.written();
        // The page cache reads many before it writes any. With the first piece the file becomes a zone of its own.
        for at in (0..1000).step_by(5).map(|page| page * PAGE) {
            assert!(read(&house.betr, ino, at, PAGE).await == contents[at..at + PAGE]);
        }
        for at in (0..1000).step_by(5).map(|page| page * PAGE) {
            contents[at + 77..at + 81].copy_from_slice(&noise(at as u64, 4));
            write(&house.betr, ino, at, &contents[at..at + PAGE]).await;
        }
        house.betr.syncfs().await.expect("synced");
        let written = house.written() - before;
        assert!(read(&house.betr, ino, 0, contents.len()).await == contents);
        house.close().await;
        written
    })
}

#[test]
fn only_what_differs_is_stored_on_a_disk() {
    let (disk, flash) = (overwrite(Medium::Disk), overwrite(Medium::Flash));
    assert!(flash > 200 * PAGE as u64, "on flash a block is written anew: {flash} bytes");
    assert!(disk * 8 < flash, "{disk} bytes on a disk, {flash} on flash");
}

#[test]
fn a_copy_shares_blocks_under_the_pieces() {
    simulate(3, |env| async move {
        let house = house(&env, None, Size::mib(64), Options::default()).await;
        let mut contents = noise(3, 1000 * PAGE);
        let from = file(&house.betr, b"from", &contents).await;
        for page in (0..1000).step_by(5) {
            let at = page * PAGE;
            read(&house.betr, from, at, PAGE).await;
            contents[at + 2000] ^= 1;
            write(&house.betr, from, at, &contents[at..at + PAGE]).await;
        }
        let to = file(&house.betr, b"to", b"something").await;
        house.betr.syncfs().await.expect("synced");
        let (before, len) = (house.written(), contents.len() as u64);
        let mut done = 0;
        while done < len {
            let copied = house.betr.copy_range((from, done), (to, done), len - done).await.expect("copied");
            assert!(copied > 0, "after {done} bytes");
            done += copied;
        }
        house.betr.syncfs().await.expect("synced");
        let written = house.written() - before;
        assert!(written < 200 * PAGE as u64, "{written} bytes were written");
        assert!(read(&house.betr, to, 0, contents.len()).await == contents);
        house.close().await;
    });
}

/// Whether a page that is written whole is what was written, after its block changed behind the back of who had read it.
fn changed_behind(without: Option<Rule>) -> bool {
    simulate(2, move |env| async move {
        let house = house(&env, None, Size::mib(64), Options { without, ..Options::default() }).await;
        let mut contents = noise(2, 20 * PAGE);
        let ino = file(&house.betr, b"large", &contents).await;
        let mut right = true;
        for change in 0..3u64 {
            let at = 7 * PAGE;
            read(&house.betr, ino, at, PAGE).await;
            let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
            match change {
                0 => house.betr.fallocate(ino, at as u64, PAGE as u64, FallocateMode::Punch).await.expect("punched"),
                1 => {
                    house.betr.setattr(ino, size(at as u64)).await.expect("cut");
                    house.betr.setattr(ino, size(20 * PAGE as u64)).await.expect("grown");
                    contents[8 * PAGE..].fill(0);
                }
                _ => assert!(house.betr.copy_range((ino, 0), (ino, at as u64), PAGE as u64).await.expect("copied") > 0),
            }
            contents[at + 9] ^= 1;
            write(&house.betr, ino, at, &contents[at..at + PAGE]).await;
            right &= read(&house.betr, ino, 0, contents.len()).await == contents;
        }
        house.close().await;
        right
    })
}

#[test]
fn what_changed_in_another_way_is_not_compared() {
    assert!(changed_behind(None));
    assert!(!changed_behind(Some(Rule::ForgetChanged)), "the negative control");
}

/// Two files, with what they should hold.
struct Run {
    house: House,
    dice: Pcg64Mcg,
    files: [(Vec<u8>, Vec<u8>); 2],
    /// All that was read was what it should be.
    right: bool,
}

impl Run {
    fn at(&mut self, len: usize) -> usize {
        if len == 0 { 0 } else { self.dice.random_range(0..len) }
    }

    async fn find(&self, which: usize) -> Ino {
        self.house.betr.lookup(ROOT, &self.files[which].0).await.expect("there").ino
    }

    async fn step(&mut self) {
        let which = self.dice.random_range(0..2);
        let ino = self.find(which).await;
        let betr = self.house.betr.clone();
        let size = self.files[which].1.len();
        match self.dice.random_range(0..20) {
            // As the page cache does: some pages, changed in a place or two. Perhaps they were in it already.
            0..=8 if size > 0 => {
                let first = self.at(size) / PAGE * PAGE;
                let end = (first + self.dice.random_range(1..4) * PAGE).min(size);
                if self.dice.random_ratio(2, 3) {
                    self.right &= read(&betr, ino, first, end - first).await == self.files[which].1[first..end];
                }
                for _ in 0..self.dice.random_range(0..3) {
                    let at = (first + self.at(end - first)) / 256 * 256;
                    let to = (at + self.dice.random_range(1..4) * 300).min(end);
                    let new = few(&mut self.dice, to - at);
                    self.files[which].1[at..to].copy_from_slice(&new);
                }
                write(&betr, ino, first, &self.files[which].1[first..end]).await;
            }
            9 | 10 => {
                let (at, len) = (self.at(size + 5000), self.dice.random_range(1..20_000));
                let new = few(&mut self.dice, len);
                let contents = &mut self.files[which].1;
                contents.resize(size.max(at + len), 0);
                contents[at..at + len].copy_from_slice(&new);
                write(&betr, ino, at, &new).await;
            }
            11 => {
                let new = self.at(200_000);
                self.files[which].1.resize(new, 0);
                let change = SetAttr { size: Some(new as u64), ..SetAttr::default() };
                betr.setattr(ino, change).await.expect("resized");
            }
            12 | 13 if size > 0 => {
                let at = self.at(size);
                let end = (at + self.dice.random_range(1..30_000)).min(size);
                self.files[which].1[at..end].fill(0);
                let mode =
                    if self.dice.random() { FallocateMode::Punch } else { FallocateMode::Zero { keep_size: true } };
                betr.fallocate(ino, at as u64, (end - at) as u64, mode).await.expect("zeroed");
            }
            14 if size > 3 * PAGE => {
                let at = self.at(size - 2 * PAGE) / PAGE * PAGE;
                let (insert, range) = (self.dice.random(), at..at + PAGE);
                let mode = if insert { FallocateMode::Insert } else { FallocateMode::Collapse };
                betr.fallocate(ino, at as u64, PAGE as u64, mode).await.expect("shifted");
                let contents = &mut self.files[which].1;
                if insert { drop(contents.splice(at..at, vec![0; PAGE])) } else { drop(contents.drain(range)) }
            }
            15 if size > 0 => {
                let (from, to) = (self.at(size) / PAGE * PAGE, self.at(200_000) / PAGE * PAGE);
                let len = self.dice.random_range(1..50_000).min(size - from);
                let other = self.find(1 - which).await;
                let copied = betr.copy_range((ino, from as u64), (other, to as u64), len as u64).await.expect("copied");
                let bytes = self.files[which].1[from..from + copied as usize].to_vec();
                let target = &mut self.files[1 - which].1;
                target.resize(target.len().max(to + bytes.len()), 0);
                target[to..to + bytes.len()].copy_from_slice(&bytes);
                betr.forget(other, 1).await;
            }
            16 => {
                let new = format!("{:x}", self.dice.random::<u64>()).into_bytes();
                let from = self.files[which].0.clone();
                betr.rename((ROOT, &from), (ROOT, &new), RenameMode::Replace).await.expect("moved");
                self.files[which].0 = new;
            }
            17 => betr.fsync(ino, false).await.expect("durable"),
            // The inode leaves memory, and comes back.
            18 => {
                let held = if which == 0 { 1 } else { 0 };
                betr.syncfs().await.expect("synced");
                betr.forget(ino, 1 + held).await;
                betr.lookup(ROOT, &self.files[which].0).await.expect("there");
                if held == 1 {
                    betr.lookup(ROOT, &self.files[which].0).await.expect("there");
                }
            }
            _ => {
                let at = self.at(size + 10);
                let len = self.dice.random_range(1..40_000).min(size.saturating_sub(at));
                let at_most = at.min(size);
                self.right &= read(&betr, ino, at, len).await == self.files[which].1[at_most..at_most + len];
            }
        }
        betr.forget(ino, 1).await;
    }
}

/// Pages that are read and written back, and everything else that changes contents, beside what files should hold. Half of the runs have
/// little memory for the pool.
fn contents_are_right(seed: u64, without: Option<Rule>) -> bool {
    simulate(seed, move |env| async move {
        let memory = if seed.is_multiple_of(2) { Size::mib(64) } else { Size::mib(2) };
        // Some copies by reference take many transactions.
        let part_len_max = if seed.is_multiple_of(3) { 1 } else { Options::default().part_len_max };
        let house = house(&env, None, memory, Options { part_len_max, without, ..Options::default() }).await;
        let mut dice = Pcg64Mcg::seed_from_u64(seed);
        let files = [(b"one", 90_000), (b"two", 30_000)].map(|(name, len)| (name.to_vec(), few(&mut dice, len)));
        for (name, contents) in &files {
            let ino = file(&house.betr, name, contents).await;
            if name == b"two" {
                house.betr.forget(ino, 1).await;
            }
        }
        let mut run = Run { house, dice, files, right: true };
        for _ in 0..150 {
            run.step().await;
        }
        for which in 0..2 {
            let ino = run.find(which).await;
            run.right &= read(&run.house.betr, ino, 0, 1 << 20).await == run.files[which].1;
        }
        assert_eq!(run.house.betr.audit().await.expect("audited").wrong, Vec::<String>::new(), "seed {seed}");
        run.house.close().await;
        run.right
    })
}

#[test]
fn contents_are_what_was_written() {
    let wrong = (0..200).find(|seed| !contents_are_right(*seed, None));
    assert_eq!(wrong, None, "the seed of a run that read something else");
    assert!((0..20).any(|seed| !contents_are_right(seed, Some(Rule::ForgetChanged))), "the negative control");
}
