//! `ashlar lab tune`.

use super::arguments::TuneArguments;
use super::run::{What, job};
use super::{about, failed};
use crate::device::find;
use crate::output::{Failure, Output};
use crate::signals::on_signal;
use ashlar_lab::age::clock::Writeback;
use ashlar_lab::age::image::Image;
use ashlar_lab::age::scale::Scale;
use ashlar_lab::age::state::State;
use ashlar_lab::age::{AgeError, AgeOptions, Directory, WhenFull, age};
use ashlar_lab::history::HistoryReader;
use ashlar_lab::run::{BenchError, BenchOptions, Job, Pace, PlayOptions};
use ashlar_lab::stand::{Place, Stand, StandOptions};
use ashlar_lab::tune::{Best, Budget, Options, Sample, Scored, Shown, best, names, page, proportionality, search};
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What was measured, and what is best.
#[derive(Serialize, JsonSchema)]
struct Tuned {
    /// The workload with what was set, or the trace.
    workload: String,
    /// Images: size, device, and history.
    on: String,
    /// How rates came about: measured, or emulated on an emulated device.
    kind: ashlar_ledger::Kind,
    /// All options that were measured, those of a file system together, its defaults first.
    measured: Vec<Scored>,
    /// Options that could not be used, and why.
    unusable: Vec<String>,
    /// Options for which there was no time; the search may have ended before it put together what helped.
    not_measured: Vec<String>,
    /// How far calls per joule go with calls per second, as a coefficient of correlation; joules are modelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    proportionality: Option<f64>,
    /// The best for those who want at least a class of durability, the safest first.
    best: Vec<Best>,
}

impl fmt::Display for Tuned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\non {}, {}; joules modelled", self.workload, self.on, self.kind)?;
        writeln!(f, "{:<7}{:<32}{:<22}{:>9}  {:<24}joules", "", "options", "after a crash", "gain", "calls/s")?;
        for Scored { file_system, options, class, rate, modelled_j, distinguishable, gain, .. } in &self.measured {
            // What cannot be told from the defaults is marked as the paper's tables have it.
            let gain = match (options.is_empty(), distinguishable) {
                (true, _) => String::new(),
                (_, true) => format!("{:+.0} %", 100.0 * (gain - 1.0)),
                (_, false) => "–".into(),
            };
            let (options, class) = (names(options), class.to_string());
            writeln!(f, "{file_system:<7}{options:<32}{class:<22}{gain:>9}  {:<24}{modelled_j}", rate.to_string())?;
        }
        self.unusable.iter().try_for_each(|what| writeln!(f, "not usable: {what}"))?;
        if !self.not_measured.is_empty() {
            writeln!(f, "not measured, for want of time: {}", self.not_measured.join("; "))?;
        }
        if let Some(found) = self.proportionality {
            writeln!(f, "calls per joule go with calls per second: correlation {found:.3}")?;
        }
        self.best.iter().try_for_each(|best| writeln!(f, "{best}"))?;
        Ok(())
    }
}

struct Tuner<'a> {
    arguments: &'a TuneArguments,
    job: Job,
    stop: &'a AtomicBool,
    scratch: PathBuf,
    program: PathBuf,
    bar: ProgressBar,
    budget: Budget,
    unusable: Vec<String>,
    not_measured: Vec<String>,
}

