//! Making, finding and destroying volumes.
//!
//! A volume exists from the superblock that first names it to the one that no longer does, so the log never speaks of a
//! volume that the superblock before it does not know.

use crate::commit::Txn;
use crate::format::VolumeRecord;
use crate::map::Lost;
use crate::{Pool, Volume, VolumeState};
use ashlar_block::{Error, Kind, Result};
use ashlar_index::{Message, Tree};
use std::sync::Arc;

/// Longest name of a volume, in bytes.
pub const VOLUME_NAME_LEN_MAX: usize = 255;
/// Behind every key of a volume.
const KEYS_END: [u8; 32] = [0xff; 32];

impl Pool {
    /// Names of all volumes, in order of their numbers.
    pub fn volumes(&self) -> Vec<String> {
        self.0.volumes.read().values().map(|volume| volume.name.clone()).collect()
    }

    /// A volume by its name.
    pub fn volume(&self, name: &str) -> Option<Volume> {
        let volumes = self.0.volumes.read();
        let volume = volumes.values().find(|volume| volume.name == name && !volume.closing)?;
        Some(Volume { pool: self.clone(), tree: volume.tree.clone() })
    }

    /// Makes an empty volume. It is durable when this returns.
    pub async fn create_volume(&self, name: &str) -> Result<Volume> {
        let shared = &self.0;
        let _one = shared.checkpointing.lock().await;
        self.check_name(name)?;
        let id = shared.volumes.read().last_key_value().map_or(1, |(id, _)| id + 1);
        self.record(id, Some(VolumeRecord { name: name.into(), root: None }));
        self.checkpoint_locked(false).await?;
        let tree = Arc::new(Tree::open(id, None, shared.semantics.clone()));
        shared.volumes.write().insert(id, VolumeState { name: name.into(), tree: tree.clone(), closing: false });
        Ok(Volume { pool: self.clone(), tree })
    }

    /// Gives a volume another name.
    pub async fn rename_volume(&self, from: &str, to: &str) -> Result<()> {
        let shared = &self.0;
        let _one = shared.checkpointing.lock().await;
        self.check_name(to)?;
        let volume = self.volume(from).ok_or_else(|| no_volume(from))?;
        if let Some(state) = shared.volumes.write().get_mut(&volume.id()) {
            state.name = to.into();
        }
        self.record(volume.id(), Some(VolumeRecord { name: to.into(), root: volume.tree.root() }));
        self.checkpoint_locked(false).await
    }

    /// Destroys a volume and frees its space.
    pub async fn destroy_volume(&self, name: &str) -> Result<()> {
        let shared = &self.0;
        let volume = self.volume(name).ok_or_else(|| no_volume(name))?;
        if let Some(state) = shared.volumes.write().get_mut(&volume.id()) {
            state.closing = true;
        }
        let mut txn = Txn::new().deleting();
        txn.closing = true;
        volume.delete_range(&mut txn, &[], &KEYS_END);
        self.commit(txn).await?;
        let _one = shared.checkpointing.lock().await;
        self.checkpoint_locked(true).await?;
        shared.volumes.write().remove(&volume.id());
        self.record(volume.id(), None);
        self.checkpoint_locked(false).await
    }

    fn check_name(&self, name: &str) -> Result<()> {
        let valid = !name.is_empty() && name.len() <= VOLUME_NAME_LEN_MAX && !name.contains(['/', '\0', '@']);
        if !valid {
            let message = format!("{name:?} is no name: 1 to {VOLUME_NAME_LEN_MAX} bytes without '/' and '@'");
            return Err(Error::misuse(message));
        }
        if self.volumes().iter().any(|existing| existing == name) {
            return Err(Error::misuse(format!("there is a volume {name:?} already")));
        }
        Ok(())
    }

    /// Changes a volume's record; the next checkpoint writes it.
    fn record(&self, id: u64, record: Option<VolumeRecord>) {
        let message = record.map_or(Message::Delete, |record| Message::Put(record.encode()));
        self.0.catalog.apply(VolumeRecord::key(id), message, &mut Lost::default());
    }
}

fn no_volume(name: &str) -> Error {
    Error::new(Kind::Misuse, format!("there is no volume {name:?}"))
}
