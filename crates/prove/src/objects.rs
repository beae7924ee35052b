//! Objects on a pool under power cuts.
//!
//! A *life* is: open the store, change objects at random beside readers and the cleaner, until the power fails at a random
//! write or flush; then keep a random subset of what was not flushed, torn and reordered, reopen, and find the state among
//! those that the model went through, not older than the last that was promised. Names, contents, attributes and versions
//! must be those of the state; no block may be stored that is no object's; no version may be given out twice.
//!
//! The contents are on the pool, or in extents of a proximal store, whose disk and staging device lose their power alone or at
//! one moment, beside somebody who destages. In some histories the power fails before much is durable, or somebody else who has
//! something in the pool syncs it all the time ([`Course`]).

use crate::pool::{CAPACITY, CREATION, Failure, clean_on, config, run_history};
use crate::rack::Rack;
use ashlar_block::Device;
use ashlar_devices::Power;
use ashlar_env::Env;
use ashlar_objects::{
    At, Attributes, Change, Condition, Durability, Error, List, Name, Object, Put, Stat, Store, checksum,
};
use ashlar_objects_pool as objects_pool;
use ashlar_objects_pool::{Audit, Objects};
use ashlar_objects_proximal as objects_proximal;
use ashlar_pool::{Pool, Rule};
use ashlar_proximal as proximal;
use ashlar_units::{Blocks, Bytes as Size};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Names that histories touch.
const NAMES: u64 = 12;
const READERS: usize = 2;
const VOLUME: &str = "objects";
/// The disk of a proximal store.
const DISK: Blocks = Blocks(6000);

/// Where contents are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ground {
    /// On a volume of the pool.
    #[default]
    Pool,
    /// In extents of a proximal store.
    Proximal,
}

/// A rule to break: of the store, or of the pool below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectsRule {
    /// Of the store.
    Store(objects_pool::Rule),
    /// Of the pool.
    Pool(Rule),
    /// Of the proximal store.
    Proximal(proximal::Rule),
}

impl ObjectsRule {
    /// All rules that stores on this ground keep, with their names and what they say.
    pub fn all(ground: Ground) -> Vec<(ObjectsRule, &'static str, &'static str)> {
        let own = objects_pool::Rule::ALL.into_iter().map(|(rule, name, what)| (ObjectsRule::Store(rule), name, what));
        let pool = Rule::ALL.into_iter().map(|(rule, name, what)| (ObjectsRule::Pool(rule), name, what));
        let extents =
            proximal::Rule::ALL.into_iter().map(|(rule, name, what)| (ObjectsRule::Proximal(rule), name, what));
        match ground {
            Ground::Pool => own.chain(pool).collect(),
            Ground::Proximal => own.chain(extents).collect(),
        }
    }

    /// A rule by its name.
    pub fn named(ground: Ground, name: &str) -> Option<ObjectsRule> {
        ObjectsRule::all(ground).into_iter().find(|(_, known, _)| *known == name).map(|(rule, ..)| rule)
    }
}

/// How to explore.
#[derive(Clone, Copy, Debug)]
pub struct ObjectsOptions {
    /// Power cuts in one history.
    pub lives: u64,
    /// Changes in one life, at most.
    pub steps: u64,
    /// A rule to break.
    pub without: Option<ObjectsRule>,
    /// Where contents are.
    pub ground: Ground,
}

impl Default for ObjectsOptions {
    fn default() -> ObjectsOptions {
        ObjectsOptions { lives: 4, steps: 40, without: None, ground: Ground::Pool }
    }
}

/// What a history came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectsOutcome {
    /// Power cuts.
    pub cuts: u64,
    /// Changes that succeeded.
    pub changes: u64,
    /// Fingerprint of the run: the same seed gives the same.
    pub trace: u64,
}

type Found<T> = Result<T, String>;

/// An object of the model.
#[derive(Clone, Debug, PartialEq)]
struct Known {
    data: Arc<Vec<u8>>,
    attributes: Attributes,
    /// Not known of a change that was not answered.
    version: Option<u64>,
}

type World = BTreeMap<Name, Known>;

