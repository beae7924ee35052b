//! Nodes: their form on the medium, and in memory the same bytes with a search index.
//!
//! A node is immutable. Leaves hold entries; interior nodes hold children and, as entries, the messages pending for them,
//! and range deletes.

use crate::entries::{Entry, Guide, head, quick_sum};
use crate::ranges::NO_KEYS;
use crate::{Key, Lz4, Message, NodePtr, POINTER_LEN, RangeSet, Seat, filter};
use ashlar_block::{Error, Result};
use bytes::{BufMut, Bytes, BytesMut};
use std::cell::RefCell;
use std::cmp::Ordering;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Tallest tree: with two children per node it would hold 2^24 leaves.
const HEIGHT_MAX: u8 = 24;
const MAGIC: [u8; 4] = *b"ASHN";
const VERSION: u16 = 1;
/// Of runs, and of nodes that have some.
const VERSION_OF_RUNS: u16 = 2;
/// Most runs that a decoder accepts of a node, above any limit in use.
const RUNS_MAX: u32 = 64;
/// Largest body that a decoder accepts, far above any limit in use: a bound on allocation by damaged input.
const RAW_LEN_MAX: usize = 64 << 20;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    version: U16,
    level: u8,
    /// 0: body as it is; 1: lz4 block.
    compression: u8,
    tree: U64,
    birth: U64,
    raw_len: U32,
    stored_len: U32,
    children: U32,
    ranges: U32,
    entries: U32,
    runs: U32,
    /// 1: a run.
    kind: u8,
    reserved: [u8; 15],
}
const HEADER_LEN: usize = size_of::<Header>();
const _: () = assert!(HEADER_LEN == 64);

const TAG_PUT: u8 = 0;
const TAG_DELETE: u8 = 1;
const TAG_PATCH: u8 = 2;
const ENTRY_HEADER_LEN: usize = 7;
/// A body is stored compressed if that saves more than this share of it: reading it back costs time.
const GAIN_SHARE: usize = 16;

thread_local! {
    static LZ4: RefCell<Lz4> = RefCell::default();
}

/// A child of an interior node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    /// Smallest key that belongs to it (the first child also takes all smaller keys of the node's range).
    pub(crate) low: Key,
    pub(crate) ptr: NodePtr,
}

/// A part of an interior node's buffer that is stored by itself: messages as in the buffer, all newer than those of the runs behind it,
/// and older than what the node itself holds. Its image is a node of the level below, without children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) ptr: NodePtr,
    /// Which keys it may have, see [`filter`]; empty: any.
    pub(crate) filter: Bytes,
    /// [`quick_sum`] of the filter, which every lookup compares.
    sum: u32,
}

impl Run {
    pub(crate) fn new(ptr: NodePtr, filter: Bytes) -> Run {
        Run { ptr, sum: quick_sum(&filter), filter }
    }
}

/// A node in memory.
pub struct Node {
    tree: u64,
    level: u8,
    birth: u64,
    low: Key,
    body: Bytes,
    /// CRC32C of the body when it was made.
    crc: u32,
    entries: Vec<Entry>,
    /// Where the last of them ends.
    entries_end: usize,
    /// What all keys of the entries begin with.
    prefix: Key,
    guide: Guide,
    pub(crate) children: Vec<Child>,
    /// The first bytes of each child's lowest key, as a number, to be searched without looking at the keys.
    child_heads: Vec<u64>,
    /// The rest of its buffer, the newest first.
    pub(crate) runs: Vec<Run>,
    is_run: bool,
    pub(crate) deleted: RangeSet,
}

/// What is needed to write a node.
pub(crate) struct Draft<'a> {
    pub(crate) tree: u64,
    pub(crate) level: u8,
    pub(crate) birth: u64,
    pub(crate) low: &'a [u8],
    pub(crate) body: Body<'a>,
}

/// What a node holds.
#[derive(Clone, Copy)]
pub(crate) struct Body<'a> {
    pub(crate) children: &'a [Child],
    pub(crate) runs: &'a [Run],
    pub(crate) is_run: bool,
    pub(crate) deleted: &'a RangeSet,
    pub(crate) entries: &'a [(Key, Message)],
}

impl Default for Body<'_> {
    fn default() -> Self {
        Body { children: &[], runs: &[], is_run: false, deleted: &NO_KEYS, entries: &[] }
    }
}

