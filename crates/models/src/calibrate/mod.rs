//! Runs again what was published, and compares.

mod flash;
mod sheets;
pub mod strand_model;
mod strands;

use crate::error::SpecError;
use crate::spec::{ModelFile, Spec};
use schemars::JsonSchema;
use serde::Serialize;

/// One number of a published table beside what the model gives.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Row {
    /// The table: where it was published.
    pub table: String,
    /// Which number of it.
    pub row: String,
    /// Its unit.
    pub unit: String,
    /// What was published.
    pub expected: f64,
    /// What the model gives.
    pub got: f64,
    /// By how much the two may differ, as a part of what was published.
    pub tolerance: f64,
}

impl Row {
    fn new(table: &str, row: impl Into<String>, unit: &str, expected: f64, got: f64, tolerance: f64) -> Row {
        Row { table: table.into(), row: row.into(), unit: unit.into(), expected, got, tolerance }
    }

    /// The difference as a part of what was published.
    pub fn error(&self) -> f64 {
        if self.expected == 0.0 { self.got.abs() } else { (self.got - self.expected) / self.expected }
    }

    /// Whether the model reproduces the number.
    pub fn holds(&self) -> bool {
        self.error().abs() <= self.tolerance
    }
}

/// Runs every table that the model claims to reproduce; none, if it claims none.
pub fn calibrate(file: &ModelFile) -> Result<Vec<Row>, SpecError> {
    match (file.name.as_str(), &file.model) {
        ("cheetah-15k5", Spec::Disk(spec)) => strands::cheetah(spec),
        ("wd-re3", Spec::Disk(spec)) => sheets::re3(spec),
        ("maxtor-d740x", Spec::Disk(spec)) => sheets::maxtor(spec),
        ("exos-x20", Spec::Disk(spec)) => sheets::exos(spec),
        ("amf-page", Spec::Flash(spec)) => flash::amplification(spec),
        ("amf-segments", Spec::Segments(spec)) => flash::prototype(spec),
        ("usb-generic", Spec::Hybrid(spec)) => flash::card(spec, 1, 0, 0),
        ("usb-house", Spec::Hybrid(spec)) => flash::card(spec, 63, 1, 0),
        ("usb-memorex", Spec::Hybrid(spec)) => flash::card(spec, 55, 4, 138),
        _ => Ok(Vec::new()),
    }
}
