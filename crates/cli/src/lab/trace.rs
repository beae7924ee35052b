//! `ashlar lab trace`.

use super::about;
use super::arguments::{TraceArguments, TraceMethod};
use super::door;
use crate::output::{Failure, Output};
use crate::signals::on_signal;
use ashlar_lab::trace::bpf::Bpf;
use ashlar_lab::trace::counts::{Cause, Counts};
use ashlar_lab::trace::live::{Method, Options, Subject, Traced, recorded, trace};
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

/// A trace that was made.
#[derive(Serialize, JsonSchema)]
struct Report {
    /// The file.
    path: String,
    /// `bpf`, `strace`, `strace file`, or `fuse`.
    method: &'static str,
    /// What was traced.
    subject: String,
    /// What is in the file, and what is not.
    #[serde(flatten)]
    counts: Counts,
    /// Exit code of the command; none if a signal ended it, or nobody waited for its end.
    exit_code: Option<i32>,
    /// The signal that ended the command.
    signal: Option<i32>,
    /// Seconds from beginning to end.
    seconds: f64,
    /// What tracing itself costs, as far as it is known.
    overhead: &'static str,
    /// What a reader should know.
    notes: Vec<String>,
}

fn causes(f: &mut fmt::Formatter<'_>, title: &str, causes: &BTreeMap<Cause, u64>) -> fmt::Result {
    if causes.is_empty() {
        return Ok(());
    }
    let each: Vec<String> = causes.iter().map(|(cause, count)| format!("{count} {}", cause.text())).collect();
    writeln!(f, "{title:<10}{}", each.join(", "))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { path, method, subject, counts, seconds, .. } = self;
        writeln!(f, "{path}: {} records of {subject} in {seconds:.3} s, by {method}", counts.records)?;
        let ops: Vec<String> = counts.by_op.iter().map(|(op, count)| format!("{count} {}", op.name())).collect();
        if !ops.is_empty() {
            writeln!(f, "{:<10}{}", "records", ops.join(", "))?;
        }
        causes(f, "left out", &counts.left_out)?;
        causes(f, "dropped", &counts.dropped)?;
        causes(f, "remarks", &counts.remarks)?;
        match (self.exit_code, self.signal) {
            (Some(code), _) => writeln!(f, "{:<10}exit code {code}", "command")?,
            (_, Some(signal)) => writeln!(f, "{:<10}ended by signal {signal}", "command")?,
            _ => {}
        }
        writeln!(f, "{:<10}{}", "overhead", self.overhead)?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

/// Where calls come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Live(Method),
    /// The server of a mount of ours.
    Door,
    /// A file that strace wrote.
    File,
}

/// What tracing costs, see docs/lab.md.
fn overhead(origin: Origin) -> &'static str {
    match origin {
        Origin::Live(Method::Bpf) => {
            "about half a microsecond a call, not within latencies but for part of it; on a compile, see docs/lab.md"
        }
        Origin::Live(Method::Strace) => {
            "tens of microseconds a call, within latencies too; calls of threads wait for each other"
        }
        Origin::Door => "none was seen, see docs/lab.md; latencies are of the server's own work",
        Origin::File => "that of whoever ran strace: tens of microseconds a call, within latencies too",
    }
}

