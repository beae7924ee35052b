//! One stage alone: from a file to a file.

use super::super::failed;
use super::{Inputs, PredictArguments, Stage, about, first_pass, tree};
use crate::output::{Failure, Output};
use ashlar_columns::{Writer, read};
use ashlar_lab::partial::Partial;
use ashlar_lab::predict::engine::{Options, System};
use ashlar_lab::predict::parse::parse;
use ashlar_lab::predict::pattern::Pattern;
use ashlar_lab::predict::preprocess::{Preprocess, Sizes};
use ashlar_lab::predict::step::{Chain, STEPS, Step};
use ashlar_lab::trace::{CALLS, Record};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

/// Steps of one call that are read: two paths have fewer.
const CHAIN_MAX: usize = 2000;

/// What a stage did.
#[derive(Serialize, JsonSchema)]
struct Done {
    /// Steps that were written.
    steps: u64,
    /// The file.
    output: String,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} steps in {}", self.steps, self.output)
    }
}

/// Does one stage.
pub fn run(
    arguments: &PredictArguments,
    stage: Stage,
    to: &Path,
    inputs: Inputs,
    mut options: Options,
    output: &Output,
) -> Result<ExitCode, Failure> {
    let mut writer = Partial::create(to).and_then(|file| Writer::to(&STEPS, to, file)).map_err(failed)?;
    // Such an error is of the file that is written, and names it; all others are of the one that is read.
    let mut unwritten = None;
    let mut put = |chain: Chain| {
        let put = chain.into_iter().try_for_each(|step| writer.put(step));
        put.map_err(|error| unwritten.insert(error.to_string()).clone())
    };
    let one = || match inputs.vectors.as_slice() {
        [vector] => Ok(vector.clone()),
        _ => Err(Failure::new("this stage needs one system vector").with_code(2)),
    };
    // Nobody knows yet when calls will come on that system.
    options.price.pace = ashlar_lab::predict::price::Pace::Trace;
    let from = &arguments.trace;
    let done = match stage {
        Stage::Parse => {
            let mut calls = 0;
            read(&CALLS, from, |record: Record| {
                let chain = parse(calls, &record);
                calls += 1;
                put(chain)
            })
        }
        Stage::Preprocess => {
            let mut stage = Preprocess::new(tree(arguments, inputs.snapshot.as_deref())?, sizes(from)?);
            chains(from, |chain| stage.apply(chain), put)
        }
        Stage::Cache => {
            let mut system = System::new(one()?, options);
            chains(from, |chain| system.cache(chain), put)
        }
        Stage::Pattern => {
            let mut stage = Pattern::default();
            chains(from, |chain| stage.apply(chain), put)
        }
        Stage::Price => {
            let mut system = System::new(one()?, options);
            chains(from, |chain| system.price(chain), put)
        }
    };
    done.map_err(|error| unwritten.map_or_else(|| about(from, error), failed))?;
    let steps = writer.count();
    writer.finish_into().and_then(Partial::finish).map_err(failed)?;
    output.print(&Done { steps, output: to.display().to_string() });
    Ok(ExitCode::SUCCESS)
}

/// Sizes of files: the step of a call has the fields of its record, and a lookup writes to nothing.
fn sizes(from: &Path) -> Result<Sizes, Failure> {
    Ok(first_pass(from).map(|(first, _)| first.sizes).unwrap_or_default())
}

/// Reads chains, has them annotated, and gives them on.
fn chains(
    from: &Path,
    mut work: impl FnMut(&mut Chain),
    mut put: impl FnMut(Chain) -> Result<(), String>,
) -> Result<(), String> {
    let mut chain = Chain::new();
    let mut give = |chain: &mut Chain| {
        let mut chain = std::mem::take(chain);
        work(&mut chain);
        put(chain)
    };
    read(&STEPS, from, |step: Step| {
        if chain.last().is_some_and(|last| last.call != step.call) || chain.len() >= CHAIN_MAX {
            give(&mut chain)?;
        }
        chain.push(step);
        Ok(())
    })?;
    give(&mut chain)
}
