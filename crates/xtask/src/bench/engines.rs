//! Engines by themselves on devices in memory: the region store, and the parity of arrays.

use crate::bench::library::{cargo_bench, collect, parse, show};
use crate::bench::{catch_signals, check_interrupt, machine, said};

/// How to measure.
#[derive(clap::Args)]
pub struct Options {
    /// Runs; the table shows medians.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Only rows of parts with this in their names.
    #[arg(long)]
    only: Option<String>,
    /// One JSON document instead of the table.
    #[arg(long)]
    json: bool,
}

/// `cargo xtask bench regions`.
pub fn regions(options: &Options) -> Result<(), String> {
    measure(options, "ashlar-regions", "regions")
}

/// `cargo xtask bench array`.
pub fn array(options: &Options) -> Result<(), String> {
    measure(options, "ashlar-array", "parity")
}

fn measure(options: &Options, package: &str, name: &str) -> Result<(), String> {
    catch_signals()?;
    let facts = machine::facts(None);
    let mut lines = Vec::new();
    for run in 1..=options.runs {
        check_interrupt()?;
        eprintln!("run {run} of {}", options.runs);
        collect(&mut lines, parse(&said(cargo_bench(package, name).args(&options.only))?)?);
    }
    show(options.json, &facts, &lines);
    Ok(())
}
