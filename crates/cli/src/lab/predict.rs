//! `ashlar lab predict`.

mod stages;

use super::{about, failed};
use crate::output::{Failure, Output};
use ashlar_columns::{Cut, read, read_cut};
use ashlar_lab::partial::Partial;
use ashlar_lab::predict::cache::Counts;
use ashlar_lab::predict::compare::{Accuracy, accuracy};
use ashlar_lab::predict::engine::{CONFIDENCE, Engine, FirstPass, Options, Prediction};
use ashlar_lab::predict::page::{Shown, page};
use ashlar_lab::predict::price::{Pace, PriceOptions, Without};
use ashlar_lab::predict::report::{
    Measured, PAGES_ERROR, PAGES_QUANTITY, PAGES_UNIT, QUANTITY, Rank, Truth, UNIT, changes, doubled, outcomes, ranks,
    subject,
};
use ashlar_lab::predict::tree::Tree;
use ashlar_lab::snapshot::SnapshotReader;
use ashlar_lab::snapshot::listing::{ListingReader, is_listing};
use ashlar_lab::trace::{CALLS, Record};
use ashlar_lab::vector::{Family, Vector};
use ashlar_ledger::{Kind, Prediction as Predicted};
use ashlar_report::number;
use ashlar_units::Bytes;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Changes when the same inputs give other numbers.
const MODEL_VERSION: u32 = 1;
/// How a snapshot begins.
const SNAPSHOT: &[u8] = b"ASHSNAP";

#[derive(Args)]
pub struct PredictArguments {
    /// What `ashlar lab trace` or `ashlar lab run` wrote; with --stage, what the stage before wrote.
    pub trace: PathBuf,
    /// A snapshot of the file system as it was before the trace, if there is one, also as the thesis's text; and system
    /// vectors.
    #[arg(value_name = "SNAPSHOT|VECTOR")]
    pub files: Vec<PathBuf>,
    /// A trace of what makes the files that are there before, as `ashlar lab workloads` writes it.
    #[arg(long, value_name = "TRACE")]
    pub setup: Option<PathBuf>,
    /// Memory for caches, in place of what the vectors say.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// What was there before the trace is in memory; otherwise caches are empty at first.
    #[arg(long)]
    pub warm: bool,
    /// Pause between calls as the trace does; otherwise each thread calls as soon as its last call returned.
    #[arg(long)]
    pub paced: bool,
    /// Predict as the thesis did: three lists by last use, dot products, and equation 4.
    #[arg(long)]
    pub thesis: bool,
    /// Leave something out of the prices, to see what it earns.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    pub without: Vec<Part>,
    /// The directory of the trace where the file system is mounted; it is in memory. Default: that of the snapshot, or /; a
    /// snapshot that is a text does not say.
    #[arg(long, value_name = "DIR")]
    pub root: Option<String>,
    /// Traces of the same workload as it was measured on the systems, in the order of the vectors.
    #[arg(long, value_name = "TRACE", num_args = 1..)]
    pub measured: Vec<PathBuf>,
    /// What the workload is called in the ledger. Default: the name of the trace, as `lab run` has it.
    #[arg(long, value_name = "NAME")]
    pub subject: Option<String>,
    /// Write a page.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Only do this stage, and write what it makes to the file of -o.
    #[arg(long, requires = "output")]
    pub stage: Option<Stage>,
    /// The file for --stage: Parquet if it ends in .parquet, else a line of JSON for each step.
    #[arg(short, long, value_name = "FILE", requires = "stage")]
    pub output: Option<PathBuf>,
    /// Decides what is drawn from distributions.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Write nothing to the ledger.
    #[arg(long)]
    pub no_ledger: bool,
}

/// A part of the prices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Blocks that are written back.
    BlockOverhead,
    /// Reading blocks of which parts are written.
    PartialBlocks,
    /// Sizes of files that are removed.
    SizedRemoves,
    /// What threads share: each is as fast as it is alone.
    Sharing,
    /// Waiting for what others sync, and for names in the same directory.
    Crowds,
    /// Bounds of dirty data and files.
    DirtyFiles,
}

/// A stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Stage {
    /// Calls become lookups and themselves; reads a trace.
    Parse,
    /// Names become files.
    Preprocess,
    /// What is in memory; needs one vector.
    Cache,
    /// What is sequential.
    Pattern,
    /// What it takes; needs one vector.
    Price,
}

