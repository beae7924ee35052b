//! Making data durable.

use super::bench::{Bench, fill, make, open};
use super::names::close;
use crate::vector::Family as F;
use rustix::fs::{OFlags, fsync};
use rustix::io::pwrite;
use std::io;

const SIZES_KB: [u64; 4] = [4, 16, 64, 1024];

/// New files, grown ones, ones that were written over, clean ones, directories, and everything.
pub fn syncs(bench: &mut Bench) -> io::Result<()> {
    let mut rounds = 0u64;
    while bench.more(rounds)? {
        let directories = bench.directories()?;
        bench.settle()?;
        for (index, directory) in directories.iter().enumerate() {
            let kb = SIZES_KB[(index + rounds as usize) % SIZES_KB.len()];
            if !bench.more(rounds + index as u64)? {
                break;
            }
            let file = make(directory, "new", kb * 1024, &bench.buffer)?;
            bench.time(F::SYNEW, kb, |_| fsync(&file))?;
            bench.time(F::SYNONE, 0, |_| fsync(&file))?;
            fill(&file, kb * 1024, &bench.buffer)?;
            bench.time(F::SYAPP, kb, |_| fsync(&file))?;
            pwrite(&file, &bench.buffer[..(kb * 1024) as usize], 0)?;
            bench.time(F::SYOVER, kb, |_| fsync(&file))?;
            close(file)?;
            let empty = make(directory, "empty", 0, &[])?;
            bench.time(F::SYNEW, 0, |_| fsync(&empty))?;
            close(make(directory, "another", 0, &[])?)?;
            bench.time(F::SYDIR, 0, |_| fsync(directory))?;
        }
        if rounds.is_multiple_of(4) {
            let kb = if rounds.is_multiple_of(8) { 4 } else { 4096 };
            close(make(&directories[0], "all", kb * 1024, &bench.buffer)?)?;
            let root = open(&directories[0], ".", OFlags::RDONLY)?;
            bench.time(F::SYFS, kb, |_| rustix::fs::syncfs(&root))?;
        }
        rounds += 1;
    }
    Ok(())
}
