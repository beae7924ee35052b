//! Temperature and humidity over time.

use crate::common::{Refused, is_heading};
use crate::environment::hazard::check;
use ashlar_models::normal_quantile;
use std::io::BufRead;

/// Most rows: a hundred years of quarter hours.
const ROWS_MAX: usize = 4_000_000;
/// Longest row, bytes.
const ROW_LEN_MAX: u64 = 1024;

/// Conditions of equal duration: degrees Celsius and percent of relative humidity.
pub type Series = Vec<(f64, f64)>;

/// Reads comma-separated rows whose last two columns are temperature and humidity. A first row without any number is a
/// heading; empty rows do not count.
pub fn read(mut input: impl BufRead) -> Result<Series, Refused> {
    let mut series = Series::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let taken = std::io::Read::take(&mut input, ROW_LEN_MAX).read_until(b'\n', &mut line);
        let refuse = |what: &str| {
            Refused(format!(
                "row {number}: {what}; write rows as 2026-01-31T12:00,24.5,43, with degrees Celsius and percent at the end"
            ))
        };
        if taken.map_err(|error| refuse(&error.to_string()))? == 0 {
            break;
        }
        let text = std::str::from_utf8(&line).map_err(|_| refuse("it is no text"))?.trim();
        if line.len() as u64 == ROW_LEN_MAX && line.last() != Some(&b'\n') {
            return Err(refuse("it is too long"));
        }
        if text.is_empty() {
            continue;
        }
        let mut columns = text.rsplit(',').map(|column| column.trim().parse::<f64>().ok());
        match (columns.next().flatten(), columns.next().flatten()) {
            (Some(humidity), Some(temperature)) => {
                check(temperature, humidity).map_err(|refused| refuse(&refused.0))?;
                series.push((temperature, humidity));
            }
            _ if number == 1 && is_heading(text.split(',')) => {}
            _ => return Err(refuse("its last two columns are no numbers")),
        }
        if series.len() > ROWS_MAX {
            return Err(refuse("there are more than four million rows"));
        }
    }
    if series.is_empty() {
        return Err(Refused(
            "there are no rows; write rows as 2026-01-31T12:00,24.5,43, with degrees Celsius and percent at the end"
                .into(),
        ));
    }
    Ok(series)
}

/// Conditions that are spread like normal distributions, with humidity kept from 5 to 95 percent: a grid of equally likely
/// places.
pub fn normal(temperature: f64, temperature_sd: f64, humidity: f64, humidity_sd: f64) -> Series {
    const PLACES: usize = 60;
    let places = || (0..PLACES).map(|place| normal_quantile((place as f64 + 0.5) / PLACES as f64));
    let humidities = |z: f64| if humidity_sd > 0.0 { (humidity + z * humidity_sd).clamp(5.0, 95.0) } else { humidity };
    let pairs = places().flat_map(|z| places().map(move |other| (z, other)));
    pairs.map(|(z, other)| (temperature + z * temperature_sd, humidities(other))).collect()
}

/// A year that is humid at one end and dry at the other, month by month: the mean and half the difference.
pub fn seasonal(temperature: f64, temperature_swing: f64, humidity: f64, humidity_swing: f64) -> Series {
    let month = |month: u32| {
        let phase = -(std::f64::consts::TAU * f64::from(month) / 12.0).cos();
        (temperature + phase * temperature_swing, (humidity + phase * humidity_swing).clamp(0.0, 100.0))
    };
    (0..12).map(month).collect()
}
