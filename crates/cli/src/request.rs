//! What commands ask of a pool, and the answers; the same whether a daemon serves the pool or the command opens it.

use crate::array::{ArrayRequest, Arrays, Looked, Refilled};
use ashlar_fuse::Flags;
use ashlar_units::Bytes;
use ashlar_vfs::Engine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub enum Request {
    Status,
    /// How one file system or snapshot fares.
    FsStatus {
        name: String,
    },
    Check {
        repair: bool,
    },
    PoolGrow {
        /// None: take what the devices became larger by.
        path: Option<PathBuf>,
        force: bool,
    },
    PoolTrim,
    FsCreate {
        name: String,
        #[serde(default)]
        engine: Engine,
        /// Files up to so many bytes are kept in the index, by an engine that does that.
        #[serde(default)]
        inline: Option<u64>,
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
    /// Mount a file system or snapshot that is there.
    Mount {
        name: String,
        at: PathBuf,
        #[serde(default)]
        how: How,
    },
    /// Remove files and whole trees of mounted file systems.
    Remove {
        places: Vec<Place>,
        /// Answer when their room is free again, and not when they are gone.
        wait: bool,
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

impl Request {
    /// Whether it changes what there is or what is mounted, from when it is read until it is answered.
    pub fn changes(&self) -> bool {
        match self {
            Request::PoolGrow { .. }
            | Request::FsCreate { .. }
            | Request::FsRename { .. }
            | Request::FsDestroy { .. }
            | Request::SnapshotCreate { .. }
            | Request::SnapshotDestroy { .. }
            | Request::SnapshotClone { .. }
            | Request::Mount { .. }
            | Request::Check { repair: true } => true,
            Request::Status
            | Request::FsStatus { .. }
            | Request::Check { repair: false }
            | Request::PoolTrim
            | Request::FsList
            | Request::SnapshotList
            | Request::Remove { .. }
            | Request::Array { .. } // a rebuild takes long; what else changes waits for its turn itself
            | Request::Listen { .. }
            | Request::Down => false,
        }
    }
}

/// How something is mounted that is there.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct How {
    /// The page cache collects no writes.
    pub write_through: bool,
    pub flags: Flags,
    /// What `df` calls it, if not `ashlar:NAME`.
    pub source: Option<String>,
}

/// A name in a mounted file system.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Place {
    /// As the client calls it, for people: what is no text is replaced.
    pub path: String,
    /// The file system's number, major and minor.
    pub device: (u32, u32),
    /// The directory's inode.
    pub parent: u64,
    /// The name there.
    pub name: Vec<u8>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    Status(Box<Status>),
    Check(CheckReport),
    Trimmed(TrimReport),
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
    /// Bytes that devices became larger by and `ashlar pool grow` would take.
    #[serde(default)]
    pub unused_ends: u64,
    /// The file system that holds the pool's devices has no room for more than is free.
    #[serde(default)]
    pub full_below: bool,
    /// Why the pool takes no changes any more, until it is down and up again.
    #[serde(default)]
    pub stopped: Option<String>,
    /// Bytes of memory in caches and unwritten data.
    pub memory: u64,
    /// Bound on `memory`.
    pub memory_limit: u64,
    /// Devices are reached through io_uring; if not, threads make the calls, since io_uring cannot be had.
    #[serde(default = "by_io_uring")]
    pub io_uring: bool,
    /// Checkpoints since the pool was made.
    pub generation: u64,
    /// Bytes that the cleaner moved since the pool is up.
    pub moved: u64,
    /// Index nodes that were damaged and put right from parity since the pool is up.
    #[serde(default)]
    pub recovered: u64,
    /// How the zones of the mounted file system changed since it is up, if its engine has some.
    #[serde(default)]
    pub zones: Option<Zones>,
    /// Names removed since it is up of trees that `ashlar remove` took away; none if nothing is left to remove.
    #[serde(default)]
    pub removed: Option<u64>,
    /// What waits in the file system's index; only if one is named.
    #[serde(default)]
    pub index: Option<Index>,
    /// What was read and written since the pool is up, on each floor.
    #[serde(default)]
    pub floors: Vec<Floor>,
    /// Requests served by the mount.
    pub requests: u64,
    /// Bytes read through the mount, past the page cache.
    pub bytes_read: u64,
    /// Bytes written through the mount.
    pub bytes_written: u64,
    /// Requests by kind.
    pub operations: Vec<Operation>,
}

/// What it means that there is no io_uring.
pub const NO_IO_URING: &str = "this system does not allow it (a container's filter of system calls, or kernel.io_uring_disabled) or \
                               is too old for it, so threads do its work, which takes longer";

/// So did daemons that did not say.
const fn by_io_uring() -> bool {
    true
}

/// Messages on their way to the leaves of the index. Bytes are before compression.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Index {
    /// Levels, with the leaves.
    pub levels: u8,
    /// Bytes of messages in memory.
    pub memory: u64,
    /// Range deletes in memory.
    pub memory_ranges: u64,
    /// Interior nodes that were looked at for the buffers: the topmost 256.
    pub nodes: u64,
    /// Interior nodes that were seen and not looked at.
    pub nodes_left: u64,
    /// Messages in the buffers, but for range deletes.
    pub messages: u64,
    /// Their bytes.
    pub pending: u64,
    /// Range deletes in the buffers.
    pub ranges: u64,
}

