//! The region store under power cuts.
//!
//! A *life* is: open the store, let several tasks change objects of their own and one clean regions, until the power fails
//! at a random write or flush; keep a random subset of what was not flushed, torn and reordered; reopen; and find each
//! object in a state that it may have: not older than the last that was acknowledged as durable. A composition happened for
//! all its objects or for none. A version never comes back.

use crate::Failure;
use crate::pool::run_history;
use ashlar_block::{Device, Kind};
use ashlar_devices::{PowerCut, Tearing};
use ashlar_env::Env;
use ashlar_faults::{Fault, Faulty, Range, What};
use ashlar_objects::{
    At, Attributes, Change, Condition, Durability, Error, List, Name, Put, Stat, Store, Striped, checksum,
};
use ashlar_regions::{Config, Layout, Memory, Regions, Rule, format};
use ashlar_units::{Blocks, Bytes as Size};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A store of 29 regions of 256 KiB with large blocks of 16 KiB: they take and give up kinds all the time.
const CAPACITY: Blocks = Blocks(29 * 64 + 76);
/// What is left behind them, by seeds: room for tables that is large, so small that they go on in a region, or too small.
const TAILS: [Blocks; 3] = [Blocks(60), Blocks(18), Blocks(17)];
const CONFIG: Config = Config {
    region: Size::kib(256),
    large_block: Size::kib(16),
    object_mean: Size::kib(64),
    blocks_per_onode: 8,
    log: Size::kib(256),
    force: false,
};
const TASKS: u64 = 4;
/// Chance that a write into a region fails on a bad device.
const REFUSED_OFTEN: f64 = 0.3;
/// Names of each task.
const NAMES: u64 = 6;

/// How to explore.
#[derive(Clone, Copy, Debug)]
pub struct RegionOptions {
    /// Power cuts in one history.
    pub lives: u64,
    /// Changes of each task in one life, at most.
    pub steps: u64,
    /// A rule to break.
    pub without: Option<Rule>,
    /// Chance that a write into a region fails, in every third seed; in every fifteenth it is higher.
    pub refused: f64,
}

impl Default for RegionOptions {
    fn default() -> RegionOptions {
        RegionOptions { lives: 5, steps: 40, without: None, refused: 0.02 }
    }
}

/// What a history came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionOutcome {
    /// Power cuts.
    pub cuts: u64,
    /// Changes that were acknowledged.
    pub changes: u64,
    /// Objects that were found in a state that was not durable for sure.
    pub survived: u64,
    /// Writes that failed.
    pub refused: u64,
    /// Fingerprint of the run: the same seed gives the same.
    pub trace: u64,
}

type Found<T> = Result<T, String>;

/// An object in one state; `None`: there is none.
type State = Option<Content>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    data: Vec<u8>,
    attributes: Attributes,
    /// Known if the change was acknowledged.
    version: Option<u64>,
}

/// All states of an object in this life, in order.
#[derive(Clone, Debug, Default)]
struct History {
    states: Vec<State>,
    /// No state before this one may be found.
    durable: usize,
}

/// What happened to several objects at once: the state that each had from then on.
type Joint = Vec<(Name, usize)>;

#[derive(Default)]
struct World {
    objects: BTreeMap<Name, History>,
    joints: Vec<Joint>,
    /// Versions of each object that anybody saw.
    versions: BTreeSet<(Name, u64)>,
    stamp: u64,
    changes: u64,
}

/// Explores one history.
pub fn explore_regions(seed: u64, options: RegionOptions) -> Result<RegionOutcome, Failure> {
    let (outcome, trace) = run_history(seed, move |env| history(env, seed, options))?;
    Ok(RegionOutcome { trace, ..outcome })
}

