//! The proximal engine under power cuts.
//!
//! A *life* is: open the store, write, read, discard, flush, destage and take snapshots from several tasks at once, until the
//! power fails at a random write or flush of either device, or of both at one moment; then keep a random subset of what
//! was not flushed, torn and reordered, on each device by itself; reopen, and compare. In every fourth history the disk is an
//! array of five with all of its rules, whose members lose their power at one moment. Each block must hold what it held at
//! the last flush that covers it, or something that was written later; snapshots never change; the map of free blocks agrees
//! with all pointers.

use crate::pool::{Failure, run_history};
use crate::rack::Rack;
use ashlar_array::{Array, JOURNAL_MIN, Level};
use ashlar_block::Device;
use ashlar_devices::{Power, PowerCut};
use ashlar_env::Env;
use ashlar_proximal::{Config, Creation, Engine, Placement, Rule, Shape, Victims};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The disk: just large enough for the extents, the snapshots, and what is on its way.
const DATA: Blocks = Blocks(1300);
/// A member of an array of five that has about as much.
const MEMBER: Blocks = Blocks(2 + JOURNAL_MIN.0 + 6 * 64);
/// Staging: a pool of 26 segments of 1 MiB.
const STAGING: Blocks = Blocks(26 * 256 + 300);
const CREATION: Creation = Creation {
    shape: Shape { range: Blocks(16), area: 8, group: Blocks(64) },
    segment: Some(Blocks(256)),
    force: false,
};
/// Tasks; each writes to an extent of its own.
const TASKS: u32 = 3;
/// Blocks of an extent.
const LENGTH: u64 = 110;
const SNAPSHOTS_MAX: usize = 2;

/// How to explore.
#[derive(Clone, Copy, Debug)]
pub struct ProximalOptions {
    /// Power cuts in one history.
    pub lives: u64,
    /// Operations of a task in one life, at most.
    pub steps: u64,
    /// A rule to break.
    pub without: Option<Rule>,
}

impl Default for ProximalOptions {
    fn default() -> ProximalOptions {
        ProximalOptions { lives: 5, steps: 60, without: None }
    }
}

/// What a history came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProximalOutcome {
    /// Power cuts.
    pub cuts: u64,
    /// Operations that were acknowledged.
    pub operations: u64,
    /// Blocks that were destaged.
    pub moved: u64,
    /// Snapshots verified after a cut.
    pub snapshots: u64,
    /// Fingerprint of the run: the same seed gives the same.
    pub trace: u64,
}

/// Contents of a block by the stamp that wrote them; 0 is zeros.
type Stamp = u64;

/// What a block may hold.
#[derive(Clone, Debug)]
struct History {
    /// What it held, from the last flush that covers it on.
    stamps: Vec<Stamp>,
    /// How many of these are written by operations that returned.
    returned: usize,
}

/// Stamps of all blocks of an extent.
type Contents = BTreeMap<(u32, u64), Stamp>;

#[derive(Default)]
struct World {
    blocks: BTreeMap<(u32, u64), History>,
    snapshots: BTreeMap<String, Contents>,
    /// Snapshots that were being made or destroyed when the power failed: either is right.
    doubtful: Vec<String>,
}

/// Explores one history.
pub fn explore_proximal(seed: u64, options: ProximalOptions) -> Result<ProximalOutcome, Failure> {
    let (outcome, trace) = run_history(seed, move |env| history(env, seed, options))?;
    Ok(ProximalOutcome { trace, ..outcome })
}

fn config(seed: u64, without: Option<Rule>) -> Config {
    Config {
        small_max: Size::kib(32),
        staged_max: Some(Blocks(96)),
        memory: Size::mib(4),
        log_bytes: Size::mib(1),
        victims: if seed.is_multiple_of(3) { Victims::All } else { Victims::Densest },
        placement: if seed.is_multiple_of(2) { Placement::Own } else { Placement::Holes },
        without,
        ..Config::default()
    }
}

fn block(stamp: Stamp) -> Vec<u8> {
    if stamp == 0 {
        return vec![0; BLOCK_LEN];
    }
    (0..BLOCK_LEN as u64 / 8).flat_map(|word| (stamp.rotate_left(24) ^ word).to_le_bytes()).collect()
}

