//! A trace of a mount of ours, by its server.

use super::about;
use crate::client;
use crate::config;
use crate::output::Failure;
use ashlar_fuse::Heard;
use ashlar_lab::trace::live::{Options, Traced, of_door};
use std::io::{self, BufRead};
use std::net::Shutdown;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Lines that wait to be looked at; the server holds what is more, and counts what it must lose.
const LINES_MAX: usize = 64;
/// How long a look waits for the next line.
const LOOK: Duration = Duration::from_millis(10);

/// Traces a mount until Ctrl-C, or until it is unmounted.
pub fn trace(
    pool: Option<&Path>,
    mount: Option<&Path>,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<Traced, Failure> {
    let mount = mount.ok_or_else(|| Failure::new("this is no mount of ours").with_code(2))?;
    let (stream, knows_all, lines) = client::listen(&config::pool_directory(pool)?, mount)?;
    if !knows_all {
        notes.push(
            "this kernel (before Linux 6.16) does not look up names again that it knows: requests on files that were used \
             before are dropped"
                .into(),
        );
    }
    let (sender, receiver) = sync_channel(LINES_MAX);
    std::thread::spawn(move || {
        for line in lines.lines() {
            let heard = line.and_then(|line| serde_json::from_str(&line).map_err(io::Error::other));
            if sender.send(heard).is_err() {
                return;
            }
        }
    });
    let mut stopped = false;
    let heard = move |stop: bool| {
        if stop && !stopped {
            stopped = true;
            // The server tells what it still has, and ends.
            stream.shutdown(Shutdown::Write)?;
        }
        next(&receiver)
    };
    of_door(mount, heard, options).map_err(|error| about(mount, error))
}

/// What the next line tells, if there is one.
fn next(lines: &Receiver<io::Result<Heard>>) -> io::Result<Heard> {
    match lines.recv_timeout(LOOK) {
        Ok(heard) => heard,
        Err(RecvTimeoutError::Timeout) => Ok(Heard::default()),
        Err(RecvTimeoutError::Disconnected) => Ok(Heard { over: true, ..Heard::default() }),
    }
}
