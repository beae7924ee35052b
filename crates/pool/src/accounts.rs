//! Who keeps space alive: volumes, and the snapshots that still see what a volume dropped.
//!
//! Every reference (a node pointer or a run) has a birth. When a volume drops one that was born after its newest
//! snapshot, its weight is free; else it goes on the *dead list* of that snapshot, summed up by segment and by the oldest
//! snapshot that sees it. A snapshot that is destroyed frees the part of its dead list that no older snapshot sees, and
//! leaves the rest to the next older one. So snapshots cost nothing when taken, and destroying one never walks a tree.
//! (The scheme is that of ZFS's dead lists, kept as sums.)

use crate::format::VolumeKind;
use crate::map::Run;
use crate::space::{Usage, slot_of};
use crate::{Shared, VolumeState};
use ashlar_block::{Error, Result};
use ashlar_index::{Key, NodePtr};
use std::collections::BTreeMap;

/// First byte of dead-list keys in the catalog.
pub(crate) const DEAD_PREFIX: u8 = b'D';

/// Bound on a sum, far above what references to a segment weigh together.
const SUM_MAX: u64 = 1 << 56;

/// A sum on a dead list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeadKey {
    pub(crate) snapshot: u64,
    /// When the oldest snapshot that sees it was taken.
    pub(crate) seen: u64,
    pub(crate) slot: u32,
}

impl DeadKey {
    pub(crate) fn encode(self) -> Key {
        let mut key = DeadKey::list(self.snapshot);
        key.extend_from_slice(&self.seen.to_be_bytes());
        key.extend_from_slice(&self.slot.to_be_bytes());
        key
    }
    /// What all keys of one list begin with.
    pub(crate) fn list(snapshot: u64) -> Key {
        let mut key = Key::from_slice(&[DEAD_PREFIX]);
        key.extend_from_slice(&snapshot.to_be_bytes());
        key
    }
    pub(crate) fn decode(key: &[u8]) -> Option<DeadKey> {
        let rest: &[u8; 20] = key.strip_prefix(&[DEAD_PREFIX])?.try_into().ok()?;
        let number = |at: usize| u64::from_be_bytes(rest[at..at + 8].try_into().expect("eight bytes"));
        let slot = u32::from_be_bytes(rest[16..].try_into().expect("four bytes"));
        Some(DeadKey { snapshot: number(0), seen: number(8), slot })
    }
    /// Reads an entry of a dead list: its key and the sum.
    pub(crate) fn decode_entry(key: &[u8], sum: &[u8]) -> Result<(DeadKey, u64)> {
        let sum = sum.try_into().ok().map(u64::from_le_bytes).filter(|sum| *sum <= SUM_MAX);
        let corrupt = || Error::corrupt("a dead list holds what is no sum");
        DeadKey::decode(key).zip(sum).ok_or_else(corrupt)
    }
}

/// What a volume shares with snapshots.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ownership {
    /// Up to here, everything belongs to the snapshot that this clone was made from.
    pub(crate) foreign: u64,
    /// Its own snapshots: when taken, and number.
    pub(crate) snapshots: Vec<(u64, u64)>,
}

impl Ownership {
    /// References born later are the volume's alone.
    pub(crate) fn shared_until(&self) -> u64 {
        self.snapshots.last().map_or(self.foreign, |(taken, _)| *taken)
    }
}

/// Sums of one checkpoint.
#[derive(Default)]
pub(crate) struct Accounts {
    pub(crate) usage: Usage,
    pub(crate) dead: BTreeMap<DeadKey, u64>,
}

impl Accounts {
    fn drop_reference(&mut self, owner: &Ownership, birth: u64, uid: u64, weight: u64) {
        let slot = slot_of(uid);
        if birth <= owner.foreign {
            return;
        }
        let seen = owner.snapshots.iter().find(|(taken, _)| *taken >= birth);
        match (seen, owner.snapshots.last()) {
            (Some((seen, _)), Some((_, newest))) => {
                *self.dead.entry(DeadKey { snapshot: *newest, seen: *seen, slot }).or_default() += weight;
            }
            _ => *self.usage.entry(slot).or_default() -= weight as i64,
        }
    }
    pub(crate) fn drop_runs(&mut self, owner: &Ownership, runs: &[Run]) {
        runs.iter().for_each(|run| self.drop_reference(owner, run.birth, run.uid, run.weight()));
    }
    pub(crate) fn drop_nodes(&mut self, owner: &Ownership, nodes: &[NodePtr]) {
        nodes.iter().for_each(|node| self.drop_reference(owner, node.birth, node.uid, u64::from(node.len)));
    }
    pub(crate) fn add(&mut self, usage: Usage) {
        for (slot, bytes) in usage {
            *self.usage.entry(slot).or_default() += bytes;
        }
    }
}

impl Shared {
    pub(crate) fn ownership(&self, id: u64) -> Ownership {
        let volumes = self.volumes.read();
        let of = |(snapshot, state): (&u64, &VolumeState)| match state.kind {
            VolumeKind::Snapshot { of, taken, .. } if of == id => Some((taken, *snapshot)),
            _ => None,
        };
        let mut snapshots: Vec<_> = volumes.iter().filter_map(of).collect();
        snapshots.sort_unstable();
        let foreign = match volumes.get(&id).map(|volume| volume.kind) {
            Some(VolumeKind::Live { origin: Some((_, taken)) }) => taken,
            _ => 0,
        };
        Ownership { foreign, snapshots }
    }
}