fn stamp(block: &[u8]) -> Stamp {
    let word = block.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
    word.rotate_right(24)
}

fn text(error: ashlar_block::Error) -> String {
    error.to_string()
}

async fn history(env: Env, seed: u64, options: ProximalOptions) -> Result<ProximalOutcome, String> {
    let config = config(seed, options.without);
    let arrayed = seed % 4 == 1;
    let mut data = if arrayed { Rack::new(&env, 5, MEMBER) } else { Rack::new(&env, 1, DATA) };
    let mut staging = Rack::new(&env, 1, STAGING);
    if arrayed {
        let creation =
            ashlar_array::Creation { level: Level::Raid4, unit: Blocks(7), journal: JOURNAL_MIN, force: false };
        Array::create(&env, &data.named(), creation, |_, _| ()).await.map_err(text)?;
    }
    Engine::create(&env, &device(&env, &data).await?, &device(&env, &staging).await?, CREATION).await.map_err(text)?;
    let open = async |data: &Rack, staging: &Rack| {
        let (disk, flash) = (device(&env, data).await?, device(&env, staging).await?);
        Engine::open(&env, disk, flash, config).await.map_err(text)
    };
    let engine = open(&data, &staging).await?;
    let mut world = World::default();
    for extent in 0..TASKS {
        engine.create_extent(extent, Blocks(LENGTH)).await.map_err(text)?;
        let empty = History { stamps: vec![0], returned: 1 };
        world.blocks.extend((0..LENGTH).map(|offset| ((extent, offset), empty.clone())));
    }
    engine.close().await.map_err(text)?;
    let mut outcome = ProximalOutcome::default();
    let stamps = Arc::new(AtomicU64::new(1));
    for life in 0..options.lives {
        let engine = open(&data, &staging).await?;
        // The power of either fails, or that of both at one moment.
        let fuse = env.random() % (options.steps * 12);
        match env.random().is_multiple_of(3) {
            true if arrayed => data.cut_after(None, fuse * 4),
            true => data.cut_after(None, fuse / 3),
            false => staging.cut_after(None, fuse),
        }
        let shared = Arc::new(Mutex::new(world));
        let tasks: Vec<_> = (0..TASKS)
            .map(|extent| {
                let task = Task {
                    env: env.clone(),
                    engine: engine.clone(),
                    world: shared.clone(),
                    stamps: stamps.clone(),
                    extent,
                    dead: [data.media[0].clone(), staging.media[0].clone()],
                };
                env.spawn(task.work(options.steps))
            })
            .collect();
        for task in tasks {
            outcome.operations += task.await.map_err(|error| format!("life {life}: {error}"))?;
        }
        outcome.moved += engine.status().moved;
        drop(engine);
        world = std::mem::take(&mut *shared.lock());
        // Devices that fail alone from now on have a power of their own.
        let power = Power::default();
        staging.after_cut(&power, None);
        data.after_cut(&if env.random().is_multiple_of(2) { Power::default() } else { power }, None);
        let engine = open(&data, &staging).await;
        let engine = engine.map_err(|error| format!("life {life}, after the cut: {error}"))?;
        verify(&engine, &mut world).await.map_err(|error| format!("life {life}, after the cut: {error}"))?;
        outcome.cuts += 1;
        outcome.snapshots += world.snapshots.len() as u64;
        engine.close().await.map_err(text)?;
    }
    Ok(outcome)
}

/// A medium, or the array on several.
async fn device(env: &Env, rack: &Rack) -> Result<Device, String> {
    Ok(match &rack.media[..] {
        [medium] => medium.clone(),
        _ => Arc::new(Array::open(env, rack.named(), 0, ashlar_array::Options::default()).await.map_err(text)?),
    })
}

