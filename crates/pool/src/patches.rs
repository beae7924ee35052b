//! Dictionary values that take patches: bytes of a small buffer, and sums. Both are changed without being read.
//!
//! The first byte of a key says which it is; all other dictionary keys are only put and deleted.
//!
//! - *Pieces* ([`PIECES_PREFIX`]): bytes of a block of 4 KiB, as far as they are known. A value and a patch have the same form, a
//!   list of pieces `offset (2), length (2), bytes` that neither overlap nor touch; a patch covers what it meets.
//! - *Sums* ([`SUMS_PREFIX`]): two signed numbers of 8 bytes; a patch is added. A sum of zeros is no value.
//!
//! Numbers are little-endian. Both forms are canonical, so that overlaying is associative to the byte.

use ashlar_block::{Error, Result};
use ashlar_units::BLOCK_LEN;
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// First byte of the keys of pieces.
pub const PIECES_PREFIX: u8 = 0x03;
/// First byte of the keys of sums.
pub const SUMS_PREFIX: u8 = 0x04;

/// Bytes in front of each piece.
const PIECE_HEAD: usize = 4;
const _: () = assert!(BLOCK_LEN <= u16::MAX as usize, "a piece counts bytes of a block in 16 bits");

/// A part of a block of which the bytes are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte in the block.
    pub offset: usize,
    /// The bytes.
    pub bytes: Bytes,
}

impl Piece {
    /// Byte behind the last.
    pub fn end(&self) -> usize {
        self.offset + self.bytes.len()
    }
    fn part(&self, from: usize, to: usize) -> Option<Piece> {
        let (from, to) = (from.max(self.offset), to.min(self.end()));
        (from < to).then(|| Piece { offset: from, bytes: self.bytes.slice(from - self.offset..to - self.offset) })
    }
}

/// One piece as a value or patch.
///
/// # Panics
/// If the piece is empty or passes its block.
pub fn piece(offset: usize, bytes: &[u8]) -> Bytes {
    assert!(!bytes.is_empty() && offset + bytes.len() <= BLOCK_LEN, "a piece lies in its block");
    let mut encoded = BytesMut::with_capacity(PIECE_HEAD + bytes.len());
    put_piece(&mut encoded, offset, bytes.len());
    encoded.put_slice(bytes);
    encoded.freeze()
}

fn put_piece(to: &mut BytesMut, offset: usize, len: usize) {
    to.put_u16_le(offset as u16);
    to.put_u16_le(len as u16);
}

fn refuse(why: &str) -> Error {
    Error::corrupt(format!("a value of pieces {why}"))
}

/// The pieces of a value or patch, in order.
pub fn pieces(value: &Bytes) -> Result<Vec<Piece>> {
    let (mut rest, mut found, mut behind) = (value.clone(), Vec::new(), None);
    while !rest.is_empty() {
        let (Ok(offset), Ok(len)) = (rest.try_get_u16_le(), rest.try_get_u16_le()) else {
            return Err(refuse("is cut short"));
        };
        let (offset, len) = (usize::from(offset), usize::from(len));
        if len == 0 || offset + len > BLOCK_LEN || behind.is_some_and(|behind| offset <= behind) {
            return Err(refuse("has pieces out of order or out of range"));
        }
        if len > rest.len() {
            return Err(refuse("is cut short"));
        }
        found.push(Piece { offset, bytes: rest.split_to(len) });
        behind = Some(offset + len);
    }
    Ok(found)
}

/// `newer` over `older`.
fn cover(older: &[Piece], newer: &[Piece]) -> Bytes {
    let mut all = newer.to_vec();
    for piece in older {
        let mut at = piece.offset;
        for above in newer {
            all.extend(piece.part(at, above.offset));
            at = at.max(above.end());
        }
        all.extend(piece.part(at, piece.end()));
    }
    all.sort_unstable_by_key(|piece| piece.offset);
    encode(&all)
}

/// Pieces as a value or patch: in order, and none over another.
///
/// # Panics
/// If there are none.
pub fn patch(pieces: &[Piece]) -> Bytes {
    assert!(!pieces.is_empty(), "a patch changes something");
    encode(pieces)
}

/// Pieces in order; neighbours become one.
fn encode(all: &[Piece]) -> Bytes {
    let mut encoded = BytesMut::with_capacity(all.iter().map(|piece| PIECE_HEAD + piece.bytes.len()).sum());
    for run in all.chunk_by(|one, next| one.end() == next.offset) {
        put_piece(&mut encoded, run[0].offset, run.iter().map(|piece| piece.bytes.len()).sum());
        run.iter().for_each(|piece| encoded.put_slice(&piece.bytes));
    }
    encoded.freeze()
}

