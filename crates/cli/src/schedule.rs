//! `ashlar prove schedule` and `ashlar prove replay`.

use crate::arguments::Schedule;
use crate::output::{Failure, Output};
use crate::signals::on_signal;
use ashlar_prove::schedule::{
    HARNESSES, Replayed, ScheduleOptions, ScheduleOutcome, ScheduleTrace, Scheduler, bug, explore_schedules,
};
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A violation.
const FOUND: u8 = 1;
/// It could not be tried.
const UNABLE: u8 = 2;
/// Executions between two looks at the progress bar.
const PROGRESS_EVERY: u64 = 64;

fn unable(what: impl fmt::Display) -> Failure {
    Failure::new(what.to_string()).with_code(UNABLE)
}

/// A system that can be explored.
#[derive(Serialize, JsonSchema)]
struct HarnessInfo {
    /// Its name.
    name: &'static str,
    /// What it is.
    what: &'static str,
    /// Steps that stand for ever, if --max-steps does not say otherwise.
    steps_max: u64,
    /// What can be broken in it.
    bugs: Vec<BugInfo>,
}

#[derive(Serialize, JsonSchema)]
struct BugInfo {
    /// Its name for --bug.
    name: &'static str,
    /// What is wrong then.
    what: &'static str,
}

#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct Harnesses(Vec<HarnessInfo>);

impl fmt::Display for Harnesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for harness in &self.0 {
            writeln!(f, "{:<24}{}", harness.name, harness.what)?;
            for bug in &harness.bugs {
                writeln!(f, "    --bug {:<22}{}", bug.name, bug.what)?;
            }
        }
        Ok(())
    }
}

/// What an exploration came to.
#[derive(Serialize, JsonSchema)]
struct Report {
    #[serde(flatten)]
    outcome: ScheduleOutcome,
    /// Executions in a second.
    executions_per_second: u64,
    /// The file with the execution that failed.
    trace: Option<PathBuf>,
    /// The command that replays it.
    replay: Option<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScheduleOutcome { seed, executions, steps, choices_max, bounded, exhausted, seconds, violation, .. } =
            &self.outcome;
        writeln!(
            f,
            "seed {seed}: {executions} executions in {seconds:.1} s ({} a second), {} steps each, at most {choices_max} choices",
            self.executions_per_second,
            steps / (*executions).max(1)
        )?;
        if *bounded > 0 {
            writeln!(f, "{bounded} of them were still going on when their steps were used up")?;
        }
        match violation {
            Some(found) => {
                writeln!(f, "FOUND: iteration {}, {} choices: {}", found.iteration, found.choices, found.message)?;
                self.replay.iter().try_for_each(|replay| writeln!(f, "replay: {replay}"))
            }
            None if *exhausted => writeln!(f, "everything held, in every order there is"),
            None => writeln!(f, "everything held"),
        }
    }
}

/// `ashlar prove schedule`.
pub fn run(arguments: &Schedule, output: &Output) -> Result<ExitCode, Failure> {
    if arguments.list {
        return list(output);
    }
    if let Some(code) = output.schema::<Report>() {
        return Ok(code);
    }
    let options = options(arguments)?;
    let stop = on_signal().map_err(|failure| failure.with_code(UNABLE))?;
    quiet_panics();
    let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::new(options.iterations) };
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} executions, {per_sec}, {elapsed}, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut progress = |executions: u64| {
        if executions.is_multiple_of(PROGRESS_EVERY) {
            bar.set_position(executions);
        }
    };
    let outcome = explore_schedules(&options, &stop, &mut progress);
    bar.finish_and_clear();
    let outcome = outcome.map_err(unable)?;
    let executions_per_second = (outcome.executions as f64 / outcome.seconds.max(1e-9)) as u64;
    let mut report = Report { outcome, executions_per_second, trace: None, replay: None };
    if let Some(found) = &report.outcome.violation {
        let path = arguments.output.clone().unwrap_or_else(|| default_path(&report.outcome));
        let write = || std::fs::write(&path, found.trace.encode()?);
        write().map_err(|error| unable(format!("cannot keep the trace: {}: {error}", path.display())))?;
        report.replay = Some(format!("ashlar prove replay {}", path.display()));
        report.trace = Some(path);
    }
    output.print(&report);
    Ok(ExitCode::from(if report.trace.is_some() { FOUND } else { 0 }))
}

fn list(output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Harnesses>() {
        return Ok(code);
    }
    let info = |harness: &&'static dyn ashlar_prove::schedule::Harness| HarnessInfo {
        name: harness.name(),
        what: harness.what(),
        steps_max: harness.steps_max(),
        bugs: harness.bugs().iter().map(|bug| BugInfo { name: bug.name, what: bug.what }).collect(),
    };
    output.print(&Harnesses(HARNESSES.iter().map(info).collect()));
    Ok(ExitCode::SUCCESS)
}

fn options(arguments: &Schedule) -> Result<ScheduleOptions, Failure> {
    let name = arguments.harness.as_deref().unwrap_or_default();
    let defaults = ScheduleOptions::new(name, arguments.scheduler.unwrap_or(Scheduler::Pct)).map_err(unable)?;
    let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let bug = arguments.bug.as_deref().map(|name| bug(defaults.harness, name)).transpose().map_err(unable)?;
    Ok(ScheduleOptions {
        bug,
        depth: arguments.depth,
        iterations: arguments.iterations,
        steps_max: arguments.max_steps.unwrap_or(defaults.steps_max),
        seed: arguments.seed.unwrap_or_else(clock),
        budget: arguments.budget,
        ..defaults
    })
}

fn default_path(outcome: &ScheduleOutcome) -> PathBuf {
    let iteration = outcome.violation.as_ref().map_or(0, |found| found.iteration);
    PathBuf::from(format!("{}-{}-{iteration}.trace.json", outcome.harness, outcome.seed))
}

/// A panic in a task is a finding like any other; its backtrace would only hide the report.
fn quiet_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}

/// What a replay came to.
#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct Again(Replayed);

impl fmt::Display for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.message.iter().try_for_each(|message| writeln!(f, "FOUND again: {message}"))?;
        self.0.diverged.iter().try_for_each(|what| writeln!(f, "this is another run: {what}"))
    }
}

/// `ashlar prove replay`.
pub fn replay(trace: &Path, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Again>() {
        return Ok(code);
    }
    let trace = ScheduleTrace::read(trace).map_err(unable)?;
    quiet_panics();
    let again = Again(trace.replay().map_err(unable)?);
    output.print(&again);
    Ok(ExitCode::from(if again.0.diverged.is_some() { UNABLE } else { FOUND }))
}
