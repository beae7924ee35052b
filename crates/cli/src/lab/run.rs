//! `ashlar lab run`.

use super::arguments::{RunArguments, Settings};
use super::workloads::values;
use super::{about, failed};
use crate::output::{Failure, Output};
use crate::signals::on_signal;
use ashlar_lab::predict::report::{PAGES_QUANTITY, PAGES_UNIT, QUANTITY, UNIT};
use ashlar_lab::run::{
    BenchError, BenchOptions, Dropped, Finder, Job, Limits, Needed, OpSummary, Pace, PlayOptions, Repeat, Script,
    ScriptBuilder, ScriptError, bytes, of_snapshot,
};
use ashlar_lab::stand::{DeviceUse, PageUse, Stand};
use ashlar_lab::stats::Interval;
use ashlar_lab::trace::CALLS;
use ashlar_lab::workload::{Kind, Stage, records};
use ashlar_ledger::{Ledger, Measurement};
use ashlar_units::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// What was run, where, and what came of it.
#[derive(Serialize, JsonSchema)]
struct Report {
    /// The workload with what was set, or the trace.
    workload: String,
    /// Where.
    on: String,
    /// The file system, as `mount` calls it.
    file_system: String,
    /// How the numbers came about, but for those that are called modelled: measured, or emulated on an emulated device.
    kind: ashlar_ledger::Kind,
    /// Calls of the run.
    calls: u64,
    /// Threads at once.
    threads: u64,
    /// Records of the trace that were left out, by reason.
    dropped: Dropped,
    /// Calls of all runs that failed here and not in the trace. With any, times and rates are not those of the workload.
    failed_here: u64,
    /// Calls per second.
    calls_per_s: Interval,
    /// Seconds.
    total_s: Interval,
    /// Calls per second of one modelled watt.
    modelled_calls_per_j: Interval,
    /// Modelled energy.
    modelled_j: Interval,
    /// Each run.
    runs: Vec<Repeat>,
    /// What a reader should know.
    notes: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { workload, on, calls, threads, kind, .. } = self;
        writeln!(f, "{workload}\non {on} ({}), {calls} calls of {threads} threads, {kind}", self.file_system)?;
        self.dropped.iter().try_for_each(|(why, count)| writeln!(f, "left out: {count} calls with {why}"))?;
        if self.failed_here > 0 {
            writeln!(
                f,
                "FAILED: {} calls of all runs that should not; times and rates are not those of the workload, and not in the ledger",
                self.failed_here
            )?;
        }
        let count = self.runs.len();
        writeln!(
            f,
            "calls/s          {}    ({count} runs, ± 95 % interval by Student, † varies more than 40 %)",
            self.calls_per_s
        )?;
        writeln!(f, "total, s         {}", self.total_s)?;
        writeln!(f, "joules, modelled {}, {} calls per joule", self.modelled_j, self.modelled_calls_per_j)?;
        let Some(run) = self.runs.first() else { return Ok(()) };
        writeln!(f, "first run        {:.3} s processor, {:.3} s of servers", run.cpu_s, run.server_cpu_s)?;
        if run.summary.waits > 0 {
            let (waits, seconds) = (run.summary.waits, run.summary.waits_s);
            writeln!(f, "                 {waits} calls waited for one of another thread, {seconds:.3} s in all")?;
        }
        if let Some(DeviceUse { reads, read_bytes, writes, written_bytes, busy_s, .. }) = run.device {
            let (read, written) = (Bytes(read_bytes), Bytes(written_bytes));
            let requests = format!("{reads} reads of {read}, {writes} writes of {written}");
            writeln!(f, "                 device busy {busy_s:.3} s with {requests}")?;
        }
        if let Some(PageUse { added, removed, missed }) = run.pages {
            writeln!(f, "                 pages added to the cache: {added}, removed: {removed}")?;
            if missed > 0 {
                writeln!(f, "                 events of the page cache that were missed: {missed}")?;
            }
        }
        if let Some(why) = &run.pages_unknown {
            writeln!(f, "                 pages of the cache were not counted: {why}")?;
        }
        if let Some(own) = run.own_memory_bytes {
            writeln!(f, "                 {} of the memory is this process's own, not for caches", Bytes(own))?;
        }
        run.coldness.iter().try_for_each(|coldness| writeln!(f, "                 {coldness}"))?;
        run.summary
            .sync_s
            .iter()
            .try_for_each(|sync| writeln!(f, "                 {sync:.3} s of the total for the final sync"))?;
        let (read, written) = (Bytes(run.summary.read_bytes), Bytes(run.summary.written_bytes));
        writeln!(f, "                 {read} read, {written} written")?;
        writeln!(
            f,
            "{:<10}{:>10}{:>8}{:>10}{:>10}{:>10}{:>10}{:>10}{:>11}",
            "call, us", "count", "failed", "total, s", "mean", "p50", "p90", "p99", "max"
        )?;
        for OpSummary { op, count, failed, total_s, mean_us, p50_us, p90_us, p99_us, max_us, .. } in &run.summary.ops {
            let op = op.name();
            writeln!(
                f,
                "{op:<10}{count:>10}{failed:>8}{total_s:>10.3}{mean_us:>10.1}{p50_us:>10.1}{p90_us:>10.1}{p99_us:>10.1}{max_us:>11.1}"
            )?;
        }
        for (what, difference) in [
            ("failed here, and not in the trace", &run.summary.failed_here),
            ("failed in the trace, and not here", &run.summary.failed_there),
            ("failed in both, in other ways", &run.summary.failed_otherwise),
        ] {
            if difference.count > 0 {
                writeln!(f, "{what}: {difference}")?;
            }
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

fn script(stages: Vec<Stage>, limits: Limits) -> Result<Script, ScriptError> {
    let mut builder = Script::builder(limits);
    records(stages).try_for_each(|record| builder.add(&record))?;
    builder.finish()
}

/// The script of a trace; `seen` gets its records, and `notes` a word if it was cut.
fn of_trace(
    path: &Path,
    limits: Limits,
    notes: &mut Vec<String>,
    mut seen: impl FnMut(&ashlar_lab::trace::Record),
) -> Result<Script, Failure> {
    let mut builder: ScriptBuilder = Script::builder(limits);
    let read = ashlar_columns::read_cut(&CALLS, path, |record| {
        seen(&record);
        builder.add(&record).map_err(|error| error.to_string())
    });
    let cut = read.map_err(|error| about(path, error))?;
    notes.extend(cut.map(|cut| format!("{} is not whole: {cut}", path.display())));
    builder.finish().map_err(|error| about(path, error))
}

/// What is to be run.
pub struct What<'a> {
    pub what: &'a str,
    pub settings: &'a Settings,
    pub max_bytes: Bytes,
    pub setup: Option<&'a Path>,
    pub from: Option<&'a Path>,
    pub prefill: bool,
}

/// What is to be run as a job, and its name for the ledger. `notes` get what a reader should know of it.
pub fn job(arguments: &What<'_>, notes: &mut Vec<String>) -> Result<(Job, String), Failure> {
    let limits = Limits { bytes: arguments.max_bytes };
    if let Ok(kind) = Kind::find(arguments.what) {
        let values = values(kind, arguments.settings)?;
        let plan = kind.plan(&values)?;
        let (setup, script) = (script(plan.setup, limits).map_err(failed)?, script(plan.run, limits).map_err(failed)?);
        return Ok((Job { setup: Some(setup), needed: Needed::new(), script }, values.described()));
    }
    let path = Path::new(arguments.what);
    if !path.exists() {
        return Err(about(
            path,
            "there is no such trace, nor a workload of this name; `ashlar lab workloads` lists them",
        ));
    }
    if !arguments.settings.set.is_empty() {
        return Err(about(path, "a trace has no parameters; leave --set out"));
    }
    let mut finder = Finder::default();
    let script = of_trace(path, limits, notes, |record| finder.add(record))?;
    let setup = arguments.setup.map(|setup| of_trace(setup, limits, notes, |_| {})).transpose()?;
    let mut needed = match arguments.from {
        Some(snapshot) => of_snapshot(snapshot).map_err(|error| about(snapshot, error))?,
        None => Needed::new(),
    };
    // What a snapshot has is as it was; what a setup makes is not there yet.
    if arguments.prefill && setup.is_none() {
        for (path, content) in finder.finish() {
            needed.entry(path).or_insert(content);
        }
    }
    let before = Bytes(bytes(&needed));
    if before.0 > arguments.max_bytes.0 {
        let text = format!("{before} must be there before, more than {}; --max-bytes allows more", arguments.max_bytes);
        return Err(about(path, text));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok((Job { setup, needed, script }, name))
}

/// `ashlar lab run`.
pub fn run(arguments: &RunArguments, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Report>() {
        return Ok(code);
    }
    let stop = on_signal()?;
    let options = arguments.stand.options(arguments.settings.seed)?;
    let what = What {
        what: &arguments.what,
        settings: &arguments.settings,
        max_bytes: arguments.max_bytes,
        setup: arguments.setup.as_deref(),
        from: arguments.from.as_deref(),
        prefill: !arguments.no_prefill,
    };
    let mut notes = Vec::new();
    let (job, workload) = job(&what, &mut notes)?;
    let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::new(arguments.repeats.into()) };
    let style = ProgressStyle::with_template("{spinner} {pos} of {len} runs, {elapsed} so far, {eta} left");
    let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut stand = Stand::open(&options).map_err(failed)?;
    let file_system = stand.file_system().to_string();
    let pace = if arguments.pace { Pace::Times } else { Pace::Closed };
    let bench = BenchOptions {
        play: PlayOptions { pace, sync: arguments.sync, seed: arguments.settings.seed },
        warm: arguments.warm,
        repeats: arguments.repeats,
        memory: arguments.stand.memory,
    };
    let (mut written, mut first) = (Ok(0), true);
    let done = job.bench(&mut stand, &bench, &stop, |_, played| {
        bar.inc(1);
        if let (Some(path), true) = (&arguments.output, std::mem::take(&mut first)) {
            written = ashlar_lab::trace::file::write(path, played.records(&job.script));
        }
    });
    bar.finish_and_clear();
    // Whatever happened, nothing stays mounted.
    let away = stand.put_away();
    let runs = done.map_err(|error| match error {
        BenchError::Stopped => Failure::new("stopped; nothing was left mounted"),
        error => failed(error),
    })?;
    away.map_err(failed)?;
    written.map_err(failed)?;
    let report = report(arguments, &job, (workload, options.described()), file_system, runs, notes)?;
    let is_clean = report.failed_here == 0;
    if is_clean && !arguments.no_ledger {
        record(&report, output);
    }
    output.print(&report);
    Ok(ExitCode::from(u8::from(!is_clean)))
}

fn report(
    arguments: &RunArguments,
    job: &Job,
    (workload, on): (String, String),
    file_system: String,
    runs: Vec<Repeat>,
    mut notes: Vec<String>,
) -> Result<Report, Failure> {
    let of = |value: &dyn Fn(&Repeat) -> f64| {
        let all: Vec<f64> = runs.iter().map(value).collect();
        Interval::of(&all).ok_or_else(|| failed("nothing was run"))
    };
    if runs.iter().filter_map(|run| run.coldness.as_ref()).any(|coldness| !coldness.is_cold()) {
        notes.push("not everything was cold; images can be made cold, directories with --drop-caches only".into());
    }
    if arguments.stand.memory.is_some() {
        notes.push("servers of emulated devices and pools are outside of the limit on memory".into());
    }
    notes.push(
        "joules are those of the machine of FAST '10 by its processors' and device's busy time; work of kernel threads is \
         not in them"
            .into(),
    );
    let (calls, threads) = job.script.size();
    let kind = match arguments.stand.device {
        Some(_) => ashlar_ledger::Kind::Emulated,
        None => ashlar_ledger::Kind::Measured,
    };
    let on = arguments.stand.memory.map_or(on.clone(), |memory| format!("{on}, memory {memory}"));
    Ok(Report {
        failed_here: runs.iter().map(|run| run.summary.failed_here.count).sum(),
        workload,
        on,
        file_system,
        kind,
        calls: calls as u64,
        threads: threads as u64,
        dropped: job.script.dropped.clone(),
        calls_per_s: of(&|run| run.summary.calls_per_s)?,
        total_s: of(&|run| run.summary.total_s)?,
        modelled_calls_per_j: of(&|run| run.summary.calls as f64 / run.modelled_j.max(1e-9))?,
        modelled_j: of(&|run| run.modelled_j)?,
        runs,
        notes,
    })
}

/// What was measured, for the ledger.
fn record(report: &Report, output: &Output) {
    let subject = format!("{} on {}", report.workload, report.on);
    let counted: Option<Vec<f64>> = report.runs.iter().map(|run| run.pages.map(|pages| pages.added as f64)).collect();
    let pages =
        counted.and_then(|counted| Interval::of(&counted)).map(|pages| (PAGES_QUANTITY, PAGES_UNIT, pages.mean));
    let times = [(QUANTITY, UNIT, report.total_s.mean), ("run.rate", "calls/s", report.calls_per_s.mean)];
    for (quantity, unit, value) in times.into_iter().chain(pages) {
        let (quantity, unit, how) = (quantity.into(), unit.into(), format!("lab run, {} times", report.runs.len()));
        let measured = Measurement { subject: subject.clone(), quantity, unit, value, how, kind: Some(report.kind) };
        if let Err(error) = Ledger::open_default().and_then(|ledger| ledger.measure(measured)) {
            return output.say(format!("ashlar: what was measured is not in the ledger: {error}"));
        }
    }
}
