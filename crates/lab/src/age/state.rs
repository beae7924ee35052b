//! Where ageing is, so that it goes on after it was stopped or killed.
//!
//! A directory holds `run.json` (what is being done), `position` (records that are done, 8 bytes), `refused` (pairs of record
//! and operation that met a full file system, 16 bytes each) and `points.jsonl`. All are written as it goes, without a sync:
//! what a program wrote before it was killed is in the kernel, and so is the file system that it wrote to. A machine that
//! stops is another matter, since then both lose what was not on the disk, and not the same: it is told by the kernel's boot
//! id, and refused unless the run was ended in order (`clean`).

use super::Point;
use crate::partial::Partial;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Longest files that are read.
const RUN_BYTES_MAX: u64 = 1 << 20;
const REFUSED_BYTES_MAX: u64 = 256 << 20;
const POINTS_BYTES_MAX: u64 = 64 << 20;

/// What is being done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    /// History, target, options, seed: everything that decides what is done.
    what: String,
    /// The kernel's name for this run of the machine.
    boot: String,
}

/// Why a run cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The files.
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
    /// Another run.
    #[error("{path} is of another run ({found}); finish that, or give --fresh to begin anew", path = .path.display())]
    Other {
        /// The directory.
        path: PathBuf,
        /// What it is of.
        found: String,
    },
    /// The machine stopped.
    #[error(
        "{0}: the machine has restarted since, and what was not on the disk then is lost; give --fresh to begin anew"
    )]
    Restarted(PathBuf),
    /// It is damaged.
    #[error("{0} is damaged ({1}); give --fresh to begin anew")]
    Damaged(PathBuf, &'static str),
}

/// See the module.
#[derive(Default)]
pub struct State {
    files: Option<Files>,
    position: u64,
    refused: HashSet<u64>,
    points: Vec<Point>,
}

struct Files {
    home: PathBuf,
    position: File,
    refused: File,
    points: File,
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().into()
}

impl State {
    /// Kept nowhere: a run that begins, and does not go on.
    pub fn nowhere() -> State {
        State::default()
    }

    /// Whether a directory holds a run.
    pub fn is_there(home: &Path) -> bool {
        home.join("run.json").exists()
    }

    /// Begins a run in a directory, which is made.
    pub fn begin(home: &Path, what: &str) -> Result<State, StateError> {
        let failed = |error| StateError::Io(home.to_path_buf(), error);
        std::fs::create_dir_all(home).map_err(failed)?;
        for name in ["run.json", "clean", "position", "refused", "points.jsonl"] {
            match std::fs::remove_file(home.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
        let run = Run { what: what.into(), boot: boot_id() };
        let files = Files::open(home).map_err(failed)?;
        // The run is there when all else is.
        write_whole(&home.join("run.json"), &serde_json::to_vec(&run).unwrap_or_default()).map_err(failed)?;
        Ok(State { files: Some(files), ..State::default() })
    }

    /// Goes on with a run.
    pub fn resume(home: &Path, what: &str) -> Result<State, StateError> {
        let failed = |error| StateError::Io(home.to_path_buf(), error);
        let damaged = |what| StateError::Damaged(home.to_path_buf(), what);
        let read = |name, bytes_max| match read_up_to(&home.join(name), bytes_max) {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Err(damaged(name)),
            other => other.map_err(failed),
        };
        let run = read("run.json", RUN_BYTES_MAX)?;
        let run: Run = serde_json::from_slice(&run).map_err(|_| damaged("run.json"))?;
        if run.what != what {
            return Err(StateError::Other { path: home.into(), found: run.what });
        }
        if run.boot != boot_id() && !home.join("clean").exists() {
            return Err(StateError::Restarted(home.into()));
        }
        let _ = std::fs::remove_file(home.join("clean"));
        let run = Run { boot: boot_id(), ..run };
        write_whole(&home.join("run.json"), &serde_json::to_vec(&run).unwrap_or_default()).map_err(failed)?;
        let files = Files::open(home).map_err(failed)?;
        let mut bytes = [0; 8];
        let position = match files.position.read_exact_at(&mut bytes, 0) {
            Ok(()) => u64::from_le_bytes(bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
            Err(error) => return Err(failed(error)),
        };
        let refused = read("refused", REFUSED_BYTES_MAX)?;
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let pairs = refused.chunks_exact(16).map(|pair| (number(&pair[..8]), number(&pair[8..])));
        let refused = pairs.filter(|(record, _)| *record < position).map(|(_, operation)| operation).collect();
        let text = String::from_utf8(read("points.jsonl", POINTS_BYTES_MAX)?).map_err(|_| damaged("points.jsonl"))?;
        // The last may be cut.
        let points = text.lines().filter_map(|line| serde_json::from_str::<Point>(line).ok());
        let points = points.filter(|point| point.record <= position).collect();
        Ok(State { files: Some(files), position, refused, points })
    }

    /// Records that are done.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Operations that were refused so far.
    pub(super) fn take_refused(&mut self) -> HashSet<u64> {
        std::mem::take(&mut self.refused)
    }

    pub(super) fn take_points(&mut self) -> Vec<Point> {
        std::mem::take(&mut self.points)
    }

    pub(super) fn advance(&mut self, position: u64) -> io::Result<()> {
        self.position = position;
        self.files.iter().try_for_each(|files| files.position.write_all_at(&position.to_le_bytes(), 0))
    }

    pub(super) fn refuse(&mut self, record: u64, operation: u64) -> io::Result<()> {
        let pair = [record.to_le_bytes(), operation.to_le_bytes()].concat();
        self.files.iter_mut().try_for_each(|files| files.refused.write_all(&pair))
    }

    pub(super) fn add_point(&mut self, point: &Point) -> io::Result<()> {
        let line = serde_json::to_string(point)? + "\n";
        self.files.iter_mut().try_for_each(|files| files.points.write_all(line.as_bytes()))
    }

    /// The target was put away in order: the run may go on after a restart of the machine.
    pub fn put_away(&self) -> io::Result<()> {
        let Some(files) = &self.files else { return Ok(()) };
        for file in [&files.position, &files.refused, &files.points] {
            file.sync_all()?;
        }
        write_whole(&files.home.join("clean"), b"")
    }
}

/// All of a file, which may have so many bytes.
fn read_up_to(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = Partial::create(path)?;
    file.write_all(bytes)?;
    file.finish()
}

impl Files {
    fn open(home: &Path) -> io::Result<Files> {
        let append = |name: &str| OpenOptions::new().create(true).append(true).open(home.join(name));
        let position =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(home.join("position"))?;
        Ok(Files { home: home.into(), position, refused: append("refused")?, points: append("points.jsonl")? })
    }
}
