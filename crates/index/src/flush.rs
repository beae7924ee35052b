//! Flushing: messages sink from the root towards the leaves, and every node that changes is written anew.
//!
//! A node that cannot be read is *set aside*: it stays where it is, and what is meant for it stays in its parent's buffer
//! (above a root, in a new one), where lookups find it. So damage takes the keys that a node held and nothing else, and
//! nobody has to read it to accept changes. It is tried again at every flush: what was only out of reach goes on as before.

mod buffer;

use crate::node::{Body, Child, Draft, Node, entry_len};
use crate::{BoxFuture, Key, Limits, Message, NodePtr, NodeStore, RangeSet, Semantics};
use ashlar_block::{Error, Kind, Result};
use buffer::{Approach, Arriving};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::pin::Pin;
use std::sync::Arc;

/// What a flush did.
#[derive(Debug)]
pub struct Flushed<L> {
    /// The new root.
    pub root: Option<NodePtr>,
    /// Nodes that the new root no longer reaches.
    pub replaced: Vec<NodePtr>,
    /// What the messages made disappear.
    pub lost: L,
}

/// What a flush does beyond pushing messages.
#[derive(Clone, Debug, Default)]
pub struct Errands {
    /// Pending messages sink to the leaves wherever there are any, so that what they delete is lost now.
    pub thorough: bool,
    /// Segments whose nodes are to be written elsewhere, if they were born after `leave_born_after`.
    pub leave: BTreeSet<u64>,
    /// See `leave`.
    pub leave_born_after: u64,
    /// Where such nodes may be: a key in the range of each, and the lowest level there.
    pub routes: BTreeMap<Key, u8>,
    /// Nodes born up to this checkpoint belong to somebody else too: below them nothing is lost.
    pub foreign: u64,
    /// Pairs in the order of their keys that come past the memtable, newer than all that it holds.
    pub load: Vec<(Key, Bytes)>,
}

impl Errands {
    fn leaves(&self, ptr: &NodePtr) -> bool {
        ptr.birth > self.leave_born_after && self.leave.contains(&ptr.uid)
    }
    /// Whether a flush has something to do though nothing is pending in memory.
    pub fn is_empty(&self) -> bool {
        !self.thorough && self.routes.is_empty() && self.load.is_empty()
    }
    /// Whether a child of this level with this range must be visited on the way.
    fn lead_to(&self, low: &[u8], high: Option<&[u8]>, level: u8) -> bool {
        let range = (Bound::Included(low), high.map_or(Bound::Unbounded, Bound::Excluded));
        self.routes.range::<[u8], _>(range).any(|(_, lowest)| *lowest <= level)
    }
}

/// Share of a buffer that one pending range delete weighs: it may free much below, so it should sink soon.
const RANGE_SHARE: usize = 64;

/// Bytes of messages that a node may keep for children that are set aside: they are written anew with every change to it, and
/// decoders refuse four times as much. A leaf of the usual size has 64 KiB; more comes where much is new in its range.
const ASIDE_BYTES_MAX: usize = 16 << 20;

/// So many children are read at once when messages sink to them, while those before them are visited; one after the other, a flush
/// would wait for each.
const LOAD_AHEAD: usize = 8;

/// Messages of less than this share of a buffer are not worth waking somebody who would help.
const APART_SHARE: usize = 64;

/// Whether a node that gives this error is set aside.
fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), Kind::Corrupt | Kind::Failed | Kind::Retry)
}

/// Messages in the order of their keys, one for a key.
type Points = Vec<(Key, Message)>;

struct Flusher<'a, S: Semantics, N> {
    store: &'a N,
    semantics: &'a Arc<S>,
    limits: Limits,
    tree: u64,
    errands: &'a Arc<Errands>,
    replaced: Vec<NodePtr>,
    lost: S::Lost,
}

/// Messages for one subtree. Range deletes are older than points, as in every buffer.
#[derive(Default)]
struct Batch {
    points: Points,
    deleted: RangeSet,
}

