//! `ashlar prove crash` and `ashlar prove mark`.

use crate::arguments::Crash;
use crate::output::{Failure, Output};
use crate::signals::on_signal;
use ashlar_pool::Rule;
use ashlar_prove::crash::{CrashOptions, CrashOutcome, Finding, Io, Kind, OWN, Subject, explore_crash, replay_crash};
use ashlar_units::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

/// Operations of a list that are shown; the JSON document has all.
const SHOWN_MAX: usize = 12;
/// A failing image.
const FOUND: u8 = 1;
/// It could not be tried.
const UNABLE: u8 = 2;

/// `ashlar prove mark`.
pub fn mark(text: &str) -> Result<ExitCode, Failure> {
    ashlar_prove::crash::mark(text).map_err(unable)?;
    Ok(ExitCode::SUCCESS)
}

fn unable(what: impl Into<String>) -> Failure {
    Failure::new(what).with_code(UNABLE)
}

/// What an exploration came to.
#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct Report(CrashOutcome);

/// What a saved image came to.
#[derive(Serialize, JsonSchema)]
struct Replayed {
    /// Who rejected it: mount, check or fsck; nothing if it held.
    stage: Option<ashlar_prove::crash::Stage>,
    /// In which words.
    said: String,
}

impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stage {
            None => writeln!(f, "everything held"),
            Some(stage) => writeln!(f, "FOUND: {stage:?} failed: {}", self.said),
        }
    }
}

/// `ashlar prove crash`.
pub fn run(arguments: &Crash, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = if arguments.replay.is_some() { output.schema::<Replayed>() } else { output.schema::<Report>() }
    {
        return Ok(code);
    }
    let stop = on_signal().map_err(|failure| failure.with_code(UNABLE))?;
    if let Some(file) = &arguments.replay {
        let check = arguments.check.as_deref().map(program).transpose()?;
        let verdict = replay_crash(file, check.as_deref(), &stop).map_err(unable)?;
        let (stage, said) = verdict.map_or((None, String::new()), |(stage, said)| (Some(stage), said));
        output.print(&Replayed { stage, said });
        return Ok(ExitCode::from(if stage.is_some() { FOUND } else { 0 }));
    }
    let options = options(arguments)?;
    if let Some(obstacle) = options.subject.obstacle() {
        return Err(unable(obstacle));
    }
    let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::new(options.images) };
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} images, {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let outcome = explore_crash(&options, &stop, &mut |opened| bar.set_position(opened));
    bar.finish_and_clear();
    let report = Report(outcome.map_err(unable)?);
    if let Some(path) = &arguments.report {
        std::fs::write(path, html(&report.0)).map_err(|error| unable(format!("{}: {error}", path.display())))?;
    }
    output.print(&report);
    Ok(ExitCode::from(if report.0.failures.is_empty() { 0 } else { FOUND }))
}

fn options(arguments: &Crash) -> Result<CrashOptions, Failure> {
    let needed = |what: &str| unable(format!("give {what}, or --replay FILE"));
    let fs = arguments.fs.as_deref().ok_or_else(|| needed("--fs"))?;
    let subject = if fs == OWN {
        let programs = arguments.workload.is_some() || arguments.check.is_some();
        if programs || arguments.mount_options.is_some() || arguments.size.is_some() || arguments.model.is_some() {
            return Err(unable(format!("--fs {OWN} brings its own disk, workload and check: leave them out")));
        }
        let rule = |name: &String| {
            let known = Rule::named(name);
            known.ok_or_else(|| unable(format!("there is no rule {name:?}; `ashlar prove pool --rules` lists them")))
        };
        Subject::Own { without: arguments.without.as_ref().map(rule).transpose()? }
    } else if arguments.without.is_some() {
        return Err(unable(format!("--without breaks a rule of our own pool: give --fs {OWN} with it")));
    } else {
        let kind: Kind = fs.parse().map_err(|what: String| unable(what))?;
        Subject::Kernel {
            kind,
            size: arguments.size.unwrap_or(kind.size()),
            mount_options: arguments.mount_options.clone(),
            model: arguments.model.as_deref().map(crate::device::find).transpose()?.map(Box::new),
            workload: program(arguments.workload.as_deref().ok_or_else(|| needed("--workload"))?)?,
            check: program(arguments.check.as_deref().ok_or_else(|| needed("--check"))?)?,
        }
    };
    let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    Ok(CrashOptions {
        subject,
        drop_flushes: arguments.fault.is_some(),
        atomic: arguments.atomic.parse().map_err(|_| needed("--atomic 512 or 4096"))?,
        images: arguments.images,
        failures: arguments.failures,
        budget: arguments.budget,
        seed: arguments.seed.unwrap_or_else(clock),
        save: arguments.save.clone(),
    })
}

