//! Checking: every node and every extent that a volume or snapshot refers to is read and verified, once, while the pool
//! is in use; and the accounts of live bytes are compared with what is there. Where something cannot be read, a second
//! pass over the indexes finds everyone who refers to it.
//!
//! What is emptied while a check reads cannot be used again, and a check reads for long. So it gives way when room is short:
//! it lets go, and looks up anew the keys that it has not come to yet.

use crate::accounts::DeadKey;
use crate::checkpoint::Chores;
use crate::format::VolumeKind;
use crate::map::{Form, MAP_PREFIX, Run, chunk_start, decode};
use crate::mend::is_answered;
use crate::patches::PIECES_PREFIX;
use crate::space::{Slot, Usage, slot_of};
use crate::store::together;
use crate::{CATALOG, Epoch, Pool};
use ashlar_block::{Error, Result};
use ashlar_env::Instant;
use ashlar_index::{Key, Message, Node, NodePtr, NodeStore, Seat, View};
use ashlar_units::{Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Nodes are read side by side until their images have so many bytes.
const NODES_BYTES: u64 = 4 << 20;
/// The same while others want room: less is read twice.
const HURRIED_BYTES: u64 = 256 << 10;
/// Extents that are read at once, and how many times that side by side: the device has something to do while some are looked at.
const READS: usize = 16;
const LANES: usize = 3;
/// So long what a check reads is kept for it, even if others want the room: it comes to an end beside the busiest.
const HELD_AT_LEAST: Duration = Duration::from_millis(100);
/// How often live bytes are counted of one moment before that is given up.
const COUNTS: u32 = 3;

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
    /// Batches of index nodes of which parity or what else nobody has read yet was damaged, and was put right.
    pub mended_batches: u64,
    /// Batches of index nodes of which so much is damaged that they have no parity any more. What is needed of them can be read.
    pub unprotected: u64,
    /// What cannot be read.
    pub damaged: Vec<Damage>,
    /// Segments whose count of live bytes is wrong: slot, counted, found. It is a defect of this software, not damage; it
    /// wastes space or endangers data.
    pub miscounted: Vec<(u32, i64, i64)>,
    /// Live bytes were not compared, since others always needed what had become free since some moment.
    pub uncounted: bool,
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

impl Unreadable {
    fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.extents.is_empty()
    }
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

/// A moment of the pool, which stays readable while this is held: what is emptied meanwhile is not used again.
struct Moment {
    pin: Arc<Epoch>,
    trees: Vec<Walk>,
    slots: Vec<Slot>,
    /// What the dead lists say.
    dead: Usage,
    generation: u64,
}

/// Whether the walk over a tree came to its end.
#[derive(PartialEq, Eq)]
enum Walked {
    Whole,
    /// Others want what the moment keeps. So far everything was read below this key.
    Below(Key),
}

/// A walk over all trees. It gives way to whom wants the segments that it keeps, and then goes on with the trees as they are
/// by then: with what is as old as its beginning.
struct Check<'a> {
    pool: &'a Pool,
    /// Whether it reads extents, or nodes only.
    reads: bool,
    /// Since when it holds a moment.
    since: Instant,
    /// So many bytes of nodes are read side by side.
    lot_bytes: u64,
    /// Nodes that were read, and by the walk over which tree.
    seen: HashMap<(u64, u32), usize>,
    /// The same by segment, but for those that are younger than the check.
    old: BTreeMap<u64, Vec<u32>>,
    /// Of nodes that were being looked at when it gave way: extents that were read, with the part.
    verified: HashSet<Part>,
    /// What is referred to, of one moment.
    found: Usage,
    checked: Checked,
    bad: Unreadable,
    progress: &'a (dyn Fn(Size) + Send + Sync),
}

/// An extent, and which of its blocks.
type Part = (u64, u32, u8, u8);

fn part_of(run: &Run) -> Part {
    (run.uid, run.offset, run.skip, run.count)
}

impl Pool {
    /// Verifies everything that was there when it began. `progress` is told the bytes done and the bytes in use.
    pub async fn check(&self, progress: impl Fn(Size, Size) + Send + Sync) -> Result<Checked> {
        let shared = &self.0;
        let recovered_before = self.costs().recovered;
        let mut moment = self.moment().await?;
        let began = moment.generation;
        let live = moment.slots.iter().map(|slot| (slot.live + slot.catalog).max(0) as u64);
        // Nodes are read once more, with their parity.
        let nodes: u64 = shared.volumes.read().values().map(|volume| volume.nodes).sum();
        let total = Size(live.fold(nodes, u64::saturating_add));
        let progress = |done: Size| progress(done.min(total), total);
        let mut check = Check::new(self, true, &progress);
        let mut gave_way = false;
        for number in 0..moment.trees.len() {
            let mut from = Key::new();
            while let Walked::Below(key) = check.tree(number, &moment.trees[number], &from, began).await? {
                (from, gave_way) = (key, true);
                moment = self.later(moment).await;
                (check.since, check.lot_bytes) = (shared.env.now(), HURRIED_BYTES);
            }
        }
        if !check.bad.is_empty() {
            for walk in &moment.trees {
                self.name_damage(walk, &check.bad, &mut check.checked.damaged).await?;
            }
        }
        let miscounted = moment.miscounted(&check.found);
        drop(moment);
        // Below a node that cannot be read nobody knows what is live.
        if check.bad.nodes.is_empty() {
            let counts = if gave_way { self.count().await? } else { Some(miscounted) };
            check.checked.uncounted = counts.is_none();
            check.checked.miscounted = counts.unwrap_or_default();
        }
        check.parity().await;
        check.checked.recovered = self.costs().recovered - recovered_before;
        Ok(check.checked)
    }

