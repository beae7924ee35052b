//! How drives fail, and how latent errors come to lie on them.

use crate::common::{Refused, as_given, within, within_percent};
use crate::environment::{Parameters, Series, seasonal};
use crate::fleet::Process;
use crate::ssd::SsdModel;
use std::str::FromStr;

/// Hours of a month.
pub const MONTH: f64 = 730.5;
/// Hours of a year.
pub const YEAR: f64 = 12.0 * MONTH;

/// Latent errors: they come in episodes, and only to some drives.
///
/// Disks: 3.45 % have one in 32 months (Bairavasundaram et al. 2007, as Schroeder et al., FAST 2010, cite it), and those that
/// have one have on average 1.6 fortnights with errors (the same, section 3.4: 55 to 85 % have one, 10 to 15 % two). A part
/// of all drives with episodes at a constant rate has both numbers: 5.4 % and one in 31 months.
///
/// Flash: the process of [`crate::fleet`], where days with errors of a prone drive come together in months.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latent {
    /// Part of the drives that have episodes.
    pub prone: f64,
    /// Episodes of such a drive in an hour; of flash, days with errors.
    pub rate: f64,
    /// How episodes come together; of disks they do not.
    pub process: Option<Process>,
}

impl Latent {
    /// None.
    pub const NONE: Latent = Latent { prone: 0.0, rate: 0.0, process: None };
    /// Those of disks.
    pub const DISK: Latent = Latent { prone: 0.0537, rate: 1.03 / (32.0 * MONTH), process: None };

    /// Those of a model of flash drive: some drives have nearly all of them (section 3.2 of the paper).
    pub fn flash(model: &SsdModel) -> Latent {
        let process = Process::of(model);
        Latent { prone: process.prone, rate: model.ue_days / process.prone / 24.0, process: Some(process) }
    }

    /// The probability that a drive has latent errors that nobody has seen, if each waits for `hours`.
    pub fn unseen(&self, hours: f64) -> f64 {
        let recent = self.process.map(|process| process.recent(hours));
        self.prone * recent.unwrap_or_else(|| -(-self.rate * hours).exp_m1())
    }

    /// The probability that a drive has any in `hours`.
    pub fn any(&self, hours: f64) -> f64 {
        self.unseen(hours)
    }

    /// So many times as many.
    pub fn times(&self, times: f64) -> Latent {
        let process = self.process.map(|process| Process { onset: times * process.onset, ..process });
        Latent { rate: times * self.rate, process, ..*self }
    }
}

/// Kinds of drives that are known.
#[derive(Clone, Debug, PartialEq)]
pub enum DriveKind {
    /// A disk.
    Disk,
    /// A model of flash drive of the field study.
    Flash(&'static SsdModel),
}

impl FromStr for DriveKind {
    type Err = Refused;
    fn from_str(text: &str) -> Result<DriveKind, Refused> {
        let names = || crate::ssd::SSD_MODELS.iter().map(|model| model.name).collect::<Vec<_>>().join(", ");
        match text.strip_prefix("ssd:") {
            _ if text == "hdd" => Ok(DriveKind::Disk),
            Some(name) if SsdModel::find(name).is_some() => {
                Ok(SsdModel::find(name).map_or(DriveKind::Disk, DriveKind::Flash))
            }
            _ => Err(Refused(format!("{text:?} is no kind of drive; write hdd, or ssd:MODEL with one of {}", names()))),
        }
    }
}

impl std::fmt::Display for DriveKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DriveKind::Disk => f.write_str("hdd"),
            DriveKind::Flash(model) => write!(f, "ssd:{}", model.name),
        }
    }
}

/// Drives, and what is done for them.
#[derive(Clone, Debug)]
pub struct Drives {
    /// What they are.
    pub kind: DriveKind,
    /// Part that fails whole in a year, on average over the mission, at 20 degrees and 30 % humidity.
    pub afr: f64,
    /// Shape of the Weibull distribution of life: 1 if age does not matter, above if old drives fail more.
    pub shape: f64,
    /// Variance of a batch's failure rate, of mean 1: 0 if batches do not differ.
    pub batch_variance: f64,
    /// Batches that the first drives come from.
    pub batches: u32,
    /// Latent errors.
    pub latent: Latent,
    /// Bytes of a drive.
    pub capacity: f64,
    /// Bytes rebuilt in a second.
    pub rebuild_rate: f64,
    /// Hours until a rebuild begins.
    pub replace_hours: f64,
    /// Hours of a pass of scrubbing; infinite without.
    pub scrub_hours: f64,
    /// Months of a year: degrees Celsius and percent of humidity; none for the conditions that `afr` is of.
    pub climate: Option<Series>,
    /// Years to look ahead.
    pub years: f64,
}

