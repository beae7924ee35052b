//! Checking: every node and every extent that a volume or snapshot refers to is read and verified, once, while the pool
//! is in use; and the accounts of live bytes are compared with what is there. Where something cannot be read, a second
//! pass over the indexes finds everyone who refers to it.

use crate::accounts::DeadKey;
use crate::checkpoint::Chores;
use crate::format::VolumeKind;
use crate::map::{Form, MAP_PREFIX, Run, chunk_start, decode};
use crate::mend::is_answered;
use crate::patches::PIECES_PREFIX;
use crate::space::{Usage, slot_of};
use crate::store::together;
use crate::{CATALOG, Pool};
use ashlar_block::{Error, Result};
use ashlar_index::{Key, Message, Node, NodePtr, NodeStore, Seat, View};
use ashlar_units::{Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Nodes are read side by side until their images have so many bytes.
const NODES_BYTES: u64 = 4 << 20;
/// Extents that are read at once, and how many times that side by side: the device has something to do while some are looked at.
const READS: usize = 16;
const LANES: usize = 3;

/// Something that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Volume or snapshot.
    pub volume: String,
    /// What is lost there.
    pub what: Damaged,
    /// Why.
    pub error: String,
    /// If it is the index that is damaged: all keys of the node, also of the block map, of which some cannot be read any more. From
    /// the first on and below the second (to the end if there is none).
    pub lost: Option<(Vec<u8>, Option<Vec<u8>>)>,
    /// The reference, if it is an extent that is damaged and not the index: tree, chunk and run.
    pub(crate) reference: Option<(u64, Key, Run)>,
}

impl Damage {
    /// Blocks that may be lost because the block map cannot be read there.
    pub fn unmapped(&self) -> Option<(Lba, Blocks)> {
        let (low, high) = self.lost.as_ref()?;
        if low.first().is_some_and(|first| *first > MAP_PREFIX) {
            return None;
        }
        let first = chunk_start(low).unwrap_or(0);
        let end = high.as_deref().and_then(chunk_start).unwrap_or(u64::MAX);
        Some((Lba(first), Blocks(end.saturating_sub(first))))
    }
    /// The first key of the dictionary that may be lost.
    pub fn first_key(&self) -> Option<&[u8]> {
        const FIRST: &[u8] = &[PIECES_PREFIX];
        let (low, high) = self.lost.as_ref()?;
        high.as_deref().is_none_or(|high| high > FIRST).then(|| FIRST.max(low))
    }
}

/// What damage took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damaged {
    /// Blocks of the volume's space.
    Blocks(Lba, Blocks),
    /// Keys of its dictionary, from the first on and below the second (to the end if there is none).
    Keys(Vec<u8>, Option<Vec<u8>>),
    /// Nothing: all that a node of the index may have held was forgotten, or is answered from above it.
    Nothing,
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
    /// Index nodes that were damaged and were put right from parity meanwhile.
    pub recovered: u64,
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

/// What cannot be read, by birth address.
#[derive(Default)]
struct Unreadable {
    nodes: HashMap<(u64, u32), String>,
    extents: HashSet<(u64, u32)>,
}

/// The pool without what is in memory alone of what the medium has no more.
struct OnMedium<'a>(&'a Pool, &'a Unreadable);

impl NodeStore for OnMedium<'_> {
    type Helper = Pool;

    fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        self.0.cached(ptr).filter(|_| !self.1.nodes.contains_key(&(ptr.uid, ptr.offset)))
    }
    async fn load(&self, ptr: NodePtr) -> Result<Arc<Node>> {
        match self.1.nodes.get(&(ptr.uid, ptr.offset)) {
            Some(error) => Err(Error::corrupt(error.clone())),
            None => self.0.load(ptr).await,
        }
    }
    async fn append(&self, image: Bytes, node: Node) -> Result<NodePtr> {
        self.0.append(image, node).await
    }
    async fn height(&self, ptr: &NodePtr) -> Result<u8> {
        self.0.height(ptr).await
    }
    fn birth(&self) -> u64 {
        self.0.birth()
    }
}

