//! Looks at every file of a file system: one directory in memory at a time, and the names of those that wait.
//!
//! Symbolic links are not followed and other file systems not entered. A file with several names is seen once for each.
//! Files are opened (with `O_NOATIME`, where that is allowed) to ask for their generation and their extents.

use ashlar_env::host::{Extent, extents, generation};
use ashlar_survey::listing::Troubles;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Statx, StatxFlags, StatxTimestamp, openat, statx};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Extents of one file that are looked at. With more, what lies behind is not known, and counted.
pub const EXTENTS_MAX: usize = 1 << 16;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A socket, a pipe or a device.
    Other,
}

/// A file, as one of its names shows it. Times are nanoseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its inode number.
    pub inode: u64,
    /// That of the directory with the name; of the root its own.
    pub parent: u64,
    /// What it is.
    pub kind: Kind,
    /// The name in that directory; empty for the root.
    pub name: Vec<u8>,
    /// How many names it has.
    pub links: u32,
    /// The generation of its inode, where the file system tells.
    pub generation: Option<u32>,
    /// Its size in bytes.
    pub size: u64,
    /// Bytes that the file system says it took.
    pub allocated: u64,
    /// When its inode last changed.
    pub changed: i64,
    /// When its content last changed.
    pub modified: i64,
    /// When it was made, where the file system tells.
    pub born: Option<i64>,
    /// Where it lies, in its order.
    pub extents: Vec<Extent>,
}

/// What a walk found beside files.
#[derive(Clone, Debug, Default)]
pub struct Walked {
    /// Names seen.
    pub names: u64,
    /// What could not be looked at.
    pub unreadable: Troubles,
    /// Mount points of other file systems.
    pub passed: Troubles,
    /// The file system does not tell where files lie.
    pub placeless: bool,
}

/// How a walk can end early.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// The root cannot be looked at.
    #[error("{0}: {1}")]
    Root(PathBuf, io::Error),
    /// What is done with the entries failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

struct Walk<'a> {
    device: (u32, u32),
    stop: &'a AtomicBool,
    each: &'a mut dyn FnMut(Entry, &Path) -> io::Result<()>,
    walked: Walked,
}

/// Gives every file below `root` to `each`, with the directory that has the name. The root comes first, and a directory
/// before what is in it.
pub fn walk(
    root: &Path,
    stop: &AtomicBool,
    each: &mut dyn FnMut(Entry, &Path) -> io::Result<()>,
) -> Result<Walked, WalkError> {
    let failed = |error: Errno| WalkError::Root(root.to_path_buf(), error.into());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle = rustix::fs::open(root, flags, Mode::empty()).map_err(failed)?;
    let found = statx(&handle, "", AtFlags::EMPTY_PATH, WANTED).map_err(failed)?;
    let device = (found.stx_dev_major, found.stx_dev_minor);
    let mut walk = Walk { device, stop, each, walked: Walked::default() };
    let mut entry = entry(&found, found.stx_ino, Vec::new());
    entry.generation = generation(&handle).ok();
    (walk.each)(entry, root)?;
    let mut ahead = vec![PathBuf::new()];
    while let Some(below) = ahead.pop() {
        let path = root.join(&below);
        match openat(&handle, if below.as_os_str().is_empty() { Path::new(".") } else { &below }, flags, Mode::empty())
        {
            Ok(directory) => walk.directory(&directory, &path, &below, &mut ahead)?,
            Err(error) => walk.walked.unreadable.add(&path, error),
        }
    }
    Ok(walk.walked)
}

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

fn nanoseconds(time: &StatxTimestamp) -> i64 {
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(time.tv_nsec))
}

fn entry(found: &Statx, parent: u64, name: Vec<u8>) -> Entry {
    let kind = match FileType::from_raw_mode(found.stx_mode.into()) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Link,
        _ => Kind::Other,
    };
    Entry {
        inode: found.stx_ino,
        parent,
        kind,
        name,
        links: found.stx_nlink,
        generation: None,
        size: found.stx_size,
        allocated: found.stx_blocks.saturating_mul(512),
        changed: nanoseconds(&found.stx_ctime),
        modified: nanoseconds(&found.stx_mtime),
        born: (found.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| nanoseconds(&found.stx_btime)),
        extents: Vec::new(),
    }
}

/// Opens a file to ask about it.
fn open_quietly(directory: impl AsFd, name: &Path) -> Result<OwnedFd, Errno> {
    // NONBLOCK: a pipe that took a file's place must not hold us up.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match openat(&directory, name, flags | OFlags::NOATIME, Mode::empty()) {
        // Only the owner of a file may leave its time alone.
        Err(Errno::PERM) => openat(&directory, name, flags, Mode::empty()),
        opened => opened,
    }
}

impl Walk<'_> {
    fn directory(
        &mut self,
        directory: &OwnedFd,
        path: &Path,
        below: &Path,
        ahead: &mut Vec<PathBuf>,
    ) -> Result<(), WalkError> {
        let io = |error: Errno| WalkError::Root(path.to_path_buf(), error.into());
        let parent = statx(directory, "", AtFlags::EMPTY_PATH, StatxFlags::INO).map_err(io)?.stx_ino;
        for found in Dir::read_from(directory).map_err(io)? {
            if self.stop.load(Ordering::Acquire) {
                return Err(WalkError::Interrupted);
            }
            let found = match found {
                Ok(found) => found,
                Err(error) => {
                    self.walked.unreadable.add(path, error);
                    break;
                }
            };
            let bytes = found.file_name().to_bytes();
            if bytes == b"." || bytes == b".." {
                continue;
            }
            let name = Path::new(std::ffi::OsStr::from_bytes(bytes));
            if self.name(directory, parent, name, path)? == Some(Kind::Directory) {
                ahead.push(below.join(name));
            }
        }
        Ok(())
    }

    /// Looks at a name; `None` if it is passed over.
    fn name(&mut self, directory: &OwnedFd, parent: u64, name: &Path, path: &Path) -> Result<Option<Kind>, WalkError> {
        let found = match statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, WANTED) {
            Ok(found) => found,
            // It went away since the directory was read.
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => {
                self.walked.unreadable.add(&path.join(name), error);
                return Ok(None);
            }
        };
        if (found.stx_dev_major, found.stx_dev_minor) != self.device {
            self.walked.passed.add(&path.join(name), "another file system is mounted there");
            return Ok(None);
        }
        let mut entry = entry(&found, parent, name.as_os_str().as_bytes().to_vec());
        if matches!(entry.kind, Kind::File | Kind::Directory) {
            match open_quietly(directory, name) {
                Ok(file) => self.ask(&File::from(file), &mut entry, &path.join(name)),
                Err(error) => self.walked.unreadable.add(&path.join(name), error),
            }
        }
        self.walked.names += 1;
        let kind = entry.kind;
        (self.each)(entry, path)?;
        Ok(Some(kind))
    }

    fn ask(&mut self, file: &File, entry: &mut Entry, path: &Path) {
        entry.generation = generation(file).ok();
        if entry.kind != Kind::File || entry.allocated == 0 || self.walked.placeless {
            return;
        }
        match extents(file, EXTENTS_MAX) {
            Ok(found) => {
                if found.len() == EXTENTS_MAX {
                    self.walked.unreadable.add(path, "it has more extents than are looked at");
                }
                entry.extents = found;
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => self.walked.placeless = true,
            Err(error) => self.walked.unreadable.add(path, error),
        }
    }
}
