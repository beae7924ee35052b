//! `ashlar lab objectbench`.

use super::arguments::{ObjectBenchArguments, ObjectStore, ObjectWorkload};
use super::{about, failed};
use crate::device::find;
use crate::output::{Failure, Output};
use crate::signals::on_signal;
use ashlar_lab::age::image::Kind as ImageKind;
use ashlar_lab::history::synthetic::{Common, Sizes, streams::Streams};
use ashlar_lab::objects::{Aged, Bench, DiskTime, FilesOptions, Mix, Outcome, RegionsOptions};
use ashlar_lab::stand::{Place, StandOptions};
use ashlar_lab::stats::Interval;
use ashlar_models::ModelFile;
use ashlar_regions::{Config, Kind, Memory, Status};
use ashlar_report::number;
use ashlar_units::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Requests of the second stream for each of the first.
const INTENSITY: f64 = 2.0;
/// Bursts of the second stream.
const BURSTS: u32 = 10;
/// The disk of the thesis.
const DISK: &str = "maxtor-d740x";
/// Memory of a region store.
const STORE_MEMORY: Bytes = Bytes::mib(64);

/// How many regions hold what.
#[derive(Serialize, JsonSchema)]
struct Regions {
    /// All of them.
    all: u64,
    /// Nothing.
    free: u64,
    /// Large objects.
    large: u64,
    /// Small objects.
    small: u64,
    /// The lookup table and the index of names.
    table: u64,
}

/// What a store is like.
#[derive(Serialize, JsonSchema)]
struct Store {
    /// Objects.
    objects: u64,
    /// Of a region store: what its regions hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    regions: Option<Regions>,
    /// Of a region store: extents of a small object, on average of those that were written.
    #[serde(skip_serializing_if = "Option::is_none")]
    fragments_mean: Option<f64>,
    /// Of a region store: regions that were cleaned.
    #[serde(skip_serializing_if = "Option::is_none")]
    cleaned: Option<u64>,
    /// Of a file system: layout score of all objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
    /// Of a file system: pieces of an object, on average.
    #[serde(skip_serializing_if = "Option::is_none")]
    pieces_per_file: Option<f64>,
}

impl Store {
    fn of(status: &Status) -> Store {
        let count = |kind| status.regions.iter().filter(|region| region.kind == kind).count() as u64;
        Store {
            objects: status.objects,
            regions: Some(Regions {
                all: status.regions.len() as u64,
                free: count(Kind::Free),
                large: count(Kind::Large),
                small: count(Kind::Small),
                table: count(Kind::Table),
            }),
            fragments_mean: Some(status.fragments_mean),
            cleaned: Some(status.cleaned),
            score: None,
            pieces_per_file: None,
        }
    }

    fn of_files(aged: &Aged) -> Store {
        let Aged { objects, score, pieces_per_file, .. } = *aged;
        Store {
            objects,
            regions: None,
            fragments_mean: None,
            cleaned: None,
            score,
            pieces_per_file: Some(pieces_per_file),
        }
    }
}

/// The workload, once.
#[derive(Serialize, JsonSchema)]
struct Run {
    /// What it took.
    #[serde(flatten)]
    outcome: Outcome,
    /// Where the disk's time went; of file systems from mounting to unmounting.
    disk: DiskTime,
}

/// A workload on an object store. Emulated: virtual time of the model of a disk, or real time on it.
#[derive(Serialize, JsonSchema)]
struct Report {
    /// The workload.
    workload: &'static str,
    /// The engine or file system.
    engine: String,
    /// Bytes of the disk.
    disk_bytes: u64,
    /// The model of the disk.
    model: String,
    /// How it was aged, if it was. Of file systems the time is of no model.
    aged: Option<Outcome>,
    /// The store behind that.
    before: Store,
    /// The workload; file systems as often as was asked for.
    runs: Vec<Run>,
    /// Bytes of objects in a second, MB/s, of all runs; emulated.
    mb_s: Option<Interval>,
    /// The store at the end; not there for file systems.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<Store>,
}

fn outcome(f: &mut fmt::Formatter<'_>, name: &str, origin: &str, outcome: &Outcome) -> fmt::Result {
    let Outcome { requests, refused, read_bytes, written_bytes, seconds, mb_s, .. } = outcome;
    let (read, written, device) = (Bytes(*read_bytes), Bytes(*written_bytes), Bytes(outcome.device_bytes));
    writeln!(
        f,
        "{name:<10}{requests} requests, {read} read, {written} written, {} s: {} MB/s, {origin}",
        number(*seconds),
        number(*mb_s)
    )?;
    let (reads, writes, flushes) = (outcome.device_reads, outcome.device_writes, outcome.device_flushes);
    writeln!(f, "{:<10}disk: {reads} reads, {writes} writes, {flushes} flushes, {device}", "")?;
    if *refused > 0 {
        writeln!(f, "{:<10}{refused} found no room", "")?;
    }
    Ok(())
}

