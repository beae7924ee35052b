//! What can be said to `ashlar survey`.

use ashlar_survey::Budget;
use ashlar_survey::chunk::Chunking;
use ashlar_units::Bytes;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Args, Clone)]
pub struct Survey {
    /// A directory, a block device, an image (raw or qcow2), a bucket (s3://BUCKET/PREFIX; the server and credentials are those
    /// of the AWS_… variables of the environment), or a trace (.parquet as `ashlar device trace` writes it, .jsonl, or
    /// .blkparse with lines of the FIU traces).
    pub path: PathBuf,
    #[command(flatten)]
    pub reading: Reading,
    /// Write the answers as a page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the answers as JSON into this file. `--json FILE.json` and `--json=FILE` mean the same.
    #[arg(long, value_name = "FILE")]
    pub json_file: Option<PathBuf>,
    /// Write nothing to the ledger.
    #[arg(long)]
    pub no_ledger: bool,
}

/// What is read, and how.
#[derive(Args, Clone)]
pub struct Reading {
    /// Read everything: values instead of ranges.
    #[arg(long, conflicts_with_all = ["budget", "mode"])]
    pub full: bool,
    /// Read so much: 5%, 20GiB, or for 10min (also 90s, 2h). Default: until the ranges are narrow, at most 20 %.
    #[arg(long, value_parser = budget)]
    pub budget: Option<Budget>,
    /// Decides what is read. The same seed reads the same part of the same data.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// What to look for, separated by commas: fixed:SIZE and cdc:MEAN, from 4KiB to 1MiB.
    #[arg(long, value_delimiter = ',', value_parser = Chunking::from_str, default_values_t = Chunking::DEFAULT)]
    pub chunking: Vec<Chunking>,
    /// How much of a sample to remember: full, or base for less than 10 MB per chunking at any size of the data.
    #[arg(long, value_enum, default_value_t = ModeArgument::Full)]
    pub mode: ModeArgument,
    /// Bytes that are read at one place, and what begins there to its end. Default: 1MiB where it takes 2 ms and more to get
    /// to a place (disks, networks, buckets), else 32KiB to 128KiB by the size of the data.
    #[arg(long, value_name = "SIZE")]
    pub unit: Option<Bytes>,
    /// Without a budget: stop when no range of deduplication is wider than this.
    #[arg(long, value_name = "WIDTH", default_value_t = 0.05)]
    pub width: f64,
    /// Keep the state in this file: after Ctrl-C or a crash the same command goes on from there.
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Memory for what is remembered; the rest goes to files without a name in $TMPDIR.
    #[arg(long, default_value = "512MiB")]
    pub memory: Bytes,
    /// Bytes per second, at most.
    #[arg(long, value_name = "SIZE")]
    pub bandwidth: Option<Bytes>,
    /// Do not give way to the requests of others.
    #[arg(long)]
    pub impolite: bool,
    /// Threads that look at bytes. Default: one per processor, at most 8.
    #[arg(long)]
    pub threads: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeArgument {
    Full,
    Base,
}

/// Reads `5%`, `20GiB` or `10min`.
fn budget(text: &str) -> Result<Budget, String> {
    let wrong = || format!("{text:?} is no budget: write a share (5%), a size (20GiB) or a time (10min, 90s, 2h)");
    if let Some(percent) = text.strip_suffix('%') {
        let percent: f64 = percent.parse().map_err(|_| wrong())?;
        return if percent > 0.0 && percent <= 100.0 { Ok(Budget::Share(percent / 100.0)) } else { Err(wrong()) };
    }
    // A number alone counts bytes.
    if text.ends_with(|c: char| !c.is_ascii_digit())
        && let Ok(time) = ashlar_units::duration(text)
    {
        return if time.is_zero() { Err(wrong()) } else { Ok(Budget::Time(time)) };
    }
    match text.parse::<Bytes>() {
        Ok(Bytes(bytes)) if bytes > 0 => Ok(Budget::Bytes(bytes)),
        _ => Err(wrong()),
    }
}

/// `--json FILE.json` and `--json=FILE` of a survey, as `--json-file FILE`: elsewhere `--json` takes no value.
pub fn with_json_file(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let Some(from) = arguments.iter().position(|argument| argument == "survey" || argument == "estimate") else {
        return arguments;
    };
    let mut index = from + 1;
    while index < arguments.len() {
        let text = arguments[index].to_string_lossy().into_owned();
        let next = arguments.get(index + 1).map(|next| next.to_string_lossy().into_owned());
        if let Some(file) = text.strip_prefix("--json=") {
            let file = OsString::from(file);
            arguments.splice(index..=index, [OsString::from("--json-file"), file]);
        } else if text == "--json" && next.is_some_and(|next| next.ends_with(".json") && !next.starts_with('-')) {
            arguments[index] = "--json-file".into();
        }
        index += 1;
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn budgets_are_shares_sizes_or_times() {
        assert_eq!(budget("5%"), Ok(Budget::Share(0.05)));
        assert_eq!(budget("20GiB"), Ok(Budget::Bytes(20 << 30)));
        assert_eq!(budget("10min"), Ok(Budget::Time(Duration::from_secs(600))));
        assert_eq!(budget("90s"), Ok(Budget::Time(Duration::from_secs(90))));
        for wrong in ["", "0%", "101%", "-1%", "x", "5 %%", "0s", "min", "0", "NaN%"] {
            budget(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn json_may_have_a_file_in_a_survey() {
        let all = |text: &str| {
            let words = with_json_file(text.split(' ').map(OsString::from));
            words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(all("ashlar survey /a --json r.json --full"), "ashlar survey /a --json-file r.json --full");
        assert_eq!(all("ashlar survey --json /a"), "ashlar survey --json /a");
        assert_eq!(all("ashlar survey /a --json=x"), "ashlar survey /a --json-file x");
        assert_eq!(all("ashlar survey /a --json"), "ashlar survey /a --json");
        assert_eq!(all("ashlar status --json"), "ashlar status --json");
    }
}
