//! A tree: memtables over nodes. Lookups, pages of a range, and the two halves of a checkpoint.

use crate::flush::{Errands, Flushed, flush};
use crate::memtable::Verdict;
use crate::node::{Child, Node, Run, entry_len};
use crate::{Key, Limits, Memtable, Message, NodePtr, RangeSet, Seat, Semantics};
use ashlar_block::Result;
use bytes::Bytes;
use parking_lot::RwLock;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// Nodes that a scan reads at once, at most, and their bytes before compression.
const AHEAD_MAX: usize = 64;
const AHEAD_BYTES_MAX: usize = 4 << 20;
/// Who came through so many leaves just before goes on behind the end of its range: a walk of a tree of directories is many
/// short ranges, one behind the other.
const WALK_MIN: usize = 2;
/// Nodes of one level that [`View::read_ahead`] asks for.
const NODES_AHEAD_MAX: usize = 512;

/// Where nodes live.
pub trait NodeStore: Send + Sync {
    /// A handle to the same nodes with which somebody else takes part in a flush. [`Alone`] where nobody does.
    type Helper: NodeStore<Helper = Self::Helper> + Clone + 'static;

    /// Such a handle, if somebody has nothing else to do right now.
    fn helper(&self) -> Option<Self::Helper> {
        None
    }
    /// Runs a part of a flush elsewhere. It goes on also if nobody waits for it.
    fn run<T: Send + 'static>(&self, part: impl Future<Output = T> + Send + 'static) -> BoxFuture<T> {
        Box::pin(part)
    }
    /// A node that is in memory.
    fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>>;
    /// A leaf or a run that is in memory, for who knows that it must be one and need not be looked for among others.
    fn cached_leaf(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        self.cached(ptr)
    }
    /// A node, from memory or the medium, verified.
    fn load(&self, ptr: NodePtr) -> impl Future<Output = Result<Arc<Node>>> + Send;
    /// Brings nodes into memory that a scan will want, in key order, as far as that is possible. A hint: who cannot, does
    /// nothing, and what cannot be read is told to whom loads it.
    fn load_ahead(&self, ptrs: &[NodePtr]) -> impl Future<Output = ()> + Send {
        let _ = ptrs;
        std::future::ready(())
    }
    /// Appends a node. It need not be durable before the checkpoint's flush.
    fn append(&self, image: Bytes, node: Node) -> impl Future<Output = Result<NodePtr>> + Send;
    /// Height above the leaves of a node that cannot be loaded, as somebody noted it beside the node.
    fn height(&self, ptr: &NodePtr) -> impl Future<Output = Result<u8>> + Send;
    /// Number of the checkpoint that is being written: the birth of appended nodes.
    fn birth(&self) -> u64;
}

/// A future of a known size.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The helper where there is none.
#[derive(Clone, Copy, Debug)]
pub enum Alone {}

impl NodeStore for Alone {
    type Helper = Alone;

    fn cached(&self, _ptr: &NodePtr) -> Option<Arc<Node>> {
        match *self {}
    }
    async fn load(&self, _ptr: NodePtr) -> Result<Arc<Node>> {
        match *self {}
    }
    async fn append(&self, _image: Bytes, _node: Node) -> Result<NodePtr> {
        match *self {}
    }
    async fn height(&self, _ptr: &NodePtr) -> Result<u8> {
        match *self {}
    }
    fn birth(&self) -> u64 {
        match *self {}
    }
}

/// A tree that takes messages.
pub struct Tree<S: Semantics> {
    id: u64,
    semantics: Arc<S>,
    view: RwLock<View>,
}

/// A tree at one moment: what a reader needs.
#[derive(Clone, Default)]
pub struct View {
    active: Arc<Memtable>,
    frozen: Option<Arc<Memtable>>,
    root: Option<NodePtr>,
}

