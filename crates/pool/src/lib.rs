//! Pool: volumes on append-only segments.
//!
//! A volume is a sparse space of 4 KiB blocks and a dictionary beside it, both in one tree; a transaction changes blocks
//! and keys of any volumes, all or nothing.
//!
//! Invariants
//!  1. What a commit did is in memory at once, in the log in commit order, and after [`Pool::sync`] survives any crash.
//!  2. Recovery yields a prefix of the commits that contains every synced one.
//!  3. Nothing that the newest durable superblock, or the log behind it, refers to is ever overwritten.
//!  4. Every byte read is verified against a checksum that its parent holds.
//!
//! Layout    the module [`mod@format`].
//! Needs     a device flush is a barrier; a block of 4 KiB may tear, a batch too: checksums find it.
//! Costs     a sync writes one batch and flushes once, for all who wait; a checkpoint flushes twice.

pub mod format;
pub mod map;

mod accounts;
mod ahead;
mod anatomy;
mod assemble;
mod check;
mod checkpoint;
mod clean;
mod commit;
mod costs;
#[cfg(test)]
mod fuzz;
mod gate;
mod grow;
mod load;
mod memory_faults;
mod mend;
mod nodes;
mod open;
mod pack;
mod parity;
pub mod patches;
mod places;
mod provision;
mod rate;
mod replay;
mod rules;
mod scan;
mod space;
mod store;
mod stream;
mod trim;
mod turns;
mod underway;
mod volume;
mod volumes;

pub use ahead::Wanted;
pub use anatomy::{Holds, Part, Region};
pub use ashlar_index::{Buffers, Limits};
pub use check::{Checked, Damage, Damaged};
pub use commit::{Applied, OPERATIONS_BYTES_MAX, Txn, TxnData};
pub use costs::Costs;
pub use format::VolumeKind;
pub use grow::Enlarged;
pub use load::Load;
pub use memory_faults::InMemory;
pub use mend::{Forgotten, Mended};
pub use open::{Compression, Config, Creation};
pub use rules::Rule;
pub use trim::Trimmed;
pub use volume::Volume;
pub use volumes::VolumeInfo;

use crate::format::Stream;
use crate::map::Map;
use crate::space::{Layout, Space, Usage};
use crate::stream::StreamState;
use ashlar_block::{Error, Kind, Medium, Result};
use ashlar_env::Env;
use ashlar_index::Tree;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Tree of the catalog: segments and volumes.
pub(crate) const CATALOG: u64 = 0;

/// An open pool. Cheap to clone.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

/// A transaction's place in the log; see [`Pool::sync`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Seq(pub(crate) u64);

/// What the log's lock protects.
struct Log {
    stream: StreamState,
    /// Live bytes that commits since the last freeze added.
    usage: Usage,
    /// References that commits since the last freeze removed from memtables, by volume.
    lost: HashMap<u64, Vec<map::Run>>,
    /// Birth of references that are made now: the number of the checkpoint that will hold them.
    birth: u64,
    /// Bytes of log since the last checkpoint.
    bytes: u64,
}

impl Log {
    /// Counts a new reference to (part of) an extent. A segment lives as long as its references weigh anything, so
    /// that shared extents need no counters of their own.
    fn count(&mut self, run: &map::Run) {
        *self.usage.entry(space::slot_of(run.uid)).or_default() += run.weight() as i64;
    }
    /// Notes references that a commit removed.
    fn lose(&mut self, tree: u64, mut lost: map::Lost) {
        if !lost.runs.is_empty() {
            self.lost.entry(tree).or_default().append(&mut lost.runs);
        }
    }
}

struct VolumeState {
    name: String,
    tree: Arc<Tree<Map>>,
    kind: VolumeKind,
    /// Bytes of its tree's nodes at the last checkpoint, about.
    nodes: u64,
    /// It is being destroyed: it takes no more changes.
    closing: bool,
}

