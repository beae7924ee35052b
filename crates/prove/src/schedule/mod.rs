//! Schedules: the model of a system, run over and over in the simulated runtime, each time in another order, until a
//! monitor finds something wrong or enough was tried (Deligiannis et al., FAST'16).
//!
//! A [`Harness`] closes a system: real or modelled components as tasks, everything that is left to chance asked of
//! [`Handle::choose`], monitors that know what must not happen and what must. An *execution* is one run of it; it is
//! determined by seed and iteration, and what it chose is written down, so that it can be replayed.
//!
//! Departs   PCT is fair at the end: see [`ashlar_env::sim::Schedule::Pct`]. A monitor that is hot when everything is blocked
//!           is a violation, where the paper's tool calls the run good.

mod explore;
mod extent_manager;
#[cfg(test)]
mod fuzz;
mod lost_update;
mod pool;
mod replication;
#[cfg(test)]
mod tests;
mod trace;

pub use explore::{ScheduleOptions, ScheduleOutcome, Scheduler, Violation, explore_schedules};
pub use trace::{Replayed, ScheduleTrace};

use ashlar_env::sim::Handle;

/// A bug that can be planted in a system, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bug {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is wrong then.
    pub what: &'static str,
}

/// A system under test, closed: nothing in it depends on more than the simulation.
pub trait Harness: Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;
    /// What it is, in a sentence.
    fn what(&self) -> &'static str;
    /// What can be broken in it.
    fn bugs(&self) -> &'static [Bug];
    /// How many steps stand for ever.
    fn steps_max(&self) -> u64;
    /// Builds a fresh instance: spawns its tasks and registers its monitors. `bug` is the name of one of its bugs.
    fn start(&self, sim: &Handle, bug: Option<&'static str>);
}

/// All harnesses.
pub static HARNESSES: [&dyn Harness; 5] = [
    &lost_update::LostUpdate,
    &replication::Replication,
    &extent_manager::STEADY,
    &extent_manager::LOSSY,
    &pool::PoolTogether,
];

/// A harness by its name.
pub fn harness(name: &str) -> Result<&'static dyn Harness, String> {
    let known = || HARNESSES.iter().map(|harness| harness.name()).collect::<Vec<_>>().join(", ");
    let found = HARNESSES.iter().find(|harness| harness.name() == name).copied();
    found.ok_or_else(|| format!("there is no harness {name:?}; there are {}", known()))
}

/// A bug of a harness by its name.
pub fn bug(harness: &dyn Harness, name: &str) -> Result<&'static str, String> {
    let known = || harness.bugs().iter().map(|bug| bug.name).collect::<Vec<_>>().join(", ");
    let found = harness.bugs().iter().find(|bug| bug.name == name).map(|bug| bug.name);
    found.ok_or_else(|| format!("the harness {} has no bug {name:?}; it has {}", harness.name(), known()))
}
