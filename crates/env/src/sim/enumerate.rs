//! All runs of a tiny system, one after another, depth first.

use super::{Choice, Schedule};

/// Enumerates every sequence of choices: each run replays a prefix of the one before and takes the next option at the last
/// choice that has one left. The system must be the same every time, and its runs must end, if only by a bound.
#[derive(Debug, Default)]
pub struct Enumeration {
    prefix: Vec<u32>,
    complete: bool,
}

impl Enumeration {
    /// The beginning.
    pub fn new() -> Enumeration {
        Enumeration::default()
    }

    /// How the next run goes; `None` when all have been.
    pub fn schedule(&self) -> Option<Schedule> {
        (!self.complete).then(|| Schedule::Prefix(self.prefix.clone()))
    }

    /// Takes note of what a run chose.
    pub fn note(&mut self, choices: &[Choice]) {
        let last = choices.iter().rposition(|choice| choice.taken + 1 < choice.of);
        let Some(last) = last else {
            self.complete = true;
            return;
        };
        self.prefix.clear();
        self.prefix.extend(choices[..last].iter().map(|choice| choice.taken));
        self.prefix.push(choices[last].taken + 1);
    }
}
