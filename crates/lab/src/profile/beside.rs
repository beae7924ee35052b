//! What calls wait for data that are written back beside them.

use super::bench::{Bench, fill, make, open};
use super::names::close;
use crate::vector::{Family as F, Value};
use ashlar_env::host::{cached_pages, start_writeback};
use rustix::fs::{AtFlags, OFlags, ftruncate, unlinkat};
use rustix::io::{pread, pwrite};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;
/// Rates of a program that writes, KB/s.
const RATES: [u64; 4] = [0, 1_000, 10_000, 100_000];

/// The job of the thesis: reads, writes, creates, truncates and removes, all cached.
fn job(directory: &OwnedFd, buffer: &[u8], turn: u64) -> io::Result<()> {
    let name = format!("job{turn}");
    let file = open(directory, &name, OFlags::CREATE | OFlags::RDWR)?;
    pwrite(&file, &buffer[..8192], 0)?;
    pread(&file, &mut [0u8; 8192][..], 0)?;
    ftruncate(&file, 0)?;
    close(file)?;
    Ok(unlinkat(directory, &name, AtFlags::empty())?)
}

/// Seconds of one job, of so many.
fn jobs(directory: &OwnedFd, buffer: &[u8], count: u64) -> io::Result<f64> {
    let began = Instant::now();
    (0..count).try_for_each(|turn| job(directory, buffer, turn))?;
    Ok(began.elapsed().as_secs_f64() / count.max(1) as f64)
}

/// By block and run, and by the rate of a program that writes.
pub fn beside(bench: &mut Bench) -> io::Result<()> {
    const JOBS: u64 = 300;
    let directories = bench.directories()?;
    let buffer = bench.buffer.clone();
    let bytes = (bench.space / 4).min(64 << 20);
    let data = make(&directories[0], "data", bytes, &buffer)?;
    bench.settle()?;
    bench.until_part(0.6);
    let mut found: [Vec<f64>; 4] = Default::default();
    let mut rounds = 0;
    while bench.more(rounds)? {
        let alone = jobs(&directories[1], &buffer, JOBS)?;
        for (random, blocks) in [(false, bytes / BLOCK), (true, bytes / BLOCK / 16)] {
            match random {
                false => {
                    rustix::fs::seek(&data, rustix::fs::SeekFrom::Start(0))?;
                    fill(&data, bytes, &buffer)?;
                }
                true => {
                    for run in 0..blocks {
                        pwrite(&data, &buffer[..BLOCK as usize], run * 16 * BLOCK)?;
                    }
                }
            }
            let began = Instant::now();
            start_writeback(&data)?;
            let mut turns = 0;
            loop {
                jobs(&directories[1], &buffer, 20)?;
                turns += 20;
                let pages = cached_pages(&data, 0, 0)?;
                if pages.dirty + pages.writeback == 0 || began.elapsed() > Duration::from_secs(20) {
                    break;
                }
            }
            let took = began.elapsed().as_secs_f64();
            let waited = (took - turns as f64 * alone).max(0.0) * 1e3 / blocks as f64;
            let at = usize::from(random);
            found[at].push(waited);
            found[2 + at].push(took * 1e3 / (blocks as f64 * 4.0));
            bench.settle()?;
        }
        rounds += 1;
    }
    let [blocks, runs, rate, random_rate] = found.map(Value::of);
    if let (Some(blocks), Some(runs)) = (blocks, runs) {
        bench.set(F::WBR, 0, Value { mean: (runs.mean - blocks.mean).max(0.0), quantiles: None, ..runs });
        bench.set(F::WBS, 0, Value { quantiles: None, ..blocks });
    }
    for (family, time) in [(F::WBRATE, rate), (F::WBRRATE, random_rate)] {
        time.iter().for_each(|time| bench.rate(family, 0, 1.0, time));
    }
    for rate in RATES {
        bench.more(1)?;
        let over = AtomicBool::new(false);
        let seconds = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_at(&data, &buffer, rate, bytes, &over));
            let seconds = jobs(&directories[2], &buffer, JOBS).map(|each| each * JOBS as f64);
            over.store(true, Ordering::Release);
            writer.join().map_err(|_| io::Error::other("a thread panicked"))??;
            seconds
        })?;
        bench.set(F::WR, rate, Value { count: 1, ..Value::exact(seconds) });
    }
    Ok(())
}

/// Writes over a file at a rate, and has it written back, until it is over.
fn write_at(data: &OwnedFd, buffer: &[u8], rate: u64, bytes: u64, over: &AtomicBool) -> io::Result<()> {
    const REQUEST: u64 = 64 << 10;
    let began = Instant::now();
    let mut written = 0;
    while rate > 0 && !over.load(Ordering::Acquire) {
        let due = began.elapsed().as_secs_f64() * rate as f64 * 1024.0;
        if written as f64 > due {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        pwrite(data, &buffer[..REQUEST as usize], written % (bytes - REQUEST))?;
        written += REQUEST;
        start_writeback(data)?;
    }
    Ok(())
}
