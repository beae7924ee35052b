//! What all estimates have in common.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// Inputs cannot be used; the text says which, why, and what would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Refused {}

/// Refuses a value that is outside of a range.
pub(crate) fn within(name: &str, value: f64, low: f64, high: f64) -> Result<(), Refused> {
    if value >= low && value <= high {
        return Ok(());
    }
    let (low, high) = (ashlar_report::number(low), ashlar_report::number(high));
    Err(Refused(format!("{name} is {}; it must be from {low} to {high}", as_given(value))))
}

/// Refuses a part that is outside of a range, in percent, as users give it.
pub(crate) fn within_percent(name: &str, part: f64, low: f64, high: f64) -> Result<(), Refused> {
    // The digits that were given, and not those that dividing by 100 left.
    let percent = format!("{:.12e}", part * 100.0).parse().unwrap_or(f64::NAN);
    within(&format!("{name}, percent,"), percent, low * 100.0, high * 100.0)
}

/// A number with all its digits, but for one that has very many.
pub(crate) fn as_given(value: f64) -> String {
    let all = value.to_string();
    if all.len() <= 16 { all } else { ashlar_report::number(value) }
}

/// Whether a row names columns: none of its fields is a number, not even one that cannot be.
pub(crate) fn is_heading<'a>(mut fields: impl Iterator<Item = &'a str>) -> bool {
    fields.all(|field| field.trim().parse::<f64>().is_err())
}

/// A number that an estimate stands for, with its range.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Predicted {
    /// Which number.
    pub quantity: String,
    /// Its unit.
    pub unit: String,
    /// The likeliest value.
    pub value: f64,
    /// The least that is expected.
    pub low: f64,
    /// The most that is expected.
    pub high: f64,
    /// How often the truth should be in the range.
    pub confidence: f64,
    /// Where the range comes from.
    pub range_from: String,
}

/// What becomes of the main number when one assumption is changed.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Sensitivity {
    /// What was assumed, and what instead.
    pub change: String,
    /// The main number then.
    pub value: f64,
    /// By which part of itself it changed: 0.1 is 10 % more.
    pub effect: f64,
}

/// A step of the calculation.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Step {
    /// The formula.
    pub formula: String,
    /// The same with numbers, and what comes out.
    pub numbers: String,
}

/// A record of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Recorded {
    /// Which number it keeps.
    pub quantity: String,
    /// Its id; null if it could not be written.
    pub id: Option<String>,
}

/// Inputs by name.
pub type Inputs = BTreeMap<String, Value>;

/// An answer with all that one must know to judge it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Estimate<A> {
    /// Which estimator.
    pub estimator: String,
    /// Its version: it changes when the same inputs give other numbers.
    pub model_version: u32,
    /// Every number here is `modelled`.
    pub kind: String,
    /// Where the model comes from.
    pub source: String,
    /// What it is about; the ledger joins measurements by it.
    pub subject: String,
    /// All inputs, those that were not given too.
    pub inputs: Inputs,
    /// The answer.
    #[serde(flatten)]
    pub answer: A,
    /// The numbers that go to the ledger.
    pub predictions: Vec<Predicted>,
    /// What is taken for granted.
    pub assumptions: Vec<String>,
    /// What becomes of the first prediction when an assumption changes, the largest effect first.
    pub sensitivity: Vec<Sensitivity>,
    /// The assumption that matters most.
    pub dominant_assumption: String,
    /// The calculation, if it was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub explanation: Vec<Step>,
    /// The records of the ledger.
    pub ledger: Vec<Recorded>,
}

/// What an estimator is, for help and for its page.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct About {
    /// Its name.
    pub name: &'static str,
    /// What it answers.
    pub what: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// Its version.
    pub version: u32,
    /// Its formulas, in words and signs.
    pub formulas: &'static str,
}

