//! Explorations: random histories in the simulated runtime, power cuts, reopening, comparison with a model; and negative
//! controls, which break one rule and must be noticed.

mod files;
mod pool;

pub use files::*;
pub use pool::{Failure, Options, Outcome, explore};
