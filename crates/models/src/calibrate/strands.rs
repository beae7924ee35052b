//! Table 1 and Figure 2 of the proximal I/O paper (FAST '11): strands of small requests near each other; and of its Table 2
//! what one drive does for a batch.

use super::Row;
use crate::chance::Chance;
use crate::disk::{Disk, DiskSpec, Scheduler};
use crate::error::SpecError;
use crate::io::{Kind, Request, SECTOR};
use crate::model::{Model, closed_loop};
use std::collections::BTreeSet;

const TABLE: &str = "Schindler et al., FAST '11, Table 1";
const FIGURE: &str = "Schindler et al., FAST '11, Figure 2";
/// Bytes of a request: the paper says "small"; a block of its layout engine.
const REQUEST: u64 = 4096;
const STRANDS: u64 = 4000;
const BATCHES: u64 = 400;

/// Mean time of strands of `size` requests at random places within `span` sectors, somewhere on the disk, with at most
/// `depth` at the drive; milliseconds.
fn strand_ms(spec: &DiskSpec, kind: Kind, size: usize, span: u64, depth: usize) -> Result<f64, SpecError> {
    let mut disk = Disk::new(spec)?;
    let mut chance = Chance::new(11);
    let mut now_ns = 0;
    let mut sum_ns = 0;
    let sectors = disk.capacity() / SECTOR;
    let slots = span / (REQUEST / SECTOR);
    let mut strand = Vec::with_capacity(size);
    for _ in 0..STRANDS {
        let start = chance.below(sectors - span);
        strand.clear();
        strand.extend((0..size).map(|_| start + chance.below(slots) * (REQUEST / SECTOR)));
        strand.sort_unstable();
        // Idle for a random time, so that the platter is anywhere when the strand comes.
        now_ns += chance.below(100_000_000);
        let mut requests =
            strand.iter().map(|sector| Request { kind, offset: sector * SECTOR, len: REQUEST, fua: false });
        let run = closed_loop(&mut disk, now_ns, depth, || requests.next(), |_| {});
        let run = run.map_err(|refused| SpecError::Form(refused.to_string()))?;
        sum_ns += run.end_ns - now_ns;
        now_ns = run.end_ns;
    }
    Ok(sum_ns as f64 / STRANDS as f64 / 1e6)
}

/// The rows that the Cheetah reproduces.
pub(super) fn cheetah(spec: &DiskSpec) -> Result<Vec<Row>, SpecError> {
    let mut rows = Vec::new();
    let mut row = |name: &str, expected, got, tolerance| {
        rows.push(Row::new(TABLE, name, "ms", expected, got, tolerance));
    };
    let near = 100_000;
    row("single READ", 5.6, strand_ms(spec, Kind::Read, 1, near, 8)?, 0.04);
    row("single WRITE", 5.8, strand_ms(spec, Kind::Write, 1, near, 8)?, 0.04);
    let strands = [
        ("track-approximate", Kind::Read, 1024, 0.04, [7.4, 10.8, 13.9, 17.0]),
        ("proximal READ", Kind::Read, near, 0.04, [7.4, 11.2, 14.2, 17.1]),
        ("proximal WRITE", Kind::Write, near, 0.04, [8.6, 12.9, 16.8, 20.4]),
    ];
    for (name, kind, span, tolerance, published) in strands {
        for (size, expected) in [2, 4, 6, 8].into_iter().zip(published) {
            let got = strand_ms(spec, kind, size, span, size)?;
            row(&format!("{name}, {size} requests"), expected, got, tolerance);
        }
    }
    let queued = strand_ms(spec, Kind::Read, 8, near, 8)?;
    let mut spec = spec.clone();
    spec.queue.scheduler = Scheduler::Fifo;
    let alone = strand_ms(&spec, Kind::Read, 8, near, 1)?;
    rows.extend(super::strand_model::rows());
    rows.push(Row::new(FIGURE, "gain of depth 8 over FIFO", "%", 32.0, (1.0 - queued / alone) * 100.0, 0.031));
    Ok(rows)
}

/// Updated rows of an extent in a batch of 1 % staging, each a block of the parity drive: 1024 (1 - (1 - 1/1024)^47.5).
const ROWS: usize = 46;
/// Rows of an extent of 16 MiB on four drives with data.
const EXTENT_ROWS: u64 = 1024;
/// Rows that share a checksum block, which lies behind them.
const GROUP: u64 = 63;

/// Mean time of the parity drive for batches of Table 2, milliseconds: reads of random rows of an extent and their checksum
/// blocks, 8 at a time in ascending order, then writes of the same, and a flush.
fn batch_ms(spec: &DiskSpec) -> Result<f64, SpecError> {
    let refused = |refused: crate::io::Refused| SpecError::Form(refused.to_string());
    let mut disk = Disk::new(spec)?;
    let mut chance = Chance::new(11);
    let (mut now_ns, mut sum_ns) = (0, 0);
    let extents = disk.capacity() / REQUEST / EXTENT_ROWS - 1;
    for _ in 0..BATCHES {
        let start = chance.below(extents) * EXTENT_ROWS;
        let mut rows = BTreeSet::new();
        while rows.len() < ROWS {
            rows.insert(chance.below(EXTENT_ROWS));
        }
        let places = |row: &u64| [row / GROUP * (GROUP + 1) + row % GROUP, row / GROUP * (GROUP + 1) + GROUP];
        let blocks: BTreeSet<u64> = rows.iter().flat_map(places).map(|block| start + block).collect();
        now_ns += chance.below(100_000_000);
        let began_ns = now_ns;
        for kind in [Kind::Read, Kind::Write] {
            let mut requests =
                blocks.iter().map(|block| Request { kind, offset: block * REQUEST, len: REQUEST, fua: false });
            now_ns = closed_loop(&mut disk, now_ns, 8, || requests.next(), |_| {}).map_err(refused)?.end_ns;
        }
        let mut flush = Some(Request::flush());
        now_ns = closed_loop(&mut disk, now_ns, 1, || flush.take(), |_| {}).map_err(refused)?.end_ns;
        sum_ns += now_ns - began_ns;
    }
    Ok(sum_ns as f64 / BATCHES as f64 / 1e6)
}

/// The row of Table 2 that says what it costs to stay on a track: 91 % of 129.5 ms for 122 requests.
pub(super) fn nearline(spec: &DiskSpec) -> Result<Row, SpecError> {
    let table = "Schindler et al., FAST '11, Table 2";
    Ok(Row::new(table, "1 %, parity drive, busy in a batch", "ms", 117.8, batch_ms(spec)?, 0.1))
}
