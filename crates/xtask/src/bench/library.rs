//! The library by itself, on a device in memory: the benchmark of the pool, several times, against its bars; and what a
//! request of the kernel costs that needs no I/O.

use crate::bench::table::align;
use crate::bench::{catch_signals, check_interrupt, machine, median, requests, said};
use ashlar_units::Bytes;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;

/// What to measure.
#[derive(clap::Args)]
pub struct Options {
    /// Runs; the table shows medians.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Only these parts: lookup, stream, keys, commit, requests; or fill, which takes minutes and is done only if it is named.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    fill: Fill,
    /// One JSON document instead of the table.
    #[arg(long)]
    json: bool,
}

/// What the part `fill` does: many more pairs than memory has room for.
#[derive(clap::Args)]
struct Fill {
    /// Pairs of 16 and 100 bytes that `fill` inserts.
    #[arg(long, default_value_t = 10_000_000)]
    pairs: u64,
    /// Memory of the pool that `fill` makes.
    #[arg(long, default_value = "100MiB")]
    memory: Bytes,
    /// Where `fill` makes its pool: a block device, whose contents are lost, or a file. Default: memory.
    #[arg(long, value_name = "PATH")]
    device: Option<PathBuf>,
    /// What that is taken for: the index is as wide as suits it. Default: what the system says.
    #[arg(long, value_parser = ["disk", "flash"])]
    medium: Option<String>,
    /// How the pairs of `fill` come; `load` is a bulk load of sorted ones.
    #[arg(long, value_parser = ["random", "sorted", "load"], default_value = "random")]
    order: String,
}

const PARTS: [&str; 6] = ["lookup", "stream", "keys", "commit", REQUESTS, FILL];
/// The part that is done only if it is named.
const FILL: &str = "fill";
/// The part that needs a mount, and so root.
const REQUESTS: &str = "requests";

/// One figure of one run.
pub struct Figure {
    /// What was measured.
    pub row: String,
    /// What it counts.
    pub unit: String,
    /// How much.
    pub value: f64,
}

/// What a row should reach.
#[derive(Clone, Copy)]
enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

/// How rows begin that have a bar, and their unit.
const BARS: [(&str, &str, Bar); 10] = [
    ("map lookups", "/s of a core", Bar::AtLeast(1e6)),
    ("random inserts, 100 per transaction", "/s of a core", Bar::AtLeast(1e6)),
    ("random point lookups", "/s of a core", Bar::AtLeast(1.5e6)),
    ("sequential write", "GB/s", Bar::AtLeast(2.0)),
    ("sequential read", "GB/s", Bar::AtLeast(2.0)),
    ("cached lookup request, median", "us", Bar::AtMost(5.0)),
    ("opening", "s", Bar::AtMost(1.0)),
    ("puts of 4 KiB", "/s of a core", Bar::AtLeast(150_000.0)),
    ("puts of 512 KiB", "GB/s of a core", Bar::AtLeast(2.5)),
    ("RAID-6 P and Q", "GB/s of a core", Bar::AtLeast(8.0)),
];

impl Bar {
    fn reached(self, value: f64) -> bool {
        match self {
            Bar::AtLeast(least) => value >= least,
            Bar::AtMost(most) => value <= most,
        }
    }
    /// How much of the bar there is: 1 or more is enough, whatever its side.
    fn ratio(self, value: f64) -> f64 {
        match self {
            Bar::AtLeast(least) => value / least,
            Bar::AtMost(most) => most / value,
        }
    }
    fn text(self) -> String {
        match self {
            Bar::AtLeast(least) => format!(">= {least}"),
            Bar::AtMost(most) => format!("<= {most}"),
        }
    }
}

/// All figures of a row.
pub struct Line {
    row: String,
    unit: String,
    values: Vec<f64>,
}

/// Puts figures behind those of the same rows.
pub fn collect(lines: &mut Vec<Line>, figures: Vec<Figure>) {
    for figure in figures {
        match lines.iter_mut().find(|line| line.row == figure.row && line.unit == figure.unit) {
            Some(line) => line.values.push(figure.value),
            None => lines.push(Line { row: figure.row, unit: figure.unit, values: vec![figure.value] }),
        }
    }
}

impl Line {
    fn bar(&self) -> Option<Bar> {
        BARS.iter().find(|(row, unit, _)| self.row.starts_with(row) && self.unit == *unit).map(|(.., bar)| *bar)
    }
    fn spread(&self) -> f64 {
        let largest = self.values.iter().copied().fold(f64::MIN, f64::max);
        largest / self.values.iter().copied().fold(f64::MAX, f64::min)
    }
}

