//! Errors by what the caller does next.

use std::fmt;

/// What the caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The same call may succeed later.
    Retry,
    /// Space must be made first.
    NoSpace,
    /// Stored data is damaged: another copy, a backup, or the loss of that range.
    Corrupt,
    /// The device failed this operation (a read or write error, or it is gone).
    Failed,
    /// This device, format or feature cannot do that.
    Unsupported,
    /// The component gave up after an earlier failure; close it and open it again.
    Poisoned,
    /// The caller broke the contract or gave a bad argument.
    Misuse,
}

/// An error with the path that it took through the stack.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    message: String,
    context: Vec<String>,
}

/// Result of a storage operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error whose message says what is wrong, where, and how to mend it.
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), context: Vec::new() }
    }
    /// Damaged data.
    pub fn corrupt(message: impl Into<String>) -> Error {
        Error::new(Kind::Corrupt, message)
    }
    /// A broken contract or bad argument.
    pub fn misuse(message: impl Into<String>) -> Error {
        Error::new(Kind::Misuse, message)
    }
    /// An error of the operating system.
    pub fn io(what: impl fmt::Display, error: &std::io::Error) -> Error {
        let kind = match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Kind::NoSpace,
            std::io::ErrorKind::Interrupted | std::io::ErrorKind::WouldBlock => Kind::Retry,
            std::io::ErrorKind::Unsupported => Kind::Unsupported,
            _ => Kind::Failed,
        };
        Error::new(kind, format!("{what}: {error}"))
    }
    /// What the caller can do.
    pub fn kind(&self) -> Kind {
        self.kind
    }
    /// Whether something is stored and cannot be read. What can be tried again is not.
    pub fn is_damage(&self) -> bool {
        matches!(self.kind, Kind::Corrupt | Kind::Failed)
    }
    /// The message without its context.
    pub fn message(&self) -> &str {
        &self.message
    }
    /// The same error, seen from one layer further up.
    #[must_use]
    pub fn within(mut self, context: impl Into<String>) -> Error {
        self.context.push(context.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for context in self.context.iter().rev() {
            write!(f, "{context}: ")?;
        }
        f.write_str(&self.message)
    }
}
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind)
    }
}
impl std::error::Error for Error {}

/// Adds context to results.
pub trait ResultExt {
    /// Adds where an error happened.
    #[must_use]
    fn within(self, context: impl FnOnce() -> String) -> Self;
}
impl<T> ResultExt for Result<T> {
    fn within(self, context: impl FnOnce() -> String) -> Self {
        self.map_err(|error| error.within(context()))
    }
}
