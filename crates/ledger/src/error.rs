//! What can go wrong, and what to do then.

use std::path::PathBuf;

/// Why a ledger could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The environment does not say where the ledger is.
    #[error("where the ledger is cannot be told: {0}; set ASHLAR_LEDGER to the path of a file")]
    Place(String),
    /// The file system refused.
    #[error("{}: cannot {action} the ledger: {cause}; set ASHLAR_LEDGER to the path of a file that can be written", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        cause: std::io::Error,
    },
    /// A line is no record.
    #[error("{}: line {line} is no record of a ledger ({what}); remove that line, or move the file away to begin anew", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// What is wrong with it.
        what: String,
    },
    /// Another process holds the lock for too long.
    #[error("{}: another process has kept the ledger locked for {seconds} s; `fuser` shows which, end it and try again", .path.display())]
    Busy {
        /// The file.
        path: PathBuf,
        /// How long it was waited.
        seconds: u64,
    },
    /// What was asked for makes no sense; the text says why.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    pub(crate) fn file(path: &std::path::Path, action: &'static str, cause: impl Into<std::io::Error>) -> Error {
        Error::File { path: path.into(), action, cause: cause.into() }
    }
}
