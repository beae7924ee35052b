//! What can be said to `ashlar lab`.

use super::predict::PredictArguments;
use super::profile::ProfileArguments;
use ashlar_lab::age::image::Kind;
use ashlar_lab::ffs::Variant;
use ashlar_lab::history::synthetic::Sizes;
use ashlar_lab::stand::Place;
use ashlar_models::ModelFile;
use ashlar_units::Bytes;
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

#[derive(Subcommand)]
pub enum LabCommand {
    /// Give the requests of a trace to a model, in virtual time.
    Replay(Replay),
    /// How the files of a file system lie: layout score, pieces, split and hot files, free space.
    Layout(LayoutArguments),
    /// Keep what a file system is now: names, inodes, generations, times, sizes, extents, free space.
    Snapshot(SnapshotArguments),
    /// Make a history of creations, changes and deletions: of snapshots, of a git repository, or of parameters. Without -o,
    /// show the statistics of a history.
    History(Box<HistoryArguments>),
    /// Workloads that can be run: what they do, their parameters and sources. With a name and -o, write one as a trace of
    /// system calls.
    Workloads(WorkloadsArguments),
    /// Do a workload, or the system calls of a trace, on a file system for real, and measure each call. Exit code 1 when calls
    /// failed that did not in the trace. Needs root for images.
    Run(Box<RunArguments>),
    /// Search the options of format and mount that suit a workload: each alone, then those that helped together; on new or
    /// aged images, with the durability of each. Needs root.
    Tune(Box<TuneArguments>),
    /// Apply a history to a file system: an image that is made, a directory, or a simulated FFS. After Ctrl-C, or when it was
    /// killed, the same command goes on. Exit code 1 when files were left out since the file system was full. Needs root for
    /// images.
    Age(Box<AgeArguments>),
    /// Write down the system calls on files, with their latency: of a command, of a process that runs, or of everybody below
    /// a directory. Until its end, or Ctrl-C. Exit code 1 if the command failed or calls were lost.
    Trace(Box<TraceArguments>),
    /// Measure an object store, new or aged, on an emulated disk in virtual time: the workloads of the OBFS thesis. Exit code 1
    /// when objects found no room. Emulated.
    Objectbench(Box<ObjectBenchArguments>),
    /// Measure what each operation costs on a file system: a system vector, for `lab predict`. Needs root for images.
    Profile(Box<ProfileArguments>),
    /// Say what the calls of a trace would take on systems that system vectors stand for, and why. Modelled.
    Predict(Box<PredictArguments>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ObjectWorkload {
    /// New objects of two sizes.
    Twovalue,
    /// New objects: 80 % of 512 KiB, the others of 4 to 512 KiB.
    Synwrite,
    /// A fifth of all objects, none twice: 60 % in any order, the others as they were written.
    Synread,
    /// 40 % reads, 36 % new objects, 24 % written anew; 60 % of the writes synced.
    Objectbench,
}

impl ObjectWorkload {
    /// As it is said.
    pub fn name(self) -> &'static str {
        match self {
            ObjectWorkload::Twovalue => "twovalue",
            ObjectWorkload::Synwrite => "synwrite",
            ObjectWorkload::Synread => "synread",
            ObjectWorkload::Objectbench => "objectbench",
        }
    }
}

/// A store of objects.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectStore {
    /// Our region store, on a disk of so many bytes.
    Regions(Bytes),
    /// A new file system of the kernel, or the image of one that `lab objectbench` prepared.
    Files(Place),
}

/// A store of objects on an emulated disk.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectTarget {
    /// The store.
    pub store: ObjectStore,
    /// The model of the disk, if it was said.
    pub model: Option<String>,
}

