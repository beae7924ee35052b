//! Data sheets of disks: sustained rates by zone, the average seek, random reads per second.

use super::Row;
use crate::chance::Chance;
use crate::disk::{Disk, DiskSpec};
use crate::error::SpecError;
use crate::io::{Request, SECTOR};
use crate::model::{Model, Summary, closed_loop};

fn refused(error: crate::io::Refused) -> SpecError {
    SpecError::Form(error.to_string())
}

/// MB/s of reading 256 MiB on from a sector, 1 MiB at a time, one request after another.
fn sustained_mb_s(spec: &DiskSpec, sector: u64) -> Result<f64, SpecError> {
    let mut disk = Disk::new(spec)?;
    let mut offset = sector * SECTOR;
    let mut left = 257;
    let next = || {
        left -= 1;
        let request = Request::read(offset, 1 << 20);
        offset += 1 << 20;
        (left >= 0).then_some(request)
    };
    let mut first_ns = 0;
    let run = closed_loop(&mut disk, 0, 1, next, |done| {
        if first_ns == 0 {
            first_ns = done.done_ns; // positioning is not part of the rate
        }
    });
    let run = run.map_err(refused)?;
    Ok((256u64 << 20) as f64 * 1e3 / (run.end_ns - first_ns) as f64)
}

/// Random requests of 4 KiB over the whole disk, `depth` at a time.
fn random(spec: &DiskSpec, depth: usize) -> Result<Summary, SpecError> {
    let mut disk = Disk::new(spec)?;
    let mut chance = Chance::new(7);
    let blocks = disk.capacity() / 4096;
    let mut left = 40_000;
    let next = || {
        left -= 1;
        (left >= 0).then(|| Request::read(chance.below(blocks) * 4096, 4096))
    };
    closed_loop(&mut disk, 0, depth, next, |_| {}).map_err(refused)
}

fn iops(run: &Summary) -> f64 {
    run.count as f64 * 1e9 / run.end_ns as f64
}

fn mean_seek_ms(run: &Summary) -> f64 {
    run.split.seek_ns as f64 / run.count as f64 / 1e6
}

/// First sector of the innermost zone.
fn innermost(spec: &DiskSpec) -> Result<u64, SpecError> {
    Ok(Disk::new(spec)?.geometry().zones().last().map_or(0, |zone| zone.0))
}

pub(super) fn maxtor(spec: &DiskSpec) -> Result<Vec<Row>, SpecError> {
    const TABLE: &str = "Wang, OBFS thesis, Table 7.1";
    let alone = random(spec, 1)?;
    Ok(vec![
        Row::new(TABLE, "sustained rate, outermost zone", "MB/s", 44.4, sustained_mb_s(spec, 0)?, 0.01),
        Row::new(TABLE, "sustained rate, innermost zone", "MB/s", 24.2, sustained_mb_s(spec, innermost(spec)?)?, 0.01),
        Row::new(TABLE, "average seek", "ms", 8.5, mean_seek_ms(&alone), 0.02),
    ])
}

pub(super) fn re3(spec: &DiskSpec) -> Result<Vec<Row>, SpecError> {
    const PAPER: &str = "Schindler et al., FAST '11, section 5.4";
    let alone = random(spec, 1)?;
    Ok(vec![
        Row::new(PAPER, "single random read", "ms", 11.7, alone.mean_ns() / 1e6, 0.02),
        Row::new(PAPER, "random reads, one at a time", "1/s", 86.0, iops(&alone), 0.02),
        Row::new("data sheet", "sustained rate, outermost zone", "MB/s", 113.0, sustained_mb_s(spec, 0)?, 0.02),
        super::strands::nearline(spec)?,
    ])
}

pub(super) fn exos(spec: &DiskSpec) -> Result<Vec<Row>, SpecError> {
    const SHEET: &str = "Seagate Exos X20 data sheet";
    let alone = random(spec, 1)?;
    Ok(vec![
        Row::new(SHEET, "sustained rate, outermost zone", "MB/s", 285.0, sustained_mb_s(spec, 0)?, 0.01),
        Row::new(SHEET, "average latency", "ms", 4.16, alone.split.rotation_ns as f64 / alone.count as f64 / 1e6, 0.02),
        Row::new(SHEET, "random reads, 4 KiB, queue depth 16", "1/s", 168.0, iops(&random(spec, 16)?), 0.1),
        Row::new(
            "WD Ultrastar DC HC310 OEM specification, table 5",
            "average seek, same class",
            "ms",
            7.4,
            mean_seek_ms(&alone),
            0.02,
        ),
    ])
}
