//! Reading: extents and nodes by their birth address, verified.

use crate::format::{Stream, crc};
use crate::map::{Form, Run};
use crate::nodes::{Address, address};
use crate::space::{Claim, cover, slot_of};
use crate::underway::Reading;
use crate::{Pool, Shared};
use ashlar_block::{Error, IoContext, Result, ResultExt};
use ashlar_index::{BoxFuture, Node, NodePtr, NodeStore};
use ashlar_units::BLOCK_LEN;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const READ: IoContext = IoContext::foreground("pool-read");
/// Bytes that are read in vain rather than asking the device twice.
pub(crate) const GAP_MAX: u64 = 16 << 10;
/// Runs that are read at once: 2 MiB and gaps.
pub(crate) const TOGETHER_MAX: usize = 16;

/// Some bytes of a segment.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) uid: u64,
    pub(crate) range: Range<u32>,
}

impl Span {
    fn of(ptr: &NodePtr) -> Span {
        Span { uid: ptr.uid, range: ptr.offset..ptr.offset.saturating_add(ptr.len) }
    }
}

impl Shared {
    /// Bytes at a birth address, unverified.
    pub(crate) async fn fetch(&self, uid: u64, offset: u32, len: u32) -> Result<Bytes> {
        let span = Span { uid, range: offset..offset.saturating_add(len) };
        self.fetch_between(&span, &span).await
    }

    /// Everything from the beginning of the first to the end of the last of spans that lie together, unverified.
    pub(crate) async fn fetch_between(&self, first: &Span, last: &Span) -> Result<Bytes> {
        for Span { uid, range } in [first, last] {
            if !self.layout.holds(*uid, range.start, range.end - range.start) {
                let len = range.end - range.start;
                return Err(Error::corrupt(format!("there is no place {uid:#x}:{} of {len} bytes", range.start)));
            }
        }
        let len = self.layout.distance(first, last.uid, last.range.end);
        let (block, count, skip) = cover(first.range.start, len as u32);
        let (place, address) = self.layout.locate(first.uid, block);
        let data = {
            let _reading = place.gate.read(&self.env);
            place.device.read(READ, address, count).await?
        };
        self.counted.reads.fetch_add(1, Ordering::Relaxed);
        self.counted.read.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(data.slice(skip..skip + len as usize))
    }

    /// What is stored for one run, verified: its own blocks if they are raw (the last may be short), else the whole
    /// compressed extent.
    pub(crate) async fn read_stored(&self, run: &Run) -> Result<Bytes> {
        let wanted = wanted(run);
        if wanted.is_empty() {
            return Ok(Bytes::new());
        }
        let unwritten = self.in_flight.read().get(&(run.uid, run.offset)).cloned();
        let stored = match unwritten {
            Some(whole) if wanted.end <= whole.len() => whole.slice(wanted),
            Some(_) => return Err(nowhere(run)),
            None => {
                let place = place(run).ok_or_else(|| nowhere(run))?.range;
                self.fetch(run.uid, place.start, place.end - place.start).await?
            }
        };
        self.verify(run, &stored)?;
        Ok(stored)
    }

    /// Compares what was read for a run with its checksums.
    pub(crate) fn verify(&self, run: &Run, stored: &[u8]) -> Result<()> {
        let unit = if run.form == Form::Raw { BLOCK_LEN } else { stored.len() };
        for (index, (part, expected)) in stored.chunks(unit).zip(&run.crcs).enumerate() {
            if crc(part) != *expected && !self.config.unverified {
                let at = run.offset as usize + wanted(run).start + index * unit;
                return Err(Error::corrupt(format!("segment {:#x} at byte {at}: wrong checksum", run.uid)));
            }
        }
        Ok(())
    }

    /// The blocks of one run, verified; the last may be short.
    pub(crate) async fn read_run(&self, run: &Run) -> Result<Bytes> {
        blocks_of(run, self.read_stored(run).await?)
    }

