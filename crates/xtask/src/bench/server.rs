//! Programs that serve while a benchmark runs.

use crate::bench::{check_interrupt, quiet};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to begin, or to end.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);

/// A server, in a process group of its own, so that Ctrl-C leaves it alone until we end it. Dropping it kills it.
pub struct Server {
    child: Child,
    /// What it says goes here.
    log: PathBuf,
}

impl Server {
    /// Starts it.
    pub fn start(command: &mut Command, log: PathBuf) -> Result<Server, String> {
        let file = fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let more = file.try_clone().map_err(|error| error.to_string())?;
        command.stdin(Stdio::null()).stdout(file).stderr(more).process_group(0);
        let child = command.spawn().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
        Ok(Server { child, log })
    }

    /// Waits until it serves. It is an error if it ends first.
    pub fn wait_until(&mut self, mut serves: impl FnMut() -> bool) -> Result<(), String> {
        let began = Instant::now();
        while !serves() {
            check_interrupt()?;
            if self.has_ended() || began.elapsed() > PATIENCE {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                return Err(format!("the server does not serve: {}", log.lines().last().unwrap_or("it said nothing")));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// The same for one that serves when there is a file.
    pub fn wait_for(&mut self, file: &Path) -> Result<(), String> {
        self.wait_until(|| file.exists())
    }

    /// Sends it a signal, as in `INT`.
    pub fn signal(&self, name: &str) -> Result<(), String> {
        quiet(Command::new("kill").arg(format!("-{name}")).arg(self.id().to_string()))
    }

    /// Waits until it has ended; kills it if that takes too long.
    pub fn wait_for_end(mut self) -> Result<(), String> {
        let began = Instant::now();
        while !self.has_ended() {
            if began.elapsed() > PATIENCE {
                return Err("the server did not end".into());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A directory that goes with its owner.
pub struct Place(pub PathBuf);

impl Place {
    /// A new one for this benchmark.
    pub fn new(name: &str) -> Result<Place, String> {
        Place::within(&std::env::temp_dir(), name)
    }

    /// One in a directory that the user chose.
    pub fn within(parent: &Path, name: &str) -> Result<Place, String> {
        let place = parent.join(format!("ashlar-bench-{name}-{}", std::process::id()));
        fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
        Ok(Place(place))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How late each request in the trace of an emulated device was, in nanoseconds, in ascending order: what it did took longer than the
/// model says whenever no processor was free for it.
pub fn lateness(trace: &Path) -> Result<Vec<f64>, String> {
    let said = |error: std::io::Error| format!("{}: {error}", trace.display());
    let late = |line: &str| serde_json::from_str::<Value>(line).ok()?["late_ns"].as_f64();
    let mut all = Vec::new();
    for line in BufReader::new(fs::File::open(trace).map_err(said)?).lines() {
        all.extend(late(&line.map_err(said)?));
    }
    all.sort_by(f64::total_cmp);
    Ok(all)
}
