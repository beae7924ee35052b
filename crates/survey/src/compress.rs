//! How well data compress, and how fast.

use crate::answer::{CodecAnswer, CompressionAnswer, RatioAnswer};
use crate::chunk::is_zero;
use crate::evaluate::Ratio;
use std::time::Instant;

/// Bytes of a chunk after compression; never more than before, since a store keeps what does not shrink as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Digest of the chunk.
    pub value: u64,
    /// Its bytes.
    pub len: u32,
    /// With lz4.
    pub lz4: u32,
    /// With zstd at level 3.
    pub zstd: u32,
}

/// One way to compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// LZ4, its fast form.
    Lz4,
    /// Zstandard at a level.
    Zstd(i32),
}

impl Codec {
    /// Those that are compared.
    pub const ALL: [Codec; 4] = [Codec::Lz4, Codec::Zstd(1), Codec::Zstd(3), Codec::Zstd(9)];

    /// Those that are combined with deduplication: every block is compressed with them.
    const MAIN: [Codec; 2] = [Codec::Lz4, Codec::Zstd(3)];

    /// Its name, as the pool takes it.
    pub fn name(self) -> String {
        match self {
            Codec::Lz4 => "lz4".into(),
            Codec::Zstd(level) => format!("zstd:{level}"),
        }
    }
}

/// Sums over the blocks that were compressed.
#[derive(Clone, Copy, Default, Debug)]
pub struct Study {
    /// Blocks.
    pub blocks: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// For each of [`Codec::ALL`]: bytes after compression, nanoseconds for compressing, nanoseconds for the way back of those
    /// blocks that shrank. The way back, and all of those that are not combined with deduplication, are of some blocks.
    pub codecs: [(u64, u64, u64); Codec::ALL.len()],
    /// Of those some blocks: bytes, and bytes after zstd at level 3.
    pub some: [u64; 2],
    /// Sum of entropy in bits per byte, times bytes.
    pub entropy_bits: f64,
    /// Bytes in blocks that no codec shrinks by 3 %, and whose bytes are spread evenly: compressed or encrypted already.
    pub dense: u64,
    /// Bytes in blocks of zeros.
    pub zero: u64,
    /// Sums of squares of compressed bytes of lz4 and of zstd at level 3, for the error of the means.
    pub squares: [f64; 2],
}

impl Study {
    /// Bytes of a block: what the pool compresses at once is half of it, what backup programs do is more.
    pub const BLOCK: usize = 64 << 10;
    /// Where zstd at level 3 is in [`Codec::ALL`].
    const LEVEL_3: usize = 2;

    /// Of a codec of [`Codec::ALL`]: bytes after compression for each before, and nanoseconds for each there and back. How much more
    /// or less another level of zstd leaves than level 3 is nearly the same for all blocks, so its ratio is that of level 3 on all
    /// blocks, times how they compare on some. None if there were none.
    fn ratio(&self, index: usize) -> Option<(f64, f64, f64)> {
        let (packed, packing_ns, unpacking_ns) = self.codecs[index];
        let [all, some, beside] = [self.bytes, self.some[0], self.some[1]].map(|bytes| bytes as f64);
        let is_main = Codec::MAIN.contains(&Codec::ALL[index]);
        let bytes = if is_main { all } else { some };
        if bytes == 0.0 {
            return None;
        }
        let factor = if is_main { 1.0 } else { self.codecs[Study::LEVEL_3].0 as f64 / all / (beside / some) };
        let unpacking_ns = if some == 0.0 { 0.0 } else { unpacking_ns as f64 / some };
        Some((packed as f64 / bytes * factor, packing_ns as f64 / bytes, unpacking_ns))
    }

