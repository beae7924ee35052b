//! Slots of large files.

use crate::Files;
use crate::keys;
use ashlar_inodes::number_value;
use ashlar_pool::Txn;
use ashlar_units::Blocks;
use ashlar_vfs::{Errno, Result};
use bytes::Bytes;

/// Free slots that are remembered.
const REMEMBERED_MAX: usize = 4096;

/// Which slots are free.
pub(crate) struct Slots {
    /// Some of those that were given back.
    free: Vec<u32>,
    /// Slots from here on were never used.
    next: u32,
    /// More were given back than are remembered.
    forgotten: bool,
}

impl Slots {
    pub(crate) fn new(next: u32) -> Slots {
        Slots { free: Vec::new(), next, forgotten: true }
    }
    pub(crate) fn give_back(&mut self, slot: u32) {
        if self.free.len() < REMEMBERED_MAX {
            self.free.push(slot);
        } else {
            self.forgotten = true;
        }
    }
}

impl Files {
    /// Takes a free slot in `txn`. The guard keeps others out until the transaction is committed or given up; after a
    /// commit, [`Taken::keep`] it.
    pub(crate) async fn take_slot(&self, txn: &mut Txn) -> Result<Taken<'_>> {
        let mut slots = self.slots.lock().await;
        if slots.free.is_empty() && slots.forgotten {
            let page = self.volume.page(&[keys::FREE_SLOT], Some(&[keys::FREE_SLOT + 1]), REMEMBERED_MAX).await;
            let (free, more) = match page {
                // There are enough that were never used.
                Err(error) if error.is_damage() => (Vec::new(), false),
                page => page.map(|page| (page.entries, page.next.is_some()))?,
            };
            slots.free = free.iter().map(|(key, _)| keys::slot_in(key)).collect::<Result<_, _>>()?;
            slots.forgotten = more;
        }
        match slots.free.last().copied() {
            Some(slot) => {
                self.volume.delete(txn, &keys::free_slot(slot));
                Ok(Taken { slots, slot, fresh: false })
            }
            None if slots.next < keys::SLOTS_MAX => {
                let slot = slots.next;
                self.volume.put(txn, keys::NEXT_SLOT, number_value(u64::from(slot) + 1));
                Ok(Taken { slots, slot, fresh: true })
            }
            None => Err(Errno::NoSpace.into()),
        }
    }

    /// Slots that were being filled when the power failed.
    pub(crate) async fn forget_unfinished_slots(&self) -> Result<()> {
        for slot in self.numbers_under(keys::BUILDING_SLOT, keys::slot_in).await? {
            let mut txn = Txn::new().deleting();
            self.volume.discard(&mut txn, keys::slot_base(slot), Blocks(keys::SLOT_BLOCKS));
            self.volume.delete(&mut txn, &keys::building_slot(slot));
            self.volume.put(&mut txn, &keys::free_slot(slot), Bytes::new());
            self.volume.commit(txn).await?;
            self.slots.lock().await.give_back(slot);
        }
        Ok(())
    }
}

/// A slot that a transaction takes.
pub(crate) struct Taken<'a> {
    slots: tokio::sync::MutexGuard<'a, Slots>,
    pub(crate) slot: u32,
    fresh: bool,
}

impl Taken<'_> {
    /// The transaction is committed: the slot is in use.
    pub(crate) fn keep(mut self) -> u32 {
        if self.fresh {
            self.slots.next += 1;
        } else {
            self.slots.free.pop();
        }
        self.slot
    }
}
