//! What was asked, how often, and how long our code took for it.
//!
//! Every executor worker counts in its own shard, so that counting costs an uncontended cache line. Time runs from the
//! moment when a request lies in memory to the moment when its reply is complete: the system calls that fetch and send are
//! the transport's.

use crate::abi::{OPCODES_END, Opcode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Histogram buckets per doubling of time.
const STEPS: usize = 4;
/// Doublings that the histogram covers, from 1 ns to 2^36 ns (about a minute).
const DOUBLINGS: usize = 36;
const BUCKETS: usize = STEPS * DOUBLINGS;

#[derive(Default)]
struct Cell {
    count: AtomicU64,
    errors: AtomicU64,
    nanos: AtomicU64,
    nanos_max: AtomicU64,
}

/// Counters of one worker.
#[repr(align(128))]
pub(crate) struct Shard {
    cells: [Cell; OPCODES_END],
    buckets: Box<[[AtomicU64; BUCKETS]; OPCODES_END]>,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    writes_begun: AtomicU64,
}

fn bucket(nanos: u64) -> usize {
    let nanos = nanos.max(1);
    let doubling = nanos.ilog2();
    // The two bits below the leading one choose the step.
    let step = if doubling >= 2 { nanos >> (doubling - 2) & 3 } else { 0 };
    (doubling as usize * STEPS + step as usize).min(BUCKETS - 1)
}

/// The smallest time that does not fall into this bucket.
fn bucket_end(bucket: usize) -> u64 {
    let (doubling, step) = (bucket / STEPS, (bucket % STEPS) as u64);
    if doubling < 2 { 2 << doubling } else { (5 + step) << (doubling - 2) }
}

fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

impl Shard {
    fn new() -> Shard {
        Shard {
            cells: std::array::from_fn(|_| Cell::default()),
            buckets: Box::new(std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0)))),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            writes_begun: AtomicU64::new(0),
        }
    }

    /// Counts a WRITE that is not served yet.
    pub(crate) fn begin_write(&self) {
        add(&self.writes_begun, 1);
    }

    /// Counts one request.
    pub(crate) fn record(&self, opcode: Opcode, failed: bool, nanos: u64) {
        let cell = &self.cells[opcode as usize];
        add(&cell.count, 1);
        if failed {
            add(&cell.errors, 1);
        }
        add(&cell.nanos, nanos);
        if nanos > cell.nanos_max.load(Ordering::Relaxed) {
            cell.nanos_max.fetch_max(nanos, Ordering::Relaxed);
        }
        add(&self.buckets[opcode as usize][bucket(nanos)], 1);
    }

    /// Counts data that went to the kernel.
    pub(crate) fn read(&self, bytes: u64) {
        add(&self.bytes_read, bytes);
    }

    /// Counts data that came from the kernel.
    pub(crate) fn written(&self, bytes: u64) {
        add(&self.bytes_written, bytes);
    }
}

/// The shards of one mount.
pub(crate) struct Shards(Vec<Shard>);

impl Shards {
    pub(crate) fn new(workers: usize) -> Shards {
        Shards((0..workers.max(1)).map(|_| Shard::new()).collect())
    }
    pub(crate) fn of(&self, worker: usize) -> &Shard {
        &self.0[worker % self.0.len()]
    }
    /// WRITEs that were served, and those that have come.
    pub(crate) fn writes(&self) -> (u64, u64) {
        // In this order: what ends meanwhile counts as in service.
        let ended = self.0.iter().map(|shard| shard.cells[Opcode::Write as usize].count.load(Ordering::Acquire)).sum();
        (ended, self.0.iter().map(|shard| shard.writes_begun.load(Ordering::Acquire)).sum())
    }
    pub(crate) fn sum(&self) -> Counters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut operations = Vec::new();
        for opcode in Opcode::ALL {
            let mut sum = OperationCounters {
                name: opcode.name(),
                count: 0,
                errors: 0,
                nanos: 0,
                nanos_max: 0,
                buckets: vec![0; BUCKETS],
            };
            for shard in &self.0 {
                let cell = &shard.cells[*opcode as usize];
                sum.count += load(&cell.count);
                sum.errors += load(&cell.errors);
                sum.nanos += load(&cell.nanos);
                sum.nanos_max = sum.nanos_max.max(load(&cell.nanos_max));
                for (total, part) in sum.buckets.iter_mut().zip(&shard.buckets[*opcode as usize]) {
                    *total += load(part);
                }
            }
            if sum.count > 0 {
                operations.push(sum);
            }
        }
        Counters {
            operations,
            bytes_read: self.0.iter().map(|shard| load(&shard.bytes_read)).sum(),
            bytes_written: self.0.iter().map(|shard| load(&shard.bytes_written)).sum(),
        }
    }
}

/// What a mount has served so far.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// One for every operation that was asked for, in order of the protocol's numbers.
    pub operations: Vec<OperationCounters>,
    /// Bytes of file data given to the kernel.
    pub bytes_read: u64,
    /// Bytes of file data taken from the kernel.
    pub bytes_written: u64,
}

impl Counters {
    /// Requests of all kinds.
    pub fn requests(&self) -> u64 {
        self.operations.iter().map(|operation| operation.count).sum()
    }
    /// Counters of the operation with this name.
    pub fn operation(&self, name: &str) -> Option<&OperationCounters> {
        self.operations.iter().find(|operation| operation.name == name)
    }
}

/// Counters of one operation.
#[derive(Clone, Debug)]
pub struct OperationCounters {
    /// The operation, such as `lookup`.
    pub name: &'static str,
    /// Requests served.
    pub count: u64,
    /// Those among them that were answered with an error (an absent name that is cached as absent is none).
    pub errors: u64,
    /// Time in our code, all requests together.
    pub nanos: u64,
    /// Longest time of one request.
    pub nanos_max: u64,
    buckets: Vec<u64>,
}

impl OperationCounters {
    /// Mean time of a request.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.nanos.checked_div(self.count).unwrap_or(0))
    }
    /// The time that a share of the requests (0 to 1) did not exceed, to about a fifth.
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = (self.count as f64 * share.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(bucket_end(index).min(self.nanos_max));
            }
        }
        Duration::from_nanos(self.nanos_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_lies_below_the_end_of_its_bucket_and_not_far() {
        for nanos in (1..5_000u64).chain((1..60).map(|n| n * 999_999_937)) {
            let end = bucket_end(bucket(nanos));
            assert!(end > nanos && end <= nanos * 2, "{nanos} {end}");
            assert!(nanos < 4 || end <= nanos + nanos / 4 + 1, "{nanos} {end}");
        }
    }

    #[test]
    fn quantiles_come_out_in_order() {
        let shards = Shards::new(2);
        for n in 1..=1000 {
            shards.of(n as usize).record(Opcode::Lookup, n % 10 == 0, n * 100);
        }
        let counters = shards.sum();
        let lookup = counters.operation("lookup").expect("recorded");
        assert_eq!((lookup.count, lookup.errors, lookup.nanos_max), (1000, 100, 100_000));
        let median = lookup.quantile(0.5).as_nanos();
        assert!((50_000..65_000).contains(&median), "{median}");
        assert!(lookup.quantile(0.99) >= lookup.quantile(0.5));
        assert_eq!(counters.requests(), 1000);
    }
}
