//! What lies where: keys and values of the pool on the staging device, and the label of the data device.
//!
//! The pool has two volumes. `extents` is what snapshots keep; `space` is not.
//!
//! | volume | key | value |
//! | --- | --- | --- |
//! | `extents` | block `extent << 32 \| offset` of the block space | staged data, until they are destaged |
//! | `extents` | `x` extent (u32) | length in blocks (u64) |
//! | `extents` | `l` extent (u32) leaf (u32) | 32 pointers of 16 bytes: block (u64), CRC32C (u32), epoch born (u32); no leaf, no pointers |
//! | `space` | `s` | the engine's record: [`Super`] |
//! | `space` | `r` range (u64) | one bit for each block of an allocation range that is in use; no map, none is |
//! | `space` | `n` epoch (u32) | name of the snapshot that ended this epoch |
//! | `space` | `d` epoch (u32) number (u64) | blocks that only this snapshot and older ones see: block (u64), epoch born (u32) each |
//!
//! Numbers in keys are big-endian, so that they sort; in values little-endian. The pool verifies each value with a checksum
//! that its parent holds, so values have none of their own. Block 0 of the data device is its [`Label`].

use crate::Shape;
use ashlar_block::{Error, Result};
use ashlar_units::{BLOCK_LEN, Blocks};
use bytes::Bytes;

/// Version of the format.
pub const VERSION: u32 = 1;
/// Pointers of a leaf: 128 KiB of an extent, as in a chunk of the pool's map.
pub const LEAF: u64 = 32;
/// Bytes of a pointer.
pub const POINTER_LEN: usize = 16;
/// Most extents.
pub const EXTENT_MAX: u32 = 1 << 31;
/// Most blocks of an extent: 16 TiB.
pub const EXTENT_BLOCKS_MAX: Blocks = Blocks(1 << 32);
/// Blocks of one entry of a dead list.
pub const DEAD_MAX: usize = 2048;

const MAGIC: &[u8; 8] = b"ashlprox";
/// The value of a pointer to nothing: block 0 is the label, so no data are there.
const NOWHERE: u64 = 0;

/// Where a block of an extent is, and what it must look like there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Block of the data device.
    pub at: u64,
    /// CRC32C of the data.
    pub crc: u32,
    /// Epoch in which the pointer was installed. Snapshots that ended earlier epochs do not see the block.
    pub born: u32,
}

/// Pointers of 32 blocks of an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf(pub [Option<Pointer>; LEAF as usize]);

impl Default for Leaf {
    fn default() -> Leaf {
        Leaf([None; LEAF as usize])
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
fn bad(what: &str) -> Error {
    Error::corrupt(format!("{what} on the staging device makes no sense; restore the store from a copy"))
}

impl Leaf {
    /// Whether it points at nothing.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
    /// As it is stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LEAF as usize * POINTER_LEN);
        for pointer in &self.0 {
            let Pointer { at, crc, born } = pointer.unwrap_or(Pointer { at: NOWHERE, crc: 0, born: 0 });
            bytes.extend_from_slice(&at.to_le_bytes());
            bytes.extend_from_slice(&crc.to_le_bytes());
            bytes.extend_from_slice(&born.to_le_bytes());
        }
        bytes
    }
    /// From a stored value; every pointer lies below `capacity`.
    pub fn decode(bytes: &[u8], capacity: Blocks) -> Result<Leaf> {
        if bytes.len() != LEAF as usize * POINTER_LEN {
            return Err(bad("a leaf of pointers"));
        }
        let mut leaf = Leaf::default();
        for (slot, bytes) in leaf.0.iter_mut().zip(bytes.chunks_exact(POINTER_LEN)) {
            let fields = (u64_at(bytes, 0), u32_at(bytes, 8), u32_at(bytes, 12));
            let (Some(at), Some(crc), Some(born)) = fields else { return Err(bad("a pointer")) };
            if at >= capacity.0 {
                return Err(bad("a pointer past the end of the data device"));
            }
            *slot = (at != NOWHERE).then_some(Pointer { at, crc, born });
        }
        Ok(leaf)
    }
}

/// Checksum of a block.
pub fn checksum(data: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, data) as u32
}