/// What waits in a tree on its way to the leaves. Lengths are bytes before compression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffers {
    /// Messages in memory: point messages' bytes, and range deletes.
    pub memory: (u64, u64),
    /// Levels, with the leaves.
    pub levels: u8,
    /// Interior nodes that were looked at, and what their buffers hold.
    pub nodes: u64,
    /// Bytes of point messages in these.
    pub pending: u64,
    /// Point messages in these.
    pub messages: u64,
    /// Range deletes in these.
    pub ranges: u64,
    /// Interior nodes that were seen and not looked at: there were too many, or they cannot be read.
    pub left: u64,
}

/// Part of a range in key order.
#[derive(Debug, Default)]
pub struct Page {
    /// Keys and values.
    pub entries: Vec<(Key, Bytes)>,
    /// Where the rest begins; `None` at the end of the range.
    pub next: Option<Key>,
}

impl<S: Semantics> Tree<S> {
    /// A tree with this root, and no messages yet.
    pub fn open(id: u64, root: Option<NodePtr>, semantics: Arc<S>) -> Tree<S> {
        Tree { id, semantics, view: RwLock::new(View { root, ..View::default() }) }
    }
    /// Its number, which its nodes bear.
    pub fn id(&self) -> u64 {
        self.id
    }
    /// Adds a message. Messages to one tree must be applied in the order in which they are logged.
    pub fn apply(&self, key: Key, message: Message, lost: &mut S::Lost) {
        self.view.read().active.insert(key, message, &*self.semantics, lost);
    }
    /// Deletes every key in `low..high`.
    pub fn delete_range(&self, low: &[u8], high: &[u8], lost: &mut S::Lost) {
        self.view.read().active.delete_range(low, high, &*self.semantics, lost);
    }
    /// Bytes of messages in memory: newest, and being flushed.
    pub fn memory(&self) -> (usize, usize) {
        let view = self.view.read();
        (view.active.bytes(), view.frozen.as_ref().map_or(0, |frozen| frozen.bytes()))
    }
    /// Whether messages wait in memory.
    pub fn is_dirty(&self) -> bool {
        let view = self.view.read();
        !view.active.is_empty() || view.frozen.is_some()
    }
    /// The tree as it is now; later messages to the active memtable remain visible through it.
    pub fn view(&self) -> View {
        self.view.read().clone()
    }
    /// The root as of the last checkpoint.
    pub fn root(&self) -> Option<NodePtr> {
        self.view.read().root
    }

    /// The value of `key`.
    pub async fn get(&self, store: &impl NodeStore, key: &[u8]) -> Result<Option<Bytes>> {
        let mut open = Vec::new();
        let root = {
            let view = self.view.read();
            match look_in_memory(&view, key, &mut open)? {
                Some(closed) => return Ok(self.compose(key, closed, open)),
                None => view.root,
            }
        };
        let closed = look_below(store, root, key, &mut open).await?;
        Ok(self.compose(key, closed, open))
    }

    /// The value of `key` if it can be had without I/O; what changed in memory cannot.
    #[allow(clippy::option_option, reason = "outer: known; inner: present")]
    pub fn get_cached(&self, store: &impl NodeStore, key: &[u8]) -> Option<Option<Bytes>> {
        let mut open = Vec::new();
        let mut next = {
            let view = self.view.read();
            if let Some(closed) = look_in_memory(&view, key, &mut open).ok()? {
                return Some(self.compose(key, closed, open));
            }
            view.root
        };
        let mut level = None;
        while let Some(ptr) = next {
            let node = cached(store, &ptr, level)?;
            node.check_height(level).ok()?;
            level = node.level_below();
            if let Some(closed) = look_in_buffer(&node, key, &mut open).ok()? {
                return Some(self.compose(key, closed, open));
            }
            for ptr in node.runs_for(key).ok()? {
                let run = store.cached_leaf(&ptr)?;
                run.check_run(node.level()).ok()?;
                if let Some(closed) = look_in_buffer(&run, key, &mut open).ok()? {
                    return Some(self.compose(key, closed, open));
                }
            }
            next = node.child_of(key);
        }
        Some(self.compose(key, Message::Delete, open))
    }

