//! Which layout suits small random updates of large extents that are read in order as well, on disks.
//!
//! In place and proximal after Schindler, Shete and Smith, "Improving Throughput for Small Disk Requests with Proximal I/O",
//! FAST '11: counts of requests as in its Table 2 (derived from n random blocks of an extent), times from the parameters of a disk.
//! A log-structured pool after Desnoyers' amplification of greedy cleaning. On RAID-4 with a checksum block for 63 blocks.
//!
//! Departs: the paper has no times for its write-anywhere control, and none for a cleaner. What a copied block, and a piece of a
//! scattered scan, cost a pool (half a revolution and a seek within its span, all drives at once) is the simplest rule that is near
//! what our pool does on emulated disks; docs/estimators/layout.md has how near.

mod drive;
mod engines;
#[cfg(test)]
mod tests;

pub use drive::Drive;
pub use engines::{BLOCK, Layout, Load, both_pass, hit};

use crate::common::{About, Estimate, Inputs, Predicted, Refused, Step, within};
use ashlar_report::{Axis, Origin, Plot, Series, number};
use ashlar_units::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use std::fmt;

/// What this estimator is.
pub static ABOUT: About = About {
    name: "layout",
    what: "which layout suits random updates and scans on disks: in place, proximal, a log-structured pool, or write anywhere",
    source: "Schindler, Shete, Smith: Improving throughput for small disk requests with proximal I/O, FAST 2011; \
             cleaning: Desnoyers, Analytic modeling of SSD write performance, SYSTOR 2012",
    version: 1,
    formulas: "U(m, n) = m (1 - (1 - 1/m)^n), different ones of m that n draws hit.\n\
               in place: seek + a revolution + the wait of both drives until block and checksum have passed.\n\
               proximal: n = extent x staging / full updates in a batch; parity drive: U(rows, n) + U(groups, n) blocks read, then\n\
               written, on extent / drives / track + 1 tracks; a track with q of them takes q/(q+1) revolutions and settling.\n\
               log-structured: access / batch + (A - 1)(settle + half a revolution) / drives, A of greedy cleaning at the fill.\n\
               scan: fresh as transfer + a seek for each extent + 1 + N/(N+1) revolutions for each serial read; scattered\n\
               (seek within the span + half a revolution) / drives for each of moved x (2 - moved) of the blocks.\n\
               K updates for each scan of everything: time = K x update + scan; the winner changes at\n\
               K = (scan - scan') / (update' - update).",
};

/// By how much figures on emulated disks are off at most, where they were compared: see the page.
const OFF: f64 = 0.45;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// Drives and load.
    pub load: Load,
    /// Updates for each scan of everything; none: as many as there are blocks.
    pub updates_per_scan: f64,
}

/// A layout, judged.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Judged {
    /// The layout.
    pub layout: Layout,
    /// Updates in a second, with nothing else.
    pub updates_per_s: f64,
    /// Serial reads of everything that was updated, MB/s (10^6 bytes).
    pub scan_mb_s: f64,
    /// The same part of a fresh layout.
    pub scan_of_fresh: f64,
    /// Updates in a second at the mix that was asked for, scans included.
    pub mixed_updates_per_s: f64,
}

/// Where another layout becomes the better one.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Crossing {
    /// Updates for each scan of everything.
    pub updates_per_scan: f64,
    /// The best with fewer updates.
    pub below: Layout,
    /// The best with more.
    pub above: Layout,
}

