//! What can be said on the command line.

pub use crate::array::arguments::ArrayCommand;
use crate::config::Medium;
pub use crate::lab::arguments::LabCommand;
pub use crate::ledger::arguments::LedgerArguments;
pub use crate::objects::arguments::{BucketCommand, ObjectsCommand, S3Command};
use crate::output::Failure;
pub use crate::plan::arguments::PlanCommand;
use crate::request::How;
pub use crate::volume::arguments::VolumeCommand;
use ashlar_faults::Fault;
use ashlar_fuse::Flags;
use ashlar_nbd::Address;
use ashlar_units::Bytes;
use ashlar_vfs::Engine;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::str::FromStr;

/// The names that options for an engine take.
const ENGINES: &str = "files|betr";

/// Storage cut to fit its workload, and proven before it is trusted.
#[derive(Parser)]
#[command(name = "ashlar", version, propagate_version = true)]
pub struct Arguments {
    /// Directory of the pool (what `pool create` made). Default: $ASHLAR_POOL, else ./ashlar-data.
    #[arg(long, global = true, value_name = "DIR")]
    pub pool: Option<PathBuf>,
    /// Print one JSON document on standard output and nothing else.
    #[arg(long, global = true)]
    pub json: bool,
    /// Print the schema of the JSON document instead of doing anything.
    #[arg(long, global = true)]
    pub json_schema: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Make pools.
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Arrays: RAID-0, 1, 4, 5 and 6 with checksums and repair, on devices or under a pool. See docs/array.md.
    #[command(subcommand)]
    Array(ArrayCommand),
    /// Run a pool: mount its file system and serve it. Makes with defaults what is not there.
    Up(Up),
    /// Unmount, write everything and stop.
    Down,
    /// Mount a file system or snapshot that is there; runs the pool if it is not up.
    Mount(Mount),
    /// How a pool fares.
    Status {
        /// A file system or snapshot: also what waits in its index.
        name: Option<String>,
    },
    /// Verify every byte of a pool, also while it is in use.
    Check(Check),
    /// The regions of an object store: kind, fill, fragmentation, generation and health of each. See docs/regions.md.
    Regions(crate::regions::RegionsArguments),
    /// Remove files and whole trees of a mounted file system, much faster than `rm -r` does: a tree is gone at once, whatever is
    /// below, and its room comes back while the command waits. Ctrl-C ends the waiting alone: what is gone is gone. What is open stays until it
    /// is closed, as ever. There is no way back.
    Remove(Remove),
    /// File systems of a pool.
    #[command(subcommand)]
    Fs(FsCommand),
    /// Snapshots: file systems as they were.
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Volumes: block devices laid out on devices of their own. See docs/proximal.md.
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Buckets: stores of objects. See docs/s3.md.
    #[command(subcommand)]
    Bucket(BucketCommand),
    /// Objects in buckets, without a server.
    #[command(subcommand)]
    Objects(ObjectsCommand),
    /// Buckets for others, over S3.
    #[command(subcommand)]
    S3(S3Command),
    /// What do I have? Duplicates, compressibility, sizes, layout or access of a tree, a device, an image or a trace, on any
    /// file system, from a part of it. Exit code 1 when something could not be read or changed, 2 when there is no answer.
    /// See docs/survey.md.
    Survey(Box<crate::survey::arguments::Survey>),
    /// Try to make the software lose data.
    #[command(subcommand)]
    Prove(ProveCommand),
    /// Block devices for other programs, and models of devices.
    #[command(subcommand)]
    Device(DeviceCommand),
    /// How a file system fares with its years: snapshots, histories, ageing, traces. See docs/lab.md.
    #[command(subcommand)]
    Lab(LabCommand),
    /// What should hold the data: predictions, each with its range.
    #[command(subcommand)]
    Plan(PlanCommand),
    /// Every prediction that was made, and what was later measured.
    Ledger(LedgerArguments),
    /// List the layers that a stack file can use, or show one with its parameters.
    Layers {
        /// The layer.
        name: Option<String>,
    },
    /// Explain a layer, a rule, a fault, all faults (`faults`), an estimator, or a command.
    Explain {
        /// Its name.
        name: String,
    },
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write all of them.
    Man {
        /// Write one page per command into this directory.
        directory: Option<PathBuf>,
    },
}