/// Key of an extent's record.
pub fn extent_key(extent: u32) -> [u8; 5] {
    let mut key = [b'x'; 5];
    key[1..].copy_from_slice(&extent.to_be_bytes());
    key
}
/// The extent of such a key.
pub fn extent_of(key: &[u8]) -> Result<u32> {
    let number = key.strip_prefix(b"x").and_then(|number| number.try_into().ok());
    number.map(u32::from_be_bytes).ok_or_else(|| bad("the key of an extent"))
}
/// An extent's record.
pub fn encode_extent(length: Blocks) -> Vec<u8> {
    length.0.to_le_bytes().to_vec()
}
/// The length in such a record.
pub fn decode_extent(bytes: &[u8]) -> Result<Blocks> {
    let length = u64_at(bytes, 0).filter(|length| bytes.len() == 8 && *length <= EXTENT_BLOCKS_MAX.0);
    length.map(Blocks).ok_or_else(|| bad("the record of an extent"))
}
/// Key of a leaf.
pub fn leaf_key(extent: u32, leaf: u64) -> [u8; 9] {
    let mut key = [b'l'; 9];
    key[1..5].copy_from_slice(&extent.to_be_bytes());
    key[5..].copy_from_slice(&(leaf as u32).to_be_bytes());
    key
}
/// Leaf number of such a key.
pub fn leaf_of(key: &[u8]) -> Result<u64> {
    let number = key.get(5..).and_then(|number| number.try_into().ok());
    number.map(|number| u64::from(u32::from_be_bytes(number))).ok_or_else(|| bad("the key of a leaf"))
}
/// Key of the record of the whole.
pub const SUPER_KEY: &[u8] = b"s";
/// Key of the bits of an allocation range.
pub fn range_key(range: u64) -> [u8; 9] {
    let mut key = [b'r'; 9];
    key[1..].copy_from_slice(&range.to_be_bytes());
    key
}
/// The range of such a key.
pub fn range_of(key: &[u8]) -> Result<u64> {
    let number = key.strip_prefix(b"r").and_then(|number| number.try_into().ok());
    number.map(u64::from_be_bytes).ok_or_else(|| bad("the key of an allocation range"))
}
/// Key of a snapshot's record.
pub fn snapshot_key(epoch: u32) -> [u8; 5] {
    let mut key = [b'n'; 5];
    key[1..].copy_from_slice(&epoch.to_be_bytes());
    key
}
/// Epoch of such a key.
pub fn epoch_of(key: &[u8]) -> Result<u32> {
    let number = key.strip_prefix(b"n").and_then(|number| number.try_into().ok());
    number.map(u32::from_be_bytes).ok_or_else(|| bad("the key of a snapshot"))
}
/// Key of a part of a dead list.
pub fn dead_key(epoch: u32, number: u64) -> [u8; 13] {
    let mut key = [b'd'; 13];
    key[1..5].copy_from_slice(&epoch.to_be_bytes());
    key[5..].copy_from_slice(&number.to_be_bytes());
    key
}

/// A block that the live extents dropped and a snapshot still sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dead {
    /// Block of the data device.
    pub at: u64,
    /// Epoch in which its pointer was installed.
    pub born: u32,
}