    /// What they say of all data.
    pub fn answer(&self) -> CompressionAnswer {
        if self.blocks == 0 {
            return CompressionAnswer::default();
        }
        let bytes = self.bytes as f64;
        let rate = |ns: f64| if ns > 0.0 { 1e3 / ns } else { 0.0 };
        let codec = |(index, codec): (usize, Codec)| {
            let (ratio, packing_ns, unpacking_ns) = self.ratio(index)?;
            // Of those whose squares are not kept, as much as of the nearest; beside it, the error of how they compare is small.
            let squares = self.squares[usize::from(index > 0)];
            let mean = self.codecs[if index > 0 { Study::LEVEL_3 } else { 0 }].0 as f64 / self.blocks as f64;
            let variance = (squares / self.blocks as f64 - mean * mean).max(0.0);
            let error = 2.0 * (variance / self.blocks as f64).sqrt() / (bytes / self.blocks as f64);
            Some(CodecAnswer {
                codec: codec.name(),
                ratio: RatioAnswer::from(Ratio::Range((ratio - error).max(0.0), (ratio + error).min(1.0))),
                compress_mb_s: rate(packing_ns),
                decompress_mb_s: (unpacking_ns > 0.0).then(|| rate(unpacking_ns)),
            })
        };
        CompressionAnswer {
            blocks: self.blocks,
            bytes: self.bytes,
            codecs: Codec::ALL.into_iter().enumerate().filter_map(codec).collect(),
            entropy_bits_per_byte: self.entropy_bits / bytes,
            dense_share: self.dense as f64 / bytes,
            zero_share: self.zero as f64 / bytes,
        }
    }

    /// Adds another one.
    pub fn add(&mut self, other: &Study) {
        self.blocks += other.blocks;
        self.bytes += other.bytes;
        for (sum, more) in self.codecs.iter_mut().zip(&other.codecs) {
            *sum = (sum.0 + more.0, sum.1 + more.1, sum.2 + more.2);
        }
        self.some[0] += other.some[0];
        self.some[1] += other.some[1];
        self.entropy_bits += other.entropy_bits;
        self.dense += other.dense;
        self.zero += other.zero;
        self.squares[0] += other.squares[0];
        self.squares[1] += other.squares[1];
    }
}

/// Compressors with their buffers.
pub struct Packer {
    zstd: Vec<(i32, zstd::bulk::Compressor<'static>)>,
    unpack: Option<zstd::bulk::Decompressor<'static>>,
    buffer: Vec<u8>,
}

/// Entropy of single bytes, in bits.
pub fn entropy(bytes: &[u8]) -> f64 {
    let mut counts = [0u64; 256];
    bytes.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    let total = bytes.len() as f64;
    let part = |count: &u64| {
        let share = *count as f64 / total;
        -share * share.log2()
    };
    counts.iter().filter(|count| **count > 0).map(part).sum()
}

impl Packer {
    /// Buffers are made when they are used.
    pub fn new() -> Packer {
        Packer { zstd: Vec::new(), unpack: None, buffer: Vec::new() }
    }

    /// Compresses; the result is in the buffer. `None` if it did not shrink.
    pub(crate) fn compress(&mut self, codec: Codec, bytes: &[u8]) -> Option<usize> {
        self.buffer.resize(
            lz4_flex::block::get_maximum_output_size(bytes.len()).max(zstd::zstd_safe::compress_bound(bytes.len())),
            0,
        );
        let len = match codec {
            Codec::Lz4 => lz4_flex::block::compress_into(bytes, &mut self.buffer).ok()?,
            Codec::Zstd(level) => {
                if !self.zstd.iter().any(|(known, _)| *known == level) {
                    self.zstd.push((level, zstd::bulk::Compressor::new(level).ok()?));
                }
                let (_, compressor) = self.zstd.iter_mut().find(|(known, _)| *known == level)?;
                compressor.compress_to_buffer(bytes, self.buffer.as_mut_slice()).ok()?
            }
        };
        (len < bytes.len()).then_some(len)
    }

    fn decompress(&mut self, codec: Codec, packed: usize, to: &mut [u8]) -> bool {
        let packed = &self.buffer[..packed];
        match codec {
            Codec::Lz4 => lz4_flex::block::decompress_into(packed, to).is_ok(),
            Codec::Zstd(_) => {
                if self.unpack.is_none() {
                    self.unpack = zstd::bulk::Decompressor::new().ok();
                }
                self.unpack.as_mut().is_some_and(|unpack| unpack.decompress_to_buffer(packed, to).is_ok())
            }
        }
    }

    /// Compresses a chunk with the two codecs that are combined with deduplication.
    pub fn pack(&mut self, value: u64, bytes: &[u8]) -> Packed {
        let len = bytes.len();
        let lz4 = self.compress(Codec::Lz4, bytes).unwrap_or(len) as u32;
        let zstd = self.compress(Codec::Zstd(3), bytes).unwrap_or(len) as u32;
        Packed { value, len: len as u32, lz4, zstd }
    }

