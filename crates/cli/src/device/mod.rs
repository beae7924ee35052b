//! `ashlar device`: models of devices, and block devices for other programs.

mod models;
mod serve;

pub use models::{calibrate, models};
pub use serve::serve;
