//! How likely an array of drives loses data.
//!
//! Whole drives fail by age (Weibull), batch (a gamma-distributed rate that the drives of a batch share) and climate
//! (Manousakis et al., FAST '16). Latent errors come to a part of the drives only, disks by Schroeder et al. (FAST '10),
//! flash drives by the field study of Schroeder et al. (FAST '16), and wait for a scrub. Data are lost when more drives are
//! gone than the layout tolerates, or when none more may go and a latent error is met.
//!
//! A single drive may have a code inside (SPC, MDS, IPC, CDP): it helps against bursts of bad sectors only.
//!
//! The answer is a ranking with intervals, never bare nines: what is assumed about drives moves it by orders of magnitude.

mod drives;
mod layout;
mod meeting;
mod simulate;
#[cfg(test)]
mod tests;

pub use drives::{DriveKind, Drives, Latent, MONTH, YEAR};
pub use layout::Layout;
pub use simulate::{Effort, Outcome, simulate};

use crate::common::{About, Estimate, Inputs, Predicted, Refused, Step, within_percent};
use crate::idr::{DRIVE_MODELS, Placing, compare};
use ashlar_report::{Axis, Origin, Plot, Series, number};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use std::fmt;

/// What this estimator is.
pub static ABOUT: About = About {
    name: "loss",
    what: "how likely an array of drives loses data",
    source: "Schroeder, Damouras, Gill: Understanding latent sector errors, FAST 2010; Manousakis et al.: Environmental conditions and disk reliability, FAST 2016; Schroeder, Lagisetty, Merchant: Flash reliability in production, FAST 2016",
    version: 2,
    formulas: "rate of a drive = batch x climate(month) x Weibull(age); a failed drive is gone for replacement + capacity / rate.\n\
               loss = more drives gone than tolerated, or a latent error unseen when none more may go:\n\
               1 - (1 - prone (1 - exp(-episodes (scrub / 2 + rebuild))))^drives left.\n\
               with g of the tolerated t gone: latent errors of t - g + 1 of the others in one stripe, at most\n\
               choose(others, t - g + 1) unseen^(t - g + 1) meet(t - g + 1).\n\
               Monte Carlo: excursions from a whole array are repeated with failures made frequent, and weighted by the\n\
               likelihood ratio exp((b - 1) rate t) / b.",
};

/// Disks with latent errors that are drawn for a code inside a disk, for each model of drive.
const DISKS: u64 = 1000;
/// Relative standard error of the runs that look how much an assumption matters.
const ERROR_CHANGED: f64 = 0.1;
/// Bytes of a sector, for codes inside a disk.
const SECTOR: f64 = 512.0;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// Layouts to rank; the first one is what the sensitivity is of.
    pub layouts: Vec<Layout>,
    /// The drives.
    pub drives: Drives,
    /// Inputs that `drives` came from and that it does not show, for the record.
    pub described: Inputs,
    /// How precise.
    pub effort: Effort,
}

/// A layout with its probabilities.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Ranked {
    /// The layout.
    pub layout: String,
    /// Place in the ranking: layouts whose intervals overlap share one.
    pub rank: u32,
    /// Probability of any loss within the years.
    pub any_loss: f64,
    /// 95 % interval of that, from chance alone.
    pub interval: (f64, f64),
    /// Relative standard error of that, from chance alone.
    pub relative_error: f64,
    /// By more whole drives failing than are tolerated.
    pub drive_loss: f64,
    /// By latent errors when no redundancy was left.
    pub sector_loss: f64,
    /// By latent errors of several drives that meet in one stripe while redundancy is left: at most.
    pub meeting_loss: f64,
    /// How many times as likely as with the best layout.
    pub times_best: f64,
    /// Losses that are expected in 1000 years for each 100 TB of data.
    pub per_100_tb_millennium: f64,
    /// Part of the raw capacity that holds data.
    pub efficiency: f64,
    /// Histories that were simulated.
    pub histories: u64,
}