    /// Compresses a block, with `all` by every codec and back, and adds up what came of it.
    pub fn study(&mut self, bytes: &[u8], all: bool, study: &mut Study) {
        if bytes.is_empty() {
            return;
        }
        let len = bytes.len() as u64;
        study.blocks += 1;
        study.bytes += len;
        if is_zero(bytes) {
            study.zero += len;
        }
        let entropy = entropy(bytes);
        study.entropy_bits += entropy * len as f64;
        let mut least = len;
        let mut back = vec![0; bytes.len()];
        for (index, codec) in Codec::ALL.into_iter().enumerate() {
            if !all && !Codec::MAIN.contains(&codec) {
                continue;
            }
            let began = Instant::now();
            let packed = self.compress(codec, bytes);
            let packing_ns = began.elapsed().as_nanos() as u64;
            let unpacking_ns = packed.filter(|_| all).map_or(0, |packed| {
                let began = Instant::now();
                self.decompress(codec, packed, &mut back);
                began.elapsed().as_nanos() as u64
            });
            let packed = packed.map_or(len, |packed| packed as u64);
            let sum = &mut study.codecs[index];
            *sum = (sum.0 + packed, sum.1 + packing_ns, sum.2 + unpacking_ns);
            least = least.min(packed);
            if all && index == Study::LEVEL_3 {
                study.some = [study.some[0] + len, study.some[1] + packed];
            }
            if let Some(square) = Codec::MAIN.iter().position(|main| *main == codec) {
                study.squares[square] += (packed * packed) as f64;
            }
        }
        if least as f64 > 0.97 * len as f64 && entropy > 7.5 {
            study.dense += len;
        }
    }
}

impl Default for Packer {
    fn default() -> Packer {
        Packer::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_models::Chance;

    #[test]
    fn noise_is_dense_and_text_is_not() {
        let mut chance = Chance::new(1);
        let noise: Vec<u8> = (0..Study::BLOCK).map(|_| chance.below(256) as u8).collect();
        let text = b"a stone is cut to fit the stone beside it; ".repeat(1525);
        let mut packer = Packer::new();
        let (mut of_noise, mut of_text) = (Study::default(), Study::default());
        packer.study(&noise, true, &mut of_noise);
        packer.study(&text[..Study::BLOCK], true, &mut of_text);
        assert_eq!((of_noise.dense, of_text.dense), (Study::BLOCK as u64, 0));
        assert!(of_noise.codecs.iter().all(|codec| codec.0 == Study::BLOCK as u64), "{of_noise:?}");
        assert!(of_text.codecs.iter().all(|codec| codec.0 < 2000), "{of_text:?}");
        // There is a way back only for what shrank.
        assert!(of_noise.codecs.iter().all(|codec| codec.2 == 0), "{of_noise:?}");
        assert!(of_text.codecs.iter().all(|codec| codec.2 > 0), "{of_text:?}");
        assert!(of_noise.entropy_bits / Study::BLOCK as f64 > 7.99);
    }

    #[test]
    fn other_levels_are_compared_on_some_blocks() {
        let mut chance = Chance::new(2);
        let mut packer = Packer::new();
        let (mut all, mut some) = (Study::default(), Study::default());
        for block in 0..64 {
            // Words of which there are more and more.
            let text: Vec<u8> = (0..4096).flat_map(|_| chance.below(50 + 20 * block).to_le_bytes()).collect();
            packer.study(&text, true, &mut all);
            packer.study(&text, block % 4 == 0, &mut some);
        }
        assert_eq!((all.some[0], some.some[0]), (all.bytes, all.bytes / 4));
        let ratio = |study: &Study, index| study.ratio(index).expect("there were blocks").0;
        for (index, codec) in Codec::ALL.into_iter().enumerate() {
            let truth = all.codecs[index].0 as f64 / all.bytes as f64;
            assert!((ratio(&all, index) / truth - 1.0).abs() < 1e-12, "{codec:?}");
            let error = ratio(&some, index) / truth - 1.0;
            let allowed = if Codec::MAIN.contains(&codec) { 1e-12 } else { 0.02 };
            assert!(error.abs() < allowed, "{codec:?}: {error}");
        }
        assert_eq!(Study::default().ratio(3), None);
        let mut none = Study::default();
        packer.study(b"text", false, &mut none);
        assert_eq!([0, 1, 2, 3].map(|index| none.ratio(index).is_some()), [true, false, true, false]);
    }

    #[test]
    fn entropy_of_known_bytes() {
        assert_eq!(entropy(&[7; 100]), 0.0);
        assert_eq!(entropy(&[0, 1, 2, 3]), 2.0);
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(entropy(&all), 8.0);
    }
}
