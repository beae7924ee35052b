//! `ashlar lab layout`.

use super::arguments::LayoutArguments;
use super::{about, counter, now_ns};
use crate::output::{Failure, Output};
use crate::signals::on_signal;
use ashlar_lab::layout::{Files, Layout, of_snapshot, of_tree};
use ashlar_lab::snapshot::SnapshotReader;
use ashlar_report::number;
use ashlar_survey::listing::Troubles;
use ashlar_units::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::BufReader;
use std::process::ExitCode;

/// How files lie.
#[derive(Serialize, JsonSchema)]
pub struct Report {
    /// The directory or the snapshot.
    pub path: String,
    /// What the file system is called.
    pub file_system: String,
    /// How its files lie.
    #[serde(flatten)]
    pub layout: Layout,
    /// What could not be looked at.
    pub unreadable: Troubles,
    /// What is not known, and why.
    pub notes: Vec<String>,
}

/// What could not be looked at, for people.
pub fn troubles(f: &mut fmt::Formatter<'_>, troubles: &Troubles) -> fmt::Result {
    if troubles.count > 0 {
        writeln!(f, "could not be looked at: {}", troubles.count)?;
    }
    troubles.first.iter().take(10).try_for_each(|trouble| writeln!(f, "    {}: {}", trouble.path, trouble.what))
}

fn files(f: &mut fmt::Formatter<'_>, name: &str, files: &Files) -> fmt::Result {
    let score = files.score.map_or("none".into(), |score| format!("{score:.4}"));
    write!(
        f,
        "{name:<15}{} files, {}, layout score {score}, {} pieces per file",
        files.files,
        Bytes(files.bytes),
        number(files.pieces_per_file)
    )?;
    let Some(split) = files.split else { return writeln!(f) };
    let percent = |share: f64| number(100.0 * share);
    writeln!(
        f,
        "\n{:<15}split: {} ({} %), of which {} % one group away and {} % less than ten",
        "",
        split.files,
        percent(split.share),
        percent(split.one_away),
        percent(split.below_ten_away)
    )
}

/// A layout for people.
pub fn text(f: &mut fmt::Formatter<'_>, layout: &Layout) -> fmt::Result {
    files(f, "all", &layout.all)?;
    files(f, "hot (30 days)", &layout.hot)?;
    let pieces: Vec<_> = layout.files_by_pieces.iter().map(|(bound, files)| format!("{bound}: {files}")).collect();
    writeln!(f, "{:<15}{}", "pieces, up to", pieces.join(", "))?;
    let sizes: Vec<_> =
        layout.score_by_size.iter().map(|(bound, score)| format!("{}: {score:.3}", Bytes(*bound))).collect();
    writeln!(f, "{:<15}{}", "score by size", sizes.join(", "))?;
    if layout.waiting > 0 {
        writeln!(f, "{:<15}{} files are not written in full yet", "waiting", layout.waiting)?;
    }
    if let Some(free) = &layout.free {
        writeln!(f, "{:<15}{} in {} ranges", "free", Bytes(free.bytes), free.ranges)?;
        let ranges = free.by_length.iter();
        let ranges: Vec<_> = ranges.map(|(bound, count, _)| format!("{}: {count}", Bytes(*bound))).collect();
        writeln!(f, "{:<15}{}", "  up to", ranges.join(", "))?;
    }
    Ok(())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({})", self.path, self.file_system)?;
        text(f, &self.layout)?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        troubles(f, &self.unreadable)
    }
}

/// `ashlar lab layout`.
pub fn run(arguments: &LayoutArguments, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Report>() {
        return Ok(code);
    }
    let path = &arguments.path;
    let metadata = std::fs::metadata(path).map_err(|error| about(path, error))?;
    let shown = path.to_string_lossy().into_owned();
    if !metadata.is_dir() {
        let file = File::open(path).map_err(|error| about(path, error))?;
        let damaged = |error| about(path, error);
        let mut snapshot = SnapshotReader::new(BufReader::with_capacity(1 << 18, file)).map_err(damaged)?;
        let layout = of_snapshot(&mut snapshot).map_err(damaged)?;
        let (file_system, notes) = (snapshot.header().file_system.clone(), Vec::new());
        output.print(&Report { path: shown, file_system, layout, unreadable: Troubles::default(), notes });
        return Ok(ExitCode::SUCCESS);
    }
    let stop = on_signal()?;
    let bar = counter(output, "names");
    let seen = of_tree(path, now_ns(), &stop, &|count| bar.set_position(count));
    bar.finish_and_clear();
    let seen = seen?;
    let failed = seen.walked.unreadable.count > 0;
    output.print(&Report {
        path: shown,
        file_system: seen.file_system,
        layout: seen.layout,
        unreadable: seen.walked.unreadable,
        notes: seen.notes,
    });
    Ok(ExitCode::from(u8::from(failed)))
}
