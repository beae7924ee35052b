//! What everything of an open store shares, and the queue of changes that are accepted and not yet written.

use crate::disk::{Disk, READ};
use crate::format::{Entry, Onode, Place, Record};
use crate::layout::{Config, Kind};
use crate::names::Names;
use crate::rules::Rule;
use crate::space::Space;
use crate::table::{BuildSpread, Table};
use ashlar_block::{Error as BlockError, Kind as ErrorKind};
use ashlar_env::Env;
use ashlar_objects::{Attributes, Name, Result};
use ashlar_units::Bytes as Size;
use bytes::Bytes;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Versions of one opening: the low bits of a number.
pub const NUMBER_BITS: u32 = 40;
/// Accepted changes wait no longer than this (the thesis flushes its delete log every second).
pub const WAIT_MAX: Duration = Duration::from_secs(1);
/// More retirements than this do not wait (section 6.2.1).
pub const RETIREMENTS_MAX: usize = 16;

/// How much memory an open store may take, and what an exploration breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes for the lookup table, the index of names, onodes, bitmaps and changes that wait.
    pub bytes: Size,
    /// A rule to break, for explorations.
    pub without: Option<Rule>,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { bytes: Size::mib(256), without: None }
    }
}

impl Memory {
    /// For bitmaps of regions, in regions.
    pub(crate) fn regions(&self, config: &Config) -> usize {
        (self.bytes.0 / 8 / (config.region.0 / 4096 / 2).max(1)).max(4) as usize
    }
    /// For changes that wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.bytes.0 / 4
    }
}

/// A new copy of an object.
#[derive(Debug)]
pub struct Put {
    pub(crate) data: Vec<Bytes>,
    pub(crate) attributes: Attributes,
    pub(crate) size: u64,
    pub(crate) checksum: u64,
    pub(crate) modified: Duration,
    /// Size that it will have.
    pub(crate) expected: u64,
    /// Objects that become part of it, and cease.
    pub(crate) ends: Vec<(u128, Name)>,
}

/// What happens to an object.
#[derive(Debug)]
pub enum What {
    /// It has this copy.
    Put(Put),
    /// There is none.
    Deleted,
}

/// A change that is accepted and perhaps not yet written.
#[derive(Debug)]
pub struct Pending {
    pub(crate) id: u128,
    pub(crate) name: Name,
    /// Version and number of the copy.
    pub(crate) number: u64,
    pub(crate) what: What,
    /// Somebody waits until it is durable.
    pub(crate) sync: bool,
    /// A place refused it: its next copy needs a number that no retired one has.
    pub(crate) refused: AtomicBool,
    pub(crate) done: OnceLock<Result<()>>,
}

impl Pending {
    /// Bytes that it keeps in memory.
    pub(crate) fn bytes(&self) -> u64 {
        256 + match &self.what {
            What::Put(put) => put.size + put.ends.len() as u64 * 64,
            What::Deleted => 0,
        }
    }
    /// Bytes that it may need of the log.
    pub(crate) fn log_bytes(&self) -> u64 {
        let delete = |name: &Name| 48 + name.as_bytes().len() as u64;
        64 + match &self.what {
            What::Put(put) => put.ends.iter().map(|(_, name)| delete(name)).sum(),
            What::Deleted => delete(&self.name),
        }
    }
}

/// Room that is promised to what waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Room {
    pub(crate) free_regions: u64,
    pub(crate) units: u64,
    pub(crate) slots: u64,
    pub(crate) blocks: u64,
}

/// Accepted changes.
#[derive(Default)]
pub struct Queue {
    /// The newest change of each object, until the table knows it.
    pub(crate) pending: HashMap<u128, Arc<Pending>, BuildSpread>,
    /// Not yet being written, in order.
    pub(crate) order: Vec<Arc<Pending>>,
    pub(crate) bytes: u64,
    pub(crate) log_bytes: u64,
    /// The last number that was given.
    pub(crate) number: u64,
    /// What they need.
    pub(crate) promised: Room,
    /// What there was when the last batch was written.
    pub(crate) room: Room,
    /// Somebody will look after them within [`WAIT_MAX`].
    pub(crate) timer: bool,
}

/// A copy that does not count any more.
pub struct Retired {
    pub(crate) place: Place,
    pub(crate) extents: Vec<crate::format::Extent>,
    pub(crate) blocks: u32,
}