/// Explores one history.
///
/// # Errors
/// What was found.
pub fn explore_objects(seed: u64, options: ObjectsOptions) -> Result<ObjectsOutcome, Failure> {
    let (outcome, trace) = run_history(seed, move |env| history(env, seed, options))?;
    Ok(ObjectsOutcome { trace, ..outcome })
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// What is special about a history. Some situations are too rare in those that have nothing special.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Course {
    Plain,
    /// The power fails at one of the first writes of a life: changes were acknowledged, and nothing is durable.
    Early,
    /// Somebody else syncs the pool at any moment: also between two transactions of one change, if there are two.
    Synced,
}

/// Writes before an early power cut, at most.
const EARLY: u64 = 6;

impl Course {
    fn of(seed: u64) -> Course {
        [Course::Plain, Course::Early, Course::Plain, Course::Synced][(seed % 4) as usize]
    }
}

/// The media: that of the pool, and the disk of a proximal store.
struct Media {
    pool: Rack,
    disk: Option<Rack>,
}

impl Media {
    fn new(env: &Env, ground: Ground) -> Media {
        let disk = (ground == Ground::Proximal).then(|| Rack::new(env, 1, DISK));
        Media { pool: Rack::new(env, 1, CAPACITY), disk }
    }
    fn devices(&self) -> (Device, Option<Device>) {
        let first = |rack: &Rack| -> Device { rack.media[0].clone() };
        (first(&self.pool), self.disk.as_ref().map(first))
    }
    fn cut_after(&self, env: &Env, steps: u64, course: Course) {
        let within = |writes: u64| env.random() % if course == Course::Early { EARLY } else { writes };
        match &self.disk {
            Some(disk) if env.random().is_multiple_of(3) => disk.cut_after(None, within(steps * 3)),
            _ => self.pool.cut_after(None, within(steps * 5)),
        }
    }
    fn after_cut(&mut self, env: &Env) {
        let power = Power::default();
        self.pool.after_cut(&power, None);
        if let Some(disk) = &mut self.disk {
            // Both fail at one moment from now on, or each alone.
            disk.after_cut(&if env.random().is_multiple_of(2) { Power::default() } else { power }, None);
        }
    }
    fn is_dead(&self) -> bool {
        [Some(&self.pool), self.disk.as_ref()].into_iter().flatten().any(|rack| rack.media[0].is_dead())
    }
}

/// An open store, with what is below it.
struct Opened {
    store: Store,
    pool: Pool,
    engine: Option<proximal::Engine>,
}

async fn open(env: &Env, media: &Media, options: ObjectsOptions) -> Found<Opened> {
    let of_store = match options.without {
        Some(ObjectsRule::Store(rule)) => Some(rule),
        _ => None,
    };
    let settings = objects_pool::Options { without: of_store };
    let (device, disk) = media.devices();
    let Some(disk) = disk else {
        let of_pool = match options.without {
            Some(ObjectsRule::Pool(rule)) => Some(rule),
            _ => None,
        };
        let pool = Pool::open(env, vec![device], config(of_pool)).await.map_err(text)?;
        let volume = pool.volume(VOLUME).ok_or("the volume is gone")?;
        let objects = Objects::open(volume, "objects".into(), settings).await.map_err(text)?;
        return Ok(Opened { store: Arc::new(objects), pool, engine: None });
    };
    let of_extents = match options.without {
        Some(ObjectsRule::Proximal(rule)) => Some(rule),
        _ => None,
    };
    let config = proximal::Config {
        small_max: Size::kib(32),
        staged_max: Some(Blocks(160)),
        memory: Size::mib(4),
        log_bytes: Size::mib(1),
        without: of_extents,
        ..proximal::Config::default()
    };
    let opened = objects_proximal::open(env, (disk, device), config, "objects".into(), settings).await;
    let objects = opened.map_err(text)?;
    let engine = objects.contents().engine().clone();
    Ok(Opened { store: Arc::new(objects), pool: engine.pool().clone(), engine: Some(engine) })
}

impl Opened {
    async fn format(env: &Env, media: &Media) -> Found<()> {
        let (device, disk) = media.devices();
        if let Some(disk) = disk {
            let shape = proximal::Shape { range: Blocks(16), area: 8, group: Blocks(64) };
            let creation = proximal::Creation { shape, segment: CREATION.segment, force: false };
            return objects_proximal::format(env, &disk, &device, creation).await.map_err(text);
        }
        Pool::create(env, std::slice::from_ref(&device), CREATION).await.map_err(text)?;
        let pool = Pool::open(env, vec![device], config(None)).await.map_err(text)?;
        let volume = pool.create_volume(VOLUME).await.map_err(text)?;
        Objects::format(&volume).await.map_err(text)?;
        pool.close().await.map_err(text)
    }

