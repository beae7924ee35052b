//! `ashlar lab history`.

use super::arguments::{HistoryArguments, Recipe};
use super::{about, counter, failed};
use crate::output::{Failure, Output};
use crate::signals::on_signal;
use ashlar_lab::history::diff::{Found, Guesses, compare};
use ashlar_lab::history::git::{Commits, commits};
use ashlar_lab::history::synthetic::{Common, age_target, profile, streams};
use ashlar_lab::history::{Builder, Closing, Header, HistoryReader, Tidied};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

/// A history, and what it amounts to.
#[derive(Serialize, JsonSchema)]
struct History {
    /// The file.
    path: String,
    /// Where it comes from.
    header: Header,
    /// What it amounts to.
    statistics: Closing,
    /// What the comparison of snapshots found.
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshots: Option<Found>,
    /// What was found in a repository.
    #[serde(skip_serializing_if = "Option::is_none")]
    commits: Option<Commits>,
    /// What had to be put right; not there for a history that was only read.
    #[serde(skip_serializing_if = "Option::is_none")]
    tidied: Option<Tidied>,
    /// What a reader should know.
    notes: Vec<String>,
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}, seed {}", self.path, self.header.source, self.header.seed)?;
        self.header.models.iter().try_for_each(|(name, value)| writeln!(f, "    {name} = {value}"))?;
        if let Some(found) = &self.snapshots {
            writeln!(
                f,
                "{} snapshots: {} at first, then {} new, {} gone, {} modified, {} replaced, {} moved, {} short-lived",
                found.snapshots,
                found.initial,
                found.new,
                found.gone,
                found.modified,
                found.replaced,
                found.moved,
                found.short_lived
            )?;
        }
        if let Some(commits) = &self.commits {
            let Commits { commits, changes, passed_over } = commits;
            writeln!(f, "{commits} commits with {changes} changes, {passed_over} of submodules or missing objects")?;
        }
        if let Some(tidied) = self.tidied.filter(|tidied| *tidied != Tidied::default()) {
            writeln!(
                f,
                "put right: {} directories made earlier, {} deleted later, {} kept; {} records dropped",
                tidied.directories_early, tidied.directories_late, tidied.directories_kept, tidied.dropped
            )?;
        }
        write!(f, "{}", self.statistics)?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

/// What a source found beside records.
#[derive(Default)]
struct Source {
    text: String,
    models: Vec<(String, String)>,
    capacity: u64,
    snapshots: Option<Found>,
    commits: Option<Commits>,
    notes: Vec<String>,
}

/// `ashlar lab history`.
pub fn run(arguments: &HistoryArguments, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<History>() {
        return Ok(code);
    }
    let Some(to) = &arguments.output else { return show(arguments, output) };
    let directory = to.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = Builder::new(arguments.memory.0 as usize, directory);
    let stop = on_signal()?;
    let bar = counter(output, "steps");
    let source = fill(arguments, &mut builder, &stop, &|count| bar.set_position(count));
    bar.finish_and_clear();
    let source = source?;
    let header = Header { source: source.text, models: source.models, seed: arguments.seed, capacity: source.capacity };
    let (statistics, tidied) = builder.finish(to, &header, &stop).map_err(failed)?;
    output.print(&History {
        path: to.to_string_lossy().into_owned(),
        header,
        statistics,
        snapshots: source.snapshots,
        commits: source.commits,
        tidied: Some(tidied),
        notes: source.notes,
    });
    Ok(ExitCode::SUCCESS)
}

/// Statistics of a history.
fn show(arguments: &HistoryArguments, output: &Output) -> Result<ExitCode, Failure> {
    let [path] = &arguments.files[..] else {
        let hint = "give one history to see its statistics, or -o FILE to make one of snapshots, --git or --recipe";
        return Err(Failure::new(hint).with_code(2));
    };
    let file = File::open(path).map_err(|error| about(path, error))?;
    let damaged = |error| about(path, error);
    let mut reader = HistoryReader::new(BufReader::with_capacity(1 << 18, file)).map_err(damaged)?;
    let statistics = reader.closing().map_err(damaged)?;
    output.print(&History {
        path: path.to_string_lossy().into_owned(),
        header: reader.header().clone(),
        statistics,
        snapshots: None,
        commits: None,
        tidied: None,
        notes: Vec::new(),
    });
    Ok(ExitCode::SUCCESS)
}

