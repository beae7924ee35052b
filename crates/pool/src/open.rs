//! Creating and opening pools.

use crate::ahead::{self, Ahead};
use crate::costs::Counted;
use crate::format::{
    DEVICES_MAX, DeviceRecord, LogPosition, RING_SLOTS, SEGMENT_BLOCKS_MAX, SEGMENTS_MAX, SUPERBLOCK_BLOCKS,
    SUPERBLOCKS, SlotRecord, Stream, Superblock, VolumeRecord, segment_size_for, segments_on, superblock_slots,
};
use crate::map::Map;
use crate::nodes::NodeCache;
use crate::space::{Layout, RESERVE_MIN, Space, Usage, slot_of};
use crate::stream::StreamState;
use crate::{CATALOG, Epoch, Log, Pool, Rule, Shared, VolumeState};
use ashlar_block::{Device, Durability, Error, IoContext, Kind, Medium, Result, ResultExt};
use ashlar_env::Env;
use ashlar_index::{Key, Limits, NodePtr, NodeStore, Seat, Tree, prefix_end};
use ashlar_units::{Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

const OPEN: IoContext = IoContext::foreground("pool-open");
/// A pool needs its reserve and as much again.
const SEGMENTS_MIN: u64 = 2 * RESERVE_MIN as u64;
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
        let (superblock, devices) = assemble(devices).await?;
        let medium = config.medium.or_else(|| medium_of(&devices)).unwrap_or(Medium::Disk);
        let limits = config.nodes.unwrap_or(match medium {
            Medium::Flash => Limits::NARROW,
            Medium::Disk => Limits::WIDE,
        });
        let layout = Layout::new(superblock.segment);
        for (device, record) in devices.into_iter().zip(&superblock.devices) {
            layout.add(device, *record)?;
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

/// A device that is too small or too large for segments of this size is an error.
pub(crate) fn require_room(device: &Device, segment: Blocks) -> Result<()> {
    let capacity = device.geometry().capacity;
    if segments_on(capacity, segment) > SEGMENTS_MAX {
        let message = format!(
            "{}: segments of {} are too small for {}: a device has at most {SEGMENTS_MAX} of them; make them larger, or split the device",
            device.name(),
            segment.to_bytes(),
            capacity.to_bytes()
        );
        return Err(Error::misuse(message));
    }
    if segments_on(capacity, segment) >= SEGMENTS_MIN {
        return Ok(());
    }
    let need = SUPERBLOCKS.0 + SEGMENTS_MIN * segment.0;
    let message = format!(
        "{}: {} is too small: a pool with segments of {} needs at least {} on each device",
        device.name(),
        capacity.to_bytes(),
        segment.to_bytes(),
        Blocks(need).to_bytes()
    );
    Err(Error::misuse(message))
}

/// Writes a superblock over whatever a device held.
pub(crate) async fn write_first_superblock(device: &Device, superblock: &Superblock) -> Result<()> {
    let capacity = superblock.devices[superblock.device as usize].capacity;
    let blank = Bytes::from(vec![0; Blocks(RING_SLOTS * SUPERBLOCK_BLOCKS).to_bytes().0 as usize]);
    for at in superblock_slots(capacity, 0) {
        device.write(OPEN, at, vec![blank.clone()], Durability::Cached).await?;
    }
    device.flush(OPEN).await?;
    for at in superblock_slots(capacity, superblock.generation) {
        device.write(OPEN, at, vec![superblock.encode()], Durability::Cached).await?;
    }
    device.flush(OPEN).await
}

/// The slots of a ring. A bad sector takes its slot with it, not the ring: there is a copy in the other one.
async fn read_ring(device: &Device, at: Lba) -> Vec<Result<Bytes>> {
    let slot = Blocks(SUPERBLOCK_BLOCKS);
    if let Ok(ring) = device.read(OPEN, at, Blocks(RING_SLOTS * SUPERBLOCK_BLOCKS)).await {
        let len = slot.to_bytes().0 as usize;
        return (0..RING_SLOTS as usize).map(|index| Ok(ring.slice(index * len..(index + 1) * len))).collect();
    }
    let mut slots = Vec::new();
    for index in 0..RING_SLOTS {
        slots.push(device.read(OPEN, at + Blocks(index * slot.0), slot).await);
    }
    slots
}

/// The newest superblock on one device.
pub(crate) async fn newest_superblock(device: &Device) -> Result<Option<Superblock>> {
    let capacity = device.geometry().capacity;
    let ring = Blocks(RING_SLOTS * SUPERBLOCK_BLOCKS);
    let [front, back] = [Lba(0), Lba(capacity.0.saturating_sub(ring.0))];
    let mut newest: Option<Superblock> = None;
    let mut traces = false;
    let mut unreadable = None;
    for at in [front, back] {
        if at + ring > Lba(capacity.0) {
            continue;
        }
        for slot in read_ring(device, at).await {
            let slot = match slot {
                Ok(slot) => slot,
                Err(error) => {
                    unreadable = Some(error);
                    continue;
                }
            };
            traces |= Superblock::is_trace(&slot);
            let found = Superblock::decode(&slot).within(|| device.name())?;
            if let Some(found) = found
                && newest.as_ref().is_none_or(|newest| found.generation > newest.generation)
            {
                newest = Some(found);
            }
        }
    }
    if let (None, Some(error)) = (&newest, unreadable) {
        return Err(error.within(format!("{}: no superblock is readable", device.name())));
    }
    if newest.is_none() && traces {
        let message = format!(
            "{}: holds a pool of which no superblock is readable: the device is damaged; restore its contents, or make a \
             new pool with --force (its data is lost)",
            device.name()
        );
        return Err(Error::corrupt(message));
    }
    Ok(newest)
}

/// Refuses a device that is smaller than the pool knows it.
fn refuse_short(device: &Device, record: &DeviceRecord) -> Result<()> {
    let capacity = device.geometry().capacity;
    if capacity >= record.capacity {
        return Ok(());
    }
    let message = format!(
        "{}: is cut short: it had {} ({}) and now has {} ({}); restore its full size or its contents",
        device.name(),
        record.capacity.to_bytes(),
        record.capacity,
        capacity.to_bytes(),
        capacity
    );
    Err(Error::corrupt(message))
}

/// What all these devices say that they are made of, if they say the same.
fn medium_of(devices: &[Device]) -> Option<Medium> {
    let mut said = devices.iter().map(|device| device.capability().medium);
    let first = said.next()?;
    first.filter(|_| said.all(|other| other == first))
}

/// What to do about a device without a superblock, beside so many devices of a pool.
fn refuse_blank(device: &Device, pool: Option<&Superblock>, found: usize) -> Error {
    let name = device.name();
    Error::misuse(match pool {
        None => {
            let size = device.geometry().capacity.to_bytes();
            format!("{name}: holds no pool (its size is {size}); make one with `ashlar pool create`, or check the path")
        }
        Some(pool) if found == pool.devices.len() => {
            format!("{name}: is no part of the pool, whose {found} devices are all there; take it off the list")
        }
        Some(pool) => format!(
            "{name}: holds nothing of the pool of which {found} of {} devices are there: it was overwritten, or is another \
             device; name the pool's own, or restore its contents (a new pool would destroy what is on the others)",
            pool.devices.len()
        ),
    })
}

/// Finds the newest superblock of all devices, and puts the devices in their order.
async fn assemble(devices: Vec<Device>) -> Result<(Superblock, Vec<Device>)> {
    let mut found: BTreeMap<u32, (Superblock, Device)> = BTreeMap::new();
    let (mut pools, mut blank) = (BTreeSet::new(), Vec::new());
    for device in devices {
        let name = device.name();
        let Some(superblock) = newest_superblock(&device).await? else {
            blank.push(device);
            continue;
        };
        pools.insert(superblock.pool);
        if pools.len() > 1 {
            let message =
                format!("{name}: belongs to another pool than the devices before it; check the list of devices");
            return Err(Error::misuse(message));
        }
        let record = superblock.devices[superblock.device as usize];
        refuse_short(&device, &record)?;
        let index = superblock.device;
        if let Some((_, other)) = found.insert(index, (superblock, device)) {
            let message = format!("{name} and {} are the same device of the pool; name each once", other.name());
            return Err(Error::misuse(message));
        }
    }
    // Of two with one generation, that with more devices was written when the pool grew.
    let newest = found.values().map(|(superblock, _)| superblock);
    let newest = newest.max_by_key(|superblock| (superblock.generation, superblock.devices.len()));
    let newest = newest.cloned();
    if let Some(device) = blank.first() {
        return Err(refuse_blank(device, newest.as_ref(), found.len()));
    }
    let newest = newest.ok_or_else(|| Error::misuse("name at least one device"))?;
    let mut ordered = Vec::new();
    for (index, record) in newest.devices.iter().enumerate() {
        let Some((superblock, device)) = found.remove(&(index as u32)) else {
            let (number, count) = (index + 1, newest.devices.len());
            let message = format!(
                "device {number} of {count} is missing (identity {:016x}): name all devices of the pool",
                record.id
            );
            return Err(Error::new(Kind::Failed, message));
        };
        // A crash between the writes of one superblock leaves a device one generation behind, not more.
        if superblock.generation + 1 < newest.generation {
            let message = format!(
                "{}: is out of date: it stands at checkpoint {} and the others at {}; it seems to be an old copy: \
                 name the device itself",
                device.name(),
                superblock.generation,
                newest.generation
            );
            return Err(Error::corrupt(message));
        }
        if superblock.devices.get(index).map(|own| own.id) != Some(record.id) {
            let message = format!("{}: is not the device that the pool had in its place; name that one", device.name());
            return Err(Error::corrupt(message));
        }
        refuse_short(&device, record)?;
        ordered.push(device);
    }
    match found.values().next() {
        Some((_, device)) => Err(Error::misuse(format!(
            "{}: is no part of the pool, which has {} devices; take it off the list",
            device.name(),
            ordered.len()
        ))),
        None => Ok((newest, ordered)),
    }
}
