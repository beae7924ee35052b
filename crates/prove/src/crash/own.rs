//! Our own pool as the subject, in process and in virtual time.
//!
//! The workload is the random history of `crate::pool`: transactions, sharing, snapshots, checkpoints and cleaning beside
//! readers. A mark is the number of the state that was just promised to survive. An image holds if the pool opens, if the
//! volume and its snapshots are what the history had in one state from that number on, and if the pool's own check finds
//! nothing damaged and nothing miscounted.

use super::Stage;
use super::medium::{Medium, Record};
use crate::pool::{self, Ground, KEYS, Life, Model, SPACE, World};
use crate::seeded::Dice;
use ashlar_block::Device;
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_pool::{Config, Pool, Rule, Volume, VolumeKind};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use xxhash_rust::xxh3::xxh3_64;

/// Transactions of a history.
const STEPS: u64 = 120;
/// Dice of a history and of the cuts must not be the same.
const HISTORY: u64 = 0x5eed_0f0c;

/// What is wrong with an image, and who noticed.
type Verdict = Option<(Stage, String)>;

/// A history that was lived, and what may survive it.
pub(super) struct Own {
    without: Option<Rule>,
    states: Vec<World>,
    /// Contents of every block that was ever written, by their hash.
    stamps: Arc<HashMap<u64, u64>>,
}

struct Marking(Arc<Medium>);

impl Ground for Marking {
    fn more(&self) -> Option<(Device, Box<dyn FnOnce() + Send + '_>)> {
        None
    }
    fn enlarge(&self) -> bool {
        false
    }
    fn promise(&self, state: usize) {
        self.0.mark(&state.to_string());
    }
}

impl Own {
    /// Lives the history of `seed`, with a rule broken if one is named.
    pub(super) fn live(
        seed: u64,
        without: Option<Rule>,
        drop_flushes: bool,
    ) -> Result<(Record, Arc<Medium>, Own), String> {
        let sim = Sim::new(Dice::new(seed ^ HISTORY).below(u64::MAX), Schedule::Random);
        let env = sim.env();
        let medium = Arc::new(Medium::new(pool::CAPACITY, !drop_flushes).paced(env.clone()));
        let history = history(env, medium.clone(), without);
        let lived = sim.run(history).map_err(|deadlock| format!("seed {seed}: deadlock: {deadlock:?}"))?;
        let states = lived.map_err(|error| format!("seed {seed}, before any power cut: {error}"))?;
        let record = medium.recorded()?;
        let mut stamps = HashMap::new();
        for stamp in states.iter().flat_map(|state| state.live.blocks.values()) {
            stamps.entry(xxh3_64(&pool::block(*stamp))).or_insert(*stamp);
        }
        Ok((record, Arc::new(Medium::new(pool::CAPACITY, true)), Own { without, states, stamps: Arc::new(stamps) }))
    }

    /// Opens the image that `medium` holds.
    pub(super) fn judge(&self, medium: &Arc<Medium>, marks: &[&str]) -> Result<Verdict, String> {
        let promised = marks.last().and_then(|mark| mark.parse().ok()).unwrap_or(0);
        let (devices, config, stamps) =
            (vec![medium.clone() as Device], pool::config(self.without), self.stamps.clone());
        let run =
            pool::run_history(0, move |env: Env| async move { Ok(inspect(&env, devices, config, &stamps).await) });
        let world = match run {
            Err(failure) => return Ok(Some((Stage::Mount, failure.what))),
            Ok((Err(verdict), _)) => return Ok(Some(verdict)),
            Ok((Ok(world), _)) => world,
        };
        if self.states.iter().skip(promised).any(|state| *state == world) {
            return Ok(None);
        }
        let what = match self.states.iter().position(|state| *state == world) {
            Some(state) => format!("state {state} is there, and state {promised} had been promised"),
            None => self.nearest(promised, &world),
        };
        Ok(Some((Stage::Check, what)))
    }

