//! Superblocks: the root of everything.

use super::{
    DEVICES_MAX, OpenSegment, SEGMENT_BLOCKS_MAX, SEGMENTS_MAX, SUPERBLOCK_BLOCKS, SUPERBLOCKS, StoredOpen, VERSION,
    crc, segments_on,
};
use ashlar_block::{Error, Kind, Result};
use ashlar_index::NodePtr;
use ashlar_units::{BLOCK_LEN, Blocks};
use bytes::{BufMut, Bytes, BytesMut};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const SUPERBLOCK_LEN: usize = (SUPERBLOCK_BLOCKS as usize) * BLOCK_LEN;
/// Bound on what counters of a pool reach; it leaves them room to count on in 64 bits.
const COUNTER_MAX: u64 = 1 << 62;
/// Bound on segments ever begun: a segment's number leaves 42 bits for it.
const BORN_MAX: u64 = 1 << 41;

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
    /// The device of which this is a part: that became larger.
    pub part_of: Option<u32>,
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
    /// 0: of none; else one more than its index.
    part_of: U32,
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

impl Superblock {
    /// What it says of the device that it is on.
    pub fn record(&self) -> &DeviceRecord {
        &self.devices[self.device as usize]
    }
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
            part_of: self.part_of.map_or(0, |device| device + 1).into(),
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
        let part_of = stored.part_of.get().checked_sub(1);
        if stored.device.get() as usize >= devices_count
            || part_of.is_some_and(|device| device >= stored.device.get())
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
            part_of,
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
