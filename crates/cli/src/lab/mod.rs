//! `ashlar lab`: how a file system fares with its years.

mod age;
pub mod arguments;
mod door;
mod history;
mod layout;
pub mod objectbench;
mod predict;
pub mod profile;
mod replay;
mod run;
mod snapshot;
mod stand;
mod trace;
mod tune;
mod workloads;

use crate::output::{Failure, Output};
use arguments::LabCommand;
use ashlar_lab::walk::WalkError;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::time::{ClockId, clock_gettime};
use std::path::Path;
use std::process::ExitCode;

/// `ashlar lab`. Exit code 1 when something could not be looked at, 2 when there is no answer.
pub fn run(command: LabCommand, pool: Option<&Path>, output: &Output) -> Result<ExitCode, Failure> {
    match command {
        LabCommand::Replay(arguments) => replay::replay(&arguments, output),
        LabCommand::Layout(arguments) => layout::run(&arguments, output),
        LabCommand::Snapshot(arguments) => snapshot::run(&arguments, output),
        LabCommand::History(arguments) => history::run(&arguments, output),
        LabCommand::Workloads(arguments) => workloads::run(&arguments, output),
        LabCommand::Run(arguments) => run::run(&arguments, output),
        LabCommand::Tune(arguments) => tune::run(&arguments, output),
        LabCommand::Age(arguments) => age::run(&arguments, output),
        LabCommand::Trace(arguments) => trace::run(&arguments, pool, output),
        LabCommand::Objectbench(arguments) => objectbench::run(&arguments, output),
        LabCommand::Profile(arguments) => profile::run(&arguments, output),
        LabCommand::Predict(arguments) => predict::run(&arguments, output),
    }
}

/// Nanoseconds since 1970.
fn now_ns() -> i64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}

/// A failure that says what it is about: there is no answer.
fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string()).with_code(2)
}

/// A failure about a path: there is no answer.
fn about(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::new(format!("{}: {error}", path.display())).with_code(2)
}

impl From<WalkError> for Failure {
    fn from(error: WalkError) -> Failure {
        Failure::new(error.to_string()).with_code(2)
    }
}

/// A count that goes up, for people.
fn counter(output: &Output, what: &str) -> ProgressBar {
    let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
    let style = ProgressStyle::with_template(&format!("{{spinner}} {{human_pos}} {what}, {{per_sec}}"));
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}
