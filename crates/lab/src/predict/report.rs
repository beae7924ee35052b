//! What a reader of predictions wants besides: which system is faster, what to change, and how it was in truth.

use super::compare::{Outcome, faster};
use super::engine::{Engine, Options, Prediction};
use super::parse::parse;
use super::preprocess::{Preprocess, Sizes};
use super::summary::Summary;
use super::tree::Tree;
use crate::trace::Record;
use crate::vector::PROBABILITIES;
use schemars::JsonSchema;
use serde::Serialize;

/// One system is faster than another.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Rank {
    /// The one.
    pub faster: String,
    /// The other.
    pub slower: String,
    /// How likely it is that this is right.
    pub probability: f64,
}

/// What something would save.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Change {
    /// What is changed.
    pub what: String,
    /// Seconds by which the total would be less.
    pub seconds_less: f64,
}

/// Calls of a class as they were measured.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MeasuredClass {
    /// The class.
    pub name: String,
    /// Seconds of all its calls.
    pub seconds: f64,
    /// By which part of that the prediction misses it; none where none was made.
    pub error: Option<f64>,
    /// Quantiles of the time of one call, milliseconds, as of predictions.
    pub quantiles: [f64; PROBABILITIES.len()],
}

/// A workload as it was measured on a system.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Measured {
    /// The system.
    pub system: String,
    /// Seconds of all calls together.
    pub total_seconds: f64,
    /// By which part of that the prediction misses it: 0.1 is 10 % more.
    pub error: f64,
    /// Seconds from the first call to the end of the last.
    pub elapsed_seconds: f64,
    /// By which part of that the prediction misses it.
    pub elapsed_error: f64,
    /// By class.
    pub classes: Vec<MeasuredClass>,
}

/// Every pair of systems, the surest first.
pub fn ranks(predictions: &[Prediction]) -> Vec<Rank> {
    let mut ranks = Vec::new();
    for (at, one) in predictions.iter().enumerate() {
        for other in &predictions[at + 1..] {
            let (first, second) = if one.total_seconds <= other.total_seconds { (one, other) } else { (other, one) };
            let of = |one: &Prediction| (one.total_seconds, one.deviation_seconds);
            let (faster_name, slower) = (first.system.clone(), second.system.clone());
            ranks.push(Rank { faster: faster_name, slower, probability: faster(of(first), of(second)) });
        }
    }
    ranks.sort_by(|one, other| other.probability.total_cmp(&one.probability));
    ranks
}

/// Adds to predictions what changes would save: the results of the vector that take the most time, twice as fast; and twice
/// the memory, where `doubled` was simulated with that.
pub fn changes(predictions: &mut [Prediction], doubled: Option<&[Prediction]>) {
    for (at, one) in predictions.iter_mut().enumerate() {
        let uses = one.uses.iter().take(3);
        one.changes = uses
            .map(|used| Change { what: format!("{} twice as fast", used.key), seconds_less: used.seconds / 2.0 })
            .collect();
        if let Some(other) = doubled.and_then(|doubled| doubled.get(at)) {
            let seconds_less = one.total_seconds - other.total_seconds;
            one.changes.push(Change { what: "twice the memory for caches".into(), seconds_less });
        }
        one.changes.sort_by(|one, other| other.seconds_less.total_cmp(&one.seconds_less));
    }
}

/// Times of a trace that somebody ran.
#[derive(Debug)]
pub struct Truth {
    names: Preprocess,
    summary: Summary,
    calls: u64,
    begin_ns: u64,
    end_ns: u64,
}

impl Default for Truth {
    fn default() -> Truth {
        Truth {
            names: Preprocess::new(Tree::new("/"), Sizes::default()),
            summary: Summary::default(),
            calls: 0,
            begin_ns: u64::MAX,
            end_ns: 0,
        }
    }
}

impl Truth {
    /// The next call. (Which names are there decides which opens are creations.)
    pub fn see(&mut self, record: &Record) {
        self.begin_ns = self.begin_ns.min(record.at_ns);
        self.end_ns = self.end_ns.max(record.at_ns.saturating_add(record.latency_ns));
        let mut chain = parse(self.calls, record);
        self.calls += 1;
        self.names.apply(&mut chain);
        self.summary.see(&chain);
    }

    /// Beside what was predicted. `None` if the trace has no times.
    pub fn beside(&self, prediction: &Prediction) -> Option<Measured> {
        let total_seconds = self.summary.measured_seconds();
        if total_seconds <= 0.0 {
            return None;
        }
        let mut classes: Vec<MeasuredClass> = Vec::new();
        for (name, (seconds, quantiles)) in self.summary.measured() {
            let predicted = prediction.classes.iter().find(|class| class.name == name);
            let error = predicted.map(|class| class.seconds / seconds - 1.0);
            classes.push(MeasuredClass { name, seconds, error, quantiles });
        }
        classes.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        let error = prediction.total_seconds / total_seconds - 1.0;
        let elapsed_seconds = self.end_ns.saturating_sub(self.begin_ns) as f64 / 1e9;
        let elapsed_error = prediction.elapsed_seconds / elapsed_seconds - 1.0;
        let system = prediction.system.clone();
        Some(Measured { system, total_seconds, error, elapsed_seconds, elapsed_error, classes })
    }
}

/// Predictions and measurements of one workload: from the first call to the end of the last. (Of many threads, the times of
/// single calls are mostly those of waiting for each other.)
pub fn outcomes(workload: &str, predictions: &[Prediction], measured: &[Measured]) -> Vec<Outcome> {
    let of = |one: &Measured| {
        let prediction = predictions.iter().find(|prediction| prediction.system == one.system)?;
        let (workload, system) = (workload.to_string(), one.system.clone());
        Some(Outcome { workload, system, measured: one.elapsed_seconds, predicted: prediction.elapsed_seconds })
    };
    measured.iter().filter_map(of).collect()
}

/// Options with twice the memory, for those systems that gave something up.
pub fn doubled(engine: &Engine, options: Options, memory: u64) -> Option<Options> {
    let gave_up = |prediction: Prediction| {
        prediction.caches.is_some_and(|caches| caches.pages_evicted + caches.inodes_evicted + caches.names_evicted > 0)
    };
    let any = engine.systems.iter().any(|system| gave_up(system.prediction()));
    any.then_some(Options { memory: Some(memory.saturating_mul(2)), ..options })
}

/// What predictions and measurements of a workload on a system are about, in the ledger: `lab run` names them so too.
pub fn subject(workload: &str, system: &str) -> String {
    format!("{workload} on {system}")
}

/// Which number it is there: seconds from the first call to the end of the last.
pub const QUANTITY: &str = "run.total";
/// Its unit.
pub const UNIT: &str = "s";
/// Which number pages of files that came into the page cache are there.
pub const PAGES_QUANTITY: &str = "run.pages";
/// Their unit.
pub const PAGES_UNIT: &str = "pages";
/// By which part the number of pages may be missed where memory does not end; docs/lab.md shows what was seen.
pub const PAGES_ERROR: f64 = 0.05;
