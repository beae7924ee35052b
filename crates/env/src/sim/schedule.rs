//! Who runs next: schedules, and the record of what they chose.

use super::queue::SimTask;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How the next task is chosen among the ready ones, and a value where a task asks for one ([`super::Handle::choose`]).
///
/// A *step* is one poll of a task. Values come from the seed but for `Prefix` and `Replay`.
#[derive(Clone, Debug)]
pub enum Schedule {
    /// The one that became ready first.
    Fifo,
    /// Any, with equal chance.
    Random,
    /// By priority (PCT: Burckhardt et al., ASPLOS'10, section 3): tasks get random distinct priorities, the highest ready
    /// one runs, and at `depth - 1` random steps the one that would run falls below all others. Among `n` tasks and at most
    /// `steps` steps, a bug that needs `depth` orderings is hit with a chance of at least `1 / (n * steps^(depth - 1))`.
    /// From step `steps` on the schedule is random, so that a task that spins cannot keep the others waiting for ever.
    Pct {
        /// Orderings that the bug needs; 1 changes no priority.
        depth: u32,
        /// About how many steps a run has.
        steps: u64,
    },
    /// These options first, and the first option from then on; see [`super::Enumeration`].
    Prefix(Vec<u32>),
    /// Exactly what an earlier run recorded. What does not fit is told by [`super::Sim::diverged`].
    Replay(Vec<Choice>),
}

/// One of several options was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// The task that was chosen, by its number (the first that was spawned is 1); 0: a value was.
    pub task: u32,
    /// Which option, from 0.
    pub taken: u32,
    /// Of how many: at least 2, since there is no choice otherwise.
    pub of: u32,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.task {
            0 => write!(f, "value {} of {}", self.taken, self.of),
            task => write!(f, "task {task}, number {} of {} that were ready", self.taken, self.of),
        }
    }
}

/// The priority that a task has before it falls: at least 0 and, by its number in the low bits, like no other.
const NUMBER_BITS: u32 = 24;

pub(super) struct Chooser {
    schedule: Schedule,
    rng: Pcg64Mcg,
    /// Steps at which a priority falls.
    changes: Vec<u64>,
    /// The lowest priority so far.
    lowest: i64,
    /// Polls so far.
    pub(super) steps: u64,
    pub(super) choices: Vec<Choice>,
    pub(super) diverged: Option<String>,
}

impl Chooser {
    pub(super) fn new(seed: u64, schedule: Schedule) -> Chooser {
        let mut rng = Pcg64Mcg::seed_from_u64(seed ^ 0x5eed);
        let changes = match &schedule {
            Schedule::Pct { depth, steps } => {
                (1..*depth).map(|_| rng.random_range(0..(*steps).max(1))).collect::<Vec<_>>()
            }
            _ => Vec::new(),
        };
        Chooser { schedule, rng, changes, lowest: 0, steps: 0, choices: Vec::new(), diverged: None }
    }

    /// The priority of a new task.
    pub(super) fn priority(&mut self, number: u64) -> i64 {
        match self.schedule {
            Schedule::Pct { .. } => (i64::from(self.rng.random::<u32>()) << NUMBER_BITS) | (number as i64 & 0xff_ffff),
            _ => 0,
        }
    }

    /// Which of the ready tasks, at least one, runs.
    pub(super) fn task(&mut self, ready: &[Arc<SimTask>]) -> usize {
        let (step, count) = (self.steps, ready.len() as u32);
        self.steps += 1;
        let index = match &self.schedule {
            Schedule::Pct { steps, .. } if step < *steps => self.highest(ready, step),
            _ if count == 1 => return 0,
            Schedule::Fifo => 0,
            Schedule::Random | Schedule::Pct { .. } => self.rng.random_range(0..ready.len()),
            Schedule::Prefix(list) => prefixed(list, self.choices.len(), count) as usize,
            Schedule::Replay(_) => {
                let task = |taken: u32| ready[taken as usize].number as u32;
                self.replayed(count, task) as usize
            }
        };
        if count > 1 {
            self.choices.push(Choice { task: ready[index].number as u32, taken: index as u32, of: count });
        }
        index
    }

    /// One of `of` values, at least one.
    pub(super) fn value(&mut self, of: u32) -> u32 {
        if of == 1 {
            return 0;
        }
        let taken = match &self.schedule {
            Schedule::Fifo | Schedule::Random | Schedule::Pct { .. } => self.rng.random_range(0..of),
            Schedule::Prefix(list) => prefixed(list, self.choices.len(), of),
            Schedule::Replay(_) => self.replayed(of, |_| 0),
        };
        self.choices.push(Choice { task: 0, taken, of });
        taken
    }

    fn highest(&mut self, ready: &[Arc<SimTask>], step: u64) -> usize {
        let priority = |index: &usize| ready[*index].priority.load(Ordering::Relaxed);
        let highest = || (0..ready.len()).max_by_key(priority).unwrap_or(0);
        for _ in self.changes.iter().filter(|change| **change == step) {
            self.lowest -= 1;
            ready[highest()].priority.store(self.lowest, Ordering::Relaxed);
        }
        highest()
    }

    /// The recorded option, if it is there now; else notes that the run is another one.
    fn replayed(&mut self, of: u32, task: impl Fn(u32) -> u32) -> u32 {
        let Schedule::Replay(list) = &self.schedule else { return 0 };
        let at = self.choices.len();
        if self.diverged.is_some() {
            return 0;
        }
        let what = match list.get(at) {
            Some(recorded) if recorded.of == of && recorded.taken < of && recorded.task == task(recorded.taken) => {
                return recorded.taken;
            }
            Some(recorded) => {
                let now = if task(0) == 0 { format!("a value of {of}") } else { format!("{of} ready tasks") };
                format!("choice {at}, at step {}: recorded was {recorded}, but now there are {now}", self.steps)
            }
            None => format!("the recording ends after {at} choices, but the run goes on at step {}", self.steps),
        };
        self.diverged = Some(what);
        0
    }

    /// At the end of a run: whether it made as many choices as were recorded.
    pub(super) fn end(&mut self) {
        let (Schedule::Replay(list), at) = (&self.schedule, self.choices.len()) else { return };
        if self.diverged.is_none() && at < list.len() {
            self.diverged = Some(format!("the run ended after {at} of {} recorded choices", list.len()));
        }
    }
}

fn prefixed(list: &[u32], at: usize, of: u32) -> u32 {
    list.get(at).map_or(0, |taken| (*taken).min(of - 1))
}