#[allow(clippy::too_many_arguments, reason = "one call site, in `Tree::flush`")]
pub(crate) async fn flush<S: Semantics>(
    store: &impl NodeStore,
    semantics: &Arc<S>,
    limits: Limits,
    tree: u64,
    root: Option<NodePtr>,
    points: Points,
    deleted: RangeSet,
    errands: &Arc<Errands>,
) -> Result<Flushed<S::Lost>> {
    let lost = S::Lost::default();
    let mut flusher = Flusher { store, semantics, limits, tree, errands, replaced: Vec::new(), lost };
    if points.is_empty() && deleted.is_empty() && errands.is_empty() {
        return Ok(Flushed { root, replaced: Vec::new(), lost: flusher.lost });
    }
    let batch = flusher.load_over(Batch { points, deleted });
    let root = match root {
        None => flusher.grow(batch.points, 0, &[]).await?,
        Some(ptr) => match flusher.approach(ptr, None, &[], None, batch.arriving()).await {
            Ok(approach) => {
                let level = approach.node.level();
                let children = flusher.push(ptr, approach, Vec::new(), None, batch).await?;
                flusher.crown(children, level).await?
            }
            Err(error) if is_damage(&error) => flusher.cover(ptr, batch, error).await?,
            Err(error) => return Err(error),
        },
    };
    Ok(Flushed { root, replaced: flusher.replaced, lost: flusher.lost })
}

/// What became of a child and of what was meant for it.
enum Outcome {
    /// These stand in its place.
    Becomes(Vec<Child>),
    /// Nothing: it was not visited.
    Stays(Child, Batch),
    /// It cannot be read.
    Aside(Child, Batch, Error),
}

/// A visit of a child, that has ended or that somebody else makes.
enum Visit<L> {
    Ended(Result<Outcome>),
    Apart(BoxFuture<Part<L>>),
}

/// What somebody else did of a flush.
struct Part<L> {
    outcome: Result<Outcome>,
    replaced: Vec<NodePtr>,
    lost: L,
}

impl Batch {
    /// Adds what is for keys behind all that it has.
    fn add(&mut self, mut behind: Batch) {
        self.points.append(&mut behind.points);
        behind.deleted.iter().for_each(|(low, high)| self.deleted.insert(low, high));
    }

    /// Bytes of its messages in a node.
    fn len(&self) -> usize {
        self.points.iter().map(|(key, message)| entry_len(key, message)).sum()
    }

    fn arriving(&self) -> Arriving {
        Arriving { bytes: self.len(), deletes: !self.deleted.is_empty() }
    }

    /// Takes out what concerns `low..high`.
    fn split(&mut self, low: &[u8], high: Option<&[u8]>) -> Batch {
        let first = below(&self.points, Some(low));
        let end = below(&self.points, high).max(first);
        Batch { points: self.points.drain(first..end).collect(), deleted: self.deleted.take(low, high) }
    }
}

/// How many of the messages, counted from the first, have keys below `high`.
fn below(points: &[(Key, Message)], high: Option<&[u8]>) -> usize {
    high.map_or(points.len(), |high| points.partition_point(|(key, _)| key.as_slice() < high))
}

/// Brings those into memory that are not there, if they are several.
async fn load_ahead(store: &impl NodeStore, ptrs: &[NodePtr]) {
    let absent: Vec<NodePtr> = ptrs.iter().filter(|ptr| store.cached(ptr).is_none()).copied().collect();
    if absent.len() > 1 {
        store.load_ahead(&absent).await;
    }
}

type Fetch<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Does the work, and goes on with fetching meanwhile.
async fn beside<T>(fetching: &mut Option<Fetch<'_>>, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| {
        if fetching.as_mut().is_some_and(|fetch| fetch.as_mut().poll(context).is_ready()) {
            *fetching = None;
        }
        work.as_mut().poll(context)
    })
    .await
}

