//! Going through a tree: one thread lists what several read ahead.

use super::{Entry, Listing, Look, WalkError, data_bytes};
use crate::inside::IMAGE_MIN;
use std::collections::{HashSet, VecDeque};
use std::ffi::OsString;
use std::fs::{DirEntry, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirEntryExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};

/// Threads that read directories: on a cold cache each waits for the device most of the time.
const WALKERS: usize = 8;
/// Directories that are read ahead of the one that is looked at.
const DIRECTORIES_AHEAD: usize = 64;
/// Entries of a directory that change hands at once.
const BATCH: usize = 256;
/// Entries of a directory whose attributes are asked for in the order in which they lie.
const SORTED: usize = 8192;
/// Batches of a directory that wait to be looked at: with those above a bound for memory, 16 MiB.
const BATCHES: usize = 4;
struct Walk<'a> {
    listing: Listing,
    device: u64,
    look: Look<'a>,
    linked: HashSet<u64>,
    seen: HashSet<u64>,
    /// Where something is mounted below the root.
    mounts: HashSet<PathBuf>,
}

impl Listing {
    /// Walks through the tree below `root`, without following symbolic links or entering other file systems.
    pub fn walk(root: &Path, look: Look<'_>) -> Result<Listing, WalkError> {
        let fail = |error| WalkError::Root(root.to_path_buf(), error);
        let metadata = std::fs::metadata(root).map_err(fail)?;
        let listing = Listing { root: root.to_path_buf(), ..Listing::default() };
        // A mount may lead back to the root itself.
        let (linked, seen) = (HashSet::new(), HashSet::from([metadata.ino()]));
        let (device, mounts) = (metadata.dev(), mounts_below(root));
        let mut walk = Walk { listing, device, look, linked, seen, mounts };
        std::fs::read_dir(root).map_err(fail)?;
        walk.all()?;
        let mut listing = walk.listing;
        listing.entries.sort_by_key(|entry| entry.inode);
        listing.identify();
        Ok(listing)
    }
}