    /// Shows `take` the values and patches that buffers on the way down hold for `key`, newest first, until it returns true
    /// or nothing can lie below. `None`: a node on the way is not in memory, and what was shown is not all.
    pub fn trace_cached(&self, store: &impl NodeStore, key: &[u8], mut take: impl FnMut(&[u8]) -> bool) -> Option<()> {
        let mut next = {
            let view = self.view.read();
            for memtable in std::iter::once(&view.active).chain(&view.frozen) {
                if let Verdict::Says(message) = memtable.get(key).ok()?
                    && (take(message.payload()) || !message.is_open())
                {
                    return Some(());
                }
            }
            view.root
        };
        let mut see = |buffer: &Node| {
            let mut open = Vec::new();
            let closed = look_in_buffer(buffer, key, &mut open).ok()?;
            // A patch may lie on top of a range delete of its own node.
            let mut seen = open.iter().chain(&closed);
            Some(seen.any(|message| take(message.payload())) || closed.is_some())
        };
        let mut level = None;
        while let Some(ptr) = next {
            let node = cached(store, &ptr, level)?;
            level = node.level_below();
            if see(&node)? {
                return Some(());
            }
            for ptr in node.runs_for(key).ok()? {
                if see(&*store.cached_leaf(&ptr)?)? {
                    return Some(());
                }
            }
            next = node.child_of(key);
        }
        Some(())
    }

    fn compose(&self, key: &[u8], closed: Message, open: Vec<Message>) -> Option<Bytes> {
        View::compose(&*self.semantics, key, closed, open)
    }

    /// Entries from `low` on and below `high`, up to about `limit`; see [`Page::next`]. Pages may be empty before the end.
    pub async fn page(&self, store: &impl NodeStore, low: &[u8], high: Option<&[u8]>, limit: usize) -> Result<Page> {
        self.view().page(&*self.semantics, store, low, high, limit).await
    }

    /// First half of a checkpoint: later messages go to a new memtable. The caller keeps messages out meanwhile.
    ///
    /// # Panics
    /// If a frozen memtable is still there.
    pub fn freeze(&self) {
        let mut view = self.view.write();
        assert!(view.frozen.is_none(), "one checkpoint at a time");
        if !view.active.is_empty() {
            view.frozen = Some(std::mem::take(&mut view.active));
        }
    }

    /// Pushes the frozen memtable's messages into nodes. Readers are not disturbed; [`Tree::install`] shows the result.
    pub async fn flush(
        &self,
        store: &impl NodeStore,
        limits: Limits,
        errands: impl Into<Arc<Errands>>,
    ) -> Result<Flushed<S::Lost>> {
        let (frozen, root) = {
            let view = self.view.read();
            (view.frozen.clone(), view.root)
        };
        let (points, deleted) = frozen.map(|frozen| frozen.contents()).transpose()?.unwrap_or_default();
        flush(store, &self.semantics, limits, self.id, root, points, deleted, &errands.into()).await
    }

    /// Flips a bit of a message in memory, for explorations; tells which. `None`: there is none with a payload.
    pub fn flip_in_memtable(&self, dice: u64) -> Option<String> {
        self.view.read().active.flip_bit(dice)
    }

    /// Second half of a checkpoint: the flushed root replaces the frozen memtable.
    pub fn install(&self, root: Option<NodePtr>) {
        let frozen = {
            let mut view = self.view.write();
            view.root = root;
            view.frozen.take()
        };
        // To free its messages takes long, and nobody waits for that.
        drop(frozen);
    }
}

