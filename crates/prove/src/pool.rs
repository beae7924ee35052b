//! The pool under power cuts.
//!
//! A *life* is: open the pool, run random transactions, snapshots and cleaning beside a reader, until the power fails
//! at a random write or flush; then keep a random subset of what was not flushed, torn and reordered, reopen, and find
//! the state among those that the model went through. What was synced must be there; a transaction is there wholly or
//! not at all; snapshots never change; the accounts of live bytes are exact.

use ashlar_block::{BlockDevice, Device, Kind};
use ashlar_devices::{Power, PowerCut, Tearing};
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_pool::{Config, Creation, Limits, Pool, Rule, Txn, Volume, VolumeKind};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// A pool of 26 segments of 1 MiB: cleaning begins early and space must be given back exactly.
pub(crate) const CAPACITY: Blocks = Blocks(26 * 256 + 300);
pub(crate) const CREATION: Creation = Creation { segment: Some(Blocks(256)), force: false };
/// Blocks that histories touch.
pub(crate) const SPACE: u64 = 600;
/// Keys that histories touch.
pub(crate) const KEYS: u64 = 40;
/// What it grows by, and how far.
const CAPACITY_MORE: Blocks = Blocks(14 * 256 + 300);
const DEVICES_MAX: usize = 3;
/// A device that becomes larger by this much gives no segments.
const TOO_LITTLE: Blocks = Blocks(256);
const SNAPSHOTS_MAX: usize = 3;
const READERS: usize = 3;

/// Nodes so small that the index of so few keys has interior ones: with runs in their buffers, and without.
pub(crate) const SMALL_NODES: [Limits; 2] = [
    Limits { leaf_bytes: 1 << 10, buffer_bytes: 4 << 10, fanout: 4, runs: 4 },
    Limits { leaf_bytes: 1 << 10, buffer_bytes: 2 << 10, fanout: 4, runs: 0 },
];

/// How to explore.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Power cuts in one history.
    pub lives: u64,
    /// Transactions in one life, at most.
    pub steps: u64,
    /// A rule to break.
    pub without: Option<Rule>,
}

impl Default for Options {
    fn default() -> Options {
        Options { lives: 5, steps: 80, without: None }
    }
}

/// What a history came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Power cuts.
    pub cuts: u64,
    /// Transactions committed.
    pub commits: u64,
    /// Bytes that the cleaner moved.
    pub moved: u64,
    /// Snapshots verified after a cut.
    pub snapshots: u64,
    /// Fingerprint of the run: the same seed gives the same.
    pub trace: u64,
}

/// What a history found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed that replays it.
    pub seed: u64,
    /// What was wrong.
    pub what: String,
}

type Found<T> = Result<T, String>;

/// Block contents by the stamp that made them, dictionary values, and snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Model {
    pub blocks: BTreeMap<u64, u64>,
    pub keys: BTreeMap<u64, u64>,
}

/// The volume, and its snapshots by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct World {
    pub live: Model,
    pub snapshots: BTreeMap<String, Model>,
}

/// What a pool under test stands on.
pub(crate) trait Ground: Sync {
    /// A device to grow by, if there may be one more; `list` is called before it is used.
    fn more(&self) -> Option<(Device, Box<dyn FnOnce() + Send + '_>)>;
    /// Makes a device larger, if one may be. Whether it did.
    fn enlarge(&self) -> bool;
    /// No state before this one may survive from now on.
    fn promise(&self, state: usize);
}

/// Explores one history.
pub fn explore(seed: u64, options: Options) -> Result<Outcome, Failure> {
    let (outcome, trace) = run_history(seed, move |env| history(env, seed, options))?;
    Ok(Outcome { trace, ..outcome })
}

/// Runs a history in the simulated runtime, in any order; gives what it came to, and the run's fingerprint.
pub(crate) fn run_history<T: Send + 'static, F>(seed: u64, history: impl FnOnce(Env) -> F) -> Result<(T, u64), Failure>
where
    F: Future<Output = Found<T>> + Send + 'static,
{
    run_scheduled(seed, Schedule::Random, history)
}

/// The same under another schedule.
pub(crate) fn run_scheduled<T: Send + 'static, F>(
    seed: u64,
    schedule: Schedule,
    history: impl FnOnce(Env) -> F,
) -> Result<(T, u64), Failure>
where
    F: Future<Output = Found<T>> + Send + 'static,
{
    let sim = Sim::new(seed, schedule);
    let run = history(sim.env());
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sim.run(run)));
    let failed = |what: String| Failure { seed, what };
    match outcome {
        Ok(Ok(Ok(outcome))) => Ok((outcome, sim.trace().hash)),
        Ok(Ok(Err(what))) => Err(failed(what)),
        Ok(Err(deadlock)) => Err(failed(format!("deadlock: {deadlock:?}"))),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            Err(failed(format!("panic: {}", text.unwrap_or_default())))
        }
    }
}

