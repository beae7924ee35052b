//! `cargo xtask`: what developers repeat.

mod bench;

use clap::{Parser, Subcommand};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

#[derive(Parser)]
enum Task {
    /// Compare with others, side by side in one run.
    #[command(subcommand)]
    Bench(Bench),
    /// Explore for long: power cuts in pools and in file systems, and the program killed under load.
    Soak {
        /// How long for each exploration, as in 10m.
        #[arg(long, default_value = "10m")]
        budget: String,
    },
}

#[derive(Subcommand)]
enum Bench {
    /// File systems on one disk: ashlar, those of the kernel, and others in user space. Needs root.
    Files(bench::FilesOptions),
    /// The library by itself, on a device in memory, and what a cached request costs.
    Library(bench::LibraryOptions),
}

fn main() -> ExitCode {
    let done = match Task::parse() {
        Task::Bench(Bench::Files(options)) => bench::files(&options),
        Task::Bench(Bench::Library(options)) => bench::library(&options),
        Task::Soak { budget } => soak(&budget),
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

fn soak(budget: &str) -> Result<(), String> {
    let ashlar = ashlar()?;
    // Killing the program needs root and /dev/fuse.
    let own = std::fs::metadata("/proc/self").map_err(|error| error.to_string())?;
    let can_mount = own.uid() == 0 && Path::new("/dev/fuse").exists();
    if !can_mount {
        eprintln!("xtask: leaving out prove daemon, which needs root and /dev/fuse");
    }
    for subject in ["pool", "files"].into_iter().chain(can_mount.then_some("daemon")) {
        run(Command::new(&ashlar).args(["prove", subject, "--budget", budget]))?;
    }
    Ok(())
}

/// Runs a command; an error names it.
fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}