/// Looks through the memtables. `Some`: decided.
pub(crate) fn look_in_memory(view: &View, key: &[u8], open: &mut Vec<Message>) -> Result<Option<Message>> {
    for memtable in std::iter::once(&view.active).chain(&view.frozen) {
        match memtable.get(key)? {
            Verdict::Silent => {}
            Verdict::Says(message) if message.is_open() => open.push(message),
            Verdict::Says(message) => return Ok(Some(message)),
        }
    }
    Ok(None)
}

/// What a node itself or a run says about a key: `Some` if nothing below matters. An error, before anything is pushed: memory has
/// changed what was looked at.
fn look_in_buffer(node: &Node, key: &[u8], open: &mut Vec<Message>) -> Result<Option<Message>> {
    let is_leaf = node.level() == 0 && !node.is_run();
    match node.find(key)? {
        Some(message) if message.is_open() && !is_leaf => open.push(message),
        Some(message) => return Ok(Some(message)),
        None => {}
    }
    let ends = is_leaf || (!node.deleted.is_empty() && node.deleted.contains(key));
    Ok(ends.then_some(Message::Delete))
}

/// A node, if it is in memory. A level that is known says what it must be.
fn cached(store: &impl NodeStore, ptr: &NodePtr, level: Option<u8>) -> Option<Arc<Node>> {
    if level == Some(0) { store.cached_leaf(ptr) } else { store.cached(ptr) }
}

/// A node, from memory if it is there.
async fn load(store: &impl NodeStore, ptr: NodePtr, level: Option<u8>) -> Result<Arc<Node>> {
    match cached(store, &ptr, level) {
        Some(node) => Ok(node),
        None => store.load(ptr).await,
    }
}

/// The same for a run.
async fn load_run(store: &impl NodeStore, ptr: NodePtr) -> Result<Arc<Node>> {
    match store.cached_leaf(&ptr) {
        Some(run) => Ok(run),
        None => store.load(ptr).await,
    }
}

/// As [`look_in_buffer`]. What memory has changed, the medium has right.
async fn look_in_stored(
    store: &impl NodeStore,
    ptr: NodePtr,
    node: &Node,
    key: &[u8],
    open: &mut Vec<Message>,
) -> Result<Option<Message>> {
    match look_in_buffer(node, key, open) {
        Err(_) => look_in_buffer(&*store.load(ptr).await?, key, open),
        looked => looked,
    }
}

pub(crate) async fn look_below(
    store: &impl NodeStore,
    root: Option<NodePtr>,
    key: &[u8],
    open: &mut Vec<Message>,
) -> Result<Message> {
    let (mut next, mut level) = (root, None);
    while let Some(ptr) = next {
        let node = load(store, ptr, level).await?;
        node.check_height(level)?;
        level = node.level_below();
        if let Some(closed) = look_in_stored(store, ptr, &node, key, open).await? {
            return Ok(closed);
        }
        let runs = match node.runs_for(key) {
            Ok(runs) => runs.collect(),
            Err(_) => store.load(ptr).await?.runs_for(key)?.collect::<Vec<_>>(),
        };
        for ptr in runs {
            let run = load_run(store, ptr).await?;
            run.check_run(node.level())?;
            if let Some(closed) = look_in_stored(store, ptr, &run, key, open).await? {
                return Ok(closed);
            }
        }
        next = node.child_of(key);
    }
    Ok(Message::Delete)
}

impl View {
    /// A view of nodes alone, such as a snapshot's.
    pub fn of_root(root: Option<NodePtr>) -> View {
        View { root, ..View::default() }
    }

