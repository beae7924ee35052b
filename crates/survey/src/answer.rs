//! What a survey answers: one document, the same for people and for scripts.

use crate::evaluate::Ratio;
use crate::listing::Troubles;
use crate::sizes::SizesAnswer;
use crate::source::Kind;
use crate::tally::Mode;
use crate::trace::TraceAnswer;
use ashlar_report::number;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where a number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// From all of the data.
    Measured,
    /// From a part of the data.
    Sampled,
}

/// A ratio of bytes: `low` and `high` from a sample, `value` from all data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RatioAnswer {
    /// At least.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub low: Option<f64>,
    /// At most.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub high: Option<f64>,
    /// Exactly.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub value: Option<f64>,
}

impl Ratio {
    /// A value is measured, a range sampled.
    pub fn origin(self) -> Origin {
        if matches!(self, Ratio::Value(_)) { Origin::Measured } else { Origin::Sampled }
    }
}

impl From<Ratio> for RatioAnswer {
    fn from(ratio: Ratio) -> RatioAnswer {
        match ratio {
            Ratio::Range(low, high) => RatioAnswer { low: Some(low), high: Some(high), value: None },
            Ratio::Value(value) => RatioAnswer { low: None, high: None, value: Some(value) },
        }
    }
}

impl RatioAnswer {
    /// Lower bound, middle and upper bound.
    pub fn range(&self) -> (f64, f64, f64) {
        match (self.value, self.low, self.high) {
            (Some(value), ..) => (value, value, value),
            (None, Some(low), Some(high)) => (low, f64::midpoint(low, high), high),
            _ => (0.0, 0.0, 0.0),
        }
    }
}

impl std::fmt::Display for RatioAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.value {
            Some(value) => write!(f, "{:.1} %", 100.0 * value),
            None => {
                let (low, _, high) = self.range();
                write!(f, "{:.1} to {:.1} %", 100.0 * low, 100.0 * high)
            }
        }
    }
}

/// What deduplication with one chunking would leave.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DedupAnswer {
    /// The chunking, as in fixed:4KiB or cdc:64KiB.
    pub chunking: String,
    /// Stored by logical bytes.
    pub ratio: RatioAnswer,
    /// The same if what is stored is compressed as well, chunk by chunk. Some chunks are compressed, after a full scan
    /// too, so this is a range; a value only where all were, as of little data.
    pub with_lz4: RatioAnswer,
    /// The same with zstd at level 3.
    pub with_zstd_3: RatioAnswer,
    /// Chunks that an index would hold.
    pub chunks: RatioAnswer,
    /// Mean length of a chunk in bytes.
    pub mean_chunk_bytes: f64,
    /// Share of the logical bytes that is chunks of zeros.
    pub zero_share: f64,
    /// Where the ratio comes from.
    pub origin: Origin,
    /// Where the ratios with compression come from.
    pub compression_origin: Origin,
    /// Of the values that were seen: how many were in one cluster, two, ... and from the 61st on in more. After a full scan
    /// these are numbers of copies.
    pub seen_by_copies: Vec<f64>,
    /// The ledger's record of this.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ledger_id: Option<String>,
}

/// What one codec does to blocks of 64 KiB.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CodecAnswer {
    /// The codec, as the pool takes it: lz4, zstd:3.
    pub codec: String,
    /// Bytes after it by bytes before.
    pub ratio: RatioAnswer,
    /// MB/s of one core that compresses, measured here while the scan ran.
    pub compress_mb_s: f64,
    /// MB/s of one core on the way back, for which blocks that did not shrink need no time; null if none shrank.
    pub decompress_mb_s: Option<f64>,
}

impl CodecAnswer {
    /// MB/s on the way back, for people.
    pub fn back(&self) -> String {
        self.decompress_mb_s.map_or("-".into(), number)
    }
}

/// How data compress. Always from a sample of blocks.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct CompressionAnswer {
    /// Blocks that were compressed, some of them with all codecs.
    pub blocks: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// The codecs.
    pub codecs: Vec<CodecAnswer>,
    /// Entropy of single bytes.
    pub entropy_bits_per_byte: f64,
    /// Share of the blocks that nothing shrinks: compressed or encrypted already.
    pub dense_share: f64,
    /// Share of the blocks that is zeros.
    pub zero_share: f64,
}

