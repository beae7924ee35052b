//! Write amplification of log-structured merge trees.
//!
//! Lim, Andersen and Kaminsky, "Towards accurate and fast evaluation of multi-stage log-structured designs", FAST '16:
//! how many different keys some requests hold ([`Keys::unique`]), its inverse, and the size of merged tables give the
//! bytes written for each byte inserted, for keys that are independent of each other and of time. Sizes are in items.
//!
//! Our own addition: value separation. With it the tree holds keys and pointers, and values go to a log that is cleaned.
//!
//! Departs: COLA and SAMT have as many levels as `ceil(log_r(keys / memtable))`; the paper leaves that open.

mod assumed;
mod curve;
mod designs;
mod explain;
mod optimize;
mod popularity;
mod simulate;
#[cfg(test)]
mod tests;
mod traced;

pub use curve::Curve;
pub use designs::{Parts, Universal, cola, leveldb, leveldb_worst_case, levels, samt, total, universal};
pub use optimize::{Optimum, optimize};
pub use popularity::{Distribution, Keys, Popularity, RATIO_COARSE};
pub use simulate::{Picking, Simulation, simulate};
pub use traced::{Counting, Traced};

use crate::common::{About, Estimate, Inputs, Predicted, Refused, within};
use ashlar_report::{Axis, Origin, Plot, Series, number};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use std::fmt;
use std::str::FromStr;

/// What this estimator is.
pub static ABOUT: About = About {
    name: "lsm",
    what: "how many bytes a log-structured merge tree writes for each byte that it is given",
    source: "Lim, Andersen, Kaminsky: Towards accurate and fast evaluation of multi-stage log-structured designs, FAST 2016",
    version: 1,
    formulas: "Unique(p) = N - sum over keys of (1 - f(k))^p: different keys in p requests.\n\
               Merge(u, v) = Unique(Unique^-1(u) + Unique^-1(v)): items of two tables that become one.\n\
               DInterval(S): requests between two compactions of a key in a level of S items that is compacted in turn:\n\
               sum over keys of [1 - (1 - e^-a)/a] = S, with a = -ln(1 - f(k)) DInterval.\n\
               LevelDB: 1 for the log, Unique(wal)/wal for level 0, Merge(Unique(I), Size_1)/I for level 1 with I = 4 wal;\n\
               then for each level I += DInterval(Size_l), and [Merge(Unique(I), Size_l+1) + Unique(I)]/I.\n\
               Values apart: [tree amplification x (key + pointer) + value / (1 - fill)] / (key + value).",
};

/// Bytes of a pointer to a value in the log: file, offset, length.
const POINTER: f64 = 16.0;
/// Most steps of the simulation of universal compaction; more would take seconds.
const FLUSHES_MAX: f64 = 1e7;

/// A design of a merge tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// Levels whose tables are compacted in turn.
    LevelDb,
    /// Cache-oblivious lookahead array.
    Cola,
    /// Sorted array merge tree.
    Samt,
    /// RocksDB's universal compaction.
    Universal,
}

impl Design {
    const ALL: [(Design, &str); 4] = [
        (Design::LevelDb, "leveldb"),
        (Design::Cola, "cola"),
        (Design::Samt, "samt"),
        (Design::Universal, "universal"),
    ];

    fn name(self) -> &'static str {
        Design::ALL.iter().find(|(design, _)| *design == self).map_or("", |(_, name)| name)
    }
}

impl FromStr for Design {
    type Err = String;
    fn from_str(text: &str) -> Result<Design, String> {
        let found = Design::ALL.iter().find(|(_, name)| *name == text);
        found
            .map(|(design, _)| *design)
            .ok_or_else(|| format!("{text:?} is no design; there are leveldb, cola, samt and universal"))
    }
}

/// A tree, and what is written into it.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The design.
    pub design: Design,
    /// Different keys.
    pub keys: f64,
    /// Bytes of an item: key and value.
    pub item: f64,
    /// How requests are spread over keys.
    pub distribution: Distribution,
    /// Bytes of the memtable, which is as large as its log.
    pub memtable: f64,
    /// Bytes of level 1.
    pub level1: f64,
    /// How much larger a level is than the one before: of LevelDB's levels, COLA and SAMT.
    pub growth: u32,
    /// Settings of universal compaction.
    pub universal: Universal,
    /// Keep values apart from the tree: bytes of a key, and how full the cleaned parts of the log of values are.
    pub apart: Option<Apart>,
}

