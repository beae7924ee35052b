//! `ashlar plan estimate environment`.

use super::arguments::Environment;
use super::{finish, input, of_file};
use crate::output::{Failure, Output};
use ashlar_estimate::environment::{Answer, Parameters, Prices, Site, estimate, figure, normal, read};
use ashlar_estimate::{Estimate, Inputs};
use serde_json::json;
use std::process::ExitCode;

pub fn run(arguments: &Environment, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Estimate<Answer>>() {
        return Ok(code);
    }
    let (temperature, humidity) = (arguments.temperature.unwrap_or(20.0), arguments.humidity.unwrap_or(30.0));
    let (warmer, wetter) = (arguments.temperature_deviation, arguments.humidity_deviation);
    let (series, described) = match &arguments.history {
        Some(path) => {
            let series = read(input(path)?).map_err(of_file(path))?;
            let described = [("history", json!(path.display().to_string())), ("rows", json!(series.len()))];
            (series, described.to_vec())
        }
        None => {
            let described = [
                ("temperature", json!(temperature)),
                ("temperature_deviation", json!(warmer)),
                ("humidity", json!(humidity)),
                ("humidity_deviation", json!(wetter)),
            ];
            (normal(temperature, warmer, humidity, wetter), described.to_vec())
        }
    };
    let described: Inputs = described.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
    let parameters = Parameters {
        corrosion: arguments.corrosion,
        mechanical_afr: arguments.mechanical_afr / 100.0,
        controller_afr: arguments.controller_afr / 100.0,
        ..Parameters::default()
    };
    let prices = Prices {
        kilowatt_hour: arguments.kilowatt_hour,
        disk: arguments.disk_price,
        disks_per_watt: arguments.disks_per_watt,
    };
    let disk_temperature = arguments.disk_temperature;
    let site = Site { series, described, disk_temperature, parameters, prices, years: arguments.years };
    let done = estimate(&site)?;
    let plot = figure(&done, &parameters);
    output.print(&finish(done, &arguments.common, plot, output)?);
    Ok(ExitCode::SUCCESS)
}