impl Pool {
    /// Verifies everything. `progress` is told the bytes done and the bytes in use.
    pub async fn check(&self, progress: impl Fn(Size, Size) + Send + Sync) -> Result<Checked> {
        let shared = &self.0;
        let mut found = Usage::new();
        let recovered_before = self.costs().recovered;
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
        let (mut seen, mut bad) = (HashSet::new(), Unreadable::default());
        for walk in &walks {
            let progress = |done| progress(done, total);
            self.check_tree(walk, &mut seen, &mut found, &mut checked, &mut bad, &progress).await?;
        }
        if !bad.nodes.is_empty() || !bad.extents.is_empty() {
            for walk in &walks {
                self.name_damage(walk, &bad, &mut checked.damaged).await?;
            }
        }
        for (slot, state) in slots.iter().enumerate() {
            let (counted, real) = (state.live + state.catalog, found.get(&(slot as u32)).copied().unwrap_or(0));
            // Below a node that cannot be read nobody knows what is live.
            if counted != real && bad.nodes.is_empty() {
                checked.miscounted.push((slot as u32, counted, real));
            }
        }
        checked.recovered = self.costs().recovered - recovered_before;
        Ok(checked)
    }

    async fn check_tree(
        &self,
        walk: &Walk,
        seen: &mut HashSet<(u64, u32)>,
        found: &mut Usage,
        checked: &mut Checked,
        bad: &mut Unreadable,
        progress: &(dyn Fn(Size) + Send + Sync),
    ) -> Result<()> {
        let owns = |birth: u64| walk.owns_after.is_some_and(|after| birth > after);
        let mut pending: Vec<Seat> = walk.root.map(Seat::root).into_iter().collect();
        while !pending.is_empty() {
            // Those that were found last, so that few wait.
            let (mut lot, mut bytes) = (Vec::new(), 0);
            while bytes < NODES_BYTES
                && let Some(seat) = pending.pop()
            {
                let ptr = seat.ptr;
                let first_visit = seen.insert((ptr.uid, ptr.offset));
                if !first_visit && !owns(ptr.birth) {
                    continue;
                }
                if owns(ptr.birth) {
                    *found.entry(slot_of(ptr.uid)).or_default() += i64::from(ptr.len);
                }
                bytes += u64::from(ptr.raw_len);
                lot.push((seat, first_visit));
            }
            // From the medium, not from the cache: the medium is what is checked.
            let nodes = self.load_all(&lot.iter().map(|(seat, _)| seat.ptr).collect::<Vec<_>>()).await;
            let mut runs: Vec<Run> = Vec::new();
            for ((seat, first_visit), node) in lot.into_iter().zip(nodes) {
                let ptr = seat.ptr;
                let node = match node.and_then(|node| node.check_seat(&seat).map(|()| node)) {
                    Ok(node) => node,
                    Err(error) => {
                        bad.nodes.insert((ptr.uid, ptr.offset), error.to_string());
                        continue;
                    }
                };
                checked.nodes += 1;
                checked.bytes += Size(u64::from(ptr.len));
                pending.extend(node.below(&seat));
                for (key, message) in node.messages() {
                    let referred = runs_of(key, &message)?;
                    for run in referred.iter().filter(|run| owns(run.birth)) {
                        *found.entry(slot_of(run.uid)).or_default() += run.weight() as i64;
                    }
                    runs.extend(Some(referred).filter(|_| first_visit && walk.id != CATALOG).into_iter().flatten());
                }
            }
            self.check_runs(runs, checked, bad, progress).await;
        }
        Ok(())
    }