/// Two numbers as a sum, or as a patch of one.
pub fn sums(numbers: [i64; 2]) -> Bytes {
    let mut encoded = BytesMut::with_capacity(16);
    numbers.iter().for_each(|number| encoded.put_i64_le(*number));
    encoded.freeze()
}

/// The numbers of a sum.
pub fn read_sums(mut value: &[u8]) -> Result<[i64; 2]> {
    let mut next = || value.try_get_i64_le().map_err(|_| Error::corrupt("a sum is cut short"));
    let numbers = [next()?, next()?];
    if value.is_empty() { Ok(numbers) } else { Err(Error::corrupt("a sum is too long")) }
}

/// Whether values of this key take patches here. `Err`: they do, and this is none.
pub(crate) fn check(key: &[u8], patch: &Bytes) -> Result<bool> {
    match key.first() {
        Some(&PIECES_PREFIX) => pieces(patch).map(|_| true),
        Some(&SUMS_PREFIX) => read_sums(patch).map(|_| true),
        _ => Ok(false),
    }
}

/// `newer` over `older`, where keys take patches here; an error if one of them is none.
pub(crate) fn overlay(key: &[u8], older: &[u8], newer: &[u8]) -> Option<Result<Bytes>> {
    match key.first() {
        Some(&PIECES_PREFIX) => {
            let read = |value: &[u8]| pieces(&Bytes::copy_from_slice(value));
            Some(read(older).and_then(|older| Ok(cover(&older, &read(newer)?))))
        }
        Some(&SUMS_PREFIX) => Some(read_sums(older).and_then(|[a, b]| {
            let [c, d] = read_sums(newer)?;
            Ok(sums([a.wrapping_add(c), b.wrapping_add(d)]))
        })),
        _ => None,
    }
}

/// Whether nothing remains of a value of this key.
pub(crate) fn is_nothing(key: &[u8], value: &[u8]) -> bool {
    key.first() == Some(&SUMS_PREFIX) && value.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: &[u8] = &[PIECES_PREFIX];

    fn patch() -> impl Strategy<Value = (usize, Vec<u8>)> {
        let place = prop_oneof![0..40usize, 0..BLOCK_LEN, Just(BLOCK_LEN - 1)];
        (place, proptest::collection::vec(any::<u8>(), 1..60)).prop_map(|(offset, mut bytes)| {
            bytes.truncate(BLOCK_LEN - offset);
            (offset, bytes)
        })
    }

    fn over(older: &Bytes, newer: &Bytes) -> Bytes {
        overlay(KEY, older, newer).expect("pieces").expect("valid")
    }

    proptest! {
        #[test]
        fn pieces_act_byte_by_byte(patches in proptest::collection::vec(patch(), 1..20)) {
            let (mut value, mut model) = (Bytes::new(), vec![None; BLOCK_LEN]);
            for (offset, bytes) in patches {
                bytes.iter().enumerate().for_each(|(at, byte)| model[offset + at] = Some(*byte));
                value = over(&value, &piece(offset, &bytes));
                let mut seen = vec![None; BLOCK_LEN];
                for piece in pieces(&value).expect("valid") {
                    piece.bytes.iter().enumerate().for_each(|(at, byte)| seen[piece.offset + at] = Some(*byte));
                }
                prop_assert_eq!(&seen, &model);
            }
        }

        #[test]
        fn overlaying_pieces_is_associative(all in proptest::collection::vec(patch(), 3)) {
            let [a, b, c] = [0, 1, 2].map(|index| piece(all[index].0, &all[index].1));
            prop_assert_eq!(over(&over(&a, &b), &c), over(&a, &over(&b, &c)));
        }

        #[test]
        fn whatever_is_stored_is_pieces_or_refused(value in proptest::collection::vec(any::<u8>(), 0..60)) {
            let value = Bytes::from(value);
            if let Ok(found) = pieces(&value) {
                prop_assert_eq!(cover(&[], &found), value);
            }
        }

        #[test]
        fn sums_are_added(numbers in proptest::collection::vec(any::<[i32; 2]>(), 1..10)) {
            let key = [SUMS_PREFIX];
            let (mut value, mut model) = (sums([0, 0]), [0, 0]);
            for [a, b] in numbers {
                model = [model[0] + i64::from(a), model[1] + i64::from(b)];
                value = overlay(&key, &value, &sums([a.into(), b.into()])).expect("sums").expect("valid");
                prop_assert_eq!(read_sums(&value).expect("valid"), model);
                prop_assert_eq!(is_nothing(&key, &value), model == [0, 0]);
            }
        }
    }
}