impl FromStr for ObjectTarget {
    type Err = String;
    fn from_str(text: &str) -> Result<ObjectTarget, String> {
        let wrong = |why: &dyn std::fmt::Display| {
            format!(
                "{text:?} is no store on a disk: write regions:SIZE, ext4:SIZE, xfs:SIZE or btrfs:SIZE, a model behind that or \
                 not, as in regions:8GB:wd-re3, or an image ({why})"
            )
        };
        let Some((kind, rest)) = text.split_once(':').filter(|(kind, _)| !kind.contains('/')) else {
            return Ok(ObjectTarget { store: ObjectStore::Files(Place::Path(text.into())), model: None });
        };
        let (size, model) = rest.split_once(':').map_or((rest, None), |(size, model)| (size, Some(model.to_string())));
        let size = size.parse().map_err(|error| wrong(&error))?;
        let store = match kind {
            "regions" => ObjectStore::Regions(size),
            kind => ObjectStore::Files(Place::Fresh(kind.parse().map_err(|error: String| wrong(&error))?, size)),
        };
        Ok(ObjectTarget { store, model })
    }
}

#[derive(Args)]
pub struct ObjectBenchArguments {
    /// The workload.
    #[arg(value_enum, default_value_t = ObjectWorkload::Objectbench)]
    pub workload: ObjectWorkload,
    /// Store, size of the disk, and its model: regions is our store, in virtual time; ext4, xfs and btrfs are prepared on an
    /// image at full speed and measured on the model in real time, which needs root; so is an image that --save wrote.
    #[arg(long, value_name = "STORE:SIZE[:MODEL]|IMAGE", default_value = "regions:8GB", value_parser = ObjectTarget::from_str)]
    pub on: ObjectTarget,
    /// The model of the disk, for images, or in place of that in --on. Default: maxtor-d740x, that of the thesis.
    #[arg(long, value_name = "MODEL")]
    pub device: Option<String>,
    /// For file systems: keep the image, aged or filled, before it is measured. Sparse: objects are full of zeros, which take no
    /// room.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// For file systems: how often it is measured, each time on a copy of the image.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// For file systems: where images are made. Default: the directory for temporary files.
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
    /// Requests that are measured; synread ends by itself. With 0 nothing is measured.
    #[arg(long, value_name = "N", default_value_t = 2500)]
    pub requests: u64,
    /// Objects that are written before, as in synwrite.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub objects: u64,
    /// Age it before until this share of the disk is in use, by two streams at once (thesis, section 7.2.1.2).
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub aged: Option<f64>,
    /// Requests of both streams.
    #[arg(long, value_name = "N", default_value_t = 300_000)]
    pub ageing_requests: u64,
    /// Share of the disk in use at the height of a burst.
    #[arg(long, value_name = "SHARE", default_value = "0.69", value_parser = share)]
    pub burst_peak: f64,
    /// For twovalue: share of objects of 512 KiB.
    #[arg(long, value_name = "SHARE", default_value = "0.8", value_parser = share)]
    pub ratio: f64,
    /// For twovalue: bytes of the other objects.
    #[arg(long, value_name = "SIZE", default_value = "16KiB")]
    pub small: Bytes,
    /// For twovalue and synwrite: each write is synced.
    #[arg(long)]
    pub sync: bool,
    /// For regions, in virtual time: microseconds that the host takes before each request. With 0 a synced write would follow
    /// another one without losing a turn of the disk.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 100)]
    pub host_us: u32,
    /// Bytes of a region.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub region: Bytes,
    /// Bytes of a large block; no object may be larger.
    #[arg(long, value_name = "SIZE", default_value = "512KiB")]
    pub large_block: Bytes,
    /// Memory of the store; for file systems that of this process and the page cache while it is measured. Default: 64MiB for
    /// regions, else no bound.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Decides what is left to chance.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

#[derive(Args)]
pub struct TraceArguments {
    /// The command with its arguments, behind `--`. With --json its standard output goes to standard error.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["pid", "mount", "strace"])]
    pub command: Vec<OsString>,
    /// A process that runs, with the children that it will have.
    #[arg(short, long, value_name = "PID", conflicts_with_all = ["mount", "strace"])]
    pub pid: Option<u32>,
    /// What all processes do below this directory. Needs root and BPF; or a mount of ours, see --method.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["strace", "only"])]
    pub mount: Option<PathBuf>,
    /// What `strace -f -ttt -T -o FILE` wrote.
    #[arg(long, value_name = "FILE")]
    pub strace: Option<PathBuf>,
    /// The file for the trace; Parquet if its name ends in .parquet, else lines of JSON.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Keep only calls on what is below this directory.
    #[arg(long, value_name = "DIR")]
    pub only: Option<PathBuf>,
    /// How to trace; auto takes BPF where the kernel lets us, else strace, or fuse for a mount. fuse: what reaches the server of
    /// a mount of ours (--pool says which pool), which is not what its page cache answers.
    #[arg(long, value_enum, default_value_t = TraceMethod::Auto)]
    pub method: TraceMethod,
    /// For --strace: where the first process began. Default: the current directory.
    #[arg(long, value_name = "DIR", requires = "strace")]
    pub cwd: Option<PathBuf>,
    /// Memory for sorting; what is more goes to a file without a name beside the trace.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub memory: Bytes,
    /// Memory of the kernel for calls that were not taken yet; rounded up to a power of two.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub buffer: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TraceMethod {
    Auto,
    Bpf,
    Strace,
    Fuse,
}

#[derive(Args)]
pub struct AgeArguments {
    /// What `ashlar lab history` wrote.
    pub history: PathBuf,
    /// What ages: ext4:SIZE, xfs:SIZE or btrfs:SIZE for an image (or a model in place of the size: as large as that device); a
    /// directory, in which a directory `aged` is made; ffs:SIZE, ffs:SIZE:noswitch or ffs:SIZE:smartfrag for the simulated FFS of
    /// the thesis; or ashlar:SIZE:MODEL for our own files in virtual time on a disk of that model (wd-re3 if none is given).
    #[arg(long, value_name = "TARGET", value_parser = Target::from_str)]
    pub on: Target,
    /// The file for the image; sparse.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Share of the file system that is to be in use at the end, as in 80%: files are left out, or stand several times.
    /// Default: the history as it is.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub to: Option<f64>,
    /// How long it ages: a longer history is cut, a shorter one lived again, each time with new files in the same directories,
    /// for which the oldest of those before go. Default: the history as it is.
    #[arg(long, value_name = "N", value_parser = years)]
    pub years: Option<f64>,
    /// Decides what is left to chance.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// What to do when the file system is full: skip (leave the file out and go on) or stop.
    #[arg(long, value_name = "POLICY", default_value = "skip", value_parser = ["skip", "stop"])]
    pub when_full: String,
    /// Bytes that may be dirty, by the clock of the history, before the oldest files are written back.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub dirty: Bytes,
    /// More options for mkfs.
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    pub mkfs_options: Option<String>,
    /// More options for mount -o.
    #[arg(long, value_name = "OPTIONS")]
    pub mount_options: Option<String>,
    /// Overwrite an image that is there already.
    #[arg(long)]
    pub force: bool,
    /// Forget a run that was stopped, and begin anew.
    #[arg(long)]
    pub fresh: bool,
    /// Agree to fill the file system of a directory that is not the root of a mounted one.
    #[arg(long)]
    pub yes: bool,
    /// For ffs: the model of the disk on which files are read and written at the end, aged and empty.
    #[arg(long, value_name = "MODEL", default_value = "fujitsu-m2694")]
    pub model: String,
    /// Write a page with the layout over time.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write nothing to the ledger.
    #[arg(long)]
    pub no_ledger: bool,
}

/// What ages.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// An image.
    Image(Kind, Bytes),
    /// What is simulated.
    Ffs(Bytes, Variant),
    /// Our own files, on a disk of a model.
    Own(Bytes, String),
    /// A directory.
    Directory(PathBuf),
}