    /// What is pending, in memory and in the buffers of the topmost `most` interior nodes.
    pub async fn buffers(&self, store: &impl NodeStore, most: u64) -> Buffers {
        let mut found = Buffers::default();
        for memtable in std::iter::once(&self.active).chain(&self.frozen) {
            found.memory.0 += memtable.bytes() as u64;
            found.memory.1 += memtable.deleted_in(&[], None).len() as u64;
        }
        let mut next: VecDeque<NodePtr> = self.root.into_iter().collect();
        while let Some(ptr) = next.pop_front() {
            let node = match store.cached(&ptr) {
                _ if found.nodes == most => None,
                Some(node) => Some(node),
                None => store.load(ptr).await.ok(),
            };
            let Some(node) = node else {
                found.left += 1;
                continue;
            };
            found.levels = found.levels.max(node.level() + 1);
            if node.level() == 0 {
                break; // a leaf at the root
            }
            found.nodes += 1;
            let mut buffer = vec![node.clone()];
            for run in &node.runs {
                buffer.extend(load_run(store, run.ptr).await.ok());
            }
            for part in buffer {
                found.ranges += part.deleted.len() as u64;
                found.messages += part.len() as u64;
                found.pending += part.messages().map(|(key, message)| entry_len(key, &message) as u64).sum::<u64>();
            }
            if node.level() > 1 {
                next.extend(node.children.iter().map(|child| child.ptr));
            }
        }
        found
    }

    /// The value of `key` in this view.
    pub async fn get<S: Semantics>(&self, semantics: &S, store: &impl NodeStore, key: &[u8]) -> Result<Option<Bytes>> {
        let mut open = Vec::new();
        let closed = match look_in_memory(self, key, &mut open)? {
            Some(closed) => closed,
            None => look_below(store, self.root, key, &mut open).await?,
        };
        Ok(View::compose(semantics, key, closed, open))
    }

    /// A value of what was found, the newest patch first.
    pub(crate) fn compose<S: Semantics>(
        semantics: &S,
        key: &[u8],
        closed: Message,
        open: Vec<Message>,
    ) -> Option<Bytes> {
        let mut lost = S::Lost::default();
        let message = open.into_iter().rev().fold(closed, |below, patch| below.then(key, patch, semantics, &mut lost));
        message.value(key, semantics)
    }

