//! Blocks of fixed sizes, as runs of 4 KiB blocks.

use super::{Digests, digest, is_zero};

/// The smallest block.
pub const BLOCK: usize = 4096;

/// Puts blocks together to larger ones.
#[derive(Clone)]
pub struct Joiner {
    blocks_max: u32,
    blocks: u32,
    len: u32,
    zero: bool,
    digests: Digests,
}

/// A block that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Digest of its digests; of the block itself if that is one of 4 KiB.
    pub digest: u64,
    /// Bytes.
    pub len: u32,
    /// All of them are zero.
    pub zero: bool,
}

/// A block of at most 4 KiB.
pub fn block(bytes: &[u8]) -> Block {
    let zero = is_zero(bytes);
    Block { digest: if zero { 0 } else { digest(bytes) }, len: bytes.len() as u32, zero }
}

impl Joiner {
    /// Makes blocks of `bytes`, a multiple of 4 KiB, that begin at multiples of it. What comes first is at `offset`, so the
    /// first block may be shorter; it is as if zeros were before.
    pub fn within(bytes: u32, offset: u64) -> Joiner {
        let blocks = (offset % u64::from(bytes) / BLOCK as u64) as u32;
        let mut digests = Digests::default();
        if bytes as usize > BLOCK {
            (0..blocks).for_each(|_| digests.push(0));
        }
        Joiner { blocks_max: bytes / BLOCK as u32, blocks, len: 0, zero: true, digests }
    }
    /// Takes a block of 4 KiB, or a shorter one at the end of a file; gives the larger one that ends with it.
    pub fn push(&mut self, block: Block) -> Option<Block> {
        if self.blocks_max == 1 {
            return Some(block);
        }
        self.blocks += 1;
        self.len += block.len;
        self.zero &= block.zero;
        self.digests.push(block.digest);
        if self.blocks == self.blocks_max { self.finish() } else { None }
    }
    /// The file ends: the rest.
    pub fn finish(&mut self) -> Option<Block> {
        if self.len == 0 {
            return None;
        }
        let block = Block { digest: self.digests.take(), len: self.len, zero: self.zero };
        (self.blocks, self.len, self.zero) = (0, 0, true);
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_blocks_are_equal_iff_their_bytes_are() {
        let join = |bytes: &[u8]| -> Vec<Block> {
            let mut joiner = Joiner::within(8192, 0);
            let mut found: Vec<Block> = bytes.chunks(BLOCK).filter_map(|bytes| joiner.push(block(bytes))).collect();
            found.extend(joiner.finish());
            found
        };
        let mut bytes = vec![0; 5 * 8192 + 100];
        bytes[8192 + 4096] = 1;
        bytes[2 * 8192 + 4096] = 1;
        bytes[3 * 8192] = 1;
        let found = join(&bytes);
        assert_eq!(found.iter().map(|block| block.zero).collect::<Vec<_>>(), [true, false, false, false, true, true]);
        assert_eq!(found[1], found[2]);
        assert_ne!(found[1], found[3]);
        assert_eq!(found[5].len, 100);
    }

    #[test]
    fn a_block_behind_a_hole_is_as_with_zeros_in_its_place() {
        let (zeros, ones) = (block(&[0; BLOCK]), block(&[1; BLOCK]));
        let mut joiner = Joiner::within(8192, 3 * BLOCK as u64);
        let behind = joiner.push(ones).expect("the end of a block");
        let mut joiner = Joiner::within(8192, 0);
        assert_eq!(joiner.push(zeros), None);
        let whole = joiner.push(ones).expect("the end of a block");
        assert_eq!((behind.digest, behind.len, whole.len), (whole.digest, 4096, 8192));
    }
}