    /// Compares live bytes with what is referred to, of one moment; `None` if it had to give way each time.
    async fn count(&self) -> Result<Option<Vec<(u32, i64, i64)>>> {
        for _ in 0..COUNTS {
            let moment = self.moment().await?;
            let mut check = Check::new(self, false, &|_| ());
            let mut whole = true;
            for (number, walk) in moment.trees.iter().enumerate() {
                whole = whole && check.tree(number, walk, &Key::new(), moment.generation).await? == Walked::Whole;
            }
            if whole {
                return Ok(Some(if check.bad.is_empty() { moment.miscounted(&check.found) } else { Vec::new() }));
            }
        }
        Ok(None)
    }

    /// Now, with everything on the medium.
    async fn moment(&self) -> Result<Moment> {
        let shared = &self.0;
        let _one = shared.checkpointing.lock().await;
        self.checkpoint_locked(Chores::default()).await?;
        let mut dead = Usage::new();
        for (key, weight) in self.catalog_range(&[crate::accounts::DEAD_PREFIX]).await? {
            let (key, weight) = DeadKey::decode_entry(&key, &weight)?;
            *dead.entry(key.slot).or_default() += weight as i64;
        }
        let catalog =
            Walk { id: CATALOG, name: "the catalog".into(), root: shared.catalog.root(), owns_after: Some(0) };
        let mut trees = vec![catalog];
        trees.extend(shared.volumes.read().iter().map(|(id, volume)| {
            let owns_after = match volume.kind {
                VolumeKind::Live { origin } => Some(origin.map_or(0, |(_, taken)| taken)),
                VolumeKind::Snapshot { .. } => None,
            };
            Walk { id: *id, name: volume.name.clone(), root: volume.tree.root(), owns_after }
        }));
        let generation = shared.generation.load(Ordering::Relaxed);
        Ok(Moment { pin: shared.pin(), trees, slots: shared.space.slots(), dead, generation })
    }

    /// The same trees as the last checkpoint left them, without those that are gone. Whoever waits for what `moment` kept goes first.
    async fn later(&self, moment: Moment) -> Moment {
        let shared = &self.0;
        drop(moment.pin);
        let _one = shared.checkpointing.lock().await;
        let volumes = shared.volumes.read();
        let root = |id: u64| match id {
            CATALOG => shared.catalog.root(),
            id => volumes.get(&id).and_then(|volume| volume.tree.root()),
        };
        let trees = moment.trees.into_iter().map(|walk| Walk { root: root(walk.id), ..walk }).collect();
        Moment { pin: shared.pin(), trees, slots: moment.slots, dead: moment.dead, generation: moment.generation }
    }
}

impl Moment {
    fn miscounted(&self, found: &Usage) -> Vec<(u32, i64, i64)> {
        let of = |usage: &Usage, slot: u32| usage.get(&slot).copied().unwrap_or(0);
        let counts = (0..)
            .zip(&self.slots)
            .map(|(slot, state)| (slot, state.live + state.catalog, of(found, slot) + of(&self.dead, slot)));
        counts.filter(|(_, counted, real)| counted != real).collect()
    }
}

