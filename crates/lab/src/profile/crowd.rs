//! What calls take when many make them at once.

use super::bench::{Bench, make, open};
use super::names::close;
use crate::vector::{Family as F, Value};
use rustix::fs::{AtFlags, OFlags, fsync, unlinkat};
use rustix::io::pread;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

const DEPTHS: [u64; 5] = [1, 2, 4, 16, 64];
/// Bytes of a file that is read at random by many.
const FILE: u64 = 16 << 20;
/// Bytes that are written and synced.
const SYNCED: usize = 16 << 10;

/// Does `work` in so many threads for a while, in each at most so often. Returns what one takes on average while all work: of
/// their number and the time, since single times are mostly either those of a thread alone, or of one that waits for a
/// processor.
fn together(
    depth: u64,
    time: Duration,
    most: u64,
    work: impl Fn(u64, u64) -> io::Result<()> + Sync,
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

/// Random reads; creating and removing; that with syncing, in several directories and in one.
pub fn crowd(bench: &mut Bench) -> io::Result<()> {
    let slice = bench.part().div_f64((DEPTHS.len() * 4) as f64);
    let directories = bench.directories()?;
    let above = bench.above();
    let bytes = FILE.min(bench.space / directories.len() as u64);
    for directory in &directories {
        close(make(directory, "data", bytes, &bench.buffer)?)?;
    }
    let (buffer, large) = (bench.buffer[..4096].to_vec(), bench.buffer[..SYNCED].to_vec());
    for depth in DEPTHS {
        bench.more(1)?;
        let on = |thread: u64| -> &OwnedFd { &directories[thread as usize % directories.len()] };
        let created = together(depth, slice, u64::MAX, |thread, turn| {
            let name = format!("c{thread}-{turn}");
            let file = open(on(thread), &name, OFlags::CREATE | OFlags::RDWR)?;
            rustix::io::write(&file, &buffer)?;
            close(file)?;
            Ok(unlinkat(on(thread), &name, AtFlags::empty())?)
        })?;
        bench.set(F::PCR, depth, created);
        let sync = |directory: &OwnedFd, thread: u64, turn: u64| -> io::Result<()> {
            let name = format!("s{thread}-{turn}");
            let file = open(directory, &name, OFlags::CREATE | OFlags::RDWR)?;
            rustix::io::write(&file, &large)?;
            fsync(&file)?;
            close(file)?;
            Ok(unlinkat(directory, &name, AtFlags::empty())?)
        };
        let synced = together(depth, slice, u64::MAX, |thread, turn| sync(on(thread), thread, turn))?;
        bench.set(F::PSY, depth, synced);
        let crowded = together(depth, slice, u64::MAX, |thread, turn| sync(on(0), thread, turn))?;
        bench.set(F::PDS, depth, crowded);
    }
    let count = directories.len();
    drop(directories);
    for depth in DEPTHS {
        bench.cold()?;
        bench.more(1)?;
        let open = |thread: u64| {
            let path = above.join(format!("d{}/data", thread as usize % count));
            let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, rustix::fs::Mode::empty())?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
            Ok(file)
        };
        let files: Vec<OwnedFd> = (0..depth).map(open).collect::<io::Result<_>>()?;
        // Threads that share a file read blocks of their own, and none twice.
        let sharing = depth.div_ceil(count as u64);
        let blocks = (bytes / 4096 / sharing).max(1);
        let read = together(depth, slice, blocks, |thread, turn| {
            // A step that shares no factor with the number of blocks reaches each once.
            let at = turn.wrapping_mul(1_000_003) % blocks * sharing + thread / count as u64;
            pread(&files[thread as usize], &mut [0u8; 4096][..], at * 4096)?;
            Ok(())
        })?;
        bench.set(F::PRD, depth, read);
    }
    Ok(())
}
