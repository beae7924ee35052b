//! How long flash lives under a load.
//!
//! Boboila and Desnoyers, "Write endurance in flash drives: measurements and analysis", FAST '10: a device is dead when as
//! many blocks have reached their cycles as it keeps free. How many writes that takes follows from its translation layer.
//! The arithmetic is that of [`ashlar_models::endurance`].
//!
//! Departs: page-mapped drives, which the paper does not have, write as much more as greedy cleaning does in the long run.

mod chips;
#[cfg(test)]
mod tests;

pub use chips::{CHIPS, Chip, erasures, grouped, rotation};

use crate::common::{About, Estimate, Inputs, Predicted, Refused, Step, within};
use ashlar_models::Chance;
use ashlar_models::endurance::{Wear, greedy_amplification_of_blocks, one_choice_amplification, predict, random_wear};
use ashlar_report::{Axis, Origin, Plot, Series, number};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use std::fmt;
use std::str::FromStr;

/// What this estimator is.
pub static ABOUT: About = About {
    name: "endurance",
    what: "how long flash lives under a load",
    source: "Boboila, Desnoyers: Write endurance in flash drives, FAST 2010",
    version: 2,
    formulas: "one address, every update erases (generic): m h page writes, m blocks free and h cycles.\n\
               one address, log blocks of k pages (log-block): m h to m k h.\n\
               static wear levelling over z blocks (levelled): z k h.\n\
               page-mapped: N k h / (amplification x unevenness); amplification of random writes with greedy cleaning\n\
               k / (k - v), where a block that is cleaned has v pages in use: (1 - spare) k (H(k) - H(v)) = k - v,\n\
               H harmonic numbers; for large k alpha / (alpha + W(-alpha e^-alpha)), alpha = 1 / (1 - spare), W of Lambert.",
};

/// Blocks of the device that wear levelling is simulated on.
const WEAR_BLOCKS: u64 = 1024;
/// Most cycles that are simulated: with more, wear is nearly even.
const WEAR_CYCLES: f64 = 1000.0;
/// Hours of a year.
const YEAR_DAYS: f64 = 365.25;

/// How a device translates addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// Blocks are mapped, and every update erases one: cheap cards.
    Generic,
    /// Blocks are mapped, and some have a log of updates.
    LogBlock,
    /// The same, with static wear levelling.
    Levelled,
    /// Pages are mapped, with greedy cleaning: drives of today.
    Page,
}

impl Translation {
    const ALL: [(Translation, &str); 4] = [
        (Translation::Generic, "generic"),
        (Translation::LogBlock, "log-block"),
        (Translation::Levelled, "levelled"),
        (Translation::Page, "page"),
    ];

    fn name(self) -> &'static str {
        Translation::ALL.iter().find(|(one, _)| *one == self).map_or("", |(_, name)| name)
    }
}

impl FromStr for Translation {
    type Err = String;
    fn from_str(text: &str) -> Result<Translation, String> {
        let found = Translation::ALL.iter().find(|(_, name)| *name == text);
        found
            .map(|(one, _)| *one)
            .ok_or_else(|| format!("{text:?} is no translation layer; there are generic, log-block, levelled and page"))
    }
}

/// Flash and its load.
#[derive(Clone, Debug)]
pub struct Device {
    /// How it translates addresses.
    pub translation: Translation,
    /// Bytes that users see.
    pub capacity: f64,
    /// Part of the flash beyond that, of all flash.
    pub spare: f64,
    /// Bytes of a page.
    pub page: f64,
    /// Pages of an erase block.
    pub pages: f64,
    /// Zones that wear separately.
    pub zones: f64,
    /// Cycles that a block bears.
    pub cycles: f64,
    /// Their standard deviation, as a part of them.
    pub cycles_deviation: f64,
    /// Where the cycles come from.
    pub cycles_from: String,
    /// Bytes written in a day.
    pub written_per_day: f64,
    /// Part of the writes that go to random addresses; the others go to one address (legacy) or in order (page).
    pub random: f64,
    /// Decides all chance.
    pub seed: u64,
}

/// What `plan estimate endurance` answers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Answer {
    /// Years until the device is dead.
    pub years: f64,
    /// Years, at the least and the most.
    pub years_range: (f64, f64),
    /// Page writes until then: the least and the most.
    pub page_writes: (f64, f64),
    /// Page writes if wear were even and nothing had to be copied.
    pub page_writes_ideal: f64,
    /// How many times fewer there are, by the middle of the range.
    pub degradation: f64,
    /// Bytes programmed for each byte written; page-mapped drives only.
    pub amplification: Option<f64>,
    /// The same by one greedy choice among randomly scattered stale pages: our reading of Figure 17 of the paper.
    pub amplification_figure_17: Option<f64>,
    /// By which factor random wear falls short of even wear.
    pub unevenness: f64,
    /// How many times the whole device is written in its life.
    pub full_writes: f64,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = self.page_writes;
        writeln!(
            f,
            "life           {} years, {} to {}",
            number(self.years),
            number(self.years_range.0),
            number(self.years_range.1)
        )?;
        writeln!(
            f,
            "page writes    {} to {}; ideal {}, so {} times fewer",
            number(low),
            number(high),
            number(self.page_writes_ideal),
            number(self.degradation)
        )?;
        writeln!(f, "full writes    {} of the whole device", number(self.full_writes))?;
        if let (Some(greedy), Some(single)) = (self.amplification, self.amplification_figure_17) {
            writeln!(
                f,
                "amplification  {} in the long run; {} by one choice, as Figure 17 seems to have it",
                number(greedy),
                number(single)
            )?;
        }
        writeln!(f, "unevenness     {}", number(self.unevenness))
    }
}

