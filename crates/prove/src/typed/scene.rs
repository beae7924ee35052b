//! The pool that is damaged: a bit of everything, snapshots, and a log that no superblock covers.

use super::disk::{Contents, Disk};
use super::matrix::Without;
use super::model::{Change, FS, Model, SNAPSHOT, VOLUME, perform};
use crate::files::tested::{Tested, text};
use crate::seeded::Dice;
use ashlar_block::{Device, Result};
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_pool::{Config, Creation, Pool, Region, Txn, Volume};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

pub(super) const CAPACITY: Blocks = Blocks(64 * 256 + 300);
const SEGMENT: Blocks = Blocks(256);
/// Entries of the large directory: its names fill several leaves of the index.
const ENTRIES: u64 = 1000;
/// Longer than the pool waits before it says in a quiet log what is durable.
const QUIET: Duration = Duration::from_secs(12);
/// Snapshots as the pool names them.
pub(super) const SNAPSHOTS: [&str; 2] = ["main@s", "v@s"];

pub(super) fn settings(without: Option<Without>) -> Config {
    let (unverified, parity) = (without == Some(Without::Checksums), without != Some(Without::Parity));
    Config { memory: Size::mib(8), log_bytes: Size::mib(8), unverified, parity, ..Config::default() }
}

/// A pool as a crash left it, and what must be in it.
pub(super) struct Scene {
    pub(super) contents: Arc<Contents>,
    /// What each block held before it was last written.
    pub(super) previous: Contents,
    pub(super) regions: Vec<Region>,
    pub(super) model: Model,
}

/// Bytes that compress, or do not.
pub(super) fn bytes(dice: &mut Dice, len: usize, compressible: bool) -> Bytes {
    if compressible {
        let word = dice.below(u64::MAX).to_be_bytes();
        return word.into_iter().cycle().enumerate().map(|(at, byte)| byte ^ (at / 64) as u8).take(len).collect();
    }
    std::iter::repeat_with(|| dice.below(u64::MAX).to_be_bytes()).flatten().take(len).collect()
}

/// Makes the pool, with a file system of this engine; the same one for the same seed.
pub(super) fn make<T: Tested>(seed: u64, without: Option<Without>) -> std::result::Result<Scene, String> {
    let sim = Sim::new(seed, Schedule::Random);
    let env = sim.env();
    let made = sim.run(async move { history::<T>(&env, seed, without).await });
    made.map_err(|_| "the history stands still".to_string())?.map_err(|error| format!("the history: {error}"))
}

async fn history<T: Tested>(env: &Env, seed: u64, without: Option<Without>) -> std::result::Result<Scene, String> {
    let mut dice = Dice::new(seed);
    let disk = Arc::new(Disk::new(CAPACITY));
    let devices: Vec<Device> = vec![disk.clone()];
    Pool::create(env, &devices, Creation { segment: Some(SEGMENT), force: false }).await.map_err(text)?;
    let pool = Pool::open(env, devices, settings(without)).await.map_err(text)?;
    let volume = pool.create_volume(VOLUME).await.map_err(text)?;
    let fs = pool.create_volume(FS).await.map_err(text)?;
    T::format(&fs, T::usual()).await?;
    let files = T::start(fs, T::usual()).await?;
    let mut model = Model::default();

    for change in first(&mut dice) {
        perform(&*files, &change).await.map_err(text)?;
        model.change(&change, true);
    }
    fill(&volume, &mut model, &mut dice, 0..40, 60).await.map_err(text)?;
    files.syncfs().await.map_err(text)?;
    pool.checkpoint().await.map_err(text)?;
    pool.create_snapshot(FS, SNAPSHOT).await.map_err(text)?;
    pool.create_snapshot(VOLUME, SNAPSHOT).await.map_err(text)?;
    model.settle();
    model.snapshot(SNAPSHOTS[0], SNAPSHOTS[1]);
    for change in second(&mut dice) {
        perform(&*files, &change).await.map_err(text)?;
        model.change(&change, true);
    }
    fill(&volume, &mut model, &mut dice, 10..30, 60).await.map_err(text)?;
    files.syncfs().await.map_err(text)?;
    pool.checkpoint().await.map_err(text)?;
    pool.clean().await.map_err(text)?;
    // What follows is in the log alone: in small batches, and one with more records than fit into its first block.
    for number in 0..6 {
        for change in logged(&mut dice, number) {
            perform(&*files, &change).await.map_err(text)?;
            model.change(&change, true);
        }
        fill(&volume, &mut model, &mut dice, 50 + number * 4..53 + number * 4, 3).await.map_err(text)?;
        files.syncfs().await.map_err(text)?;
    }
    model.settle();
    env.sleep(QUIET).await;
    let regions = pool.anatomy().await.map_err(text)?;
    let (contents, previous) = disk.contents();
    Ok(Scene { contents: Arc::new(contents), previous, regions, model })
}

