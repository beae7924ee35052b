//! What a name stands for, as it is stored.
//!
//! ```text
//! length of the name (1), name, then
//!   0, attributes                         what lies in this zone (the root of a zone has an empty name)
//!   1, zone (8), inode (8), kind (1)      the root of another zone
//! ```

use crate::keys::{NUMBER_MAX, RANGE_BLOCKS, damaged, range_base};
use ashlar_block::Result;
use ashlar_inodes::blocks_of;
use ashlar_units::Lba;
use ashlar_vfs::{FileKind, Ino};
use bytes::{Buf, BufMut, Bytes, BytesMut, TryGetError};

/// Where the contents of a file are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The block range where they lie; 0: all that is known of them is in the dictionary.
    pub(crate) range: u64,
    /// There may be some in the dictionary. They lie over those in the range.
    pub(crate) overlaid: bool,
}

impl Contents {
    /// First block of the range.
    pub(crate) fn base(self) -> Lba {
        range_base(self.range)
    }
}

/// A flag of [`Contents`].
const OVERLAID: u8 = 4;

/// Attributes of an inode.
pub(crate) type Record = ashlar_inodes::Record<Contents>;

fn encode_record(record: &Record, bytes: &mut BytesMut) {
    record.put_head(bytes, if record.contents.overlaid { OVERLAID } else { 0 });
    for number in [record.ino, record.size, record.contents.range, record.parent] {
        bytes.put_u64_le(number);
    }
    record.put_tail(bytes);
}

fn decode_record(mut from: Bytes) -> Result<Record> {
    let read = || {
        let (mut record, flags) = Record::get_head(&mut from)?;
        record.contents.overlaid = flags & OVERLAID != 0;
        for number in [&mut record.ino, &mut record.size, &mut record.contents.range, &mut record.parent] {
            *number = from.try_get_u64_le().ok()?;
        }
        record.with_tail(from)
    };
    let record = read().ok_or_else(|| damaged("attributes are cut short or of an unknown kind"))?;
    let fits = record.kind != FileKind::File || blocks_of(record.size) <= RANGE_BLOCKS;
    let numbers = [record.ino, record.contents.range, record.parent].iter().all(|number| *number <= NUMBER_MAX);
    if fits && numbers && record.ino != 0 && record.has_valid_times() {
        Ok(record)
    } else {
        Err(damaged("attributes hold impossible values"))
    }
}

/// What moves with an inode if its place changes, counted for its directory: bytes of contents, bytes of metadata. Both follow
/// from what is stored, so that sums can be verified.
pub(crate) fn weight_of(record: &Record, inline: u64) -> [i64; 2] {
    let contents = match (record.contents.overlaid, record.contents.range) {
        (false, _) => 0,
        (true, 0) => record.size.min(inline),
        (true, _) => record.size,
    };
    [contents as i64, RECORD_WEIGHT + record.target.len() as i64]
}

/// Bytes of metadata that an inode counts for, about what it has.
const RECORD_WEIGHT: i64 = 160;
/// Bytes that the name of a zone counts for.
pub(crate) const ZONE_WEIGHT: [i64; 2] = [0, 64];

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
    /// See [`weight_of`].
    pub(crate) fn weight(&self, inline: u64) -> [i64; 2] {
        match self {
            Stored::Record(record) => weight_of(record, inline),
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
                encode_record(record, &mut bytes);
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
            0 => Stored::Record(decode_record(from)?),
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
    use ashlar_inodes::{BLOCK, testing};
    use proptest::prelude::*;

    fn record() -> impl Strategy<Value = Record> {
        let contents = (0..=NUMBER_MAX, any::<bool>()).prop_map(|(range, overlaid)| Contents { range, overlaid });
        testing::record(NUMBER_MAX, contents).prop_map(|mut record| {
            record.size %= RANGE_BLOCKS * BLOCK;
            record
        })
    }

    proptest! {
        #[test]
        fn entries_are_read_back(name in proptest::collection::vec(any::<u8>(), 0..255), record in record(), zone in any::<bool>(), cut in any::<prop::sample::Index>()) {
            let stored = match zone {
                true => Stored::Zone { zone: record.contents.range, ino: record.ino, kind: record.kind },
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
