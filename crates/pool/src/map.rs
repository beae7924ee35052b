//! The block map: chunks of 32 aligned blocks, each a short list of runs.
//!
//! A chunk's value and a patch to it have the same form, a list of disjoint runs in order of their first block. A run is a
//! hole or part of an extent. Overlaying a patch cuts the runs below it; what is cut off is lost.

use crate::patches;
use ashlar_block::{Error, Result};
use ashlar_index::{Key, Semantics};
use ashlar_units::BLOCK_LEN;
use bytes::{BufMut, Bytes, BytesMut};
use smallvec::{SmallVec, smallvec};

/// Blocks of a chunk.
pub const CHUNK_BLOCKS: u64 = 32;
/// First byte of every map key; all other keys belong to the volume's dictionary.
pub const MAP_PREFIX: u8 = 0x01;
/// First byte of back references: `uid (8), offset (4), key of the chunk`, big-endian, for references that the batch of the
/// extent does not name. They stay until the cleaner has dealt with the segment.
pub const BACK_PREFIX: u8 = 0x02;
const _: () = assert!(CHUNK_BLOCKS <= u8::MAX as u64, "runs count blocks of a chunk in a byte");

/// How an extent is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// Nothing is stored: zeros.
    Hole,
    /// Bytes as they are; the last block may be cut short, the rest of it is zeros. One CRC32C per block.
    Raw,
    /// One lz4 block. One CRC32C.
    Lz4,
    /// One zstd frame. One CRC32C.
    Zstd,
}

/// Checksums of a run; those of a few blocks without an allocation, as lookups of single blocks are the common case.
pub type Crcs = SmallVec<[u32; 4]>;

/// Part of an extent, or a hole, in a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// First block in the chunk.
    pub start: u8,
    /// Blocks.
    pub count: u8,
    /// Blocks of the extent before this part.
    pub skip: u8,
    /// Blocks of the whole extent.
    pub total: u8,
    /// How it is stored.
    pub form: Form,
    /// Segment where the extent was born.
    pub uid: u64,
    /// Byte offset there.
    pub offset: u32,
    /// Bytes stored for the whole extent.
    pub stored: u32,
    /// Checkpoint in which this reference was made.
    pub birth: u64,
    /// Checksums: one per block of this part if raw, else one.
    pub crcs: Crcs,
}

const HOLE_LEN: usize = 3;
const RUN_LEN: usize = 29;

