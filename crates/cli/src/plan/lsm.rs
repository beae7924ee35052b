//! `ashlar plan estimate lsm`.

use super::arguments::{Lsm, Spread};
use super::{finish, spinner};
use crate::output::{Failure, Output};
use crate::survey::trace::writes;
use ashlar_estimate::Estimate;
use ashlar_estimate::lsm::{Answer, Apart, Distribution, Universal, Workload, estimate, figure, simulate};
use ashlar_ledger::{Kind, Ledger, Measurement};
use std::process::ExitCode;
use std::sync::Arc;

/// Bytes of an item, as in the paper.
const ITEM: u64 = 1000;
/// Bytes of an item of a trace: a block.
const BLOCK: u64 = 4096;

pub fn run(arguments: &Lsm, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Estimate<Answer>>() {
        return Ok(code);
    }
    let workload = workload(arguments, output)?;
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

fn workload(arguments: &Lsm, output: &Output) -> Result<Workload, Failure> {
    let memtable = arguments.memtable.0;
    let item = |usual: u64| arguments.item.map_or(usual, |item| item.0);
    let (distribution, item, shown) = match &arguments.distribution {
        Spread::Known(distribution) => (distribution.clone(), item(ITEM), None),
        Spread::Trace(path) => {
            let block = item(BLOCK).max(1);
            let bar = spinner(output);
            bar.set_message(format!("reading {}", path.display()));
            let traced = writes(path, block, memtable / block, &mut || bar.tick());
            bar.finish_and_clear();
            let traced = traced?;
            let keys = traced.keys as f64;
            (Distribution::Trace(Arc::new(traced)), block, Some(keys))
        }
    };
    let keys = arguments.keys.or(shown).ok_or_else(|| {
        Failure::new(
            "how many different keys are there? Give --keys as in --keys 1e8, or a trace: --distribution trace:FILE",
        )
        .with_code(2)
    })?;
    let defaults = Workload::new(arguments.design, keys, item as f64, distribution);
    let apart = |key: ashlar_units::Bytes| Apart { key: key.0 as f64, fill: arguments.value_log_fill };
    Ok(Workload {
        memtable: memtable as f64,
        level1: arguments.level1.0 as f64,
        growth: arguments.growth.unwrap_or(defaults.growth),
        universal: Universal { trigger: arguments.trigger, stop: 2 * arguments.trigger, ..Universal::default() },
        apart: arguments.separate_values.map(apart),
        ..defaults
    })
}