/// Compares everything with what it may be; what is there becomes what must be there.
async fn verify(engine: &Engine, world: &mut World) -> Result<(), String> {
    let there = engine.snapshots();
    for name in std::mem::take(&mut world.doubtful) {
        let contents = world.snapshots.remove(&name);
        if there.contains(&name) {
            // If it is still there, it is whole.
            compare(engine, &name, &contents.unwrap_or_default()).await?;
            engine.destroy_snapshot(&name).await.map_err(text)?;
        }
    }
    let (mut there, mut expected) = (engine.snapshots(), world.snapshots.keys().cloned().collect::<Vec<_>>());
    there.sort_unstable();
    expected.sort_unstable();
    if there != expected {
        return Err(format!("there are snapshots {there:?} and not {expected:?}"));
    }
    for extent in 0..TASKS {
        let seen = engine.read(extent, 0, Blocks(LENGTH)).await.map_err(text)?;
        for (offset, seen) in (0..).zip(seen.chunks(BLOCK_LEN)) {
            let history = world.blocks.get_mut(&(extent, offset)).ok_or("a block outside")?;
            let found = stamp(seen);
            if seen != block(found) || !history.stamps.contains(&found) {
                let may = &history.stamps;
                return Err(format!("extent {extent}, block {offset} holds {found}, and may hold one of {may:?}"));
            }
            *history = History { stamps: vec![found], returned: 1 };
        }
    }
    for (name, contents) in &world.snapshots {
        compare(engine, name, contents).await?;
    }
    let checked = engine.check().await.map_err(text)?;
    if !checked.is_sound() {
        return Err(format!("the check found {checked:?}"));
    }
    Ok(())
}

/// Compares what is known of a snapshot with what it holds.
async fn compare(engine: &Engine, name: &str, contents: &Contents) -> Result<(), String> {
    let seen = snapshot(engine, name).await?;
    match contents.iter().find(|(at, stamp)| seen.get(at) != Some(stamp)) {
        Some((at, stamp)) => Err(format!("snapshot {name}: {at:?} holds {:?} and not {stamp}", seen.get(at))),
        None => Ok(()),
    }
}

async fn snapshot(engine: &Engine, name: &str) -> Result<Contents, String> {
    let mut contents = Contents::new();
    for extent in 0..TASKS {
        let seen = engine.read_snapshot(name, extent, 0, Blocks(LENGTH)).await.map_err(text)?;
        for (offset, seen) in (0..).zip(seen.chunks(BLOCK_LEN)) {
            if seen != block(stamp(seen)) {
                return Err(format!("snapshot {name}: extent {extent}, block {offset} is torn"));
            }
            contents.insert((extent, offset), stamp(seen));
        }
    }
    Ok(contents)
}

/// One of those that work at once.
struct Task {
    env: Env,
    engine: Engine,
    world: Arc<Mutex<World>>,
    stamps: Arc<AtomicU64>,
    extent: u32,
    dead: [Arc<PowerCut>; 2],
}

impl Task {
    /// Works until the power fails, or for that many steps; gives how many operations returned.
    async fn work(self, steps: u64) -> Result<u64, String> {
        for step in 0..steps {
            if let Err(error) = self.step().await {
                if self.dead.iter().any(|medium| medium.is_dead()) {
                    return Ok(step);
                }
                return Err(error);
            }
        }
        Ok(steps)
    }

    async fn step(&self) -> Result<(), String> {
        let random = || self.env.random();
        let at = if random().is_multiple_of(3) { random() % 12 } else { random() % LENGTH };
        match random() % 40 {
            0..20 => self.write(at, 1 + random() % 4).await,
            20..23 => self.write(at, 9 + random() % 40).await,
            23..25 => self.discard(at, 1 + random() % 30).await,
            25..30 => self.read(at, 1 + random() % 30).await,
            30..34 => self.flush().await,
            34..36 => self.engine.destage().await.map_err(text),
            36..38 if self.extent == 0 => self.change_snapshots().await,
            _ => {
                self.env.sleep(Duration::from_micros(random() % 500)).await;
                Ok(())
            }
        }
    }

    /// Notes what an operation writes, runs it, and notes that it returned.
    async fn change<F: Future<Output = ashlar_block::Result<()>>>(
        &self,
        at: u64,
        count: u64,
        of: impl Fn(u64) -> Stamp,
        operation: impl FnOnce(u64) -> F,
    ) -> Result<(), String> {
        let count = count.min(LENGTH - at);
        let each = |world: &mut World, what: &dyn Fn(u64, &mut History)| {
            for offset in at..at + count {
                world.blocks.get_mut(&(self.extent, offset)).into_iter().for_each(|history| what(offset, history));
            }
        };
        each(&mut self.world.lock(), &|offset, history| history.stamps.push(of(offset)));
        operation(count).await.map_err(text)?;
        each(&mut self.world.lock(), &|_, history| history.returned = history.stamps.len());
        Ok(())
    }

