//! Blocks of fixed sizes, as runs of 4 KiB blocks.

use super::{Digests, digest};

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
    let zero = bytes.iter().all(|&byte| byte == 0);
    Block { digest: if zero { 0 } else { digest(bytes) }, len: bytes.len() as u32, zero }
}

impl Joiner {
    /// Makes blocks of `bytes`, a multiple of 4 KiB.
    pub fn new(bytes: u32) -> Joiner {
        Joiner { blocks_max: bytes / BLOCK as u32, blocks: 0, len: 0, zero: true, digests: Digests::default() }
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
        if self.blocks == 0 {
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
            let mut joiner = Joiner::new(8192);
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
}
