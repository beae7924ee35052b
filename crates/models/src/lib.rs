//! Timing models of storage devices, in virtual time.
//!
//! A [`Model`] is told when requests arrive and says when they are done and where the time went; it holds no data, knows
//! no clock, and draws chance only from the seed that it was made with. The same model runs in virtual time, by jumping
//! from event to event ([`closed_loop`], [`open_loop`]), and in real time, by waiting for them.
//!
//! A model is described by a TOML file ([`ModelFile`]): the parameters, where each comes from, and what is not modelled.
//! [`calibrate()`] runs again the tables that a preset claims to reproduce.

pub mod calibrate;
mod chance;
pub mod disk;
mod distribution;
pub mod endurance;
mod error;
pub mod flash;
pub mod generic;
mod io;
mod keep;
mod model;
pub mod probe;
mod served;
mod spec;

pub use calibrate::{Row, calibrate};
pub use chance::Chance;
pub use distribution::{normal_below, normal_quantile, student_quantile};
pub use error::SpecError;
pub use io::{Completion, Counters, Id, Kind, Refused, Request, SECTOR, Split};
pub use model::{Model, Summary, closed_loop, open_loop};
pub use spec::{ModelFile, Spec, presets};
