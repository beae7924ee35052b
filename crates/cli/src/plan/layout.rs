//! `ashlar plan estimate layout`.

use super::{arguments, finish};
use crate::device::find;
use crate::output::{Failure, Output};
use ashlar_estimate::Estimate;
use ashlar_estimate::layout::{Answer, BLOCK, Drive, Load, Question, estimate, figure};
use std::process::ExitCode;

pub fn run(arguments: &arguments::Layout, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Estimate<Answer>>() {
        return Ok(code);
    }
    let drive = Drive::of(&find(&arguments.drive).map_err(|failure| failure.with_code(2))?)?;
    let data_drives = f64::from(arguments.data_drives);
    let extent = arguments.extent.0 as f64;
    let room = drive.capacity * data_drives * arguments.full.min(arguments.fill);
    let data = arguments.data.map_or((room / extent.max(1.0)).floor() * extent, |data| data.0 as f64);
    let load = Load {
        drive,
        data_drives,
        data,
        extent,
        update: arguments.update.0 as f64,
        full: arguments.full,
        fill: arguments.fill,
        staging: arguments.staging,
        batch: f64::from(arguments.batch),
        moved: arguments.moved,
    };
    let question = Question { load, updates_per_scan: arguments.updates_per_scan.unwrap_or(data / BLOCK) };
    let done = estimate(&question)?;
    output.print(&finish(done, &arguments.common, figure(&question), output)?);
    Ok(ExitCode::SUCCESS)
}