/// `ashlar lab tune`.
pub fn run(arguments: &TuneArguments, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Tuned>() {
        return Ok(code);
    }
    let stop = on_signal()?;
    let found = arguments.device.as_deref().map(find).transpose();
    found.map_err(|failure| failure.with_code(2))?;
    let what = What {
        what: &arguments.workload,
        settings: &arguments.settings,
        max_bytes: arguments.max_bytes,
        setup: None,
        from: None,
        prefill: true,
    };
    let mut notes = Vec::new();
    let (job, workload) = job(&what, &mut notes)?;
    notes.iter().for_each(|note| output.say(note));
    let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
    let style = ProgressStyle::with_template("{spinner} {pos} runs, {elapsed}: {msg}");
    let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(Duration::from_millis(200));
    let scratch = arguments.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let program = std::env::current_exe().map_err(failed)?;
    let budget = Budget::new(Instant::now(), arguments.budget);
    let (unusable, not_measured) = (Vec::new(), Vec::new());
    let mut tuner = Tuner { arguments, job, stop: &stop, scratch, program, bar, budget, unusable, not_measured };
    let mut measured = Vec::new();
    for (at, kind) in arguments.fs.iter().enumerate() {
        tuner.budget.begin(Instant::now(), arguments.fs.len() - at);
        measured.extend(search(*kind, &mut |options| tuner.measure(options))?);
    }
    tuner.bar.finish_and_clear();
    let Tuner { unusable, not_measured, .. } = tuner;
    if measured.is_empty() {
        return Err(match stop.load(Ordering::Acquire) {
            true => Failure::new("stopped before anything was measured; nothing was left mounted"),
            false => failed(format!("nothing could be measured: {}", unusable.join("; "))),
        });
    }
    let mut on = format!("images of {}", arguments.size);
    arguments.device.iter().for_each(|device| on += &format!(" on {device}"));
    arguments.history.iter().for_each(|history| on += &format!(", aged by {}", history.display()));
    let kind = match arguments.device {
        Some(_) => ashlar_ledger::Kind::Emulated,
        None => ashlar_ledger::Kind::Measured,
    };
    let (best, proportionality) = (best(&measured), proportionality(&measured));
    if let Some(file) = &arguments.report {
        let missing = |why: &str, what: &[String]| what.iter().map(|what| format!("{why}: {what}")).collect();
        let missing: [Vec<String>; 2] = [missing("Not usable", &unusable), missing("Not measured", &not_measured)];
        let emulated = arguments.device.is_some();
        let (measured, best, missing) = (&measured, &best, &missing.concat());
        let html = page(&Shown { workload: &workload, on: &on, emulated, measured, best, proportionality, missing });
        std::fs::write(file, html).map_err(|error| about(file, error))?;
    }
    output.print(&Tuned { workload, on, kind, measured, unusable, not_measured, proportionality, best });
    // What was measured before Ctrl-C is worth something, but is not all.
    Ok(ExitCode::from(u8::from(stop.load(Ordering::Acquire))))
}