#[derive(Subcommand)]
pub enum PoolCommand {
    /// Make a pool on files or devices. What they hold is lost.
    Create(Create),
    /// Add a device to a pool, or take what its own devices became larger by, also while it is in use.
    Grow(Grow),
    /// Tell the devices what is free, also while the pool is in use: files give that room back, and flash need not copy it. Once a
    /// week is enough for most.
    Trim,
}

#[derive(Args)]
pub struct Grow {
    /// A file or block device to add. A regular file is taken at its present size (one that is given must be that), or made with the
    /// given one. Without it, the pool takes what its own devices became larger by.
    #[arg(long, value_name = "PATH[,size=SIZE]")]
    pub device: Option<DeviceArgument>,
    /// Overwrite a device that holds another pool.
    #[arg(long, requires = "device")]
    pub force: bool,
}

#[derive(Args)]
pub struct Create {
    /// Directory for the pool's description; made if missing.
    pub directory: PathBuf,
    /// A file or block device. A regular file is taken at its present size (one that is given must be that), or made with the given one.
    #[arg(long = "device", value_name = "PATH[,size=SIZE]", required_unless_present = "stack")]
    pub devices: Vec<DeviceArgument>,
    /// A TOML file that describes the layers below the pool, instead of devices; see `ashlar layers`.
    #[arg(long, value_name = "FILE", conflicts_with = "devices")]
    pub stack: Option<PathBuf>,
    /// How new data are compressed: off, lz4, or zstd with a level from 1 to 22 as in zstd:3.
    #[arg(long, default_value = "lz4", value_parser = compression)]
    pub compression: String,
    /// What the devices are made of, which decides how wide the index is. Default: what the system says; it takes most devices of
    /// virtual machines for disks.
    #[arg(long)]
    pub medium: Option<Medium>,
    /// Overwrite devices that hold a pool already.
    #[arg(long)]
    pub force: bool,
}

/// The text of a compression that there is.
fn compression(text: &str) -> Result<String, Failure> {
    crate::config::compression(text).map(|_| text.into())
}

/// `PATH` or `PATH,size=SIZE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceArgument {
    pub path: PathBuf,
    pub size: Option<Bytes>,
}

impl FromStr for DeviceArgument {
    type Err = String;
    fn from_str(text: &str) -> Result<DeviceArgument, String> {
        let mut parts = text.split(',');
        let path = PathBuf::from(parts.next().unwrap_or_default());
        if path.as_os_str().is_empty() {
            return Err("there is no path: write PATH or PATH,size=SIZE".into());
        }
        let mut size = None;
        for part in parts {
            match part.split_once('=') {
                Some(("size", value)) => size = Some(value.parse::<Bytes>().map_err(|error| error.to_string())?),
                _ => return Err(format!("{part:?} is no option of a device; there is size=SIZE")),
            }
        }
        Ok(DeviceArgument { path, size })
    }
}

#[derive(Args)]
pub struct Up {
    /// Where to mount; made if missing. Default: the directory `mnt` in that of the pool.
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// Which file system to mount; made if missing.
    #[arg(long, default_value = "main")]
    pub fs: String,
    /// How a file system that is made keeps files; one that is there must be of it. Default: whatever is there, else files.
    #[arg(long, value_name = ENGINES)]
    pub engine: Option<Engine>,
    #[command(flatten)]
    pub serving: Serving,
    /// Make no file system: the one to mount must be there.
    #[arg(long)]
    pub existing: bool,
    /// Return when the mount serves, and leave it running.
    #[arg(long)]
    pub detach: bool,
    /// Size of the file that is made for a new pool.
    #[arg(long, default_value = "20GiB")]
    pub size: Bytes,
}

/// How a file system is mounted, and of what a server is started for it.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// Hand every write on at once, instead of collecting writes in the page cache. Random writes of less than a page then read
    /// nothing (with betr; see docs/betr.md), all others cost more.
    #[arg(long)]
    pub write_through: bool,
    /// As for mount(8): ro, nosuid, nodev, noexec, noatime, sync; or their contraries.
    #[arg(short = 'o', long, default_value = "", hide_default_value = true)]
    pub options: Flags,
    /// What `df` and /proc/mounts call it.
    #[arg(long, hide = true)]
    pub source: Option<String>,
    /// Memory for caches and unwritten data of a server that is started.
    #[arg(long, default_value = "512MiB")]
    pub memory: Bytes,
    /// Threads of a server that is started. Default: one per processor, at most 64.
    #[arg(long)]
    pub threads: Option<usize>,
}

