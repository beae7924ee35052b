//! Benchmarks: file systems side by side, the library by itself, and surveys.

mod ageing;
mod arrivals;
mod churn;
mod contender;
mod daemon;
mod devices;
mod engines;
mod files;
mod library;
mod machine;
mod prediction;
mod proximal;
mod requests;
mod rows;
mod s3;
mod scale;
mod scratch;
mod server;
mod steps;
mod survey;
mod table;
mod timing;

pub use ageing::{Options as AgeingOptions, ageing};
pub use devices::{Options as DevicesOptions, devices};
pub use engines::{Options as EngineOptions, array, regions};
pub use files::{Options as FilesOptions, files};
pub use library::{Options as LibraryOptions, library};
pub use prediction::{Options as PredictionOptions, prediction};
pub use proximal::{Options as ProximalOptions, proximal};
pub use s3::{Options as S3Options, s3};
pub use scale::{Options as ScaleOptions, scale};
pub use survey::{Options as SurveyOptions, survey};
pub use timing::{Options as TimingOptions, timing};

use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Makes signals end the run in an orderly way: see [`check_interrupt`].
fn catch_signals() -> Result<(), String> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, INTERRUPTED.clone()).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// An error once the user wants to stop. Everything that lasts asks often; whoever holds mounts clears them on the way out.
fn check_interrupt() -> Result<(), String> {
    if INTERRUPTED.load(Ordering::Acquire) { Err("interrupted".into()) } else { Ok(()) }
}

/// Runs a command that should say nothing; an error has what it said.
fn quiet(command: &mut Command) -> Result<(), String> {
    output(command).map(|_| ())
}

/// Runs a command and gives what it wrote to its standard output.
fn said(command: &mut Command) -> Result<String, String> {
    output(command).map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn output(command: &mut Command) -> Result<Output, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let error = String::from_utf8_lossy(&output.stderr);
    let last = error.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(format!("{name}: {}: {last}", output.status))
}

/// A program's path, if it is installed.
fn find_program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    places.map(|place| place.join(name)).find(|program| program.is_file())
}

/// The middle of some figures; of an even number, the mean of the two in the middle.
fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[len / 2],
        len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
    }
}

/// Operations per second of fio on 1 GiB, for a time that the options tell.
fn fio(options: impl IntoIterator<Item = String>, operation: &str, depth: u32) -> Result<f64, String> {
    let mut fio = Command::new("fio");
    fio.args(["--name=bench", "--size=1G", "--time_based", "--ramp_time=0.5", "--output-format=json"]).args(options);
    let said = said(fio.arg(format!("--rw={operation}")).arg(format!("--iodepth={depth}")))?;
    // fio may put warnings before its document.
    let document = said.find('{').map_or("", |start| &said[start..]);
    let value: serde_json::Value = serde_json::from_str(document).map_err(|error| format!("fio's output: {error}"))?;
    let side = if operation.ends_with("read") { "read" } else { "write" };
    let rate = value["jobs"][0][side]["iops"].as_f64();
    rate.filter(|rate| *rate > 0.0).ok_or_else(|| "fio gives no rate".into())
}
