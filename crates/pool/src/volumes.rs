//! Making, finding and destroying volumes and snapshots.
//!
//! A volume exists from the superblock that first names it to the one that no longer does, so the log never speaks of a
//! volume that the superblock before it does not know.

use crate::accounts::{Accounts, DeadKey, Ownership};
use crate::checkpoint::Chores;
use crate::commit::Txn;
use crate::format::{VolumeKind, VolumeRecord};
use crate::map::Lost;
use crate::{Pool, Volume, VolumeState};
use ashlar_block::{Error, Result};
use ashlar_index::{Message, NodePtr, Tree, prefix_end};
use std::sync::Arc;

/// Longest name of a volume, in bytes.
pub const VOLUME_NAME_LEN_MAX: usize = 255;
/// Behind every key of a volume.
pub(crate) const KEYS_END: [u8; 32] = [0xff; 32];

/// A volume or snapshot in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its number.
    pub id: u64,
    /// Its name; a snapshot's is `VOLUME@SNAPSHOT`.
    pub name: String,
    /// What it is.
    pub kind: VolumeKind,
}

impl Pool {
    /// All volumes and snapshots, in the order in which they were made.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        let info =
            |(id, volume): (&u64, &VolumeState)| VolumeInfo { id: *id, name: volume.name.clone(), kind: volume.kind };
        self.0.volumes.read().iter().map(info).collect()
    }

    /// A volume or snapshot by its name.
    pub fn volume(&self, name: &str) -> Option<Volume> {
        let volumes = self.0.volumes.read();
        let volume = volumes.values().find(|volume| volume.name == name && !volume.closing)?;
        Some(Volume { pool: self.clone(), tree: volume.tree.clone(), told: None })
    }

    /// Makes an empty volume. It is durable when this returns.
    pub async fn create_volume(&self, name: &str) -> Result<Volume> {
        let _one = self.0.checkpointing.lock().await;
        self.check_name(name)?;
        let kind = VolumeKind::Live { origin: None };
        let id = self.next_id();
        self.record_new(id, VolumeRecord { name: name.into(), root: None, nodes: 0, kind }).await?;
        Ok(self.admit_volume(id, name, None, 0, kind))
    }

    /// Gives a volume another name. Its snapshots follow.
    pub async fn rename_volume(&self, from: &str, to: &str) -> Result<()> {
        let shared = &self.0;
        let _one = shared.checkpointing.lock().await;
        self.check_name(to)?;
        let id = self.live(from)?.id();
        let renamed: Vec<(u64, VolumeRecord)> = {
            let mut volumes = shared.volumes.write();
            let concerns = |kind: &VolumeKind| matches!(kind, VolumeKind::Snapshot { of, .. } if *of == id);
            let chosen = volumes.iter_mut().filter(|(other, volume)| **other == id || concerns(&volume.kind));
            chosen
                .map(|(id, volume)| {
                    let suffix = volume.name.find('@').map_or(String::new(), |at| volume.name[at..].to_string());
                    volume.name = format!("{to}{suffix}");
                    let (name, root) = (volume.name.clone(), volume.tree.root());
                    (*id, VolumeRecord { name, root, nodes: volume.nodes, kind: volume.kind })
                })
                .collect()
        };
        renamed.into_iter().for_each(|(id, record)| self.record(id, Some(record)));
        self.checkpoint_locked(Chores::default()).await
    }

    /// Destroys a volume that has no snapshots, and frees its space.
    pub async fn destroy_volume(&self, name: &str) -> Result<()> {
        let shared = &self.0;
        let volume = self.live(name)?;
        if !shared.ownership(volume.id()).snapshots.is_empty() {
            let message = format!("{name} has snapshots; destroy them first (`ashlar snapshot list` names them)");
            return Err(Error::misuse(message));
        }
        if let Some(state) = shared.volumes.write().get_mut(&volume.id()) {
            state.closing = true;
        }
        let mut txn = Txn::new().deleting();
        txn.closing = true;
        volume.delete_range(&mut txn, &[], &KEYS_END);
        self.commit(txn).await?;
        let _one = shared.checkpointing.lock().await;
        self.checkpoint_locked(Chores { thorough: true, ..Chores::default() }).await?;
        shared.volumes.write().remove(&volume.id());
        self.record(volume.id(), None);
        self.checkpoint_locked(Chores::default()).await
    }

    /// Keeps a volume as it is now, under `VOLUME@NAME`. It costs a checkpoint, whatever the size of the volume.
    pub async fn create_snapshot(&self, volume: &str, name: &str) -> Result<Volume> {
        let shared = &self.0;
        let _one = shared.checkpointing.lock().await;
        let of = self.live(volume)?.id();
        check_form(name)?;
        let full = format!("{volume}@{name}");
        if self.volume(&full).is_some() {
            return Err(Error::misuse(format!("there is a snapshot {full} already")));
        }
        let taken = shared.generation.load(std::sync::atomic::Ordering::Relaxed) + 1;
        let kind = VolumeKind::Snapshot { of, taken, time: shared.env.wall().as_secs() };
        let id = self.next_id();
        let record = VolumeRecord { name: full.clone(), root: None, nodes: 0, kind };
        self.checkpoint_locked(Chores { snapshot: Some((id, of, record)), ..Chores::default() }).await?;
        let root = shared.tree(of)?.root();
        Ok(self.admit_volume(id, &full, root, self.nodes(of), kind))
    }

    /// Destroys a snapshot that nothing was cloned from, and frees what it alone kept.
    pub async fn destroy_snapshot(&self, name: &str) -> Result<()> {
        let shared = &self.0;
        let _one = shared.checkpointing.lock().await;
        let (id, of, taken) = self.snapshot(name)?;
        let clone = shared.volumes.read().values().find_map(|volume| match volume.kind {
            VolumeKind::Live { origin: Some((origin, _)) } if origin == id => Some(volume.name.clone()),
            _ => None,
        });
        if let Some(clone) = clone {
            return Err(Error::misuse(format!("{clone} was cloned from {name}; destroy that first")));
        }
        let Ownership { foreign, snapshots } = shared.ownership(of);
        let older = snapshots.iter().rev().find(|(other, _)| *other < taken).copied();
        let mut accounts = Accounts::default();
        for (key, weight) in self.catalog_range(&DeadKey::list(id)).await? {
            let (key, weight) = DeadKey::decode_entry(&key, &weight)?;
            match older {
                Some((older_taken, older)) if key.seen <= older_taken => {
                    *accounts.dead.entry(DeadKey { snapshot: older, ..key }).or_default() += weight;
                }
                _ if key.seen <= foreign => {}
                _ => *accounts.usage.entry(key.slot).or_default() -= weight as i64,
            }
        }
        let list = DeadKey::list(id);
        let end = prefix_end(&list).ok_or_else(|| Error::corrupt("a snapshot's number is out of range"))?;
        shared.catalog.delete_range(&list, &end, &mut Lost::default());
        self.record(id, None);
        shared.volumes.write().remove(&id);
        self.checkpoint_locked(Chores { accounts, ..Chores::default() }).await?;
        shared.space.forget_stuck();
        Ok(())
    }

    /// Makes a volume that begins as a snapshot is, sharing everything with it.
    pub async fn clone_snapshot(&self, snapshot: &str, name: &str) -> Result<Volume> {
        let shared = &self.0;
        let _one = shared.checkpointing.lock().await;
        let (origin, _, taken) = self.snapshot(snapshot)?;
        self.check_name(name)?;
        let root = shared.tree(origin)?.root();
        let kind = VolumeKind::Live { origin: Some((origin, taken)) };
        let (id, nodes) = (self.next_id(), self.nodes(origin));
        self.record_new(id, VolumeRecord { name: name.into(), root, nodes, kind }).await?;
        Ok(self.admit_volume(id, name, root, nodes, kind))
    }

    fn next_id(&self) -> u64 {
        self.0.volumes.read().last_key_value().map_or(1, |(id, _)| id + 1)
    }

    /// Bytes of a volume's nodes at the last checkpoint.
    pub(crate) fn nodes(&self, id: u64) -> u64 {
        self.0.volumes.read().get(&id).map_or(0, |volume| volume.nodes)
    }

    fn admit_volume(&self, id: u64, name: &str, root: Option<NodePtr>, nodes: u64, kind: VolumeKind) -> Volume {
        let tree = Arc::new(Tree::open(id, root, self.0.semantics.clone()));
        let state = VolumeState { name: name.into(), tree: tree.clone(), kind, nodes, closing: false };
        self.0.volumes.write().insert(id, state);
        Volume { pool: self.clone(), tree, told: None }
    }

    fn live(&self, name: &str) -> Result<Volume> {
        let volume = self.volume(name).filter(|_| !name.contains('@'));
        volume.ok_or_else(|| Error::misuse(format!("there is no volume {name:?} (`ashlar fs list` names all)")))
    }

    /// Number, volume and checkpoint of a snapshot.
    fn snapshot(&self, name: &str) -> Result<(u64, u64, u64)> {
        let volumes = self.0.volumes.read();
        let found = volumes.iter().find_map(|(id, volume)| match volume.kind {
            VolumeKind::Snapshot { of, taken, .. } if volume.name == name => Some((*id, of, taken)),
            _ => None,
        });
        found.ok_or_else(|| Error::misuse(format!("there is no snapshot {name:?} (`ashlar snapshot list` names all)")))
    }

    fn check_name(&self, name: &str) -> Result<()> {
        check_form(name)?;
        if self.volumes().iter().any(|existing| existing.name == name) {
            return Err(Error::misuse(format!("there is a volume {name:?} already")));
        }
        Ok(())
    }

    /// Writes the record of a new volume. If that fails, no later checkpoint names it.
    async fn record_new(&self, id: u64, record: VolumeRecord) -> Result<()> {
        self.record(id, Some(record));
        let written = self.checkpoint_locked(Chores::default()).await;
        if written.is_err() {
            self.record(id, None);
        }
        written
    }

    /// Changes a volume's record; the next checkpoint writes it.
    fn record(&self, id: u64, record: Option<VolumeRecord>) {
        let message = record.map_or(Message::Delete, |record| Message::Put(record.encode()));
        self.0.catalog.apply(VolumeRecord::key(id), message, &mut Lost::default());
    }
}

fn check_form(name: &str) -> Result<()> {
    let valid = !name.is_empty() && name.len() <= VOLUME_NAME_LEN_MAX && !name.contains(['/', '\0', '@']);
    if !valid {
        let message = format!("{name:?} is no name: 1 to {VOLUME_NAME_LEN_MAX} bytes without '/' and '@'");
        return Err(Error::misuse(message));
    }
    Ok(())
}
