//! The kernel's FUSE interface, protocol 7.45, as numbers and structures.
//!
//! Written from the public ABI (`include/uapi/linux/fuse.h`). Field names keep the kernel's spelling where a reader will
//! look them up there; everything is little or big endian as the machine is, for kernel and server share one.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major protocol version; there has been no other for twenty years.
pub const MAJOR: u32 = 7;
/// Newest minor version that this code knows.
pub const MINOR: u32 = 45;
/// Oldest minor version accepted: 7.36 (Linux 5.17) brought the extended INIT. Older kernels lack what the executor needs
/// anyway.
pub const MINOR_MIN: u32 = 36;

macro_rules! opcodes {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        /// What a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "the names are the kernel's")]
        pub enum Opcode { $($name = $number),* }

        impl Opcode {
            /// Every opcode, in order of its number.
            pub const ALL: &[Opcode] = &[$(Opcode::$name),*];
            /// The opcode with this number.
            pub fn from_number(number: u32) -> Option<Opcode> {
                match number { $($number => Some(Opcode::$name),)* _ => None }
            }
            /// Name for people.
            pub fn name(self) -> &'static str {
                match self { $(Opcode::$name => $text),* }
            }
        }
    };
}

opcodes! {
    Lookup = 1, "lookup";
    Forget = 2, "forget";
    GetAttr = 3, "getattr";
    SetAttr = 4, "setattr";
    ReadLink = 5, "readlink";
    Symlink = 6, "symlink";
    MkNod = 8, "mknod";
    MkDir = 9, "mkdir";
    Unlink = 10, "unlink";
    RmDir = 11, "rmdir";
    Rename = 12, "rename";
    Link = 13, "link";
    Open = 14, "open";
    Read = 15, "read";
    Write = 16, "write";
    StatFs = 17, "statfs";
    Release = 18, "release";
    Fsync = 20, "fsync";
    SetXattr = 21, "setxattr";
    GetXattr = 22, "getxattr";
    ListXattr = 23, "listxattr";
    RemoveXattr = 24, "removexattr";
    Flush = 25, "flush";
    Init = 26, "init";
    OpenDir = 27, "opendir";
    ReadDir = 28, "readdir";
    ReleaseDir = 29, "releasedir";
    FsyncDir = 30, "fsyncdir";
    GetLk = 31, "getlk";
    SetLk = 32, "setlk";
    SetLkW = 33, "setlkw";
    Access = 34, "access";
    Create = 35, "create";
    Interrupt = 36, "interrupt";
    Bmap = 37, "bmap";
    Destroy = 38, "destroy";
    Ioctl = 39, "ioctl";
    Poll = 40, "poll";
    NotifyReply = 41, "notify_reply";
    BatchForget = 42, "batch_forget";
    Fallocate = 43, "fallocate";
    ReadDirPlus = 44, "readdirplus";
    Rename2 = 45, "rename2";
    Lseek = 46, "lseek";
    CopyFileRange = 47, "copy_file_range";
    SetupMapping = 48, "setupmapping";
    RemoveMapping = 49, "removemapping";
    SyncFs = 50, "syncfs";
    TmpFile = 51, "tmpfile";
    Statx = 52, "statx";
    CopyFileRange64 = 53, "copy_file_range_64";
}

/// One more than the highest opcode number: the length of tables by opcode.
pub const OPCODES_END: usize = 54;