impl<A> Estimate<A> {
    /// An estimate without numbers yet.
    pub(crate) fn new(about: &About, subject: String, inputs: Inputs, answer: A) -> Estimate<A> {
        Estimate {
            estimator: about.name.into(),
            model_version: about.version,
            kind: "modelled".into(),
            source: about.source.into(),
            subject,
            inputs,
            answer,
            predictions: Vec::new(),
            assumptions: Vec::new(),
            sensitivity: Vec::new(),
            dominant_assumption: String::new(),
            explanation: Vec::new(),
            ledger: Vec::new(),
        }
    }

    /// Takes what came of changed assumptions, and finds the dominant one. `changed` holds what was changed and the main
    /// number then.
    pub(crate) fn judge(&mut self, main: f64, changed: Vec<(String, f64)>) {
        let effect = |value: f64| if main == 0.0 { 0.0 } else { value / main - 1.0 };
        let judged = changed.into_iter().map(|(change, value)| Sensitivity { change, value, effect: effect(value) });
        self.sensitivity = judged.filter(|one| one.effect.is_finite() && one.effect.abs() > 1e-9).collect();
        // A factor of two down weighs as much as a factor of two up.
        let weight = |one: &Sensitivity| (1.0 + one.effect).max(1e-300).ln().abs();
        self.sensitivity.sort_by(|one, other| weight(other).total_cmp(&weight(one)));
        self.dominant_assumption = self.sensitivity.first().map_or_else(String::new, |one| one.change.clone());
    }
}

impl<A: fmt::Display> fmt::Display for Estimate<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ashlar_report::number;
        writeln!(f, "{} (modelled)", self.subject)?;
        write!(f, "{}", self.answer)?;
        for Predicted { quantity, unit, value, low, high, confidence, range_from } in &self.predictions {
            let (value, low, high) = (number(*value), number(*low), number(*high));
            let percent = number(confidence * 100.0);
            writeln!(f, "\n{quantity}: {value} {unit}, {percent} % range {low} to {high} ({range_from})")?;
        }
        writeln!(f, "\ndominant assumption: {}", self.dominant_assumption)?;
        for Sensitivity { change, value, effect } in &self.sensitivity {
            writeln!(f, "    {:>+8.1} %  to {:<10} {change}", effect * 100.0, number(*value))?;
        }
        writeln!(f, "assumed:")?;
        self.assumptions.iter().try_for_each(|assumption| writeln!(f, "    - {assumption}"))?;
        if !self.explanation.is_empty() {
            writeln!(f, "how:")?;
        }
        for Step { formula, numbers } in &self.explanation {
            writeln!(f, "    {formula}\n        = {numbers}")?;
        }
        writeln!(f, "source: {}", self.source)?;
        let inputs: Vec<String> = self.inputs.iter().map(|(name, value)| format!("{name}={value}")).collect();
        writeln!(f, "inputs: {}", inputs.join(" "))?;
        for Recorded { quantity, id } in &self.ledger {
            match id {
                Some(id) => writeln!(f, "ledger: {id} ({quantity})")?,
                None => writeln!(f, "ledger: not written ({quantity})")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_speak_of_what_was_given() {
        let said = |refused: Result<(), Refused>| refused.expect_err("out of range").0;
        assert_eq!(said(within("the years", 90.0, 0.1, 50.0)), "the years is 90; it must be from 0.1 to 50");
        assert_eq!(said(within("the years", 1e300, 0.1, 50.0)), "the years is 1e300; it must be from 0.1 to 50");
        assert_eq!(said(within("the years", f64::NAN, 0.1, 50.0)), "the years is NaN; it must be from 0.1 to 50");
        let percent = |given: f64| said(within_percent("the error", given / 100.0, 0.001, 1.0));
        for (given, said) in [(0.01, "0.01"), (300.0, "300"), (-7.0, "-7"), (0.07, "0.07"), (1e300, "1e300")] {
            assert_eq!(percent(given), format!("the error, percent, is {said}; it must be from 0.1 to 100"));
        }
        assert!(within_percent("the error", 0.05, 0.001, 1.0).is_ok());
    }
}
