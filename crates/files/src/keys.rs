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
//! X inode name          extended attribute
//! O inode               inode without names that somebody may still use
//! ```
//! Numbers in keys are big-endian, so that neighbours lie together.

use ashlar_block::{Error, Result};
use ashlar_units::{BLOCK_LEN, Lba};
use ashlar_vfs::{Attr, FileKind, Ino, NAME_LEN_MAX, Time};
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
pub(crate) fn xattr(ino: Ino, name: &[u8]) -> Vec<u8> {
    key(b'X', &ino.to_be_bytes(), name)
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

/// A number as a value.
pub(crate) fn number(value: u64) -> Bytes {
    Bytes::copy_from_slice(&value.to_le_bytes())
}
pub(crate) fn read_number(mut value: &[u8]) -> Result<u64> {
    value.try_get_u64_le().map_err(|_| damaged("a counter is cut short"))
}

pub(crate) fn damaged(what: impl Into<String>) -> Error {
    Error::corrupt(what)
}

/// Attributes of an inode as they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: FileKind,
    pub(crate) permissions: u32,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) device: u32,
    pub(crate) size: u64,
    pub(crate) accessed: Time,
    pub(crate) modified: Time,
    pub(crate) changed: Time,
    pub(crate) born: Time,
    /// 0: the data lies in the inode's small range; else slot + 1.
    pub(crate) slot: u32,
    /// Not every block below the size is stored.
    pub(crate) sparse: bool,
    /// There may be extended attributes.
    pub(crate) has_xattrs: bool,
    /// Where `..` of a directory leads.
    pub(crate) parent: Ino,
    /// Target of a symbolic link.
    pub(crate) target: Bytes,
}

/// Nanoseconds of a second.
const NANOS: u32 = 1_000_000_000;
const SPARSE: u8 = 1;
const HAS_XATTRS: u8 = 2;

fn put_time(to: &mut BytesMut, time: Time) {
    to.put_i64_le(time.seconds);
    to.put_u32_le(time.nanos.min(NANOS - 1));
}

fn get_time(from: &mut impl Buf) -> std::result::Result<Time, bytes::TryGetError> {
    Ok(Time { seconds: from.try_get_i64_le()?, nanos: from.try_get_u32_le()? })
}

impl Record {
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(112 + self.target.len());
        let flags = if self.sparse { SPARSE } else { 0 } | if self.has_xattrs { HAS_XATTRS } else { 0 };
        bytes.put_slice(&[VERSION, flags]);
        bytes.put_u16_le((self.kind.mode_bits() | self.permissions & 0o7777) as u16);
        for number in [self.links, self.uid, self.gid, self.device, self.slot] {
            bytes.put_u32_le(number);
        }
        bytes.put_u64_le(self.size);
        bytes.put_u64_le(self.parent);
        for time in [self.accessed, self.modified, self.changed, self.born] {
            put_time(&mut bytes, time);
        }
        bytes.put_slice(&self.target);
        bytes.freeze()
    }

    pub(crate) fn decode(value: &Bytes) -> Result<Record> {
        let mut from = value.clone();
        let mut read = || -> std::result::Result<Option<Record>, bytes::TryGetError> {
            let (version, flags) = (from.try_get_u8()?, from.try_get_u8()?);
            let mode = u32::from(from.try_get_u16_le()?);
            let Some(kind) = FileKind::from_mode(mode).filter(|_| version == VERSION) else { return Ok(None) };
            let (links, uid, gid) = (from.try_get_u32_le()?, from.try_get_u32_le()?, from.try_get_u32_le()?);
            let (device, slot) = (from.try_get_u32_le()?, from.try_get_u32_le()?);
            let (size, parent) = (from.try_get_u64_le()?, from.try_get_u64_le()?);
            let (accessed, modified) = (get_time(&mut from)?, get_time(&mut from)?);
            let (changed, born) = (get_time(&mut from)?, get_time(&mut from)?);
            Ok(Some(Record {
                kind,
                permissions: mode & 0o7777,
                links,
                uid,
                gid,
                device,
                size,
                accessed,
                modified,
                changed,
                born,
                slot,
                sparse: flags & SPARSE != 0,
                has_xattrs: flags & HAS_XATTRS != 0,
                parent,
                // A copy: a slice would keep the whole index node in memory.
                target: Bytes::copy_from_slice(&from),
            }))
        };
        let record = read().ok().flatten();
        let record = record.ok_or_else(|| damaged("an inode's record is cut short or of an unknown version"))?;
        let times = [record.accessed, record.modified, record.changed, record.born];
        let fits = record.kind != FileKind::File || record.size.div_ceil(BLOCK_LEN as u64) <= record.blocks_max();
        if !fits || record.slot > SLOTS_MAX || record.parent > INO_MAX || times.iter().any(|time| time.nanos >= NANOS) {
            return Err(damaged("an inode's record holds impossible values"));
        }
        Ok(record)
    }

    /// Blocks of the range where the data lie.
    pub(crate) fn blocks_max(&self) -> u64 {
        if self.slot == 0 { SMALL_BLOCKS } else { SLOT_BLOCKS }
    }

    /// First block of the data.
    pub(crate) fn base(&self, ino: Ino) -> Lba {
        match self.slot {
            0 => Lba(ino << SMALL_BITS),
            slot => slot_base(slot - 1),
        }
    }

    /// Attributes, but for the space in use, which the caller counts.
    pub(crate) fn attr(&self, ino: Ino, allocated: u64) -> Attr {
        Attr {
            ino,
            generation: 1,
            kind: self.kind,
            permissions: self.permissions,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            device: self.device,
            size: self.size,
            allocated,
            estimated: false,
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
            born: self.born,
        }
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