/// What only one task does at a time: writing.
#[derive(Default)]
pub struct Writer {
    /// The next block of the log.
    pub(crate) seq: u64,
    /// The first block of the log that is still needed.
    pub(crate) start: u64,
    /// Records that are not yet in the log.
    pub(crate) records: Vec<Record>,
    /// Copies that they retire.
    pub(crate) retired: Vec<Retired>,
    /// Writes were acknowledged by the device since its last flush.
    pub(crate) unflushed: bool,
}

/// Events since the store was opened.
#[derive(Default)]
pub struct Counts {
    /// How often the index of names was made anew, since it was damaged.
    pub(crate) names_rebuilt: AtomicU64,
    pub(crate) moved: AtomicU64,
    pub(crate) cleaned: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) fragments: AtomicU64,
    pub(crate) placed_small: AtomicU64,
}

/// See the module.
pub struct Shared {
    pub(crate) disk: Disk,
    pub(crate) env: Env,
    pub(crate) config: Config,
    pub(crate) memory: Memory,
    pub(crate) hash_key: [u8; 32],
    pub(crate) epoch: u64,
    pub(crate) commit: AtomicU64,
    pub(crate) map_slot: AtomicU8,
    /// Copies up to this number are in a checkpoint, or count no more.
    pub(crate) frozen: AtomicU64,
    pub(crate) space: Mutex<Space>,
    pub(crate) table: Table,
    pub(crate) names: Names,
    pub(crate) onodes: Cache<u128, Arc<Onode>, crate::read::OnodeWeight, BuildSpread>,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) writer: tokio::sync::Mutex<Writer>,
    /// Changes are accepted under its shared side; a checkpoint keeps them out for a moment.
    pub(crate) gate: tokio::sync::RwLock<()>,
    /// Changes of one name happen one after another.
    pub(crate) locks: Vec<tokio::sync::Mutex<()>>,
    /// One checkpoint at a time.
    pub(crate) checkpointing: tokio::sync::Mutex<()>,
    /// One region is cleaned at a time.
    pub(crate) cleaning: tokio::sync::Mutex<()>,
    pub(crate) loading: tokio::sync::Mutex<()>,
    pub(crate) wants_checkpoint: AtomicBool,
    pub(crate) log_used: AtomicU64,
    pub(crate) objects: AtomicU64,
    pub(crate) failed: Mutex<Option<BlockError>>,
    pub(crate) counts: Counts,
    pub(crate) _guard: Guard,
}

impl Shared {
    /// Whether an order is kept. Asked where it would be broken.
    pub(crate) fn keeps(&self, rule: Rule) -> bool {
        self.memory.without != Some(rule)
    }

    /// Hash of a name: its place in the table.
    pub(crate) fn id(&self, name: &Name) -> u128 {
        hash(&self.hash_key, name)
    }

    /// The error that stopped the store, if any.
    pub(crate) fn alive(&self) -> Result<()> {
        match &*self.failed.lock() {
            None => Ok(()),
            Some(error) => {
                let message = format!("an earlier write failed ({error}): open the store again");
                Err(BlockError::new(ErrorKind::Poisoned, message).into())
            }
        }
    }

    /// Nobody knows what the device holds of what was being written.
    pub(crate) fn fail(&self, error: &BlockError) {
        self.failed.lock().get_or_insert_with(|| error.clone());
    }

    /// What a region holds, and since when.
    pub(crate) fn kind_of(&self, region: u32) -> Option<(Kind, u64)> {
        let space = self.space.lock();
        space.region(region).map(|region| (region.entry.kind, region.entry.birth))
    }

    /// Loads the bitmaps of a region, if they are not.
    pub(crate) async fn load(&self, region: u32) -> Result<(), BlockError> {
        if self.space.lock().is_loaded(region) {
            return Ok(());
        }
        let _loading = self.loading.lock().await;
        let entry = {
            let space = self.space.lock();
            if space.is_loaded(region) {
                return Ok(());
            }
            space.regions[region as usize].entry
        };
        let head = self.disk.head(region, entry.head).await;
        let head = head.and_then(|head| {
            if (head.kind, head.birth, head.generation) == (entry.kind, entry.birth, entry.generation) {
                return Ok(head);
            }
            Err(BlockError::corrupt(format!("region {region}: its head is that of another time")))
        });
        match head {
            Ok(head) => {
                self.space.lock().loaded(region, head);
                Ok(())
            }
            Err(error) => {
                if error.is_damage() {
                    self.condemn(region);
                }
                Err(error)
            }
        }
    }