    async fn audit(&self) -> Found<Audit> {
        let Some(engine) = &self.engine else {
            let volume = self.pool.volume(VOLUME).ok_or("the volume is gone")?;
            return objects_pool::audit(&volume).await.map_err(text);
        };
        let checked = engine.check().await.map_err(text)?;
        if !checked.is_sound() {
            return Err(format!("the check of the extents found {checked:?}"));
        }
        objects_proximal::audit(engine).await.map_err(text)
    }

    async fn close(self) -> Found<()> {
        drop(self.store);
        match self.engine {
            Some(engine) => engine.close().await.map_err(text),
            None => self.pool.close().await.map_err(text),
        }
    }
}

/// Destages now and then.
async fn destage_on(env: Env, engine: proximal::Engine, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        env.sleep(Duration::from_micros(env.random() % 3000)).await;
        if engine.destage().await.is_err() {
            return;
        }
    }
}

/// Syncs the pool now and then.
async fn sync_on(env: Env, pool: Pool, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        env.sleep(Duration::from_micros(env.random() % 300)).await;
        if pool.sync_all().await.is_err() {
            return;
        }
    }
}

async fn history(env: Env, seed: u64, options: ObjectsOptions) -> Found<ObjectsOutcome> {
    let course = Course::of(seed);
    let mut media = Media::new(&env, options.ground);
    Opened::format(&env, &media).await?;
    let (mut world, mut outcome) = (World::new(), ObjectsOutcome::default());
    let mut versions = BTreeSet::new();
    for life in 0..options.lives {
        let opened = open(&env, &media, options).await?;
        let stop = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> =
            (0..READERS).map(|_| env.spawn(read_on(env.clone(), opened.store.clone(), stop.clone()))).collect();
        let mut others = vec![env.spawn(clean_on(env.clone(), opened.pool.clone(), stop.clone()))];
        let engine = opened.engine.clone();
        others.extend(engine.map(|engine| env.spawn(destage_on(env.clone(), engine, stop.clone()))));
        if course == Course::Synced {
            others.push(env.spawn(sync_on(env.clone(), opened.pool.clone(), stop.clone())));
        }
        media.cut_after(&env, options.steps, course);
        let mut life_of =
            Life { env: &env, store: &opened.store, states: vec![world], durable: 0, versions: &mut versions };
        life_of.work(options.steps).await.map_err(|error| format!("life {life}: {error}"))?;
        let (states, durable) = (life_of.states, life_of.durable);
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            if let Some(error) = reader.await.filter(|_| !media.is_dead()) {
                return Err(format!("life {life}: a reader met {error}"));
            }
        }
        for other in others {
            other.await;
        }
        outcome.changes += states.len() as u64 - 1;
        drop(opened);
        media.after_cut(&env);
        let after = |error: String| format!("life {life}, after the cut: {error}");
        let opened = open(&env, &media, options).await.map_err(after)?;
        world = survivor(&opened.store, &states, durable).await.map_err(after)?;
        let audit = opened.audit().await.map_err(after)?;
        if !audit.wrong.is_empty() || audit.building > 0 {
            return Err(after(format!("{} places are being built; {:?}", audit.building, audit.wrong)));
        }
        let checked = opened.pool.check(|_, _| {}).await.map_err(text)?;
        if !checked.damaged.is_empty() || !checked.miscounted.is_empty() {
            return Err(after(format!("check found {:?} {:?}", checked.damaged, checked.miscounted)));
        }
        outcome.cuts += 1;
        opened.close().await?;
    }
    Ok(outcome)
}