const OTHER_HEIGHT: &str = "an index node has another height than its parent says";
const NO_RUN: &str = "a run of a buffer should be here, and it is something else";
const CHANGED: &str = "an index node changed in memory: the memory of this machine is bad";

/// Bytes that an entry takes in a node.
pub(crate) fn entry_len(key: &[u8], message: &Message) -> usize {
    ENTRY_HEADER_LEN + key.len() + message.len()
}

fn put_key(body: &mut BytesMut, key: &[u8]) {
    body.put_u16_le(key.len() as u16);
    body.put_slice(key);
}

impl Draft<'_> {
    /// The node's bytes for the medium and the node itself.
    pub(crate) fn encode(&self) -> Result<(Bytes, Node)> {
        let entries_len: usize = self.body.entries.iter().map(|(key, message)| entry_len(key, message)).sum();
        let runs_len: usize = self.body.runs.iter().map(|run| POINTER_LEN + 4 + run.filter.len()).sum();
        let children_len = self.body.children.len() * (POINTER_LEN + 26);
        // The header goes before the body, so that a body that does not compress is not copied.
        let mut body = BytesMut::with_capacity(HEADER_LEN + entries_len + runs_len + children_len + 64);
        body.put_bytes(0, HEADER_LEN);
        put_key(&mut body, self.low);
        for child in self.body.children {
            put_key(&mut body, &child.low);
            body.put_slice(&child.ptr.encode());
        }
        for run in self.body.runs {
            body.put_slice(&run.ptr.encode());
            body.put_u32_le(run.filter.len() as u32);
            body.put_slice(&run.filter);
        }
        for (low, high) in self.body.deleted.iter() {
            put_key(&mut body, low);
            put_key(&mut body, high);
        }
        for (key, message) in self.body.entries {
            let (tag, value): (u8, &[u8]) = match message {
                Message::Put(value) => (TAG_PUT, value),
                Message::Delete => (TAG_DELETE, &[]),
                Message::Patch(value) => (TAG_PATCH, value),
            };
            body.put_u8(tag);
            body.put_u16_le(key.len() as u16);
            body.put_u32_le(value.len() as u32);
            body.put_slice(key);
            body.put_slice(value);
        }
        let len = body.len() - HEADER_LEN;
        LZ4.with_borrow_mut(|lz4| {
            let packed = lz4.pack(&body[HEADER_LEN..]);
            if packed.len() + len / GAIN_SHARE < len {
                let header = self.header(len, 1, packed.len());
                let mut image = BytesMut::with_capacity(HEADER_LEN + packed.len());
                image.put_slice(header.as_bytes());
                image.put_slice(packed);
                return Ok((image.freeze(), Node::index(&header, body.freeze().slice(HEADER_LEN..))?));
            }
            let header = self.header(len, 0, len);
            body[..HEADER_LEN].copy_from_slice(header.as_bytes());
            let image = body.freeze();
            let node = Node::index(&header, image.slice(HEADER_LEN..))?;
            Ok((image, node))
        })
    }

    fn header(&self, raw_len: usize, compression: u8, stored_len: usize) -> Header {
        let has_runs = self.body.is_run || !self.body.runs.is_empty();
        Header {
            magic: MAGIC,
            version: if has_runs { VERSION_OF_RUNS } else { VERSION }.into(),
            level: self.level,
            compression,
            tree: self.tree.into(),
            birth: self.birth.into(),
            raw_len: (raw_len as u32).into(),
            stored_len: (stored_len as u32).into(),
            children: (self.body.children.len() as u32).into(),
            ranges: (self.body.deleted.len() as u32).into(),
            entries: (self.body.entries.len() as u32).into(),
            runs: (self.body.runs.len() as u32).into(),
            kind: self.body.is_run.into(),
            reserved: [0; 15],
        }
    }
}

/// Reads from a body that may be damaged.
struct Reader<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let rest = self.body.get(self.at..).unwrap_or_default();
        let taken = rest.get(..len).ok_or_else(|| Error::corrupt("an index node ends in the middle of an item"))?;
        self.at += len;
        Ok(taken)
    }
    fn number<const N: usize>(&mut self) -> Result<u32> {
        let mut bytes = [0u8; 4];
        bytes[..N].copy_from_slice(self.take(N)?);
        Ok(u32::from_le_bytes(bytes))
    }
    fn key(&mut self) -> Result<&'a [u8]> {
        let len = self.number::<2>()? as usize;
        self.take(len)
    }
}

