//! Mending what a check found, as far as it can be without the data that are gone.

use crate::checkpoint::Chores;
use crate::commit::{OPERATIONS_BYTES_MAX, Txn};
use crate::format::VolumeKind;
use crate::map::{BACK_PREFIX, MAP_PREFIX, Map, Run, decode};
use crate::patches::PIECES_PREFIX;
use crate::{Checked, Damage, Damaged, Pool, Volume};
use ashlar_block::{Kind, Result};
use ashlar_index::{Key, Known, NodeStore, View, behind};
use std::sync::Arc;

/// Parts of what a volume's index has: the block map, and the dictionary. What lies between is the pool's.
const PARTS: [(&[u8], &[u8]); 2] = [(&[MAP_PREFIX], &[BACK_PREFIX]), (&[PIECES_PREFIX], BEHIND)];
/// No key is behind this one.
pub(crate) const BEHIND: &[u8] = &[0xff];
/// Keys that are kept in a range that cannot be read as a whole. More there are only where a part of a buffer is damaged, above
/// many leaves that are not.
const KEPT_MAX: usize = 1 << 16;

/// What was mended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mended {
    /// Blocks that could not be read, of volumes that can change: they are zeros now.
    pub forgotten: Vec<Damage>,
    /// Segments whose count of live bytes was put right.
    pub recounted: u64,
}

impl Pool {
    /// Forgets what a check found unreadable, and puts counts right. What was written over meanwhile stays.
    ///
    /// What snapshots refer to cannot change, and a damaged index node is not rebuilt: both remain.
    pub async fn mend(&self, checked: &Checked) -> Result<Mended> {
        let mut mended = Mended::default();
        for damage in &checked.damaged {
            if let Some((id, key, run)) = &damage.reference
                && matches!(damage.what, Damaged::Blocks(..))
                && self.0.volumes.read().get(id).is_some_and(|volume| matches!(volume.kind, VolumeKind::Live { .. }))
            {
                let tree = self.0.tree(*id)?;
                loop {
                    let mut txn = Txn::new().deleting();
                    txn.relocate(*id, key.clone(), run.clone(), Run::hole(run.start, run.count));
                    match self.commit(txn).await {
                        Ok(_) => break,
                        // A node that the decision needs has left the cache.
                        Err(error) if error.kind() == Kind::Retry => drop(tree.get(self, key).await?),
                        Err(error) => return Err(error),
                    }
                }
                mended.forgotten.push(damage.clone());
            }
        }
        let _one = self.0.checkpointing.lock().await;
        let mut chores = Chores::default();
        for (slot, counted, found) in &checked.miscounted {
            // Both numbers are of one moment, so what is missing is missing now too.
            *chores.accounts.usage.entry(*slot).or_default() += found - counted;
            mended.recounted += 1;
        }
        self.checkpoint_locked(chores).await?;
        Ok(mended)
    }
}

/// What was forgotten of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Something of its blocks.
    pub blocks: bool,
    /// Something of its dictionary.
    pub dictionary: bool,
}

impl Volume {
    /// Forgets what cannot be read of the keys in `low..high`, of blocks and of the dictionary. What can be read stays as it is:
    /// what was forgotten before, and what was written since. Nobody else may change the volume meanwhile.
    ///
    /// # Errors
    /// Those of the pool.
    pub async fn forget_unreadable(&self, low: &[u8], high: Option<&[u8]>) -> Result<Forgotten> {
        let mut done = [false; PARTS.len()];
        for ((start, end), done) in PARTS.into_iter().zip(&mut done) {
            let (low, high) = (low.max(start), high.map_or(end, |high| high.min(end)));
            let readable = {
                let _pin = self.pool.0.pin();
                low >= high || can_read(&self.pool, &self.tree.view(), low, high).await?
            };
            *done = !readable && self.forget_within(low, high).await?;
        }
        let [blocks, dictionary] = done;
        Ok(Forgotten { blocks, dictionary })
    }

    async fn forget_within(&self, low: &[u8], high: &[u8]) -> Result<bool> {
        let legible = {
            let _pin = self.pool.0.pin();
            self.tree.view().legible(&Map, &self.pool, (low, high), KEPT_MAX).await?
        };
        let is_map = low.first() == Some(&MAP_PREFIX);
        if is_map && !legible.all {
            return Ok(false); // most of it can be read, block by block
        }
        let (mut at, mut txn) = (Key::from_slice(low), Txn::new().deleting());
        for (key, known) in legible.keys {
            match known {
                Known::Value(None) => continue,
                Known::Value(Some(_)) => {}
                Known::Patches(_) => self.keep_patches(&key).await?,
            }
            if at < key {
                txn.delete_range(self.id(), at, key.clone());
            }
            at = behind(&key);
            if txn.operations_len() > OPERATIONS_BYTES_MAX / 2 {
                self.commit(std::mem::replace(&mut txn, Txn::new().deleting())).await?;
            }
        }
        txn.delete_range(self.id(), at, Key::from_slice(high));
        self.commit(txn).await?;
        Ok(true)
    }

    /// Leaves only what came after something that cannot be read.
    async fn keep_patches(&self, key: &[u8]) -> Result<()> {
        let mut txn = Txn::new().deleting();
        // What they refer to may not move meanwhile.
        txn.still = Some(Arc::new(self.pool.0.moving.clone().read_owned().await));
        let known = {
            let _pin = self.pool.0.pin();
            self.tree.view().known(&Map, &self.pool, key).await?
        };
        let Known::Patches(patches) = known else { return Ok(()) };
        txn.delete(self.id(), Key::from_slice(key));
        for patch in patches {
            match key.first() {
                Some(&MAP_PREFIX) => txn.patch(self.id(), Key::from_slice(key), decode(&patch)?),
                _ => txn.overlay(self.id(), Key::from_slice(key), patch),
            }
        }
        self.commit(txn).await.map(drop)
    }
}

/// Whether all of `low..high` can be read.
async fn can_read(store: &impl NodeStore, view: &View, low: &[u8], high: &[u8]) -> Result<bool> {
    const PAGE: usize = 1024;
    let mut next = Some(Key::from_slice(low));
    while let Some(low) = next {
        match view.page(&Map, store, &low, Some(high), PAGE).await {
            Ok(page) => next = page.next,
            Err(error) if error.is_damage() => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Whether everything in `low..high` that is not the pool's own can be read, although a node with these keys cannot.
pub(crate) async fn is_answered(store: &impl NodeStore, view: &View, low: &[u8], high: Option<&[u8]>) -> Result<bool> {
    for (start, end) in PARTS {
        let (low, high) = (low.max(start), high.map_or(end, |high| high.min(end)));
        if low < high && !can_read(store, view, low, high).await? {
            return Ok(false);
        }
    }
    Ok(true)
}
