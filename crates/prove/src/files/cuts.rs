//! Histories of the file system in process, with power cuts.
//!
//! A *life* is: open the pool, run a random history until the power fails at a random write or flush, reopen. The tree that
//! survives must be one that the model went through, not older than what was last synced; names and inodes must fit
//! together; the pool's check must find nothing.
//!
//! One life more has write-behind before the file system: every answer must agree all the same, and after a sync at its end
//! nothing may be missing.

use super::engine::Engine;
use super::generator::{Caller, Generator};
use super::history::{Found, Tally, examine, judge};
use super::model::Model;
use super::operation::{Op, Subject};
use super::tested::{BetrSetting, FilesSetting, OWNER, Tested, text};
use crate::pool::{Failure, nodes, run_history};
use ashlar_betr::Betr;
use ashlar_block::Device;
use ashlar_devices::{PowerCut, Tearing};
use ashlar_env::Env;
use ashlar_files::{Files, WriteBehind};
use ashlar_pool::{Config, Creation, Pool, Rule};
use ashlar_units::{Blocks, Bytes as Size};
use ashlar_vfs::{FileSystem, clear};
use std::sync::Arc;
use std::time::Duration;

const CAPACITY: Blocks = Blocks(40 * 256 + 300);
const SEGMENT: Blocks = Blocks(256);
/// Room that write-behind wants.
const ROOM: Size = Size(2 << 20);
/// Whom the files belong to.
const CALLER: Caller = Caller { uid: OWNER.0, gid: OWNER.1 };

/// How to explore.
#[derive(Clone, Copy, Debug)]
pub struct FilesOptions {
    /// Power cuts in one history.
    pub lives: u64,
    /// Operations in one life, at most.
    pub steps: u64,
    /// Bits of the name hash: few provoke collisions.
    pub hash_bits: u32,
    /// A rule to break.
    pub without: Option<Rule>,
    /// Write-behind lets everybody see what is pending as it was before: the exploration must notice.
    pub careless: bool,
    /// Whole trees are removed, too.
    pub trees: bool,
    /// Some small writes are made as the kernel's page cache makes them.
    pub pages: bool,
    /// The engine: the first one, or the write-optimized one so made and opened.
    pub betr: Option<BetrSetting>,
}

impl Default for FilesOptions {
    fn default() -> FilesOptions {
        FilesOptions {
            lives: 4,
            steps: 150,
            hash_bits: 55,
            without: None,
            careless: false,
            trees: true,
            pages: true,
            betr: None,
        }
    }
}

/// What a history came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesOutcome {
    /// Power cuts.
    pub cuts: u64,
    /// Operations whose results agreed.
    pub operations: u64,
    /// Operations among them that succeeded.
    pub succeeded: u64,
    /// Fingerprint of the run: the same seed gives the same.
    pub trace: u64,
}

/// Explores one history.
pub fn explore_files(seed: u64, options: FilesOptions) -> Result<FilesOutcome, Failure> {
    let (outcome, trace) = match options.betr {
        Some(setting) => run_history(seed, move |env| history::<Betr>(env, seed, options, setting))?,
        None => run_history(seed, move |env| history::<Files>(env, seed, options, FilesSetting(options.hash_bits)))?,
    };
    Ok(FilesOutcome { trace, ..outcome })
}

/// A pool on a device that can lose power, with a file system.
pub(super) struct House<F: Tested> {
    pub(super) env: Env,
    pub(super) device: Arc<PowerCut>,
    config: Config,
    setting: F::Setting,
}

impl<F: Tested> House<F> {
    pub(super) async fn build(env: &Env, memory: Size, setting: F::Setting, without: Option<Rule>) -> Found<House<F>> {
        let config = Config { memory, log_bytes: Size(2 << 20), without, ..Config::default() };
        let device = Arc::new(PowerCut::new(CAPACITY, env.clone(), Duration::from_micros(50)));
        let house = House { env: env.clone(), device, config, setting };
        Pool::create(env, &house.devices(), Creation { segment: Some(SEGMENT), force: false }).await.map_err(text)?;
        let pool = Pool::open(env, house.devices(), config).await.map_err(text)?;
        let volume = pool.create_volume("v").await.map_err(text)?;
        F::format(&volume, setting).await?;
        drop(volume);
        pool.close().await.map_err(text)?;
        Ok(house)
    }

    fn devices(&self) -> Vec<Device> {
        vec![self.device.clone() as Device]
    }

    pub(super) async fn open(&self) -> Found<(Pool, Arc<F>)> {
        let pool = Pool::open(&self.env, self.devices(), self.config).await.map_err(text)?;
        let volume = pool.volume("v").ok_or("the volume is gone")?;
        let files = F::start(volume, self.setting).await?;
        // As who mounts it does.
        let (kept, _) = clear::clear_waiting(&*files, &clear::Progress::default()).await.map_err(text)?;
        match kept.why {
            Some(error) => Err(format!("what was taken away cannot be removed: {error}")),
            None => Ok((pool, files)),
        }
    }

