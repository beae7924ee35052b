//! Pieces: the smallest content-defined chunks, of which all larger ones are made.
//!
//! A gear hash (Xia et al., FastCDC, ATC '16) over the last 64 bytes; a piece ends where the hash begins with at least
//! [`LEVEL_MIN`] zero bits. The number of zero bits is the *level* of the cut; larger chunks end at higher levels. The hash
//! begins anew with each piece, so where a piece ends depends on its own bytes alone, and two streams that have a cut in
//! common stay together for as long as their bytes are equal.

/// Zero bits at which a piece ends: 2 KiB apart, so that chunks of 4 KiB still have a choice of two levels.
pub const LEVEL_MIN: u32 = 11;
/// No piece is shorter, but for the last of a stream.
pub const PIECE_MIN: usize = 64;
/// No piece is longer. A cut that is forced has level zero.
pub const PIECE_MAX: usize = 8192;
/// Bytes that the hash remembers.
const WINDOW: usize = 64;
const MASK: u64 = !(u64::MAX >> LEVEL_MIN);

const _: () = assert!(PIECE_MIN >= WINDOW, "the hash of a cut covers bytes of its own piece alone");

/// Random numbers for each byte, by splitmix64: they are part of what a chunking is, and never change.
const GEAR: [u64; 256] = {
    let mut table = [0; 256];
    let (mut state, mut index) = (0x4153_484c_4152_u64, 0);
    while index < 256 {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        table[index] = mixed ^ (mixed >> 31);
        index += 1;
    }
    table
};

/// Length of the first piece of `bytes`, and the level of its cut. The bytes must be at least [`PIECE_MAX`], or all that
/// is left of the stream; its end is a cut of level zero.
pub fn first_piece(bytes: &[u8]) -> (usize, u32) {
    let bytes = &bytes[..bytes.len().min(PIECE_MAX)];
    let mut hash = 0u64;
    for &byte in bytes.get(PIECE_MIN - WINDOW..PIECE_MIN).unwrap_or_default() {
        hash = (hash << 1).wrapping_add(GEAR[usize::from(byte)]);
    }
    for (index, &byte) in bytes.iter().enumerate().skip(PIECE_MIN) {
        hash = (hash << 1).wrapping_add(GEAR[usize::from(byte)]);
        if hash & MASK == 0 {
            return (index + 1, hash.leading_zeros());
        }
    }
    (bytes.len(), 0)
}

/// Lengths and levels of all pieces of a whole stream.
pub fn pieces(mut bytes: &[u8]) -> Vec<(usize, u32)> {
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        let (len, level) = first_piece(bytes);
        pieces.push((len, level));
        bytes = &bytes[len..];
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_fuzz::incompressible;

    #[test]
    fn pieces_cover_the_stream_and_lie_in_their_bounds() {
        for len in [0, 1, 63, 64, 65, 8192, 8193, 1 << 20] {
            let pieces = pieces(&incompressible(1, len));
            assert_eq!(pieces.iter().map(|(len, _)| len).sum::<usize>(), len);
            let inner = &pieces[..pieces.len().saturating_sub(1)];
            assert!(inner.iter().all(|(len, _)| (PIECE_MIN..=PIECE_MAX).contains(len)));
        }
    }

    #[test]
    fn levels_halve() {
        // Of the cuts at level 11 or more, half are at 12 or more, and so on; the sampling error is below 3 %.
        let pieces = pieces(&incompressible(2, 16 << 20));
        let at_least = |level| pieces.iter().filter(|(_, found)| *found >= level).count() as f64;
        for level in [12, 13] {
            let share = at_least(level) / at_least(level - 1);
            assert!((share - 0.5).abs() < 0.03, "level {level}: {share}");
        }
    }

    #[test]
    fn streams_meet_again_after_a_difference() {
        let common = incompressible(3, 1 << 18);
        let cuts = |head: &[u8]| -> Vec<usize> {
            let stream = [head, &common].concat();
            let ends = pieces(&stream).into_iter().scan(0, |end, (len, _)| {
                *end += len;
                Some(*end)
            });
            ends.filter_map(|end| end.checked_sub(head.len())).collect()
        };
        let (one, other) = (cuts(&incompressible(4, 1000)), cuts(&incompressible(5, 3333)));
        let shared = one.iter().filter(|cut| other.contains(cut)).count();
        assert!(shared + 10 > one.len(), "{shared} of {}", one.len());
    }
}
