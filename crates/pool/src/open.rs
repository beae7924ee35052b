//! Creating and opening pools.

use crate::ahead::{self, Ahead};
use crate::assemble::{Member, assemble, newest_superblock, require_room, write_first_superblock};
use crate::costs::Counted;
use crate::format::{
    DEVICES_MAX, DeviceRecord, LogPosition, SEGMENT_BLOCKS_MAX, SlotRecord, Stream, Superblock, VolumeRecord,
    segment_size_for,
};
use crate::map::Map;
use crate::nodes::NodeCache;
use crate::space::{Layout, Space, Usage, slot_of};
use crate::stream::StreamState;
use crate::{CATALOG, Epoch, Log, Pool, Rule, Shared, VolumeState};
use ashlar_block::{Device, Error, Kind, Medium, Result};
use ashlar_env::Env;
use ashlar_index::{Key, Limits, NodePtr, NodeStore, Seat, Tree, prefix_end};
use ashlar_units::{Blocks, Bytes as Size};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Bound on the numbers of volumes, which count up.
const VOLUME_ID_MAX: u64 = 1 << 62;
/// Share of the memory budget for cached nodes and for what is read ahead.
const NODE_CACHE_SHARE: u64 = 2;

/// How extents are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not at all.
    Off,
    /// With lz4.
    #[default]
    Lz4,
    /// With zstd at this level, 1 to 22.
    Zstd(i32),
}

/// How an open pool behaves.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Bound on cached nodes, memtables and unwritten batches together.
    pub memory: Size,
    /// A checkpoint is due when the log is longer than this; recovery reads no more.
    pub log_bytes: Size,
    /// How new extents are compressed.
    pub compression: Compression,
    /// Cut the log where it is damaged, instead of refusing to open: what was committed later is lost.
    pub cut_log: bool,
    /// What the devices are made of; `None`: what they say, and a disk if they do not say it or are not alike. It decides how
    /// wide the index is, and may be another one each time.
    pub medium: Option<Medium>,
    /// How large nodes of the index become; `None`: as suits the medium. For explorations, whose few keys would all lie in one leaf.
    pub nodes: Option<Limits>,
    /// Give index nodes parity. For explorations, which want to see what damage does without.
    pub parity: bool,
    /// A rule to break, for explorations that must notice.
    pub without: Option<Rule>,
    /// Take what devices give for extents and index nodes without looking at its checksum: for explorations that must
    /// notice.
    pub unverified: bool,
    /// Look from time to time for nodes in the cache that bad memory changed. Simulations of days do without: their clock
    /// goes a thousand times faster than memory goes bad, and this would be most of their work.
    pub scrub: bool,
}

impl Default for Config {
    fn default() -> Config {
        let (memory, log_bytes) = (Size(256 << 20), Size(256 << 20));
        Config {
            memory,
            log_bytes,
            compression: Compression::default(),
            cut_log: false,
            medium: None,
            nodes: None,
            parity: true,
            without: None,
            unverified: false,
            scrub: true,
        }
    }
}

/// How a pool is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Creation {
    /// Segment size in blocks, a power of two; by default from the largest device.
    pub segment: Option<Blocks>,
    /// Overwrite devices that hold a pool.
    pub force: bool,
}