/// What `plan estimate layout` answers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Answer {
    /// The layout that does most at the mix; writing anywhere, a control, is not among them.
    pub winner: Layout,
    /// Updates for each scan of everything, the mix.
    pub updates_per_scan: f64,
    /// Layouts, the best at the mix first.
    pub ranked: Vec<Judged>,
    /// Where the winner changes, fewest updates first.
    pub crossings: Vec<Crossing>,
    /// A fresh layout's scan, MB/s.
    pub fresh_mb_s: f64,
    /// Updates that a proximal batch moves.
    pub batch: f64,
    /// Reads and writes of such a batch on all drives, checksums and parity included.
    pub batch_ios: f64,
    /// Blocks that a pool writes for each that it is given.
    pub amplification: f64,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} wins with {} updates for each scan of everything",
            self.winner.name(),
            number(self.updates_per_scan)
        )?;
        writeln!(
            f,
            "{:<16}{:>12}{:>12}{:>12}{:>16}",
            "layout", "updates/s", "scan, MB/s", "of fresh", "updates/s, mix"
        )?;
        for one in &self.ranked {
            let (updates, scan) = (number(one.updates_per_s), number(one.scan_mb_s));
            let (fresh, mixed) = (number(one.scan_of_fresh), number(one.mixed_updates_per_s));
            writeln!(f, "{:<16}{updates:>12}{scan:>12}{fresh:>12}{mixed:>16}", one.layout.name())?;
        }
        if self.crossings.is_empty() {
            writeln!(f, "{} wins at any mix", self.winner.name())?;
        }
        self.crossings.iter().try_for_each(|Crossing { updates_per_scan, below, above }| {
            let at = number(*updates_per_scan);
            writeln!(f, "up to {at} updates for each scan {}, beyond {}", below.name(), above.name())
        })
    }
}

impl Load {
    fn mixed_ms(&self, layout: Layout, updates: f64) -> f64 {
        updates * self.update_ms(layout) + self.scan_ms(layout)
    }

    fn best(&self, updates: f64) -> Layout {
        let mut all = Layout::CHOICES;
        all.sort_by(|one, other| self.mixed_ms(*one, updates).total_cmp(&self.mixed_ms(*other, updates)));
        all[0]
    }

    /// Where the winner changes: the time of each is a line over the updates, so the best is a chain of them, each with less for
    /// an update than the one before.
    fn crossings(&self) -> Vec<Crossing> {
        let (mut crossings, mut best, mut from) = (Vec::new(), self.best(0.0), 0.0);
        loop {
            let cheaper = |other: &Layout| self.update_ms(*other) < self.update_ms(best);
            let at = |other: Layout| {
                (self.scan_ms(other) - self.scan_ms(best)) / (self.update_ms(best) - self.update_ms(other))
            };
            let next = Layout::CHOICES.into_iter().filter(cheaper).map(|other| (at(other).max(from), other));
            let Some((updates, above)) = next.min_by(|one, other| one.0.total_cmp(&other.0)) else { return crossings };
            if updates > 0.0 {
                crossings.push(Crossing { updates_per_scan: updates, below: best, above });
            }
            (best, from) = (above, updates);
        }
    }
}

fn answer(question: &Question) -> Answer {
    let (load, updates) = (&question.load, question.updates_per_scan);
    let mb_s = |ms: f64| load.data / 1e3 / ms;
    let mut ranked: Vec<Judged> = Layout::ALL
        .into_iter()
        .map(|layout| Judged {
            layout,
            updates_per_s: 1e3 / load.update_ms(layout),
            scan_mb_s: mb_s(load.scan_ms(layout)),
            scan_of_fresh: load.fresh_scan_ms() / load.scan_ms(layout),
            mixed_updates_per_s: 1e3 * updates / load.mixed_ms(layout, updates),
        })
        .collect();
    ranked.sort_by(|one, other| other.mixed_updates_per_s.total_cmp(&one.mixed_updates_per_s));
    let (data, parity) = load.batch_ios(load.waiting());
    Answer {
        winner: load.best(updates),
        updates_per_scan: updates,
        ranked,
        crossings: load.crossings(),
        fresh_mb_s: mb_s(load.fresh_scan_ms()),
        batch: load.waiting(),
        batch_ios: data + parity,
        amplification: load.amplification(),
    }
}

