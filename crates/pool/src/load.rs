//! Bulk loads: many pairs in the order of their keys, past the log and the memtable.
//!
//! A transaction's pairs are written twice, into the log and into a leaf, and sorted on the way. Who has them in order
//! already hands them to the next checkpoint, which makes whole leaves of them. They come in steps: each is a checkpoint of
//! its own, so what is there after a crash is a prefix of the load that ends with a step.

use crate::checkpoint::Chores;
use crate::commit::{MEMTABLES_SHARE, OPERATIONS_BYTES_MAX, changeable};
use crate::{Pool, Shared, Volume};
use ashlar_block::{Error, Result};
use ashlar_index::{Errands, Key};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that a pair in memory costs beyond its key and value, estimated.
const OVERHEAD_BYTES: usize = 80;

/// A bulk load into the dictionary of a volume; see [`Volume::load`].
#[must_use = "the last pairs are there only after `finish`"]
pub struct Load {
    volume: Volume,
    pairs: Vec<(Key, Bytes)>,
    /// Of `pairs`, in memory.
    bytes: usize,
    /// The last key of the step before.
    last: Option<Key>,
    /// Why a step is not there: then none behind it may be.
    failed: Option<Error>,
}

impl Volume {
    /// Begins a bulk load. Others may change the volume meanwhile: the pairs of a step are put all at one moment, over what
    /// is there then.
    ///
    /// Costs: a checkpoint for each step, which takes a sixteenth of the pool's memory; each byte is written once where no
    /// keys were, with what remains pending at the upper end.
    pub fn load(&self) -> Load {
        Load { volume: self.clone(), pairs: Vec::new(), bytes: 0, last: None, failed: None }
    }
}

impl Load {
    /// Adds a pair; waits now and then for a step to be written. The limits are those of [`Volume::put`].
    ///
    /// # Errors
    /// `Misuse` for a key that is not above the one before, and for a pair that no transaction could take. `NoSpace` when
    /// the pool is full. Once a step failed, steps before are there and all that follows fails like it.
    pub async fn put(&mut self, key: &[u8], value: impl Into<Bytes>) -> Result<()> {
        self.admit()?;
        let value = value.into();
        crate::volume::check_key(key);
        if key.len() + value.len() > OPERATIONS_BYTES_MAX {
            let message = format!("a pair of {} and {} bytes is too large to be loaded", key.len(), value.len());
            return Err(Error::misuse(message));
        }
        if self.pairs.last().map(|(last, _)| last).or(self.last.as_ref()).is_some_and(|last| last.as_slice() >= key) {
            return Err(Error::misuse(
                "the keys of a bulk load must ascend: sort the pairs, or put them in transactions",
            ));
        }
        self.bytes += key.len() + value.len() + OVERHEAD_BYTES;
        self.pairs.push((Key::from_slice(key), value));
        if self.bytes > self.volume.pool.0.config.memory.0 as usize / (2 * MEMTABLES_SHARE) {
            self.step().await?;
        }
        Ok(())
    }

    /// Writes the rest. All pairs are durable when this returns.
    pub async fn finish(mut self) -> Result<()> {
        self.admit()?;
        if self.pairs.is_empty() { Ok(()) } else { self.step().await }
    }

    fn admit(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    async fn step(&mut self) -> Result<()> {
        let pairs = std::mem::take(&mut self.pairs);
        self.last = pairs.last().map(|(key, _)| key.clone());
        let bytes = std::mem::take(&mut self.bytes);
        let written = self.volume.pool.load(self.volume.id(), pairs, bytes as u64).await;
        self.failed = written.as_ref().err().cloned();
        written
    }
}

/// What a load will bring into the next checkpoint counts as pending until it is there.
struct Announced(Arc<Shared>, u64);

impl Announced {
    fn new(shared: &Arc<Shared>, bytes: u64) -> Announced {
        shared.loading.fetch_add(bytes, Ordering::AcqRel);
        shared.note_pending();
        Announced(shared.clone(), bytes)
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.0.loading.fetch_sub(self.1, Ordering::AcqRel);
        self.0.note_pending();
    }
}

impl Pool {
    async fn load(&self, id: u64, pairs: Vec<(Key, Bytes)>, bytes: u64) -> Result<()> {
        let shared = &self.0;
        let _announced = Announced::new(shared, bytes);
        let errands = BTreeMap::from([(id, Errands { load: pairs, ..Errands::default() })]);
        let mut tries = 0;
        loop {
            let rounds = shared.space_rounds.load(Ordering::Acquire);
            {
                let _one = shared.checkpointing.lock().await;
                changeable(&shared.volumes.read(), id, false)?;
                if !shared.space.is_overdrawn() {
                    return self.checkpoint_locked(Chores { errands, ..Chores::default() }).await;
                }
            }
            if self.provision().await {
                continue;
            }
            if tries == 2 {
                return Err(shared.space.full());
            }
            tries += 1;
            self.make_space(rounds, false).await?;
        }
    }
}