    /// A region is damaged: nothing new goes there until it is repaired.
    pub(crate) fn condemn(&self, region: u32) {
        self.space.lock().condemn(region);
    }

    /// The onode of a copy, from memory or the device. It is that of the object, and of the copy.
    pub(crate) async fn onode(&self, id: u128, entry: Entry) -> Result<Arc<Onode>, BlockError> {
        if let Some(onode) = self.cached_onode(id, entry) {
            return Ok(onode);
        }
        let (kind, birth) = self.kind_of(entry.place.region).ok_or_else(nowhere)?;
        let onode = self.disk.onode(READ, kind, birth, entry.place).await?;
        if onode.id != id || onode.generation != entry.generation {
            return Err(nowhere());
        }
        let onode = Arc::new(onode);
        self.onodes.insert(id, onode.clone());
        Ok(onode)
    }

    /// The onode of a copy, if it is in memory.
    pub(crate) fn cached_onode(&self, id: u128, entry: Entry) -> Option<Arc<Onode>> {
        self.onodes.get(&id).filter(|onode| onode.generation == entry.generation && onode.place == entry.place)
    }

    /// The newest change of an object that the table does not know yet.
    pub(crate) fn waiting(&self, id: u128) -> Option<Arc<Pending>> {
        self.queue.lock().pending.get(&id).cloned()
    }

    /// Version of an object, if there is one.
    pub(crate) async fn version(&self, id: u128) -> Result<Option<u64>> {
        if let Some(pending) = self.waiting(id) {
            return Ok(matches!(pending.what, What::Put(_)).then_some(pending.number));
        }
        let cached = self.table.get_cached(&self.disk, id);
        let entry = match cached {
            Some(entry) => entry,
            None => self.table.get(&self.disk, id).await?,
        };
        // The table may have learnt of a change meanwhile; what waited for that is in it now.
        Ok(entry.map(|entry| entry.version))
    }

    /// Counts what there is room for.
    pub(crate) fn measure(&self) -> Room {
        let space = self.space.lock();
        let (units, slots, _) = space.room();
        let blocks = space.sure_blocks(self.largest_small());
        Room { free_regions: space.free_regions(), units, slots, blocks }
    }

    /// Counts an object that came or went, if it is one of users.
    pub(crate) fn count(&self, name: &Name, came: bool) {
        match (name.is_reserved(), came) {
            (true, _) => {}
            (false, true) => drop(self.objects.fetch_add(1, Ordering::Relaxed)),
            (false, false) => drop(self.objects.fetch_sub(1, Ordering::Relaxed)),
        }
    }

    /// A number that nothing else has.
    pub(crate) fn number(&self) -> u64 {
        let mut queue = self.queue.lock();
        queue.number += 1;
        queue.number
    }

    pub(crate) fn note_log(&self, writer: &Writer) {
        let used = writer.seq - writer.start;
        self.log_used.store(used, Ordering::Relaxed);
        if used * 2 > self.disk.layout.log_blocks || self.table.is_crowded() || self.names.is_crowded() {
            self.wants_checkpoint.store(true, Ordering::Relaxed);
        }
    }
}

/// Hash of a name under a key.
pub(crate) fn hash(key: &[u8; 32], name: &Name) -> u128 {
    let hash = blake3::keyed_hash(key, name.as_bytes());
    let mut low = [0; 16];
    low.copy_from_slice(&hash.as_bytes()[..16]);
    u128::from_le_bytes(low)
}

pub(crate) fn nowhere() -> BlockError {
    BlockError::corrupt("the lookup table leads to a place that holds something else")
}

/// How often a device that is in use is asked for again, and after what time: two seconds in all.
const GUARD_TRIES: u32 = 100;
const GUARD_RETRY: Duration = Duration::from_millis(20);

/// Devices on which a store is open in this process.
static OPEN: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Keeps a device to one store, in this process. Files and block devices are locked against others by themselves.
pub struct Guard(usize);

impl Guard {
    /// Takes a device; waits a little for a store that was let go and still has something under way.
    pub(crate) async fn of(env: &Env, device: &ashlar_block::Device) -> Result<Guard, BlockError> {
        let address = Arc::as_ptr(device).cast::<()>() as usize;
        for _ in 0..GUARD_TRIES {
            if OPEN.lock().insert(address) {
                return Ok(Guard(address));
            }
            env.sleep(GUARD_RETRY).await;
        }
        let message = format!("a store is open on {} already: close it first", device.name());
        Err(BlockError::misuse(message))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        OPEN.lock().remove(&self.0);
    }
}