fn store(f: &mut fmt::Formatter<'_>, name: &str, store: &Store) -> fmt::Result {
    write!(f, "{name:<10}{} objects", store.objects)?;
    if let Some(Regions { all, free, large, small, table }) = store.regions {
        write!(f, "; {all} regions: {large} large, {small} small, {table} of tables, {free} free")?;
    }
    let told = [
        (store.fragments_mean, "extents per small object"),
        (store.cleaned.map(|cleaned| cleaned as f64), "cleaned"),
        (store.score, "layout score"),
        (store.pieces_per_file, "pieces per object"),
    ];
    for (value, what) in told {
        value.iter().try_for_each(|value| write!(f, "; {} {what}", number(*value)))?;
    }
    writeln!(f)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {} of {}, {}", self.workload, self.engine, Bytes(self.disk_bytes), self.model)?;
        if let Some(aged) = &self.aged {
            // File systems age at full speed.
            let origin = if self.after.is_some() { "emulated" } else { "on no disk" };
            outcome(f, "ageing", origin, aged)?;
        }
        store(f, "before", &self.before)?;
        for Run { outcome: measured, disk } in &self.runs {
            outcome(f, "measured", "emulated", measured)?;
            writeln!(
                f,
                "{:<10}disk: {} s seeking, {} s turning, {} s transferring; late by {} us on average, {} us at most",
                "",
                number(disk.seek_s),
                number(disk.rotation_s),
                number(disk.transfer_s),
                number(disk.late_mean_us),
                number(disk.late_max_us)
            )?;
        }
        if let (Some(mb_s), true) = (&self.mb_s, self.runs.len() > 1) {
            writeln!(f, "{:<10}{mb_s} MB/s (± 95 % interval by Student, † varies more than 40 %), emulated", "all")?;
        }
        self.after.iter().try_for_each(|after| store(f, "after", after))
    }
}

/// `ashlar lab objectbench`. Exit code 1 when requests found no room.
pub fn run(arguments: &ObjectBenchArguments, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Report>() {
        return Ok(code);
    }
    let named = arguments.device.as_ref().or(arguments.on.model.as_ref());
    let model = find(named.map_or(DISK, String::as_str)).map_err(|failure| failure.with_code(2))?;
    let stop = on_signal()?;
    let report = match &arguments.on.store {
        ObjectStore::Regions(size) => on_regions(arguments, *size, model, &stop, output),
        ObjectStore::Files(place) => on_files(arguments, place, named.map_or(DISK, String::as_str), &stop, output),
    }?;
    let refused = report.runs.iter().map(|run| &run.outcome).chain(&report.aged).any(|outcome| outcome.refused > 0);
    output.print(&report);
    Ok(ExitCode::from(u8::from(refused)))
}

fn on_regions(
    arguments: &ObjectBenchArguments,
    size: Bytes,
    model: ModelFile,
    stop: &AtomicBool,
    output: &Output,
) -> Result<Report, Failure> {
    if arguments.save.is_some() || arguments.repeats != 1 {
        let text =
            "a region store in virtual time is not kept, and is the same each time; leave --save and --repeats out";
        return Err(failed(text).with_code(2));
    }
    let name = model.name.clone();
    let config = Config { region: arguments.region, large_block: arguments.large_block, ..Config::default() };
    let bytes = arguments.memory.unwrap_or(STORE_MEMORY);
    let memory = Memory { bytes, ..Memory::default() };
    let host = Duration::from_micros(arguments.host_us.into());
    let made = Bench::new(&RegionsOptions { size, model, config, memory, host, seed: arguments.seed });
    let mut bench = made.map_err(|error| failed(error).with_code(2))?;
    let aged = match arguments.aged {
        None => None,
        Some(target) => {
            let streams = streams(arguments, size, target);
            let bar = progress(output, streams.requests(), "ageing");
            let aged = bench.age(&streams, stop, &|requests| bar.set_position(requests));
            bar.finish_and_clear();
            Some(aged.map_err(failed)?)
        }
    };
    if arguments.objects > 0 {
        let bar = progress(output, arguments.objects, "objects");
        let fill = Mix::SynWrite { sync: false };
        let filled = bench.measure(&fill, arguments.objects, stop, &|requests| bar.set_position(requests));
        bar.finish_and_clear();
        filled.map_err(failed)?;
    }
    let before = Store::of(&bench.status().map_err(failed)?);
    bench.reopen().map_err(failed)?;
    bench.disk_time();
    let mut runs = Vec::new();
    if arguments.requests > 0 {
        let bar = progress(output, arguments.requests, arguments.workload.name());
        let seen = |requests| bar.set_position(requests);
        let measured = bench.measure(&mix(arguments), arguments.requests, stop, &seen);
        bar.finish_and_clear();
        runs.push(Run { outcome: measured.map_err(failed)?, disk: bench.disk_time() });
    }
    let after = Some(Store::of(&bench.status().map_err(failed)?));
    let (workload, engine) = (arguments.workload.name(), "regions".to_string());
    let mb_s = interval(&runs);
    Ok(Report { workload, engine, disk_bytes: size.0, model: name, aged, before, runs, mb_s, after })
}

