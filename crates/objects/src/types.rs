//! The nouns of the contract.

use crate::{Error, Result};
use bytes::Bytes;
use crc_fast::CrcAlgorithm;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::time::Duration;

/// Longest name of an object, in bytes.
pub const NAME_MAX: usize = 1024;

/// Names that begin with these bytes belong to layers between engine and users, which keep what they need under them.
pub const RESERVED: &[u8] = b"\0ashlar/";

/// First byte of names that doors and layers make for themselves, such as those of parts. Users' names begin with others.
pub const HIDDEN: u8 = 0;

/// Name of an object: 1 to [`NAME_MAX`] bytes of any value, ordered as bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Bytes);

impl Name {
    /// A name.
    ///
    /// # Errors
    /// [`Error::Misuse`] if it is empty, [`Error::TooLarge`] if it is longer than [`NAME_MAX`].
    pub fn new(name: impl Into<Bytes>) -> Result<Name> {
        let name = name.into();
        if name.is_empty() {
            return Err(Error::Misuse("an object needs a name of at least one byte".into()));
        }
        if name.len() > NAME_MAX {
            return Err(Error::TooLarge { what: "a name", size: name.len() as u64, limit: NAME_MAX as u64 });
        }
        Ok(Name(name))
    }
    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
    /// Whether it is none that users see; see [`HIDDEN`].
    pub fn is_hidden(&self) -> bool {
        self.0.first() == Some(&HIDDEN)
    }
    /// Whether it belongs to a layer; see [`RESERVED`].
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with(RESERVED)
    }
}

impl fmt::Display for Name {
    /// As text where it is text, with escapes elsewhere.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}
impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What else is said about an object: short values under short keys. Doors give them their meaning.
pub type Attributes = BTreeMap<String, Bytes>;

/// Bytes that attributes take of [`Limits::attributes`]: keys and values.
pub fn attributes_len(attributes: &Attributes) -> u64 {
    attributes.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum()
}

/// What a store takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest object, in bytes.
    pub object: u64,
    /// Most bytes of the attributes of an object, as [`attributes_len`] counts them; at least 8,192.
    pub attributes: u64,
    /// Size at which objects are stored best, in bytes: doors cut long streams into parts of this size.
    pub unit: u64,
}

/// State in which an object must be for a call to have an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Condition {
    /// Any, or none.
    #[default]
    Any,
    /// There is no such object.
    Absent,
    /// There is one, whatever its version.
    Present,
    /// There is one of this version.
    Version(u64),
}

impl Condition {
    /// Whether it holds for an object of this version, or for none.
    pub fn holds(self, version: Option<u64>) -> bool {
        match self {
            Condition::Any => true,
            Condition::Absent => version.is_none(),
            Condition::Present => version.is_some(),
            Condition::Version(wanted) => version == Some(wanted),
        }
    }
}

/// When a change must survive a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// When the call returns.
    #[default]
    Sync,
    /// After the next `sync`.
    Async,
}

/// How an object is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Change {
    /// State in which it must be.
    pub condition: Condition,
    /// When the change must survive a crash.
    pub durability: Durability,
}

/// How an object is made.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Put {
    /// As for any change.
    pub change: Change,
    /// The size that the object will have in the end, in bytes, where the caller means to write more to it: engines choose
    /// its place by that. A hint.
    pub expected: Option<u64>,
    /// Its attributes; those that it had are gone.
    pub attributes: Attributes,
}

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// To this byte.
    Offset(u64),
    /// Behind the last byte.
    End,
}

/// What is known of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its name.
    pub name: Name,
    /// Its size, in bytes.
    pub size: u64,
    /// Differs from every version that an object of this name had before.
    pub version: u64,
    /// When it was changed last, since 1970.
    pub modified: Duration,
    /// [`checksum`] of its contents.
    pub checksum: u64,
    /// Its attributes.
    pub attributes: Attributes,
}

/// An object, or a range of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// What it is; the size is that of the whole.
    pub stat: Stat,
    /// The bytes that were asked for, one piece after another.
    pub data: Vec<Bytes>,
}

