//! What prices add up to.

use crate::predict::step::Step;
use crate::vector::{Key, Terms, Vector};
use ashlar_models::Chance;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Why time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Names that are in memory.
    CachedLookups,
    /// Names or attributes that are not.
    UncachedLookups,
    /// Opening and closing.
    Opens,
    /// Attributes that are asked for or set.
    Attributes,
    /// Reading what is in memory.
    CachedReads,
    /// Reading what is not, in order.
    SequentialReads,
    /// Reading what is not, not in order.
    RandomReads,
    /// Writing into memory.
    Writes,
    /// Reading blocks of which parts are written.
    PartialBlocks,
    /// Making files and directories.
    Creates,
    /// Removing them, and giving up content.
    Removes,
    /// Renaming and linking.
    Renames,
    /// Making data durable.
    Syncs,
    /// Waiting for blocks that are written back beside.
    WriteBack,
    /// Waiting, as there is too much dirty data.
    HeldUp,
    /// Waiting for others: for the processors and the device, or for the same directory.
    Crowds,
    /// Anything else.
    Others,
}

impl Cause {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Cause::CachedLookups => "cached lookups",
            Cause::UncachedLookups => "uncached lookups",
            Cause::Opens => "open and close",
            Cause::Attributes => "attributes",
            Cause::CachedReads => "cached reads",
            Cause::SequentialReads => "uncached reads, sequential",
            Cause::RandomReads => "uncached reads, random",
            Cause::Writes => "writes into memory",
            Cause::PartialBlocks => "reading parts of blocks to write",
            Cause::Creates => "create",
            Cause::Removes => "remove and cut",
            Cause::Renames => "rename and link",
            Cause::Syncs => "sync",
            Cause::WriteBack => "write-back beside",
            Cause::HeldUp => "held up by dirty data",
            Cause::Crowds => "waiting for others",
            Cause::Others => "other calls",
        }
    }

    /// What would make it less.
    pub fn remedy(self) -> &'static str {
        match self {
            Cause::CachedLookups => "shorter paths, or calls on open directories",
            Cause::UncachedLookups => "more memory for names and inodes, or fewer directories",
            Cause::Opens => "keep files open",
            Cause::Attributes => "ask less often",
            Cause::CachedReads => "larger requests, or a mapping",
            Cause::SequentialReads => "a faster device, or more memory if it is read again",
            Cause::RandomReads => "more memory, or a device with shorter times of access",
            Cause::Writes => "larger requests",
            Cause::PartialBlocks => "write whole blocks, or read the file before",
            Cause::Creates => "a file system that creates faster, or fewer and larger files",
            Cause::Removes => "fewer and larger files",
            Cause::Renames => "rename less",
            Cause::Syncs => "sync several files together, or a device with a fast durable cache",
            Cause::WriteBack => "write fewer distinct blocks, or a faster device",
            Cause::HeldUp => "higher limits on dirty data, or a faster device",
            Cause::Crowds => "fewer threads at once, a directory for each, or more processors or a faster device",
            Cause::Others => "see the classes",
        }
    }
}

/// Times so far.
#[derive(Clone, Debug)]
pub struct Bill {
    /// Milliseconds by cause.
    pub causes: BTreeMap<Cause, f64>,
    /// How often each result of the vector was used, and milliseconds for it: the request vector of the trace.
    pub uses: BTreeMap<Key, (f64, f64)>,
    /// Steps for which the vector has no result, by what would have been used.
    pub unpriced: BTreeMap<&'static str, u64>,
    /// Milliseconds of what all threads share that were used since somebody asked.
    demand: f64,
    chance: Chance,
}

impl Bill {
    /// Nothing yet.
    pub fn new(seed: u64) -> Bill {
        let (causes, uses, unpriced) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Bill { causes, uses, unpriced, demand: 0.0, chance: Chance::new(seed) }
    }

    /// Adds a time to a step, of which it uses a share of what all threads share; `name` says what it is where the vector has
    /// it not.
    pub fn add(
        &mut self,
        vector: &Vector,
        step: &mut Step,
        cause: Cause,
        terms: Option<Terms>,
        share: f64,
        name: &'static str,
    ) {
        let Some(terms) = terms else {
            *self.unpriced.entry(name).or_default() += 1;
            return;
        };
        let (mut milliseconds, mut drawn) = (0.0, 0.0);
        let p = self.chance.unit();
        for (key, weight, each) in terms.iter().filter(|(_, weight, _)| *weight > 0.0) {
            let time = weight * each;
            let uses = self.uses.entry(key).or_default();
            *uses = (uses.0 + weight, uses.1 + time);
            milliseconds += time;
            drawn += time * vector.get(key).map_or(1.0, |value| value.relative_quantile(p));
        }
        self.demand += share * milliseconds;
        self.time(step, cause, milliseconds, drawn);
    }

    /// Adds a time in which what all threads share is used, and that no result of the vector stands for.
    pub fn shared_time(&mut self, step: &mut Step, cause: Cause, milliseconds: f64) {
        self.demand += milliseconds;
        self.time(step, cause, milliseconds, milliseconds);
    }

    /// What was used of what all threads share since this was last asked, nanoseconds.
    pub fn take_demand(&mut self) -> u64 {
        (std::mem::take(&mut self.demand) * 1e6).round() as u64
    }

    /// Adds a time that no result of the vector stands for.
    pub fn time(&mut self, step: &mut Step, cause: Cause, milliseconds: f64, drawn: f64) {
        *self.causes.entry(cause).or_default() += milliseconds;
        step.predicted_ns = step.predicted_ns.saturating_add((milliseconds * 1e6).round() as u64);
        step.drawn_ns = step.drawn_ns.saturating_add((drawn * 1e6).round() as u64);
    }

    /// All, milliseconds.
    pub fn total(&self) -> f64 {
        self.causes.values().sum()
    }

    /// The standard error that comes from those of the vector, milliseconds.
    pub fn error(&self, vector: &Vector) -> f64 {
        self.uses.iter().map(|(key, (_, time))| (time * vector.relative_error(*key)).powi(2)).sum::<f64>().sqrt()
    }
}
