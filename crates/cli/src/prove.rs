//! `ashlar prove`.

use crate::arguments::{ObjectsEngine, ProveCommand, ProveDaemon, ProveFiles, ProveLong, ProveObjects};
use crate::crash;
use crate::faults;
use crate::output::{Failure, Output};
use crate::schedule;
use crate::signals::on_signal;
use ashlar_prove::{Daemon, Exploration, Seen, explore_daemon, explore_mounted};
use ashlar_vfs::Engine;
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Operations of a history in a directory.
const MOUNTED_STEPS: u64 = 500;
/// Kills of one pool.
const DAEMON_ROUNDS: u64 = 5;

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
    /// Histories explored; the last of them is the one that failed, if one did.
    histories: u64,
    /// Power cuts, or kills, survived, in the histories that held.
    cuts: u64,
    /// Transactions committed, operations whose results agreed with the model, or such that were acknowledged, in the histories
    /// that held.
    operations: u64,
    /// What a mounted file system does not support, and was not tried.
    lacking: BTreeSet<String>,
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
        match &self.failure {
            None => writeln!(f, "{histories} histories, {cuts} cuts, {operations} operations")?,
            Some(_) => {
                let held = histories - 1;
                writeln!(
                    f,
                    "{held} histories held, with {cuts} cuts and {operations} operations; the next one did not"
                )?;
            }
        }
        for what in &self.lacking {
            writeln!(f, "not supported there: {what}")?;
        }
        match &self.failure {
            None => writeln!(f, "everything held"),
            Some(found) => writeln!(f, "FOUND: {}\nreplay: {}", found.what, found.replay),
        }
    }
}

/// What is explored.
enum Explored {
    /// Histories in the simulated runtime, perhaps without a rule.
    Histories(&'static Exploration, Option<&'static str>),
    /// A directory of whatever is mounted.
    Mounted(PathBuf),
    /// The program, killed while it serves a file system of this engine.
    Daemon(PathBuf, Engine),
}

impl Explored {
    /// The command that explores it.
    fn command(&self) -> String {
        match self {
            Explored::Histories(exploration, None) => format!("ashlar prove {}", exploration.name),
            Explored::Histories(exploration, Some(rule)) => {
                format!("ashlar prove {} --without {rule}", exploration.name)
            }
            Explored::Mounted(at) => format!("ashlar prove files --at {}", at.display()),
            Explored::Daemon(_, engine) => format!("ashlar prove daemon --engine {engine}"),
        }
    }

    fn explore(&self, seed: u64) -> Result<Seen, ashlar_prove::Failure> {
        match self {
            Explored::Histories(exploration, without) => exploration.explore(seed, *without),
            Explored::Mounted(at) => {
                let outcome = explore_mounted(seed, at, MOUNTED_STEPS)?;
                Ok(Seen { cuts: 0, operations: outcome.operations, lacking: outcome.lacking })
            }
            Explored::Daemon(program, engine) => {
                let outcome = explore_daemon(seed, program, *engine, DAEMON_ROUNDS)?;
                Ok(Seen { cuts: outcome.kills, operations: outcome.acknowledged, ..Seen::default() })
            }
        }
    }
}

