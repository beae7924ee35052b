//! Reading, and looking up, what is not in memory.

use super::bench::{Bench, Clock, DIRECTORIES, make, open};
use super::names::close;
use crate::vector::{Family as F, Value};
use ashlar_env::host::map_file;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, linkat, statat};
use rustix::io::{pread, pwrite};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

const SIZES_KB: [u64; 6] = [4, 8, 16, 64, 256, 1024];

fn directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Data: in order and at random, by request; parts of blocks; mappings.
pub fn data(bench: &mut Bench) -> io::Result<()> {
    let file_bytes = (bench.space / DIRECTORIES as u64).clamp(2 << 20, 16 << 20);
    let directories = bench.directories()?;
    let above = bench.above();
    for directory in &directories {
        close(make(directory, "data", file_bytes, &bench.buffer)?)?;
    }
    drop(directories);
    let mut buffer = vec![0; 1 << 20];
    let mut rounds = 0;
    while bench.more(rounds)? {
        bench.cold()?;
        for index in 0..DIRECTORIES {
            let file = open(directory(&above.join(format!("d{index}")))?, "data", OFlags::RDWR)?;
            let kb = SIZES_KB[(index + rounds as usize) % SIZES_KB.len()];
            match index % 4 {
                0 => {
                    // In order: the mean over a file, read-ahead included.
                    let clock = Clock::start();
                    let mut at = 0;
                    while at < file_bytes {
                        at += pread(&file, &mut buffer[..(kb * 1024) as usize], at)?.max(1) as u64;
                    }
                    let part = (kb * 1024) as f64 / file_bytes as f64;
                    bench.keep(F::RD, kb, clock.stop().map(|all| all * part));
                }
                3 if index == 3 => {
                    let map = map_file(&file, 0, file_bytes as usize)?;
                    let clock = Clock::start();
                    map.populate(file_bytes as usize)?;
                    bench.keep(F::MRD, 1024, clock.stop().map(|all| all * (1 << 20) as f64 / file_bytes as f64));
                }
                _ => {
                    // At random: read-ahead off, as what the kernel then does is what it does for random reads.
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
                    let count = (file_bytes / (kb * 1024) / 8).clamp(1, 16);
                    for turn in 0..count {
                        let part = file_bytes / count;
                        let at = turn * part + bench.chance.below((part / 4096).saturating_sub(kb / 4).max(1)) * 4096;
                        let clock = Clock::start();
                        pread(&file, &mut buffer[..(kb * 1024) as usize], at)?;
                        bench.keep(F::RRD, kb, clock.stop());
                    }
                    bench.cold_part(&file)?;
                    let at = bench.chance.below(file_bytes / 4096) * 4096;
                    bench.time(F::RMW, 0, |from| pwrite(&file, &from[..100], at + 50))?;
                }
            }
        }
        rounds += 1;
    }
    Ok(())
}

impl Bench<'_> {
    /// Makes the pages of one file go.
    fn cold_part(&mut self, file: &OwnedFd) -> io::Result<()> {
        rustix::fs::fdatasync(file)?;
        Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?)
    }
}

/// Small files as they are read from their beginning: the first read of each, which fetches what is read ahead.
pub fn files(bench: &mut Bench) -> io::Result<()> {
    const SMALL_KB: [u64; 4] = [4, 16, 64, 256];
    const COPIES: usize = 4;
    let directories = bench.directories()?;
    let above = bench.above();
    for directory in &directories {
        for kb in SMALL_KB {
            for copy in 0..COPIES {
                close(make(directory, &format!("small{kb}-{copy}"), kb * 1024, &bench.buffer)?)?;
            }
        }
    }
    drop(directories);
    let mut buffer = vec![0; 4096];
    let mut rounds = 0;
    while bench.more(rounds)? {
        bench.cold()?;
        let all = (0..DIRECTORIES * COPIES).flat_map(|at| SMALL_KB.map(|kb| (at % DIRECTORIES, at / DIRECTORIES, kb)));
        let all = bench.shuffle(all.collect());
        for (at, copy, kb) in all {
            let file = open(directory(&above.join(format!("d{at}")))?, &format!("small{kb}-{copy}"), OFlags::RDONLY)?;
            let clock = Clock::start();
            pread(&file, &mut buffer, 0)?;
            let first = clock.stop();
            // With what the rest of it takes beyond what cached reads do: some is still on its way.
            let (mut rest, mut offset) = (0.0, 4096);
            while offset < kb * 1024 {
                let clock = Clock::start();
                offset += pread(&file, &mut buffer, offset)?.max(1) as u64;
                rest += (clock.stop().milliseconds - 0.002).max(0.0);
            }
            bench.keep(F::RFS, kb, first.map(|time| time + rest));
        }
        rounds += 1;
    }
    Ok(())
}

/// Names: in one directory and another; a further name of a cached inode; absent ones; directories that are read.
pub fn names(bench: &mut Bench) -> io::Result<()> {
    const FILES: usize = 64;
    let directories = bench.directories()?;
    let above = bench.above();
    let mut links = true;
    for directory in &directories {
        for index in 0..FILES {
            let name = format!("file{index:04}");
            close(make(directory, &name, 1024, &bench.buffer)?)?;
            links &= linkat(directory, &name, directory, format!("link{index:04}"), AtFlags::empty()).is_ok();
        }
    }
    drop(directories);
    let mut rounds = 0;
    let cached = bench.value(F::STAT, 0).map_or(0.0, |value| value.mean);
    while bench.more(rounds)? {
        bench.cold()?;
        let paths: Vec<_> = (0..DIRECTORIES).map(|index| above.join(format!("d{index}"))).collect();
        for path in &paths {
            let clock = Clock::start();
            let there = std::fs::symlink_metadata(path.join(format!("absent{rounds}"))).is_ok();
            bench.keep(F::LUR_NN, 0, clock.stop().map(|time| time - cached));
            debug_assert!(!there);
        }
        bench.cold()?;
        for (at, path) in paths.iter().enumerate() {
            // The first in a directory: nothing of it was in memory but its own inode.
            let directory = directory(path)?;
            let look = |bench: &mut Bench, family: F, name: &str| -> io::Result<()> {
                let clock = Clock::start();
                statat(&directory, name, AtFlags::empty())?;
                bench.keep(family, 0, clock.stop().map(|time| time - cached));
                Ok(())
            };
            let from = bench.chance.below(FILES as u64) as usize;
            look(bench, F::LUR_NC, &format!("file{from:04}"))?;
            for step in 1..FILES {
                look(bench, F::LUS_NC, &format!("file{:04}", (from + step) % FILES))?;
            }
            for step in 0..if links { FILES } else { 0 } {
                look(bench, if at % 2 == 0 { F::LUS_AC } else { F::LUR_AC }, &format!("link{step:04}"))?;
            }
        }
        bench.cold()?;
        for path in &paths {
            let opened = directory(path)?;
            let clock = Clock::start();
            let first = Dir::read_from(&opened)?.count();
            let uncached = clock.stop();
            let clock = Clock::start();
            let again = Dir::read_from(&opened)?.count();
            let cached = clock.stop();
            bench.keep(F::DIRU, 0, uncached.map(|time| time - cached.milliseconds));
            bench.keep(F::DIRE, 0, cached.map(|time| time / first.max(again).max(1) as f64));
        }
        rounds += 1;
    }
    // A call that reads a directory has about the overhead of one that asks for attributes.
    if let Some(value) = bench.value(F::FSTAT, 0) {
        bench.set(F::DIRO, 0, Value { quantiles: None, ..value });
    }
    Ok(())
}
