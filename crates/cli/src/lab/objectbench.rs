//! `ashlar lab objectbench`.

use super::arguments::{ObjectBenchArguments, ObjectWorkload};
use super::failed;
use crate::device::{find, on_signal};
use crate::output::{Failure, Output};
use ashlar_lab::history::synthetic::{Common, Sizes, streams::Streams};
use ashlar_lab::objects::{Bench, Mix, Outcome};
use ashlar_regions::{Config, Kind, Memory, Status};
use ashlar_report::number;
use ashlar_units::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::process::ExitCode;

/// Requests of the second stream for each of the first.
const INTENSITY: f64 = 2.0;
/// Bursts of the second stream.
const BURSTS: u32 = 10;

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
    /// Regions by what they hold.
    regions: Regions,
    /// Extents of a small object, on average of those that were written.
    fragments_mean: f64,
    /// Regions that were cleaned.
    cleaned: u64,
}

impl Store {
    fn of(status: &Status) -> Store {
        let count = |kind| status.regions.iter().filter(|region| region.kind == kind).count() as u64;
        Store {
            objects: status.objects,
            regions: Regions {
                all: status.regions.len() as u64,
                free: count(Kind::Free),
                large: count(Kind::Large),
                small: count(Kind::Small),
                table: count(Kind::Table),
            },
            fragments_mean: status.fragments_mean,
            cleaned: status.cleaned,
        }
    }
}

/// A workload on an object store. Emulated: virtual time of the model of a disk.
#[derive(Serialize, JsonSchema)]
struct Report {
    /// The workload.
    workload: &'static str,
    /// The engine.
    engine: &'static str,
    /// Bytes of the disk.
    disk_bytes: u64,
    /// The model of the disk.
    model: String,
    /// How it was aged, if it was.
    aged: Option<Outcome>,
    /// The store behind that.
    before: Store,
    /// The workload.
    measured: Outcome,
    /// The store at the end.
    after: Store,
}

fn outcome(f: &mut fmt::Formatter<'_>, name: &str, outcome: &Outcome) -> fmt::Result {
    let Outcome { requests, refused, read_bytes, written_bytes, seconds, mb_s, .. } = outcome;
    let (read, written, device) = (Bytes(*read_bytes), Bytes(*written_bytes), Bytes(outcome.device_bytes));
    writeln!(
        f,
        "{name:<10}{requests} requests, {read} read, {written} written, {} s: {} MB/s, emulated",
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
    let Regions { all, free, large, small, table } = store.regions;
    writeln!(
        f,
        "{name:<10}{} objects; {all} regions: {large} large, {small} small, {table} of tables, {free} free; {} extents per small \
         object; {} cleaned",
        store.objects,
        number(store.fragments_mean),
        store.cleaned
    )
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {} of {}, {}", self.workload, self.engine, Bytes(self.disk_bytes), self.model)?;
        if let Some(aged) = &self.aged {
            outcome(f, "ageing", aged)?;
        }
        store(f, "before", &self.before)?;
        outcome(f, "measured", &self.measured)?;
        store(f, "after", &self.after)
    }
}

/// `ashlar lab objectbench`. Exit code 1 when requests found no room.
pub fn run(arguments: &ObjectBenchArguments, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Report>() {
        return Ok(code);
    }
    let model = find(&arguments.on.model).map_err(|failure| failure.with_code(2))?;
    let stop = on_signal()?;
    let config = Config { region: arguments.region, large_block: arguments.large_block, ..Config::default() };
    let memory = Memory { bytes: arguments.memory, ..Memory::default() };
    let made = Bench::new(arguments.on.size, &model, config, memory, arguments.seed);
    let mut bench = made.map_err(|error| failed(error).with_code(2))?;
    let aged = match arguments.aged {
        None => None,
        Some(target) => {
            let streams = streams(arguments, target);
            let about = (streams.transformations as f64 * (1.0 + INTENSITY)) as u64;
            let bar = progress(output, about, "ageing");
            let aged = bench.age(&streams, &stop, &|requests| bar.set_position(requests));
            bar.finish_and_clear();
            Some(aged.map_err(failed)?)
        }
    };
    if arguments.objects > 0 {
        let bar = progress(output, arguments.objects, "objects");
        let fill = Mix::SynWrite { sync: false };
        let filled = bench.measure(&fill, arguments.objects, &stop, &|requests| bar.set_position(requests));
        bar.finish_and_clear();
        filled.map_err(failed)?;
    }
    let before = Store::of(&bench.status().map_err(failed)?);
    bench.reopen().map_err(failed)?;
    let bar = progress(output, arguments.requests, arguments.workload.name());
    let measured = bench.measure(&mix(arguments), arguments.requests, &stop, &|requests| bar.set_position(requests));
    bar.finish_and_clear();
    let measured = measured.map_err(failed)?;
    let after = Store::of(&bench.status().map_err(failed)?);
    let refused = measured.refused + aged.as_ref().map_or(0, |aged| aged.refused);
    let (workload, disk_bytes) = (arguments.workload.name(), arguments.on.size.0);
    output.print(&Report { workload, engine: "regions", disk_bytes, model: model.name, aged, before, measured, after });
    Ok(ExitCode::from(u8::from(refused > 0)))
}

/// The two streams of the thesis.
fn streams(arguments: &ObjectBenchArguments, target: f64) -> Streams {
    let common = Common {
        capacity: arguments.on.size.0,
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
