//! The newest messages of a tree, in memory.

use crate::entries::head;
use crate::{Key, Message, RangeSet, Semantics};
use ashlar_block::{Error, Result};
use bytes::{Bytes, BytesMut};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Bytes that one message costs beyond its key and payload, estimated: an entry of a B-tree whose nodes are two thirds full.
const OVERHEAD_BYTES: usize = 112;

/// A buffer of messages under a lock. Invariant 1 of the crate holds inside.
#[derive(Default)]
pub struct Memtable(RwLock<Inner>);

#[derive(Default)]
struct Inner {
    points: BTreeMap<Sorted, Kept>,
    deleted: RangeSet,
    bytes: usize,
    /// A message was found changed when another one was combined with it.
    damaged: bool,
}

/// A key, with what most comparisons need in front: a number for its first sixteen bytes, which sorts as they do.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Sorted {
    head: [u64; 2],
    key: Key,
}

impl Sorted {
    fn new(key: Key) -> Sorted {
        let (first, second) = key.split_at(key.len().min(size_of::<u64>()));
        Sorted { head: [head(first), head(second)], key }
    }
    fn of(key: &[u8]) -> Sorted {
        Sorted::new(Key::from_slice(key))
    }
}

/// A message, and the checksum of its key and payload from when it came in. It is looked at whenever the message is read,
/// combined with another or written into a node: what bad memory changes must neither be seen nor become permanent.
struct Kept {
    payload: Bytes,
    crc: u32,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Put,
    Delete,
    Patch,
}

impl Kept {
    fn new(key: &[u8], message: Message) -> Kept {
        let (kind, payload) = match message {
            Message::Put(value) => (Kind::Put, value),
            Message::Delete => (Kind::Delete, Bytes::new()),
            Message::Patch(patch) => (Kind::Patch, patch),
        };
        Kept { crc: Kept::checksum(key, kind, &payload), payload, kind }
    }
    fn checksum(key: &[u8], kind: Kind, payload: &[u8]) -> u32 {
        crate::crc(key).rotate_left(1) ^ crate::crc(payload) ^ kind as u32
    }
    fn holds(&self, key: &[u8]) -> bool {
        Kept::checksum(key, self.kind, &self.payload) == self.crc
    }
    fn message(&self) -> Message {
        match self.kind {
            Kind::Put => Message::Put(self.payload.clone()),
            Kind::Delete => Message::Delete,
            Kind::Patch => Message::Patch(self.payload.clone()),
        }
    }
    fn read(&self, key: &[u8]) -> Result<Message> {
        if self.holds(key) { Ok(self.message()) } else { Err(changed()) }
    }
}

fn changed() -> Error {
    Error::corrupt(
        "a message changed in memory before it was written into the index: the memory of this machine is bad; the log has it \
         right, so close the pool and open it again",
    )
}

/// What a buffer says about a key.
pub(crate) enum Verdict {
    /// Nothing: look below.
    Silent,
    /// This message, on top of what lies below if it is a patch.
    Says(Message),
}