/// The newest state, not older than `durable`, that the store holds; with the versions that it has.
async fn survivor(store: &Store, states: &[World], durable: usize) -> Found<World> {
    let mut there = World::new();
    let all = store.list(List { prefix: vec![], from: Bound::Unbounded, limit: 1000 }).await.map_err(text)?;
    for stat in all.objects {
        let object = store.get(&stat.name, 0..u64::MAX, Condition::Any).await.map_err(text)?;
        let data = object.data.concat();
        if checksum(&object.data) != stat.checksum || data.len() as u64 != stat.size {
            return Err(format!("{} is not what its description says", stat.name));
        }
        let known = Known { data: Arc::new(data), attributes: stat.attributes, version: Some(stat.version) };
        there.insert(stat.name, known);
    }
    let same = |state: &World| {
        let alike = |(known, found): (&Known, &Known)| {
            known.data == found.data
                && known.attributes == found.attributes
                && (known.version.is_none() || known.version == found.version)
        };
        state.keys().eq(there.keys()) && state.values().zip(there.values()).all(alike)
    };
    if states.iter().skip(durable).any(same) {
        return Ok(there);
    }
    let names: Vec<&Name> = there.keys().collect();
    Err(format!("no state from {durable} (the last promised) to {} survived; there are {names:?}", states.len() - 1))
}

/// Reads until told to stop; gives the first error, or what differs from its description.
async fn read_on(env: Env, store: Store, stop: Arc<AtomicBool>) -> Option<String> {
    while !stop.load(Ordering::Relaxed) {
        match store.get(&name(env.random() % NAMES), 0..u64::MAX, Condition::Any).await {
            Err(Error::NotFound(_)) => {}
            Err(error) => return Some(error.to_string()),
            Ok(Object { stat, data }) => {
                if checksum(&data) != stat.checksum {
                    return Some(format!("{} with other bytes than its description", stat.name));
                }
            }
        }
        env.sleep(Duration::from_micros(env.random() % 300)).await;
    }
    None
}

fn name(number: u64) -> Name {
    Name::new(format!("dir{}/{number}", number % 3).into_bytes()).expect("a valid name")
}

