//! How good predictions are: on each system a vector is measured, then each workload is run there and predicted of the vector
//! (thesis, section 4.5).

use crate::bench::table::align;
use crate::bench::{catch_signals, check_interrupt, machine, median, quiet};
use ashlar_lab::partial::Partial;
use ashlar_lab::predict::compare::{Accuracy, Outcome, accuracy};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What to compare.
#[derive(clap::Args)]
pub struct Options {
    /// Systems. Default: all that this benchmark knows.
    #[arg(long, value_delimiter = ',')]
    systems: Vec<String>,
    /// Workloads. Default: all that this benchmark knows.
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<String>,
    /// Runs of each workload; the median counts.
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// Time for each vector; four times as long on emulated devices, where calls take so much longer.
    #[arg(long, default_value = "40s")]
    budget: String,
    /// Where images are made, best in memory.
    #[arg(long, default_value = "/dev/shm")]
    at: PathBuf,
    /// Traces, vectors and measurements are kept in this directory, and those that are in it already are not made again.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Further options for `ashlar lab predict`, separated by spaces, as in '--without sized-removes'.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    predict: String,
    /// One JSON document instead of the tables.
    #[arg(long)]
    json: bool,
}

/// What is measured and predicted.
#[derive(Clone, Copy)]
struct System {
    name: &'static str,
    /// Where `ashlar lab profile` and `lab run` make it: options, separated by spaces.
    place: &'static str,
    /// Memory that it has, for these and for `ashlar lab predict`.
    memory: Option<&'static str>,
}

const fn system(name: &'static str, place: &'static str) -> System {
    System { name, place, memory: None }
}

impl System {
    /// How much more time its vector takes.
    fn patience(&self) -> u32 {
        if self.place.contains("--device") { 4 } else { 1 }
    }
    /// As an option.
    fn memory(&self) -> String {
        self.memory.map_or(String::new(), |size| format!("--memory {size}"))
    }
}

const SYSTEMS: [System; 9] = [
    system("ext4", "--on ext4:1GiB"),
    system("ext4-journal", "--on ext4:1GiB --mount-options data=journal"),
    system("xfs", "--on xfs:1GiB"),
    system("btrfs", "--on btrfs:1GiB"),
    system("ashlar", "--on ashlar:1GiB"),
    System { memory: Some("128MiB"), ..system("ext4-small", "--on ext4:1GiB") },
    system("ext4-disk", "--on ext4:1GiB --device wd-re3"),
    system("xfs-disk", "--on xfs:1GiB --device wd-re3"),
    system("ext4-ssd", "--on ext4:1GiB --device ssd-tlc"),
];

/// A name, and options of `ashlar lab workloads`. What syncs is made smaller than its defaults: a disk takes its time.
const WORKLOADS: [(&str, &str); 6] = [
    ("postmark", ""),
    ("varmail", "--set files=2000 --set threads=16 --set loops=50"),
    ("webserver", "--set files=4000 --set threads=8 --set loops=100"),
    ("smallfile", ""),
    ("mailsync", "--set messages=250"),
    ("build", ""),
];

/// Bounds of the mean error, of that of PostMark, and of the pairs that differ by more than 10 % and are ranked right.
const BARS: (f64, f64, f64) = (0.15, 0.20, 0.96);

struct Run {
    outcome: Outcome,
    /// Least and most of what was measured, seconds.
    range: (f64, f64),
}

struct Bench<'a> {
    ashlar: PathBuf,
    directory: PathBuf,
    options: &'a Options,
}

/// `cargo xtask bench prediction`.
pub fn prediction(options: &Options) -> Result<(), String> {
    catch_signals()?;
    let systems = chosen(&SYSTEMS, |system| system.name, &options.systems, "system")?;
    let workloads = chosen(&WORKLOADS, |workload| workload.0, &options.workloads, "workload")?;
    let ashlar = crate::ashlar()?;
    let own = options.at.join(format!("ashlar-prediction-{}", std::process::id()));
    let directory = options.keep.clone().unwrap_or_else(|| own.clone());
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let bench = Bench { ashlar, directory, options };
    let facts = machine::facts(Some(&options.at));
    let runs = bench.all(&systems, &workloads);
    if options.keep.is_none() {
        fs::remove_dir_all(&own).map_err(|error| format!("{}: {error}", own.display()))?;
    }
    show(options, &facts, &runs?);
    Ok(())
}

fn chosen<T: Copy>(all: &[T], name_of: fn(&T) -> &'static str, names: &[String], what: &str) -> Result<Vec<T>, String> {
    if names.is_empty() {
        return Ok(all.to_vec());
    }
    let one = |name: &String| {
        let known = || all.iter().map(name_of).collect::<Vec<_>>().join(", ");
        let found = all.iter().find(|known| name_of(known) == name).copied();
        found.ok_or_else(|| format!("{name} is no {what} of this benchmark; there are {}", known()))
    };
    names.iter().map(one).collect()
}

