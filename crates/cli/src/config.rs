//! What a pool's directory holds: `pool.toml`, which says where its devices are, the control socket and the log of a
//! detached daemon.

use crate::output::Failure;
use ashlar_env::say;
use ashlar_layers::{FileSpec, Spec, Stack};
use ashlar_pool::Compression;
use ashlar_units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const FILE: &str = "pool.toml";

/// For how long a command that waits for others says nothing.
const SILENCE: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(5);

/// What devices are made of.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// Disks: heads move.
    Disk,
    /// Flash: a block takes as long anywhere.
    Flash,
}

impl From<Medium> for ashlar_block::Medium {
    fn from(medium: Medium) -> ashlar_block::Medium {
        match medium {
            Medium::Disk => ashlar_block::Medium::Disk,
            Medium::Flash => ashlar_block::Medium::Flash,
        }
    }
}

/// A pool's description.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    /// `off`, `lz4` or `zstd:LEVEL`.
    pub compression: String,
    /// What the devices are made of; if missing, what they say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub medium: Option<Medium>,
    /// Names of the layers that the pool stands on.
    pub devices: Vec<String>,
    /// Every layer by its name; relative paths begin at the pool's directory.
    pub layer: BTreeMap<String, Spec>,
}

impl PoolConfig {
    /// A pool on a stack.
    pub fn new(compression: &str, medium: Option<Medium>, stack: Stack) -> PoolConfig {
        PoolConfig { compression: compression.into(), medium, devices: stack.devices, layer: stack.layer }
    }
    /// Files and block devices of the host that it stands on, relative to its directory or not.
    pub fn files(&self, directory: &Path) -> impl Iterator<Item = PathBuf> {
        self.layer.values().filter_map(move |spec| match spec {
            Spec::File(file) => Some(directory.join(&file.path)),
            _ => None,
        })
    }
    /// Adds a file or block device of the host.
    pub fn add_file(&mut self, path: &Path) {
        let mut names = (self.devices.len()..).map(|index| format!("device-{index}"));
        let name = names.find(|name| !self.layer.contains_key(name)).expect("there are more names than layers");
        self.layer.insert(name.clone(), Spec::File(FileSpec { path: path.into(), buffered: false }));
        self.devices.push(name);
    }
    /// A name for a new member of an array.
    pub fn member_name(&self, array: &str) -> String {
        let mut names = (0..).map(|index| format!("{array}-{index}"));
        names.find(|name| !self.layer.contains_key(name)).expect("there are more names than layers")
    }
    /// Names a file or block device as a member of an array. With `whole`, layers of members that are not in use go.
    pub fn replace_member(&mut self, array: &str, name: &str, in_use: &[String], whole: bool, path: &Path) {
        let Some(Spec::Raid(spec)) = self.layer.get_mut(array) else { return };
        let gone: Vec<String> = spec.of.iter().filter(|child| whole && !in_use.contains(child)).cloned().collect();
        spec.of.retain(|child| !gone.contains(child));
        spec.of.push(name.into());
        self.layer.insert(name.into(), Spec::File(FileSpec { path: path.into(), buffered: false }));
        // Layers that nobody names any more would be refused.
        let stack = self.stack();
        self.layer.retain(|name, _| stack.names(name));
    }
    /// What the pool stands on.
    pub fn stack(&self) -> Stack {
        Stack { devices: self.devices.clone(), layer: self.layer.clone() }
    }
}

/// The pool's directory as given, from the environment, or `./ashlar-data`; absolute.
pub fn pool_directory(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let from_environment = || std::env::var_os("ASHLAR_POOL").map(PathBuf::from);
    let directory = given.map(Path::to_path_buf).or_else(from_environment).unwrap_or_else(|| "ashlar-data".into());
    std::path::absolute(&directory).map_err(|error| Failure::new(format!("{}: {error}", directory.display())))
}

/// Makes the directory of a pool if it is missing.
pub fn make_directory(directory: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(directory).map_err(|error| {
        let shown = directory.display();
        Failure::new(match directory.exists() && !directory.is_dir() {
            true => format!("{shown} is a file, and a pool is a directory; --pool names it"),
            false => format!("cannot make {shown}: {error}"),
        })
    })
}

/// A file to lock. Nobody else may open it, and so keep those waiting who lock it.
pub fn lock_file(path: &Path) -> std::io::Result<File> {
    File::options().create(true).truncate(false).write(true).mode(0o600).open(path)
}

/// Waits for the turn of this command, which is over when what this gives is dropped: of those who start a server of this pool, or do
/// without one, each waits for the others. Says so if it takes long.
pub fn turn(directory: &Path) -> Result<File, Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", directory.display()));
    let turn = lock_file(&directory.join("turn.lock")).map_err(failed)?;
    let began = Instant::now();
    while let Err(error) = turn.try_lock() {
        match error {
            TryLockError::WouldBlock if began.elapsed() < SILENCE => std::thread::sleep(TICK),
            TryLockError::WouldBlock => {
                let directory = directory.display();
                say::error(format_args!(
                    "ashlar: waiting for another command that has the pool in {directory} open; Ctrl-C ends this one"
                ));
                turn.lock().map_err(failed)?;
                break;
            }
            TryLockError::Error(error) => return Err(failed(error)),
        }
    }
    Ok(turn)
}

