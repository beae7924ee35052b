//! What a name stands for, as it is stored.
//!
//! ```text
//! length of the name (1), name, then
//!   0, attributes                         what lies in this zone (the root of a zone has an empty name)
//!   1, zone (8), inode (8), kind (1)      the root of another zone
//! ```

use crate::keys::{NUMBER_MAX, RANGE_BLOCKS, damaged, range_base};
use ashlar_block::Result;
use ashlar_units::{BLOCK_LEN, Lba};
use ashlar_vfs::{Attr, FileKind, Ino, Time};
use bytes::{Buf, BufMut, Bytes, BytesMut, TryGetError};

const BLOCK: u64 = BLOCK_LEN as u64;

/// Attributes of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) ino: Ino,
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
    /// The block range where contents lie; 0: all that is known of them is in the dictionary.
    pub(crate) range: u64,
    /// Not every block below the size is stored.
    pub(crate) sparse: bool,
    /// There may be contents in the dictionary. They lie over those in the range.
    pub(crate) overlaid: bool,
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
const OVERLAID: u8 = 4;

fn put_time(to: &mut BytesMut, time: Time) {
    to.put_i64_le(time.seconds);
    to.put_u32_le(time.nanos.min(NANOS - 1));
}

fn get_time(from: &mut impl Buf) -> std::result::Result<Time, TryGetError> {
    Ok(Time { seconds: from.try_get_i64_le()?, nanos: from.try_get_u32_le()? })
}

impl Record {
    /// Attributes of something empty with one name, born now.
    pub(crate) fn new(ino: Ino, kind: FileKind, now: Time) -> Record {
        Record {
            ino,
            kind,
            permissions: 0,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            device: 0,
            size: 0,
            accessed: now,
            modified: now,
            changed: now,
            born: now,
            range: 0,
            sparse: false,
            overlaid: false,
            has_xattrs: false,
            parent: 0,
            target: Bytes::new(),
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// First block of the range.
    pub(crate) fn base(&self) -> Lba {
        range_base(self.range)
    }

    fn encode(&self, bytes: &mut BytesMut) {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = flag(self.sparse, SPARSE) | flag(self.has_xattrs, HAS_XATTRS) | flag(self.overlaid, OVERLAID);
        bytes.put_u8(flags);
        bytes.put_u16_le((self.kind.mode_bits() | self.permissions & 0o7777) as u16);
        for number in [self.links, self.uid, self.gid, self.device] {
            bytes.put_u32_le(number);
        }
        for number in [self.ino, self.size, self.range, self.parent] {
            bytes.put_u64_le(number);
        }
        for time in [self.accessed, self.modified, self.changed, self.born] {
            put_time(bytes, time);
        }
        bytes.put_slice(&self.target);
    }

    fn decode(mut from: Bytes) -> Result<Record> {
        let mut read = || -> std::result::Result<Option<Record>, TryGetError> {
            let flags = from.try_get_u8()?;
            let mode = u32::from(from.try_get_u16_le()?);
            let Some(kind) = FileKind::from_mode(mode) else { return Ok(None) };
            let (links, uid) = (from.try_get_u32_le()?, from.try_get_u32_le()?);
            let (gid, device) = (from.try_get_u32_le()?, from.try_get_u32_le()?);
            let (ino, size) = (from.try_get_u64_le()?, from.try_get_u64_le()?);
            let (range, parent) = (from.try_get_u64_le()?, from.try_get_u64_le()?);
            let (accessed, modified) = (get_time(&mut from)?, get_time(&mut from)?);
            let (changed, born) = (get_time(&mut from)?, get_time(&mut from)?);
            Ok(Some(Record {
                ino,
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
                range,
                sparse: flags & SPARSE != 0,
                overlaid: flags & OVERLAID != 0,
                has_xattrs: flags & HAS_XATTRS != 0,
                parent,
                // A copy: a slice would keep the whole index node in memory.
                target: Bytes::copy_from_slice(&from),
            }))
        };
        let record = read().ok().flatten().ok_or_else(|| damaged("attributes are cut short or of an unknown kind"))?;
        let times = [record.accessed, record.modified, record.changed, record.born];
        let fits = record.kind != FileKind::File || record.size.div_ceil(BLOCK) <= RANGE_BLOCKS;
        let numbers = [record.ino, record.range, record.parent].iter().all(|number| *number <= NUMBER_MAX);
        if !fits || !numbers || record.ino == 0 || times.iter().any(|time| time.nanos >= NANOS) {
            return Err(damaged("attributes hold impossible values"));
        }
        Ok(record)
    }

    /// Attributes, but for the space in use, which the caller counts.
    pub(crate) fn attr(&self, allocated: u64) -> Attr {
        Attr {
            generation: 1,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            device: self.device,
            size: self.size,
            allocated,
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
            born: self.born,
            ..Attr::plain(self.ino, self.kind, self.permissions)
        }
    }

    /// What moves with it if its place changes, counted for its directory: bytes of contents, bytes of metadata. Both follow
    /// from what is stored, so that sums can be verified.
    pub(crate) fn weight(&self, inline: u64) -> [i64; 2] {
        let contents = match (self.overlaid, self.range) {
            (false, _) => 0,
            (true, 0) => self.size.min(inline),
            (true, _) => self.size,
        };
        [contents as i64, RECORD_WEIGHT + self.target.len() as i64]
    }
}

/// Bytes of metadata that an inode counts for, about what it has.
const RECORD_WEIGHT: i64 = 160;
/// Bytes that the name of a zone counts for.
const ZONE_WEIGHT: [i64; 2] = [0, 64];

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// Attributes.
    Record(Record),
    /// The root of another zone.
    Zone { zone: u64, ino: Ino, kind: FileKind },
}

impl Stored {
    pub(crate) fn ino(&self) -> Ino {
        match self {
            Stored::Record(record) => record.ino,
            Stored::Zone { ino, .. } => *ino,
        }
    }
    pub(crate) fn kind(&self) -> FileKind {
        match self {
            Stored::Record(record) => record.kind,
            Stored::Zone { kind, .. } => *kind,
        }
    }
    /// See [`Record::weight`].
    pub(crate) fn weight(&self, inline: u64) -> [i64; 2] {
        match self {
            Stored::Record(record) => record.weight(inline),
            Stored::Zone { .. } => ZONE_WEIGHT,
        }
    }
}

/// A name, and what it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: Bytes,
    pub(crate) stored: Stored,
}