/// Part of a dead list.
pub fn encode_dead(list: &[Dead]) -> Vec<u8> {
    list.iter().flat_map(|dead| dead.at.to_le_bytes().into_iter().chain(dead.born.to_le_bytes())).collect()
}
/// The same read back.
pub fn decode_dead(bytes: &[u8], capacity: Blocks) -> Result<Vec<Dead>> {
    if !bytes.len().is_multiple_of(12) || bytes.len() > 12 * DEAD_MAX {
        return Err(bad("a list of blocks that snapshots hold"));
    }
    let one = |bytes: &[u8]| {
        let dead = Dead { at: u64_at(bytes, 0)?, born: u32_at(bytes, 8)? };
        (dead.at != NOWHERE && dead.at < capacity.0).then_some(dead)
    };
    bytes.chunks_exact(12).map(|bytes| one(bytes).ok_or_else(|| bad("a block that a snapshot holds"))).collect()
}

/// The record of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Super {
    /// Which data device belongs to it.
    pub store: u64,
    /// Blocks of the data device.
    pub capacity: Blocks,
    /// Where neighbours are.
    pub shape: Shape,
    /// The current epoch: one more than that of the newest snapshot ever taken.
    pub epoch: u32,
    /// Number of the next part of a dead list.
    pub dead: u64,
}

impl Super {
    /// As it is stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        for word in [self.store, self.capacity.0, self.shape.range.0, self.shape.area, self.shape.group.0, self.dead] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes
    }
    /// From a stored value.
    pub fn decode(bytes: &[u8]) -> Result<Super> {
        let version = u32_at(bytes, 0).ok_or_else(|| bad("the record of the store"))?;
        if version != VERSION {
            let message = format!("the store has format {version}, and this program knows {VERSION}: take a newer one");
            return Err(Error::new(ashlar_block::Kind::Unsupported, message));
        }
        let word = |index: usize| u64_at(bytes, 8 + 8 * index).ok_or_else(|| bad("the record of the store"));
        let epoch = u32_at(bytes, 4).ok_or_else(|| bad("the record of the store"))?;
        let shape = Shape { range: Blocks(word(2)?), area: word(3)?, group: Blocks(word(4)?) };
        shape.check()?;
        let capacity = Blocks(word(1)?);
        if capacity.0 > 1 << 52 {
            return Err(bad("the capacity of the data device"));
        }
        Ok(Super { store: word(0)?, capacity, shape, epoch, dead: word(5)? })
    }
}

/// What block 0 of the data device holds: magic, version, store, checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The store that it belongs to.
    pub store: u64,
}

impl Label {
    /// The block.
    pub fn encode(self) -> Bytes {
        let mut block = vec![0; BLOCK_LEN];
        block[..8].copy_from_slice(MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[12..20].copy_from_slice(&self.store.to_le_bytes());
        let crc = checksum(&block[..20]);
        block[20..24].copy_from_slice(&crc.to_le_bytes());
        block.into()
    }
    /// The label of a device; `None` if there is none.
    pub fn decode(block: &[u8]) -> Option<Label> {
        let head = block.get(..20).filter(|head| head.starts_with(MAGIC))?;
        let holds = u32_at(block, 20)? == checksum(head) && u32_at(block, 8)? == VERSION;
        Some(Label { store: u64_at(block, 12)? }).filter(|_| holds)
    }
}

/// Puts the stored bits of an allocation range among those of its area, as the range with this number there.
pub fn put_range(area: &mut [u64], within: u64, bytes: &[u8], shape: &Shape) -> Result<()> {
    if bytes.len() as u64 != shape.range.0 / 8 {
        return Err(bad("the map of an allocation range"));
    }
    let first = within * shape.range.0 / 8;
    for (at, byte) in (first..).zip(bytes) {
        let word = area.get_mut((at / 8) as usize).ok_or_else(|| bad("the map of an allocation range"))?;
        *word |= u64::from(*byte) << (8 * (at % 8));
    }
    Ok(())
}

/// The bits of an allocation range as they are stored.
pub fn get_range(area: &[u64], within: u64, shape: &Shape) -> Vec<u8> {
    let first = within * shape.range.0 / 8;
    let byte = |at: u64| area.get((at / 8) as usize).map_or(0, |word| (word >> (8 * (at % 8))) as u8);
    (first..first + shape.range.0 / 8).map(byte).collect()
}
