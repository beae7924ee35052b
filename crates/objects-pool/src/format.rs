//! What a store writes into its volume.
//!
//! ```text
//! key                      value
//! h                        VERSION (4)                                   what the volume holds
//! n NAME                   description, see below                        an object
//! b CLASS (1) NUMBER (8)   nothing                                       a place that is being built
//! c                        NUMBER (8) of each class, then a version (8)  none from here on has been used
//! k STRIPE (2)             OBJECTS (8) BYTES (8)                         objects whose names fall into a stripe
//!
//! description: VERSION OF THE OBJECT (8) SIZE (8) CHECKSUM (8) SECONDS (8) NANOSECONDS (4) CLASS (1) NUMBER (8)
//!              ATTRIBUTES (2), of each: KEY LENGTH (2) VALUE LENGTH (4) KEY VALUE
//! ```
//!
//! Numbers in keys are big-endian, in values little-endian.
//!
//! | class | blocks of a place | first block of place *n* |
//! | --- | --- | --- |
//! | small | 2^8 (1 MiB) | *n* << 8 |
//! | medium | 2^24 (64 GiB) | 2^63 + (*n* << 24) |
//! | large | 2^32 (16 TiB) | 2^63 + 2^62 + (*n* << 32) |

use ashlar_block::{Error, Result};
use ashlar_objects::{Attributes, Name, Stat};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::time::Duration;

/// Version of the format.
pub const VERSION: u32 = 1;
/// Stripes of names, each with a lock and a count.
pub const STRIPES: u16 = 1024;

const HEAD: u8 = b'h';
const NAME: u8 = b'n';
const BUILDING: u8 = b'b';
const COUNTERS: u8 = b'c';
const COUNT: u8 = b'k';

/// How large a place is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Up to 1 MiB.
    Small,
    /// Up to 64 GiB.
    Medium,
    /// Up to 16 TiB.
    Large,
}

impl Class {
    /// All, smallest first.
    pub const ALL: [Class; 3] = [Class::Small, Class::Medium, Class::Large];

    /// The smallest for so many bytes, if there is one.
    pub fn of(size: u64) -> Option<Class> {
        Class::ALL.into_iter().find(|class| size <= class.bytes())
    }
    fn shift(self) -> u32 {
        match self {
            Class::Small => 8,
            Class::Medium => 24,
            Class::Large => 32,
        }
    }
    fn base(self) -> u64 {
        match self {
            Class::Small => 0,
            Class::Medium => 1 << 63,
            Class::Large => (1 << 63) + (1 << 62),
        }
    }
    /// Places of this class, used once each.
    pub fn places(self) -> u64 {
        match self {
            Class::Small => 1 << 55,
            Class::Medium => 1 << 38,
            Class::Large => (1 << 30) - 1,
        }
    }
    /// Bytes that a place holds.
    pub fn bytes(self) -> u64 {
        (1 << self.shift()) * BLOCK_LEN as u64
    }
    pub(crate) fn code(self) -> u8 {
        self as u8
    }
    fn from_code(code: u8) -> Option<Class> {
        Class::ALL.get(usize::from(code)).copied()
    }
}

/// A range of blocks that belongs to one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// How large it is.
    pub class: Class,
    /// Which of its class.
    pub number: u64,
}

impl Place {
    /// Its first block.
    pub fn base(self) -> Lba {
        Lba(self.class.base() + (self.number << self.class.shift()))
    }
    /// The place that a block lies in.
    pub fn holding(block: Lba) -> Place {
        let class = Class::ALL.into_iter().rev().find(|class| block.0 >= class.base()).unwrap_or(Class::Small);
        Place { class, number: (block.0 - class.base()) >> class.shift() }
    }
}

/// Blocks that hold so many bytes.
pub fn blocks_of(bytes: u64) -> Blocks {
    Blocks(bytes.div_ceil(BLOCK_LEN as u64))
}

/// What is known of an object, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// See `Stat`.
    pub version: u64,
    /// In bytes.
    pub size: u64,
    /// Of the contents.
    pub checksum: u64,
    /// Since 1970.
    pub modified: Duration,
    /// Where the contents are.
    pub place: Place,
    /// As users gave them.
    pub attributes: Attributes,
}

impl Record {
    /// What users see of it.
    pub fn stat(&self, name: &Name) -> Stat {
        Stat {
            name: name.clone(),
            size: self.size,
            version: self.version,
            modified: self.modified,
            checksum: self.checksum,
            attributes: self.attributes.clone(),
        }
    }