    /// How the world differs from the state that is most like it.
    fn nearest(&self, promised: usize, world: &World) -> String {
        let differences = |state: &World| -> Vec<String> {
            let live = differences(&state.live, &world.live).into_iter();
            let names = state.snapshots.keys().chain(world.snapshots.keys());
            let none = Model::default();
            let snapshots = names.flat_map(|name| {
                let of = |world: &World| world.snapshots.get(name).cloned();
                match (of(state), of(world)) {
                    (Some(a), Some(b)) => differences(&a, &b).into_iter().map(|d| format!("{name}: {d}")).collect(),
                    (None, None) => differences(&none, &none),
                    (wanted, _) => {
                        vec![format!("snapshot {name} {}", if wanted.is_some() { "is gone" } else { "is there" })]
                    }
                }
            });
            live.chain(snapshots).collect()
        };
        let all = self.states.iter().enumerate().skip(promised).map(|(index, state)| (index, differences(state)));
        let Some((index, found)) = all.min_by_key(|(_, found)| found.len()) else { return String::new() };
        let shown: Vec<&str> = found.iter().take(8).map(String::as_str).collect();
        format!(
            "no state from {promised} on is there; most like state {index}, but {} places: {}",
            found.len(),
            shown.join(", ")
        )
    }
}

fn differences(wanted: &Model, found: &Model) -> Vec<String> {
    let side = |what: &str, wanted: &BTreeMap<u64, u64>, found: &BTreeMap<u64, u64>| -> Vec<String> {
        let mut places: Vec<u64> = wanted.keys().chain(found.keys()).copied().collect();
        places.sort_unstable();
        places.dedup();
        places.retain(|place| wanted.get(place) != found.get(place));
        places.iter().map(|place| format!("{what} {place}")).collect()
    };
    let mut all = side("block", &wanted.blocks, &found.blocks);
    all.extend(side("key", &wanted.keys, &found.keys));
    all
}

/// From the making of the pool to its orderly end.
async fn history(env: Env, medium: Arc<Medium>, without: Option<Rule>) -> Result<Vec<World>, String> {
    let text = |error: ashlar_block::Error| error.to_string();
    let devices = || vec![medium.clone() as Device];
    let config = pool::config(without);
    Pool::create(&env, &devices(), pool::CREATION).await.map_err(text)?;
    let pool = Pool::open(&env, devices(), config).await.map_err(text)?;
    pool.create_volume("v").await.map_err(text)?;
    pool.close().await.map_err(text)?;
    medium.record();
    let pool = Pool::open(&env, devices(), config).await.map_err(text)?;
    let volume = pool.volume("v").ok_or("the volume is gone")?;
    let stop = Arc::new(AtomicBool::new(false));
    let cleaner = env.spawn(pool::clean_on(env.clone(), pool.clone(), stop.clone()));
    let reader = env.spawn(pool::read_on(env.clone(), volume.clone(), stop.clone()));
    let ground = Marking(medium.clone());
    let life = Life { env: &env, pool: &pool, volume: &volume, ground: &ground };
    let states = life.work(World::default(), STEPS).await?;
    stop.store(true, Ordering::Relaxed);
    cleaner.await;
    if let Some(error) = reader.await {
        return Err(format!("a reader met {error}"));
    }
    drop(volume);
    pool.close().await.map_err(text)?;
    ground.promise(states.len() - 1);
    Ok(states)
}

/// What an image holds, or who complained about it.
async fn inspect(
    env: &Env,
    devices: Vec<Device>,
    config: Config,
    stamps: &HashMap<u64, u64>,
) -> Result<World, (Stage, String)> {
    let pool = Pool::open(env, devices, config).await.map_err(|error| (Stage::Mount, error.to_string()))?;
    let world = observe(&pool, stamps).await.map_err(|what| (Stage::Check, what))?;
    let checked = pool.check(|_, _| {}).await.map_err(|error| (Stage::Fsck, error.to_string()))?;
    if checked.damaged.is_empty() && checked.miscounted.is_empty() {
        return Ok(world);
    }
    Err((Stage::Fsck, format!("{:?} {:?}", checked.damaged, checked.miscounted)))
}