impl FromStr for Target {
    type Err = String;
    fn from_str(text: &str) -> Result<Target, String> {
        let size = |text: &str| text.parse::<Bytes>().map_err(|error| error.to_string());
        // An image may be as large as a device of a model.
        let room = |text: &str| match ModelFile::find(text, Path::new("")) {
            Ok(model) => model.build(0).map(|model| Bytes(model.capacity())).map_err(|error| error.to_string()),
            Err(_) => size(text).map_err(|error| format!("{error}, nor is it a model of a device")),
        };
        match text.split_once(':') {
            Some(("ffs", rest)) => {
                let (bytes, variant) = rest.split_once(':').unwrap_or((rest, "baseline"));
                Ok(Target::Ffs(size(bytes)?, variant.parse()?))
            }
            Some(("ashlar", rest)) => {
                let (bytes, model) = rest.split_once(':').unwrap_or((rest, "wd-re3"));
                Ok(Target::Own(size(bytes)?, model.into()))
            }
            Some((kind, bytes)) if !kind.contains('/') => Ok(Target::Image(kind.parse()?, room(bytes)?)),
            _ => Ok(Target::Directory(text.into())),
        }
    }
}

#[derive(Args)]
pub struct Replay {
    /// What `ashlar device trace` or `device serve --trace` wrote; of each record `at_ns`, `op`, `offset` and `len` are needed.
    pub trace: PathBuf,
    /// The model: a name, or a file that ends in .toml.
    #[arg(long)]
    pub model: String,
    /// Decides what differs from one specimen of the model to the next.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Do not wait for the times of the trace, but keep so many requests under way.
    #[arg(long, value_name = "N")]
    pub depth: Option<usize>,
}