impl<'a> Check<'a> {
    fn new(pool: &'a Pool, reads: bool, progress: &'a (dyn Fn(Size) + Send + Sync)) -> Check<'a> {
        Check {
            pool,
            reads,
            since: pool.0.env.now(),
            lot_bytes: NODES_BYTES,
            seen: HashMap::new(),
            old: BTreeMap::new(),
            verified: HashSet::new(),
            found: Usage::new(),
            checked: Checked::default(),
            bad: Unreadable::default(),
            progress,
        }
    }

    /// Whether others want the segments that are kept. Now and then it gets something done in any case.
    fn is_in_the_way(&self) -> bool {
        let shared = &self.pool.0;
        shared.wants_emptied() && shared.env.now().since(self.since) >= HELD_AT_LEAST
    }

    /// Walks over a tree, from `from` on. What was born after `began` is left out, but for where it leads.
    async fn tree(&mut self, number: usize, walk: &Walk, from: &Key, began: u64) -> Result<Walked> {
        let owns = |birth: u64| walk.owns_after.is_some_and(|after| birth > after);
        // The lowest keys last, and of those the buffers: so that everything below those that are next was read.
        let mut pending: Vec<Seat> = walk.root.map(Seat::root).into_iter().collect();
        while let Some(next) = pending.last() {
            if next.low > *from && self.is_in_the_way() {
                return Ok(Walked::Below(next.low.clone()));
            }
            // Behind what was being looked at when it gave way last.
            if next.low > *from {
                self.verified.clear();
            }
            let (mut lot, mut bytes) = (Vec::new(), 0);
            while bytes < self.lot_bytes
                && let Some(seat) = pending.pop()
            {
                let ptr = seat.ptr;
                let seen = self.seen.get(&(ptr.uid, ptr.offset)).copied();
                if seen.is_some_and(|by| by < number) && !owns(ptr.birth) {
                    continue;
                }
                if owns(ptr.birth) {
                    *self.found.entry(slot_of(ptr.uid)).or_default() += i64::from(ptr.len);
                }
                if seen.is_none() {
                    self.seen.insert((ptr.uid, ptr.offset), number);
                    if self.reads && ptr.birth <= began {
                        self.old.entry(ptr.uid).or_default().push(ptr.offset);
                    }
                }
                bytes += u64::from(ptr.raw_len);
                lot.push((seat, seen.is_none()));
            }
            // From the medium, not from the cache: the medium is what is checked.
            let nodes = self.pool.load_all(&lot.iter().map(|(seat, _)| seat.ptr).collect::<Vec<_>>()).await;
            let (mut runs, mut below): (Vec<Run>, Vec<Seat>) = Default::default();
            for ((seat, first_visit), node) in lot.iter().zip(nodes) {
                let ptr = seat.ptr;
                let node = match node.and_then(|node| node.check_seat(seat).map(|()| node)) {
                    Ok(node) => node,
                    Err(error) => {
                        self.bad.nodes.insert((ptr.uid, ptr.offset), error.to_string());
                        continue;
                    }
                };
                self.checked.nodes += 1;
                self.checked.bytes += Size(u64::from(ptr.len));
                below.extend(
                    node.below(seat).into_iter().filter(|seat| seat.high.as_ref().is_none_or(|high| high > from)),
                );
                for (key, message) in node.messages() {
                    let mut referred = runs_of(key, &message)?;
                    for run in referred.iter().filter(|run| owns(run.birth)) {
                        *self.found.entry(slot_of(run.uid)).or_default() += run.weight() as i64;
                    }
                    if *first_visit && self.reads && walk.id != CATALOG && key >= &from[..] {
                        referred.retain(|run| run.birth <= began && !self.verified.contains(&part_of(run)));
                        runs.extend(referred);
                    }
                }
            }
            below.sort_by(|one, next| next.low.cmp(&one.low));
            pending.append(&mut below);
            if !self.runs(runs).await {
                // They are looked at once more, without what was read.
                let firsts = lot.iter().filter(|(_, first_visit)| *first_visit);
                for (seat, _) in firsts {
                    self.seen.remove(&(seat.ptr.uid, seat.ptr.offset));
                }
                return Ok(Walked::Below(lot[0].0.low.clone().max(from.clone())));
            }
        }
        self.verified.clear();
        Ok(Walked::Whole)
    }

    /// Looks at the parity of what was read of the index.
    async fn parity(&mut self) {
        let mut done = self.checked.bytes;
        for (uid, mut offsets) in std::mem::take(&mut self.old) {
            offsets.sort_unstable();
            offsets.dedup();
            let parity = self.pool.0.verify_parity(uid, &offsets).await;
            self.checked.mended_batches += parity.mended;
            self.checked.unprotected += parity.lost;
            done += Size(parity.bytes);
            (self.progress)(done);
        }
    }

    /// Reads extents in the order in which they lie: all of them, or some until others want room. Whether all were read.
    async fn runs(&mut self, mut runs: Vec<Run>) -> bool {
        let pool = self.pool;
        let layout = &pool.0.layout;
        runs.sort_by_key(|run| (layout.position(run.uid, run.offset), run.skip));
        let windows = Mutex::new(runs.chunks(READS));
        let all = Mutex::new(&mut *self);
        together((0..LANES).map(async |_| {
            while let Some(runs) = next_of(&windows) {
                let parts: Vec<&Run> = runs.iter().collect();
                let read = pool.0.read_runs(&parts).await;
                let check = &mut *all.lock();
                for (run, data) in runs.iter().zip(read) {
                    check.checked.extents += 1;
                    check.checked.bytes += Size(run.weight());
                    check.verified.insert(part_of(run));
                    if data.is_err() {
                        check.bad.extents.insert((run.uid, run.offset));
                    }
                }
                (check.progress)(check.checked.bytes);
                if check.is_in_the_way() {
                    return;
                }
            }
        }))
        .await;
        next_of(&windows).is_none()
    }
}

fn next_of<'a>(windows: &Mutex<std::slice::Chunks<'a, Run>>) -> Option<&'a [Run]> {
    windows.lock().next()
}

impl Pool {
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
