//! Results, as a table for people (in Markdown) or as JSON.

use crate::bench::contender::{Contender, Missing};
use crate::bench::machine;
use crate::bench::median;
use crate::bench::rows::{Bar, ROWS, Row, Unit};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Everything that was measured.
pub struct Results {
    /// Where and when.
    pub facts: Value,
    /// Who is compared with the others.
    pub subject: &'static str,
    /// Who took part.
    pub contenders: Vec<Contender>,
    /// Who did not, and why.
    pub missing: Vec<Missing>,
    /// Which rows to show.
    pub shown: Vec<bool>,
    /// Figures by row and contender, one for each round.
    pub figures: BTreeMap<(usize, &'static str), Vec<f64>>,
    /// What failed: row, contender, error.
    pub failures: BTreeMap<(usize, &'static str), String>,
}

impl Results {
    fn median(&self, row: usize, contender: &'static str) -> Option<f64> {
        self.figures.get(&(row, contender)).map(|figures| median(figures))
    }

    /// The best median of those that `admits`, other than the subject.
    fn best(&self, row: usize, admits: impl Fn(&Contender) -> bool) -> Option<f64> {
        let others = self.contenders.iter().filter(|other| other.name != self.subject && admits(other));
        let medians = others.filter_map(|other| self.median(row, other.name));
        medians.reduce(|best, other| if ROWS[row].unit.times_worse(best, other) > 1.0 { other } else { best })
    }

    /// How many times worse the subject is than the best of those that `admits`.
    fn times(&self, row: usize, admits: impl Fn(&Contender) -> bool) -> Option<f64> {
        Some(ROWS[row].unit.times_worse(self.median(row, self.subject)?, self.best(row, admits)?))
    }

    fn shown_rows(&self) -> impl Iterator<Item = (usize, &'static Row)> {
        ROWS.iter().enumerate().filter(|(index, _)| self.shown[*index])
    }

    /// Whether the subject reaches the bar; `None` if that was not measured.
    fn reached(&self, row: usize, bar: Bar) -> Option<bool> {
        self.times(row, |contender| bar.reference.admits(contender)).map(|times| times <= bar.times)
    }

    /// The whole report for people.
    pub fn text(&self) -> String {
        let rounds = self.figures.values().map(Vec::len).max().unwrap_or(0);
        let mut text = format!("{}\n\n", machine::heading(&self.facts));
        text += &format!(
            "Every figure is measured: the median of {rounds} rounds, with the largest over the smallest in brackets.\n\
             Ratios say how many times worse {} is than ext4, than the best in the kernel, and than the best other in user\n\
             space; below 1 it is better. A bar is the ratio that it should not exceed.\n\n",
            self.subject
        );
        let mut header = vec!["row".to_string(), "unit".into()];
        header.extend(self.contenders.iter().map(|contender| contender.name.to_string()));
        header.extend(["/ ext4", "/ kernel", "/ user", "bar", "reached"].map(String::from));
        let mut lines = vec![header];
        for (index, row) in self.shown_rows() {
            lines.push(self.line(index, row));
        }
        text += &align(&lines);
        for (name, why) in &self.missing {
            text += &format!("\n{name} did not take part: {why}");
        }
        for ((row, name), error) in &self.failures {
            text += &format!("\n{name} failed at {}: {error}", ROWS[*row].name);
        }
        text + &self.shapes()
    }

    fn line(&self, index: usize, row: &Row) -> Vec<String> {
        let mut line = vec![row.name.to_string(), row.unit.name().to_string()];
        for contender in &self.contenders {
            let figures = self.figures.get(&(index, contender.name));
            line.push(match figures {
                Some(figures) => {
                    let spread = figures.iter().copied().fold(f64::MIN, f64::max)
                        / figures.iter().copied().fold(f64::MAX, f64::min);
                    format!("{} ({spread:.1})", figure(median(figures), row.unit))
                }
                None if self.failures.contains_key(&(index, contender.name)) => "failed".into(),
                None => "-".into(),
            });
        }
        let times = |times: Option<f64>| times.map_or("-".to_string(), |times| format!("{times:.2}"));
        line.push(times(self.times(index, |contender| contender.name == "ext4")));
        line.push(times(self.times(index, Contender::in_kernel)));
        line.push(times(self.times(index, Contender::in_user_space)));
        line.push(row.bar.map_or(String::new(), |bar| format!("{} x {}", bar.times, bar.reference.name())));
        let reached = row.bar.and_then(|bar| self.reached(index, bar));
        line.push(reached.map_or("", |reached| if reached { "yes" } else { "NO" }).to_string());
        line
    }

    /// What must hold between rows of the subject: appends rise with writers, unlink does not depend on length.
    fn shapes(&self) -> String {
        let of = |name: &str| {
            let index = ROWS.iter().position(|row| row.name == name)?;
            self.median(index, self.subject).filter(|_| self.shown[index])
        };
        let mut text = String::new();
        let appends: Vec<f64> = ["1 writer", "2 writers", "4 writers", "8 writers"]
            .iter()
            .filter_map(|writers| of(&format!("append 4 KiB + fsync, {writers}")))
            .collect();
        if appends.len() == 4 {
            let rises = appends.windows(2).all(|pair| pair[0] < pair[1]);
            text += &format!("\nappends with fsync rise with writers: {}", if rises { "yes" } else { "NO" });
        }
        if let (Some(small), Some(large)) = (of("unlink 64 MiB"), of("unlink 1 GiB")) {
            text += &format!("\nunlink of 1 GiB takes {:.1} times as long as of 64 MiB", large / small);
        }
        text + "\n"
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let rows: Vec<Value> = self
            .shown_rows()
            .map(|(index, row)| {
                let figures: BTreeMap<&str, Value> = self
                    .contenders
                    .iter()
                    .filter_map(|contender| {
                        let figures = self.figures.get(&(index, contender.name))?;
                        Some((contender.name, json!({ "median": median(figures), "rounds": figures })))
                    })
                    .collect();
                json!({
                    "row": row.name,
                    "unit": row.unit.name(),
                    "less_is_better": row.unit != Unit::PerSecond,
                    "cold": row.cold,
                    "measured": figures,
                    "times_worse_than": {
                        "ext4": self.times(index, |contender| contender.name == "ext4"),
                        "best_kernel": self.times(index, Contender::in_kernel),
                        "best_user": self.times(index, Contender::in_user_space),
                    },
                    "bar": row.bar.map(|bar| json!({
                        "reference": bar.reference.name(),
                        "times_worse_max": bar.times,
                        "reached": self.reached(index, bar),
                    })),
                })
            })
            .collect();
        let failures: Vec<Value> = self
            .failures
            .iter()
            .map(|((row, name), error)| json!({ "row": ROWS[*row].name, "contender": name, "error": error }))
            .collect();
        let missing: BTreeMap<&str, &String> = self.missing.iter().map(|(name, why)| (*name, why)).collect();
        json!({ "machine": self.facts, "rows": rows, "missing": missing, "failures": failures })
    }
}

fn figure(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Seconds if value < 0.001 => format!("{:.1} us", value * 1e6),
        Unit::Seconds if value < 0.1 => format!("{:.1} ms", value * 1e3),
        Unit::Seconds => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

/// Lays lines out as a Markdown table.
pub fn align(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text += &format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "));
        if index == 0 {
            let rules = widths.iter().enumerate().map(|(column, width)| {
                if column == 0 { "-".repeat(*width) } else { format!("{}:", "-".repeat(width - 1)) }
            });
            text += &format!("| {} |\n", rules.collect::<Vec<_>>().join(" | "));
        }
    }
    text
}
