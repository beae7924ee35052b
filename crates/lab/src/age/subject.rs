//! What ages.

use super::Alive;
use crate::history::Writing;
use crate::layout::Free;
use std::io;

/// Why something was not done.
#[derive(Debug)]
pub enum Refusal {
    /// There is no room.
    Full,
    /// Something else.
    Io(io::Error),
}

/// How a subject fares.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// Share of it that is in use.
    pub used: f64,
    /// Layout score of some or all files.
    pub score: Option<f64>,
    /// Mean number of pieces of those.
    pub pieces_per_file: f64,
    /// Free space, where it is known.
    pub free: Option<Free>,
}

/// A file system that ages. `alive` always has what an operation is about, as it is to be afterwards.
pub trait Subject {
    /// From now on operations may have been done before, in full or in part, and must succeed then; or that is over.
    fn repeating(&mut self, again: bool);
    /// The time of the history.
    fn at(&mut self, now_ns: i64);
    /// Makes a directory.
    fn make_directory(&mut self, id: u64, alive: &Alive) -> Result<(), Refusal>;
    /// Makes the file if it is not there, cuts it to `keep` bytes if it is longer, and writes from there to its size. It had
    /// `old` bytes.
    fn write(&mut self, id: u64, old: u64, keep: u64, how: Writing, alive: &Alive) -> Result<(), Refusal>;
    /// Moves a file or directory from a directory and name length to where `alive` has it.
    fn rename(&mut self, id: u64, from: (u64, u8), alive: &Alive) -> Result<(), Refusal>;
    /// Deletes a file or an empty directory.
    fn delete(&mut self, id: u64, alive: &Alive) -> io::Result<()>;
    /// Removes what is left of something that was refused.
    fn give_up(&mut self, id: u64, alive: &Alive) -> io::Result<()>;
    /// The time has come to write back what is dirty of a file.
    fn write_back(&mut self, id: u64, alive: &Alive) -> io::Result<()>;
    /// Writes everything.
    fn sync(&mut self) -> io::Result<()>;
    /// Looks, and changes nothing.
    fn look(&mut self, alive: &Alive) -> io::Result<Look>;
}
