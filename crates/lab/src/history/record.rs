//! One thing that happened.

use crate::codec::{Damage, Take, put_i64, put_u64};
use crate::sorter::Item;

/// The directory in which everything is.
pub const ROOT: u64 = 0;
/// Linux knows no longer name.
const NAME_LEN_MAX: u8 = 255;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A directory was made.
    MakeDirectory {
        /// In which directory.
        parent: u64,
        /// Bytes of its name.
        name_len: u8,
    },
    /// A file was made and written.
    Create {
        /// In which directory.
        parent: u64,
        /// Bytes of its name.
        name_len: u8,
        /// Bytes that it had then.
        size: u64,
        /// How it was written.
        how: Writing,
    },
    /// A file was cut to `keep` bytes (if it was longer) and written on from there.
    Modify {
        /// Bytes that stayed.
        keep: u64,
        /// Bytes that it had then.
        size: u64,
        /// How it was written.
        how: Writing,
    },
    /// It came into another directory.
    Move {
        /// Which.
        parent: u64,
        /// Bytes of its name there.
        name_len: u8,
    },
    /// It was deleted.
    Delete,
}

/// How bytes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writing {
    /// Bytes of a write; zero is all at once.
    pub unit: u32,
    /// Whether an `fsync` follows.
    pub sync: bool,
}

/// Something happened to a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, nanoseconds. While a history is built, since 1970; in its file, since its first record.
    pub at_ns: i64,
    /// What it happened to. Not [`ROOT`].
    pub id: u64,
    /// What.
    pub act: Act,
}

impl Record {
    /// Bytes that are written for it.
    pub fn written(&self) -> u64 {
        match self.act {
            Act::Create { size, .. } => size,
            Act::Modify { keep, size, .. } => size.saturating_sub(keep),
            Act::MakeDirectory { .. } | Act::Move { .. } | Act::Delete => 0,
        }
    }
}

fn put_writing(to: &mut Vec<u8>, how: Writing) {
    put_u64(to, u64::from(how.unit) << 1 | u64::from(how.sync));
}

fn take_writing(from: &mut Take) -> Result<Writing, Damage> {
    let bits = from.u64()?;
    let unit = u32::try_from(bits >> 1).map_err(|_| Damage("a write is longer than writes can be"))?;
    Ok(Writing { unit, sync: bits & 1 == 1 })
}

fn take_name_len(from: &mut Take) -> Result<u8, Damage> {
    Ok(from.u8()?.clamp(1, NAME_LEN_MAX))
}

/// Items are sorted by time; those of one time stay in the order in which they were added.
impl Item for Record {
    type Key = i64;

    fn key(&self) -> i64 {
        self.at_ns
    }

    fn weight(&self) -> usize {
        0
    }

    fn put(&self, to: &mut Vec<u8>) {
        put_i64(to, self.at_ns);
        put_u64(to, self.id);
        match self.act {
            Act::MakeDirectory { parent, name_len } => {
                to.extend([0, name_len]);
                put_u64(to, parent);
            }
            Act::Create { parent, name_len, size, how } => {
                to.extend([1, name_len]);
                put_u64(to, parent);
                put_u64(to, size);
                put_writing(to, how);
            }
            Act::Modify { keep, size, how } => {
                to.push(2);
                put_u64(to, keep);
                put_u64(to, size);
                put_writing(to, how);
            }
            Act::Move { parent, name_len } => {
                to.extend([3, name_len]);
                put_u64(to, parent);
            }
            Act::Delete => to.push(4),
        }
    }

    fn take(from: &mut Take) -> Result<Record, Damage> {
        let (at_ns, id) = (from.i64()?, from.u64()?);
        let act = match from.u8()? {
            0 => Act::MakeDirectory { name_len: take_name_len(from)?, parent: from.u64()? },
            1 => Act::Create {
                name_len: take_name_len(from)?,
                parent: from.u64()?,
                size: from.u64()?,
                how: take_writing(from)?,
            },
            2 => Act::Modify { keep: from.u64()?, size: from.u64()?, how: take_writing(from)? },
            3 => Act::Move { name_len: take_name_len(from)?, parent: from.u64()? },
            4 => Act::Delete,
            _ => return Err(Damage("a kind of record is unknown")),
        };
        Ok(Record { at_ns, id, act })
    }
}