async fn history(env: Env, seed: u64, options: RegionOptions) -> Found<RegionOutcome> {
    let text = |error: ashlar_block::Error| error.to_string();
    let capacity = capacity(seed);
    let mut medium = Arc::new(PowerCut::new(capacity, env.clone(), Duration::from_micros(50)));
    let device = |medium: &Arc<PowerCut>| medium.clone() as Device;
    format(&env, &device(&medium), CONFIG).await.map_err(text)?;
    // Some devices refuse so much that what they did of it all the same is met again.
    let chance = if seed.is_multiple_of(15) { REFUSED_OFTEN } else { options.refused };
    let refuses = seed.is_multiple_of(3).then_some(refusal(capacity, chance)?);
    let memory = Memory { bytes: Size::kib(512), without: options.without };
    let mut outcome = RegionOutcome::default();
    let mut world = World::default();
    for life in 0..options.lives {
        let faulty = Arc::new(Faulty::new(device(&medium), env.random(), env.clone()));
        let regions = Regions::open(&env, faulty.clone(), memory).await.map_err(text)?;
        let store = store_of(&env, &regions, seed).await?;
        verify(&store, &mut world).await.map_err(|error| format!("life {life}, after a clean start: {error}"))?;
        if let Some(fault) = refuses {
            faulty.inject(fault).map_err(text)?;
        }
        let shared = Arc::new(Mutex::new(std::mem::take(&mut world)));
        let dead = Arc::new(AtomicBool::new(false));
        medium.cut_after(env.random() % (options.steps * 8));
        let cleaner = env.spawn(clean_on(env.clone(), regions.clone(), dead.clone()));
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let life = Life { env: env.clone(), store: store.clone(), task, world: shared.clone() };
                env.spawn(life.work(options.steps))
            })
            .collect();
        for task in tasks {
            task.await.map_err(|error| format!("life {life}: {error}"))?;
        }
        dead.store(true, Ordering::Relaxed);
        cleaner.await;
        drop((store, regions));
        world = std::mem::take(&mut *shared.lock());
        outcome.changes += std::mem::take(&mut world.changes);
        medium = Arc::new(medium.after_cut(Tearing::ALL, env.clone()));
        let opened = Regions::open_with_report(&env, device(&medium), memory).await;
        let (regions, report) = opened.map_err(|error| format!("life {life}, after the cut: {error}"))?;
        outcome.refused += faulty.faults().iter().map(|fault| fault.injected).sum::<u64>();
        // Of heads that could not be written it says so.
        if refuses.is_none() && !report.damage.is_empty() {
            return Err(format!("life {life}: recovery found damage: {:?}", report.damage));
        }
        let store = store_of(&env, &regions, seed).await?;
        outcome.survived += verify(&store, &mut world).await.map_err(|error| format!("life {life}: {error}"))?;
        if refuses.is_some() {
            let mended = regions.check(None, true).await.map_err(|error| error.to_string())?;
            if !mended.lost.is_empty() || !mended.damaged.is_empty() {
                return Err(format!("life {life}: writes that failed have damaged objects: {mended:?}"));
            }
        }
        let found = regions.check(None, false).await.map_err(|error| error.to_string())?;
        if !found.is_clean() {
            return Err(format!("life {life}: check found {found:?}"));
        }
        outcome.cuts += 1;
        drop((store, regions));
    }
    Ok(outcome)
}

/// Blocks of the device of a history.
fn capacity(seed: u64) -> Blocks {
    Blocks(CAPACITY.0 + TAILS[(seed / 2 % TAILS.len() as u64) as usize].0)
}

/// Writes of objects, nodes and heads fail by chance, and are done all the same, or in part; those of what has no other place
/// do not.
fn refusal(capacity: Blocks, chance: f64) -> Found<Fault> {
    let layout = Layout::new(capacity, &CONFIG).map_err(|error| error.to_string())?;
    let behind = layout.region(layout.regions as u32).0 + layout.tail;
    let (from, end) = (layout.region(0).to_bytes(), Blocks(behind).to_bytes());
    let range = Range { start: from.0, end: Some(end.0) };
    Ok(Fault { what: What::WriteError, p: chance, on: None, at: Some(range), times: None })
}

