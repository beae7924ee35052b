//! `ashlar plan estimate dedup`: the part of a survey that predicts, with its explanation.

use super::arguments::Dedup;
use crate::output::{Failure, Output};
use crate::survey;
use ashlar_estimate::About;
use ashlar_survey::Answer;
use ashlar_survey::answer::DedupAnswer;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::process::ExitCode;

/// What deduplication would leave.
#[derive(Serialize, JsonSchema)]
struct Estimated {
    /// Always `dedup`.
    estimator: &'static str,
    /// Where the model comes from.
    source: &'static str,
    /// What was asked.
    inputs: Inputs,
    /// Share of the logical bytes that was read.
    read_fraction: f64,
    /// The answers.
    dedup: Vec<DedupAnswer>,
    /// What is taken for granted.
    assumptions: [&'static str; 4],
    /// Which of it matters most.
    dominant_assumption: &'static str,
    /// Formulas and steps, if they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    explanation: Vec<String>,
}

/// What was asked.
#[derive(Serialize, JsonSchema)]
struct Inputs {
    path: String,
    logical_bytes: u64,
    seed: u64,
    unit_bytes: u64,
    mode: ashlar_survey::tally::Mode,
}

/// What this estimator is.
pub static ABOUT: About = About {
    name: "dedup",
    what: "what deduplication would leave of data, from a part of them",
    source: "Harnik, Khaitzin, Sotnikov: Estimating Unseen Deduplication, FAST 2016, algorithms 1 to 3, sections 3.1 to 3.4",
    version: survey::VERSION,
    formulas: "x_j: distinct chunks with j copies in all data; y_i: distinct chunks seen i times in the sample; p: share read.\n\
               expected y_i = sum over j of C(j,i) p^i (1-p)^(j-i) x_j.\n\
               1. find the x that explains y best: least Q = sum over i >= 2 of ((y_i - expected y_i) / noise_i)^2, with sum of j x_j =\n\
               all chunks.\n\
               2. the range is all sums of x_j that some x has whose Q is at most 2^2 above the least: two standard deviations.\n\
               Chunks are weighed by their bytes, or by their bytes after compression; zeros and copies within a unit are counted.",
};
const ASSUMPTIONS: [&str; 4] = [
    "what is read stands for what is not: units are chosen by a hash of group of files and offset",
    "the noise of the sample is that of the chunks that come and go together",
    "data do not change between the first byte and the last",
    "digests of 64 bits do not collide",
];
const DOMINANT: &str = "dominant assumption: chunks that occur once in the sample split into truly single ones and copies that \
    were not seen as the counts of two, three and more suggest";

impl fmt::Display for Estimated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {:.1} % read", self.inputs.path, 100.0 * self.read_fraction)?;
        for dedup in &self.dedup {
            let id = dedup.ledger_id.as_deref().map_or(String::new(), |id| format!("  [ledger {id}]"));
            let (ratio, zstd) = (dedup.ratio.to_string(), dedup.with_zstd_3.to_string());
            writeln!(f, "{:<14}leaves {ratio:<18}with zstd:3 {zstd:<18}{id}", dedup.chunking)?;
        }
        writeln!(f, "{}", self.dominant_assumption)?;
        self.explanation.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

pub fn run(arguments: &Dedup, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Estimated>() {
        return Ok(code);
    }
    let mut answer = survey::answer(&arguments.path, &arguments.reading, output)?;
    if answer.trace.is_some() {
        return Err(Failure::new("a trace holds no data; `ashlar survey` describes it").with_code(2));
    }
    survey::record(&mut answer, &arguments.reading, output);
    if let Some(file) = &arguments.common.figure {
        let written = std::fs::write(file, ashlar_survey::page::dedup_plot(&answer).svg());
        written.map_err(|error| Failure::new(format!("cannot draw to {}: {error}", file.display())).with_code(2))?;
    }
    let explanation = if arguments.common.explain { explain(&answer) } else { Vec::new() };
    output.print(&Estimated {
        estimator: "dedup",
        source: ABOUT.source,
        inputs: Inputs {
            path: answer.path,
            logical_bytes: answer.logical_bytes,
            seed: answer.seed,
            unit_bytes: answer.unit_bytes,
            mode: answer.mode,
        },
        read_fraction: answer.read_fraction,
        dedup: answer.dedup,
        assumptions: ASSUMPTIONS,
        dominant_assumption: DOMINANT,
        explanation,
    });
    Ok(ExitCode::from(u8::from(answer.unreadable.count + answer.changed.count > 0)))
}

fn explain(answer: &Answer) -> Vec<String> {
    let mut lines = vec![String::new()];
    lines.extend(ABOUT.formulas.lines().map(String::from));
    lines.push(format!("here: p = {:.4}, {} logical bytes", answer.read_fraction, answer.logical_bytes));
    for dedup in &answer.dedup {
        let seen = &dedup.seen_by_copies;
        let first: Vec<String> = seen.iter().take(5).map(|count| format!("{count:.0}")).collect();
        let rest: f64 = seen.iter().skip(5).sum();
        lines.push(format!("{}: y_1 to y_5 = {}; above: {rest:.0}", dedup.chunking, first.join(", ")));
    }
    lines
}
