//! What becomes of flash drives in the field: uncorrectable errors, bad blocks, lost chips, repairs and replacements.
//!
//! Schroeder, Lagisetty and Merchant, "Flash reliability in production: the expected and the unexpected", FAST '16: six years
//! of ten models of drives. Each part of the model says what it is fitted to, and where the paper leaves it open.
//!
//! Uncorrectable errors follow neither reads nor flipped bits: so there is no rate of errors for each bit read here
//! ([`uber`] says why that number misleads).

mod blocks;
mod process;
mod repairs;
mod telemetry;

pub use blocks::{Bad, Blocks};
pub use process::{DAYS, Process, geometric, months, speed};
pub use repairs::{Repaired, Repairs};
pub use telemetry::{Reading, draw as readings, overflow, rate};

use crate::common::{About, Estimate, Inputs, Predicted, Refused, Step, within};
use crate::ssd::{SSD_MODELS, SsdModel};
use ashlar_models::Chance;
use ashlar_report::{Axis, Origin, Plot, Series, number};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use std::fmt;

/// What this estimator is.
pub static ABOUT: About = About {
    name: "fleet",
    what: "what becomes of flash drives in the field: errors, bad blocks, lost chips, replacements",
    source: "Schroeder, Lagisetty, Merchant: Flash reliability in production: the expected and the unexpected, FAST 2016",
    version: 1,
    formulas: "a part of the drives is prone to uncorrectable errors. Of a prone drive a month has some with\n\
               1 - exp(-onset (1 + cycles/2) / 1.25), cycles as a part of the study's mean; after a month with some, also with\n\
               the probability `again`. Days with errors in such a month: geometric.\n\
               fitted: drives and days with errors (Table 2), 30 % after a month with some, 2 % of all months (Figure 7).\n\
               bad blocks: a handful, or a Pareto distribution of hundreds and more; a chip is lost above a count, or by days.\n\
               repairs: negative binomial; some fail, and the drive is replaced.",
};

/// How much a hazard grows with each mean wear of the study: linearly (sections 4.2.1 and 5.3). The slope is ours.
const WEAR: f64 = 0.5;

/// What wear multiplies hazards by, of mean 1 over the study; `worn` are cycles as a part of the mean of the study.
pub fn wear(worn: f64) -> f64 {
    (1.0 + WEAR * worn) / (1.0 + WEAR / 2.0)
}

/// Uncorrectable errors for each bit read. It says more about how much is read than about the drive: the errors come
/// anyway, so a drive of which ten times as much is read seems ten times as good (section 5.1).
pub fn uber(errors: f64, bits_read: f64) -> f64 {
    errors / bits_read
}

/// A model of drive with everything that was fitted to it.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// The model.
    pub model: &'static SsdModel,
    /// Months to follow drives for.
    pub months: usize,
    /// Uncorrectable errors.
    pub process: Process,
    /// Bad blocks.
    pub blocks: Blocks,
    /// Repairs.
    pub repairs: Repairs,
}

/// What one drive showed.
#[derive(Clone, Debug)]
pub struct Drive {
    /// How fast it wore, by the mean of the model.
    pub speed: f64,
    /// Days with uncorrectable errors in each month.
    pub error_days: Vec<u8>,
    /// Bad blocks.
    pub bad: Bad,
    /// Repairs.
    pub repaired: Repaired,
}

impl Fleet {
    /// Drives of a model, followed for some years. Beyond those of the study, and below, hazards are the same.
    pub fn new(model: &'static SsdModel, years: f64) -> Fleet {
        let (mut blocks, mut repairs) = (Blocks::of(model), Repairs::of(model));
        let times = years / model.years;
        blocks.any = 1.0 - (1.0 - blocks.any).powf(times);
        repairs.mean *= times;
        Fleet { model, months: months(years), process: Process::of(model), blocks, repairs }
    }

    /// One drive. What a replaced drive would have done counts, so that rates are those of all drives.
    pub fn drive(&self, chance: &mut Chance) -> Drive {
        let speed = speed(chance.normal());
        Drive {
            speed,
            error_days: self.process.draw(speed, self.months, chance),
            bad: self.blocks.draw(chance),
            repaired: self.repairs.draw(chance),
        }
    }
}

