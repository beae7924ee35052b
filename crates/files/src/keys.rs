//! What a file system writes into its volume's dictionary.
//!
//! ```text
//! F                     format: version, seed of the name hash
//! f                     the same again, where another leaf of the index has it; old file systems have none
//! N                     inode numbers below this one may be in use
//! S                     slots below this one may be in use
//! s slot                a slot that is free again
//! B slot                a slot that is being filled; forgotten after a crash
//! I inode               attributes, place of the data, target of a symbolic link
//! D directory position  entry: inode, kind, name
//! X inode name          extended attribute: `ashlar_inodes::xattr_key`
//! O inode               inode without names that somebody may still use
//! ```
//! Numbers in keys are big-endian, so that neighbours lie together.

use ashlar_block::{Error, Result};
use ashlar_inodes::blocks_of;
use ashlar_units::Lba;
use ashlar_vfs::{FileKind, Ino, NAME_LEN_MAX};
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Version of the format of everything below.
pub(crate) const VERSION: u8 = 1;
/// Blocks of a small file's range.
pub(crate) const SMALL_BLOCKS: u64 = 1 << SMALL_BITS;
const SMALL_BITS: u32 = 8;
/// Blocks of a large file's slot.
pub(crate) const SLOT_BLOCKS: u64 = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 32;
/// Slots: half of the block space, but for the last one, which would end where numbers of blocks do.
pub(crate) const SLOTS_MAX: u32 = (1 << 31) - 1;
/// Largest inode number: the small ranges fill the lower half of the block space.
pub(crate) const INO_MAX: u64 = (1 << (63 - SMALL_BITS)) - 1;

pub(crate) const FORMAT: &[u8] = b"F";
pub(crate) const FORMAT_COPY: &[u8] = b"f";
pub(crate) const NEXT_INO: &[u8] = b"N";
pub(crate) const NEXT_SLOT: &[u8] = b"S";
pub(crate) const FREE_SLOT: u8 = b's';
pub(crate) const BUILDING_SLOT: u8 = b'B';
pub(crate) const ORPHAN: u8 = b'O';
pub(crate) const INODE: u8 = b'I';
pub(crate) const ENTRY: u8 = b'D';

fn key(prefix: u8, number: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + number.len() + rest.len());
    key.push(prefix);
    key.extend_from_slice(number);
    key.extend_from_slice(rest);
    key
}

pub(crate) fn inode(ino: Ino) -> Vec<u8> {
    key(INODE, &ino.to_be_bytes(), &[])
}
pub(crate) fn entry(directory: Ino, position: u64) -> Vec<u8> {
    key(ENTRY, &directory.to_be_bytes(), &position.to_be_bytes())
}
pub(crate) fn orphan(ino: Ino) -> Vec<u8> {
    key(ORPHAN, &ino.to_be_bytes(), &[])
}
pub(crate) fn free_slot(slot: u32) -> Vec<u8> {
    key(FREE_SLOT, &slot.to_be_bytes(), &[])
}
pub(crate) fn building_slot(slot: u32) -> Vec<u8> {
    key(BUILDING_SLOT, &slot.to_be_bytes(), &[])
}
/// The number at the end of a key whose prefix is `skip` bytes.
pub(crate) fn number_in(key: &[u8], skip: usize) -> Option<u64> {
    let digits = key.get(skip..).filter(|digits| digits.len() <= 8 && !digits.is_empty())?;
    Some(digits.iter().fold(0, |number, digit| number << 8 | u64::from(*digit)))
}
/// The inode in the key of an inode, orphan or entry.
pub(crate) fn ino_in(key: &[u8]) -> Result<Ino> {
    let ino = key.get(..9).and_then(|key| number_in(key, 1)).filter(|ino| *ino <= INO_MAX);
    ino.ok_or_else(|| damaged("a key is cut short, or its inode number is out of range"))
}
/// The slot in the key of a slot.
pub(crate) fn slot_in(key: &[u8]) -> Result<u32> {
    slot_number(number_in(key, 1)).filter(|slot| *slot < SLOTS_MAX).ok_or_else(|| damaged("a key names no slot"))
}
/// A number of slots.
pub(crate) fn slot_number(number: Option<u64>) -> Option<u32> {
    number?.try_into().ok().filter(|slots| *slots <= SLOTS_MAX)
}

pub(crate) fn damaged(what: impl Into<String>) -> Error {
    Error::corrupt(what)
}

/// Where the data of an inode lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contents {
    /// In its small range.
    #[default]
    Small,
    /// In this slot.
    Slot(u32),
}

impl Contents {
    /// The slot, if it has one.
    pub(crate) fn slot(self) -> Option<u32> {
        match self {
            Contents::Small => None,
            Contents::Slot(slot) => Some(slot),
        }
    }

