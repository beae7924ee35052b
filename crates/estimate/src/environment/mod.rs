//! Failure rates of disks by temperature and humidity, and what cooling is worth.
//!
//! Manousakis, Sankar, McKnight, Nguyen and Bianchini, "Environmental conditions and disk reliability in free-cooled
//! datacenters", FAST '16. Two processes: mechanics and media age with temperature (Arrhenius), controllers and connectors
//! corrode with temperature and humidity (Peck).
//!
//! Departs: the paper does not publish how its 1.5 % a year is split between the two, so its own numbers cannot be had
//! from its formulas. The split is an input here, and the range of the answer covers other splits and both sensitivities
//! to humidity that the paper has.

mod consumption;
mod cost;
mod hazard;
mod series;
#[cfg(test)]
mod tests;

pub use consumption::failures_by_month;
pub use cost::{COOLINGS, Cooling, Cost, Prices};
pub use hazard::{CORROSION_COPPER, CORROSION_TRAINED, Hazard, Parameters, warmed};
pub use series::{Series, normal, read, seasonal};

use crate::common::{About, Estimate, Inputs, Predicted, Refused, Step, within};
use ashlar_report::{Axis, Origin, Plot, number};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use std::fmt;

/// What this estimator is.
pub static ABOUT: About = About {
    name: "environment",
    what: "how often disks fail by temperature and humidity, and what cooling is worth",
    source: "Manousakis et al.: Environmental conditions and disk reliability in free-cooled datacenters, FAST 2016",
    version: 1,
    formulas: "AF_T = exp((E_a / k) (1/T_b - 1/T)): temperature, in kelvin.\n\
               AF_RH = exp(b (RH - RH_b)): relative humidity.\n\
               rate = AF_T mechanical + AF_T AF_RH controller, averaged over the history.\n\
               RH at the disk = RH at the inlet x es(T inlet) / es(T disk), with Magnus' vapour pressure es.\n\
               cost per watt = capex + years x price x 8.76 x (PUE - 1.04) + disks beyond 1.5 % a year.",
};

/// Where disks stand.
#[derive(Clone, Debug)]
pub struct Site {
    /// The history, or a distribution: equally long conditions at the inlet.
    pub series: Series,
    /// What the series is, for the record.
    pub described: Inputs,
    /// The disks are warmed to this temperature by what stands before them.
    pub disk_temperature: Option<f64>,
    /// Parameters of the model.
    pub parameters: Parameters,
    /// Prices, for the comparison of coolings.
    pub prices: Prices,
    /// For how many years to compare.
    pub years: f64,
}

/// What `plan estimate environment` answers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Answer {
    /// Failures in a year, percent of the disks.
    pub afr_percent: f64,
    /// Those of mechanics and media.
    pub mechanical_percent: f64,
    /// Those of controllers and connectors.
    pub controller_percent: f64,
    /// Mean temperature at the disk, degrees Celsius.
    pub temperature: f64,
    /// Mean relative humidity at the disk, percent.
    pub humidity: f64,
    /// More than a tenth of the time is above 24 degrees.
    pub hot: bool,
    /// More than a tenth of the time is above 60 percent.
    pub humid: bool,
    /// The rate in the worst twelfth of the time, by that of all of it.
    pub worst_month_ratio: f64,
    /// Ways to cool, in dollars for each watt of servers.
    pub cooling: Vec<Cost>,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |yes: bool, word: &'static str| if yes { word } else { "" };
        let (temperature, humidity) = (number(self.temperature), number(self.humidity));
        writeln!(
            f,
            "at the disk: {temperature} degrees, {humidity} % humidity on average{}{}",
            word(self.hot, ", hot"),
            word(self.humid, ", humid")
        )?;
        writeln!(
            f,
            "failures in a year: {:.2} %, of mechanics {:.2} %, of controllers {:.2} %",
            self.afr_percent, self.mechanical_percent, self.controller_percent
        )?;
        writeln!(f, "in the worst twelfth of the time {:.1} times as many", self.worst_month_ratio)?;
        writeln!(f, "{:<14}{:>10}{:>10}{:>10}{:>10}", "$ per watt", "build", "run", "disks", "total")?;
        for Cost { cooling, capex, opex, disks, total } in &self.cooling {
            writeln!(f, "{cooling:<14}{capex:>10.2}{opex:>10.2}{disks:>10.2}{total:>10.2}")?;
        }
        Ok(())
    }
}

