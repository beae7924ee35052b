//! What a run amounts to.

use super::play::Played;
use super::script::Script;
use crate::trace::Op;
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Latencies of calls of one kind, microseconds; exact.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct OpSummary {
    /// The call.
    pub op: Op,
    /// How often.
    pub count: u64,
    /// How many failed.
    pub failed: u64,
    /// Their time together, seconds.
    pub total_s: f64,
    /// Mean.
    pub mean_us: f64,
    /// Half of them took no longer.
    pub p50_us: f64,
    /// 90 % took no longer.
    pub p90_us: f64,
    /// 99 % took no longer.
    pub p99_us: f64,
    /// 99.9 % took no longer.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// Calls that ended here as they did not in the trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Difference {
    /// How many.
    pub count: u64,
    /// What they were, the most frequent first.
    pub examples: Vec<Example>,
}

/// Calls of one kind that failed in one way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Example {
    /// The call.
    pub op: Op,
    /// How it failed, `errno`.
    pub error: u16,
    /// How often.
    pub count: u64,
    /// The path of the first, below the directory of the run.
    pub path: String,
}

impl fmt::Display for Example {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Example { op, error, count, path } = self;
        write!(f, "{} /{path}: {}", op.name(), Errno::from_raw_os_error((*error).into()))?;
        if *count > 1 { write!(f, " ({count} times)") } else { Ok(()) }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, as in ", self.count)?;
        for (at, example) in self.examples.iter().take(SHOWN).enumerate() {
            write!(f, "{}{example}", if at == 0 { "" } else { "; " })?;
        }
        match self.examples.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and of {more} other kinds"),
        }
    }
}

/// Kinds of a difference that are shown.
const SHOWN: usize = 5;

/// Failures by call and error, with the path of the first.
#[derive(Default)]
struct Failures(BTreeMap<(Op, u16), (u64, String)>);

impl Failures {
    fn add(&mut self, op: Op, error: u16, path: &str) {
        self.0.entry((op, error)).or_insert_with(|| (0, path.to_string())).0 += 1;
    }

    fn finish(self) -> Difference {
        let one = |((op, error), (count, path))| Example { op, error, count, path };
        let mut examples: Vec<Example> = self.0.into_iter().map(one).collect();
        examples.sort_by_key(|example| std::cmp::Reverse(example.count));
        Difference { count: examples.iter().map(|example| example.count).sum(), examples }
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Summary {
    /// Calls that were done.
    pub calls: u64,
    /// Calls per second of the total time.
    pub calls_per_s: f64,
    /// Seconds from the first call to the end of the last, and of the final sync if it counts.
    pub total_s: f64,
    /// Seconds of the final sync.
    pub sync_s: Option<f64>,
    /// Calls that waited for one of another thread, which decides what they find.
    pub waits: u64,
    /// Seconds that they waited, all threads together.
    pub waits_s: f64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// By kind of call, those that took most time together first.
    pub ops: Vec<OpSummary>,
    /// Failed here, and not in the trace.
    pub failed_here: Difference,
    /// Failed in the trace, and not here.
    pub failed_there: Difference,
    /// Failed in both, in other ways.
    pub failed_otherwise: Difference,
}

impl Summary {
    /// Of a run.
    pub fn of(script: &Script, played: &Played) -> Summary {
        let mut by_op: BTreeMap<Op, (Vec<u64>, u64)> = BTreeMap::new();
        let (mut calls, mut read_bytes, mut written_bytes) = (0, 0, 0);
        let mut differences: [Failures; 3] = Default::default();
        for (call, measured) in script.calls.iter().zip(&played.calls) {
            // Those that were not reached.
            if measured.latency_ns == 0 {
                continue;
            }
            calls += 1;
            let (latencies, failed) = by_op.entry(call.op).or_default();
            latencies.push(measured.latency_ns);
            *failed += u64::from(measured.error != 0);
            match call.op {
                Op::Read => read_bytes += measured.done,
                Op::Write | Op::Copy => written_bytes += measured.done,
                _ => {}
            }
            let which = match (measured.error, call.error) {
                (here, there) if here == there => continue,
                (_, 0) => 0,
                (0, _) => 1,
                _ => 2,
            };
            let error = if measured.error == 0 { call.error } else { measured.error };
            differences[which].add(call.op, error, script.path(call.path));
        }
        let mut ops: Vec<OpSummary> =
            by_op.into_iter().map(|(op, (latencies, failed))| summary(op, latencies, failed)).collect();
        ops.sort_by(|one, other| other.total_s.total_cmp(&one.total_s));
        let total_s = played.total.as_secs_f64();
        let [failed_here, failed_there, failed_otherwise] = differences.map(Failures::finish);
        Summary {
            calls,
            calls_per_s: calls as f64 / total_s.max(1e-9),
            total_s,
            sync_s: played.sync.map(|time| time.as_secs_f64()),
            waits: played.waits,
            waits_s: played.waited.as_secs_f64(),
            read_bytes,
            written_bytes,
            ops,
            failed_here,
            failed_there,
            failed_otherwise,
        }
    }
}

fn summary(op: Op, mut latencies: Vec<u64>, failed: u64) -> OpSummary {
    latencies.sort_unstable();
    let count = latencies.len();
    let sum: u64 = latencies.iter().sum();
    let quantile = |share: f64| {
        let rank = ((count as f64 * share).ceil() as usize).clamp(1, count.max(1));
        latencies.get(rank - 1).map_or(0.0, |latency| *latency as f64 / 1e3)
    };
    OpSummary {
        op,
        count: count as u64,
        failed,
        total_s: sum as f64 / 1e9,
        mean_us: sum as f64 / count.max(1) as f64 / 1e3,
        p50_us: quantile(0.5),
        p90_us: quantile(0.9),
        p99_us: quantile(0.99),
        p999_us: quantile(0.999),
        max_us: quantile(1.0),
    }
}

/// Watts of the paper's machine, idle and with busy processors, and of its disk, idle and busy seeking (FAST '10, section 4).
const NODE_W: (f64, f64) = (214.0, 279.0);
const DISK_W: (f64, f64) = (7.0, 22.0);

/// Joules of a run, by the digest's model of the paper's machine: P = idle + (peak - idle) u + 7 + 15 b, where u is the share of
/// the processors and b that of the time in which the device was busy. Modelled: nothing here is measured. Busy is not
/// seeking, so the disk's part is an upper bound.
pub fn joules(total: Duration, cpu: Duration, processors: f64, device_busy: Duration) -> f64 {
    let seconds = total.as_secs_f64();
    let share = |busy: Duration| (busy.as_secs_f64() / seconds.max(1e-9)).clamp(0.0, 1.0);
    let node = NODE_W.0 + (NODE_W.1 - NODE_W.0) * share(cpu.div_f64(processors.max(1.0)));
    let disk = DISK_W.0 + (DISK_W.1 - DISK_W.0) * share(device_busy);
    (node + disk) * seconds
}