/// What many drives showed.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Drives.
    pub drives: u64,
    /// Months of all.
    pub months: u64,
    /// Drives with an uncorrectable error.
    pub with_errors: u64,
    /// Days with errors.
    pub error_days: u64,
    /// Months with errors.
    pub error_months: u64,
    /// Months before another, with errors; and of those, how many have errors in the next.
    pub followed: (u64, u64),
    /// Bad blocks of the drives that have any.
    pub bad_blocks: Vec<u32>,
    /// Drives that lost a chip.
    pub chips: u64,
    /// Drives that were repaired.
    pub repaired: u64,
    /// Drives that were replaced.
    pub replaced: u64,
}

impl Tally {
    /// Counts a drive.
    pub fn see(&mut self, drive: &Drive) {
        let with = drive.error_days.iter().filter(|days| **days > 0).count() as u64;
        self.drives += 1;
        self.months += drive.error_days.len() as u64;
        self.with_errors += u64::from(with > 0);
        self.error_months += with;
        self.error_days += drive.error_days.iter().map(|days| u64::from(*days)).sum::<u64>();
        for pair in drive.error_days.windows(2).filter(|pair| pair[0] > 0) {
            self.followed.0 += 1;
            self.followed.1 += u64::from(pair[1] > 0);
        }
        self.bad_blocks.extend(Some(drive.bad.blocks).filter(|blocks| *blocks > 0));
        self.chips += u64::from(drive.bad.chip);
        self.repaired += u64::from(drive.repaired.times > 0);
        self.replaced += u64::from(drive.repaired.replaced);
    }

    /// A part of the drives.
    pub fn part(&self, count: u64) -> f64 {
        count as f64 / self.drives.max(1) as f64
    }

    /// The median of the bad blocks of the drives that have at least so many.
    pub fn median_blocks(&self, least: u32) -> Option<u32> {
        let mut blocks: Vec<u32> = self.bad_blocks.iter().copied().filter(|blocks| *blocks >= least).collect();
        blocks.sort_unstable();
        blocks.get(blocks.len() / 2).copied()
    }

    /// The mean of the bad blocks of the drives that have any, and its standard error.
    pub fn mean_blocks(&self) -> (f64, f64) {
        let count = self.bad_blocks.len().max(1) as f64;
        let mean = self.bad_blocks.iter().map(|blocks| f64::from(*blocks)).sum::<f64>() / count;
        let squares: f64 = self.bad_blocks.iter().map(|blocks| (f64::from(*blocks) - mean).powi(2)).sum();
        (mean, squares.sqrt() / count)
    }
}

/// Follows drives.
pub fn simulate(fleet: &Fleet, drives: u64, seed: u64, progress: &mut dyn FnMut(u64)) -> Tally {
    let (mut chance, mut tally) = (Chance::new(seed), Tally::default());
    for drive in 0..drives {
        tally.see(&fleet.drive(&mut chance));
        if drive % 1000 == 0 {
            progress(drive);
        }
    }
    tally
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// The model.
    pub model: &'static SsdModel,
    /// Drives that the user has.
    pub drives: u64,
    /// Years to look ahead.
    pub years: f64,
    /// Drives to follow; more make the parts more precise.
    pub simulated: u64,
    /// Decides all chance.
    pub seed: u64,
}

/// A number of a fleet.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Row {
    /// What is counted.
    pub what: String,
    /// What was simulated: a part of the drives, of the days or of the months, or a number of blocks.
    pub simulated: f64,
    /// What the field study has, if the years are those of the study.
    pub field: Option<f64>,
    /// Drives of the fleet for which that is expected, with a 90 % range from chance; of other numbers null.
    pub drives: Option<(f64, f64, f64)>,
}

