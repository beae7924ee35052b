//! Keys: where everything lies in the dictionary.
//!
//! ```text
//! F                              format: version, seed of the name hash, zone sizes
//! N                              numbers of inodes, zones and block ranges below this one may be in use
//! m place                        what has this name: attributes, or the number of a zone
//! 3 place inode block            contents: pieces of a block of 4 KiB
//! 4 place                        sums over what lies below a directory in its zone
//! X inode name                   extended attribute: `ashlar_inodes::xattr_key`
//! i inode                        the way to what has this number: see `way`
//! O inode                        inode without names that somebody may still use: its place, attributes
//! b place                        what lies below this place is being built; forgotten after a crash
//! r range                        a block range that is being filled; given up after a crash
//! z                              the format again: all names lie between, so another leaf of the index has it
//! ```
//! A *place* is a zone's number and the positions of names on the way down from the zone's root. A name's position is 55 bits
//! of its hash and 8 bits for collisions, so that a place has 9 bytes for each name whatever its length, and a position is a
//! directory cookie. In front of the position stands 1 for the last name and 2 for the others: all children of a directory
//! come first, then the listing of each subdirectory (BetrFS 0.2, §4, "depth-first-with-children"), and what lies below a
//! directory is one range. Numbers in keys are big-endian.

use ashlar_block::{Error, Result};
use ashlar_pool::patches::{PIECES_PREFIX, SUMS_PREFIX};
use ashlar_units::{Blocks, Lba};
use ashlar_vfs::{Ino, ROOT};
use bytes::{Buf, Bytes};

/// Version of the format of everything below. The first byte of the format record; other engines have other numbers there.
pub(crate) const VERSION: u8 = 0x83;
/// The same without ways: inodes that left memory are not found by number.
pub(crate) const WITHOUT_WAYS: u8 = 0x82;
pub(crate) const FORMAT: &[u8] = b"F";
pub(crate) const FORMAT_COPY: &[u8] = b"z";
pub(crate) const NEXT_NUMBER: &[u8] = b"N";
pub(crate) const META: u8 = b'm';
pub(crate) const DATA: u8 = PIECES_PREFIX;
pub(crate) const SUMS: u8 = SUMS_PREFIX;
pub(crate) const ORPHAN: u8 = b'O';
pub(crate) const WAY: u8 = b'i';
pub(crate) const BUILDING: u8 = b'b';
pub(crate) const FILLING: u8 = b'r';

/// Blocks of a range: 1 TiB.
const RANGE_BITS: u32 = 28;
/// Blocks that one file may have.
pub(crate) const RANGE_BLOCKS: u64 = 1 << RANGE_BITS;
/// Largest number of an inode, a zone or a range: all come from one counter and are not used again.
pub(crate) const NUMBER_MAX: u64 = (1 << (64 - RANGE_BITS)) - 1;

/// Bytes of a step in a place.
const STEP_LEN: usize = 9;
/// Before the last name of a place, and before the others.
const LAST: u8 = 1;
const INNER: u8 = 2;
/// Behind all names.
const END: u8 = 3;
/// Names below a zone's root. A place of so many has 368 bytes; the key of a block of contents 385, below what keys may have.
pub(crate) const DEPTH_MAX: usize = 40;
const _: () = assert!(
    1 + 8 + (DEPTH_MAX + 1) * STEP_LEN + 16 <= 512,
    "a child of the deepest directory has keys that the index takes"
);

/// Where a name is: see the module. As stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place(Bytes);

