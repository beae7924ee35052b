//! Mending what a check found, as far as it can be without the data that are gone.

use crate::checkpoint::Chores;
use crate::commit::Txn;
use crate::format::VolumeKind;
use crate::map::Run;
use crate::{Checked, Damage, Damaged, Pool};
use ashlar_block::{Kind, Result};

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
