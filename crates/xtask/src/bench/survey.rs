//! `ashlar survey` on real sets: whether its ranges hold the truth, how wide they are, and what they cost; and how fast a
//! full scan is beside backup programs that read the same set, and beside BLAKE3 and chunking alone, of the same files in the page
//! cache and of the same bytes in memory.

use crate::bench::table::align;
use crate::bench::{catch_signals, check_interrupt, find_program, machine, median, quiet, said};
use ashlar_survey::chunk::cdc::{Cutter, Params};
use ashlar_survey::chunk::{Chunking, gear};
use serde_json::{Value, json};
use std::fs;
use std::hint::black_box;
use std::io::Read;
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// What to measure.
#[derive(clap::Args)]
pub struct Options {
    /// A set: a directory or an image. Can be given several times. Default: /usr, and the registry of cargo.
    #[arg(long = "set", value_name = "PATH")]
    sets: Vec<PathBuf>,
    /// Seeds for each set; 0 measures no ranges.
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// Share that is read.
    #[arg(long, default_value = "5%")]
    budget: String,
    /// Chunkings, as `ashlar survey` takes them. Default: its own.
    #[arg(long)]
    chunking: Option<String>,
    /// Further options for `ashlar survey`, separated by spaces, as in '--mode base'.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    options: String,
    /// Measure also the cost of a sample on a cold cache, and rates beside kopia and restic where they are installed. Needs
    /// root.
    #[arg(long)]
    rates: bool,
    /// Rates are medians of so many runs.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// What the full scan looks for that is compared with other programs and with BLAKE3 alone.
    #[arg(long, default_value = "fixed:4KiB")]
    rate_chunking: Chunking,
    /// One JSON document instead of the table.
    #[arg(long)]
    json: bool,
}

/// Truth and ranges of one chunking of a set.
struct Ranges {
    set: String,
    what: String,
    truth: f64,
    found: Vec<(f64, f64)>,
}

impl Ranges {
    fn inside(&self) -> usize {
        self.found.iter().filter(|(low, high)| (*low..=*high).contains(&self.truth)).count()
    }
    fn width(&self) -> f64 {
        median(&self.found.iter().map(|(low, high)| high - low).collect::<Vec<_>>())
    }
}

/// Rates of one set, in seconds: medians.
struct Rates {
    set: String,
    logical: u64,
    /// All chunkings: everything, and a sample.
    full_cold_s: f64,
    sample_cold_s: f64,
    /// One chunking, without and with everything in the page cache.
    one_cold_s: f64,
    one_warm_s: f64,
    /// BLAKE3 and chunking of the same files in the page cache, by as many threads as there are processors.
    files_s: f64,
    /// The same of as many bytes in memory.
    ceiling_s: f64,
    memory: u64,
    others: Vec<(String, f64)>,
}

/// Bytes of a set that are held in memory for the ceiling.
const HELD: u64 = 1 << 30;
/// Bytes of a file that one processor hashes at a time, so that all have work where a set has few files.
const PART: u64 = 16 << 20;

struct Bench<'a> {
    ashlar: PathBuf,
    options: &'a Options,
}

/// `cargo xtask bench survey`.
pub fn survey(options: &Options) -> Result<(), String> {
    catch_signals()?;
    let bench = Bench { ashlar: crate::ashlar()?, options };
    let facts = machine::facts(None);
    let mut sets = options.sets.clone();
    if sets.is_empty() {
        sets.push("/usr".into());
        let home = std::env::var_os("CARGO_HOME").map_or_else(|| home(".cargo"), PathBuf::from);
        sets.extend(Some(home.join("registry")).filter(|path| path.is_dir()));
    }
    let (mut ranges, mut rates) = (Vec::new(), Vec::new());
    for set in &sets {
        if options.seeds > 0 {
            ranges.extend(bench.ranges(set)?);
        }
        if options.rates {
            rates.push(bench.rates(set)?);
        }
    }
    if options.json {
        let document = json!({
            "machine": facts,
            "ranges": ranges.iter().map(ranges_json).collect::<Vec<_>>(),
            "rates": rates.iter().map(rates_json).collect::<Vec<_>>(),
        });
        println!("{}", serde_json::to_string_pretty(&document).unwrap_or_default());
    } else {
        println!(
            "{}\n\n{}\n{}",
            machine::heading(&facts),
            ranges_table(&ranges, options),
            rates_table(&rates, options)
        );
    }
    Ok(())
}

fn home(name: &str) -> PathBuf {
    std::env::var_os("HOME").map_or_else(PathBuf::new, PathBuf::from).join(name)
}