impl Drives {
    /// Drives of a kind with what is usual: 8 TB disks at 2 % a year, or flash drives of 2 TB that are replaced as in the
    /// field study.
    pub fn new(kind: DriveKind) -> Drives {
        let (afr, latent, capacity, rebuild_rate) = match &kind {
            DriveKind::Disk => (0.02, Latent::DISK, 8e12, 100e6),
            DriveKind::Flash(model) => {
                (-(-model.replaced_percent / 100.0).ln_1p() / model.years, Latent::flash(model), 2e12, 300e6)
            }
        };
        Drives {
            kind,
            afr,
            shape: 1.0,
            batch_variance: 0.5,
            batches: 1,
            latent,
            capacity,
            rebuild_rate,
            replace_hours: 12.0,
            scrub_hours: 14.0 * 24.0,
            climate: None,
            years: 5.0,
        }
    }

    /// A climate by its mean and swing over the year.
    pub fn in_climate(self, temperature: f64, temperature_swing: f64, humidity: f64, humidity_swing: f64) -> Drives {
        Drives { climate: Some(seasonal(temperature, temperature_swing, humidity, humidity_swing)), ..self }
    }

    /// Refuses what cannot be.
    pub fn validate(&self) -> Result<(), Refused> {
        within_percent("the yearly failure rate", self.afr, 1e-6, 2.0)?;
        within("the Weibull shape", self.shape, 0.3, 10.0)?;
        within("the variance of batches", self.batch_variance, 0.0, 4.0)?;
        within("the number of batches", self.batches.into(), 1.0, 200.0)?;
        within("the part of drives with latent errors", self.latent.prone, 0.0, 1.0)?;
        within("the capacity, bytes,", self.capacity, 1.0, 1e18)?;
        within("the rebuild rate, bytes per second,", self.rebuild_rate, 1.0, 1e12)?;
        within("the hours until a rebuild begins", self.replace_hours, 0.0, 24.0 * 365.0)?;
        within("the years", self.years, 0.01, 50.0)?;
        if self.scrub_hours.is_nan() || self.scrub_hours <= 0.0 {
            let days = as_given(self.scrub_hours / 24.0);
            return Err(Refused(format!("a pass of scrubbing takes {days} days; it must be more than 0")));
        }
        within("the hours that a drive is gone", self.gone_hours(), 0.001, self.years * YEAR)
    }

    /// Hours from a failure until the new drive is whole.
    pub fn gone_hours(&self) -> f64 {
        self.replace_hours + self.capacity / self.rebuild_rate / 3600.0
    }

    /// Hours that a latent error waits to be seen, on average.
    pub fn unseen_hours(&self) -> f64 {
        (self.scrub_hours / 2.0).min(self.years * YEAR / 2.0)
    }

    /// Failures in an hour by the age in months, for a batch as others are.
    pub fn by_age(&self) -> Vec<f64> {
        let mission = self.years * YEAR;
        let months = (mission / MONTH).ceil().max(1.0) as usize;
        // The cumulative hazard of a Weibull distribution that reaches afr x years at the end of the mission.
        let sum = |month: usize| self.afr * self.years * (month as f64 * MONTH / mission).powf(self.shape);
        (0..months).map(|month| (sum(month + 1) - sum(month)) / MONTH).collect()
    }

    /// What the climate of each month multiplies failures by.
    pub fn by_month(&self) -> [f64; 12] {
        let Some(climate) = self.climate.as_ref().filter(|climate| !climate.is_empty()) else { return [1.0; 12] };
        let parameters = Parameters::default();
        let base = parameters.mechanical_afr + parameters.controller_afr;
        std::array::from_fn(|month| {
            let (celsius, percent) = climate[month * climate.len() / 12];
            parameters.hazard(celsius, percent).all() / base
        })
    }
}
