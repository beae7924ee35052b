//! The caches of the thesis (section 4.4.5.2): buffers, names and attributes, each by last use; all empty at first.

use super::lists::{Lists, Slot};
use super::{Cache, units};
use crate::predict::step::{Cached, Chain, Kind, Step};
use crate::trace::Op;
use crate::vector::{Family, Vector};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Sizes of the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Fragments that the buffer cache holds.
    pub fragments: u64,
    /// Names.
    pub names: u64,
    /// Inodes.
    pub inodes: u64,
    /// Bytes of a fragment.
    pub fragment_bytes: u64,
}

impl Sizes {
    /// Of a vector (BC, DNLC, MDC, FS); where one is missing, no cache ends.
    pub fn of(vector: &Vector) -> Sizes {
        let number = |family, default: f64| vector.number(family).unwrap_or(default);
        let fragment_bytes = number(Family::FS, 4096.0).max(1.0) as u64;
        Sizes {
            fragments: (number(Family::BC, 1e9) * 1024.0 / fragment_bytes as f64) as u64,
            names: number(Family::DNLC, 1e9) as u64,
            inodes: number(Family::MDC, 1e9) as u64,
            fragment_bytes,
        }
    }
}

/// A cache by last use.
#[derive(Debug)]
struct Lru<K> {
    lists: Lists<K, 1>,
    slots: HashMap<K, Slot>,
    max: u64,
}

impl<K: Hash + Eq + Clone> Lru<K> {
    fn new(max: u64) -> Lru<K> {
        Lru { lists: Lists::default(), slots: HashMap::new(), max }
    }

    fn has(&self, key: &K) -> bool {
        self.slots.contains_key(key)
    }

    /// Uses a key: whether it was there, and what had to go.
    fn used(&mut self, key: K) -> (bool, Option<K>) {
        if let Some(slot) = self.slots.get(&key) {
            self.lists.renew(*slot, 0);
            return (true, None);
        }
        self.slots.insert(key.clone(), self.lists.insert(0, key));
        let full = self.lists.len(0) > self.max;
        let gone = full.then(|| self.lists.oldest(0).and_then(|slot| self.lists.remove(slot))).flatten();
        if let Some(gone) = &gone {
            self.slots.remove(gone);
        }
        (false, gone)
    }

    fn remove(&mut self, key: &K) {
        if let Some(slot) = self.slots.remove(key) {
            self.lists.remove(slot);
        }
    }
}

/// The simulation.
#[derive(Debug)]
pub struct Thesis {
    fragment_bytes: u64,
    buffers: Lru<(u64, u64)>,
    /// Buffers of each file.
    files: HashMap<u64, BTreeMap<u64, ()>>,
    names: Lru<(u64, Box<str>)>,
    inodes: Lru<u64>,
}

impl Thesis {
    /// Empty caches.
    pub fn new(sizes: Sizes) -> Thesis {
        Thesis {
            fragment_bytes: sizes.fragment_bytes,
            buffers: Lru::new(sizes.fragments),
            files: HashMap::new(),
            names: Lru::new(sizes.names),
            inodes: Lru::new(sizes.inodes),
        }
    }

    fn lookup(&mut self, step: &Step) -> Cached {
        let name = step.path.rsplit('/').next().unwrap_or_default();
        let (named, _) = self.names.used((step.directory, name.into()));
        // Of an absent name there are no attributes to be read.
        let (attributes, _) = if step.inode == 0 { (named, None) } else { self.inodes.used(step.inode) };
        // The thesis could not measure a cached name without attributes, and took it for a miss.
        match (named, attributes) {
            _ if step.held => Cached::Hit,
            (true, true) => Cached::Hit,
            (false, true) if step.inode != 0 => Cached::Attributes,
            // A directory of which the first block is in memory needs no disk.
            _ if self.buffers.has(&(step.directory, 0)) => Cached::Hit,
            _ => Cached::Miss,
        }
    }

    fn buffer(&mut self, inode: u64, fragment: u64) -> bool {
        let (was, gone) = self.buffers.used((inode, fragment));
        self.files.entry(inode).or_default().insert(fragment, ());
        if let Some((inode, fragment)) = gone
            && let Some(file) = self.files.get_mut(&inode)
        {
            file.remove(&fragment);
        }
        was
    }

