//! What a pool looks like on a device.
//!
//! ```text
//! block 0            superblock ring: 8 slots of 2 blocks; generation g lies in slot g % 8
//! 256                segments, each of `segment_blocks`
//! last 16 blocks     the superblock ring again
//! ```
//! A segment is a sequence of batches: `[lead][payload][tail]`. The body (what the payload is, and the messages) lies in
//! the lead behind its header if it fits, else in the tail.

use ashlar_block::{Error, Kind, Result};
use ashlar_index::{Key, NodePtr};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::{BufMut, Bytes, BytesMut};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of the whole format. Readers refuse newer ones.
pub const VERSION: u16 = 1;
/// Slots of a superblock ring.
pub const RING_SLOTS: u64 = 8;
/// Blocks of a superblock.
pub const SUPERBLOCK_BLOCKS: u64 = 2;
/// Where segments begin: one MiB, so that segments of any power of two are aligned to themselves up to that.
pub const SEGMENTS_AT: Lba = Lba(256);
/// Most devices of a pool.
pub const DEVICES_MAX: usize = 64;
/// Most segments of a device, which bounds every table of segments.
pub const SEGMENTS_MAX: u64 = 65_536;
/// Blocks of the largest segment: places in a segment are byte offsets of 32 bits.
pub const SEGMENT_BLOCKS_MAX: u64 = 1 << 20;
/// Bound on what counters of a pool reach; it leaves them room to count on in 64 bits.
const COUNTER_MAX: u64 = 1 << 62;
/// Bound on segments ever begun: a segment's number leaves 42 bits for it.
const BORN_MAX: u64 = 1 << 41;
/// Bound on the live bytes of a segment. References that share extents add up to more than its size, but not to this.
const LIVE_MAX: u64 = 1 << 56;

const RING_BLOCKS: u64 = RING_SLOTS * SUPERBLOCK_BLOCKS;
/// Blocks of a device that are not segments.
pub const SUPERBLOCKS: Blocks = Blocks(SEGMENTS_AT.0 + RING_BLOCKS);
const SUPERBLOCK_LEN: usize = (SUPERBLOCK_BLOCKS as usize) * BLOCK_LEN;

/// CRC32C, the checksum of everything here.
pub fn crc(data: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, data) as u32
}

/// Addresses of the superblock slots for `generation` on a device of this capacity: near its start and near its end.
pub fn superblock_slots(capacity: Blocks, generation: u64) -> [Lba; 2] {
    let slot = generation % RING_SLOTS * SUPERBLOCK_BLOCKS;
    [Lba(slot), Lba(capacity.0 - RING_BLOCKS + slot)]
}

/// Segments that fit on a device.
pub fn segments_on(capacity: Blocks, segment: Blocks) -> u64 {
    capacity.0.saturating_sub(SUPERBLOCKS.0) / segment.0
}

/// Segment size for a device of this capacity: about 2,048 segments, from 1 to 64 MiB, larger only where a device would
/// have more than 65,536 of them (which bounds every table of segments).
pub fn segment_size_for(capacity: Blocks) -> Blocks {
    let mut blocks = (capacity.0 / 2048).next_power_of_two().clamp(256, 64 * 256);
    while capacity.0 / blocks > SEGMENTS_MAX {
        blocks *= 2;
    }
    Blocks(blocks)
}

/// A place in the log where replay continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LogPosition {
    /// Segment.
    pub at: OpenSegment,
    /// The segment after it.
    pub next: OpenSegment,
    /// Sequence number of the next batch.
    pub seq: u64,
    /// Checksum of the batch before.
    pub chain: u32,
}

/// A segment that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpenSegment {
    /// Its number, unique for ever; the low 22 bits are its slot. 0: none.
    pub uid: u64,
    /// Blocks written.
    pub used: u32,
}

/// One device of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRecord {
    /// Identity.
    pub id: u64,
    /// Size when it was added.
    pub capacity: Blocks,
}