#[derive(Args)]
pub struct WorkloadsArguments {
    /// One of them.
    pub name: Option<String>,
    #[command(flatten)]
    pub settings: Settings,
    /// The file for its calls: Parquet if it ends in .parquet, else lines of JSON. What must be there before is another trace
    /// beside it, with `.setup` before the ending.
    #[arg(short, long, value_name = "FILE", requires = "name")]
    pub output: Option<PathBuf>,
}

#[derive(Args)]
#[command(next_help_heading = "Parameters of workloads")]
pub struct Settings {
    /// Set a parameter.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Decides what is left to chance.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

#[derive(Args)]
pub struct RunArguments {
    /// A workload of `lab workloads`, or a file with a trace of system calls.
    #[arg(value_name = "WORKLOAD|TRACE")]
    pub what: String,
    #[command(flatten)]
    pub settings: Settings,
    #[command(flatten)]
    pub stand: StandArguments,
    /// Do each call not before its time in the trace, counted from the first; else as soon as those before it are done.
    #[arg(long)]
    pub pace: bool,
    /// Leave caches as the preparation leaves them.
    #[arg(long)]
    pub warm: bool,
    /// Let a sync at the end count.
    #[arg(long)]
    pub sync: bool,
    /// How often, each time from the same beginning.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Refuse what writes more than this, preparation included.
    #[arg(long, value_name = "SIZE", default_value = "16GiB")]
    pub max_bytes: Bytes,
    /// Run this trace before, and do not measure it.
    #[arg(long, value_name = "TRACE")]
    pub setup: Option<PathBuf>,
    /// Make before what this snapshot has, names and sizes.
    #[arg(long, value_name = "SNAPSHOT")]
    pub from: Option<PathBuf>,
    /// Do not make before what the trace finds without having made it.
    #[arg(long)]
    pub no_prefill: bool,
    /// The file for the first run as a trace, with the latencies that were measured.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write nothing to the ledger.
    #[arg(long)]
    pub no_ledger: bool,
}

#[derive(Args)]
#[command(next_help_heading = "Where")]
pub struct StandArguments {
    /// An image of ext4, xfs or btrfs; ext4:SIZE, xfs:SIZE or btrfs:SIZE for a new one; ashlar:SIZE for a new pool; or a
    /// directory, in which a directory `ashlar-stand` is made and removed.
    #[arg(long = "on", value_name = "PLACE", value_parser = Place::from_str)]
    pub place: Place,
    /// Let the image or pool lie on an emulated device, in real time: a model's name, or a file that ends in .toml.
    #[arg(long, value_name = "MODEL")]
    pub device: Option<String>,
    /// More options for mkfs.
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    pub mkfs_options: Option<String>,
    /// More options for mount -o.
    #[arg(long, value_name = "OPTIONS")]
    pub mount_options: Option<String>,
    /// Work on the image itself, and not on a copy.
    #[arg(long)]
    pub in_place: bool,
    /// On a directory: be cold by emptying the caches of the whole system. Needs root.
    #[arg(long)]
    pub drop_caches: bool,
    /// Memory of this process, page cache included. Needs root and control groups.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Where copies, new images and pools are made. Default: the directory for temporary files.
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
}

#[derive(Args)]
pub struct TuneArguments {
    /// A workload of `lab workloads`, or a file with a trace of system calls.
    #[arg(long, value_name = "WORKLOAD|TRACE")]
    pub workload: String,
    #[command(flatten)]
    pub settings: Settings,
    /// File systems.
    #[arg(long, value_delimiter = ',', value_name = "KIND", default_value = "ext4,xfs,btrfs")]
    pub fs: Vec<Kind>,
    /// Bytes of an image.
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    pub size: Bytes,
    /// Let images lie on an emulated device, in real time.
    #[arg(long, value_name = "MODEL")]
    pub device: Option<String>,
    /// Age each image by this history first.
    #[arg(long, value_name = "HISTORY")]
    pub history: Option<PathBuf>,
    /// Share of the image that is to be in use then.
    #[arg(long, value_name = "SHARE", value_parser = share, requires = "history")]
    pub to: Option<f64>,
    /// How often each is measured.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub repeats: u32,
    /// Do not let a sync at the end count.
    #[arg(long)]
    pub no_sync: bool,
    /// Refuse what writes more than this.
    #[arg(long, value_name = "SIZE", default_value = "16GiB")]
    pub max_bytes: Bytes,
    /// Where images are made. Default: the directory for temporary files.
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
    /// About how long it may take, as in 10m: file systems get equal parts of it, and what does not fit is listed. Default: until
    /// all is measured.
    #[arg(long, value_name = "TIME", value_parser = ashlar_units::some_duration)]
    pub budget: Option<Duration>,
    /// Write a page.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

#[derive(Args)]
pub struct LayoutArguments {
    /// A directory, all of whose files are looked at; or a snapshot.
    pub path: PathBuf,
}

#[derive(Args)]
pub struct SnapshotArguments {
    /// The directory; usually where the file system is mounted.
    pub path: PathBuf,
    /// The file for the snapshot. It must be on another file system, or outside of the directory, lest it shows itself.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Keep a hash of each name instead of the name. Snapshots that are to be compared need the same KEY; who does not know it
    /// cannot guess names.
    #[arg(long, value_name = "KEY", num_args = 0..=1, default_missing_value = "", require_equals = true)]
    pub hash_names: Option<String>,
    /// Write a text of names, inode numbers, types and sizes alone, as the thesis has it in figure A.3. Only `lab predict`
    /// reads it.
    #[arg(long, conflicts_with_all = ["hash_names", "memory"])]
    pub text: bool,
    /// Memory for sorting; what is more goes to a file without a name beside the snapshot.
    #[arg(long, default_value = "128MiB")]
    pub memory: Bytes,
}

#[derive(Args)]
pub struct HistoryArguments {
    /// Snapshots, oldest first; or, without -o, one history.
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The file for the history.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Decides what is left to chance.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Memory for sorting; what is more goes to a file without a name beside the history.
    #[arg(long, default_value = "256MiB")]
    pub memory: Bytes,
    #[command(flatten)]
    pub guesses: GuessArguments,
    /// Take the commits of this repository instead of snapshots.
    #[arg(long, value_name = "REPO", conflicts_with_all = ["files", "recipe"])]
    pub git: Option<PathBuf>,
    /// Up to which commit.
    #[arg(long, value_name = "REVISION", default_value = "HEAD", requires = "git")]
    pub revision: String,
    /// Make it of parameters instead of snapshots.
    #[arg(long, value_enum, conflicts_with = "files")]
    pub recipe: Option<Recipe>,
    #[command(flatten)]
    pub parameters: Parameters,
}

#[derive(Args)]
#[command(next_help_heading = "What snapshots do not tell")]
pub struct GuessArguments {
    /// Guess as the thesis did: deletions at any time, every change of an inode a modification of the whole file.
    #[arg(long)]
    pub thesis: bool,
    /// Add no files that came and went between two snapshots.
    #[arg(long)]
    pub no_short_lived: bool,
    /// Share of the files that are synced when they were written, from 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub sync_share: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Recipe {
    /// Day after day along a curve of utilization, with turnover and short-lived files.
    Profile,
    /// The two streams of OBFS: one reaches the utilization, one comes and goes in bursts.
    Streams,
    /// Until the ages of the files are as wanted, as Geriatrix does.
    AgeTarget,
}

#[derive(Args)]
#[command(next_help_heading = "Parameters of recipes")]
pub struct Parameters {
    /// Bytes of the file system.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub capacity: Bytes,
    /// Sizes of files: agrawal, impressions, synwrite, even:LOW-HIGH, gamma:MEAN,SHAPE, lognormal:MEDIAN,DEVIATION.
    #[arg(long, default_value = "agrawal")]
    pub sizes: Sizes,
    /// Directories.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub directories: u32,
    /// Share of the capacity that is in use at the end; for `profile` also a curve, as in 0:0.1,100:0.6,365:0.8 (day:share).
    #[arg(long, default_value = "0.7", value_parser = curve)]
    pub utilization: Curve,
    /// Days, for `profile`.
    #[arg(long, value_name = "N", default_value_t = 215, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
    /// Share of the bytes that is replaced in a day, for `profile`.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = share)]
    pub turnover: f64,
    /// Share of the files that are gone within a day, for `profile`.
    #[arg(long, value_name = "SHARE", default_value_t = 0.8, value_parser = share)]
    pub short_lived: f64,
    /// Sizes of those, for `profile`. Default: as of other files.
    #[arg(long)]
    pub short_sizes: Option<Sizes>,
    /// Requests of the stream that reaches the utilization, for `streams`. The other makes twice as many.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub requests: u64,
    /// Share of the capacity that is in use at the height of a burst, for `streams`.
    #[arg(long, value_name = "SHARE", default_value_t = 20.0 / 29.0, value_parser = share)]
    pub burst_peak: f64,
    /// Shares of the files by relative age, youngest first, for `age-target`.
    #[arg(long, value_delimiter = ',', default_values_t = [0.4, 0.3, 0.2, 0.1])]
    pub ages: Vec<f64>,
    /// Times the capacity that are written at most, for `age-target`.
    #[arg(long, value_name = "N", default_value_t = 20.0)]
    pub rounds: f64,
    /// Bytes of a write; a file is written at once without it.
    #[arg(long, value_name = "SIZE", default_value = "0B")]
    pub write_unit: Bytes,
}

/// Shares by day.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve(pub Vec<(f64, f64)>);

/// Reads a time.
fn years(text: &str) -> Result<f64, String> {
    let years = f64::from_str(text).ok().filter(|years| *years > 0.0 && *years <= 100.0);
    years.ok_or(format!("{text:?} is no time: write years, above 0 and up to 100, as in 3 or 0.5"))
}

/// Reads a number from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    let wrong = || format!("{text:?} is no share: write a number from 0 to 1, or percents as in 80%");
    let (number, whole) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let share = f64::from_str(number).map_err(|_| wrong())? / whole;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(wrong()) }
}

