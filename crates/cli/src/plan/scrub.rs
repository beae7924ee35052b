//! `ashlar plan estimate scrub`.

use super::arguments::Scrub;
use super::{finish, spinner};
use crate::output::{Failure, Output};
use ashlar_estimate::Estimate;
use ashlar_estimate::scrub::{Answer, Disk, DriveClass, Order, Question, estimate, figure};
use std::process::ExitCode;

pub fn run(arguments: &Scrub, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Estimate<Answer>>() {
        return Ok(code);
    }
    let bytes = |size: ashlar_units::Bytes| size.0 as f64;
    let class = DriveClass {
        error_rate: arguments.errors_per_byte,
        read_weight: arguments.read_weight,
        aged: arguments.aged / 100.0,
    };
    let disk = Disk {
        class,
        order: Order { capacity: bytes(arguments.capacity), segment: bytes(arguments.segment) },
        written: bytes(arguments.written),
        read: bytes(arguments.read),
        hours: arguments.months * 720.0,
    };
    let question = Question {
        disk,
        rate: bytes(arguments.rate),
        rate_max: bytes(arguments.rate_max),
        disks: arguments.disks,
        seed: arguments.seed,
    };
    let bar = spinner(output);
    let done = estimate(&question, &mut |what| {
        bar.set_message(format!("trying rates: {what}"));
        bar.tick();
        true
    });
    bar.finish_and_clear();
    let done = done?;
    let plot = figure(&done);
    output.print(&finish(done, &arguments.common, plot, output)?);
    Ok(ExitCode::SUCCESS)
}
