//! What a region store looks like on its device. Everything begins with a keyed checksum over the rest: the key is in the
//! superblock, so that no contents of objects can pass for what the store wrote about itself.

#[cfg(test)]
mod golden;
mod head;
mod log;
mod map;
mod onode;
mod page;
mod superblock;

pub use head::Head;
pub use log::{Batch, Record};
pub use map::{MAP_ENTRY_LEN, MAP_HEADER_LEN, MapEntry, decode_map, encode_map};
pub use onode::{ATTRIBUTES_MAX, EXTENTS_MAX, Extent, Onode, attributes_from, attributes_to, inline_room};
pub use page::{Entry, PAGE_ENTRIES, Page};
pub use superblock::Superblock;

use ashlar_block::{Error, Result};
use ashlar_units::BLOCK_LEN;
use bytes::{Buf, Bytes, BytesMut, TryGetError};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Version of the whole format: that of stores that are made now. Readers refuse newer ones. A store keeps the version that it
/// was made with. What changed with 2: tables may lie behind the last whole region ([`Layout::tail`](crate::Layout)).
pub const VERSION: u16 = 2;
/// The oldest version that is read and written.
pub const VERSION_MIN: u16 = 1;
const CHECK_LEN: usize = 8;

/// A place that holds an object: a slot of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Region.
    pub region: u32,
    /// Onode of a small region, unit of a large one.
    pub slot: u32,
}

/// CRC32C, the checksum of every block of contents.
pub fn crc(data: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, data) as u32
}

/// Fills a buffer up to whole blocks and writes the checksum into its first eight bytes.
fn seal(key: u64, mut image: BytesMut) -> Bytes {
    image.resize(image.len().next_multiple_of(BLOCK_LEN), 0);
    let check = xxh3_64_with_seed(&image[CHECK_LEN..], key);
    image[..CHECK_LEN].copy_from_slice(&check.to_le_bytes());
    image.freeze()
}

/// What lies behind a checksum that holds.
fn unseal<'a>(key: u64, image: &'a [u8], what: &str) -> Result<&'a [u8]> {
    let (check, rest) = image.split_at_checked(CHECK_LEN).ok_or_else(|| cut(what))?;
    if xxh3_64_with_seed(rest, key).to_le_bytes() != check {
        return Err(Error::corrupt(format!("{what}: wrong checksum")));
    }
    Ok(rest)
}

fn cut(what: &str) -> Error {
    Error::corrupt(format!("{what} is cut short"))
}

/// A magic number, or an error that says that it is something else.
fn magic(rest: &mut &[u8], expected: u32, what: &str) -> Result<()> {
    if rest.try_get_u32_le().map_err(|_| cut(what))? == expected {
        return Ok(());
    }
    Err(Error::corrupt(format!("this is not {what}")))
}

/// Bytes of this length.
fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], TryGetError> {
    let short = TryGetError { requested: len, available: rest.len() };
    let (taken, left) = rest.split_at_checked(len).ok_or(short)?;
    *rest = left;
    Ok(taken)
}
