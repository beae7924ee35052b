//! What a pool costs its devices, and what waits in a volume's tree: for people who ask.

use crate::format::Stream;
use crate::{Pool, Volume};
use ashlar_index::Buffers;
use std::sync::atomic::{AtomicU64, Ordering};

/// Interior nodes that [`Volume::buffers`] looks at: at most 64 MiB.
const BUFFERS_MAX: u64 = 256;

/// Bytes that a pool read and wrote since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Reads of extents and nodes, and their bytes, with what was read to fill blocks.
    pub reads: (u64, u64),
    /// Batches of the log: data, and records of what changed.
    pub log: u64,
    /// Batches of index nodes.
    pub nodes: u64,
    /// Batches of what the cleaner moved.
    pub moved: u64,
    /// Superblocks.
    pub superblocks: u64,
    /// Index nodes that could not be read, or were not what they were, and were computed from parity.
    pub recovered: u64,
}

impl Costs {
    /// All bytes written.
    pub fn written(&self) -> u64 {
        self.log + self.nodes + self.moved + self.superblocks
    }
}

/// See [`Costs`].
#[derive(Default)]
pub(crate) struct Counted {
    pub(crate) reads: AtomicU64,
    pub(crate) read: AtomicU64,
    pub(crate) superblocks: AtomicU64,
    pub(crate) recovered: AtomicU64,
}

impl Pool {
    /// What the pool read and wrote since it was opened.
    pub fn costs(&self) -> Costs {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let of = |stream| get(&self.0.outstanding(stream).written);
        let counted = &self.0.counted;
        Costs {
            reads: (get(&counted.reads), get(&counted.read)),
            log: of(Stream::Log),
            nodes: of(Stream::Nodes),
            moved: of(Stream::Cold),
            superblocks: get(&counted.superblocks),
            recovered: get(&counted.recovered),
        }
    }
}

impl Volume {
    /// What waits in memory and in the buffers of the topmost 256 interior nodes of the volume's tree, which are read.
    pub async fn buffers(&self) -> Buffers {
        let _pin = self.pool.0.pin();
        self.tree.view().buffers(&self.pool, BUFFERS_MAX).await
    }
}
