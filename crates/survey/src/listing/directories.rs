//! Reading directories ahead: names, and what a walk asks of each.

use crate::source::open;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, FileType, RawDir, StatxFlags, makedev, statx};
use std::ffi::{CStr, OsStr};
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender};

/// Entries that change hands at once.
const BATCH: usize = 256;
/// Entries of a directory whose attributes are asked for in the order in which they lie.
const SORTED: usize = 8192;
/// Bytes of names that the kernel gives at once.
const NAMES: usize = 64 << 10;

/// Directories to be read.
pub struct Job {
    pub paths: Vec<PathBuf>,
    /// Gets what they hold.
    pub to_us: SyncSender<Batch>,
}

/// A part of what the directories of a job hold, by their index.
pub struct Batch {
    pub names: Names,
    pub found: Vec<(usize, What)>,
}

/// Batches that were looked at: memory that is used again costs less than fresh.
pub type Spare = Mutex<Vec<Batch>>;

/// What a directory holds.
pub enum What {
    /// Its name, and what it is.
    File(Range<u32>, About),
    /// The directory, or something in it, cannot be looked at.
    Failed(io::Error),
}

/// What a walk asks of a file.
pub struct About {
    pub kind: FileType,
    pub device: u64,
    pub inode: u64,
    pub links: u32,
    pub size: u64,
    pub allocated: u64,
    pub changed: i64,
}

impl About {
    fn of(directory: impl AsFd, name: &CStr) -> io::Result<About> {
        let found = statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)?;
        Ok(About {
            kind: FileType::from_raw_mode(found.stx_mode.into()),
            device: makedev(found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            links: found.stx_nlink,
            size: found.stx_size,
            allocated: found.stx_blocks.saturating_mul(512),
            changed: found.stx_mtime.tv_sec,
        })
    }

    fn symlink() -> About {
        About { kind: FileType::Symlink, device: 0, inode: 0, links: 1, size: 0, allocated: 0, changed: 0 }
    }
}

/// Names, one behind the other, each with a zero at its end.
#[derive(Default)]
pub struct Names(Vec<u8>);

impl Names {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    fn add(&mut self, name: &CStr) -> Range<u32> {
        let from = self.0.len() as u32;
        self.0.extend_from_slice(name.to_bytes_with_nul());
        from..self.0.len() as u32
    }

    fn c_str(&self, name: &Range<u32>) -> &CStr {
        CStr::from_bytes_with_nul(&self.0[name.start as usize..name.end as usize]).unwrap_or_default()
    }

    pub fn get(&self, name: &Range<u32>) -> &OsStr {
        OsStr::from_bytes(self.c_str(name).to_bytes())
    }
}

/// Gives what is found to whoever waits for it.
struct Giver<'a> {
    batch: Option<Batch>,
    to_us: SyncSender<Batch>,
    spare: &'a Spare,
}

impl Giver<'_> {
    fn give(&mut self, of: usize, found: io::Result<(&CStr, About)>) -> ControlFlow<()> {
        let batch = self.batch.get_or_insert_with(|| {
            let found = self.spare.lock().pop();
            found.unwrap_or_else(|| Batch { names: Names::default(), found: Vec::with_capacity(BATCH) })
        });
        let what = match found {
            Ok((name, about)) => What::File(batch.names.add(name), about),
            Err(error) => What::Failed(error),
        };
        batch.found.push((of, what));
        if batch.found.len() < BATCH { ControlFlow::Continue(()) } else { self.send() }
    }

    /// Ends the job if nobody waits any more.
    fn send(&mut self) -> ControlFlow<()> {
        match self.batch.take().map(|batch| self.to_us.send(batch)) {
            Some(Err(_)) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}

/// Reads directories until there are no more.
pub fn read_directories(jobs: &Mutex<Receiver<Job>>, spare: &Spare) {
    let mut room = Room { raw: Vec::with_capacity(NAMES), names: Names::default(), some: Vec::new() };
    loop {
        let job = jobs.lock().recv();
        let Ok(Job { paths, to_us }) = job else { return };
        let mut giver = Giver { batch: None, to_us, spare };
        let mut paths = paths.iter().enumerate();
        let read = paths.try_for_each(|(of, path)| room.read(of, path, &mut giver));
        if read.is_continue() {
            let _ = giver.send();
        }
    }
}

/// Memory for reading directories.
struct Room {
    raw: Vec<u8>,
    names: Names,
    some: Vec<(u64, FileType, Range<u32>)>,
}

impl Room {
    /// Gives what a directory holds, as the one of this index.
    fn read(&mut self, of: usize, path: &Path, giver: &mut Giver<'_>) -> ControlFlow<()> {
        let Room { raw, names, some } = self;
        let directory = match open(CWD, path) {
            Ok(directory) => directory,
            Err(error) => return giver.give(of, Err(error)),
        };
        let mut entries = RawDir::new(&directory, raw.spare_capacity_mut());
        let mut failed = None;
        while failed.is_none() {
            names.clear();
            some.clear();
            while some.len() < SORTED
                && let Some(entry) = entries.next()
            {
                match entry {
                    Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
                    Ok(entry) => some.push((entry.ino(), entry.file_type(), names.add(entry.file_name()))),
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
            if some.is_empty() {
                break;
            }
            // Attributes lie by inode number, names by hash.
            some.sort_unstable_by_key(|(inode, ..)| *inode);
            for (_, kind, name) in some.iter() {
                let name = names.c_str(name);
                // Of a symbolic link nothing else is wanted.
                let about = if *kind == FileType::Symlink { Ok(About::symlink()) } else { About::of(&directory, name) };
                giver.give(of, about.map(|about| (name, about)))?;
            }
        }
        failed.map_or(ControlFlow::Continue(()), |error| giver.give(of, Err(error.into())))
    }
}