/// The root of everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity of the pool.
    pub pool: u64,
    /// Counts checkpoints.
    pub generation: u64,
    /// Segments ever begun.
    pub born: u64,
    /// Which of the devices this is.
    pub device: u32,
    /// All devices.
    pub devices: Vec<DeviceRecord>,
    /// Segment size.
    pub segment: Blocks,
    /// Root of the catalog tree.
    pub catalog: Option<NodePtr>,
    /// Where replay begins.
    pub log: LogPosition,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct StoredOpen {
    uid: U64,
    used: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct StoredSuperblock {
    magic: [u8; 8],
    version: U16,
    reserved: U16,
    crc: U32,
    /// A reader that does not know one of these bits must not open the pool.
    incompatible: U64,
    pool: U64,
    generation: U64,
    born: U64,
    device: U32,
    devices_count: U32,
    segment_blocks: U64,
    has_catalog: U32,
    reserved3: U32,
    catalog: [u8; 32],
    log_at: StoredOpen,
    log_next: StoredOpen,
    log_seq: U64,
    log_chain: U32,
    reserved2: U32,
}

const SUPERBLOCK_MAGIC: [u8; 8] = *b"ASHLARSB";
const DEVICE_LEN: usize = 16;
const _: () = assert!(
    size_of::<StoredSuperblock>() + DEVICES_MAX * DEVICE_LEN <= SUPERBLOCK_LEN,
    "a full superblock fits its slot"
);

impl OpenSegment {
    fn store(self) -> StoredOpen {
        StoredOpen { uid: self.uid.into(), used: self.used.into(), reserved: 0.into() }
    }
}
impl StoredOpen {
    fn load(self) -> OpenSegment {
        OpenSegment { uid: self.uid.get(), used: self.used.get() }
    }
}

impl Superblock {
    /// Whether there was a superblock in this slot, readable or not.
    pub fn is_trace(slot: &[u8]) -> bool {
        slot.starts_with(&SUPERBLOCK_MAGIC)
    }
    /// The bytes of a slot.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::zeroed(SUPERBLOCK_LEN);
        let mut stored = StoredSuperblock {
            magic: SUPERBLOCK_MAGIC,
            version: VERSION.into(),
            reserved: 0.into(),
            crc: 0.into(),
            incompatible: 0.into(),
            pool: self.pool.into(),
            generation: self.generation.into(),
            born: self.born.into(),
            device: self.device.into(),
            devices_count: (self.devices.len() as u32).into(),
            segment_blocks: self.segment.0.into(),
            has_catalog: u32::from(self.catalog.is_some()).into(),
            reserved3: 0.into(),
            catalog: self.catalog.unwrap_or_default().encode(),
            log_at: self.log.at.store(),
            log_next: self.log.next.store(),
            log_seq: self.log.seq.into(),
            log_chain: self.log.chain.into(),
            reserved2: 0.into(),
        };
        let mut rest = BytesMut::new();
        for device in &self.devices {
            rest.put_u64_le(device.id);
            rest.put_u64_le(device.capacity.0);
        }
        let head = size_of::<StoredSuperblock>();
        bytes[head..head + rest.len()].copy_from_slice(&rest);
        bytes[..head].copy_from_slice(stored.as_bytes());
        stored.crc = crc(&bytes).into();
        bytes[..head].copy_from_slice(stored.as_bytes());
        bytes.freeze()
    }

    /// Reads a slot. `Ok(None)`: there is no superblock here (never written, or torn).
    pub fn decode(bytes: &[u8]) -> Result<Option<Superblock>> {
        let Ok((mut stored, rest)) = StoredSuperblock::read_from_prefix(bytes) else { return Ok(None) };
        if stored.magic != SUPERBLOCK_MAGIC || bytes.len() != SUPERBLOCK_LEN {
            return Ok(None);
        }
        let expected = std::mem::replace(&mut stored.crc, 0.into()).get();
        let mut copy = BytesMut::from(bytes);
        copy[..size_of::<StoredSuperblock>()].copy_from_slice(stored.as_bytes());
        if crc(&copy) != expected {
            return Ok(None);
        }
        if stored.version.get() != VERSION || stored.incompatible.get() != 0 {
            let message = format!(
                "the pool has format version {} with features {:#x}; this build knows version {VERSION} and no features: \
                 use a newer ashlar",
                stored.version.get(),
                stored.incompatible.get()
            );
            return Err(Error::new(Kind::Unsupported, message));
        }
        let refuse = || Error::corrupt("a superblock holds impossible values under a good checksum");
        let devices_count = stored.devices_count.get() as usize;
        let devices_len = devices_count.checked_mul(DEVICE_LEN).filter(|_| devices_count <= DEVICES_MAX);
        let devices = rest.get(..devices_len.ok_or_else(refuse)?).ok_or_else(refuse)?;
        let devices: Vec<DeviceRecord> = devices
            .chunks_exact(DEVICE_LEN)
            .map(|device| {
                let number = |at: usize| u64::from_le_bytes(device[at..at + 8].try_into().expect("eight bytes"));
                DeviceRecord { id: number(0), capacity: Blocks(number(8)) }
            })
            .collect();
        let segment = Blocks(stored.segment_blocks.get());
        let fits = |device: &DeviceRecord| {
            device.capacity >= SUPERBLOCKS && segments_on(device.capacity, segment) <= SEGMENTS_MAX
        };
        if stored.device.get() as usize >= devices_count
            || !segment.0.is_power_of_two()
            || segment.0 > SEGMENT_BLOCKS_MAX
            || !devices.iter().all(fits)
            || stored.generation.get() > COUNTER_MAX
            || stored.born.get() > BORN_MAX
            || !(1..=COUNTER_MAX).contains(&stored.log_seq.get())
        {
            return Err(refuse());
        }
        let catalog = NodePtr::decode(&stored.catalog)?;
        Ok(Some(Superblock {
            pool: stored.pool.get(),
            generation: stored.generation.get(),
            born: stored.born.get(),
            device: stored.device.get(),
            devices,
            segment,
            catalog: (stored.has_catalog.get() != 0).then_some(catalog),
            log: LogPosition {
                at: stored.log_at.load(),
                next: stored.log_next.load(),
                seq: stored.log_seq.get(),
                chain: stored.log_chain.get(),
            },
        }))
    }
}