impl Device {
    fn validate(&self) -> Result<(), Refused> {
        within("the capacity, bytes,", self.capacity, 1e6, 1e18)?;
        within("the spare part of the flash", self.spare, 0.001, 0.9)?;
        within("the size of a page, bytes,", self.page, 256.0, 1e7)?;
        within("the pages of an erase block", self.pages, 1.0, 1e5)?;
        within("the zones", self.zones, 1.0, 1e6)?;
        within("the cycles that a block bears", self.cycles, 1.0, 1e9)?;
        within("the deviation of cycles", self.cycles_deviation, 0.0, 1.0)?;
        within("bytes written in a day", self.written_per_day, 1.0, 1e18)?;
        within("the random part of the writes", self.random, 0.0, 1.0)?;
        within("blocks of a zone", self.zone_blocks(), 4.0, 1e12)
    }

    /// Blocks of all flash.
    fn blocks(&self) -> f64 {
        self.capacity / (1.0 - self.spare) / self.page / self.pages
    }
    fn zone_blocks(&self) -> f64 {
        self.blocks() / self.zones
    }
    /// Blocks of a zone that hold nothing.
    fn free(&self) -> f64 {
        (self.zone_blocks() * self.spare).max(1.0)
    }

    /// Page writes until it is dead, the least and the most, with the cycles that are expected; and amplification.
    fn writes(&self) -> (f64, f64, f64) {
        let (free, zone) = (self.free(), self.zone_blocks());
        let legacy = |wear| predict(wear, free, self.pages, self.cycles, zone);
        let spread = |(low, high): (f64, f64)| {
            // Random writes wear all zones and blocks; writes of one address only those of its zone's free list.
            let widest = (1.0 - self.random) + self.random * self.zones * zone / free;
            (low, high.max(low) * widest, 1.0)
        };
        match self.translation {
            Translation::Generic => spread(legacy(Wear::EveryUpdate)),
            Translation::LogBlock => spread(legacy(Wear::LogBlock)),
            Translation::Levelled => {
                let (low, high) = legacy(Wear::Levelled);
                // A random update of one page costs as much as a whole block of them.
                (low / (1.0 + self.random * (self.pages - 1.0)), high, 1.0)
            }
            Translation::Page => {
                let greedy = greedy_amplification_of_blocks(self.pages as u32, self.spare);
                let amplification = 1.0 + self.random * (greedy - 1.0);
                let writes = self.ideal() / amplification / self.unevenness();
                (writes, writes, amplification)
            }
        }
    }

    fn ideal(&self) -> f64 {
        self.blocks() * self.pages * self.cycles
    }

    fn unevenness(&self) -> f64 {
        let free = ((WEAR_BLOCKS as f64 * self.spare) as u64).clamp(1, WEAR_BLOCKS / 2);
        let cycles = self.cycles.min(WEAR_CYCLES) as u64;
        random_wear(WEAR_BLOCKS, free, cycles, &mut Chance::new(self.seed))
    }

    fn years(&self, page_writes: f64) -> f64 {
        page_writes * self.page / self.written_per_day / YEAR_DAYS
    }

    /// The middle of the range: writes may differ by orders of magnitude.
    fn middle(&self) -> f64 {
        let (low, high, _) = self.writes();
        (low * high).sqrt()
    }
}

/// Estimates.
pub fn estimate(device: &Device) -> Result<Estimate<Answer>, Refused> {
    device.validate()?;
    let (low, high, amplification) = device.writes();
    let middle = device.middle();
    let page = device.translation == Translation::Page;
    let blocks = device.blocks().min(1e6) as u64;
    // Blocks fail one by one, and the weakest free ones count; two standard deviations of cycles either way.
    let spread = 2.0 * device.cycles_deviation;
    let (least, most) = (low * (1.0 - spread).max(0.05), high * (1.0 + spread));
    let answer = Answer {
        years: device.years(middle),
        years_range: (device.years(least), device.years(most)),
        page_writes: (least, most),
        page_writes_ideal: device.ideal(),
        degradation: device.ideal() / middle,
        amplification: page.then_some(amplification),
        amplification_figure_17: page
            .then(|| one_choice_amplification(blocks.max(2), device.pages as u32, device.spare)),
        unevenness: device.unevenness(),
        full_writes: middle * device.page / device.capacity,
    };
    let main = answer.years;
    let (range_low, range_high) = answer.years_range;
    let mut estimate = Estimate::new(&ABOUT, subject(device), inputs(device), answer);
    estimate.predictions = vec![Predicted {
        quantity: "life".into(),
        unit: "years".into(),
        value: main,
        low: range_low,
        high: range_high,
        confidence: 0.8,
        range_from: "the bounds of the formula, and two standard deviations of what blocks bear".into(),
    }];
    estimate.assumptions = vec![
        format!("a block bears {} cycles: {}", number(device.cycles), device.cycles_from),
        "the device dies when as many blocks are worn as it keeps free; retention, heat and read disturb do not count"
            .into(),
        "the load does not change, and writes are of whole pages".into(),
        match device.translation {
            Translation::Page => {
                "cleaning is greedy, wear levelling random; no cache of another cell type, no compression".into()
            }
            _ => "wear goes round the free list; zones do not help each other".to_string(),
        },
    ];
    let changed = changes(device).into_iter().filter(|(_, other)| other.validate().is_ok());
    estimate.judge(main, changed.map(|(change, other)| (change, other.years(other.middle()))).collect());
    estimate.explanation = steps(device, &estimate.answer);
    Ok(estimate)
}