impl Serving {
    /// What is asked of a server that is there.
    pub fn how(&self) -> How {
        How { write_through: self.write_through, flags: self.options, source: self.source.clone() }
    }
}

#[derive(Args)]
pub struct Mount {
    /// A file system, or a snapshot as FILESYSTEM@SNAPSHOT.
    pub name: String,
    /// Where; made if missing.
    #[arg(value_name = "DIR")]
    pub at: PathBuf,
    #[command(flatten)]
    pub serving: Serving,
}

#[derive(Args)]
pub struct Remove {
    /// Files and directories. A symbolic link is removed, and not what it leads to.
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Return when they are gone, and have their room come back later.
    #[arg(long)]
    pub no_wait: bool,
}

#[derive(Args)]
pub struct Check {
    /// Mend what can be mended. Data that are damaged beyond reading are forgotten: they read as zeros from then on.
    #[arg(long)]
    pub repair: bool,
    #[command(flatten)]
    pub of: CheckStore,
}

#[derive(Args)]
pub struct CheckStore {
    /// A region store instead of a pool: the file or block device that it is on, or the name of its bucket in the pool's
    /// directory (--pool). If `ashlar s3 serve` of that directory has it open, that one checks it, and serves it meanwhile.
    #[arg(value_name = "STORE")]
    pub store: Option<PathBuf>,
    /// Only this region of the store. Nothing else is read or changed.
    #[arg(long, value_name = "N")]
    pub region: Option<u32>,
}

#[derive(Subcommand)]
pub enum FsCommand {
    /// Make a file system.
    Create {
        /// Its name.
        name: String,
        /// How it keeps files. `ashlar explain betr` tells of the second one, which is experimental.
        #[arg(long, value_name = ENGINES, default_value_t)]
        engine: Engine,
        /// Make a pool for it on this file or block device (or several), in the directory of the pool. What is there is lost.
        #[arg(long = "device", value_name = "PATH[,size=SIZE]")]
        devices: Vec<DeviceArgument>,
        /// With --device: as for `pool create`.
        #[arg(long, requires = "devices")]
        medium: Option<Medium>,
        /// With --device: overwrite devices that hold a pool already.
        #[arg(long, requires = "devices")]
        force: bool,
        /// With betr: keep files up to this size in the index (at most 128 KiB), where trees that have aged are read faster
        /// and filling costs more. Default: 16KiB.
        #[arg(long, value_name = "SIZE")]
        inline: Option<Bytes>,
    },
    /// List file systems.
    List,
    /// Give a file system another name.
    Rename {
        /// The name now.
        from: String,
        /// The new name.
        to: String,
    },
    /// Destroy a file system and all that is in it.
    Destroy {
        /// Its name.
        name: String,
    },
}

#[derive(Subcommand)]
pub enum SnapshotCommand {
    /// Keep a file system as it is now.
    Create {
        /// Name of the file system and of the snapshot, as in main@monday.
        name: String,
    },
    /// List snapshots.
    List,
    /// Destroy a snapshot.
    Destroy {
        /// Its name, as in main@monday.
        name: String,
    },
    /// Make a file system that begins as a snapshot is.
    Clone {
        /// The snapshot, as in main@monday.
        name: String,
        /// Name of the new file system.
        to: String,
    },
    /// Mount a snapshot, read-only, for as long as the pool is up.
    Mount {
        /// Its name, as in main@monday.
        name: String,
        /// Where; made if missing.
        at: PathBuf,
    },
}

/// The ways to a block device that is served.
#[derive(Args)]
pub struct Exported {
    /// Serve it over NBD at unix:PATH or tcp:HOST:PORT; can be given several times.
    #[arg(long, value_name = "ADDRESS", value_parser = Address::from_str)]
    pub nbd: Vec<Address>,
    /// Encrypt NBD over TCP: a PEM file with the server's certificate. Clients must then encrypt, and addresses that other
    /// machines can reach are allowed.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_certificate: Option<PathBuf>,
    /// The key of the certificate.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<PathBuf>,
    /// Admit only clients with a certificate that one of those in this file has signed.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_clients: Option<PathBuf>,
    /// Serve it as this file. Its directory becomes a mount: it must be empty, and is made if missing. Needs root.
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Refuse writes.
    #[arg(long)]
    pub read_only: bool,
}

