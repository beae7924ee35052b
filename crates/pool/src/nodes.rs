//! Index nodes in memory.
//!
//! Nodes with children stand apart from leaves. A lookup needs one of each level, and all of them together are small beside the leaves; but
//! what passes by once has as good a name with a cache as what is asked for each thousandth time, and a leaf is as large as twenty of
//! them. So leaves compete with leaves, for what nodes with children leave them, and those have up to three quarters.
//!
//! Invariants
//!  1. Both together take no more than they may, but for a moment while one gives way.
//!  2. What is evicted follows from what is asked for, and in which order: the same in each repetition of a simulated run, on every
//!     machine. So neither the hash nor the number of shards is chosen by chance or by processors.

use ashlar_index::{Node, NodePtr};
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// Nodes whose departure is remembered are half as many, of each of both kinds.
const NODES: usize = 1 << 14;
/// A shard has at least so many bytes: of many small ones a lookup takes longer, and nothing that is larger than a shard is kept.
const SHARD_BYTES: u64 = 32 << 20;
const SHARDS_MAX: u64 = 64;
/// What is left for leaves if nodes with children want more than the rest: this part. While a checkpoint writes nodes anew, old
/// and new ones are here.
const LEAVES_SHARE: u64 = 4;
/// Leaves give way in steps of this part.
const STEP_SHARE: u64 = 64;

/// Where a node was born: segment, and offset there.
pub(crate) type Address = (u64, u32);

/// The address of a node.
pub(crate) fn address(ptr: &NodePtr) -> Address {
    (ptr.uid, ptr.offset)
}

type Nodes = Cache<Address, Kept, Weight, BuildHasherDefault<NodeHasher>, Pins>;

/// See the module.
pub(crate) struct NodeCache {
    interior: Nodes,
    /// Leaves and runs, and in each shard a ballast as heavy as the nodes with children. (A cache whose capacity is changed
    /// remembers fewer departures each time.)
    leaves: Nodes,
    /// Where the ballasts are.
    ballasts: Vec<Address>,
    /// Bytes that all of them stand for.
    reserved: Mutex<u64>,
    bytes: u64,
}

#[derive(Clone)]
enum Kept {
    Node(Arc<Node>),
    /// Stands for so many bytes that are elsewhere.
    Ballast(u64),
}

impl Kept {
    #[inline]
    fn node(self) -> Option<Arc<Node>> {
        match self {
            Kept::Node(node) => Some(node),
            Kept::Ballast(_) => None,
        }
    }
}

impl NodeCache {
    /// Keeps up to so many bytes.
    pub(crate) fn new(bytes: u64) -> NodeCache {
        let bytes = bytes.max(1);
        let nodes = |bytes: u64| {
            let shards = (bytes / SHARD_BYTES).clamp(1, SHARDS_MAX);
            let mut options = OptionsBuilder::new();
            options.shards(1 << shards.ilog2()).estimated_items_capacity(NODES).weight_capacity(bytes);
            let options = options.build().expect("both capacities are given");
            Cache::with_options(options, Weight, BuildHasherDefault::default(), Pins)
        };
        let (interior, leaves) = (nodes(bytes - bytes / LEAVES_SHARE), nodes(bytes));
        // No segment has this number.
        let in_shard = |shard| (0..).map(|offset| (u64::MAX, offset)).find(|at| leaves.shard_index(at) == shard);
        let ballasts = (0..leaves.num_shards()).filter_map(in_shard).collect();
        let cache = NodeCache { interior, leaves, ballasts, reserved: Mutex::new(0), bytes };
        cache.reserve(0);
        cache
    }

    /// A node, if it is here.
    #[inline]
    pub(crate) fn get(&self, at: Address) -> Option<Arc<Node>> {
        self.interior.get(&at).and_then(Kept::node).or_else(|| self.get_leaf(at))
    }
    /// A leaf or a run, if it is here.
    #[inline]
    pub(crate) fn get_leaf(&self, at: Address) -> Option<Arc<Node>> {
        self.leaves.get(&at).and_then(Kept::node)
    }
    /// Keeps a node.
    pub(crate) fn insert(&self, at: Address, node: Arc<Node>) {
        if node.level() == 0 || node.is_run() {
            self.leaves.insert(at, Kept::Node(node));
            return;
        }
        self.interior.insert(at, Kept::Node(node));
        let (wanted, step) = (self.interior.weight(), self.bytes / STEP_SHARE);
        let reserved = *self.reserved.lock();
        if wanted > reserved || wanted + 2 * step < reserved {
            self.reserve(wanted + step);
        }
    }

    /// Leaves get what these bytes leave them.
    fn reserve(&self, bytes: u64) {
        let mut reserved = self.reserved.lock();
        // Without any weight nothing would hold its place.
        let each = (bytes / self.ballasts.len() as u64).max(1);
        self.ballasts.iter().for_each(|at| self.leaves.insert(*at, Kept::Ballast(each)));
        *reserved = each * self.ballasts.len() as u64;
    }