/// Flags of INIT, both halves in one number.
pub mod init {
    /// Reads of one file may overlap.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// LOOKUP of `.` and `..` works on any inode number (file handles, NFS).
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    /// The server applies the umask.
    pub const DONT_MASK: u64 = 1 << 6;
    /// Writes larger than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// READDIRPLUS is understood.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// Direct I/O may be submitted asynchronously.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// The page cache collects writes.
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    /// OPEN may be answered ENOSYS for good.
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    /// Lookups and listings of one directory may overlap.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// Reads of the device after an abort say ECONNABORTED.
    pub const ABORT_ERROR: u64 = 1 << 21;
    /// `max_pages` of the reply counts.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// The kernel decides by access control lists.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// Targets of symbolic links may be cached.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// OPENDIR may be answered ENOSYS for good.
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    /// Cached data is dropped only when the server says so.
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    /// The server clears set-id bits and capabilities on writes, truncation and chown.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// SETXATTR carries flags.
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// The second half of the flags counts.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Mounts may map users. Then only requests that make an inode say who asks; see [`UNKNOWN_ID`].
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    /// Requests over io_uring.
    pub const OVER_IO_URING: u64 = 1 << 41;
    /// Shared mappings of files opened for direct I/O.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// What a reply to OPEN says of the file.
pub mod opened {
    /// Reads and writes go past the page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Closing needs no FLUSH.
    pub const NOFLUSH: u32 = 1 << 5;
    /// Direct writes that do not extend the file may overlap.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Which fields of SETATTR count.
pub mod fattr {
    #![allow(missing_docs, reason = "the names are those of the fields")]
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Who asks is not said: `uid` and `gid` of a request.
pub const UNKNOWN_ID: u32 = u32::MAX;
/// WRITE: from the page cache.
pub const WRITE_CACHE: u32 = 1 << 0;
/// Attributes are asked for on behalf of an open file: it is written or read, not `stat`ed.
pub const GETATTR_FH: u32 = 1 << 0;
/// WRITE: clear set-id bits.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// Code of [`NotifyInvalInodeOut`] in place of an error number.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Code of [`NotifyInvalEntryOut`]; the name follows, and a NUL.
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
/// Flag of [`NotifyInvalEntryOut`]: it is asked for again when it is used, and nothing is forgotten before.
pub const EXPIRE_ONLY: u32 = 1 << 0;
/// Code of [`NotifyRetrieveOut`].
pub const NOTIFY_RETRIEVE: i32 = 5;
/// Nothing that the kernel knows of names holds any more; nothing follows (Linux 6.16).
pub const NOTIFY_INC_EPOCH: i32 = 8;
/// Code of [`NotifyPruneOut`]; the numbers of the inodes follow.
pub const NOTIFY_PRUNE: i32 = 9;
/// SETXATTR: an access control list that takes the set-gid bit away.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// FSYNC: data only.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// What a reply to STATX holds: everything basic and the time of birth.
pub const STATX_MASK: u32 = 0x7ff | 0x800;

macro_rules! structures {
    ($($(#[$about:meta])* $name:ident, $size:literal { $($field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$about])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
            #[repr(C)]
            #[allow(missing_docs, reason = "the fields are the kernel's")]
            pub struct $name { $(pub $field: $kind,)* }
            const _: () = assert!(size_of::<$name>() == $size, "the kernel's structure has this size");
        )*
    };
}

structures! {
    /// Begins every request.
    InHeader, 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16,
    }
    /// Begins every reply.
    OutHeader, 16 { len: u32, error: i32, unique: u64, }
    /// Attributes of an inode.
    FuseAttr, 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    /// Reply to what names an inode.
    EntryOut, 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: FuseAttr,
    }
    /// FORGET.
    ForgetIn, 8 { nlookup: u64, }
    /// One inode of BATCH_FORGET.
    ForgetOne, 16 { nodeid: u64, nlookup: u64, }
    /// BATCH_FORGET.
    BatchForgetIn, 8 { count: u32, dummy: u32, }
    /// GETATTR.
    GetAttrIn, 16 { getattr_flags: u32, dummy: u32, fh: u64, }
    /// Reply to GETATTR and SETATTR.
    AttrOut, 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: FuseAttr, }
    /// MKNOD.
    MkNodIn, 16 { mode: u32, rdev: u32, umask: u32, padding: u32, }
    /// MKDIR.
    MkDirIn, 8 { mode: u32, umask: u32, }
    /// RENAME.
    RenameIn, 8 { newdir: u64, }
    /// RENAME2.
    Rename2In, 16 { newdir: u64, flags: u32, padding: u32, }
    /// LINK.
    LinkIn, 8 { oldnodeid: u64, }
    /// SETATTR.
    SetAttrIn, 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    /// CREATE and TMPFILE.
    CreateIn, 16 { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    /// Reply to OPEN; ends the reply to CREATE.
    OpenOut, 16 { fh: u64, open_flags: u32, backing_id: i32, }
    /// RELEASE and RELEASEDIR.
    ReleaseIn, 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    /// READ, READDIR and READDIRPLUS.
    ReadIn, 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    /// WRITE.
    WriteIn, 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    /// Reply to WRITE and COPY_FILE_RANGE.
    WriteOut, 8 { size: u32, padding: u32, }
    /// Reply to STATFS.
    StatFsOut, 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    /// FSYNC and FSYNCDIR.
    FsyncIn, 16 { fh: u64, fsync_flags: u32, padding: u32, }
    /// SETXATTR, extended.
    SetXattrIn, 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
    /// GETXATTR and LISTXATTR.
    GetXattrIn, 8 { size: u32, padding: u32, }
    /// Reply to GETXATTR and LISTXATTR that ask for a size.
    GetXattrOut, 8 { size: u32, padding: u32, }
    /// INIT, as far as every accepted kernel sends it.
    InitIn, 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
    /// Reply to INIT.
    InitOut, 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    /// FALLOCATE.
    FallocateIn, 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    /// Begins an entry of READDIR; the name follows, padded to 8 bytes.
    Dirent, 24 { ino: u64, off: u64, namelen: u32, kind: u32, }
    /// LSEEK.
    LseekIn, 24 { fh: u64, offset: u64, whence: u32, padding: u32, }
    /// Reply to LSEEK.
    LseekOut, 8 { offset: u64, }
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRangeIn, 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    /// Reply to COPY_FILE_RANGE_64.
    CopyFileRangeOut, 8 { bytes_copied: u64, }
    /// Notice that attributes (from `off` on, if it is not negative, also data) changed behind the kernel's back.
    NotifyInvalInodeOut, 24 { ino: u64, off: i64, len: i64, }
    /// Asks for what the page cache has of an inode; it comes as a NOTIFY_REPLY, whose header has this `unique`.
    NotifyRetrieveOut, 32 { unique: u64, ino: u64, offset: u64, size: u32, padding: u32, }
    /// NOTIFY_REPLY; the bytes follow. Over the device it is the first structure, over io_uring (Linux 6.18) it stands in the payload.
    RetrieveIn, 40 { spare: u64, offset: u64, size: u32, padding: u32, reserved: [u64; 2], }
    /// Notice that the kernel should forget a name, and all that it knows below it.
    NotifyInvalEntryOut, 16 { parent: u64, name_len: u32, flags: u32, }
    /// Notice that the kernel should forget inodes that nobody uses.
    NotifyPruneOut, 16 { count: u32, padding: u32, spare: u64, }
    /// STATX.
    StatxIn, 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    /// A time in STATX.
    SxTime, 16 { tv_sec: i64, tv_nsec: u32, reserved: i32, }
    /// Attributes as `statx(2)` knows them.
    FuseStatx, 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16, ino: u64,
        size: u64, blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// Reply to STATX.
    StatxOut, 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: FuseStatx, }
    /// Where requests over io_uring say how long they are.
    UringEntInOut, 32 { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64, }
    /// What an io_uring command carries in its own 80 bytes.
    UringCmdReq, 24 { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6], }
}

/// Header buffer of a request over io_uring.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct UringHeaders {
    /// An [`InHeader`] or an [`OutHeader`].
    pub in_out: [u8; 128],
    /// First structure of the request.
    pub op_in: [u8; 128],
    /// Lengths.
    pub ent: UringEntInOut,
}
const _: () = assert!(size_of::<UringHeaders>() == 288, "the kernel's structure has this size");

/// io_uring command: take this buffer and fetch a request into it.
pub const URING_REGISTER: u32 = 1;
/// io_uring command: here is a reply, fetch the next request.
pub const URING_COMMIT_AND_FETCH: u32 = 2;

/// Length of the headers in front of the data of a WRITE.
pub const WRITE_HEADERS_LEN: usize = size_of::<InHeader>() + size_of::<WriteIn>();
