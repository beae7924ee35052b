//! The caches of Linux: pages in two lists, names and inodes beside them in the same memory (mm/vmscan.c,
//! mm/workingset.c, fs/dcache.c, fs/inode.c).
//!
//! * A page comes to the inactive list, is marked when it is read, and goes to the active list when it is read again. One
//!   that went and comes back so soon that it would have stayed in a cache of twice the active list goes there at once.
//! * A name pins its inode; names that are used are passed over once. An inode that lost its last name stays, until it is
//!   old itself and has no pages.
//! * When memory is full, names and inodes are given up in the same proportion as pages, twice as fast (shrinkers have
//!   `seeks` of 2).
//!
//! Departs from the kernel: one zone, no batches, and dirty pages are written and given up at once when they are the oldest.

mod data;

use super::dirty::{Dirty, Limits, Written};
use super::lists::{Lists, Slot};
use super::readahead::Window;
use super::{Cache, units};
use crate::predict::step::{Cached, Chain, Change, Kind, Step};
use crate::predict::tree::BLOCK;
use crate::trace::Op;
use crate::vector::{Family, Vector};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

const INACTIVE: usize = 0;
const ACTIVE: usize = 1;
/// Windows of read-ahead that are remembered; that of a file that is not closed stays for good otherwise.
const WINDOWS_MAX: usize = 1 << 16;
/// Bytes of entries that one block of a directory holds, as `getdents` counts them.
const ENTRIES_BYTES: u64 = 4096;

/// What a machine has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Bytes for pages, names and inodes.
    pub bytes: u64,
    /// Bytes of a cached inode.
    pub inode_bytes: u64,
    /// Bytes of a cached name.
    pub name_bytes: u64,
    /// Pages that are read ahead at most.
    pub ahead: u64,
    /// When dirty data are written back.
    pub limits: Limits,
    /// Whether what was there before the trace is in memory.
    pub warm: bool,
}