/// What the catalog says about a segment that holds live bytes, under the key `S` and its slot (big-endian, 4 bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRecord {
    /// The segment.
    pub uid: u64,
    /// Live bytes of volumes; nodes of the catalog itself are not counted.
    pub live: u64,
}

impl SlotRecord {
    /// First byte of the keys.
    pub const PREFIX: u8 = b'S';
    /// Key of a slot's record.
    pub fn key(slot: u32) -> Key {
        let mut key = Key::from_slice(&[Self::PREFIX]);
        key.extend_from_slice(&slot.to_be_bytes());
        key
    }
    /// The stored form.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(16);
        bytes.put_u64_le(self.uid);
        bytes.put_u64_le(self.live);
        bytes.freeze()
    }
    /// Reads the stored form.
    pub fn decode(bytes: &Bytes) -> Result<SlotRecord> {
        let mut reader = Reader { rest: bytes.clone() };
        let record = SlotRecord { uid: reader.u64()?, live: reader.u64()? };
        if record.live > LIVE_MAX {
            return Err(Error::corrupt(format!("segment {:#x} counts {} live bytes", record.uid, record.live)));
        }
        Ok(record)
    }
}

/// What a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeKind {
    /// It takes changes.
    Live {
        /// The snapshot that it was cloned from: its number, and when it was taken.
        origin: Option<(u64, u64)>,
    },
    /// A volume as it was.
    Snapshot {
        /// The volume.
        of: u64,
        /// The checkpoint that took it.
        taken: u64,
        /// Seconds since 1970.
        time: u64,
    },
}

/// What the catalog says about a volume, under the key `V` and its number (big-endian, 8 bytes).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRecord {
    /// Its name, unique in the pool.
    pub name: String,
    /// Root of its tree.
    pub root: Option<NodePtr>,
    /// Bytes of the tree's nodes as they are stored, about.
    pub nodes: u64,
    /// What it is.
    pub kind: VolumeKind,
}

