//! `ashlar plan estimate chunking`: which chunk size pays.

use super::arguments::Chunking;
use crate::ledger;
use crate::output::{Failure, Output};
use crate::signals::on_signal;
use crate::survey::Bar;
use ashlar_estimate::About;
use ashlar_ledger::{Inputs, Kind, Prediction};
use ashlar_survey::page::{comparison_page, comparison_plot};
use ashlar_survey::simulate::{Comparison, Setting, compare, read};
use ashlar_units::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use std::fmt;
use std::process::ExitCode;

/// Version of the model: it changes when the same data give other numbers.
const VERSION: u32 = 1;

/// Chunkers side by side.
#[derive(Serialize, JsonSchema)]
struct Compared {
    /// Always `chunking`.
    estimator: &'static str,
    /// Where the schemes come from.
    source: &'static str,
    /// Versions, oldest first.
    paths: Vec<String>,
    /// Small chunks in a big one.
    k: u8,
    /// Files that could not be read, and were left out.
    left_out: Vec<String>,
    #[serde(flatten)]
    comparison: Comparison,
    /// Which assumption matters most.
    dominant_assumption: &'static str,
    /// Formulas, if they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    explanation: Vec<&'static str>,
    /// The ledger's record of the best scheme.
    ledger_id: Option<String>,
}

/// What this estimator is.
pub static ABOUT: About = About {
    name: "chunking",
    what: "which chunk size pays on data",
    source: "Kruus, Ungureanu, Dubnicki: Bimodal Content Defined Chunking for Backup Streams, FAST 2010; Xia et al.: \
        FastCDC, ATC 2016",
    version: VERSION,
    formulas: "with metadata: (bytes of stored chunks + metadata * stored chunks) / logical bytes, which is 1 / DER' of the paper.\n\
               and lz4: the same where each chunk is compressed by itself; of a chunk is left what is left of its bytes in blocks as\n\
               long as it is.\n\
               breaking-apart: big chunks beside a duplicate are cut into small ones; one question to the index for each big chunk.\n\
               k-fixed, k-var: k (or 2 to k) small chunks become a big one where that exists, or far from duplicates.\n\
               oracle: small chunks that always occur together are one; it needs to know the future, and bounds what is possible.",
};
const DOMINANT: &str =
    "dominant assumption: what each stored chunk costs in metadata (--metadata); large costs favour large chunks";
impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let comparison = &self.comparison;
        let (logical, metadata) = (Bytes(comparison.logical_bytes), comparison.metadata_bytes);
        writeln!(
            f,
            "{logical} in {} versions, {metadata} bytes of metadata for each stored chunk\n",
            self.paths.len()
        )?;
        writeln!(
            f,
            "{:<32}{:>8}{:>15}{:>9}{:>13}{:>15}{:>12}",
            "scheme", "stored", "with metadata", "and lz4", "mean chunk", "index entries", "queries"
        )?;
        for row in &comparison.rows {
            let (ratio, with) = (100.0 * row.ratio, 100.0 * row.ratio_with_metadata);
            let lz4 = 100.0 * row.ratio_with_lz4_and_metadata;
            let mean = Bytes(row.mean_chunk_bytes as u64).to_string();
            writeln!(
                f,
                "{:<32}{ratio:>6.2} %{with:>13.2} %{lz4:>7.2} %{mean:>13}{:>15}{:>12}",
                row.scheme, row.index_entries, row.queries
            )?;
        }
        writeln!(f, "\nleast is taken by {}; with lz4 by {}", comparison.best, comparison.best_with_lz4)?;
        write!(f, "k-fixed when the index says wrongly that a chunk exists:")?;
        for (rate, ratio) in &comparison.false_positives {
            write!(f, " {:.1} %: {:.2} %;", 100.0 * rate, 100.0 * ratio)?;
        }
        writeln!(f, "\n{}", self.dominant_assumption)?;
        self.explanation.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        match self.left_out.len() {
            0 => Ok(()),
            count => writeln!(f, "{count} files could not be read, the first is {}", self.left_out[0]),
        }
    }
}

pub fn run(arguments: &Chunking, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Compared>() {
        return Ok(code);
    }
    let stop = on_signal()?;
    let bar = Bar::new(output);
    let (mut versions, mut left_out) = (Vec::new(), Vec::new());
    let memory = arguments.memory.0 / arguments.paths.len() as u64;
    for path in &arguments.paths {
        bar.bar.set_message(format!("reading {}", path.display()));
        let progress = |bytes| bar.bar.inc(bytes);
        let (version, missing) =
            read(path, memory, &stop, &progress).map_err(|error| Failure::new(error.to_string()).with_code(2))?;
        versions.push(version);
        left_out.extend(missing.iter().map(|path| path.to_string_lossy().into_owned()));
    }
    bar.bar.set_message("comparing");
    let setting = Setting { metadata: arguments.metadata.0, k: arguments.k.into(), seed: arguments.seed };
    let comparison = compare(&versions, &setting);
    bar.bar.finish_and_clear();
    if let Some(file) = &arguments.common.figure {
        let written = std::fs::write(file, comparison_plot(&comparison, true).svg());
        written.map_err(|error| Failure::new(format!("cannot draw to {}: {error}", file.display())).with_code(2))?;
    }
    if let Some(file) = &arguments.html {
        let written = std::fs::write(file, comparison_page("Which chunk size pays", &comparison));
        written.map_err(|error| Failure::new(format!("{}: {error}", file.display())).with_code(2))?;
    }
    let paths: Vec<String> = arguments.paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let id = record(arguments, &paths, &comparison, output);
    let code = ExitCode::from(u8::from(!left_out.is_empty()));
    output.print(&Compared {
        estimator: "chunking",
        source: ABOUT.source,
        paths,
        k: arguments.k,
        left_out,
        comparison,
        dominant_assumption: DOMINANT,
        explanation: if arguments.common.explain { ABOUT.formulas.lines().collect() } else { Vec::new() },
        ledger_id: id,
    });
    Ok(code)
}

fn record(arguments: &Chunking, paths: &[String], comparison: &Comparison, output: &Output) -> Option<String> {
    let best = comparison.rows.iter().find(|row| row.scheme == comparison.best)?;
    let inputs: Inputs = [
        ("paths".to_string(), json!(paths)),
        ("logical_bytes".to_string(), json!(comparison.logical_bytes)),
        ("metadata".to_string(), json!(arguments.metadata.0)),
        ("k".to_string(), json!(arguments.k)),
    ]
    .into();
    let value = best.ratio_with_metadata;
    let prediction = Prediction {
        subject: format!("chunking of {}", paths.join(" ")),
        quantity: format!("chunking.{}.ratio_with_metadata", best.scheme.replace([':', ' '], "-")),
        unit: "ratio".into(),
        // All data were read, but a store may name big chunks by other digests, and packs chunks in its own way.
        value: Some(value),
        low: value * 0.98,
        high: (value * 1.02).max(value),
        confidence: 0.9,
        model: "chunking".into(),
        model_version: VERSION,
        kind: Kind::Modelled,
        inputs,
        fingerprint: String::new(),
    };
    ledger::predict(vec![prediction], output).pop().flatten()
}
