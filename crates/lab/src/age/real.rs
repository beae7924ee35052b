//! A directory of a mounted file system that ages.
//!
//! Names are the file's number in base 32, padded to the length that the history says; a shorter one has 13 letters. Files
//! are written in pieces of the history's write size with bytes that do not compress, and descriptors of dirty files stay
//! open, so that writing back needs no path.

use super::subject::{Look, Refusal, Subject};
use super::{Alive, Live};
use crate::history::{ROOT, Writing};
use crate::layout::Free;
use crate::noise::{Noise, PIECE_MAX};
use ashlar_env::host::{extents, start_writeback};
use ashlar_survey::layout::{Score, free_space, score};
use ashlar_survey::sample::fast_hash;
use rustix::fs::{AtFlags, Mode, OFlags, ftruncate, mkdirat, openat, renameat, unlinkat};
use rustix::io::{Errno, pwrite};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Directories and dirty files that are open at once, each. Below the usual limit of 1,024 descriptors.
const OPEN_MAX: usize = 400;
/// Files that are looked at for a point of the series.
const SAMPLE: u64 = 1000;
/// Extents of one of them.
const EXTENTS_MAX: usize = 10_000;

/// See the module.
pub struct Directory {
    path: PathBuf,
    root: OwnedFd,
    directories: HashMap<u64, OwnedFd>,
    dirty: HashMap<u64, OwnedFd>,
    noise: Noise,
    seed: u64,
    /// Operations may have been done before.
    again: bool,
}