    /// The power fails, if it has not yet; the device then holds what it might.
    pub(super) fn cut(&mut self) {
        self.device = Arc::new(self.device.after_cut(Tearing::ALL, self.env.clone()));
    }
}

/// Names and inodes fit together, and the pool's accounts are exact.
pub(super) async fn check<F: Tested>(pool: &Pool, files: &F) -> Found<()> {
    let wrong = files.audit().await?;
    if !wrong.is_empty() {
        return Err(format!("the audit says {wrong:?}"));
    }
    let checked = pool.check(|_, _| {}).await.map_err(text)?;
    if !checked.damaged.is_empty() || !checked.miscounted.is_empty() {
        return Err(format!("check found {:?} {:?}", checked.damaged, checked.miscounted));
    }
    Ok(())
}

async fn history<F: Tested>(env: Env, seed: u64, options: FilesOptions, setting: F::Setting) -> Found<FilesOutcome> {
    let mut house = House::<F>::build(&env, Size(2 << 20), setting, options.without).await?;
    house.config.nodes = nodes(seed, 0);
    let mut model = Model::new(CALLER.uid, CALLER.gid);
    let mut generator = Generator::new(env.random(), CALLER).with_trees(options.trees);
    let (mut tally, mut cuts) = (Tally::default(), 0);
    for life in 0..options.lives {
        let in_life = |error: String| format!("life {life}: {error}");
        let (pool, files) = house.open().await.map_err(in_life)?;
        let mut engine = Engine::new(files.clone()).by_pages(options.pages);
        let clean = examine(&mut engine, &model, &mut Tally::default()).await;
        clean.map_err(|error| format!("life {life}, after a clean start: {error}"))?;
        house.device.cut_after(env.random() % (options.steps * 3));
        let work = Life { generator: &mut generator, engine: &mut engine, device: &house.device, tally: &mut tally };
        let past = work.run(model, options.steps).await.map_err(in_life)?;
        drop((engine, files, pool));
        house.cut();
        let (pool, files) = house.open().await.map_err(|error| format!("life {life}, after the cut: {error}"))?;
        let mut engine = Engine::new(files.clone());
        model = survivor(&mut engine, past).await.map_err(in_life)?;
        engine.close().await;
        check(&pool, &*files).await.map_err(in_life)?;
        cuts += 1;
        files.close().await?;
        let left = files.inodes_in_memory();
        if left > 1 {
            return Err(format!("life {life}: {left} inodes stay in memory, though nobody refers to them"));
        }
        drop((engine, files));
        pool.close().await.map_err(text)?;
    }
    let behind = life_behind(&mut house, model, &mut generator, options, &mut tally).await;
    behind.map_err(|error| format!("with write-behind: {error}"))?;
    Ok(FilesOutcome { cuts: cuts + 1, operations: tally.operations, succeeded: tally.succeeded, trace: 0 })
}

/// A life with write-behind, which ends with a sync and a power cut.
async fn life_behind<F: Tested>(
    house: &mut House<F>,
    mut model: Model,
    generator: &mut Generator,
    options: FilesOptions,
    tally: &mut Tally,
) -> Found<()> {
    let (pool, files) = house.open().await?;
    let behind = WriteBehind::new(house.env.clone(), files.clone()).with_room(ROOM);
    let behind = Arc::new(if options.careless { behind.careless() } else { behind });
    let mut engine = Engine::new(behind.clone());
    for step in 0..options.steps {
        let last = step + 1 == options.steps;
        let op = if last || generator.dice.one_in(32) { Op::Sync } else { generator.next(&model) };
        // The page cache writes to nothing but files.
        if matches!(op, Op::Write { .. }) && model.clone().apply(&op, None).is_err() {
            continue;
        }
        let got = engine.apply(&op).await;
        judge(&mut model, &op, &got)?;
        tally.operations += 1;
        tally.succeeded += u64::from(got.is_ok());
    }
    drop((engine, behind, files, pool));
    house.cut();
    let (pool, files) = house.open().await?;
    let mut engine = Engine::new(files.clone());
    survivor(&mut engine, Past { states: vec![model], durable: 0, synced: 0 }).await?;
    engine.close().await;
    check(&pool, &*files).await
}

/// What happened until a power cut.
pub(super) struct Past {
    /// Every state that may have been reached.
    pub(super) states: Vec<Model>,
    /// The first that may survive: an `fsync` makes all commits before it durable.
    pub(super) durable: usize,
    /// The last in which everything was synced, times among it: an `fsync` syncs those of its own file alone.
    pub(super) synced: usize,
}

