//! `ashlar device`: models of devices, and block devices for other programs.

mod models;
mod serve;
mod trace;

pub use models::{calibrate, find, models};
pub use serve::serve;
