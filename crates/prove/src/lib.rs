//! Explorations: random histories in the simulated runtime, power cuts, reopening, comparison with a model; and negative
//! controls, which break one rule and must be noticed.

mod files;
#[cfg(test)]
mod fuzz;
mod pool;

pub use files::{FilesOptions, FilesOutcome, explore_files};
pub use pool::{Failure, Options, Outcome, explore};