/// With so little memory that nodes come and go.
pub(crate) fn config(without: Option<Rule>) -> Config {
    Config { memory: Size(2 << 20), log_bytes: Size(1 << 20), without, ..Config::default() }
}

/// Size of index nodes in a life: as usual with even seeds; with odd ones small, one life with runs, and one without.
pub(crate) fn nodes(seed: u64, life: u64) -> Option<Limits> {
    (seed % 2 == 1).then(|| SMALL_NODES[(life % 2) as usize])
}

async fn history(env: Env, seed: u64, options: Options) -> Found<Outcome> {
    let config = |life| Config { nodes: nodes(seed, life), ..config(options.without) };
    let text = |error: ashlar_block::Error| error.to_string();
    let mut media = vec![Arc::new(medium(CAPACITY, &env))];
    let devices = |media: &[Arc<PowerCut>]| media.iter().map(|medium| medium.clone() as Device).collect::<Vec<_>>();
    Pool::create(&env, &devices(&media), CREATION).await.map_err(text)?;
    let pool = Pool::open(&env, devices(&media), config(0)).await.map_err(text)?;
    pool.create_volume("v").await.map_err(text)?;
    pool.close().await.map_err(text)?;
    let mut world = World::default();
    let mut outcome = Outcome::default();
    for life in 0..options.lives {
        let pool = Pool::open(&env, devices(&media), config(life)).await.map_err(text)?;
        let volume = pool.volume("v").ok_or("the volume is gone")?;
        verify(&pool, &world).await.map_err(|error| format!("life {life}, after a clean start: {error}"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> =
            (0..READERS).map(|_| env.spawn(read_on(env.clone(), volume.clone(), stop.clone()))).collect();
        let cleaner = env.spawn(clean_on(env.clone(), pool.clone(), stop.clone()));
        let trimmer = env.spawn(trim_on(env.clone(), pool.clone(), stop.clone()));
        let power = media[0].power().clone();
        media[0].cut_after(env.random() % (options.steps * 4));
        let ground = Media { env: env.clone(), power, list: Mutex::new(media), promised: AtomicUsize::new(0) };
        let life_of = Life { env: &env, pool: &pool, volume: &volume, ground: &ground };
        let states = life_of.work(world.clone(), options.steps).await?;
        let durable = ground.promised.into_inner();
        media = ground.list.into_inner();
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            if let Some(error) = reader.await.filter(|_| !media[0].is_dead()) {
                return Err(format!("life {life}: a reader met {error}"));
            }
        }
        cleaner.await;
        trimmer.await;
        outcome.moved += pool.status().moved;
        outcome.commits += states.len() as u64 - 1;
        drop((pool, volume));
        let power = Power::default();
        let survivors = media.iter().map(|medium| medium.after_cut(Tearing::ALL, env.clone()).on(&power));
        media = survivors.map(Arc::new).collect();
        let pool = Pool::open(&env, devices(&media), config(life)).await;
        let pool = pool.map_err(|error| format!("life {life}, after the cut: {error}"))?;
        world = survivor(&pool, &states, durable).await.map_err(|error| format!("life {life}: {error}"))?;
        let checked = pool.check(|_, _| {}).await.map_err(text)?;
        if !checked.damaged.is_empty() || !checked.miscounted.is_empty() {
            return Err(format!("life {life}: check found {:?} {:?}", checked.damaged, checked.miscounted));
        }
        outcome.cuts += 1;
        outcome.snapshots += world.snapshots.len() as u64;
        pool.close().await.map_err(text)?;
    }
    Ok(outcome)
}

fn medium(capacity: Blocks, env: &Env) -> PowerCut {
    PowerCut::new(capacity, env.clone(), Duration::from_micros(50)).stumbling(
        500,
        0..=u64::MAX,
        Duration::from_millis(500),
    )
}

/// Devices that lose power together.
struct Media {
    env: Env,
    power: Power,
    /// As a list that survives the power cut has them.
    list: Mutex<Vec<Arc<PowerCut>>>,
    promised: AtomicUsize,
}

impl Ground for Media {
    fn more(&self) -> Option<(Device, Box<dyn FnOnce() + Send + '_>)> {
        if self.list.lock().len() >= DEVICES_MAX {
            return None;
        }
        let more = Arc::new(medium(CAPACITY_MORE, &self.env).on(&self.power));
        Some((more.clone(), Box::new(move || self.list.lock().push(more))))
    }
    fn enlarge(&self) -> bool {
        let list = self.list.lock();
        // At most one becomes much larger, so that pools still become full.
        let is_larger = |medium: &Arc<PowerCut>| BlockDevice::geometry(&**medium).capacity > CAPACITY + TOO_LITTLE;
        if list.iter().any(is_larger) {
            return false;
        }
        let by = if self.env.random().is_multiple_of(4) { TOO_LITTLE } else { CAPACITY_MORE };
        list[self.env.random() as usize % list.len()].enlarge(by);
        true
    }
    fn promise(&self, state: usize) {
        self.promised.store(state, Ordering::Relaxed);
    }
}

/// The newest state, not older than `durable`, that the pool holds.
async fn survivor(pool: &Pool, states: &[World], durable: usize) -> Found<World> {
    let mut story = String::new();
    for (index, state) in states.iter().enumerate().skip(durable).rev() {
        match verify(pool, state).await {
            Ok(()) => return Ok(state.clone()),
            Err(error) => story += &format!("\n  state {index} of {}: {error}", states.len() - 1),
        }
    }
    Err(format!("no state from {durable} (the last synced) on survived:{story}"))
}

async fn verify(pool: &Pool, world: &World) -> Found<()> {
    let volume = pool.volume("v").ok_or("the volume is gone")?;
    verify_volume(&volume, &world.live).await?;
    let snapshot = |info: &ashlar_pool::VolumeInfo| matches!(info.kind, VolumeKind::Snapshot { .. });
    let names: Vec<String> =
        pool.volumes().iter().filter(|info| snapshot(info)).map(|info| info.name.clone()).collect();
    let expected: Vec<String> = world.snapshots.keys().map(|name| format!("v@{name}")).collect();
    let (mut names, mut wanted) = (names, expected);
    names.sort_unstable();
    wanted.sort_unstable();
    if names != wanted {
        return Err(format!("there are snapshots {names:?} and not {wanted:?}"));
    }
    for (name, model) in &world.snapshots {
        let snapshot = pool.volume(&format!("v@{name}")).ok_or("the snapshot is gone")?;
        verify_volume(&snapshot, model).await.map_err(|error| format!("snapshot {name}: {error}"))?;
    }
    Ok(())
}

async fn verify_volume(volume: &Volume, model: &Model) -> Found<()> {
    let mut at = 0;
    let zeros = vec![0; BLOCK_LEN];
    for piece in volume.read(Lba(0), Blocks(SPACE)).await.map_err(|error| error.to_string())? {
        for bytes in piece.chunks(BLOCK_LEN) {
            let stamp = model.blocks.get(&at);
            let holds = stamp.map_or_else(|| bytes == zeros, |stamp| bytes == block(*stamp));
            if !holds {
                return Err(format!("block {at} does not hold {stamp:?}"));
            }
            at += 1;
        }
    }
    for key in 0..KEYS {
        let value = volume.get(&dictionary_key(key)).await.map_err(|error| error.to_string())?;
        let expected = model.keys.get(&key).map(|stamp| Bytes::copy_from_slice(&stamp.to_le_bytes()));
        if value != expected {
            return Err(format!("key {key} is {value:?} and not {expected:?}"));
        }
    }
    Ok(())
}

/// Reads until told to stop; gives the first error.
pub(crate) async fn read_on(env: Env, volume: Volume, stop: Arc<AtomicBool>) -> Option<String> {
    while !stop.load(Ordering::Relaxed) {
        let at = env.random() % SPACE;
        let count = (1 + env.random() % 64).min(SPACE - at);
        if let Err(error) = volume.read(Lba(at), Blocks(count)).await {
            return Some(error.to_string());
        }
        env.sleep(Duration::from_micros(env.random() % 300)).await;
    }
    None
}

/// Cleans now and then until told to stop.
pub(crate) async fn clean_on(env: Env, pool: Pool, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        env.sleep(Duration::from_micros(env.random() % 1000)).await;
        if pool.clean().await.is_err() {
            return;
        }
    }
}

