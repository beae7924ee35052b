//! The nouns of the trait.

use std::time::Duration;

/// Number of an inode. The root directory is 1.
pub type Ino = u64;

/// The root directory.
pub const ROOT: Ino = 1;

/// One component of a path, or the name of an extended attribute: bytes without `/` and NUL, 1 to 255 of them.
pub type Name = [u8];

/// Longest name in bytes.
pub const NAME_LEN_MAX: usize = 255;

/// Kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

impl FileKind {
    const MODES: [(FileKind, u32); 7] = [
        (FileKind::File, 0o100_000),
        (FileKind::Directory, 0o040_000),
        (FileKind::Symlink, 0o120_000),
        (FileKind::Fifo, 0o010_000),
        (FileKind::Socket, 0o140_000),
        (FileKind::CharDevice, 0o020_000),
        (FileKind::BlockDevice, 0o060_000),
    ];
    /// The kind that the type bits of a mode name.
    pub fn from_mode(mode: u32) -> Option<FileKind> {
        Self::MODES.iter().find(|(_, bits)| *bits == mode & 0o170_000).map(|(kind, _)| *kind)
    }
    /// The type bits of a mode (`S_IFMT`).
    pub fn mode_bits(self) -> u32 {
        Self::MODES.iter().find(|(kind, _)| *kind == self).expect("every kind is listed").1
    }
    /// The type as directory entries carry it (`DT_*`).
    pub fn dirent_type(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }
}

/// A point in time: seconds since 1970 and nanoseconds, as files carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Time {
    /// Seconds since 1970, negative before.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanos: u32,
}

impl From<Duration> for Time {
    fn from(since_1970: Duration) -> Time {
        Time { seconds: since_1970.as_secs() as i64, nanos: since_1970.subsec_nanos() }
    }
}

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Distinguishes reuses of the number.
    pub generation: u64,
    /// Kind.
    pub kind: FileKind,
    /// Permission bits, set-id bits and the sticky bit (12 bits).
    pub permissions: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node (`major << 20 | minor`, as the kernel encodes it in 32 bits).
    pub device: u32,
    /// Length in bytes.
    pub size: u64,
    /// Allocated bytes.
    pub allocated: u64,
    /// `allocated` is only an estimate, since it takes long to count: who needs it better asks for the attributes by themselves after
    /// so long.
    pub estimated: Option<Duration>,
    /// Last access.
    pub accessed: Time,
    /// Last change of contents.
    pub modified: Time,
    /// Last change of attributes.
    pub changed: Time,
    /// Creation.
    pub born: Time,
}

impl Attr {
    /// Attributes of an empty inode with one name, of the superuser, born at the epoch.
    pub fn plain(ino: Ino, kind: FileKind, permissions: u32) -> Attr {
        let epoch = Time { seconds: 0, nanos: 0 };
        Attr {
            ino,
            generation: 0,
            kind,
            permissions,
            links: 1,
            uid: 0,
            gid: 0,
            device: 0,
            size: 0,
            allocated: 0,
            estimated: None,
            accessed: epoch,
            modified: epoch,
            changed: epoch,
            born: epoch,
        }
    }

    /// The same, with all its times at `time`.
    pub fn at(self, time: Time) -> Attr {
        Attr { accessed: time, modified: time, changed: time, born: time, ..self }
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The engine's clock.
    Now,
    /// This time.
    To(Time),
}

/// Changes of attributes; `None` leaves as is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// New permission bits (12 bits).
    pub permissions: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New length.
    pub size: Option<u64>,
    /// New access time.
    pub accessed: Option<SetTime>,
    /// New modification time.
    pub modified: Option<SetTime>,
    /// New change time; without it the engine sets its own clock's time.
    pub changed: Option<Time>,
    /// The change comes from someone whose writes must clear set-id bits.
    pub clear_setid: bool,
}

/// What a new inode is born with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Kind; `create` takes every kind but directories and symbolic links.
    pub kind: FileKind,
    /// Permission bits (12 bits).
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group; a set-gid parent directory overrides it.
    pub gid: u32,
    /// Device number for device nodes.
    pub device: u32,
    /// Permission bits that are taken away, unless the parent directory has a default access control list.
    pub umask: u32,
    /// Count an open handle at once.
    pub open: bool,
}

/// How `rename` treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Fail with `Exists`.
    NoReplace,
    /// Swap the two.
    Exchange,
    /// Replace it, and leave a whiteout under the old name: a character device 0:0 without permissions, by which overlayfs knows what is
    /// hidden of the layers below. It belongs to this user and group, as what they make does.
    Whiteout {
        /// User.
        uid: u32,
        /// Group, where the directory does not hand on its own.
        gid: u32,
    },
}

impl RenameMode {
    /// What is left under the old name, if anything is.
    pub fn whiteout(self) -> Option<NewNode> {
        let RenameMode::Whiteout { uid, gid } = self else { return None };
        Some(NewNode { kind: FileKind::CharDevice, permissions: 0, uid, gid, device: 0, umask: 0, open: false })
    }
}

/// How `setxattr` treats an existing value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// Fail if it exists.
    Create,
    /// Fail if it does not.
    Replace,
}

/// What a write does besides storing bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WriteMode {
    /// The page cache writes back: times and size are the kernel's business, set-id bits stay.
    pub writeback: bool,
    /// Clear set-id bits.
    pub clear_setid: bool,
    /// Durable when the call returns (`O_DSYNC`).
    pub sync: bool,
}

/// What `fallocate` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// Promise space, extend the size unless told to keep it.
    Reserve {
        /// Do not change the size.
        keep_size: bool,
    },
    /// Make a hole; the size stays.
    Punch,
    /// Make zeros, extend the size unless told to keep it.
    Zero {
        /// Do not change the size.
        keep_size: bool,
    },
    /// Cut the range out.
    Collapse,
    /// Insert a hole.
    Insert,
}

/// What `seek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekWhat {
    /// The next byte that may hold data.
    Data,
    /// The next hole; the end of the file is one.
    Hole,
}

/// One entry of a directory listing.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// Inode number.
    pub ino: Ino,
    /// Where to go on behind this entry. Cookies stay valid whatever happens to the directory.
    pub cookie: u64,
    /// Kind.
    pub kind: FileKind,
    /// Name.
    pub name: &'a Name,
    /// Attributes, if asked for and if this is neither `.` nor `..`.
    pub attr: Option<Attr>,
}

/// Space and limits of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StatFs {
    /// All bytes.
    pub capacity: u64,
    /// Bytes that are not in use.
    pub free: u64,
    /// Inodes that exist.
    pub files: u64,
    /// Inodes that can still be made.
    pub files_free: u64,
}
