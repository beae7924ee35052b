//! `ashlar plan estimate loss`.

use super::arguments::Loss;
use super::simulated;
use crate::output::{Failure, Output};
use ashlar_estimate::loss::{Answer, Drives, Effort, Question, estimate, figure};
use ashlar_estimate::{Estimate, Inputs};
use ashlar_report::number;
use indicatif::ProgressBar;
use std::process::ExitCode;

pub fn run(arguments: &Loss, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Estimate<Answer>>() {
        return Ok(code);
    }
    let question = question(arguments)?;
    let simulate = |bar: &ProgressBar| {
        estimate(&question, &mut |what, histories, error| {
            bar.set_message(format!("{what}: {histories} histories, error {} %", number(error * 100.0)));
            bar.tick();
            true
        })
    };
    simulated(&arguments.common, output, simulate, figure)
}

fn question(arguments: &Loss) -> Result<Question, Failure> {
    let usual = Drives::new(arguments.drive.clone());
    let size = |given: Option<ashlar_units::Bytes>, usual: f64| given.map_or(usual, |size| size.0 as f64);
    let mut drives = Drives {
        afr: arguments.afr.map_or(usual.afr, |percent| percent / 100.0),
        shape: arguments.age_shape,
        batch_variance: arguments.batch_variance,
        batches: arguments.batches,
        capacity: size(arguments.capacity, usual.capacity),
        rebuild_rate: size(arguments.rebuild_rate, usual.rebuild_rate),
        replace_hours: arguments.replace_hours,
        scrub_hours: if arguments.scrub_days == 0.0 { f64::INFINITY } else { arguments.scrub_days * 24.0 },
        years: arguments.years,
        ..usual
    };
    if let (Some(temperature), Some(humidity)) = (arguments.temperature, arguments.humidity) {
        let sane = [(temperature, -40.0..=100.0), (humidity, 0.0..=100.0)];
        if let Some((value, range)) = sane.into_iter().find(|(value, range)| !range.contains(value)) {
            let (from, to) = (range.start(), range.end());
            return Err(
                Failure::new(format!("no machine room has {value}: it must be from {from} to {to}")).with_code(2)
            );
        }
        let (warmer, wetter) = (arguments.temperature_swing, arguments.humidity_swing);
        if !(0.0..=40.0).contains(&warmer) || !(0.0..=100.0).contains(&wetter) {
            return Err(
                Failure::new("the swing of temperature is from 0 to 40, that of humidity from 0 to 100").with_code(2)
            );
        }
        drives = drives.in_climate(temperature, warmer, humidity, wetter);
    }
    let effort = Effort {
        error: arguments.error / 100.0,
        histories_max: arguments.histories.clamp(2000, 1_000_000_000),
        seed: arguments.seed,
        naive: false,
    };
    Ok(Question { layouts: arguments.layouts.clone(), drives, described: Inputs::new(), effort })
}