/// What `plan estimate loss` answers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Answer {
    /// Layouts, the best first.
    pub layouts: Vec<Ranked>,
    /// Years that all probabilities are of.
    pub years: f64,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "probability of losing anything within {} years; intervals are those of the simulation alone",
            self.years
        )?;
        writeln!(
            f,
            "{:<4}{:<18}{:>10}  {:<24}{:>10}{:>10}{:>12}{:>12}",
            "", "layout", "any loss", "95 % interval", "drives", "sectors", "times best", "efficiency"
        )?;
        for one in &self.layouts {
            let interval = format!("{} to {}", number(one.interval.0), number(one.interval.1));
            let [any, drives, sectors] = [one.any_loss, one.drive_loss, one.sector_loss].map(number);
            let (times, efficiency) = (number(one.times_best), format!("{:.1} %", one.efficiency * 100.0));
            writeln!(
                f,
                "{:<4}{:<18}{any:>10}  {interval:<24}{drives:>10}{sectors:>10}{times:>12}{efficiency:>12}",
                one.rank, one.layout
            )?;
        }
        Ok(())
    }
}

/// Estimates. `progress` is told what is simulated, histories, and the relative error; it says whether to go on.
pub fn estimate(
    question: &Question,
    progress: &mut dyn FnMut(&str, u64, f64) -> bool,
) -> Result<Estimate<Answer>, Refused> {
    let Question { layouts, drives, effort, .. } = question;
    drives.validate()?;
    within_percent("the relative error", effort.error, 0.001, 1.0)?;
    let Some(first) = layouts.first() else {
        return Err(Refused("there is no layout to estimate; give --layout raid6:12".into()));
    };
    let mut ranked: Vec<Ranked> = Vec::new();
    for layout in layouts {
        let name = layout.to_string();
        let outcome = run(*layout, drives, *effort, &mut |histories, error| progress(&name, histories, error));
        ranked.push(row(*layout, drives, outcome));
    }
    let main = ranked[0].clone();
    rank(&mut ranked);
    let answer = Answer { layouts: ranked, years: drives.years };
    let mut estimate = Estimate::new(&ABOUT, subject(question), inputs(question), answer);
    let mut changed = Vec::new();
    for (change, other) in changes(drives) {
        let effort = Effort { error: effort.error.max(ERROR_CHANGED), ..*effort };
        if other.validate().is_ok() {
            let outcome = run(*first, &other, effort, &mut |histories, error| progress(&change, histories, error));
            changed.push((change, outcome.any));
        }
    }
    let values = || changed.iter().map(|(_, value)| *value).chain([main.interval.0, main.interval.1]);
    let (low, high) =
        values().fold((f64::MAX, 0.0), |(low, high), value| (f64::min(low, value), f64::max(high, value)));
    estimate.predictions = vec![Predicted {
        quantity: format!("loss.{first}"),
        unit: "probability".into(),
        value: main.any_loss,
        low: low.min(main.any_loss),
        high: high.max(main.any_loss).min(1.0),
        confidence: 0.5,
        range_from: "the interval of the simulation, and one assumption changed at a time".into(),
    }];
    estimate.assumptions = assumptions(drives);
    estimate.judge(main.any_loss, changed);
    estimate.explanation = steps(*first, drives, &main);
    Ok(estimate)
}

/// Simulates drives; of a single one also what its code leaves.
fn run(layout: Layout, drives: &Drives, effort: Effort, progress: &mut dyn FnMut(u64, f64) -> bool) -> Outcome {
    let outcome = simulate(layout, drives, effort, progress);
    let Layout::Single(code) = layout else { return outcome };
    let hit = drives.latent.any(drives.years * YEAR);
    // Without a code every drive with latent errors loses something.
    let left = code.map_or(1.0, |code| {
        let sectors = (drives.capacity / SECTOR) as u64;
        let parts = DRIVE_MODELS
            .iter()
            .map(|model| compare(&[code], *model, Placing::Clustered, sectors, DISKS, effort.seed)[0].part());
        parts.sum::<f64>() / DRIVE_MODELS.len() as f64
    });
    let (sectors, whole) = (hit * left, 1.0 - outcome.any);
    let drawn = hit * (left * (1.0 - left) / (DISKS as f64 * DRIVE_MODELS.len() as f64)).sqrt();
    let any = outcome.any + whole * sectors;
    Outcome { any, sectors, any_error: outcome.any_error.hypot(drawn), ..outcome }
}

