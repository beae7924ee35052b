//! `ashlar plan estimate scrub`.

use super::arguments::Scrub;
use super::simulated;
use crate::output::{Failure, Output};
use ashlar_estimate::Estimate;
use ashlar_estimate::scrub::{Answer, Disk, DriveClass, Order, Question, estimate, figure};
use indicatif::ProgressBar;
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
    let simulate = |bar: &ProgressBar| {
        estimate(&question, &mut |what| {
            bar.set_message(format!("trying rates: {what}"));
            bar.tick();
            true
        })
    };
    simulated(&arguments.common, output, simulate, figure)
}