/// How files lie on the device.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct LayoutAnswer {
    /// Files that were looked at.
    pub files: u64,
    /// Share of all files that is.
    pub file_share: f64,
    /// Share of the blocks of files that follow their predecessor on the device: Smith's aggregate layout score. None if no
    /// file has two blocks, or the file system does not tell.
    pub score: Option<f64>,
    /// Mean number of extents of a file.
    pub extents_per_file: f64,
    /// Share of the bytes of extents that the file system keeps compressed or encrypted (btrfs). Such extents count as side
    /// by side if no more than their length lies between their beginnings.
    pub encoded_share: f64,
    /// Share of the bytes of extents that several files, or several places of one, have in common (reflinks).
    pub shared_share: f64,
    /// Share of the bytes of extents that are allocated and were never written.
    pub unwritten_share: f64,
    /// Files of those that lie beside metadata and take no block.
    pub inline_files: u64,
    /// Files by number of extents: 1, 2, up to 4, 8, 16 and so on.
    pub files_by_extents: Vec<(u64, u64)>,
    /// Layout score by size of the file: upper bound in bytes, and the score.
    pub score_by_size: Vec<(u64, f64)>,
    /// Ranges of free space by length: upper bound in bytes, ranges, bytes in them. Empty where the file system does not tell.
    pub free_ranges: Vec<(u64, u64, u64)>,
    /// What was not there to be seen, and why.
    pub notes: Vec<String>,
}

/// The answers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Answer {
    /// What was surveyed.
    pub path: String,
    /// What kind of thing it is.
    pub kind: Kind,
    /// When, in seconds since 1970.
    pub time: u64,
    /// Bytes of data: without holes, each file once.
    pub logical_bytes: u64,
    /// Bytes that were read, also those around the sample without which it is not known where its chunks begin and end.
    pub read_bytes: u64,
    /// Share of the logical bytes that is in the sample.
    pub read_fraction: f64,
    /// Bytes that were to be read and could not be, and all of a truncated image of which the tables are missing, holes or not.
    /// Ratios are of the rest.
    pub missing_bytes: u64,
    /// Decides which.
    pub seed: u64,
    /// Bytes of a unit of the sample.
    pub unit_bytes: u64,
    /// How much of the sample was remembered.
    pub mode: Mode,
    /// Where ratios come from.
    pub origin: Origin,
    /// Seconds that it took, without pauses between one run and the next.
    pub seconds: f64,
    /// Most memory that the process held, in bytes.
    pub memory_peak_bytes: u64,
    /// Bytes that were put aside in files, since memory was short.
    pub spilled_bytes: u64,
    /// Deduplication, for each chunking.
    pub dedup: Vec<DedupAnswer>,
    /// Compression.
    pub compression: CompressionAnswer,
    /// Sizes, ages, kinds.
    pub sizes: SizesAnswer,
    /// What it would save to put small files together. Modelled, from sizes in steps of 512 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packing: Option<ashlar_estimate::packing::Answer>,
    /// Places on the device.
    pub layout: LayoutAnswer,
    /// Of a trace: how it asks.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trace: Option<TraceAnswer>,
    /// What could not be read, and was passed over.
    pub unreadable: Troubles,
    /// What changed under the scan.
    pub changed: Troubles,
    /// What is no data: sockets, mounts of other file systems, loops.
    pub passed_over: Troubles,
    /// What else a reader should know.
    pub notes: Vec<String>,
}

impl Answer {
    /// How much of the data the answer comes from, and how it was come by, for people.
    pub fn extent(&self) -> String {
        let sampled = 100.0 * self.read_fraction;
        match self.origin {
            Origin::Measured => format!("{sampled:.1} % read (measured)"),
            _ => {
                let read = 100.0 * self.read_bytes as f64 / self.logical_bytes.max(1) as f64;
                format!("{sampled:.1} % sampled, for which {read:.1} % were read,")
            }
        }
    }
}