impl Memory {
    /// Of a vector, or `bytes` of memory in place of its own.
    pub fn of(vector: &Vector, bytes: Option<u64>) -> Memory {
        let number = |family, default: f64| vector.number(family).unwrap_or(default);
        let bytes = bytes.unwrap_or((number(Family::BC, 1e9) * 1024.0) as u64);
        Memory {
            bytes,
            inode_bytes: number(Family::ICB, 1100.0) as u64,
            name_bytes: number(Family::DCB, 192.0) as u64,
            ahead: (number(Family::RA, 128.0) / 4.0) as u64,
            limits: Limits::of(vector, bytes / BLOCK),
            warm: false,
        }
    }
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct Counts {
    /// Pages of files that came into the page cache: what the kernel's `mm_filemap_add_to_page_cache` counts.
    pub pages_added: u64,
    /// Of those, pages that were read.
    pub pages_fetched: u64,
    /// Blocks of directories that came into memory; where they are pages, they are those of the device.
    pub directory_blocks_added: u64,
    /// Pages that were given up for want of memory.
    pub pages_evicted: u64,
    /// Names that were.
    pub names_evicted: u64,
    /// Inodes that were.
    pub inodes_evicted: u64,
    /// Dirty blocks that were written back beside the calls.
    pub blocks_written: u64,
    /// Dirty blocks that were given up before.
    pub blocks_absorbed: u64,
}

#[derive(Debug)]
struct Page {
    inode: u64,
    block: u64,
    /// It was used since it came or became active.
    used: bool,
    /// When it is read, the next window is fetched.
    ahead: bool,
}

/// A page of a file, or when it went.
#[derive(Clone, Copy, Debug)]
enum Held {
    Here(Slot),
    Gone(u64),
}

#[derive(Debug)]
struct Name {
    key: (u64, Box<str>),
    inode: u64,
    used: bool,
}

/// The simulation.
#[derive(Debug)]
pub struct Linux {
    memory: Memory,
    pages: Lists<Page, 2>,
    files: HashMap<u64, BTreeMap<u64, Held>>,
    /// Pages that went, the longest gone first.
    gone: VecDeque<(u64, u64)>,
    /// Goes on with each page that goes or becomes active: the clock of refaults.
    age: u64,
    names: Lists<Name, 1>,
    name_slots: HashMap<(u64, Box<str>), Slot>,
    inodes: Lists<u64, 1>,
    /// Where an inode is in its list, and how many names pin it.
    inode_slots: HashMap<u64, (Slot, u64)>,
    shrink: f64,
    windows: HashMap<u64, Window>,
    dirty: Dirty,
    /// Open files that were written.
    written: HashSet<u64>,
    /// Files that were used, if what was there before is in memory.
    seen: HashSet<u64>,
    counts: Counts,
}

impl Linux {
    /// Empty caches.
    pub fn new(memory: Memory) -> Linux {
        Linux {
            memory,
            pages: Lists::default(),
            files: HashMap::new(),
            gone: VecDeque::new(),
            age: 0,
            names: Lists::default(),
            name_slots: HashMap::new(),
            inodes: Lists::default(),
            inode_slots: HashMap::new(),
            shrink: 0.0,
            windows: HashMap::new(),
            dirty: Dirty::new(memory.limits),
            written: HashSet::new(),
            seen: HashSet::new(),
            counts: Counts::default(),
        }
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn lookup(&mut self, step: &Step) -> Cached {
        let key: (u64, Box<str>) = (step.directory, step.path.rsplit('/').next().unwrap_or_default().into());
        let inode = step.inode;
        if let Some(slot) = self.name_slots.get(&key).copied() {
            let Some(name) = self.names.get_mut(slot) else { return Cached::Miss };
            name.used = true;
            if name.inode == inode {
                return if inode == 0 { Cached::Negative } else { Cached::Hit };
            }
            // It is another file now.
            self.drop_name(slot);
        }
        let warm = self.memory.warm && inode != 0 && self.seen.insert(inode);
        if warm {
            // They came before the trace.
            for block in 0..step.size.div_ceil(BLOCK).min(self.memory.bytes / BLOCK) {
                self.insert(inode, block);
            }
        }
        let there = self.inode_slots.contains_key(&inode);
        // What a directory holds came into memory with the first name that was looked for, or put, there.
        let directory_there = self.has(step.directory, 0);
        if !there && !warm && !directory_there {
            self.add_directory(step.directory, 0);
        }
        self.add_name(key, inode);
        match inode {
            _ if step.held || warm => Cached::Hit,
            0 if directory_there => Cached::Absent,
            0 => Cached::Nowhere,
            _ if there => Cached::Attributes,
            _ => Cached::Miss,
        }
    }

    fn add_name(&mut self, key: (u64, Box<str>), inode: u64) {
        if inode != 0 {
            let inodes = &mut self.inodes;
            let entry = self.inode_slots.entry(inode).or_insert_with(|| (inodes.insert(0, inode), 0));
            entry.1 += 1;
        }
        let slot = self.names.insert(0, Name { key: key.clone(), inode, used: false });
        self.name_slots.insert(key, slot);
    }

    /// A name is not cached any more; its inode still is.
    fn drop_name(&mut self, slot: Slot) {
        let Some(name) = self.names.remove(slot) else { return };
        self.name_slots.remove(&name.key);
        if let Some((slot, names)) = self.inode_slots.get_mut(&name.inode) {
            *names = names.saturating_sub(1);
            self.inodes.renew(*slot, 0);
        }
    }

    /// The name of a path stands for another file, or none.
    fn rename(&mut self, directory: u64, path: &str, inode: u64) {
        let key: (u64, Box<str>) = (directory, path.rsplit('/').next().unwrap_or_default().into());
        if let Some(slot) = self.name_slots.get(&key).copied() {
            self.drop_name(slot);
        }
        self.add_name(key, inode);
    }

    fn drop_inode(&mut self, inode: u64) {
        if let Some((slot, _)) = self.inode_slots.remove(&inode) {
            self.inodes.remove(slot);
        }
        self.drop_pages(inode, 0);
        self.files.remove(&inode);
    }

    fn drop_pages(&mut self, inode: u64, from: u64) {
        let Some(file) = self.files.get_mut(&inode) else { return };
        for held in file.split_off(&from).into_values() {
            if let Held::Here(slot) = held {
                self.pages.remove(slot);
            }
        }
    }

    /// Whether a page is there.
    fn has(&self, inode: u64, block: u64) -> bool {
        self.files.get(&inode).is_some_and(|file| matches!(file.get(&block), Some(Held::Here(_))))
    }

    /// A page that is there is used (`folio_mark_accessed`).
    fn touch(&mut self, inode: u64, block: u64) {
        let Some(Held::Here(slot)) = self.files.get(&inode).and_then(|file| file.get(&block)).copied() else { return };
        let inactive = self.pages.list(slot) == INACTIVE;
        let Some(page) = self.pages.get_mut(slot) else { return };
        match (page.used, inactive) {
            (false, _) => page.used = true,
            (true, true) => {
                page.used = false;
                self.age += 1;
                self.pages.renew(slot, ACTIVE);
            }
            (true, false) => {}
        }
    }

    /// A page of a file comes in, if it is not there.
    fn add(&mut self, inode: u64, block: u64) -> bool {
        let added = self.insert(inode, block);
        self.counts.pages_added += u64::from(added);
        added
    }

    /// A block of a directory comes in, if it is not there.
    fn add_directory(&mut self, inode: u64, block: u64) {
        let added = self.insert(inode, block);
        self.counts.directory_blocks_added += u64::from(added);
    }

    /// When a page that is there is read, more are fetched.
    fn mark(&mut self, inode: u64, block: u64) {
        if let Some(Held::Here(slot)) = self.files.get(&inode).and_then(|file| file.get(&block)).copied()
            && let Some(page) = self.pages.get_mut(slot)
        {
            page.ahead = true;
        }
    }

    /// Whether a page was marked; it is not any more.
    fn take_mark(&mut self, inode: u64, block: u64) -> bool {
        let Some(Held::Here(slot)) = self.files.get(&inode).and_then(|file| file.get(&block)).copied() else {
            return false;
        };
        self.pages.get_mut(slot).is_some_and(|page| std::mem::take(&mut page.ahead))
    }

    fn insert(&mut self, inode: u64, block: u64) -> bool {
        let before = self.files.get(&inode).and_then(|file| file.get(&block)).copied();
        let list = match before {
            Some(Held::Here(_)) => return false,
            // `workingset_refault`: the distance against what could have been kept.
            Some(Held::Gone(age)) if self.age.saturating_sub(age) <= self.pages.len(ACTIVE) => ACTIVE,
            _ => INACTIVE,
        };
        let slot = self.pages.insert(list, Page { inode, block, used: false, ahead: false });
        self.files.entry(inode).or_default().insert(block, Held::Here(slot));
        self.reclaim();
        true
    }

    fn used_bytes(&self) -> u64 {
        let pages = self.pages.len(INACTIVE) + self.pages.len(ACTIVE);
        pages * BLOCK + self.names.len(0) * self.memory.name_bytes + self.inodes.len(0) * self.memory.inode_bytes
    }

    fn reclaim(&mut self) {
        while self.used_bytes() > self.memory.bytes {
            let pages = self.pages.len(INACTIVE) + self.pages.len(ACTIVE);
            let slabs = self.names.len(0) + self.inodes.len(0);
            if pages == 0 && slabs == 0 {
                return;
            }
            if pages > 0 {
                self.evict_page();
                self.shrink += 2.0 * slabs as f64 / pages as f64;
            } else {
                self.shrink += 1.0;
            }
            while self.shrink >= 1.0 {
                self.shrink -= 1.0;
                self.evict_name();
                self.evict_inode();
            }
        }
    }

    fn evict_page(&mut self) {
        // `inactive_is_low`: the inactive list has at least a part of all, less of much memory.
        let gib = self.memory.bytes >> 30;
        let ratio = if gib > 0 { (10 * gib).isqrt() } else { 1 };
        if self.pages.len(INACTIVE) * ratio < self.pages.len(ACTIVE)
            && let Some(slot) = self.pages.oldest(ACTIVE)
        {
            self.pages.renew(slot, INACTIVE);
        }
        let oldest = self.pages.oldest(INACTIVE).or_else(|| self.pages.oldest(ACTIVE));
        let Some(page) = oldest.and_then(|slot| self.pages.remove(slot)) else { return };
        self.age += 1;
        self.counts.pages_evicted += 1;
        if self.dirty.has(page.inode, page.block) {
            let (_, written) = self.dirty.sync(page.inode);
            self.counts.blocks_written += written.blocks;
        }
        if let Some(file) = self.files.get_mut(&page.inode) {
            file.insert(page.block, Held::Gone(self.age));
            self.gone.push_back((page.inode, page.block));
        }
        // What went longer ago than memory has pages would not have been kept.
        if self.gone.len() as u64 > self.memory.bytes / BLOCK
            && let Some((inode, block)) = self.gone.pop_front()
            && let Some(file) = self.files.get_mut(&inode)
            && let Some(Held::Gone(_)) = file.get(&block)
        {
            file.remove(&block);
        }
    }

    fn evict_name(&mut self) {
        let Some(slot) = self.names.oldest(0) else { return };
        if let Some(name) = self.names.get_mut(slot)
            && std::mem::take(&mut name.used)
        {
            return self.names.renew(slot, 0);
        }
        self.drop_name(slot);
        self.counts.names_evicted += 1;
    }

    fn evict_inode(&mut self) {
        let Some(slot) = self.inodes.oldest(0) else { return };
        let Some(inode) = self.inodes.get_mut(slot).copied() else { return };
        let named = self.inode_slots.get(&inode).is_some_and(|(_, names)| *names > 0);
        // `mapping_shrinkable`: nor does one go of which there are pages, or what is remembered of them.
        let used = self.files.get(&inode).is_some_and(|file| !file.is_empty());
        if named || used {
            return self.inodes.renew(slot, 0);
        }
        let (_, written) = self.dirty.sync(inode);
        self.counts.blocks_written += written.blocks;
        self.drop_inode(inode);
        self.counts.inodes_evicted += 1;
    }

    fn sync(&mut self, step: &mut Step) {
        let (change, written) = self.dirty.sync(step.inode);
        (step.change, step.dirty) = (change, written.blocks);
    }

    fn call(&mut self, step: &mut Step, now_ns: u64) {
        match step.op {
            Some(Op::Read) => self.read(step),
            Some(Op::Mmap) => {
                step.done = step.len.min(step.size.saturating_sub(step.offset));
                self.read(step);
            }
            Some(Op::Getdents) => {
                let blocks = units(step.offset, step.done.div_ceil(ENTRIES_BYTES) * BLOCK, BLOCK);
                for block in blocks {
                    let has = self.has(step.inode, block);
                    (step.hits, step.misses) = (step.hits + u64::from(has), step.misses + u64::from(!has));
                    self.add_directory(step.inode, block);
                    self.touch(step.inode, block);
                }
            }
            Some(Op::Write | Op::Copy) => self.write(step, now_ns),
            Some(Op::Fsync | Op::Fdatasync | Op::Msync) => self.sync(step),
            Some(Op::Sync) => step.dirty = self.dirty.sync_all().blocks,
            Some(Op::Open) if step.kind == Kind::Create => self.made(step),
            Some(Op::Mkdir) => {
                self.made(step);
                self.add_directory(step.inode, 0);
            }
            Some(Op::Symlink | Op::Mknod) => self.made(step),
            Some(Op::Unlink | Op::Rmdir) => {
                self.dirty.changed(step.directory, Change::Names);
                // What a name stood for is remembered as absent.
                self.rename(step.directory, &step.path, 0);
            }
            Some(Op::Rename | Op::Link) => {
                self.dirty.changed(step.inode, Change::New);
                self.dirty.changed(step.directory, Change::Names);
                self.rename(step.directory, &step.path2, step.inode);
            }
            Some(Op::Chmod | Op::Chown | Op::Utimes | Op::Setxattr) => self.dirty.changed(step.inode, Change::Over),
            Some(Op::Truncate | Op::Fallocate) => self.dirty.changed(step.inode, Change::Grown),
            Some(Op::Close) => {
                self.windows.remove(&step.file);
                if self.written.remove(&step.file) {
                    step.dirty = self.dirty.of(step.inode);
                }
            }
            _ => {}
        }
    }

    fn made(&mut self, step: &Step) {
        if self.memory.warm {
            self.seen.insert(step.inode);
        }
        self.rename(step.directory, &step.path, step.inode);
        self.dirty.changed(step.inode, Change::New);
        self.dirty.changed(step.directory, Change::Names);
    }
}

impl Cache for Linux {
    fn apply(&mut self, chain: &mut Chain, now_ns: u64) {
        let Written { blocks, runs } = self.dirty.advance(now_ns);
        self.counts.blocks_written += blocks;
        for step in chain.iter_mut().filter(|step| !step.ignored) {
            match step.kind {
                Kind::Lookup => {
                    step.near = self.has(step.directory, 0);
                    step.cached = self.lookup(step);
                }
                Kind::Cut => self.cut(step),
                Kind::Create | Kind::Call if step.failed => {}
                Kind::Create | Kind::Call => self.call(step, now_ns),
            }
        }
        if let Some(call) = chain.last_mut() {
            (call.back_blocks, call.back_runs) = (blocks, runs);
        }
        self.reclaim();
    }
}

#[cfg(test)]
mod tests;
