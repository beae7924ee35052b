//! What the model takes for granted, and what becomes of the answer if it is otherwise.

use super::{Apart, Design, Distribution, POINTER, Workload};
use ashlar_report::number;

/// What is taken for granted.
pub fn assumptions(workload: &Workload) -> Vec<String> {
    let mut assumptions = vec![
        "requests are independent, and popular keys lie anywhere in the order of keys".to_string(),
        "all items are of one size; nothing is deleted or compressed; the load does not change with time".into(),
        "only writes count: what compaction reads is not in the number".into(),
    ];
    match workload.design {
        Design::LevelDb => {
            assumptions.push("tables of a level are compacted in turn, four tables of level 0 at once".into())
        }
        Design::Universal => assumptions.push("ten writes of each key, from one table with all keys".into()),
        Design::Cola | Design::Samt => assumptions.push("as many levels as ceil(log_r(keys / memtable))".into()),
    }
    if let Distribution::Trace(traced) = &workload.distribution {
        let (keys, requests) = (number(traced.keys as f64), number(traced.requests as f64));
        assumptions.push(format!("keys are as popular as the {requests} writes of the trace to {keys} keys show: keys that it does not show are not there, and its order does not matter"));
        if workload.keys > traced.keys as f64 {
            assumptions.push("keys beyond those of the trace have its popularity too".into());
        }
    }
    if let Some(apart) = workload.apart {
        let fill = number(apart.fill * 100.0);
        assumptions.push(format!("values go once to a log whose segments are cleaned when {fill} % of them is in use, pointers take {POINTER} bytes, and the log of values needs no other"));
    }
    assumptions
}

/// Inputs changed one at a time.
pub fn changes(workload: &Workload) -> Vec<(String, Workload)> {
    let with = |change: &dyn Fn(&mut Workload)| {
        let mut changed = workload.clone();
        change(&mut changed);
        changed
    };
    let mut changes = vec![
        ("twice as many keys".to_string(), with(&|w| w.keys *= 2.0)),
        ("a memtable twice as large".into(), with(&|w| w.memtable *= 2.0)),
    ];
    match &workload.distribution {
        Distribution::Uniform => {
            changes.push((
                "popularity: zipf:0.99 instead of uniform".into(),
                with(&|w| w.distribution = Distribution::Zipf(0.99)),
            ));
        }
        Distribution::Zipf(skew) => {
            changes.push((
                "popularity: uniform instead of Zipf".into(),
                with(&|w| w.distribution = Distribution::Uniform),
            ));
            let more = (skew + 0.1).min(3.0);
            changes.push((format!("popularity: zipf:{more:.2}"), with(&|w| w.distribution = Distribution::Zipf(more))));
        }
        Distribution::Trace(_) => {
            for other in [Distribution::Uniform, Distribution::Zipf(0.99)] {
                changes.push((
                    format!("popularity: {other} instead of the trace's"),
                    with(&|w| w.distribution = other.clone()),
                ));
            }
        }
    }
    match workload.design {
        Design::LevelDb => {
            changes.push(("a growth factor half as large".into(), with(&|w| w.growth = (w.growth / 2).max(2))));
            changes.push(("level 1 four times as large".into(), with(&|w| w.level1 *= 4.0)));
        }
        Design::Cola | Design::Samt => {
            changes.push(("a growth factor twice as large".into(), with(&|w| w.growth *= 2)))
        }
        Design::Universal => changes.push((
            "a trigger of half as many tables".into(),
            with(&|w| w.universal.trigger = (w.universal.trigger / 2).max(2)),
        )),
    }
    if workload.apart.is_some() {
        changes.push((
            "segments of the log of values half as full".into(),
            with(&|w| {
                w.apart = w.apart.map(|apart| Apart { fill: apart.fill / 2.0, ..apart });
            }),
        ));
    }
    changes
}