/// Batches of one stream that are sealed and not yet on the device.
#[derive(Default)]
struct Outstanding {
    tickets: Mutex<BTreeSet<u64>>,
    /// Payload that is appended and not yet on the device, sealed or not.
    bytes: AtomicUsize,
    /// Bytes that were written since the pool was opened.
    written: AtomicU64,
    done: tokio::sync::Notify,
}

pub(crate) struct Shared {
    env: Env,
    config: Config,
    /// What the devices are made of, as far as that is known.
    medium: Medium,
    limits: Limits,
    layout: Layout,
    pool: u64,
    space: Space,
    log: Mutex<Log>,
    /// Nodes, then cold data.
    side: [Mutex<StreamState>; 2],
    outstanding: [Outstanding; 3],
    /// Extents and nodes that are not yet on the device, by birth address.
    in_flight: RwLock<HashMap<(u64, u32), Bytes>>,
    /// Batches of the log up to this number are durable.
    durable: AtomicU64,
    syncing: tokio::sync::Mutex<()>,
    /// When somebody synced last, as [`ashlar_env::Instant`] counts.
    synced: AtomicU64,
    turns: turns::Turns<commit::Position>,
    /// Bytes of data for which there is room and which are not yet applied.
    promised: AtomicUsize,
    /// Held for writing while the cleaner moves extents, for reading by transactions that copy references.
    moving: Arc<tokio::sync::RwLock<()>>,
    checkpointing: tokio::sync::Mutex<()>,
    /// Who has room set aside.
    providing: tokio::sync::Mutex<()>,
    /// Generation of the newest superblock.
    generation: AtomicU64,
    cache: nodes::NodeCache,
    underway: underway::Underway,
    ahead: ahead::Ahead,
    volumes: RwLock<BTreeMap<u64, VolumeState>>,
    /// Segments and volumes; see [`format::SlotRecord`] and [`format::VolumeRecord`]. Only checkpoints change it.
    catalog: Tree<Map>,
    /// Live bytes of nodes appended and not yet attributed to a checkpoint.
    node_usage: Mutex<Usage>,
    semantics: Arc<Map>,
    /// Where a damaged log was cut; see [`Config::cut_log`].
    cut: OnceLock<String>,
    poison: OnceLock<Error>,
    packers: pack::Packers,
    /// Bytes that loads bring into the next checkpoints past the memtables.
    loading: AtomicU64,
    /// Who makes space because a write found none.
    searching: tokio::sync::Mutex<()>,
    /// How often that was done.
    space_rounds: AtomicU64,
    /// Whether the last of them found any.
    space_gained: AtomicBool,
    /// Something was deleted since.
    deleted: AtomicBool,
    /// Readers hold the current epoch; slots that a checkpoint emptied wait for the epochs before it.
    epoch: RwLock<Arc<Epoch>>,
    draining: Mutex<VecDeque<(Arc<Epoch>, Vec<u32>)>>,
    /// Bytes that the cleaner copied.
    moved: AtomicU64,
    counted: costs::Counted,
    /// Rung when a checkpoint is due.
    due: tokio::sync::Notify,
    stopped: AtomicBool,
    /// Rounds of `scrub_cache`.
    scrubs: AtomicU64,
}

/// Kept by readers; see `Shared::epoch`.
pub(crate) struct Epoch;

/// How a pool fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Bytes that segments can hold.
    pub capacity: u64,
    /// Bytes in use, with metadata.
    pub used: u64,
    /// Bytes that ordinary writes can still take.
    pub free: u64,
    /// Bytes of memtables, node cache, unwritten batches, and what was read ahead.
    pub memory: u64,
    /// Checkpoints since creation.
    pub generation: u64,
    /// Bytes of data that the cleaner moved since the pool was opened.
    pub moved: u64,
}

/// Who goes through all of a volume may hold this part of the pool's memory besides.
const BESIDE_SHARE: u64 = 8;
/// So many things may be held in any case.
const BESIDE_MIN: usize = 4096;

impl Pool {
    /// How many things of so many bytes somebody who goes through all of a volume may hold at a time: an eighth of the memory
    /// that the pool was given, beside it.
    pub fn held_beside(&self, bytes_each: usize) -> usize {
        ((self.0.config.memory.0 / BESIDE_SHARE) as usize / bytes_each.max(1)).max(BESIDE_MIN)
    }

