//! The popularity of keys that a trace shows.

use crate::common::Refused;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// Most different keys of a trace: the table of counts takes some 400 MB then.
const KEYS_MAX: usize = 1 << 24;

/// How often keys were asked for, without saying which.
#[derive(Clone, Debug, PartialEq)]
pub struct Traced {
    /// What the trace is called.
    pub name: String,
    /// Requests for keys.
    pub requests: u64,
    /// Different keys.
    pub keys: u64,
    /// How many keys were asked for so often, by how often.
    pub counts: Vec<(u64, u64)>,
    /// Requests of a window, and the mean number of different keys in one; of traces that are shorter nothing.
    pub window: Option<(u64, f64)>,
}

impl fmt::Display for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "trace:{}", self.name)
    }
}

/// Counts the keys of a trace.
#[derive(Debug)]
pub struct Counting {
    counts: HashMap<u64, u64>,
    requests: u64,
    window: u64,
    /// Different keys of this window, and of all windows that are full.
    seen: HashSet<u64>,
    full: u64,
    unique: u64,
}

impl Counting {
    /// Nothing counted yet. In windows of so many requests, different keys are counted too: so one sees whether requests are
    /// as independent as the model has them.
    pub fn new(window: u64) -> Counting {
        let (counts, seen) = (HashMap::new(), HashSet::new());
        Counting { counts, requests: 0, window: window.max(1), seen, full: 0, unique: 0 }
    }

    /// Counts a request for a key.
    pub fn see(&mut self, key: u64) -> Result<(), Refused> {
        *self.counts.entry(key).or_default() += 1;
        if self.counts.len() > KEYS_MAX {
            return Err(Refused(format!(
                "the trace has more than {KEYS_MAX} different keys, as many as are counted here; take a part of it, and say with \
                 --keys how many there are"
            )));
        }
        self.requests += 1;
        self.seen.insert(key);
        if self.requests.is_multiple_of(self.window) {
            self.full += 1;
            self.unique += self.seen.len() as u64;
            self.seen.clear();
        }
        Ok(())
    }

    /// What was counted.
    pub fn finish(self, name: &str) -> Result<Traced, Refused> {
        let keys = self.counts.len() as u64;
        if keys < 2 {
            return Err(Refused(format!("writes to {keys} keys have no popularity to take; at least 2 are needed")));
        }
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        self.counts.into_values().for_each(|count| *counts.entry(count).or_default() += 1);
        let window = (self.full > 0).then(|| (self.window, self.unique as f64 / self.full as f64));
        Ok(Traced { name: name.into(), requests: self.requests, keys, counts: counts.into_iter().collect(), window })
    }
}

impl Traced {
    /// Groups of keys and the sums of their weights, for so many keys: each stands for several, or for a part of one.
    pub(super) fn sums(&self, keys: f64) -> Vec<(f64, f64)> {
        let times = keys / self.keys as f64;
        self.counts.iter().map(|(count, same)| (*same as f64 * times, (same * count) as f64 * times)).collect()
    }
}