impl Node {
    /// Reads a node from the medium's bytes, whose checksum has been verified.
    pub fn decode(image: &[u8]) -> Result<Node> {
        let (header, stored) =
            Header::read_from_prefix(image).map_err(|_| Error::corrupt("an index node is cut short"))?;
        if header.magic != MAGIC {
            return Err(Error::corrupt("what should be an index node does not begin like one"));
        }
        if !(VERSION..=VERSION_OF_RUNS).contains(&header.version.get()) {
            let version = header.version.get();
            let message = format!("index node of version {version}; this build reads up to {VERSION_OF_RUNS}");
            return Err(Error::new(ashlar_block::Kind::Unsupported, message));
        }
        let raw_len = header.raw_len.get() as usize;
        let stored = stored.get(..header.stored_len.get() as usize);
        let stored = stored.ok_or_else(|| Error::corrupt("an index node is cut short"))?;
        if raw_len > RAW_LEN_MAX {
            return Err(Error::corrupt(format!("an index node claims {raw_len} bytes")));
        }
        let body = match header.compression {
            0 => Bytes::copy_from_slice(stored),
            1 => lz4_flex::block::decompress(stored, raw_len)
                .map_err(|error| Error::corrupt(format!("an index node does not decompress: {error}")))?
                .into(),
            other => return Err(Error::corrupt(format!("an index node has unknown compression {other}"))),
        };
        if body.len() != raw_len {
            return Err(Error::corrupt("an index node has another length than it says"));
        }
        Node::index(&header, body)
    }

    fn index(header: &Header, body: Bytes) -> Result<Node> {
        let mut reader = Reader { body: &body, at: 0 };
        let low = Key::from_slice(reader.key()?);
        let mut children = Vec::new();
        for _ in 0..header.children.get() {
            let low = Key::from_slice(reader.key()?);
            children.push(Child { low, ptr: NodePtr::decode(reader.take(POINTER_LEN)?)? });
        }
        let has_runs = header.version.get() == VERSION_OF_RUNS;
        let (is_run, run_count) = if has_runs { (header.kind == 1, header.runs.get()) } else { (false, 0) };
        if run_count > RUNS_MAX {
            return Err(Error::corrupt(format!("an index node claims {run_count} runs")));
        }
        let mut runs = Vec::new();
        for _ in 0..run_count {
            let ptr = NodePtr::decode(reader.take(POINTER_LEN)?)?;
            let len = reader.number::<4>()? as usize;
            let at = reader.at;
            reader.take(len)?;
            runs.push(Run::new(ptr, body.slice(at..at + len)));
        }
        let mut deleted = RangeSet::default();
        for _ in 0..header.ranges.get() {
            let low = reader.key()?;
            deleted.insert(low, reader.key()?);
        }
        // What damaged input claims costs no memory that its length does not.
        let entries_max = (body.len() - reader.at) / ENTRY_HEADER_LEN;
        let mut entries = Vec::with_capacity(entries_max.min(header.entries.get() as usize));
        let mut first: &[u8] = &[];
        let mut previous: Option<&[u8]> = None;
        for _ in 0..header.entries.get() {
            let at = reader.at;
            let tag = reader.number::<1>()? as u8;
            let key_len = reader.number::<2>()? as usize;
            let value_len = reader.number::<4>()? as usize;
            let key = reader.take(key_len)?;
            reader.take(value_len)?;
            if tag > TAG_PATCH || previous.is_some_and(|previous| previous >= key) {
                return Err(Error::corrupt("an index node has entries out of order or of an unknown kind"));
            }
            if previous.is_none() {
                first = key;
            }
            previous = Some(key);
            let sum = quick_sum(body.get(at..reader.at).unwrap_or_default());
            entries.push(Entry { distance: 0, at: at as u32, sum });
        }
        // All keys lie between the first and the last, so what these two share is in all of them.
        let prefix_len = first.iter().zip(previous.unwrap_or_default()).take_while(|(a, b)| a == b).count();
        let level = header.level;
        if level > HEIGHT_MAX {
            return Err(Error::corrupt("the index is taller than it can be"));
        }
        let may_have_children = level > 0 && !is_run;
        if may_have_children == children.is_empty() || children.windows(2).any(|pair| pair[0].low >= pair[1].low) {
            return Err(Error::corrupt("an index node has children where it should not, or out of order"));
        }
        if !may_have_children && !runs.is_empty() {
            return Err(Error::corrupt("an index node has runs where it should not"));
        }
        let mut node = Node {
            tree: header.tree.get(),
            level,
            birth: header.birth.get(),
            low,
            body: body.clone(),
            crc: crate::crc(&body),
            entries,
            entries_end: reader.at,
            prefix: Key::from_slice(&first[..prefix_len]),
            guide: Guide::default(),
            child_heads: children.iter().map(|child| head(&child.low)).collect(),
            children,
            runs,
            is_run,
            deleted,
        };
        let head_of = |node: &Node, index: usize| head(&node.key(index)[prefix_len..]);
        if let Some(last) = node.len().checked_sub(1) {
            node.guide = Guide::new(head_of(&node, 0), head_of(&node, last));
        }
        for index in 0..node.len() {
            node.entries[index].distance = node.guide.distance(head_of(&node, index));
        }
        node.guide.learn(&node.entries);
        Ok(node)
    }

