//! Snapshots of all extents at once: a snapshot of the pool's volume, and a list of the blocks that only it still sees.

use crate::Rule;
use crate::engine::{Engine, PAGE, list_extents};
use crate::format::{Dead, SUPER_KEY, dead_key, decode_dead, snapshot_key};
use ashlar_block::{Error, Result};
use ashlar_pool::Txn;
use ashlar_units::Blocks;
use std::collections::BTreeMap;

/// The pool's volume that snapshots keep.
pub(crate) const EXTENTS: &str = "extents";

/// A snapshot's name in the pool.
pub(crate) fn full_name(name: &str) -> String {
    format!("{EXTENTS}@{name}")
}

impl Engine {
    /// Names of the snapshots, oldest first.
    pub fn snapshots(&self) -> Vec<String> {
        self.0.snapshots.lock().values().cloned().collect()
    }

    /// Extents of a snapshot, with their lengths.
    pub async fn snapshot_extents(&self, name: &str) -> Result<BTreeMap<u32, Blocks>> {
        let volume = self.0.pool.volume(&full_name(name));
        list_extents(&volume.ok_or_else(|| Error::misuse(format!("there is no snapshot {name:?}")))?).await
    }

    /// Keeps all extents as they are now. It is durable when the call returns, with everything before it; what it costs does
    /// not depend on the size of the extents.
    pub async fn create_snapshot(&self, name: &str) -> Result<()> {
        let inner = &*self.0;
        let _one = inner.destaging.lock().await;
        self.install_fresh_alone().await?;
        let _order = inner.order.write().await;
        // A snapshot without a record is one that never was: opening the store destroys it.
        inner.pool.create_snapshot(EXTENTS, name).await?;
        let (epoch, record) = {
            let record = *inner.record.lock();
            (record.epoch, crate::format::Super { epoch: record.epoch + 1, ..record })
        };
        let mut txn = Txn::new();
        inner.space_volume.put(&mut txn, &snapshot_key(epoch), name.as_bytes().to_vec());
        inner.space_volume.put(&mut txn, SUPER_KEY, record.encode());
        inner.pool.commit(txn).await?;
        *inner.record.lock() = record;
        inner.snapshots.lock().insert(epoch, name.into());
        inner.pool.sync_all().await
    }

    /// Destroys a snapshot, and frees what it alone held.
    pub async fn destroy_snapshot(&self, name: &str) -> Result<()> {
        let inner = &*self.0;
        let _one = inner.destaging.lock().await;
        let _order = inner.order.write().await;
        let epoch = inner.snapshots.lock().iter().find(|(_, known)| *known == name).map(|(epoch, _)| *epoch);
        let epoch = epoch.ok_or_else(|| Error::misuse(format!("there is no snapshot {name:?}")))?;
        if inner.keeps(Rule::SnapshotGoneBeforeFree) {
            inner.pool.destroy_snapshot(&full_name(name)).await?;
            self.free_dead(epoch).await?;
        } else {
            self.free_dead(epoch).await?;
            self.settle().await?;
            drop(_order);
            // Long enough for others to take what was freed.
            inner.env.sleep(std::time::Duration::from_millis(2)).await;
            let _order = inner.order.write().await;
            inner.pool.destroy_snapshot(&full_name(name)).await?;
        }
        self.forget_snapshot(epoch).await?;
        inner.pool.sync_all().await
    }

    /// Frees what a snapshot held that is gone, but for what an older one sees. The caller holds the order alone.
    pub(crate) async fn free_dead(&self, epoch: u32) -> Result<()> {
        let inner = &*self.0;
        let older = inner.snapshots.lock().range(..epoch).next_back().map(|(epoch, _)| *epoch);
        let high = dead_key(epoch + 1, 0);
        loop {
            // One list at a time: each fits a transaction with the maps that it changes.
            let page = inner.space_volume.page(&dead_key(epoch, 0), Some(&high), PAGE).await?;
            if page.entries.is_empty() && page.next.is_none() {
                break;
            }
            for (key, value) in page.entries {
                let list = decode_dead(&value, inner.capacity())?;
                let (keep, free): (Vec<Dead>, Vec<Dead>) =
                    list.into_iter().partition(|dead| older.is_some_and(|older| dead.born <= older));
                let mut txn = Txn::new().deleting();
                inner.space_volume.delete(&mut txn, &key);
                self.put_dead(&mut txn, older.unwrap_or(0), &keep);
                let free: Vec<u64> = free.into_iter().map(|dead| dead.at).collect();
                let ranges = self.put_ranges(&mut txn, free.iter().map(|at| (*at, false))).await?;
                inner.pool.commit(txn).await?;
                self.freed(ranges, free);
            }
        }
        Ok(())
    }

    /// Forgets the record of a snapshot that holds nothing any more.
    pub(crate) async fn forget_snapshot(&self, epoch: u32) -> Result<()> {
        let inner = &*self.0;
        let mut txn = Txn::new().deleting();
        inner.space_volume.delete(&mut txn, &snapshot_key(epoch));
        inner.pool.commit(txn).await?;
        inner.snapshots.lock().remove(&epoch);
        Ok(())
    }
}
