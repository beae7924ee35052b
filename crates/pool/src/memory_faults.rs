//! Faults in memory, for explorations: one bit of what the pool holds is flipped on purpose, as bad memory would flip it.
//!
//! Nothing here is used in normal operation. What is flipped is the pool's own copy; checksums that were made before stay as
//! they are.

use crate::Pool;
use bytes::{Bytes, BytesMut};
use std::sync::Arc;

/// What the pool holds in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InMemory {
    /// The bytes of an index node in the cache.
    CachedNode,
    /// A pointer of an interior node in the cache, beside its bytes.
    CachedPointer,
    /// A message in a memtable.
    Memtable,
    /// Data that is not yet written.
    UnwrittenData,
    /// Records of the log that are not yet written.
    UnwrittenRecords,
}

/// A copy with one bit changed.
pub(crate) fn flipped(bytes: &[u8], bit: u64) -> Bytes {
    let mut copy = BytesMut::from(bytes);
    if !copy.is_empty() {
        let bit = bit % (copy.len() as u64 * 8);
        copy[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
    copy.freeze()
}

impl Pool {
    /// Flips one bit, which `dice` chooses, and tells where. `None`: the pool holds nothing of this kind.
    pub fn flip_in_memory(&self, what: InMemory, dice: u64) -> Option<String> {
        let shared = &self.0;
        let (which, bit) = ((dice >> 40) as usize, dice & ((1 << 40) - 1));
        match what {
            InMemory::CachedNode | InMemory::CachedPointer => {
                let mut nodes: Vec<_> = shared.cache.iter().collect();
                nodes.retain(|(_, node)| what == InMemory::CachedNode || node.level() > 0);
                nodes.sort_unstable_by_key(|(place, _)| *place);
                let ((uid, offset), node) = nodes.get(which % nodes.len().max(1))?;
                let (node, place) = if what == InMemory::CachedNode {
                    node.with_bit_flipped(bit)
                } else {
                    node.with_pointer_flipped(bit)?
                };
                let tree = node.tree();
                shared.cache.insert((*uid, *offset), Arc::new(node));
                Some(format!("node {uid:#x}:{offset} of tree {tree}, {place}"))
            }
            InMemory::Memtable => {
                let trees: Vec<_> = shared.volumes.read().values().map(|volume| volume.tree.clone()).collect();
                let dirty: Vec<_> = trees.into_iter().filter(|tree| tree.memory().0 > 0).collect();
                let tree = dirty.get(which % dirty.len().max(1))?;
                tree.flip_in_memtable(bit).map(|place| format!("memtable of tree {}, {place}", tree.id()))
            }
            InMemory::UnwrittenData => {
                let mut log = shared.log.lock();
                let uid = log.stream.segment?.uid;
                let (extent, at) = log.stream.flip_in_payload(dice)?;
                // Readers see the same memory.
                if let Some(stored) = shared.in_flight.write().get_mut(&(uid, extent)) {
                    *stored = flipped(stored, u64::from(at - extent) * 8 + dice % 8);
                }
                Some(format!("open batch, extent {uid:#x}:{extent}, byte {}", at - extent))
            }
            InMemory::UnwrittenRecords => shared
                .log
                .lock()
                .stream
                .body()
                .flip_in_operations(bit)
                .map(|at| format!("open batch, operations, byte {at}")),
        }
    }
}
