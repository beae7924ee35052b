//! Reading and writing what is in memory.

use super::bench::{BUFFER, Bench, Clock, fill, in_memory, make};
use super::names::close;
use crate::vector::{Family as F, Value};
use ashlar_env::host::map_file;
use rustix::io::{pread, pwrite};
use std::io;

const KIB: u64 = 1024;
/// Bytes of the files that are read and written over.
const FILE: u64 = 4 << 20;
/// Sizes that writes of new blocks are fitted to: as small files have them, and larger.
const NEW_KB: [u64; 3] = [4, 16, 128];
/// Which of them is large.
const LARGE: usize = 2;
/// Files up to here are written block by block.
const SMALL_KB: u64 = 16;

/// Cached reads, writes over what is there, writes of new blocks, holes, and mappings.
pub fn cached(bench: &mut Bench) -> io::Result<()> {
    let mut rounds = 0;
    let mut buffer = vec![0; BUFFER];
    let mut times: [Vec<f64>; 8] = Default::default();
    while bench.more(rounds)? {
        let directories = bench.directories()?;
        let files = directories.iter().take(4).map(|directory| make(directory, "data", FILE, &bench.buffer));
        let files = files.collect::<io::Result<Vec<_>>>()?;
        bench.settle()?;
        for turn in 0..256u64 {
            let file = &files[turn as usize % files.len()];
            let at = bench.chance.below(FILE / 65_536) * 65_536;
            let mut timed = |index: usize, work: &mut dyn FnMut(&mut [u8]) -> rustix::io::Result<usize>| {
                let clock = Clock::start();
                let done = work(&mut buffer);
                times[index].push(clock.stop().milliseconds);
                done
            };
            timed(0, &mut |buffer| pread(file, &mut buffer[..1], at + 5))?;
            timed(1, &mut |buffer| pread(file, &mut buffer[..65_536], at))?;
            // At different places: the first write to a clean block costs more.
            match turn % 2 {
                0 => timed(2, &mut |buffer| pwrite(file, &buffer[..1], at + 5))?,
                _ => timed(3, &mut |buffer| pwrite(file, &buffer[..65_536], at))?,
            };
        }
        for (index, directory) in directories.iter().enumerate() {
            for (at, kb) in NEW_KB.into_iter().enumerate() {
                for copy in 0..8 {
                    let name = format!("new{kb}-{copy}");
                    let file = make(directory, &name, 0, &[])?;
                    // Small ones by blocks, as programs write them.
                    let request = kb.min(if kb <= SMALL_KB { 4 } else { kb }) * KIB;
                    for turn in 0..kb * KIB / request {
                        let clock = Clock::start();
                        fill(&file, request, &bench.buffer)?;
                        times[if at == LARGE { 6 } else { 4 + usize::from(turn > 0) }].push(clock.stop().milliseconds);
                    }
                    bench.time(F::CLD, kb, |_| close(file))?;
                }
            }
            if index == 0 {
                let file = make(directory, "sparse", 0, &[])?;
                bench.time(F::EXTEND, 0, |_| rustix::fs::ftruncate(&file, FILE))?;
                let clock = Clock::start();
                let mut at = 0;
                while at < FILE {
                    at += pread(&file, &mut buffer[..65_536], at)? as u64;
                }
                times[7].push(clock.stop().milliseconds);
            }
            let file = make(directory, "allocated", 0, &[])?;
            let allocated = bench.time(F::FALLOC, 1024, |_| {
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1 << 20)
            });
            // Where it is not there, there is no result.
            drop(allocated);
        }
        mappings(bench, &files[0])?;
        drop(files);
        bench.end()?;
        rounds += 1;
    }
    let [tiny_read, read, tiny_write, write, first, next, large, holes] = times.map(in_memory);
    line(bench, (F::RDO, F::RDC), (tiny_read, 0.0), (read, 64.0));
    line(bench, (F::WRO, F::WRC), (tiny_write, 0.0), (write, 64.0));
    // Small files are what most writes of new blocks are; the rate is that of large ones. The first write of a file costs
    // more than the next ones.
    line(bench, (F::WNF, F::WNC), (first.clone(), 4.0), (large.clone(), 128.0));
    line(bench, (F::WNO, F::WNC), (next.or(first), 4.0), (large, 128.0));
    if let Some(holes) = holes {
        bench.rate(F::HRD, 0, (FILE / KIB) as f64, &holes);
    }
    Ok(())
}

/// Sets overhead and rate of two times for so many KB each.
fn line(
    bench: &mut Bench,
    (overhead, rate): (F, F),
    (one, low): (Option<Value>, f64),
    (other, high): (Option<Value>, f64),
) {
    let (Some(one), Some(other)) = (one, other) else { return };
    let each = ((other.mean - one.mean) / (high - low)).max(1e-6);
    let at_zero = |time: f64| (time - low * each).max(0.0);
    let error = one.error;
    bench.set(
        overhead,
        0,
        Value { mean: at_zero(one.mean), error, count: one.count, quantiles: one.quantiles.map(|q| q.map(at_zero)) },
    );
    let mean = 1e3 / each;
    // Where noise is more than the difference, the rate is not known at all.
    let error = mean * (one.error.hypot(other.error) / (other.mean - one.mean).max(1e-9)).min(1.0);
    bench.set(rate, 0, Value { mean, error, count: other.count, quantiles: None });
}

/// Mapping a file, and pages of it that are in memory.
fn mappings(bench: &mut Bench, file: &std::os::fd::OwnedFd) -> io::Result<()> {
    for _ in 0..8 {
        let clock = Clock::start();
        drop(map_file(file, 0, FILE as usize)?);
        bench.keep(F::MAP, 0, clock.stop());
        let empty = bench.value(F::MAP, 0).map_or(0.0, |value| value.mean);
        let clock = Clock::start();
        let map = map_file(file, 0, FILE as usize)?;
        map.populate(FILE as usize)?;
        drop(map);
        bench.keep(F::FAULT, 0, clock.stop().map(|all| (all - empty) / (FILE / 4096) as f64));
    }
    Ok(())
}