/// The time from an opening to a power cut.
struct Life<'a, F> {
    generator: &'a mut Generator,
    engine: &'a mut Engine<F>,
    device: &'a PowerCut,
    tally: &'a mut Tally,
}

impl<F: FileSystem> Life<'_, F> {
    /// Works until the power fails.
    async fn run(self, start: Model, steps: u64) -> Found<Past> {
        let (mut states, mut durable, mut synced) = (vec![start], 0, 0);
        for _ in 0..steps {
            let mut model = states[states.len() - 1].clone();
            let op = if self.generator.dice.one_in(16) { Op::Sync } else { self.generator.next(&model) };
            let got = self.engine.apply(&op).await;
            if self.device.is_dead() {
                // Whatever happened in it, the power may have failed before it was durable, or after.
                let _ = model.apply(&op, None);
                states.push(model);
                break;
            }
            judge(&mut model, &op, &got)?;
            self.tally.operations += 1;
            self.tally.succeeded += u64::from(got.is_ok());
            match &op {
                Op::Sync => (durable, synced) = (states.len(), states.len()),
                Op::Fsync { of, .. } if got.is_ok() => {
                    let node = model.target(of).map_err(|error| format!("{error:?}"))?;
                    // What has no name is gone after a crash, so nothing need be written for it.
                    if model.nodes[node].links > 0 {
                        durable = durable.max(last_change(&states, node));
                    }
                }
                _ => {}
            }
            states.push(model);
        }
        Ok(Past { states, durable, synced })
    }
}

/// The newest state in which a node was changed.
fn last_change(states: &[Model], node: usize) -> usize {
    let of = |state: usize| states[state].nodes.get(node);
    let changed = |state: &usize| match (of(*state), of(state - 1)) {
        (Some(now), Some(before)) => !Arc::ptr_eq(now, before) && now != before,
        (now, _) => now.is_some(),
    };
    (1..states.len()).rev().find(changed).unwrap_or(0)
}

/// The newest state, not older than what is durable, that the file system holds.
pub(super) async fn survivor<F: FileSystem>(engine: &mut Engine<F>, past: Past) -> Found<Model> {
    let Past { states, durable, synced } = past;
    let mut story = String::new();
    for index in (durable..states.len()).rev() {
        let mut state = states[index].clone();
        state.forget_handles();
        state.forget_times(&states[synced..]);
        match examine(engine, &state, &mut Tally::default()).await {
            Ok(()) => return Ok(state),
            Err(error) => story += &format!("\n  state {index} of {}: {error}", states.len() - 1),
        }
    }
    Err(format!("no state from {durable} (the last synced) on survived:{story}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_agree_with_the_model_and_survive_power_cuts() {
        for seed in 0..30 {
            let hash_bits = if seed % 2 == 0 { 55 } else { 1 };
            let options = FilesOptions { hash_bits, ..FilesOptions::default() };
            explore_files(seed, options).unwrap_or_else(|failure| panic!("{failure:?}"));
        }
    }

    fn betr(seed: u64) -> FilesOptions {
        FilesOptions { betr: Some(BetrSetting::of_seed(seed)), ..FilesOptions::default() }
    }

    #[test]
    fn betr_agrees_with_the_model_and_survives_power_cuts() {
        for seed in 0..24 {
            explore_files(seed, betr(seed)).unwrap_or_else(|failure| panic!("{failure:?}"));
        }
    }

    /// A long exploration found it: a whiteout takes more than the name of a zone, so the directory that it is left in grows.
    #[test]
    fn a_whiteout_makes_its_directory_grow() {
        let seed = 78_000_704;
        explore_files(seed, betr(seed)).unwrap_or_else(|failure| panic!("{failure:?}"));
    }

    /// A long exploration found it: the times of an open file without a name are set and synced, after a directory was made.
    #[test]
    fn a_sync_of_what_has_no_name_promises_nothing() {
        let options = FilesOptions { hash_bits: 1, trees: false, pages: false, ..FilesOptions::default() };
        explore_files(1_795_526_719, options).unwrap_or_else(|failure| panic!("{failure:?}"));
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let run = || explore_files(7, FilesOptions { lives: 2, ..FilesOptions::default() });
        assert_eq!(run(), run());
    }

    #[test]
    fn a_broken_rule_is_noticed_through_files_too() {
        let options = FilesOptions { without: Some(Rule::FlushOnSync), ..FilesOptions::default() };
        assert!((0..50).any(|seed| explore_files(seed, options).is_err()), "nothing notices the missing flush");
    }

    #[test]
    fn reading_past_pending_writes_is_noticed() {
        let options = FilesOptions { lives: 0, careless: true, ..FilesOptions::default() };
        assert!((0..20).any(|seed| explore_files(seed, options).is_err()), "nothing notices what is pending");
    }
}