fn on_files(
    arguments: &ObjectBenchArguments,
    place: &Place,
    model: &str,
    stop: &AtomicBool,
    output: &Output,
) -> Result<Report, Failure> {
    let program = std::env::current_exe().map_err(failed)?;
    let given = StandOptions::new(place.clone(), program);
    let scratch = arguments.scratch.clone().unwrap_or_else(|| given.scratch.clone());
    let stand = StandOptions { device: Some(model.into()), scratch: scratch.clone(), seed: arguments.seed, ..given };
    let options = FilesOptions { stand, memory: arguments.memory, seed: arguments.seed };
    // What nobody asked to keep goes with this.
    let mut passing = None;
    let (image, aged) = match place {
        Place::Path(image) => {
            if arguments.aged.is_some() || arguments.objects > 0 || arguments.save.is_some() {
                let text = "an image is measured as it is; leave --aged, --objects and --save out, or name ext4:SIZE";
                return Err(about(image, text).with_code(2));
            }
            (image.clone(), None)
        }
        Place::Fresh(_, size) => {
            let to = match &arguments.save {
                Some(to) if to.exists() => return Err(about(to, "it is there already; remove it first").with_code(2)),
                Some(to) => to.clone(),
                None => passing.insert(Passing::new(&scratch)?).0.clone(),
            };
            let streams = arguments.aged.map(|target| streams(arguments, *size, target));
            let requests = streams.as_ref().map_or(arguments.objects, Streams::requests);
            let bar = progress(output, requests, if streams.is_some() { "ageing" } else { "objects" });
            let seen = |requests| bar.set_position(requests);
            let aged = options.prepare(streams.as_ref(), arguments.objects, &to, stop, &seen);
            bar.finish_and_clear();
            (to, aged.map_err(failed)?)
        }
        Place::Ashlar(..) => return Err(failed("objects on our files are not measured")),
    };
    let before = options.look(&image).map_err(failed)?;
    let mut runs = Vec::new();
    let repeats = if arguments.requests > 0 { arguments.repeats } else { 0 };
    let bar = progress(output, arguments.requests * u64::from(repeats), arguments.workload.name());
    for repeat in 0..u64::from(repeats) {
        let seen = |requests| bar.set_position(repeat * arguments.requests + requests);
        let measured = options.measure(&image, &before, (&mix(arguments), arguments.requests), stop, &seen);
        let (outcome, disk) = measured.map_err(failed)?;
        runs.push(Run { outcome, disk });
    }
    bar.finish_and_clear();
    let disk_bytes = std::fs::metadata(&image).map_err(|error| about(&image, error))?.len();
    let (workload, model) = (arguments.workload.name(), model.to_string());
    let engine = ImageKind::found(&image).map_err(failed)?.map_or("?", ImageKind::name).to_string();
    let (before, mb_s) = (Store::of_files(&before), interval(&runs));
    Ok(Report { workload, engine, disk_bytes, model, aged, before, runs, mb_s, after: None })
}

/// A file that goes when this is dropped.
struct Passing(PathBuf);

impl Passing {
    fn new(directory: &Path) -> Result<Passing, Failure> {
        let path = directory.join(format!("ashlar-objectbench-{}.img", std::process::id()));
        File::create_new(&path).map_err(|error| about(&path, error))?;
        Ok(Passing(path))
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn interval(runs: &[Run]) -> Option<Interval> {
    Interval::of(&runs.iter().map(|run| run.outcome.mb_s).collect::<Vec<_>>())
}

/// The two streams of the thesis.
fn streams(arguments: &ObjectBenchArguments, size: Bytes, target: f64) -> Streams {
    let common = Common {
        capacity: size.0,
        sizes: Sizes::SynWrite,
        directories: 1,
        sync_share: 0.6,
        write_unit: 0,
        seed: arguments.seed,
    };
    Streams {
        common,
        target,
        transformations: (arguments.ageing_requests as f64 / (1.0 + INTENSITY)) as u64,
        intensity: INTENSITY,
        burst_peak: arguments.burst_peak,
        bursts: BURSTS,
        temporal_max: arguments.large_block.0,
    }
}

fn mix(arguments: &ObjectBenchArguments) -> Mix {
    let sync = arguments.sync;
    match arguments.workload {
        ObjectWorkload::Twovalue => Mix::TwoValue { ratio: arguments.ratio, small: arguments.small.0, sync },
        ObjectWorkload::Synwrite => Mix::SynWrite { sync },
        ObjectWorkload::Synread => Mix::SynRead,
        ObjectWorkload::Objectbench => Mix::ObjectBench,
    }
}

fn progress(output: &Output, all: u64, what: &'static str) -> ProgressBar {
    let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::new(all) };
    let style =
        ProgressStyle::with_template("{msg} {bar:40} {human_pos} of {human_len} requests, {per_sec}, {eta} left");
    bar.set_message(what);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