    /// What the devices are made of: disks, unless they are known to be flash.
    pub fn medium(&self) -> Medium {
        self.0.medium
    }

    /// Numbers for people.
    pub fn status(&self) -> Status {
        let shared = &*self.0;
        let segment = shared.layout.segment_bytes();
        let (mut used, mut free) = (0u64, 0u64);
        for slot in shared.space.slots() {
            match slot.state {
                space::State::Free => free += segment,
                _ => used = used.saturating_add((slot.live + slot.catalog).max(0) as u64),
            }
        }
        let fresh: i64 = shared.log.lock().usage.values().sum();
        let memory = |volume: &VolumeState| volume.tree.memory().0 + volume.tree.memory().1;
        let memtables: usize = shared.volumes.read().values().map(memory).sum();
        let in_flight: usize = shared.outstanding.iter().map(|stream| stream.bytes.load(Ordering::Relaxed)).sum();
        let memory = (memtables + in_flight) as u64 + shared.cache.bytes() + shared.ahead.bytes();
        let capacity = u64::from(shared.layout.slots_count()) * segment;
        let free = free.saturating_sub(shared.space.refused() as u64 * segment);
        let used = used.saturating_add_signed(fresh).min(capacity);
        let reserve = shared.space.reserve() as u64 * segment;
        let free = free.saturating_sub(reserve).min((capacity - used).saturating_sub(reserve));
        let (generation, moved) = (shared.generation.load(Ordering::Relaxed), shared.moved.load(Ordering::Relaxed));
        Status { capacity, used, free, memory, generation, moved }
    }

    /// Whether ordinary writes can take so many bytes more, with nothing freed, and changes are accepted at all.
    pub fn has_room(&self, bytes: u64) -> bool {
        let shared = &*self.0;
        shared.poison.get().is_none() && shared.space.spare() as u64 * shared.layout.segment_bytes() >= bytes
    }

    /// Whether devices are thin, and none had room for more than is used and free when it was asked last.
    pub fn is_full_below(&self) -> bool {
        self.0.space.is_full_below()
    }

    /// Why no changes are accepted any more, if that is so.
    pub fn stopped(&self) -> Option<String> {
        self.0.poison.get().map(ToString::to_string)
    }

    /// What was lost when a damaged log was cut at opening.
    pub fn cut(&self) -> Option<&str> {
        self.0.cut.get().map(String::as_str)
    }

    /// The runtime.
    pub fn env(&self) -> &Env {
        &self.0.env
    }
}

impl Shared {
    /// Refuses everything after a device failed in the middle of a write.
    fn admit(&self) -> Result<()> {
        match self.poison.get() {
            Some(error) => {
                let message = format!("the pool stopped accepting changes after: {error}; close it and open it again");
                Err(Error::new(Kind::Poisoned, message))
            }
            None => Ok(()),
        }
    }
    fn poisoned(&self, error: Error) -> Error {
        let _ = self.poison.set(error.clone());
        for outstanding in &self.outstanding {
            outstanding.done.notify_waiters();
        }
        error
    }
    /// Whether a rule is kept; see [`Config::without`].
    fn keeps(&self, rule: Rule) -> bool {
        self.config.without != Some(rule)
    }
    fn pin(&self) -> Arc<Epoch> {
        self.epoch.read().clone()
    }
    fn tree(&self, id: u64) -> Result<Arc<Tree<Map>>> {
        let tree = self.volumes.read().get(&id).map(|volume| volume.tree.clone());
        tree.ok_or_else(|| Error::misuse(format!("there is no volume {id}")))
    }
    fn outstanding(&self, stream: Stream) -> &Outstanding {
        &self.outstanding[stream.code() as usize]
    }
    fn side(&self, stream: Stream) -> &Mutex<StreamState> {
        match stream {
            Stream::Nodes => &self.side[0],
            Stream::Cold => &self.side[1],
            Stream::Log => unreachable!("the log has a lock of its own"),
        }
    }
}