/// Values are kept apart from the tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Apart {
    /// Bytes of a key.
    pub key: f64,
    /// Part of a cleaned segment of the log that is still in use, from 0 up to 0.99.
    pub fill: f64,
}

impl Workload {
    /// LevelDB with its own sizes: a memtable of 4 MiB, level 1 of 10 MiB, and ten times as much in each further level.
    pub fn new(design: Design, keys: f64, item: f64, distribution: Distribution) -> Workload {
        let growth = if matches!(design, Design::Cola | Design::Samt) { 2 } else { 10 };
        let (memtable, level1) = (f64::from(4 << 20), f64::from(10 << 20));
        Workload {
            design,
            keys,
            item,
            distribution,
            memtable,
            level1,
            growth,
            universal: Universal::default(),
            apart: None,
        }
    }

    /// Bytes of an item in the tree.
    fn tree_item(&self) -> f64 {
        self.apart.map_or(self.item, |apart| apart.key + POINTER)
    }

    /// Items of the memtable.
    pub fn memtable_items(&self) -> f64 {
        self.memtable / self.tree_item()
    }

    /// Sizes of levels 1 to L-1, in items.
    pub fn level_items(&self) -> Vec<f64> {
        let sizes = (0..64).map(|level| self.level1 / self.tree_item() * f64::from(self.growth).powi(level));
        sizes.take_while(|size| *size < self.keys * 0.999).collect()
    }

    fn validate(&self) -> Result<(), Refused> {
        within("the number of keys", self.keys, 2.0, 1e15)?;
        within("the size of an item", self.item, 1.0, 1e9)?;
        within("the growth factor", self.growth.into(), 2.0, 1000.0)?;
        if let Some(Apart { key, fill }) = self.apart {
            within("the size of a key", key, 1.0, self.item)?;
            within("the fill of the log of values", fill, 0.0, 0.99)?;
        }
        let (name, items) = ("the memtable, in items,", self.memtable_items());
        within(name, items, 1.0, self.keys)?;
        within("level 1, in items,", self.level1 / self.tree_item(), 1.0, 1e15)?;
        within("the trigger of universal compaction", self.universal.trigger as f64, 2.0, 10_000.0)?;
        within("the stop of universal compaction", self.universal.stop as f64, 2.0, 10_000.0)?;
        if self.design == Design::Universal {
            let flushes = 10.0 * self.keys / items;
            if flushes > FLUSHES_MAX {
                let flushes = number(flushes);
                return Err(Refused(format!(
                    "ten writes of each key fill {flushes} memtables, too many to simulate; take a larger memtable or fewer keys"
                )));
            }
        }
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        let mut inputs = Inputs::from([
            ("design".into(), json!(self.design.name())),
            ("keys".into(), json!(self.keys)),
            ("item".into(), json!(self.item)),
            ("distribution".into(), json!(self.distribution.to_string())),
            ("memtable".into(), json!(self.memtable)),
        ]);
        let mut add = |name: &str, value| inputs.insert(name.into(), value);
        match self.design {
            Design::LevelDb => {
                add("level1", json!(self.level1));
                add("growth", json!(self.growth));
            }
            Design::Cola | Design::Samt => drop(add("growth", json!(self.growth))),
            Design::Universal => {
                add("trigger", json!(self.universal.trigger));
                add("stop", json!(self.universal.stop));
                add("max_size_amplification_percent", json!(self.universal.amplification_percent));
                add("size_ratio", json!(self.universal.ratio_percent));
            }
        }
        if let Distribution::Trace(traced) = &self.distribution {
            add("trace_requests", json!(traced.requests));
            add("trace_keys", json!(traced.keys));
        }
        if let Some(apart) = self.apart {
            add("separate_key", json!(apart.key));
            add("separate_fill", json!(apart.fill));
        }
        inputs
    }

    /// What the ledger knows this by.
    pub fn subject(&self) -> String {
        let inputs = self.inputs().into_iter().filter(|(name, _)| name != "design");
        let inputs: Vec<String> =
            inputs.map(|(name, value)| format!("{name}={}", value.to_string().trim_matches('"'))).collect();
        format!("lsm {} {}", self.design.name(), inputs.join(" "))
    }

