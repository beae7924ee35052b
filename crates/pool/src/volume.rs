//! A volume: a sparse block space and a dictionary.

use crate::commit::{Applied, Txn};
use crate::map::{
    BACK_PREFIX, CHUNK_BLOCKS, Form, MAP_PREFIX, Map, Pile, Run, back_key, chunk_key, chunk_start, decode,
    decode_within,
};
use crate::store::pad;
use crate::volumes::KEYS_END;
use crate::{Pool, Seq};
use ashlar_block::{Error, Result, ResultExt};
use ashlar_index::{Key, Page, Tree};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An open volume.
#[derive(Clone)]
pub struct Volume {
    pub(crate) pool: Pool,
    pub(crate) tree: Arc<Tree<Map>>,
    /// See [`Volume::telling`].
    pub(crate) told: Option<Told>,
}

/// Is told how many keys a page had.
pub(crate) type Told = Arc<dyn Fn(usize) + Send + Sync>;

/// A dictionary key: any bytes that do not begin with [`MAP_PREFIX`] or [`BACK_PREFIX`].
pub(crate) fn check_key(key: &[u8]) {
    debug_assert!(!matches!(key.first(), Some(&MAP_PREFIX | &BACK_PREFIX)) && key.len() <= ashlar_index::KEY_LEN_MAX);
}

impl Volume {
    /// Number of the volume.
    pub fn id(&self) -> u64 {
        self.tree.id()
    }
    /// The pool that holds it.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The same volume; `told` hears of each page of the dictionary that is read by what is returned how many keys it has: how far
    /// somebody has come who goes through all of them.
    pub fn telling(self, told: impl Fn(usize) + Send + Sync + 'static) -> Volume {
        Volume { told: Some(Arc::new(told)), ..self }
    }