/// What `plan estimate fleet` answers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Answer {
    /// The model of drive.
    pub model: String,
    /// Drives of the fleet.
    pub fleet: u64,
    /// Years that all numbers are of.
    pub years: f64,
    /// The numbers.
    pub rows: Vec<Row>,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} drives of model {} within {} years", self.fleet, self.model, self.years)?;
        writeln!(f, "{:<50}{:>10}{:>10}  drives of the fleet", "", "modelled", "in field")?;
        for Row { what, simulated, field, drives } in &self.rows {
            let drives = drives.map_or(String::new(), |(count, low, high)| {
                format!("{} ({} to {})", number(count), number(low), number(high))
            });
            writeln!(f, "{what:<50}{:>10}{:>10}  {drives}", number(*simulated), field.map_or(String::new(), number))?;
        }
        Ok(())
    }
}

/// Estimates. `progress` is told how many drives were followed.
pub fn estimate(question: &Question, progress: &mut dyn FnMut(u64)) -> Result<Estimate<Answer>, Refused> {
    let Question { model, drives, years, simulated, seed } = *question;
    within("the number of drives", drives as f64, 1.0, 1e9)?;
    within("the years", years, 0.1, 20.0)?;
    within("the number of drives to follow", simulated as f64, 1000.0, 1e8)?;
    let fleet = Fleet::new(model, years);
    let tally = simulate(&fleet, simulated, seed, progress);
    let answer = Answer { model: model.name.into(), fleet: drives, years, rows: rows(question, &tally) };
    let inputs = Inputs::from([
        ("model".into(), json!(model.name)),
        ("drives".into(), json!(drives)),
        ("years".into(), json!(years)),
        ("simulated".into(), json!(simulated)),
        ("seed".into(), json!(seed)),
    ]);
    let subject = format!("fleet {} drives={drives} years={years}", model.name);
    let main = tally.part(tally.with_errors);
    let mut estimate = Estimate::new(&ABOUT, subject, inputs, answer);
    let rows = &estimate.answer.rows;
    let predicted = |quantity: &str, row: &Row| {
        let (value, low, high) = row.drives?;
        Some(Predicted {
            quantity: quantity.into(),
            unit: "drives".into(),
            value,
            low,
            high,
            confidence: 0.9,
            range_from: "chance in a fleet of so many drives, if it is like those of the study".into(),
        })
    };
    let quantities = ["fleet.with_uncorrectable_errors", "fleet.with_bad_blocks", "fleet.bad_chips", "fleet.replaced"];
    estimate.predictions =
        quantities.iter().zip([0, 4, 7, 9]).filter_map(|(name, index)| predicted(name, &rows[index])).collect();
    estimate.assumptions = vec![
        "drives are like those of the study: 25 to 50 nm, PCIe, of 2009 to 2015; none of today is among them".into(),
        "uncorrectable errors come by wear and by errors before, not by what is read and not by how many bits flip"
            .into(),
        "hazards go on as in the years of the study, at the study's wear in each year".into(),
        "errors, bad blocks and repairs of a drive are drawn apart; in the field they go together".into(),
    ];
    let count = |part: f64| part * drives as f64;
    estimate
        .judge(count(main), changes(question, &fleet).into_iter().map(|(what, part)| (what, count(part))).collect());
    estimate.explanation = steps(&fleet, &tally);
    Ok(estimate)
}

fn rows(question: &Question, tally: &Tally) -> Vec<Row> {
    let model = question.model;
    let field = |value: f64| ((question.years / model.years - 1.0).abs() < 1e-9).then_some(value);
    let fleet = question.drives as f64;
    let row = |what: &str, simulated: f64, value: Option<f64>, drives: bool| {
        let deviation = (fleet * simulated * (1.0 - simulated)).sqrt();
        let range =
            || ((fleet * simulated - 1.645 * deviation).max(0.0), (fleet * simulated + 1.645 * deviation).min(fleet));
        let drives = drives.then(|| (fleet * simulated, range().0, range().1));
        Row { what: what.into(), simulated, field: value.and_then(field), drives }
    };
    let of = |count: u64| tally.part(count);
    let (percent, median, mean) = model.bad_blocks;
    let after = tally.followed.1 as f64 / tally.followed.0.max(1) as f64;
    let blocks = tally.bad_blocks.len() as u64;
    let middle = tally.median_blocks(1).map_or(0.0, f64::from);
    vec![
        row("drives with uncorrectable errors", of(tally.with_errors), Some(model.ue_drives), true),
        row("days with such errors", tally.error_days as f64 / tally.months as f64 / DAYS, Some(model.ue_days), false),
        row("months with such errors", tally.error_months as f64 / tally.months as f64, None, false),
        row("months after one with errors that have some", after, None, false),
        row("drives with bad blocks", of(blocks), Some(percent / 100.0), true),
        row("bad blocks of such a drive, median", middle, Some(median.into()), false),
        row("bad blocks of such a drive, mean", tally.mean_blocks().0, Some(mean.into()), false),
        row("drives that lose a chip", of(tally.chips), Some(model.bad_chip_percent / 100.0), true),
        row("drives that are repaired", of(tally.repaired), Some(model.repaired_percent / 100.0), true),
        row("drives that are replaced", of(tally.replaced), Some(model.replaced_percent / 100.0), true),
    ]
}

