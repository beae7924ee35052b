//! The real program, killed under load.
//!
//! A *round* is: `up`, look whether everything that was acknowledged is there, let several threads work, SIGKILL at a
//! moment that the seed determines, `down`. The same pool goes through all rounds.
//!
//! Each thread works in a directory of its own. It makes files as careful programs do (write aside, `fsync`, `rename`),
//! renames and removes them, and appends to a log with `fsync`; an `fsync` of the directory acknowledges all of its names.
//! After a kill a directory must be as it was at some moment since the last acknowledgement, and a log must begin with
//! what was acknowledged. Kernel threads and page cache are real, so a seed determines what is tried, not what is found.

use crate::pool::Failure;
use crate::seeded::Dice;
use ashlar_vfs::Engine;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Threads that work at once.
const WRITERS: u64 = 4;
/// Names of files in each thread's directory.
const NAMES: u64 = 8;
/// Files stay below this length, in bytes.
const LEN_MAX: u64 = 300_000;
/// Records of logs stay below this length, in bytes.
const RECORD_MAX: u64 = 5_000;
/// A round's work lasts at most this long after the first acknowledgement.
const ROUND_MS_MAX: u64 = 700;

/// A thread of a killed program that stays so long will not go by itself.
const STUCK: Duration = Duration::from_secs(1);

/// What the rounds came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DaemonOutcome {
    /// Times the program was killed.
    pub kills: u64,
    /// Operations that were acknowledged.
    pub acknowledged: u64,
}

/// A pool in a directory of its own, run by the real program; stopped and removed when dropped.
pub struct Daemon {
    program: PathBuf,
    engine: Engine,
    home: PathBuf,
}

impl Daemon {
    /// Nothing is started yet. The file system is of this engine; `name` tells the pool from others of this process.
    pub fn new(program: &Path, engine: Engine, name: &str) -> io::Result<Daemon> {
        let home = std::env::temp_dir().join(format!("ashlar-prove-{}-{name}", std::process::id()));
        fs::create_dir_all(&home)?;
        Ok(Daemon { program: program.into(), engine, home })
    }

    /// Why this cannot run here, if it cannot.
    pub fn obstacle() -> Option<&'static str> {
        if !rustix::process::geteuid().is_root() {
            return Some("mounting needs root");
        }
        (!Path::new("/dev/fuse").exists()).then_some("there is no /dev/fuse")
    }

    /// Whether a test cannot run here; then it says why, on standard output.
    pub fn is_skipped() -> bool {
        let obstacle = Daemon::obstacle();
        obstacle.iter().for_each(|obstacle| println!("SKIPPED: {obstacle}"));
        obstacle.is_some()
    }

    /// Where the file system is mounted.
    pub fn mount(&self) -> PathBuf {
        self.home.join("mnt")
    }

    /// Starts the program, and returns when the mount serves.
    pub fn up(&self) -> Result<(), String> {
        let mount = self.mount();
        let mount = mount.to_str().ok_or("the temporary directory's name is not text")?;
        let engine = self.engine.name();
        self.run(&["up", "--detach", "--engine", engine, "--size", "2GiB", "--memory", "64MiB", "--mount", mount])
            .map(drop)
    }

    /// Stops the program, or clears what a dead one left.
    pub fn down(&self) -> Result<(), String> {
        self.run(&["down"]).map(drop)
    }

    /// Kills the program, and waits until it is gone; a thread that waits in the kernel for the mount may stay until
    /// [`down`](Self::down).
    pub fn kill(&self) -> Result<(), String> {
        let status: Value =
            serde_json::from_str(&self.run(&["status", "--json"])?).map_err(|error| error.to_string())?;
        let number = status["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).ok_or("the pool is not up")?;
        let pid = rustix::process::Pid::from_raw(number).ok_or("the pool is not up")?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).map_err(|error| error.to_string())?;
        // It is gone when its entry is, or when it only waits for its parent: then one thread is left.
        let killed = Instant::now();
        loop {
            let threads = fs::read_dir(format!("/proc/{number}/task")).map_or(0, Iterator::count);
            let is_alone = threads <= 1 || killed.elapsed() > STUCK;
            if threads == 0 || (is_alone && ashlar_env::host::has_ended(number)) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Verifies every byte of the pool.
    pub fn check(&self) -> Result<(), String> {
        let report: Value =
            serde_json::from_str(&self.run(&["check", "--json"])?).map_err(|error| error.to_string())?;
        let empty = |key: &str| report[key].as_array().is_some_and(Vec::is_empty);
        if empty("damaged") && empty("inconsistent") { Ok(()) } else { Err(format!("check found {report}")) }
    }

    /// The program, about this pool.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--pool").arg(self.home.join("pool")).args(arguments).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = self.command(arguments);
        let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        Err(format!("ashlar {arguments:?}: {}: {}{}", output.status, text(&output.stdout), text(&output.stderr)))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // What cannot be stopped keeps its directory.
        if self.down().is_ok() {
            let _ = fs::remove_dir_all(&self.home);
        }
    }
}