    /// The same for the item-level simulation; LevelDB only, with items as they are.
    pub fn simulation(&self, seed: u64) -> Result<Simulation, Refused> {
        self.validate()?;
        if self.design != Design::LevelDb || self.apart.is_some() {
            return Err(Refused("only --design leveldb with values in the tree can be simulated item by item".into()));
        }
        within("the number of keys to simulate", self.keys, 2.0, 2e7)?;
        let items = |bytes: f64| (bytes / self.item) as usize;
        Ok(Simulation {
            keys: self.keys as u32,
            distribution: self.distribution.clone(),
            memtable: items(self.memtable).max(1),
            sizes: self.level_items(),
            table: items(f64::from(2 << 20)).max(1),
            grandparents: items(f64::from(20 << 20)).max(1),
            rounds: 10.0,
            picking: Picking::InTurn,
            seed,
        })
    }

    /// The parts of the tree's write amplification.
    fn parts(&self, keys: &impl Keys) -> Parts {
        let memtable = self.memtable_items();
        match self.design {
            Design::LevelDb => leveldb(keys, memtable, &self.level_items()),
            Design::Cola => cola(keys, memtable, self.growth),
            Design::Samt => samt(keys, memtable, self.growth),
            Design::Universal => universal(keys, memtable, self.universal, 10.0),
        }
    }

    /// Write amplification for the user's bytes, from that of the tree.
    fn whole(&self, tree: f64) -> f64 {
        let Some(apart) = self.apart else { return tree };
        let value = self.item - apart.key;
        (tree * self.tree_item() + value / (1.0 - apart.fill)) / self.item
    }
}

/// A part of the write amplification.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Level {
    /// Where the bytes are written.
    pub name: String,
    /// Bytes written there for each byte inserted into the tree.
    pub write_amplification: f64,
}

/// Bytes written for each byte inserted.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct WriteAmplification {
    /// Each part of the tree.
    pub levels: Vec<Level>,
    /// All of it; with values apart, for the whole items.
    pub total: f64,
}

/// The best level sizes.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Optimized {
    /// Bytes of levels 1 to L-1.
    pub sizes: Vec<f64>,
    /// Items of levels 1 to L-1.
    pub items: Vec<f64>,
    /// The write amplification then.
    pub write_amplification: WriteAmplification,
    /// Evaluations of the model.
    pub evaluations: u64,
}

/// What `plan estimate lsm` answers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Answer {
    /// With the sizes that were given.
    pub write_amplification: WriteAmplification,
    /// Bytes of levels 1 to L-1 that were given; of other designs none.
    pub sizes: Vec<f64>,
    /// With the best sizes; null for designs whose levels have none.
    pub optimized: Option<Optimized>,
    /// What analysis without duplicate keys would say; LevelDB only.
    pub worst_case: Option<f64>,
    /// What the item-level simulation gave, if it was run.
    pub simulated: Option<f64>,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let best = self.optimized.as_ref().map(|optimized| &optimized.write_amplification);
        writeln!(f, "{:<22}{:>10}{:>14}", "bytes written for each", "as given", "best sizes")?;
        for (index, level) in self.write_amplification.levels.iter().enumerate() {
            let other = best.and_then(|best| best.levels.get(index));
            let other = other.map_or(String::new(), |level| format!("{:.3}", level.write_amplification));
            writeln!(f, "{:<22}{:>10.3}{other:>14}", level.name, level.write_amplification)?;
        }
        let other = best.map_or(String::new(), |best| format!("{:.3}", best.total));
        writeln!(f, "{:<22}{:>10.3}{other:>14}", "total", self.write_amplification.total)?;
        let sizes = |sizes: &[f64]| {
            sizes.iter().map(|size| format!("{:.1} MiB", size / 1048576.0)).collect::<Vec<_>>().join(", ")
        };
        if let Some(optimized) = &self.optimized {
            writeln!(f, "sizes of levels: {}", sizes(&self.sizes))?;
            writeln!(f, "best sizes:      {} ({} evaluations)", sizes(&optimized.sizes), optimized.evaluations)?;
        }
        if let Some(worst) = self.worst_case {
            writeln!(f, "without duplicate keys, as in asymptotic analysis: {worst:.2}")?;
        }
        if let Some(simulated) = self.simulated {
            writeln!(f, "simulated item by item: {simulated:.3}")?;
        }
        Ok(())
    }
}

