//! The open store: extents, reads, writes.

use crate::format::{
    EXTENT_BLOCKS_MAX, EXTENT_MAX, LEAF, Leaf, Pointer, Super, checksum, decode_extent, encode_extent, extent_key,
    extent_of, leaf_key, leaf_of,
};
use crate::space::Space;
use crate::table::{GroupKey, Home, Table};
use crate::{Config, Rule};
use ashlar_block::{Device, Durability, Error, IoContext, Kind, Result, ResultExt, blocks_of, runs_of, strand};
use ashlar_env::{BoxFuture, Env};
use ashlar_pool::{Pool, Txn, Volume};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) const READ: IoContext = IoContext::foreground("proximal-read");
pub(crate) const WRITE: IoContext = IoContext::foreground("proximal-write");
pub(crate) const DESTAGE: IoContext = IoContext::background("proximal-destage");

/// Reads that run beside changes of pointers before one of them makes these wait.
const ATTEMPTS: usize = 3;
/// Counters of changed groups; groups share them by their numbers.
const MOVES: usize = 256;
/// Blocks of large writes that wait for their pointers: 16 MiB.
const FRESH_MAX: u64 = 4096;
/// Blocks behind the one before that are still read with it: 64 KiB pass under the head faster than another request begins.
const GAP_MAX: u64 = 16;
/// Entries of a page of the index.
pub(crate) const PAGE: usize = 1024;

/// What the engine did since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Blocks that are staged now.
    pub staged: u64,
    /// Most that may be.
    pub staged_max: u64,
    /// Batches destaged.
    pub batches: u64,
    /// Blocks destaged.
    pub moved: u64,
    /// Writes to the disk by destaging, neighbours together.
    pub runs: u64,
    /// Blocks overwritten while they were staged: updates that never cost the disk anything.
    pub absorbed: u64,
    /// Allocation ranges looked at.
    pub probes: u64,
    /// Blocks for which no place was found near their neighbours.
    pub far: u64,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub batches: AtomicU64,
    pub moved: AtomicU64,
    pub runs: AtomicU64,
    pub absorbed: AtomicU64,
    pub probes: AtomicU64,
    pub far: AtomicU64,
}

pub(crate) fn add(count: &AtomicU64, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}

/// An open store. Cheap to clone.
#[derive(Clone)]
pub struct Engine(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub env: Env,
    pub config: Config,
    pub data: Device,
    /// Both devices outlive the process.
    pub persistent: bool,
    pub pool: Pool,
    pub extents: Volume,
    pub space_volume: Volume,
    /// The record of the whole, as the last committed transaction has it.
    pub record: Mutex<Super>,
    pub table: Mutex<Table>,
    pub space: Mutex<Space>,
    pub lengths: Mutex<BTreeMap<u32, Blocks>>,
    /// Snapshots by the epoch that they ended.
    pub snapshots: Mutex<BTreeMap<u32, String>>,
    /// Blocks that a committed transaction dropped, until that is durable.
    pub dropped: Mutex<Vec<u64>>,
    /// Small writes share it; who changes pointers has it alone. It is held across operations of the pool, and never across
    /// one of the disk.
    pub order: tokio::sync::RwLock<()>,
    /// One at a time destages, or installs pointers of large writes.
    pub destaging: tokio::sync::Mutex<()>,
    /// One at a time brings an area into memory.
    pub loading: tokio::sync::Mutex<()>,
    /// A task destages in the background.
    pub busy: AtomicBool,
    /// Raised before and after pointers of a group change: odd meanwhile.
    pub moves: Vec<AtomicU64>,
    pub staged_max: u64,
    pub counts: Counts,
}

/// Which extents are read: the live ones, or as a snapshot has them.
enum View<'a> {
    Live,
    Snapshot(&'a Volume),
}

/// Why a read must be tried again.
enum Outcome {
    Done(Bytes),
    Again,
    /// This block is not what its pointer says, and nothing has changed meanwhile.
    Wrong(u64, Pointer),
}

/// First block of an extent in the block space of the staging volume.
pub(crate) fn staged_at(extent: u32, offset: u64) -> Lba {
    Lba(u64::from(extent) << 32 | offset)
}

