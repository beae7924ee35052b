//! The object lookup table: from the hash of a name to the place of the object.
//!
//! The base part has a page for each bucket, fixed when the store is made. A bucket that overflows goes on in pages of the
//! extensible part, in table regions (the thesis's meta file). Pages are in memory as far as it allows; changed ones stay
//! until a checkpoint has written them. They are written in place, one block each: recovery tells the table again what
//! changed since the last checkpoint, which does no harm where it knew already.

use crate::disk::{Disk, READ};
use crate::format::{Entry, Page};
use ashlar_block::Result;
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

/// Pages of the base part that are read at once.
const RUN: u64 = 32;
/// Bytes that a page takes in memory, about.
pub const PAGE_BYTES: u64 = 6 << 10;

/// Hasher of keys that are spread already, or nearly.
#[derive(Default)]
pub struct Spread(u64);
impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(32) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn write_u128(&mut self, value: u128) {
        self.write_u64((value >> 64) as u64 ^ value as u64);
    }
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}
/// Builds [`Spread`].
pub type BuildSpread = BuildHasherDefault<Spread>;

struct Held {
    page: Page,
    dirty: bool,
    /// A checkpoint is writing what it held.
    writing: bool,
    /// Used since the clock came by.
    used: bool,
}

#[derive(Default)]
struct Cache {
    pages: HashMap<u64, Held, BuildSpread>,
    /// Pages in the order in which the clock looks at them.
    ring: VecDeque<u64>,
    dirty: usize,
}

/// See the module.
pub struct Table {
    cache: Mutex<Cache>,
    pages_max: usize,
    /// Who loads a page: one at a time for each, so that nobody brings an old one back.
    loading: Vec<tokio::sync::Mutex<()>>,
}

/// What a change of the table needs.
pub enum Grown {
    /// It is done; what was there before.
    Done(Option<Entry>),
    /// The bucket is full: call again with the address of a fresh page.
    Full,
}

impl Table {
    /// With this much memory.
    pub fn new(bytes: u64) -> Table {
        let pages_max = (bytes / PAGE_BYTES).max(16) as usize;
        Table { cache: Mutex::default(), pages_max, loading: (0..16).map(|_| tokio::sync::Mutex::default()).collect() }
    }

    /// The first page of the bucket of an object.
    pub fn bucket(disk: &Disk, id: u128) -> Lba {
        let high = (id >> 64) as u64;
        disk.layout.page(((u128::from(high) * u128::from(disk.layout.pages)) >> 64) as u64)
    }

    /// Changed pages take more than half of the memory: a checkpoint should write them.
    pub fn is_crowded(&self) -> bool {
        self.cache.lock().dirty * 2 > self.pages_max
    }

    /// Does something to a page, which is loaded if need be.
    async fn with<T>(&self, disk: &Disk, at: Lba, mut work: impl FnMut(&mut Page) -> (T, bool)) -> Result<T> {
        if let Some(done) = self.cache.lock().with(at, &mut work) {
            return Ok(done);
        }
        let run = self.run(disk, at);
        let _loading = self.loading[(run.start % self.loading.len() as u64) as usize].lock().await;
        // Whatever is absent now stays so while the lock is held.
        let absent: Vec<u64> = {
            let mut cache = self.cache.lock();
            if let Some(done) = cache.with(at, &mut work) {
                return Ok(done);
            }
            run.clone().filter(|page| !cache.pages.contains_key(page)).collect()
        };
        let mut neighbours = Vec::new();
        // Alone, if neighbours cannot be read.
        let whole = disk.read(READ, Lba(run.start), Blocks(run.end - run.start)).await;
        let image = match whole {
            Ok(whole) => {
                let of = |page: u64| whole.slice((page - run.start) as usize * BLOCK_LEN..).slice(..BLOCK_LEN);
                for page in absent.into_iter().filter(|page| *page != at.0) {
                    // A damaged one is told when it is asked for.
                    neighbours
                        .extend(Page::decode(disk.key, disk.store, Lba(page), &of(page)).map(|found| (page, found)));
                }
                of(at.0)
            }
            Err(_) => disk.read(READ, at, Blocks(1)).await?,
        };
        let page = Page::decode(disk.key, disk.store, at, &image)?;
        let mut cache = self.cache.lock();
        neighbours.retain(|(at, _)| !cache.pages.contains_key(at));
        for (at, page) in neighbours {
            cache.make_room(self.pages_max);
            cache.insert(Lba(at), page, false);
        }
        cache.make_room(self.pages_max);
        cache.insert(at, page, true);
        Ok(cache.with(at, &mut work).expect("it was just put there"))
    }