fn changes(device: &Device) -> Vec<(String, Device)> {
    let with = |change: &dyn Fn(&mut Device)| {
        let mut changed = device.clone();
        change(&mut changed);
        changed
    };
    vec![
        ("blocks bear a tenth of the cycles".to_string(), with(&|d| d.cycles = (d.cycles / 10.0).max(1.0))),
        ("twice as much spare flash".into(), with(&|d| d.spare = (2.0 * d.spare).min(0.9))),
        ("twice as much is written".into(), with(&|d| d.written_per_day *= 2.0)),
        ("all writes are random".into(), with(&|d| d.random = 1.0)),
        ("no write is random".into(), with(&|d| d.random = 0.0)),
    ]
}

fn inputs(device: &Device) -> Inputs {
    Inputs::from([
        ("translation".into(), json!(device.translation.name())),
        ("capacity".into(), json!(device.capacity)),
        ("spare".into(), json!(device.spare)),
        ("page".into(), json!(device.page)),
        ("pages".into(), json!(device.pages)),
        ("zones".into(), json!(device.zones)),
        ("cycles".into(), json!(device.cycles)),
        ("cycles_deviation".into(), json!(device.cycles_deviation)),
        ("written_per_day".into(), json!(device.written_per_day)),
        ("random".into(), json!(device.random)),
        ("seed".into(), json!(device.seed)),
    ])
}

fn subject(device: &Device) -> String {
    let Device { capacity, cycles, written_per_day, .. } = device;
    format!(
        "endurance {} capacity={} cycles={} written_per_day={}",
        device.translation.name(),
        number(*capacity),
        number(*cycles),
        number(*written_per_day)
    )
}

fn steps(device: &Device, answer: &Answer) -> Vec<Step> {
    let step = |formula: &str, numbers: String| Step { formula: formula.into(), numbers };
    let [h, k, z, m] = [device.cycles, device.pages, device.zone_blocks(), device.free()].map(number);
    let formula = match device.translation {
        Translation::Generic => format!("m h = {m} x {h}"),
        Translation::LogBlock => format!("m h to m k h = {m} x {h} to {m} x {k} x {h}"),
        Translation::Levelled => format!("z k h = {z} x {k} x {h}"),
        Translation::Page => format!(
            "N k h / (amplification x unevenness) = {} / ({} x {})",
            number(answer.page_writes_ideal),
            number(answer.amplification.unwrap_or(1.0)),
            number(answer.unevenness)
        ),
    };
    let (low, high, _) = device.writes();
    vec![
        step(
            "blocks = capacity / (1 - spare) / page / pages; in a zone z, free in it m",
            format!("{}; z = {z}, m = {m}", number(device.blocks())),
        ),
        step("ideal page writes N k h", number(answer.page_writes_ideal)),
        step("page writes by the translation layer", format!("{formula} = {} to {}", number(low), number(high))),
        step(
            "with two standard deviations of cycles",
            format!("{} to {}", number(answer.page_writes.0), number(answer.page_writes.1)),
        ),
        step(
            "years = page writes x page / bytes a day / 365.25, at the geometric middle",
            format!("{} years", number(answer.years)),
        ),
    ]
}

/// Life by the part of the flash that is spare.
pub fn figure(estimate: &Estimate<Answer>, device: &Device) -> Plot {
    let title = format!(
        "Life of the device, {} GB a day; as given {} years",
        number(device.written_per_day / 1e9),
        number(estimate.answer.years)
    );
    let plot = Plot::lines(title, Axis::new("spare part of the flash, percent"), Axis::log("years"), Origin::Modelled);
    let at = |percent: u32| {
        let other = Device { spare: f64::from(percent) / 100.0, ..device.clone() };
        let (low, high, _) = other.writes();
        let spread = 2.0 * other.cycles_deviation;
        let years = |writes: f64| other.years(writes);
        (
            f64::from(percent),
            years((low * high).sqrt()),
            years(low * (1.0 - spread).max(0.05)),
            years(high * (1.0 + spread)),
        )
    };
    plot.with(Series::ranges(device.translation.name(), (1..=15).map(|place| at(place * 3)).collect()))
}
