//! Reading ahead across files, for those who go through a tree.
//!
//! The kernel reads ahead within a file. Who reads many files of a hundred kilobytes one after the other waits for a disk's head at
//! each of them; but whoever listed a directory and then reads its files will read the next ones too, in the order of the listing
//! (`grep -r`, `tar`, `cp -r`, `rsync`). So contents of the next files are fetched, sorted by where they lie: two of them at first, twice as
//! many each time that one is read that was foreseen, and fewer again after one that was not. Directories are entered where
//! they stand in the listing, as those programs do.
//!
//! Nothing depends on what is foreseen: names that changed meanwhile cost a read in vain.

use ashlar_units::{Blocks, Lba};
use ashlar_vfs::{Ino, Result};
use parking_lot::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::future::Future;

/// Longest file of which contents are fetched ahead, in bytes: in longer ones the kernel's read-ahead is what counts.
pub const AHEAD_FILE_MAX: u64 = 1 << 20;
/// Files that are fetched and not yet read.
const FILES_MAX: usize = 32;
/// Bytes of them that are asked for at once.
const BYTES_MAX: u64 = 8 << 20;
/// Names that are looked at for one step.
const NAMES_MAX: usize = 1024;
/// Directories of which is known that somebody listed them.
const LISTED_MAX: usize = 32;

/// What stands in a listing.
pub enum Listed<D> {
    /// A directory.
    Directory(D),
    /// A file that is worth fetching: its number, and where its contents lie.
    File(Ino, Lba, Blocks),
    /// Anything else.
    Other,
}

/// How an engine lists directories.
pub trait Listing: Sync {
    /// A directory.
    type Directory: Send;
    /// Some entries from a cookie on, each with its own, in order; none at the end.
    fn entries(
        &self,
        directory: &Self::Directory,
        from: u64,
    ) -> impl Future<Output = Result<Vec<(u64, Listed<Self::Directory>)>>> + Send;
    /// The directory above, and the cookie behind the one where this directory stands there. `None`: the root, or it is not known.
    fn above(&self, directory: &Self::Directory) -> impl Future<Output = Option<(Self::Directory, u64)>> + Send;
}

/// What is foreseen. One for a file system: several walks at a time disturb each other.
pub struct Ahead<D> {
    seen: Mutex<Seen>,
    /// Directories to look into, from the outermost to the innermost, each from a cookie on. Held while somebody looks.
    way: tokio::sync::Mutex<Vec<(D, u64)>>,
}

#[derive(Default)]
struct Seen {
    listed: VecDeque<Ino>,
    /// Files that were fetched and not read.
    expected: BTreeSet<Ino>,
    /// How many there should be.
    depth: usize,
}

impl<D> Default for Ahead<D> {
    fn default() -> Ahead<D> {
        Ahead { seen: Mutex::default(), way: tokio::sync::Mutex::new(Vec::new()) }
    }
}

impl<D: Send> Ahead<D> {
    /// Somebody begins to list a directory.
    pub fn listed(&self, directory: Ino) {
        let mut seen = self.seen.lock();
        if seen.listed.back() != Some(&directory) {
            seen.listed.retain(|known| *known != directory);
            seen.listed.push_back(directory);
            if seen.listed.len() > LISTED_MAX {
                seen.listed.pop_front();
            }
        }
    }

    /// A file is read from its beginning: which contents to fetch. `directory` is the number of the one that it lies in, and `here`
    /// gives it, with the cookie behind the file's.
    pub async fn read(
        &self,
        listing: &impl Listing<Directory = D>,
        ino: Ino,
        directory: Ino,
        here: impl FnOnce() -> (D, u64),
    ) -> Vec<(Lba, Blocks)> {
        let mut found = Vec::new();
        let Ok(mut next) = self.way.try_lock() else { return found };
        let wanted = {
            let mut seen = self.seen.lock();
            if seen.expected.remove(&ino) {
                seen.depth = (seen.depth * 2).min(FILES_MAX);
            } else if seen.listed.contains(&directory) {
                seen.depth = (seen.depth / 2).max(2);
                if seen.expected.len() > 4 * FILES_MAX {
                    seen.expected.clear();
                }
                *next = vec![here()];
            } else {
                return found;
            }
            if seen.expected.len() > seen.depth / 2 {
                return found;
            }
            seen.depth - seen.expected.len()
        };
        let (mut names, mut bytes, mut inos) = (0, 0, Vec::new());
        while let [outer @ .., (directory, from)] = &mut next[..]
            && found.len() < wanted
            && names < NAMES_MAX
            && bytes < BYTES_MAX
        {
            // What cannot be listed is told to whom lists it.
            let entries = listing.entries(directory, *from).await.unwrap_or_default();
            if entries.is_empty() {
                let above = if outer.is_empty() { listing.above(directory).await } else { None };
                next.pop();
                next.extend(above);
                continue;
            }
            for (cookie, entry) in entries {
                names += 1;
                *from = cookie.saturating_add(1);
                match entry {
                    Listed::Directory(below) => {
                        next.push((below, 0));
                        break;
                    }
                    Listed::File(ino, at, count) if found.len() < wanted => {
                        bytes += count.to_bytes().0;
                        found.push((at, count));
                        inos.push(ino);
                    }
                    // To be looked at again.
                    Listed::File(..) => {
                        *from = cookie;
                        break;
                    }
                    Listed::Other => {}
                }
            }
        }
        self.seen.lock().expected.extend(inos);
        found
    }
}
