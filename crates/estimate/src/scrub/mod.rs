//! How long latent errors stay unseen, by how a disk is scrubbed.
//!
//! Oprea and Juels, "A clean-slate look at disk scrubbing", FAST '10: errors come in clusters, by age and by use (scrubbing
//! is use too), and a policy of scrubbing is judged by the mean latent error time, the part of time with an error that is
//! there and not found.
//!
//! Departs: staggered reading by itself finds a lone error no sooner than sequential reading (half a pass); it gains only if
//! a hit has its surroundings read at once. Both are offered, by their names. The paper
//! does not say how much users read and write in its figures; here it is little beside the scrubbing.

mod errors;
pub mod fortnight;
mod policy;
mod simulate;
#[cfg(test)]
mod tests;

use errors::MONTH;
pub use errors::{DriveClass, LatentError, following, following_at_least};
pub use policy::{Adaptive, Order, Policy, REGION};
pub use simulate::{Disk, Seen, run, with_errors};

use crate::common::{About, Estimate, Inputs, Predicted, Refused, Step, within, within_percent};
use ashlar_models::Chance;
use ashlar_report::{Axis, Origin, Plot, Series, number};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use std::fmt;

/// What this estimator is.
pub static ABOUT: About = About {
    name: "scrub",
    what: "how long latent errors stay unseen, and how a disk is best scrubbed",
    source: "Oprea, Juels: A clean-slate look at disk scrubbing, FAST 2010",
    version: 1,
    formulas: "MLET = part of the time with an error that is there and not found, mean over disks.\n\
               detection delay = mean time from an error to its detection.\n\
               clusters come by age, and by use: bytes written + (bytes read + bytes scrubbed) / weight reaches N(1/BER, 0.2/BER).\n\
               errors after the first: P(at least x) = 1.04 x^-0.185 - 0.42, at most 100.\n\
               lone error: half a pass in any order; n errors at once in a region that is swept on a hit: pass / (n + 1).",
};

/// Rates that the search tries, GB per hour: up to 20, a pass of 500 GB in about a day.
const RATES: [f64; 14] = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.5, 8.0, 10.0, 12.5, 15.0, 17.5, 20.0];
/// Bytes of a gigabyte.
const GB: f64 = 1e9;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// The disk.
    pub disk: Disk,
    /// The rate of scrubbing now, bytes per hour.
    pub rate: f64,
    /// The most that scrubbing may take, bytes per hour.
    pub rate_max: f64,
    /// Disks to draw.
    pub disks: u64,
    /// Decides all chance.
    pub seed: u64,
}

impl Question {
    /// The paper's disk of 500 GB over 24 months.
    pub fn new(error_rate: f64, read_weight: f64) -> Question {
        let class = DriveClass { error_rate, read_weight, aged: 0.025 };
        let disk = Disk {
            class,
            order: Order { capacity: 500.0 * GB, segment: 1e6 },
            written: 0.1 * GB,
            read: 0.2 * GB,
            hours: 24.0 * 720.0,
        };
        Question { disk, rate: 4.0 * GB, rate_max: 20.0 * GB, disks: 20_000, seed: 0 }
    }
}

/// What a policy comes to.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Judged {
    /// The policy.
    pub policy: String,
    /// Its rate, GB per hour; of the adaptive one until the first error.
    pub gb_per_hour: f64,
    /// Rates of the adaptive one, GB per hour: young, before, fast, after; and for how many hours it is fast.
    pub adaptive: Option<[f64; 5]>,
    /// Mean latent error time, as a part of all time.
    pub mlet: f64,
    /// Standard error of that, from chance.
    pub mlet_error: f64,
    /// Mean hours from an error to its detection, of those found.
    pub delay_hours: f64,
    /// Errors that come to 1000 disks.
    pub errors_per_1000: f64,
}