/// What the pool holds.
async fn observe(pool: &Pool, stamps: &HashMap<u64, u64>) -> Result<World, String> {
    let volume = pool.volume("v").ok_or("the volume is gone")?;
    let mut world = World { live: observe_volume(&volume, stamps).await?, ..World::default() };
    for info in pool.volumes() {
        if let VolumeKind::Snapshot { .. } = info.kind {
            let snapshot = pool.volume(&info.name).ok_or("a snapshot is gone")?;
            let name = info.name.strip_prefix("v@").ok_or_else(|| format!("there is a snapshot {:?}", info.name))?;
            let model = observe_volume(&snapshot, stamps).await.map_err(|error| format!("snapshot {name}: {error}"))?;
            world.snapshots.insert(name.into(), model);
        }
    }
    Ok(world)
}

async fn observe_volume(volume: &Volume, stamps: &HashMap<u64, u64>) -> Result<Model, String> {
    let mut model = Model::default();
    let mut at = 0;
    for piece in volume.read(Lba(0), Blocks(SPACE)).await.map_err(|error| error.to_string())? {
        for bytes in piece.chunks(BLOCK_LEN) {
            if bytes.iter().any(|byte| *byte != 0) {
                let stamp = stamps.get(&xxh3_64(bytes));
                model.blocks.insert(at, *stamp.ok_or_else(|| format!("block {at} holds what was never written"))?);
            }
            at += 1;
        }
    }
    for key in 0..KEYS {
        let value = volume.get(&pool::dictionary_key(key)).await.map_err(|error| error.to_string())?;
        if let Some(value) = value {
            let stamp = value.as_ref().try_into().map_err(|_| format!("key {key} holds {value:?}"))?;
            model.keys.insert(key, u64::from_le_bytes(stamp));
        }
    }
    Ok(model)
}

#[cfg(test)]
mod tests {
    use super::super::{CrashOptions, CrashOutcome, Subject, explore_crash, replay_crash};
    use super::*;
    use ashlar_units::BLOCK;
    use std::path::Path;
    use std::time::Duration;

    fn explore(save: &Path, seed: u64, images: u64, without: Option<Rule>, drop_flushes: bool) -> CrashOutcome {
        let options = CrashOptions {
            subject: Subject::Own { without },
            drop_flushes,
            atomic: BLOCK,
            images,
            failures: 1,
            budget: Duration::from_secs(600),
            seed,
            save: save.into(),
        };
        explore_crash(&options, &Arc::default(), &mut |_| {}).expect("it can be tried")
    }

    #[test]
    fn images_of_a_sound_pool_hold_and_those_of_a_broken_one_do_not() {
        let save = std::env::temp_dir().join(format!("ashlar-own-{}", std::process::id()));
        std::fs::create_dir_all(&save).expect("a directory");
        let sound = explore(&save, 1, 60, None, false);
        assert!(sound.failures.is_empty(), "seed 1: {:?}", sound.failures);
        assert_eq!(sound.images, 60);

        let dropped = explore(&save, 1, 200, None, true);
        assert_eq!(dropped.failures.len(), 1, "flushes were dropped, and nothing was lost");
        for rule in [Rule::FlushOnSync, Rule::DataBeforeSuperblock] {
            let found = (1..20).any(|seed| !explore(&save, seed, 100, Some(rule), false).failures.is_empty());
            assert!(found, "nothing notices the absence of {rule:?}");
        }
        let again = replay_crash(&dropped.failures[0].file, None, &Arc::default()).expect("it was kept");
        assert!(again.is_some(), "the kept image fails again");
        std::fs::remove_dir_all(&save).expect("it is ours");
    }
}