/// Writes blocks, raw and compressed, and keys.
async fn fill(
    volume: &Volume,
    model: &mut Model,
    dice: &mut Dice,
    blocks: std::ops::Range<u64>,
    keys: u64,
) -> Result<()> {
    let mut txn = Txn::new();
    for at in blocks.step_by(4) {
        let data = bytes(dice, 3 * BLOCK_LEN, at % 8 == 0);
        volume.write(&mut txn, Lba(at * 3), &data);
        let pieces: Vec<Bytes> = (0..3).map(|part| data.slice(part * BLOCK_LEN..(part + 1) * BLOCK_LEN)).collect();
        model.write(at * 3, &pieces, true);
    }
    for _ in 0..keys {
        let key = [&b"key"[..], &dice.below(200).to_be_bytes()].concat();
        let value = bytes(dice, 100, false);
        volume.put(&mut txn, &key, value.clone());
        model.put(&key, value, true);
    }
    volume.commit(txn).await.map(|_| ())
}

/// What there is from the beginning.
fn first(dice: &mut Dice) -> Vec<Change> {
    let mut changes: Vec<Change> =
        ["/many", "/deep", "/deep/a", "/deep/a/b"].map(|path| Change::Mkdir(path.into())).into();
    let mut file = |path: String, at: u64, len: usize, compressible: bool| {
        changes.push(Change::Create(path.clone()));
        if len > 0 {
            changes.push(Change::Write(path, at, bytes(dice, len, compressible)));
        }
    };
    for number in 0..8usize {
        file(format!("/small{number}"), 0, 100 + number * 2500, true);
        file(format!("/raw{number}"), 0, 5000 + number * 9000, false);
    }
    file("/deep/a/b/file".into(), 0, 30_000, true);
    file("/sparse".into(), 200_000, 10_000, false);
    file("/large".into(), 0, (1 << 20) + 50_000, false);
    for number in 0..ENTRIES {
        file(format!("/many/a name of some length {number}"), 0, if number % 50 == 0 { 300 } else { 0 }, true);
    }
    changes.push(Change::Symlink("/deep/link".into(), "../many".into()));
    changes.push(Change::Copy("/raw3".into(), "/shared3".into()));
    changes.push(Change::Copy("/raw4".into(), "/shared4".into()));
    changes
}

/// What changes behind the snapshot.
fn second(dice: &mut Dice) -> Vec<Change> {
    let mut changes = Vec::new();
    for number in [1, 2, 5] {
        changes.push(Change::Write(format!("/raw{number}"), 4096, bytes(dice, 4096, false)));
        changes.push(Change::Cut(format!("/small{number}"), 1000));
    }
    changes.push(Change::Move("/deep/a/b/file".into(), "/moved".into()));
    for number in 0..ENTRIES / 10 {
        changes.push(Change::Remove(format!("/many/a name of some length {}", number * 10 + 3)));
    }
    changes
}

/// What is in the log.
fn logged(dice: &mut Dice, number: u64) -> Vec<Change> {
    let path = format!("/logged{number}");
    // The last two are more than the write-optimized engine keeps in the dictionary.
    let len = 3000 + if number < 4 { 7000 } else { 20_000 } * number as usize;
    let mut changes = vec![
        Change::Create(path.clone()),
        Change::Write(path, 0, bytes(dice, len, number.is_multiple_of(2))),
        Change::Write("/raw7".into(), number * 8192, bytes(dice, 5000, false)),
    ];
    let more = if number == 3 { 60 } else { 2 };
    changes.extend((0..more).map(|entry| Change::Create(format!("/many/logged {number} {entry}"))));
    changes
}
