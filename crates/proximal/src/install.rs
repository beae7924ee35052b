//! Pointers change here, and only here: what went to the disk is installed, what is discarded is dropped.
//!
//! A change is one transaction of the staging pool: pointers, staged data that are given up, the map of free blocks, and the
//! lists of what only snapshots see.

use crate::Rule;
use crate::engine::{Engine, staged_at};
use crate::format::{DEAD_MAX, Dead, LEAF, Leaf, Pointer, SUPER_KEY, dead_key, encode_dead, leaf_key, range_key};
use crate::table::{GroupKey, Home, Place};
use ashlar_block::{Error, Result};
use ashlar_pool::{Seq, Txn};
use ashlar_units::Blocks;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Blocks whose pointers change in one transaction: as many leaves of 512 bytes fit well.
pub(crate) const BATCH_MAX: usize = 512;

/// Blocks that one transaction gives up at most: whole leaves, as many as fit if each of their blocks lies in an allocation range
/// of its own.
pub const DISCARD_MAX: u64 = 128 * LEAF;

/// Changes of the map of free blocks, by allocation range: blocks, and whether they are in use.
pub(crate) type Ranges = BTreeMap<u64, Vec<(u64, bool)>>;

/// A block of an extent that is on the disk and has no pointer yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    pub extent: u32,
    pub offset: u64,
    /// As the table had it when its data were read, or written.
    pub place: Place,
    pub pointer: Pointer,
}

/// Leaves by extent and number.
type Leaves = BTreeMap<(u32, u64), Leaf>;

/// What a transaction changes, before it is committed.
#[derive(Default)]
struct Change {
    leaves: Leaves,
    /// Blocks that have pointers now.
    installed: BTreeSet<u64>,
    /// Pointers that are gone.
    gone: BTreeMap<u64, Pointer>,
    staged: Vec<(u32, u64)>,
    /// Blocks that a batch under way has claimed are free on the medium, and in memory only when the batch has ended: it may
    /// have written to them for others of its blocks.
    spares_claims: bool,
    touched: BTreeSet<GroupKey>,
}

impl Engine {
    /// Installs the pointers of large writes, durably on the disk by then.
    pub(crate) async fn install_fresh(&self) -> Result<()> {
        let inner = &*self.0;
        let _one = inner.destaging.lock().await;
        self.install_fresh_alone().await
    }

    /// The same for who destages.
    pub(crate) async fn install_fresh_alone(&self) -> Result<()> {
        let inner = &*self.0;
        // What is overwritten on the disk meanwhile must be installed as well: else neither the write that was to be made
        // durable nor a later one is.
        loop {
            let moves = self.fresh();
            if moves.is_empty() {
                return Ok(());
            }
            self.flush_data().await?;
            for part in moves.chunks(BATCH_MAX) {
                self.install_moves(part, &BTreeMap::new()).await?;
            }
            let is_again = |moved: &Move| {
                let now = inner.table.lock().get(inner.group_of(moved.extent, moved.offset), moved.offset);
                now.is_some_and(|now| matches!(now.home, Home::Fresh(_)))
            };
            if !moves.iter().any(is_again) {
                return Ok(());
            }
        }
    }

    /// What large writes have put on the disk, without pointers yet.
    fn fresh(&self) -> Vec<Move> {
        let table = self.0.table.lock();
        let mut moves = Vec::new();
        for key in table.fresh_groups() {
            moves.extend(table.range(key, 0..u64::MAX).filter_map(|(offset, place)| match place.home {
                Home::Fresh(pointer) => Some(Move { extent: key.extent, offset, place, pointer }),
                Home::Staged => None,
            }));
        }
        moves
    }

    /// Flushes the data device, so that pointers to what was written may become durable.
    pub(crate) async fn flush_data(&self) -> Result<()> {
        let inner = &*self.0;
        if inner.keeps(Rule::DataBeforePointers) { inner.data.flush(crate::engine::WRITE).await } else { Ok(()) }
    }