    /// What is in memory, the newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Memtable> {
        std::iter::once(&self.active).chain(&self.frozen).map(|memtable| &**memtable)
    }
    pub(crate) fn root(&self) -> Option<NodePtr> {
        self.root
    }

    /// See [`Tree::page`].
    pub async fn page<S: Semantics>(
        &self,
        semantics: &S,
        store: &impl NodeStore,
        low: &[u8],
        high: Option<&[u8]>,
        limit: usize,
    ) -> Result<Page> {
        if high.is_some_and(|high| high <= low) {
            return Ok(Page::default());
        }
        let mut path: Vec<(NodePtr, Arc<Node>)> = Vec::new();
        let mut bound: Option<Key> = high.map(Key::from_slice);
        if let Err(error) = self.descend(store, low, high, &mut path, &mut bound).await {
            if !error.is_damage() {
                return Err(error);
            }
            // What lies above may say all of the next keys; else what cannot be read may have nothing of the first.
            let end = self.answered(path.iter().map(|(_, node)| node), low, bound.as_deref())?;
            if end[..] == *low {
                let Ok(Some(value)) = self.get(semantics, store, low).await else { return Err(error) };
                let next = Some(behind(low)).filter(|next| high.is_none_or(|high| &next[..] < high));
                return Ok(Page { entries: vec![(Key::from_slice(low), value)], next });
            }
            lower(&mut bound, &end);
        }
        // From the oldest layer to the newest; each may shorten the page.
        let mut merged: BTreeMap<Key, Message> = BTreeMap::new();
        let mut lost = S::Lost::default();
        for (ptr, node) in path.iter().rev() {
            let points = match points_of(node, low, &mut bound, limit) {
                Ok(points) => points,
                // Memory has changed what was looked at. The medium has it right.
                Err(_) => points_of(&*store.load(*ptr).await?, low, &mut bound, limit)?,
            };
            overlay(&mut merged, points, &node.deleted, low, &bound, semantics, &mut lost);
        }
        for memtable in self.frozen.iter().chain(std::iter::once(&self.active)) {
            let mut points = memtable.points_in(low, bound.as_deref(), limit + 1)?;
            if points.len() > limit
                && let Some((key, _)) = points.pop()
            {
                lower(&mut bound, &key);
            }
            let deleted = memtable.deleted_in(low, bound.as_deref());
            overlay(&mut merged, points, &deleted, low, &bound, semantics, &mut lost);
        }
        let entries = merged
            .into_iter()
            .filter(|(key, _)| !beyond(&bound, key))
            .filter_map(|(key, message)| message.value(&key, semantics).map(|value| (key, value)))
            .collect();
        let at_end = bound.as_deref() == high;
        Ok(Page { entries, next: if at_end { None } else { bound } })
    }

    /// Finds the leaf that holds `low`, and what lies above it, the newest first. The page ends where that leaf ends.
    async fn descend(
        &self,
        store: &impl NodeStore,
        low: &[u8],
        high: Option<&[u8]>,
        path: &mut Vec<(NodePtr, Arc<Node>)>,
        bound: &mut Option<Key>,
    ) -> Result<()> {
        let mut above: Option<Arc<Node>> = None;
        let (mut next, mut level) = (self.root, None);
        while let Some(ptr) = next.take() {
            let node = load(store, ptr, level).await?;
            node.check_height(level)?;
            level = node.level_below();
            path.push((ptr, node.clone()));
            let absent = node.runs.iter().map(|run| run.ptr).filter(|ptr| store.cached(ptr).is_none());
            let absent: Vec<NodePtr> = absent.collect();
            if absent.len() > 1 {
                store.load_ahead(&absent).await;
            }
            for Run { ptr, .. } in &node.runs {
                let run = load_run(store, *ptr).await?;
                run.check_run(node.level())?;
                path.push((*ptr, run));
            }
            if node.level() > 0 {
                let index = node.child_for(low);
                if let Some(sibling) = node.children.get(index + 1) {
                    lower(bound, &sibling.low);
                }
                // Below a range delete, which may wait far above, nothing is left to be shown, readable or not.
                let deleted = path.iter().any(|(_, above)| above.deleted.covers(low, bound.as_deref()));
                next = (!deleted).then_some(node.children[index].ptr);
                if !deleted {
                    let ahead = ahead(store, above.as_deref(), &node, low, high);
                    if ahead.len() > 1 {
                        store.load_ahead(&ahead).await;
                    }
                }
            }
            above = Some(node);
        }
        Ok(())
    }
}

impl View {
    /// Brings what these ranges of keys, which are in order and do not meet, need into memory: about `bytes` of nodes at most, before
    /// compression. What cannot be read is told to whom asks for it.
    pub async fn read_ahead(&self, store: &impl NodeStore, ranges: &[(Key, Key)], bytes: u64) {
        let mut left = bytes;
        let mut seats: Vec<Seat> = self.root.map(Seat::root).into_iter().collect();
        while !seats.is_empty() {
            let absent = seats.iter().map(|seat| seat.ptr).filter(|ptr| store.cached(ptr).is_none());
            let wanted: Vec<NodePtr> = absent
                .take(NODES_AHEAD_MAX)
                .take_while(|ptr| {
                    let rest = left.checked_sub(u64::from(ptr.raw_len));
                    left = rest.unwrap_or(left);
                    rest.is_some()
                })
                .collect();
            store.load_ahead(&wanted).await;
            let known = seats.iter().filter_map(|seat| Some((store.cached(&seat.ptr)?, seat)));
            let mut below = Vec::new();
            for (node, seat) in known {
                if node.level() == 0 || node.check_seat(seat).is_err() {
                    continue;
                }
                below.extend(node.below(seat).into_iter().filter(|seat| {
                    // The first range that ends behind where the child begins must begin before the child ends.
                    let range = ranges.get(ranges.partition_point(|(_, end)| *end <= seat.low));
                    range.is_some_and(|(begin, _)| seat.high.as_ref().is_none_or(|high| begin < high))
                }));
            }
            seats = below;
        }
    }
}

