//! The loop around executions.

use super::trace::{Recorded, ScheduleTrace, run};
use super::{Harness, harness};
use ashlar_env::sim::{End, Enumeration, Schedule, Trace};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Random executions whose lengths say how long one is, for PCT.
const MEASURED: u64 = 21;

/// How the next task is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scheduler {
    /// The one that became ready first; only values are left to chance.
    Fifo,
    /// Any.
    Random,
    /// By random priorities, that fall at a few random steps.
    Pct,
    /// Every order and every value, one after another; for tiny systems.
    Exhaustive,
}

impl FromStr for Scheduler {
    type Err = String;
    fn from_str(text: &str) -> Result<Scheduler, String> {
        match text {
            "fifo" => Ok(Scheduler::Fifo),
            "random" => Ok(Scheduler::Random),
            "pct" => Ok(Scheduler::Pct),
            "exhaustive" => Ok(Scheduler::Exhaustive),
            _ => Err(format!("{text:?} is no scheduler: there are fifo, random, pct and exhaustive")),
        }
    }
}

/// What to explore, and how far.
#[derive(Clone, Copy)]
pub struct ScheduleOptions {
    /// The system.
    pub harness: &'static dyn Harness,
    /// The bug that is planted in it.
    pub bug: Option<&'static str>,
    /// How tasks are chosen.
    pub scheduler: Scheduler,
    /// For PCT: how many orderings a bug may need.
    pub depth: u32,
    /// Executions, at most.
    pub iterations: u64,
    /// Steps that stand for ever.
    pub steps_max: u64,
    /// Determines, with the number of an execution, all of it.
    pub seed: u64,
    /// Time, at most; one execution is always made.
    pub budget: Duration,
}

/// What an exploration came to.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ScheduleOutcome {
    /// The system.
    pub harness: String,
    /// The bug that was planted in it.
    pub bug: Option<String>,
    /// How tasks were chosen.
    pub scheduler: Scheduler,
    /// The seed.
    pub seed: u64,
    /// Executions.
    pub executions: u64,
    /// Polls of tasks in all of them.
    pub steps: u64,
    /// Choices in the longest.
    pub choices_max: u64,
    /// Executions that the bound on steps ended, with all monitors cold.
    pub bounded: u64,
    /// Every execution there is was made.
    pub exhausted: bool,
    /// Time that it took.
    pub seconds: f64,
    /// What was found.
    pub violation: Option<Violation>,
}

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Violation {
    /// What.
    pub message: String,
    /// The number of the execution.
    pub iteration: u64,
    /// Choices in it.
    pub choices: u64,
    /// All of it, to be replayed.
    #[serde(skip)]
    pub trace: ScheduleTrace,
}

/// The seed of one execution (SplitMix64).
fn seed_of(seed: u64, iteration: u64) -> u64 {
    let mut word = seed.wrapping_add(iteration.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl ScheduleOptions {
    /// About how many steps an execution has: the median of some random ones. Not more than a part of the bound, since PCT is
    /// fair only behind it.
    fn steps_estimate(&self) -> u64 {
        let steps = |number| self.execute(seed_of(!self.seed, number), Schedule::Random).1.steps;
        let mut all: Vec<u64> = (0..MEASURED).map(steps).collect();
        all.sort_unstable();
        all[all.len() / 2].min(self.steps_max / 4)
    }

    fn execute(&self, run_seed: u64, schedule: Schedule) -> (End, Trace) {
        let Recorded { end, trace, .. } = run(self.harness, self.bug, run_seed, schedule, self.steps_max, false);
        (end, trace)
    }
}

/// Makes executions until one fails, all are made, or `stop` is set. `progress` is told how many there were.
///
/// # Errors
/// If an execution that failed cannot be repeated: the system depends on more than its simulation.
pub fn explore_schedules(
    options: &ScheduleOptions,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64),
) -> Result<ScheduleOutcome, String> {
    let began = Instant::now();
    let mut outcome = ScheduleOutcome {
        harness: options.harness.name().into(),
        bug: options.bug.map(str::to_string),
        scheduler: options.scheduler,
        seed: options.seed,
        executions: 0,
        steps: 0,
        choices_max: 0,
        bounded: 0,
        exhausted: false,
        seconds: 0.0,
        violation: None,
    };
    let pct = if options.scheduler == Scheduler::Pct {
        Schedule::Pct { depth: options.depth, steps: options.steps_estimate() }
    } else {
        Schedule::Random
    };
    let mut enumeration = Enumeration::new();
    while outcome.violation.is_none()
        && outcome.executions < options.iterations
        && (outcome.executions == 0 || began.elapsed() < options.budget)
        && !stop.load(Ordering::Acquire)
    {
        let iteration = outcome.executions;
        let (run_seed, schedule) = match options.scheduler {
            Scheduler::Fifo => (seed_of(options.seed, iteration), Schedule::Fifo),
            Scheduler::Random | Scheduler::Pct => (seed_of(options.seed, iteration), pct.clone()),
            Scheduler::Exhaustive => match enumeration.schedule() {
                // The system must be the same each time.
                Some(schedule) => (seed_of(options.seed, 0), schedule),
                None => break,
            },
        };
        let (end, trace) = options.execute(run_seed, schedule);
        enumeration.note(&trace.choices);
        outcome.executions += 1;
        outcome.steps += trace.steps;
        outcome.choices_max = outcome.choices_max.max(trace.choices.len() as u64);
        outcome.bounded += u64::from(end == End::Bound);
        if let End::Violation(message) = end {
            let choices = trace.choices.len() as u64;
            let trace = ScheduleTrace::record(options, iteration, run_seed, message.clone(), trace)?;
            outcome.violation = Some(Violation { message, iteration, choices, trace });
        }
        progress(outcome.executions);
    }
    outcome.exhausted = options.scheduler == Scheduler::Exhaustive && enumeration.schedule().is_none();
    outcome.seconds = began.elapsed().as_secs_f64();
    Ok(outcome)
}

impl ScheduleOptions {
    /// Options with the harness's own bound.
    pub fn new(name: &str, scheduler: Scheduler) -> Result<ScheduleOptions, String> {
        let harness = harness(name)?;
        Ok(ScheduleOptions {
            harness,
            bug: None,
            scheduler,
            depth: 3,
            iterations: 10_000,
            steps_max: harness.steps_max(),
            seed: 1,
            budget: Duration::MAX,
        })
    }
}
