//! What calls take when many make them at once.

use super::bench::{Bench, make, open};
use super::busy::Busy;
use super::names::close;
use crate::vector::{Family as F, Value};
use rustix::fs::{AtFlags, Mode, OFlags, fsync, statat, unlinkat};
use rustix::io::pread;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

const DEPTHS: [u64; 5] = [1, 2, 4, 16, 64];
/// Jobs that are measured at each depth.
const JOBS: u32 = 7;
/// Bytes of a file that many read from.
const FILE: u64 = 16 << 20;
/// Bytes of a call that reads in order.
const RUN: u64 = 128 << 10;
/// Bytes that are written and synced, and of a small file that is read.
const SMALL: usize = 16 << 10;
/// Most files that are made and stay.
const MADE: u64 = 4096;
/// Small files of a directory.
const FILES: u64 = 64;
const BLOCK: u64 = 4096;

/// Does `work` in so many threads for a while, in each at most so often. Returns what one takes on average while all work: of
/// their number and the time, since single times are mostly either those of a thread alone, or of one that waits for a
/// processor.
fn together<T>(
    depth: u64,
    time: Duration,
    most: u64,
    work: impl Fn(u64, u64) -> io::Result<T> + Sync,
) -> io::Result<Value> {
    let began = Instant::now();
    let one = |thread: u64| {
        let mut count = 0;
        while count == 0 || began.elapsed() < time && count < most {
            work(thread, count)?;
            count += 1;
        }
        Ok::<_, io::Error>(count)
    };
    let count = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..depth).map(|thread| scope.spawn(move || one(thread))).collect();
        threads.into_iter().try_fold(0, |all, thread| {
            Ok::<_, io::Error>(all + thread.join().map_err(|_| io::Error::other("a thread panicked"))??)
        })
    })?;
    let mean = began.elapsed().as_secs_f64() * 1e3 * depth as f64 / count as f64;
    // As if single times differed as exponential ones do.
    Ok(Value { mean, error: mean / (count as f64).sqrt(), count, quantiles: None })
}

/// Sets what a job takes, and for how long it keeps processors or device busy.
fn with_use(
    bench: &mut Bench,
    (job, uses): (F, F),
    depth: u64,
    work: impl FnOnce() -> io::Result<Value>,
) -> io::Result<()> {
    let busy = Busy::now(bench.stand());
    let value = work()?;
    let part = busy.part(bench.stand()) / depth as f64;
    bench.set(uses, depth, Value { mean: value.mean * part, error: value.error * part, ..value.clone() });
    bench.set(job, depth, value);
    Ok(())
}

/// Calls on what is in memory; making files; making, syncing and removing them, in several directories and in one; and reading what
/// is not in memory: at random, in order, and small files.
pub fn crowd(bench: &mut Bench) -> io::Result<()> {
    let slice = bench.part() / (DEPTHS.len() as u32 * JOBS);
    let directories = bench.directories()?;
    let above = bench.above();
    let bytes = FILE.min(bench.space / directories.len() as u64);
    for directory in &directories {
        close(make(directory, "data", bytes, &bench.buffer)?)?;
        for file in 0..FILES {
            close(make(directory, &format!("small{file}"), SMALL as u64, &bench.buffer)?)?;
        }
    }
    let small = bench.buffer[..SMALL].to_vec();
    for depth in DEPTHS {
        bench.more(1)?;
        let on = |thread: u64| -> &OwnedFd { &directories[thread as usize % directories.len()] };
        let synced = |directory: &OwnedFd, name: &str| -> io::Result<()> {
            let file = make(directory, name, SMALL as u64, &small)?;
            fsync(&file)?;
            close(file)?;
            Ok(unlinkat(directory, name, AtFlags::empty())?)
        };
        let cached = together(depth, slice, u64::MAX, |thread, turn| {
            let (directory, name) = (on(thread), format!("small{}", turn % FILES));
            statat(directory, &name, AtFlags::empty())?;
            let file = open(directory, &name, OFlags::RDONLY)?;
            pread(&file, &mut [0u8; BLOCK as usize][..], 0)?;
            Ok(close(file)?)
        })?;
        bench.set(F::PCA, depth, cached);
        let made = together(depth, slice, (MADE / depth).max(1), |thread, turn| {
            Ok(close(make(on(thread), &format!("m{thread}-{turn}"), BLOCK, &small)?)?)
        })?;
        for thread in 0..depth {
            let names = (0..).map(|turn| format!("m{thread}-{turn}"));
            names.take_while(|name| unlinkat(on(thread), name, AtFlags::empty()).is_ok()).for_each(drop);
        }
        bench.settle()?;
        bench.set(F::PCR, depth, made);
        with_use(bench, (F::PSY, F::USY), depth, || {
            together(depth, slice, u64::MAX, |thread, turn| synced(on(thread), &format!("s{thread}-{turn}")))
        })?;
        let near = together(depth, slice, u64::MAX, |thread, turn| synced(on(0), &format!("s{thread}-{turn}")))?;
        bench.set(F::PDS, depth, near);
    }
    let count = directories.len() as u64;
    drop(directories);
    DEPTHS.iter().try_for_each(|depth| uncached(bench, &above, count, bytes, *depth, slice))
}