fn validate(question: &Question) -> Result<(), Refused> {
    let Load { drive, data_drives, data, extent, update, full, fill, staging, batch, moved } = &question.load;
    within("the number of drives for data", *data_drives, 1.0, 64.0)?;
    within("the size of an extent, bytes,", *extent, 1048576.0, 1e12)?;
    within("the data, bytes,", *data, *extent, drive.capacity * data_drives * full.min(*fill))?;
    within("the size of an update, bytes,", *update, BLOCK, 168.0 * 1024.0)?;
    within("the part of the disks in use", *full, 0.01, 0.99)?;
    within("the part of a pool in use", *fill, 0.01, 0.95)?;
    within("the part that staging holds", *staging, 0.0001, 0.3)?;
    within("updates that are made durable together", *batch, 1.0, 1e6)?;
    within("the part of the blocks that moved", *moved, 0.0, 1.0)?;
    within("updates for each scan", question.updates_per_scan, 1.0, 1e15)?;
    // Of less than one update a batch has no neighbours.
    let waiting = question.load.waiting();
    if waiting < 1.0 {
        let text = "staging holds less than one update of each extent; take more staging, or larger extents";
        return Err(Refused(format!("{text} (it is {})", number(waiting))));
    }
    Ok(())
}

/// Estimates.
///
/// # Errors
/// Inputs that are out of range.
pub fn estimate(question: &Question) -> Result<Estimate<Answer>, Refused> {
    validate(question)?;
    let answer = answer(question);
    let load = &question.load;
    let rate = |load: &Load, layout: Layout| 1e3 / load.update_ms(layout);
    let winner = answer.winner;
    let mixed = |load: &Load| 1e3 * question.updates_per_scan / load.mixed_ms(winner, question.updates_per_scan);
    let mut estimate = Estimate::new(&ABOUT, subject(question), inputs(question), answer);
    let off = |quantity: String, unit: &str, value: f64| Predicted {
        quantity,
        unit: unit.into(),
        value,
        low: value / (1.0 + OFF),
        high: value * (1.0 + OFF),
        confidence: 0.8,
        range_from: "how far the model is off emulated disks".into(),
    };
    let main = mixed(load);
    estimate.predictions = vec![off(format!("mix.{}", winner.name()), "updates/s", main)];
    for layout in [Layout::Proximal, Layout::LogStructured] {
        let name = layout.name();
        estimate.predictions.push(off(format!("updates.{name}"), "updates/s", rate(load, layout)));
        let scan = load.data / 1e3 / load.scan_ms(layout);
        estimate.predictions.push(off(format!("scan.{name}"), "MB/s", scan));
    }
    let changed = changes(load).into_iter().map(|(change, other)| {
        let best = other.best(question.updates_per_scan);
        let note = if best == winner { String::new() } else { format!("; then {} wins", best.name()) };
        (format!("{change}{note}"), mixed(&other))
    });
    estimate.judge(main, changed.collect());
    estimate.assumptions = vec![
        "updates fall on all blocks alike; with hot spots proximal and the pool do better".into(),
        "staging on flash takes no time and is never what limits; the pool and writing anywhere have no flash".into(),
        "RAID-4 with a checksum block for 63 blocks, without a journal; drives keep neighbouring requests in one revolution".into(),
        "extents lie all over the disks; a pool lies over what it fills".into(),
        "a pool cleans greedily, its index costs nothing, and it never writes an extent in order again".into(),
    ];
    estimate.explanation = steps(load);
    Ok(estimate)
}

fn changes(load: &Load) -> Vec<(String, Load)> {
    let with = |change: &dyn Fn(&mut Load)| {
        let mut changed = load.clone();
        change(&mut changed);
        changed
    };
    vec![
        ("a request takes the drive 0.6 ms at least, as in the paper".to_string(), with(&|l| l.drive.floor = 0.6)),
        ("twice the staging".into(), with(&|l| l.staging *= 2.0)),
        ("half the staging".into(), with(&|l| l.staging /= 2.0)),
        ("a pool half as empty".into(), with(&|l| l.fill = 1.0 - (1.0 - l.fill) / 2.0)),
        ("a quarter of the blocks moved since they were written in order".into(), with(&|l| l.moved = 0.25)),
        ("updates durable one by one, where not staged".into(), with(&|l| l.batch = 1.0)),
        ("extents a quarter as large".into(), with(&|l| l.extent /= 4.0)),
    ]
}