impl Pool {
    /// Writes an empty pool on these devices.
    pub async fn create(env: &Env, devices: &[Device], creation: Creation) -> Result<()> {
        if devices.is_empty() || devices.len() > DEVICES_MAX {
            return Err(Error::misuse(format!("a pool has 1 to {DEVICES_MAX} devices, not {}", devices.len())));
        }
        let largest = devices.iter().map(|device| device.geometry().capacity).max().unwrap_or_default();
        let segment = creation.segment.unwrap_or_else(|| segment_size_for(largest));
        if !segment.0.is_power_of_two() {
            return Err(Error::misuse(format!("a segment of {segment} is not a power of two")));
        }
        if segment.0 > SEGMENT_BLOCKS_MAX {
            let largest = Blocks(SEGMENT_BLOCKS_MAX).to_bytes();
            return Err(Error::misuse(format!(
                "segments of {} are too large: the largest are {largest}; split a device that needs larger ones",
                segment.to_bytes()
            )));
        }
        for device in devices {
            require_room(device, segment)?;
            if !creation.force && newest_superblock(device).await?.is_some() {
                let message = format!(
                    "{}: holds a pool already; open that, or overwrite it with --force (its data is lost)",
                    device.name()
                );
                return Err(Error::misuse(message));
            }
        }
        let records: Vec<_> = devices
            .iter()
            .map(|device| DeviceRecord { id: env.random(), capacity: device.geometry().capacity })
            .collect();
        let pool = env.random();
        for (index, device) in devices.iter().enumerate() {
            let superblock = Superblock {
                pool,
                generation: 0,
                born: 1,
                device: index as u32,
                part_of: None,
                devices: records.clone(),
                segment,
                catalog: None,
                log: LogPosition { seq: 1, ..LogPosition::default() },
            };
            write_first_superblock(device, &superblock).await?;
        }
        Ok(())
    }

    /// Opens a pool: reads the newest superblock and replays the log behind it. The devices may come in any order.
    pub async fn open(env: &Env, devices: Vec<Device>, config: Config) -> Result<Pool> {
        let (superblock, members) = assemble(devices).await?;
        let medium = config.medium.or_else(|| medium_of(&members)).unwrap_or(Medium::Disk);
        let limits = config.nodes.unwrap_or(match medium {
            Medium::Flash => Limits::NARROW,
            Medium::Disk => Limits::WIDE,
        });
        let layout = Layout::new(superblock.segment);
        for (member, record) in members.into_iter().zip(&superblock.devices) {
            layout.add(member, *record)?;
        }
        let slots_count = layout.slots_count();
        // More segments cannot have been begun since the superblock: a slot is freed only by a checkpoint.
        let born = superblock.born + 2 * u64::from(slots_count);
        let semantics = Arc::new(Map);
        let log = StreamState::new(Stream::Log, superblock.pool, false);
        let side = [Stream::Nodes, Stream::Cold];
        let pool = Pool(Arc::new(Shared {
            env: env.clone(),
            config,
            medium,
            limits,
            pool: superblock.pool,
            space: Space::new(born, superblock.segment),
            log: Mutex::new(Log {
                stream: log,
                usage: Usage::new(),
                lost: HashMap::new(),
                birth: superblock.generation + 1,
                bytes: 0,
            }),
            side: side.map(|stream| {
                let has_parity = config.parity && stream == Stream::Nodes;
                Mutex::new(StreamState::new(stream, superblock.pool, has_parity))
            }),
            outstanding: Default::default(),
            layout,
            in_flight: RwLock::default(),
            durable: AtomicU64::new(0),
            syncing: Default::default(),
            synced: Default::default(),
            turns: Default::default(),
            promised: Default::default(),
            moving: Default::default(),
            providing: Default::default(),
            checkpointing: Default::default(),
            generation: AtomicU64::new(superblock.generation),
            cache: NodeCache::new(config.memory.0 / NODE_CACHE_SHARE - config.memory.0 / ahead::MEMORY_SHARE),
            underway: Default::default(),
            ahead: Ahead::new(config.memory.0),
            volumes: RwLock::default(),
            catalog: Tree::open(CATALOG, superblock.catalog, semantics.clone()),
            node_usage: Mutex::default(),
            semantics,
            cut: OnceLock::new(),
            packers: Default::default(),
            counted: Counted::default(),
            loading: AtomicU64::new(0),
            space_rounds: AtomicU64::new(0),
            deleted: AtomicBool::new(false),
            poison: OnceLock::new(),
            epoch: RwLock::new(Arc::new(Epoch)),
            draining: Mutex::default(),
            searching: Default::default(),
            space_gained: AtomicBool::new(false),
            moved: AtomicU64::new(0),
            due: Default::default(),
            stopped: AtomicBool::new(false),
            scrubs: AtomicU64::new(0),
        }));
        pool.0.layout.places().for_each(|place| pool.0.space.add(place));
        pool.load_catalog(superblock.catalog).await.map_err(|error| {
            let help = match error.kind() {
                Kind::Corrupt => "; nothing can be found without it: restore the devices from a backup",
                _ => "",
            };
            Error::new(error.kind(), format!("the pool's catalog: {error}{help}"))
        })?;
        let shared = &pool.0;
        shared.note_pending();
        let chain = shared.replay(superblock.log).await?;
        shared.log.lock().stream.chain = chain;
        shared.durable.store(chain.durable, Ordering::Release);
        pool.provision().await;
        pool.checkpoint().await?;
        drop(env.spawn(pool.clone().background()));
        if pool.0.layout.places().any(|place| place.device.capability().thin) {
            drop(env.spawn(pool.clone().provider()));
        }
        Ok(pool)
    }

