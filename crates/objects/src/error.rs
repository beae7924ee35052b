//! Errors by what the caller does next.

use crate::Name;
use std::fmt;

/// Why a change or a question to a store came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// No object has this name.
    NotFound(Name),
    /// The object is not in the state that the caller asked for, or there is none and there should be.
    Condition(Name),
    /// The object, its name or its attributes would be larger than the store takes.
    TooLarge {
        /// What is too large, such as "a name" or "an object".
        what: &'static str,
        /// Its size, in bytes.
        size: u64,
        /// The most that the store takes, in bytes.
        limit: u64,
    },
    /// The store is full: delete something, or give it another device.
    NoSpace,
    /// The caller's arguments contradict each other or the contract.
    Misuse(String),
    /// The device failed, or what it holds is damaged.
    Storage(ashlar_block::Error),
}

/// Result of an operation on objects.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<ashlar_block::Error> for Error {
    fn from(error: ashlar_block::Error) -> Error {
        match error.kind() {
            ashlar_block::Kind::NoSpace => Error::NoSpace,
            _ => Error::Storage(error),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotFound(name) => write!(f, "there is no object {name}"),
            Error::Condition(name) => write!(f, "object {name} is not in the state that was asked for"),
            Error::TooLarge { what, size, limit } => {
                write!(f, "{what} of {size} bytes is too large: this store takes up to {limit} bytes")
            }
            Error::NoSpace => f.write_str("the store is full; delete objects or add a device"),
            Error::Misuse(message) => f.write_str(message),
            Error::Storage(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}