impl Inner {
    pub fn keeps(&self, rule: Rule) -> bool {
        self.config.without != Some(rule)
    }
    pub fn capacity(&self) -> Blocks {
        self.record.lock().capacity
    }
    pub fn group_of(&self, extent: u32, offset: u64) -> GroupKey {
        GroupKey { extent, group: offset / self.group_blocks() }
    }
    pub fn group_blocks(&self) -> u64 {
        self.record.lock().shape.group.0
    }
    pub fn counter_of(&self, key: GroupKey) -> usize {
        (u64::from(key.extent).wrapping_mul(31).wrapping_add(key.group) % MOVES as u64) as usize
    }
    pub fn new_counters() -> Vec<AtomicU64> {
        (0..MOVES).map(|_| AtomicU64::new(0)).collect()
    }

    /// The groups of a range of an extent, with their parts of it.
    pub fn groups(&self, extent: u32, range: Range<u64>) -> impl Iterator<Item = (GroupKey, Range<u64>)> + use<> {
        let group = self.group_blocks();
        (range.start / group..range.end.div_ceil(group)).map(move |number| {
            let part = range.start.max(number * group)..range.end.min((number + 1) * group);
            (GroupKey { extent, group: number }, part)
        })
    }

    /// Places of the staging table in a range, and the counters of its groups.
    fn seen(&self, extent: u32, range: &Range<u64>) -> (BTreeMap<u64, crate::table::Place>, Vec<u64>) {
        let table = self.table.lock();
        let mut places = BTreeMap::new();
        let mut counters = Vec::new();
        for (key, part) in self.groups(extent, range.clone()) {
            counters.push(self.moves[self.counter_of(key)].load(Ordering::Acquire));
            places.extend(table.range(key, part));
        }
        (places, counters)
    }

    /// Pointers of a range of an extent, by offset, from one of the volumes of the pool.
    pub async fn pointers(&self, volume: &Volume, extent: u32, range: Range<u64>) -> Result<BTreeMap<u64, Pointer>> {
        let mut found = BTreeMap::new();
        if range.is_empty() {
            return Ok(found);
        }
        let capacity = self.capacity();
        let mut add = |number: u64, value: &[u8]| -> Result<()> {
            let leaf = Leaf::decode(value, capacity).within(|| format!("extent {extent}, leaf {number}"))?;
            let offsets = number * LEAF..;
            let pointers = offsets.zip(leaf.0).filter_map(|(offset, pointer)| Some((offset, pointer?)));
            found.extend(pointers.filter(|(offset, _)| range.contains(offset)));
            Ok(())
        };
        let (first, last) = (range.start / LEAF, (range.end - 1) / LEAF);
        if first == last {
            if let Some(value) = volume.get(&leaf_key(extent, first)).await? {
                add(first, &value)?;
            }
            return Ok(found);
        }
        let (mut low, high) =
            (leaf_key(extent, first).to_vec(), leaf_key(extent, last).iter().copied().chain([0]).collect::<Vec<_>>());
        loop {
            let page = volume.page(&low, Some(&high), PAGE).await?;
            for (key, value) in &page.entries {
                add(leaf_of(key)?, value)?;
            }
            match page.next {
                Some(next) => low = next.to_vec(),
                None => return Ok(found),
            }
        }
    }

    async fn read_once(&self, view: &View<'_>, extent: u32, range: &Range<u64>) -> Result<Outcome> {
        let count = range.end - range.start;
        let mut buffer = BytesMut::zeroed((count as usize) * BLOCK_LEN);
        let place = |at: u64| (at - range.start) as usize * BLOCK_LEN;
        let (seen, counters) = self.seen(extent, range);
        let volume = match view {
            View::Live => &self.extents,
            View::Snapshot(volume) => volume,
        };
        let mut staged: Vec<Range<u64>> = Vec::new();
        let mut pointers = self.pointers(volume, extent, range.clone()).await?;
        match view {
            View::Live if counters.iter().any(|count| count % 2 == 1) => return Ok(Outcome::Again),
            View::Live => {
                for (offset, place) in &seen {
                    match place.home {
                        Home::Fresh(pointer) => _ = pointers.insert(*offset, pointer),
                        Home::Staged => {
                            pointers.remove(offset);
                            match staged.last_mut() {
                                Some(last) if last.end == *offset => last.end += 1,
                                _ => staged.push(*offset..offset + 1),
                            }
                        }
                    }
                }
            }
            View::Snapshot(volume) => {
                for (at, run) in volume.runs(staged_at(extent, range.start), Blocks(count)).await? {
                    let offset = at.0 & u64::from(u32::MAX);
                    staged.push(offset..offset + u64::from(run.count));
                }
                pointers.retain(|offset, _| !staged.iter().any(|run| run.contains(offset)));
            }
        }
        for run in staged {
            let mut at = place(run.start);
            for piece in volume.read(staged_at(extent, run.start), Blocks(run.end - run.start)).await? {
                buffer[at..at + piece.len()].copy_from_slice(&piece);
                at += piece.len();
            }
        }
        let mut wrong = None;
        for (offset, data) in self.read_disk(&pointers).await? {
            let Some(pointer) = pointers.get(&offset) else { continue };
            if checksum(&data) != pointer.crc {
                wrong.get_or_insert((offset, *pointer));
            }
            buffer[place(offset)..place(offset + 1)].copy_from_slice(&data);
        }
        if let View::Live = view {
            let (now, counters_now) = self.seen(extent, range);
            let versions = |places: &BTreeMap<u64, crate::table::Place>| {
                places.iter().map(|(offset, place)| (*offset, place.version)).collect::<Vec<_>>()
            };
            if counters != counters_now || wrong.is_some() && versions(&seen) != versions(&now) {
                return Ok(Outcome::Again);
            }
        }
        Ok(match wrong {
            Some((offset, pointer)) => Outcome::Wrong(offset, pointer),
            None => Outcome::Done(buffer.freeze()),
        })
    }

