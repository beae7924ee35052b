//! Checking: every node and every extent that a volume or snapshot refers to is read and verified, while the pool is in
//! use; and the accounts of live bytes are compared with what is there.

use crate::accounts::DeadKey;
use crate::checkpoint::Chores;
use crate::format::VolumeKind;
use crate::map::{Form, MAP_PREFIX, Run, chunk_start, decode};
use crate::space::{Usage, slot_of};
use crate::{CATALOG, Pool};
use ashlar_block::Result;
use ashlar_index::{Key, Message, Node, NodePtr, NodeStore};
use ashlar_units::{Blocks, Bytes as Size, Lba};
use std::collections::HashSet;
use std::sync::Arc;

/// Extents read side by side.
const READS: usize = 32;

/// Something that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Volume or snapshot.
    pub volume: String,
    /// What is lost there.
    pub what: Damaged,
    /// Why.
    pub error: String,
}

/// What damage took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damaged {
    /// Blocks of the volume's space.
    Blocks(Lba, Blocks),
    /// Keys of its dictionary, from the first on and below the second (to the end if there is none).
    Keys(Vec<u8>, Option<Vec<u8>>),
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Index nodes read.
    pub nodes: u64,
    /// References to extents followed.
    pub extents: u64,
    /// Bytes read.
    pub bytes: Size,
    /// What cannot be read.
    pub damaged: Vec<Damage>,
    /// Segments whose count of live bytes is wrong: slot, counted, found. It is a defect of this software, not damage; it
    /// wastes space or endangers data.
    pub miscounted: Vec<(u32, i64, i64)>,
}

/// A tree to walk.
struct Walk {
    id: u64,
    name: String,
    root: Option<NodePtr>,
    /// References born later belong to it alone; `None`: it owns nothing (a snapshot).
    owns_after: Option<u64>,
}

/// A subtree, its level if its parent says it, and the keys that it holds.
type Subtree = (NodePtr, Option<u8>, Key, Option<Key>);

impl Pool {
    /// Verifies everything. `progress` is told the bytes done and the bytes in use.
    pub async fn check(&self, progress: impl Fn(Size, Size) + Send + Sync) -> Result<Checked> {
        let shared = &self.0;
        let mut found = Usage::new();
        let (_pin, walks, slots) = {
            let _one = shared.checkpointing.lock().await;
            self.checkpoint_locked(Chores::default()).await?;
            for (key, weight) in self.catalog_range(&[crate::accounts::DEAD_PREFIX]).await? {
                let (key, weight) = DeadKey::decode_entry(&key, &weight)?;
                *found.entry(key.slot).or_default() += weight as i64;
            }
            let catalog =
                Walk { id: CATALOG, name: "the catalog".into(), root: shared.catalog.root(), owns_after: Some(0) };
            let mut walks = vec![catalog];
            walks.extend(shared.volumes.read().iter().map(|(id, volume)| {
                let owns_after = match volume.kind {
                    VolumeKind::Live { origin } => Some(origin.map_or(0, |(_, taken)| taken)),
                    VolumeKind::Snapshot { .. } => None,
                };
                Walk { id: *id, name: volume.name.clone(), root: volume.tree.root(), owns_after }
            }));
            (shared.pin(), walks, shared.space.slots())
        };
        let live = slots.iter().map(|slot| (slot.live + slot.catalog).max(0) as u64);
        let total = Size(live.fold(0, u64::saturating_add));
        let mut checked = Checked::default();
        let mut seen = HashSet::new();
        for walk in &walks {
            self.check_tree(walk, &mut seen, &mut found, &mut checked, &|done| progress(done, total)).await?;
        }
        for (slot, state) in slots.iter().enumerate() {
            let (counted, real) = (state.live + state.catalog, found.get(&(slot as u32)).copied().unwrap_or(0));
            if counted != real && checked.damaged.is_empty() {
                checked.miscounted.push((slot as u32, counted, real));
            }
        }
        Ok(checked)
    }

