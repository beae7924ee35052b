//! What can be said to `ashlar plan`.

use ashlar_estimate::loss::{self, DriveKind};
use ashlar_estimate::ssd::{SSD_MODELS, SsdModel};
use ashlar_estimate::{endurance, lsm};
use ashlar_units::Bytes;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::str::FromStr;

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
    /// How long flash lives under a load. See docs/estimators/endurance.md.
    Endurance(Box<Endurance>),
    /// What becomes of flash drives in the field: errors, bad blocks, lost chips, replacements. See docs/estimators/fleet.md.
    Fleet(Box<Fleet>),
    /// How likely an array of drives loses data: a ranking of layouts. See docs/estimators/loss.md.
    Loss(Box<Loss>),
    /// How long latent errors stay unseen, and how a disk is best scrubbed. See docs/estimators/scrub.md.
    Scrub(Box<Scrub>),
    /// How often disks fail by temperature and humidity, and what cooling is worth. See docs/estimators/environment.md.
    Environment(Box<Environment>),
    /// What it saves to put small files together. See docs/estimators/packing.md.
    Packing(Box<Packing>),
    /// Which layout suits random updates and scans on disks: in place, proximal, a log-structured pool, or write anywhere; and where the
    /// winner changes. See docs/estimators/layout.md.
    Layout(Box<Layout>),
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
    /// Memory for digests: about 32 bytes for each 1 KiB of data.
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

/// How requests are spread over keys.
#[derive(Clone, Debug)]
pub enum Spread {
    /// By a formula.
    Known(lsm::Distribution),
    /// As a trace shows.
    Trace(PathBuf),
}

impl FromStr for Spread {
    type Err = String;
    fn from_str(text: &str) -> Result<Spread, String> {
        match text.strip_prefix("trace:") {
            Some("") => Err("the trace has no name; write trace:FILE".into()),
            Some(file) => Ok(Spread::Trace(file.into())),
            None => text
                .parse()
                .map(Spread::Known)
                .map_err(|error: String| format!("{error}; or trace:FILE, the writes of a trace")),
        }
    }
}