impl Run {
    /// A hole.
    pub fn hole(start: u8, count: u8) -> Run {
        Run {
            start,
            count,
            skip: 0,
            total: 0,
            form: Form::Hole,
            uid: 0,
            offset: 0,
            stored: 0,
            birth: 0,
            crcs: smallvec![],
        }
    }
    /// Block behind the last.
    pub fn end(&self) -> u8 {
        self.start + self.count
    }
    /// Bytes of the device that this part keeps alive. The parts of an extent add up to the extent however it is cut.
    pub fn weight(&self) -> u64 {
        if self.form == Form::Hole {
            return 0;
        }
        let (stored, total) = (u64::from(self.stored), u64::from(self.total));
        let up_to = |block: u64| stored * block / total;
        let skip = u64::from(self.skip);
        up_to(skip + u64::from(self.count)) - up_to(skip)
    }
    /// The part of this run within blocks `start..end` of the chunk.
    pub fn part(&self, start: u8, end: u8) -> Option<Run> {
        let (start, end) = (start.max(self.start), end.min(self.end()));
        if start >= end {
            return None;
        }
        let before = start - self.start;
        let crcs = match self.form {
            Form::Raw => self.crcs[before as usize..][..(end - start) as usize].into(),
            _ => self.crcs.clone(),
        };
        let skip = if self.form == Form::Hole { 0 } else { self.skip + before };
        Some(Run { start, count: end - start, skip, crcs, ..*self })
    }
    /// If this is an extent that is stored block by block and has more than `blocks`: leaves so many, and gives the rest as an extent
    /// of its own.
    pub(crate) fn divide(&mut self, blocks: u64) -> Option<Run> {
        if self.form != Form::Raw || blocks == 0 || blocks >= u64::from(self.count) {
            return None;
        }
        let middle = self.start + blocks as u8;
        let (mut first, mut rest) = (self.part(self.start, middle)?, self.part(middle, self.end())?);
        for part in [&mut first, &mut rest] {
            (part.skip, part.total) = (0, part.count);
            part.stored = u32::from(part.count) * BLOCK_LEN as u32;
        }
        *self = first;
        Some(rest)
    }
    /// Bytes of the stored form.
    pub fn encoded_len(&self) -> usize {
        if self.form == Form::Hole { HOLE_LEN } else { RUN_LEN + 4 * self.crcs.len() }
    }
    fn encode(&self, to: &mut BytesMut) {
        let form = match self.form {
            Form::Hole => 0,
            Form::Raw => 1,
            Form::Lz4 => 2,
            Form::Zstd => 3,
        };
        to.put_slice(&[form, self.start, self.count]);
        if self.form != Form::Hole {
            to.put_slice(&[self.skip, self.total]);
            to.put_u64_le(self.uid);
            to.put_u64_le(self.birth);
            to.put_u32_le(self.offset);
            to.put_u32_le(self.stored);
            self.crcs.iter().for_each(|crc| to.put_u32_le(*crc));
        }
    }
}

/// Encodes runs, which must be in order and disjoint.
pub fn encode(runs: &[Run]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(runs.iter().map(Run::encoded_len).sum());
    runs.iter().for_each(|run| run.encode(&mut bytes));
    bytes.freeze()
}

fn word(bytes: &[u8]) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[..4]);
    u32::from_le_bytes(word)
}
fn long(bytes: &[u8]) -> u64 {
    u64::from(word(bytes)) | u64::from(word(&bytes[4..])) << 32
}

/// Reads a chunk's value or patch.
pub fn decode(bytes: &[u8]) -> Result<Vec<Run>> {
    decode_within(bytes, 0, CHUNK_BLOCKS as u8)
}

/// Reads the runs that overlap blocks `from..to` of a chunk. The others are not made: a lookup of one block need not pay
/// for the 31 beside it.
pub fn decode_within(bytes: &[u8], from: u8, to: u8) -> Result<Vec<Run>> {
    let mut bytes = skip_to(bytes, from);
    let mut runs = Vec::new();
    let mut end = 0;
    while let Some(stored) = StoredRun::take(&mut bytes, end)? {
        if stored.start >= to {
            break;
        }
        end = stored.start + stored.count;
        if end > from {
            runs.push(stored.decode()?);
        }
    }
    Ok(runs)
}

/// What of blocks `from..to` of a chunk is visible through a pile of patches, laid from the newest down.
pub(crate) struct Pile {
    /// Blocks that no layer has decided yet, one bit each.
    open: u32,
    runs: Vec<Run>,
}
const _: () = assert!(CHUNK_BLOCKS <= u32::BITS as u64, "a pile has a bit for each block");

/// A bit for each block of `from..to`.
fn blocks(from: u8, to: u8) -> u32 {
    ((1u64 << to) - (1u64 << from)) as u32
}

impl Pile {
    pub(crate) fn new(from: u8, to: u8) -> Pile {
        Pile { open: blocks(from, to), runs: Vec::new() }
    }

