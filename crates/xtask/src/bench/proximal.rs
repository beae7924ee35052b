//! The proximal engine on an emulated disk: its benchmark prints the paper's Tables 2 and 3 beside what it finds.

use crate::run;
use std::process::Command;

/// What to run.
#[derive(clap::Args)]
pub struct Options {
    /// Extents of 16 MiB.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(2..=512))]
    extents: u64,
}

/// Runs the benchmark.
pub fn proximal(options: &Options) -> Result<(), String> {
    let mut bench = Command::new("cargo");
    bench.args(["bench", "--quiet", "-p", "ashlar-proximal", "--bench", "proximal", "--"]);
    run(bench.arg(options.extents.to_string()))
}
