//! Histories of parameters alone, each by its own recipe: [`profile`], [`streams`], [`age_target`].

pub mod age_target;
pub mod profile;
mod sizes;
pub mod streams;
mod tree;

pub use sizes::{Sizes, SizesError};

use super::builder::Builder;
use super::record::{Act, Record, Writing};
use ashlar_models::Chance;
use ashlar_survey::sample::{fast_hash, mix};
use std::io;
use tree::Tree;

/// A second in nanoseconds.
const SECOND_NS: f64 = 1e9;

/// What all recipes have in common.
#[derive(Clone, Debug)]
pub struct Common {
    /// Bytes of the file system.
    pub capacity: u64,
    /// Sizes of files.
    pub sizes: Sizes,
    /// Directories.
    pub directories: u32,
    /// Share of the files that are synced.
    pub sync_share: f64,
    /// Bytes of a write; zero is a file at once.
    pub write_unit: u32,
    /// Decides what is left to chance.
    pub seed: u64,
}

impl Common {
    /// All parameters by name.
    fn described(&self) -> Vec<(String, String)> {
        [
            ("capacity", self.capacity.to_string()),
            ("sizes", self.sizes.to_string()),
            ("directories", self.directories.to_string()),
            ("sync-share", self.sync_share.to_string()),
            ("write-unit", self.write_unit.to_string()),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .into()
    }
}

/// A file that is alive.
#[derive(Clone, Copy, Debug)]
struct File {
    id: u64,
    made_ns: i64,
    size: u64,
}

/// The files that a recipe made and did not delete yet.
struct World<'a> {
    common: &'a Common,
    tree: Tree,
    builder: &'a mut Builder,
    chance: Chance,
    live: Vec<File>,
    bytes: u64,
    made: u64,
}

impl<'a> World<'a> {
    /// Makes the directories, at time zero.
    fn new(common: &'a Common, builder: &'a mut Builder) -> io::Result<World<'a>> {
        let mut chance = Chance::new(common.seed);
        let tree = Tree::new(common.directories.max(1), common.seed, &mut chance);
        for (id, parent) in tree.directories() {
            builder.push(Record { at_ns: 0, id, act: Act::MakeDirectory { parent, name_len: 8 } })?;
        }
        Ok(World { common, tree, builder, chance, live: Vec::new(), bytes: 0, made: 0 })
    }

    /// Makes a file, which is not counted among those that live.
    fn make(&mut self, at_ns: i64, size: u64) -> io::Result<File> {
        self.made += 1;
        let id = mix(self.common.seed ^ 0xf11e, self.made).max(1);
        let parent = self.tree.choose(&mut self.chance);
        let sync = fast_hash(self.common.seed, id) < self.common.sync_share;
        let how = Writing { unit: self.common.write_unit, sync };
        self.builder.push(Record { at_ns, id, act: Act::Create { parent, name_len: 12, size, how } })?;
        Ok(File { id, made_ns: at_ns, size })
    }

    /// Makes a file of a size by chance; returns the size.
    fn create(&mut self, at_ns: i64) -> io::Result<u64> {
        let size = self.common.sizes.draw(&mut self.chance);
        let file = self.make(at_ns, size)?;
        self.live.push(file);
        self.bytes = self.bytes.saturating_add(super::stats::blocks(size));
        Ok(size)
    }

    fn delete(&mut self, at_ns: i64, file: File) -> io::Result<()> {
        // Nothing is deleted before it was made, whatever a recipe's times are.
        let at_ns = at_ns.max(file.made_ns + 1);
        self.builder.push(Record { at_ns, id: file.id, act: Act::Delete })
    }

    /// Deletes one of those that live; returns its size.
    fn remove(&mut self, at_ns: i64, index: usize) -> io::Result<u64> {
        let file = self.live.swap_remove(index);
        self.bytes = self.bytes.saturating_sub(super::stats::blocks(file.size));
        self.delete(at_ns, file)?;
        Ok(file.size)
    }

    fn any(&mut self) -> Option<usize> {
        (!self.live.is_empty()).then(|| self.chance.below(self.live.len() as u64) as usize)
    }

    /// A time of the exponential distribution.
    fn wait_ns(&mut self, mean_s: f64) -> i64 {
        (-(1.0 - self.chance.unit()).ln() * mean_s * SECOND_NS) as i64
    }

    fn used(&self) -> f64 {
        self.bytes as f64 / self.common.capacity.max(1) as f64
    }
}

#[cfg(test)]
mod tests;