impl Bench<'_> {
    fn all(&self, systems: &[System], workloads: &[(&str, &str)]) -> Result<Vec<Run>, String> {
        let mut runs = Vec::new();
        let budget = ashlar_units::duration(&self.options.budget).map_err(|error| error.to_string())?;
        for (workload, options) in workloads {
            self.make(&format!("{workload}.parquet"), &["lab", "workloads", workload], options)?;
        }
        for system in systems {
            let name = system.name;
            eprintln!("{name}");
            let budget = format!("{}s", (budget * system.patience()).as_secs());
            let profile = ["lab", "profile", "--name", name, "--budget", &budget];
            let vector = self.make(&format!("{name}.vector"), &profile, &self.place(system))?;
            for (workload, _) in workloads {
                runs.push(self.run(workload, system, &vector)?);
            }
        }
        Ok(runs)
    }

    fn place(&self, system: &System) -> String {
        format!("{} {} --scratch {}", system.place, system.memory(), self.options.at.display())
    }

    fn command(&self, arguments: &[&str], options: &str) -> Command {
        let mut command = Command::new(&self.ashlar);
        command.args(arguments).args(options.split_whitespace());
        command
    }

    /// Makes a file, unless it is there.
    fn make(&self, name: &str, arguments: &[&str], options: &str) -> Result<PathBuf, String> {
        check_interrupt()?;
        let file = self.directory.join(name);
        if !file.exists() {
            quiet(self.command(arguments, options).arg("-o").arg(&file))?;
        }
        Ok(file)
    }

    /// Runs a workload, unless its results are there, and predicts it.
    fn run(&self, workload: &str, system: &System, vector: &Path) -> Result<Run, String> {
        check_interrupt()?;
        let file = |ending: &str| self.directory.join(format!("{workload}{ending}"));
        let (trace, setup) = (file(".parquet"), file(".setup.parquet"));
        let with_setup = |mut command: Command| {
            if setup.exists() {
                command.arg("--setup").arg(&setup);
            }
            command.args(["--no-ledger", "--json"]);
            command
        };
        let kept = file(&format!(".{}.json", system.name));
        if !kept.exists() {
            let repeats = self.options.repeats.to_string();
            let mut run = with_setup(self.command(&["lab", "run", "--repeats", &repeats], &self.place(system)));
            let said = document(run.arg(&trace).arg("-o").arg(file(&format!(".{}.parquet", system.name))))?;
            Partial::write(&kept, said.to_string().as_bytes())
                .map_err(|error| format!("{}: {error}", kept.display()))?;
        }
        let text = fs::read_to_string(&kept).map_err(|error| format!("{}: {error}", kept.display()))?;
        let said: Value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", kept.display()))?;
        let times = said["runs"].as_array().into_iter().flatten().filter_map(|run| run["total_s"].as_f64());
        let times: Vec<f64> = times.collect();
        if times.is_empty() || said["failed_here"] != 0 {
            return Err(format!("{}: calls failed, or there are no times", kept.display()));
        }
        let range = (times.iter().copied().fold(f64::MAX, f64::min), times.iter().copied().fold(0.0, f64::max));

        let options = format!("{} {}", system.memory(), self.options.predict);
        let mut predict = with_setup(self.command(&["lab", "predict"], &options));
        let said = document(predict.arg(&trace).arg(vector))?;
        let predicted = said["predictions"][0]["elapsed_seconds"].as_f64();
        let predicted = predicted.ok_or("`ashlar lab predict` does not say how long it takes")?;
        let (workload, system) = (workload.into(), system.name.into());
        Ok(Run { outcome: Outcome { workload, system, measured: median(&times), predicted }, range })
    }
}

/// What a command says with `--json`.
fn document(command: &mut Command) -> Result<Value, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("ashlar: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("{command:?}: {}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_str(&said).map_err(|error| format!("{command:?}: {error}"))
}

fn show(options: &Options, facts: &Value, runs: &[Run]) {
    let outcomes: Vec<Outcome> = runs.iter().map(|run| run.outcome.clone()).collect();
    let accuracy = accuracy(&outcomes);
    if options.json {
        println!("{}", json!({ "machine": facts, "outcomes": outcomes, "accuracy": accuracy }));
        return;
    }
    let mut lines =
        vec![["workload", "system", "measured, s", "range", "modelled, s", "error"].map(String::from).to_vec()];
    for Run { outcome, range: (low, high) } in runs {
        lines.push(vec![
            outcome.workload.clone(),
            outcome.system.clone(),
            format!("{:.3}", outcome.measured),
            format!("{low:.3} to {high:.3}"),
            format!("{:.3}", outcome.predicted),
            format!("{:+.0} %", outcome.error() * 100.0),
        ]);
    }
    println!("{}\n\n{}", machine::heading(facts), align(&lines));
    accuracy.iter().for_each(|accuracy| println!("{}", told(accuracy)));
}

fn told(accuracy: &Accuracy) -> String {
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    let ranks = &accuracy.ranks_beyond_10;
    let right = ranks.right as f64 / ranks.pairs.max(1) as f64;
    let mut lines = vec![["what", "is", "bar", "reached"].map(String::from).to_vec()];
    let mut line = |what: &str, is: String, bar: f64, reached: bool| {
        lines.push(vec![what.into(), is, percent(bar), if reached { "yes" } else { "NO" }.into()]);
    };
    line("mean error", percent(accuracy.mean_error), BARS.0, accuracy.mean_error <= BARS.0);
    if let Some(error) = accuracy.by_workload.get("postmark") {
        line("mean error of postmark", percent(*error), BARS.1, *error <= BARS.1);
    }
    let pairs = format!("{} ({} of {})", percent(right), ranks.right, ranks.pairs);
    line("pairs that differ by more than 10 %, ranked right", pairs, BARS.2, right >= BARS.2);
    let by = |groups: &std::collections::BTreeMap<String, f64>| {
        groups.iter().map(|(name, error)| format!("{name} {}", percent(*error))).collect::<Vec<_>>().join(", ")
    };
    let wrong: Vec<_> = ranks.wrong.iter().map(|(what, one, other)| format!("{what}: {one}, {other}")).collect();
    format!(
        "{}\nmean error by workload: {}\nby system: {}\nranked wrong: {}",
        align(&lines),
        by(&accuracy.by_workload),
        by(&accuracy.by_system),
        if wrong.is_empty() { "none".into() } else { wrong.join("; ") },
    )
}