/// `ashlar prove`.
pub fn run(command: ProveCommand, output: &Output) -> Result<ExitCode, Failure> {
    let (name, prove) = match command {
        ProveCommand::Crash(arguments) => return crash::run(&arguments, output),
        ProveCommand::Faults(arguments) => return faults::run(&arguments, output),
        ProveCommand::Mark { text } => return crash::mark(&text),
        ProveCommand::Schedule(arguments) => return schedule::run(&arguments, output),
        ProveCommand::Replay { trace } => return schedule::replay(&trace, output),
        ProveCommand::Daemon(ProveDaemon { engine, long }) => {
            let unable = |what: String| Failure::new(what).with_code(2);
            if let Some(obstacle) = Daemon::obstacle() {
                return Err(unable(obstacle.into()));
            }
            let program = std::env::current_exe().map_err(|error| unable(error.to_string()))?;
            return explore(&Explored::Daemon(program, engine), &long, output);
        }
        ProveCommand::Files(ProveFiles { at: Some(at), prove }) => {
            let usage = |error| Failure::new(format!("{}: {error}", at.display())).with_code(2);
            return explore(&Explored::Mounted(at.canonicalize().map_err(usage)?), &prove.long, output);
        }
        ProveCommand::Files(ProveFiles { at: None, prove }) => ("files", prove),
        ProveCommand::Pool(prove) => ("pool", prove),
        ProveCommand::Betr(prove) => ("betr", prove),
        ProveCommand::Objects(ProveObjects { engine: ObjectsEngine::Pool, prove }) => ("objects", prove),
        ProveCommand::Objects(ProveObjects { engine: ObjectsEngine::Proximal, prove }) => {
            ("objects --engine proximal", prove)
        }
        ProveCommand::Regions(prove) => ("regions", prove),
        ProveCommand::Proximal(prove) => ("proximal", prove),
        ProveCommand::Array(prove) => ("array", prove),
    };
    let exploration = Exploration::named(name).ok_or_else(|| Failure::new(format!("nothing explores {name:?}")))?;
    if prove.rules {
        return rules(exploration, output);
    }
    let without = prove.without.as_deref().map(|name| rule(exploration, name)).transpose()?;
    explore(&Explored::Histories(exploration, without), &prove.long, output)
}

fn rules(exploration: &Exploration, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Rules>() {
        return Ok(code);
    }
    output.print(&Rules(exploration.rules().into_iter().map(|(name, what)| RuleInfo { name, what }).collect()));
    Ok(ExitCode::SUCCESS)
}

/// The rule to break.
fn rule(exploration: &Exploration, name: &str) -> Result<&'static str, Failure> {
    exploration.rules().into_iter().map(|(known, _)| known).find(|known| *known == name).ok_or_else(|| {
        let list = format!("`ashlar prove {} --rules` lists them", exploration.name);
        Failure::new(format!("there is no rule {name:?}; {list}")).with_code(2)
    })
}

fn explore(explored: &Explored, arguments: &ProveLong, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Report>() {
        return Ok(code);
    }
    let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let first = arguments.seed.unwrap_or_else(clock);
    let stop = on_signal().map_err(|failure| failure.with_code(2))?;
    // A history that panics is a finding like any other; its backtrace would only hide the report.
    std::panic::set_hook(Box::new(|_| {}));
    let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::new(arguments.budget.as_secs()) };
    let style = ProgressStyle::with_template("{bar:40} {elapsed} of {len}s, {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let began = Instant::now();
    let mut report =
        Report { seed: first, histories: 0, cuts: 0, operations: 0, lacking: BTreeSet::new(), failure: None };
    while report.failure.is_none() && (report.histories == 0 || began.elapsed() < arguments.budget) {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let seed = first.wrapping_add(report.histories);
        match explored.explore(seed) {
            Ok(history) => {
                report.cuts += history.cuts;
                report.operations += history.operations;
                report.lacking.extend(history.lacking);
            }
            Err(failure) => {
                let replay = format!("{} --seed {} --budget 0s", explored.command(), failure.seed);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_of_histories_that_held() {
        let lacking = BTreeSet::new();
        let failure = Some(Found { what: "a file is gone".into(), replay: "again".into() });
        let report = Report { seed: 1, histories: 3, cuts: 10, operations: 500, lacking, failure };
        let said = report.to_string();
        assert!(
            said.starts_with("2 histories held, with 10 cuts and 500 operations; the next one did not\nFOUND"),
            "{said}"
        );
        let said = Report { failure: None, ..report }.to_string();
        assert_eq!(said, "3 histories, 10 cuts, 500 operations\neverything held\n");
    }
}
