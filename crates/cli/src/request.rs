//! What commands ask of a pool, and the answers; the same whether a daemon serves the pool or the command opens it.

use crate::array::{ArrayRequest, Arrays, Looked, Refilled};
use ashlar_units::Bytes;
use ashlar_vfs::Engine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub enum Request {
    Status,
    Check {
        repair: bool,
    },
    PoolGrow {
        path: PathBuf,
        force: bool,
    },
    FsCreate {
        name: String,
        #[serde(default)]
        engine: Engine,
    },
    FsList,
    FsRename {
        from: String,
        to: String,
    },
    FsDestroy {
        name: String,
    },
    SnapshotCreate {
        name: String,
    },
    SnapshotList,
    SnapshotDestroy {
        name: String,
    },
    SnapshotClone {
        name: String,
        to: String,
    },
    SnapshotMount {
        name: String,
        at: PathBuf,
    },
    /// Something about an array below the pool; about the only one, if none is named.
    Array {
        array: Option<String>,
        request: ArrayRequest,
    },
    /// What is asked of the mount at this place, until one of both sides ends it.
    Listen {
        at: PathBuf,
    },
    Down,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    Status(Box<Status>),
    Check(CheckReport),
    Volumes(Vec<Volume>),
    Done(Done),
    Arrays(Arrays),
    Looked(Looked),
    Refilled(Refilled),
    /// What is heard follows in lines. Whether all names are known that will be used.
    Listening {
        knows_all: bool,
    },
}

/// How a pool fares. Sizes are bytes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Process that serves the pool; none if it is not up.
    pub pid: Option<u32>,
    /// Directory of the pool.
    pub pool: PathBuf,
    /// Where the file system is mounted.
    pub mount: Option<PathBuf>,
    /// Name of the mounted file system.
    pub fs: Option<String>,
    /// Bytes that the devices hold.
    pub capacity: u64,
    /// Bytes in use, with metadata and snapshots.
    pub used: u64,
    /// Bytes that can still be written.
    pub free: u64,
    /// Bytes of memory in caches and unwritten data.
    pub memory: u64,
    /// Bound on `memory`.
    pub memory_limit: u64,
    /// Checkpoints since the pool was made.
    pub generation: u64,
    /// Bytes that the cleaner moved since the pool is up.
    pub moved: u64,
    /// How the zones of the mounted file system changed since it is up, if its engine has some.
    #[serde(default)]
    pub zones: Option<Zones>,
    /// Requests served by the mount.
    pub requests: u64,
    /// Bytes read through the mount, past the page cache.
    pub bytes_read: u64,
    /// Bytes written through the mount.
    pub bytes_written: u64,
    /// Requests by kind.
    pub operations: Vec<Operation>,
}

/// Zones of a write-optimized file system.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Zones {
    /// Directories and files that became zones.
    pub splits: u64,
    /// Zones that were merged with the one above.
    pub merges: u64,
    /// Files without names that are in use.
    pub orphans: u64,
}

impl From<ashlar_betr::Counters> for Zones {
    fn from(counters: ashlar_betr::Counters) -> Zones {
        let ashlar_betr::Counters { splits, merges, orphans } = counters;
        Zones { splits, merges, orphans }
    }
}

/// Requests of one kind.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Operation {
    /// What was asked.
    pub name: String,
    /// How often.
    pub count: u64,
    /// Median of the time in our code, nanoseconds.
    pub median_ns: u64,
    /// 99th percentile of the time in our code, nanoseconds.
    pub p99_ns: u64,
}

/// What a check found.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CheckReport {
    /// Index nodes read.
    pub nodes: u64,
    /// References to extents followed.
    pub extents: u64,
    /// Bytes read.
    pub bytes: u64,
    /// What cannot be read.
    pub damaged: Vec<Damage>,
    /// Contradictions in metadata, which are defects of this software.
    pub inconsistent: Vec<String>,
    /// What `--repair` did; the rest of the report is about what is left.
    pub repaired: Vec<String>,
}

/// Something that cannot be read.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Damage {
    /// Volume (file system or snapshot).
    pub volume: String,
    /// Path in the file system, if the damage lies in a file.
    pub file: Option<String>,
    /// Byte offset in the file, or in the volume.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Why.
    pub error: String,
}

/// A file system or snapshot.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Volume {
    /// Its name; a snapshot's is `FS@NAME`.
    pub name: String,
    /// When a snapshot was taken, seconds since 1970.
    pub time: Option<u64>,
}

/// It is done.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Done {
    /// What was done.
    pub done: String,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.done)
    }
}

/// A list of volumes.
#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Volumes(pub Vec<Volume>);

impl fmt::Display for Volumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for volume in &self.0 {
            writeln!(f, "{}", volume.name)?;
        }
        Ok(())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |part: u64| part as f64 * 100.0 / self.capacity.max(1) as f64;
        writeln!(f, "pool      {}", self.pool.display())?;
        match (&self.mount, self.pid) {
            (Some(mount), Some(pid)) => {
                writeln!(f, "mount     {} ({}), process {pid}", mount.display(), self.fs.as_deref().unwrap_or("?"))?;
            }
            _ => writeln!(f, "mount     none; `ashlar up` mounts it")?,
        }
        writeln!(f, "capacity  {}", Bytes(self.capacity))?;
        writeln!(f, "used      {} ({:.1} %)", Bytes(self.used), percent(self.used))?;
        writeln!(f, "free      {}", Bytes(self.free))?;
        writeln!(f, "memory    {} of {}", Bytes(self.memory), Bytes(self.memory_limit))?;
        if let Some(Zones { splits, merges, orphans }) = &self.zones {
            writeln!(f, "zones     {splits} made, {merges} merged; {orphans} files in use without names")?;
        }
        if !self.operations.is_empty() {
            writeln!(f, "\n{:<18}{:>12}{:>12}{:>12}", "request", "count", "median us", "p99 us")?;
        }
        for operation in &self.operations {
            let micros = |nanos: u64| nanos as f64 / 1000.0;
            let (median, p99) = (micros(operation.median_ns), micros(operation.p99_ns));
            writeln!(f, "{:<18}{:>12}{median:>12.1}{p99:>12.1}", operation.name, operation.count)?;
        }
        Ok(())
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "verified {}: {} index nodes, {} extents", Bytes(self.bytes), self.nodes, self.extents)?;
        for sentence in &self.repaired {
            writeln!(f, "repaired: {sentence}")?;
        }
        for damage in &self.damaged {
            let place = damage.file.as_deref().unwrap_or("(metadata)");
            let Damage { volume, offset, len, error, .. } = damage;
            writeln!(f, "damaged: {volume}:{place} at byte {offset}, {len} bytes: {error}")?;
        }
        for sentence in &self.inconsistent {
            writeln!(f, "inconsistent: {sentence}")?;
        }
        if self.damaged.is_empty() && self.inconsistent.is_empty() {
            writeln!(f, "everything is in order")?;
        }
        if self.repaired.is_empty() && self.damaged.iter().any(|damage| damage.file.is_some()) {
            writeln!(
                f,
                "restore these files from a snapshot or a backup; `ashlar check --repair` forgets what cannot be read, \
                 so that it reads as zeros"
            )?;
        }
        Ok(())
    }
}
