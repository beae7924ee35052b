//! Explorations: random histories in the simulated runtime, power cuts, reopening, comparison with a model; the same
//! histories on whatever is mounted; the real program, killed under load; file systems of others on a disk that loses
//! power; models of systems under many schedules; and negative controls, which break one rule and must be noticed.

mod array;
pub mod crash;
mod daemon;
mod explorations;
mod files;
#[cfg(test)]
mod fuzz;
mod objects;
mod pool;
mod proximal;
mod rack;
mod regions;
pub mod schedule;
mod seeded;
pub mod typed;

pub use array::{ArrayOptions, ArrayOutcome, explore_array};
pub use daemon::{Daemon, DaemonOutcome, explore_daemon};
pub use explorations::{EXPLORATIONS, Exploration, RuleText, Seen};
pub use files::*;
pub use objects::{Ground as ObjectsGround, ObjectsOptions, ObjectsOutcome, ObjectsRule, explore_objects};
pub use pool::{Failure, Options, Outcome, explore};
pub use proximal::{ProximalOptions, ProximalOutcome, explore_proximal};
pub use regions::{RegionOptions, RegionOutcome, explore_regions};
