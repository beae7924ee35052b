//! Vectors as text.

use super::keys::{Key, Unit};
use super::{PROBABILITIES, Source, Value, Vector};
use std::fmt::{self, Write as _};
use std::io::{BufRead, Read};

/// Longest line of a file, bytes.
const LINE_LEN_MAX: u64 = 4096;
/// Most lines.
const LINES_MAX: u64 = 1 << 14;

impl Vector {
    /// Reads a file; what is wrong with it is told with the line.
    pub fn read(mut input: impl BufRead) -> Result<Vector, String> {
        let mut vector = Vector::default();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let len = (&mut input).take(LINE_LEN_MAX).read_until(b'\n', &mut line);
            if len.map_err(|error| error.to_string())? == 0 {
                break;
            }
            let text = std::str::from_utf8(&line).map_err(|_| "it is no text".to_string());
            let read = match number {
                LINES_MAX.. => Err(format!("a vector has at most {LINES_MAX} lines")),
                _ => text.and_then(|text| vector.line(text.trim())),
            };
            read.map_err(|what| format!("line {number}: {what}"))?;
        }
        if vector.values.is_empty() {
            return Err("it has no results; write lines as in `OPEN 0.09`".into());
        }
        Ok(vector)
    }

    fn line(&mut self, text: &str) -> Result<(), String> {
        if text.is_empty() || text.starts_with('#') {
            return Ok(());
        }
        if let Some(said) = text.strip_prefix('@') {
            let (name, what) = said.split_once(char::is_whitespace).unwrap_or((said, ""));
            match name {
                "name" => self.name = what.trim().into(),
                "note" => self.notes.push(what.trim().into()),
                "origin" => self.source = source(what.trim())?,
                _ => return Err(format!("@{name} is none of @name, @origin, @note")),
            }
            return Ok(());
        }
        let mut words = text.split_whitespace();
        let key = Key::parse(words.next().unwrap_or_default())?;
        let unit = key.family.unit();
        let mean = number(words.next().ok_or(format!("{key} has no value"))?, unit, &key.to_string())?;
        let mut value = Value::exact(mean);
        for word in words {
            match word.split_once('=') {
                _ if word.starts_with('#') => break,
                Some(("se", text)) => value.error = within(text, 0.0, unit.range().1, "a standard error")?,
                Some(("n", text)) => value.count = within(text, 0.0, 1e15, "a number of results")? as u64,
                Some(("q", text)) => value.quantiles = Some(quantiles(text, unit)?),
                _ => return Err(format!("{word:?} is none of se=, n=, q=")),
            }
        }
        if self.values.insert(key, value).is_some() {
            return Err(format!("{key} is there twice"));
        }
        Ok(())
    }
}

fn source(text: &str) -> Result<Source, String> {
    match text {
        "measured" => Ok(Source::Measured),
        "emulated" => Ok(Source::Emulated),
        "modelled" => Ok(Source::Modelled),
        _ => Err(format!("{text:?} is none of measured, emulated, modelled")),
    }
}

fn within(text: &str, low: f64, high: f64, what: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (low..=high).contains(value));
    value.ok_or_else(|| format!("{text:?} is no value of {what}: write a number from {low} to {high}"))
}

fn number(text: &str, unit: Unit, what: &str) -> Result<f64, String> {
    let (low, high) = unit.range();
    within(text, low, high, &format!("{what}, in {}", unit.name()))
}

fn quantiles(text: &str, unit: Unit) -> Result<[f64; PROBABILITIES.len()], String> {
    let mut quantiles = [0.0; PROBABILITIES.len()];
    let mut words = text.split(',');
    let count = PROBABILITIES.len();
    let mut last = f64::NEG_INFINITY;
    for to in &mut quantiles {
        *to = number(words.next().ok_or(format!("q= has {count} numbers"))?, unit, "a quantile")?;
        if *to < last {
            return Err("quantiles do not go down".into());
        }
        last = *to;
    }
    if words.next().is_some() { Err(format!("q= has {count} numbers")) } else { Ok(quantiles) }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Measured => "measured",
            Source::Emulated => "emulated",
            Source::Modelled => "modelled",
        })
    }
}

impl fmt::Display for Vector {
    /// The text of the file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        writeln!(f, "@name {}\n@origin {}", one_line(&self.name), self.source)?;
        self.notes.iter().try_for_each(|note| writeln!(f, "@note {}", one_line(note)))?;
        let mut family = None;
        for (key, value) in self.iter() {
            let described = key.family.described();
            if family.replace(key.family) != Some(key.family) {
                let unit = described.unit.name();
                writeln!(
                    f,
                    "# {}{}",
                    described.what,
                    if unit.is_empty() { String::new() } else { format!(" [{unit}]") }
                )?;
            }
            let mut line = format!("{key} {}", value.mean);
            if value.error > 0.0 {
                let _ = write!(line, " se={}", value.error);
            }
            if value.count > 0 {
                let _ = write!(line, " n={}", value.count);
            }
            if let Some(quantiles) = &value.quantiles {
                let words: Vec<String> = quantiles.iter().map(f64::to_string).collect();
                let _ = write!(line, " q={}", words.join(","));
            }
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Family;
    use super::*;

    #[test]
    fn files_of_the_thesis_are_read() {
        let text = "# FFS\nBC 6400\nLUR_NC 6.347\nRD8 32000\nRRD8 1360.5 # random\n\nWR0 10\nWR500 11.39\n";
        let vector = Vector::read(text.as_bytes()).expect("a vector");
        assert_eq!(vector.number(Family::LUR_NC), Some(6.347));
        assert_eq!(
            vector.of(Family::WR).map(|(size, value)| (size, value.mean)).collect::<Vec<_>>(),
            [(0, 10.0), (500, 11.39)]
        );
        assert_eq!(Vector::read(vector.to_string().as_bytes()), Ok(vector));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, expected) in [
            ("OPEN 1\nOPNE 2", "line 2: there is no benchmark \"OPNE\"; the nearest is OPEN"),
            ("RD 5", "the nearest is RD"),
            ("OPEN", "OPEN has no value"),
            ("OPEN -1", "from 0 to"),
            ("OPEN NaN", "from 0 to"),
            ("RDC 0", "KB/s"),
            ("OPEN 1\nOPEN 1", "twice"),
            ("OPEN 1 q=1,2", "9 numbers"),
            ("OPEN 1 q=9,8,7,6,5,4,3,2,1", "go down"),
            ("OPEN 1 x", "se=, n=, q="),
            ("@origin hearsay", "measured, emulated, modelled"),
            ("", "no results"),
            ("RD99999999999999999999 5", "no benchmark"),
        ] {
            let error = Vector::read(text.as_bytes()).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