fn row(layout: Layout, drives: &Drives, outcome: Outcome) -> Ranked {
    let Outcome { any, any_error, drives: drive_loss, sectors: sector_loss, meeting: meeting_loss, histories } =
        outcome;
    let data = f64::from(layout.drives()) * layout.efficiency() * drives.capacity;
    Ranked {
        layout: layout.to_string(),
        rank: 0,
        any_loss: any,
        interval: ((any - 1.96 * any_error).max(0.0), (any + 1.96 * any_error).min(1.0)),
        relative_error: if any > 0.0 { any_error / any } else { 0.0 },
        drive_loss,
        sector_loss,
        meeting_loss,
        times_best: 0.0,
        per_100_tb_millennium: -(-any.min(1.0 - 1e-15)).ln_1p() / drives.years * 1000.0 * 1e14 / data,
        efficiency: layout.efficiency(),
        histories,
    }
}

fn rank(ranked: &mut [Ranked]) {
    ranked.sort_by(|one, other| one.any_loss.total_cmp(&other.any_loss));
    let best = ranked[0].any_loss.max(1e-300);
    for index in 0..ranked.len() {
        ranked[index].times_best = ranked[index].any_loss / best;
        let shared = index > 0 && ranked[index].interval.0 <= ranked[index - 1].interval.1;
        ranked[index].rank = if shared { ranked[index - 1].rank } else { index as u32 + 1 };
    }
}

/// Assumptions changed one at a time.
fn changes(drives: &Drives) -> Vec<(String, Drives)> {
    let with = |change: &dyn Fn(&mut Drives)| {
        let mut changed = drives.clone();
        change(&mut changed);
        changed
    };
    let mut changes = vec![
        ("drives fail twice as often".to_string(), with(&|d| d.afr *= 2.0)),
        ("drives fail half as often".into(), with(&|d| d.afr /= 2.0)),
        (
            "a rebuild takes twice as long".into(),
            with(&|d| (d.rebuild_rate, d.replace_hours) = (d.rebuild_rate / 2.0, d.replace_hours * 2.0)),
        ),
        ("four times as many latent errors".into(), with(&|d| d.latent = d.latent.times(4.0))),
        ("no latent errors at all".into(), with(&|d| d.latent = Latent::NONE)),
        ("old drives fail more (Weibull shape 2)".into(), with(&|d| d.shape = 2.0)),
    ];
    changes.push(if drives.batch_variance > 0.0 {
        ("batches do not differ".into(), with(&|d| d.batch_variance = 0.0))
    } else {
        ("batches differ (variance 1)".into(), with(&|d| d.batch_variance = 1.0))
    });
    changes.push(("scrubbing four times as seldom".into(), with(&|d| d.scrub_hours *= 4.0)));
    if drives.climate.is_none() {
        changes.push((
            "a humid, free-cooled site (25±5 degrees, 45±30 %)".into(),
            drives.clone().in_climate(25.0, 5.0, 45.0, 30.0),
        ));
    }
    changes
}

fn inputs(question: &Question) -> Inputs {
    let Drives {
        kind,
        afr,
        shape,
        batch_variance,
        batches,
        latent,
        capacity,
        rebuild_rate,
        replace_hours,
        scrub_hours,
        climate,
        years,
    } = &question.drives;
    let layouts: Vec<String> = question.layouts.iter().map(Layout::to_string).collect();
    let mut inputs = question.described.clone();
    inputs.extend([
        ("layouts".to_string(), json!(layouts)),
        ("drive".into(), json!(kind.to_string())),
        ("afr".into(), json!(afr)),
        ("weibull_shape".into(), json!(shape)),
        ("batch_variance".into(), json!(batch_variance)),
        ("batches".into(), json!(batches)),
        ("latent_prone".into(), json!(latent.prone)),
        ("latent_per_hour".into(), json!(latent.rate)),
        ("latent_days_of_a_month".into(), json!(latent.process.map(|process| process.days))),
        ("capacity".into(), json!(capacity)),
        ("rebuild_rate".into(), json!(rebuild_rate)),
        ("replace_hours".into(), json!(replace_hours)),
        ("scrub_hours".into(), json!(scrub_hours.is_finite().then_some(*scrub_hours))),
        ("climate".into(), json!(climate)),
        ("years".into(), json!(years)),
        ("seed".into(), json!(question.effort.seed)),
        ("relative_error".into(), json!(question.effort.error)),
    ]);
    inputs
}

