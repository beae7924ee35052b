//! The map: a record for each region as of a checkpoint (the thesis's generation array, with what else must be known of a
//! region before its head is read).

use super::{CHECK_LEN, cut, magic, seal, unseal};
use crate::layout::Kind;
use ashlar_block::{Error, Result};
use bytes::{Buf, BufMut, Bytes, BytesMut, TryGetError};

const MAGIC: u32 = u32::from_le_bytes(*b"ASRM");
/// Bytes before the records.
pub const MAP_HEADER_LEN: usize = CHECK_LEN + 4 + 4 + 8 + 8;
/// Bytes of a record.
pub const MAP_ENTRY_LEN: usize = 48;

/// What a checkpoint says of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// What it holds.
    pub kind: Kind,
    /// Which of its heads counts.
    pub head: u8,
    /// It was found damaged, and not repaired yet: nothing new goes there.
    pub corrupt: bool,
    /// Version at which it took its kind: onodes of earlier ones do not count.
    pub birth: u64,
    /// Every copy up to this version is in its bitmaps if it counts.
    pub generation: u64,
    /// Objects in it.
    pub live: u32,
    /// Those of them that belong to layers above, and are not counted for users.
    pub hidden: u32,
    /// Onodes or units that are free.
    pub free_slots: u32,
    /// Blocks that are free.
    pub free_blocks: u32,
    /// Bytes of its objects, as stored.
    pub bytes: u64,
}

impl MapEntry {
    /// A region that holds nothing.
    pub const FREE: MapEntry = MapEntry {
        kind: Kind::Free,
        head: 0,
        corrupt: false,
        birth: 0,
        generation: 0,
        live: 0,
        hidden: 0,
        free_slots: 0,
        free_blocks: 0,
        bytes: 0,
    };
}

/// Whole blocks.
pub fn encode_map(key: u64, commit: u64, store: u64, entries: &[MapEntry]) -> Bytes {
    let mut image = BytesMut::with_capacity(MAP_HEADER_LEN + entries.len() * MAP_ENTRY_LEN);
    image.put_bytes(0, CHECK_LEN);
    image.put_u32_le(MAGIC);
    image.put_u32_le(entries.len() as u32);
    image.put_u64_le(store);
    image.put_u64_le(commit);
    for entry in entries {
        image.put_u8(entry.kind.to_byte());
        image.put_u8(entry.head);
        image.put_u8(u8::from(entry.corrupt));
        image.put_bytes(0, 5);
        image.put_u64_le(entry.birth);
        image.put_u64_le(entry.generation);
        image.put_u64_le(entry.bytes);
        for count in [entry.live, entry.free_slots, entry.free_blocks, entry.hidden] {
            image.put_u32_le(count);
        }
    }
    seal(key, image)
}

/// Reads the map of checkpoint `commit`, of `regions` regions. The image may be longer than the map.
///
/// # Errors
/// Damage, or another checkpoint's map.
pub fn decode_map(key: u64, commit: u64, store: u64, regions: u64, image: &[u8]) -> Result<Vec<MapEntry>> {
    const WHAT: &str = "the map of regions";
    let len = (MAP_HEADER_LEN as u64 + regions * MAP_ENTRY_LEN as u64).next_multiple_of(ashlar_units::BLOCK.0);
    let image = image.get(..len as usize).ok_or_else(|| cut(WHAT))?;
    let mut rest = unseal(key, image, WHAT)?;
    magic(&mut rest, MAGIC, WHAT)?;
    let mut header = || Ok((rest.try_get_u32_le()?, rest.try_get_u64_le()?, rest.try_get_u64_le()?));
    let (count, its_store, its_commit) = header().map_err(|_: TryGetError| cut(WHAT))?;
    if u64::from(count) != regions || its_store != store || its_commit != commit {
        return Err(Error::corrupt(format!("{WHAT} is one of checkpoint {its_commit}, not {commit}")));
    }
    let mut entries = Vec::with_capacity(regions as usize);
    for _ in 0..regions {
        let entry = entry(&mut rest).map_err(|_| cut(WHAT))?;
        entries.push(entry.ok_or_else(|| Error::corrupt("a region is of a kind that does not exist"))?);
    }
    Ok(entries)
}

fn entry(rest: &mut &[u8]) -> Result<Option<MapEntry>, TryGetError> {
    let (kind, head, corrupt) = (rest.try_get_u8()?, rest.try_get_u8()?, rest.try_get_u8()? != 0);
    super::take(rest, 5)?;
    let (birth, generation, bytes) = (rest.try_get_u64_le()?, rest.try_get_u64_le()?, rest.try_get_u64_le()?);
    let (live, free_slots, free_blocks) = (rest.try_get_u32_le()?, rest.try_get_u32_le()?, rest.try_get_u32_le()?);
    let hidden = rest.try_get_u32_le()?;
    let head = head % 2;
    Ok(Kind::from_byte(kind).map(|kind| MapEntry {
        kind,
        head,
        corrupt,
        birth,
        generation,
        live,
        hidden,
        free_slots,
        free_blocks,
        bytes,
    }))
}
