//! Table 1 and Figure 2 of the proximal I/O paper (FAST '11): strands of small requests near each other.

use super::Row;
use crate::chance::Chance;
use crate::disk::{Disk, DiskSpec, Scheduler};
use crate::error::SpecError;
use crate::io::{Kind, Request, SECTOR};
use crate::model::{Model, closed_loop};

const TABLE: &str = "Schindler et al., FAST '11, Table 1";
const FIGURE: &str = "Schindler et al., FAST '11, Figure 2";
/// Bytes of a request: the paper says "small"; a block of its layout engine.
const REQUEST: u64 = 4096;
const STRANDS: u64 = 4000;

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
