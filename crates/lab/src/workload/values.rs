//! Parameters of workloads.

use ashlar_units::Bytes;
use schemars::JsonSchema;
use serde::Serialize;

/// What a parameter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// A number from 0 to 10^9.
    Count,
    /// A size up to 1 TiB, as in `16KiB`.
    Bytes,
    /// A number from 0 to 1.
    Share,
    /// A number above 0 and up to 100.
    Shape,
    /// A path on this machine.
    Path,
}

/// What can be set of a workload.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Parameter {
    /// As on the command line.
    pub name: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// Its value where nothing is set.
    pub default: &'static str,
    /// What it is.
    pub what: &'static str,
}

/// What is wrong with what was set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WorkloadError(pub String);

/// Values of all parameters of one kind of workload.
#[derive(Clone, Debug)]
pub struct Values {
    kind: &'static str,
    seed: u64,
    all: Vec<(&'static Parameter, String)>,
}

const COUNT_MAX: u64 = 1_000_000_000;
const BYTES_MAX: Bytes = Bytes(1 << 40);

fn number(unit: Unit, text: &str) -> Option<f64> {
    match unit {
        Unit::Count => text.parse::<u64>().ok().filter(|count| *count <= COUNT_MAX).map(|count| count as f64),
        Unit::Bytes => text.parse::<Bytes>().ok().filter(|size| size.0 <= BYTES_MAX.0).map(|size| size.0 as f64),
        Unit::Share => text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share)),
        Unit::Shape => text.parse::<f64>().ok().filter(|shape| *shape > 0.0 && *shape <= 100.0),
        Unit::Path => Some(0.0),
    }
}

impl Values {
    pub(super) fn new(kind: &'static str, parameters: &'static [Parameter], seed: u64) -> Values {
        let all = parameters.iter().map(|parameter| (parameter, parameter.default.to_string())).collect();
        Values { kind, seed, all }
    }

    /// Sets `NAME=VALUE`.
    pub fn set(&mut self, text: &str) -> Result<(), WorkloadError> {
        let wrong = |what: String| Err(WorkloadError(what));
        let Some((name, value)) = text.split_once('=') else {
            return wrong(format!("{text:?} is not NAME=VALUE"));
        };
        let kind = self.kind;
        let names: Vec<&str> = self.all.iter().map(|(parameter, _)| parameter.name).collect();
        let Some((parameter, old)) = self.all.iter_mut().find(|(parameter, _)| parameter.name == name) else {
            return wrong(format!("{kind} has no parameter {name:?}; there are {}", names.join(", ")));
        };
        if number(parameter.unit, value).is_none() {
            let what = match parameter.unit {
                Unit::Count => "a number up to 1000000000",
                Unit::Bytes => "a size up to 1TiB, as in 16KiB",
                Unit::Share => "a number from 0 to 1",
                Unit::Shape => "a number above 0 and up to 100",
                Unit::Path => "a path",
            };
            return wrong(format!("{value:?} cannot be {name} of {kind}: write {what}"));
        }
        *old = value.into();
        Ok(())
    }

    /// All, as they are.
    pub fn all(&self) -> impl Iterator<Item = (&'static Parameter, &str)> {
        self.all.iter().map(|(parameter, value)| (*parameter, value.as_str()))
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Name, seed and what differs from the defaults, in one line.
    pub fn described(&self) -> String {
        let mut text = self.kind.to_string();
        for (parameter, value) in self.all().filter(|(parameter, value)| parameter.default != *value) {
            text += &format!(" {}={value}", parameter.name);
        }
        text + &format!(" seed={}", self.seed)
    }

    pub(super) fn text(&self, name: &str) -> &str {
        self.all().find(|(parameter, _)| parameter.name == name).map_or("", |(_, value)| value)
    }

    /// A share or shape; or zero, which no caller asks for, where there is no such parameter.
    pub(super) fn number(&self, name: &str) -> f64 {
        let found = self.all().find(|(parameter, _)| parameter.name == name);
        found.and_then(|(parameter, value)| number(parameter.unit, value)).unwrap_or(0.0)
    }

    /// A count or a size.
    pub(super) fn whole(&self, name: &str) -> u64 {
        self.number(name) as u64
    }

    /// A count or a size that is not zero.
    pub(super) fn some(&self, name: &str) -> Result<u64, WorkloadError> {
        match self.whole(name) {
            0 => Err(WorkloadError(format!("{name} of {} cannot be 0", self.kind))),
            found => Ok(found),
        }
    }

    /// How many threads there are.
    pub(super) fn threads(&self, name: &str) -> Result<u64, WorkloadError> {
        let most = 1000;
        match self.some(name)? {
            count if count > most => Err(WorkloadError(format!("{name} of {} can be at most {most}", self.kind))),
            count => Ok(count),
        }
    }
}
