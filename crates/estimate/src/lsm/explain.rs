//! The calculation with its numbers.

use super::designs::LEVEL0_TABLES;
use super::popularity::{Distribution, Keys};
use super::{Answer, Design, POINTER, Workload};
use crate::common::Step;
use ashlar_report::number;

/// The steps to the total.
pub fn steps(workload: &Workload, keys: &impl Keys, answer: &Answer) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut step = |formula: &str, numbers: String| steps.push(Step { formula: formula.into(), numbers });
    let memtable = workload.memtable_items();
    step("wal = memtable / bytes of an item in the tree", format!("{} items", number(memtable)));
    step("Unique(wal): different keys in a memtable", format!("{} items", number(keys.unique(memtable))));
    if let Distribution::Trace(traced) = &workload.distribution {
        step(
            "the trace: writes, different keys, writes of the most popular key",
            format!(
                "{}, {}, {}",
                number(traced.requests as f64),
                number(traced.keys as f64),
                traced.counts.last().map_or(0, |(count, _)| *count)
            ),
        );
        if let Some((window, unique)) = traced.window {
            step(
                "different keys in a memtable's requests: in the order of the trace, and by the model (if the order has fewer, the real amplification is lower)",
                format!("{} and {} of {window}", number(unique), number(keys.unique(window as f64))),
            );
        }
    }
    match workload.design {
        Design::LevelDb => {
            let sizes = workload.level_items();
            let size = |level: usize| sizes.get(level - 1).copied().unwrap_or(workload.keys);
            let mut interval = memtable * LEVEL0_TABLES;
            let first = keys.merge(keys.unique(interval), size(1));
            step(
                "level 0 to 1: Merge(Unique(I), Size_1) / I with I = 4 wal",
                format!("{} / {} = {:.4}", number(first), number(interval), first / interval),
            );
            for level in 1..=sizes.len() {
                let more = keys.dinterval(size(level));
                interval += more;
                let (unique, next) = (keys.unique(interval), size(level + 1));
                let merged = keys.merge(unique, next);
                step(
                    &format!(
                        "level {level} to {}: I += DInterval(Size_{level}); [Merge(Unique(I), Size_{}) + Unique(I)] / I",
                        level + 1,
                        level + 1
                    ),
                    format!(
                        "I = {} (DInterval({}) = {}); [{} + {}] / I = {:.4}",
                        number(interval),
                        number(size(level)),
                        number(more),
                        number(merged),
                        number(unique),
                        (merged + unique) / interval
                    ),
                );
            }
        }
        Design::Cola | Design::Samt => {
            let mut interval = memtable;
            for level in answer.write_amplification.levels.iter().skip(1) {
                step(
                    "items written to the level in the interval between its merges / interval",
                    format!("{}: interval {}, {:.4}", level.name, number(interval), level.write_amplification),
                );
                interval *= f64::from(workload.growth);
            }
        }
        Design::Universal => step(
            "sizes of tables, simulated with Merge until every key was written ten times",
            format!(
                "{:.4} for compaction",
                answer.write_amplification.levels.last().map_or(0.0, |level| level.write_amplification)
            ),
        ),
    }
    let tree: f64 = answer.write_amplification.levels.iter().map(|level| level.write_amplification).sum();
    step("the sum of all parts", format!("{tree:.4}"));
    if let Some(apart) = workload.apart {
        step(
            "[tree (key + pointer) + value / (1 - fill)] / item",
            format!(
                "[{tree:.4} x ({} + {POINTER}) + {} / (1 - {})] / {} = {:.4}",
                apart.key,
                workload.item - apart.key,
                apart.fill,
                workload.item,
                answer.write_amplification.total
            ),
        );
    }
    steps
}