    /// Refuses a node that memory has changed since it was read or made: its bytes must have the checksum that they had then,
    /// and its pointers must be those in the bytes. It costs a pass over the bytes, so lookups verify only the entries that
    /// they look at; whoever writes a node's contents anew asks first, or damage would become permanent under a good checksum.
    pub fn verify(&self) -> Result<()> {
        let refuse = || Error::corrupt(CHANGED);
        if crate::crc(&self.body) != self.crc {
            return Err(refuse());
        }
        let mut reader = Reader { body: &self.body, at: 0 };
        if reader.key()? != self.low.as_slice() {
            return Err(refuse());
        }
        for child in &self.children {
            if reader.key()? != child.low.as_slice() || reader.take(POINTER_LEN)? != child.ptr.encode() {
                return Err(refuse());
            }
        }
        for run in &self.runs {
            if reader.take(POINTER_LEN)? != run.ptr.encode() {
                return Err(refuse());
            }
            let len = reader.number::<4>()? as usize;
            reader.take(len)?;
        }
        Ok(())
    }

    /// The node with one bit of its body flipped as bad memory would, for explorations; and where.
    pub fn with_bit_flipped(&self, bit: u64) -> (Node, String) {
        let mut body = BytesMut::from(&self.body[..]);
        let bit = bit % (body.len().max(1) as u64 * 8);
        body.get_mut((bit / 8) as usize).into_iter().for_each(|byte| *byte ^= 1 << (bit % 8));
        let (entries, children, child_heads) = (self.entries.clone(), self.children.clone(), self.child_heads.clone());
        let (low, prefix, deleted) = (self.low.clone(), self.prefix.clone(), self.deleted.clone());
        let runs = self.runs.clone();
        (
            Node { low, body: body.freeze(), entries, prefix, children, child_heads, runs, deleted, ..*self },
            format!("byte {}", bit / 8),
        )
    }

    /// The same for a bit of a pointer to a child, which is kept beside the body. `None`: it has no children.
    pub fn with_pointer_flipped(&self, bit: u64) -> Option<(Node, String)> {
        let (mut node, _) = self.with_bit_flipped(0);
        node.body = self.body.clone();
        let index = (bit / (POINTER_LEN as u64 * 8)) as usize % self.children.len().max(1);
        let child = node.children.get_mut(index)?;
        let mut pointer = child.ptr.encode();
        let at = (bit / 8) as usize % POINTER_LEN;
        pointer[at] ^= 1 << (bit % 8);
        child.ptr = NodePtr::decode(&pointer).ok()?;
        Some((node, format!("byte {at} of the pointer to child {index}")))
    }