impl Walk<'_> {
    /// Goes through the tree, level by level: the same tree always gives the same list, whoever reads ahead.
    fn all(&mut self) -> Result<(), WalkError> {
        let (to_readers, jobs) = channel();
        let jobs = Mutex::new(jobs);
        std::thread::scope(|scope| {
            for _ in 0..WALKERS {
                scope.spawn(|| read_directories(&jobs));
            }
            // What is left of the queue goes at the end, and the readers with it.
            self.through(to_readers)
        })
    }

    fn through(&mut self, to_readers: Sender<Job>) -> Result<(), WalkError> {
        let (mut level, mut below, mut depth) = (vec![(0, 0)].into_iter(), Vec::new(), 0);
        let mut ahead = VecDeque::new();
        loop {
            while ahead.len() < DIRECTORIES_AHEAD
                && let Some((_, number)) = level.next()
            {
                let path = self.listing.directory(number);
                let (to_us, batches) = sync_channel(BATCHES);
                // Readers end only after this does.
                let _ = to_readers.send(Job { path: path.clone(), to_us });
                ahead.push_back((number, path, batches));
            }
            let Some((number, path, batches)) = ahead.pop_front() else {
                if below.is_empty() {
                    return Ok(());
                }
                // Directories lie by their numbers, roughly.
                below.sort_unstable();
                (level, depth) = (std::mem::take(&mut below).into_iter(), depth + 1);
                continue;
            };
            self.listing.sizes.directories += 1;
            for found in batches.iter().flatten() {
                match found {
                    Ok((name, metadata)) if metadata.is_dir() => {
                        if let Some(number) = self.directory(number, &path, name, &metadata) {
                            below.push((metadata.ino(), number));
                        }
                    }
                    Ok((name, metadata)) => self.other(number, depth, &path, name, &metadata),
                    Err(error) => self.listing.unreadable.add(&path, error),
                }
            }
            if self.look.stop.load(Ordering::Acquire) {
                return Err(WalkError::Interrupted);
            }
            // This level and the next, which are remembered until they are gone through.
            let waiting = ((level.len() + below.capacity()) * size_of::<(u64, u32)>()) as u64;
            if self.taken() + waiting > self.look.memory {
                return Err(WalkError::Memory(self.look.memory));
            }
            (self.look.progress)(self.listing.sizes.files);
        }
    }

    /// Bytes of memory for what was found.
    fn taken(&self) -> u64 {
        let listing = &self.listing;
        let taken = listing.entries.capacity() * size_of::<Entry>()
            + listing.directories.capacity() * size_of::<(u32, u64, u16)>()
            + listing.names.capacity()
            + (self.linked.capacity() + self.seen.capacity()) * 16;
        taken as u64
    }

    /// A subdirectory, unless it is to be passed over.
    fn directory(&mut self, parent: u32, path: &Path, name: OsString, metadata: &Metadata) -> Option<u32> {
        if metadata.dev() != self.device {
            self.listing.passed.add(&path.join(name), "another file system is mounted there");
            return None;
        }
        if !self.seen.insert(metadata.ino()) {
            self.listing.passed.add(&path.join(name), "this directory is reached a second time: a loop of mounts");
            return None;
        }
        let (at, len) = self.keep(name);
        self.listing.directories.push((parent, at, len));
        Some(self.listing.directories.len() as u32)
    }

    fn keep(&mut self, name: OsString) -> (u64, u16) {
        let name = name.into_vec();
        let at = self.listing.names.len() as u64;
        self.listing.names.extend_from_slice(&name);
        (at, name.len() as u16)
    }

    fn other(&mut self, directory: u32, depth: u32, path: &Path, name: OsString, metadata: &Metadata) {
        let kind = metadata.file_type();
        if kind.is_symlink() {
            self.listing.sizes.symlinks += 1;
            return;
        }
        if !kind.is_file() {
            let what = match () {
                () if kind.is_socket() => "a socket",
                () if kind.is_fifo() => "a pipe",
                () => "a device",
            };
            self.listing.sizes.special += 1;
            self.listing.passed.add(&path.join(name), what);
            return;
        }
        if metadata.dev() != self.device || !self.mounts.is_empty() && self.mounts.contains(&path.join(&name)) {
            self.listing.passed.add(&path.join(name), "a file is mounted there");
            return;
        }
        if metadata.nlink() > 1 && !self.linked.insert(metadata.ino()) {
            self.listing.sizes.further_links += 1;
            return;
        }
        let size = metadata.size();
        let allocated = metadata.blocks().saturating_mul(512);
        // Small files may lie in their inode, and then have no blocks and no holes. Of large ones a part may be allocated and not
        // written.
        let sparse = allocated < size && size > 4096 || size >= IMAGE_MIN;
        let data = if sparse {
            File::open(path.join(&name)).and_then(|file| data_bytes(&file, size)).unwrap_or(size)
        } else {
            size
        };
        self.listing.sizes.file(&name, size, data, allocated, self.look.now - metadata.mtime(), depth);
        if data == 0 {
            return;
        }
        let (name_at, name_len) = self.keep(name);
        let (changed, inode) = (metadata.mtime(), metadata.ino());
        let entry = Entry {
            directory,
            name_at,
            name_len,
            sparse: data < size,
            size,
            data,
            changed,
            inode,
            identity: 0,
            group: 0,
            first: true,
            stratum: 0,
            part: 0,
        };
        self.listing.entries.push(entry);
    }
}

/// A directory to be read.
struct Job {
    path: PathBuf,
    to_us: SyncSender<Batch>,
}

/// A part of what a directory holds.
type Batch = Vec<io::Result<(OsString, Metadata)>>;

/// Reads directories until there are no more.
fn read_directories(jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { path, to_us }) = job else { return };
        let mut entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) => {
                // Whoever waits for it may have been stopped.
                let _ = to_us.send(vec![Err(error)]);
                continue;
            }
        };
        'directory: loop {
            let mut some: Vec<io::Result<DirEntry>> = entries.by_ref().take(SORTED).collect();
            // Attributes lie by inode number, names by hash.
            some.sort_by_key(|entry| entry.as_ref().map_or(0, DirEntryExt::ino));
            let look = |entry: io::Result<DirEntry>| entry.and_then(|entry| Ok((entry.file_name(), entry.metadata()?)));
            let mut found = some.into_iter().map(look).peekable();
            if found.peek().is_none() {
                break;
            }
            while found.peek().is_some() {
                let batch: Batch = found.by_ref().take(BATCH).collect();
                if to_us.send(batch).is_err() {
                    break 'directory;
                }
            }
        }
    }
}

/// Mount points below a directory, in paths that begin as its own does.
fn mounts_below(root: &Path) -> HashSet<PathBuf> {
    let (Ok(whole), Ok(mounts)) = (std::fs::canonicalize(root), std::fs::read("/proc/self/mountinfo")) else {
        return HashSet::new();
    };
    // Fields: id, parent, major:minor, root, mount point.
    let places = mounts.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    let below = |place: &[u8]| {
        let place = PathBuf::from(OsString::from_vec(unescape(place)));
        Some(root.join(place.strip_prefix(&whole).ok()?))
    };
    places.filter_map(below).collect()
}

/// Undoes the octal escapes of `/proc/self/mountinfo`, as `\040` for a space.
fn unescape(field: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), field);
    while let [first, after @ ..] = rest {
        let octal = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}