/// Reads `0.7` or `0:0.1,100:0.6`.
fn curve(text: &str) -> Result<Curve, String> {
    if !text.contains(':') {
        return Ok(Curve(vec![(0.0, share(text)?)]));
    }
    let mut curve: Vec<(f64, f64)> = Vec::new();
    for point in text.split(',') {
        let (day, part) = point.split_once(':').ok_or(format!("{point:?} is not DAY:SHARE"))?;
        let day = f64::from_str(day).ok().filter(|day| (0.0..1e6).contains(day));
        let day = day.ok_or(format!("{point:?}: a day is a number from 0 on"))?;
        if curve.last().is_some_and(|(last, _)| *last >= day) {
            return Err(format!("{point:?}: days go up"));
        }
        curve.push((day, share(part)?));
    }
    Ok(Curve(curve))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        const GIB: Bytes = Bytes(1 << 30);
        for (text, expected) in [
            ("ext4:1GiB", Target::Image(Kind::Ext4, GIB)),
            ("xfs:wd-re3", Target::Image(Kind::Xfs, Bytes(1_000_204_886_016))),
            ("btrfs:1GiB", Target::Image(Kind::Btrfs, GIB)),
            ("ffs:1GiB", Target::Ffs(GIB, Variant::Baseline)),
            ("ffs:1GiB:noswitch", Target::Ffs(GIB, Variant::NoSwitch)),
            ("ashlar:1GiB", Target::Own(GIB, "wd-re3".into())),
            ("ashlar:1GiB:a/b.toml", Target::Own(GIB, "a/b.toml".into())),
            ("/mnt/a:b", Target::Directory("/mnt/a:b".into())),
            ("mnt", Target::Directory("mnt".into())),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for wrong in ["ext5:1GiB", "ext4:", "ffs:1GiB:fast", "xfs:many"] {
            wrong.parse::<Target>().expect_err(wrong);
        }
    }

    #[test]
    fn stores_of_objects() {
        let target = |text: &str| text.parse::<ObjectTarget>();
        let made = |store, model: Option<&str>| Ok(ObjectTarget { store, model: model.map(str::to_string) });
        let size = Bytes(8_000_000_000);
        assert_eq!(target("regions:8GB"), made(ObjectStore::Regions(size), None));
        assert_eq!(target("regions:8GB:wd-re3"), made(ObjectStore::Regions(size), Some("wd-re3")));
        let xfs = ObjectStore::Files(Place::Fresh(Kind::Xfs, size));
        assert_eq!(target("xfs:8GB:wd-re3"), made(xfs, Some("wd-re3")));
        for image in ["aged.img", "a/b:c"] {
            assert_eq!(target(image), made(ObjectStore::Files(Place::Path(image.into())), None));
        }
        for wrong in ["regions:", "ext5:1GB", "xfs:many", "regions:many:wd-re3"] {
            target(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn shares_and_curves() {
        assert_eq!((share("0.5"), share("80%")), (Ok(0.5), Ok(0.8)));
        assert_eq!(curve("70%"), Ok(Curve(vec![(0.0, 0.7)])));
        assert_eq!(curve("0:0.1,100:60%"), Ok(Curve(vec![(0.0, 0.1), (100.0, 0.6)])));
        for wrong in ["", "1.1", "-0.1", "NaN", "101%", "x"] {
            share(wrong).expect_err(wrong);
            curve(wrong).expect_err(wrong);
        }
        for wrong in ["1:", ":1", "5:0.1,5:0.2", "5:0.1,4:0.2", "1:0.1,", "NaN:0.1"] {
            curve(wrong).expect_err(wrong);
        }
    }
}
