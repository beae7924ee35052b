//! `ashlar prove`.

use crate::arguments::{ProveCommand, ProveFiles, ProveLong};
use crate::crash;
use crate::faults;
use crate::output::{Failure, Output};
use crate::schedule;
use ashlar_pool::Rule;
use ashlar_prove::{
    ArrayOptions, BetrSetting, Daemon, FilesOptions, ObjectsOptions, ObjectsRule, Options, ProximalOptions,
    RegionOptions, explore, explore_array, explore_daemon, explore_files, explore_mounted, explore_objects,
    explore_proximal, explore_regions, explore_together,
};
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Histories explored.
    histories: u64,
    /// Power cuts, or kills, survived.
    cuts: u64,
    /// Transactions committed, operations whose results agreed with the model, or such that were acknowledged.
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
        writeln!(f, "{histories} histories, {cuts} cuts, {operations} operations")?;
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
enum Subject {
    Array(Option<ashlar_array::Rule>),
    Pool(Option<Rule>),
    Proximal(Option<ashlar_proximal::Rule>),
    Files(Option<Rule>),
    Objects(Option<(ObjectsRule, &'static str)>),
    Betr(Option<Rule>, Option<ashlar_betr::Rule>),
    Mounted(PathBuf),
    Daemon(PathBuf),
    Regions(Option<ashlar_regions::Rule>),
}

/// What one history adds to the report.
#[derive(Default)]
struct History {
    cuts: u64,
    operations: u64,
    lacking: BTreeSet<String>,
}

impl Subject {
    /// The command that explores it.
    fn command(&self) -> String {
        let broken = |rule: &Option<Rule>| {
            let name = Rule::ALL.iter().find(|(known, ..)| Some(*known) == *rule).map(|(_, name, _)| name);
            name.map_or(String::new(), |name| format!(" --without {name}"))
        };
        match self {
            Subject::Array(without) => {
                let rule = ashlar_array::Rule::ALL.iter().find(|(known, ..)| Some(*known) == *without);
                let broken = rule.map_or(String::new(), |(_, name, _)| format!(" --without {name}"));
                format!("ashlar prove array{broken}")
            }
            Subject::Pool(without) => format!("ashlar prove pool{}", broken(without)),
            Subject::Proximal(without) => {
                let rule = ashlar_proximal::Rule::ALL.iter().find(|(known, ..)| Some(*known) == *without);
                let broken = rule.map_or(String::new(), |(_, name, _)| format!(" --without {name}"));
                format!("ashlar prove proximal{broken}")
            }
            Subject::Files(without) => format!("ashlar prove files{}", broken(without)),
            Subject::Objects(None) => "ashlar prove objects".into(),
            Subject::Objects(Some((_, name))) => format!("ashlar prove objects --without {name}"),
            Subject::Betr(pool, own) => {
                let name = ashlar_betr::Rule::ALL.iter().find(|(known, ..)| Some(*known) == *own);
                let own = name.map_or(String::new(), |(_, name, _)| format!(" --without {name}"));
                format!("ashlar prove betr{}{own}", broken(pool))
            }
            Subject::Mounted(at) => format!("ashlar prove files --at {}", at.display()),
            Subject::Daemon(_) => "ashlar prove daemon".into(),
            Subject::Regions(without) => {
                let all = ashlar_regions::Rule::ALL;
                let name = all.iter().find(|(known, ..)| Some(*known) == *without).map(|(_, name, _)| name);
                format!("ashlar prove regions{}", name.map_or(String::new(), |name| format!(" --without {name}")))
            }
        }
    }

    fn explore(&self, seed: u64) -> Result<History, ashlar_prove::Failure> {
        let mut history = History::default();
        match self {
            Subject::Array(without) => {
                let outcome = explore_array(seed, ArrayOptions { without: *without, ..ArrayOptions::default() })?;
                (history.cuts, history.operations) = (outcome.cuts, outcome.writes);
            }
            Subject::Pool(without) => {
                let outcome = explore(seed, Options { without: *without, ..Options::default() })?;
                (history.cuts, history.operations) = (outcome.cuts, outcome.commits);
            }
            Subject::Proximal(without) => {
                let options = ProximalOptions { without: *without, ..ProximalOptions::default() };
                let outcome = explore_proximal(seed, options)?;
                (history.cuts, history.operations) = (outcome.cuts, outcome.operations);
            }
            Subject::Files(without) => {
                // Every other history has a hash of two bits, so that names collide.
                let hash_bits = if seed.is_multiple_of(2) { 55 } else { 2 };
                let options = FilesOptions { without: *without, hash_bits, ..FilesOptions::default() };
                let outcome = explore_files(seed, options)?;
                (history.cuts, history.operations) = (outcome.cuts, outcome.operations);
                if without.is_none() {
                    history.operations += explore_together(seed, None)?.operations;
                }
            }
            Subject::Betr(without, own) => {
                let mut setting = BetrSetting::of_seed(seed);
                setting.options.without = *own;
                let options = FilesOptions { without: *without, betr: Some(setting), ..FilesOptions::default() };
                let outcome = explore_files(seed, options)?;
                (history.cuts, history.operations) = (outcome.cuts, outcome.operations);
                if without.is_none() {
                    history.operations += explore_together(seed, Some(setting))?.operations;
                }
            }
            Subject::Objects(without) => {
                let without = without.map(|(rule, _)| rule);
                let outcome = explore_objects(seed, ObjectsOptions { without, ..ObjectsOptions::default() })?;
                (history.cuts, history.operations) = (outcome.cuts, outcome.changes);
            }
            Subject::Mounted(at) => {
                let outcome = explore_mounted(seed, at, MOUNTED_STEPS)?;
                (history.operations, history.lacking) = (outcome.operations, outcome.lacking);
            }
            Subject::Regions(without) => {
                let options = RegionOptions { without: *without, ..RegionOptions::default() };
                let outcome = explore_regions(seed, options)?;
                (history.cuts, history.operations) = (outcome.cuts, outcome.changes);
            }
            Subject::Daemon(program) => {
                let outcome = explore_daemon(seed, program, DAEMON_ROUNDS)?;
                (history.cuts, history.operations) = (outcome.kills, outcome.acknowledged);
            }
        }
        Ok(history)
    }
}

/// `ashlar prove`.
pub fn run(command: ProveCommand, output: &Output) -> Result<ExitCode, Failure> {
    let usage = |text: String| Failure::new(text).with_code(2);
    let (subject, long) = match command {
        ProveCommand::Crash(arguments) => return crash::run(&arguments, output),
        ProveCommand::Faults(arguments) => return faults::run(&arguments, output),
        ProveCommand::Mark { text } => return crash::mark(&text),
        ProveCommand::Schedule(arguments) => return schedule::run(&arguments, output),
        ProveCommand::Replay { trace } => return schedule::replay(&trace, output),
        ProveCommand::Pool(prove) | ProveCommand::Files(ProveFiles { at: None, prove }) if prove.rules => {
            drop(prove);
            return rules(output, Rule::ALL.iter().map(|(_, name, what)| (*name, *what)));
        }
        ProveCommand::Objects(prove) if prove.rules => {
            return rules(output, ObjectsRule::all().map(|(_, name, what)| (name, what)));
        }
        ProveCommand::Objects(prove) => {
            let rule = prove.without.as_deref().map(|name| {
                let found = ObjectsRule::all().find(|(_, known, _)| *known == name);
                found.map(|(rule, name, _)| (rule, name)).ok_or_else(|| unknown_rule("objects", name))
            });
            (Subject::Objects(rule.transpose()?), prove.long)
        }
        ProveCommand::Regions(prove) if prove.rules => {
            return rules(output, ashlar_regions::Rule::ALL.iter().map(|(_, name, what)| (*name, *what)));
        }
        ProveCommand::Regions(prove) => {
            let named = |name: &str| ashlar_regions::Rule::named(name).ok_or_else(|| unknown_rule("regions", name));
            (Subject::Regions(prove.without.as_deref().map(named).transpose()?), prove.long)
        }
        ProveCommand::Proximal(prove) if prove.rules => {
            return rules(output, ashlar_proximal::Rule::ALL.iter().map(|(_, name, what)| (*name, *what)));
        }
        ProveCommand::Proximal(prove) => {
            let named = |name: &str| ashlar_proximal::Rule::named(name).ok_or_else(|| unknown_rule("proximal", name));
            (Subject::Proximal(prove.without.as_deref().map(named).transpose()?), prove.long)
        }
        ProveCommand::Betr(prove) if prove.rules => {
            let (own, pool) = (ashlar_betr::Rule::ALL.iter(), Rule::ALL.iter());
            let all = own.map(|(_, name, what)| (*name, *what)).chain(pool.map(|(_, name, what)| (*name, *what)));
            return rules(output, all);
        }
        ProveCommand::Betr(prove) => {
            let own = prove.without.as_deref().and_then(ashlar_betr::Rule::named);
            let pool = if own.is_some() { None } else { broken(prove.without.as_deref())? };
            (Subject::Betr(pool, own), prove.long)
        }
        ProveCommand::Array(prove) if prove.rules => {
            return rules(output, ashlar_array::Rule::ALL.iter().map(|(_, name, what)| (*name, *what)));
        }
        ProveCommand::Array(prove) => {
            let named = |name: &str| ashlar_array::Rule::named(name).ok_or_else(|| unknown_rule("array", name));
            (Subject::Array(prove.without.as_deref().map(named).transpose()?), prove.long)
        }
        ProveCommand::Pool(prove) => (Subject::Pool(broken(prove.without.as_deref())?), prove.long),
        ProveCommand::Files(ProveFiles { at: None, prove }) => {
            (Subject::Files(broken(prove.without.as_deref())?), prove.long)
        }
        ProveCommand::Files(ProveFiles { at: Some(at), prove }) => {
            let at = at.canonicalize().map_err(|error| usage(format!("{}: {error}", at.display())))?;
            (Subject::Mounted(at), prove.long)
        }
        ProveCommand::Daemon(long) => {
            if let Some(obstacle) = Daemon::obstacle() {
                return Err(Failure::new(obstacle));
            }
            let program = std::env::current_exe().map_err(|error| Failure::new(error.to_string()))?;
            (Subject::Daemon(program), long)
        }
    };
    prove(&subject, &long, output)
}

fn rules(output: &Output, all: impl Iterator<Item = (&'static str, &'static str)>) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Rules>() {
        return Ok(code);
    }
    output.print(&Rules(all.map(|(name, what)| RuleInfo { name, what }).collect()));
    Ok(ExitCode::SUCCESS)
}

/// The rule to break.
pub fn broken(without: Option<&str>) -> Result<Option<Rule>, Failure> {
    let Some(name) = without else { return Ok(None) };
    Rule::named(name).map(Some).ok_or_else(|| unknown_rule("pool", name))
}

fn unknown_rule(of: &str, name: &str) -> Failure {
    Failure::new(format!("there is no rule {name:?}; `ashlar prove {of} --rules` lists them")).with_code(2)
}

fn prove(subject: &Subject, arguments: &ProveLong, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Report>() {
        return Ok(code);
    }
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
    let mut report =
        Report { seed: first, histories: 0, cuts: 0, operations: 0, lacking: BTreeSet::new(), failure: None };
    while report.failure.is_none() && (report.histories == 0 || began.elapsed() < arguments.budget) {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let seed = first.wrapping_add(report.histories);
        match subject.explore(seed) {
            Ok(history) => {
                report.cuts += history.cuts;
                report.operations += history.operations;
                report.lacking.extend(history.lacking);
            }
            Err(failure) => {
                let replay = format!("{} --seed {} --budget 0s", subject.command(), failure.seed);
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
