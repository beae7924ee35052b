//! The newest messages of a tree, in memory.

use crate::{Key, Message, RangeSet, Semantics};
use ashlar_block::{Error, Result};
use bytes::BytesMut;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Bytes that one message costs beyond its key and payload, estimated.
const OVERHEAD_BYTES: usize = 80;

/// A buffer of messages under a lock. Invariant 1 of the crate holds inside.
#[derive(Default)]
pub struct Memtable(RwLock<Inner>);

#[derive(Default)]
struct Inner {
    points: BTreeMap<Key, Kept>,
    deleted: RangeSet,
    bytes: usize,
    /// A message was found changed when another one was combined with it.
    damaged: bool,
}

/// A message, and the checksum of its key and payload from when it came in. It is looked at whenever the message is read,
/// combined with another or written into a node: what bad memory changes must neither be seen nor become permanent.
struct Kept {
    message: Message,
    crc: u32,
}

impl Kept {
    fn new(key: &[u8], message: Message) -> Kept {
        let crc = Kept::checksum(key, &message);
        Kept { message, crc }
    }
    fn checksum(key: &[u8], message: &Message) -> u32 {
        crate::crc(key).rotate_left(1) ^ crate::crc(message.payload()) ^ u32::from(message.is_open())
    }
    fn holds(&self, key: &[u8]) -> bool {
        Kept::checksum(key, &self.message) == self.crc
    }
    fn read(&self, key: &[u8]) -> Result<Message> {
        if self.holds(key) { Ok(self.message.clone()) } else { Err(changed()) }
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
        // Few memtables have range deletes, and then the key is not looked for twice.
        let covered = inner.deleted.contains(&key) && !inner.points.contains_key(&key);
        match inner.points.entry(key) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                let grown = entry.key().len() + OVERHEAD_BYTES + added;
                let kept = Kept::new(entry.key(), if covered { message.closed() } else { message });
                entry.insert(kept);
                inner.bytes += grown;
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                let key = entry.key().clone();
                let damaged = !entry.get().holds(&key);
                let before = std::mem::replace(&mut entry.get_mut().message, Message::Delete);
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
        let bounds = (Bound::Included(low), Bound::Excluded(high));
        let eaten: Vec<Key> = inner.points.range::<[u8], _>(bounds).map(|(key, _)| key.clone()).collect();
        for key in eaten {
            let Kept { message, .. } = inner.points.remove(&key).expect("just listed");
            inner.bytes -= key.len() + OVERHEAD_BYTES + message.len();
            message.lose(&key, semantics, lost);
        }
        let before = inner.deleted.len();
        inner.deleted.insert(low, high);
        if inner.deleted.len() > before {
            inner.bytes += low.len() + high.len() + OVERHEAD_BYTES;
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Verdict> {
        let inner = self.0.read();
        if let Some(kept) = inner.points.get(key) {
            return kept.read(key).map(Verdict::Says);
        }
        let deleted = !inner.deleted.is_empty() && inner.deleted.contains(key);
        Ok(if deleted { Verdict::Says(Message::Delete) } else { Verdict::Silent })
    }

    /// Up to `limit` point messages from `low` on and below `high`, and the end of the range for which this is all: the
    /// key behind the last one if the limit was reached.
    pub(crate) fn points_in(&self, low: &[u8], high: Option<&[u8]>, limit: usize) -> Result<Vec<(Key, Message)>> {
        let inner = self.0.read();
        let upper = high.map_or(Bound::Unbounded, Bound::Excluded);
        if high.is_some_and(|high| high <= low) {
            return Ok(Vec::new());
        }
        let points = inner.points.range::<[u8], _>((Bound::Included(low), upper));
        points.take(limit).map(|(key, kept)| Ok((key.clone(), kept.read(key)?))).collect()
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
        let points =
            inner.points.iter().map(|(key, kept)| Ok((key.clone(), kept.read(key)?))).collect::<Result<_>>()?;
        Ok((points, inner.deleted.clone()))
    }

    /// Flips a bit of a message's payload as bad memory would, for explorations; tells which message and byte.
    pub(crate) fn flip_bit(&self, dice: u64) -> Option<String> {
        let mut inner = self.0.write();
        let mut full: Vec<_> = inner.points.iter_mut().filter(|(_, kept)| !kept.message.is_empty()).collect();
        let count = full.len().max(1) as u64;
        let (key, kept) = full.get_mut((dice % count) as usize)?;
        let bit = dice / count % (kept.message.len() as u64 * 8);
        let mut payload = BytesMut::from(kept.message.payload());
        payload[(bit / 8) as usize] ^= 1 << (bit % 8);
        let payload = payload.freeze();
        kept.message = if kept.message.is_open() { Message::Patch(payload) } else { Message::Put(payload) };
        Some(format!("message for key {:02x?}, byte {}", key.as_slice(), bit / 8))
    }
}