    /// Installs pointers of blocks that are durable on the disk, where nothing has changed since. `claims` are old pointers,
    /// by extent and offset, to whose blocks the batch may have written. Gives the pointers that were not installed.
    pub(crate) async fn install_moves(
        &self,
        moves: &[Move],
        claims: &BTreeMap<(u32, u64), Pointer>,
    ) -> Result<Vec<Pointer>> {
        debug_assert!(moves.len() <= BATCH_MAX);
        let inner = &*self.0;
        let _order = inner.order.write().await;
        let born = inner.record.lock().epoch;
        let mut change = Change::default();
        let mut vain = Vec::new();
        for moved in moves {
            let key = inner.group_of(moved.extent, moved.offset);
            let leaf = self.leaf(&mut change.leaves, moved.extent, moved.offset).await?;
            let slot = &mut leaf.0[(moved.offset % LEAF) as usize];
            let now = inner.table.lock().get(key, moved.offset);
            let unchanged = now.is_some_and(|now| now.version == moved.place.version)
                || !inner.keeps(Rule::MoveUnchanged) && now.is_some_and(|now| now.home == Home::Staged);
            let claimed = claims.contains_key(&(moved.extent, moved.offset));
            let before = *slot;
            if unchanged {
                *slot = Some(Pointer { born, ..moved.pointer });
                change.installed.insert(moved.pointer.at);
                change.staged.push((moved.extent, moved.offset));
            } else {
                vain.push(moved.pointer);
                // The old block may hold other data of this batch by now. What masks the pointer stays.
                if claimed && before == claims.get(&(moved.extent, moved.offset)).copied() {
                    *slot = None;
                }
            }
            if *slot != before
                && let Some(before) = before
            {
                change.gone.insert(before.at, before);
            }
            change.touched.insert(key);
        }
        // Also old blocks that a discard dropped meanwhile.
        change.gone.extend(claims.values().map(|pointer| (pointer.at, *pointer)));
        if !inner.keeps(Rule::RecycleWithPointer) {
            let mut early = Txn::new();
            for (extent, offset) in change.staged.drain(..) {
                inner.extents.discard(&mut early, staged_at(extent, offset), Blocks(1));
            }
            inner.pool.commit(early).await?;
            inner.pool.sync_all().await?;
        }
        self.commit(&change, Txn::new(), |table| {
            for moved in moves {
                let key = inner.group_of(moved.extent, moved.offset);
                if change.installed.contains(&moved.pointer.at) {
                    table.remove(key, moved.offset);
                }
            }
            Vec::new()
        })
        .await?;
        Ok(vain)
    }

    /// Makes blocks of an extent read as zeros and gives up their space.
    pub async fn discard(&self, extent: u32, at: u64, count: Blocks) -> Result<()> {
        let inner = &*self.0;
        self.admit("discard", extent, at, count.0)?;
        let (mut at, end) = (at, at + count.0);
        while let Some(next) = self.next_stored(extent, at..end).await? {
            at = end.min((next / DISCARD_MAX + 1) * DISCARD_MAX);
            let _order = inner.order.write().await;
            self.drop_ranges(Txn::new().deleting(), &[(extent, next..at)]).await?;
        }
        Ok(())
    }

    /// Commits a transaction in which blocks of extents are given up besides. The caller holds the order alone.
    pub(crate) async fn drop_ranges(&self, mut txn: Txn, discards: &[(u32, Range<u64>)]) -> Result<Seq> {
        let inner = &*self.0;
        if discards.iter().map(|(_, part)| part.end.saturating_sub(part.start)).sum::<u64>() > DISCARD_MAX {
            return Err(Error::misuse(format!("a transaction gives up at most {DISCARD_MAX} blocks")));
        }
        let mut change = Change { spares_claims: true, ..Change::default() };
        let mut groups = Vec::new();
        for (extent, part) in discards {
            self.admit("discard", *extent, part.start, part.end.saturating_sub(part.start))?;
            for (offset, pointer) in inner.pointers(&inner.extents, *extent, part.clone()).await? {
                let leaf = self.leaf(&mut change.leaves, *extent, offset).await?;
                leaf.0[(offset % LEAF) as usize] = None;
                change.gone.insert(pointer.at, pointer);
            }
            groups.extend(inner.groups(*extent, part.clone()));
            inner.extents.discard(&mut txn, staged_at(*extent, part.start), Blocks(part.end - part.start));
        }
        change.touched.extend(groups.iter().map(|(key, _)| *key));
        self.commit(&change, txn, |table| {
            let mut stale = Vec::new();
            for (key, part) in &groups {
                let offsets: Vec<u64> = table.range(*key, part.clone()).map(|(offset, _)| offset).collect();
                stale.extend(offsets.into_iter().filter_map(|offset| table.remove(*key, offset)));
            }
            stale
        })
        .await
    }