/// The engine by itself, or under the layer for large objects.
async fn store_of(env: &Env, regions: &Regions, seed: u64) -> Found<Store> {
    let engine: Store = Arc::new(regions.clone());
    if seed.is_multiple_of(2) {
        return Ok(engine);
    }
    Ok(Arc::new(Striped::open(env, engine).await.map_err(|error| error.to_string())?))
}

/// Compares every object with what it may be, and keeps what it is. How many were newer than they had to be.
///
/// Under the layer for large objects, a small part of a composition that failed may have another version: it was brought into
/// the form of a large one before.
async fn verify(store: &Store, world: &mut World) -> Found<u64> {
    let layered = store.limits().object > CONFIG.large_block.0;
    let mut found: BTreeMap<Name, (Stat, Vec<u8>)> = BTreeMap::new();
    let mut from = Bound::Unbounded;
    loop {
        let page = store.list(List { prefix: Vec::new(), from, limit: 7 }).await.map_err(|error| error.to_string())?;
        for stat in page.objects {
            let object = store.get(&stat.name, 0..u64::MAX, Condition::Any).await.map_err(|error| error.to_string())?;
            if object.stat != stat || checksum(&object.data) != stat.checksum {
                return Err(format!("{} is listed as {stat:?} and read as {:?}", stat.name, object.stat));
            }
            found.insert(stat.name.clone(), (stat, object.data.concat()));
        }
        match found.keys().next_back() {
            Some(last) if page.more => from = Bound::Excluded(last.clone()),
            _ => break,
        }
    }
    if store.usage().objects != found.len() as u64 {
        return Err(format!("{} objects are counted, and {} listed", store.usage().objects, found.len()));
    }
    let mut at: BTreeMap<Name, BTreeSet<usize>> = BTreeMap::new();
    let mut survived = 0;
    for (name, history) in &world.objects {
        let now = found.get(name);
        let matches = |state: &State| match (state, now) {
            (None, None) => true,
            (Some(state), Some((stat, data))) => {
                state.data == *data
                    && state.attributes == stat.attributes
                    && (layered || state.version.is_none_or(|version| version == stat.version))
            }
            _ => false,
        };
        let may_be: BTreeSet<usize> =
            (history.durable..history.states.len()).filter(|index| matches(&history.states[*index])).collect();
        let Some(last) = may_be.last() else {
            let seen = now.map(|(stat, data)| (stat.version, data.len()));
            let older = history.states.iter().position(matches);
            return Err(format!(
                "{name} is {seen:?}, which is state {older:?}; states from {} to {} would be right",
                history.durable,
                history.states.len() - 1
            ));
        };
        survived += u64::from(*last > history.durable);
        at.insert(name.clone(), may_be);
    }
    if let Some(name) = found.keys().find(|name| !world.objects.contains_key(*name)) {
        return Err(format!("{name} is there, and was never made"));
    }
    for joint in &world.joints {
        let happened = |(name, from): &(Name, usize)| at.get(name).is_some_and(|at| at.iter().any(|at| at >= from));
        let missed = |(name, from): &(Name, usize)| at.get(name).is_some_and(|at| at.iter().any(|at| at < from));
        if !joint.iter().all(happened) && !joint.iter().all(missed) {
            return Err(format!("a composition happened in part: {joint:?} in {at:?}"));
        }
    }
    world.joints.clear();
    for (name, history) in &mut world.objects {
        let now = found.get(name);
        let state = now.map(|(stat, data)| Content {
            data: data.clone(),
            attributes: stat.attributes.clone(),
            version: Some(stat.version),
        });
        *history = History { states: vec![state], durable: 0 };
        world.versions.extend(now.map(|(stat, _)| (name.clone(), stat.version)));
    }
    Ok(survived)
}

/// Cleans a region now and then until told to stop.
async fn clean_on(env: Env, regions: Regions, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        env.sleep(Duration::from_micros(env.random() % 20_000)).await;
        let done = if env.random().is_multiple_of(2) {
            regions.clean((env.random() % 28) as u32).await.map(drop)
        } else {
            regions.checkpoint().await
        };
        // There may be one region less than that.
        if let Err(Error::Storage(error)) = done
            && error.kind() != Kind::Misuse
        {
            return;
        }
    }
}

