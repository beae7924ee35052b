//! What only the kernel's page cache has.

use crate::mount::State;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// No write comes for so long, and none is in service: then there are no more.
const QUIET: Duration = Duration::from_millis(20);
const TICK: Duration = Duration::from_millis(2);

/// The page cache of a mount.
pub struct PageCache(pub(crate) Arc<State>);

impl PageCache {
    /// Has the kernel write back what programs wrote until now, and waits for the writes; not from a worker, which must serve
    /// them. Whether that was done within `patience`: a program that writes all the time may prevent it.
    ///
    /// Linux hands over all dirty pages when it is told to sync a file system, but of a FUSE file system it does not wait for the
    /// writes, so it is we who look when they end. The sync is another program's, since a server that waits for itself could
    /// not be killed.
    pub fn write_back(&self, patience: Duration) -> bool {
        let state = &self.0;
        if state.agreement.holes {
            return true; // the page cache has nothing of its own
        }
        let began = Instant::now();
        let mut sync = Command::new("sync");
        sync.arg("--file-system").arg(&state.at).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(mut sync) = sync.spawn() else { return false };
        let handed_over = loop {
            match sync.try_wait() {
                Ok(Some(status)) => break status.success(),
                Ok(None) if began.elapsed() < patience => std::thread::sleep(TICK),
                _ => {
                    let _ = sync.kill();
                    break false;
                }
            }
        };
        let (mut begun_before, mut quiet_since) = (None, Instant::now());
        while quiet_since.elapsed() < QUIET {
            if began.elapsed() > patience {
                return false;
            }
            std::thread::sleep(TICK);
            let (ended, begun) = state.counters.writes();
            if ended < begun || begun_before != Some(begun) {
                (begun_before, quiet_since) = (Some(begun), Instant::now());
            }
        }
        handed_over
    }
}
