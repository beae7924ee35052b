//! Signals that a command lives with.

use crate::output::Failure;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag::register;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Becomes true when somebody asks this process to stop.
pub fn on_signal() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        register(signal, stop.clone()).map_err(|error| Failure::new(error.to_string()))?;
    }
    Ok(stop)
}

/// A write beyond the greatest length that this process may give a file (`ulimit -f`) fails, as others do, and does not end it.
pub fn survive_long_files() {
    // Without it all is as it was.
    let _ = register(SIGXFSZ, Arc::default());
}