impl Place {
    /// The root of a zone.
    pub(crate) fn root_of(zone: u64) -> Place {
        Place(Bytes::copy_from_slice(&zone.to_be_bytes()))
    }
    /// The place that these positions lead to from a zone's root.
    pub(crate) fn at(zone: u64, positions: &[u64]) -> Place {
        let mut bytes = Vec::with_capacity(8 + positions.len() * STEP_LEN);
        bytes.extend_from_slice(&zone.to_be_bytes());
        for (index, position) in positions.iter().enumerate() {
            bytes.push(if index + 1 == positions.len() { LAST } else { INNER });
            bytes.extend_from_slice(&position.to_be_bytes());
        }
        Place(bytes.into())
    }
    /// Reads a place.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Place> {
        let (_, steps) = bytes.split_at_checked(8).ok_or_else(|| damaged("a place is cut short"))?;
        let count = steps.len() / STEP_LEN;
        let tag = |index: usize| if index + 1 == count { LAST } else { INNER };
        let valid = steps.len() == count * STEP_LEN
            && count <= DEPTH_MAX + 1
            && steps.chunks_exact(STEP_LEN).enumerate().all(|(index, step)| step[0] == tag(index));
        if valid { Ok(Place(Bytes::copy_from_slice(bytes))) } else { Err(damaged("a place is none")) }
    }
    /// The first place that a key, perhaps cut short, leads into, from behind its first byte on.
    pub(crate) fn first_in(bytes: &[u8]) -> Option<Place> {
        let (zone, steps) = bytes.split_at_checked(8)?;
        let mut positions = Vec::new();
        for step in steps.chunks_exact(STEP_LEN).take(DEPTH_MAX).filter(|step| [LAST, INNER].contains(&step[0])) {
            positions.push((&step[1..]).get_u64());
            if step[0] == LAST {
                break;
            }
        }
        Some(Place::at((&zone[..]).get_u64(), &positions))
    }
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
    pub(crate) fn zone(&self) -> u64 {
        self.0.clone().get_u64()
    }
    /// Names from the zone's root down to it.
    pub(crate) fn depth(&self) -> usize {
        (self.0.len() - 8) / STEP_LEN
    }
    /// Position of its last name; `None` for the root of a zone.
    pub(crate) fn position(&self) -> Option<u64> {
        (self.depth() > 0).then(|| self.0.slice(self.0.len() - 8..).get_u64())
    }
    /// The place of a name in this directory.
    pub(crate) fn child(&self, position: u64) -> Place {
        let mut bytes = self.below();
        bytes.push(LAST);
        bytes.extend_from_slice(&position.to_be_bytes());
        Place(bytes.into())
    }
    /// The place of the directory that holds the name.
    pub(crate) fn above(&self) -> Option<Place> {
        let keep = self.0.len().checked_sub(STEP_LEN).filter(|keep| *keep >= 8)?;
        let mut bytes = self.0[..keep].to_vec();
        if let Some(tag) = keep.checked_sub(STEP_LEN).filter(|at| *at >= 8) {
            bytes[tag] = LAST;
        }
        Some(Place(bytes.into()))
    }
    /// What every place below begins with, before its next tag.
    pub(crate) fn below(&self) -> Vec<u8> {
        let mut bytes = self.0.to_vec();
        if self.depth() > 0 {
            let tag = bytes.len() - STEP_LEN;
            bytes[tag] = INNER;
        }
        bytes
    }
    /// Whether it lies below `other`.
    pub(crate) fn is_below(&self, other: &Place) -> bool {
        self.0.len() > other.0.len() && self.0.starts_with(&other.below())
    }
    /// The same place with `from` in it exchanged for `to`; it lies below `from`.
    pub(crate) fn moved(below: &[u8], from: &Place, to: &Place) -> Vec<u8> {
        let mut bytes = to.below();
        bytes.extend_from_slice(&below[from.0.len()..]);
        bytes
    }
}

fn key(prefix: u8, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + rest.len() + 12);
    key.push(prefix);
    key.extend_from_slice(rest);
    key
}

/// A key of a place.
pub(crate) fn of(prefix: u8, place: &Place) -> Vec<u8> {
    key(prefix, place.bytes())
}

/// A range of keys.
pub(crate) type Range = (Vec<u8>, Vec<u8>);

/// The keys of everything below a place.
pub(crate) fn below(prefix: u8, place: &Place) -> Range {
    let mut low = key(prefix, &place.below());
    let mut high = low.clone();
    low.push(LAST);
    high.push(END);
    (low, high)
}

/// The keys of a directory's entries from a position on.
pub(crate) fn entries(place: &Place, position: u64) -> Range {
    let mut high = key(META, &place.below());
    high.push(INNER);
    (of(META, &place.child(position)), high)
}

/// The key of a block of contents.
pub(crate) fn data(place: &Place, ino: Ino, block: u64) -> Vec<u8> {
    let mut key = of(DATA, place);
    key.extend_from_slice(&ino.to_be_bytes());
    key.extend_from_slice(&block.to_be_bytes());
    key
}
/// The keys of all contents of a file.
pub(crate) fn contents(place: &Place, ino: Ino) -> Range {
    (data(place, ino, 0), data(place, ino + 1, 0))
}
/// Bytes behind the place in the key of a block.
pub(crate) const DATA_TAIL: usize = 16;

