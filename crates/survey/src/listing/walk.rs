//! Going through a tree: one thread lists what several read ahead.

use super::directories::{About, Job, Spare, What, read_directories};
use super::{Entry, Listing, Look, WalkError, data_bytes};
use crate::inside::IMAGE_MIN;
use crate::sort::sort_by_key;
use parking_lot::Mutex;
use rustix::fs::FileType;
use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvError, RecvTimeoutError, Sender, channel, sync_channel};
use std::time::Duration;

/// Threads that read directories, at first and at most: on a cold cache each waits for the device most of the time.
const WALKERS: [usize; 2] = [2, 8];
/// There is one more once somebody waited so long for an answer.
const PATIENCE: Duration = Duration::from_millis(1);
/// Directories that one thread reads at a time, where there are many: threads wait for each other less often.
const TOGETHER: usize = 8;
/// Jobs that are read ahead of the one that is looked at.
const JOBS_AHEAD: usize = 32;
/// Batches of a job that wait to be looked at: with those above a bound for memory, 16 MiB.
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
        sort_by_key(&mut listing.entries, |entry| entry.inode);
        listing.identify();
        Ok(listing)
    }
}

impl Walk<'_> {
    /// Goes through the tree, level by level: the same tree always gives the same list, whoever reads ahead.
    fn all(&mut self) -> Result<(), WalkError> {
        let (to_readers, jobs) = channel();
        let (jobs, spare) = (Mutex::new(jobs), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            let [first, most] = WALKERS;
            let mut walkers = 0;
            let mut more = || {
                if walkers < most {
                    walkers += 1;
                    scope.spawn(|| read_directories(&jobs, &spare));
                }
            };
            (0..first).for_each(|_| more());
            // What is left of the queue goes at the end, and the readers with it.
            self.through(to_readers, &spare, &mut more)
        })
    }

    fn through(&mut self, to_readers: Sender<Job>, spare: &Spare, more: &mut dyn FnMut()) -> Result<(), WalkError> {
        let (mut level, mut below, mut depth) = (vec![(0, 0)].into_iter(), Vec::new(), 0);
        let mut ahead = VecDeque::new();
        loop {
            while ahead.len() < JOBS_AHEAD && level.len() > 0 {
                let together = (level.len() / JOBS_AHEAD).clamp(1, TOGETHER);
                let numbers: Vec<u32> = level.by_ref().take(together).map(|(_, number)| number).collect();
                let paths: Vec<PathBuf> = numbers.iter().map(|number| self.listing.directory(*number)).collect();
                let (to_us, batches) = sync_channel(BATCHES);
                // Readers end only after this does.
                let _ = to_readers.send(Job { paths: paths.clone(), to_us });
                ahead.push_back((numbers, paths, batches));
            }
            let Some((numbers, paths, batches)) = ahead.pop_front() else {
                if below.is_empty() {
                    return Ok(());
                }
                // Directories lie by their numbers, roughly.
                below.sort_unstable();
                (level, depth) = (std::mem::take(&mut below).into_iter(), depth + 1);
                continue;
            };
            self.listing.sizes.directories += numbers.len() as u64;
            loop {
                let came = batches.recv_timeout(PATIENCE).or_else(|error| match error {
                    RecvTimeoutError::Timeout => {
                        more();
                        batches.recv()
                    }
                    RecvTimeoutError::Disconnected => Err(RecvError),
                });
                let Ok(mut batch) = came else { break };
                for (of, what) in batch.found.drain(..) {
                    let (number, path) = (numbers[of], &paths[of]);
                    match what {
                        What::File(name, about) if about.kind == FileType::Directory => {
                            if let Some(number) = self.directory(number, path, batch.names.get(&name), &about) {
                                below.push((about.inode, number));
                            }
                        }
                        What::File(name, about) => self.other(number, depth, path, batch.names.get(&name), &about),
                        What::Failed(error) => self.listing.unreadable.add(path, error),
                    }
                }
                batch.names.clear();
                spare.lock().push(batch);
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
    fn directory(&mut self, parent: u32, path: &Path, name: &OsStr, about: &About) -> Option<u32> {
        if about.device != self.device {
            self.listing.passed.add(&path.join(name), "another file system is mounted there");
            return None;
        }
        if !self.seen.insert(about.inode) {
            self.listing.passed.add(&path.join(name), "this directory is reached a second time: a loop of mounts");
            return None;
        }
        let (at, len) = self.keep(name);
        self.listing.directories.push((parent, at, len));
        Some(self.listing.directories.len() as u32)
    }

    fn keep(&mut self, name: &OsStr) -> (u64, u16) {
        let at = self.listing.names.len() as u64;
        self.listing.names.extend_from_slice(name.as_bytes());
        (at, name.len() as u16)
    }

    fn other(&mut self, directory: u32, depth: u32, path: &Path, name: &OsStr, about: &About) {
        let special = match about.kind {
            FileType::RegularFile => None,
            FileType::Symlink => {
                self.listing.sizes.symlinks += 1;
                return;
            }
            FileType::Socket => Some("a socket"),
            FileType::Fifo => Some("a pipe"),
            _ => Some("a device"),
        };
        if let Some(what) = special {
            self.listing.sizes.special += 1;
            self.listing.passed.add(&path.join(name), what);
            return;
        }
        if about.device != self.device || !self.mounts.is_empty() && self.mounts.contains(&path.join(name)) {
            self.listing.passed.add(&path.join(name), "a file is mounted there");
            return;
        }
        if about.links > 1 && !self.linked.insert(about.inode) {
            self.listing.sizes.further_links += 1;
            return;
        }
        let About { size, allocated, changed, inode, .. } = *about;
        // Small files may lie in their inode, and then have no blocks and no holes. Of large ones a part may be allocated and not
        // written.
        let sparse = allocated < size && size > 4096 || size >= IMAGE_MIN;
        let data = if sparse {
            File::open(path.join(name)).and_then(|file| data_bytes(&file, size)).unwrap_or(size)
        } else {
            size
        };
        self.listing.sizes.file(name, size, data, allocated, self.look.now - changed, depth);
        if data == 0 {
            return;
        }
        let (name_at, name_len) = self.keep(name);
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