/// What a workload would take. All of it is modelled.
#[derive(Serialize, JsonSchema)]
struct Report {
    /// What the workload is called.
    workload: String,
    /// Calls of the trace.
    calls: u64,
    /// Files that the trace used and that no snapshot told of.
    found: u64,
    /// By system, in the order of the vectors.
    predictions: Vec<Prediction>,
    /// Which system is faster, and how sure that is.
    ranking: Vec<Rank>,
    /// What was measured, with --measured.
    measured: Vec<Measured>,
    /// How good the predictions were, with --measured.
    accuracy: Option<Accuracy>,
    /// Ids of the records in the ledger.
    ledger: Vec<String>,
    /// What a reader should know.
    notes: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} calls; modelled", self.workload, self.calls)?;
        for one in &self.predictions {
            let (total, low, high) = (number(one.total_seconds), number(one.low_seconds), number(one.high_seconds));
            let elapsed = number(one.elapsed_seconds);
            writeln!(f, "\n{}: {total} s ({low} to {high}) of calls, {elapsed} s from begin to end", one.system)?;
            writeln!(
                f,
                "    {:<12}{:>9}{:>12}{:>8}{:>12}{:>12}",
                "class", "calls", "seconds", "%", "median ms", "99 % ms"
            )?;
            for class in &one.classes {
                let (seconds, share) = (number(class.seconds), number((class.share * 1000.0).round() / 10.0));
                let (median, tail) = (number(class.quantiles[3]), number(class.quantiles[6]));
                writeln!(f, "    {:<12}{:>9}{seconds:>12}{share:>8}{median:>12}{tail:>12}", class.name, class.count)?;
            }
            writeln!(f, "    why")?;
            for share in one.causes.iter().filter(|share| share.share >= 0.001) {
                let percent = number((share.share * 1000.0).round() / 10.0);
                writeln!(f, "    {:<34}{:>9} s{percent:>8} %", share.cause.name(), number(share.seconds))?;
            }
            if one.overhead_seconds > 0.0 {
                writeln!(f, "    overhead of writes (equation 4): {} s", number(one.overhead_seconds))?;
            }
            if let Some(first) = one.causes.first() {
                writeln!(f, "    most goes to {}: {}", first.cause.name(), first.remedy)?;
            }
            for change in one.changes.iter().take(3) {
                writeln!(f, "    {}: {} s less", change.what, number(change.seconds_less))?;
            }
            if let Some(Counts { pages_added, pages_fetched, pages_evicted, .. }) = one.caches {
                writeln!(
                    f,
                    "    pages added to the cache: {pages_added}, {pages_fetched} of them read; {pages_evicted} evicted"
                )?;
            }
            for (name, count) in &one.unpriced {
                writeln!(f, "    the vector has no {name}: {count} steps have no price")?;
            }
        }
        for rank in &self.ranking {
            writeln!(
                f,
                "{} is faster than {}: {} %",
                rank.faster,
                rank.slower,
                number((rank.probability * 1000.0).round() / 10.0)
            )?;
        }
        for one in &self.measured {
            let (total, elapsed) = (number(one.total_seconds), number(one.elapsed_seconds));
            let (error, elapsed_error) = (one.error * 100.0, one.elapsed_error * 100.0);
            writeln!(
                f,
                "\nmeasured on {}: {total} s of calls, predicted {error:+.1} %; {elapsed} s from begin to end, predicted \
                 {elapsed_error:+.1} %",
                one.system
            )?;
            for class in &one.classes {
                let error = class.error.map_or("-".into(), |error| format!("{:+.1} %", error * 100.0));
                writeln!(f, "    {:<12}{:>12} s{error:>12}", class.name, number(class.seconds))?;
            }
        }
        if let Some(accuracy) = &self.accuracy {
            let ranks = &accuracy.ranks_beyond_10;
            writeln!(
                f,
                "mean error {} %; {} of {} pairs that differ by more than 10 % ranked right",
                number(accuracy.mean_error * 100.0),
                ranks.right,
                ranks.pairs
            )?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

/// A snapshot, and vectors.
struct Inputs {
    snapshot: Option<PathBuf>,
    vectors: Vec<Vector>,
}

/// `ashlar lab predict`.
pub fn run(arguments: &PredictArguments, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Report>() {
        return Ok(code);
    }
    let inputs = inputs(arguments)?;
    let options = options(arguments);
    if let (Some(stage), Some(to)) = (arguments.stage, &arguments.output) {
        return stages::run(arguments, stage, to, inputs, options, output);
    }
    if inputs.vectors.is_empty() {
        return Err(Failure::new("give at least one system vector, as `ashlar lab profile` writes them").with_code(2));
    }
    let (engine, cut) = engine(arguments, &inputs, options, output)?;
    let mut predictions: Vec<Prediction> = engine.systems.iter().map(|system| system.prediction()).collect();
    let memory = arguments.memory.map_or_else(|| least_memory(&inputs.vectors), |bytes| bytes.0);
    let again = match doubled(&engine, options, memory) {
        Some(options) => {
            let (engine, _) = self::engine(arguments, &inputs, options, output)?;
            Some(engine.systems.iter().map(|system| system.prediction()).collect::<Vec<_>>())
        }
        None => None,
    };
    changes(&mut predictions, again.as_deref());
    // As `lab run` calls it.
    let file_name = arguments.trace.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let workload = arguments.subject.clone().unwrap_or(file_name);
    let measured = measured(arguments, &predictions)?;
    let accuracy = accuracy(&outcomes(&workload, &predictions, &measured));
    let mut report = Report {
        calls: engine.calls(),
        found: engine.found(),
        ranking: ranks(&predictions),
        notes: notes(&engine, &inputs, cut),
        workload,
        predictions,
        measured,
        accuracy,
        ledger: Vec::new(),
    };
    if !arguments.no_ledger {
        report.ledger = record(arguments, &report, output);
    }
    if let Some(file) = &arguments.report {
        let shown = Shown {
            workload: &report.workload,
            predictions: &report.predictions,
            ranks: &report.ranking,
            measured: &report.measured,
            accuracy: report.accuracy.as_ref(),
            notes: &report.notes,
        };
        Partial::write(file, page(&shown).as_bytes()).map_err(failed)?;
    }
    output.print(&report);
    Ok(ExitCode::SUCCESS)
}

fn options(arguments: &PredictArguments) -> Options {
    let has = |part| arguments.without.contains(&part);
    let without = Without {
        block_overhead: has(Part::BlockOverhead),
        partial_blocks: has(Part::PartialBlocks),
        sized_removes: has(Part::SizedRemoves),
        sharing: has(Part::Sharing),
        crowds: has(Part::Crowds),
        dirty_files: has(Part::DirtyFiles),
    };
    let pace = if arguments.paced { Pace::Trace } else { Pace::Fast };
    let price = PriceOptions { thesis: arguments.thesis, without, pace, seed: arguments.seed };
    Options { price, memory: arguments.memory.map(|bytes| bytes.0), warm: arguments.warm }
}

fn inputs(arguments: &PredictArguments) -> Result<Inputs, Failure> {
    let mut inputs = Inputs { snapshot: None, vectors: Vec::new() };
    for path in &arguments.files {
        let mut begin = Vec::new();
        let open = || File::open(path).map_err(|error| about(path, error));
        open()?.take(SNAPSHOT.len() as u64).read_to_end(&mut begin).map_err(|error| about(path, error))?;
        if begin == SNAPSHOT || begin.first().copied().is_some_and(is_listing) {
            if inputs.snapshot.replace(path.clone()).is_some() {
                return Err(about(path, "there is a snapshot already; a trace begins with one state"));
            }
            continue;
        }
        let mut vector = Vector::read(BufReader::new(open()?)).map_err(|error| about(path, error))?;
        if vector.name.is_empty() {
            vector.name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        }
        // A system is known by its name everywhere behind.
        if inputs.vectors.iter().any(|other| other.name == vector.name) {
            vector.name = format!("{} ({})", vector.name, path.display());
        }
        inputs.vectors.push(vector);
    }
    Ok(inputs)
}

/// Also what is there of the trace, if it was cut.
fn first_pass(trace: &Path) -> Result<(FirstPass, Option<Cut>), Failure> {
    let mut first = FirstPass::default();
    let seen = read_cut(&CALLS, trace, |record: Record| {
        first.see(&record);
        Ok(())
    });
    let cut = seen.map_err(|error| about(trace, error))?;
    Ok((first, cut))
}

/// The names at the beginning.
fn tree(arguments: &PredictArguments, snapshot: Option<&Path>) -> Result<Tree, Failure> {
    let Some(path) = snapshot else { return Ok(Tree::new(arguments.root.as_deref().unwrap_or("/"))) };
    let file = File::open(path).map_err(|error| about(path, error))?;
    let (mut file, root) = (BufReader::with_capacity(1 << 18, file), arguments.root.as_deref());
    let begin = file.fill_buf().map_err(|error| about(path, error))?;
    if begin.first().copied().is_some_and(is_listing) {
        return Tree::of_listing(&mut ListingReader::new(file), root).map_err(|error| about(path, error));
    }
    let mut reader = SnapshotReader::new(file).map_err(|error| about(path, error))?;
    Tree::of_snapshot(&mut reader, root).map_err(|error| about(path, error))
}

/// All stages over the trace; also what is there of it, if it was cut.
fn engine(
    arguments: &PredictArguments,
    inputs: &Inputs,
    options: Options,
    output: &Output,
) -> Result<(Engine, Option<Cut>), Failure> {
    let (first, cut) = first_pass(&arguments.trace)?;
    let calls = first.calls;
    let tree = tree(arguments, inputs.snapshot.as_deref())?;
    let mut engine = Engine::new(tree, first, inputs.vectors.clone(), options);
    if let Some(setup) = &arguments.setup {
        let made = read(&CALLS, setup, |record: Record| {
            engine.before(&record);
            Ok(())
        });
        made.map_err(|error| about(setup, error))?;
    }
    let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::new(calls) };
    let style = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} calls, {per_sec}, {eta} left");
    let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let done = read_cut(&CALLS, &arguments.trace, |record: Record| {
        engine.call(&record);
        if engine.calls().is_multiple_of(1024) {
            bar.set_position(engine.calls());
        }
        Ok(())
    });
    bar.finish_and_clear();
    done.map_err(|error| about(&arguments.trace, error))?;
    engine.finish();
    Ok((engine, cut))
}

