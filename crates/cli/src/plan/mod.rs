//! `ashlar plan`.

pub mod arguments;
mod chunking;
mod dedup;
mod endurance;
mod environment;
mod fleet;
mod layout;
mod loss;
mod lsm;
mod packing;
mod scrub;

use crate::ledger;
use crate::output::{Failure, Output};
use arguments::{Common, EstimateCommand, PlanCommand};
use ashlar_estimate::{About, Estimate, Predicted, Recorded, Refused};
use ashlar_ledger::{Kind, Prediction};
use ashlar_report::Plot;
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::Path;
use std::process::ExitCode;

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Failure {
        Failure::new(refused.to_string()).with_code(2)
    }
}

/// `ashlar plan`.
pub fn run(command: PlanCommand, output: &Output) -> Result<ExitCode, Failure> {
    let PlanCommand::Estimate(command) = command;
    match command {
        EstimateCommand::Lsm(arguments) => lsm::run(&arguments, output),
        EstimateCommand::Dedup(arguments) => dedup::run(&arguments, output),
        EstimateCommand::Chunking(arguments) => chunking::run(&arguments, output),
        EstimateCommand::Endurance(arguments) => endurance::run(&arguments, output),
        EstimateCommand::Fleet(arguments) => fleet::run(&arguments, output),
        EstimateCommand::Loss(arguments) => loss::run(&arguments, output),
        EstimateCommand::Scrub(arguments) => scrub::run(&arguments, output),
        EstimateCommand::Environment(arguments) => environment::run(&arguments, output),
        EstimateCommand::Packing(arguments) => packing::run(&arguments, output),
        EstimateCommand::Layout(arguments) => layout::run(&arguments, output),
    }
}

/// Every estimator.
pub fn estimators() -> impl Iterator<Item = &'static About> {
    ashlar_estimate::ESTIMATORS.iter().copied().chain([&dedup::ABOUT, &chunking::ABOUT])
}

/// An estimator, for `ashlar explain`.
pub fn about(about: &About) -> String {
    let About { name, what, source, version, formulas } = about;
    format!(
        "The estimator {name}: {what}.\n\n{formulas}\n\nSource: {source} (our version {version}).\n`ashlar plan estimate {name} … \
         --explain` shows the steps with numbers; docs/estimators/{name}.md has a figure."
    )
}

/// Draws, writes to the ledger, and prints.
fn finish<A>(mut estimate: Estimate<A>, common: &Common, plot: Plot, output: &Output) -> Result<Estimate<A>, Failure>
where
    A: Serialize + JsonSchema + fmt::Display,
{
    if !common.explain {
        estimate.explanation.clear();
    }
    if let Some(file) = &common.figure {
        let written = std::fs::write(file, plot.svg());
        written.map_err(|error| Failure::new(format!("cannot draw to {}: {error}", file.display())).with_code(2))?;
    }
    let predictions: Vec<Prediction> = estimate.predictions.iter().map(|one| prediction(&estimate, one)).collect();
    let ids = ledger::predict(predictions, output);
    let quantities = estimate.predictions.iter().map(|one| one.quantity.clone());
    estimate.ledger = quantities.zip(ids).map(|(quantity, id)| Recorded { quantity, id }).collect();
    Ok(estimate)
}

/// Simulates with a line that says what, then draws, writes to the ledger, and prints.
fn simulated<A>(
    common: &Common,
    output: &Output,
    simulate: impl FnOnce(&ProgressBar) -> Result<Estimate<A>, Refused>,
    figure: impl FnOnce(&Estimate<A>) -> Plot,
) -> Result<ExitCode, Failure>
where
    A: Serialize + JsonSchema + fmt::Display,
{
    let bar = spinner(output);
    let done = simulate(&bar);
    bar.finish_and_clear();
    let done = done?;
    let plot = figure(&done);
    output.print(&finish(done, common, plot, output)?);
    Ok(ExitCode::SUCCESS)
}

fn prediction<A>(estimate: &Estimate<A>, one: &Predicted) -> Prediction {
    Prediction {
        subject: estimate.subject.clone(),
        quantity: one.quantity.clone(),
        unit: one.unit.clone(),
        value: Some(one.value),
        low: one.low,
        high: one.high,
        confidence: one.confidence,
        model: estimate.estimator.clone(),
        model_version: estimate.model_version,
        kind: Kind::Modelled,
        inputs: estimate.inputs.clone(),
        fingerprint: String::new(),
    }
}

/// A file for reading, or standard input if it is named `-`.
fn input(path: &Path) -> Result<Box<dyn BufRead>, Failure> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(std::io::stdin())));
    }
    let file = File::open(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())).with_code(2))?;
    Ok(Box::new(BufReader::new(file)))
}

/// What a refusal of a file's contents is about.
fn of_file(path: &Path) -> impl Fn(Refused) -> Failure {
    move |refused| Failure::new(format!("{}: {refused}", path.display())).with_code(2)
}

/// A line that says what is being simulated, on a terminal.
fn spinner(output: &Output) -> ProgressBar {
    if output.json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}");
    ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}