    /// The pages that are read with one: a disk gives a run as soon as a page of it, and the base part is soon in memory.
    fn run(&self, disk: &Disk, at: Lba) -> Range<u64> {
        if !disk.layout.is_base(at) || self.pages_max < 4 * RUN as usize {
            return at.0..at.0 + 1;
        }
        let (first, end) = (disk.layout.page(0).0, disk.layout.page(0).0 + disk.layout.pages);
        let start = first + (at.0 - first) / RUN * RUN;
        start..(start + RUN).min(end)
    }

    /// Where an object is, if that can be said without I/O.
    #[allow(clippy::option_option, reason = "outer: known; inner: there is one")]
    pub fn get_cached(&self, disk: &Disk, id: u128) -> Option<Option<Entry>> {
        let mut at = Some(Table::bucket(disk, id));
        let mut cache = self.cache.lock();
        while let Some(page) = at {
            let (found, link) = cache.with(page, &mut |page: &mut Page| (look(page, id), false))?;
            if found.is_some() {
                return Some(found);
            }
            at = link;
        }
        Some(None)
    }

    /// Where an object is.
    pub async fn get(&self, disk: &Disk, id: u128) -> Result<Option<Entry>> {
        let mut at = Some(Table::bucket(disk, id));
        // A bucket has no more pages than there are blocks: damaged links end.
        let mut steps = disk.layout.capacity;
        while let Some(page) = at.filter(|_| steps > 0) {
            let (found, link) = self.with(disk, page, |page| (look(page, id), false)).await?;
            if found.is_some() {
                return Ok(found);
            }
            (at, steps) = (link, steps - 1);
        }
        Ok(None)
    }

    /// Notes where an object is. A full bucket goes on at `fresh`, a block of a table region that nothing refers to.
    pub async fn set(&self, disk: &Disk, id: u128, entry: Entry, fresh: Option<Lba>) -> Result<Grown> {
        let mut room = None;
        let mut at = Table::bucket(disk, id);
        loop {
            let change = |page: &mut Page| {
                let (link, has_room) = (page.link, page.entries.len() < crate::format::PAGE_ENTRIES);
                if let Some((_, held)) = page.entries.iter_mut().find(|(known, _)| *known == id) {
                    return ((true, Some(std::mem::replace(held, entry)), link, has_room), true);
                }
                // The last page, and no earlier one has room.
                let here = link.is_none() && has_room && room.is_none();
                if here {
                    page.entries.push((id, entry));
                }
                ((here, None, link, has_room), here)
            };
            let (done, before, link, has_room) = self.with(disk, at, change).await?;
            if done {
                return Ok(Grown::Done(before));
            }
            if has_room {
                room.get_or_insert(at);
            }
            let Some(link) = link else { break };
            at = link;
        }
        match (room, fresh) {
            (Some(at), _) => self.with(disk, at, |page| (page.entries.push((id, entry)), true)).await?,
            (None, None) => return Ok(Grown::Full),
            (None, Some(fresh)) => {
                {
                    let mut cache = self.cache.lock();
                    cache.insert(fresh, Page::default(), true);
                    cache.with(fresh, &mut |page: &mut Page| (page.entries.push((id, entry)), true));
                }
                self.with(disk, at, |page| (page.link = Some(fresh), true)).await?;
            }
        }
        Ok(Grown::Done(None))
    }

    /// Forgets an object; tells where it was.
    pub async fn remove(&self, disk: &Disk, id: u128) -> Result<Option<Entry>> {
        let mut at = Some(Table::bucket(disk, id));
        while let Some(page) = at {
            let change = |page: &mut Page| {
                let found = page.entries.iter().position(|(known, _)| *known == id);
                let removed = found.map(|index| page.entries.swap_remove(index).1);
                ((removed, page.link), removed.is_some())
            };
            let (removed, link) = self.with(disk, page, change).await?;
            if removed.is_some() {
                return Ok(removed);
            }
            at = link;
        }
        Ok(None)
    }