/// What is said where a pool stands on memory alone.
pub fn made_anew(directory: &Path) -> String {
    format!("{} stands on memory alone, so the pool is made anew, empty, each time", directory.display())
}

pub fn socket(directory: &Path) -> PathBuf {
    directory.join("control.sock")
}

/// Of `ashlar s3 serve`, for what is asked of stores that it has open.
pub fn stores_socket(directory: &Path) -> PathBuf {
    directory.join("stores.sock")
}

pub fn log(directory: &Path) -> PathBuf {
    directory.join("daemon.log")
}

pub fn exists(directory: &Path) -> bool {
    directory.join(FILE).exists()
}

pub fn read(directory: &Path) -> Result<PoolConfig, Failure> {
    let path = directory.join(FILE);
    let text = std::fs::read_to_string(&path).map_err(|error| {
        let help = if error.kind() == std::io::ErrorKind::NotFound {
            "; there is no pool: make one with `ashlar pool create`, or name its directory with --pool"
        } else {
            ""
        };
        Failure::new(format!("{}: {error}{help}", path.display()))
    })?;
    parse(&text).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// Reads the text of `pool.toml`.
pub fn parse(text: &str) -> Result<PoolConfig, toml::de::Error> {
    toml::from_str(text)
}

/// Replaces the description.
pub fn write(directory: &Path, config: &PoolConfig) -> Result<(), Failure> {
    let text = toml::to_string_pretty(config).map_err(|error| Failure::new(error.to_string()))?;
    replace(&directory.join(FILE), &text)
}

/// Replaces a file; after a crash there is the old one or the new one.
pub fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let draft = path.with_added_extension("new");
    let replace = || {
        let mut file = File::create(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&draft, path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    replace().map_err(|error: std::io::Error| Failure::new(format!("{}: {error}", path.display())))
}

/// Reads `off`, `lz4` or `zstd:LEVEL`.
pub fn compression(text: &str) -> Result<Compression, Failure> {
    match text {
        "off" => Ok(Compression::Off),
        "lz4" => Ok(Compression::Lz4),
        _ => {
            let level = text.strip_prefix("zstd").map(|level| level.strip_prefix(':').unwrap_or("3"));
            let level = level.and_then(|level| level.parse().ok()).filter(|level| (1..=22).contains(level));
            let help = || Failure::new(format!("{text:?} is no compression: write off, lz4 or zstd:LEVEL (1 to 22)"));
            level.map(Compression::Zstd).ok_or_else(help)
        }
    }
}

/// Most threads that are taken without being asked for.
const THREADS_MAX: usize = 64;

/// Threads that serve: as given, or one per processor.
pub fn threads(given: Option<usize>) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    given.unwrap_or(processors.min(THREADS_MAX))
}

/// Makes a device file if it is missing; whether it did.
pub fn make_file(path: &Path, size: Option<Bytes>) -> Result<bool, Failure> {
    let fail = |error: std::io::Error| Failure::new(format!("cannot make {}: {error}", path.display()));
    match (path.exists(), size) {
        (true, _) => Ok(false),
        (false, None) => {
            let message =
                format!("{}: there is no such file; make it, or say how large it is: ,size=20GiB", path.display());
            Err(Failure::new(message))
        }
        (false, Some(size)) => {
            let file = File::create_new(path).map_err(fail)?;
            if let Err(error) = file.set_len(size.0) {
                // It was made just now.
                let _ = std::fs::remove_file(path);
                return Err(fail(error));
            }
            Ok(true)
        }
    }
}

/// Where the daemon is about to mount something, so that what it leaves after a crash can be found.
pub fn note_mount(directory: &Path, at: &Path) {
    let file = File::options().create(true).append(true).open(directory.join("mounts"));
    // Without the note `ashlar down` cannot clear up after a crash; that is no reason not to mount.
    let _ = file.and_then(|mut file| writeln!(file, "{}", at.display()));
}

/// Nothing of this pool is mounted there any more, and what is mounted there later is not its to clear.
pub fn forget_mount(directory: &Path, at: &Path) {
    let left = read_mounts(directory).into_iter().filter(|noted| noted != at);
    let text: String = left.map(|noted| format!("{}\n", noted.display())).collect();
    let _ = replace(&directory.join("mounts"), &text);
}

/// See [`note_mount`].
pub fn read_mounts(directory: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(directory.join("mounts")).unwrap_or_default();
    text.lines().map(PathBuf::from).collect()
}

/// Nothing is mounted any more.
pub fn forget_mounts(directory: &Path) {
    let _ = std::fs::remove_file(directory.join("mounts"));
}
