//! The staging table: which blocks are staged, by extent and neighbourhood. In memory; made again from the pool's map when
//! the store is opened.

use crate::format::Pointer;
use std::collections::{BTreeMap, BTreeSet};

/// An extent's blocks within one logical stretch of the size of a proximal range: what is destaged together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupKey {
    pub extent: u32,
    pub group: u64,
}

/// Where new data of a block are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// In the staging pool.
    Staged,
    /// On the disk, with a pointer that is not yet in the index; what staging may have is older.
    Fresh(Pointer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub home: Home,
    /// Changes with every write of the block.
    pub version: u64,
    /// Overwrites while it was staged, halved whenever destaging passes it over.
    pub hits: u8,
}

#[derive(Default)]
struct Group {
    places: BTreeMap<u64, Place>,
    staged: u32,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Table {
    groups: BTreeMap<GroupKey, Group>,
    /// Groups with staged blocks, by how many they have.
    density: BTreeSet<(u32, GroupKey)>,
    staged: u64,
    fresh: u64,
    version: u64,
}

impl Table {
    pub fn staged(&self) -> u64 {
        self.staged
    }
    pub fn fresh(&self) -> u64 {
        self.fresh
    }

    /// Notes a write; gives the pointer that it made pointless.
    pub fn insert(&mut self, key: GroupKey, offset: u64, home: Home) -> Option<Pointer> {
        self.version += 1;
        let hits = match self.get(key, offset) {
            Some(Place { home: Home::Staged, hits, .. }) => hits.saturating_add(1),
            _ => 0,
        };
        self.set(key, offset, Some(Place { home, version: self.version, hits }))
    }

    /// Forgets a block; gives the pointer that was not installed.
    pub fn remove(&mut self, key: GroupKey, offset: u64) -> Option<Pointer> {
        self.set(key, offset, None)
    }

    /// Destaging passes a block over.
    pub fn cool(&mut self, key: GroupKey, offset: u64) {
        let place = self.groups.get_mut(&key).and_then(|group| group.places.get_mut(&offset));
        place.into_iter().for_each(|place| place.hits /= 2);
    }

    fn set(&mut self, key: GroupKey, offset: u64, place: Option<Place>) -> Option<Pointer> {
        let group = self.groups.entry(key).or_default();
        let before = match place {
            Some(place) => group.places.insert(offset, place),
            None => group.places.remove(&offset),
        };
        let is_staged = |place: &Place| place.home == Home::Staged;
        let (was, now) = (before.is_some_and(|p| is_staged(&p)), place.is_some_and(|p| is_staged(&p)));
        let fresh = |place: Option<Place>, staged: bool| u64::from(place.is_some() && !staged);
        self.staged = self.staged + u64::from(now) - u64::from(was);
        self.fresh = self.fresh + fresh(place, now) - fresh(before, was);
        if was != now {
            self.density.remove(&(group.staged, key));
            group.staged = group.staged + u32::from(now) - u32::from(was);
            if group.staged > 0 {
                self.density.insert((group.staged, key));
            }
        }
        if group.places.is_empty() {
            self.groups.remove(&key);
        }
        before.and_then(pointer)
    }

    pub fn get(&self, key: GroupKey, offset: u64) -> Option<Place> {
        self.groups.get(&key)?.places.get(&offset).copied()
    }

    /// The places of some blocks of one group.
    pub fn range(&self, key: GroupKey, offsets: std::ops::Range<u64>) -> impl Iterator<Item = (u64, Place)> + '_ {
        self.groups
            .get(&key)
            .into_iter()
            .flat_map(move |group| group.places.range(offsets.clone()))
            .map(|(o, p)| (*o, *p))
    }

    /// The group with the most staged blocks.
    pub fn densest(&self) -> Option<GroupKey> {
        self.density.last().map(|(_, key)| *key)
    }
    /// The first group with staged blocks at or behind `from`.
    pub fn next_staged(&self, from: GroupKey) -> Option<GroupKey> {
        self.groups.range(from..).find(|(_, group)| group.staged > 0).map(|(key, _)| *key)
    }
    /// The first block that is known at or behind one of this group: its extent and offset.
    pub fn next_in(&self, from: GroupKey, offset: u64) -> Option<(u32, u64)> {
        let mut groups = self.groups.range(from..);
        groups.find_map(|(key, group)| {
            let offset = if *key == from { offset } else { 0 };
            group.places.range(offset..).next().map(|(offset, _)| (key.extent, *offset))
        })
    }
    /// Groups with pointers that are not in the index yet.
    pub fn fresh_groups(&self) -> Vec<GroupKey> {
        let fresh = |(key, group): (&GroupKey, &Group)| (group.places.len() as u32 > group.staged).then_some(*key);
        self.groups.iter().filter_map(fresh).collect()
    }
}

fn pointer(place: Place) -> Option<Pointer> {
    match place.home {
        Home::Fresh(pointer) => Some(pointer),
        Home::Staged => None,
    }
}