impl From<ashlar_pool::Buffers> for Index {
    fn from(found: ashlar_pool::Buffers) -> Index {
        let ashlar_pool::Buffers { memory: (memory, memory_ranges), levels, nodes, pending, messages, ranges, left } =
            found;
        Index { levels, memory, memory_ranges, nodes, nodes_left: left, messages, pending, ranges }
    }
}

/// What one floor read and wrote.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Floor {
    /// Which.
    pub name: String,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Bytes written for each byte written through all mounts; none before anything was.
    pub amplification: Option<f64>,
}

impl Floor {
    /// What the pool's floors did, below mounts that read and wrote so much.
    pub fn all(read: u64, written: u64, costs: &ashlar_pool::Costs) -> Vec<Floor> {
        let floor = |name: &str, read: u64, bytes: u64| {
            let amplification = (written > 0).then(|| bytes as f64 / written as f64);
            Floor { name: name.into(), read, written: bytes, amplification }
        };
        vec![
            floor("mounts", read, written),
            floor("log", 0, costs.log),
            floor("index", 0, costs.nodes),
            floor("cleaner", 0, costs.moved),
            floor("superblocks", 0, costs.superblocks),
            floor("devices", costs.reads.1, costs.written()),
        ]
    }
}

/// Zones of a write-optimized file system.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Zones {
    /// A directory with more below it, in contents or in names, becomes one. Bytes.
    pub largest: u64,
    /// Files up to this size are kept in the index. Bytes.
    pub inline: u64,
    /// Directories and files that became zones.
    pub splits: u64,
    /// Zones that were merged with the one above.
    pub merges: u64,
    /// Files without names that are in use.
    pub orphans: u64,
}

impl From<(ashlar_betr::Zones, ashlar_betr::Counters)> for Zones {
    fn from((zones, counters): (ashlar_betr::Zones, ashlar_betr::Counters)) -> Zones {
        let ashlar_betr::Counters { splits, merges, orphans } = counters;
        Zones { largest: zones.largest.0, inline: zones.inline.0, splits, merges, orphans }
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
    /// Index nodes that were damaged and are put right from parity.
    #[serde(default)]
    pub recovered: u64,
    /// Batches of index nodes with damage in what nobody has read yet, such as their parity, that is put right.
    #[serde(default)]
    pub mended_batches: u64,
    /// Batches of index nodes that have no parity any more, since too much of it is damaged.
    #[serde(default)]
    pub unprotected: u64,
    /// Contradictions in metadata, which are defects of this software.
    pub inconsistent: Vec<String>,
    /// What segments hold alive was not compared with their counts: the pool was too short of room meanwhile.
    #[serde(default)]
    pub uncounted: bool,
    /// File systems that nothing was ever written to, since making them was cut off: harmless.
    #[serde(default)]
    pub empty: Vec<String>,
    /// What `--repair` did; the rest of the report is about what is left.
    pub repaired: Vec<String>,
}

/// What devices were told is free.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TrimReport {
    /// Bytes that devices were told about.
    pub trimmed: u64,
    /// Bytes that are free, too, and were not: they are for who writes next, were taken meanwhile, or lie on a device that is unable.
    pub kept: u64,
    /// Bytes that files of the pool took from their file systems before and do not take any more; nothing of devices that are no files.
    pub given_back: u64,
    /// Devices that cannot be told.
    pub unable: Vec<String>,
}