/// Memory of the system that has least.
fn least_memory(vectors: &[Vector]) -> u64 {
    let kb = vectors.iter().filter_map(|vector| vector.number(Family::BC));
    (kb.fold(f64::INFINITY, f64::min) * 1024.0) as u64
}

fn measured(arguments: &PredictArguments, predictions: &[Prediction]) -> Result<Vec<Measured>, Failure> {
    if arguments.measured.len() > predictions.len() {
        return Err(Failure::new("there are more traces with --measured than vectors").with_code(2));
    }
    let mut all = Vec::new();
    for (path, prediction) in arguments.measured.iter().zip(predictions) {
        let mut truth = Truth::default();
        let seen = read(&CALLS, path, |record: Record| {
            truth.see(&record);
            Ok(())
        });
        seen.map_err(|error| about(path, error))?;
        let found = truth.beside(prediction);
        all.push(found.ok_or_else(|| about(path, "it has no times: nobody ran it"))?);
    }
    Ok(all)
}

fn notes(engine: &Engine, inputs: &Inputs, cut: Option<Cut>) -> Vec<String> {
    let mut notes: Vec<String> = cut.map(|cut| format!("the trace is not whole: {cut}")).into_iter().collect();
    if engine.is_unended() {
        notes.push("the last directory of the snapshot has no ~~ at its end: the text may have been cut there".into());
    }
    if engine.found() > 0 {
        let without = if inputs.snapshot.is_some() { "that the snapshot has not" } else { "that were there before" };
        notes.push(format!("{} files {without} are known from the trace alone", engine.found()));
    }
    for vector in &inputs.vectors {
        notes.extend(vector.notes.iter().map(|note| format!("{}: {note}", vector.name)));
    }
    notes
}