    /// Reads blocks from the disk in ascending order, what lies together with one request, and small gaps with it. Gives
    /// offsets with their data.
    pub async fn read_disk(&self, pointers: &BTreeMap<u64, Pointer>) -> Result<Vec<(u64, Bytes)>> {
        let mut blocks: Vec<(u64, u64)> = pointers.iter().map(|(offset, pointer)| (pointer.at, *offset)).collect();
        blocks.sort_unstable();
        let runs: Vec<Vec<(u64, u64)>> = blocks.chunk_by(|a, b| b.0 - a.0 <= GAP_MAX).map(<[_]>::to_vec).collect();
        let reads = runs.into_iter().map(|run| -> BoxFuture<'_, _> { Box::pin(self.read_run(run)) });
        Ok(strand(self.config.outstanding, reads).await?.into_iter().flatten().collect())
    }

    /// Reads blocks of the disk, ascending places with their offsets, with one request; if that fails, with one for each.
    async fn read_run(&self, run: Vec<(u64, u64)>) -> Result<Vec<(u64, Bytes)>> {
        let (Some((first, _)), Some((last, _))) = (run.first(), run.last()) else { return Ok(Vec::new()) };
        let slice = |data: &Bytes, at: u64| {
            let from = (at - first) as usize * BLOCK_LEN;
            data.slice(from..from + BLOCK_LEN)
        };
        match self.data.read(READ, Lba(*first), Blocks(last - first + 1)).await {
            Ok(data) => return Ok(run.iter().map(|(at, offset)| (*offset, slice(&data, *at))).collect()),
            Err(error) if run.len() as u64 == last - first + 1 => return Err(error),
            // What cannot be read may be a gap, which nobody asked for.
            Err(_) => {}
        }
        let mut found = Vec::with_capacity(run.len());
        for (at, offset) in &run {
            found.push((*offset, self.data.read(READ, Lba(*at), Blocks(1)).await?));
        }
        Ok(found)
    }

    async fn read(&self, view: View<'_>, extent: u32, at: u64, count: Blocks) -> Result<Bytes> {
        let range = at..at + count.0;
        let mut attempt = 0;
        loop {
            // Pointers do not change while this one holds their order; staged data may still come.
            let order = if attempt < ATTEMPTS { None } else { Some(self.order.read().await) };
            match self.read_once(&view, extent, &range).await? {
                Outcome::Done(data) => return Ok(data),
                Outcome::Wrong(offset, pointer) if order.is_some() || matches!(view, View::Snapshot(_)) => {
                    let message = format!(
                        "extent {extent}, block {offset}: block {} of {} is not what was written there; restore it from a copy",
                        pointer.at,
                        self.data.name()
                    );
                    return Err(Error::corrupt(message));
                }
                Outcome::Again | Outcome::Wrong(..) => {}
            }
            drop(order);
            attempt += 1;
            self.env.yield_now().await;
        }
    }
}

impl Engine {
    /// What the engine did.
    pub fn status(&self) -> Status {
        let inner = &*self.0;
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &inner.counts;
        Status {
            staged: inner.table.lock().staged(),
            staged_max: inner.staged_max,
            batches: get(&counts.batches),
            moved: get(&counts.moved),
            runs: get(&counts.runs),
            absorbed: get(&counts.absorbed),
            probes: get(&counts.probes),
            far: get(&counts.far),
        }
    }

