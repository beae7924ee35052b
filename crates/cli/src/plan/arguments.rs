//! What can be said to `ashlar plan`.

use ashlar_estimate::lsm;
use ashlar_units::Bytes;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum PlanCommand {
    /// Estimate a number from a published model: with its range, its assumptions, and which of them matters most. Each is
    /// written to the ledger.
    #[command(subcommand)]
    Estimate(EstimateCommand),
}

#[derive(Subcommand)]
pub enum EstimateCommand {
    /// How many bytes a log-structured merge tree writes for each byte that it is given. See docs/estimators/lsm.md.
    Lsm(Box<Lsm>),
    /// What deduplication would leave of data, from a part of them. See docs/estimators/dedup.md.
    Dedup(Box<Dedup>),
    /// Which chunk size pays on data: chunkers side by side over one or more versions. See docs/estimators/chunking.md.
    Chunking(Box<Chunking>),
}

#[derive(Args)]
pub struct Dedup {
    #[command(flatten)]
    pub common: Common,
    /// A directory, a block device, or an image.
    pub path: PathBuf,
    #[command(flatten)]
    pub reading: crate::survey::arguments::Reading,
}

#[derive(Args)]
pub struct Chunking {
    #[command(flatten)]
    pub common: Common,
    /// Versions of the data, oldest first: directories (their files follow each other by path) or files.
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Bytes of metadata for each stored chunk: its entry in the index, and what else is kept with it.
    #[arg(long, value_name = "SIZE", default_value = "64")]
    pub metadata: Bytes,
    /// Small chunks in a big one, for the bimodal schemes; the authors recommend 8.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(2..=64))]
    pub k: u8,
    /// Decides where the index is wrong, when it is.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Memory for digests: about 22 bytes for each 1 KiB of data.
    #[arg(long, default_value = "2GiB")]
    pub memory: Bytes,
    /// Write the comparison as a page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// What every estimator takes.
#[derive(Args)]
pub struct Common {
    /// Show formulas and steps with their numbers.
    #[arg(long)]
    pub explain: bool,
    /// Draw the answer into this SVG file.
    #[arg(long, value_name = "FILE")]
    pub figure: Option<PathBuf>,
}

#[derive(Args)]
pub struct Lsm {
    #[command(flatten)]
    pub common: Common,
    /// The design: leveldb, cola, samt or universal.
    #[arg(long, default_value = "leveldb")]
    pub design: lsm::Design,
    /// Different keys, as in 100000000 or 1e8.
    #[arg(long, value_name = "N")]
    pub keys: f64,
    /// Size of an item, key and value.
    #[arg(long, value_name = "BYTES", default_value = "1000")]
    pub item: Bytes,
    /// How requests are spread over keys: uniform, or zipf:S as in zipf:0.99.
    #[arg(long, default_value = "uniform")]
    pub distribution: lsm::Distribution,
    /// Size of the memtable, and of its log.
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub memtable: Bytes,
    /// Size of level 1 of leveldb.
    #[arg(long, value_name = "SIZE", default_value = "10MiB")]
    pub level1: Bytes,
    /// How much larger each level is than the one before. Default: 10 for leveldb, 2 for cola and samt.
    #[arg(long, value_name = "FACTOR")]
    pub growth: Option<u32>,
    /// Tables at which universal compaction starts.
    #[arg(long, value_name = "TABLES", default_value_t = lsm::Universal::default().trigger)]
    pub trigger: usize,
    /// Keep values apart from the tree; this is the size of a key.
    #[arg(long, value_name = "KEY-BYTES")]
    pub separate_values: Option<Bytes>,
    /// How much of a segment of the log of values is still in use when it is cleaned, from 0 to 0.99.
    #[arg(long, value_name = "PART", default_value_t = 0.5, requires = "separate_values")]
    pub value_log_fill: f64,
    /// Simulate the tree item by item too (leveldb, at most 20 million keys), and write that beside the prediction. Exit code
    /// 1 if it is outside of the range.
    #[arg(long)]
    pub simulate: bool,
    /// Decides the requests of the simulation.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}