impl Bench<'_> {
    fn run(&self, set: &Path, arguments: &[&str]) -> Result<Value, String> {
        check_interrupt()?;
        let mut command = Command::new(&self.ashlar);
        command.arg("survey").arg(set).args(["--json", "--no-ledger"]).args(arguments);
        command.args(self.options.options.split_whitespace());
        if let Some(chunking) = &self.options.chunking {
            command.args(["--chunking", chunking]);
        }
        let output = command.output().map_err(|error| format!("{}: {error}", self.ashlar.display()))?;
        // Exit code 1: something could not be read. The answer is there all the same.
        if output.status.code().is_none_or(|code| code > 1) {
            return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stdout)));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("{command:?}: {error}"))
    }

    fn full(&self, set: &Path, chunking: Option<&str>) -> Result<Value, String> {
        let mut command = Command::new(&self.ashlar);
        command.arg("survey").arg(set).args(["--json", "--no-ledger", "--full", "--impolite"]);
        if let Some(chunking) = chunking {
            command.args(["--chunking", chunking]);
        }
        let output = command.output().map_err(|error| format!("{}: {error}", self.ashlar.display()))?;
        serde_json::from_slice(&output.stdout).map_err(|error| format!("{command:?}: {error}"))
    }

    fn ranges(&self, set: &Path) -> Result<Vec<Ranges>, String> {
        eprintln!("{}: full scan", set.display());
        let full = self.full(set, self.options.chunking.as_deref())?;
        let mut all: Vec<Ranges> = Vec::new();
        for dedup in full["dedup"].as_array().into_iter().flatten() {
            let what = dedup["chunking"].as_str().unwrap_or_default().to_string();
            let truth = dedup["ratio"]["value"].as_f64().ok_or("the full scan has no value")?;
            all.push(Ranges { set: set.display().to_string(), what, truth, found: Vec::new() });
        }
        for seed in 1..=self.options.seeds {
            eprintln!("{}: seed {seed} of {}", set.display(), self.options.seeds);
            let sample = self.run(set, &["--budget", &self.options.budget, "--seed", &seed.to_string()])?;
            let dedups = sample["dedup"].as_array().into_iter().flatten();
            let found = dedups.map(|dedup| &dedup["ratio"]);
            for (ranges, found) in all.iter_mut().zip(found) {
                let bound = |name: &str| found[name].as_f64().or(found["value"].as_f64()).unwrap_or(f64::NAN);
                ranges.found.push((bound("low"), bound("high")));
            }
        }
        Ok(all)
    }

    fn rates(&self, set: &Path) -> Result<Rates, String> {
        let one = self.options.rate_chunking.to_string();
        let all = self.options.chunking.as_deref();
        let sample = || self.run(set, &["--budget", &self.options.budget, "--seed", "1", "--impolite"]);
        let others: Vec<&str> = ["restic", "kopia"].into_iter().filter(|name| find_program(name).is_some()).collect();
        let held = Held::read(set, self.options.rate_chunking)?;
        let mut seconds = vec![Vec::new(); 6 + others.len()];
        let (mut logical, mut memory) = (0, 0);
        for run in 1..=self.options.runs {
            eprintln!("{}: rates, run {run} of {}", set.display(), self.options.runs);
            let mut found = vec![cold(sample)?.0, cold(|| self.full(set, all))?.0];
            let (one_cold_s, answer) = cold(|| self.full(set, Some(&one)))?;
            // Some may have left the cache, and whoever reads pages for the second time makes the kernel note that they are in use.
            held.seconds_of_files()?;
            let (one_warm_s, _) = timed(|| self.full(set, Some(&one)))?;
            found.extend([one_cold_s, one_warm_s, held.seconds_of_files()?, held.seconds()]);
            for name in &others {
                drop_caches()?;
                found.push(backup(name, set)?);
            }
            seconds.iter_mut().zip(found).for_each(|(all, found)| all.push(found));
            logical = answer["logical_bytes"].as_u64().unwrap_or(0);
            memory = answer["memory_peak_bytes"].as_u64().unwrap_or(0).max(memory);
        }
        let medians: Vec<f64> = seconds.iter().map(|all| median(all)).collect();
        Ok(Rates {
            set: set.display().to_string(),
            logical,
            sample_cold_s: medians[0],
            full_cold_s: medians[1],
            one_cold_s: medians[2],
            one_warm_s: medians[3],
            files_s: medians[4] * logical as f64 / held.bytes() as f64,
            ceiling_s: medians[5] * logical as f64 / held.bytes() as f64,
            memory,
            others: others.iter().map(|name| name.to_string()).zip(medians[6..].iter().copied()).collect(),
        })
    }
}

