//! Whether ageing gives back what was there: somebody works on a file system, snapshots are taken as if each night, a new
//! file system is aged by the history that they tell, and the layouts of both are compared (thesis, section 3.3).

use crate::bench::churn::{Churn, Habits};
use crate::bench::table::align;
use crate::bench::{catch_signals, check_interrupt, machine, quiet, said};
use ashlar_lab::layout::Layout;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// What to compare.
#[derive(clap::Args)]
pub struct Options {
    /// File systems.
    #[arg(long, value_delimiter = ',', default_value = "ext4,xfs")]
    fs: Vec<String>,
    /// Seeds: each is another person at work.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3])]
    seeds: Vec<u64>,
    /// Periods, with a snapshot after each.
    #[arg(long, default_value_t = 5)]
    periods: u32,
    /// Seconds of a period: work is in real time, since layout is decided when pages are written back.
    #[arg(long, default_value_t = 45)]
    seconds: u64,
    #[command(flatten)]
    habits: Habits,
    /// MiB of each file system.
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Where images are made, best in memory.
    #[arg(long, default_value = "/dev/shm")]
    at: PathBuf,
    /// One JSON document instead of the table.
    #[arg(long)]
    json: bool,
}

/// By how much layout scores may differ.
const BAR: f64 = 0.03;

struct Outcome {
    fs: String,
    seed: u64,
    real: Layout,
    aged: Layout,
    /// Files that did not fit.
    refused: u64,
}

impl Outcome {
    fn score(layout: &Layout) -> f64 {
        layout.all.score.unwrap_or(f64::NAN)
    }
    fn difference(&self) -> f64 {
        (Self::score(&self.real) - Self::score(&self.aged)).abs()
    }
    fn distance(&self) -> Option<f64> {
        Some(self.real.free.as_ref()?.distance(self.aged.free.as_ref()?))
    }
}

/// `cargo xtask bench ageing`.
pub fn ageing(options: &Options) -> Result<(), String> {
    catch_signals()?;
    let ashlar = crate::ashlar()?;
    let at = options.at.join(format!("ashlar-ageing-{}", std::process::id()));
    fs::create_dir_all(at.join("mnt")).map_err(|error| format!("{}: {error}", at.display()))?;
    let mut outcomes = Vec::new();
    let mut run = || -> Result<(), String> {
        for fs in &options.fs {
            for seed in &options.seeds {
                eprintln!("{fs}, seed {seed}");
                outcomes.push(compare(&ashlar, &at, fs, *seed, options)?);
            }
        }
        Ok(())
    };
    let run = run();
    // Also after an error or Ctrl-C.
    let _ = quiet(Command::new("umount").arg(at.join("mnt")));
    show(options, &outcomes);
    run.and(fs::remove_dir_all(&at).map_err(|error| format!("{}: {error}", at.display())))
}

fn compare(ashlar: &Path, at: &Path, fs: &str, seed: u64, options: &Options) -> Result<Outcome, String> {
    let text = |error: std::io::Error| error.to_string();
    let (image, mount, bytes) = (at.join("real.img"), at.join("mnt"), options.mib << 20);
    fs::File::create(&image).and_then(|file| file.set_len(bytes)).map_err(text)?;
    let (force, quietly) = if fs == "ext4" { ("-F", "-q") } else { ("-f", "-q") };
    quiet(Command::new(format!("mkfs.{fs}")).args([force, quietly]).arg(&image))?;
    quiet(Command::new("mount").args(["-o", "loop,noatime"]).arg(&image).arg(&mount))?;
    let mut churn = Churn::new(&mount, bytes, options.habits, seed).map_err(text)?;
    let snapshots: Vec<PathBuf> = (0..options.periods).map(|period| at.join(format!("{period}.snap"))).collect();
    for snapshot in &snapshots {
        churn.work(Duration::from_secs(options.seconds))?;
        quiet(Command::new(ashlar).args(["lab", "snapshot"]).arg(&mount).arg("-o").arg(snapshot))?;
    }
    let real = layout(ashlar, &mount)?;
    quiet(Command::new("umount").arg(&mount))?;
    fs::remove_file(&image).map_err(text)?;
    check_interrupt()?;

    let (history, aged) = (at.join("churn.age"), at.join("aged.img"));
    let seed_text = seed.to_string();
    quiet(
        Command::new(ashlar).args(["lab", "history", "--seed", &seed_text]).args(&snapshots).arg("-o").arg(&history),
    )?;
    let target = format!("{fs}:{}MiB", options.mib);
    let mut age = Command::new(ashlar);
    age.args(["lab", "age", "--on", &target, "--seed", &seed_text, "--fresh", "--force", "--no-ledger"]);
    let refused = refused(age.arg("--json").arg(&history).arg("-o").arg(&aged))?;
    quiet(Command::new("mount").args(["-o", "loop,noatime"]).arg(&aged).arg(&mount))?;
    let aged_layout = layout(ashlar, &mount)?;
    quiet(Command::new("umount").arg(&mount))?;
    fs::remove_file(&aged).map_err(text)?;
    Ok(Outcome { fs: fs.into(), seed, real, aged: aged_layout, refused })
}