/// Tells the device what is free now and then until told to stop.
async fn trim_on(env: Env, pool: Pool, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        env.sleep(Duration::from_micros(env.random() % 100_000)).await;
        if pool.trim(|_, _| {}).await.is_err() {
            return;
        }
    }
}

/// One block: a word repeated, or noise that does not compress.
pub(crate) fn block(stamp: u64) -> Vec<u8> {
    let mut word = stamp;
    (0..BLOCK_LEN / 8)
        .flat_map(|_| {
            if stamp.count_ones().is_multiple_of(2) {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            }
            word.to_le_bytes()
        })
        .collect()
}

pub(crate) fn dictionary_key(key: u64) -> Vec<u8> {
    [b"k".as_slice(), &key.to_be_bytes()].concat()
}

/// The time from an opening to a power cut.
pub(crate) struct Life<'a> {
    pub env: &'a Env,
    pub pool: &'a Pool,
    pub volume: &'a Volume,
    pub ground: &'a dyn Ground,
}

impl Life<'_> {
    fn chance(&self, one_in: u64) -> bool {
        self.env.random().is_multiple_of(one_in)
    }

    /// Works until the power fails, or for that many steps; gives every state that may have been reached.
    pub async fn work(&self, start: World, steps: u64) -> Found<Vec<World>> {
        let mut states = vec![start];
        for _ in 0..steps {
            let mut next = states.last().cloned().unwrap_or_default();
            if self.chance(24) {
                // Snapshots are durable when the call returns, with everything before them.
                let done = self.change_snapshots(&mut next).await;
                states.push(next);
                if done.is_err() {
                    break;
                }
                self.ground.promise(states.len() - 1);
                continue;
            }
            if self.chance(32) {
                // So are loads, and of one step they are there wholly or not at all.
                let loaded = self.load(&mut next.live).await;
                if matches!(&loaded, Err(error) if error.kind() == Kind::NoSpace) {
                    continue;
                }
                states.push(next);
                if loaded.is_err() {
                    break;
                }
                self.ground.promise(states.len() - 1);
                continue;
            }
            if self.chance(60)
                && let Some((more, list)) = self.ground.more()
            {
                let list = || {
                    list();
                    Ok(())
                };
                if self.pool.grow(more, false, list).await.is_err() {
                    break;
                }
            }
            if self.chance(60) && self.ground.enlarge() && self.pool.enlarge().await.is_err() {
                break;
            }
            let Ok(txn) = self.change(&mut next.live).await else { break };
            let committed = self.pool.commit(txn).await;
            if let Err(error) = &committed
                && error.kind() == Kind::NoSpace
            {
                if next.snapshots.is_empty() {
                    return Err(format!("the pool is full of nothing: {:?}", self.pool.status()));
                }
                let name = next.snapshots.keys().next().cloned().unwrap_or_default();
                let mut without = states.last().cloned().unwrap_or_default();
                without.snapshots.remove(&name);
                let destroyed = self.pool.destroy_snapshot(&format!("v@{name}")).await;
                states.push(without);
                if destroyed.is_err() {
                    break;
                }
                self.ground.promise(states.len() - 1);
                continue;
            }
            // A commit that failed otherwise may or may not have happened: the power failed in it.
            states.push(next);
            let Ok(seq) = committed else { break };
            if self.chance(4) {
                if self.pool.sync(seq).await.is_err() {
                    break;
                }
                self.ground.promise(states.len() - 1);
            }
            if self.chance(16) && self.pool.checkpoint().await.is_err() {
                break;
            }
        }
        Ok(states)
    }

    async fn change_snapshots(&self, world: &mut World) -> ashlar_block::Result<()> {
        if world.snapshots.len() >= SNAPSHOTS_MAX || (self.chance(2) && !world.snapshots.is_empty()) {
            let index = self.env.random() as usize % world.snapshots.len();
            let name = world.snapshots.keys().nth(index).cloned().unwrap_or_default();
            world.snapshots.remove(&name);
            return self.pool.destroy_snapshot(&format!("v@{name}")).await;
        }
        let name = format!("{:x}", self.env.random());
        world.snapshots.insert(name.clone(), world.live.clone());
        self.pool.create_snapshot("v", &name).await.map(drop)
    }

    /// Loads some keys in their order.
    async fn load(&self, model: &mut Model) -> ashlar_block::Result<()> {
        let (mut load, mut key) = (self.volume.load(), self.env.random() % KEYS);
        while key < KEYS {
            let stamp = self.env.random() << 16;
            load.put(&dictionary_key(key), stamp.to_le_bytes().to_vec()).await?;
            model.keys.insert(key, stamp);
            key += 1 + self.env.random() % 4;
        }
        load.finish().await
    }

    /// One random transaction; changes the model too.
    async fn change(&self, model: &mut Model) -> ashlar_block::Result<Txn> {
        let random = || self.env.random();
        let stamp = random() << 16;
        let mut txn = Txn::new();
        if self.chance(8) {
            // References are read from what is committed, so sharing comes first in its transaction.
            self.share(&mut txn, model).await?;
        }
        for _ in 0..1 + random() % 3 {
            let at = random() % SPACE;
            match random() % 8 {
                0..=3 => {
                    let count = (1 + random() % 70).min(SPACE - at);
                    let data: Vec<u8> = (at..at + count).flat_map(|at| block(stamp + at)).collect();
                    self.volume.write(&mut txn, Lba(at), &data.into());
                    (at..at + count).for_each(|at| _ = model.blocks.insert(at, stamp + at));
                }
                4 => {
                    let count = (1 + random() % 400).min(SPACE - at);
                    self.volume.discard(&mut txn, Lba(at), Blocks(count));
                    model.blocks.retain(|block, _| !(at..at + count).contains(block));
                }
                5 | 6 => {
                    let key = random() % KEYS;
                    self.volume.put(&mut txn, &dictionary_key(key), stamp.to_le_bytes().to_vec());
                    model.keys.insert(key, stamp);
                }
                _ => {
                    let (low, high) = (random() % KEYS, random() % KEYS);
                    if low < high {
                        self.volume.delete_range(&mut txn, &dictionary_key(low), &dictionary_key(high));
                        model.keys.retain(|key, _| !(low..high).contains(key));
                    }
                }
            }
        }
        Ok(txn)
    }

    async fn share(&self, txn: &mut Txn, model: &mut Model) -> ashlar_block::Result<()> {
        let random = || self.env.random();
        let (low, high) = (random() % (SPACE / 2), SPACE / 2 + random() % (SPACE / 2));
        let count = (1 + random() % 100).min(SPACE / 2 - low).min(SPACE - high);
        let (from, to) = if self.chance(2) { (low, high) } else { (high, low) };
        let remap = self.chance(2);
        if remap {
            self.volume.remap(txn, Lba(from), Lba(to), Blocks(count)).await?;
        } else {
            self.volume.share(txn, Lba(from), self.volume, Lba(to), Blocks(count)).await?;
        }
        // Give the cleaner a chance to come between.
        let longest = if self.chance(4) { 20_000 } else { 100 };
        self.env.sleep(Duration::from_micros(random() % longest)).await;
        for index in 0..count {
            let source = model.blocks.get(&(from + index)).copied();
            match source {
                Some(stamp) => _ = model.blocks.insert(to + index, stamp),
                None => _ = model.blocks.remove(&(to + index)),
            }
            if remap {
                model.blocks.remove(&(from + index));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_cuts_leave_a_prefix_that_holds_what_was_synced() {
        for seed in 0..30 {
            explore(seed, Options::default()).unwrap_or_else(|failure| panic!("{failure:?}"));
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let run = || explore(7, Options { lives: 2, ..Options::default() });
        assert_eq!(run(), run());
    }

    #[test]
    fn every_rule_is_missed_when_it_is_broken() {
        for (rule, name, _) in Rule::ALL {
            let options = Options { without: Some(rule), ..Options::default() };
            let found = (0..200).any(|seed| explore(seed, options).is_err());
            assert!(found, "nothing notices the absence of {name}");
        }
    }
}