impl Site {
    fn at_disk(&self) -> impl Iterator<Item = (f64, f64)> {
        let warm = |celsius: f64, percent: f64| match self.disk_temperature {
            Some(disk) => (disk, warmed(percent, celsius, disk)),
            None => (celsius, percent),
        };
        self.series.iter().map(move |(celsius, percent)| warm(*celsius, *percent))
    }

    fn afr(&self, parameters: &Parameters) -> f64 {
        parameters.mean(self.at_disk()).all()
    }
}

/// Estimates.
pub fn estimate(site: &Site) -> Result<Estimate<Answer>, Refused> {
    site.parameters.validate()?;
    within("the years", site.years, 0.1, 100.0)?;
    within("the price of a kilowatt hour", site.prices.kilowatt_hour, 0.0, 100.0)?;
    within("the price of a disk", site.prices.disk, 0.0, 1e6)?;
    within("the disks for each watt", site.prices.disks_per_watt, 0.0, 10.0)?;
    if site.series.is_empty() {
        return Err(Refused("there is no temperature and humidity".into()));
    }
    site.series.iter().try_for_each(|(celsius, percent)| hazard::check(*celsius, *percent))?;
    site.disk_temperature.map_or(Ok(()), |celsius| hazard::check(celsius, 50.0))?;
    let parameters = site.parameters;
    let hazard = parameters.mean(site.at_disk());
    let afr = hazard.all();
    let count = site.series.len() as f64;
    let (sum_t, sum_rh) = site.at_disk().fold((0.0, 0.0), |(t, rh), one| (t + one.0, rh + one.1));
    let part =
        |holds: &dyn Fn(&(f64, f64)) -> bool| site.series.iter().filter(|one| holds(one)).count() as f64 / count >= 0.1;
    let mut rates: Vec<f64> =
        site.at_disk().map(|(celsius, percent)| parameters.hazard(celsius, percent).all()).collect();
    rates.sort_by(|one, other| other.total_cmp(one));
    let worst = &rates[..rates.len().div_ceil(12)];
    let answer = Answer {
        afr_percent: afr * 100.0,
        mechanical_percent: hazard.mechanical * 100.0,
        controller_percent: hazard.controller * 100.0,
        temperature: sum_t / count,
        humidity: sum_rh / count,
        hot: part(&|one| one.0 > 24.0),
        humid: part(&|one| one.1 > 60.0),
        worst_month_ratio: worst.iter().sum::<f64>() / worst.len() as f64 / afr.max(1e-300),
        cooling: COOLINGS.iter().map(|cooling| cooling.cost(site.prices, site.years, afr)).collect(),
    };
    let mut inputs = site.described.clone();
    inputs.extend([
        ("activation_ev".to_string(), json!(parameters.activation_ev)),
        ("corrosion".into(), json!(parameters.corrosion)),
        ("mechanical_afr".into(), json!(parameters.mechanical_afr)),
        ("controller_afr".into(), json!(parameters.controller_afr)),
        ("disk_temperature".into(), json!(site.disk_temperature)),
        ("years".into(), json!(site.years)),
        ("kilowatt_hour".into(), json!(site.prices.kilowatt_hour)),
        ("disk_price".into(), json!(site.prices.disk)),
        ("disks_per_watt".into(), json!(site.prices.disks_per_watt)),
    ]);
    let described: Vec<String> = site.described.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut estimate = Estimate::new(&ABOUT, format!("environment {}", described.join(" ")), inputs, answer);
    estimate.predictions = vec![predicted(site, afr)];
    estimate.assumptions = vec![
        "the rate of a moment depends on that moment alone: corrosion does not add up".into(),
        format!(
            "at 20 degrees and 30 % humidity {} % a year fail by mechanics and {} % by controllers; the split is not published",
            parameters.mechanical_afr * 100.0,
            parameters.controller_afr * 100.0
        ),
        "what holds for one site's disks of 2010 to 2014 holds for these; no infant mortality, no batches".into(),
        "disks see the air of the inlet, unless a disk temperature is given".into(),
    ];
    let changed = |change: &str, change_one: &dyn Fn(&mut Parameters)| {
        let mut other = parameters;
        change_one(&mut other);
        (change.to_string(), site.afr(&other) * 100.0)
    };
    let hotter = |more: f64, wetter: f64| {
        let series = site.at_disk().map(|(celsius, percent)| (celsius + more, (percent + wetter).min(100.0)));
        parameters.mean(series).all() * 100.0
    };
    estimate.judge(
        afr * 100.0,
        vec![
            changed("sensitivity to humidity 0.0652 (trained) instead of what was given", &|p| {
                p.corrosion = CORROSION_TRAINED
            }),
            changed("all failures at base conditions are of controllers", &|p| {
                (p.controller_afr, p.mechanical_afr) = (p.controller_afr + p.mechanical_afr, 0.0);
            }),
            changed("all failures at base conditions are of mechanics", &|p| {
                (p.mechanical_afr, p.controller_afr) = (p.controller_afr + p.mechanical_afr, 0.0);
            }),
            ("five degrees more".into(), hotter(5.0, 0.0)),
            ("ten percent of humidity more".into(), hotter(0.0, 10.0)),
        ],
    );
    estimate.explanation = steps(site, &estimate.answer);
    Ok(estimate)
}

