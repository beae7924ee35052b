//! Estimators: what a design would cost, how long it lasts, what it loses.
//!
//! Each module answers one question from a model that was published, and says so: inputs, answer, range, assumptions,
//! and which of them matters most ([`Estimate`]). All numbers are modelled; none is measured here. Chance comes from a
//! seed, so the same inputs give the same numbers.
//!
//! | module | question |
//! | --- | --- |
//! | [`lsm`] | how many bytes a log-structured merge tree writes for each byte that it is given |
//! | [`environment`] | how often disks fail by temperature and humidity, and what cooling is worth |
//! | [`fleet`] | what becomes of flash drives in the field |
//! | [`loss`] | how likely an array of drives loses data |
//! | [`idr`] | which sectors codes inside one disk recover |
//! | [`scrub`] | how long latent errors stay unseen |
//! | [`endurance`] | how long flash lives under a load |
//! | [`packing`] | what it saves to put small files together |
//! | [`layout`] | which layout suits random updates and scans on disks |

mod common;
pub mod endurance;
pub mod environment;
pub mod fit;
pub mod fleet;
#[cfg(test)]
mod fuzz;
pub mod idr;
pub mod layout;
pub mod loss;
pub mod lsm;
pub mod packing;
pub mod scrub;
mod solve;
pub mod ssd;

pub use common::{About, Estimate, Inputs, Predicted, Recorded, Refused, Sensitivity, Step};

/// All estimators.
pub static ESTIMATORS: &[&About] = &[
    &lsm::ABOUT,
    &endurance::ABOUT,
    &fleet::ABOUT,
    &loss::ABOUT,
    &scrub::ABOUT,
    &environment::ABOUT,
    &packing::ABOUT,
    &layout::ABOUT,
];