impl Tuner<'_> {
    /// Measures options, if there is time; `None` where not, or where they cannot be used.
    fn measure(&mut self, options: &Options) -> Result<Option<Vec<Sample>>, Failure> {
        let name = format!("{} {}", options.kind.name(), names(&options.names()));
        let began = Instant::now();
        if self.stop.load(Ordering::Acquire) || !self.budget.fits(began) {
            self.not_measured.push(name);
            return Ok(None);
        }
        self.bar.set_message(name.clone());
        let samples = self.samples(options, &name)?;
        self.budget.took(began.elapsed());
        if samples.is_none() && self.stop.load(Ordering::Acquire) {
            self.not_measured.push(name);
        }
        Ok(samples)
    }

    /// Measures options; `None` where they cannot be used, or somebody stopped it.
    fn samples(&mut self, options: &Options, name: &str) -> Result<Option<Vec<Sample>>, Failure> {
        let aged = match &self.arguments.history {
            None => None,
            Some(history) => match self.aged(options, history)? {
                Ok(Some(image)) => Some(image),
                Ok(None) => return Ok(None),
                Err(error) => {
                    self.unusable.push(format!("{name}: {error}"));
                    return Ok(None);
                }
            },
        };
        let place = match &aged {
            Some(image) => Place::Path(image.clone()),
            None => Place::Fresh(options.kind, self.arguments.size),
        };
        let given = StandOptions::new(place, self.program.clone());
        let (mkfs, mount) = (options.mkfs(), options.mount());
        let stand = StandOptions {
            device: self.arguments.device.clone(),
            mkfs_options: (!mkfs.is_empty() && aged.is_none()).then_some(mkfs),
            mount_options: Some(mount),
            scratch: self.scratch.clone(),
            seed: self.arguments.settings.seed,
            ..given
        };
        let result = self.on(&stand, name);
        if let Some(image) = aged {
            std::fs::remove_file(&image).map_err(|error| about(&image, error))?;
        }
        result
    }

    fn on(&mut self, options: &StandOptions, name: &str) -> Result<Option<Vec<Sample>>, Failure> {
        let mut stand = match Stand::open(options) {
            Ok(stand) => stand,
            Err(error) => {
                self.unusable.push(format!("{name}: {error}"));
                return Ok(None);
            }
        };
        let bench = BenchOptions {
            play: PlayOptions { pace: Pace::Closed, sync: !self.arguments.no_sync, seed: self.arguments.settings.seed },
            warm: false,
            repeats: self.arguments.repeats,
            memory: None,
        };
        let done = self.job.bench(&mut stand, &bench, self.stop, |_, _| self.bar.inc(1));
        let away = stand.put_away();
        let runs = match done {
            Ok(runs) => runs,
            Err(BenchError::Stopped) => {
                away.map_err(failed)?;
                return Ok(None);
            }
            Err(error) => {
                away.map_err(failed)?;
                self.unusable.push(format!("{name}: {error}"));
                return Ok(None);
            }
        };
        away.map_err(failed)?;
        let lost: u64 = runs.iter().map(|run| run.summary.failed_here.count).sum();
        if lost > 0 {
            // Calls that fail are fast, and no merit.
            self.unusable.push(format!("{name}: {lost} calls failed"));
            return Ok(None);
        }
        let sample = runs.iter().map(|run| Sample {
            rate: run.summary.calls_per_s,
            modelled_j: run.modelled_j,
            calls_per_j: run.summary.calls as f64 / run.modelled_j.max(1e-9),
        });
        Ok(Some(sample.collect()))
    }

    /// An image with these options that was aged, unless somebody stopped it; the inner error is that of the file system.
    fn aged(&self, options: &Options, history: &Path) -> Result<Result<Option<PathBuf>, String>, Failure> {
        let home = self.scratch.join(format!("ashlar-tune-{}", std::process::id()));
        let (path, point) = (home.with_extension("img"), home.with_extension("mnt"));
        let image = Image::new(options.kind, &path, &point);
        let mkfs = options.mkfs();
        let made = image
            .make(self.arguments.size, self.arguments.settings.seed, Some(&mkfs), true)
            .and_then(|()| image.mount(Some(&options.mount())));
        if let Err(error) = made {
            let _ = std::fs::remove_file(&path);
            return Ok(Err(error.to_string()));
        }
        let worked = self.age(&point.join("aged"), history);
        let away = image.put_away().map_err(|error| about(&point, error));
        match worked.and_then(|whole| away.map(|()| whole)) {
            Ok(true) => Ok(Ok(Some(path))),
            Ok(false) => {
                std::fs::remove_file(&path).map_err(|error| about(&path, error))?;
                Ok(Ok(None))
            }
            Err(failure) => {
                let _ = std::fs::remove_file(&path);
                Err(failure)
            }
        }
    }

    /// Applies the history; false if somebody stopped it.
    fn age(&self, home: &Path, history: &Path) -> Result<bool, Failure> {
        std::fs::create_dir(home).map_err(|error| about(home, error))?;
        let open = || {
            let file = File::open(history).map_err(|error| about(history, error))?;
            HistoryReader::new(BufReader::new(file)).map_err(|error| about(history, error))
        };
        let closing = open()?.closing().map_err(|error| about(history, error))?;
        let capacity = self.arguments.size.0 as f64;
        let scale = match self.arguments.to {
            None => Scale::ONE,
            Some(share) => Scale::to(closing.live_bytes, (capacity * share) as u64)
                .ok_or_else(|| about(history, "it ends with no files, so --to cannot be reached"))?,
        };
        let seed = self.arguments.settings.seed;
        let options = AgeOptions { scale, writeback: Writeback::LINUX, when_full: WhenFull::Skip, seed };
        let mut subject = Directory::new(home, seed).map_err(|error| about(home, error))?;
        let mut state = State::nowhere();
        match age(&mut open()?, closing.records, &mut subject, &options, &mut state, self.stop, &|_| {}) {
            Ok(_) => Ok(true),
            Err(AgeError::Stopped(_)) => Ok(false),
            Err(error) => Err(about(history, error)),
        }
    }
}
