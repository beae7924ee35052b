//! How long files are, as far as what was seen tells: where a write goes that appends.

use std::collections::HashMap;

/// Files that are remembered.
const FILES_MAX: usize = 1 << 14;

/// Bytes of files by path.
#[derive(Default)]
pub(super) struct Sizes(HashMap<String, u64>);

impl Sizes {
    /// How long a file is.
    pub fn get(&self, path: &str) -> Option<u64> {
        self.0.get(path).copied()
    }

    /// It is so long now.
    pub fn set(&mut self, path: &str, bytes: u64) {
        if let Some(known) = self.0.get_mut(path) {
            *known = bytes;
            return;
        }
        // Those that matter come again.
        if self.0.len() >= FILES_MAX {
            self.0.clear();
        }
        self.0.insert(path.into(), bytes);
    }

    /// It was written up to there.
    pub fn reach(&mut self, path: &str, end: u64) {
        if let Some(known) = self.0.get_mut(path) {
            *known = end.max(*known);
        }
    }

    /// The name means nothing any more.
    pub fn forget(&mut self, path: &str) {
        self.0.remove(path);
    }

    /// The name is another one.
    pub fn rename(&mut self, from: &str, to: &str) {
        match self.0.remove(from) {
            Some(bytes) => drop(self.0.insert(to.into(), bytes)),
            None => self.forget(to),
        }
    }
}