impl VolumeRecord {
    /// First byte of the keys.
    pub const PREFIX: u8 = b'V';
    /// Key of a volume's record.
    pub fn key(id: u64) -> Key {
        let mut key = Key::from_slice(&[Self::PREFIX]);
        key.extend_from_slice(&id.to_be_bytes());
        key
    }
    /// The number in a key.
    pub fn id(key: &[u8]) -> Option<u64> {
        key.strip_prefix(&[Self::PREFIX])?.try_into().ok().map(u64::from_be_bytes)
    }
    /// The stored form.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        bytes.put_u8(u8::from(self.root.is_some()));
        bytes.put_slice(&self.root.unwrap_or_default().encode());
        let (code, numbers) = match self.kind {
            VolumeKind::Live { origin: None } => (0, [0; 3]),
            VolumeKind::Live { origin: Some((snapshot, taken)) } => (1, [snapshot, taken, 0]),
            VolumeKind::Snapshot { of, taken, time } => (2, [of, taken, time]),
        };
        bytes.put_u8(code);
        numbers.iter().for_each(|number| bytes.put_u64_le(*number));
        put_short(&mut bytes, self.name.as_bytes());
        bytes.put_u64_le(self.nodes);
        bytes.freeze()
    }
    /// Reads the stored form.
    pub fn decode(bytes: &Bytes) -> Result<VolumeRecord> {
        let mut reader = Reader { rest: bytes.clone() };
        let has_root = reader.u8()? != 0;
        let root = NodePtr::decode(&reader.array::<32>()?)?;
        let code = reader.u8()?;
        let (a, b, c) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let kind = match code {
            0 => VolumeKind::Live { origin: None },
            1 => VolumeKind::Live { origin: Some((a, b)) },
            2 => VolumeKind::Snapshot { of: a, taken: b, time: c },
            _ => return Err(Error::corrupt(format!("a volume of unknown kind {code}"))),
        };
        let name =
            String::from_utf8(reader.short()?.to_vec()).map_err(|_| Error::corrupt("a volume's name is no text"))?;
        // Pools made before this was recorded count from zero.
        let nodes = if reader.rest.is_empty() { 0 } else { reader.u64()? };
        Ok(VolumeRecord { name, root: has_root.then_some(root), nodes, kind })
    }
}

/// What a batch is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    /// New data and messages, in commit order.
    Log,
    /// Index nodes.
    Nodes,
    /// Data that the cleaner moved.
    Cold,
}

impl Stream {
    /// All streams.
    pub const ALL: [Stream; 3] = [Stream::Log, Stream::Nodes, Stream::Cold];
    /// Its number on the medium.
    pub fn code(self) -> u8 {
        self as u8
    }
    fn from_code(code: u8) -> Option<Stream> {
        Stream::ALL.get(code as usize).copied()
    }
}

/// Head of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// What it is written for.
    pub stream: Stream,
    /// Identity of the pool.
    pub pool: u64,
    /// Segment.
    pub uid: u64,
    /// First block in the segment.
    pub at: u32,
    /// Blocks of payload.
    pub payload_blocks: u32,
    /// Bytes of body.
    pub body_len: u32,
    /// Extents and nodes listed in the body.
    pub items: u32,
    /// Operations in the body.
    pub operations: u32,
    /// Number of the batch in the log; 0 in other streams.
    pub seq: u64,
    /// Checksum of the log's previous batch.
    pub chain: u32,
    /// Batches up to this number were durable when this one was written.
    pub durable: u64,
    /// Segment that follows this one in the log.
    pub next: OpenSegment,
    /// Checksum of the body.
    pub body_crc: u32,
    /// Checksum of the payload.
    pub payload_crc: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct StoredLead {
    magic: [u8; 4],
    crc: U32,
    version: U16,
    stream: u8,
    reserved: u8,
    at: U32,
    pool: U64,
    uid: U64,
    payload_blocks: U32,
    body_len: U32,
    items: U32,
    operations: U32,
    seq: U64,
    durable: U64,
    next: StoredOpen,
    chain: U32,
    body_crc: U32,
    payload_crc: U32,
    reserved2: [u8; 4],
}

const LEAD_MAGIC: [u8; 4] = *b"ASHB";
/// Bytes of a lead's header; an inline body follows.
pub const LEAD_LEN: usize = size_of::<StoredLead>();
/// Largest payload that a reader accepts, in blocks: 4 GiB, far above what is written.
const BATCH_BLOCKS_MAX: u32 = 1 << 20;
/// Largest body that a reader accepts.
const BATCH_BODY_LEN_MAX: u32 = 64 << 20;
/// Bytes of body that fit into the lead block.
pub const INLINE_BODY_LEN: usize = BLOCK_LEN - LEAD_LEN;

