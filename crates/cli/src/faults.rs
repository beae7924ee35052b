//! `ashlar prove faults`.

use crate::arguments::Faults;
use crate::output::{Failure, Output};
use crate::signals::on_signal;
use ashlar_prove::typed::{Case, Matrix, Target, Type, TypedOptions, explore_typed};
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::process::ExitCode;

/// It could not be tried.
const UNABLE: u8 = 2;

fn unable(what: impl Into<String>) -> Failure {
    Failure::new(what).with_code(UNABLE)
}

/// What came of all cases.
#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct Report(Matrix);

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `ashlar prove faults`.
pub fn run(arguments: &Faults, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Report>() {
        return Ok(code);
    }
    let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let target = arguments.target;
    let case = arguments.case.as_deref().map(|name| Case::named(target, name)).transpose().map_err(unable)?;
    let of = arguments.of.as_deref().map(|name| Type::named(target, name)).transpose().map_err(unable)?;
    if target == Target::Ext4 && arguments.without.is_some() {
        return Err(unable("--without is for the pool; ext4 has no checksums of data, and no parity"));
    }
    let options = TypedOptions {
        engine: arguments.engine,
        budget: arguments.budget,
        of,
        fault: arguments.fault,
        case,
        without: arguments.without,
        ..TypedOptions::new(target, arguments.seed.unwrap_or_else(clock))
    };
    let stop = on_signal().map_err(|failure| failure.with_code(UNABLE))?;
    // A case that panics is a finding like any other; its backtrace would only hide the report.
    std::panic::set_hook(Box::new(|_| {}));
    let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
    let style = ProgressStyle::with_template("{spinner} {pos} cases, {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    let matrix = explore_typed(&options, &stop, &mut |tried| bar.set_position(tried));
    bar.finish_and_clear();
    let _ = std::panic::take_hook();
    let report = Report(matrix.map_err(unable)?);
    if report.0.cases == 0 {
        return Err(unable("nothing was tried: there is no such fault of this type"));
    }
    if let Some(path) = &arguments.report {
        std::fs::write(path, report.0.html()).map_err(|error| unable(format!("{}: {error}", path.display())))?;
    }
    output.print(&report);
    Ok(ExitCode::from(u8::from(report.0.is_bad(arguments.strict_memory))))
}