    /// Lays a value or patch under the others. True: nothing below can be seen any more.
    pub(crate) fn lay(&mut self, bytes: &[u8]) -> Result<bool> {
        let mut bytes = skip_to(bytes, self.open.trailing_zeros() as u8);
        let mut end = 0;
        while let Some(stored) = StoredRun::take(&mut bytes, end)? {
            if self.open >> stored.start == 0 {
                break;
            }
            end = stored.start + stored.count;
            let mut seen = self.open & blocks(stored.start, end);
            self.open &= !seen;
            if stored.form == Form::Hole || seen == 0 {
                continue;
            }
            let run = stored.decode()?;
            while seen != 0 {
                let from = seen.trailing_zeros() as u8;
                let to = from + (seen >> from).trailing_ones() as u8;
                seen &= !blocks(from, to);
                self.runs.extend(run.part(from, to));
            }
        }
        Ok(self.open == 0)
    }

    /// The visible runs in order, without holes.
    pub(crate) fn finish(mut self) -> Vec<Run> {
        self.runs.sort_unstable_by_key(|run| run.start);
        self.runs
    }
}

/// Whether a chunk's value or patch has nothing, or holes, in it.
fn has_holes(mut bytes: &[u8]) -> Result<bool> {
    let mut end = 0;
    while let Some(stored) = StoredRun::take(&mut bytes, end)? {
        if stored.form == Form::Hole {
            return Ok(true);
        }
        end = stored.start + stored.count;
    }
    Ok(end == 0)
}

/// Drops runs before block `from` where that takes no walk: in a chunk of single blocks, as random writes leave it.
fn skip_to(bytes: &[u8], from: u8) -> &[u8] {
    const SINGLE_LEN: usize = RUN_LEN + 4;
    // No other list of runs is as long: a run of several blocks, and a hole, take fewer bytes for each block.
    if bytes.len() == CHUNK_BLOCKS as usize * SINGLE_LEN { &bytes[from as usize * SINGLE_LEN..] } else { bytes }
}

fn refuse(why: &str) -> Error {
    Error::corrupt(format!("a chunk of the block map {why}"))
}

/// A run as it is stored.
struct StoredRun<'a> {
    form: Form,
    start: u8,
    count: u8,
    bytes: &'a [u8],
}

