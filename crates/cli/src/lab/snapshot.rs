//! `ashlar lab snapshot`.

use super::arguments::SnapshotArguments;
use super::{about, counter, now_ns};
use crate::output::{Failure, Output};
use crate::signals::on_signal;
use ashlar_lab::snapshot::{Closing, Header, Listed, Names, TakeOptions, list, take};
use ashlar_survey::listing::Troubles;
use ashlar_units::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::process::ExitCode;
use std::time::Instant;

/// A snapshot that was taken.
#[derive(Serialize, JsonSchema)]
struct Taken {
    /// The file.
    path: String,
    /// Its bytes.
    bytes: u64,
    /// What it is of.
    header: Header,
    /// What it counts.
    counts: Closing,
    /// What could not be looked at.
    unreadable: Troubles,
    /// Mount points of other file systems.
    passed_over: Troubles,
    /// What is not in it, and why.
    notes: Vec<String>,
    /// Seconds that it took.
    seconds: f64,
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Taken { header, counts, .. } = self;
        writeln!(
            f,
            "{}: {} files, {} directories, {} inodes of {} ({}), {} in {:.1} s",
            self.path,
            counts.files,
            counts.directories,
            counts.inodes,
            header.root,
            header.file_system,
            Bytes(self.bytes),
            self.seconds
        )?;
        writeln!(f, "{} extents, {} free ranges", counts.extents, counts.free_ranges)?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        super::layout::troubles(f, &self.unreadable)
    }
}

/// `ashlar lab snapshot`.
pub fn run(arguments: &SnapshotArguments, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Taken>() {
        return Ok(code);
    }
    let stop = on_signal()?;
    let began = Instant::now();
    let names = arguments.hash_names.clone().map_or(Names::Kept, Names::Hashed);
    let options = TakeOptions { now_ns: now_ns(), names, memory: arguments.memory.0 as usize };
    let bar = counter(output, "names");
    let (from, to) = (&arguments.path, &arguments.output);
    let seen = |count| bar.set_position(count);
    let taken = match arguments.text {
        true => list(from, to, &options, &stop, &seen).map(|Listed { taken, left_out }| (taken, Some(left_out))),
        false => take(from, to, &options, &stop, &seen).map(|taken| (taken, None)),
    };
    bar.finish_and_clear();
    let (taken, left_out) = taken?;
    let mut notes: Vec<String> = taken.note.into_iter().collect();
    if let Some(left_out) = left_out {
        notes.push("it is a text of names, inode numbers, types and sizes; counts are of names".into());
        if left_out > 0 {
            notes.push(format!("{left_out} names are not in it: of sockets, pipes and devices, or with line breaks"));
        }
    } else if taken.walked.placeless {
        notes.push("where files lie is not in it: the file system does not tell".into());
    }
    let bytes = std::fs::metadata(&arguments.output).map_err(|error| about(&arguments.output, error))?.len();
    let failed = taken.walked.unreadable.count > 0;
    output.print(&Taken {
        path: arguments.output.to_string_lossy().into_owned(),
        bytes,
        header: taken.header,
        counts: taken.closing,
        unreadable: taken.walked.unreadable,
        passed_over: taken.walked.passed,
        notes,
        seconds: began.elapsed().as_secs_f64(),
    });
    Ok(ExitCode::from(u8::from(failed)))
}