#[derive(Args)]
pub struct Serve {
    /// A model file, or the name of a model: the device takes as long as that one would. Without a model it is as fast as
    /// it can be.
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub model_file: Option<String>,
    /// The same.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Decides what differs from one specimen of the model to the next.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Write a line of JSON for every request to this file (Parquet if its name ends in .parquet): when, what, how many
    /// were under way, and where the time went.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// What keeps the contents: a file (made, sparse, if missing) or a block device. Default: memory, gone at the end.
    #[arg(long, value_name = "PATH", visible_alias = "file-backed")]
    pub backing: Option<PathBuf>,
    /// Blocks full of zeros take no room in the backing file: they become holes of it.
    #[arg(long, requires = "backing")]
    pub sparse: bool,
    /// Size of the device. Default: that of the backing file, else of the model, else 1GiB of memory.
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Bytes>,
    #[command(flatten)]
    pub exported: Exported,
    /// Begin with a fault, as in 'lse at 2GiB..2GiB+64KiB'; can be given several times. `ashlar explain faults` lists them.
    #[arg(long, value_name = "TEXT", value_parser = Fault::from_str)]
    pub fault: Vec<Fault>,
    /// Decides what faults leave to chance.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub fault_seed: u64,
    /// Socket for `device control` and `device trace`. Default: that of --nbd, else the directory of --file, with .control
    /// at its end.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Threads that serve. Default: one per processor, at most 64.
    #[arg(long)]
    pub threads: Option<usize>,
}

#[derive(Subcommand)]
pub enum ProveCommand {
    /// Random histories of a pool with power cuts, compared with a model.
    Pool(Prove),
    /// Random histories of objects with power cuts, compared with a model.
    Objects(ProveObjects),
    /// Random histories of a proximal store with power cuts of its disk, of its staging device, or of both, compared with a
    /// model.
    Proximal(Prove),
    /// Random histories of arrays with power cuts of all members and deaths of some, compared with a model; no row may be torn.
    Array(Prove),
    /// Random histories of a file system, compared with a model of POSIX: in process with power cuts, or with --at wherever
    /// something is mounted.
    Files(ProveFiles),
    /// Random histories of a region store with power cuts, compared with a model. See docs/regions.md.
    Regions(Prove),
    /// Random histories of the write-optimized file system in process, with power cuts, compared with a model of POSIX.
    Betr(Prove),
    /// The program itself, killed with SIGKILL under load; what was acknowledged must be there afterwards. Needs root.
    Daemon(ProveDaemon),
    /// A file system of the kernel and what runs on it, or our own pool, on a disk that loses power. Exit code 1 when
    /// something was lost, 2 when it could not be tried. Needs root, but for our own pool. See docs/crash.md.
    Crash(Box<Crash>),
    /// Models of systems, and our pool, run with their tasks in many orders while monitors watch. Exit code 1 when something
    /// was found, 2 when it could not be tried. See docs/schedules.md.
    Schedule(Box<Schedule>),
    /// Run again exactly what `prove schedule` found. Exit code 1 when the same is found, 2 when the run is another one.
    Replay {
        /// The file that `prove schedule` wrote.
        trace: PathBuf,
    },
    /// Damages every kind of block in every way, on a pool or on ext4, and shows what comes of it. Exit code 1 when wrong data
    /// were returned or something crashed, 2 when it could not be tried. See docs/faults-matrix.md.
    Faults(Box<Faults>),
    /// For workloads of `prove crash`: note that something has been acknowledged.
    Mark {
        /// What; one line.
        text: String,
    },
}

