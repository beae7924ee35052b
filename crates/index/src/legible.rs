//! What is left of a range of keys where nodes cannot be read: what lies above them, and what they cannot have changed.

use crate::memtable::Verdict;
use crate::node::Node;
use crate::tree::{behind, look_below, look_in_memory};
use crate::{Key, NodeStore, RangeSet, Seat, Semantics, View};
use ashlar_block::Result;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// Its value.
    Value(Option<Bytes>),
    /// What its value was cannot be read. These patches came later, the oldest first.
    Patches(Vec<Bytes>),
}

/// Keys of a range of which something is known.
#[derive(Debug, Default)]
pub struct Legible {
    /// In order. Of a key that is not among them nothing can be read, or there is none.
    pub keys: Vec<(Key, Known)>,
    /// Whether these are all. If not, those are missing that lie lowest in the tree.
    pub all: bool,
}

impl View {
    /// What can be read of `low..high`. It looks for no more keys, a level further down, once it has `most`.
    ///
    /// # Errors
    /// Those that are no damage.
    pub async fn legible<S: Semantics>(
        &self,
        semantics: &S,
        store: &impl NodeStore,
        (low, high): (&[u8], &[u8]),
        most: usize,
    ) -> Result<Legible> {
        let mut found: BTreeSet<Key> = BTreeSet::new();
        for memtable in self.memtables() {
            found.extend(memtable.points_in(low, Some(high), usize::MAX)?.into_iter().map(|(key, _)| key));
        }
        let mut seats: Vec<Seat> = self.root().map(Seat::root).into_iter().collect();
        while !seats.is_empty() && found.len() <= most {
            let mut below = Vec::new();
            for seat in &seats {
                let loaded = match store.cached(&seat.ptr) {
                    Some(node) => Ok(node),
                    None => store.load(seat.ptr).await,
                };
                let node = match loaded.and_then(|node| node.check_seat(seat).map(|()| node)) {
                    Err(error) if error.is_damage() => continue,
                    node => node?,
                };
                let keys = node.messages().map(|(key, _)| key).filter(|key| (low..high).contains(key));
                found.extend(keys.map(Key::from_slice));
                let meets = |seat: &Seat| &seat.low[..] < high && seat.high.as_deref().is_none_or(|end| low < end);
                below.extend(node.below(seat).into_iter().filter(meets));
            }
            seats = below;
        }
        let mut legible = Legible { keys: Vec::with_capacity(found.len()), all: seats.is_empty() };
        for key in found {
            let known = self.known(semantics, store, &key).await?;
            if known != Known::Patches(Vec::new()) {
                legible.keys.push((key, known));
            }
        }
        Ok(legible)
    }

    /// What is known of one key.
    ///
    /// # Errors
    /// Those that are no damage.
    pub async fn known<S: Semantics>(&self, semantics: &S, store: &impl NodeStore, key: &[u8]) -> Result<Known> {
        let mut open = Vec::new();
        let closed = match look_in_memory(self, key, &mut open) {
            Ok(Some(closed)) => Ok(closed),
            Ok(None) => look_below(store, self.root(), key, &mut open).await,
            Err(error) => return Err(error),
        };
        match closed {
            Ok(closed) => Ok(Known::Value(View::compose(semantics, key, closed, open))),
            Err(error) if error.is_damage() => {
                Ok(Known::Patches(open.iter().rev().map(|patch| Bytes::copy_from_slice(patch.payload())).collect()))
            }
            Err(error) => Err(error),
        }
    }

    /// How far from `low` on these nodes, and memory, say all: where a key begins of which something older must be known.
    pub(crate) fn answered<'a>(
        &self,
        nodes: impl Iterator<Item = &'a Arc<Node>> + Clone,
        low: &[u8],
        bound: Option<&[u8]>,
    ) -> Result<Key> {
        let in_memory: Vec<RangeSet> = self.memtables().map(|memtable| memtable.deleted_in(low, bound)).collect();
        let mut at = Key::from_slice(low);
        while bound.is_none_or(|bound| &at[..] < bound) {
            let deleted = nodes.clone().map(|node| &node.deleted).chain(&in_memory);
            let ends = deleted.filter_map(|set| set.within(&at, bound).next().filter(|(start, _)| *start == &at[..]));
            let end = ends.map(|(_, end)| Key::from_slice(end)).max();
            at = match end {
                Some(end) => end,
                None if self.closes(nodes.clone(), &at)? => behind(&at),
                None => break,
            };
        }
        Ok(at)
    }

    /// Whether a value, or that there is none, is in these nodes or in memory.
    fn closes<'a>(&self, nodes: impl Iterator<Item = &'a Arc<Node>>, key: &[u8]) -> Result<bool> {
        for memtable in self.memtables() {
            if matches!(memtable.get(key)?, Verdict::Says(message) if !message.is_open()) {
                return Ok(true);
            }
        }
        for node in nodes {
            if node.find(key)?.is_some_and(|message| !message.is_open()) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