/// The absolute path of a program that the user named.
fn program(path: &Path) -> Result<std::path::PathBuf, Failure> {
    path.canonicalize().map_err(|error| unable(format!("{}: {error}", path.display())))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CrashOutcome { seed, recorded, images, alike, images_per_minute, failures, .. } = &self.0;
        let written = Bytes(recorded.written_bytes);
        writeln!(
            f,
            "recorded: {} writes of {written}, {} flushes, {} discards, {} marks",
            recorded.writes, recorded.flushes, recorded.discards, recorded.marks
        )?;
        writeln!(f, "seed {seed}: {images} images opened ({images_per_minute} a minute), {alike} cuts alike")?;
        if self.0.exhausted {
            writeln!(f, "no more different images were found")?;
        }
        failures.iter().try_for_each(|finding| show(f, finding))?;
        if failures.is_empty() { writeln!(f, "everything held") } else { Ok(()) }
    }
}

fn show(f: &mut fmt::Formatter<'_>, finding: &Finding) -> fmt::Result {
    let Finding { stage, said, cut, marks, kept, lost, fewest_lost, fewest_kept, file } = finding;
    writeln!(f, "\nFOUND: {stage:?} failed: {}", said.trim_end())?;
    let last = marks.last().map_or(String::new(), |mark| format!(", the last is {mark:?}"));
    writeln!(f, "  power cut before operation {cut}; {} marks{last}", marks.len())?;
    writeln!(f, "  of what no flush covered, {} reached the disk whole, {} did not", kept.len(), lost.len())?;
    list(f, "enough to lose", fewest_lost)?;
    list(f, "enough to keep", fewest_kept)?;
    writeln!(f, "  replay: ashlar prove crash --replay {}", file.display())
}

fn list(f: &mut fmt::Formatter<'_>, title: &str, ios: &[Io]) -> fmt::Result {
    if ios.is_empty() {
        return writeln!(f, "  {title}: nothing");
    }
    writeln!(f, "  {title}:")?;
    for io in ios.iter().take(SHOWN_MAX) {
        writeln!(f, "    {}", line(io))?;
    }
    if ios.len() > SHOWN_MAX { writeln!(f, "    and {} more", ios.len() - SHOWN_MAX) } else { Ok(()) }
}

fn line(io: &Io) -> String {
    let torn = io.units_kept.as_ref().map_or(String::new(), |units| format!(", torn: units {units:?} kept"));
    format!("#{} {} of {} at byte {}{torn}", io.number, io.what, Bytes(io.len_bytes), io.at_bytes)
}

/// The findings as a page.
fn html(outcome: &CrashOutcome) -> String {
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let rows = |ios: &[Io]| ios.iter().map(|io| format!("<li>{}</li>", escape(&line(io)))).collect::<String>();
    let recorded = &outcome.recorded;
    let mut page = format!(
        "<!DOCTYPE html><meta charset=utf-8><title>Power cuts under {fs}</title>\
         <style>body{{font:15px sans-serif;max-width:60em;margin:2em auto}}td,th{{padding:.2em 1em .2em 0;\
         text-align:left}}pre{{background:#eee;padding:.6em;overflow:auto}}</style>\
         <h1>Power cuts under {fs}</h1><table><tr><th>seed<td>{}<tr><th>flushes<td>{}<tr><th>images opened<td>{}\
         <tr><th>failing<td>{}<tr><th>recorded<td>{} writes of {}, {} flushes, {} discards, {} marks</table>",
        outcome.seed,
        if outcome.drop_flushes { "dropped (negative control)" } else { "honoured" },
        outcome.images,
        outcome.failures.len(),
        recorded.writes,
        Bytes(recorded.written_bytes),
        recorded.flushes,
        recorded.discards,
        recorded.marks,
        fs = outcome.fs,
    );
    for (number, finding) in (1..).zip(&outcome.failures) {
        page += &format!(
            "<h2>{number}. {:?} failed</h2><pre>{}</pre><p>Power cut before operation {}, after the marks:<pre>{}</pre>\
             <p>Enough to lose:<ol>{}</ol><p>Enough to keep, of what no flush covered:<ol>{}</ol>\
             <p>As it was found: {} kept, {} lost or torn:<details><summary>lost or torn</summary><ol>{}</ol></details>\
             <p>Replay: <code>ashlar prove crash --replay {}</code>",
            finding.stage,
            escape(&finding.said),
            finding.cut,
            escape(&finding.marks.join("\n")),
            rows(&finding.fewest_lost),
            rows(&finding.fewest_kept),
            finding.kept.len(),
            finding.lost.len(),
            rows(&finding.lost),
            escape(&finding.file.display().to_string()),
        );
    }
    if outcome.failures.is_empty() {
        page += "<p>Everything held.";
    }
    page
}