    /// All entries of a bucket's page of the base part, and of those behind it.
    pub async fn bucket_entries(&self, disk: &Disk, page: u64) -> Result<Vec<(u128, Entry)>> {
        let mut all = Vec::new();
        let mut at = Some(disk.layout.page(page));
        while let Some(page) = at {
            let (entries, link) = self.with(disk, page, |page| ((page.entries.clone(), page.link), false)).await?;
            all.extend(entries);
            at = link;
        }
        Ok(all)
    }

    /// The pages of a bucket that lie in table regions.
    pub async fn bucket_links(&self, disk: &Disk, page: u64) -> Result<Vec<Lba>> {
        let mut links = Vec::new();
        let mut at = disk.layout.page(page);
        while let Some(link) = self.with(disk, at, |page| (page.link, false)).await? {
            // A bucket has no more pages than there are blocks: damaged links end.
            if links.len() as u64 > disk.layout.capacity {
                break;
            }
            links.push(link);
            at = link;
        }
        Ok(links)
    }

    /// Empties a bucket whose first page cannot be read; what is behind it is let go.
    pub fn wipe(&self, at: Lba) {
        let mut cache = self.cache.lock();
        if !cache.pages.contains_key(&at.0) {
            cache.insert(at, Page::default(), true);
        }
        cache.with(at, &mut |page: &mut Page| (*page = Page::default(), true));
    }

    /// The changed pages as they are now, for a checkpoint. They stay in memory until [`written`](Self::written).
    pub fn freeze(&self, disk: &Disk) -> Vec<(Lba, Bytes)> {
        let mut cache = self.cache.lock();
        let mut frozen: Vec<(Lba, Bytes)> = Vec::with_capacity(cache.dirty);
        for (at, held) in cache.pages.iter_mut().filter(|(_, held)| held.dirty) {
            (held.dirty, held.writing) = (false, true);
            let at = Lba(*at);
            frozen.push((at, held.page.encode(disk.key, disk.store, at)));
        }
        cache.dirty = 0;
        frozen.sort_unstable_by_key(|(at, _)| *at);
        frozen
    }

    /// A checkpoint has written what it froze, or has failed to.
    pub fn written(&self, failed: bool) {
        let mut cache = self.cache.lock();
        let mut again = 0;
        for held in cache.pages.values_mut() {
            if std::mem::take(&mut held.writing) && failed && !held.dirty {
                held.dirty = true;
                again += 1;
            }
        }
        cache.dirty += again;
        cache.make_room(self.pages_max);
    }
}

fn look(page: &Page, id: u128) -> (Option<Entry>, Option<Lba>) {
    (page.entries.iter().find(|(known, _)| *known == id).map(|(_, entry)| *entry), page.link)
}

impl Cache {
    /// Does something to a page that is in memory, and notes whether it changed.
    fn with<T>(&mut self, at: Lba, work: &mut impl FnMut(&mut Page) -> (T, bool)) -> Option<T> {
        let held = self.pages.get_mut(&at.0)?;
        held.used = true;
        let (done, changed) = work(&mut held.page);
        if changed && !held.dirty {
            held.dirty = true;
            self.dirty += 1;
        }
        Some(done)
    }

    fn insert(&mut self, at: Lba, page: Page, used: bool) {
        let before = self.pages.insert(at.0, Held { page, dirty: false, writing: false, used });
        match before {
            None => self.ring.push_back(at.0),
            Some(before) => self.dirty -= usize::from(before.dirty),
        }
    }

    /// Drops pages that were not used lately, until there is room for one more.
    fn make_room(&mut self, pages_max: usize) {
        for _ in 0..2 * self.ring.len() {
            if self.pages.len() < pages_max {
                return;
            }
            let Some(at) = self.ring.pop_front() else { return };
            let Some(held) = self.pages.get_mut(&at) else { continue };
            if held.dirty || held.writing || std::mem::take(&mut held.used) {
                self.ring.push_back(at);
            } else {
                self.pages.remove(&at);
            }
        }
    }
}