/// Noise, so that the pool cannot make it small.
fn contents(env: &Env) -> Vec<u8> {
    let len = match env.random() % 12 {
        0 => 0,
        1..8 => env.random() % 20_000,
        8..11 => env.random() % 300_000,
        _ => 900_000 + env.random() % 400_000,
    };
    let mut word = env.random();
    let mut next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (word >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// The time from an opening to a power cut.
struct Life<'a> {
    env: &'a Env,
    store: &'a Store,
    /// Every state that may have been reached.
    states: Vec<World>,
    /// No state before this one may survive.
    durable: usize,
    /// Of all objects, since the beginning.
    versions: &'a mut BTreeSet<u64>,
}

impl Life<'_> {
    fn chance(&self, one_in: u64) -> bool {
        self.env.random().is_multiple_of(one_in)
    }

    /// Changes objects until the power fails, or for that many steps.
    async fn work(&mut self, steps: u64) -> Found<()> {
        for _ in 0..steps {
            let mut next = self.states.last().cloned().unwrap_or_default();
            let durability = if self.chance(3) { Durability::Sync } else { Durability::Async };
            let done = self.change(&mut next, durability).await;
            if done == Err(Error::NoSpace) {
                if next.is_empty() {
                    return Err("the pool is full of nothing".into());
                }
                continue;
            }
            let changed = match done {
                Ok(stat) => stat,
                // It may have happened or not: the power failed in it.
                Err(Error::Storage(_)) => {
                    self.states.push(next);
                    return Ok(());
                }
                Err(error) => return Err(format!("a change was refused: {error}")),
            };
            if let Some(stat) = changed {
                if !self.versions.insert(stat.version) {
                    return Err(format!("version {} is given out again", stat.version));
                }
                if let Some(known) = next.get_mut(&stat.name) {
                    known.version = Some(stat.version);
                }
            }
            // Where there was nothing to change, nobody was asked to make anything durable.
            let asked = self.states.last() != Some(&next);
            self.states.push(next);
            if durability == Durability::Sync && asked {
                self.durable = self.states.len() - 1;
            }
            if self.chance(8) {
                if self.store.sync().await.is_err() {
                    return Ok(());
                }
                self.durable = self.states.len() - 1;
            }
        }
        Ok(())
    }

    /// One change, to the model too; what the changed object is, if there is one.
    async fn change(&self, world: &mut World, durability: Durability) -> Result<Option<Stat>, Error> {
        let change = Change { condition: Condition::Any, durability };
        let target = name(self.env.random() % NAMES);
        let there: Vec<Name> = world.keys().filter(|other| **other != target).cloned().collect();
        let attributes: Attributes =
            [("stamp".to_string(), Bytes::from(self.env.random().to_le_bytes().to_vec()))].into();
        let put = Put { change, expected: None, attributes: attributes.clone() };
        match self.env.random() % 10 {
            0..4 => {
                let data = contents(self.env);
                world.insert(target.clone(), Known { data: Arc::new(data.clone()), attributes, version: None });
                self.store.put(&target, vec![data.into()], put).await.map(Some)
            }
            4..6 if world.contains_key(&target) => {
                let data = contents(self.env);
                let known = world.get_mut(&target).expect("it is there");
                let mut whole = known.data.to_vec();
                let offset =
                    if self.chance(2) { whole.len() } else { self.env.random() as usize % (whole.len() + 9000) };
                if !data.is_empty() {
                    whole.resize(whole.len().max(offset + data.len()), 0);
                    whole[offset..offset + data.len()].copy_from_slice(&data);
                }
                (known.data, known.version) = (Arc::new(whole), None);
                self.store.write(&target, At::Offset(offset as u64), vec![data.into()], change).await.map(Some)
            }
            6 if world.contains_key(&target) => {
                let known = world.get_mut(&target).expect("it is there");
                (known.attributes, known.version) = (attributes.clone(), None);
                self.store.set_attributes(&target, attributes, change).await.map(Some)
            }
            7 if world.contains_key(&target) => {
                world.remove(&target);
                self.store.delete(&target, change).await.map(|()| None)
            }
            _ if there.len() > 1 => {
                let parts: Vec<Name> = there.into_iter().filter(|_| self.chance(3)).collect();
                let data = parts.iter().filter_map(|part| world.remove(part)).flat_map(|known| known.data.to_vec());
                let data: Vec<u8> = data.collect();
                world.insert(target.clone(), Known { data: Arc::new(data), attributes, version: None });
                self.store.compose(&target, &parts, put).await.map(Some)
            }
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_cuts_leave_a_state_that_holds_what_was_promised() {
        // Seed 20 has a full place that is followed by another.
        for (ground, seeds) in [(Ground::Pool, 0..12), (Ground::Proximal, 14..21)] {
            for seed in seeds {
                let outcome = explore_objects(seed, ObjectsOptions { ground, ..ObjectsOptions::default() });
                outcome.unwrap_or_else(|failure| panic!("{ground:?}: {failure:?}"));
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        for ground in [Ground::Pool, Ground::Proximal] {
            let run = || explore_objects(7, ObjectsOptions { lives: 2, ground, ..ObjectsOptions::default() });
            assert_eq!(run(), run());
        }
    }

    fn is_missed(rule: ObjectsRule, name: &str, ground: Ground) {
        let options = ObjectsOptions { without: Some(rule), ground, ..ObjectsOptions::default() };
        let found = (0..200).find_map(|seed| explore_objects(seed, options).err());
        println!("{ground:?}, {name}: {found:?}");
        assert!(found.is_some(), "{ground:?}: nothing notices the absence of {name}");
    }

    #[test]
    fn every_rule_of_the_store_is_missed_when_it_is_broken() {
        let rules = ObjectsRule::all(Ground::Pool).into_iter();
        for (rule, name, _) in rules.filter(|(rule, ..)| matches!(rule, ObjectsRule::Store(_))) {
            is_missed(rule, name, Ground::Pool);
        }
        is_missed(ObjectsRule::Pool(Rule::FlushOnSync), "flush-on-sync", Ground::Pool);
    }

    /// Those on which objects in extents depend in another way than objects on a pool, or than volumes; the others are of the same
    /// code, which the test above and `prove proximal` look at.
    #[test]
    fn rules_of_objects_in_extents_are_missed_when_they_are_broken() {
        for (rule, name) in [
            (ObjectsRule::Store(objects_pool::Rule::ChangeAtOnce), "change-at-once"),
            (ObjectsRule::Store(objects_pool::Rule::ListBuilding), "list-building"),
            (ObjectsRule::Store(objects_pool::Rule::ReserveVersions), "reserve-versions"),
            (ObjectsRule::Proximal(proximal::Rule::FlushDirect), "flush-direct"),
            (ObjectsRule::Proximal(proximal::Rule::DataBeforePointers), "data-before-pointers"),
        ] {
            is_missed(rule, name, Ground::Proximal);
        }
    }
}