/// What `plan estimate scrub` answers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Answer {
    /// Policies at the rate that was given.
    pub given: Vec<Judged>,
    /// Each policy at its best rate.
    pub best: Vec<Judged>,
    /// Sequential scrubbing at each rate that was tried: GB per hour and MLET.
    pub sequential: Vec<(f64, f64)>,
    /// Sweep-on-hit at the same rates.
    pub sweep: Vec<(f64, f64)>,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<28}{:>8}{:>14}{:>10}{:>12}", "policy", "GB/h", "MLET", "±", "delay, h")?;
        for (name, rows) in [("as given", &self.given), ("at its best", &self.best)] {
            for one in rows {
                let (mlet, error, delay) = (number(one.mlet), number(one.mlet_error), number(one.delay_hours));
                writeln!(
                    f,
                    "{:<28}{:>8}{mlet:>14}{error:>10}{delay:>12}",
                    format!("{}, {name}", one.policy),
                    one.gb_per_hour
                )?;
                if let Some([young, before, fast, after, hours]) = one.adaptive {
                    writeln!(
                        f,
                        "    first 60 days {young}, until an error {before}, around it {fast} for {hours} h, then {after}"
                    )?;
                }
            }
        }
        Ok(())
    }
}

/// Draws disks, the same for every policy.
pub fn judge(question: &Question, policy: Policy) -> Judged {
    let (mut sum, mut squares, mut all) = (0.0, 0.0, Seen::default());
    for disk in 0..question.disks {
        // A generator for each disk, so that policies are judged by the same disks.
        let mut chance = Chance::new(question.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(disk));
        let seen = run(&question.disk, policy, &mut chance);
        let part = seen.exposed / question.disk.hours;
        (sum, squares) = (sum + part, squares + part * part);
        all = Seen {
            waited: all.waited + seen.waited,
            found: all.found + seen.found,
            came: all.came + seen.came,
            exposed: 0.0,
        };
    }
    let count = question.disks as f64;
    let mlet = sum / count;
    let adaptive = match policy {
        Policy::Adaptive(a) => Some([a.young / GB, a.before / GB, a.fast / GB, a.after / GB, a.hours]),
        _ => None,
    };
    Judged {
        policy: policy.name().into(),
        gb_per_hour: policy.rate(f64::INFINITY, false) / GB,
        adaptive,
        mlet,
        mlet_error: ((squares / count - mlet * mlet).max(0.0) / count).sqrt(),
        delay_hours: if all.found > 0 { all.waited / all.found as f64 } else { 0.0 },
        errors_per_1000: all.came as f64 / count * 1000.0,
    }
}

/// The paper's adaptive policy at rates that go with one rate.
pub fn adaptive(rate: f64, rate_max: f64, capacity: f64) -> Adaptive {
    Adaptive { young: rate, before: rate, fast: rate_max, after: rate, hours: (capacity / rate_max).min(24.0) }
}

/// The best adaptive rates (section 5.2 of the paper): first the rate of sweeping, then each in turn.
pub fn best_adaptive(question: &Question, rate: f64, progress: &mut dyn FnMut(&str) -> bool) -> Judged {
    let mut best = adaptive(rate, question.rate_max, question.disk.order.capacity);
    let mut judged = judge(question, Policy::Adaptive(best));
    let rates: Vec<f64> =
        RATES.iter().step_by(2).map(|rate| rate * GB).filter(|rate| *rate <= question.rate_max).collect();
    type Set = fn(&mut Adaptive, f64);
    let sets: [(&str, Set); 4] = [
        ("around an error", |a, rate| a.fast = rate),
        ("in the first 60 days", |a, rate| a.young = rate),
        ("until an error", |a, rate| a.before = rate),
        ("after an error", |a, rate| a.after = rate),
    ];
    for (name, set) in sets {
        for rate in &rates {
            let mut other = best;
            set(&mut other, *rate);
            other.hours = (question.disk.order.capacity / other.fast).min(24.0);
            let trial = judge(question, Policy::Adaptive(other));
            if trial.mlet < judged.mlet {
                (best, judged) = (other, trial);
            }
            if !progress(name) {
                return judged;
            }
        }
    }
    judged
}