type Children<'a> = Pin<Box<dyn Future<Output = Result<Vec<Child>>> + Send + 'a>>;

impl<S: Semantics, N: NodeStore> Flusher<'_, S, N> {
    async fn load(&self, ptr: NodePtr) -> Result<Arc<Node>> {
        // What is written anew from a node that bad memory has changed would be wrong for ever. The medium has it right.
        match self.store.cached(&ptr).filter(|node| node.verify().is_ok()) {
            Some(node) => Ok(node),
            None => self.store.load(ptr).await,
        }
    }

    /// What was pending in memory, under the pairs that are loaded.
    fn load_over(&mut self, batch: Batch) -> Batch {
        if self.errands.load.is_empty() {
            return batch;
        }
        let mut points = Points::with_capacity(batch.points.len() + self.errands.load.len());
        let mut older = batch.points.into_iter().peekable();
        for (key, value) in &self.errands.load {
            points.extend(std::iter::from_fn(|| older.next_if(|(old, _)| old < key)));
            if let Some((_, message)) = older.next_if(|(old, _)| old == key) {
                message.lose(key, &**self.semantics, &mut self.lost);
            }
            points.push((key.clone(), Message::Put(value.clone())));
        }
        points.extend(older);
        Batch { points, deleted: batch.deleted }
    }

    /// As [`Flusher::load`], for a node whose level and range are known.
    async fn load_placed(&self, ptr: NodePtr, level: Option<u8>, low: &[u8], high: Option<&[u8]>) -> Result<Arc<Node>> {
        let node = self.load(ptr).await?;
        node.check_node(level, low, high).map(|()| node)
    }

    /// As [`Flusher::load_placed`] in any range; `None`: it is set aside.
    async fn load_at(&self, ptr: NodePtr, level: Option<u8>) -> Result<Option<Arc<Node>>> {
        match self.load_placed(ptr, level, &[], None).await {
            Err(error) if is_damage(&error) => Ok(None),
            other => other.map(Some),
        }
    }

    /// A root that keeps what is meant for one that cannot be read.
    async fn cover(&mut self, root: NodePtr, batch: Batch, error: Error) -> Result<Option<NodePtr>> {
        if batch.points.is_empty() && batch.deleted.is_empty() {
            return Ok(Some(root));
        }
        // How high it is, it would have said itself.
        let level = self.store.height(&root).await.map_err(|_| error)?;
        let children = self.write_interior(level + 1, vec![Child { low: Key::new(), ptr: root }], batch).await?;
        Ok(children.first().map(|child| child.ptr))
    }

    /// A root above `children`, which all have `level`.
    async fn crown(&mut self, mut children: Vec<Child>, mut level: u8) -> Result<Option<NodePtr>> {
        while children.len() > 1 {
            level += 1;
            children = self.write_interior(level, children, Batch::default()).await?;
        }
        // A root with one child and nothing pending is not needed.
        let Some(mut root) = children.pop().map(|child| child.ptr) else { return Ok(None) };
        let mut level = None;
        loop {
            let Some(node) = self.load_at(root, level).await? else { return Ok(Some(root)) };
            if node.level() == 0 || node.children.len() > 1 || node.has_pending() {
                return Ok(Some(root));
            }
            self.replaced.push(root);
            (root, level) = (node.children[0].ptr, node.level_below());
        }
    }

    /// A new subtree for points with nothing below them.
    async fn grow(&mut self, points: Points, level: u8, low: &[u8]) -> Result<Option<NodePtr>> {
        let children = self.sprout(points, level, low).await?;
        self.crown(children, level).await
    }

    /// New nodes of `level` for points with nothing below them.
    async fn sprout(&mut self, points: Points, level: u8, low: &[u8]) -> Result<Vec<Child>> {
        let mut entries = Vec::with_capacity(points.len());
        for (key, message) in points {
            self.settle(key, message, &mut entries);
        }
        let mut children = self.write_leaves(entries, low).await?;
        for level in 1..=level {
            if children.is_empty() {
                break;
            }
            children = self.write_interior(level, children, Batch::default()).await?;
        }
        Ok(children)
    }

    fn settle(&self, key: Key, message: Message, entries: &mut Vec<(Key, Message)>) {
        if let Some(value) = message.value(&key, &**self.semantics) {
            entries.push((key, Message::Put(value)));
        }
    }

    /// Applies `batch` to the node at `ptr`, whose range is `low..high`; gives the nodes of the same level that stand in
    /// its place.
    fn push<'b>(
        &'b mut self,
        ptr: NodePtr,
        approach: Approach,
        low: Vec<u8>,
        high: Option<Key>,
        batch: Batch,
    ) -> Children<'b> {
        Box::pin(async move {
            if approach.node.level() == 0 {
                return self.push_leaf(ptr, &approach.node, &low, batch).await;
            }
            if approach.appends {
                return self.append_run(ptr, &approach, &low, batch).await;
            }
            self.push_interior(ptr, &approach, low, high, batch).await
        })
    }

    async fn push_leaf(&mut self, ptr: NodePtr, node: &Node, low: &[u8], batch: Batch) -> Result<Vec<Child>> {
        if batch.points.is_empty() && batch.deleted.is_empty() && !self.errands.leaves(&ptr) {
            return Ok(vec![Child { low: Key::from_slice(low), ptr }]);
        }
        let mut entries = Vec::with_capacity(node.len() + batch.points.len());
        let mut newer = batch.points.into_iter().peekable();
        for index in 0..node.len() {
            let key = node.key(index);
            while let Some((key, message)) = newer.next_if(|(new, _)| new.as_slice() < key) {
                self.settle(key, message, &mut entries);
            }
            let mut message = node.message(index);
            if batch.deleted.contains(key) {
                message.lose(key, &**self.semantics, &mut self.lost);
                message = Message::Delete;
            }
            if let Some((_, newer)) = newer.next_if(|(new, _)| new.as_slice() == key) {
                message = message.then(key, newer, &**self.semantics, &mut self.lost);
            }
            self.settle(Key::from_slice(key), message, &mut entries);
        }
        for (key, message) in newer {
            self.settle(key, message, &mut entries);
        }
        self.replaced.push(ptr);
        self.write_leaves(entries, low).await
    }

    async fn push_interior(
        &mut self,
        ptr: NodePtr,
        approach: &Approach,
        low: Vec<u8>,
        high: Option<Key>,
        batch: Batch,
    ) -> Result<Vec<Child>> {
        let node = &approach.node;
        let level = node.level();
        node.check_node(None, &low, high.as_deref())?;
        let untouched = batch.points.is_empty() && batch.deleted.is_empty();
        let leaving = self.leaves(&ptr, node);
        let stays = self.stays(node, batch.arriving());
        if stays && !leaving && !self.errands.lead_to(&low, high.as_deref(), level - 1) {
            return Ok(vec![Child { low: Key::from_slice(&low), ptr }]);
        }
        // Where the buffer stays, nothing is pending here: some children are visited.
        let mut pending = if stays { Batch::default() } else { self.merge_all(approach, batch) };
        let mut children = node.children.clone();
        if let Some(first) = children.first_mut() {
            first.low = Key::from_slice(&low);
        }
        self.prune(level, &mut children, high.as_deref(), &mut pending).await?;
        if children.is_empty() {
            self.replace(ptr, node);
            return self.sprout(pending.points, level, &low).await;
        }
        let before: Vec<NodePtr> = children.iter().map(|child| child.ptr).collect();
        let claim_start = |children: &mut Vec<Child>| {
            if let Some(first) = children.first_mut() {
                first.low = Key::from_slice(&low);
            }
        };
        claim_start(&mut children);
        self.sink(level, &mut children, high.as_deref(), &mut pending).await?;
        claim_start(&mut children);
        self.join_small(&mut children, &before, level - 1).await?;
        let kept = stays || (node.runs.is_empty() && pending.points.len() == node.len());
        if untouched && !leaving && children == node.children && kept {
            return Ok(vec![Child { low: Key::from_slice(&low), ptr }]);
        }
        if stays && !children.is_empty() {
            self.replaced.push(ptr);
            let own = self.merge(node, Batch::default());
            let runs = self.carry(&node.runs, level).await?;
            // Should it have more children than it may have, the next that arrives divides it.
            let ptr = self.write_node(level, &low, &children, &runs, own).await?;
            return Ok(vec![Child { low: Key::from_slice(&low), ptr }]);
        }
        self.replace(ptr, node);
        if children.is_empty() {
            return self.sprout(pending.points, level, &low).await;
        }
        self.write_interior(level, children, pending).await
    }

    /// The node's buffer under the arriving batch.
    fn merge(&mut self, node: &Node, batch: Batch) -> Batch {
        let mut points = Points::with_capacity(node.len() + batch.points.len());
        let mut newer = batch.points.into_iter().peekable();
        for index in 0..node.len() {
            let key = node.key(index);
            points.extend(std::iter::from_fn(|| newer.next_if(|(new, _)| new.as_slice() < key)));
            let message = node.message(index);
            let deleted = batch.deleted.contains(key);
            match (newer.next_if(|(new, _)| new.as_slice() == key), deleted) {
                (newer, true) => {
                    message.lose(key, &**self.semantics, &mut self.lost);
                    points.extend(newer);
                }
                (None, false) => points.push((Key::from_slice(key), message)),
                (Some((new, newer)), false) => {
                    let combined = message.then(key, newer, &**self.semantics, &mut self.lost);
                    points.push((new, combined));
                }
            }
        }
        points.extend(newer);
        let mut deleted = node.deleted.clone();
        for (low, high) in batch.deleted.iter() {
            deleted.insert(low, high);
        }
        Batch { points, deleted }
    }

    /// Drops children that a range delete covers wholly (leaf pruning, BetrFS §5.2), and the part of the range delete that
    /// did it. What cannot be read below them remains, since nobody knows what is lost with it, and a range delete above it.
    async fn prune(
        &mut self,
        level: u8,
        children: &mut Vec<Child>,
        high: Option<&[u8]>,
        pending: &mut Batch,
    ) -> Result<()> {
        if pending.deleted.is_empty() {
            return Ok(());
        }
        let mut index = 0;
        while index < children.len() {
            let low = children[index].low.clone();
            let end = children.get(index + 1).map(|child| child.low.clone()).or_else(|| high.map(Key::from_slice));
            if pending.deleted.covers(&low, end.as_deref()) {
                let child = children.remove(index);
                let rest = self.drop_subtree(child.ptr, level - 1, low.clone(), end.clone()).await?;
                if !rest.contains(&Child { low: low.clone(), ptr: child.ptr }) {
                    // No key remains there, or it has a range delete of its own.
                    drop(pending.deleted.take(&low, end.as_deref()));
                }
                let count = rest.len();
                children.splice(index..index, rest);
                index += count;
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    /// Everything below `ptr`, a node of this level with the range `low..high`, is lost. Gives what stands in its place:
    /// nothing, but for what cannot be read.
    fn drop_subtree<'b>(&'b mut self, ptr: NodePtr, level: u8, low: Key, high: Option<Key>) -> Children<'b> {
        Box::pin(async move {
            if ptr.birth <= self.errands.foreign {
                return Ok(Vec::new());
            }
            let node = match self.load_placed(ptr, Some(level), &low, high.as_deref()).await {
                Err(error) if is_damage(&error) => return Ok(vec![Child { low, ptr }]),
                other => other?,
            };
            let runs = match self.load_runs(&node, node.runs.len()).await {
                Err(error) if is_damage(&error) => return Ok(vec![Child { low, ptr }]),
                other => other?,
            };
            for (key, message) in runs.iter().chain([&node]).flat_map(|node| node.messages()) {
                message.lose(key, &**self.semantics, &mut self.lost);
            }
            let mut rest = Vec::new();
            for (child, low, high) in node.child_ranges(&low, high.as_deref()) {
                rest.append(&mut self.drop_subtree(child, level - 1, low, high).await?);
            }
            self.replace(ptr, &node);
            let Some(first) = rest.first_mut() else { return Ok(rest) };
            first.low = low.clone();
            let mut pending = Batch::default();
            high.iter().for_each(|high| pending.deleted.insert(&low, high));
            self.write_interior(level, rest, pending).await
        })
    }

    /// Pushes pending messages to the children that have most of them, until the rest fits.
    async fn sink(
        &mut self,
        level: u8,
        children: &mut Vec<Child>,
        high: Option<&[u8]>,
        pending: &mut Batch,
    ) -> Result<()> {
        let mut bytes = vec![0usize; children.len()];
        let child_of = |key: &[u8]| children.partition_point(|child| child.low.as_slice() <= key).saturating_sub(1);
        for (key, message) in &pending.points {
            bytes[child_of(key)] += entry_len(key, message);
        }
        let mut weights = bytes.clone();
        for (low, end) in pending.deleted.iter() {
            let (first, last) = (child_of(low), child_of(end));
            weights[first..=last].iter_mut().for_each(|weight| *weight += self.limits.buffer_bytes / RANGE_SHARE);
        }
        let mut total: usize = weights.iter().sum();
        let mut heaviest: Vec<usize> = (0..children.len()).collect();
        heaviest.sort_by_key(|index| std::cmp::Reverse(weights[*index]));
        let mut chosen = vec![false; children.len()];
        if total > self.limits.buffer_bytes {
            // What stays is written anew. With runs nothing is until the buffer is full again, so less of it stays.
            let stays = self.limits.buffer_bytes / if self.limits.runs > 0 { 8 } else { 2 };
            for index in heaviest {
                if total <= stays {
                    break;
                }
                chosen[index] = true;
                total -= weights[index];
            }
        }
        let ends: Vec<Option<Key>> =
            children.iter().skip(1).map(|child| Some(child.low.clone())).chain([high.map(Key::from_slice)]).collect();
        for ((child, end), chosen) in children.iter().zip(&ends).zip(&mut chosen) {
            *chosen |= self.errands.lead_to(&child.low, end.as_deref(), level - 1);
        }
        if self.errands.thorough {
            // Whatever may hold pending messages: children that get some, and all interior ones.
            chosen.iter_mut().zip(&weights).for_each(|(chosen, weight)| *chosen |= *weight > 0 || level > 1);
        }
        if chosen.iter().all(|chosen| !chosen) {
            return Ok(());
        }
        let old = std::mem::take(children);
        let mut points = std::mem::take(&mut pending.points).into_iter();
        let wanted: Vec<NodePtr> =
            old.iter().zip(&chosen).filter(|(_, chosen)| **chosen).map(|(child, _)| child.ptr).collect();
        let store = self.store;
        let mut windows = wanted.chunks(LOAD_AHEAD);
        let mut fetch_next = || windows.next().map(|window| -> Fetch<'_> { Box::pin(load_ahead(store, window)) });
        let (mut fetching, mut ahead) = (fetch_next(), 0);
        let mut visits = Vec::with_capacity(old.len());
        for (((child, end), chosen), bytes) in old.into_iter().zip(ends).zip(chosen).zip(bytes) {
            let count = below(points.as_slice(), end.as_deref());
            let points = points.by_ref().take(count).collect();
            if !chosen {
                let batch = Batch { points, deleted: RangeSet::default() };
                visits.push(Visit::Ended(Ok(Outcome::Stays(child, batch))));
                continue;
            }
            if ahead == 0 {
                if let Some(fetch) = fetching.take() {
                    fetch.await;
                }
                (fetching, ahead) = (fetch_next(), LOAD_AHEAD);
            }
            ahead -= 1;
            let batch = Batch { points, deleted: pending.deleted.take(&child.low, end.as_deref()) };
            // Where heads move, nodes lie in the order of their keys, or a scan would be many short reads.
            let may_part = self.limits.runs > 0 && bytes >= self.limits.buffer_bytes / APART_SHARE;
            let visit = match self.store.helper().filter(|_| may_part) {
                Some(helper) => self.visit_apart(helper, child, level - 1, end, batch),
                None => Visit::Ended(beside(&mut fetching, self.visit(child, level - 1, end, batch)).await),
            };
            let failed = matches!(visit, Visit::Ended(Err(_)));
            visits.push(visit);
            if failed {
                break;
            }
        }
        // Whoever makes a part must not wait for nodes that nobody fetches any more.
        drop(fetching);
        let (mut aside, mut failed) = (None, None);
        for visit in visits {
            let outcome = match visit {
                Visit::Ended(outcome) => outcome,
                // Whether the flush failed or not: nobody goes on behind its back.
                Visit::Apart(part) => {
                    let Part { outcome, mut replaced, lost } = part.await;
                    self.replaced.append(&mut replaced);
                    S::gather(&mut self.lost, lost);
                    outcome
                }
            };
            match outcome {
                Ok(Outcome::Becomes(mut replacement)) => children.append(&mut replacement),
                Ok(Outcome::Stays(child, batch)) => {
                    children.push(child);
                    pending.add(batch);
                }
                Ok(Outcome::Aside(child, batch, error)) => {
                    children.push(child);
                    pending.add(batch);
                    aside = Some(error);
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        match aside {
            Some(error) if pending.len() > ASIDE_BYTES_MAX => Err(error.within(
                "an index node cannot be read, and too much was changed in its range to be kept beside it; copy what can be \
                 read to another volume",
            )),
            _ => Ok(()),
        }
    }

    /// Pushes a batch to a child of `level` whose range ends at `end`.
    async fn visit(&mut self, child: Child, level: u8, end: Option<Key>, batch: Batch) -> Result<Outcome> {
        match self.approach(child.ptr, Some(level), &child.low, end.as_deref(), batch.arriving()).await {
            Ok(approach) => self.push(child.ptr, approach, child.low.to_vec(), end, batch).await.map(Outcome::Becomes),
            Err(error) if is_damage(&error) => Ok(Outcome::Aside(child, batch, error)),
            Err(error) => Err(error),
        }
    }

    /// The same, by somebody else.
    fn visit_apart(
        &self,
        helper: N::Helper,
        child: Child,
        level: u8,
        end: Option<Key>,
        batch: Batch,
    ) -> Visit<S::Lost> {
        let (semantics, errands) = (self.semantics.clone(), self.errands.clone());
        let (limits, tree, store) = (self.limits, self.tree, helper.clone());
        Visit::Apart(helper.run(async move {
            let (replaced, lost) = (Vec::new(), S::Lost::default());
            let (store, semantics, errands) = (&store, &semantics, &errands);
            let mut flusher = Flusher { store, semantics, limits, tree, errands, replaced, lost };
            let outcome = flusher.visit(child, level, end, batch).await;
            Part { outcome, replaced: flusher.replaced, lost: flusher.lost }
        }))
    }

    /// Joins neighbours that together are less than half full, if one of them is new.
    async fn join_small(&mut self, children: &mut Vec<Child>, before: &[NodePtr], level: u8) -> Result<()> {
        let full = if level == 0 { self.limits.leaf_bytes } else { self.limits.buffer_bytes };
        let mut index = 0;
        while index + 1 < children.len() {
            let (left, right) = (children[index].ptr, children[index + 1].ptr);
            let small = (left.raw_len as usize + right.raw_len as usize) < full / 2;
            if !small || (before.contains(&left) && before.contains(&right)) {
                index += 1;
                continue;
            }
            let nodes = (self.load_at(left, Some(level)).await?, self.load_at(right, Some(level)).await?);
            let (Some(left_node), Some(right_node)) = nodes else {
                index += 1;
                continue;
            };
            let has_runs = !left_node.runs.is_empty() || !right_node.runs.is_empty();
            if has_runs || left_node.children.len() + right_node.children.len() > self.limits.fanout {
                index += 1;
                continue;
            }
            let low = children[index].low.clone();
            let mut entries: Vec<(Key, Message)> = Vec::with_capacity(left_node.len() + right_node.len());
            for node in [&left_node, &right_node] {
                entries.extend(node.messages().map(|(key, message)| (Key::from_slice(key), message)));
            }
            let mut below = left_node.children.clone();
            below.extend(right_node.children.iter().cloned());
            if let Some(seam) = below.get_mut(left_node.children.len()) {
                seam.low = children[index + 1].low.clone();
            }
            let mut deleted = left_node.deleted.clone();
            for (start, end) in right_node.deleted.iter() {
                deleted.insert(start, end);
            }
            let ptr = if level == 0 {
                self.write(level, &low, Body { deleted: &deleted, entries: &entries, ..Body::default() }).await?
            } else {
                self.write_node(level, &low, &below, &[], Batch { points: entries, deleted }).await?
            };
            self.replaced.extend([left, right]);
            children[index].ptr = ptr;
            children.remove(index + 1);
        }
        Ok(())
    }

    /// Leaves for sorted entries: full ones from the left, the last two of equal size.
    async fn write_leaves(&mut self, entries: Vec<(Key, Message)>, low: &[u8]) -> Result<Vec<Child>> {
        let mut children = Vec::new();
        let mut rest = &entries[..];
        let mut left: usize = rest.iter().map(|(key, message)| entry_len(key, message)).sum();
        while !rest.is_empty() {
            let target = if left >= 2 * self.limits.leaf_bytes {
                self.limits.leaf_bytes
            } else if left > self.limits.leaf_bytes {
                left / 2
            } else {
                left
            };
            let (mut count, mut bytes) = (0, 0);
            for (key, message) in rest {
                let len = entry_len(key, message);
                if count > 0 && bytes + len > target.max(1) {
                    break;
                }
                (count, bytes) = (count + 1, bytes + len);
            }
            let (mine, others) = rest.split_at(count);
            let low = if children.is_empty() { Key::from_slice(low) } else { mine[0].0.clone() };
            let ptr = self.write(0, &low, Body { entries: mine, ..Body::default() }).await?;
            children.push(Child { low, ptr });
            (rest, left) = (others, left - bytes);
        }
        Ok(children)
    }

    /// Interior nodes over `children`, split evenly where there are too many.
    async fn write_interior(&mut self, level: u8, children: Vec<Child>, mut pending: Batch) -> Result<Vec<Child>> {
        let groups = children.len().div_ceil(self.limits.fanout);
        let size = children.len().div_ceil(groups);
        let mut written = Vec::with_capacity(groups);
        let groups: Vec<&[Child]> = children.chunks(size).collect();
        for (index, group) in groups.iter().enumerate() {
            let low = group[0].low.clone();
            let end = groups.get(index + 1).map(|next| next[0].low.clone());
            let mine =
                if groups.len() == 1 { std::mem::take(&mut pending) } else { pending.split(&low, end.as_deref()) };
            let ptr = self.write_node(level, &low, group, &[], mine).await?;
            written.push(Child { low, ptr });
        }
        Ok(written)
    }

    async fn write(&mut self, level: u8, low: &[u8], body: Body<'_>) -> Result<NodePtr> {
        let birth = self.store.birth();
        let (image, node) = Draft { tree: self.tree, level, birth, low, body }.encode()?;
        self.store.append(image, node).await
    }
}
