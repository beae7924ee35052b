//! Estimators: what a design would cost, how long it lasts, what it loses.
//!
//! Each module answers one question from a model that was published, and says so: inputs, answer, range, assumptions,
//! and which of them matters most ([`Estimate`]). All numbers are modelled; none is measured here. Chance comes from a
//! seed, so the same inputs give the same numbers.
//!
//! | module | question |
//! | --- | --- |
//! | [`lsm`] | how many bytes a log-structured merge tree writes for each byte that it is given |

mod common;
pub mod lsm;
mod solve;

pub use common::{About, Estimate, Inputs, Predicted, Recorded, Refused, Sensitivity, Step};

/// All estimators.
pub static ESTIMATORS: &[&About] = &[&lsm::ABOUT];
