//! `ashlar lab workloads`.

use super::arguments::{Settings, WorkloadsArguments};
use super::failed;
use crate::output::{Failure, Output};
use ashlar_lab::workload::{KINDS, Kind, Stage, Unit, Values, WorkloadError, records};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

impl From<WorkloadError> for Failure {
    fn from(error: WorkloadError) -> Failure {
        Failure::new(error.to_string()).with_code(2)
    }
}

/// Workloads.
#[derive(Serialize, JsonSchema)]
struct Workloads {
    /// All, or the one that was asked for.
    workloads: Vec<Workload>,
    /// What was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    written: Option<Written>,
}

/// A workload.
#[derive(Serialize, JsonSchema)]
struct Workload {
    name: &'static str,
    what: &'static str,
    source: &'static str,
    parameters: Vec<Parameter>,
}

/// What can be set of it.
#[derive(Serialize, JsonSchema)]
struct Parameter {
    name: &'static str,
    unit: Unit,
    value: String,
    what: &'static str,
}

/// Files with its calls.
#[derive(Serialize, JsonSchema)]
struct Written {
    /// What is measured.
    run: PathBuf,
    /// Its calls.
    run_calls: u64,
    /// What must be there before.
    setup: PathBuf,
    /// Its calls.
    setup_calls: u64,
}

impl fmt::Display for Workloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Workload { name, what, source, parameters } in &self.workloads {
            writeln!(f, "{name}: {what}\n    source: {source}")?;
            for Parameter { name, unit, value, what } in parameters {
                let unit = format!("{unit:?}").to_lowercase();
                writeln!(f, "    {:<34} {what} ({unit})", format!("{name}={value}"))?;
            }
        }
        let Some(Written { run, run_calls, setup, setup_calls }) = &self.written else { return Ok(()) };
        writeln!(f, "{}: {setup_calls} calls before\n{}: {run_calls} calls", setup.display(), run.display())
    }
}

/// The values of a kind.
pub fn values(kind: &'static Kind, settings: &Settings) -> Result<Values, Failure> {
    let mut values = kind.values(settings.seed);
    settings.set.iter().try_for_each(|setting| values.set(setting))?;
    Ok(values)
}

fn described(kind: &'static Kind, values: &Values) -> Workload {
    let parameters = values.all().map(|(parameter, value)| Parameter {
        name: parameter.name,
        unit: parameter.unit,
        value: value.into(),
        what: parameter.what,
    });
    Workload { name: kind.name, what: kind.what, source: kind.source, parameters: parameters.collect() }
}

fn write(path: &Path, stages: Vec<Stage>) -> Result<u64, Failure> {
    ashlar_lab::trace::file::write(path, records(stages)).map_err(failed)
}

/// `ashlar lab workloads`.
pub fn run(arguments: &WorkloadsArguments, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Workloads>() {
        return Ok(code);
    }
    let Some(name) = &arguments.name else {
        let workloads = KINDS.into_iter().map(|kind| described(kind, &kind.values(0))).collect();
        output.print(&Workloads { workloads, written: None });
        return Ok(ExitCode::SUCCESS);
    };
    let kind = Kind::find(name)?;
    let values = values(kind, &arguments.settings)?;
    let written = match &arguments.output {
        None => None,
        Some(path) => {
            let extension = path.extension().map_or("jsonl".into(), |extension| extension.to_string_lossy());
            let setup = path.with_extension(format!("setup.{extension}"));
            let plan = kind.plan(&values)?;
            let setup_calls = write(&setup, plan.setup)?;
            let run_calls = write(path, plan.run).inspect_err(|_| {
                // Alone it is of no use.
                let _ = std::fs::remove_file(&setup);
            })?;
            Some(Written { run: path.clone(), run_calls, setup, setup_calls })
        }
    };
    output.print(&Workloads { workloads: vec![described(kind, &values)], written });
    Ok(ExitCode::SUCCESS)
}
