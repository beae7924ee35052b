//! Ranges go to the ledger as predictions; the values of a full scan as measurements.

use super::arguments::Reading;
use crate::output::Output;
use ashlar_ledger::{Inputs, Kind, Ledger, Measurement, Prediction};
use ashlar_survey::Answer;
use ashlar_survey::answer::RatioAnswer;
use serde_json::json;
use std::path::Path;

/// Version of the estimator: it changes when the same sample gives another range.
pub const VERSION: u32 = 2;
/// How often the truth is in a range: what is asked of `cargo xtask bench survey`.
const CONFIDENCE: f64 = 0.95;

/// Writes an answer down, and the ids of predictions into it.
pub fn write(answer: &mut Answer, reading: &Reading, output: &Output) {
    let subject = subject(&answer.path);
    let quantity = |chunking: &str, what: &str| format!("dedup.{}{what}.ratio", chunking.replace(':', "-"));
    let inputs: Inputs = [
        ("path".to_string(), json!(answer.path)),
        ("seed".to_string(), json!(answer.seed)),
        ("logical_bytes".to_string(), json!(answer.logical_bytes)),
        ("read_fraction".to_string(), json!(answer.read_fraction)),
        ("unit_bytes".to_string(), json!(answer.unit_bytes)),
        ("mode".to_string(), json!(answer.mode)),
        ("memory".to_string(), json!(reading.memory.0)),
    ]
    .into();
    let (mut predictions, mut owners, mut failed) = (Vec::new(), Vec::new(), None);
    for (index, dedup) in answer.dedup.iter().enumerate() {
        let all = [(dedup.ratio, ""), (dedup.with_lz4, ".lz4"), (dedup.with_zstd_3, ".zstd-3")];
        for (ratio, what) in all {
            let quantity = quantity(&dedup.chunking, what);
            match ratio {
                RatioAnswer { value: Some(value), .. } => {
                    let how = "full scan".into();
                    let (subject, unit, kind) = (subject.clone(), "ratio".into(), Some(Kind::Measured));
                    let measured = Measurement { subject, quantity, unit, value, how, kind };
                    let written = Ledger::open_default().and_then(|ledger| ledger.measure(measured));
                    failed = failed.or(written.err());
                }
                RatioAnswer { low: Some(low), high: Some(high), .. } => {
                    owners.push((index, what));
                    predictions.push(Prediction {
                        subject: subject.clone(),
                        quantity,
                        unit: "ratio".into(),
                        value: None,
                        low,
                        high,
                        confidence: CONFIDENCE,
                        model: "unseen".into(),
                        model_version: VERSION,
                        kind: Kind::Sampled,
                        inputs: inputs.clone(),
                        fingerprint: String::new(),
                    });
                }
                RatioAnswer { .. } => {}
            }
        }
    }
    if let Some(error) = failed {
        output.say(format!("ashlar: what was measured is not in the ledger: {error}"));
    }
    if predictions.is_empty() {
        return;
    }
    for ((index, what), id) in owners.into_iter().zip(crate::ledger::predict(predictions, output)) {
        if what.is_empty() {
            answer.dedup[index].ledger_id = id;
        }
    }
}

/// What predictions and measurements of the same data have in common.
fn subject(path: &str) -> String {
    let absolute = std::fs::canonicalize(Path::new(path));
    format!("survey of {}", absolute.map_or_else(|_| path.to_string(), |path| path.to_string_lossy().into_owned()))
}
