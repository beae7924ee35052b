//! Which descriptor means what: tables of descriptors, and open files that several descriptors share.

use super::counts::Cause;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What all tables together may take, in bytes: 1.5 million descriptors of files with short names.
const ROOM: usize = 256 << 20;
/// What a descriptor takes beside the path of its file.
const SLOT: usize = 64;

/// An open file (open file description).
#[derive(Debug)]
pub struct Opened {
    /// Its number, from 1 on and never used again.
    pub id: u64,
    /// The path by which it was opened.
    pub path: Rc<str>,
    /// Where the next read or write begins.
    pub position: Cell<u64>,
    /// Writes go to the end, `O_APPEND`.
    pub append: Cell<bool>,
}

/// What a descriptor means.
#[derive(Clone, Debug)]
pub enum Held {
    /// An open file.
    File(Rc<Opened>),
    /// Something of which no records are made, and why.
    Outside(Cause),
}

#[derive(Clone, Debug)]
struct Slot {
    held: Held,
    close_on_exec: bool,
}

impl Slot {
    fn weight(&self) -> usize {
        match &self.held {
            Held::File(file) => SLOT + file.path.len(),
            Held::Outside(_) => SLOT,
        }
    }
}

/// How much all tables together still may take.
#[derive(Clone)]
pub struct Room(Rc<Cell<usize>>);

impl Room {
    /// As much as there is.
    pub fn new() -> Room {
        Room(Rc::new(Cell::new(ROOM)))
    }
    fn take(&self, weight: usize) -> bool {
        let left = self.0.get().checked_sub(weight);
        left.inspect(|left| self.0.set(*left)).is_some()
    }
    fn give(&self, weight: usize) {
        self.0.set(self.0.get() + weight);
    }
}

/// The descriptors of a process.
pub struct Table {
    slots: BTreeMap<u32, Slot>,
    room: Room,
}

impl Table {
    /// None.
    pub fn new(room: Room) -> Table {
        Table { slots: BTreeMap::new(), room }
    }

    /// What `fd` means.
    pub fn get(&self, fd: u32) -> Option<&Held> {
        self.slots.get(&fd).map(|slot| &slot.held)
    }

    /// From now on `fd` means this; what it meant comes back. The error is that there is no room for it.
    pub fn put(&mut self, fd: u32, held: Held, close_on_exec: bool) -> Result<Option<Held>, Cause> {
        let before = self.remove(fd);
        let slot = Slot { held, close_on_exec };
        if !self.room.take(slot.weight()) {
            return Err(Cause::TooMany);
        }
        self.slots.insert(fd, slot);
        Ok(before)
    }

    /// `fd` means nothing any more.
    pub fn remove(&mut self, fd: u32) -> Option<Held> {
        let slot = self.slots.remove(&fd)?;
        self.room.give(slot.weight());
        Some(slot.held)
    }

    /// Whether `fd` is closed when another program begins.
    pub fn set_close_on_exec(&mut self, fd: u32, set: bool) {
        if let Some(slot) = self.slots.get_mut(&fd) {
            slot.close_on_exec = set;
        }
    }

    /// Has all of `first..=last` closed when another program begins.
    pub fn set_range_close_on_exec(&mut self, first: u32, last: u32) {
        if first <= last {
            self.slots.range_mut(first..=last).for_each(|(_, slot)| slot.close_on_exec = true);
        }
    }

    /// Closes all of `first..=last`.
    pub fn remove_range(&mut self, first: u32, last: u32) -> Vec<Held> {
        if first > last {
            return Vec::new();
        }
        let gone: Vec<u32> = self.slots.range(first..=last).map(|(fd, _)| *fd).collect();
        gone.into_iter().filter_map(|fd| self.remove(fd)).collect()
    }

    /// Another program begins.
    pub fn exec(&mut self) -> Vec<Held> {
        let gone: Vec<u32> = self.slots.iter().filter(|(_, slot)| slot.close_on_exec).map(|(fd, _)| *fd).collect();
        gone.into_iter().filter_map(|fd| self.remove(fd)).collect()
    }

    /// The same descriptors in another process. The error is that there is no room for them.
    pub fn copy(&self) -> Result<Table, Cause> {
        let room = self.room.clone();
        if !room.take(self.slots.values().map(Slot::weight).sum()) {
            return Err(Cause::TooMany);
        }
        Ok(Table { slots: self.slots.clone(), room })
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.room.give(self.slots.values().map(Slot::weight).sum());
    }
}

/// Mappings that are shared with their files.
#[derive(Clone, Default)]
pub struct Mappings(Rc<BTreeMap<u64, Mapping>>);

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Bytes.
    pub len: u64,
    /// Of the file that has this number.
    pub file: u64,
    /// Opened by this path.
    pub path: Rc<str>,
    /// From this byte on.
    pub offset: u64,
}

/// Mappings of an address space that are remembered.
const MAPPINGS_MAX: usize = 256;

impl Mappings {
    /// Remembers a mapping.
    pub fn put(&mut self, address: u64, mapping: Mapping) {
        if self.0.len() < MAPPINGS_MAX {
            Rc::make_mut(&mut self.0).insert(address, mapping);
        }
    }

    /// Forgets what began in a range. What began before it and reaches into it stays, though it is shorter now.
    pub fn remove(&mut self, address: u64, len: u64) {
        let gone: Vec<u64> = self.0.range(address..address.saturating_add(len)).map(|(at, _)| *at).collect();
        gone.iter().for_each(|at| drop(Rc::make_mut(&mut self.0).remove(at)));
    }

    /// The mapping that holds an address, and how far within.
    pub fn at(&self, address: u64) -> Option<(&Mapping, u64)> {
        let (at, mapping) = self.0.range(..=address).next_back()?;
        (address - at < mapping.len).then_some((mapping, address - at))
    }
}
