//! Small writes, alone or in a transaction with other things of the staging pool; and what is stored at all.

use crate::Rule;
use crate::engine::{Engine, add, join, staged_at};
use crate::format::{LEAF, leaf_key, leaf_of};
use crate::table::{Home, Place};
use ashlar_block::{Kind, Result, ResultExt};
use ashlar_pool::{Pool, Seq, Txn};
use ashlar_units::BLOCK_LEN;
use bytes::Bytes;
use std::ops::Range;

impl Engine {
    pub(crate) async fn stage(&self, extent: u32, at: u64, pieces: Vec<Bytes>) -> Result<()> {
        self.change(Txn::new(), &[(extent, at, join(pieces))], &[]).await.map(drop)
    }

    /// A transaction of the staging pool with small writes and discards of extents in it: all of it or nothing survives a
    /// crash. Nothing is written that is discarded. It is durable when the pool is synced up to what this gives.
    ///
    /// # Errors
    /// `NoSpace` if staging is full and cannot be made empty; `Misuse` outside an extent, or if all discards are of more than
    /// [`DISCARD_MAX`](crate::DISCARD_MAX) blocks.
    pub async fn change(&self, txn: Txn, writes: &[(u32, u64, Bytes)], discards: &[(u32, Range<u64>)]) -> Result<Seq> {
        let inner = &*self.0;
        let blocks = |data: &Bytes| (data.len() / BLOCK_LEN) as u64;
        writes.iter().try_for_each(|(extent, at, data)| self.admit("write", *extent, *at, blocks(data)))?;
        let count = writes.iter().map(|(.., data)| blocks(data)).sum();
        let mut tries = 0;
        loop {
            self.make_room(count).await?;
            {
                let mut txn = txn.clone();
                for (extent, at, data) in writes {
                    inner.extents.write(&mut txn, staged_at(*extent, *at), data);
                }
                let noted =
                    || writes.iter().for_each(|(extent, at, data)| self.note_staged(*extent, *at, blocks(data)));
                let committed = if discards.is_empty() {
                    // Held until the table knows of the write, so that no pointer changes between the two.
                    let _order = inner.order.read().await;
                    inner.pool.commit(txn).await.inspect(|_| noted())
                } else {
                    let _order = inner.order.write().await;
                    self.drop_ranges(txn, discards).await.inspect(|_| noted())
                };
                match committed {
                    // The pool is fuller than the table, with what it has not cleaned yet: destage more.
                    Err(error) if error.kind() == Kind::NoSpace && tries < 8 => tries += 1,
                    committed => return committed.within(|| "staging".into()),
                }
            }
            self.destage_some().await?;
        }
    }

    fn note_staged(&self, extent: u32, at: u64, count: u64) {
        let inner = &*self.0;
        let mut stale = Vec::new();
        let mut table = inner.table.lock();
        for offset in at..at + count {
            let key = inner.group_of(extent, offset);
            if let Some(Place { home: Home::Staged, .. }) = table.get(key, offset) {
                add(&inner.counts.absorbed, 1);
            }
            stale.extend(table.insert(key, offset, Home::Staged));
        }
        drop(table);
        let mut space = inner.space.lock();
        stale.iter().for_each(|pointer| space.release(pointer.at));
    }

    /// Gives pointers to what large writes have put on the disk, so that a change that comes later in the staging pool is not
    /// durable without them.
    pub async fn install(&self) -> Result<()> {
        if self.0.keeps(Rule::FlushDirect) { self.install_fresh().await } else { Ok(()) }
    }

    /// The pool on the staging device, for those who keep names there.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// Runs of blocks of an extent that hold something, on the disk or in staging.
    pub async fn stored(&self, extent: u32) -> Result<Vec<Range<u64>>> {
        let length = self.length(extent)?.0;
        let (mut runs, mut at): (Vec<Range<u64>>, u64) = (Vec::new(), 0);
        while let Some(next) = self.next_stored(extent, at..length).await? {
            let end = length.min((next / LEAF + 1) * LEAF);
            for (offset, hole) in (next..).zip(self.holes(extent, next..end).await?) {
                match runs.last_mut() {
                    _ if hole => {}
                    Some(last) if last.end == offset => last.end += 1,
                    _ => runs.push(offset..offset + 1),
                }
            }
            at = end;
        }
        Ok(runs)
    }

    /// The first block of a range, or one of the same leaf before it, from which on something may be stored.
    pub(crate) async fn next_stored(&self, extent: u32, range: Range<u64>) -> Result<Option<u64>> {
        let inner = &*self.0;
        if range.is_empty() {
            return Ok(None);
        }
        let (low, high) = (leaf_key(extent, range.start / LEAF), leaf_key(extent, (range.end - 1) / LEAF + 1));
        let mut low = low.to_vec();
        let pointed = loop {
            let page = inner.extents.page(&low, Some(&high), 1).await?;
            match (page.entries.first(), page.next) {
                (Some((key, _)), _) => break Some((leaf_of(key)? * LEAF).max(range.start)),
                (None, Some(next)) => low = next.to_vec(),
                (None, None) => break None,
            }
        };
        let waiting = inner.table.lock().next_in(inner.group_of(extent, range.start), range.start);
        let waiting = waiting.filter(|(at, offset)| *at == extent && *offset < range.end).map(|(_, offset)| offset);
        Ok([pointed, waiting].into_iter().flatten().min())
    }
}
