//! `ashlar prove`.

use crate::arguments::Prove;
use crate::output::{Failure, Output};
use ashlar_pool::Rule;
use ashlar_prove::{FilesOptions, Options, explore, explore_files};
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A rule that can be broken on purpose.
#[derive(Serialize, JsonSchema)]
struct RuleInfo {
    /// Its name for `--without`.
    name: &'static str,
    /// What it says.
    what: &'static str,
}

#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct Rules(Vec<RuleInfo>);

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|rule| writeln!(f, "{:<24}{}", rule.name, rule.what))
    }
}

/// What an exploration came to.
#[derive(Serialize, JsonSchema)]
struct Report {
    /// First seed.
    seed: u64,
    /// Histories explored.
    histories: u64,
    /// Power cuts survived.
    cuts: u64,
    /// Transactions committed, or operations whose results agreed with the model.
    operations: u64,
    /// What was found.
    failure: Option<Found>,
}

#[derive(Serialize, JsonSchema)]
struct Found {
    /// What was wrong.
    what: String,
    /// The command that replays it.
    replay: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { histories, cuts, operations, .. } = self;
        writeln!(f, "{histories} histories, {cuts} power cuts, {operations} operations")?;
        match &self.failure {
            None => writeln!(f, "everything held"),
            Some(found) => writeln!(f, "FOUND: {}\nreplay: {}", found.what, found.replay),
        }
    }
}

/// What can be explored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    Pool,
    Files,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Subject::Pool => "pool",
            Subject::Files => "files",
        }
    }
    /// Power cuts and operations of one history.
    fn explore(self, seed: u64, without: Option<Rule>) -> Result<(u64, u64), ashlar_prove::Failure> {
        match self {
            Subject::Pool => {
                let outcome = explore(seed, Options { without, ..Options::default() })?;
                Ok((outcome.cuts, outcome.commits))
            }
            Subject::Files => {
                // Every other history has a hash of two bits, so that names collide.
                let hash_bits = if seed.is_multiple_of(2) { 55 } else { 2 };
                let options = FilesOptions { without, hash_bits, ..FilesOptions::default() };
                let outcome = explore_files(seed, options)?;
                Ok((outcome.cuts, outcome.operations))
            }
        }
    }
}

/// `ashlar prove pool` and `ashlar prove files`.
pub fn prove(subject: Subject, arguments: &Prove, output: &Output) -> Result<ExitCode, Failure> {
    if arguments.rules {
        if let Some(code) = output.schema::<Rules>() {
            return Ok(code);
        }
        output.print(&Rules(Rule::ALL.iter().map(|(_, name, what)| RuleInfo { name, what }).collect()));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(code) = output.schema::<Report>() {
        return Ok(code);
    }
    let without = match &arguments.without {
        None => None,
        Some(name) => Some(Rule::named(name).ok_or_else(|| {
            Failure::new(format!("there is no rule {name:?}; `ashlar prove pool --rules` lists them")).with_code(2)
        })?),
    };
    let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let first = arguments.seed.unwrap_or_else(clock);
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, stop.clone())
        .map_err(|error| Failure::new(error.to_string()).with_code(2))?;
    // A history that panics is a finding like any other; its backtrace would only hide the report.
    std::panic::set_hook(Box::new(|_| {}));
    let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::new(arguments.budget.as_secs()) };
    let style = ProgressStyle::with_template("{bar:40} {elapsed} of {len}s, {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let began = Instant::now();
    let mut report = Report { seed: first, histories: 0, cuts: 0, operations: 0, failure: None };
    while report.failure.is_none() && (report.histories == 0 || began.elapsed() < arguments.budget) {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let seed = first.wrapping_add(report.histories);
        match subject.explore(seed, without) {
            Ok((cuts, operations)) => {
                report.cuts += cuts;
                report.operations += operations;
            }
            Err(failure) => {
                let without = arguments.without.as_ref().map_or(String::new(), |rule| format!(" --without {rule}"));
                let replay = format!("ashlar prove {} --seed {} --budget 0s{without}", subject.name(), failure.seed);
                report.failure = Some(Found { what: failure.what, replay });
            }
        }
        report.histories += 1;
        bar.set_position(began.elapsed().as_secs());
        bar.set_message(format!("{} histories", report.histories));
    }
    bar.finish_and_clear();
    output.print(&report);
    Ok(ExitCode::from(u8::from(report.failure.is_some())))
}
