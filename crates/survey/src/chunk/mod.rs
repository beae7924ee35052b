//! Cutting content into chunks, in one pass for all sizes.
//!
//! Content is cut once into small *pieces* at positions that its bytes decide ([`gear`]); chunks of every larger mean are
//! runs of pieces ([`cdc`]), and fixed blocks of every larger size are runs of 4 KiB blocks ([`fixed`]). So each byte is
//! hashed once for all fixed sizes and once for all content-defined ones, and the digest of a chunk is a digest of the
//! digests in it.

pub mod cdc;
pub mod fixed;
pub mod gear;

use ashlar_units::Bytes;
use std::fmt;
use std::str::FromStr;
use xxhash_rust::xxh3::xxh3_64;

/// A way to cut content into chunks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Chunking {
    /// Blocks of this many bytes: a power of two from 4 KiB to 1 MiB.
    Fixed(u32),
    /// Content-defined chunks of about this many bytes: a power of two from 4 KiB to 1 MiB.
    Cdc(u32),
}

impl Chunking {
    /// What a survey looks at unless it is told otherwise.
    pub const DEFAULT: [Chunking; 7] = [
        Chunking::Fixed(4 << 10),
        Chunking::Fixed(8 << 10),
        Chunking::Fixed(16 << 10),
        Chunking::Fixed(64 << 10),
        Chunking::Fixed(128 << 10),
        Chunking::Cdc(8 << 10),
        Chunking::Cdc(64 << 10),
    ];

    /// Size of a block, or the mean that is aimed at.
    pub fn bytes(self) -> u32 {
        match self {
            Chunking::Fixed(bytes) | Chunking::Cdc(bytes) => bytes,
        }
    }
    /// The longest chunk.
    pub fn bytes_max(self) -> u32 {
        match self {
            Chunking::Fixed(bytes) => bytes,
            Chunking::Cdc(mean) => cdc::Params::fast(mean).max,
        }
    }
}

impl fmt::Display for Chunking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if matches!(self, Chunking::Fixed(_)) { "fixed" } else { "cdc" };
        write!(f, "{kind}:{}KiB", self.bytes() >> 10)
    }
}

impl FromStr for Chunking {
    type Err = String;
    fn from_str(text: &str) -> Result<Chunking, String> {
        let wrong =
            || format!("{text:?} is no chunking: write fixed:4KiB or cdc:16KiB, with a power of two from 4KiB to 1MiB");
        let (kind, size) = text.split_once(':').ok_or_else(wrong)?;
        let size: Bytes = size.parse().map_err(|_| wrong())?;
        let bytes = u32::try_from(size.0).map_err(|_| wrong())?;
        if !bytes.is_power_of_two() || !(4 << 10..=1 << 20).contains(&bytes) {
            return Err(wrong());
        }
        match kind {
            "fixed" => Ok(Chunking::Fixed(bytes)),
            "cdc" => Ok(Chunking::Cdc(bytes)),
            _ => Err(wrong()),
        }
    }
}

/// Digest of some bytes: 64 bits of XXH3.
///
/// Nothing is stored by it, values are only counted. By chance two of 2^30 differ and have one digest in one survey of 32, which
/// moves no ratio; and whoever makes such data on purpose makes the answer about them wrong, and nothing else.
pub fn digest(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// Whether all bytes are zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    // Whole vectors at a time, and the first that is not ends it.
    bytes.chunks(128).all(|part| part.iter().fold(0, |sum, byte| sum | byte) == 0)
}

/// Digest of a sequence of digests.
#[derive(Clone, Default)]
pub struct Digests(Vec<u8>);

impl Digests {
    /// Adds one.
    pub fn push(&mut self, digest: u64) {
        self.0.extend_from_slice(&digest.to_le_bytes());
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// The digest of all, which are then forgotten.
    pub fn take(&mut self) -> u64 {
        let digest = xxh3_64(&self.0);
        self.0.clear();
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for chunking in Chunking::DEFAULT {
            assert_eq!(chunking.to_string().parse(), Ok(chunking));
        }
        for wrong in ["", "4KiB", "fixed:5KiB", "cdc:2MiB", "rabin:8KiB", "fixed:0", "cdc:18446744073709551615"] {
            wrong.parse::<Chunking>().expect_err(wrong);
        }
    }
}