#[derive(Args)]
pub struct Crash {
    /// The file system: ext4, xfs or btrfs; or ashlar for our own pool, in process, under a random history of its own.
    #[arg(long, value_parser = ["ext4", "xfs", "btrfs", ashlar_prove::crash::OWN], required_unless_present = "replay")]
    pub fs: Option<String>,
    /// Break a rule of our own pool, as `ashlar prove pool --rules` lists them. An image must then fail.
    #[arg(long, value_name = "RULE")]
    pub without: Option<String>,
    /// Program that is run with the mount point, works there, and calls `ashlar prove mark TEXT` when something has been
    /// acknowledged to it.
    #[arg(long, value_name = "PROGRAM")]
    pub workload: Option<PathBuf>,
    /// Program that is run with the mount point of an image, and on standard input the marks made before the power cut, one
    /// per line. Any exit code but 0 rejects the image.
    #[arg(long, value_name = "PROGRAM")]
    pub check: Option<PathBuf>,
    /// Size of the disk. Default: 256MiB, for xfs 320MiB.
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Bytes>,
    /// The disk takes as long as this model says while the workload runs: a name that `ashlar device models` lists, or a file
    /// that ends in .toml. Without it the disk answers at once.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Options for mount -o.
    #[arg(long, value_name = "OPTIONS")]
    pub mount_options: Option<String>,
    /// Break the disk on purpose: drop-flush answers flushes and does nothing. The check must then notice.
    #[arg(long, value_name = "FAULT", value_parser = ["drop-flush"])]
    pub fault: Option<String>,
    /// The disk tears writes at multiples of this: 512 or 4096 bytes.
    #[arg(long, value_name = "BYTES", default_value = "4096", value_parser = ["512", "4096"])]
    pub atomic: String,
    /// How many images to open at most.
    #[arg(long, default_value = "200")]
    pub images: u64,
    /// How many failing images to find at most.
    #[arg(long, default_value = "3")]
    pub failures: u64,
    /// Seed of what is left to chance. Default: the time of day.
    #[arg(long)]
    pub seed: Option<u64>,
    /// For how long to open images, as in 30s or 10m.
    #[arg(long, default_value = "10m", value_parser = ashlar_units::duration)]
    pub budget: std::time::Duration,
    /// Directory for files of failing images.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub save: PathBuf,
    /// Write a page with the findings.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Open a failing image again, with its own check or that of --check.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["fs", "workload"])]
    pub replay: Option<PathBuf>,
}

#[derive(Args)]
pub struct Schedule {
    /// The system; --list names them.
    #[arg(required_unless_present = "list")]
    pub harness: Option<String>,
    /// List the systems, and what can be broken in each.
    #[arg(long, conflicts_with = "harness")]
    pub list: bool,
    /// Break it on purpose: the exploration must notice.
    #[arg(long, value_name = "NAME")]
    pub bug: Option<String>,
    /// How the next task is chosen: fifo, random, pct (by priorities that fall at random steps) or exhaustive (every order, for
    /// tiny systems). Default: pct.
    #[arg(long, value_parser = ashlar_prove::schedule::Scheduler::from_str)]
    pub scheduler: Option<ashlar_prove::schedule::Scheduler>,
    /// For pct: how many orderings of steps a bug may need, from 1 to 100.
    #[arg(long, value_name = "D", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub depth: u32,
    /// Executions, at most.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub iterations: u64,
    /// Steps of one execution that stand for ever, at most 10 million. Default: by the system.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub max_steps: Option<u64>,
    /// Determines all executions. Default: the time of day.
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// For how long to explore at most, as in 30s or 10m.
    #[arg(long, default_value = "10m", value_parser = ashlar_units::duration)]
    pub budget: std::time::Duration,
    /// The file for the execution that failed. Default: HARNESS-SEED-ITERATION.trace.json here.
    #[arg(short, long, value_name = "TRACE")]
    pub output: Option<PathBuf>,
}