#[derive(Args)]
pub struct Lsm {
    #[command(flatten)]
    pub common: Common,
    /// The design: leveldb, cola, samt or universal.
    #[arg(long, default_value = "leveldb")]
    pub design: lsm::Design,
    /// Different keys, as in 100000000 or 1e8. Of a trace, default: as many as it has.
    #[arg(long, value_name = "N")]
    pub keys: Option<f64>,
    /// Size of an item, key and value. Default: 1000 bytes; of a trace 4KiB, its blocks.
    #[arg(long, value_name = "BYTES")]
    pub item: Option<Bytes>,
    /// How requests are spread over keys: uniform, zipf:S as in zipf:0.99, or trace:FILE as its writes are spread over blocks
    /// of the size of an item (FILE as `ashlar survey` reads it: .parquet, .jsonl or .blkparse).
    #[arg(long, default_value = "uniform", value_name = "DISTRIBUTION")]
    pub distribution: Spread,
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

#[derive(Args)]
pub struct Endurance {
    #[command(flatten)]
    pub common: Common,
    /// How the device translates addresses: generic or log-block (cheap cards), levelled (with static wear levelling), or page
    /// (drives of today).
    #[arg(long, default_value = "page")]
    pub translation: endurance::Translation,
    /// Size that users see.
    #[arg(long, value_name = "SIZE")]
    pub capacity: Bytes,
    /// Part of all flash that is spare, from 0.001 to 0.9.
    #[arg(long, value_name = "PART", default_value_t = 0.07)]
    pub spare: f64,
    /// Size of a page.
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub page: Bytes,
    /// Pages of an erase block.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub pages: u32,
    /// Zones that wear separately.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub zones: u32,
    /// Cycles of program and erase that a block bears.
    #[arg(long, value_name = "N", conflicts_with = "chip", required_unless_present = "chip")]
    pub cycles: Option<f64>,
    /// Take the cycles of a chip that was measured: slc-128mb-90nm, slc-512mb-90nm, slc-2gb-50nm, slc-4gb-72nm, slc-8gb-60nm,
    /// mlc-8gb-72nm, slc-16gb-50nm or mlc-32gb-50nm.
    #[arg(long, value_name = "NAME")]
    pub chip: Option<String>,
    /// What is written in a day.
    #[arg(long, value_name = "SIZE")]
    pub written_per_day: Bytes,
    /// Part of the writes that go to random addresses, from 0 to 1. The others go to one address (generic, log-block, levelled)
    /// or in order (page).
    #[arg(long, value_name = "PART", default_value_t = 1.0)]
    pub random: f64,
    /// Decides all chance.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

#[derive(Args)]
pub struct Fleet {
    #[command(flatten)]
    pub common: Common,
    /// The model of drive: MLC-A, MLC-B, MLC-C, MLC-D, SLC-A, SLC-B, SLC-C, SLC-D, eMLC-A or eMLC-B of the field study.
    #[arg(long, value_parser = ssd_model)]
    pub model: &'static SsdModel,
    /// Drives of the fleet.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub drives: u64,
    /// Years to look ahead. Default: those of the study, 4 (eMLC 3).
    #[arg(long, value_name = "YEARS")]
    pub years: Option<f64>,
    /// Drives to follow in the simulation.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub simulated: u64,
    /// Decides all chance.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

fn ssd_model(text: &str) -> Result<&'static SsdModel, String> {
    SsdModel::find(text).ok_or_else(|| {
        let names: Vec<&str> = SSD_MODELS.iter().map(|model| model.name).collect();
        format!("{text:?} is no model of the study; there are {}", names.join(", "))
    })
}

#[derive(Args)]
pub struct Loss {
    #[command(flatten)]
    pub common: Common,
    /// A layout: mirror:2, raid5:6, raid6:12, rs:10+4, single, or single with a code inside as in single+spc:8+1, single+mds:16+2,
    /// single+ipc:56+7 or single+cdp:23. Can be given several times: they are ranked, and the first is looked at closely.
    #[arg(long = "layout", required = true)]
    pub layouts: Vec<loss::Layout>,
    /// The drives: hdd, or ssd:MODEL as in ssd:MLC-B (see docs/estimators/loss.md).
    #[arg(long, default_value = "hdd")]
    pub drive: DriveKind,
    /// Percent of the drives that fail in a year, on average, at 20 degrees and 30 % humidity. Default: 2 for hdd, of ssd that
    /// of the field study.
    #[arg(long, value_name = "PERCENT")]
    pub afr: Option<f64>,
    /// Shape of the Weibull distribution of life: 1 if age does not matter, more if old drives fail more.
    #[arg(long, value_name = "SHAPE", default_value_t = 1.0)]
    pub age_shape: f64,
    /// Variance of the failure rate from batch to batch, whose mean is 1.
    #[arg(long, value_name = "VARIANCE", default_value_t = 0.5)]
    pub batch_variance: f64,
    /// Batches that the drives come from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub batches: u32,
    /// Size of a drive. Default: 8TB for hdd, 2TB for ssd.
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<Bytes>,
    /// Rebuilt in a second. Default: 100MB for hdd, 300MB for ssd.
    #[arg(long, value_name = "SIZE")]
    pub rebuild_rate: Option<Bytes>,
    /// Hours until a rebuild begins.
    #[arg(long, value_name = "HOURS", default_value_t = 12.0)]
    pub replace_hours: f64,
    /// Days of a pass of scrubbing; 0 without scrubbing.
    #[arg(long, value_name = "DAYS", default_value_t = 14.0)]
    pub scrub_days: f64,
    /// Mean temperature at the disks, degrees Celsius. Without it failures are those of 20 degrees and 30 % humidity.
    #[arg(long, value_name = "CELSIUS", requires = "humidity")]
    pub temperature: Option<f64>,
    /// How much warmer summer is than the mean.
    #[arg(long, value_name = "CELSIUS", default_value_t = 0.0)]
    pub temperature_swing: f64,
    /// Mean relative humidity, percent.
    #[arg(long, value_name = "PERCENT", requires = "temperature")]
    pub humidity: Option<f64>,
    /// How much more humid summer is than the mean, percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    pub humidity_swing: f64,
    /// Years to look ahead.
    #[arg(long, value_name = "YEARS", default_value_t = 5.0)]
    pub years: f64,
    /// Relative standard error to reach, percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub error: f64,
    /// Most histories for each layout.
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    pub histories: u64,
    /// Decides all chance.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

#[derive(Args)]
pub struct Scrub {
    #[command(flatten)]
    pub common: Common,
    /// Errors for each byte of use, as in 1e-14. Vendors do not publish it; the paper takes from 1e-15 to 1e-13.
    #[arg(long, value_name = "RATE", default_value_t = 1e-14)]
    pub errors_per_byte: f64,
    /// How many bytes read wear as much as one written; the paper takes from 1 to 9.
    #[arg(long, value_name = "N", default_value_t = 3.0)]
    pub read_weight: f64,
    /// Percent of the drives with a cluster of errors by age in two years.
    #[arg(long, value_name = "PERCENT", default_value_t = 2.5)]
    pub aged: f64,
    /// Size of the disk.
    #[arg(long, value_name = "SIZE", default_value = "500GB")]
    pub capacity: Bytes,
    /// Size of a segment of staggered reading; at most the region of 128 MB.
    #[arg(long, value_name = "SIZE", default_value = "1MB")]
    pub segment: Bytes,
    /// What users write in an hour.
    #[arg(long, value_name = "SIZE", default_value = "100MB")]
    pub written: Bytes,
    /// What users read in an hour.
    #[arg(long, value_name = "SIZE", default_value = "200MB")]
    pub read: Bytes,
    /// What scrubbing reads in an hour now.
    #[arg(long, value_name = "SIZE", default_value = "4GB")]
    pub rate: Bytes,
    /// What it may read in an hour at most.
    #[arg(long, value_name = "SIZE", default_value = "20GB")]
    pub rate_max: Bytes,
    /// Months to look at.
    #[arg(long, value_name = "MONTHS", default_value_t = 24.0)]
    pub months: f64,
    /// Disks to draw.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub disks: u64,
    /// Decides all chance.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

#[derive(Args)]
pub struct Environment {
    #[command(flatten)]
    pub common: Common,
    /// A history: rows whose last two columns are degrees Celsius and percent of relative humidity; - for standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["temperature", "humidity"], required_unless_present = "temperature")]
    pub history: Option<PathBuf>,
    /// Mean temperature of the air that disks take in, degrees Celsius.
    #[arg(long, value_name = "CELSIUS", requires = "humidity")]
    pub temperature: Option<f64>,
    /// Its standard deviation.
    #[arg(long, value_name = "CELSIUS", default_value_t = 0.0)]
    pub temperature_deviation: f64,
    /// Mean relative humidity, percent.
    #[arg(long, value_name = "PERCENT", requires = "temperature")]
    pub humidity: Option<f64>,
    /// Its standard deviation.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    pub humidity_deviation: f64,
    /// The disks stand behind what warms the air to this, degrees Celsius; warm air is drier.
    #[arg(long, value_name = "CELSIUS")]
    pub disk_temperature: Option<f64>,
    /// Percent of the disks that fail in a year by mechanics, at 20 degrees and 30 % humidity.
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    pub mechanical_afr: f64,
    /// Percent that fail by controllers and connectors, there.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.5)]
    pub controller_afr: f64,
    /// How much humidity matters: 0.0455 from corrosion of copper, 0.0652 as trained on disks.
    #[arg(long, value_name = "B", default_value_t = 0.0455)]
    pub corrosion: f64,
    /// Years to compare ways of cooling over.
    #[arg(long, value_name = "YEARS", default_value_t = 5.0)]
    pub years: f64,
    /// Dollars for a kilowatt hour.
    #[arg(long, value_name = "DOLLARS", default_value_t = 0.07)]
    pub kilowatt_hour: f64,
    /// Dollars for a disk.
    #[arg(long, value_name = "DOLLARS", default_value_t = 100.0)]
    pub disk_price: f64,
    /// Disks for each watt of servers.
    #[arg(long, value_name = "N", default_value_t = 0.0132)]
    pub disks_per_watt: f64,
}

#[derive(Args)]
pub struct Packing {
    #[command(flatten)]
    pub common: Common,
    /// Sizes of files: rows of a size in bytes and a count, as `find DIR -type f -printf '%s 1\n'` prints; - for standard input.
    pub sizes: PathBuf,
    /// Names of files in the order in which they were used, one in each line: which are used together is said too.
    #[arg(long, value_name = "FILE")]
    pub accesses: Option<PathBuf>,
    /// Part of 50,000 accesses that a group makes up at least.
    #[arg(long, value_name = "PART", default_value_t = 0.05, requires = "accesses")]
    pub support: f64,
    /// Size of a block.
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub block: Bytes,
    /// Files up to this size are packed.
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    pub small: Bytes,
    /// Most bytes that are packed together.
    #[arg(long, value_name = "SIZE", default_value = "8MiB")]
    pub composite: Bytes,
    /// Most files that are packed together.
    #[arg(long, value_name = "N", default_value_t = 1000.0)]
    pub files: f64,
    /// Part that deleted files leave in a composite, from 0 to 0.5.
    #[arg(long, value_name = "PART", default_value_t = 0.25)]
    pub dead: f64,
    /// Most bytes of a PUT request.
    #[arg(long, value_name = "SIZE", default_value = "8MiB")]
    pub part: Bytes,
    /// Dollars for 1000 PUT requests.
    #[arg(long, value_name = "DOLLARS", default_value_t = 0.005)]
    pub put_price: f64,
}

#[derive(Args)]
pub struct Layout {
    #[command(flatten)]
    pub common: Common,
    /// The drive: a model of a disk, as `ashlar device models` lists them, or a file that ends in .toml.
    #[arg(long, value_name = "MODEL", default_value = "wd-re3")]
    pub drive: String,
    /// Drives of data; one of parity comes to them (RAID-4).
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub data_drives: u32,
    /// What is updated and scanned. Default: what fits on the drives of data at the least of --full and --fill.
    #[arg(long, value_name = "SIZE")]
    pub data: Option<Bytes>,
    /// Size of an extent.
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    pub extent: Bytes,
    /// Size of an update, from a block of 4KiB to 168KiB.
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub update: Bytes,
    /// Part of the disks that is in use, in place, by proximal and when writing anywhere.
    #[arg(long, value_name = "PART", default_value_t = 0.89)]
    pub full: f64,
    /// Part of a pool that is in use.
    #[arg(long, value_name = "PART", default_value_t = 0.7)]
    pub fill: f64,
    /// What staging on flash holds, as part of the disks.
    #[arg(long, value_name = "PART", default_value_t = 0.01)]
    pub staging: f64,
    /// Updates that a pool makes durable together.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub batch: u32,
    /// Part of the blocks that were updated since they were written in order.
    #[arg(long, value_name = "PART", default_value_t = 1.0)]
    pub moved: f64,
    /// Updates for each scan of everything. Default: one for each block.
    #[arg(long, value_name = "N")]
    pub updates_per_scan: Option<f64>,
}