impl Lead {
    /// Blocks of tail.
    pub fn tail_blocks(&self) -> u32 {
        if self.body_len as usize <= INLINE_BODY_LEN { 0 } else { self.body_len.div_ceil(BLOCK_LEN as u32) }
    }
    /// Blocks of the whole batch.
    pub fn blocks(&self) -> u32 {
        1 + self.payload_blocks + self.tail_blocks()
    }
    /// The lead block, with the body if it fits.
    pub fn encode(&self, body: &[u8]) -> BytesMut {
        let mut stored = StoredLead {
            magic: LEAD_MAGIC,
            crc: 0.into(),
            version: VERSION.into(),
            stream: self.stream.code(),
            reserved: 0,
            at: self.at.into(),
            pool: self.pool.into(),
            uid: self.uid.into(),
            payload_blocks: self.payload_blocks.into(),
            body_len: self.body_len.into(),
            items: self.items.into(),
            operations: self.operations.into(),
            seq: self.seq.into(),
            durable: self.durable.into(),
            next: self.next.store(),
            chain: self.chain.into(),
            body_crc: self.body_crc.into(),
            payload_crc: self.payload_crc.into(),
            reserved2: [0; 4],
        };
        stored.crc = crc(stored.as_bytes()).into();
        let mut block = BytesMut::zeroed(BLOCK_LEN);
        block[..LEAD_LEN].copy_from_slice(stored.as_bytes());
        if body.len() <= INLINE_BODY_LEN {
            block[LEAD_LEN..LEAD_LEN + body.len()].copy_from_slice(body);
        }
        block
    }
    /// Reads a lead block. `None`: this is no lead.
    pub fn decode(block: &[u8]) -> Option<Lead> {
        let (mut stored, _) = StoredLead::read_from_prefix(block).ok()?;
        if stored.magic != LEAD_MAGIC || stored.version.get() != VERSION {
            return None;
        }
        let own = std::mem::replace(&mut stored.crc, 0.into()).get();
        if crc(stored.as_bytes()) != own {
            return None;
        }
        if stored.payload_blocks.get() > BATCH_BLOCKS_MAX || stored.body_len.get() > BATCH_BODY_LEN_MAX {
            return None;
        }
        Some(Lead {
            stream: Stream::from_code(stored.stream)?,
            pool: stored.pool.get(),
            uid: stored.uid.get(),
            at: stored.at.get(),
            payload_blocks: stored.payload_blocks.get(),
            body_len: stored.body_len.get(),
            items: stored.items.get(),
            operations: stored.operations.get(),
            seq: stored.seq.get(),
            chain: stored.chain.get(),
            durable: stored.durable.get(),
            next: stored.next.load(),
            body_crc: stored.body_crc.get(),
            payload_crc: stored.payload_crc.get(),
        })
    }
}

/// Something in a batch's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Tree that referred to it when it was written.
    pub tree: u64,
    /// Key of the chunk, or a key in the node's range.
    pub key: Bytes,
    /// Height of a node; `None` for data.
    pub level: Option<u8>,
    /// Byte offset in the segment.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// An operation in the log. Operations of one transaction never straddle batches, and a batch is replayed whole or not at
/// all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The key has this value.
    Put(u64, Bytes, Bytes),
    /// The key has no value.
    Delete(u64, Bytes),
    /// The key's value is overlaid.
    Patch(u64, Bytes, Bytes),
    /// No key in the range has a value.
    DeleteRange(u64, Bytes, Bytes),
}

/// Writes bodies.
pub struct BodyWriter {
    /// Items, encoded.
    items: BytesMut,
    items_count: u32,
    /// Operations, encoded.
    operations: BytesMut,
    operations_count: u32,
    /// Checksum of the operations as they came in: what bad memory changes until the batch is sealed is found then.
    operations_crc: crc_fast::Digest,
}

impl Default for BodyWriter {
    fn default() -> BodyWriter {
        BodyWriter {
            items: BytesMut::new(),
            items_count: 0,
            operations: BytesMut::new(),
            operations_count: 0,
            operations_crc: crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi),
        }
    }
}