/// `ashlar lab trace`. Exit code 1 if the command failed or calls were lost.
pub fn run(arguments: &TraceArguments, pool: Option<&Path>, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Report>() {
        return Ok(code);
    }
    let only = match arguments.mount.as_deref().or(arguments.only.as_deref()) {
        Some(directory) => Some(absolute(directory)?),
        None => None,
    };
    if let Some(directory) = &arguments.mount {
        let found = std::fs::metadata(directory).map_err(|error| about(directory, error))?;
        if !found.is_dir() {
            return Err(about(directory, "it is no directory; name the one whose calls are to be traced"));
        }
    }
    if let Some(process) = arguments.pid
        && !Path::new(&format!("/proc/{process}")).exists()
    {
        return Err(
            Failure::new(format!("there is no process {process}; `ps` lists those that there are")).with_code(2)
        );
    }
    let (subject, said) = subject(arguments, output);
    let mut notes = Vec::new();
    let mount = only.as_deref().and_then(|only| Path::new(only).ancestors().find(|at| ashlar_fuse::is_mounted(at)));
    let origin = match &subject {
        Some(subject) => origin(arguments.method, subject, mount.is_some(), output, &mut notes)?,
        None => Origin::File,
    };
    let stop = on_signal()?;
    let bar = progress(output);
    let options = Options {
        to: &arguments.output,
        only: only.as_deref(),
        memory: arguments.memory.0 as usize,
        ring_len: arguments.buffer.0,
        stop: &stop,
        progress: &|counts, waiting| {
            bar.set_position(counts.records);
            let aside = if waiting.0 > 0 { format!("{waiting} put aside, ") } else { String::new() };
            bar.set_message(format!("{aside}{} lost", counts.of(Cause::Lost)));
        },
    };
    let traced = match (&subject, origin, &arguments.strace) {
        (_, Origin::Door, _) => door::trace(pool, mount, &options, &mut notes),
        (Some(subject), Origin::Live(method), _) => {
            trace(subject, method, &options).map_err(|error| about(Path::new(&said), error))
        }
        (_, _, Some(file)) => {
            let directory = arguments.cwd.clone().map_or_else(std::env::current_dir, Ok);
            let directory = directory.map_err(|error| about(Path::new("."), error))?;
            recorded(file, directory, &options).map_err(|error| about(file, error))
        }
        _ => Err(Failure::new("say what to trace: -p PID, --mount DIR, --strace FILE, or -- COMMAND").with_code(2)),
    };
    bar.finish_and_clear();
    let Traced { counts, exit, seconds } = traced?;
    if counts.of(Cause::Lost) > 0 {
        notes.push("calls were lost; a larger --buffer holds more of them until they are taken".into());
    }
    let failed = exit.is_some_and(|exit| !exit.success()) || counts.of(Cause::Lost) > 0;
    output.print(&Report {
        path: arguments.output.to_string_lossy().into_owned(),
        method: match origin {
            Origin::Live(Method::Bpf) => "bpf",
            Origin::Live(Method::Strace) => "strace",
            Origin::Door => "fuse",
            Origin::File => "strace file",
        },
        subject: said,
        counts,
        exit_code: exit.and_then(|exit| exit.code()),
        signal: exit.and_then(|exit: ExitStatus| exit.signal()),
        seconds,
        overhead: overhead(origin),
        notes,
    });
    Ok(ExitCode::from(u8::from(failed)))
}

/// What runs and is traced, and its name; `None` for a file.
fn subject(arguments: &TraceArguments, output: &Output) -> (Option<Subject>, String) {
    if let Some(process) = arguments.pid {
        return (Some(Subject::Process(process)), format!("process {process}"));
    }
    if let Some(directory) = &arguments.mount {
        return (Some(Subject::Everybody), format!("everything below {}", directory.display()));
    }
    if let Some(file) = &arguments.strace {
        return (None, file.to_string_lossy().into_owned());
    }
    let words = arguments.command.clone();
    let said: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let said = said.join(" ");
    ((!words.is_empty()).then_some(Subject::Command { words, quiet: output.json }), said)
}

/// Which method, and why not another. `ours`: the directory is on a mount of ours.
fn origin(
    wanted: TraceMethod,
    subject: &Subject,
    ours: bool,
    output: &Output,
    notes: &mut Vec<String>,
) -> Result<Origin, Failure> {
    let everybody = *subject == Subject::Everybody;
    if wanted == TraceMethod::Fuse {
        let text = "--method fuse traces a mount of ours: name one, or a directory in it, with --mount";
        return if everybody && ours { Ok(Origin::Door) } else { Err(Failure::new(text).with_code(2)) };
    }
    if wanted == TraceMethod::Strace && !everybody {
        return Ok(Origin::Live(Method::Strace));
    }
    if wanted == TraceMethod::Strace {
        return Err(Failure::new("--mount needs BPF, or fuse: strace traces commands and processes").with_code(2));
    }
    match Bpf::check() {
        Ok(()) => Ok(Origin::Live(Method::Bpf)),
        Err(error) if everybody && wanted != TraceMethod::Bpf && ours => {
            let note =
                format!("what reaches the server of this mount, since the kernel takes no BPF programs ({error})");
            output.say(&note);
            notes.push(note);
            Ok(Origin::Door)
        }
        Err(error) if wanted == TraceMethod::Bpf || everybody => {
            let text = format!("the kernel takes no BPF programs ({error}); run as root, on Linux 5.8 or newer");
            Err(Failure::new(text).with_code(2))
        }
        Err(error) => {
            let note = format!("by strace, which is slow, since the kernel takes no BPF programs ({error})");
            output.say(&note);
            notes.push(note);
            Ok(Origin::Live(Method::Strace))
        }
    }
}

/// A directory as the kernel calls it; as it is written, if it is not there.
fn absolute(path: &Path) -> Result<String, Failure> {
    let real =
        std::fs::canonicalize(path).or_else(|_| std::path::absolute(path)).map_err(|error| about(path, error))?;
    Ok(real.to_string_lossy().into_owned())
}

fn progress(output: &Output) -> ProgressBar {
    let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
    let style = ProgressStyle::with_template("{spinner} {human_pos} calls, {msg}, {elapsed}");
    bar.set_message("0 lost");
    bar.enable_steady_tick(Duration::from_millis(200));
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}
