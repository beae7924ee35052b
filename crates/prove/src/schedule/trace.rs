//! Executions as files, that can be replayed.
//!
//! JSON: what was run, its choices as triples (number of the task, or 0 for a value; which option; of how many), and a log of
//! what happened, in one order, for people: it is not read back.

use super::{Harness, ScheduleOptions, Scheduler, bug, harness};
use ashlar_env::sim::{Choice, End, Entry, Schedule, Sim, Trace};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::Path;

const FORMAT: u32 = 1;
/// Length of a file, in bytes.
const FILE_MAX: u64 = 64 << 20;
/// Steps that an execution may have.
pub(super) const STEPS_MAX: u64 = 10_000_000;

/// An execution that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleTrace {
    header: Header,
    choices: Vec<Choice>,
    log: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    ashlar_schedule: u32,
    harness: String,
    bug: Option<String>,
    scheduler: Scheduler,
    depth: u32,
    seed: u64,
    iteration: u64,
    /// The seed of this execution, made from the two.
    run_seed: u64,
    steps_max: u64,
    message: String,
}

/// As it is in the file.
#[derive(Deserialize)]
struct File {
    #[serde(flatten)]
    header: Header,
    choices: Vec<(u32, u32, u32)>,
    #[serde(default, rename = "log")]
    _log: serde::de::IgnoredAny,
}

#[derive(Serialize)]
struct Line<'a> {
    step: u64,
    at_ns: u64,
    task: &'a str,
    what: &'a str,
}

/// What a run left.
pub(super) struct Recorded {
    pub(super) end: End,
    pub(super) trace: Trace,
    log: Vec<Entry>,
}

/// One execution.
pub(super) fn run(
    harness: &dyn Harness,
    bug: Option<&'static str>,
    run_seed: u64,
    schedule: Schedule,
    steps_max: u64,
    keep_log: bool,
) -> Recorded {
    let sim = Sim::new(run_seed, schedule);
    if keep_log {
        sim.keep_log();
    }
    harness.start(&sim.handle(), bug);
    let end = sim.run_all(steps_max);
    Recorded { end, trace: sim.trace(), log: sim.log() }
}

/// What a replay came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Replayed {
    /// The system.
    pub harness: String,
    /// The violation, the same as was recorded.
    pub message: Option<String>,
    /// Where, or how, the run was another one.
    pub diverged: Option<String>,
}

impl ScheduleTrace {
    /// Runs an execution again, for its log.
    pub(super) fn record(
        options: &ScheduleOptions,
        iteration: u64,
        run_seed: u64,
        message: String,
        trace: Trace,
    ) -> Result<ScheduleTrace, String> {
        let ScheduleOptions { harness, bug, scheduler, depth, steps_max, seed, .. } = *options;
        let again = run(harness, bug, run_seed, Schedule::Replay(trace.choices.clone()), steps_max, true);
        let same = again.end == End::Violation(message.clone()) && again.trace == trace;
        if !same {
            return Err(format!(
                "iteration {iteration} of seed {seed} cannot be repeated: it ended with {message:?}, and then with {:?}; the \
                 harness {} depends on more than its simulation",
                again.end,
                harness.name()
            ));
        }
        let header = Header {
            ashlar_schedule: FORMAT,
            harness: harness.name().into(),
            bug: bug.map(str::to_string),
            scheduler,
            depth,
            seed,
            iteration,
            run_seed,
            steps_max,
            message,
        };
        Ok(ScheduleTrace { header, choices: trace.choices, log: again.log })
    }

    /// Runs it again, exactly.
    ///
    /// # Errors
    /// If the harness or its bug is not known here.
    pub fn replay(&self) -> Result<Replayed, String> {
        let Header { run_seed, steps_max, message, .. } = &self.header;
        let harness = harness(&self.header.harness)?;
        let bug = self.header.bug.as_deref().map(|name| bug(harness, name)).transpose()?;
        let again = run(harness, bug, *run_seed, Schedule::Replay(self.choices.clone()), *steps_max, false);
        let mut replayed = Replayed { harness: harness.name().into(), message: None, diverged: None };
        match again.end {
            End::Violation(said) if said == *message => replayed.message = Some(said),
            End::Violation(said) => {
                replayed.diverged = Some(format!("all choices fit, but it found {said:?} and not {message:?}"));
            }
            End::Diverged(at) => replayed.diverged = Some(at),
            end => replayed.diverged = Some(format!("all choices fit, but it ended {end:?} and not with {message:?}")),
        }
        Ok(replayed)
    }

    /// What was wrong.
    pub fn message(&self) -> &str {
        &self.header.message
    }

    /// What happened, in one order. A trace that was read from a file has none.
    pub fn log(&self) -> &[Entry] {
        &self.log
    }

    /// The file.
    pub fn encode(&self) -> serde_json::Result<String> {
        let header = serde_json::to_string_pretty(&self.header)?;
        let choices: Vec<_> = self.choices.iter().map(|choice| (choice.task, choice.taken, choice.of)).collect();
        let mut text = header.trim_end().trim_end_matches('}').trim_end().to_string();
        text += &format!(",\n  \"choices\": {},\n  \"log\": [", serde_json::to_string(&choices)?);
        for (index, entry) in self.log.iter().enumerate() {
            let Entry { step, at, task, what } = entry;
            text += if index == 0 { "\n    " } else { ",\n    " };
            text += &serde_json::to_string(&Line { step: *step, at_ns: at.0, task, what })?;
        }
        Ok(text + "\n  ]\n}\n")
    }

    /// Reads a file, whoever made it.
    pub fn read(path: &Path) -> Result<ScheduleTrace, String> {
        let named = |what: String| format!("{}: {what}", path.display());
        let file = std::fs::File::open(path).map_err(|error| named(error.to_string()))?;
        let mut text = Vec::new();
        file.take(FILE_MAX + 1).read_to_end(&mut text).map_err(|error| named(error.to_string()))?;
        ScheduleTrace::decode(&text).map_err(named)
    }

    /// Reads what [`ScheduleTrace::encode`] wrote, but for the log.
    pub fn decode(text: &[u8]) -> Result<ScheduleTrace, String> {
        if text.len() as u64 > FILE_MAX {
            return Err(format!("a trace is not longer than {FILE_MAX} bytes"));
        }
        let refuse =
            |what: String| format!("this is no trace that `ashlar prove schedule` wrote, or it is damaged: {what}");
        let File { header, choices, .. } = serde_json::from_slice(text).map_err(|error| refuse(error.to_string()))?;
        if header.ashlar_schedule != FORMAT {
            return Err(format!("the trace has format {}; this program reads {FORMAT}", header.ashlar_schedule));
        }
        if header.steps_max > STEPS_MAX {
            return Err(refuse(format!("{} steps are more than {STEPS_MAX}", header.steps_max)));
        }
        let choice = |(at, (task, taken, of)): (usize, (u32, u32, u32))| {
            let fits = of >= 2 && taken < of;
            fits.then_some(Choice { task, taken, of }).ok_or_else(|| refuse(format!("choice {at} is {taken} of {of}")))
        };
        let choices = choices.into_iter().enumerate().map(choice).collect::<Result<_, _>>()?;
        Ok(ScheduleTrace { header, choices, log: Vec::new() })
    }
}