impl BodyWriter {
    /// Adds an item.
    pub fn item(&mut self, tree: u64, key: &[u8], level: Option<u8>, offset: u32, len: u32) {
        self.items.put_u64_le(tree);
        self.items.put_u8(level.map_or(u8::MAX, |level| level));
        self.items.put_u32_le(offset);
        self.items.put_u32_le(len);
        put_short(&mut self.items, key);
        self.items_count += 1;
    }
    /// Whether the operations are those that came in.
    pub(crate) fn holds(&self) -> bool {
        self.operations_crc.finalize() as u32 == crc(&self.operations)
    }
    fn operation(&mut self, code: u8, tree: u64, key: &[u8], value: &[u8]) {
        let from = self.operations.len();
        self.operations.put_u8(code);
        self.operations.put_u64_le(tree);
        put_short(&mut self.operations, key);
        self.operations.put_u32_le(value.len() as u32);
        self.operations.put_slice(value);
        self.operations_crc.update(&self.operations[from..]);
        self.operations_count += 1;
    }
    /// Adds an operation.
    pub fn put(&mut self, tree: u64, key: &[u8], value: &[u8]) {
        self.operation(0, tree, key, value);
    }
    /// Adds an operation.
    pub fn delete(&mut self, tree: u64, key: &[u8]) {
        self.operation(1, tree, key, &[]);
    }
    /// Adds an operation.
    pub fn patch(&mut self, tree: u64, key: &[u8], value: &[u8]) {
        self.operation(2, tree, key, value);
    }
    /// Adds an operation.
    pub fn delete_range(&mut self, tree: u64, low: &[u8], high: &[u8]) {
        self.operation(3, tree, low, high);
    }
    /// Flips a bit of the operations, for explorations; tells which byte.
    pub(crate) fn flip_in_operations(&mut self, bit: u64) -> Option<usize> {
        let at = (bit / 8) as usize % self.operations.len().max(1);
        *self.operations.get_mut(at)? ^= 1 << (bit % 8);
        Some(at)
    }
    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.items.len() + self.operations.len()
    }
    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Items, operations, and the bytes.
    pub fn finish(self) -> (u32, u32, Bytes) {
        let mut bytes = self.items;
        bytes.unsplit(self.operations);
        (self.items_count, self.operations_count, bytes.freeze())
    }
}

fn put_short(to: &mut BytesMut, bytes: &[u8]) {
    to.put_u16_le(bytes.len() as u16);
    to.put_slice(bytes);
}

/// Reads a body that the lead's checksum covers.
pub fn decode_body(lead: &Lead, body: &Bytes) -> Result<(Vec<Item>, Vec<Operation>)> {
    let mut reader = Reader { rest: body.clone() };
    let (mut items, mut operations) = (Vec::new(), Vec::new());
    for _ in 0..lead.items {
        let tree = reader.u64()?;
        let level = reader.u8()?;
        let (offset, len) = (reader.u32()?, reader.u32()?);
        let key = reader.short()?;
        items.push(Item { tree, key, level: (level != u8::MAX).then_some(level), offset, len });
    }
    for _ in 0..lead.operations {
        let code = reader.u8()?;
        let tree = reader.u64()?;
        let key = reader.short()?;
        let len = reader.u32()? as usize;
        let value = reader.take(len)?;
        operations.push(match code {
            0 => Operation::Put(tree, key, value),
            1 => Operation::Delete(tree, key),
            2 => Operation::Patch(tree, key, value),
            3 => Operation::DeleteRange(tree, key, value),
            other => return Err(Error::corrupt(format!("the log holds an operation of unknown kind {other}"))),
        });
    }
    Ok((items, operations))
}

struct Reader {
    rest: Bytes,
}

impl Reader {
    fn take(&mut self, len: usize) -> Result<Bytes> {
        if len > self.rest.len() {
            return Err(Error::corrupt("a batch's body ends in the middle of an item"));
        }
        Ok(self.rest.split_to(len))
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.take(N)?);
        Ok(bytes)
    }
    fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }
    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }
    fn short(&mut self) -> Result<Bytes> {
        let len = u16::from_le_bytes(self.array()?) as usize;
        self.take(len)
    }
}