impl Entry {
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(120 + self.name.len());
        bytes.put_u8(self.name.len() as u8);
        bytes.put_slice(&self.name);
        match &self.stored {
            Stored::Record(record) => {
                bytes.put_u8(0);
                record.encode(&mut bytes);
            }
            Stored::Zone { zone, ino, kind } => {
                bytes.put_u8(1);
                bytes.put_u64_le(*zone);
                bytes.put_u64_le(*ino);
                bytes.put_u8(kind.dirent_type());
            }
        }
        bytes.freeze()
    }

    pub(crate) fn decode(value: &Bytes) -> Result<Entry> {
        let short = |_: TryGetError| damaged("an entry is cut short");
        let mut from = value.clone();
        let len = usize::from(from.try_get_u8().map_err(short)?);
        if len > from.len() {
            return Err(damaged("an entry is cut short"));
        }
        let name = from.split_to(len);
        let stored = match from.try_get_u8().map_err(short)? {
            0 => Stored::Record(Record::decode(from)?),
            1 => {
                let (zone, ino) = (from.try_get_u64_le().map_err(short)?, from.try_get_u64_le().map_err(short)?);
                let kind = FileKind::from_mode(u32::from(from.try_get_u8().map_err(short)?) << 12);
                let kind = kind.filter(|_| zone <= NUMBER_MAX && (1..=NUMBER_MAX).contains(&ino));
                Stored::Zone { zone, ino, kind: kind.ok_or_else(|| damaged("an entry names no zone"))? }
            }
            other => return Err(damaged(format!("an entry is of unknown kind {other}"))),
        };
        Ok(Entry { name, stored })
    }

    /// Attributes without a name, as the root of a zone has them.
    pub(crate) fn nameless(record: Record) -> Entry {
        Entry { name: Bytes::new(), stored: Stored::Record(record) }
    }

    /// The attributes in an entry that must be the root of a zone or an orphan's.
    pub(crate) fn record(self) -> Result<Record> {
        match self.stored {
            Stored::Record(record) => Ok(record),
            Stored::Zone { .. } => Err(damaged("a zone's root names another zone")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> impl Strategy<Value = Record> {
        let time = || (any::<i64>(), 0..NANOS).prop_map(|(seconds, nanos)| Time { seconds, nanos });
        let kind = prop_oneof![Just(FileKind::File), Just(FileKind::Directory), Just(FileKind::Symlink)];
        let numbers = (any::<[u32; 4]>(), 1..=NUMBER_MAX, 0..=NUMBER_MAX, 0..=NUMBER_MAX, 0..RANGE_BLOCKS * BLOCK);
        let rest =
            ([time(), time(), time(), time()], any::<[bool; 3]>(), proptest::collection::vec(any::<u8>(), 0..40));
        (kind, 0..0o10000u32, numbers, rest).prop_map(|(kind, permissions, numbers, rest)| {
            let ([links, uid, gid, device], ino, range, parent, size) = numbers;
            let ([accessed, modified, changed, born], [sparse, overlaid, has_xattrs], target) = rest;
            let target = target.into();
            Record {
                ino,
                kind,
                permissions,
                links,
                uid,
                gid,
                device,
                size,
                accessed,
                modified,
                changed,
                born,
                range,
                sparse,
                overlaid,
                has_xattrs,
                parent,
                target,
            }
        })
    }

    proptest! {
        #[test]
        fn entries_are_read_back(name in proptest::collection::vec(any::<u8>(), 0..255), record in record(), zone in any::<bool>(), cut in any::<prop::sample::Index>()) {
            let stored = match zone {
                true => Stored::Zone { zone: record.range, ino: record.ino, kind: record.kind },
                false => Stored::Record(record),
            };
            let entry = Entry { name: name.into(), stored };
            let bytes = entry.encode();
            prop_assert_eq!(Entry::decode(&bytes).expect("valid"), entry);
            let _ = Entry::decode(&bytes.slice(..cut.index(bytes.len())));
        }

        #[test]
        fn noise_is_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(entry) = Entry::decode(&bytes.into()) {
                prop_assert_eq!(Entry::decode(&entry.encode()).expect("valid"), entry);
            }
        }
    }
}