fn inputs(question: &Question) -> Inputs {
    let Load { drive, data_drives, data, extent, update, full, fill, staging, batch, moved } = &question.load;
    Inputs::from([
        ("drive".into(), json!(drive.name)),
        ("data_drives".into(), json!(data_drives)),
        ("data".into(), json!(data)),
        ("extent".into(), json!(extent)),
        ("update".into(), json!(update)),
        ("full".into(), json!(full)),
        ("fill".into(), json!(fill)),
        ("staging".into(), json!(staging)),
        ("batch".into(), json!(batch)),
        ("moved".into(), json!(moved)),
        ("updates_per_scan".into(), json!(question.updates_per_scan)),
    ])
}

fn subject(question: &Question) -> String {
    let load = &question.load;
    format!(
        "layout of {} on {}+1 {}, extents {}, staging {} %, pool {} % full, {} updates for each scan",
        Bytes(load.data as u64),
        load.data_drives,
        load.drive.name,
        Bytes(load.extent as u64),
        number(load.staging * 100.0),
        number(load.fill * 100.0),
        number(question.updates_per_scan)
    )
}

fn steps(load: &Load) -> Vec<Step> {
    let step = |formula: &str, numbers: String| Step { formula: formula.into(), numbers };
    let drive = &load.drive;
    let n = load.waiting();
    let (data, parity) = load.batch_ios(n);
    vec![
        step(
            "the drive: revolution, settling to read and write, average seek, bytes of a track",
            format!(
                "{} ms, {} and {} ms, {} ms, {}",
                number(drive.revolution),
                number(drive.read_settle),
                number(drive.write_settle),
                number(drive.seek(drive.capacity)),
                number(drive.track)
            ),
        ),
        step(
            "in place = seek + (1 + wait for block and checksum on both drives) revolutions + transfer",
            format!("{} ms", number(load.update_ms(Layout::InPlace))),
        ),
        step(
            "a batch = extent / block x staging / full",
            format!(
                "{} updates, {} I/Os on data drives and {} on that of parity",
                number(n),
                number(data),
                number(parity)
            ),
        ),
        step(
            "proximal = (seek + tracks x (2 q/(q+1) revolutions + settling)) / batch",
            format!(
                "{} ms / {} = {} ms",
                number(load.batch_ms(n)),
                number(n),
                number(load.update_ms(Layout::Proximal))
            ),
        ),
        step(
            "log-structured = access / batch + (A - 1) (settle + half a revolution) / drives + transfer",
            format!("A = {}: {} ms", number(load.amplification()), number(load.update_ms(Layout::LogStructured))),
        ),
        step("write anywhere = a revolution to read and one to write for each track of holes", {
            format!("{} ms", number(load.update_ms(Layout::WriteAnywhere)))
        }),
        step("a scan of everything: fresh, of the pool, written anywhere", {
            let seconds = |ms: f64| number(ms / 1e3);
            let (pool, anywhere) = (load.scan_ms(Layout::LogStructured), load.scan_ms(Layout::WriteAnywhere));
            format!("{} s, {} s, {} s", seconds(load.fresh_scan_ms()), seconds(pool), seconds(anywhere))
        }),
    ]
}

/// Updates per second by the mix.
pub fn figure(question: &Question) -> Plot {
    let plot = Plot::lines(
        "Updates per second by how often everything is read in order",
        Axis::log("updates for each scan of everything"),
        Axis::log("updates per second"),
        Origin::Modelled,
    );
    let blocks = question.load.data / BLOCK;
    let mixes: Vec<f64> = (-12..=12).map(|step| blocks * 10f64.powf(f64::from(step) / 4.0)).collect();
    Layout::ALL.into_iter().fold(plot, |plot, layout| {
        let rate = |updates: &f64| (*updates, 1e3 * updates / question.load.mixed_ms(layout, *updates));
        plot.with(Series::line(layout.name(), mixes.iter().map(rate).collect()))
    })
}
