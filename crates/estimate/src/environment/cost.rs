//! What cooling costs, and what disks cost that fail for want of it (Figure 5 of the paper).

use schemars::JsonSchema;
use serde::Serialize;

/// Power usage that is not cooling's: 4 % of overhead.
const OTHER_PUE: f64 = 1.04;
/// Hours of a year, thousands.
const KILOHOURS: f64 = 8.76;
/// Failures of disks that every kind of cooling has, as a part of the disks in a year.
pub const AFR_COOLED: f64 = 0.015;

/// A way to cool.
#[derive(Clone, Copy, Debug)]
pub struct Cooling {
    /// Its name.
    pub name: &'static str,
    /// Dollars to build it, for each watt of servers.
    pub capex: f64,
    /// Power usage effectiveness.
    pub pue: f64,
}

/// The three of the paper.
pub const COOLINGS: [Cooling; 3] = [
    Cooling { name: "chiller", capex: 2.5, pue: 1.7 },
    Cooling { name: "water-side", capex: 2.8, pue: 1.19 },
    Cooling { name: "free", capex: 0.7, pue: 1.12 },
];

/// Prices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Dollars for a kilowatt hour.
    pub kilowatt_hour: f64,
    /// Dollars for a disk that is replaced.
    pub disk: f64,
    /// Disks for each watt of servers.
    pub disks_per_watt: f64,
}

impl Default for Prices {
    /// The paper's; disks for each watt follow from its savings over 20 years (0.0126 to 0.0138).
    fn default() -> Prices {
        Prices { kilowatt_hour: 0.07, disk: 100.0, disks_per_watt: 0.0132 }
    }
}

/// Dollars for each watt of servers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Cost {
    /// The way to cool.
    pub cooling: String,
    /// To build it.
    pub capex: f64,
    /// To run it.
    pub opex: f64,
    /// For disks that fail beyond 1.5 % a year.
    pub disks: f64,
    /// All of it.
    pub total: f64,
}

impl Cooling {
    /// What it costs in some years where disks fail at a rate; chillers keep disks at 1.5 % a year.
    pub fn cost(&self, prices: Prices, years: f64, afr: f64) -> Cost {
        let opex = years * prices.kilowatt_hour * KILOHOURS * (self.pue - OTHER_PUE);
        let extra = if self.name == "free" { (afr - AFR_COOLED).max(0.0) } else { 0.0 };
        let disks = years * extra * prices.disks_per_watt * prices.disk;
        Cost { cooling: self.name.into(), capex: self.capex, opex, disks, total: self.capex + opex + disks }
    }
}
