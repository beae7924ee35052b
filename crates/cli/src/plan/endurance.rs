//! `ashlar plan estimate endurance`.

use super::arguments::Endurance;
use super::finish;
use crate::output::{Failure, Output};
use ashlar_estimate::Estimate;
use ashlar_estimate::endurance::{Answer, CHIPS, Chip, Device, estimate, figure};
use std::process::ExitCode;

pub fn run(arguments: &Endurance, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Estimate<Answer>>() {
        return Ok(code);
    }
    let (cycles, cycles_deviation, cycles_from) = match &arguments.chip {
        None => (arguments.cycles.unwrap_or(0.0), 0.1, "as given; a deviation of 10 % is a guess".to_string()),
        Some(name) => {
            let chip = Chip::find(name).ok_or_else(|| {
                let names: Vec<&str> = CHIPS.iter().map(|chip| chip.name).collect();
                Failure::new(format!("{name:?} is no chip that was measured; there are {}", names.join(", ")))
                    .with_code(2)
            })?;
            (
                chip.mean,
                chip.deviation / chip.mean,
                format!("measured on {} at 25 degrees, continuously (Table 2)", chip.name),
            )
        }
    };
    let device = Device {
        translation: arguments.translation,
        capacity: arguments.capacity.0 as f64,
        spare: arguments.spare,
        page: arguments.page.0 as f64,
        pages: arguments.pages.into(),
        zones: arguments.zones.into(),
        cycles,
        cycles_deviation,
        cycles_from,
        written_per_day: arguments.written_per_day.0 as f64,
        random: arguments.random,
        seed: arguments.seed,
    };
    let done = estimate(&device)?;
    let plot = figure(&done, &device);
    output.print(&finish(done, &arguments.common, plot, output)?);
    Ok(ExitCode::SUCCESS)
}
