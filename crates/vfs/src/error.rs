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
