//! Predictions beside what was measured later.

use crate::{Error, Kind, Ledger, Read, Record};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Most predictions that are scored at once; each takes some hundred bytes.
pub const RECORDS_MAX: usize = 1 << 20;

/// A prediction and the first measurement of the same subject, quantity and unit that was written after it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Scored {
    /// Id of the prediction.
    pub prediction: String,
    /// Id of the measurement.
    pub measurement: String,
    /// What both are about.
    pub subject: String,
    /// Which number.
    pub quantity: String,
    /// Its unit.
    pub unit: String,
    /// What predicted it.
    pub model: String,
    /// Its version.
    pub model_version: u32,
    /// Whether it was sampled or modelled.
    pub kind: Kind,
    /// The predicted value.
    pub value: Option<f64>,
    /// The least that was expected.
    pub low: f64,
    /// The most that was expected.
    pub high: f64,
    /// How often the truth should be in the range.
    pub confidence: f64,
    /// What was measured.
    pub measured: f64,
    /// Whether it was measured or emulated.
    pub measured_kind: Kind,
    /// Whether the range holds it.
    pub inside: bool,
    /// (predicted - measured) / |measured|; null without a predicted value, or if zero was measured.
    pub relative_error: Option<f64>,
}

/// How one version of a model fared.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ModelScore {
    /// The model.
    pub model: String,
    /// Its version.
    pub model_version: u32,
    /// Predictions.
    pub predictions: u64,
    /// Those beside which something was measured.
    pub measured: u64,
    /// Those beside which something was emulated.
    pub emulated: u64,
    /// Those whose range held what was measured or emulated.
    pub inside: u64,
    /// How many should have been inside, by their confidence.
    pub inside_claimed: f64,
    /// Mean of the absolute relative errors, of those that have one.
    pub mean_absolute_error: Option<f64>,
    /// The relative error that is largest by its absolute value.
    pub worst_error: Option<f64>,
}

/// All that can be joined.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Score {
    /// Predictions with their measurements, in the order of the measurements.
    pub scored: Vec<Scored>,
    /// A summary for each model and version.
    pub models: Vec<ModelScore>,
    /// Measurements that no open prediction waited for.
    pub unjoined: u64,
    /// Lines that a crash had cut; they were passed over.
    pub torn: u64,
}

type About = (String, String, String);

/// Joins all predictions of a ledger with what was measured after them.
pub fn score(ledger: &Ledger) -> Result<Score, Error> {
    let mut open: BTreeMap<About, Vec<Scored>> = BTreeMap::new();
    let mut predictions: BTreeMap<(String, u32), u64> = BTreeMap::new();
    let mut scored: Vec<Scored> = Vec::new();
    let (mut held, mut unjoined) = (0, 0);
    let Read { torn_count: torn, .. } = ledger.read(|entry| {
        let (subject, quantity, unit) = entry.record.about();
        let about = (subject.to_string(), quantity.to_string(), unit.to_string());
        match entry.record {
            Record::Prediction(p) => {
                held += 1;
                if held > RECORDS_MAX {
                    return Err(Error::Refused(format!(
                        "{} holds more than {RECORDS_MAX} predictions; move it away to begin a new one",
                        ledger.path().display()
                    )));
                }
                *predictions.entry((p.model.clone(), p.model_version)).or_default() += 1;
                open.entry(about).or_default().push(Scored {
                    prediction: entry.id,
                    measurement: String::new(),
                    subject: p.subject,
                    quantity: p.quantity,
                    unit: p.unit,
                    model: p.model,
                    model_version: p.model_version,
                    kind: p.kind,
                    value: p.value,
                    low: p.low,
                    high: p.high,
                    confidence: p.confidence,
                    measured: 0.0,
                    measured_kind: Kind::Measured,
                    inside: false,
                    relative_error: None,
                });
            }
            Record::Measurement(m) => match open.remove(&about) {
                None => unjoined += 1,
                Some(waiting) => scored.extend(waiting.into_iter().map(|prediction| Scored {
                    measurement: entry.id.clone(),
                    measured: m.value,
                    measured_kind: m.kind(),
                    inside: prediction.low <= m.value && m.value <= prediction.high,
                    relative_error: relative_error(prediction.value, m.value),
                    ..prediction
                })),
            },
        }
        Ok(())
    })?;
    let models = predictions.into_iter().map(|((model, version), count)| summary(model, version, count, &scored));
    Ok(Score { models: models.collect(), scored, unjoined, torn })
}

fn relative_error(predicted: Option<f64>, measured: f64) -> Option<f64> {
    predicted.filter(|_| measured != 0.0).map(|value| (value - measured) / measured.abs()).filter(|e| e.is_finite())
}

fn summary(model: String, model_version: u32, predictions: u64, scored: &[Scored]) -> ModelScore {
    let of = || scored.iter().filter(|one| one.model == model && one.model_version == model_version);
    let count = |kind: Kind| of().filter(|one| one.measured_kind == kind).count() as u64;
    let errors: Vec<f64> = of().filter_map(|one| one.relative_error).collect();
    let absolute = |error: &&f64, other: &&f64| error.abs().total_cmp(&other.abs());
    let mean = errors.iter().map(|error| error.abs()).sum::<f64>() / errors.len() as f64;
    ModelScore {
        predictions,
        measured: count(Kind::Measured),
        emulated: count(Kind::Emulated),
        inside: of().filter(|one| one.inside).count() as u64,
        // The empty sum of floating point numbers is -0.
        inside_claimed: of().map(|one| one.confidence).fold(0.0, |sum, confidence| sum + confidence),
        mean_absolute_error: (!errors.is_empty()).then_some(mean),
        worst_error: errors.iter().max_by(absolute).copied(),
        model,
        model_version,
    }
}
