//! `ashlar lab profile`.

use super::arguments::StandArguments;
use super::failed;
use crate::output::{Failure, Output};
use crate::signals::on_signal;
use ashlar_lab::partial::Partial;
use ashlar_lab::profile::profile;
use ashlar_lab::stand::Stand;
use ashlar_lab::vector::{Key, Source, Value, Vector};
use ashlar_report::number;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Args)]
pub struct ProfileArguments {
    #[command(flatten)]
    pub stand: StandArguments,
    /// The file for the vector.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// What the vector is of. Default: what it is measured on.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// About how long it may take, as in 90s or 3m.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = ashlar_units::some_duration)]
    pub budget: Duration,
    /// Decides what is left to chance.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// What was measured.
#[derive(Serialize, JsonSchema)]
struct Report {
    /// What it is of.
    name: String,
    /// Measured, or measured on an emulated device.
    source: Source,
    /// The file.
    output: String,
    /// Seconds.
    seconds: f64,
    /// Whether everything was out of memory that was to be.
    cold: bool,
    /// Results: the name, the mean, its standard error, and how many were measured.
    results: Vec<Row>,
    /// What a reader should know.
    notes: Vec<String>,
}

/// A result.
#[derive(Serialize, JsonSchema)]
struct Row {
    name: String,
    mean: f64,
    unit: String,
    error: f64,
    count: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({}), {:.0} s", self.name, self.source, self.seconds)?;
        for row in &self.results {
            let (mean, error) = (number(row.mean), number(row.error));
            writeln!(f, "    {:<12}{mean:>12} {:<5} ± {error:<10} of {}", row.name, row.unit, row.count)?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        writeln!(f, "{}", self.output)
    }
}

/// `ashlar lab profile`.
pub fn run(arguments: &ProfileArguments, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Report>() {
        return Ok(code);
    }
    let options = arguments.stand.options(arguments.seed)?;
    // Before an hour of measuring is lost.
    let mut file = Partial::create(&arguments.output).map_err(failed)?;
    let stop = on_signal()?;
    let described = match arguments.stand.memory {
        Some(memory) => format!("{}, memory {memory}", options.described()),
        None => options.described(),
    };
    let name = arguments.name.clone().unwrap_or(described);
    let source = if options.device.is_some() { Source::Emulated } else { Source::Measured };
    let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::new(1000) };
    let style = ProgressStyle::with_template("{bar:40} {percent} % {msg}, {eta} left");
    let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let of_place = |error: io::Error| match error.kind() {
        io::ErrorKind::Interrupted => Failure::new("stopped; nothing was left mounted"),
        _ => Failure::new(format!("{}: {error}", options.described())).with_code(2),
    };
    // A place that cannot be had names itself, and so does a file.
    let mut stand = Stand::open(&options).map_err(failed)?;
    let progress = |what: &str, done: f64| {
        bar.set_message(what.to_string());
        bar.set_position((done * 1000.0) as u64);
    };
    if let Some(memory) = arguments.stand.memory {
        stand.limit(memory).map_err(of_place)?;
    }
    let found = profile(&mut stand, &name, source, arguments.budget, arguments.seed, &stop, &progress);
    bar.finish_and_clear();
    let put_away = stand.put_away();
    let found = found.map_err(of_place)?;
    put_away.map_err(of_place)?;
    let vector = found.vector;
    file.write_all(vector.to_string().as_bytes()).and_then(|()| file.finish()).map_err(failed)?;
    output.print(&Report {
        results: rows(&vector),
        name: vector.name,
        source: vector.source,
        output: arguments.output.display().to_string(),
        seconds: found.seconds,
        cold: found.cold,
        notes: vector.notes,
    });
    Ok(ExitCode::SUCCESS)
}

fn rows(vector: &Vector) -> Vec<Row> {
    let row = |(key, value): (Key, &Value)| Row {
        name: key.to_string(),
        mean: value.mean,
        unit: key.family.unit().name().into(),
        error: value.error,
        count: value.count,
    };
    vector.iter().map(row).collect()
}