impl Memtable {
    /// Adds a message.
    pub fn insert<S: Semantics>(&self, key: Key, message: Message, semantics: &S, lost: &mut S::Lost) {
        let mut inner = self.0.write();
        let added = message.len();
        let key = Sorted::new(key);
        // Few memtables have range deletes, and then the key is not looked for twice.
        let covered = inner.deleted.contains(&key.key) && !inner.points.contains_key(&key);
        match inner.points.entry(key) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                let key = &entry.key().key;
                let grown = key.len() + OVERHEAD_BYTES + added;
                let kept = Kept::new(key, if covered { message.closed() } else { message });
                entry.insert(kept);
                inner.bytes += grown;
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                let key = entry.key().key.clone();
                let damaged = !entry.get().holds(&key);
                let before = entry.get().message();
                let removed = before.len();
                let combined = before.then(&key, message, semantics, lost);
                let grown = combined.len();
                *entry.get_mut() = Kept::new(&key, combined);
                inner.bytes = inner.bytes + grown - removed;
                inner.damaged |= damaged;
            }
        }
    }

    /// Deletes every key in `low..high`.
    pub fn delete_range<S: Semantics>(&self, low: &[u8], high: &[u8], semantics: &S, lost: &mut S::Lost) {
        if low >= high {
            return;
        }
        let mut inner = self.0.write();
        let bounds = (Bound::Included(Sorted::of(low)), Bound::Excluded(Sorted::of(high)));
        let eaten = inner.points.extract_if(bounds, |_, _| true).map(|(key, kept)| (key.key, kept.message()));
        let mut freed = 0;
        for (key, message) in eaten {
            freed += key.len() + OVERHEAD_BYTES + message.len();
            message.lose(&key, semantics, lost);
        }
        inner.bytes -= freed;
        let before = inner.deleted.len();
        inner.deleted.insert(low, high);
        if inner.deleted.len() > before {
            inner.bytes += low.len() + high.len() + OVERHEAD_BYTES;
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Verdict> {
        let inner = self.0.read();
        if !inner.points.is_empty()
            && let Some(kept) = inner.points.get(&Sorted::of(key))
        {
            return kept.read(key).map(Verdict::Says);
        }
        let deleted = !inner.deleted.is_empty() && inner.deleted.contains(key);
        Ok(if deleted { Verdict::Says(Message::Delete) } else { Verdict::Silent })
    }

    /// Up to `limit` point messages from `low` on and below `high`, and the end of the range for which this is all: the
    /// key behind the last one if the limit was reached.
    pub(crate) fn points_in(&self, low: &[u8], high: Option<&[u8]>, limit: usize) -> Result<Vec<(Key, Message)>> {
        let inner = self.0.read();
        if inner.points.is_empty() || high.is_some_and(|high| high <= low) {
            return Ok(Vec::new());
        }
        let upper = high.map_or(Bound::Unbounded, |high| Bound::Excluded(Sorted::of(high)));
        let points = inner.points.range((Bound::Included(Sorted::of(low)), upper));
        points.take(limit).map(|(Sorted { key, .. }, kept)| Ok((key.clone(), kept.read(key)?))).collect()
    }

    pub(crate) fn deleted_in(&self, low: &[u8], high: Option<&[u8]>) -> RangeSet {
        let inner = self.0.read();
        let mut set = RangeSet::default();
        for (start, end) in inner.deleted.within(low, high) {
            set.insert(start, end);
        }
        set
    }

    /// Bytes in use, estimated.
    pub fn bytes(&self) -> usize {
        self.0.read().bytes
    }

    /// Whether nothing was ever added.
    pub fn is_empty(&self) -> bool {
        let inner = self.0.read();
        inner.points.is_empty() && inner.deleted.is_empty()
    }

    /// All messages, verified.
    pub(crate) fn contents(&self) -> Result<(Vec<(Key, Message)>, RangeSet)> {
        let inner = self.0.read();
        if inner.damaged {
            return Err(changed());
        }
        // Its room is known, and to grow it by and by would take twice as much, of memory that nobody has touched.
        let mut points = Vec::with_capacity(inner.points.len());
        for (Sorted { key, .. }, kept) in &inner.points {
            points.push((key.clone(), kept.read(key)?));
        }
        Ok((points, inner.deleted.clone()))
    }

    /// Flips a bit of a message's payload as bad memory would, for explorations; tells which message and byte.
    pub(crate) fn flip_bit(&self, dice: u64) -> Option<String> {
        let mut inner = self.0.write();
        let mut full: Vec<_> = inner.points.iter_mut().filter(|(_, kept)| !kept.payload.is_empty()).collect();
        let count = full.len().max(1) as u64;
        let (Sorted { key, .. }, kept) = full.get_mut((dice % count) as usize)?;
        let bit = dice / count % (kept.payload.len() as u64 * 8);
        let mut payload = BytesMut::from(&kept.payload[..]);
        payload[(bit / 8) as usize] ^= 1 << (bit % 8);
        kept.payload = payload.freeze();
        Some(format!("message for key {:02x?}, byte {}", key.as_slice(), bit / 8))
    }
}
