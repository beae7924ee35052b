//! The vocabulary of histories: operations, their answers, and who can do them.

use ashlar_vfs::{Errno, FallocateMode, FileKind, RenameMode, Time, XattrMode};
use std::future::Future;

/// Most open handles of one history.
pub const HANDLES: usize = 4;

/// A name of every history is one of a few, so that operations meet.
pub fn name_of(number: u8) -> Vec<u8> {
    let mut name = format!("name-{number}").into_bytes();
    if number == LONG_NAME {
        name.resize(ashlar_vfs::NAME_LEN_MAX, b'x');
    }
    name
}

/// The name with this number is as long as names may be.
const LONG_NAME: u8 = 5;

/// The name of an extended attribute.
pub fn attribute_of(number: u8) -> Vec<u8> {
    format!("user.name-{number}").into_bytes()
}

/// Where something is: names from the root, or from an open directory, downwards.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Place {
    /// The handle of the directory where it begins; without one, the root.
    pub base: Option<usize>,
    /// The names, outermost first. None at all: the root or the open directory itself.
    pub names: Vec<u8>,
}

impl Place {
    /// The place of a name in here.
    pub fn below(&self, name: u8) -> Place {
        let mut place = self.clone();
        place.names.push(name);
        place
    }
}

/// What an operation is about: whatever has this name, or what is open here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// What has a name.
    At(Place),
    /// What an open handle holds.
    Open(usize),
}

/// Bytes to write, told by a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Different stamps give different bytes, never zero.
    pub stamp: u8,
    /// How many.
    pub len: u64,
}

impl Data {
    /// The bytes: all alike within 512 bytes, so that half of them compress and every block differs.
    pub fn bytes(self) -> Vec<u8> {
        (0..self.len).map(|at| (self.stamp.wrapping_add((at >> 9) as u8)).max(1)).collect()
    }
}

/// One operation of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what the calls of POSIX take")]
pub enum Op {
    /// Makes a file or a fifo, which must not exist; with `handle`, opens it.
    Create {
        at: Place,
        kind: FileKind,
        permissions: u32,
        handle: Option<usize>,
    },
    Mkdir {
        at: Place,
        permissions: u32,
    },
    Symlink {
        at: Place,
        target: Vec<u8>,
    },
    /// `O_TMPFILE`: a file without a name.
    Nameless {
        directory: Place,
        permissions: u32,
        handle: usize,
    },
    Open {
        at: Place,
        handle: usize,
    },
    Close {
        handle: usize,
    },
    /// Gives what is open another name, or its first.
    Name {
        handle: usize,
        to: Place,
    },
    Link {
        from: Place,
        to: Place,
    },
    Rename {
        from: Place,
        to: Place,
        mode: RenameMode,
    },
    Unlink {
        at: Place,
    },
    Rmdir {
        at: Place,
    },
    /// `rm -r`: a directory with all that is below it, or anything else.
    RemoveTree {
        at: Place,
    },
    Read {
        of: Target,
        offset: u64,
        len: u64,
    },
    Write {
        of: Target,
        offset: u64,
        data: Data,
    },
    Append {
        of: Target,
        data: Data,
    },
    Truncate {
        of: Target,
        size: u64,
    },
    Fallocate {
        of: Target,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    },
    Copy {
        from: Target,
        from_offset: u64,
        to: Target,
        to_offset: u64,
        len: u64,
    },
    /// Where `SEEK_DATA` and `SEEK_HOLE` find data.
    Extents {
        of: Target,
    },
    SetXattr {
        of: Target,
        name: u8,
        len: u64,
        mode: XattrMode,
    },
    GetXattr {
        of: Target,
        name: u8,
    },
    RemoveXattr {
        of: Target,
        name: u8,
    },
    ListXattrs {
        of: Target,
    },
    Chmod {
        of: Target,
        permissions: u32,
    },
    Chown {
        of: Target,
        uid: u32,
        gid: u32,
    },
    SetTimes {
        of: Target,
        modified: Time,
    },
    Stat {
        of: Target,
    },
    Readlink {
        at: Place,
    },
    /// Lists a directory in pages of so many entries; with `meanwhile`, removes that file after the first page.
    List {
        directory: Place,
        page: usize,
        meanwhile: Option<u8>,
    },
    Fsync {
        of: Target,
        data_only: bool,
    },
    Sync,
}

/// What `stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Kind.
    pub kind: FileKind,
    /// Permission bits.
    pub permissions: u32,
    /// Names; `None` where it is not known (directories of some file systems).
    pub links: Option<u32>,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length of a file or symbolic link; `None` for others.
    pub size: Option<u64>,
    /// Last change of contents; `None` where it is not known.
    pub modified: Option<Time>,
}

/// What comes of an operation that succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// Bytes that were read.
    Bytes(Vec<u8>),
    /// Bytes copied.
    Count(u64),
    /// Names, sorted.
    Names(Vec<Vec<u8>>),
    /// Attributes.
    Stat(Stat),
    /// Ranges of data, from start to end.
    Extents(Vec<(u64, u64)>),
}

/// Why an operation fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An error that POSIX foresees.
    Posix(Errno),
    /// Something else.
    Other(String),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        Refusal::Posix(errno)
    }
}

/// Whatever histories can be run on: a file system in process, or a directory of a mounted one.
pub trait Subject: Send {
    /// Does it, and says what came of it. An unused handle answers [`Errno::Stale`].
    fn apply(&mut self, op: &Op) -> impl Future<Output = Result<Answer, Refusal>> + Send;
    /// Whether the subject may lack some operations, and then refuse them as unsupported.
    fn may_lack(&self) -> bool;
}