    /// Bytes of the body and of its runs: how full the node is.
    pub fn raw_len(&self) -> usize {
        self.body.len() + self.runs.iter().map(|run| run.ptr.raw_len as usize).sum::<usize>()
    }
    /// Bytes of messages in its buffer, about.
    pub(crate) fn pending_len(&self) -> usize {
        let own = self.entries.first().map_or(0, |first| self.entries_end - first.at as usize);
        own + self.runs.iter().map(|run| run.ptr.raw_len as usize).sum::<usize>()
    }
    /// Whether anything waits in its buffer.
    pub(crate) fn has_pending(&self) -> bool {
        !self.entries.is_empty() || !self.deleted.is_empty() || !self.runs.is_empty()
    }
    /// Whether it is a part of another node's buffer and no node by itself.
    pub fn is_run(&self) -> bool {
        self.is_run
    }
    /// Tree that the node belongs to.
    pub fn tree(&self) -> u64 {
        self.tree
    }
    /// Height above the leaves.
    pub fn level(&self) -> u8 {
        self.level
    }
    /// Checkpoint in which it was written.
    pub fn birth(&self) -> u64 {
        self.birth
    }
    /// A key in the node's range, by which it is found again.
    pub fn low(&self) -> &[u8] {
        &self.low
    }
    /// Refuses a node that stands where it cannot: a run where a node should be or a node where a run should be, one of another height
    /// than the parent says, or with children that begin outside of the range that the parent gives it. So nobody walks in a circle,
    /// or twice over one subtree, whatever pointers say.
    pub fn check_seat(&self, seat: &Seat) -> Result<()> {
        if seat.is_run && !self.is_run {
            return Err(Error::corrupt(NO_RUN));
        }
        if !seat.is_run {
            self.check_height(seat.level)?;
        } else if seat.level != Some(self.level) {
            return Err(Error::corrupt(OTHER_HEIGHT));
        }
        self.check_children(&seat.low, seat.high.as_deref())
    }
    fn check_children(&self, low: &[u8], high: Option<&[u8]>) -> Result<()> {
        let inner = self.children.get(1..).unwrap_or_default();
        let early = inner.first().is_some_and(|child| child.low.as_slice() <= low);
        if early || inner.last().is_some_and(|child| high.is_some_and(|high| child.low.as_slice() >= high)) {
            return Err(Error::corrupt("an index node has children outside of its range"));
        }
        Ok(())
    }
    /// As [`Node::check_seat`], for a node whose level and range are known otherwise.
    pub(crate) fn check_node(&self, level: Option<u8>, low: &[u8], high: Option<&[u8]>) -> Result<()> {
        self.check_height(level)?;
        self.check_children(low, high)
    }
    /// Refuses a run, and a node of another height than the parent says (`None`: it is a root). For those who came down by one key
    /// and know no range: nothing but the node itself is looked at.
    pub(crate) fn check_height(&self, level: Option<u8>) -> Result<()> {
        if self.is_run {
            return Err(Error::corrupt("an index node should be here, and it is a run of a buffer"));
        }
        if level.is_some_and(|level| level != self.level) {
            return Err(Error::corrupt(OTHER_HEIGHT));
        }
        Ok(())
    }
    /// Refuses what is no run of a node of this level.
    pub(crate) fn check_run(&self, level: u8) -> Result<()> {
        if !self.is_run || self.level + 1 != level {
            return Err(Error::corrupt(NO_RUN));
        }
        Ok(())
    }
    /// Level of its children, and of its runs.
    pub(crate) fn level_below(&self) -> Option<u8> {
        Some(self.level.saturating_sub(1))
    }
    /// Bytes of memory that the node takes, estimated.
    pub fn memory(&self) -> usize {
        let tables = self.entries.len() * size_of::<Entry>()
            + self.children.len() * (size_of::<Child>() + size_of::<u64>())
            + self.runs.len() * size_of::<Run>();
        self.body.len() + tables + size_of::<Node>()
    }
    /// Pointers to its children and runs.
    pub fn pointers(&self) -> impl Iterator<Item = NodePtr> + '_ {
        self.children.iter().map(|child| child.ptr).chain(self.runs.iter().map(|run| run.ptr))
    }
    /// Seats of its children and runs, if the node's own is this one.
    pub fn below(&self, seat: &Seat) -> Vec<Seat> {
        let (low, high, level) = (&seat.low, seat.high.as_deref(), self.level_below());
        let children = self.child_ranges(low, high).into_iter();
        let children = children.map(|(ptr, low, high)| Seat { ptr, low, high, level, is_run: false });
        let run = |run: &Run| Seat { ptr: run.ptr, level, is_run: true, ..seat.clone() };
        children.chain(self.runs.iter().map(run)).collect()
    }
    /// Pointers to its children with the range of keys of each, if the node's own range is `low..high`.
    pub(crate) fn child_ranges(&self, low: &[u8], high: Option<&[u8]>) -> Vec<(NodePtr, Key, Option<Key>)> {
        let range = |index: usize| {
            let start = if index == 0 { Key::from_slice(low) } else { self.children[index].low.clone() };
            let next = self.children.get(index + 1).map(|next| next.low.clone());
            (self.children[index].ptr, start, next.or_else(|| high.map(Key::from_slice)))
        };
        (0..self.children.len()).map(range).collect()
    }

    /// The runs that may have something for `key`, the newest first. An error: memory has changed what was looked at.
    pub(crate) fn runs_for<'a>(&'a self, key: &[u8]) -> Result<impl Iterator<Item = NodePtr> + use<'a>> {
        let sought = if self.runs.is_empty() { 0 } else { filter::hash(key) };
        if self.runs.iter().any(|run| quick_sum(&run.filter) != run.sum) {
            return Err(Error::corrupt(CHANGED));
        }
        Ok(self.runs.iter().filter(move |run| filter::may_have(&run.filter, sought)).map(|run| run.ptr))
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
    fn entry(&self, index: usize) -> (u8, usize, usize, usize) {
        let at = self.entries[index].at as usize;
        let bytes = &self.body[at..at + ENTRY_HEADER_LEN];
        let key_len = u16::from_le_bytes([bytes[1], bytes[2]]) as usize;
        let value_len = u32::from_le_bytes([bytes[3], bytes[4], bytes[5], bytes[6]]) as usize;
        (bytes[0], at + ENTRY_HEADER_LEN, key_len, value_len)
    }
    pub(crate) fn key(&self, index: usize) -> &[u8] {
        let (_, at, key_len, _) = self.entry(index);
        &self.body[at..at + key_len]
    }
    /// The message at `index`; its payload shares the node's memory.
    pub(crate) fn message(&self, index: usize) -> Message {
        let (tag, at, key_len, value_len) = self.entry(index);
        let value = || self.body.slice(at + key_len..at + key_len + value_len);
        match tag {
            TAG_PUT => Message::Put(value()),
            TAG_PATCH => Message::Patch(value()),
            _ => Message::Delete,
        }
    }
    /// Every message in the node with its key: a leaf's values as puts.
    pub fn messages(&self) -> impl Iterator<Item = (&[u8], Message)> {
        (0..self.len()).map(|index| (self.key(index), self.message(index)))
    }
    /// Refuses an entry that memory has changed since the node was read or made. The others may have changed.
    pub(crate) fn sound(&self, index: usize) -> Result<()> {
        let at = self.entries[index].at as usize;
        let end = self.entries.get(index + 1).map_or(self.entries_end, |next| next.at as usize);
        let holds = quick_sum(&self.body[at..end]) == self.entries[index].sum;
        if holds { Ok(()) } else { Err(Error::corrupt(CHANGED)) }
    }
    /// Index of the first entry at or behind `key`, and whether it has exactly this key; then it is sound.
    fn search(&self, key: &[u8]) -> Result<(usize, bool)> {
        if self.entries.is_empty() {
            return Ok((0, false));
        }
        let Some(rest) = key.strip_prefix(self.prefix.as_slice()) else {
            return Ok((if key < self.prefix.as_slice() { 0 } else { self.len() }, false));
        };
        let candidates = self.guide.candidates(&self.entries, head(rest));
        let (mut low, mut high) = (candidates.start, candidates.end);
        while low < high {
            let middle = low.midpoint(high);
            self.sound(middle)?;
            match self.key(middle).cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok((middle, true)),
                Ordering::Greater => high = middle,
            }
        }
        Ok((low, false))
    }
    /// Index of the first entry at or behind `key`.
    pub(crate) fn position(&self, key: &[u8]) -> Result<usize> {
        self.search(key).map(|(index, _)| index)
    }
    /// The message for exactly this key.
    pub(crate) fn find(&self, key: &[u8]) -> Result<Option<Message>> {
        let (index, found) = self.search(key)?;
        Ok(found.then(|| self.message(index)))
    }
    /// The child to which `key` belongs; none below a leaf.
    pub(crate) fn child_of(&self, key: &[u8]) -> Option<NodePtr> {
        self.children.get(self.child_for(key)).map(|child| child.ptr)
    }
    /// Index of the child to which `key` belongs.
    pub(crate) fn child_for(&self, key: &[u8]) -> usize {
        let wanted = head(key);
        let start = self.child_heads.partition_point(|head| *head < wanted);
        let alike = self.child_heads[start..].iter().take_while(|head| **head == wanted).count();
        let below = self.children[start..start + alike].partition_point(|child| child.low.as_slice() <= key);
        (start + below).saturating_sub(1)
    }
}