    /// As [`Shared::read_run`], of runs that lie together.
    async fn read_together(&self, runs: &[&Run]) -> Vec<Result<Bytes>> {
        let places: Option<Vec<Span>> = runs.iter().map(|run| place(run)).collect();
        if let Some(places) = places
            && let [first, .., last] = &places[..]
            && let Ok(whole) = self.fetch_between(first, last).await
        {
            let one = |(run, place): (&&Run, &Span)| {
                let from = self.layout.distance(first, place.uid, place.range.start) as usize;
                let stored = whole.slice(from..from + place.range.len());
                self.verify(run, &stored).and_then(|()| blocks_of(run, stored))
            };
            return runs.iter().zip(&places).map(one).collect();
        }
        // One alone; or a fault, and what lies beside it can perhaps be read.
        let mut results = Vec::with_capacity(runs.len());
        for run in runs {
            results.push(self.read_run(run).await);
        }
        results
    }

    /// A node that was read, verified and kept in the cache.
    fn take_in(&self, ptr: &NodePtr, image: &[u8]) -> Result<Arc<Node>> {
        let place = || format!("index node in segment {:#x} at byte {}", ptr.uid, ptr.offset);
        if crc(image) != ptr.crc && !self.config.unverified {
            return Err(Error::corrupt("wrong checksum").within(place()));
        }
        let node = Arc::new(Node::decode(image).within(place)?);
        self.cache.insert(address(ptr), node.clone());
        Ok(node)
    }

    /// The same of nodes that lie together, in order; an error if not all of them can be read.
    async fn take_in_together(&self, ptrs: &[NodePtr]) -> Result<Vec<Result<Arc<Node>>>> {
        let (Some(first), Some(last)) = (ptrs.first(), ptrs.last()) else { return Ok(Vec::new()) };
        let (first, last) = (Span::of(first), Span::of(last));
        let whole = self.fetch_between(&first, &last).await?;
        let one = |ptr: &NodePtr| {
            let from = self.layout.distance(&first, ptr.uid, ptr.offset) as usize;
            self.take_in(ptr, &whole[from..from + ptr.len as usize])
        };
        Ok(ptrs.iter().map(one).collect())
    }

    /// Notes bytes that are appended and not yet on the device, so that they can be read meanwhile.
    pub(crate) fn begin_flight(&self, stream: Stream, uid: u64, offset: u32, stored: Bytes) {
        self.outstanding(stream).bytes.fetch_add(stored.len(), Ordering::Relaxed);
        self.in_flight.write().insert((uid, offset), stored);
    }
}

/// The bytes of a run's extent that are read for it.
fn wanted(run: &Run) -> Range<usize> {
    match run.form {
        Form::Hole => 0..0,
        Form::Raw => {
            let start = run.skip as usize * BLOCK_LEN;
            start..(start + run.count as usize * BLOCK_LEN).min(run.stored as usize).max(start)
        }
        Form::Lz4 | Form::Zstd => 0..run.stored as usize,
    }
}

/// Where in the segment they lie. `None`: nothing is read, or the run says what cannot be.
pub(crate) fn place(run: &Run) -> Option<Span> {
    let Range { start, end } = wanted(run);
    let at = |byte: usize| run.offset.checked_add(u32::try_from(byte).ok()?);
    (start < end).then_some(Span { uid: run.uid, range: at(start)?..at(end)? })
}

fn nowhere(run: &Run) -> Error {
    Error::corrupt(format!("there is no extent at {:#x}:{}", run.uid, run.offset))
}

/// The blocks of a run, from what is stored for it.
pub(crate) fn blocks_of(run: &Run, stored: Bytes) -> Result<Bytes> {
    if matches!(run.form, Form::Hole | Form::Raw) {
        return Ok(stored);
    }
    let data = unpack(run, &stored)?;
    let start = run.skip as usize * BLOCK_LEN;
    let end = (start + run.count as usize * BLOCK_LEN).min(data.len());
    Ok(data.slice(start.min(end)..end))
}

/// The bytes of a compressed extent.
pub(crate) fn unpack(run: &Run, stored: &[u8]) -> Result<Bytes> {
    let len = run.total as usize * BLOCK_LEN;
    let unpacked = if run.form == Form::Lz4 {
        lz4_flex::block::decompress(stored, len).map_err(|error| error.to_string())
    } else {
        zstd::bulk::decompress(stored, len).map_err(|error| error.to_string())
    };
    unpacked.map(Bytes::from).map_err(|error| Error::corrupt(format!("an extent does not decompress: {error}")))
}

