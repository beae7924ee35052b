//! The ledger: every prediction that was made, with its range, and what was later measured.
//!
//! A file of lines, each one JSON record, which only grows: `$ASHLAR_LEDGER`, else `ashlar/ledger.jsonl` in the user's
//! state directory (`$XDG_STATE_HOME`, else `~/.local/state`). A [`Prediction`] says what was predicted, in which range,
//! by which model and from which inputs; a [`Measurement`] says what was found later. [`score()`] joins both.
//!
//! Invariants
//!  1. A record is one line, of at most [`LINE_LEN_MAX`] bytes, written at once at the end under a lock and synced. So
//!     any number of processes may append.
//!  2. What a crash left of a last line is never read as a record. It is passed over and told; the next append closes it
//!     with the byte 0x18 (cancel) and a newline, so it stays known as torn. Nothing that was written is ever changed.
//!  3. Any other line that is no record is an error that names the line: the file was changed by something else.
//!
//! Memory: [`Ledger::read`] holds one record at a time.

mod append;
mod error;
#[cfg(test)]
mod fuzz;
mod place;
mod read;
mod record;
mod score;
#[cfg(test)]
mod tests;

pub use error::Error;
pub use read::{Read, Torn};
pub use record::{Entry, Inputs, Kind, Measurement, Prediction, Record, fingerprint};
pub use score::{ModelScore, RECORDS_MAX, Score, Scored, score};

use std::path::{Path, PathBuf};

/// Longest line, bytes, with its newline: no record of ours comes near it, and a file that is not ours is noticed soon.
pub const LINE_LEN_MAX: usize = 64 << 10;

/// A ledger file; it need not exist yet.
#[derive(Clone, Debug)]
pub struct Ledger {
    path: PathBuf,
}

impl Ledger {
    /// The user's ledger. Fails if the environment does not say where that is.
    pub fn open_default() -> Result<Ledger, Error> {
        Ok(Ledger { path: place::default_path(|name| std::env::var_os(name))? })
    }

    /// The ledger in a file.
    pub fn open(path: impl Into<PathBuf>) -> Ledger {
        Ledger { path: path.into() }
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a prediction down; returns the record's id.
    pub fn predict(&self, prediction: Prediction) -> Result<String, Error> {
        Ok(self.predict_all(vec![prediction])?.remove(0))
    }

    /// Writes several down, all or, after a crash, the first few; returns their ids, in order.
    pub fn predict_all(&self, predictions: Vec<Prediction>) -> Result<Vec<String>, Error> {
        append::append(&self.path, predictions.into_iter().map(Record::Prediction).collect())
    }

    /// Writes down what was measured; returns the record's id.
    pub fn measure(&self, measurement: Measurement) -> Result<String, Error> {
        Ok(append::append(&self.path, vec![Record::Measurement(measurement)])?.remove(0))
    }

    /// Gives every record to `seen`, in the order of the file, and says what was passed over. A ledger that does not exist
    /// is empty.
    pub fn read(&self, seen: impl FnMut(Entry) -> Result<(), Error>) -> Result<Read, Error> {
        read::read(&self.path, seen)
    }

    /// The one record whose id begins with `id`.
    pub fn find(&self, id: &str) -> Result<Entry, Error> {
        let mut found: Option<Entry> = None;
        self.read(|entry| match &found {
            _ if !entry.id.starts_with(id) => Ok(()),
            Some(other) if other.id != entry.id => {
                Err(Error::Refused(format!("both {} and {} begin with {id:?}; give more of it", other.id, entry.id)))
            }
            _ => {
                found = Some(entry);
                Ok(())
            }
        })?;
        found.ok_or_else(|| Error::Refused(format!("no record has the id {id:?}; `ashlar ledger` lists them")))
    }
}