/// One task from an opening to a power cut.
struct Life {
    env: Env,
    store: Store,
    task: u64,
    world: Arc<Mutex<World>>,
}

impl Life {
    fn chance(&self, one_in: u64) -> bool {
        self.env.random().is_multiple_of(one_in)
    }

    fn name(&self) -> Name {
        let name = format!("{}/{}", self.task, self.env.random() % NAMES);
        Name::new(name.into_bytes()).expect("a valid name")
    }

    /// Changes objects until the power fails, or for that many steps. An error is one that the contract does not allow.
    async fn work(self, steps: u64) -> Found<()> {
        for _ in 0..steps {
            if self.chance(12) {
                self.env.sleep(Duration::from_millis(self.env.random() % 1500)).await;
            }
            let going_on = match self.env.random() % 16 {
                0..7 => self.put().await?,
                7..9 => self.write().await?,
                9..12 => self.delete().await?,
                12..14 => self.compose().await?,
                14 => self.read().await?,
                _ => self.sync().await?,
            };
            if !going_on {
                break;
            }
        }
        Ok(())
    }

    fn durability(&self) -> Durability {
        if self.chance(2) { Durability::Sync } else { Durability::Async }
    }

    fn stamped(&self) -> (Vec<u8>, Attributes) {
        let stamp = {
            let mut world = self.world.lock();
            world.stamp += 1;
            world.stamp
        };
        let len = match self.env.random() % 8 {
            0 => 0,
            1..4 => self.env.random() % 6000,
            4..6 => 14_000 + self.env.random() % 2385,
            _ => self.env.random() % 16_385,
        };
        let data = (0..len).map(|at| (stamp.wrapping_mul(0x9e37_79b9) >> (at % 24)) as u8 ^ at as u8).collect();
        let long = if self.chance(6) { 6000 } else { 40 };
        let value = Bytes::from(vec![stamp as u8; (self.env.random() % long) as usize]);
        (data, Attributes::from([("stamp".into(), stamp.to_le_bytes().to_vec().into()), ("more".into(), value)]))
    }

    fn state(&self, name: &Name) -> State {
        let world = self.world.lock();
        world.objects.get(name).and_then(|history| history.states.last().cloned().flatten())
    }

    /// Notes that objects may be in new states from now on; gives their indices.
    fn begin(&self, states: Vec<(Name, State)>) -> Joint {
        let mut world = self.world.lock();
        let joint: Joint = states
            .into_iter()
            .map(|(name, state)| {
                let history =
                    world.objects.entry(name.clone()).or_insert_with(|| History { states: vec![None], durable: 0 });
                history.states.push(state);
                (name, history.states.len() - 1)
            })
            .collect();
        if joint.len() > 1 {
            world.joints.push(joint.clone());
        }
        joint
    }

    /// Notes what became of a change. Whether to go on.
    fn end(&self, joint: &Joint, durability: Durability, outcome: Result<Option<Stat>, Error>) -> Found<bool> {
        let mut world = self.world.lock();
        let stat = match outcome {
            Ok(stat) => stat,
            // Without room nothing happened.
            Err(Error::NoSpace | Error::TooLarge { .. }) => {
                for (name, _) in joint {
                    if let Some(history) = world.objects.get_mut(name) {
                        history.states.pop();
                    }
                }
                if joint.len() > 1 {
                    world.joints.retain(|other| other != joint);
                }
                return Ok(true);
            }
            // The power failed in it: it happened or not.
            Err(Error::Storage(error)) if matches!(error.kind(), Kind::Failed | Kind::Poisoned) => return Ok(false),
            Err(error) => return Err(error.to_string()),
        };
        world.changes += 1;
        if let Some(stat) = stat {
            if !world.versions.insert((stat.name.clone(), stat.version)) {
                return Err(format!("version {} of {} comes again", stat.version, stat.name));
            }
            let (name, index) = &joint[0];
            if let Some(Some(content)) = world.objects.get_mut(name).and_then(|history| history.states.get_mut(*index))
            {
                content.version = Some(stat.version);
            }
        }
        if durability == Durability::Sync {
            for (name, index) in joint {
                if let Some(history) = world.objects.get_mut(name) {
                    history.durable = history.durable.max(*index);
                }
            }
        }
        Ok(true)
    }

