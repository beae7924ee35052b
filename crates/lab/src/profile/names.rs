//! Calls on names and attributes, all in memory.

use super::bench::{Bench, Clock, DIRECTORIES, in_memory, open};
use crate::vector::Family as F;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, StatxFlags, Timestamps, XattrFlags, chmodat, fgetxattr, fsetxattr, fstat, linkat,
    mkdirat, readlinkat, renameat, statat, statx, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Files of a round in each directory.
const FILES: usize = 128;

type Names<'a> = Vec<(&'a OwnedFd, String)>;

fn each(directories: &[OwnedFd]) -> Names<'_> {
    // One of each directory after the other, so that no two neighbours share one.
    let name = |at: usize| (&directories[at % directories.len()], format!("file{:04}", at / directories.len()));
    (0..FILES * directories.len()).map(name).collect()
}

/// Creating, opening, removing and what else takes a name.
pub fn names(bench: &mut Bench) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
    let mut rounds = 0;
    while bench.more(rounds)? {
        let directories = bench.directories()?;
        for (directory, name) in each(&directories) {
            let file = bench.time(F::CR, 0, |_| open(directory, &name, flags))?;
            bench.time(F::FSTAT, 0, |_| fstat(&file))?;
            bench.time(F::CLOSE, 0, |_| close(file))?;
        }
        for (directory, name) in bench.shuffle(each(&directories)) {
            bench.time(F::STAT, 0, |_| statat(directory, &name, AtFlags::empty()))?;
        }
        for (directory, name) in bench.shuffle(each(&directories)) {
            let file = bench.time(F::OPEN, 0, |_| open(directory, &name, OFlags::RDWR))?;
            let set = bench.time(F::SETXA, 0, |_| fsetxattr(&file, "user.ashlar", b"0123456789", XattrFlags::empty()));
            match set {
                Ok(()) => drop(bench.time(F::GETXA, 0, |_| fgetxattr(&file, "user.ashlar", &mut [0u8; 32][..]))?),
                Err(error) if error.raw_os_error().is_none() || error.kind() == io::ErrorKind::Unsupported => {}
                Err(error) => return Err(error),
            }
            bench.time(F::CLOSE, 0, |_| close(file))?;
            bench.time(F::CHMOD, 0, |_| chmodat(directory, &name, Mode::from_raw_mode(0o600), AtFlags::empty()))?;
            bench.time(F::UTIMES, 0, |_| utimensat(directory, &name, &TIMES, AtFlags::empty()))?;
        }
        for (directory, name) in bench.shuffle(each(&directories)) {
            let (other, link) = (format!("{name}r"), format!("{name}s"));
            bench.time(F::RENAME, 0, |_| renameat(directory, &name, directory, &other))?;
            match bench.time(F::LINK, 0, |_| linkat(directory, &other, directory, &name, AtFlags::empty())) {
                Ok(()) => unlinkat(directory, &other, AtFlags::empty())?,
                // File systems without links have no result.
                Err(_) => renameat(directory, &other, directory, &name)?,
            }
            bench.time(F::SYMLINK, 0, |_| symlinkat("somewhere/else", directory, &link))?;
            bench.time(F::READLINK, 0, |_| readlinkat(directory, &link, Vec::new()))?;
            bench.time(F::STATFS, 0, |_| rustix::fs::fstatvfs(directory))?;
            unlinkat(directory, &link, AtFlags::empty())?;
        }
        for (directory, name) in bench.shuffle(each(&directories)) {
            bench.time(F::RM, 0, |_| unlinkat(directory, &name, AtFlags::empty()))?;
        }
        for (directory, name) in each(&directories) {
            bench.time(F::MKDIR, 0, |_| mkdirat(directory, &name, Mode::from_raw_mode(0o755)))?;
        }
        for (directory, name) in bench.shuffle(each(&directories)) {
            bench.time(F::RMDIR, 0, |_| unlinkat(directory, &name, AtFlags::REMOVEDIR))?;
        }
        rounds += 1;
    }
    Ok(())
}

const TIMES: Timestamps = Timestamps {
    last_access: rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 1 },
    last_modification: rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 2 },
};

/// Closes a file, and says whether that failed.
pub fn close(file: OwnedFd) -> rustix::io::Result<()> {
    drop(file);
    Ok(())
}

/// Lookups of what is in memory: the difference between long and short paths; and absent names.
pub fn lookups(bench: &mut Bench) -> io::Result<()> {
    const DEPTH: usize = 8;
    let (mut short, mut long, mut negative, mut absent) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut rounds = 0u64;
    while bench.more(rounds)? {
        let directories = bench.directories()?;
        let above = bench.above();
        let mut deep = Vec::new();
        for index in 0..DIRECTORIES {
            let path =
                (0..DEPTH).fold(above.join(format!("d{index}")), |path, level| path.join(format!("below{level}")));
            std::fs::create_dir_all(&path)?;
            deep.push(path);
        }
        let clock = |work: &dyn Fn() -> Result<(), Errno>| {
            let clock = Clock::start();
            // An absent name is what is wanted, too.
            let _ = work();
            clock.stop().milliseconds
        };
        let look = |path: &Path| statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS).map(drop);
        for turn in 0..64 {
            for path in &deep {
                let near = (0..DEPTH).fold(path.as_path(), |path, _| path.parent().unwrap_or(path)).to_path_buf();
                short.push(clock(&|| look(&near)));
                long.push(clock(&|| look(path)));
            }
            for directory in &directories {
                let name = format!("absent{turn}");
                let stat = || statat(directory, &name, AtFlags::empty()).map(drop);
                absent.push(clock(&stat));
                negative.push(clock(&stat));
            }
        }
        rounds += 1;
    }
    let (short, long) = (in_memory(short), in_memory(long));
    bench.difference(F::LUS_BC, long.clone(), short.clone(), DEPTH as f64);
    bench.difference(F::LUR_BC, long, short, DEPTH as f64);
    let negative = in_memory(negative);
    bench.difference(F::LUS_NN, in_memory(absent), negative, 1.0);
    // Who makes a name has looked it up.
    for family in [F::CR, F::MKDIR, F::SYMLINK, F::LINK, F::RENAME] {
        bench.subtract(family, F::LUS_NN);
    }
    Ok(())
}