impl fmt::Display for TrimReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [trimmed, kept, given_back] = [self.trimmed, self.kept, self.given_back].map(Bytes);
        writeln!(f, "trimmed {trimmed} that are free, and kept {kept}")?;
        if self.given_back > 0 {
            writeln!(f, "files of the pool take {given_back} less from their file systems")?;
        }
        for device in &self.unable {
            writeln!(f, "cannot be told what is free: {device}")?;
        }
        Ok(())
    }
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
            (None, Some(pid)) => writeln!(f, "mount     none (process {pid}); `ashlar mount` mounts it")?,
            _ => writeln!(f, "mount     none; `ashlar up` mounts it")?,
        }
        writeln!(f, "capacity  {}", Bytes(self.capacity))?;
        writeln!(f, "used      {} ({:.1} %)", Bytes(self.used), percent(self.used))?;
        writeln!(f, "free      {}", Bytes(self.free))?;
        if self.unused_ends > 0 {
            let more = Bytes(self.unused_ends);
            writeln!(f, "          devices became larger by {more}, which `ashlar pool grow` takes")?;
        }
        if self.full_below {
            writeln!(f, "          the file system that holds the devices has no room for more")?;
        }
        if let Some(stopped) = &self.stopped {
            writeln!(f, "stopped   no changes since: {stopped}; mend that, then `ashlar down` and `ashlar up`")?;
        }
        writeln!(f, "memory    {} of {}", Bytes(self.memory), Bytes(self.memory_limit))?;
        if !self.io_uring {
            writeln!(f, "io_uring  none: {NO_IO_URING}")?;
        }
        if self.recovered > 0 {
            writeln!(f, "recovered {}, and `ashlar check` looks at all of it", of_parity(self.recovered))?;
        }
        if let Some(Zones { largest, inline, splits, merges, orphans }) = &self.zones {
            let (largest, inline) = (Bytes(*largest), Bytes(*inline));
            write!(f, "zones     up to {largest}, files up to {inline} in the index; ")?;
            writeln!(f, "{splits} made, {merges} merged, {orphans} files in use without names")?;
        }
        if let Some(removed) = self.removed {
            writeln!(f, "removing  trees that were taken away: {removed} names so far")?;
        }
        if let Some(index) = &self.index {
            let Index { levels, memory, memory_ranges, nodes, nodes_left, messages, pending, ranges } = index;
            writeln!(f, "index     {levels} levels; in memory {} and {memory_ranges} range deletes", Bytes(*memory))?;
            write!(
                f,
                "buffers   {messages} messages of {} and {ranges} range deletes in {nodes} nodes",
                Bytes(*pending)
            )?;
            let more = if *nodes_left > 0 { format!("; {nodes_left} more were not looked at") } else { String::new() };
            writeln!(f, "{more}")?;
        }
        if self.floors.iter().any(|floor| floor.read + floor.written > 0) {
            writeln!(f, "\n{:<18}{:>12}{:>12}{:>12}", "since it is up", "read", "written", "for a byte")?;
            for Floor { name, read, written, amplification } in &self.floors {
                let ratio = amplification.map_or_else(|| "-".to_string(), |ratio| format!("{ratio:.2}"));
                writeln!(
                    f,
                    "{name:<18}{:>12}{:>12}{ratio:>12}",
                    Bytes(*read).to_string(),
                    Bytes(*written).to_string()
                )?;
            }
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

/// Says that nodes were damaged and are not any more.
fn of_parity(nodes: u64) -> String {
    format!("damaged index nodes put right from parity: {nodes}; a device gives bad data")
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "verified {}: {} index nodes, {} extents", Bytes(self.bytes), self.nodes, self.extents)?;
        if self.recovered > 0 {
            writeln!(f, "recovered: {}", of_parity(self.recovered))?;
        }
        if self.mended_batches > 0 {
            let batches = self.mended_batches;
            writeln!(
                f,
                "recovered: batches of index nodes whose parity was damaged: {batches}; a device gives bad data"
            )?;
        }
        if self.unprotected > 0 {
            let batches = self.unprotected;
            writeln!(
                f,
                "unprotected: batches of index nodes that have no parity any more: {batches}; all that is needed of them can be \
                 read, but one more fault would lose keys: make a backup, and look after the device"
            )?;
        }
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
        if self.uncounted {
            writeln!(
                f,
                "not compared: counts of live bytes; what is deleted was needed at once. Check again when less is written"
            )?;
        }
        for name in &self.empty {
            writeln!(
                f,
                "empty: {name}: making this file system was cut off; `ashlar fs create {name}` makes it, `ashlar fs \
                 destroy {name}` or `ashlar check --repair` takes the name away"
            )?;
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