/// The part of the drives with errors when an assumption is changed.
fn changes(question: &Question, fleet: &Fleet) -> Vec<(String, f64)> {
    let Fleet { model, months, process, .. } = fleet;
    let rate = model.ue_days * DAYS / process.days;
    let alike = 1.0 - (1.0 - rate).powf(*months as f64);
    let mut changes = vec![
        ("all drives alike, and months independent, with as many months with errors".to_string(), alike),
        ("errors begin twice as often".into(), Process { onset: 2.0 * process.onset, ..*process }.drives(*months)),
    ];
    let others = SSD_MODELS.iter().filter(|other| other.name != model.name);
    let others: Vec<(&str, f64)> = others.map(|other| (other.name, Process::of(other).drives(*months))).collect();
    let most = others.iter().max_by(|one, other| one.1.total_cmp(&other.1));
    let least = others.iter().min_by(|one, other| one.1.total_cmp(&other.1));
    changes.extend([least, most].into_iter().flatten().map(|(name, part)| (format!("drives of model {name}"), *part)));
    if question.years > model.years {
        changes.push(("only the years of the study".into(), process.drives(self::months(model.years))));
    }
    changes
}

fn steps(fleet: &Fleet, tally: &Tally) -> Vec<Step> {
    let step = |formula: &str, numbers: String| Step { formula: formula.into(), numbers };
    let Process { prone, onset, again, days, .. } = fleet.process;
    let Fleet { model, blocks, repairs, .. } = fleet;
    vec![
        step("part of the drives that is prone to uncorrectable errors, fitted", number(prone)),
        step("errors begin in a month of such a drive, at mean wear, fitted", number(onset)),
        step("a month with errors makes the next have some, fitted", number(again)),
        step(
            "days with errors in such a month = days / months with errors",
            format!("{} x {} / months = {}", number(model.ue_days), number(DAYS), number(days)),
        ),
        step(
            "simulated: drives with errors, months with errors, of all months",
            format!("{} of {}, {} of {}", tally.with_errors, tally.drives, tally.error_months, tally.months),
        ),
        step(
            "a drive with bad blocks has many; a chip is lost from so many on",
            format!("{}, {}", number(blocks.many), number(blocks.chip_from)),
        ),
        step(
            "mean repairs of a drive; part of them that fails",
            format!("{}, {}", number(repairs.mean), number(repairs.fails)),
        ),
    ]
}

/// Drives with uncorrectable errors by years, for each class of drive.
pub fn figure(estimate: &Estimate<Answer>) -> Plot {
    let years = estimate.answer.years;
    let line = |model: &SsdModel| {
        let process = Process::of(model);
        let at = |step: u32| {
            let years = years * f64::from(step) / 16.0;
            (years, 100.0 * process.drives(months(years)))
        };
        Series::line(model.name, std::iter::once((0.0, 0.0)).chain((1..=16).map(at)).collect())
    };
    let shown = SSD_MODELS.iter().filter(|model| {
        model.name == estimate.answer.model || ["MLC-A", "SLC-B", "eMLC-A", "SLC-C"].contains(&model.name)
    });
    let plot = Plot::lines(
        "Drives with uncorrectable errors",
        Axis::new("years"),
        Axis::new("percent of the drives"),
        Origin::Modelled,
    );
    shown.fold(plot, |plot, model| plot.with(line(model)))
}
