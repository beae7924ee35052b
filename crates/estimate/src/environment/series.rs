//! Temperature and humidity over time.

use crate::common::Refused;
use crate::environment::hazard::check;
use std::io::BufRead;

/// Most rows: a hundred years of quarter hours.
const ROWS_MAX: usize = 4_000_000;
/// Longest row, bytes.
const ROW_LEN_MAX: u64 = 1024;

/// Conditions of equal duration: degrees Celsius and percent of relative humidity.
pub type Series = Vec<(f64, f64)>;

/// Reads comma-separated rows whose last two columns are temperature and humidity. A first row without numbers is a
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
            _ if number == 1 => {}
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
    let places = || (0..PLACES).map(|place| quantile((place as f64 + 0.5) / PLACES as f64));
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

/// The place below which a standard normal number lies with a probability; by bisection, for it is asked seldom.
pub fn quantile(probability: f64) -> f64 {
    let (mut low, mut high) = (-10.0, 10.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if below(middle) < probability { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

/// The probability that a standard normal number lies below `x` (Abramowitz and Stegun 26.2.17, error below 1e-7).
fn below(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let sum =
        t * (0.319_381_530 + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt() * sum;
    if x > 0.0 { 1.0 - tail } else { tail }
}
