//! The tree over nodes in memory, tiny ones so that every path of the flush runs.

mod ahead;
mod damage;
mod model;
mod runs;

use crate::*;
use ashlar_block::{Error, Result};
use ashlar_env::sim::{Schedule, Sim};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Nodes in a map; nothing is ever cached, so that every read decodes.
#[derive(Default)]
struct Nodes {
    images: Mutex<HashMap<u64, Bytes>>,
    /// Nodes that cannot be read at present.
    bad: Mutex<BTreeSet<u64>>,
    next: AtomicU64,
    births: AtomicU64,
    /// Bytes that were appended and loaded.
    appended: AtomicU64,
    loaded: AtomicU64,
}

impl NodeStore for Nodes {
    type Helper = Alone;

    fn cached(&self, _ptr: &NodePtr) -> Option<Arc<Node>> {
        None
    }
    async fn load(&self, ptr: NodePtr) -> Result<Arc<Node>> {
        let image = self.images.lock().get(&ptr.uid).cloned().expect("a node that is still referred to");
        if self.bad.lock().contains(&ptr.uid) {
            return Err(Error::corrupt("damaged on purpose"));
        }
        self.loaded.fetch_add(image.len() as u64, Ordering::Relaxed);
        Ok(Arc::new(Node::decode(&image)?))
    }
    async fn append(&self, image: Bytes, node: Node) -> Result<NodePtr> {
        let uid = self.next.fetch_add(1, Ordering::Relaxed);
        self.appended.fetch_add(image.len() as u64, Ordering::Relaxed);
        let raw_len = node.memory() as u32;
        let birth = self.birth();
        let ptr = NodePtr { uid, offset: 0, len: image.len() as u32, raw_len, crc: 0, birth };
        self.images.lock().insert(uid, image);
        Ok(ptr)
    }
    async fn height(&self, ptr: &NodePtr) -> Result<u8> {
        Ok(Node::decode(&self.images.lock()[&ptr.uid])?.level())
    }
    fn birth(&self) -> u64 {
        self.births.load(Ordering::Relaxed)
    }
}

/// Values are slots of one byte with a token of four; every token that enters must be present or lost, once.
struct Slots;

fn slots(value: &[u8]) -> BTreeMap<u8, u32> {
    value.chunks(5).map(|c| (c[0], u32::from_le_bytes(c[1..].try_into().expect("four bytes")))).collect()
}
fn pack(slots: &BTreeMap<u8, u32>) -> Bytes {
    slots.iter().flat_map(|(slot, token)| std::iter::once(*slot).chain(token.to_le_bytes())).collect()
}

impl Semantics for Slots {
    type Lost = Vec<u32>;
    fn overlay(&self, _key: &[u8], older: &[u8], newer: &[u8], lost: &mut Vec<u32>) -> Bytes {
        let mut combined = slots(older);
        for (slot, token) in slots(newer) {
            lost.extend(combined.insert(slot, token));
        }
        pack(&combined)
    }
    fn settle(&self, _key: &[u8], value: Bytes) -> Option<Bytes> {
        (!value.is_empty()).then_some(value)
    }
    fn lose(&self, _key: &[u8], value: &[u8], lost: &mut Vec<u32>) {
        lost.extend(slots(value).values());
    }
    fn gather(lost: &mut Vec<u32>, elsewhere: Vec<u32>) {
        lost.extend(elsewhere);
    }
}

fn key(number: u16) -> Key {
    let mut key = Key::from_slice(b"k/");
    key.extend_from_slice(&number.to_be_bytes());
    if number.is_multiple_of(7) {
        key.extend_from_slice(b"/a longer key than fits inline");
    }
    key
}

async fn everything(
    tree: &Tree<Slots>,
    nodes: &impl NodeStore,
    low: &[u8],
    high: Option<&[u8]>,
    limit: usize,
) -> Result<Vec<(Key, Bytes)>> {
    let mut all = Vec::new();
    let mut low = Key::from_slice(low);
    loop {
        let page = tree.page(nodes, &low, high, limit).await?;
        all.extend(page.entries);
        match page.next {
            Some(next) => {
                assert!(next > low, "a page moves on");
                low = next;
            }
            None => return Ok(all),
        }
    }
}

/// Tiny nodes, whose buffers are written with them.
const WHOLE: Limits = Limits { leaf_bytes: 300, buffer_bytes: 400, fanout: 4, runs: 0 };

/// Nodes that stay in memory once they were loaded.
#[derive(Default)]
struct Caching {
    nodes: Nodes,
    cache: Mutex<HashMap<u64, Arc<Node>>>,
    /// Nodes that were loaded, and how many times somebody asked.
    loads: AtomicU64,
    asked: AtomicU64,
}

impl NodeStore for Caching {
    type Helper = Alone;

    fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        self.cache.lock().get(&ptr.uid).cloned()
    }
    async fn load(&self, ptr: NodePtr) -> Result<Arc<Node>> {
        let node = self.nodes.load(ptr).await?;
        self.loads.fetch_add(1, Ordering::Relaxed);
        self.cache.lock().insert(ptr.uid, node.clone());
        Ok(node)
    }
    async fn load_ahead(&self, ptrs: &[NodePtr]) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        for ptr in ptrs {
            drop(self.load(*ptr).await);
        }
    }
    async fn append(&self, image: Bytes, node: Node) -> Result<NodePtr> {
        self.nodes.append(image, node).await
    }
    async fn height(&self, ptr: &NodePtr) -> Result<u8> {
        self.nodes.height(ptr).await
    }
    fn birth(&self) -> u64 {
        self.nodes.birth()
    }
}

/// A tree with about this many leaves, and ten times as many keys of two bytes; what its root is.
async fn grown(nodes: &Nodes, leaves: usize, fanout: usize) -> (Tree<Slots>, Arc<Node>) {
    let tree = Tree::open(1, None, Arc::new(Slots));
    let mut lost = Vec::new();
    let limits = Limits { leaf_bytes: 200, fanout, ..WHOLE };
    for key in 0..leaves as u16 * 10 {
        tree.apply(
            Key::from_slice(&key.to_be_bytes()),
            Message::Put(pack(&BTreeMap::from([(0, u32::from(key))]))),
            &mut lost,
        );
    }
    tree.freeze();
    let flushed = tree.flush(nodes, limits, Errands { thorough: true, ..Errands::default() }).await.expect("flush");
    tree.install(flushed.root);
    let root = nodes.load(tree.root().expect("it is not empty")).await.expect("loads");
    (tree, root)
}

/// Runs a test to its end, on one thread.
fn simulate<T: Send + 'static>(test: impl Future<Output = T> + Send + 'static) -> T {
    Sim::new(1, Schedule::Fifo).run(test).expect("no deadlock")
}