    /// Where neighbours are.
    pub fn shape(&self) -> crate::Shape {
        self.0.record.lock().shape
    }
    /// Blocks of the data device.
    pub fn capacity(&self) -> Blocks {
        self.0.capacity()
    }
    /// Extents by number, with their lengths.
    pub fn extents(&self) -> BTreeMap<u32, Blocks> {
        self.0.lengths.lock().clone()
    }

    /// Whether there is an extent of this number.
    pub fn has_extent(&self, extent: u32) -> bool {
        self.0.lengths.lock().contains_key(&extent)
    }
    /// Writes of more go straight to the disk.
    pub fn small_max(&self) -> Size {
        self.0.config.small_max
    }

    /// Makes an extent of zeros, which takes no space.
    pub async fn create_extent(&self, extent: u32, length: Blocks) -> Result<()> {
        let inner = &*self.0;
        if extent >= EXTENT_MAX || length > EXTENT_BLOCKS_MAX {
            let message =
                format!("extent {extent} of {length}: numbers are below {EXTENT_MAX}, lengths at most 16 TiB");
            return Err(Error::misuse(message));
        }
        let _order = inner.order.write().await;
        if inner.lengths.lock().contains_key(&extent) {
            return Err(Error::misuse(format!("there is an extent {extent} already")));
        }
        let mut txn = Txn::new();
        inner.extents.put(&mut txn, &extent_key(extent), encode_extent(length));
        inner.pool.commit(txn).await?;
        inner.lengths.lock().insert(extent, length);
        Ok(())
    }

    /// Deletes an extent and frees its space; snapshots keep theirs.
    pub async fn delete_extent(&self, extent: u32) -> Result<()> {
        let length = self.length(extent)?;
        self.discard(extent, 0, length).await?;
        let inner = &*self.0;
        let _order = inner.order.write().await;
        let mut txn = Txn::new().deleting();
        inner.extents.delete(&mut txn, &extent_key(extent));
        inner.pool.commit(txn).await?;
        inner.lengths.lock().remove(&extent);
        Ok(())
    }

    pub(crate) fn length(&self, extent: u32) -> Result<Blocks> {
        let length = self.0.lengths.lock().get(&extent).copied();
        length.ok_or_else(|| Error::misuse(format!("there is no extent {extent}")))
    }

    pub(crate) fn admit(&self, what: &str, extent: u32, at: u64, count: u64) -> Result<()> {
        let length = self.length(extent)?.0;
        if at.checked_add(count).is_none_or(|end| end > length) {
            let message =
                format!("{what} of {count} blocks at {at} passes the end of extent {extent} ({length} blocks)");
            return Err(Error::misuse(message));
        }
        Ok(())
    }

    /// Reads blocks of an extent; what was never written is zeros.
    pub async fn read(&self, extent: u32, at: u64, count: Blocks) -> Result<Bytes> {
        self.admit("read", extent, at, count.0)?;
        self.0.read(View::Live, extent, at, count).await
    }

    /// Reads an extent as a snapshot has it; beyond its end then are zeros.
    pub async fn read_snapshot(&self, snapshot: &str, extent: u32, at: u64, count: Blocks) -> Result<Bytes> {
        if at.checked_add(count.0).is_none_or(|end| end > EXTENT_BLOCKS_MAX.0) || extent >= EXTENT_MAX {
            return Err(Error::misuse(format!("no extent {extent} has {count} at {at}")));
        }
        let volume = self.0.pool.volume(&crate::snapshots::full_name(snapshot));
        let volume = volume.ok_or_else(|| Error::misuse(format!("there is no snapshot {snapshot:?}")))?;
        self.0.read(View::Snapshot(&volume), extent, at, count).await
    }

    /// Which blocks of a range hold nothing.
    pub(crate) async fn holes(&self, extent: u32, range: Range<u64>) -> Result<Vec<bool>> {
        let inner = &*self.0;
        // Pointers do not change meanwhile.
        let _order = inner.order.read().await;
        let pointers = inner.pointers(&inner.extents, extent, range.clone()).await?;
        let (places, _) = inner.seen(extent, &range);
        Ok(range.map(|offset| !pointers.contains_key(&offset) && !places.contains_key(&offset)).collect())
    }

    /// Writes blocks of an extent: a small write to staging, a large one to the disk.
    pub async fn write(&self, extent: u32, at: u64, pieces: Vec<Bytes>) -> Result<()> {
        let count = blocks_of(&pieces);
        self.admit("write", extent, at, count.0)?;
        if count == Blocks(0) {
            return Ok(());
        }
        if count.to_bytes() > self.0.config.small_max {
            self.write_direct(extent, at, pieces).await
        } else {
            self.stage(extent, at, pieces).await
        }
    }