/// Runs rounds of `program`, which is `ashlar`, on one pool with a file system of this engine.
pub fn explore_daemon(seed: u64, program: &Path, engine: Engine, rounds: u64) -> Result<DaemonOutcome, Failure> {
    let failed = |what: String| Failure { seed, what };
    let daemon =
        Daemon::new(program, engine, &format!("daemon-{engine}-{seed}")).map_err(|error| failed(error.to_string()))?;
    let mut dice = Dice::new(seed);
    let mut writers: Vec<Writer> = (0..WRITERS).map(|number| Writer::new(number, seed)).collect();
    let mut outcome = DaemonOutcome::default();
    for round in 0..rounds {
        let in_round = |what: String| failed(format!("round {round}: {what}"));
        daemon.up().map_err(in_round)?;
        for writer in &mut writers {
            writer.verify(&daemon.mount()).map_err(in_round)?;
        }
        daemon.check().map_err(in_round)?;
        let (acknowledged, killing) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let threads: Vec<_> = writers
            .into_iter()
            .map(|writer| {
                let (mount, acknowledged, killing) = (daemon.mount(), acknowledged.clone(), killing.clone());
                std::thread::spawn(move || writer.work(&mount, &acknowledged, &killing))
            })
            .collect();
        while acknowledged.load(Ordering::Relaxed) == 0 && !threads.iter().all(|thread| thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(dice.below(ROUND_MS_MAX)));
        killing.store(true, Ordering::SeqCst);
        let killed = daemon.kill();
        let ended: Vec<_> = threads.into_iter().map(std::thread::JoinHandle::join).collect();
        killed.map_err(in_round)?;
        writers = Vec::new();
        for writer in ended {
            let writer = writer.map_err(|_| in_round("a writer panicked".into()))?;
            writers.push(writer.map_err(|error| in_round(format!("before the kill: {error}")))?);
        }
        daemon.down().map_err(in_round)?;
        outcome.kills += 1;
        outcome.acknowledged += acknowledged.load(Ordering::Relaxed);
    }
    daemon.up().map_err(failed)?;
    for writer in &mut writers {
        writer.verify(&daemon.mount()).map_err(failed)?;
    }
    daemon.check().map_err(failed)?;
    daemon.down().map_err(failed)?;
    Ok(outcome)
}

/// Stamp and length of each file by its name.
type Names = BTreeMap<u64, (u64, u64)>;

/// One thread, and what it knows of its directory.
struct Writer {
    number: u64,
    dice: Dice,
    /// Every state of the names since the one that was acknowledged last, that one first.
    states: Vec<Names>,
    /// Every file has its own.
    stamp: u64,
    /// Bytes of the log that were acknowledged, and all that were written.
    log: (u64, u64),
}

impl Writer {
    fn new(number: u64, seed: u64) -> Writer {
        let dice = Dice::new(seed ^ (number + 1) << 32);
        Writer { number, dice, states: vec![Names::new()], stamp: 0, log: (0, 0) }
    }

    fn directory(&self, mount: &Path) -> PathBuf {
        mount.join(format!("writer-{}", self.number))
    }

    /// Works until the program is gone. An error before somebody is about to kill it is a finding.
    fn work(mut self, mount: &Path, acknowledged: &AtomicU64, killing: &AtomicBool) -> io::Result<Writer> {
        let directory = self.directory(mount);
        loop {
            match self.step(&directory) {
                Ok(count) => _ = acknowledged.fetch_add(count, Ordering::Relaxed),
                Err(_) if killing.load(Ordering::SeqCst) => return Ok(self),
                Err(error) => return Err(error),
            }
        }
    }