/// The range covers other splits of the base rate, and both sensitivities.
fn predicted(site: &Site, afr: f64) -> Predicted {
    let base = site.parameters.mechanical_afr + site.parameters.controller_afr;
    let mut all = vec![afr];
    for corrosion in [CORROSION_COPPER, CORROSION_TRAINED] {
        for part in [0.25, 0.5, 0.9] {
            all.push(site.afr(&Parameters {
                corrosion,
                mechanical_afr: base * part,
                controller_afr: base * (1.0 - part),
                ..site.parameters
            }));
        }
    }
    let (low, high) = all.iter().fold((f64::MAX, 0.0), |(low, high), one| (f64::min(low, *one), f64::max(high, *one)));
    Predicted {
        quantity: "afr".into(),
        unit: "percent/year".into(),
        value: afr * 100.0,
        low: low * 100.0,
        high: high * 100.0,
        confidence: 0.5,
        range_from:
            "both published sensitivities to humidity, and from a quarter to nine tenths of the base rate for mechanics"
                .into(),
    }
}

fn steps(site: &Site, answer: &Answer) -> Vec<Step> {
    let step = |formula: &str, numbers: String| Step { formula: formula.into(), numbers };
    let (parameters, t, rh) = (&site.parameters, answer.temperature, answer.humidity);
    vec![
        step(
            "AF_T at the mean temperature",
            format!(
                "exp({} / 8.62e-5 x (1/{} - 1/{})) = {:.4}",
                parameters.activation_ev,
                number(273.15 + parameters.base_temperature),
                number(273.15 + t),
                parameters.by_temperature(t)
            ),
        ),
        step(
            "AF_RH at the mean humidity",
            format!(
                "exp({} x ({} - {})) = {:.4}",
                parameters.corrosion,
                number(rh),
                parameters.base_humidity,
                parameters.by_humidity(rh)
            ),
        ),
        step("mean of AF_T over the history x mechanical rate", format!("{:.4} % a year", answer.mechanical_percent)),
        step(
            "mean of AF_T AF_RH over the history x controller rate",
            format!("{:.4} % a year", answer.controller_percent),
        ),
        step("the sum", format!("{:.4} % a year", answer.afr_percent)),
    ]
}

/// Failure rates by humidity at three temperatures.
pub fn figure(estimate: &Estimate<Answer>, parameters: &Parameters) -> Plot {
    let title = format!("Disks that fail in a year; this site: {} %", number(estimate.answer.afr_percent));
    let mut plot = Plot::lines(
        title,
        Axis::new("relative humidity, percent"),
        Axis::log("percent of disks a year"),
        Origin::Modelled,
    );
    for celsius in [20.0, 30.0, 40.0] {
        let at = |percent: u32| (f64::from(percent), parameters.hazard(celsius, f64::from(percent)).all() * 100.0);
        plot = plot
            .with(ashlar_report::Series::line(format!("{celsius} °C"), (2..=18).map(|place| at(place * 5)).collect()));
    }
    plot
}
