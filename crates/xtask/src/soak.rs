//! Long runs: property tests, fuzz targets among them, and explorations share a budget.
//!
//! A property test runs in rounds, each a process of its own with a new seed, under a limit of memory and of time, so that one
//! that hangs or takes all memory is a failure like any other. (`cargo test` has one fixed seed, by `.cargo/config.toml`, so that
//! it says the same twice.) A fuzz target is one right in a module named `fuzz`: its rounds have more inputs than its test.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// Address space of one round.
const MEMORY_KIB: u64 = 6 << 20;
/// A round should take about this long; its number of inputs is adjusted.
const ROUND: Duration = Duration::from_secs(10);
/// Inputs of a target's first round.
const CASES_FIRST: u64 = 64;
/// Most inputs of a round.
const CASES_MAX: u64 = 1 << 24;
/// A round that takes more processor time hangs.
const PATIENCE: Duration = Duration::from_secs(300);
/// A round that takes longer waits for something that will not come.
const PATIENCE_IDLE: Duration = Duration::from_secs(3600);
/// Executions of a harness of `prove schedule`: as many as the paper makes (FAST'16, section 6.2).
const EXECUTIONS: &str = "100000";
/// What `prove schedule` explores, and how.
const SCHEDULES: [(&str, &str); 9] = [
    ("lost-update", "exhaustive"),
    ("replication", "random"),
    ("replication", "pct"),
    ("extent-manager", "random"),
    ("extent-manager", "pct"),
    ("extent-manager-lossy", "random"),
    ("extent-manager-lossy", "pct"),
    ("pool", "random"),
    ("pool", "pct"),
];
/// Commands that judge a model and take minutes: exit code 0 or it has failed. They run once, whatever the budget.
const CHECKS: [&[&str]; 5] = [
    // Model against item-level simulation (FAST'16, section 4.6), beyond what tests have time for.
    &["plan", "estimate", "lsm", "--keys", "3300000", "--simulate"],
    &["plan", "estimate", "lsm", "--keys", "3300000", "--distribution", "zipf:0.99", "--simulate"],
    &["plan", "estimate", "lsm", "--keys", "10000000", "--simulate"],
    // A hundred thousand disks, as in the paper on scrubbing (FAST'10, section 5).
    &["plan", "estimate", "scrub", "--disks", "100000"],
    // Rare losses with a tight error.
    &["plan", "estimate", "loss", "--layout", "raid6:12", "--layout", "rs:10+4", "--error", "1"],
];
/// Subjects of `ashlar prove` that need nothing but time.
const EXPLORATIONS: [&str; 9] =
    ["pool", "files", "betr", "objects", "objects --engine proximal", "regions", "array", "proximal", "faults"];
/// Tests that do more when `ASHLAR_SOAK` is set than they have time for otherwise: package, binary, name (of all: nothing).
const LONG_TESTS: [(&str, &str, &str); 3] = [
    ("ashlar-regions", "counts", "aging"),
    // A hundred thousand flash drives of each model beside the field study (FAST'16).
    ("ashlar-estimate", "fleet", ""),
    // The whole table of best rates of scrubbing (FAST'10).
    ("ashlar-estimate", "scrub", ""),
];
/// Clock ticks of `/proc/PID/stat` in a second, on every machine that Linux runs on today.
const TICKS: u64 = 100;

/// A property test of a test binary.
struct Property {
    /// What cargo must be told to find it.
    arguments: String,
    binary: PathBuf,
    directory: PathBuf,
    test: String,
}

/// Something that runs for as long as it is given.
enum Task {
    /// A fuzz target, or another property test.
    Property(Property),
    /// `ashlar prove SUBJECT`.
    Exploration(&'static str),
    /// `ashlar prove schedule HARNESS --scheduler SCHEDULER`.
    Schedule(&'static str, &'static str),
    /// One of [`LONG_TESTS`].
    LongTest(&'static str, &'static str, &'static str),
    /// One of [`CHECKS`].
    Check(&'static [&'static str]),
}

impl Task {
    /// Whether it takes as long as it takes.
    fn runs_once(&self) -> bool {
        matches!(self, Task::LongTest(..) | Task::Check(_))
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Task::Property(Property { arguments, test, .. }) => write!(f, "{arguments} {test}"),
            Task::Exploration(subject) => write!(f, "prove {subject}"),
            Task::Schedule(harness, scheduler) => write!(f, "prove schedule {harness} {scheduler}"),
            Task::LongTest(package, binary, test) => f.write_str(format!("{package} {binary} {test}").trim_end()),
            Task::Check(arguments) => f.write_str(&arguments.join(" ")),
        }
    }
}