    async fn put(&self) -> Found<bool> {
        let (name, durability, (data, attributes)) = (self.name(), self.durability(), self.stamped());
        let content = Content { data: data.clone(), attributes: attributes.clone(), version: None };
        let joint = self.begin(vec![(name.clone(), Some(content))]);
        let change = Change { condition: Condition::Any, durability };
        let expected = self.chance(4).then_some(16_384);
        let outcome = self.store.put(&name, vec![data.into()], Put { change, expected, attributes }).await;
        self.end(&joint, durability, outcome.map(Some))
    }

    async fn write(&self) -> Found<bool> {
        let (name, durability) = (self.name(), self.durability());
        let Some(mut content) = self.state(&name) else { return Ok(true) };
        let (data, _) = self.stamped();
        let large = self.store.limits().object > 1 << 20;
        let at = self.env.random() as usize % (content.data.len() + 1);
        if data.is_empty() || !large && at + data.len() > 16_384 || content.data.len() > 200_000 {
            return Ok(true);
        }
        let end = content.data.len().max(at + data.len());
        content.data.resize(end, 0);
        content.data[at..at + data.len()].copy_from_slice(&data);
        content.version = None;
        let joint = self.begin(vec![(name.clone(), Some(content))]);
        let change = Change { condition: Condition::Present, durability };
        let outcome = self.store.write(&name, At::Offset(at as u64), vec![data.into()], change).await;
        self.end(&joint, durability, outcome.map(Some))
    }

    async fn delete(&self) -> Found<bool> {
        let (name, durability) = (self.name(), self.durability());
        if self.state(&name).is_none() {
            return Ok(true);
        }
        let joint = self.begin(vec![(name.clone(), None)]);
        let outcome = self.store.delete(&name, Change { condition: Condition::Any, durability }).await;
        self.end(&joint, durability, outcome.map(|()| None))
    }