fn fill(
    arguments: &HistoryArguments,
    builder: &mut Builder,
    stop: &AtomicBool,
    seen: &dyn Fn(u64),
) -> Result<Source, Failure> {
    match (&arguments.git, arguments.recipe) {
        (Some(repository), _) => {
            let found = commits(repository, &arguments.revision, builder, stop, seen).map_err(failed)?;
            let text = format!("git {} {}", repository.display(), arguments.revision);
            Ok(Source { text, commits: Some(found), ..Source::default() })
        }
        (None, Some(recipe)) => synthetic(recipe, arguments, builder, stop, seen).map_err(failed),
        (None, None) => {
            if arguments.files.is_empty() {
                return Err(Failure::new("give snapshots, --git REPO or --recipe NAME").with_code(2));
            }
            let mut guesses = if arguments.guesses.thesis { Guesses::THESIS } else { Guesses::DEFAULT };
            guesses.sync_share = arguments.guesses.sync_share;
            if arguments.guesses.no_short_lived {
                guesses.short_lived = None;
            }
            let compared = compare(&arguments.files, &guesses, arguments.seed, builder);
            let (found, capacity) = compared.map_err(failed)?;
            let text = format!("{} snapshots", found.snapshots);
            Ok(Source { text, models: guesses.described(), capacity, snapshots: Some(found), ..Source::default() })
        }
    }
}

fn synthetic(
    recipe: Recipe,
    arguments: &HistoryArguments,
    builder: &mut Builder,
    stop: &AtomicBool,
    seen: &dyn Fn(u64),
) -> std::io::Result<Source> {
    let given = &arguments.parameters;
    let common = Common {
        capacity: given.capacity.0,
        sizes: given.sizes,
        directories: given.directories,
        sync_share: arguments.guesses.sync_share,
        write_unit: given.write_unit.0.min(u64::from(u32::MAX)) as u32,
        seed: arguments.seed,
    };
    let utilization = given.utilization.0.last().map_or(0.0, |(_, share)| *share);
    let mut source = Source { capacity: given.capacity.0, ..Source::default() };
    (source.text, source.models) = match recipe {
        Recipe::Profile => {
            let mut curve = given.utilization.0.clone();
            // One share alone is that of the end.
            if let [(day, _)] = &mut curve[..] {
                *day = f64::from(given.days);
            }
            let (days, turnover, short_lived) = (given.days, given.turnover, given.short_lived);
            let short_sizes = given.short_sizes.unwrap_or(given.sizes);
            let profile = profile::Profile { common, days, utilization: curve, turnover, short_lived, short_sizes };
            profile.run(builder, stop, seen)?;
            ("recipe profile".into(), profile.described())
        }
        Recipe::Streams => {
            let streams = streams::Streams {
                common,
                target: utilization,
                transformations: given.requests,
                intensity: 2.0,
                burst_peak: given.burst_peak,
                bursts: 10,
                temporal_max: 512 << 10,
            };
            streams.run(builder, stop, seen)?;
            ("recipe streams".into(), streams.described())
        }
        Recipe::AgeTarget => {
            let (ages, rounds) = (given.ages.clone(), given.rounds);
            let target = age_target::AgeTarget { common, utilization, ages, tolerance: 0.02, rounds };
            let ended = target.run(builder, stop, seen)?;
            if ended.distance > target.tolerance {
                source.notes.push(format!(
                    "the ages did not become as wanted: the worst class is {:.3} from its share; give more --rounds",
                    ended.distance
                ));
            }
            ("recipe age-target".into(), target.described())
        }
    };
    Ok(source)
}
