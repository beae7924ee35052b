//! Flushing: messages sink from the root towards the leaves, and every node that changes is written anew.
//!
//! A node that cannot be read is *set aside*: it stays where it is, and what is meant for it stays in its parent's buffer
//! (above a root, in a new one), where lookups find it. So damage takes the keys that a node held and nothing else, and
//! nobody has to read it to accept changes. It is tried again at every flush: what was only out of reach goes on as before.

mod buffer;
mod sink;

use crate::node::{Body, Child, Draft, Node, entry_len};
use crate::{Key, Limits, Message, NodePtr, NodeStore, RangeSet, Semantics};
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
        // They settle where they are.
        let entries = points.into_iter().filter_map(|(key, message)| self.settled(key, message)).collect();
        let mut children = self.write_leaves(entries, low).await?;
        for level in 1..=level {
            if children.is_empty() {
                break;
            }
            children = self.write_interior(level, children, Batch::default()).await?;
        }
        Ok(children)
    }

    /// What a leaf has of a message: the value, if there is one.
    fn settled(&self, key: Key, message: Message) -> Option<(Key, Message)> {
        let value = message.value(&key, &**self.semantics)?;
        Some((key, Message::Put(value)))
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
                entries.extend(self.settled(key, message));
            }
            let mut message = node.message(index);
            if batch.deleted.contains(key) {
                message.lose(key, &**self.semantics, &mut self.lost);
                message = Message::Delete;
            }
            if let Some((_, newer)) = newer.next_if(|(new, _)| new.as_slice() == key) {
                message = message.then(key, newer, &**self.semantics, &mut self.lost);
            }
            entries.extend(self.settled(Key::from_slice(key), message));
        }
        for (key, message) in newer {
            entries.extend(self.settled(key, message));
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
        if node.len() == 0 && node.deleted.is_empty() {
            return batch;
        }
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