/// A key that ends with a number.
pub(crate) fn numbered(prefix: u8, number: u64) -> Vec<u8> {
    key(prefix, &number.to_be_bytes())
}
/// The number at the end of a key.
pub(crate) fn last_number(key: &[u8]) -> Result<u64> {
    let digits = key.len().checked_sub(8).map(|from| &key[from..]);
    digits.map(|mut digits| digits.get_u64()).ok_or_else(|| damaged("a key is cut short"))
}

pub(crate) fn damaged(what: impl Into<String>) -> Error {
    Error::corrupt(what)
}

/// First block of a range.
pub(crate) fn range_base(range: u64) -> Lba {
    Lba(range << RANGE_BITS)
}
/// All blocks of a range.
pub(crate) const RANGE_ALL: Blocks = Blocks(RANGE_BLOCKS);

/// The zone of the root directory.
pub(crate) const ROOT_ZONE: u64 = ROOT;

#[cfg(test)]
mod tests {
    use super::*;

    /// BetrFS 0.2, Figure 2: names stand for their positions, in alphabetical order.
    #[test]
    fn keys_are_in_the_order_of_figure_2() {
        let position = |name: &str| {
            let all = ["a.tex", "abc.c", "b.tex", "bin", "docs", "ed", "local", "src", "vi"];
            all.iter().position(|known| *known == name).expect("a name of the figure") as u64
        };
        let place = |zone: u64, path: &str| {
            let names: Vec<u64> = path.split('/').filter(|name| !name.is_empty()).map(position).collect();
            Place::at(zone, &names)
        };
        let listed = [
            (0, "/"),
            (0, "/docs"),
            (0, "/local"),
            (0, "/src"),
            (0, "/local/bin"),
            (0, "/local/bin/ed"),
            (0, "/local/bin/vi"),
            (0, "/src/abc.c"),
            (1, "/"),
            (1, "/a.tex"),
            (1, "/b.tex"),
            (2, "/"),
        ];
        let keys: Vec<Vec<u8>> = listed.iter().map(|(zone, path)| of(META, &place(*zone, path))).collect();
        assert!(keys.is_sorted(), "the metadata index");
        let data_listed = [(0, "/local/bin/ed"), (0, "/local/bin/vi"), (1, "/a.tex"), (1, "/b.tex"), (2, "/")];
        let blocks: Vec<Vec<u8>> = data_listed
            .iter()
            .flat_map(|(zone, path)| [0, 1].map(|block| data(&place(*zone, path), 9, block)))
            .collect();
        assert!(blocks.is_sorted(), "the data index");
        // What `mv /local/bin /docs/tools` moves: three keys of metadata, and the blocks of two files.
        let bin = place(0, "/local/bin");
        let inside =
            |(low, high): Range, keys: &[Vec<u8>]| keys.iter().filter(|key| (&low..&high).contains(key)).count();
        assert_eq!(inside(below(META, &bin), &keys) + 1, 3);
        assert_eq!(inside(below(DATA, &bin), &blocks), 4);
        assert_eq!(inside(below(META, &place(0, "/")), &keys), 7);
    }

    #[test]
    fn places_are_read_back_and_know_what_is_around_them() {
        let deep = Place::at(7, &[1, 2, 3]);
        assert_eq!(Place::decode(deep.bytes()).expect("valid"), deep);
        assert_eq!((deep.zone(), deep.depth(), deep.position()), (7, 3, Some(3)));
        let above = deep.above().expect("not a root");
        assert_eq!(above, Place::at(7, &[1, 2]));
        assert_eq!(above.child(3), deep);
        assert!(deep.is_below(&above) && deep.is_below(&Place::root_of(7)) && !above.is_below(&deep));
        assert!(!deep.is_below(&Place::at(7, &[2])) && !deep.is_below(&deep));
        assert_eq!(Place::root_of(7).above(), None);
        let (from, to) = (Place::at(7, &[1]), Place::root_of(9));
        assert_eq!(Place::moved(deep.bytes(), &from, &to), Place::at(9, &[2, 3]).bytes());
        assert!(Place::decode(&deep.bytes()[..20]).is_err());
        for (key, place) in [
            (data(&deep, 9, 1), Some(&deep)),
            (of(META, &deep), Some(&deep)),
            (below(META, &above).0, Some(&above)),
            (vec![META, 0, 0], None),
        ] {
            assert_eq!(Place::first_in(&key[1..]).as_ref(), place, "{key:?}");
        }
        assert!(Place::decode(&deep.below()).is_err());
    }
}
