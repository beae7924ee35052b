//! A page of the object lookup table: hashes of names, and where the objects are.

use super::{CHECK_LEN, Place, cut, magic, seal, unseal};
use ashlar_block::{Error, Result};
use ashlar_units::{BLOCK_LEN, Lba};
use bytes::{Buf, BufMut, Bytes, BytesMut, TryGetError};

const MAGIC: u32 = u32::from_le_bytes(*b"ASRP");
const HEADER_LEN: usize = CHECK_LEN + 4 + 4 + 8 + 8 + 8;
const ENTRY_LEN: usize = 40;
/// Objects of one page.
pub const PAGE_ENTRIES: usize = (BLOCK_LEN - HEADER_LEN) / ENTRY_LEN;
const _: () = assert!(PAGE_ENTRIES == 101, "the layout's table is sized by it");

/// Where an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place.
    pub place: Place,
    /// Number of the copy there.
    pub generation: u64,
    /// Version of the object.
    pub version: u64,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Page {
    /// Objects by the hash of their name, in no order.
    pub entries: Vec<(u128, Entry)>,
    /// The next page of the same bucket, in the extensible part.
    pub link: Option<Lba>,
}

impl Page {
    /// One block, for this address.
    pub fn encode(&self, key: u64, store: u64, at: Lba) -> Bytes {
        let mut image = BytesMut::with_capacity(BLOCK_LEN);
        image.put_bytes(0, CHECK_LEN);
        image.put_u32_le(MAGIC);
        image.put_u32_le(self.entries.len() as u32);
        image.put_u64_le(store);
        image.put_u64_le(at.0);
        image.put_u64_le(self.link.map_or(0, |link| link.0));
        for (id, entry) in &self.entries {
            image.put_u128_le(*id);
            image.put_u64_le(entry.generation);
            image.put_u64_le(entry.version);
            image.put_u32_le(entry.place.region);
            image.put_u32_le(entry.place.slot);
        }
        seal(key, image)
    }

    /// Reads one.
    ///
    /// # Errors
    /// Damage, or another address's page.
    pub fn decode(key: u64, store: u64, at: Lba, image: &[u8]) -> Result<Page> {
        const WHAT: &str = "a page of the lookup table";
        let mut rest = unseal(key, image, WHAT)?;
        magic(&mut rest, MAGIC, WHAT)?;
        let page = Page::fields(store, at, rest).map_err(|_| cut(WHAT))?;
        page.ok_or_else(|| Error::corrupt(format!("{WHAT} lies at {at} and belongs elsewhere")))
    }

    fn fields(store: u64, at: Lba, mut rest: &[u8]) -> Result<Option<Page>, TryGetError> {
        let count = rest.try_get_u32_le()? as usize;
        let (its_store, its_at, link) = (rest.try_get_u64_le()?, rest.try_get_u64_le()?, rest.try_get_u64_le()?);
        if its_store != store || its_at != at.0 || count > PAGE_ENTRIES {
            return Ok(None);
        }
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            let (id, generation) = (rest.try_get_u128_le()?, rest.try_get_u64_le()?);
            let version = rest.try_get_u64_le()?;
            let place = Place { region: rest.try_get_u32_le()?, slot: rest.try_get_u32_le()? };
            entries.push((id, Entry { place, generation, version }));
        }
        Ok(Some(Page { entries, link: (link != 0).then_some(Lba(link)) }))
    }
}