/// The nodes that a scan wants next which needs the child of `parent` for `low`, if that must be read: as many as it came through
/// just before, which are in memory, also below nodes beside the parent. So a lookup reads no more than it needs, and a scan
/// twice as far each time; it does not end with its range, unless it just began.
fn ahead(store: &impl NodeStore, above: Option<&Node>, parent: &Node, low: &[u8], high: Option<&[u8]>) -> Vec<NodePtr> {
    let is_cached = |child: &&Child| store.cached(&child.ptr).is_some();
    let (before, from) = parent.children.split_at(parent.child_for(low));
    if from.first().as_ref().is_none_or(is_cached) {
        return Vec::new();
    }
    let (left, right) = above.map_or((&[][..], &[][..]), |above| {
        let (left, rest) = above.children.split_at(above.child_for(low));
        (left, rest.get(1..).unwrap_or_default())
    });
    let cousin = |child: &Child| store.cached(&child.ptr).filter(|node| node.level() == parent.level());
    let left = left.iter().rev().map_while(cousin).flat_map(|node| node.children.clone().into_iter().rev());
    let right = right.iter().map_while(cousin).flat_map(|node| node.children.clone());
    let before = before.iter().rev().cloned().chain(left).take(AHEAD_MAX - 1);
    let behind = before.take_while(|child| is_cached(&child)).count();
    let walk = behind >= WALK_MIN;
    let mut bytes = 0;
    let from = from.iter().cloned().chain(right).take(1 + behind);
    let wanted = from.take_while(|child| walk || high.is_none_or(|high| &child.low[..] < high));
    let wanted = wanted.filter(|child| !is_cached(&child)).take_while(|child| {
        bytes += child.ptr.raw_len as usize;
        bytes <= AHEAD_BYTES_MAX
    });
    wanted.map(|child| child.ptr).collect()
}

/// Up to `limit` messages of a node from `low` on and below `bound`, which comes down to the next if there are more.
fn points_of(node: &Node, low: &[u8], bound: &mut Option<Key>, limit: usize) -> Result<Vec<(Key, Message)>> {
    let mut points = Vec::new();
    for index in node.position(low)?..node.len() {
        node.sound(index)?;
        if beyond(bound, node.key(index)) {
            break;
        }
        if points.len() == limit {
            lower(bound, node.key(index));
            break;
        }
        points.push((Key::from_slice(node.key(index)), node.message(index)));
    }
    Ok(points)
}

/// The next key: none lies between.
pub fn behind(key: &[u8]) -> Key {
    let mut next = Key::from_slice(key);
    next.push(0);
    next
}

fn lower(bound: &mut Option<Key>, to: &[u8]) {
    if bound.as_deref().is_none_or(|bound| to < bound) {
        *bound = Some(Key::from_slice(to));
    }
}

fn beyond(bound: &Option<Key>, key: &[u8]) -> bool {
    bound.as_deref().is_some_and(|bound| key >= bound)
}

fn overlay<S: Semantics>(
    merged: &mut BTreeMap<Key, Message>,
    points: Vec<(Key, Message)>,
    deleted: &RangeSet,
    low: &[u8],
    bound: &Option<Key>,
    semantics: &S,
    lost: &mut S::Lost,
) {
    for (start, end) in deleted.within(low, bound.as_deref()) {
        let gone: Vec<Key> =
            merged.range(Key::from_slice(start)..Key::from_slice(end)).map(|(k, _)| k.clone()).collect();
        for key in gone {
            merged.remove(&key);
        }
    }
    for (key, message) in points {
        let below = merged.remove(&key).unwrap_or(Message::Delete);
        let combined = below.then(&key, message, semantics, lost);
        merged.insert(key, combined);
    }
}
