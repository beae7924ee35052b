//! A region's head: its summary and bitmaps as of a checkpoint. There are two, by turns, so that one is always whole.

use super::{CHECK_LEN, cut, magic, seal, unseal};
use crate::bits::Bits;
use crate::layout::{HEAD_HEADER_LEN, Kind, Shape};
use ashlar_block::{Error, Result};
use ashlar_units::BLOCK_LEN;
use bytes::{Buf, BufMut, Bytes, BytesMut, TryGetError};

const MAGIC: u32 = u32::from_le_bytes(*b"ASRH");

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Identity of the store.
    pub store: u64,
    /// Which region.
    pub region: u32,
    /// What it holds.
    pub kind: Kind,
    /// Since which version.
    pub birth: u64,
    /// Every copy up to this version is in the bitmaps if it counts.
    pub generation: u64,
    /// The checkpoint that wrote it.
    pub commit: u64,
    /// Onodes or units in use.
    pub slots: Bits,
    /// Blocks in use.
    pub blocks: Bits,
}

impl Head {
    /// As many blocks as a head has.
    pub fn encode(&self, key: u64, shape: &Shape) -> Bytes {
        let mut image = BytesMut::with_capacity(shape.head as usize * BLOCK_LEN);
        image.put_bytes(0, CHECK_LEN);
        image.put_u32_le(MAGIC);
        image.put_u32_le(self.region);
        for word in [self.store, self.birth, self.generation, self.commit] {
            image.put_u64_le(word);
        }
        image.put_u8(self.kind.to_byte());
        image.resize(HEAD_HEADER_LEN, 0);
        for bits in [&self.slots, &self.blocks] {
            bits.words().iter().for_each(|word| image.put_u64_le(*word));
        }
        image.resize(shape.head as usize * BLOCK_LEN, 0);
        seal(key, image)
    }

    /// Reads the head of a region.
    ///
    /// # Errors
    /// Damage; another region's head.
    pub fn decode(key: u64, store: u64, region: u32, shape: &Shape, image: &[u8]) -> Result<Head> {
        const WHAT: &str = "a region's head";
        let mut rest = unseal(key, image, WHAT)?;
        magic(&mut rest, MAGIC, WHAT)?;
        let read = |rest: &mut &[u8]| -> Result<([u64; 5], u8), TryGetError> {
            let mut words = [u64::from(rest.try_get_u32_le()?), 0, 0, 0, 0];
            for word in &mut words[1..] {
                *word = rest.try_get_u64_le()?;
            }
            Ok((words, rest.try_get_u8()?))
        };
        let ([number, its_store, birth, generation, commit], kind) = read(&mut rest).map_err(|_| cut(WHAT))?;
        let kind = Kind::from_byte(kind).ok_or_else(|| Error::corrupt("a region is of a kind that does not exist"))?;
        if number != u64::from(region) || its_store != store {
            return Err(Error::corrupt(format!("this is the head of region {number} of store {its_store:x}")));
        }
        let mut rest = image.get(HEAD_HEADER_LEN..).ok_or_else(|| cut(WHAT))?;
        let (slots, blocks) = shape.bits(kind);
        let mut bits = |len: u64| -> Result<Bits> {
            let words = (0..len.div_ceil(64)).map(|_| rest.try_get_u64_le()).collect::<Result<Vec<u64>, _>>();
            Bits::of_words(words.map_err(|_| cut(WHAT))?, len)
                .ok_or_else(|| Error::corrupt("a bitmap has bits behind its end"))
        };
        let (slots, blocks) = (bits(slots)?, bits(blocks)?);
        Ok(Head { store, region, kind, birth, generation, commit, slots, blocks })
    }
}