fn drop_caches() -> Result<(), String> {
    quiet(&mut Command::new("sync"))?;
    fs::write("/proc/sys/vm/drop_caches", "3").map_err(|error| format!("/proc/sys/vm/drop_caches: {error}"))
}

/// Does it, and says how many seconds it took.
fn timed<T>(work: impl Fn() -> Result<T, String>) -> Result<(f64, T), String> {
    check_interrupt()?;
    let began = Instant::now();
    let answer = work()?;
    Ok((began.elapsed().as_secs_f64(), answer))
}

/// The same with nothing in the page cache.
fn cold<T>(work: impl Fn() -> Result<T, String>) -> Result<(f64, T), String> {
    drop_caches()?;
    timed(work)
}

/// Content of a set in memory.
struct Held {
    parts: Vec<Part>,
    chunking: Chunking,
}

/// A part of a file.
struct Part {
    path: PathBuf,
    at: u64,
    bytes: Vec<u8>,
}

impl Held {
    /// The first so many bytes of a set.
    fn read(set: &Path, chunking: Chunking) -> Result<Held, String> {
        let (mut parts, mut room) = (Vec::new(), HELD);
        let mut ahead = vec![set.to_path_buf()];
        while let Some(path) = ahead.pop().filter(|_| room > 0) {
            let fail = |error| format!("{}: {error}", path.display());
            let kind = fs::symlink_metadata(&path).map_err(fail)?;
            if kind.is_dir() {
                for entry in fs::read_dir(&path).map_err(fail)? {
                    ahead.push(entry.map_err(fail)?.path());
                }
            } else if !kind.is_symlink() {
                let file = fs::File::open(&path).map_err(fail)?;
                let mut at = 0;
                while room > 0 {
                    let mut bytes = Vec::new();
                    (&file).take(room.min(PART)).read_to_end(&mut bytes).map_err(fail)?;
                    let len = bytes.len() as u64;
                    parts.push(Part { path: path.clone(), at, bytes });
                    (at, room) = (at + len, room - len);
                    if len < PART {
                        break;
                    }
                }
            }
        }
        Ok(Held { parts, chunking })
    }

    fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes.len() as u64).sum()
    }

    /// Seconds for cutting and hashing all of it, by all processors.
    fn seconds(&self) -> f64 {
        self.by_all(|part, _| {
            self.hash(&part.bytes);
            Ok(())
        })
        .expect("nothing is read")
    }

    /// The same of the files, which are opened and read for it.
    fn seconds_of_files(&self) -> Result<f64, String> {
        self.by_all(|part, buffer| {
            buffer.resize(buffer.len().max(part.bytes.len()), 0);
            let bytes = &mut buffer[..part.bytes.len()];
            let read = fs::File::open(&part.path).and_then(|file| file.read_exact_at(bytes, part.at));
            read.map_err(|error| format!("{}: {error}", part.path.display()))?;
            self.hash(bytes);
            Ok(())
        })
    }

    /// Seconds that it takes all processors to do something with each part. Each of them has a buffer.
    fn by_all(&self, each: impl Fn(&Part, &mut Vec<u8>) -> Result<(), String> + Sync) -> Result<f64, String> {
        let next = AtomicUsize::new(0);
        let work = || -> Result<(), String> {
            let mut buffer = Vec::new();
            while let Some(part) = self.parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                each(part, &mut buffer)?;
            }
            Ok(())
        };
        let began = Instant::now();
        std::thread::scope(|scope| {
            let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
            let threads: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked".to_string())?)
        })?;
        Ok(began.elapsed().as_secs_f64())
    }

    fn hash(&self, part: &[u8]) {
        match self.chunking {
            Chunking::Fixed(bytes) => part.chunks(bytes as usize).for_each(hash),
            Chunking::Cdc(mean) => {
                let (mut cutter, mut chunks, mut ahead) = (Cutter::new(Params::fast(mean)), part, part);
                while !ahead.is_empty() {
                    let (piece, level) = gear::first_piece(ahead);
                    ahead = &ahead[piece..];
                    cutter.push(piece as u32, level, |len, _| {
                        let (chunk, rest) = chunks.split_at(len as usize);
                        hash(chunk);
                        chunks = rest;
                    });
                }
                hash(chunks);
            }
        }
    }
}

fn hash(chunk: &[u8]) {
    black_box(blake3::hash(chunk));
}

/// Seconds that a backup of a set takes, to a new repository on the same disk.
fn backup(program: &str, set: &Path) -> Result<f64, String> {
    let place = PathBuf::from(format!("/var/tmp/ashlar-bench-survey-{}", std::process::id()));
    fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    let measured = backup_into(program, set, &place);
    fs::remove_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    measured
}

