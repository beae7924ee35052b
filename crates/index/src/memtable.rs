//! The newest messages of a tree, in memory.

use crate::{Key, Message, RangeSet, Semantics};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Bytes that one message costs beyond its key and payload, estimated.
const OVERHEAD_BYTES: usize = 80;

/// A buffer of messages under a lock. Invariant 1 of the crate holds inside.
#[derive(Default)]
pub struct Memtable(RwLock<Inner>);

#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) points: BTreeMap<Key, Message>,
    pub(crate) deleted: RangeSet,
    bytes: usize,
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
        let covered = !inner.points.contains_key(&key) && inner.deleted.contains(&key);
        match inner.points.entry(key) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                let grown = entry.key().len() + OVERHEAD_BYTES + added;
                entry.insert(if covered { message.closed() } else { message });
                inner.bytes += grown;
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                let before = std::mem::replace(entry.get_mut(), Message::Delete);
                let removed = before.len();
                let combined = before.then(&entry.key().clone(), message, semantics, lost);
                let grown = combined.len();
                *entry.get_mut() = combined;
                inner.bytes = inner.bytes + grown - removed;
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
            let message = inner.points.remove(&key).expect("just listed");
            inner.bytes -= key.len() + OVERHEAD_BYTES + message.len();
            message.lose(&key, semantics, lost);
        }
        let before = inner.deleted.len();
        inner.deleted.insert(low, high);
        if inner.deleted.len() > before {
            inner.bytes += low.len() + high.len() + OVERHEAD_BYTES;
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Verdict {
        let inner = self.0.read();
        if let Some(message) = inner.points.get(key) {
            return Verdict::Says(message.clone());
        }
        if !inner.deleted.is_empty() && inner.deleted.contains(key) {
            return Verdict::Says(Message::Delete);
        }
        Verdict::Silent
    }

    /// Up to `limit` point messages from `low` on and below `high`, and the end of the range for which this is all: the
    /// key behind the last one if the limit was reached.
    pub(crate) fn points_in(&self, low: &[u8], high: Option<&[u8]>, limit: usize) -> Vec<(Key, Message)> {
        let inner = self.0.read();
        let upper = high.map_or(Bound::Unbounded, Bound::Excluded);
        if high.is_some_and(|high| high <= low) {
            return Vec::new();
        }
        let points = inner.points.range::<[u8], _>((Bound::Included(low), upper));
        points.take(limit).map(|(key, message)| (key.clone(), message.clone())).collect()
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

    pub(crate) fn contents(&self) -> (Vec<(Key, Message)>, RangeSet) {
        let inner = self.0.read();
        let points = inner.points.iter().map(|(key, message)| (key.clone(), message.clone())).collect();
        (points, inner.deleted.clone())
    }
}