    async fn leaf<'a>(&self, leaves: &'a mut Leaves, extent: u32, offset: u64) -> Result<&'a mut Leaf> {
        let inner = &*self.0;
        let number = offset / LEAF;
        match leaves.entry((extent, number)) {
            Entry::Occupied(leaf) => Ok(leaf.into_mut()),
            Entry::Vacant(place) => {
                let stored = inner.extents.get(&leaf_key(extent, number)).await?;
                let leaf = stored.map(|stored| Leaf::decode(&stored, inner.capacity())).transpose()?;
                Ok(place.insert(leaf.unwrap_or_default()))
            }
        }
    }

    /// Commits a change. The caller holds the order alone. `forget` changes the table when it is done, and gives pointers that
    /// nobody needs any more.
    async fn commit(
        &self,
        change: &Change,
        mut txn: Txn,
        forget: impl FnOnce(&mut crate::table::Table) -> Vec<Pointer>,
    ) -> Result<Seq> {
        let inner = &*self.0;
        for ((extent, number), leaf) in &change.leaves {
            let key = leaf_key(*extent, *number);
            if leaf.is_empty() {
                inner.extents.delete(&mut txn, &key);
            } else {
                inner.extents.put(&mut txn, &key, leaf.encode());
            }
        }
        for (extent, offset) in &change.staged {
            inner.extents.discard(&mut txn, staged_at(*extent, *offset), Blocks(1));
        }
        let (mut free, mut dead) = (Vec::new(), Vec::new());
        let newest = inner.snapshots.lock().last_key_value().map(|(epoch, _)| *epoch);
        for pointer in change.gone.values().filter(|pointer| !change.installed.contains(&pointer.at)) {
            if newest.is_some_and(|newest| pointer.born <= newest) && inner.keeps(Rule::HoldForSnapshots) {
                dead.push(Dead { at: pointer.at, born: pointer.born });
            } else {
                free.push(pointer.at);
            }
        }
        self.put_dead(&mut txn, newest.unwrap_or(0), &dead);
        let used = change.installed.iter().map(|at| (*at, true));
        let ranges = self.put_ranges(&mut txn, used.chain(free.iter().map(|at| (*at, false)))).await?;
        // Groups may share a counter, which must be odd between.
        let counters: BTreeSet<usize> = change.touched.iter().map(|key| inner.counter_of(*key)).collect();
        let turn = || counters.iter().for_each(|index| _ = inner.moves[*index].fetch_add(1, Ordering::AcqRel));
        turn();
        let committed = inner.pool.commit(txn).await;
        if committed.is_ok() {
            let stale = forget(&mut inner.table.lock());
            if change.spares_claims {
                let space = inner.space.lock();
                free.retain(|at| !space.is_claimed(*at));
            }
            self.freed(ranges, free);
            let mut space = inner.space.lock();
            stale.iter().for_each(|pointer| space.release(pointer.at));
        }
        turn();
        committed
    }

    /// Puts what a snapshot still sees on its dead list.
    pub(crate) fn put_dead(&self, txn: &mut Txn, epoch: u32, dead: &[Dead]) {
        if dead.is_empty() {
            return;
        }
        let inner = &*self.0;
        let mut record = inner.record.lock();
        for part in dead.chunks(DEAD_MAX) {
            inner.space_volume.put(txn, &dead_key(epoch, record.dead), encode_dead(part));
            record.dead += 1;
        }
        inner.space_volume.put(txn, SUPER_KEY, record.encode());
    }

    /// Puts the bits of the allocation ranges that change; gives the changes by range, for when they are committed.
    pub(crate) async fn put_ranges(&self, txn: &mut Txn, changes: impl Iterator<Item = (u64, bool)>) -> Result<Ranges> {
        let inner = &*self.0;
        let shape = self.shape();
        let mut ranges = Ranges::new();
        for (at, used) in changes {
            ranges.entry(at / shape.range.0).or_default().push((at, used));
        }
        for (range, changes) in &ranges {
            let bits = loop {
                self.load(range / shape.area).await?;
                if let Some(bits) = inner.space.lock().changed(*range, changes) {
                    break bits;
                }
            };
            inner.space_volume.put(txn, &range_key(*range), bits);
        }
        Ok(ranges)
    }

    /// Changes of ranges are committed; what they freed may be allocated when they are durable.
    pub(crate) fn freed(&self, ranges: Ranges, free: Vec<u64>) {
        let inner = &*self.0;
        let mut space = inner.space.lock();
        ranges.iter().for_each(|(range, changes)| space.apply(*range, changes));
        if inner.keeps(Rule::FreeAfterCommit) {
            inner.dropped.lock().extend(free);
        } else {
            free.iter().for_each(|at| space.release(*at));
        }
    }
}