    /// Reads extents in the order in which they lie.
    async fn check_runs(
        &self,
        mut runs: Vec<Run>,
        checked: &mut Checked,
        bad: &mut Unreadable,
        progress: &(dyn Fn(Size) + Send + Sync),
    ) {
        let shared = &self.0;
        runs.sort_by_key(|run| (shared.layout.position(run.uid, run.offset), run.skip));
        let windows = Mutex::new(runs.chunks(READS));
        let all = Mutex::new((checked, bad));
        together((0..LANES).map(async |_| {
            loop {
                let Some(runs) = windows.lock().next() else { return };
                let parts: Vec<&Run> = runs.iter().collect();
                let read = shared.read_runs(&parts).await;
                let (checked, bad) = &mut *all.lock();
                for (run, data) in runs.iter().zip(read) {
                    checked.extents += 1;
                    checked.bytes += Size(run.weight());
                    if data.is_err() {
                        bad.extents.insert((run.uid, run.offset));
                    }
                }
                progress(checked.bytes);
            }
        }))
        .await;
    }

    /// A node, if it is one that belongs in this place.
    async fn load_at(&self, seat: &Seat) -> Result<Arc<Node>> {
        let node = self.load(seat.ptr).await?;
        node.check_seat(seat)?;
        Ok(node)
    }

    /// What a tree lost by what cannot be read.
    async fn name_damage(&self, walk: &Walk, bad: &Unreadable, damaged: &mut Vec<Damage>) -> Result<()> {
        let mut chunks: BTreeSet<Key> = BTreeSet::new();
        let mut pending: Vec<Seat> = walk.root.map(Seat::root).into_iter().collect();
        while let Some(seat) = pending.pop() {
            let known = bad.nodes.get(&(seat.ptr.uid, seat.ptr.offset)).cloned();
            let loaded = match known {
                Some(error) => Err(error),
                None => self.load_at(&seat).await.map_err(|error| error.to_string()),
            };
            let node = match loaded {
                Ok(node) => node,
                Err(error) => {
                    let (low, high) = (&seat.low[..], seat.high.as_deref());
                    let (view, store) = (View::of_root(walk.root), OnMedium(self, bad));
                    let answered = walk.id != CATALOG && is_answered(&store, &view, low, high).await?;
                    let what = if answered { Damaged::Nothing } else { damaged_keys(low, high) };
                    let lost = (!answered).then(|| (low.to_vec(), high.map(<[u8]>::to_vec)));
                    damaged.push(Damage { volume: walk.name.clone(), what, error, lost, reference: None });
                    continue;
                }
            };
            pending.extend(node.below(&seat));
            for (key, message) in node.messages() {
                let runs = runs_of(key, &message)?;
                if walk.id != CATALOG && runs.iter().any(|run| bad.extents.contains(&(run.uid, run.offset))) {
                    chunks.insert(Key::from_slice(key));
                }
            }
        }
        for key in chunks {
            // A newer message may have replaced the reference; below a damaged node nobody can tell.
            let Ok(Some(value)) = self.0.tree(walk.id)?.get(self, &key).await else { continue };
            for run in decode(&value)?.iter().filter(|run| bad.extents.contains(&(run.uid, run.offset))) {
                self.narrow_down(walk, &key, run, damaged).await;
            }
        }
        Ok(())
    }

    /// Which blocks of a damaged run cannot be read: raw blocks have checksums of their own.
    async fn narrow_down(&self, walk: &Walk, key: &Key, run: &Run, damaged: &mut Vec<Damage>) {
        let step = if run.form == Form::Raw { 1 } else { run.count };
        for block in (run.start..run.end()).step_by(usize::from(step.max(1))) {
            let Some(part) = run.part(block, block + step) else { continue };
            if let Err(error) = self.0.read_run(&part).await {
                let at = Lba(chunk_start(key).unwrap_or(0) + u64::from(part.start));
                let what = Damaged::Blocks(at, Blocks(u64::from(part.count)));
                let reference = Some((walk.id, key.clone(), part));
                let (volume, error) = (walk.name.clone(), error.to_string());
                damaged.push(Damage { volume, what, error, lost: None, reference });
            }
        }
    }
}

/// Runs with data that a message has.
fn runs_of(key: &[u8], message: &Message) -> Result<Vec<Run>> {
    match (chunk_start(key), message) {
        (Some(_), Message::Put(value) | Message::Patch(value)) => {
            let mut runs = decode(value)?;
            runs.retain(|run| run.form != Form::Hole);
            Ok(runs)
        }
        _ => Ok(Vec::new()),
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
