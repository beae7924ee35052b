//! A pool that is up, with its file system mounted.

use crate::bench::{quiet, said};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `ashlar up` on a directory. Dropping it takes the pool down.
pub struct Daemon<'a> {
    ashlar: &'a Path,
    directory: PathBuf,
}

impl<'a> Daemon<'a> {
    /// Returns when the mount serves.
    pub fn up(ashlar: &'a Path, directory: &Path, options: &[&str]) -> Result<Daemon<'a>, String> {
        let daemon = Daemon { ashlar, directory: directory.into() };
        quiet(daemon.command(&["up", "--detach"]).args(options))?;
        Ok(daemon)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.ashlar);
        command.args(arguments).arg("--pool").arg(&self.directory);
        command
    }

    /// What `ashlar status --json` says.
    pub fn status(&self) -> Result<Value, String> {
        let text = said(&mut self.command(&["status", "--json"]))?;
        serde_json::from_str(&text).map_err(|error| format!("ashlar status: {error}"))
    }

    /// Where it is mounted.
    pub fn mount(&self) -> PathBuf {
        self.directory.join("mnt")
    }

    fn process(&self) -> Result<u64, String> {
        self.status()?["pid"].as_u64().ok_or_else(|| "ashlar status names no process".into())
    }

    /// Ends the process where it is, as a crash would, and clears the mount away.
    pub fn kill(self) -> Result<(), String> {
        let process = self.process()?;
        quiet(Command::new("kill").arg("-9").arg(process.to_string()))
        // Dropping it takes down what is left.
    }

    /// Most memory that the process ever had, in bytes.
    pub fn peak_memory(&self) -> Result<f64, String> {
        let process = self.process()?;
        peak_memory(process).ok_or_else(|| format!("/proc/{process}/status has no VmHWM"))
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        if let Err(error) = quiet(&mut self.command(&["down"])) {
            eprintln!("xtask: {} is still up: {error}", self.directory.display());
        }
    }
}

/// Most memory that a process ever had, in bytes.
pub fn peak_memory(process: u64) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = peak.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024.0)
}