    /// Value of a key of the dictionary.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        check_key(key);
        if let Some(value) = self.tree.get_cached(&self.pool, key) {
            return Ok(value);
        }
        let _pin = self.pool.0.pin();
        self.tree.get(&self.pool, key).await
    }
    /// Part of a range of the dictionary.
    pub async fn page(&self, low: &[u8], high: Option<&[u8]>, limit: usize) -> Result<Page> {
        let _pin = self.pool.0.pin();
        let page = self.tree.page(&self.pool, low, high, limit).await?;
        self.told.iter().for_each(|told| told(page.entries.len()));
        Ok(page)
    }
    /// About so many entries at the beginning of a range of the dictionary, in order: none only if there are none.
    pub async fn first(&self, low: &[u8], high: &[u8], limit: usize) -> Result<Vec<(Key, Bytes)>> {
        let mut low = Key::from_slice(low);
        loop {
            if low.as_slice() >= high {
                return Ok(Vec::new());
            }
            let page = self.page(&low, Some(high), limit).await?;
            match page.next {
                Some(next) if page.entries.is_empty() => low = next,
                _ => return Ok(page.entries),
            }
        }
    }
    /// Whether it holds nothing: no key and no block.
    pub async fn is_empty(&self) -> Result<bool> {
        Ok(self.first(&[], &KEYS_END, 1).await?.is_empty())
    }
    /// Sets a key in `txn`.
    pub fn put(&self, txn: &mut Txn, key: &[u8], value: impl Into<Bytes>) {
        check_key(key);
        txn.put(self.id(), Key::from_slice(key), value.into());
    }
    /// Overlays the value of a key that takes patches (see [`crate::patches`]) in `txn`, without reading it.
    pub fn overlay(&self, txn: &mut Txn, key: &[u8], patch: impl Into<Bytes>) {
        check_key(key);
        let patch = patch.into();
        debug_assert!(matches!(crate::patches::check(key, &patch), Ok(true)), "a patch of its key's kind");
        txn.overlay(self.id(), Key::from_slice(key), patch);
    }
    /// Deletes a key in `txn`.
    pub fn delete(&self, txn: &mut Txn, key: &[u8]) {
        check_key(key);
        txn.delete(self.id(), Key::from_slice(key));
    }
    /// Deletes the keys in `low..high` in `txn`.
    pub fn delete_range(&self, txn: &mut Txn, low: &[u8], high: &[u8]) {
        check_key(low);
        txn.delete_range(self.id(), Key::from_slice(low), Key::from_slice(high));
    }

    /// Stores data from `at` on, in `txn`. The last block may be short: the rest of it is zeros.
    pub fn write(&self, txn: &mut Txn, at: Lba, data: &Bytes) {
        let shared = &self.pool.0;
        txn.write(self.id(), at.0, data, |part| shared.packers.pack(part, shared.config.compression));
    }

    /// Makes a range read as zeros and gives up its space, in `txn`.
    pub fn discard(&self, txn: &mut Txn, at: Lba, count: Blocks) {
        let (start, end) = (at.0, at.0.saturating_add(count.0));
        let (first, last) = (start.div_ceil(CHUNK_BLOCKS), end / CHUNK_BLOCKS);
        let mut hole = |from: u64, to: u64| {
            if from < to {
                let run = Run::hole((from % CHUNK_BLOCKS) as u8, (to - from) as u8);
                txn.patch(self.id(), chunk_key(from), vec![run]);
            }
        };
        if first > last {
            return hole(start, end); // within one chunk
        }
        hole(start, first * CHUNK_BLOCKS);
        hole(last * CHUNK_BLOCKS, end);
        if first < last {
            // A few chunks are cheaper to delete one by one: no range delete has to sink through the tree for them.
            const FEW: u64 = 8;
            if last - first <= FEW {
                (first..last).for_each(|chunk| txn.delete(self.id(), chunk_key(chunk * CHUNK_BLOCKS)));
            } else {
                txn.delete_range(self.id(), chunk_key(first * CHUNK_BLOCKS), chunk_key(last * CHUNK_BLOCKS));
            }
        }
    }

    /// Makes `count` blocks at `to` of `target` read as those at `from` do, in `txn`, without copying: both share the
    /// extents from then on. The caller keeps the source unchanged until the transaction is committed, which should be
    /// soon, since nothing moves meanwhile. The ranges must not overlap.
    pub async fn share(&self, txn: &mut Txn, from: Lba, target: &Volume, to: Lba, count: Blocks) -> Result<()> {
        if txn.still.is_none() {
            // While something is kept still cleaning may gain nothing: what is wanted of it comes before.
            if self.pool.0.space.shortage() > 0 {
                self.pool.clean().await?;
            }
            txn.still = Some(Arc::new(self.pool.0.moving.clone().read_owned().await));
        }
        let runs = self.runs(from, count).await?;
        target.discard(txn, to, count);
        let mut patches: BTreeMap<u64, Vec<Run>> = BTreeMap::new();
        for (at, run) in runs {
            // A run may cross a border between chunks at its new place.
            let (mut next, mut rest) = ((to + (at - from)).0, Some(run));
            while let Some(run) = rest {
                let within = (next % CHUNK_BLOCKS) as u8;
                let take = run.count.min(CHUNK_BLOCKS as u8 - within);
                let part = run.part(run.start, run.start + take).map(|part| Run { start: within, ..part });
                patches.entry(next / CHUNK_BLOCKS).or_default().extend(part);
                rest = run.part(run.start + take, run.end());
                next += u64::from(take);
            }
        }
        for (chunk, runs) in patches {
            let key = chunk_key(chunk * CHUNK_BLOCKS);
            for run in &runs {
                txn.put(target.id(), back_key(run, &key), Bytes::new());
            }
            txn.patch(target.id(), key, runs);
        }
        Ok(())
    }

    /// Moves `count` blocks from `from` to `to`, in `txn`, without copying. See [`Volume::share`].
    pub async fn remap(&self, txn: &mut Txn, from: Lba, to: Lba, count: Blocks) -> Result<()> {
        self.share(txn, from, self, to, count).await?;
        self.discard(txn, from, count);
        Ok(())
    }

    /// Runs that overlap `at..at+count`, in order, with the block where each begins; holes are left out.
    pub async fn runs(&self, at: Lba, count: Blocks) -> Result<Vec<(Lba, Run)>> {
        let _pin = self.pool.0.pin();
        self.runs_pinned(at, count).await
    }

    pub(crate) async fn runs_pinned(&self, at: Lba, count: Blocks) -> Result<Vec<(Lba, Run)>> {
        let (start, end) = (at.0, at.0 + count.0);
        let mut found = Vec::new();
        let within = |first: u64| {
            let bound = |block: u64| block.saturating_sub(first).min(CHUNK_BLOCKS) as u8;
            (bound(start), bound(end))
        };
        let (first, last) = (start / CHUNK_BLOCKS, end.div_ceil(CHUNK_BLOCKS));
        if last - first <= 16 {
            for first in (first..last).map(|chunk| chunk * CHUNK_BLOCKS) {
                let runs = self.chunk_runs(&chunk_key(first), within(first)).await?;
                found.extend(runs.into_iter().map(|run| (Lba(first + u64::from(run.start)), run)));
            }
            return Ok(found);
        }
        let (mut low, high) = (chunk_key(start), chunk_key(last * CHUNK_BLOCKS));
        loop {
            let page = self.tree.page(&self.pool, &low, Some(&high), 1024).await?;
            for (key, value) in &page.entries {
                let first = chunk_start(key).ok_or_else(|| Error::corrupt("a map key of the wrong length"))?;
                let (from, to) = within(first);
                for run in decode_within(value, from, to)?.iter().filter(|run| run.form != Form::Hole) {
                    found.extend(run.part(from, to).map(|part| (Lba(first + u64::from(part.start)), part)));
                }
            }
            match page.next {
                Some(next) => low = next,
                None => return Ok(found),
            }
        }
    }

    /// Runs of some blocks of one chunk, without holes. Where no I/O is needed, patches are not merged with what lies below
    /// them: a search for a few blocks ends where they are found.
    async fn chunk_runs(&self, key: &[u8], (from, to): (u8, u8)) -> Result<Vec<Run>> {
        let (mut pile, mut outcome) = (Pile::new(from, to), Ok(false));
        let known = self.tree.trace_cached(&self.pool, key, |bytes| {
            outcome = pile.lay(bytes);
            !matches!(outcome, Ok(false))
        });
        if known.is_none() {
            (pile, outcome) = (Pile::new(from, to), Ok(false));
            if let Some(value) = self.tree.get(&self.pool, key).await? {
                outcome = pile.lay(&value);
            }
        }
        outcome.map(|_| pile.finish())
    }

    /// Reads a range as pieces that follow each other; what was never written is zeros.
    pub async fn read(&self, at: Lba, count: Blocks) -> Result<Vec<Bytes>> {
        let shared = &self.pool.0;
        let _pin = shared.pin();
        let runs = self.runs_pinned(at, count).await?;
        let mut pieces = Vec::with_capacity(runs.len() + 1);
        let mut next = at;
        let parts: Vec<&Run> = runs.iter().map(|(_, run)| run).collect();
        let datas = shared.read_runs_ahead(&parts).await;
        for ((from, run), data) in runs.iter().zip(datas) {
            zeros(&mut pieces, *from - next);
            let data = data.within(|| format!("volume {} at {from}", self.id()))?;
            pieces.push(pad(data, run.count as usize * BLOCK_LEN));
            next = *from + Blocks(u64::from(run.count));
        }
        zeros(&mut pieces, at + count - next);
        Ok(pieces)
    }

    /// The first block at or behind `at`, before `end`, that is stored (or is not, with `hole`).
    pub async fn seek(&self, at: Lba, end: Lba, hole: bool) -> Result<Option<Lba>> {
        // In steps, so that a hole at the start of a huge file is found without reading its whole map, and the first ones are small:
        // what is sought is mostly near.
        const STEP_MAX: u64 = 1 << 15;
        let (mut next, mut most) = (at, 2 * CHUNK_BLOCKS);
        while next < end {
            let step = Blocks(most.min(end.0 - next.0));
            most = STEP_MAX.min(most * 4);
            let runs = self.runs(next, step).await?;
            if !hole {
                if let Some((first, _)) = runs.first() {
                    return Ok(Some(*first));
                }
                // Skip over emptiness to the next chunk that exists at all.
                let (low, high) = (chunk_key((next + step).0), chunk_key(end.0.next_multiple_of(CHUNK_BLOCKS)));
                match self.next_key(&low, &high).await?.and_then(|key| chunk_start(&key)) {
                    Some(start) => next = Lba(start.max((next + step).0)),
                    None => return Ok(None),
                }
                continue;
            }
            let step_end = next + step;
            for (first, run) in runs {
                if first > next {
                    break;
                }
                next = first + Blocks(u64::from(run.count));
            }
            if next < step_end {
                return Ok(Some(next));
            }
        }
        Ok(None)
    }

    /// How many blocks of a range are stored, and how many keys of the map were looked at for that, which is what it costs.
    pub async fn stored_blocks(&self, at: Lba, count: Blocks) -> Result<(Blocks, usize)> {
        let (mut low, high) = (chunk_key(at.0), chunk_key((at + count).0.next_multiple_of(CHUNK_BLOCKS)));
        let (mut stored, mut keys) = (0, 0);
        while low < high {
            let page = self.page(&low, Some(&high), 1024).await?;
            keys += page.entries.len();
            for (key, value) in &page.entries {
                let first = chunk_start(key).unwrap_or(0);
                for run in decode(value)?.iter().filter(|run| run.form != Form::Hole) {
                    let (from, to) = (first + u64::from(run.start), first.saturating_add(u64::from(run.end())));
                    stored += to.min((at + count).0).saturating_sub(from.max(at.0));
                }
            }
            match page.next {
                Some(next) => low = next,
                None => break,
            }
        }
        Ok((Blocks(stored), keys))
    }

    async fn next_key(&self, low: &[u8], high: &[u8]) -> Result<Option<Key>> {
        Ok(self.first(low, high, 1).await?.into_iter().next().map(|(key, _)| key))
    }

    /// See [`Pool::commit`].
    pub async fn commit(&self, txn: Txn) -> Result<Seq> {
        self.pool.commit(txn).await
    }

    /// See [`Pool::apply`].
    pub async fn apply(&self, txn: Txn) -> Result<Applied<'_>> {
        self.pool.apply(txn).await
    }
}

fn zeros(pieces: &mut Vec<Bytes>, mut count: Blocks) {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    while count > Blocks(0) {
        let part = (count.to_bytes().0 as usize).min(ZEROS.len());
        pieces.push(Bytes::from_static(&ZEROS[..part]));
        count -= Blocks((part / BLOCK_LEN) as u64);
    }
}