fn validate(question: &Question) -> Result<(), Refused> {
    let Disk { class, order, written, read, hours } = &question.disk;
    within("errors for each byte", class.error_rate, 1e-20, 1e-9)?;
    within("the weight of reads", class.read_weight, 1.0, 1000.0)?;
    within_percent("the part of drives with errors by age", class.aged, 0.0, 1.0)?;
    within("the capacity, bytes,", order.capacity, 1e9, 1e15)?;
    within("the size of a segment, bytes,", order.segment, 4096.0, REGION)?;
    within("bytes written in an hour", *written, 0.0, 1e14)?;
    within("bytes read in an hour", *read, 0.0, 1e14)?;
    within("the months to look at", *hours / MONTH, 24.0 / MONTH, 24.0 * 366.0 * 20.0 / MONTH)?;
    within("the rate of scrubbing, bytes per hour,", question.rate, 1e6, 1e14)?;
    within("the most that scrubbing may take, bytes per hour,", question.rate_max, question.rate, 1e14)?;
    within("the number of disks", question.disks as f64, 100.0, 1e6)
}

/// Estimates. `progress` is told what is tried; it says whether to go on.
pub fn estimate(question: &Question, progress: &mut dyn FnMut(&str) -> bool) -> Result<Estimate<Answer>, Refused> {
    validate(question)?;
    let rate = question.rate;
    let capacity = question.disk.order.capacity;
    let given = [
        Policy::Sequential { rate },
        Policy::Staggered { rate },
        Policy::Sweep { rate },
        Policy::Adaptive(adaptive(rate, question.rate_max, capacity)),
    ];
    let given: Vec<Judged> = given.into_iter().map(|policy| judge(question, policy)).collect();
    let rates: Vec<f64> = RATES
        .iter()
        .map(|rate| rate * GB)
        .filter(|rate| *rate <= question.rate_max)
        .chain([question.rate_max])
        .collect();
    let mut along = |policy: fn(f64) -> Policy| -> Vec<Judged> {
        let judged = rates.iter().take_while(|_| progress("rates")).map(|rate| judge(question, policy(*rate)));
        judged.collect()
    };
    let sequential = along(|rate| Policy::Sequential { rate });
    let sweep = along(|rate| Policy::Sweep { rate });
    let least = |all: &[Judged]| all.iter().min_by(|one, other| one.mlet.total_cmp(&other.mlet)).cloned();
    let mut best: Vec<Judged> = [least(&sequential), least(&sweep)].into_iter().flatten().collect();
    let start = best.last().map_or(rate, |sweep| sweep.gb_per_hour * GB);
    best.push(best_adaptive(question, start, progress));
    let main = given[2].mlet;
    let line = |all: &[Judged]| all.iter().map(|one| (one.gb_per_hour, one.mlet)).collect();
    let answer = Answer { sequential: line(&sequential), sweep: line(&sweep), given, best };
    let mut estimate = Estimate::new(&ABOUT, subject(question), inputs(question), answer);
    let changed = changes(question)
        .into_iter()
        .map(|(change, other)| (change, judge(&other, Policy::Sweep { rate: other.rate }).mlet));
    estimate.judge(main, changed.collect());
    let error = 1.96 * estimate.answer.given[2].mlet_error;
    let all = estimate.sensitivity.iter().map(|one| one.value).chain([main - error, main + error]);
    let (low, high) = all.fold((f64::MAX, 0.0), |(low, high), value| (f64::min(low, value), f64::max(high, value)));
    estimate.predictions = vec![Predicted {
        quantity: "mlet.sweep-on-hit".into(),
        unit: "part of time".into(),
        value: main,
        low: low.max(0.0),
        high,
        confidence: 0.5,
        range_from: "one assumption changed at a time, and chance".into(),
    }];
    estimate.assumptions = vec![
        "errors come by age and by use; a later study (Schroeder et al., FAST 2010) found no connection with use"
            .into(),
        "vendors do not publish errors for each byte and the weight of reads; the answer follows them closely".into(),
        "users' reads find no errors; what is found is repaired at once and does not come back".into(),
        "seeks cost nothing: with segments of 1 MB staggered reading is really slower; with 16 MB or more by 2 to 4 %"
            .into(),
    ];
    estimate.explanation = steps(question, &estimate.answer);
    Ok(estimate)
}

