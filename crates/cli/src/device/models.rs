//! Models of devices and what they reproduce.

use crate::output::{Failure, Output};
use ashlar_models::{ModelFile, Row, SpecError};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

/// A model as help shows it.
#[derive(Serialize, JsonSchema)]
struct Model {
    /// Its name.
    name: String,
    /// What it is.
    what: String,
    /// What kind of device: disk, flash, segments, hybrid or generic.
    kind: String,
    /// Its parameters.
    parameters: Vec<Parameter>,
    /// What is known not to be modelled.
    not_modelled: Vec<String>,
}

/// A parameter of a model.
#[derive(Serialize, JsonSchema)]
struct Parameter {
    /// Its dotted name in the model file.
    name: String,
    /// Its value, as in the model file.
    value: String,
    /// Where the value comes from.
    source: String,
}

#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct Models(Vec<Model>);

impl fmt::Display for Models {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, model) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            writeln!(f, "{} ({}): {}", model.name, model.kind, model.what)?;
            for Parameter { name, value, source } in &model.parameters {
                writeln!(f, "    {name:<26} {value:<16} {source}")?;
            }
            for missing in &model.not_modelled {
                writeln!(f, "    not modelled: {missing}")?;
            }
        }
        Ok(())
    }
}

/// The rows of a calibration.
#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct Calibration(Vec<Row>);

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = "";
        for row in &self.0 {
            if row.table != table {
                table = &row.table;
                writeln!(
                    f,
                    "{table}\n    {:<52} {:>12} {:>12} {:<8} {:>8}",
                    "", "published", "model", "unit", "error"
                )?;
            }
            let (error, mark) = (row.error() * 100.0, if row.holds() { "" } else { "  OUT OF TOLERANCE" });
            writeln!(
                f,
                "    {:<52} {:>12.3} {:>12.3} {:<8} {error:>+6.2} %{mark}",
                row.row, row.expected, row.got, row.unit
            )?;
        }
        if self.0.is_empty() {
            writeln!(f, "this model claims to reproduce no table")?;
        }
        Ok(())
    }
}

impl From<SpecError> for Failure {
    fn from(error: SpecError) -> Failure {
        Failure::new(error.to_string())
    }
}

/// A model by the name of a preset or the path of a file.
pub fn find(model: &str) -> Result<ModelFile, Failure> {
    Ok(ModelFile::find(model, Path::new(""))?)
}

/// `ashlar device models [MODEL]`.
pub fn models(model: Option<&str>, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Models>() {
        return Ok(code);
    }
    let files = match model {
        Some(model) => vec![find(model)?],
        None => ashlar_models::presets(),
    };
    let models = files.into_iter().map(|file| Model {
        kind: file.kind().into(),
        parameters: file
            .parameters()
            .into_iter()
            .map(|(name, value)| {
                let source = file.sources.get(&name).cloned().unwrap_or_else(|| "not said".into());
                Parameter { name, value, source }
            })
            .collect(),
        name: file.name,
        what: file.what,
        not_modelled: file.not_modelled,
    });
    output.print(&Models(models.collect()));
    Ok(ExitCode::SUCCESS)
}

/// `ashlar device calibrate MODEL`: fails if a row is out of its tolerance.
pub fn calibrate(model: &str, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Calibration>() {
        return Ok(code);
    }
    let rows = ashlar_models::calibrate(&find(model)?)?;
    let holds = rows.iter().all(Row::holds);
    output.print(&Calibration(rows));
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
