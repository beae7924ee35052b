//! Whole trees that are removed, in process, beside syncs, checkpoints and cleaning, with power cuts in the middle.
//!
//! A tree is taken away with one rename and then cleared name by name, so that a power cut finds all of it or nothing: as
//! [`ashlar_vfs::clear`] does it, and as whoever opens the file system after the cut goes on with it.

use super::cuts::{House, Past, check, survivor};
use super::engine::Engine;
use super::generator::{Caller, Generator};
use super::history::{Found, judge};
use super::model::{Body, Model};
use super::operation::{Op, Place, Subject};
use super::tested::{BetrSetting, FilesSetting, OWNER, Tested, text};
use super::together::{MEMORY, disturb, fill, push_out};
use crate::pool::{Failure, run_scheduled};
use ashlar_betr::Betr;
use ashlar_env::Env;
use ashlar_env::sim::Schedule;
use ashlar_files::Files;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ROUNDS: u64 = 4;
/// Operations that make what is removed.
const STEPS: usize = 60;
/// Writes and flushes until the power fails, at most: in the middle of a tree, or mostly behind it.
const UNTIL_CUT: [u64; 2] = [40, 2000];
/// Between two syncs.
const PAUSE: Duration = Duration::from_micros(200);

/// What a history came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreesOutcome {
    /// Names below the trees that were removed.
    pub names: u64,
    /// Power cuts while a tree was removed.
    pub cuts: u64,
    /// Fingerprint of the run: the same seed gives the same.
    pub trace: u64,
}

/// Explores one history, on the first engine or on the write-optimized one. With `in_place` trees are removed name by name where
/// they are, which is not atomic: that must be noticed.
pub fn explore_trees(seed: u64, betr: Option<BetrSetting>, in_place: bool) -> Result<TreesOutcome, Failure> {
    let (outcome, trace) = match betr {
        Some(setting) => run_scheduled(seed, Schedule::Random, move |env| history::<Betr>(env, setting, in_place))?,
        None => {
            let setting = FilesSetting(if seed.is_multiple_of(2) { 55 } else { 1 });
            run_scheduled(seed, Schedule::Random, move |env| history::<Files>(env, setting, in_place))?
        }
    };
    Ok(TreesOutcome { trace, ..outcome })
}

async fn history<F: Tested>(env: Env, setting: F::Setting, in_place: bool) -> Found<TreesOutcome> {
    let mut house = House::<F>::build(&env, MEMORY, setting, None).await?;
    let (uid, gid) = OWNER;
    let mut model = Model::new(uid, gid);
    let mut generator = Generator::new(env.random(), Caller { uid, gid }).with_trees(false);
    let mut outcome = TreesOutcome::default();
    let (pool, _) = house.open().await?;
    fill(&pool).await.map_err(text)?;
    pool.close().await.map_err(text)?;
    for round in 0..ROUNDS {
        let in_round = |error: String| format!("round {round}: {error}");
        let (pool, files) = house.open().await.map_err(in_round)?;
        let mut engine = Engine::new(files.clone()).in_place(in_place);
        let mut steps = 0;
        let (tree, names) = loop {
            let op = if steps == STEPS { Op::Sync } else { generator.next(&model) };
            let got = engine.apply(&op).await;
            judge(&mut model, &op, &got).map_err(in_round)?;
            match (&op, largest(&model)) {
                (Op::Sync, Some(found)) => break found,
                _ => steps = (steps + 1) % (STEPS + 1),
            }
        };
        push_out(&env, &pool).await.map_err(text)?;
        house.device.cut_after(env.random() % UNTIL_CUT[(env.random() % 2) as usize]);
        let over = Arc::new(AtomicBool::new(false));
        let beside = env.spawn(disturb(env.clone(), pool.clone(), over.clone()));
        let syncing = {
            let (env, files, over) = (env.clone(), files.clone(), over.clone());
            house.env.spawn(async move {
                while !over.load(Ordering::Relaxed) && files.syncfs().await.is_ok() {
                    env.sleep(PAUSE).await;
                }
            })
        };
        let op = Op::RemoveTree { at: tree };
        let got = engine.apply(&op).await;
        over.store(true, Ordering::Relaxed);
        beside.await;
        syncing.await;
        let before = model.clone();
        if house.device.is_dead() {
            // It may have happened, or not.
            let _ = model.apply(&op, None);
            outcome.cuts += 1;
        } else {
            judge(&mut model, &op, &got).map_err(in_round)?;
            outcome.names += names;
        }
        drop((engine, files, pool));
        house.cut();
        let (pool, files) = house.open().await.map_err(|error| format!("round {round}, after the cut: {error}"))?;
        let mut engine = Engine::new(files.clone());
        let past = Past { states: vec![before, model], durable: 0, synced: 0 };
        model = survivor(&mut engine, past).await.map_err(in_round)?;
        engine.close().await;
        check(&pool, &*files).await.map_err(in_round)?;
        files.close().await?;
        drop((engine, files));
        pool.close().await.map_err(text)?;
    }
    Ok(outcome)
}

/// The directory with most names below it, and how many.
fn largest(model: &Model) -> Option<(Place, u64)> {
    let tree = model.tree();
    let below = |place: &Place| tree.iter().filter(|(other, _)| other.names.starts_with(&place.names)).count() as u64;
    let directories = tree.iter().filter(|(_, node)| matches!(model.nodes[*node].body, Body::Directory(_)));
    let named = directories.filter(|(place, _)| !place.names.is_empty());
    named.map(|(place, _)| (place.clone(), below(place))).filter(|(_, names)| *names > 3).max_by_key(|found| found.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explore(seeds: std::ops::Range<u64>, betr: bool) {
        let mut all = TreesOutcome::default();
        for seed in seeds {
            let setting = betr.then(|| BetrSetting::of_seed(seed));
            let outcome = explore_trees(seed, setting, false);
            let outcome = outcome.unwrap_or_else(|failure| panic!("seed {seed}: {}", failure.what));
            all.names += outcome.names;
            all.cuts += outcome.cuts;
        }
        println!("{all:?}");
        assert!(all.names > 0 && all.cuts > 10, "{all:?}");
    }

    #[test]
    fn a_tree_is_gone_or_there_after_a_power_cut() {
        explore(0..20, false);
    }

    #[test]
    fn a_tree_of_betr_is_gone_or_there_after_a_power_cut() {
        explore(0..20, true);
    }

    /// The negative control.
    #[test]
    fn half_a_tree_is_noticed() {
        let noticed = |betr: bool| {
            (0..40).any(|seed| explore_trees(seed, betr.then(|| BetrSetting::of_seed(seed)), true).is_err())
        };
        assert!(noticed(false) && noticed(true), "nothing notices that trees are removed name by name");
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        assert_eq!(explore_trees(7, None, false), explore_trees(7, None, false));
    }
}
