//! Paths of a trace, below one directory.
//!
//! A path is made of names alone: `..`, `.` and empty names are refused. So only symbolic links could lead away. There are
//! none at first; where a trace makes or needs some ([`Root::careful`]), each path is resolved by `openat2` with `RESOLVE_BENEATH`,
//! which costs a call more, and the last name is not followed but by such a call.

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Longest path, as the kernel has it.
const PATH_MAX: usize = 4095;
/// Names in a path; no tree of people is as deep.
pub const NAMES_MAX: usize = 128;

/// The directory, and how paths are resolved.
pub struct Root {
    directory: OwnedFd,
    /// There may be symbolic links.
    pub careful: bool,
}

/// Where a name is: a directory, or the root itself.
pub enum Above<'a> {
    Root(BorrowedFd<'a>),
    Opened(OwnedFd),
}

impl AsFd for Above<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Above::Root(directory) => *directory,
            Above::Opened(directory) => directory.as_fd(),
        }
    }
}

/// A path of a trace as one below a directory; `None` for what is refused. The root is `.`.
pub fn below(path: &str) -> Option<&str> {
    let inner = path.strip_prefix('/').unwrap_or(path);
    if path.len() > PATH_MAX || inner.contains('\0') {
        return None;
    }
    if inner.is_empty() {
        return path.starts_with('/').then_some(".");
    }
    let plain = |name: &str| !matches!(name, "" | "." | "..") && name.len() <= 255;
    (inner.split('/').all(plain) && inner.split('/').count() <= NAMES_MAX).then_some(inner)
}

impl Root {
    /// Below `path`, where nobody else makes symbolic links.
    pub fn new(path: &Path, careful: bool) -> io::Result<Root> {
        Ok(Root { directory: File::open(path)?.into(), careful })
    }

    /// The directory itself.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Opens a path that is made of names alone. Pipes do not make it wait.
    pub fn open(&self, path: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let careful = OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        // `openat2` refuses what means nothing.
        let flags = flags | if flags.contains(OFlags::PATH) { OFlags::CLOEXEC } else { careful };
        let mode = if flags.contains(OFlags::CREATE) { mode } else { Mode::empty() };
        if !self.careful {
            return openat(&self.directory, path, flags | OFlags::NOFOLLOW, mode);
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        loop {
            match openat2(&self.directory, path, flags, mode, resolve) {
                // A rename elsewhere made the kernel unsure.
                Err(Errno::AGAIN) => {}
                opened => return opened,
            }
        }
    }

    /// The directory of a name and the name, for calls that take both.
    pub fn place<'a>(&'a self, path: &'a str) -> Result<(Above<'a>, &'a str), Errno> {
        match path.rsplit_once('/') {
            Some((above, name)) if self.careful => {
                let flags = OFlags::PATH | OFlags::DIRECTORY;
                Ok((Above::Opened(self.open(above, flags, Mode::empty())?), name))
            }
            _ => Ok((Above::Root(self.directory.as_fd()), path)),
        }
    }
}