impl Pool {
    /// Nodes from the medium, in the order of `ptrs`: those that lie together are read at once, all others side by side.
    pub(crate) async fn load_all(&self, ptrs: &[NodePtr]) -> Vec<Result<Arc<Node>>> {
        let shared = &self.0;
        let mut order: Vec<(usize, NodePtr)> = ptrs.iter().copied().enumerate().collect();
        order.sort_unstable_by_key(|(_, ptr)| shared.layout.position(ptr.uid, ptr.offset));
        let groups: Vec<Vec<(usize, NodePtr)>> = {
            let in_flight = shared.in_flight.read();
            let is_near = |one: &NodePtr, next: &NodePtr| {
                let known = |ptr: &NodePtr| in_flight.contains_key(&(ptr.uid, ptr.offset));
                !known(one) && !known(next) && shared.layout.is_near(&Span::of(one), &Span::of(next))
            };
            order.chunk_by(|(_, one), (_, next)| is_near(one, next)).map(<[_]>::to_vec).collect()
        };
        let mut loaded: Vec<_> = together(groups.iter().map(async |group| {
            let ptrs: Vec<NodePtr> = group.iter().map(|(_, ptr)| *ptr).collect();
            let all = if ptrs.len() > 1 { shared.take_in_together(&ptrs).await.ok() } else { None };
            let nodes = match all {
                // What is damaged by itself once more, and perhaps from parity.
                Some(nodes) => {
                    together(ptrs.iter().zip(nodes).map(async |(ptr, node)| match node {
                        Err(error) if error.is_damage() => self.load(*ptr).await,
                        node => node,
                    }))
                    .await
                }
                // One alone, or what lies beside a fault.
                None => together(ptrs.iter().map(|ptr| self.load(*ptr))).await,
            };
            group.iter().map(|(index, _)| *index).zip(nodes).collect::<Vec<_>>()
        }))
        .await
        .into_iter()
        .flatten()
        .collect();
        loaded.sort_unstable_by_key(|(index, _)| *index);
        loaded.into_iter().map(|(_, node)| node).collect()
    }
}

impl NodeStore for Pool {
    type Helper = Pool;

    fn helper(&self) -> Option<Pool> {
        self.0.env.is_idle().then(|| self.clone())
    }
    fn run<T: Send + 'static>(&self, part: impl Future<Output = T> + Send + 'static) -> BoxFuture<T> {
        Box::pin(self.0.env.spawn_aside(part))
    }
    fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        self.0.cache.get(address(ptr))
    }
    fn cached_leaf(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        self.0.cache.get_leaf(address(ptr))
    }

    async fn load(&self, ptr: NodePtr) -> Result<Arc<Node>> {
        let shared = &self.0;
        if shared.underway.wait_for(&Span::of(&ptr)).await
            && let Some(node) = self.cached(&ptr)
        {
            return Ok(node);
        }
        let whole = shared.in_flight.read().get(&(ptr.uid, ptr.offset)).cloned();
        let image = match whole {
            Some(image) => Ok(image),
            None => shared.fetch(ptr.uid, ptr.offset, ptr.len).await,
        };
        let error = match image.and_then(|image| shared.take_in(&ptr, &image)) {
            Err(error) if error.is_damage() => error,
            node => return node,
        };
        // Boxed, or every request would have room for it.
        match Box::pin(shared.recover(&ptr)).await {
            Some(image) => shared.take_in(&ptr, &image),
            None => Err(error),
        }
    }

    async fn load_ahead(&self, ptrs: &[NodePtr]) {
        let shared = &self.0;
        let mut wanted: Vec<NodePtr> = ptrs.to_vec();
        {
            let in_flight = shared.in_flight.read();
            wanted
                .retain(|ptr| !in_flight.contains_key(&(ptr.uid, ptr.offset)) && !shared.underway.has(&Span::of(ptr)));
        }
        wanted.sort_unstable_by_key(|ptr| shared.layout.position(ptr.uid, ptr.offset));
        let groups = wanted.chunk_by(|one, next| shared.layout.is_near(&Span::of(one), &Span::of(next)));
        let readings = groups.map(|group| (group, Reading::begin(self, group.iter().map(Span::of).collect())));
        let readings: Vec<(&[NodePtr], Reading)> = readings.collect();
        together(readings.into_iter().map(async |(group, _reading)| {
            // What is damaged is told to whom asks for it.
            drop(shared.take_in_together(group).await);
        }))
        .await;
    }

    async fn append(&self, image: Bytes, node: Node) -> Result<NodePtr> {
        let shared = &self.0;
        let len = image.len() as u32;
        let mut sealed = Vec::new();
        let (segment, offset) = {
            let mut stream = shared.side(Stream::Nodes).lock();
            let body = node.low().len() + 32;
            stream.make_room(u64::from(len), body, &shared.space, &shared.layout, Claim::Reserve, &mut sealed)?;
            let (segment, offset) = stream.append(node.tree(), node.low(), Some(node.level()), image.clone());
            shared.begin_flight(Stream::Nodes, segment.uid, offset, image.clone());
            shared.expect(Stream::Nodes, &sealed);
            (segment, offset)
        };
        *shared.node_usage.lock().entry(slot_of(segment.uid)).or_default() += i64::from(len);
        for batch in sealed {
            shared.write(Stream::Nodes, batch).await?;
        }
        let raw_len = node.raw_len() as u32;
        let ptr = NodePtr { uid: segment.uid, offset, len, raw_len, crc: crc(&image), birth: node.birth() };
        shared.cache.insert(address(&ptr), Arc::new(node));
        Ok(ptr)
    }

    async fn height(&self, ptr: &NodePtr) -> Result<u8> {
        // The batch in which a node was written says it, too.
        let items = self.items(ptr.uid).await?;
        let height = items.into_iter().find(|item| item.offset == ptr.offset).and_then(|item| item.level);
        height.ok_or_else(|| Error::corrupt(format!("no batch names a node at {:#x}:{}", ptr.uid, ptr.offset)))
    }

    fn birth(&self) -> u64 {
        self.0.generation.load(Ordering::Relaxed) + 1
    }
}