    /// Drops a node.
    pub(crate) fn remove(&self, at: Address) {
        if self.interior.remove(&at).is_none() {
            self.leaves.remove(&at);
        }
    }
    /// Bytes that all nodes take.
    pub(crate) fn bytes(&self) -> u64 {
        let reserved = self.reserved.lock();
        self.interior.weight() + self.leaves.weight().saturating_sub(*reserved)
    }
    /// All nodes, in no order that means anything.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Address, Arc<Node>)> {
        self.interior.iter().chain(self.leaves.iter()).filter_map(|(at, kept)| Some((at, kept.node()?)))
    }
}

#[derive(Clone)]
struct Weight;
impl Weighter<Address, Kept> for Weight {
    fn weight(&self, _: &Address, kept: &Kept) -> u64 {
        match kept {
            Kept::Node(node) => node.memory() as u64,
            Kept::Ballast(bytes) => *bytes,
        }
    }
}

#[derive(Clone)]
struct Pins;
impl Lifecycle<Address, Kept> for Pins {
    type RequestState = ();

    fn is_pinned(&self, _: &Address, kept: &Kept) -> bool {
        matches!(kept, Kept::Ballast(_))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Creation, Pool, Txn};
    use ashlar_block::Device;
    use ashlar_devices::Memory;
    use ashlar_env::sim::{Schedule, Sim};
    use ashlar_index::Limits;
    use ashlar_units::{Blocks, Bytes};

    /// Nodes of a small tree: with children, and without.
    fn nodes() -> (Vec<Arc<Node>>, Vec<Arc<Node>>) {
        let sim = Sim::new(1, Schedule::Fifo);
        let env = sim.env();
        let all = sim.run(async move {
            let device: Device = Arc::new(Memory::new(Blocks(1 << 14)));
            let creation = Creation { segment: Some(Blocks(256)), force: false };
            Pool::create(&env, std::slice::from_ref(&device), creation).await.expect("created");
            let limits = Limits { leaf_bytes: 4 << 10, buffer_bytes: 1 << 10, fanout: 4, runs: 0 };
            let config = Config { nodes: Some(limits), memory: Bytes::mib(64), scrub: false, ..Config::default() };
            let pool = Pool::open(&env, vec![device], config).await.expect("opened");
            let volume = pool.create_volume("v").await.expect("a volume");
            for index in 0..2000u32 {
                let mut txn = Txn::new();
                volume.put(&mut txn, &index.to_be_bytes(), vec![1; 100]);
                volume.commit(txn).await.expect("an insert");
            }
            pool.checkpoint().await.expect("a checkpoint");
            let all: Vec<Arc<Node>> = pool.0.cache.iter().map(|(_, node)| node).collect();
            pool.close().await.expect("closed");
            all
        });
        all.expect("no deadlock").into_iter().partition(|node| node.level() > 0)
    }

    fn bytes_of(nodes: &[Arc<Node>]) -> u64 {
        nodes.iter().map(|node| node.memory() as u64).sum()
    }

    #[test]
    fn nodes_with_children_stay_while_leaves_pass_by_and_both_keep_their_bound() {
        let (interior, leaves) = nodes();
        assert!(interior.len() > 8 && leaves.len() > 30, "{} and {}", interior.len(), leaves.len());
        let bytes = 4 * bytes_of(&interior) + 8 * leaves[0].memory() as u64;
        let cache = NodeCache::new(bytes);
        for (at, node) in (0..).zip(&interior) {
            cache.insert((1, at), node.clone());
        }
        for pass in 0..20 {
            for (at, leaf) in (0..).zip(&leaves) {
                cache.insert((2 + pass, at), leaf.clone());
                assert!(cache.bytes() <= bytes, "{} of {bytes} bytes", cache.bytes());
            }
        }
        assert!((0..interior.len() as u32).all(|at| cache.get((1, at)).is_some()), "one of them had to go");
        assert!(cache.bytes() > bytes / 2, "leaves have what is left");
    }

    #[test]
    fn leaves_give_way_to_nodes_with_children_and_get_it_back() {
        let (interior, leaves) = nodes();
        let bytes = 2 * bytes_of(&leaves);
        let cache = NodeCache::new(bytes);
        let fill = |uid: u64| {
            (0..).zip(leaves.iter().chain(&leaves)).for_each(|(at, leaf)| cache.insert((uid, at), leaf.clone()))
        };
        fill(1);
        let of_leaves = || cache.bytes() - cache.interior.weight();
        let alone = of_leaves();
        assert!(alone > bytes * 3 / 4, "{alone} of {bytes} bytes");
        let rounds = bytes / bytes_of(&interior) + 1;
        for round in 0..rounds {
            for (at, node) in (0..).zip(&interior) {
                cache.insert((2 + round, at), node.clone());
                assert!(cache.bytes() <= bytes, "{} of {bytes} bytes", cache.bytes());
            }
        }
        let beside = of_leaves();
        assert!(beside <= bytes * 3 / 8 && beside > bytes / 8, "{beside} of {bytes} bytes");
        for (at, _) in cache.interior.iter().collect::<Vec<_>>() {
            cache.remove(at);
        }
        cache.insert((2, 0), interior[0].clone());
        fill(3 + rounds);
        assert!(of_leaves() > bytes * 3 / 4, "{} of {bytes} bytes", of_leaves());
    }
}