/// Runs everything whose name contains `only`, or lists it.
pub fn soak(budget: &str, only: Option<&str>, list: bool) -> Result<(), String> {
    let budget = ashlar_units::duration(budget).map_err(|error| error.to_string())?;
    // What begins so is no property test, and those take long to build.
    let program_only = only.is_some_and(|only| ["prove", "plan"].iter().any(|verb| only.starts_with(verb)));
    let mut tasks = if program_only { Vec::new() } else { properties()? };
    tasks.extend(SCHEDULES.map(|(harness, scheduler)| Task::Schedule(harness, scheduler)));
    tasks.extend(EXPLORATIONS.map(Task::Exploration));
    // Killing the program needs root and /dev/fuse.
    let own = std::fs::metadata("/proc/self").map_err(|error| error.to_string())?;
    if own.uid() == 0 && Path::new("/dev/fuse").exists() {
        tasks.push(Task::Exploration("daemon"));
    } else {
        eprintln!("xtask: leaving out prove daemon, which needs root and /dev/fuse");
    }
    // Last: they take as long as they take, and the others would have to do without that time.
    tasks.extend(CHECKS.map(Task::Check));
    tasks.extend(LONG_TESTS.map(|(package, binary, test)| Task::LongTest(package, binary, test)));
    tasks.retain(|task| only.is_none_or(|only| task.to_string().contains(only)));
    if tasks.is_empty() {
        return Err(format!("nothing is named {:?}; `cargo xtask soak --list` names all", only.unwrap_or_default()));
    }
    if list {
        tasks.iter().for_each(|task| println!("{task}"));
        return Ok(());
    }
    let needs_program = |task: &Task| !matches!(task, Task::Property(_) | Task::LongTest(..));
    let ashlar = if tasks.iter().any(needs_program) { Some(crate::ashlar()?) } else { None };
    let end = Instant::now() + budget;
    let mut failed = 0;
    for (index, task) in tasks.iter().enumerate() {
        // What one leaves over, those behind it share.
        let sharing = tasks[index..].iter().filter(|task| !task.runs_once()).count();
        let share = end.saturating_duration_since(Instant::now()) / sharing.max(1) as u32;
        let outcome = match (task, &ashlar) {
            (Task::Property(property), _) => property.run(Instant::now() + share),
            (Task::Exploration(subject), Some(ashlar)) => {
                explore(ashlar, &subject.split(' ').collect::<Vec<_>>(), share)
            }
            (Task::Schedule(harness, scheduler), Some(ashlar)) => {
                let trace = std::env::temp_dir().join(format!("ashlar-soak-{harness}-{scheduler}.trace.json"));
                let trace = trace.to_string_lossy();
                let how = ["--scheduler", scheduler, "--iterations", EXECUTIONS, "-o", &trace];
                explore(ashlar, &[&["schedule", harness], &how[..]].concat(), share)
            }
            (Task::LongTest(package, binary, test), _) => long_test(package, binary, test),
            (Task::Check(arguments), Some(ashlar)) => check(ashlar, arguments),
            (_, None) => Err("the program was not built".into()),
        };
        match outcome {
            Ok(done) => println!("{task}: {done}"),
            Err(what) => {
                failed += 1;
                println!("{task}: FAILED\n{what}");
            }
        }
    }
    if failed == 0 { Ok(()) } else { Err(format!("{failed} of {} failed", tasks.len())) }
}

