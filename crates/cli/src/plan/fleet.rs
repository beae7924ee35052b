//! `ashlar plan estimate fleet`.

use super::arguments::Fleet;
use super::simulated;
use crate::output::{Failure, Output};
use ashlar_estimate::Estimate;
use ashlar_estimate::fleet::{Answer, Question, estimate, figure};
use indicatif::ProgressBar;
use std::process::ExitCode;

pub fn run(arguments: &Fleet, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Estimate<Answer>>() {
        return Ok(code);
    }
    let question = Question {
        model: arguments.model,
        drives: arguments.drives,
        years: arguments.years.unwrap_or(arguments.model.years),
        simulated: arguments.simulated,
        seed: arguments.seed,
    };
    let simulate = |bar: &ProgressBar| {
        estimate(&question, &mut |drives| {
            bar.set_message(format!("drives followed: {drives} of {}", question.simulated));
            bar.tick();
        })
    };
    simulated(&arguments.common, output, simulate, figure)
}
