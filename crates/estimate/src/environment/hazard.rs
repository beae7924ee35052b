//! How temperature and humidity multiply failure rates (section 6 of the paper).

use crate::common::{Refused, within, within_percent};

/// Boltzmann's constant, eV per kelvin.
const BOLTZMANN: f64 = 8.62e-5;
/// Zero degrees Celsius, kelvin.
const ZERO: f64 = 273.15;
/// Humidity sensitivity from corrosion of copper, per percent of relative humidity.
pub const CORROSION_COPPER: f64 = 0.0455;
/// The same, trained on two populations of disks of one site.
pub const CORROSION_TRAINED: f64 = 0.0652;

/// Parameters of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Activation energy, eV.
    pub activation_ev: f64,
    /// How much humidity matters, per percent.
    pub corrosion: f64,
    /// Conditions at which the rates below hold: degrees Celsius.
    pub base_temperature: f64,
    /// And percent.
    pub base_humidity: f64,
    /// Failures of mechanics and media in a year, as a part of the disks, at those conditions.
    pub mechanical_afr: f64,
    /// Failures of controllers and connectors.
    pub controller_afr: f64,
}

impl Default for Parameters {
    /// The paper's, but for the split of its 1.5 % a year, which it does not publish: two thirds to the mechanics.
    fn default() -> Parameters {
        Parameters {
            activation_ev: 0.46,
            corrosion: CORROSION_COPPER,
            base_temperature: 20.0,
            base_humidity: 30.0,
            mechanical_afr: 0.010,
            controller_afr: 0.005,
        }
    }
}

/// Failure rates, per year, as a part of the disks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Hazard {
    /// Of mechanics and media.
    pub mechanical: f64,
    /// Of controllers and connectors.
    pub controller: f64,
}

impl Hazard {
    /// Both.
    pub fn all(self) -> f64 {
        self.mechanical + self.controller
    }
}

impl Parameters {
    /// Refuses what makes no sense.
    pub fn validate(&self) -> Result<(), Refused> {
        within("the activation energy, eV,", self.activation_ev, 0.0, 2.0)?;
        within("the sensitivity to humidity", self.corrosion, 0.0, 0.2)?;
        check(self.base_temperature, self.base_humidity)?;
        within_percent("the mechanical failure rate of a year", self.mechanical_afr, 0.0, 1.0)?;
        within_percent("the controller failure rate of a year", self.controller_afr, 0.0, 1.0)
    }

    /// How much faster everything fails at a temperature (formula 1).
    pub fn by_temperature(&self, celsius: f64) -> f64 {
        let inverse = |celsius: f64| 1.0 / (ZERO + celsius);
        (self.activation_ev / BOLTZMANN * (inverse(self.base_temperature) - inverse(celsius))).exp()
    }

    /// How much faster controllers fail at a relative humidity, percent.
    pub fn by_humidity(&self, percent: f64) -> f64 {
        (self.corrosion * (percent - self.base_humidity)).exp()
    }

    /// Failure rates at a moment (formulas 3 and 4).
    pub fn hazard(&self, celsius: f64, percent: f64) -> Hazard {
        let temperature = self.by_temperature(celsius);
        Hazard {
            mechanical: self.mechanical_afr * temperature,
            controller: self.controller_afr * temperature * self.by_humidity(percent),
        }
    }

    /// Mean failure rates over conditions of equal duration.
    pub fn mean(&self, conditions: impl IntoIterator<Item = (f64, f64)>) -> Hazard {
        let (mut sum, mut count) = (Hazard::default(), 0.0);
        for (celsius, percent) in conditions {
            let hazard = self.hazard(celsius, percent);
            sum.mechanical += hazard.mechanical;
            sum.controller += hazard.controller;
            count += 1.0;
        }
        Hazard { mechanical: sum.mechanical / f64::max(count, 1.0), controller: sum.controller / f64::max(count, 1.0) }
    }
}

/// Refuses temperatures and humidities that no machine room has.
pub fn check(celsius: f64, percent: f64) -> Result<(), Refused> {
    within("the temperature, degrees Celsius,", celsius, -40.0, 100.0)?;
    within("the relative humidity, percent,", percent, 0.0, 100.0)
}

/// Pressure of saturated vapour, kPa (Magnus).
fn saturation(celsius: f64) -> f64 {
    0.610_94 * (17.625 * celsius / (celsius + 243.04)).exp()
}

/// Relative humidity of air that is warmed without taking up water, percent.
pub fn warmed(percent: f64, from_celsius: f64, to_celsius: f64) -> f64 {
    (percent * saturation(from_celsius) / saturation(to_celsius)).min(100.0)
}
