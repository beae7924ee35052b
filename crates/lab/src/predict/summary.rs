//! Sixth stage: what all calls took, by class and by cause.

use super::price::{Cause, Price};
use super::step::{Chain, Kind, Step};
use crate::vector::{PROBABILITIES, Value};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Calls of a kind.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Class {
    /// As in a trace; `create` is an open that made its file.
    pub name: String,
    /// Calls.
    pub count: u64,
    /// Seconds of all.
    pub seconds: f64,
    /// Part of the time of all calls.
    pub share: f64,
    /// Quantiles of the time of one call, milliseconds, at probabilities 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.
    pub quantiles: [f64; PROBABILITIES.len()],
    /// Seconds of all as the trace has them, if it has.
    pub traced_seconds: Option<f64>,
}

/// Why time passes.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Share {
    /// Why.
    pub cause: Cause,
    /// Seconds.
    pub seconds: f64,
    /// Part of all.
    pub share: f64,
    /// What would make it less.
    pub remedy: String,
}

/// A result of the vector, and how often it was used.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Use {
    /// The result.
    pub key: String,
    /// How often.
    pub count: f64,
    /// Seconds.
    pub seconds: f64,
}

/// Times of calls by class.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    classes: BTreeMap<&'static str, Times>,
}

#[derive(Clone, Debug, Default)]
struct Times {
    predicted_ns: u64,
    measured_ns: u64,
    drawn_ms: Vec<f64>,
    measured_ms: Vec<f64>,
}

/// The class of a call.
pub fn class(call: &Step) -> &'static str {
    match (call.kind, call.op) {
        (Kind::Create, _) => "create",
        (_, Some(op)) => op.name(),
        (_, None) => "none",
    }
}

impl Summary {
    /// Counts a call.
    pub fn see(&mut self, chain: &Chain) {
        let Some(call) = chain.last() else { return };
        let times = self.classes.entry(class(call)).or_default();
        times.predicted_ns += chain.iter().map(|step| step.predicted_ns).sum::<u64>();
        times.measured_ns += call.measured_ns;
        times.drawn_ms.push(call.drawn_ns as f64 / 1e6);
        times.measured_ms.push(call.measured_ns as f64 / 1e6);
    }

    /// All classes, that with the most time first. Quantiles are of what was predicted.
    pub fn classes(&self) -> Vec<Class> {
        let total: u64 = self.classes.values().map(|times| times.predicted_ns).sum();
        let seconds = |ns: u64| ns as f64 / 1e9;
        let mut classes: Vec<Class> = self
            .classes
            .iter()
            .map(|(name, times)| Class {
                name: (*name).into(),
                count: times.drawn_ms.len() as u64,
                seconds: seconds(times.predicted_ns),
                share: times.predicted_ns as f64 / total.max(1) as f64,
                quantiles: quantiles(&times.drawn_ms),
                traced_seconds: (times.measured_ns > 0).then(|| seconds(times.measured_ns)),
            })
            .collect();
        classes.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        classes
    }

    /// Quantiles of the times that the trace has, milliseconds, for each class with any.
    pub fn measured(&self) -> BTreeMap<String, (f64, [f64; PROBABILITIES.len()])> {
        let with = self.classes.iter().filter(|(_, times)| times.measured_ns > 0);
        with.map(|(name, times)| ((*name).into(), (times.measured_ns as f64 / 1e9, quantiles(&times.measured_ms))))
            .collect()
    }

    /// Seconds of all calls as the trace has them.
    pub fn measured_seconds(&self) -> f64 {
        self.classes.values().map(|times| times.measured_ns).sum::<u64>() as f64 / 1e9
    }
}

fn quantiles(times: &[f64]) -> [f64; PROBABILITIES.len()] {
    Value::of(times.to_vec()).and_then(|value| value.quantiles).unwrap_or_default()
}

/// The causes of a bill, the largest first.
pub fn causes(price: &Price) -> Vec<Share> {
    let total = price.bill().total();
    let mut shares: Vec<Share> = price
        .bill()
        .causes
        .iter()
        .map(|(cause, time)| Share {
            cause: *cause,
            seconds: time / 1e3,
            share: if total > 0.0 { time / total } else { 0.0 },
            remedy: cause.remedy().into(),
        })
        .collect();
    shares.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    shares
}

/// Results of the vector that were used, that with the most time first: the request vector.
pub fn uses(price: &Price) -> Vec<Use> {
    let uses = price.bill().uses.iter();
    let mut uses: Vec<Use> =
        uses.map(|(key, (count, time))| Use { key: key.to_string(), count: *count, seconds: time / 1e3 }).collect();
    uses.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    uses
}