/// Which objects to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// Only names that begin with these bytes.
    pub prefix: Vec<u8>,
    /// Only names from here on.
    pub from: Bound<Name>,
    /// At most so many objects; at least one.
    pub limit: usize,
}

impl List {
    /// Where the listing begins: at its prefix or at `from`, whichever is later.
    pub fn start(&self) -> Bound<Name> {
        let Ok(prefix) = Name::new(self.prefix.clone()) else { return self.from.clone() };
        match &self.from {
            Bound::Included(from) | Bound::Excluded(from) if *from >= prefix => self.from.clone(),
            _ => Bound::Included(prefix),
        }
    }
}

/// A page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The objects, in the order of their names.
    pub objects: Vec<Stat>,
    /// Whether there are more behind the last of them.
    pub more: bool,
}

/// How full a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    /// Objects in the store.
    pub objects: u64,
    /// Bytes that objects may take.
    pub capacity: u64,
    /// Bytes that they take.
    pub used: u64,
}

const CHECKSUM: CrcAlgorithm = CrcAlgorithm::Crc64Nvme;

/// Checksum of contents: CRC-64/NVME, which S3 calls `CRC64NVME`.
pub fn checksum(pieces: &[Bytes]) -> u64 {
    let mut digest = crc_fast::Digest::new(CHECKSUM);
    pieces.iter().for_each(|piece| digest.update(piece));
    digest.finalize()
}

/// Checksum of contents followed by others, of `len` bytes, from the checksums of both.
pub fn checksum_of_both(first: u64, second: u64, len: u64) -> u64 {
    crc_fast::checksum_combine(CHECKSUM, first, second, len)
}

/// Checksum of so many zeros.
pub fn checksum_of_zeros(len: u64) -> u64 {
    // By doubling: the checksum of both halves is that of one, joined with itself.
    let (mut sum, mut done) = (checksum(&[]), 0);
    for bit in (0..u64::BITS - len.leading_zeros()).rev() {
        (sum, done) = (checksum_of_both(sum, sum, done), done * 2);
        if len >> bit & 1 == 1 {
            (sum, done) = (checksum_of_both(sum, checksum(&[Bytes::from_static(&[0])]), 1), done + 1);
        }
    }
    sum
}

/// Checksum of contents with a part replaced by another of the same length: from the checksums of the contents, of both parts,
/// and the number of bytes behind the part.
pub fn checksum_with(whole: u64, old: u64, new: u64, behind: u64) -> u64 {
    // A CRC is linear: what differs goes on through the bytes behind as it would through zeros.
    whole ^ crc_fast::checksum_combine(CHECKSUM, old ^ new, 0, behind)
}

/// Length of all pieces together, in bytes.
pub fn len_of(pieces: &[Bytes]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_follow_from_those_of_parts() {
        let data: Vec<u8> = (0..5000u32).map(|at| (at * 7 + at / 256) as u8).collect();
        let sum = |data: &[u8]| checksum(&[Bytes::copy_from_slice(data)]);
        for len in [0, 1, 2, 3, 7, 255, 256, 4097] {
            assert_eq!(checksum_of_zeros(len), sum(&vec![0; len as usize]), "{len} zeros");
        }
        for (from, to) in [(0, 5000), (0, 1), (4999, 5000), (100, 2300), (7, 7)] {
            let mut new = data.clone();
            new[from..to].iter_mut().for_each(|byte| *byte ^= 0x5a);
            let of_parts = checksum_with(sum(&data), sum(&data[from..to]), sum(&new[from..to]), (5000 - to) as u64);
            assert_eq!(of_parts, sum(&new), "{from}..{to}");
        }
    }

    /// The published check value of CRC-64/NVME.
    #[test]
    fn the_checksum_is_crc_64_nvme() {
        assert_eq!(checksum(&[Bytes::from_static(b"123456789")]), 0xae8b_1486_0a79_9888);
    }
}
