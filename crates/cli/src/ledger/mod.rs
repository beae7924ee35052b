//! `ashlar ledger`.

pub mod arguments;

use crate::output::{Failure, Output};
use arguments::{LedgerArguments, LedgerCommand, List};
use ashlar_ledger::{Entry, Error, Kind, Ledger, Measurement, ModelScore, Prediction, Record, Score, Scored, Torn};
use ashlar_report::number;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::VecDeque;
use std::fmt;
use std::process::ExitCode;

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(error.to_string()).with_code(2)
    }
}

/// The last records of the ledger.
#[derive(Serialize, JsonSchema)]
struct Records {
    /// The file.
    path: String,
    /// All records of it.
    count: u64,
    /// The last ones, oldest first.
    records: Vec<Entry>,
    /// Lines that a crash had cut, and which were passed over: the first hundred.
    torn: Vec<Torn>,
}

impl fmt::Display for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in &self.records {
            write!(f, "{}  {}  ", entry.id, date(entry.time))?;
            match &entry.record {
                Record::Prediction(p) => {
                    let value = p.value.map_or(String::new(), |value| format!("{} ", number(value)));
                    let kind = p.kind;
                    let (low, high) = (number(p.low), number(p.high));
                    writeln!(f, "{} {value}({low} to {high}) {}, {kind}, {}", p.quantity, p.unit, p.subject)?;
                }
                Record::Measurement(m) => {
                    writeln!(f, "{} {} {}, {}, {}", m.quantity, number(m.value), m.unit, m.kind(), m.subject)?;
                }
            }
        }
        writeln!(f, "{} of {} records in {}", self.records.len(), self.count, self.path)?;
        let lines: Vec<String> = self.torn.iter().map(|torn| torn.line.to_string()).collect();
        if !lines.is_empty() {
            writeln!(f, "passed over: a crash had cut line {}", lines.join(", "))?;
        }
        Ok(())
    }
}

/// One record.
#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct Shown(Entry);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown(entry) = self;
        let (subject, quantity, unit) = entry.record.about();
        writeln!(f, "{} of {}\n    subject     {subject}\n    quantity    {quantity}", entry.id, date(entry.time))?;
        match &entry.record {
            Record::Measurement(m) => writeln!(f, "    {}    {} {unit}\n    how         {}", m.kind(), m.value, m.how),
            Record::Prediction(p) => {
                let value = p.value.map_or("no single value".into(), |value| value.to_string());
                writeln!(f, "    predicted   {value} {unit}, from {} to {}", p.low, p.high)?;
                writeln!(f, "    confidence  {} %", number(p.confidence * 100.0))?;
                writeln!(f, "    model       {} version {}", p.model, p.model_version)?;
                writeln!(f, "    inputs      {}", p.fingerprint)?;
                p.inputs.iter().try_for_each(|(name, value)| writeln!(f, "        {name} = {value}"))
            }
        }
    }
}

/// How predictions fared.
#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct Scores(Score);

impl fmt::Display for Scores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scores(score) = self;
        for one in &score.scored {
            let Scored { prediction, subject, quantity, value, low, high, measured, inside, relative_error, .. } = one;
            let kind = one.measured_kind;
            let error = relative_error.map_or(String::new(), |error| format!(", error {:+.1} %", error * 100.0));
            let value = value.map_or(String::new(), |value| format!("{} ", number(value)));
            let (low, high, measured) = (number(*low), number(*high), number(*measured));
            let mark = if *inside { "inside " } else { "OUTSIDE" };
            writeln!(
                f,
                "{prediction}  {mark} {quantity} {value}({low} to {high}), {kind} {measured}{error}, {subject}"
            )?;
        }
        writeln!(
            f,
            "\n{:<16}{:>8}{:>12}{:>10}{:>10}{:>8}{:>10}{:>12}{:>12}",
            "model", "version", "predictions", "measured", "emulated", "inside", "claimed", "mean error", "worst"
        )?;
        for ModelScore {
            model,
            model_version,
            predictions,
            measured,
            emulated,
            inside,
            inside_claimed,
            mean_absolute_error,
            worst_error,
        } in &score.models
        {
            let percent = |error: &Option<f64>| error.map_or("-".into(), |error| format!("{:.1} %", error * 100.0));
            let claimed = format!("{inside_claimed:.1}");
            let (mean, worst) = (percent(mean_absolute_error), percent(worst_error));
            writeln!(
                f,
                "{model:<16}{model_version:>8}{predictions:>12}{measured:>10}{emulated:>10}{inside:>8}{claimed:>10}{mean:>12}{worst:>12}"
            )?;
        }
        if score.unjoined > 0 {
            writeln!(f, "{} measurements that no prediction waited for", score.unjoined)?;
        }
        if score.torn > 0 {
            writeln!(f, "{} lines that a crash had cut were passed over", score.torn)?;
        }
        Ok(())
    }
}