#[derive(Args)]
pub struct Faults {
    /// What is damaged: pool (in process), or ext4 on a disk of ours (needs root).
    #[arg(long, default_value = "pool", value_parser = ashlar_prove::typed::Target::from_str)]
    pub target: ashlar_prove::typed::Target,
    /// The engine of the pool's file system.
    #[arg(long, value_name = ENGINES, default_value_t)]
    pub engine: Engine,
    /// Decides what the target holds, and every case. Default: the time of day.
    #[arg(long)]
    pub seed: Option<u64>,
    /// How long to go on, as in 30s or 10m; every type and fault is tried once in any case.
    #[arg(long, default_value = "1m", value_parser = ashlar_units::duration)]
    pub budget: std::time::Duration,
    /// Only this type of block.
    #[arg(long = "type", value_name = "NAME")]
    pub of: Option<String>,
    /// Only this fault.
    #[arg(long, value_name = "NAME", value_parser = ashlar_prove::typed::Fault::from_str)]
    pub fault: Option<ashlar_prove::typed::Fault>,
    /// Only this case, as the report of a failure names it.
    #[arg(long, value_name = "TYPE/FAULT/NUMBER", conflicts_with_all = ["of", "fault"])]
    pub case: Option<String>,
    /// Negative controls: checksums (the pool does not look at those of data and index nodes, and wrong data must show), or parity
    /// (index nodes have none, and what is damaged of them is lost).
    #[arg(long, value_name = "WHAT", value_parser = ashlar_prove::typed::Without::from_str)]
    pub without: Option<ashlar_prove::typed::Without>,
    /// Wrong data after faults in memory count too.
    #[arg(long)]
    pub strict_memory: bool,
    /// Write the matrix as a page.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

#[derive(Subcommand)]
pub enum DeviceCommand {
    /// Serve a block device over NBD, as a file in a mount, or both, until Ctrl-C.
    Serve(Box<Serve>),
    /// Faults, power and counters of a device that is served: fault TEXT, faults, clear or clear NUMBER, power-cut,
    /// restore, stats, log.
    Control {
        /// Where it is served: the socket, the file, or the control socket.
        socket: PathBuf,
        /// The command, as in 'fault lse at 2GiB..2GiB+64KiB'. `ashlar explain faults` lists what can go wrong.
        #[arg(required = true)]
        command: Vec<String>,
    },
    /// Record every request of a device that is served, until Ctrl-C or until it ends.
    Trace {
        /// Where it is served: the socket, the file, or the control socket.
        socket: PathBuf,
        /// File for the records: a line of JSON for each, or Parquet if its name ends in .parquet.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// List the models of devices: every parameter with its source, and what is not modelled.
    Models {
        /// Only this one: a name, or a file that ends in .toml.
        model: Option<String>,
    },
    /// Say from the latency of writes how flash translates addresses: updates per log, log blocks, static wear levelling.
    Probe(Probe),
    /// Run again the published tables that a model claims to reproduce; fails if one is missed.
    Calibrate {
        /// The model: a name, or a file that ends in .toml.
        model: String,
    },
}

#[derive(Args)]
pub struct Probe {
    /// A file or block device, whose beginning is overwritten; or the name of a model of a flash card.
    pub target: String,
    /// Agree that the first 16 strides of the target are overwritten.
    #[arg(long)]
    pub yes: bool,
    /// Size of a write: a page of the flash [default: that of a model, 4KiB of a file or device].
    #[arg(long, value_name = "SIZE")]
    pub page: Option<Bytes>,
    /// Distance of addresses that lie in different erase blocks.
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub stride: Bytes,
    /// Most writes.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(10_000..=100_000_000))]
    pub writes: u64,
}

#[derive(Args)]
pub struct ProveFiles {
    /// Run the histories in this directory, on whatever file system is mounted there, instead of on ours in process. Each
    /// works in a new directory of its own, which is removed if nothing was found.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["without", "rules"])]
    pub at: Option<PathBuf>,
    #[command(flatten)]
    pub prove: Prove,
}

#[derive(Args)]
pub struct ProveDaemon {
    /// The engine of the file system.
    #[arg(long, value_name = ENGINES, default_value_t)]
    pub engine: Engine,
    #[command(flatten)]
    pub long: ProveLong,
}

/// How long, and from which seed on.
#[derive(Args)]
pub struct ProveLong {
    /// First seed; a failure names the seed that replays it.
    #[arg(long)]
    pub seed: Option<u64>,
    /// How long to explore, as in 30s or 10m.
    #[arg(long, default_value = "1m", value_parser = ashlar_units::duration)]
    pub budget: std::time::Duration,
}

#[derive(Args)]
pub struct ProveObjects {
    /// Where contents are: pool, or proximal. (`prove regions` is for the third one.)
    #[arg(long, value_enum, default_value_t = ObjectsEngine::Pool)]
    pub engine: ObjectsEngine,
    #[command(flatten)]
    pub prove: Prove,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ObjectsEngine {
    /// On a pool.
    Pool,
    /// In extents of a proximal store, with names on its staging device.
    Proximal,
}

#[derive(Args)]
pub struct Prove {
    #[command(flatten)]
    pub long: ProveLong,
    /// Break a rule on purpose: the exploration must notice.
    #[arg(long, value_name = "RULE")]
    pub without: Option<String>,
    /// List the rules.
    #[arg(long)]
    pub rules: bool,
}
