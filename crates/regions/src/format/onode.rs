//! An onode: everything about one copy of an object, in one block.
//!
//! ```text
//! header, name, extents (8 bytes each), CRC32C of each block of payload, attributes or nothing, contents or nothing
//! ```
//! The *payload* is what lies in data blocks: attributes that do not fit here, filled up to whole blocks, and then the
//! contents. If contents and attributes fit into the onode, there is no payload.

use super::{CHECK_LEN, Place, cut, magic, seal, take, unseal};
use crate::layout::LARGE_BLOCKS_MAX;
use ashlar_block::{Error, Result};
use ashlar_objects::{Attributes, NAME_MAX, Name};
use ashlar_units::BLOCK_LEN;
use bytes::{Buf, BufMut, Bytes, BytesMut, TryGetError};
use std::time::Duration;

const MAGIC: u32 = u32::from_le_bytes(*b"ASRO");
/// Bytes before the name.
const HEADER_LEN: usize = 128;
/// Most extents of an object: the thesis's limit.
pub const EXTENTS_MAX: usize = 95;
/// Most bytes of attributes of an object.
pub const ATTRIBUTES_MAX: u64 = 16 << 10;
/// Most blocks of payload: the largest large block, and attributes.
const BLOCKS_MAX: usize = LARGE_BLOCKS_MAX as usize + 4;
const _: () = assert!(
    HEADER_LEN + NAME_MAX + EXTENTS_MAX * 8 + BLOCKS_MAX * 4 + 2 <= BLOCK_LEN,
    "an onode has room for the longest name, the most extents and no attributes"
);

const PROVISIONAL: u16 = 1;
const INLINE: u16 = 2;

/// Neighbouring blocks of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first, from the beginning of the region's data.
    pub block: u32,
    /// How many.
    pub count: u32,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Onode {
    /// Name of the object.
    pub name: Name,
    /// Hash of the name.
    pub id: u128,
    /// Where the onode lies.
    pub place: Place,
    /// Version at which the region took its kind.
    pub birth: u64,
    /// Version of the object.
    pub version: u64,
    /// Number of the copy: it is larger than the version if the object was moved since it was changed.
    pub generation: u64,
    /// It counts only when the log commits it, or a checkpoint has it.
    pub provisional: bool,
    /// Bytes of contents.
    pub size: u64,
    /// When the object was changed, since 1970.
    pub modified: Duration,
    /// Checksum of the contents.
    pub checksum: u64,
    /// Attributes, if they lie here.
    pub attributes: Attributes,
    /// Bytes of attributes at the front of the payload; 0 if they lie here.
    pub spill: u32,
    /// Where the payload lies, in a small region.
    pub extents: Vec<Extent>,
    /// Checksum of each block of payload.
    pub crcs: Vec<u32>,
    /// The contents, if they lie here.
    pub inline: Option<Bytes>,
}

/// Bytes that attributes take.
pub fn attributes_to(attributes: &Attributes) -> Bytes {
    if attributes.is_empty() {
        return Bytes::from_static(&[0; 2]);
    }
    let mut bytes = BytesMut::new();
    bytes.put_u16_le(attributes.len() as u16);
    for (key, value) in attributes {
        bytes.put_u16_le(key.len() as u16);
        bytes.put_u16_le(value.len() as u16);
        bytes.put_slice(key.as_bytes());
        bytes.put_slice(value);
    }
    bytes.freeze()
}

/// Reads attributes.
///
/// # Errors
/// Damage.
pub fn attributes_from(mut rest: &[u8]) -> Result<Attributes> {
    read_attributes(&mut rest)
        .map_err(|_| cut("a set of attributes"))?
        .ok_or_else(|| Error::corrupt("the key of an attribute is no text"))
}

fn read_attributes(rest: &mut &[u8]) -> Result<Option<Attributes>, TryGetError> {
    let count = rest.try_get_u16_le()?;
    let mut attributes = Attributes::new();
    for _ in 0..count {
        let (key, value) = (usize::from(rest.try_get_u16_le()?), usize::from(rest.try_get_u16_le()?));
        let (key, value) = (take(rest, key)?, take(rest, value)?);
        let Ok(key) = std::str::from_utf8(key) else { return Ok(None) };
        attributes.insert(key.into(), Bytes::copy_from_slice(value));
    }
    Ok(Some(attributes))
}

/// Bytes of an onode that are left for attributes and contents beside a name of this length and this much payload.
pub fn inline_room(name: usize, payload_blocks: usize, extents: usize) -> usize {
    BLOCK_LEN.saturating_sub(HEADER_LEN + name + extents * 8 + payload_blocks * 4)
}

impl Onode {
    /// Blocks of attributes at the front of the payload.
    pub fn spill_blocks(&self) -> usize {
        (self.spill as usize).div_ceil(BLOCK_LEN)
    }