/// Nodes that stay in memory for a while, whatever the cache has room for.
#[derive(Default)]
pub(crate) struct Held(Mutex<HashMap<Address, Arc<Node>>>);

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} nodes", self.0.lock().len())
    }
}

/// The pool's nodes; those that are loaded through it are held.
pub(crate) struct Holding<'a>(pub(crate) &'a Pool, pub(crate) &'a Held);

impl NodeStore for Holding<'_> {
    type Helper = Pool;

    fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        self.1.0.lock().get(&address(ptr)).cloned().or_else(|| self.0.cached(ptr))
    }
    async fn load(&self, ptr: NodePtr) -> Result<Arc<Node>> {
        let node = self.0.load(ptr).await?;
        self.1.0.lock().insert(address(&ptr), node.clone());
        Ok(node)
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

/// Fills a block range from pieces that may be short.
pub(crate) fn pad(piece: Bytes, len: usize) -> Bytes {
    if piece.len() == len {
        return piece;
    }
    let mut padded = BytesMut::with_capacity(len);
    padded.extend_from_slice(&piece);
    padded.resize(len, 0);
    padded.freeze()
}

impl Shared {
    /// Several runs at once. Neighbours on the medium are read together, everything else side by side.
    pub(crate) async fn read_runs(&self, runs: &[&Run]) -> Vec<Result<Bytes>> {
        if let [run] = runs {
            return vec![self.read_run(run).await];
        }
        let groups: Vec<&[&Run]> = {
            let in_flight = self.in_flight.read();
            let is_in_flight = |run: &Run| in_flight.contains_key(&(run.uid, run.offset));
            let is_near = |one: &Run, next: &Run| {
                place(one).zip(place(next)).is_some_and(|(one, next)| self.layout.is_near(&one, &next))
            };
            // What is still on its way to the medium is not read from there.
            runs.chunk_by(|one, next| is_near(one, next) && !is_in_flight(one) && !is_in_flight(next))
                .flat_map(|group| group.chunks(TOGETHER_MAX))
                .collect()
        };
        if let [group] = &groups[..] {
            return self.read_together(group).await;
        }
        together(groups.iter().map(|group| self.read_together(group))).await.into_iter().flatten().collect()
    }
}

/// What all of these give, side by side on this task.
pub(crate) async fn together<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    let mut results: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        let mut pending = false;
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(ready) => *result = Some(ready),
                    std::task::Poll::Pending => pending = true,
                }
            }
        }
        if pending { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    results.into_iter().map(|result| result.expect("all are ready")).collect()
}