    async fn write_direct(&self, extent: u32, at: u64, pieces: Vec<Bytes>) -> Result<()> {
        let inner = &*self.0;
        let data = join(pieces);
        let offsets: Vec<u64> = (at..at + (data.len() / BLOCK_LEN) as u64).collect();
        let places = match self.place(extent, &offsets, &[]).await {
            // What large writes superseded is free when their pointers are in.
            Err(error) if error.kind() == Kind::NoSpace && inner.table.lock().fresh() > 0 => {
                self.install_fresh().await?;
                self.settle().await?;
                self.place(extent, &offsets, &[]).await?
            }
            placed => placed?,
        };
        let blocks: Vec<(u64, Bytes)> = places.iter().copied().zip(blocks(&data)).collect();
        let written = self.write_disk(WRITE, blocks).await;
        if written.is_err() {
            let mut space = inner.space.lock();
            places.iter().for_each(|at| space.release(*at));
        }
        written?;
        {
            let _order = inner.order.read().await;
            let mut stale = Vec::new();
            let mut table = inner.table.lock();
            for ((offset, at), block) in offsets.iter().zip(&places).zip(data.chunks_exact(BLOCK_LEN)) {
                let pointer = Pointer { at: *at, crc: checksum(block), born: 0 };
                stale.extend(table.insert(inner.group_of(extent, *offset), *offset, Home::Fresh(pointer)));
            }
            drop(table);
            let mut space = inner.space.lock();
            stale.iter().for_each(|pointer| space.release(pointer.at));
        }
        if inner.table.lock().fresh() > FRESH_MAX { self.install_fresh().await } else { Ok(()) }
    }

    /// Writes blocks to the disk as one strand, neighbours together. Gives the number of runs.
    pub(crate) async fn write_disk(&self, context: IoContext, blocks: Vec<(u64, Bytes)>) -> Result<u64> {
        let runs = runs_of(blocks.into_iter().map(|(at, block)| (Lba(at), block)).collect());
        let count = runs.len() as u64;
        let inner = &*self.0;
        inner.data.write_strand(context, runs, inner.config.outstanding, Durability::Cached).await?;
        Ok(count)
    }

    /// Makes every write that returned durable.
    pub async fn flush(&self) -> Result<()> {
        let inner = &*self.0;
        if inner.keeps(Rule::FlushDirect) {
            self.install_fresh().await?;
        }
        if inner.keeps(Rule::FlushStaging) { self.settle().await } else { Ok(()) }
    }

    /// Makes the pool durable, and free what it has dropped.
    pub(crate) async fn settle(&self) -> Result<()> {
        let inner = &*self.0;
        let dropped = std::mem::take(&mut *inner.dropped.lock());
        let synced = inner.pool.sync_all().await;
        if synced.is_err() {
            inner.dropped.lock().extend(dropped);
            return synced;
        }
        let mut space = inner.space.lock();
        dropped.into_iter().for_each(|at| space.release(at));
        Ok(())
    }

    /// Installs all pointers, makes everything durable, and closes the pool.
    pub async fn close(self) -> Result<()> {
        self.flush().await?;
        self.0.pool.clone().close().await
    }
}

/// One buffer of several.
pub(crate) fn join(mut pieces: Vec<Bytes>) -> Bytes {
    if pieces.len() == 1 {
        return pieces.remove(0);
    }
    let mut data = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.iter().for_each(|piece| data.extend_from_slice(piece));
    data.freeze()
}

/// The blocks of a buffer.
pub(crate) fn blocks(data: &Bytes) -> impl Iterator<Item = Bytes> + '_ {
    (0..data.len() / BLOCK_LEN).map(|index| data.slice(index * BLOCK_LEN..(index + 1) * BLOCK_LEN))
}

/// The extents of a volume of the pool.
pub(crate) async fn list_extents(volume: &Volume) -> Result<BTreeMap<u32, Blocks>> {
    let (mut low, high) = (b"x".to_vec(), b"y".to_vec());
    let mut found = BTreeMap::new();
    loop {
        let page = volume.page(&low, Some(&high), PAGE).await?;
        for (key, value) in &page.entries {
            found.insert(extent_of(key)?, decode_extent(value)?);
        }
        match page.next {
            Some(next) => low = next.to_vec(),
            None => return Ok(found),
        }
    }
}
