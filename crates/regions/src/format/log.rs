//! The log: what must be known since the last checkpoint and is in no onode. Batches are written one at a time, so that
//! their order is the order of what they say.

use super::{CHECK_LEN, Place, cut, magic, seal, take, unseal};
use crate::layout::Kind;
use ashlar_block::{Error, Result};
use ashlar_objects::Name;
use ashlar_units::{BLOCK_LEN, Lba};
use bytes::{Buf, BufMut, Bytes, BytesMut, TryGetError};

const MAGIC: u32 = u32::from_le_bytes(*b"ASRL");
const HEADER_LEN: usize = CHECK_LEN + 4 + 4 + 8 + 8 + 8;
/// Bytes of records in one batch, at most: a composition of ten thousand parts with long names fits.
pub const BATCH_RECORDS_MAX: usize = 16 << 20;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A region is being written from now on; it took this kind at number `birth`.
    Open {
        /// The region.
        region: u32,
        /// What it holds.
        kind: Kind,
        /// Since when.
        birth: u64,
    },
    /// The copy of this number in this place was replaced by a newer one.
    Retire {
        /// Where it is.
        place: Place,
        /// Which it is.
        generation: u64,
    },
    /// The object was deleted, or became part of another.
    Delete {
        /// Hash of its name.
        id: u128,
        /// Its name.
        name: Name,
        /// Every copy older than this is gone.
        at: u64,
        /// Where its last copy is, and its number.
        last: Option<(Place, u64)>,
    },
    /// The composition of this number counts.
    Commit {
        /// Number of the copy that was made.
        generation: u64,
    },
    /// A block of a table region became a page of the lookup table.
    Page {
        /// Its address.
        at: Lba,
    },
}

impl Record {
    fn put(&self, to: &mut BytesMut) {
        match self {
            Record::Open { region, kind, birth } => {
                to.put_u8(1);
                to.put_u32_le(*region);
                to.put_u8(kind.to_byte());
                to.put_u64_le(*birth);
            }
            Record::Retire { place, generation } => {
                to.put_u8(2);
                put_copy(to, place, *generation);
            }
            Record::Delete { id, name, at, last } => {
                to.put_u8(3);
                to.put_u128_le(*id);
                to.put_u16_le(name.as_bytes().len() as u16);
                to.put_slice(name.as_bytes());
                to.put_u64_le(*at);
                to.put_u8(u8::from(last.is_some()));
                if let Some((place, generation)) = last {
                    put_copy(to, place, *generation);
                }
            }
            Record::Commit { generation } => {
                to.put_u8(4);
                to.put_u64_le(*generation);
            }
            Record::Page { at } => {
                to.put_u8(5);
                to.put_u64_le(at.0);
            }
        }
    }

    fn get(rest: &mut &[u8]) -> Result<Option<Record>, TryGetError> {
        Ok(Some(match rest.try_get_u8()? {
            1 => {
                let (region, kind, birth) = (rest.try_get_u32_le()?, rest.try_get_u8()?, rest.try_get_u64_le()?);
                let Some(kind) = Kind::from_byte(kind) else { return Ok(None) };
                Record::Open { region, kind, birth }
            }
            2 => {
                let (place, generation) = get_copy(rest)?;
                Record::Retire { place, generation }
            }
            3 => {
                let id = rest.try_get_u128_le()?;
                let len = usize::from(rest.try_get_u16_le()?);
                let Ok(name) = Name::new(Bytes::copy_from_slice(take(rest, len)?)) else { return Ok(None) };
                let at = rest.try_get_u64_le()?;
                let last = if rest.try_get_u8()? == 1 { Some(get_copy(rest)?) } else { None };
                Record::Delete { id, name, at, last }
            }
            4 => Record::Commit { generation: rest.try_get_u64_le()? },
            5 => Record::Page { at: Lba(rest.try_get_u64_le()?) },
            _ => return Ok(None),
        }))
    }
}

fn put_copy(to: &mut BytesMut, place: &Place, generation: u64) {
    to.put_u32_le(place.region);
    to.put_u32_le(place.slot);
    to.put_u64_le(generation);
}

fn get_copy(rest: &mut &[u8]) -> Result<(Place, u64), TryGetError> {
    let place = Place { region: rest.try_get_u32_le()?, slot: rest.try_get_u32_le()? };
    Ok((place, rest.try_get_u64_le()?))
}

/// Records that become durable together.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Batch {
    /// The number of its first block.
    pub seq: u64,
    /// What happened, in order.
    pub records: Vec<Record>,
}

impl Batch {
    /// Whole blocks.
    pub fn encode(&self, key: u64, store: u64) -> Bytes {
        let mut image = BytesMut::with_capacity(BLOCK_LEN);
        image.put_bytes(0, HEADER_LEN);
        self.records.iter().for_each(|record| record.put(&mut image));
        let len = (image.len() - HEADER_LEN) as u64;
        let mut header = &mut image[CHECK_LEN..HEADER_LEN];
        header.put_u32_le(MAGIC);
        header.put_u32_le(self.records.len() as u32);
        for word in [store, self.seq, len] {
            header.put_u64_le(word);
        }
        seal(key, image)
    }

    /// How many blocks a batch has that begins with this block, if it seems to be one with this number.
    pub fn blocks(store: u64, seq: u64, first: &[u8]) -> Option<u64> {
        let (_, its_store, its_seq, len) = Batch::header(first).ok()?;
        let fits = its_store == store && its_seq == seq && len <= BATCH_RECORDS_MAX as u64;
        fits.then(|| (HEADER_LEN as u64 + len).div_ceil(BLOCK_LEN as u64))
    }

    fn header(image: &[u8]) -> Result<(u32, u64, u64, u64)> {
        const WHAT: &str = "a batch of the log";
        let mut rest = image.get(CHECK_LEN..HEADER_LEN).ok_or_else(|| cut(WHAT))?;
        magic(&mut rest, MAGIC, WHAT)?;
        let mut read =
            || Ok((rest.try_get_u32_le()?, rest.try_get_u64_le()?, rest.try_get_u64_le()?, rest.try_get_u64_le()?));
        read().map_err(|_: TryGetError| cut(WHAT))
    }

    /// Reads one.
    ///
    /// # Errors
    /// Damage, or a batch that was not written completely.
    pub fn decode(key: u64, store: u64, seq: u64, image: &[u8]) -> Result<Batch> {
        const WHAT: &str = "a batch of the log";
        unseal(key, image, WHAT)?;
        let (count, its_store, its_seq, len) = Batch::header(image)?;
        if its_store != store || its_seq != seq {
            return Err(Error::corrupt(format!("{WHAT} has number {its_seq} and not {seq}")));
        }
        let mut rest = image.get(HEADER_LEN..).and_then(|rest| rest.get(..len as usize)).ok_or_else(|| cut(WHAT))?;
        let mut records = Vec::new();
        for _ in 0..count {
            let record = Record::get(&mut rest).map_err(|_| cut(WHAT))?;
            records.push(record.ok_or_else(|| Error::corrupt("a record of the log is of no known kind"))?);
        }
        Ok(Batch { seq, records })
    }
}
