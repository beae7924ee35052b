//! `ashlar survey`: what do I have?

pub mod arguments;
mod records;
mod text;
pub mod trace;

use crate::output::{Failure, Output};
use crate::signals::on_signal;
use arguments::{ModeArgument, Reading, Survey};
use ashlar_survey::bucket::Access;
use ashlar_survey::tally::Mode;
use ashlar_survey::{Answer, Options, Status, survey};
use indicatif::{ProgressBar, ProgressStyle};
pub use records::VERSION;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

/// `ashlar survey PATH`. Exit code 1 when something could not be read or changed, 2 when there is no answer.
pub fn run(arguments: &Survey, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Answer>() {
        return Ok(code);
    }
    // A place that cannot be written to should be noticed before hours of reading.
    for file in arguments.html.iter().chain(&arguments.json_file) {
        writable(file)?;
    }
    let mut answer = answer(&arguments.path, &arguments.reading, output)?;
    if !arguments.no_ledger {
        record(&mut answer, &arguments.reading, output);
    }
    if let Some(file) = &arguments.html {
        write(file, ashlar_survey::page::survey_page(&answer).as_bytes())?;
    }
    if let Some(file) = &arguments.json_file {
        write(file, &serde_json::to_vec_pretty(&answer).unwrap_or_default())?;
    }
    let troubles =
        answer.unreadable.count + answer.changed.count + answer.trace.as_ref().map_or(0, |trace| trace.impossible);
    output.print(&text::Text(answer));
    Ok(ExitCode::from(u8::from(troubles > 0)))
}

/// Surveys with a progress bar.
pub fn answer(path: &Path, reading: &Reading, output: &Output) -> Result<Answer, Failure> {
    if trace::is_trace(path) {
        return trace::answer(path, reading);
    }
    let stop = on_signal()?;
    let bar = Bar::new(output);
    let done = survey(path, &options(reading)?, &|status| bar.show(status), &stop);
    bar.bar.finish_and_clear();
    done.map_err(|error| Failure::new(error.to_string()).with_code(2))
}

fn options(reading: &Reading) -> Result<Options, Failure> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(8);
    let refuse = |text: &str| Err(Failure::new(text).with_code(2));
    let mut chunkings = reading.chunking.clone();
    chunkings.sort_unstable();
    chunkings.dedup();
    if let Some(unit) = reading.unit
        && (!unit.0.is_power_of_two() || !(4096..=64 << 20).contains(&unit.0))
    {
        return refuse("--unit is a power of two from 4KiB to 64MiB");
    }
    if !(reading.width > 0.0 && reading.width <= 1.0) {
        return refuse("--width is a share above 0 and at most 1, such as 0.05");
    }
    if reading.bandwidth.is_some_and(|bytes| bytes.0 < 64 << 10) {
        return refuse("--bandwidth is at least 64KiB per second");
    }
    Ok(Options {
        full: reading.full,
        budget: reading.budget,
        seed: reading.seed,
        chunkings,
        mode: if reading.mode == ModeArgument::Base { Mode::Base } else { Mode::Full },
        unit: reading.unit.map(|unit| unit.0),
        width: reading.width,
        memory: reading.memory.0,
        threads: reading.threads.unwrap_or(threads).max(1),
        bandwidth: reading.bandwidth.map(|bytes| bytes.0),
        idle: !reading.impolite,
        resume: reading.resume.clone(),
        temporary: std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from),
        access: Access::from_variables(|name| std::env::var(name).ok()),
    })
}

fn writable(file: &Path) -> Result<(), Failure> {
    let opened = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(file);
    opened.map(drop).map_err(|error| Failure::new(format!("{}: {error}", file.display())).with_code(2))
}

fn write(file: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let written = std::fs::write(file, bytes);
    written.map_err(|error| Failure::new(format!("{}: {error}", file.display())).with_code(2))
}

/// What people see while it lasts.
pub struct Bar {
    pub bar: ProgressBar,
    share: Mutex<f64>,
}

impl Bar {
    pub fn new(output: &Output) -> Bar {
        let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        Bar { bar, share: Mutex::new(-1.0) }
    }
    fn show(&self, status: Status) {
        match status {
            Status::Walking(files) => self.bar.set_message(format!("{files} files found")),
            Status::Reading(done, total, share) => {
                let mut known = self.share.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if *known != share {
                    *known = share;
                    let template =
                        "{bar:40} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left{msg}";
                    let style = ProgressStyle::with_template(template);
                    self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                    self.bar.reset();
                    self.bar.set_message(if share < 1.0 {
                        format!(" (up to {:.1} %)", 100.0 * share)
                    } else {
                        String::new()
                    });
                }
                self.bar.set_length(total);
                self.bar.set_position(done);
            }
            Status::Layout => self.bar.set_message(" looking where files lie"),
        }
    }
}

/// Writes an answer to the ledger, and the ids of predictions into it.
pub fn record(answer: &mut Answer, reading: &Reading, output: &Output) {
    records::write(answer, reading, output);
}
