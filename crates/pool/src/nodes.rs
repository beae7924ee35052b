//! Index nodes in memory.
//!
//! Nodes with children stand apart from leaves. A lookup needs one of each level, and all of them together are small beside the leaves; but
//! what passes by once has as good a name with a cache as what is asked for each thousandth time, and a leaf is as large as twenty of
//! them. So leaves compete with leaves, for what nodes with children leave them, and those have up to half.
//!
//! Invariants
//!  1. Both together take no more than they may, but for a moment while one gives way.
//!  2. What is evicted follows from what is asked for, and in which order: the same in each repetition of a simulated run, on every
//!     machine. So neither the hash nor the number of shards is chosen by chance or by processors.

use ashlar_index::{Node, NodePtr};
use parking_lot::Mutex;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// Nodes whose departure is remembered are half as many, of each of both kinds.
const NODES: usize = 1 << 14;
/// A shard has at least so many bytes, or a large node would not be kept: nothing that is larger than a shard is.
const SHARD_BYTES: u64 = 8 << 20;
const SHARDS_MAX: u64 = 64;
/// Nodes with children may take this part.
const INTERIOR_SHARE: u64 = 2;
/// Leaves give way in steps of this part, and get back what nodes with children do not need when it is this much at once.
const GIVE_SHARE: u64 = 16;
const TAKE_SHARE: u64 = 4;

/// Where a node was born: segment, and offset there.
pub(crate) type Address = (u64, u32);

/// The address of a node.
pub(crate) fn address(ptr: &NodePtr) -> Address {
    (ptr.uid, ptr.offset)
}

type Nodes = Cache<Address, Arc<Node>, NodeWeight, BuildHasherDefault<NodeHasher>>;

/// See the module.
pub(crate) struct NodeCache {
    interior: Nodes,
    /// Leaves, and runs.
    leaves: Nodes,
    bytes: u64,
    /// Bytes that leaves may take.
    for_leaves: Mutex<u64>,
}

impl NodeCache {
    /// Keeps up to so many bytes.
    pub(crate) fn new(bytes: u64) -> NodeCache {
        let bytes = bytes.max(1);
        let nodes = |bytes: u64| {
            let shards = (bytes / SHARD_BYTES).clamp(1, SHARDS_MAX);
            let shards = 1 << shards.ilog2();
            let mut options = OptionsBuilder::new();
            options.shards(shards).estimated_items_capacity(NODES).weight_capacity(bytes);
            let options = options.build().expect("both capacities are given");
            Cache::with_options(options, NodeWeight, BuildHasherDefault::default(), DefaultLifecycle::default())
        };
        let (interior, leaves) = (nodes(bytes.div_ceil(INTERIOR_SHARE)), nodes(bytes));
        NodeCache { interior, leaves, bytes, for_leaves: Mutex::new(bytes) }
    }

    fn of(&self, node: &Node) -> &Nodes {
        if node.level() > 0 && !node.is_run() { &self.interior } else { &self.leaves }
    }

    /// A node, if it is here.
    pub(crate) fn get(&self, at: Address) -> Option<Arc<Node>> {
        self.interior.get(&at).or_else(|| self.get_leaf(at))
    }
    /// A leaf or a run, if it is here.
    pub(crate) fn get_leaf(&self, at: Address) -> Option<Arc<Node>> {
        self.leaves.get(&at)
    }
    /// Keeps a node.
    pub(crate) fn insert(&self, at: Address, node: Arc<Node>) {
        let nodes = self.of(&node);
        nodes.insert(at, node);
        if std::ptr::eq(nodes, &self.interior) {
            self.balance();
        }
    }

    /// Gives leaves what nodes with children leave them.
    fn balance(&self) {
        let wanted = self.bytes.saturating_sub(self.interior.weight()).max(1);
        let mut granted = self.for_leaves.lock();
        // In steps, and back in larger ones: each costs the cache a little of what it knows of nodes that it has no more.
        let (gives, gets) = (*granted > wanted, wanted >= *granted + self.bytes / TAKE_SHARE);
        if gives || gets {
            let step = if gives { self.bytes / GIVE_SHARE } else { 0 };
            *granted = wanted.saturating_sub(step).max(1);
            self.leaves.set_capacity(*granted);
        }
    }

    /// Drops a node.
    pub(crate) fn remove(&self, at: Address) {
        if self.interior.remove(&at).is_none() {
            self.leaves.remove(&at);
        }
    }
    /// Bytes that all nodes take.
    pub(crate) fn bytes(&self) -> u64 {
        self.interior.weight() + self.leaves.weight()
    }
    /// All nodes, in no order that means anything.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Address, Arc<Node>)> {
        self.interior.iter().chain(self.leaves.iter())
    }
}

#[derive(Clone)]
struct NodeWeight;
impl Weighter<Address, Arc<Node>> for NodeWeight {
    fn weight(&self, _: &Address, node: &Arc<Node>) -> u64 {
        node.memory() as u64
    }
}

/// Hashes the addresses of nodes.
#[derive(Clone, Default)]
struct NodeHasher(u64);
impl Hasher for NodeHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(32) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ (mixed >> 32)
    }
}
