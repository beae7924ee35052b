//! `ashlar plan estimate packing`.

use super::{arguments, finish, input, of_file};
use crate::output::{Failure, Output};
use ashlar_estimate::Estimate;
use ashlar_estimate::packing::{Answer, Histogram, Packing, estimate, figure, mining};
use std::process::ExitCode;

pub fn run(arguments: &arguments::Packing, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Estimate<Answer>>() {
        return Ok(code);
    }
    let path = &arguments.sizes;
    let histogram = Histogram::read(input(path)?).map_err(of_file(path))?;
    let packing = Packing {
        block: arguments.block.0 as f64,
        small: arguments.small.0 as f64,
        composite: arguments.composite.0 as f64,
        files: arguments.files,
        dead: arguments.dead,
        part: arguments.part.0 as f64,
        put_price: arguments.put_price,
        ..Packing::default()
    };
    let mut done = estimate(&path.display().to_string(), &histogram, &packing)?;
    if let Some(path) = &arguments.accesses {
        done.answer.grouping = Some(mining::read(input(path)?, arguments.support).map_err(of_file(path))?);
    }
    let plot = figure(&done);
    output.print(&finish(done, &arguments.common, plot, output)?);
    Ok(ExitCode::SUCCESS)
}