impl<'a> StoredRun<'a> {
    /// Takes the first run, which must not begin before `end`.
    fn take(bytes: &mut &'a [u8], end: u8) -> Result<Option<StoredRun<'a>>> {
        let (form, start, count) = match **bytes {
            [] => return Ok(None),
            [form, start, count, ..] => (form, start, count),
            _ => return Err(refuse("is cut short")),
        };
        if count == 0 || start < end || u64::from(start) + u64::from(count) > CHUNK_BLOCKS {
            return Err(refuse("has runs out of order or out of range"));
        }
        let (form, len) = match form {
            0 => (Form::Hole, HOLE_LEN),
            1 => (Form::Raw, RUN_LEN + 4 * count as usize),
            2 => (Form::Lz4, RUN_LEN + 4),
            3 => (Form::Zstd, RUN_LEN + 4),
            _ => return Err(refuse("has a run of unknown form")),
        };
        let (own, rest) = bytes.split_at_checked(len).ok_or_else(|| refuse("is cut short"))?;
        *bytes = rest;
        Ok(Some(StoredRun { form, start, count, bytes: own }))
    }

    fn decode(&self) -> Result<Run> {
        let StoredRun { form, start, count, bytes } = *self;
        if form == Form::Hole {
            return Ok(Run::hole(start, count));
        }
        let run = Run {
            start,
            count,
            skip: bytes[3],
            total: bytes[4],
            form,
            uid: long(&bytes[5..]),
            birth: long(&bytes[13..]),
            offset: word(&bytes[21..]),
            stored: word(&bytes[25..]),
            crcs: bytes[RUN_LEN..].chunks_exact(4).map(word).collect(),
        };
        if u64::from(run.skip) + u64::from(count) > u64::from(run.total) || u64::from(run.total) > CHUNK_BLOCKS {
            return Err(refuse("has a run that passes its extent"));
        }
        Ok(run)
    }
}

/// Key of the chunk that holds `block`.
pub fn chunk_key(block: u64) -> Key {
    let mut key = [MAP_PREFIX; 9];
    key[1..].copy_from_slice(&(block / CHUNK_BLOCKS).to_be_bytes());
    Key::from_slice(&key)
}

/// First block of the chunk with this key; `None` if it is not a map key.
pub fn chunk_start(key: &[u8]) -> Option<u64> {
    let number: [u8; 8] = key.strip_prefix(&[MAP_PREFIX])?.try_into().ok()?;
    u64::from_be_bytes(number).checked_mul(CHUNK_BLOCKS)
}

/// Key of the back reference from an extent to a chunk.
pub fn back_key(run: &Run, chunk: &[u8]) -> Key {
    let mut key = back_range(run.uid);
    key.extend_from_slice(&run.offset.to_be_bytes());
    key.extend_from_slice(chunk);
    key
}

/// What all back references of a segment begin with.
pub fn back_range(uid: u64) -> Key {
    let mut key = Key::from_slice(&[BACK_PREFIX]);
    key.extend_from_slice(&uid.to_be_bytes());
    key
}

/// Offset of the extent and key of the chunk in a back reference.
pub fn decode_back(key: &[u8]) -> Option<(u32, Key)> {
    let rest = key.strip_prefix(&[BACK_PREFIX])?.get(8..)?;
    let (offset, chunk) = rest.split_at_checked(4)?;
    Some((u32::from_be_bytes(offset.try_into().ok()?), Key::from_slice(chunk)))
}

/// What disappears from a tree: references to extents.
#[derive(Default, Debug)]
pub struct Lost {
    /// The parts of extents that lost this reference.
    pub runs: Vec<Run>,
    /// A value that could not be read, for the log.
    pub damaged: u64,
}

/// How values of a volume's tree overlay: chunks by their runs, dictionary values as [`patches`] says, or not at all.
#[derive(Default)]
pub struct Map;

impl Map {
    fn runs(value: &[u8], lost: &mut Lost) -> Vec<Run> {
        // Values were verified by their node's checksum, so a bad one is our own bug; it must not take more with it.
        decode(value).unwrap_or_else(|_| {
            lost.damaged += 1;
            Vec::new()
        })
    }
}

impl Semantics for Map {
    type Lost = Lost;

    fn overlay(&self, key: &[u8], older: &[u8], newer: &[u8], lost: &mut Lost) -> Bytes {
        if let Some(combined) = patches::overlay(key, older, newer) {
            return combined.unwrap_or_else(|_| {
                lost.damaged += 1;
                Bytes::copy_from_slice(older)
            });
        }
        let newer = Map::runs(newer, lost);
        let older = Map::runs(older, lost);
        let mut combined = newer.clone();
        for run in older {
            let mut at = run.start;
            for cover in &newer {
                combined.extend(run.part(at, cover.start));
                lost.runs.extend(run.part(cover.start, cover.end()).filter(|part| part.form != Form::Hole));
                at = at.max(cover.end());
            }
            combined.extend(run.part(at, run.end()));
        }
        combined.sort_by_key(|run| run.start);
        encode(&combined)
    }

    fn settle(&self, key: &[u8], value: Bytes) -> Option<Bytes> {
        if key.first() != Some(&MAP_PREFIX) {
            return (!patches::is_nothing(key, &value)).then_some(value);
        }
        if !has_holes(&value).unwrap_or(true) {
            return Some(value);
        }
        let runs = Map::runs(&value, &mut Lost::default());
        let solid: Vec<Run> = runs.into_iter().filter(|run| run.form != Form::Hole).collect();
        (!solid.is_empty()).then(|| encode(&solid))
    }