/// Estimates.
pub fn estimate(workload: &Workload) -> Result<Estimate<Answer>, Refused> {
    workload.validate()?;
    let popularity = Popularity::new(workload.keys, &workload.distribution)?;
    let coarse = Curve::new(&Popularity::grouped(workload.keys, &workload.distribution, RATIO_COARSE)?);
    let tree = if workload.design == Design::Universal {
        workload.parts(&Curve::new(&popularity))
    } else {
        workload.parts(&popularity)
    };
    let (bytes, sizes) = (workload.tree_item(), workload.level_items());
    let leveled = workload.design == Design::LevelDb;
    let optimized = (leveled && !sizes.is_empty()).then(|| {
        let best = optimize(&coarse, workload.memtable_items(), &sizes);
        let parts = leveldb(&popularity, workload.memtable_items(), &best.sizes);
        Optimized {
            sizes: best.sizes.iter().map(|size| size * bytes).collect(),
            items: best.sizes,
            write_amplification: amplification(workload, &parts),
            evaluations: best.evaluations,
        }
    });
    let worst = leveldb_worst_case(workload.memtable_items(), &sizes, workload.keys);
    let answer = Answer {
        write_amplification: amplification(workload, &tree),
        sizes: if leveled { sizes.iter().map(|size| size * bytes).collect() } else { Vec::new() },
        optimized,
        worst_case: leveled.then(|| workload.whole(worst)),
        simulated: None,
    };
    let total = answer.write_amplification.total;
    let mut estimate = Estimate::new(&ABOUT, workload.subject(), workload.inputs(), answer);
    estimate.predictions = vec![predicted("write_amplification", workload, total)];
    if let Some(best) = &estimate.answer.optimized {
        estimate.predictions.push(predicted("write_amplification.optimized", workload, best.write_amplification.total));
    }
    estimate.assumptions = assumed::assumptions(workload);
    let changed = assumed::changes(workload).into_iter().filter_map(|(change, other)| {
        let keys = Popularity::grouped(other.keys, &other.distribution, RATIO_COARSE).ok()?;
        other.validate().ok()?;
        let parts =
            if other.design == Design::Universal { other.parts(&Curve::new(&keys)) } else { other.parts(&keys) };
        Some((change, other.whole(total_of(&parts))))
    });
    estimate.judge(total, changed.collect());
    estimate.explanation = explain::steps(workload, &popularity, &estimate.answer);
    Ok(estimate)
}

fn total_of(parts: &Parts) -> f64 {
    designs::total(parts)
}

fn amplification(workload: &Workload, parts: &Parts) -> WriteAmplification {
    let levels = parts
        .iter()
        .map(|(name, write_amplification)| Level { name: name.clone(), write_amplification: *write_amplification });
    WriteAmplification { levels: levels.collect(), total: workload.whole(total_of(parts)) }
}

/// The range is what was found where the model was compared with simulators and real stores.
fn predicted(quantity: &str, workload: &Workload, value: f64) -> Predicted {
    let (part, from) = match workload.design {
        _ if workload.apart.is_some() => (0.15, "our own addition; nobody has compared it with a store"),
        Design::LevelDb if workload.keys >= 3e6 => (0.03, "worst error against LevelDB in Figure 9 of the paper"),
        Design::LevelDb => (0.05, "error against the item-level simulator at a million keys"),
        Design::Universal => (0.065, "worst error against RocksDB 4.0 in Figure 11 of the paper"),
        Design::Cola | Design::Samt => (0.10, "a guess: the paper compares these models with no store"),
    };
    let (low, high) = (value * (1.0 - part), value * (1.0 + part));
    Predicted {
        quantity: quantity.into(),
        unit: "bytes/byte".into(),
        value,
        low,
        high,
        confidence: 0.9,
        range_from: from.into(),
    }
}

/// The estimate as a plot: each part, as given and with the best sizes.
pub fn figure(estimate: &Estimate<Answer>) -> Plot {
    let given = &estimate.answer.write_amplification.levels;
    let values = |levels: &[Level]| levels.iter().map(|level| level.write_amplification).collect();
    let short = |level: &Level| level.name.replace("memtable", "mem").replace("level ", "L").replace(" to ", "→");
    let plot = Plot::bars(
        format!("Write amplification, {}", estimate.inputs["design"].as_str().unwrap_or_default()),
        given.iter().map(short).collect(),
        Axis::new("bytes written / byte inserted"),
        Origin::Modelled,
    );
    let plot = plot.with(Series::bars("as given", values(given)));
    match &estimate.answer.optimized {
        Some(best) => plot.with(Series::bars("best sizes", values(&best.write_amplification.levels))),
        None => plot,
    }
}
