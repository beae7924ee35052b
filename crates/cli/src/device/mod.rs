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

use crate::output::Failure;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Becomes true when somebody asks this process to stop.
pub fn on_signal() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, stop.clone()).map_err(|error| Failure::new(error.to_string()))?;
    }
    Ok(stop)
}
