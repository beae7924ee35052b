//! Cutting and removing, by size, and by where the content is: never written back, in memory, or on the disk alone.

use super::bench::{Bench, make, open};
use super::names::close;
use crate::vector::Family as F;
use rustix::fs::{AtFlags, OFlags, ftruncate, unlinkat};
use std::io;
use std::os::fd::OwnedFd;

/// KB of files, and how many there are of each in every directory.
const SIZES: [(u64, usize); 5] = [(0, 16), (4, 32), (16, 32), (64, 8), (1024, 1)];

fn fill_all(bench: &Bench, directories: &[OwnedFd], what: &str) -> io::Result<()> {
    for directory in directories {
        for (kb, count) in SIZES {
            for copy in 0..count {
                close(make(directory, &format!("{what}{kb}-{copy}"), kb * 1024, &bench.buffer)?)?;
            }
        }
    }
    Ok(())
}

fn each<'a>(directories: &'a [OwnedFd], what: &'a str) -> impl Iterator<Item = (&'a OwnedFd, u64, String)> {
    SIZES.into_iter().flat_map(move |(kb, count)| {
        (0..count).flat_map(move |copy| {
            directories.iter().map(move |directory| (directory, kb, format!("{what}{kb}-{copy}")))
        })
    })
}

/// What is in memory, and then what is not.
pub fn cached(bench: &mut Bench) -> io::Result<()> {
    bench.until_part(0.6);
    let mut rounds = 0;
    while bench.more(rounds)? {
        let directories = bench.directories()?;
        fill_all(bench, &directories, "clean")?;
        bench.settle()?;
        fill_all(bench, &directories, "dirty")?;
        for (directory, kb, name) in bench.shuffle(each(&directories, "dirty").collect()) {
            bench.time(F::RMD, kb, |_| unlinkat(directory, &name, AtFlags::empty()))?;
        }
        for (at, (directory, kb, name)) in bench.shuffle(each(&directories, "clean").collect()).into_iter().enumerate()
        {
            if at % 2 == 0 {
                let file = open(directory, &name, OFlags::RDWR)?;
                bench.time(F::TR, kb, |_| ftruncate(&file, 0))?;
            } else {
                bench.time(F::RMC, kb, |_| unlinkat(directory, &name, AtFlags::empty()))?;
            }
        }
        rounds += 1;
    }
    let directories = bench.directories()?;
    let above = bench.above();
    fill_all(bench, &directories, "cold")?;
    drop(directories);
    bench.cold()?;
    for (at, (kb, count)) in SIZES.into_iter().enumerate() {
        for copy in 0..count {
            for index in 0..super::bench::DIRECTORIES {
                let directory =
                    rustix::fs::open(above.join(format!("d{index}")), OFlags::DIRECTORY, rustix::fs::Mode::empty())?;
                let name = format!("cold{kb}-{copy}");
                bench.more(1)?;
                if (index + at) % 2 == 0 {
                    let file = open(&directory, &name, OFlags::RDWR)?;
                    bench.time(F::TRC, kb, |_| ftruncate(&file, 0))?;
                } else {
                    // The name is looked up before: what is left is removing.
                    rustix::fs::statat(&directory, &name, AtFlags::empty())?;
                    bench.time(F::RMU, kb, |_| unlinkat(&directory, &name, AtFlags::empty()))?;
                }
            }
        }
    }
    Ok(())
}
