//! Destaging: which blocks, and how they move.

use crate::engine::{DESTAGE, Engine, add, blocks, staged_at};
use crate::format::{Pointer, checksum};
use crate::install::{BATCH_MAX, Move};
use crate::table::{GroupKey, Home, Place};
use crate::{Rule, Victims};
use ashlar_block::{Error, Result};
use ashlar_units::Blocks;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// A block that is to be destaged, as the table had it.
type Victim = (u64, Place);

impl Engine {
    /// Destages everything.
    pub async fn destage(&self) -> Result<()> {
        let _one = self.0.destaging.lock().await;
        self.destage_all().await
    }

    /// Destages when staging is full, as the configuration says.
    pub(crate) async fn destage_some(&self) -> Result<()> {
        let inner = &*self.0;
        let _one = inner.destaging.lock().await;
        match inner.config.victims {
            Victims::All => self.destage_all().await?,
            Victims::Densest => self.destage_to(inner.staged_max * 3 / 4).await?,
        }
        // What was dropped is free from here on.
        self.settle().await
    }

    /// Sees to it that so many blocks can be staged. Destaging begins in the background before staging is full.
    pub(crate) async fn make_room(&self, count: u64) -> Result<()> {
        let inner = &*self.0;
        if count > inner.staged_max {
            let message =
                format!("a write of {count} blocks, and staging has {}: give it a larger device", inner.staged_max);
            return Err(Error::new(ashlar_block::Kind::NoSpace, message));
        }
        loop {
            let staged = inner.table.lock().staged() + count;
            if staged > inner.staged_max {
                self.destage_some().await?;
                continue;
            }
            let early = inner.config.victims == Victims::Densest && staged > inner.staged_max * 7 / 8;
            if early && !inner.busy.swap(true, Ordering::AcqRel) {
                let engine = self.clone();
                drop(inner.env.spawn(async move {
                    // Whoever needs the room meets the same error, and reports it.
                    let _ = engine.destage_some().await;
                    engine.0.busy.store(false, Ordering::Release);
                }));
            }
            return Ok(());
        }
    }

    /// The whole log, by extent and offset, as in the paper.
    async fn destage_all(&self) -> Result<()> {
        let inner = &*self.0;
        let mut next = GroupKey { extent: 0, group: 0 };
        loop {
            let Some(key) = inner.table.lock().next_staged(next) else { return Ok(()) };
            self.destage_group(key, |_| true).await?;
            next = GroupKey { group: key.group + 1, ..key };
        }
    }

    /// The densest groups, until no more than so many blocks are staged. Blocks that were overwritten since they were staged,
    /// or since they were last passed over, stay: they will probably be overwritten again, and each time costs the disk nothing.
    async fn destage_to(&self, goal: u64) -> Result<()> {
        let inner = &*self.0;
        loop {
            let key = {
                let table = inner.table.lock();
                if table.staged() <= goal {
                    return Ok(());
                }
                table.densest()
            };
            let Some(key) = key else { return Ok(()) };
            let hottest =
                inner.table.lock().range(key, 0..u64::MAX).filter(is_staged).map(|(_, place)| place.hits).max();
            if self.destage_group(key, |place| place.hits == 0).await? == 0 && hottest == Some(0) {
                return Ok(()); // all of it was overwritten meanwhile
            }
        }
    }

    /// Destages those blocks of a group that are chosen, and cools the others. Gives how many were chosen.
    async fn destage_group(&self, key: GroupKey, chosen: impl Fn(&Place) -> bool) -> Result<usize> {
        let inner = &*self.0;
        let (victims, others): (Vec<Victim>, Vec<Victim>) = {
            let table = inner.table.lock();
            table.range(key, 0..u64::MAX).filter(is_staged).partition(|(_, place)| chosen(place))
        };
        {
            let mut table = inner.table.lock();
            others.iter().for_each(|(offset, _)| table.cool(key, *offset));
        }
        for batch in victims.chunks(BATCH_MAX) {
            self.destage_batch(key, batch).await?;
        }
        Ok(victims.len())
    }

    async fn destage_batch(&self, key: GroupKey, victims: &[Victim]) -> Result<()> {
        let inner = &*self.0;
        let (Some((first, _)), Some((last, _))) = (victims.first(), victims.last()) else { return Ok(()) };
        let offsets: Vec<u64> = victims.iter().map(|(offset, _)| *offset).collect();
        // From here on the old blocks of these are needed by nobody: staging has what supersedes them, durably.
        if inner.keeps(Rule::StagedBeforeReuse) {
            self.settle().await?;
        }
        let newest = inner.snapshots.lock().last_key_value().map(|(epoch, _)| *epoch);
        let old = inner.pointers(&inner.extents, key.extent, *first..last + 1).await?;
        let wanted: BTreeSet<u64> = offsets.iter().copied().collect();
        let free = |(offset, pointer): &(u64, Pointer)| {
            let held = newest.is_some_and(|newest| pointer.born <= newest) && inner.keeps(Rule::HoldForSnapshots);
            wanted.contains(offset) && !held
        };
        let old: Vec<(u64, Pointer)> = old.into_iter().filter(free).collect();
        let claimed: BTreeSet<u64> = old.iter().map(|(_, pointer)| pointer.at).collect();
        inner.space.lock().claim(claimed.iter().copied());
        let mut placed = Vec::new();
        let done = self.move_batch(key, victims, &offsets, &old, &mut placed).await;
        let mut space = inner.space.lock();
        space.end_claims(claimed.iter().copied());
        let vain: Vec<u64> = match &done {
            Ok(vain) => vain.iter().map(|pointer| pointer.at).collect(),
            Err(_) => placed,
        };
        vain.iter().filter(|at| !claimed.contains(at)).for_each(|at| space.release(*at));
        if done.is_err() {
            // Those that a discard dropped meanwhile are free when that is durable.
            inner.dropped.lock().extend(claimed);
        }
        done.map(drop)
    }

    async fn move_batch(
        &self,
        key: GroupKey,
        victims: &[Victim],
        offsets: &[u64],
        old: &[(u64, Pointer)],
        placed: &mut Vec<u64>,
    ) -> Result<Vec<Pointer>> {
        let inner = &*self.0;
        *placed = self.place(key.extent, offsets, old).await?;
        let mut data: Vec<Bytes> = Vec::with_capacity(offsets.len());
        for run in offsets.chunk_by(|a, b| a + 1 == *b) {
            let read = inner.extents.read(staged_at(key.extent, run[0]), Blocks(run.len() as u64)).await?;
            data.extend(read.iter().flat_map(blocks));
        }
        let moves: Vec<Move> = victims
            .iter()
            .zip(placed.iter().zip(&data))
            .map(|((offset, place), (at, block))| {
                let pointer = Pointer { at: *at, crc: checksum(block), born: 0 };
                Move { extent: key.extent, offset: *offset, place: *place, pointer }
            })
            .collect();
        let runs = self.write_disk(DESTAGE, placed.iter().copied().zip(data).collect()).await?;
        add(&inner.counts.runs, runs);
        self.flush_data().await?;
        let claims: BTreeMap<(u32, u64), Pointer> =
            old.iter().map(|(offset, pointer)| ((key.extent, *offset), *pointer)).collect();
        let vain = self.install_moves(&moves, &claims).await?;
        add(&inner.counts.batches, 1);
        add(&inner.counts.moved, (moves.len() - vain.len()) as u64);
        Ok(vain)
    }
}

fn is_staged((_, place): &Victim) -> bool {
    place.home == Home::Staged
}
