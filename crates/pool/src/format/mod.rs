//! What a pool looks like on a device.
//!
//! ```text
//! block 0            superblock ring: 8 slots of 2 blocks; generation g lies in slot g % 8
//! 256                segments, each of `segment_blocks`
//! last 16 blocks     the superblock ring again
//! ```
//! A segment is a sequence of batches: `[lead][payload][tail]`. The body (what the payload is, and the messages) lies in
//! the lead behind its header if it fits, else in the tail.

mod batch;
mod reader;
mod records;
mod superblock;

pub use batch::{BodyWriter, INLINE_BODY_LEN, Item, LEAD_LEN, Lead, Operation, Stream, decode_body};
pub use records::{SlotRecord, VolumeKind, VolumeRecord};
pub use superblock::{DeviceRecord, LogPosition, Superblock};

use ashlar_units::{Blocks, Lba};
use zerocopy::little_endian::{U32, U64};
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

const RING_BLOCKS: u64 = RING_SLOTS * SUPERBLOCK_BLOCKS;
/// Blocks of a device that are not segments.
pub const SUPERBLOCKS: Blocks = Blocks(SEGMENTS_AT.0 + RING_BLOCKS);

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

/// A segment that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpenSegment {
    /// Its number, unique for ever; the low 22 bits are its slot. 0: none.
    pub uid: u64,
    /// Blocks written.
    pub used: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct StoredOpen {
    uid: U64,
    used: U32,
    reserved: U32,
}

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
