//! Workloads as programs: calls of each thread, by parameters that are stated and a seed.
//!
//! A [`Kind`] has a name, a source and [`Parameter`]s; [`Kind::plan`] makes a [`Plan`] of them: what is there before
//! (*setup*) and what is measured (*run*), each in stages that follow each other, with threads that run at once. A thread is
//! an iterator of [`Record`]s in bounded memory; what chance decides depends on the seed and the thread alone.
//!
//! Times in these records say nothing but their order: nobody ran them yet.

mod build;
mod calls;
mod fileset;
mod git;
mod mail;
mod object;
mod postmark;
mod servers;
mod small;
mod values;

pub use calls::{Caller, Opened, Thread};
pub use fileset::depth;
pub use values::{Parameter, Unit, Values, WorkloadError};

pub(crate) use object::directory_of_object;

use crate::trace::Record;

/// A kind of workload.
#[derive(Debug)]
pub struct Kind {
    /// As on the command line.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub what: &'static str,
    /// Who described it, and what was filled in here.
    pub source: &'static str,
    /// What can be set.
    pub parameters: &'static [Parameter],
    plan: fn(&Values) -> Result<Plan, WorkloadError>,
}

/// Threads that run at once.
pub type Stage = Vec<Thread>;

/// What a workload does.
#[derive(Default)]
pub struct Plan {
    /// What must be there before.
    pub setup: Vec<Stage>,
    /// What is measured.
    pub run: Vec<Stage>,
}

/// All kinds, in the order in which they are listed.
pub static KINDS: [&Kind; 10] = [
    &postmark::POSTMARK,
    &servers::FILE,
    &servers::WEB,
    &servers::MAIL,
    &servers::DATABASE,
    &build::BUILD,
    &mail::MAIL_SYNC,
    &git::GIT_HISTORY,
    &object::OBJECT_BENCH,
    &small::SMALL_FILE,
];

impl Kind {
    /// The kind of a name.
    pub fn find(name: &str) -> Result<&'static Kind, WorkloadError> {
        KINDS.into_iter().find(|kind| kind.name == name).ok_or_else(|| {
            let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
            WorkloadError(format!("{name:?} is no workload; there are {}", names.join(", ")))
        })
    }

    /// Its values where nothing is set.
    pub fn values(&'static self, seed: u64) -> Values {
        Values::new(self.name, self.parameters, seed)
    }

    /// What it does with these values.
    pub fn plan(&self, values: &Values) -> Result<Plan, WorkloadError> {
        (self.plan)(values)
    }
}

/// The records of stages as one trace: threads of a stage take turns, and a stage begins when the one before has ended.
pub fn records(stages: Vec<Stage>) -> impl Iterator<Item = Record> {
    let mut at_ns = 0;
    stages.into_iter().flat_map(turns).map(move |mut record| {
        record.at_ns = at_ns;
        at_ns += 1;
        record
    })
}

/// One record of each thread after the other.
fn turns(mut threads: Stage) -> impl Iterator<Item = Record> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while !threads.is_empty() {
            at %= threads.len();
            if let Some(record) = threads[at].next() {
                at += 1;
                return Some(record);
            }
            // The next one is at its place now.
            drop(threads.remove(at));
        }
        None
    })
}

#[cfg(test)]
mod tests;
