//! Flash: write amplification against the closed form, what a probe finds in the simulated cards, and the rates of the
//! prototype of application-managed flash.

use super::Row;
use crate::chance::Chance;
use crate::endurance::greedy_amplification;
use crate::error::SpecError;
use crate::flash::{FlashSpec, Hybrid, HybridSpec, PageMapped, SegmentSpec, Segments};
use crate::io::{Refused, Request};
use crate::model::{Model, closed_loop};
use crate::probe::probe;

fn refused(error: Refused) -> SpecError {
    SpecError::Form(error.to_string())
}

/// Parts of the flash that are spare in the rows of [`amplification`].
const SPARE: [f64; 5] = [0.07, 0.1, 0.15, 0.2, 0.28];

/// Steady write amplification of uniform random page writes, beside the closed form, on one die of 1024 blocks of 512
/// pages that is cleaned like the given drive.
pub(super) fn amplification(spec: &FlashSpec) -> Result<Vec<Row>, SpecError> {
    const TABLE: &str = "greedy cleaning, closed form for large blocks";
    SPARE
        .iter()
        .map(|&spare| {
            let mut spec = spec.clone();
            spec.nand.channels = 1;
            spec.nand.ways = 1;
            spec.nand.blocks_per_die = 1024;
            spec.nand.pages_per_block = 512;
            let pages = (1022.0 * 512.0 * (1.0 - spare)) as u64;
            spec.capacity = (pages * 4096).to_string();
            let mut drive = PageMapped::new(&spec, 1)?;
            let mut chance = Chance::new(3);
            let mut write = |drive: &mut PageMapped, count: u64, random: bool| {
                let mut left = 0..count;
                let next =
                    || left.next().map(|i| Request::write(if random { chance.below(pages) } else { i } * 4096, 4096));
                closed_loop(drive, 0, 1, next, |_| {}).map_err(refused)
            };
            write(&mut drive, pages, false)?;
            write(&mut drive, 3 * pages, true)?;
            let before = drive.counters();
            write(&mut drive, 2 * pages, true)?;
            let after = drive.counters();
            let got = (after.programs - before.programs) as f64 / (after.host_pages - before.host_pages) as f64;
            let row = format!("programs per write, {:.0} % spare", spare * 100.0);
            Ok(Row::new(TABLE, row, "", greedy_amplification(drive.spare()), got, 0.03))
        })
        .collect()
}

/// What the probe finds beside what the paper found.
pub(super) fn card(spec: &HybridSpec, updates: u64, logs: u64, wear: u64) -> Result<Vec<Row>, SpecError> {
    const TABLE: &str = "Boboila and Desnoyers, FAST '10, Table 4 and section 3.3";
    let mut card = Hybrid::new(spec, 1)?;
    let stride = card.block_bytes();
    let page = stride / u64::from(spec.nand.pages_per_block);
    let found = probe(&mut card, page, stride).map_err(refused)?;
    let row = |name: &str, unit, expected: u64, got: u64| Row::new(TABLE, name, unit, expected as f64, got as f64, 0.0);
    Ok(vec![
        row("updates of a log block", "writes", updates, found.updates_per_log),
        row("log blocks", "blocks", logs, found.log_blocks),
        row("static wear levelling (0: none)", "merges", wear, found.static_wear_every.unwrap_or(0)),
    ])
}

/// Raw rates of the prototype, deep queue, whole device striped.
pub(super) fn prototype(spec: &SegmentSpec) -> Result<Vec<Row>, SpecError> {
    const TABLE: &str = "Lee et al., FAST '16, section 5.1";
    let mut device = Segments::new(spec, 1)?;
    let pages = 8 * device.segment_bytes() / 4096;
    let mut rate = |request: fn(u64, u64) -> Request, start_ns: u64| -> Result<(f64, u64), SpecError> {
        let mut left = 0..pages;
        let next = || left.next().map(|page| request(page * 4096, 4096));
        let run = closed_loop(&mut device, start_ns, 256, next, |_| {}).map_err(refused)?;
        Ok((pages as f64 * 1e9 / (run.end_ns - start_ns) as f64, run.end_ns))
    };
    let (writes, end_ns) = rate(Request::write, 0)?;
    let (reads, _) = rate(Request::read, end_ns)?;
    let mib = 4096.0 / f64::from(1 << 20);
    Ok(vec![
        Row::new(TABLE, "reads of 4 KiB", "1/s", 240e3, reads, 0.02),
        Row::new(TABLE, "writes of 4 KiB", "1/s", 67e3, writes, 0.02),
        Row::new(TABLE, "read rate", "MiB/s", 930.0, reads * mib, 0.02),
        Row::new(TABLE, "write rate", "MiB/s", 260.0, writes * mib, 0.02),
    ])
}