    async fn write(&self, at: u64, count: u64) -> Result<(), String> {
        let first = self.stamps.fetch_add(LENGTH, Ordering::Relaxed);
        let of = move |offset: u64| first + offset % LENGTH;
        self.change(at, count, of, |count| {
            let data: Vec<u8> = (at..at + count).flat_map(|offset| block(of(offset))).collect();
            self.engine.write(self.extent, at, vec![data.into()])
        })
        .await
    }

    async fn discard(&self, at: u64, count: u64) -> Result<(), String> {
        self.change(at, count, |_| 0, |count| self.engine.discard(self.extent, at, Blocks(count))).await
    }

    async fn read(&self, at: u64, count: u64) -> Result<(), String> {
        let count = count.min(LENGTH - at);
        let seen = self.engine.read(self.extent, at, Blocks(count)).await.map_err(text)?;
        for (offset, seen) in (at..).zip(seen.chunks(BLOCK_LEN)) {
            let last = self.world.lock().blocks.get(&(self.extent, offset)).and_then(|h| h.stamps.last().copied());
            if Some(stamp(seen)) != last || seen != block(stamp(seen)) {
                return Err(format!("extent {} block {offset} reads {} and not {last:?}", self.extent, stamp(seen)));
            }
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), String> {
        let covered: Vec<((u32, u64), Stamp)> = {
            let world = self.world.lock();
            let newest = |(at, history): (&(u32, u64), &History)| (*at, history.stamps[history.returned - 1]);
            world.blocks.iter().map(newest).collect()
        };
        self.engine.flush().await.map_err(text)?;
        self.cover(covered);
        Ok(())
    }

    /// What these blocks held before is never seen again.
    fn cover(&self, covered: Vec<((u32, u64), Stamp)>) {
        let mut world = self.world.lock();
        for (at, stamp) in covered {
            let Some(history) = world.blocks.get_mut(&at) else { continue };
            // Another flush may have covered more already. A discard may stand there several times.
            let returned = &history.stamps[..history.returned];
            if let Some(index) = returned.iter().position(|other| *other == stamp) {
                history.stamps.drain(..index);
                history.returned -= index;
            }
        }
    }

    async fn change_snapshots(&self) -> Result<(), String> {
        let names: Vec<String> = self.world.lock().snapshots.keys().cloned().collect();
        if names.len() >= SNAPSHOTS_MAX || !names.is_empty() && self.env.random().is_multiple_of(2) {
            let name = &names[self.env.random() as usize % names.len()];
            self.world.lock().doubtful.push(name.clone());
            self.engine.destroy_snapshot(name).await.map_err(text)?;
            let mut world = self.world.lock();
            world.snapshots.remove(name);
            world.doubtful.retain(|other| other != name);
            return Ok(());
        }
        let name = format!("s{:x}", self.stamps.fetch_add(LENGTH, Ordering::Relaxed));
        self.world.lock().doubtful.push(name.clone());
        self.engine.create_snapshot(&name).await.map_err(text)?;
        let contents = snapshot(&self.engine, &name).await?;
        let mut world = self.world.lock();
        world.doubtful.retain(|other| *other != name);
        world.snapshots.insert(name, contents);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_cuts_lose_nothing_that_was_flushed() {
        let mut all = ProximalOutcome::default();
        let seeds = std::env::var("ASHLAR_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(25);
        for seed in 0..seeds {
            let outcome = explore_proximal(seed, ProximalOptions::default());
            let outcome = outcome.unwrap_or_else(|failure| panic!("{failure:?}"));
            all.moved += outcome.moved;
            all.snapshots += outcome.snapshots;
        }
        assert!(all.moved > 1000 && all.snapshots > 10, "{all:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let run = || explore_proximal(7, ProximalOptions { lives: 2, ..ProximalOptions::default() });
        assert_eq!(run(), run());
    }

    #[test]
    fn every_rule_is_missed_when_it_is_broken() {
        for (rule, name, _) in Rule::ALL {
            let options = ProximalOptions { without: Some(rule), ..ProximalOptions::default() };
            let found = (0..200).find_map(|seed| explore_proximal(seed, options).err());
            println!("{name}: {found:?}");
            assert!(found.is_some(), "nothing notices the absence of {name}");
        }
    }
}