    async fn compose(&self) -> Found<bool> {
        let (name, durability, (_, attributes)) = (self.name(), self.durability(), self.stamped());
        let (mut parts, mut data) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let part = self.name();
            if let Some(content) = self.state(&part).filter(|_| part != name && !parts.contains(&part)) {
                data.extend(content.data);
                parts.push(part);
            }
        }
        if parts.is_empty() || data.len() > 200_000 {
            return Ok(true);
        }
        let content = Content { data, attributes: attributes.clone(), version: None };
        let mut states = vec![(name.clone(), Some(content))];
        states.extend(parts.iter().map(|part| (part.clone(), None)));
        let joint = self.begin(states);
        let put = Put { change: Change { condition: Condition::Any, durability }, expected: None, attributes };
        let outcome = self.store.compose(&name, &parts, put).await;
        self.end(&joint, durability, outcome.map(Some))
    }

    async fn read(&self) -> Found<bool> {
        let name = self.name();
        let expected = self.state(&name);
        match (self.store.get(&name, 0..u64::MAX, Condition::Any).await, expected) {
            (Ok(object), Some(expected)) if object.data.concat() == expected.data => Ok(true),
            (Err(Error::NotFound(_)), None) => Ok(true),
            (Err(Error::Storage(error)), _) if matches!(error.kind(), Kind::Failed | Kind::Poisoned) => Ok(false),
            (seen, _) => Err(format!("{name} does not read as it was written: {:?}", seen.map(|object| object.stat))),
        }
    }

    async fn sync(&self) -> Found<bool> {
        let reached = |world: &World| -> BTreeMap<Name, usize> {
            world.objects.iter().map(|(name, history)| (name.clone(), history.states.len() - 1)).collect()
        };
        // Of other tasks' changes that are under way nothing is promised: theirs were begun, and may not have returned.
        let mine = format!("{}/", self.task).into_bytes();
        let before = reached(&self.world.lock());
        match self.store.sync().await {
            Ok(()) => {
                let mut world = self.world.lock();
                for (name, index) in before.into_iter().filter(|(name, _)| name.as_bytes().starts_with(&mine)) {
                    if let Some(history) = world.objects.get_mut(&name) {
                        history.durable = history.durable.max(index);
                    }
                }
                Ok(true)
            }
            Err(Error::NoSpace) => Ok(true),
            Err(Error::Storage(error)) if matches!(error.kind(), Kind::Failed | Kind::Poisoned) => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_region_store_survives_power_cuts() {
        let seeds = std::env::var("ASHLAR_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(24);
        let mut all = RegionOutcome::default();
        for seed in 0..seeds {
            let outcome = explore_regions(seed, RegionOptions::default()).unwrap_or_else(|Failure { what, .. }| {
                panic!("{what}\nreplay: ashlar prove regions --seed {seed} --budget 0s")
            });
            (all.cuts, all.changes) = (all.cuts + outcome.cuts, all.changes + outcome.changes);
            all.survived += outcome.survived;
            all.refused += outcome.refused;
        }
        assert!(all.refused > seeds / 4, "{all:?}");
        assert!(all.cuts == 5 * seeds && all.changes > 100 * seeds / 4 && all.survived > seeds / 4, "{all:?}");
    }

    #[test]
    fn devices_have_tails_of_all_kinds() {
        let of = |seed| Layout::new(capacity(seed), &CONFIG).expect("a layout");
        let layouts: Vec<(u64, u64)> = (0..6).map(|seed| (of(seed).regions, of(seed).tail)).collect();
        assert_eq!(layouts, [(29, 60), (29, 60), (29, 18), (29, 18), (29, 0), (29, 0)]);
    }

    /// A long exploration found it: whole pieces were written over pieces that the object still had, before it was changed.
    #[test]
    fn an_overwrite_that_is_cut_short_leaves_what_was_there() {
        let explored = explore_regions(1_795_600_179, RegionOptions::default());
        explored.unwrap_or_else(|failure| panic!("{failure:?}"));
    }

    /// The same: a region whose head could not be written lost a composition that had been committed before the checkpoint,
    /// one that only gave up copies was taken to hold what an older head had said, and one whose bitmaps could not be had
    /// counted what it had given up.
    #[test]
    fn a_head_that_is_damaged_costs_no_object() {
        for seed in [1_796_100_447, 1_796_400_267, 1_796_601_273] {
            explore_regions(seed, RegionOptions::default()).unwrap_or_else(|failure| panic!("{failure:?}"));
        }
    }

    /// The same, where one write of ten is refused: the slot of a copy that was given up was half written again.
    #[test]
    fn a_slot_that_was_half_written_again_counts_nothing() {
        let options = RegionOptions { refused: 0.1, ..RegionOptions::default() };
        for seed in [1584, 2478] {
            explore_regions(seed, options).unwrap_or_else(|failure| panic!("{failure:?}"));
        }
    }

    #[test]
    fn a_seed_gives_the_same_history() {
        let run = || explore_regions(3, RegionOptions::default()).expect("it holds");
        assert_eq!(run(), run());
    }

    #[test]
    fn every_rule_is_missed_when_it_is_broken() {
        for (rule, name, _) in Rule::ALL {
            let options = RegionOptions { without: Some(rule), ..RegionOptions::default() };
            let found = (0..300).find_map(|seed| explore_regions(seed, options).err());
            let Some(Failure { seed, what }) = found else { panic!("nothing notices that {name} is broken") };
            eprintln!("{name}: seed {seed}: {}", what.lines().next().unwrap_or_default());
        }
    }
}