/// `cargo xtask bench library`.
pub fn library(options: &Options) -> Result<(), String> {
    if let Some(unknown) = options.only.iter().find(|part| !PARTS.contains(&part.as_str())) {
        return Err(format!("there is no part {unknown:?}; there are {}", PARTS.join(", ")));
    }
    catch_signals()?;
    let named = |part: &str| options.only.iter().any(|only| only == part);
    let wanted = |part: &&str| named(part) || (options.only.is_empty() && *part != FILL);
    let parts: Vec<&str> = PARTS.into_iter().filter(wanted).collect();
    crate::run(Command::new("cargo").args(["bench", "--package", "ashlar-pool", "--bench", "library", "--no-run"]))?;
    let ashlar = crate::ashlar()?;
    let facts = machine::facts(None);
    let mut lines: Vec<Line> = Vec::new();
    for run in 1..=options.runs {
        for part in &parts {
            check_interrupt()?;
            eprintln!("run {run} of {}: {part}", options.runs);
            let figures = match *part {
                REQUESTS => requests::measure(&ashlar)?,
                FILL => parse(&said(bench(&[part]).args(options.fill.arguments()))?)?,
                _ => parse(&said(&mut bench(&[part]))?)?,
            };
            collect(&mut lines, figures);
        }
    }
    show(options.json, &facts, &lines);
    Ok(())
}

impl Fill {
    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![format!("--pairs={}", self.pairs), format!("--memory={}", self.memory.0)];
        arguments.extend(self.device.as_ref().map(|device| format!("--device={}", device.display())));
        arguments.push(format!("--order={}", self.order));
        arguments.extend(self.medium.as_ref().map(|medium| format!("--medium={medium}")));
        arguments
    }
}

/// Prints the table, or the document.
pub fn show(as_json: bool, facts: &Value, lines: &[Line]) {
    match as_json {
        true => println!("{:#}", document(facts, lines)),
        false => print!("{}", text(facts, lines)),
    }
}

fn bench(parts: &[&str]) -> Command {
    let mut cargo = cargo_bench("ashlar-pool", "library");
    cargo.args(parts);
    cargo
}

/// A benchmark of a package; its arguments follow.
pub fn cargo_bench(package: &str, name: &str) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.args(["bench", "--quiet", "--package", package, "--bench", name, "--"]);
    cargo
}

/// Reads the figures that a benchmark wrote: a JSON document on each line.
pub fn parse(text: &str) -> Result<Vec<Figure>, String> {
    let line = |line: &str| -> Result<Figure, String> {
        let value: Value = serde_json::from_str(line).map_err(|error| format!("{line:?}: {error}"))?;
        let text = |name: &str| value[name].as_str().map(String::from);
        let figure = || Some(Figure { row: text("row")?, unit: text("unit")?, value: value["value"].as_f64()? });
        figure().ok_or_else(|| format!("{line:?} is no figure"))
    };
    text.lines().map(line).collect()
}

fn text(facts: &Value, lines: &[Line]) -> String {
    let runs = lines.iter().map(|line| line.values.len()).max().unwrap_or(0);
    let header = ["row", "unit", "median", "largest / smallest", "bar", "to bar", "reached"].map(String::from).to_vec();
    let mut table = vec![header];
    for line in lines {
        let value = median(&line.values);
        let digits = if value < 1000.0 { 2 } else { 0 };
        table.push(vec![
            line.row.clone(),
            line.unit.clone(),
            format!("{value:.digits$}"),
            format!("{:.2}", line.spread()),
            line.bar().map_or(String::new(), Bar::text),
            line.bar().map_or(String::new(), |bar| format!("{:.2}", bar.ratio(value))),
            line.bar().map_or("", |bar| if bar.reached(value) { "yes" } else { "NO" }).into(),
        ]);
    }
    format!(
        "{}\n\nEvery figure is measured: the median of {runs} runs. \"Of a core\" counts the time that our threads ran, \
         which other\nwork on the machine does not stretch as it stretches the clock's.\n\n{}",
        machine::heading(facts),
        align(&table)
    )
}

fn document(facts: &Value, lines: &[Line]) -> Value {
    let row = |line: &Line| {
        let value = median(&line.values);
        json!({
            "row": line.row,
            "unit": line.unit,
            "measured": { "median": value, "runs": line.values },
            "bar": line.bar().map(|bar| {
                json!({ "text": bar.text(), "ratio": bar.ratio(value), "reached": bar.reached(value) })
            }),
        })
    };
    json!({ "machine": facts, "rows": lines.iter().map(row).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_and_noise_is_refused() {
        let figures = parse("{\"row\":\"a\",\"unit\":\"/s\",\"value\":2.5}\n").expect("a figure");
        assert_eq!((figures[0].row.as_str(), figures[0].value), ("a", 2.5));
        assert!(parse("warning: no figure").is_err());
        assert!(parse("{\"row\":\"a\"}").is_err());
    }

    #[test]
    fn bars_have_a_side() {
        let line = |row: &str, unit: &str| Line { row: row.into(), unit: unit.into(), values: vec![1.0] };
        let reached = |row, unit, value| line(row, unit).bar().map(|bar| bar.reached(value));
        assert_eq!(reached("sequential write, 1 MiB", "GB/s", 1.9), Some(false));
        assert_eq!(reached("sequential write, 1 MiB", "GB/s", 2.1), Some(true));
        assert_eq!(reached("cached lookup request, median", "us", 5.1), Some(false));
        assert_eq!(reached("random point lookups", "/s", 5.1), None);
    }
}
