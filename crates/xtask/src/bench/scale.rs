//! A pool with very many files on a disk, through the library and through the mount.

use crate::bench::daemon::Daemon;
use crate::bench::library::{Figure, Line, cargo_bench, collect, parse, show};
use crate::bench::{catch_signals, check_interrupt, machine, quiet, said};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// What to make.
#[derive(clap::Args)]
pub struct Options {
    /// How many files.
    #[arg(long, default_value_t = 10_000_000)]
    files: u64,
    /// Where the pool is: a sparse file of 1 TiB that takes about 700 bytes of the disk for each file.
    #[arg(long, default_value = "/var/tmp")]
    at: PathBuf,
    /// Which engine keeps them.
    #[arg(long, default_value = "files", value_parser = ["files", "betr"])]
    engine: String,
    /// Memory of the daemon.
    #[arg(long, default_value = "512MiB")]
    memory: String,
    /// One JSON document instead of the table.
    #[arg(long)]
    json: bool,
}

/// Names that are looked up through the mount, and files that are read there.
const SAMPLES: u64 = 100_000;
/// Every so many of them is read.
const READ_EVERY: u64 = 10;

/// `cargo xtask bench scale`.
pub fn scale(options: &Options) -> Result<(), String> {
    catch_signals()?;
    let ashlar = crate::ashlar()?;
    let at = options.at.join(format!("ashlar-scale-{}", std::process::id()));
    let facts = machine::facts(Some(&options.at));
    let mut lines = Vec::new();
    let outcome = measure(&ashlar, &at, options, &mut lines);
    if !lines.is_empty() {
        show(options.json, &facts, &lines);
    }
    outcome.and(fs::remove_dir_all(&at).map_err(|error| format!("{}: {error}", at.display())))
}

fn measure(ashlar: &Path, at: &Path, options: &Options, lines: &mut Vec<Line>) -> Result<(), String> {
    let (place, files) = (at.display().to_string(), options.files.to_string());
    let engine = options.engine.as_str();
    for arguments in [&["make", engine, &place, &files][..], &["use", engine, &place]] {
        check_interrupt()?;
        eprintln!("scale {}", arguments.join(" "));
        collect(lines, parse(&said(cargo_bench("ashlar-files", "scale").args(arguments))?)?);
    }
    eprintln!("through the mount");
    collect(lines, served(ashlar, at, options)?);
    Ok(())
}

/// What people see who mount it.
fn served(ashlar: &Path, at: &Path, options: &Options) -> Result<Vec<Figure>, String> {
    let text = |error: std::io::Error| error.to_string();
    let device = at.join("pool.img");
    let config =
        format!("devices = [\"device-0\"]\ncompression = \"off\"\n\n[layer.device-0.file]\npath = {device:?}\n");
    fs::write(at.join("pool.toml"), config).map_err(text)?;
    let mut figures = Vec::new();
    let mut figure = |row: &str, unit: &str, value: f64| {
        figures.push(Figure { row: format!("mounted: {row}"), unit: unit.into(), value });
    };

    let began = Instant::now();
    let daemon = Daemon::up(ashlar, at, &["--fs", "v", "--memory", &options.memory])?;
    figure("`ashlar up`", "s", began.elapsed().as_secs_f64());
    let large = daemon.mount().join("large");
    let began = Instant::now();
    let mut listed = 0u64;
    for entry in fs::read_dir(&large).map_err(text)? {
        entry.map_err(text)?;
        listed += 1;
        if listed.is_multiple_of(10_000) {
            check_interrupt()?;
        }
    }
    figure("entries listed of one directory", "", listed as f64);
    figure("listing", "entries/s", listed as f64 / began.elapsed().as_secs_f64());

    let mut number = 1u64;
    let mut any = || {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        large.join(format!("a file with the number {}", (number >> 16) % listed * 2))
    };
    let began = Instant::now();
    for _ in 0..SAMPLES {
        check_interrupt()?;
        fs::metadata(any()).map_err(text)?;
    }
    figure("random names found in it", "/s", SAMPLES as f64 / began.elapsed().as_secs_f64());
    let began = Instant::now();
    for _ in 0..SAMPLES / READ_EVERY {
        check_interrupt()?;
        fs::read(any()).map_err(text)?;
    }
    figure("random files of 100 KiB read", "/s", (SAMPLES / READ_EVERY) as f64 / began.elapsed().as_secs_f64());
    let began = Instant::now();
    for index in 0..SAMPLES / READ_EVERY {
        check_interrupt()?;
        fs::write(large.join(format!("new {index}")), b"new").map_err(text)?;
    }
    figure("files made in it", "/s", (SAMPLES / READ_EVERY) as f64 / began.elapsed().as_secs_f64());
    figure("the daemon's peak memory", "bytes", daemon.peak_memory()?);

    // The kernel's cache dies with the daemon: what is looked for afterwards is durable, in the log.
    quiet(Command::new("sync").arg("-f").arg(daemon.mount()))?;
    daemon.kill()?;
    let began = Instant::now();
    let daemon = Daemon::up(ashlar, at, &["--fs", "v", "--memory", &options.memory])?;
    figure("`ashlar up` after `kill -9`", "s", began.elapsed().as_secs_f64());
    let last = daemon.mount().join("large").join(format!("new {}", SAMPLES / READ_EVERY / 2));
    if fs::read(&last).map_err(text)? != b"new" {
        return Err(format!("{} does not hold what was written", last.display()));
    }
    Ok(figures)
}