fn subject(question: &Question) -> String {
    let Drives { kind, afr, capacity, years, .. } = &question.drives;
    format!("loss {} {kind} afr={} capacity={} years={years}", question.layouts[0], number(*afr), number(*capacity))
}

fn assumptions(drives: &Drives) -> Vec<String> {
    let kind = match drives.kind {
        DriveKind::Disk => "latent errors: 3.45 % of disks have some in 32 months, in 1.6 fortnights on average",
        DriveKind::Flash(_) => {
            "latent errors: drives, days and months as in the field study; some drives are prone, and their errors come together (see fleet)"
        }
    };
    vec![
        kind.into(),
        "latent errors wait for half a pass of scrubbing, and a scrub repairs what it finds".into(),
        "where latent errors of several drives meet in one stripe of 512 KiB a drive while redundancy is left, it is counted at most (see --explain)".into(),
        "a latent error during a rebuild counts as a loss, though it loses a stripe and not the array".into(),
        "a failed drive is rebuilt as soon as the spare is there, several at once, always in the same time".into(),
        "a drive that replaces another is of another batch than all that are there, and new".into(),
        "drives fail independently but for batch, age and climate: no shared power, cable, firmware or operator".into(),
        "whole drives of the climate model fail by both its processes; age counts in months".into(),
    ]
}

fn steps(layout: Layout, drives: &Drives, main: &Ranked) -> Vec<Step> {
    let step = |formula: &str, numbers: String| Step { formula: formula.into(), numbers };
    let (count, tolerance) = (f64::from(layout.drives()), layout.tolerance());
    let gone = drives.gone_hours();
    let climate = drives.by_month().iter().sum::<f64>() / 12.0;
    let failures = count * drives.afr * climate * drives.years;
    let latent = drives.latent.unseen(drives.unseen_hours() + gone);
    let left = count - f64::from(tolerance);
    let again = (count - 1.0).max(0.0) * drives.afr * climate * gone / YEAR;
    vec![
        step(
            "hours a drive is gone = replacement + capacity / rebuild rate",
            format!("{} + {} = {}", number(drives.replace_hours), number(gone - drives.replace_hours), number(gone)),
        ),
        step(
            "drives that fail in the mission = drives x yearly rate x mean climate x years",
            format!(
                "{} x {} x {} x {} = {}",
                number(count),
                number(drives.afr),
                number(climate),
                number(drives.years),
                number(failures)
            ),
        ),
        step("another fails meanwhile, without batches: (drives - 1) x rate x gone", number(again)),
        step(
            match drives.latent.process {
                None => "a drive has unseen latent errors: prone (1 - exp(-episodes (scrub/2 + gone)))",
                Some(_) => {
                    "a drive has unseen latent errors: prone, days with errors in an hour that come together in months, scrub/2 + gone"
                }
            },
            format!(
                "{}, {} x {}: {}",
                number(drives.latent.prone),
                number(drives.latent.rate),
                number(drives.unseen_hours() + gone),
                number(latent)
            ),
        ),
        step(
            &format!("one of the {} drives left has some when {tolerance} are gone", number(left)),
            number(1.0 - (1.0 - latent).powf(left)),
        ),
        step(
            "simulated: latent errors of several drives meet in one stripe while redundancy is left, at most",
            number(main.meeting_loss),
        ),
        step(
            "simulated with all of it: whole drives, latent errors, any",
            format!(
                "{}, {}, {} ± {} ({} histories)",
                number(main.drive_loss),
                number(main.sector_loss),
                number(main.any_loss),
                number(main.relative_error * main.any_loss),
                main.histories
            ),
        ),
    ]
}

/// The ranking as bars.
pub fn figure(estimate: &Estimate<Answer>) -> Plot {
    let rows = &estimate.answer.layouts;
    let title = format!("Probability of losing anything in {} years", estimate.answer.years);
    let plot = Plot::bars(
        title,
        rows.iter().map(|one| one.layout.clone()).collect(),
        Axis::log("probability"),
        Origin::Modelled,
    );
    plot.with(Series::bar_ranges(
        "any loss",
        rows.iter().map(|one| (one.any_loss, one.interval.0, one.interval.1)).collect(),
    ))
}