    /// One block.
    ///
    /// # Panics
    /// If it does not fit: [`inline_room`] says whether it does.
    pub fn encode(&self, key: u64, store: u64) -> Bytes {
        let mut image = BytesMut::with_capacity(BLOCK_LEN);
        image.put_bytes(0, CHECK_LEN);
        image.put_u32_le(MAGIC);
        let flags = u16::from(self.provisional) * PROVISIONAL + u16::from(self.inline.is_some()) * INLINE;
        image.put_u16_le(flags);
        image.put_u16_le(self.name.as_bytes().len() as u16);
        image.put_u32_le(self.place.region);
        image.put_u32_le(self.place.slot);
        image.put_u128_le(self.id);
        let modified = u64::try_from(self.modified.as_nanos()).unwrap_or(u64::MAX);
        for word in [store, self.birth, self.generation, self.version, self.size, modified, self.checksum] {
            image.put_u64_le(word);
        }
        for count in [self.spill, self.extents.len() as u32, self.crcs.len() as u32] {
            image.put_u32_le(count);
        }
        image.resize(HEADER_LEN, 0);
        image.put_slice(self.name.as_bytes());
        for extent in &self.extents {
            image.put_u32_le(extent.block);
            image.put_u32_le(extent.count);
        }
        self.crcs.iter().for_each(|crc| image.put_u32_le(*crc));
        if self.spill == 0 {
            image.put_slice(&attributes_to(&self.attributes));
        }
        image.put_slice(self.inline.as_deref().unwrap_or_default());
        assert!(image.len() <= BLOCK_LEN, "an onode is one block");
        seal(key, image)
    }

    /// Reads the onode of a place.
    ///
    /// # Errors
    /// Damage; an onode of another place, store or life of the region.
    pub fn decode(key: u64, store: u64, place: Place, birth: u64, image: &[u8]) -> Result<Onode> {
        const WHAT: &str = "an onode";
        let mut rest = unseal(key, image, WHAT)?;
        magic(&mut rest, MAGIC, WHAT)?;
        let onode = Onode::fields(store, place, birth, rest).map_err(|_| cut(WHAT))?;
        onode.ok_or_else(|| Error::corrupt("an onode of another place or time, or one that contradicts itself"))
    }

    fn fields(store: u64, place: Place, birth: u64, mut rest: &[u8]) -> Result<Option<Onode>, TryGetError> {
        let whole = rest;
        let (flags, name_len) = (rest.try_get_u16_le()?, usize::from(rest.try_get_u16_le()?));
        let its_place = Place { region: rest.try_get_u32_le()?, slot: rest.try_get_u32_le()? };
        let id = rest.try_get_u128_le()?;
        let mut words = [0; 7];
        for word in &mut words {
            *word = rest.try_get_u64_le()?;
        }
        let [its_store, its_birth, generation, version, size, modified, checksum] = words;
        let (spill, extents_len, crcs_len) =
            (rest.try_get_u32_le()?, rest.try_get_u32_le()? as usize, rest.try_get_u32_le()? as usize);
        let inline = flags & INLINE != 0;
        let blocks = (spill as usize).div_ceil(BLOCK_LEN) as u64 + size.div_ceil(BLOCK_LEN as u64);
        let fits = if inline { crcs_len == 0 && spill == 0 } else { crcs_len as u64 == blocks };
        if (its_store, its_place, its_birth) != (store, place, birth)
            || !fits
            || extents_len > EXTENTS_MAX
            || crcs_len > BLOCKS_MAX
        {
            return Ok(None);
        }
        rest = whole;
        take(&mut rest, HEADER_LEN - CHECK_LEN - 4)?;
        let Ok(name) = Name::new(Bytes::copy_from_slice(take(&mut rest, name_len)?)) else { return Ok(None) };
        let mut extents = Vec::with_capacity(extents_len);
        for _ in 0..extents_len {
            extents.push(Extent { block: rest.try_get_u32_le()?, count: rest.try_get_u32_le()? });
        }
        let total: u64 = extents.iter().map(|extent| u64::from(extent.count)).sum();
        if extents_len > 0 && total != blocks {
            return Ok(None);
        }
        let crcs = (0..crcs_len).map(|_| rest.try_get_u32_le()).collect::<Result<Vec<u32>, _>>()?;
        let attributes = if spill == 0 { read_attributes(&mut rest)? } else { Some(Attributes::new()) };
        let Some(attributes) = attributes else { return Ok(None) };
        let inline = if inline { Some(Bytes::copy_from_slice(take(&mut rest, size as usize)?)) } else { None };
        Ok(Some(Onode {
            name,
            id,
            place,
            birth,
            version,
            generation,
            provisional: flags & PROVISIONAL != 0,
            size,
            modified: Duration::from_nanos(modified),
            checksum,
            attributes,
            spill,
            extents,
            crcs,
            inline,
        }))
    }
}