    /// One operation; how many became acknowledged with it.
    fn step(&mut self, directory: &Path) -> io::Result<u64> {
        let path = |name: u64| directory.join(format!("file-{name}"));
        let (name, other) = (self.dice.below(NAMES), self.dice.below(NAMES));
        let mut names = self.states[self.states.len() - 1].clone();
        match self.dice.below(8) {
            0..=2 => {
                self.stamp += 1;
                let len = if self.dice.one_in(4) { self.dice.below(LEN_MAX) } else { self.dice.below(10_000) };
                let aside = directory.join("aside");
                let mut file = File::create(&aside)?;
                file.write_all(&bytes_of(self.stamp, 0, len))?;
                file.sync_all()?;
                names.insert(name, (self.stamp, len));
                self.states.push(names);
                fs::rename(&aside, path(name))?;
            }
            3 if names.contains_key(&name) => {
                names.remove(&name);
                self.states.push(names);
                fs::remove_file(path(name))?;
            }
            4 | 5 if names.contains_key(&name) && name != other => {
                let moved = names.remove(&name).expect("it is there");
                names.insert(other, moved);
                self.states.push(names);
                fs::rename(path(name), path(other))?;
            }
            6 => {
                let record = bytes_of(u64::MAX, self.log.1, 1 + self.dice.below(RECORD_MAX));
                let file = OpenOptions::new().create(true).append(true).open(directory.join("log"))?;
                self.log.1 += record.len() as u64;
                (&file).write_all(&record)?;
                file.sync_data()?;
                self.log.0 = self.log.1;
                return Ok(1);
            }
            7 => {
                File::open(directory)?.sync_all()?;
                let newest = self.states.len() - 1;
                self.states.drain(..newest);
                return Ok(newest as u64);
            }
            _ => {}
        }
        Ok(0)
    }

    /// Compares the directory with what was acknowledged, and goes on from what it holds.
    fn verify(&mut self, mount: &Path) -> Result<(), String> {
        let directory = self.directory(mount);
        let failed = |what: String| format!("{}: {what}", directory.display());
        let text = |error: io::Error| error.to_string();
        if self.stamp == 0 && self.log.1 == 0 && !directory.exists() {
            fs::create_dir(&directory).map_err(text)?;
            // The directory itself is acknowledged before anything in it.
            return File::open(mount).and_then(|file| file.sync_all()).map_err(text);
        }
        let mut found = Names::new();
        for name in 0..NAMES {
            let path = directory.join(format!("file-{name}"));
            let held = match fs::read(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(|error| failed(format!("file-{name}: {error}")))?,
            };
            // Which file it is follows from the states; its bytes must be that file's.
            let known = self.states.iter().filter_map(|state| state.get(&name));
            let is = known.copied().find(|(stamp, len)| *len == held.len() as u64 && held == bytes_of(*stamp, 0, *len));
            found.insert(name, is.ok_or_else(|| failed(format!("file-{name} holds none of what it may")))?);
        }
        if !self.states.contains(&found) {
            let states = &self.states;
            return Err(failed(format!("the names are {found:?}, and were never so since the last fsync: {states:?}")));
        }
        self.states = vec![found];
        let log = match OpenOptions::new().read(true).write(true).open(directory.join("log")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.log.0 == 0 => {
                self.log = (0, 0);
                return Ok(());
            }
            other => other.map_err(|error| failed(format!("log: {error}")))?,
        };
        let (acknowledged, written) = self.log;
        let len = log.metadata().map_err(text)?.len();
        if len < acknowledged || len > written {
            return Err(failed(format!(
                "the log has {len} bytes; {acknowledged} were acknowledged, {written} written"
            )));
        }
        let mut held = vec![0; acknowledged as usize];
        log.read_exact_at(&mut held, 0).map_err(|error| failed(format!("log: {error}")))?;
        let wrong = held.iter().zip(bytes_of(u64::MAX, 0, acknowledged)).position(|(a, b)| *a != b);
        if let Some(at) = wrong {
            return Err(failed(format!("byte {at} of the log is wrong, of {acknowledged} that were acknowledged")));
        }
        log.set_len(acknowledged).map_err(text)?;
        log.sync_all().map_err(text)?;
        self.log = (acknowledged, acknowledged);
        Ok(())
    }
}

/// Bytes of a file, told by its stamp and the offset.
fn bytes_of(stamp: u64, offset: u64, len: u64) -> Vec<u8> {
    let word = |at: u64| (stamp ^ (at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15)).rotate_left(17).to_le_bytes();
    (offset..offset + len).map(|at| word(at)[(at % 8) as usize]).collect()
}