    /// As it lies in the dictionary.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64);
        out.put_u64_le(self.version);
        out.put_u64_le(self.size);
        out.put_u64_le(self.checksum);
        out.put_u64_le(self.modified.as_secs());
        out.put_u32_le(self.modified.subsec_nanos());
        out.put_u8(self.place.class.code());
        out.put_u64_le(self.place.number);
        out.put_u16_le(self.attributes.len() as u16);
        for (key, value) in &self.attributes {
            out.put_u16_le(key.len() as u16);
            out.put_u32_le(value.len() as u32);
            out.put_slice(key.as_bytes());
            out.put_slice(value);
        }
        out.freeze()
    }

    /// Reads what [`Record::encode`] wrote.
    ///
    /// # Errors
    /// `Corrupt` for anything else.
    pub fn decode(bytes: &Bytes) -> Result<Record> {
        Record::read(bytes.clone()).ok_or_else(|| Error::corrupt("the description of an object is damaged"))
    }

    fn read(mut from: Bytes) -> Option<Record> {
        let version = from.try_get_u64_le().ok()?;
        let size = from.try_get_u64_le().ok()?;
        let checksum = from.try_get_u64_le().ok()?;
        let seconds = from.try_get_u64_le().ok()?;
        let nanos = from.try_get_u32_le().ok().filter(|nanos| *nanos < 1_000_000_000)?;
        let class = Class::from_code(from.try_get_u8().ok()?)?;
        let number = from.try_get_u64_le().ok().filter(|number| *number < class.places())?;
        let mut attributes = Attributes::new();
        for _ in 0..from.try_get_u16_le().ok()? {
            let (key, value) = (from.try_get_u16_le().ok()?, from.try_get_u32_le().ok()? as usize);
            let key = take(&mut from, usize::from(key))?;
            let key = String::from_utf8(key.to_vec()).ok()?;
            if attributes.last_key_value().is_some_and(|(before, _)| *before >= key) {
                return None;
            }
            attributes.insert(key, take(&mut from, value)?);
        }
        let place = Place { class, number };
        let sound = from.is_empty() && size <= class.bytes();
        sound.then_some(Record { version, size, checksum, modified: Duration::new(seconds, nanos), place, attributes })
    }
}

fn take(from: &mut Bytes, len: usize) -> Option<Bytes> {
    (len <= from.len()).then(|| from.split_to(len))
}

/// Key of what the volume holds.
pub fn head() -> [u8; 1] {
    [HEAD]
}

/// Key of an object.
pub fn object(name: &[u8]) -> Vec<u8> {
    [&[NAME], name].concat()
}

/// Behind the keys of all objects.
pub fn objects_end() -> [u8; 1] {
    [NAME + 1]
}

/// The name in the key of an object.
pub fn name_in(key: &[u8]) -> Option<Name> {
    Name::new(key.strip_prefix(&[NAME])?.to_vec()).ok()
}

/// Key of a place that is being built.
pub fn building(place: Place) -> Vec<u8> {
    [&[BUILDING, place.class.code()][..], &place.number.to_be_bytes()].concat()
}

/// Around the keys of all places that are being built.
pub fn all_building() -> ([u8; 1], [u8; 1]) {
    ([BUILDING], [BUILDING + 1])
}

/// The place in the key of one that is being built.
pub fn building_in(key: &[u8]) -> Option<Place> {
    let (class, number) = key.strip_prefix(&[BUILDING])?.split_first()?;
    let (class, number) = (Class::from_code(*class)?, u64::from_be_bytes(number.try_into().ok()?));
    (number < class.places()).then_some(Place { class, number })
}

/// Key of the counters.
pub fn counters() -> [u8; 1] {
    [COUNTERS]
}

/// Key of a stripe's count.
pub fn count(stripe: u16) -> [u8; 3] {
    let [high, low] = stripe.to_be_bytes();
    [COUNT, high, low]
}

/// Around the keys of all counts.
pub fn all_counts() -> ([u8; 1], [u8; 1]) {
    ([COUNT], [COUNT + 1])
}

/// The stripe in the key of a count.
pub fn stripe_in(key: &[u8]) -> Option<u16> {
    let stripe = u16::from_be_bytes(key.strip_prefix(&[COUNT])?.try_into().ok()?);
    (stripe < STRIPES).then_some(stripe)
}

/// Numbers one after another, as values hold them.
pub fn encode_numbers(numbers: &[u64]) -> Bytes {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Reads what [`encode_numbers`] wrote.
///
/// # Errors
/// `Corrupt` if there are not `N`.
pub fn decode_numbers<const N: usize>(mut bytes: &[u8]) -> Result<[u64; N]> {
    let mut numbers = [0; N];
    if bytes.len() != 8 * N {
        return Err(Error::corrupt(format!("{} bytes where {N} numbers belong", bytes.len())));
    }
    numbers.iter_mut().for_each(|number| *number = bytes.get_u64_le());
    Ok(numbers)
}