fn backup_into(program: &str, set: &Path, place: &Path) -> Result<f64, String> {
    let repository = place.join("repository");
    let command = |arguments: &[&str]| {
        let mut command = Command::new(program);
        command.env("RESTIC_PASSWORD", "bench").env("RESTIC_REPOSITORY", &repository).env("KOPIA_PASSWORD", "bench");
        command.env("KOPIA_CONFIG_PATH", place.join("config")).env("KOPIA_CHECK_FOR_UPDATES", "false");
        command
            .args(["--cache-dir"].iter().filter(|_| program == "restic"))
            .args(Some(place.join("cache")).filter(|_| program == "restic"));
        command.args(arguments);
        command
    };
    let (make, path) = (repository.to_string_lossy().into_owned(), set.to_string_lossy().into_owned());
    if program == "restic" {
        said(&mut command(&["init"]))?;
    } else {
        said(&mut command(&["repository", "create", "filesystem", "--path", &make]))?;
    }
    let began = Instant::now();
    let arguments: &[&str] =
        if program == "restic" { &["backup", "--quiet", &path] } else { &["snapshot", "create", &path] };
    said(&mut command(arguments))?;
    Ok(began.elapsed().as_secs_f64())
}

fn ranges_json(ranges: &Ranges) -> Value {
    json!({
        "set": ranges.set, "what": ranges.what, "truth": ranges.truth, "inside": ranges.inside(),
        "seeds": ranges.found.len(), "median_width": ranges.width(), "found": ranges.found,
    })
}

fn rates_json(rates: &Rates) -> Value {
    json!({
        "set": rates.set, "logical_bytes": rates.logical, "full_cold_s": rates.full_cold_s,
        "sample_cold_s": rates.sample_cold_s, "one_cold_s": rates.one_cold_s, "one_warm_s": rates.one_warm_s,
        "files_s": rates.files_s, "ceiling_s": rates.ceiling_s, "memory_peak_bytes": rates.memory, "backups_cold_s": rates.others,
    })
}

fn ranges_table(all: &[Ranges], options: &Options) -> String {
    let mut rows = vec![["set", "what", "truth", "inside", "median width", "least", "most"].map(String::from).to_vec()];
    for ranges in all {
        let low = ranges.found.iter().map(|found| found.0).fold(f64::MAX, f64::min);
        let high = ranges.found.iter().map(|found| found.1).fold(f64::MIN, f64::max);
        rows.push(vec![
            ranges.set.clone(),
            ranges.what.clone(),
            format!("{:.4}", ranges.truth),
            format!("{} of {}", ranges.inside(), ranges.found.len()),
            format!("{:.3}", ranges.width()),
            format!("{low:.4}"),
            format!("{high:.4}"),
        ]);
    }
    format!("{} read; truth from a full scan, ranges from {} seeds\n\n{}", options.budget, options.seeds, align(&rows))
}

fn rates_table(all: &[Rates], options: &Options) -> String {
    if all.is_empty() {
        return String::new();
    }
    let rate = |rates: &Rates, seconds: f64| format!("{:.0} MB/s", rates.logical as f64 / 1e6 / seconds);
    let heads = [
        "set",
        "bytes",
        "sample / full, cold",
        "one, cold",
        "one, cached",
        "BLAKE3, cached",
        "BLAKE3, in memory",
        "peak",
        "others, cold",
    ];
    let mut rows = vec![heads.map(String::from).to_vec()];
    for rates in all {
        let others = rates.others.iter().map(|(name, seconds)| format!("{name} {}", rate(rates, *seconds)));
        rows.push(vec![
            rates.set.clone(),
            format!("{:.2} GB", rates.logical as f64 / 1e9),
            format!(
                "{:.2} s / {:.2} s = {:.1} %",
                rates.sample_cold_s,
                rates.full_cold_s,
                100.0 * rates.sample_cold_s / rates.full_cold_s
            ),
            rate(rates, rates.one_cold_s),
            rate(rates, rates.one_warm_s),
            rate(rates, rates.files_s),
            rate(rates, rates.ceiling_s),
            format!("{} MiB", rates.memory >> 20),
            others.collect::<Vec<_>>().join(", "),
        ]);
    }
    let what = format!("medians of {}; one chunking: {}", options.runs, options.rate_chunking);
    format!("{what}\n\n{}", align(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_miss_the_truth_are_counted() {
        let found = vec![(0.1, 0.3), (0.25, 0.3), (0.2, 0.2)];
        let ranges = Ranges { set: String::new(), what: String::new(), truth: 0.2, found };
        assert_eq!(ranges.inside(), 2);
        assert!((ranges.width() - 0.05).abs() < 1e-9);
    }
}
