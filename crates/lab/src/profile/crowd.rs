//! What calls take when many make them at once.

use super::bench::{Bench, make, open};
use super::names::close;
use crate::vector::Family as F;
use rustix::fs::{AtFlags, OFlags, fsync, unlinkat};
use rustix::io::pread;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

const DEPTHS: [u64; 4] = [1, 2, 4, 8];
const FILE: u64 = 16 << 20;

/// Does `work` in so many threads for a while; returns all times, milliseconds.
fn together(depth: u64, time: Duration, work: impl Fn(u64, u64) -> io::Result<f64> + Sync) -> io::Result<Vec<f64>> {
    let until = Instant::now() + time;
    let one = |thread: u64| {
        let mut times = Vec::new();
        while times.is_empty() || Instant::now() < until && times.len() < 5_000 {
            times.push(work(thread, times.len() as u64)?);
        }
        Ok::<_, io::Error>(times)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..depth).map(|thread| scope.spawn(move || one(thread))).collect();
        threads.into_iter().try_fold(Vec::new(), |mut all, thread| {
            all.append(&mut thread.join().map_err(|_| io::Error::other("a thread panicked"))??);
            Ok(all)
        })
    })
}

fn milliseconds(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

/// Random reads, creating and removing, and syncing.
pub fn crowd(bench: &mut Bench) -> io::Result<()> {
    let slice = bench.part().div_f64((DEPTHS.len() * 3) as f64);
    let directories = bench.directories()?;
    let above = bench.above();
    for directory in &directories {
        close(make(directory, "data", FILE.min(bench.space / 16), &bench.buffer)?)?;
    }
    let buffer = bench.buffer[..4096].to_vec();
    for depth in DEPTHS {
        bench.more(1)?;
        let on = |thread: u64| -> &OwnedFd { &directories[thread as usize % directories.len()] };
        let created = together(depth, slice, |thread, turn| {
            let name = format!("c{thread}-{turn}");
            let began = Instant::now();
            let file = open(on(thread), &name, OFlags::CREATE | OFlags::RDWR)?;
            rustix::io::write(&file, &buffer)?;
            close(file)?;
            unlinkat(on(thread), &name, AtFlags::empty())?;
            Ok(milliseconds(began))
        })?;
        created.into_iter().for_each(|time| bench.keep(F::PCR, depth, Some(time)));
        let synced = together(depth, slice, |thread, turn| {
            let file = open(on(thread), &format!("s{thread}"), OFlags::CREATE | OFlags::RDWR | OFlags::APPEND)?;
            rustix::io::write(&file, &buffer)?;
            let began = Instant::now();
            fsync(&file)?;
            let _ = turn;
            Ok(milliseconds(began))
        })?;
        synced.into_iter().for_each(|time| bench.keep(F::PSY, depth, Some(time)));
    }
    drop(directories);
    for depth in DEPTHS {
        bench.cold()?;
        bench.more(1)?;
        let files: Vec<OwnedFd> = (0..depth)
            .map(|thread| {
                let path = above.join(format!("d{thread}/data"));
                let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, rustix::fs::Mode::empty())?;
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
                Ok(file)
            })
            .collect::<io::Result<_>>()?;
        let blocks = FILE.min(bench.space / 16) / 4096;
        let read = together(depth, slice, |thread, turn| {
            // A step that shares no factor with the number of blocks reaches each once.
            let at = turn.wrapping_mul(1_000_003) % blocks.max(1) * 4096;
            let began = Instant::now();
            pread(&files[thread as usize], &mut [0u8; 4096][..], at)?;
            Ok(milliseconds(began))
        })?;
        read.into_iter().take(blocks as usize).for_each(|time| bench.keep(F::PRD, depth, Some(time)));
    }
    Ok(())
}