/// Ages; returns how many files were left out because the file system was full, which its exit code 1 says.
fn refused(age: &mut Command) -> Result<u64, String> {
    let output = age.stdin(Stdio::null()).output().map_err(|error| format!("ashlar: {error}"))?;
    if !matches!(output.status.code(), Some(0 | 1)) {
        return Err(format!("ashlar: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()));
    }
    let told: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("what `ashlar lab age` said: {error}"))?;
    told["done"]["refused"].as_u64().ok_or_else(|| "`ashlar lab age` does not say what was left out".into())
}

fn layout(ashlar: &Path, mount: &Path) -> Result<Layout, String> {
    quiet(&mut Command::new("sync"))?;
    let document = said(Command::new(ashlar).args(["lab", "layout", "--json"]).arg(mount))?;
    serde_json::from_str(&document).map_err(|error| format!("what `ashlar lab layout` said: {error}"))
}

fn show(options: &Options, outcomes: &[Outcome]) {
    let facts = machine::facts(Some(&options.at));
    if options.json {
        let rows = outcomes.iter().map(|outcome| {
            json!({
                "fs": outcome.fs, "seed": outcome.seed, "real": outcome.real, "aged": outcome.aged, "left_out": outcome.refused,
                "score_difference": outcome.difference(), "free_distance": outcome.distance(),
                "reached": outcome.difference() <= BAR,
            })
        });
        println!("{}", json!({ "machine": facts, "bar": BAR, "rows": rows.collect::<Vec<_>>() }));
        return;
    }
    let mut lines = vec![
        [
            "fs",
            "seed",
            "files",
            "score",
            "aged",
            "difference",
            "bar",
            "reached",
            "pieces",
            "aged",
            "left out",
            "free ranges",
            "aged",
            "free distance",
        ]
        .map(String::from)
        .to_vec(),
    ];
    for outcome in outcomes {
        let (real, aged) = (&outcome.real, &outcome.aged);
        let ranges = |layout: &Layout| layout.free.as_ref().map_or("-".into(), |free| free.ranges.to_string());
        lines.push(vec![
            outcome.fs.clone(),
            outcome.seed.to_string(),
            real.all.files.to_string(),
            format!("{:.4}", Outcome::score(real)),
            format!("{:.4}", Outcome::score(aged)),
            format!("{:.4}", outcome.difference()),
            BAR.to_string(),
            if outcome.difference() <= BAR { "yes" } else { "NO" }.into(),
            format!("{:.3}", real.all.pieces_per_file),
            format!("{:.3}", aged.all.pieces_per_file),
            outcome.refused.to_string(),
            ranges(real),
            ranges(aged),
            outcome.distance().map_or("-".into(), |distance| format!("{distance:.3}")),
        ]);
    }
    println!("{}\n\n{}", machine::heading(&facts), align(&lines));
}