    fn lose(&self, key: &[u8], value: &[u8], lost: &mut Lost) {
        if key.first() == Some(&MAP_PREFIX) {
            let runs = Map::runs(value, lost);
            lost.runs.extend(runs.into_iter().filter(|run| run.form != Form::Hole));
        }
    }
    fn gather(lost: &mut Lost, mut elsewhere: Lost) {
        lost.runs.append(&mut elsewhere.runs);
        lost.damaged += elsewhere.damaged;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::run;
    use proptest::prelude::*;

    /// Per block of the chunk: which block of which extent.
    fn blocks(value: &[u8]) -> Vec<Option<(u64, u8)>> {
        let mut blocks = vec![None; 32];
        for run in decode(value).expect("valid") {
            for index in 0..run.count {
                let place = &mut blocks[(run.start + index) as usize];
                *place = (run.form != Form::Hole).then_some((run.uid, run.skip + index));
            }
        }
        blocks
    }

    proptest! {
        #[test]
        fn overlay_acts_block_by_block_and_loses_exactly_what_it_covers(runs in proptest::collection::vec(run(), 1..8)) {
            let (mut value, mut model) = (Bytes::new(), vec![None; 32]);
            let (mut lost, mut weight_in) = (Lost::default(), 0);
            for run in runs {
                weight_in += run.weight();
                let patch = encode(std::slice::from_ref(&run));
                prop_assert_eq!(decode(&patch).expect("valid"), vec![run.clone()]);
                for index in 0..run.count {
                    model[(run.start + index) as usize] =
                        (run.form != Form::Hole).then_some((run.uid, run.skip + index));
                }
                value = Map.overlay(b"\x01", &value, &patch, &mut lost);
                prop_assert_eq!(blocks(&value), model.clone());
            }
            Map.lose(b"\x01", &value, &mut lost);
            let weight_out: u64 = lost.runs.iter().map(Run::weight).sum();
            prop_assert_eq!(weight_in, weight_out);
        }

        #[test]
        fn a_pile_shows_what_an_overlay_would(
            layers in proptest::collection::vec(proptest::collection::vec(run(), 1..4), 1..6),
            from in 0u8..32,
            count in 1u8..=32,
            singles in any::<bool>(),
        ) {
            let to = (from + count).min(32);
            let mut lost = Lost::default();
            let mut layers: Vec<Bytes> = layers
                .into_iter()
                .map(|runs| runs.iter().fold(Bytes::new(), |below, run| {
                    Map.overlay(b"\x01", &below, &encode(std::slice::from_ref(run)), &mut lost)
                }))
                .collect();
            if singles {
                let single = |start| Run { total: 1, form: Form::Lz4, uid: 9, crcs: smallvec![1], ..Run::hole(start, 1) };
                layers.insert(0, encode(&(0..32).map(single).collect::<Vec<_>>()));
            }
            let whole = layers.iter().fold(Bytes::new(), |below, layer| Map.overlay(b"\x01", &below, layer, &mut lost));
            let runs = decode(&whole).expect("valid");
            let beside: Vec<Run> = runs.iter().filter(|run| run.start < to && run.end() > from).cloned().collect();
            prop_assert_eq!(decode_within(&whole, from, to).expect("valid"), beside);
            let expected: Vec<Run> =
                runs.iter().filter(|run| run.form != Form::Hole).filter_map(|run| run.part(from, to)).collect();
            let mut pile = Pile::new(from, to);
            for layer in layers.iter().rev() {
                if pile.lay(layer).expect("valid") {
                    break;
                }
            }
            prop_assert_eq!(pile.finish(), expected);
        }

        #[test]
        fn overlay_is_associative(a in run(), b in run(), c in run()) {
            let [a, b, c] = [a, b, c].map(|run| encode(&[run]));
            let mut lost = Lost::default();
            let left = Map.overlay(b"\x01", &Map.overlay(b"\x01", &a, &b, &mut lost), &c, &mut lost);
            let right = Map.overlay(b"\x01", &a, &Map.overlay(b"\x01", &b, &c, &mut lost), &mut lost);
            prop_assert_eq!(left, right);
        }
    }
}
