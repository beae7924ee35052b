//! `cargo xtask`: what developers repeat.

mod bench;
mod soak;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

#[derive(Parser)]
enum Task {
    /// Compare with others, side by side in one run.
    #[command(subcommand)]
    Bench(Bench),
    /// Run for long: every fuzz target, power cuts in pools and in file systems, and the program killed under load.
    Soak {
        /// How long for all together, as in 10m; each gets an equal share.
        #[arg(long, default_value = "10m")]
        budget: String,
        /// Only what has this in its name.
        #[arg(long)]
        only: Option<String>,
        /// Print the names of all, and run nothing.
        #[arg(long)]
        list: bool,
    },
}

#[derive(Subcommand)]
enum Bench {
    /// File systems on one disk: ashlar, those of the kernel, and others in user space. Needs root.
    Files(bench::FilesOptions),
    /// Block devices in memory, over NBD and as a file under a loop device, beside nbdkit's. Needs root.
    Devices(bench::DevicesOptions),
    /// How late an emulated device is in real time: a model served over NBD, seen by its own trace and by the client.
    Timing(bench::TimingOptions),
    /// The library by itself, on a device in memory, and what a cached request costs.
    Library(bench::LibraryOptions),
    /// A pool with very many files: making, opening, finding, listing, checking them, and the memory that it takes.
    Scale(bench::ScaleOptions),
    /// Whether ageing by snapshots gives back the layout of a file system that somebody worked on. Needs root.
    Ageing(bench::AgeingOptions),
    /// How good predictions are: workloads on several systems, run and predicted. Needs root.
    Prediction(bench::PredictionOptions),
    /// The proximal engine on an emulated disk, in virtual time, beside the paper's tables.
    Proximal(bench::ProximalOptions),
    /// The S3 door beside other servers of S3, on loopback: 4 KiB and 8 MiB, put and got.
    S3(bench::S3Options),
    /// The region store by itself, on a device in memory.
    Regions(bench::EngineOptions),
    /// Parity of arrays, beside a plain copy.
    Array(bench::EngineOptions),
    /// Surveys of real sets: ranges beside the truth, what a sample costs, and rates beside backup programs.
    Survey(bench::SurveyOptions),
}

fn main() -> ExitCode {
    let done = match Task::parse() {
        Task::Bench(Bench::Files(options)) => bench::files(&options),
        Task::Bench(Bench::Devices(options)) => bench::devices(&options),
        Task::Bench(Bench::Timing(options)) => bench::timing(&options),
        Task::Bench(Bench::Library(options)) => bench::library(&options),
        Task::Bench(Bench::Scale(options)) => bench::scale(&options),
        Task::Bench(Bench::Ageing(options)) => bench::ageing(&options),
        Task::Bench(Bench::Prediction(options)) => bench::prediction(&options),
        Task::Bench(Bench::Proximal(options)) => bench::proximal(&options),
        Task::Bench(Bench::S3(options)) => bench::s3(&options),
        Task::Bench(Bench::Regions(options)) => bench::regions(&options),
        Task::Bench(Bench::Array(options)) => bench::array(&options),
        Task::Bench(Bench::Survey(options)) => bench::survey(&options),
        Task::Soak { budget, only, list } => soak::soak(&budget, only.as_deref(), list),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the program and gives its path.
fn ashlar() -> Result<PathBuf, String> {
    run(Command::new("cargo").args(["build", "--release", "--package", "ashlar"]))?;
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(own.with_file_name("ashlar"))
}

/// Runs a command; an error names it.
fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}