/// A record that was written.
#[derive(Serialize, JsonSchema)]
struct Written {
    /// Its id.
    id: String,
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.id)
    }
}

/// `ashlar ledger`.
pub fn run(arguments: &LedgerArguments, output: &Output) -> Result<ExitCode, Failure> {
    match &arguments.command {
        None => list(&arguments.list, output),
        Some(LedgerCommand::Show { id }) => {
            if let Some(code) = output.schema::<Shown>() {
                return Ok(code);
            }
            output.print(&Shown(Ledger::open_default()?.find(id)?));
            Ok(ExitCode::SUCCESS)
        }
        Some(LedgerCommand::Score) => {
            if let Some(code) = output.schema::<Scores>() {
                return Ok(code);
            }
            output.print(&Scores(ashlar_ledger::score(&Ledger::open_default()?)?));
            Ok(ExitCode::SUCCESS)
        }
        Some(LedgerCommand::Measure { subject, value, quantity, unit, how, emulated }) => {
            if let Some(code) = output.schema::<Written>() {
                return Ok(code);
            }
            let ledger = Ledger::open_default()?;
            let (subject, quantity, unit) = match (quantity, unit) {
                (Some(quantity), Some(unit)) => (subject.clone(), quantity.clone(), unit.clone()),
                _ => {
                    let entry = ledger.find(subject)?;
                    let (subject, quantity, unit) = entry.record.about();
                    (subject.to_string(), quantity.to_string(), unit.to_string())
                }
            };
            let kind = Some(if *emulated { Kind::Emulated } else { Kind::Measured });
            let id = ledger.measure(Measurement { subject, quantity, unit, value: *value, how: how.clone(), kind })?;
            output.print(&Written { id });
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn list(list: &List, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Records>() {
        return Ok(code);
    }
    let ledger = Ledger::open_default()?;
    let mut records = VecDeque::new();
    let read = ledger.read(|entry| {
        if records.len() == list.limit as usize {
            records.pop_front();
        }
        records.push_back(entry);
        Ok(())
    })?;
    let path = ledger.path().display().to_string();
    output.print(&Records { path, count: read.records, records: records.into(), torn: read.torn });
    Ok(ExitCode::SUCCESS)
}

/// Writes predictions down. An answer is worth having without the ledger too, so failures are told and no more.
pub fn predict(predictions: Vec<Prediction>, output: &Output) -> Vec<Option<String>> {
    let count = predictions.len();
    let written = Ledger::open_default().and_then(|ledger| ledger.predict_all(predictions));
    match written {
        Ok(ids) => ids.into_iter().map(Some).collect(),
        Err(error) => {
            output.say(format!("ashlar: the prediction is not in the ledger: {error}"));
            vec![None; count]
        }
    }
}

/// A time as `2026-11-21 22:29:06`, UTC.
pub fn date(seconds: u64) -> String {
    let (days, second) = ((seconds / 86_400) as i64, seconds % 86_400);
    // Days since 0000-03-01, in eras of 400 years: Howard Hinnant, "chrono-compatible low-level date algorithms".
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + carry;
    format!("{year:04}-{month:02}-{of_month:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_795_300_146, "2026-11-21 22:29:06"),
            (253_402_300_799, "9999-12-31 23:59:59"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }
}
