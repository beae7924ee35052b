//! Errors of file operations.

use ashlar_block::Kind;
use std::fmt;

/// What POSIX calls it. Doors translate to numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are POSIX's, spelled out")]
pub enum Errno {
    NotFound,
    Exists,
    NotDirectory,
    IsDirectory,
    NotEmpty,
    NameTooLong,
    TooManyLinks,
    NoSpace,
    FileTooBig,
    Invalid,
    NotPermitted,
    /// Not for this kind of inode.
    AccessDenied,
    ReadOnly,
    NoData,
    NoSuchAddress,
    TooBig,
    Stale,
    Unsupported,
    Io,
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Errno::NotFound => "there is no such file or directory",
            Errno::Exists => "it exists already",
            Errno::NotDirectory => "it is not a directory",
            Errno::IsDirectory => "it is a directory",
            Errno::NotEmpty => "the directory is not empty",
            Errno::NameTooLong => "the name is too long",
            Errno::TooManyLinks => "it has too many names",
            Errno::NoSpace => "there is no space left",
            Errno::FileTooBig => "the file would be longer than one can be",
            Errno::Invalid => "an argument is wrong",
            Errno::NotPermitted => "that is not permitted",
            Errno::AccessDenied => "that is not for this kind of inode",
            Errno::ReadOnly => "the file system is read-only",
            Errno::NoData => "there is no such attribute",
            Errno::NoSuchAddress => "there is nothing behind that offset",
            Errno::TooBig => "the value is too large",
            Errno::Stale => "the inode is gone",
            Errno::Unsupported => "that is not supported",
            Errno::Io => "input or output failed",
        })
    }
}

/// A POSIX error; for damage and device failures with the story behind it.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    /// What POSIX calls it.
    pub errno: Errno,
    /// The storage error that caused it.
    pub cause: Option<Box<ashlar_block::Error>>,
}

/// Result of a file operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        Error { errno, cause: None }
    }
}

impl From<ashlar_block::Error> for Error {
    fn from(cause: ashlar_block::Error) -> Error {
        let errno = match cause.kind() {
            Kind::NoSpace => Errno::NoSpace,
            Kind::Unsupported => Errno::Unsupported,
            Kind::Misuse => Errno::Invalid,
            Kind::Retry | Kind::Corrupt | Kind::Failed | Kind::Poisoned => Errno::Io,
        };
        Error { errno, cause: Some(Box::new(cause)) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Some(cause) => write!(f, "{:?} ({cause})", self.errno),
            None => write!(f, "{:?}", self.errno),
        }
    }
}
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl std::error::Error for Error {}