    fn cut(&mut self, step: &mut Step) {
        let (first, last) = (0, step.size.saturating_sub(1) / self.fragment_bytes);
        let has = |fragment| self.buffers.has(&(step.inode, fragment));
        step.held_whole = self.inodes.has(&step.inode) && (step.size == 0 || has(first) && has(last));
        let from = step.offset.div_ceil(self.fragment_bytes);
        let gone = self.files.get_mut(&step.inode).map(|file| file.split_off(&from)).unwrap_or_default();
        gone.into_keys().for_each(|fragment| self.buffers.remove(&(step.inode, fragment)));
    }
}

impl Cache for Thesis {
    fn apply(&mut self, chain: &mut Chain, _now_ns: u64) {
        for step in chain.iter_mut().filter(|step| !step.ignored) {
            match (step.kind, step.op) {
                (Kind::Lookup, _) => step.cached = self.lookup(step),
                (Kind::Cut, _) => self.cut(step),
                (Kind::Create, _) => {
                    self.inodes.used(step.inode);
                }
                (Kind::Call, _) if step.failed => {}
                (Kind::Call, Some(op @ (Op::Read | Op::Getdents | Op::Write))) => {
                    for fragment in units(step.offset, step.done, self.fragment_bytes) {
                        let was = self.buffer(step.inode, fragment);
                        step.hits += u64::from(was);
                        step.misses += u64::from(!was && op != Op::Write);
                    }
                }
                (Kind::Call, Some(Op::Unlink | Op::Rmdir)) => {
                    let name = step.path.rsplit('/').next().unwrap_or_default();
                    self.names.remove(&(step.directory, name.into()));
                }
                (Kind::Call, _) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(inode: u64, offset: u64, len: u64) -> Chain {
        vec![Step { op: Some(Op::Read), inode, offset, done: len, size: 1 << 30, ..Step::default() }]
    }

    #[test]
    fn the_longest_unused_goes() {
        let mut cache = Thesis::new(Sizes { fragments: 3, names: 1, inodes: 1, fragment_bytes: 1024 });
        let mut hits = |inode, offset, len| {
            let mut chain = read(inode, offset, len);
            cache.apply(&mut chain, 0);
            (chain[0].hits, chain[0].misses)
        };
        assert_eq!(hits(1, 0, 2048), (0, 2));
        assert_eq!(hits(1, 100, 2048), (2, 1), "three fragments are touched");
        assert_eq!(hits(1, 0, 1), (1, 0));
        assert_eq!(hits(2, 0, 1), (0, 1));
        assert_eq!(hits(1, 1024, 1), (0, 1), "it had waited longest");
        assert_eq!(hits(1, 0, 1), (1, 0));
    }

    #[test]
    fn a_file_is_cut_cached_or_not() {
        let mut cache = Thesis::new(Sizes { fragments: 9, names: 9, inodes: 9, fragment_bytes: 1024 });
        let lookup = Step { kind: Kind::Lookup, op: Some(Op::Stat), inode: 1, path: "/a".into(), ..Step::default() };
        let cut = Step { kind: Kind::Cut, op: Some(Op::Unlink), inode: 1, size: 2000, ..Step::default() };
        for (before, expected) in [(vec![], false), (read(1, 1024, 1), false), (read(1, 0, 1), true)] {
            let mut chain = before;
            cache.apply(&mut chain, 0);
            let mut chain = vec![lookup.clone()];
            cache.apply(&mut chain, 0);
            let mut chain = vec![cut.clone()];
            if expected {
                cache.apply(&mut read(1, 1024, 1), 0);
                cache.apply(&mut chain, 0);
                assert!(chain[0].held_whole);
                let mut again = read(1, 0, 1);
                cache.apply(&mut again, 0);
                assert_eq!(again[0].misses, 1, "its content is gone");
            } else {
                cache.apply(&mut chain, 0);
                assert!(!chain[0].held_whole);
            }
        }
    }
}
