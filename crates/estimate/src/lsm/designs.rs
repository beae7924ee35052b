//! Write amplification of four designs (Algorithms 1 and 2 and Appendix C of the paper).

use super::popularity::Keys;

/// Compaction starts at so many tables in level 0, in LevelDB.
pub const LEVEL0_TABLES: f64 = 4.0;

/// Write amplification, part by part: a name, and bytes written for each byte inserted.
pub type Parts = Vec<(String, f64)>;

/// LevelDB (Algorithm 1): `sizes` are those of levels 1 to L-1, in items; the last level holds all keys.
pub fn leveldb(keys: &impl Keys, memtable: f64, sizes: &[f64]) -> Parts {
    let mut parts = vec![("log".into(), 1.0), ("memtable to level 0".into(), keys.unique(memtable) / memtable)];
    let size = |level: usize| sizes.get(level - 1).copied().unwrap_or(keys.keys());
    let mut interval = memtable * LEVEL0_TABLES;
    parts.push(("level 0 to 1".into(), merged(keys, interval, size(1)) / interval));
    for level in 1..=sizes.len() {
        // Cumulative: what overflows a level is on its way through the next.
        interval += keys.dinterval(size(level));
        // The second term is for tables of the next level that overlap only with their ends.
        let written = merged(keys, interval, size(level + 1)) + keys.unique(interval);
        parts.push((format!("level {level} to {}", level + 1), written / interval));
    }
    parts
}

/// Items of a level of `size` after some requests have been merged into it.
fn merged(keys: &impl Keys, requests: f64, size: f64) -> f64 {
    keys.unique(requests + keys.requests(size))
}

/// The same if no key ever came twice, as asymptotic analysis assumes (section 4.6 of the paper).
pub fn leveldb_worst_case(memtable: f64, sizes: &[f64], keys: f64) -> f64 {
    let size = |level: usize| sizes.get(level - 1).copied().unwrap_or(keys);
    let first = memtable * LEVEL0_TABLES;
    // Merging u items into v writes u + v.
    let below: f64 = (1..=sizes.len()).map(|level| 1.0 + size(level + 1) / size(level)).sum();
    2.0 + (first + size(1)) / first + below
}

/// Levels of COLA and SAMT for a growth factor.
pub fn levels(keys: f64, memtable: f64, growth: f64) -> usize {
    ((keys / memtable).ln() / growth.ln()).ceil().max(1.0) as usize
}

/// COLA (Algorithm 2): a level takes r-1 merges before it is merged into the next.
pub fn cola(keys: &impl Keys, memtable: f64, growth: u32) -> Parts {
    stages(keys, memtable, growth, |interval| {
        (0..growth - 1).map(|merges| keys.unique(interval + interval * f64::from(merges))).sum()
    })
}

/// SAMT (Algorithm 2): a level keeps r tables before it merges them.
pub fn samt(keys: &impl Keys, memtable: f64, growth: u32) -> Parts {
    stages(keys, memtable, growth, |interval| f64::from(growth) * keys.unique(interval))
}

fn stages(keys: &impl Keys, memtable: f64, growth: u32, written: impl Fn(f64) -> f64) -> Parts {
    let growth = f64::from(growth);
    let levels = levels(keys.keys(), memtable, growth);
    let mut parts = vec![("log".to_string(), 1.0)];
    let mut interval = memtable;
    for level in 0..levels - 1 {
        let items = written(interval);
        interval *= growth;
        parts.push((format!("level {level}"), items / interval));
    }
    parts.push((format!("level {}", levels - 1), keys.keys() / interval));
    parts
}

/// Settings of universal compaction, by the names that RocksDB gives them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Universal {
    /// Tables at which compaction starts (`level0_file_num_compaction_trigger`).
    pub trigger: usize,
    /// Tables at which writers wait (`level0_stop_writes_trigger`).
    pub stop: usize,
    /// Most that all tables but the oldest may hold, in percent of it (`max_size_amplification_percent`).
    pub amplification_percent: f64,
    /// By how many percent the next table may be larger than those before it together (`size_ratio`).
    pub ratio_percent: f64,
}

impl Default for Universal {
    /// The paper's: 12 tables, the rest as in RocksDB 4.0.
    fn default() -> Universal {
        Universal { trigger: 12, stop: 24, amplification_percent: 200.0, ratio_percent: 1.0 }
    }
}

/// A table: how many requests went into it, and how many items are left of them.
#[derive(Clone, Copy, Debug)]
struct Table {
    requests: f64,
    items: f64,
}

/// Universal compaction, simulated table by table (Appendix C) from one table with all keys until `rounds` times as many
/// requests were made as there are keys.
pub fn universal(keys: &impl Keys, memtable: f64, settings: Universal, rounds: f64) -> Parts {
    let flushed = keys.unique(memtable);
    // Newest first.
    let mut tables = vec![Table { requests: f64::INFINITY, items: keys.keys() }];
    let (mut requests, mut flushes, mut merges) = (0.0, 0.0, 0.0);
    while requests < rounds * keys.keys() {
        // With fewer, nothing might be merged while writers wait.
        if tables.len() < settings.stop.max(settings.trigger + 2) {
            tables.insert(0, Table { requests: memtable, items: flushed });
            requests += memtable;
            flushes += flushed;
        }
        if tables.len() < settings.trigger {
            continue;
        }
        if let Some(range) = chosen(&tables, settings) {
            let requests = tables[range.clone()].iter().map(|table| table.requests).sum();
            let merged = Table { requests, items: keys.unique(requests) };
            merges += merged.items;
            tables.splice(range, [merged]);
        }
    }
    let part = |name: &str, items: f64| (name.to_string(), items / requests);
    vec![("log".into(), 1.0), part("memtable to table", flushes), part("compaction", merges)]
}

/// Which tables are merged next.
fn chosen(tables: &[Table], settings: Universal) -> Option<std::ops::Range<usize>> {
    let (last, newer) = tables.split_last()?;
    if newer.iter().map(|table| table.items).sum::<f64>() / last.items > settings.amplification_percent / 100.0 {
        return Some(0..tables.len());
    }
    for from in 0..tables.len() {
        let mut sum = tables[from].items;
        let mut end = from + 1;
        while end < tables.len() && sum * (100.0 + settings.ratio_percent) / 100.0 >= tables[end].items {
            sum += tables[end].items;
            end += 1;
        }
        if end - from >= 2 {
            return Some(from..end);
        }
    }
    let surplus = tables.len() - settings.trigger;
    (surplus >= 2).then_some(0..surplus)
}

/// All parts together.
pub fn total(parts: &Parts) -> f64 {
    parts.iter().map(|(_, amplification)| amplification).sum()
}