impl Directory {
    /// Ages what is below `path`.
    pub fn new(path: &Path, seed: u64) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        let (directories, dirty) = (HashMap::new(), HashMap::new());
        Ok(Directory { path: path.into(), root, directories, dirty, noise: Noise::new(seed), seed, again: false })
    }

    /// A descriptor of a directory.
    fn directory(&mut self, id: u64, alive: &Alive) -> Result<&OwnedFd, Errno> {
        if id == ROOT {
            return Ok(&self.root);
        }
        if !self.directories.contains_key(&id) {
            let opened = openat(
                &self.root,
                below(id, alive),
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            if self.directories.len() >= OPEN_MAX {
                self.directories.clear();
            }
            self.directories.insert(id, opened);
        }
        Ok(self.directories.get(&id).unwrap_or(&self.root))
    }

    /// Does `work` in the directory of something, with its name.
    fn within<T>(
        &mut self,
        id: u64,
        (parent, name_len): (u64, u8),
        alive: &Alive,
        work: impl FnOnce(&OwnedFd, &str) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        work(self.directory(parent, alive)?, &name(id, name_len))
    }

    fn open_file(&mut self, id: u64, alive: &Alive) -> Result<OwnedFd, Errno> {
        if let Some(file) = self.dirty.remove(&id) {
            return Ok(file);
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.within(id, place(id, alive), alive, |directory, name| openat(directory, name, flags, Mode::from(0o644)))
    }

    fn write_pieces(&self, file: &OwnedFd, id: u64, from: u64, to: u64, unit: u32) -> Result<(), Errno> {
        // Where the history does not say how large writes are, they are as large as can be.
        let most = if unit == 0 { PIECE_MAX } else { (unit as usize).min(PIECE_MAX) };
        let mut at = from;
        while at < to {
            let len = most.min((to - at) as usize);
            match pwrite(file, self.noise.piece(id, at, len), at) {
                Ok(0) => return Err(Errno::IO),
                Ok(written) => at += written as u64,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn try_write(&mut self, id: u64, old: u64, keep: u64, how: Writing, alive: &Alive) -> Result<(), Errno> {
        let size = alive.get(&id).map_or(0, |live| live.size);
        let file = self.open_file(id, alive)?;
        let written = (|| {
            if old > keep || self.again {
                ftruncate(&file, keep)?;
            }
            self.write_pieces(&file, id, keep, size, how.unit)?;
            if how.sync { rustix::fs::fsync(&file) } else { Ok(()) }
        })();
        if written.is_ok() && !how.sync && size > keep && self.dirty.len() < OPEN_MAX {
            self.dirty.insert(id, file);
        }
        written
    }
}

fn place(id: u64, alive: &Alive) -> (u64, u8) {
    alive.get(&id).map_or((ROOT, 0), |live| (live.parent, live.name_len))
}

/// What something is called.
fn name(id: u64, len: u8) -> String {
    const LETTERS: [u8; 32] = *b"0123456789abcdefghijklmnopqrstuv";
    let mut name: String = (0..13).map(|digit| LETTERS[(id >> (5 * digit)) as usize % 32] as char).collect();
    name.extend(std::iter::repeat_n('-', usize::from(len).saturating_sub(name.len())));
    name
}

/// The path of something below the root.
fn below(id: u64, alive: &Alive) -> PathBuf {
    let (mut names, mut at) = (Vec::new(), id);
    while at != ROOT
        && let Some(Live { parent, name_len, .. }) = alive.get(&at)
    {
        names.push(name(at, *name_len));
        at = *parent;
    }
    names.iter().rev().collect()
}

fn refusal(error: Errno) -> Refusal {
    match error {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::MLINK => Refusal::Full,
        error => Refusal::Io(error.into()),
    }
}

impl Subject for Directory {
    fn repeating(&mut self, again: bool) {
        self.again = again;
    }

    /// Files get the times at which they are written here.
    fn at(&mut self, _now_ns: i64) {}

    fn make_directory(&mut self, id: u64, alive: &Alive) -> Result<(), Refusal> {
        let mode = Mode::from(0o755);
        let made = self.within(id, place(id, alive), alive, |directory, name| mkdirat(directory, name, mode));
        match made {
            Err(Errno::EXIST) if self.again => Ok(()),
            made => made.map_err(refusal),
        }
    }

    fn write(&mut self, id: u64, old: u64, keep: u64, how: Writing, alive: &Alive) -> Result<(), Refusal> {
        self.try_write(id, old, keep, how, alive).map_err(refusal)
    }

    fn rename(&mut self, id: u64, from: (u64, u8), alive: &Alive) -> Result<(), Refusal> {
        let to = place(id, alive);
        let source =
            self.directory(from.0, alive).and_then(|directory| directory.try_clone().map_err(|_| Errno::MFILE));
        let source = source.map_err(refusal)?;
        let old = name(id, from.1);
        match self.within(id, to, alive, |directory, name| renameat(&source, &old, directory, name)) {
            Err(Errno::NOENT) if self.again => Ok(()),
            renamed => renamed.map_err(refusal),
        }
    }

    fn delete(&mut self, id: u64, alive: &Alive) -> io::Result<()> {
        self.dirty.remove(&id);
        let directory = alive.get(&id).is_some_and(|live| live.directory);
        if directory {
            self.directories.remove(&id);
        }
        let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match self.within(id, place(id, alive), alive, |above, name| unlinkat(above, name, flags)) {
            Err(Errno::NOENT) if self.again => Ok(()),
            removed => Ok(removed?),
        }
    }

    fn give_up(&mut self, id: u64, alive: &Alive) -> io::Result<()> {
        match self.delete(id, alive) {
            // What a directory that could not be made would have held was not made either.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn write_back(&mut self, id: u64, alive: &Alive) -> io::Result<()> {
        if let Some(file) = self.dirty.remove(&id) {
            return start_writeback(&file);
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = place(id, alive);
        match self.within(id, place, alive, |directory, name| openat(directory, name, flags, Mode::empty())) {
            Ok(file) => start_writeback(&file),
            // It was written back, and then deleted.
            Err(Errno::NOENT) if self.again => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.dirty.clear();
        Ok(rustix::fs::syncfs(&self.root)?)
    }

    fn look(&mut self, alive: &Alive) -> io::Result<Look> {
        let space = rustix::fs::fstatvfs(&self.root)?;
        let share = SAMPLE as f64 / alive.len().max(1) as f64;
        let sample = alive.iter().filter(|(id, live)| !live.directory && fast_hash(self.seed, **id) < share);
        let (mut total, mut placed, mut pieces) = (Score::default(), 0u64, 0u64);
        for (id, live) in sample {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = openat(&self.root, below(*id, alive), flags, Mode::empty())?;
            let Ok(found) = extents(file.as_fd(), EXTENTS_MAX) else { break };
            let (score, count) = score(&found, live.size, space.f_frsize);
            total.add(score);
            placed += u64::from(count > 0);
            pieces += count;
        }
        Ok(Look {
            used: 1.0 - space.f_bfree as f64 / space.f_blocks.max(1) as f64,
            score: total.value(),
            pieces_per_file: pieces as f64 / placed.max(1) as f64,
            free: File::open(&self.path)
                .ok()
                .and_then(|file| free_space(&file, &AtomicBool::new(false)).ok())
                .map(Free::new),
        })
    }
}