/// Reads in so many threads what is not in memory, each byte once. Threads that share a file or a directory have parts of
/// their own of it.
fn uncached(bench: &mut Bench, above: &Path, count: u64, bytes: u64, depth: u64, slice: Duration) -> io::Result<()> {
    let sharing = depth.div_ceil(count);
    let directory = |thread: u64| {
        let path = above.join(format!("d{}", thread % count));
        rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    };
    let large = |thread: u64, advice| {
        let file = open(directory(thread)?, "data", OFlags::RDONLY)?;
        rustix::fs::fadvise(&file, 0, None, advice)?;
        Ok::<_, io::Error>(file)
    };
    bench.cold()?;
    bench.more(1)?;
    let files: Vec<OwnedFd> =
        (0..depth).map(|thread| large(thread, rustix::fs::Advice::Random)).collect::<io::Result<_>>()?;
    let blocks = (bytes / BLOCK / sharing).max(1);
    with_use(bench, (F::PRD, F::URD), depth, || {
        together(depth, slice, blocks, |thread, turn| {
            // A step that shares no factor with the number of blocks reaches each once.
            let at = turn.wrapping_mul(1_000_003) % blocks * sharing + thread / count;
            Ok(pread(&files[thread as usize], &mut [0u8; BLOCK as usize][..], at * BLOCK)?)
        })
    })?;
    drop(files);

    bench.cold()?;
    bench.more(1)?;
    let files: Vec<OwnedFd> =
        (0..depth).map(|thread| large(thread, rustix::fs::Advice::Normal)).collect::<io::Result<_>>()?;
    let runs = (bytes / RUN / sharing).max(1);
    with_use(bench, (F::PRS, F::URS), depth, || {
        together(depth, slice, runs, |thread, turn| {
            let at = thread / count * runs + turn;
            Ok(pread(&files[thread as usize], &mut [0u8; RUN as usize][..], at * RUN)?)
        })
    })?;
    drop(files);

    bench.cold()?;
    bench.more(1)?;
    let directories: Vec<OwnedFd> = (0..count).map(directory).collect::<Result<_, _>>()?;
    // In no order, each once.
    let files = FILES * count;
    with_use(bench, (F::PFS, F::UFS), depth, || {
        together(depth, slice, files / depth, |thread, turn| {
            let at = (turn * depth + thread).wrapping_mul(1_000_003) % files;
            let file = open(&directories[(at % count) as usize], &format!("small{}", at / count), OFlags::RDONLY)?;
            pread(&file, &mut [0u8; SMALL][..], 0)?;
            Ok(close(file)?)
        })
    })
}
