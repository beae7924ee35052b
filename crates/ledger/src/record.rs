//! What a ledger holds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Version of the lines that are written; what is written by a newer one is refused.
pub const FORMAT: u32 = 1;
/// Times beyond this are no times: the year 9999 ends, seconds since 1970.
const TIME_MAX: u64 = 253_402_300_799;

/// Inputs of a prediction, by name.
pub type Inputs = BTreeMap<String, Value>;

/// How a number came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// From a part of the data.
    Sampled,
    /// From a model.
    Modelled,
    /// From an emulator or a simulation.
    Emulated,
    /// From the thing itself.
    Measured,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Sampled => "sampled",
            Kind::Modelled => "modelled",
            Kind::Emulated => "emulated",
            Kind::Measured => "measured",
        })
    }
}

/// A number that was predicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prediction {
    /// What it is about, such as a path or a design with its workload. Measurements join by it and by `quantity`.
    pub subject: String,
    /// Which number, as in `dedup.fixed-4KiB.ratio`.
    pub quantity: String,
    /// Its unit, as in `ratio` or `years`.
    pub unit: String,
    /// The likeliest value, if the model says one.
    pub value: Option<f64>,
    /// The least that is expected.
    pub low: f64,
    /// The most that is expected.
    pub high: f64,
    /// How often the truth is in the range, by the model's own claim; above 0, at most 1.
    pub confidence: f64,
    /// What predicted it.
    pub model: String,
    /// Its version: it changes when the same inputs give other numbers.
    pub model_version: u32,
    /// How it came about: sampled or modelled.
    pub kind: Kind,
    /// What went into it.
    pub inputs: Inputs,
    /// [`fingerprint()`] of the inputs; filled in when the record is written.
    #[serde(default)]
    pub fingerprint: String,
}

/// A number that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measurement {
    /// The same text as in the prediction.
    pub subject: String,
    /// The same text as in the prediction.
    pub quantity: String,
    /// The same text as in the prediction.
    pub unit: String,
    /// What was measured.
    pub value: f64,
    /// How, as in `full scan`.
    pub how: String,
    /// Measured or emulated. Records of before this was written do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
}

impl Measurement {
    /// Measured or emulated.
    pub fn kind(&self) -> Kind {
        // Before there was a kind, the text said it.
        let said = if self.how.starts_with("emulated") { Kind::Emulated } else { Kind::Measured };
        self.kind.unwrap_or(said)
    }
}

/// A prediction or a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "record", rename_all = "lowercase")]
pub enum Record {
    /// What was predicted.
    Prediction(Prediction),
    /// What was measured.
    Measurement(Measurement),
}

/// A line of a ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Entry {
    /// Version of the line's form.
    pub format: u32,
    /// Names the record: hexadecimal digits.
    pub id: String,
    /// When it was written, seconds since 1970.
    pub time: u64,
    /// The record.
    #[serde(flatten)]
    pub record: Record,
}

/// A number that is the same whenever the inputs are, as 32 hexadecimal digits.
pub fn fingerprint(inputs: &Inputs) -> String {
    let mut text = String::new();
    inputs.iter().for_each(|(name, value)| {
        text.push_str(&Value::from(name.as_str()).to_string());
        canonical(value, &mut text);
    });
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes()))
}

/// Writes a value with its names in order. Inputs were parsed or built by us, so their depth is bounded by the parser's.
fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<&String, &Value> = map.iter().collect();
            text.push('{');
            for (name, value) in sorted {
                text.push_str(&Value::from(name.as_str()).to_string());
                canonical(value, text);
            }
            text.push('}');
        }
        Value::Array(values) => {
            text.push('[');
            values.iter().for_each(|value| canonical(value, text));
            text.push(']');
        }
        scalar => {
            text.push_str(&scalar.to_string());
            text.push(',');
        }
    }
}

impl Record {
    /// Subject, quantity and unit.
    pub fn about(&self) -> (&str, &str, &str) {
        match self {
            Record::Prediction(p) => (&p.subject, &p.quantity, &p.unit),
            Record::Measurement(m) => (&m.subject, &m.quantity, &m.unit),
        }
    }

    /// What is wrong with it, if anything is.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let fits = match self {
            Record::Prediction(p) => matches!(p.kind, Kind::Sampled | Kind::Modelled),
            Record::Measurement(m) => matches!(m.kind(), Kind::Emulated | Kind::Measured),
        };
        if !fits {
            return Err("predictions are sampled or modelled, measurements are measured or emulated".into());
        }
        let (subject, quantity, unit) = self.about();
        for (name, text) in [("subject", subject), ("quantity", quantity), ("unit", unit)] {
            if text.is_empty() {
                return Err(format!("its {name} is empty"));
            }
        }
        let Record::Prediction(p) = self else { return finite(&[self.value()]) };
        finite(&[p.value, Some(p.low), Some(p.high), Some(p.confidence)])?;
        let value = p.value.unwrap_or(p.low);
        if !(p.low <= value && value <= p.high) {
            return Err(format!("the range {}..{} does not hold the value {value}", p.low, p.high));
        }
        if !(p.confidence > 0.0 && p.confidence <= 1.0) {
            return Err(format!("the confidence {} is not above 0 and at most 1", p.confidence));
        }
        Ok(())
    }

    fn value(&self) -> Option<f64> {
        match self {
            Record::Prediction(p) => p.value,
            Record::Measurement(m) => Some(m.value),
        }
    }
}

fn finite(values: &[Option<f64>]) -> Result<(), String> {
    match values.iter().flatten().find(|value| !value.is_finite()) {
        Some(value) => Err(format!("{value} is no number that can be kept")),
        None => Ok(()),
    }
}

impl Entry {
    /// Reads a line, without its newline.
    pub fn parse(line: &[u8]) -> Result<Entry, String> {
        let entry: Entry = serde_json::from_slice(line).map_err(|error| {
            let text = error.to_string();
            // The parser counts lines anew for each of ours.
            format!("{} at column {}", text.split(" at line ").next().unwrap_or(&text), error.column())
        })?;
        if entry.format > FORMAT {
            return Err(format!(
                "format {} is that of a newer version of ashlar; this one knows {FORMAT}",
                entry.format
            ));
        }
        if entry.id.is_empty() || entry.id.len() > 32 || !entry.id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err("its id is not made of hexadecimal digits".into());
        }
        if entry.time > TIME_MAX {
            return Err(format!("its time, {} s since 1970, is beyond the year 9999", entry.time));
        }
        entry.record.validate()?;
        Ok(entry)
    }
}
