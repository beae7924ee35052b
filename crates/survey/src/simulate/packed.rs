//! What lz4 leaves of chunks of any length, from one look at the bytes.
//!
//! Long chunks compress better than short ones, so two schemes that store the same bytes in chunks of other lengths do not take the same
//! room. As in the authors' simulator (section 4), all bytes are compressed in blocks of a few sizes, and of a chunk is left what is left
//! of its bytes in blocks as long as it is; between two sizes, by the logarithm of its length. Theirs are 4 to 32 KB, and LZO.

use super::Small;
use crate::compress::{Codec, Packer};

/// Logarithms of the sizes of blocks.
const SIZES: [u32; 4] = [12, 14, 16, 18];
/// Bytes that are compressed in blocks of all sizes.
const WINDOW: usize = 1 << 18;
/// Bytes of a cell, for which the shares are kept.
const CELL: usize = 1 << 12;

/// What is left of some bytes in blocks of each size, in 65,535ths.
pub type Shares = [u16; SIZES.len()];

/// Nothing shrinks.
pub const DENSE: Shares = [u16::MAX; SIZES.len()];

/// Compresses a stream as it comes.
pub struct Packing {
    packer: Packer,
    rest: Vec<u8>,
    cells: Vec<Shares>,
}

impl Packing {
    /// The beginning of a stream.
    pub fn new() -> Packing {
        Packing { packer: Packer::new(), rest: Vec::new(), cells: Vec::new() }
    }

    /// Bytes of memory for what was found.
    pub fn taken(&self) -> usize {
        self.cells.capacity() * size_of::<Shares>()
    }

    /// What comes next in the stream.
    pub fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(WINDOW - self.rest.len()));
            self.rest.extend_from_slice(now);
            bytes = later;
            if self.rest.len() == WINDOW {
                self.window();
            }
        }
    }

    fn window(&mut self) {
        let first = self.cells.len();
        self.cells.resize(first + self.rest.len().div_ceil(CELL), DENSE);
        for (number, size) in SIZES.iter().enumerate() {
            let cells = self.cells[first..].chunks_mut(1 << size >> CELL.ilog2());
            for (block, cells) in self.rest.chunks(1 << size).zip(cells) {
                let packed = self.packer.compress(Codec::Lz4, block).unwrap_or(block.len());
                let share = (packed * usize::from(u16::MAX) / block.len()) as u16;
                cells.iter_mut().for_each(|cell| cell[number] = share);
            }
        }
        self.rest.clear();
    }

    /// The end of the stream: gives its parts, which follow each other without a gap, their shares.
    pub fn finish(mut self, parts: [&mut [Small]; 2]) {
        self.window();
        for smalls in parts {
            let mut at = 0;
            for small in smalls {
                let end = at + small.len as usize;
                let overlaps = (at / CELL..end.div_ceil(CELL)).filter_map(|number| {
                    let overlap = end.min((number + 1) * CELL) - at.max(number * CELL);
                    Some((overlap as u64, self.cells.get(number)?))
                });
                small.packed = mean(overlaps);
                at = end;
            }
        }
    }
}

/// The shares of what consists of parts of so many bytes.
fn mean<'a>(parts: impl Iterator<Item = (u64, &'a Shares)>) -> Shares {
    let (mut len, mut sums) = (0, [0; SIZES.len()]);
    for (bytes, shares) in parts {
        len += bytes;
        sums.iter_mut().zip(shares).for_each(|(sum, share)| *sum += bytes * u64::from(*share));
    }
    sums.map(|sum: u64| sum.checked_div(len).map_or(u16::MAX, |share| share as u16))
}

/// The shares of a run of chunks.
pub fn shares(smalls: &[Small]) -> Shares {
    if let [one] = smalls {
        return one.packed;
    }
    mean(smalls.iter().map(|small| (u64::from(small.len), &small.packed)))
}

/// What is left of `bytes` with these shares, in chunks of `len` bytes each.
pub fn packed_bytes(bytes: u64, len: f64, shares: &Shares) -> f64 {
    let [least, .., most] = SIZES.map(f64::from);
    let at = (len.max(1.0).log2().clamp(least, most) - least) / (most - least) * (SIZES.len() - 1) as f64;
    let below = (at as usize).min(SIZES.len() - 2);
    let [below, above, part] = [f64::from(shares[below]), f64::from(shares[below + 1]), at - below as f64];
    bytes as f64 * (below + (above - below) * part) / f64::from(u16::MAX)
}
