//! `ashlar plan estimate lsm`.

use super::arguments::Lsm;
use super::finish;
use crate::output::{Failure, Output};
use ashlar_estimate::Estimate;
use ashlar_estimate::lsm::{Answer, Apart, Universal, Workload, estimate, figure, simulate};
use ashlar_ledger::{Kind, Ledger, Measurement};
use std::process::ExitCode;

pub fn run(arguments: &Lsm, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Estimate<Answer>>() {
        return Ok(code);
    }
    let defaults = Workload::new(arguments.design, arguments.keys, arguments.item.0 as f64, arguments.distribution);
    let apart = |key: ashlar_units::Bytes| Apart { key: key.0 as f64, fill: arguments.value_log_fill };
    let workload = Workload {
        memtable: arguments.memtable.0 as f64,
        level1: arguments.level1.0 as f64,
        growth: arguments.growth.unwrap_or(defaults.growth),
        universal: Universal { trigger: arguments.trigger, stop: 2 * arguments.trigger, ..Universal::default() },
        apart: arguments.separate_values.map(apart),
        ..defaults
    };
    let simulation = arguments.simulate.then(|| workload.simulation(arguments.seed)).transpose()?;
    let done = estimate(&workload)?;
    let plot = figure(&done);
    let mut done = finish(done, &arguments.common, plot, output)?;
    let mut code = ExitCode::SUCCESS;
    if let Some(simulation) = simulation {
        output.say("simulating; this takes about two seconds for a million keys");
        let value = simulate(&simulation);
        let predicted = &done.predictions[0];
        if !(predicted.low..=predicted.high).contains(&value) {
            code = ExitCode::FAILURE;
        }
        let measurement = Measurement {
            subject: done.subject.clone(),
            quantity: predicted.quantity.clone(),
            unit: predicted.unit.clone(),
            value,
            how: format!("item-level simulation, seed {}", arguments.seed),
            kind: Some(Kind::Emulated),
        };
        if let Err(error) = Ledger::open_default().and_then(|ledger| ledger.measure(measurement)) {
            output.say(format!("ashlar: what was simulated is not in the ledger: {error}"));
        }
        done.answer.simulated = Some(value);
    }
    output.print(&done);
    Ok(code)
}