/// All property tests of the workspace, built.
fn properties() -> Result<Vec<Task>, String> {
    let build = ["test", "--profile", "soak", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
    let built = Command::new("cargo").args(build).stderr(Stdio::inherit()).output();
    let built = built.map_err(|error| format!("cargo: {error}"))?;
    if !built.status.success() {
        return Err("the tests do not build".into());
    }
    let mut tasks = Vec::new();
    for line in String::from_utf8_lossy(&built.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        let (Some(binary), Some(manifest)) = (message["executable"].as_str(), message["manifest_path"].as_str()) else {
            continue;
        };
        if message["profile"]["test"] != true {
            continue;
        }
        let directory = Path::new(manifest).parent().unwrap_or(Path::new("."));
        let package = std::fs::read_to_string(manifest).map_err(|error| format!("{manifest}: {error}"))?;
        let package =
            package.lines().find_map(|line| line.strip_prefix("name = ")).unwrap_or_default().trim_matches('"');
        let target = &message["target"];
        let (sources, arguments) = match target["kind"][0].as_str() {
            Some("test") => {
                let name = target["name"].as_str().unwrap_or_default();
                (directory.join("tests"), format!("-p {package} --test {name}"))
            }
            Some("bin") => (directory.join("src"), format!("-p {package} --bins")),
            _ => (directory.join("src"), format!("-p {package} --lib")),
        };
        let mut names = BTreeSet::new();
        read_names(&sources, &mut names).map_err(|error| format!("{}: {error}", sources.display()))?;
        let listed = Command::new(binary).args(["--list", "--format", "terse"]).current_dir(directory).output();
        let listed = listed.map_err(|error| format!("{binary}: {error}"))?;
        for test in String::from_utf8_lossy(&listed.stdout).lines() {
            let Some(test) = test.strip_suffix(": test") else { continue };
            if is_target(test) || names.contains(test.rsplit("::").next().unwrap_or(test)) {
                let (arguments, test) = (arguments.clone(), test.to_string());
                tasks.push(Task::Property(Property {
                    arguments,
                    binary: binary.into(),
                    directory: directory.into(),
                    test,
                }));
            }
        }
    }
    Ok(tasks)
}

/// The names of all property tests in a directory of sources.
fn read_names(directory: &Path, names: &mut BTreeSet<String>) -> std::io::Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            read_names(&path, names)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(names_in(&std::fs::read_to_string(&path)?));
        }
    }
    Ok(())
}

/// The names of the functions in the blocks of `proptest!` of a source.
fn names_in(source: &str) -> Vec<String> {
    let (mut names, mut end) = (Vec::new(), None);
    for line in source.lines() {
        match &end {
            None if line.trim_start().starts_with("proptest! {") => {
                end = Some(format!("{}}}", &line[..line.len() - line.trim_start().len()]));
            }
            Some(last) if line == last => end = None,
            Some(_) => {
                let function = line.trim_start().strip_prefix("fn ").and_then(|rest| rest.split_once('('));
                names.extend(function.map(|(name, _)| name.to_string()));
            }
            None => {}
        }
    }
    names
}

/// Whether a test with this path is a fuzz target.
fn is_target(test: &str) -> bool {
    test.rsplit_once("::").is_some_and(|(module, _)| module == "fuzz" || module.ends_with("::fuzz"))
}

impl Property {
    /// Runs rounds until `end`, and one at least.
    fn run(&self, end: Instant) -> Result<String, String> {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let (mut seed, mut cases, mut all, mut rounds) = (time, CASES_FIRST, 0, 0);
        let has_own = !is_target(&self.test);
        loop {
            let began = Instant::now();
            // How many inputs a test has that is no fuzz target, it says itself.
            let outcome = self.round(seed, (!has_own).then_some(cases));
            let took = began.elapsed();
            outcome.map_err(|what| {
                let cases = if has_own { String::new() } else { format!(" PROPTEST_CASES={cases}") };
                let Property { arguments, test, .. } = self;
                format!(
                    "{what}\nseed {seed}; replay: PROPTEST_RNG_SEED={seed}{cases} cargo test --profile soak {arguments} -- \
                     --exact {test}"
                )
            })?;
            (seed, all, rounds) = (seed.wrapping_add(1), all + cases, rounds + 1);
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let done = if has_own { format!("{rounds} seeds") } else { format!("{all} inputs") };
                return Ok(format!("{done}, all is well"));
            }
            let per_second = cases as f64 / took.as_secs_f64().max(0.001);
            // Not more than eight times as many as before: the first rounds tell little.
            cases = ((per_second * left.min(ROUND).as_secs_f64()) as u64).clamp(1, CASES_MAX.min(cases * 8));
        }
    }

    /// One process; the error is what it printed last.
    fn round(&self, seed: u64, cases: Option<u64>) -> Result<(), String> {
        let Property { binary, directory, test, .. } = self;
        let script = format!("ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\"");
        let output = tempfile(test)?;
        let file = |error: std::io::Error| format!("{}: {error}", output.display());
        let log = std::fs::File::create(&output).map_err(file)?;
        let mut child = Command::new("sh");
        child.args(["-c", &script]).arg(binary).args(["--exact", test, "--nocapture"]);
        child.current_dir(directory).env("RUST_BACKTRACE", "0").env("PROPTEST_RNG_SEED", seed.to_string());
        match cases {
            Some(cases) => child.env("PROPTEST_CASES", cases.to_string()),
            None => child.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1"),
        };
        child.stdout(log.try_clone().map_err(file)?).stderr(log);
        let mut child = child.spawn().map_err(|error| format!("{}: {error}", binary.display()))?;
        let began = Instant::now();
        let status = loop {
            match child.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break Some(status),
                None if processor_time(child.id()) > PATIENCE || began.elapsed() > PATIENCE_IDLE => {
                    child.kill().and_then(|()| child.wait()).map_err(|error| error.to_string())?;
                    break None;
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let text = std::fs::read(&output).map_err(file)?;
        std::fs::remove_file(&output).map_err(file)?;
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("{}\n{status}", finding(&String::from_utf8_lossy(&text)))),
            None => Err(format!("it did not end within {} s of processor time", PATIENCE.as_secs())),
        }
    }
}

