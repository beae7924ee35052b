//! Flags of `open`, as [`Record::flags`](super::Record::flags) has them: those of Linux on x86-64.

/// `O_RDONLY`.
pub const READ: u64 = 0;
/// `O_WRONLY`.
pub const WRITE: u64 = 1;
/// `O_RDWR`.
pub const READ_WRITE: u64 = 2;
/// `O_CREAT`: made, if it is not there.
pub const CREATE: u64 = 0o100;
/// `O_EXCL`: with [`CREATE`], it was not there before.
pub const EXCLUSIVE: u64 = 0o200;
/// `O_TRUNC`: what is in it is given up.
pub const CUT: u64 = 0o1000;
/// `O_APPEND`: writes go to its end.
pub const APPEND: u64 = 0o2000;
/// `O_DSYNC`, which `O_SYNC` contains: what is written is durable when the call returns.
pub const DATA_SYNC: u64 = 0o10_000;
/// `O_DIRECTORY`.
pub const DIRECTORY: u64 = 0o200_000;
/// `O_CLOEXEC`.
pub const CLOSE_ON_EXEC: u64 = 0o2_000_000;
/// What `O_TMPFILE` has beside [`DIRECTORY`]: a file without a name is made.
pub const NAMELESS: u64 = 0o20_000_000;