fn record(arguments: &PredictArguments, report: &Report, output: &Output) -> Vec<String> {
    let of = |one: &Prediction, (quantity, unit, value, low, high): (&str, &str, f64, f64, f64)| {
        let mut inputs = BTreeMap::new();
        inputs.insert("trace".to_string(), report.workload.clone().into());
        inputs.insert("calls".to_string(), report.calls.into());
        inputs.insert("thesis".to_string(), arguments.thesis.into());
        inputs.insert("memory".to_string(), arguments.memory.map(|bytes| bytes.0).into());
        inputs.insert("warm".to_string(), arguments.warm.into());
        Predicted {
            subject: subject(&report.workload, &one.system),
            quantity: quantity.into(),
            unit: unit.into(),
            value: Some(value),
            low,
            high,
            confidence: CONFIDENCE,
            model: if arguments.thesis { "lab.thesis" } else { "lab.predict" }.into(),
            model_version: MODEL_VERSION,
            kind: Kind::Modelled,
            inputs,
            fingerprint: String::new(),
        }
    };
    let both = |one: &Prediction| {
        // The range of the time from begin to end is that of all calls together, in proportion.
        let relative = |seconds: f64| if one.total_seconds > 0.0 { seconds / one.total_seconds } else { 1.0 };
        let time = one.elapsed_seconds;
        let time = (QUANTITY, UNIT, time, time * relative(one.low_seconds), time * relative(one.high_seconds));
        let pages = one.caches.map(|caches| caches.pages_added as f64);
        let pages =
            pages.map(|of| (PAGES_QUANTITY, PAGES_UNIT, of, of * (1.0 - PAGES_ERROR), of * (1.0 + PAGES_ERROR)));
        [Some(time), pages].into_iter().flatten().map(|quantity| of(one, quantity)).collect::<Vec<_>>()
    };
    let ids = crate::ledger::predict(report.predictions.iter().flat_map(both).collect(), output);
    ids.into_iter().flatten().collect()
}