    /// Volumes, and live bytes of segments.
    async fn load_catalog(&self, root: Option<NodePtr>) -> Result<()> {
        let shared = &self.0;
        // The catalog cannot count its own nodes, so they are counted here: its leaves are not read for that.
        let mut pending: Vec<Seat> = root.map(Seat::root).into_iter().collect();
        while let Some(seat) = pending.pop() {
            shared.space.adopt(seat.ptr.uid, 0, i64::from(seat.ptr.len))?;
            let node = self.load(seat.ptr).await?;
            node.check_seat(&seat)?;
            match node.level() {
                0 => {}
                1 => {
                    for child in node.pointers() {
                        shared.space.adopt(child.uid, 0, i64::from(child.len))?;
                    }
                }
                _ => pending.extend(node.below(&seat)),
            }
        }
        for (key, value) in self.catalog_range(&[SlotRecord::PREFIX]).await? {
            let record = SlotRecord::decode(&value)?;
            if SlotRecord::key(slot_of(record.uid)) != key {
                return Err(Error::corrupt(format!("segment {:#x} is recorded in a wrong slot", record.uid)));
            }
            shared.space.adopt(record.uid, record.live as i64, 0)?;
        }
        for (key, value) in self.catalog_range(&[VolumeRecord::PREFIX]).await? {
            let id = VolumeRecord::id(&key).ok_or_else(|| Error::corrupt("a volume's key is cut short"))?;
            let record = VolumeRecord::decode(&value)?;
            if id == CATALOG || id > VOLUME_ID_MAX {
                return Err(Error::corrupt(format!("there is a volume of number {id}, which cannot be")));
            }
            let tree = Arc::new(Tree::open(id, record.root, shared.semantics.clone()));
            let state = VolumeState { name: record.name, tree, kind: record.kind, nodes: record.nodes, closing: false };
            shared.volumes.write().insert(id, state);
        }
        Ok(())
    }

    /// Everything in the catalog under keys that begin with `prefix`.
    pub(crate) async fn catalog_range(&self, prefix: &[u8]) -> Result<Vec<(Key, Bytes)>> {
        let (mut low, high) = (Key::from_slice(prefix), prefix_end(prefix));
        let mut found = Vec::new();
        loop {
            let page = self.0.catalog.page(self, &low, high.as_deref(), 4096).await?;
            found.extend(page.entries);
            match page.next {
                Some(next) => low = next,
                None => return Ok(found),
            }
        }
    }
}

/// What all these devices say that they are made of, if they say the same.
fn medium_of(members: &[Member]) -> Option<Medium> {
    let mut said = members.iter().map(|member| member.whole.capability().medium);
    let first = said.next()?;
    first.filter(|_| said.all(|other| other == first))
}