fn changes(question: &Question) -> Vec<(String, Question)> {
    let with = |change: &dyn Fn(&mut Question)| {
        let mut changed = question.clone();
        change(&mut changed);
        changed
    };
    vec![
        ("ten times as many errors for each byte".to_string(), with(&|q| q.disk.class.error_rate *= 10.0)),
        ("a tenth of the errors for each byte".into(), with(&|q| q.disk.class.error_rate /= 10.0)),
        ("reads wear three times less".into(), with(&|q| q.disk.class.read_weight *= 3.0)),
        ("errors by age twice as frequent".into(), with(&|q| q.disk.class.aged = (q.disk.class.aged * 2.0).min(1.0))),
        (
            "users write and read three times as much".into(),
            with(&|q| (q.disk.written, q.disk.read) = (q.disk.written * 3.0, q.disk.read * 3.0)),
        ),
        ("scrubbing half as fast".into(), with(&|q| q.rate /= 2.0)),
    ]
}

fn inputs(question: &Question) -> Inputs {
    let Disk { class, order, written, read, hours } = &question.disk;
    Inputs::from([
        ("errors_per_byte".into(), json!(class.error_rate)),
        ("read_weight".into(), json!(class.read_weight)),
        ("aged".into(), json!(class.aged)),
        ("capacity".into(), json!(order.capacity)),
        ("segment".into(), json!(order.segment)),
        ("region".into(), json!(REGION)),
        ("written_per_hour".into(), json!(written)),
        ("read_per_hour".into(), json!(read)),
        ("hours".into(), json!(hours)),
        ("rate".into(), json!(question.rate)),
        ("rate_max".into(), json!(question.rate_max)),
        ("disks".into(), json!(question.disks)),
        ("seed".into(), json!(question.seed)),
    ])
}

fn subject(question: &Question) -> String {
    let class = question.disk.class;
    format!(
        "scrub errors_per_byte={} weight={} capacity={} rate={}",
        number(class.error_rate),
        class.read_weight,
        number(question.disk.order.capacity),
        number(question.rate)
    )
}

fn steps(question: &Question, answer: &Answer) -> Vec<Step> {
    let step = |formula: &str, numbers: String| Step { formula: formula.into(), numbers };
    let pass = question.disk.order.capacity / question.rate;
    let class = question.disk.class;
    let use_rate = question.disk.written + (question.disk.read + question.rate) / class.read_weight;
    vec![
        step(
            "a pass = capacity / rate",
            format!("{} / {} = {} h", number(question.disk.order.capacity), number(question.rate), number(pass)),
        ),
        step("a lone error waits half a pass", format!("{} h", number(pass / 2.0))),
        step(
            "use in the time = (written + (read + scrubbed) / weight) x hours",
            format!(
                "{} bytes; a cluster comes every {}",
                number(use_rate * question.disk.hours),
                number(1.0 / class.error_rate)
            ),
        ),
        step(
            "simulated: errors that come to 1000 disks",
            answer
                .given
                .iter()
                .map(|one| format!("{} {}", one.policy, number(one.errors_per_1000)))
                .collect::<Vec<_>>()
                .join(", "),
        ),
        step(
            "simulated: MLET = exposed time / all time",
            answer
                .given
                .iter()
                .map(|one| format!("{} {}", one.policy, number(one.mlet)))
                .collect::<Vec<_>>()
                .join(", "),
        ),
    ]
}

/// MLET by rate.
pub fn figure(estimate: &Estimate<Answer>) -> Plot {
    Plot::lines(
        "Mean latent error time by the rate of scrubbing",
        Axis::log("GB per hour"),
        Axis::log("part of the time"),
        Origin::Modelled,
    )
    .with(Series::line("sequential", estimate.answer.sequential.clone()))
    .with(Series::line("sweep on hit", estimate.answer.sweep.clone()))
}