    /// Blocks of the range where the data lie.
    pub(crate) fn blocks_max(self) -> u64 {
        self.slot().map_or(SMALL_BLOCKS, |_| SLOT_BLOCKS)
    }
}

/// Attributes of an inode.
pub(crate) type Record = ashlar_inodes::Record<Contents>;

/// First block of the data of an inode.
pub(crate) fn base_of(record: &Record) -> Lba {
    record.contents.slot().map_or(Lba(record.ino << SMALL_BITS), slot_base)
}

/// Blocks up to the end of a file; a sparse small one may end behind its range.
pub(crate) fn blocks_in_range(record: &Record) -> u64 {
    blocks_of(record.size).min(record.contents.blocks_max())
}

/// A record as it is stored.
pub(crate) fn encode_record(record: &Record) -> Bytes {
    let mut bytes = BytesMut::with_capacity(112 + record.target.len());
    bytes.put_u8(VERSION);
    record.put_head(&mut bytes, 0);
    bytes.put_u32_le(record.contents.slot().map_or(0, |slot| slot + 1));
    bytes.put_u64_le(record.size);
    bytes.put_u64_le(record.parent);
    record.put_tail(&mut bytes);
    bytes.freeze()
}

/// Reads the record of this inode.
pub(crate) fn decode_record(ino: Ino, value: &Bytes) -> Result<Record> {
    let mut from = value.clone();
    let read = || {
        let version = from.try_get_u8().ok()?;
        let (mut record, _) = Record::get_head(&mut from).filter(|_| version == VERSION)?;
        record.ino = ino;
        let slot = from.try_get_u32_le().ok()?;
        record.contents = slot.checked_sub(1).map_or(Contents::Small, Contents::Slot);
        (record.size, record.parent) = (from.try_get_u64_le().ok()?, from.try_get_u64_le().ok()?);
        record.with_tail(from)
    };
    let record = read().ok_or_else(|| damaged("an inode's record is cut short or of an unknown version"))?;
    let fits = record.kind != FileKind::File || blocks_of(record.size) <= record.contents.blocks_max();
    let in_range = record.contents.slot().is_none_or(|slot| slot < SLOTS_MAX) && record.parent <= INO_MAX;
    if fits && in_range && record.has_valid_times() {
        Ok(record)
    } else {
        Err(damaged("an inode's record holds impossible values"))
    }
}

/// First block of a slot.
pub(crate) fn slot_base(slot: u32) -> Lba {
    Lba(1 << 63 | u64::from(slot) << SLOT_BITS)
}

/// Who a block belongs to: an inode, or a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Inode(Ino),
    Slot(u32),
}

/// The owner of a block, and the block's number within its range.
pub(crate) fn owner_of(block: Lba) -> (Owner, u64) {
    if block.0 >> 63 == 0 {
        (Owner::Inode(block.0 >> SMALL_BITS), block.0 % SMALL_BLOCKS)
    } else {
        (Owner::Slot((block.0 >> SLOT_BITS) as u32 & SLOTS_MAX), block.0 % SLOT_BLOCKS)
    }
}

/// An entry of a directory as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// 0: the entry was removed, and only keeps the chain of equal hashes together.
    pub(crate) ino: Ino,
    pub(crate) kind: FileKind,
    /// Another entry with this hash stands in the next position.
    pub(crate) more: bool,
    pub(crate) name: Bytes,
}

const MORE: u8 = 0x80;

impl Entry {
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(9 + self.name.len());
        bytes.put_u64_le(self.ino);
        bytes.put_u8(self.kind.dirent_type() | if self.more { MORE } else { 0 });
        bytes.put_slice(&self.name);
        bytes.freeze()
    }
    pub(crate) fn decode(value: &Bytes) -> Result<Entry> {
        let mut from = value.clone();
        let mut read = || {
            let ino = from.try_get_u64_le().ok().filter(|ino| *ino <= INO_MAX)?;
            let code = from.try_get_u8().ok()?;
            let kind = FileKind::from_mode(u32::from(code & !MORE) << 12)?;
            let more = code & MORE != 0;
            // A removed entry has no name.
            (from.len() <= NAME_LEN_MAX).then(|| Entry { ino, kind, more, name: from.clone() })
        };
        read().ok_or_else(|| damaged("a directory entry is cut short, too long or of an unknown kind"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap() {
        assert_eq!(owner_of(Lba(INO_MAX << SMALL_BITS | 255)), (Owner::Inode(INO_MAX), 255));
        assert_eq!(owner_of(Lba(u64::MAX)), (Owner::Slot(SLOTS_MAX), SLOT_BLOCKS - 1));
        assert_eq!(owner_of(slot_base(SLOTS_MAX - 1)), (Owner::Slot(SLOTS_MAX - 1), 0));
        assert_eq!(owner_of(slot_base(7)), (Owner::Slot(7), 0));
    }
}