    async fn check_tree(
        &self,
        walk: &Walk,
        seen: &mut HashSet<(u64, u32)>,
        found: &mut Usage,
        checked: &mut Checked,
        progress: &(dyn Fn(Size) + Send + Sync),
    ) -> Result<()> {
        let owns = |birth: u64| walk.owns_after.is_some_and(|after| birth > after);
        let mut pending: Vec<Subtree> = walk.root.map(|root| (root, None, Key::new(), None)).into_iter().collect();
        while let Some((ptr, level, low, high)) = pending.pop() {
            let first_visit = seen.insert((ptr.uid, ptr.offset));
            if !first_visit && !owns(ptr.birth) {
                continue;
            }
            if owns(ptr.birth) {
                *found.entry(slot_of(ptr.uid)).or_default() += i64::from(ptr.len);
            }
            // From the medium, not from the cache: the medium is what is checked.
            let placed = |node: &Arc<Node>| node.check_place(level, &low, high.as_deref());
            let node = match self.load(ptr).await.and_then(|node| placed(&node).map(|()| node)) {
                Ok(node) => node,
                Err(error) => {
                    let what = damaged_keys(&low, high.as_deref());
                    checked.damaged.push(Damage { volume: walk.name.clone(), what, error: error.to_string() });
                    continue;
                }
            };
            checked.nodes += 1;
            checked.bytes += Size(u64::from(ptr.len));
            let children = node.child_ranges(&low, high.as_deref()).into_iter();
            pending.extend(children.map(|(ptr, low, high)| (ptr, node.level_below(), low, high)));
            let mut runs: Vec<(Lba, Run)> = Vec::new();
            for (key, message) in node.messages() {
                let (Some(start), Message::Put(value) | Message::Patch(value)) = (chunk_start(key), message) else {
                    continue;
                };
                for run in decode(&value)? {
                    if run.form == Form::Hole {
                        continue;
                    }
                    if owns(run.birth) {
                        *found.entry(slot_of(run.uid)).or_default() += run.weight() as i64;
                    }
                    runs.push((Lba(start + u64::from(run.start)), run));
                }
            }
            for runs in runs.chunks(READS).filter(|_| first_visit && walk.id != CATALOG) {
                let parts: Vec<&Run> = runs.iter().map(|(_, run)| run).collect();
                for ((at, run), data) in runs.iter().zip(self.0.read_runs(&parts).await) {
                    checked.extents += 1;
                    checked.bytes += Size(run.weight());
                    if let Err(error) = data {
                        let volume = walk.name.clone();
                        self.narrow_down(volume, *at, run, &error.to_string(), &mut checked.damaged).await;
                    }
                }
                progress(checked.bytes);
            }
        }
        Ok(())
    }

    /// Which blocks of a damaged run cannot be read: raw blocks have checksums of their own.
    async fn narrow_down(&self, volume: String, at: Lba, run: &Run, error: &str, damaged: &mut Vec<Damage>) {
        let mut report = |at: Lba, count: u8, error: String| {
            let what = Damaged::Blocks(at, Blocks(u64::from(count)));
            damaged.push(Damage { volume: volume.clone(), what, error });
        };
        if run.form != Form::Raw {
            return report(at, run.count, error.to_string());
        }
        for (index, block) in (run.start..run.end()).enumerate() {
            let Some(part) = run.part(block, block + 1) else { continue };
            if let Err(error) = self.0.read_run(&part).await {
                report(at + Blocks(index as u64), 1, error.to_string());
            }
        }
    }
}

/// What a subtree with these keys held.
fn damaged_keys(low: &[u8], high: Option<&[u8]>) -> Damaged {
    let behind_map = [MAP_PREFIX + 1];
    if low.first() == Some(&MAP_PREFIX) && high.is_some_and(|high| high <= &behind_map[..]) {
        let first = chunk_start(low).unwrap_or(0);
        let end = high.and_then(chunk_start).unwrap_or(u64::MAX);
        return Damaged::Blocks(Lba(first), Blocks(end.saturating_sub(first)));
    }
    Damaged::Keys(low.to_vec(), high.map(<[u8]>::to_vec))
}
