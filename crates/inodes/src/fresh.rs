//! Directories that were made a short while ago, of which all names are known. Who unpacks or clones a tree looks for each name before
//! making it, and is told here that it is new without the dictionary being asked.

use crate::COLLISIONS_MAX;
use ashlar_vfs::Ino;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};

/// Names that are kept, of all directories: some 1.5 MB.
const NAMES_MAX: usize = 1 << 16;

/// Directories whose names are all known.
///
/// A position is noted before the transaction that gives it to a name is committed, and never taken back: what is noted may be gone
/// or may never have come, but what is not noted is not there.
#[derive(Debug)]
pub struct Fresh {
    known: Mutex<Known>,
    names_max: usize,
}

#[derive(Debug, Default)]
struct Known {
    /// Hashes of the names of each directory.
    directories: HashMap<Ino, HashSet<u64>>,
    /// The directories, the oldest first.
    order: VecDeque<Ino>,
    /// Hashes and directories in all.
    names: usize,
}

impl Default for Fresh {
    fn default() -> Fresh {
        Fresh::with_names(NAMES_MAX)
    }
}

impl Fresh {
    /// Keeps as many names, directories counting as one each.
    fn with_names(names_max: usize) -> Fresh {
        Fresh { known: Mutex::default(), names_max }
    }

    /// A directory was made, and nobody could give a name in it yet.
    pub fn made(&self, directory: Ino) {
        let known = &mut *self.known.lock();
        known.forget(directory);
        known.directories.insert(directory, HashSet::new());
        known.order.push_back(directory);
        known.names += 1;
        known.bound(self.names_max);
    }

    /// A name is about to get this position in a directory.
    pub fn note(&self, directory: Ino, position: u64) {
        let known = &mut *self.known.lock();
        if known.directories.get_mut(&directory).is_some_and(|hashes| hashes.insert(position / COLLISIONS_MAX)) {
            known.names += 1;
            known.bound(self.names_max);
        }
    }

    /// Whether no name in this directory has the hash of this position.
    pub fn lacks(&self, directory: Ino, position: u64) -> bool {
        let known = self.known.lock();
        known.directories.get(&directory).is_some_and(|hashes| !hashes.contains(&(position / COLLISIONS_MAX)))
    }
}

impl Known {
    fn forget(&mut self, directory: Ino) {
        if let Some(hashes) = self.directories.remove(&directory) {
            self.names -= hashes.len() + 1;
            self.order.retain(|other| *other != directory);
        }
    }

    fn bound(&mut self, names_max: usize) {
        while self.names > names_max
            && let Some(oldest) = self.order.pop_front()
        {
            let hashes = self.directories.remove(&oldest).unwrap_or_default();
            self.names -= hashes.len() + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Small numbers, so that directories come again and names fall out.
        #[test]
        fn what_is_there_is_never_denied(steps in proptest::collection::vec((0u8..4, 1u64..6, 0u64..3000), 0..200)) {
            let fresh = Fresh::with_names(12);
            let mut names: HashMap<Ino, HashSet<u64>> = HashMap::new();
            for (what, directory, position) in steps {
                let hash = position / COLLISIONS_MAX;
                match what {
                    0 => {
                        fresh.made(directory);
                        names.insert(directory, HashSet::new());
                        prop_assert!(fresh.lacks(directory, position), "of a new directory all is known");
                    }
                    1 | 2 => {
                        fresh.note(directory, position);
                        names.entry(directory).or_default().insert(hash);
                    }
                    _ => {
                        let there = names.get(&directory).is_some_and(|hashes| hashes.contains(&hash));
                        prop_assert!(!(there && fresh.lacks(directory, position)));
                    }
                }
                let known = fresh.known.lock();
                let held: usize = known.directories.values().map(|hashes| hashes.len() + 1).sum();
                prop_assert!(held == known.names && held <= 12);
                prop_assert_eq!(known.order.len(), known.directories.len());
            }
        }
    }

    #[test]
    fn names_of_a_directory_that_is_not_known_may_be_anything() {
        let fresh = Fresh::default();
        assert!(!fresh.lacks(7, 256));
        fresh.made(7);
        assert!(fresh.lacks(7, 256));
        fresh.note(7, 257);
        assert!(!fresh.lacks(7, 256) && fresh.lacks(7, 512), "all positions of one hash are noted together");
    }
}