/// Runs a test with all that it can do, which takes as long as it takes.
fn long_test(package: &str, binary: &str, test: &str) -> Result<String, String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--profile", "soak", "-p", package, "--test", binary, test]).env("ASHLAR_SOAK", "1");
    let output = cargo.output().map_err(|error| format!("cargo: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match output.status.success() {
        true if text.contains("test result: ok. 0 passed") => Err(format!("there is no test {test} in {binary}")),
        true => Ok("all is well".into()),
        false => Err(format!(
            "{}\nreplay: ASHLAR_SOAK=1 cargo test --profile soak -p {package} --test {binary} {test}",
            finding(&text)
        )),
    }
}

/// Processor time that a process took so far.
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may hold anything: state is the third field, and the 14th and 15th are the ticks.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: u64 = fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * (1000 / TICKS))
}

fn tempfile(test: &str) -> Result<PathBuf, String> {
    let name = format!("ashlar-soak-{}-{}", std::process::id(), test.replace("::", "-"));
    Ok(std::env::temp_dir().join(name))
}

/// The last report in what a test printed: the smallest input that fails, if it got so far.
fn finding(text: &str) -> &str {
    const LEN_MAX: usize = 4000;
    let from = text.rfind("Test failed:").or_else(|| text.rfind("panicked at")).unwrap_or(0);
    let end = text[from..].char_indices().nth(LEN_MAX).map_or(text.len(), |(at, _)| from + at);
    text[from..end].trim_end()
}

fn explore(ashlar: &Path, subject: &[&str], share: Duration) -> Result<String, String> {
    let budget = format!("{}s", share.as_secs());
    let mut command = Command::new(ashlar);
    let ran = command.arg("prove").args(subject).args(["--budget", &budget]).stderr(Stdio::inherit()).output();
    let ran = ran.map_err(|error| format!("{}: {error}", ashlar.display()))?;
    let text = String::from_utf8_lossy(&ran.stdout).trim_end().replace('\n', ", ");
    if ran.status.success() { Ok(text) } else { Err(text) }
}

/// Runs a command with a ledger of its own.
fn check(ashlar: &Path, arguments: &[&str]) -> Result<String, String> {
    let ledger = std::env::temp_dir().join(format!("ashlar-soak-{}-ledger.jsonl", std::process::id()));
    let ran = Command::new(ashlar).args(arguments).env("ASHLAR_LEDGER", &ledger).output();
    let ran = ran.map_err(|error| format!("{}: {error}", ashlar.display()))?;
    let _ = std::fs::remove_file(&ledger);
    let text = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    if ran.status.success() { Ok("it holds".into()) } else { Err(text.into_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_counted() {
        let before = processor_time(std::process::id());
        let mut word = 1u64;
        while processor_time(std::process::id()) <= before {
            word = std::hint::black_box(word.wrapping_mul(3));
        }
    }

    #[test]
    fn targets_are_known_by_their_module() {
        assert!(is_target("fuzz::nodes") && is_target("deep::fuzz::nodes"));
        assert!(!is_target("nodes") && !is_target("fuzz::tests::nodes") && !is_target("no_fuzz::nodes"));
    }

    #[test]
    fn property_tests_are_found_in_their_sources() {
        let source = "fn a() {}\n    proptest! {\n        #[test]\n        fn b(x in 0..2) {\n        }\n\n        fn c(y in 0..2) {}\n    }\n    fn d() {}\n";
        assert_eq!(names_in(source), ["b", "c"]);
        let mut names = BTreeSet::new();
        read_names(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../index/src"), &mut names).expect("sources");
        assert!(names.contains("damage_takes_no_more_than_the_node"), "{names:?}");
    }

    #[test]
    fn the_smallest_failing_input_is_what_is_shown() {
        let text = "panicked at a\npanicked at b\nTest failed: why.\nminimal failing input: x = 1\n";
        assert_eq!(finding(text), "Test failed: why.\nminimal failing input: x = 1");
        assert_eq!(finding("memory allocation of 9 bytes failed"), "memory allocation of 9 bytes failed");
    }
}
