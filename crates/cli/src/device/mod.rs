//! `ashlar device`: models of devices, and block devices for other programs.

mod control;
mod models;
mod probe;
mod records;
mod serve;
mod trace;

pub use control::control;
#[cfg(test)]
pub use control::{Request as ControlRequest, command as control_command};
pub use models::{calibrate, find, models};
pub use probe::probe_target as probe;
pub use records::REQUESTS;
pub use serve::{Exports, serve};
pub use trace::trace;
