//! The tree against a model, with tiny nodes so that every path of the flush runs.

use crate::*;
use ashlar_block::{Error, Kind, Result};
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use bytes::Bytes;
use parking_lot::Mutex;
use proptest::prelude::*;
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

/// The same nodes, of whose flushes somebody else makes parts, now and then.
#[derive(Clone)]
struct Helped(Arc<Nodes>, Env);

impl NodeStore for Helped {
    type Helper = Helped;

    fn helper(&self) -> Option<Helped> {
        self.1.is_idle().then(|| self.clone())
    }
    fn run<T: Send + 'static>(&self, part: impl Future<Output = T> + Send + 'static) -> BoxFuture<T> {
        Box::pin(self.1.spawn(part))
    }
    fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        self.0.cached(ptr)
    }
    async fn load(&self, ptr: NodePtr) -> Result<Arc<Node>> {
        self.1.yield_now().await;
        self.0.load(ptr).await
    }
    async fn append(&self, image: Bytes, node: Node) -> Result<NodePtr> {
        self.1.yield_now().await;
        self.0.append(image, node).await
    }
    async fn height(&self, ptr: &NodePtr) -> Result<u8> {
        self.0.height(ptr).await
    }
    fn birth(&self) -> u64 {
        self.0.birth()
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

#[derive(Clone, Debug)]
enum Step {
    Put(u16, u8),
    Patch(u16, u8),
    Delete(u16),
    DeleteRange(u16, u16),
    Checkpoint(bool, bool),
    /// A checkpoint that loads so many keys, at this distance.
    Load(u16, u16, u16),
    Read(u16),
    Scan(u16, u16, u8),
    /// Some of the nodes cannot be read.
    Damage(u8),
    /// All can be read again.
    Heal,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..400u16;
    let step = prop_oneof![
        8 => (key.clone(), 0..4u8).prop_map(|(k, s)| Step::Put(k, s)),
        8 => (key.clone(), 0..4u8).prop_map(|(k, s)| Step::Patch(k, s)),
        3 => key.clone().prop_map(Step::Delete),
        1 => (key.clone(), 0..200u16).prop_map(|(k, n)| Step::DeleteRange(k, k + n)),
        1 => (proptest::bool::weighted(0.2), any::<bool>()).prop_map(|(all, leave)| Step::Checkpoint(all, leave)),
        1 => (key.clone(), 1..120u16, 1..5u16).prop_map(|(k, n, by)| Step::Load(k, n, by)),
        3 => key.clone().prop_map(Step::Read),
        1 => (key.clone(), prop_oneof![1 => 0..2u16, 9 => 0..400u16], 1..40u8)
            .prop_map(|(k, n, l)| Step::Scan(k, k + n, l)),
    ];
    proptest::collection::vec(step, 0..400)
}

/// The same, while nodes become unreadable, and readable again.
fn steps_with_damage() -> impl Strategy<Value = Vec<Step>> {
    (steps(), proptest::collection::vec((any::<proptest::sample::Index>(), any::<Option<u8>>()), 0..12)).prop_map(
        |(mut steps, damage)| {
            for (at, which) in damage {
                let at = at.index(steps.len() + 1);
                steps.insert(at, which.map_or(Step::Heal, Step::Damage));
            }
            steps
        },
    )
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

/// Tiny nodes whose buffers have runs, in one case of two.
fn limits() -> impl Strategy<Value = Limits> {
    prop_oneof![
        Just(WHOLE),
        (400..2000usize, 1..7usize).prop_map(|(buffer_bytes, runs)| Limits { buffer_bytes, runs, ..WHOLE })
    ]
}

/// Steps with trees of this shape, while a seed decides who helps with a flush and in which order they go on.
fn check(steps: Vec<Step>, limits: Limits, seed: u64) {
    let sim = Sim::new(seed, Schedule::Random);
    let work = run(steps, limits, sim.env());
    sim.run(work).expect("no deadlock");
}

async fn run(steps: Vec<Step>, limits: Limits, env: Env) {
    let helped = Helped(Arc::default(), env);
    let nodes = &*helped.0;
    let tree = Tree::open(9, None, Arc::new(Slots));
    let mut model: BTreeMap<Key, BTreeMap<u8, u32>> = BTreeMap::new();
    let mut lost: Vec<u32> = Vec::new();
    let mut entered: BTreeSet<u32> = BTreeSet::new();
    let mut repeated: Vec<u32> = Vec::new();
    for (index, step) in steps.into_iter().enumerate() {
        let token = index as u32;
        let one = |slot: u8| BTreeMap::from([(slot, token)]);
        match step {
            Step::Put(k, slot) => {
                entered.insert(token);
                tree.apply(key(k), Message::Put(pack(&one(slot))), &mut lost);
                model.insert(key(k), one(slot));
            }
            Step::Patch(k, slot) => {
                entered.insert(token);
                tree.apply(key(k), Message::Patch(pack(&one(slot))), &mut lost);
                model.entry(key(k)).or_default().insert(slot, token);
            }
            Step::Delete(k) => {
                tree.apply(key(k), Message::Delete, &mut lost);
                model.remove(&key(k));
            }
            Step::DeleteRange(low, high) => {
                tree.delete_range(&key(low), &key(high), &mut lost);
                let gone: Vec<Key> = model.range(key(low)..key(high)).map(|(k, _)| k.clone()).collect();
                gone.iter().for_each(|k| drop(model.remove(k)));
            }
            Step::Checkpoint(..) | Step::Load(..) => {
                nodes.births.fetch_add(1, Ordering::Relaxed);
                tree.freeze();
                let mut errands = Errands::default();
                if let Step::Load(first, count, by) = step {
                    for number in (first..first + count).step_by(by.into()) {
                        let one = BTreeMap::from([(0, token | u32::from(number) << 16)]);
                        entered.insert(one[&0]);
                        errands.load.push((key(number), pack(&one)));
                        model.insert(key(number), one);
                    }
                }
                if let Step::Checkpoint(thorough, _) = step {
                    errands.thorough = thorough;
                }
                if let Step::Checkpoint(_, true) = step {
                    // Every other segment is to be left.
                    for (uid, image) in nodes.images.lock().iter().filter(|(uid, _)| *uid % 2 == 0) {
                        let node = Node::decode(image).expect("decodes");
                        errands.leave.insert(*uid);
                        let lowest = errands.routes.entry(Key::from_slice(node.low())).or_insert(u8::MAX);
                        *lowest = (*lowest).min(node.level());
                    }
                }
                let flushed = tree.flush(&helped, limits, errands.clone()).await.expect("flush");
                tree.install(flushed.root);
                lost.extend(flushed.lost);
                for ptr in flushed.replaced {
                    assert!(nodes.images.lock().remove(&ptr.uid).is_some(), "a node is replaced once");
                }
                nodes.bad.lock().retain(|uid| nodes.images.lock().contains_key(uid));
                assert_eq!(reachable(nodes, tree.root()).await, nodes.images.lock().len(), "no node leaks");
                let stayed = errands.leave.iter().find(|uid| nodes.images.lock().contains_key(uid));
                let may_stay = !nodes.bad.lock().is_empty();
                assert!(may_stay || stayed.is_none(), "a node stayed in a segment that is to be left");
            }
            Step::Read(k) => {
                let Some(seen) = nodes.sound(tree.get(nodes, &key(k)).await) else { continue };
                assert_eq!(seen.map(|value| slots(&value)), model.get(&key(k)).cloned(), "key {k}");
                check_cached(&tree, nodes, &key(k), model.get(&key(k)));
            }
            Step::Scan(low, high, limit) => {
                let mut seen = everything(&tree, nodes, &key(low), Some(&key(high)), limit as usize).await;
                if seen.is_err() && limit % 2 == 1 && key(low) < key(high) {
                    let anew = forget(&tree, nodes, (&key(low), &key(high)), &mut model, &mut lost).await;
                    repeated.extend(anew);
                    seen =
                        Ok(everything(&tree, nodes, &key(low), Some(&key(high)), limit as usize).await.expect("page"));
                }
                let Some(seen) = nodes.sound(seen) else { continue };
                let seen: Vec<_> = seen.into_iter().map(|(k, value)| (k, slots(&value))).collect();
                let expected: Vec<_> =
                    model.range(key(low)..key(high).max(key(low))).map(|(k, v)| (k.clone(), v.clone())).collect();
                assert_eq!(seen, expected);
            }
            Step::Damage(which) => {
                let mut all: Vec<u64> = nodes.images.lock().keys().copied().collect();
                all.sort_unstable();
                let bad = all.into_iter().filter(|uid| uid % 4 == u64::from(which % 4));
                nodes.bad.lock().extend(bad.take(1 + usize::from(which / 32)));
            }
            Step::Heal => nodes.bad.lock().clear(),
        }
    }
    nodes.bad.lock().clear();
    for k in (0..400).map(key) {
        check_cached(&tree, nodes, &k, model.get(&k));
    }
    let present = everything(&tree, nodes, &[], None, 10).await.expect("page");
    let seen: BTreeMap<Key, _> = present.into_iter().map(|(k, value)| (k, slots(&value))).collect();
    assert_eq!(seen, model);
    // A thorough flush leaves nothing pending, so by then every loss has been reported, once.
    tree.freeze();
    let flushed = tree.flush(&helped, limits, Errands { thorough: true, ..Errands::default() }).await.expect("flush");
    tree.install(flushed.root);
    lost.extend(flushed.lost);
    let present: Vec<u32> = model.values().flat_map(|slots| slots.values().copied()).collect();
    let mut accounted: Vec<u32> = lost.into_iter().chain(present).collect();
    accounted.sort_unstable();
    let mut entered: Vec<u32> = entered.into_iter().chain(repeated).collect();
    entered.sort_unstable();
    assert_eq!(accounted, entered, "each token is present or was lost once for each time that it was entered");
}

/// Deletes what cannot be read of a range, and nothing else. Tokens that it entered again.
async fn forget(
    tree: &Tree<Slots>,
    nodes: &Nodes,
    (low, high): (&Key, &Key),
    model: &mut BTreeMap<Key, BTreeMap<u8, u32>>,
    lost: &mut Vec<u32>,
) -> Vec<u32> {
    let mut repeated = Vec::new();
    let legible = tree.view().legible(&Slots, nodes, (low, high), usize::MAX).await.expect("looked");
    assert!(legible.all);
    let (mut at, mut left) = (low.clone(), BTreeMap::new());
    for (key, known) in legible.keys {
        match known {
            Known::Value(None) => {
                assert_eq!(model.get(&key), None);
                continue;
            }
            Known::Value(Some(value)) => {
                assert_eq!(model.get(&key), Some(&slots(&value)));
                left.insert(key.clone(), slots(&value));
            }
            Known::Patches(patches) => {
                assert!(!patches.is_empty() && tree.get(nodes, &key).await.is_err());
                tree.apply(key.clone(), Message::Delete, lost);
                let mut all = BTreeMap::new();
                for patch in patches {
                    repeated.extend(slots(&patch).values());
                    all.extend(slots(&patch));
                    tree.apply(key.clone(), Message::Patch(patch), lost);
                }
                let newest = &model[&key];
                assert!(all.iter().all(|(slot, token)| newest.get(slot) == Some(token)), "{all:?}, not {newest:?}");
                left.insert(key.clone(), all);
            }
        }
        tree.delete_range(&at, &key, lost);
        at = crate::tree::behind(&key);
    }
    tree.delete_range(&at, high, lost);
    let gone: Vec<Key> = model.range(low.clone()..high.clone()).map(|(key, _)| key.clone()).collect();
    gone.iter().for_each(|key| drop(model.remove(key)));
    model.extend(left);
    repeated
}

/// The same nodes, all of them in memory.
struct Cached<'a>(&'a Nodes);

impl NodeStore for Cached<'_> {
    type Helper = Alone;

    fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        let image = self.0.images.lock().get(&ptr.uid).cloned()?;
        Some(Arc::new(Node::decode(&image).expect("decodes")))
    }
    async fn load(&self, ptr: NodePtr) -> Result<Arc<Node>> {
        self.0.load(ptr).await
    }
    async fn append(&self, _: Bytes, _: Node) -> Result<NodePtr> {
        unreachable!("lookups append nothing")
    }
    async fn height(&self, _: &NodePtr) -> Result<u8> {
        unreachable!("lookups ask for no height")
    }
    fn birth(&self) -> u64 {
        self.0.birth()
    }
}

/// Both ways to look a key up without I/O.
fn check_cached(tree: &Tree<Slots>, nodes: &Nodes, key: &[u8], expected: Option<&BTreeMap<u8, u32>>) {
    let value = tree.get_cached(&Cached(nodes), key).expect("all is in memory");
    assert_eq!(value.map(|value| slots(&value)).as_ref(), expected, "{key:?}");
    // Newest first: what a slot held later wins.
    let mut traced = BTreeMap::new();
    let trace = tree.trace_cached(&Cached(nodes), key, |payload| {
        slots(payload).into_iter().for_each(|(slot, token)| _ = traced.entry(slot).or_insert(token));
        false
    });
    assert_eq!(trace, Some(()));
    assert_eq!(traced, expected.cloned().unwrap_or_default(), "{key:?}");
}

async fn reachable(nodes: &Nodes, root: Option<NodePtr>) -> usize {
    let mut count = 0;
    let mut next: Vec<NodePtr> = root.into_iter().collect();
    let bad = std::mem::take(&mut *nodes.bad.lock());
    while let Some(ptr) = next.pop() {
        count += 1;
        next.extend(nodes.load(ptr).await.expect("reachable node").pointers());
    }
    *nodes.bad.lock() = bad;
    count
}

impl Nodes {
    /// What was read; an error only while there is damage.
    fn sound<T>(&self, read: Result<T>) -> Option<T> {
        let damaged = !self.bad.lock().is_empty();
        read.map_err(|error| assert!(damaged && error.kind() == Kind::Corrupt, "{error}")).ok()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn the_tree_is_a_dictionary(steps in steps(), limits in limits(), seed in any::<u64>()) {
        check(steps, limits, seed);
    }

    /// Whatever cannot be read: changes go on, what can be read is right, and when all can be read again nothing is missing.
    #[test]
    fn damage_takes_no_more_than_the_node(steps in steps_with_damage(), limits in limits(), seed in any::<u64>()) {
        check(steps, limits, seed);
    }
}

/// Nodes that stay in memory once they were read; counts how often somebody had to wait for the medium.
struct Warming<'a>(&'a Nodes, Mutex<BTreeSet<u64>>, AtomicU64);

impl NodeStore for Warming<'_> {
    type Helper = Alone;

    fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        let image = self.1.lock().contains(&ptr.uid).then(|| self.0.images.lock()[&ptr.uid].clone())?;
        Some(Arc::new(Node::decode(&image).expect("decodes")))
    }
    async fn load(&self, ptr: NodePtr) -> Result<Arc<Node>> {
        self.load_ahead(&[ptr]).await;
        self.0.load(ptr).await
    }
    async fn load_ahead(&self, ptrs: &[NodePtr]) {
        self.2.fetch_add(1, Ordering::Relaxed);
        self.1.lock().extend(ptrs.iter().map(|ptr| ptr.uid));
    }
    async fn append(&self, _: Bytes, _: Node) -> Result<NodePtr> {
        unreachable!("nobody flushes")
    }
    async fn height(&self, ptr: &NodePtr) -> Result<u8> {
        self.0.height(ptr).await
    }
    fn birth(&self) -> u64 {
        self.0.birth()
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

#[test]
fn a_scan_reads_ahead_and_a_lookup_does_not() {
    let sim = Sim::new(1, Schedule::Fifo);
    let run = async {
        let nodes = Nodes::default();
        let (tree, root) = grown(&nodes, 40, 80).await;
        assert_eq!(root.level(), 1);
        let leaves = root.pointers().count();
        assert!((20..80).contains(&leaves), "{leaves}");
        let store = Warming(&nodes, Mutex::default(), AtomicU64::new(0));
        let present = everything(&tree, &store, &[], None, 10).await.expect("pages");
        assert_eq!(present.len(), 400);
        // The root, then 1, 2, 4, 8 and so on leaves.
        let waits = store.2.load(Ordering::Relaxed);
        assert_eq!(waits, 1 + 1 + u64::from(leaves.ilog2()), "{leaves} leaves");
        // A range that ends before the next leaf, and lookups, bring in what they need alone.
        let store = Warming(&nodes, Mutex::default(), AtomicU64::new(0));
        for key in (0..400u16).rev().step_by(7) {
            let low = key.to_be_bytes();
            let before = store.1.lock().len();
            assert!(tree.get(&store, &low).await.expect("found").is_some());
            let high = (key + 1).to_be_bytes();
            assert_eq!(everything(&tree, &store, &low, Some(&high), 10).await.expect("page").len(), 1);
            assert!(store.1.lock().len() <= before + if before == 0 { 2 } else { 1 });
        }
        // Short ranges one behind the other are a scan.
        let store = Warming(&nodes, Mutex::default(), AtomicU64::new(0));
        for key in 0..400u16 {
            let (low, high) = (key.to_be_bytes(), (key + 1).to_be_bytes());
            assert_eq!(everything(&tree, &store, &low, Some(&high), 10).await.expect("page").len(), 1);
        }
        // The root, two leaves alone, and then 3, 6, 12 and so on.
        let waits = store.2.load(Ordering::Relaxed);
        assert_eq!(waits, 1 + 2 + 1 + u64::from((leaves / 3).ilog2()), "{leaves} leaves");
    };
    sim.run(run).expect("no deadlock");
}

#[test]
fn a_scan_reads_ahead_over_parents() {
    let sim = Sim::new(1, Schedule::Fifo);
    let run = async {
        let nodes = Nodes::default();
        let (tree, root) = grown(&nodes, 400, 4).await;
        assert!(root.level() >= 4, "{}", root.level());
        let store = Warming(&nodes, Mutex::default(), AtomicU64::new(0));
        assert_eq!(everything(&tree, &store, &[], None, 10).await.expect("pages").len(), 4000);
        let (waits, count) = (store.2.load(Ordering::Relaxed) as usize, store.1.lock().len());
        // Within one parent it would be three times for four leaves, and once for each parent.
        assert!(waits * 5 < count * 2, "{waits} times for {count} nodes");
        // Lookups of keys far apart bring in what is on their way.
        let store = Warming(&nodes, Mutex::default(), AtomicU64::new(0));
        for key in [3500u16, 2500, 1500, 500] {
            let (low, high) = (key.to_be_bytes(), (key + 1).to_be_bytes());
            let before = store.1.lock().len();
            assert_eq!(everything(&tree, &store, &low, Some(&high), 10).await.expect("page").len(), 1);
            assert!(store.1.lock().len() <= before + 1 + usize::from(root.level()), "at {key}");
        }
    };
    sim.run(run).expect("no deadlock");
}

#[test]
fn below_a_range_delete_that_waits_far_above_nothing_is_read() {
    let sim = Sim::new(1, Schedule::Fifo);
    let run = async {
        let nodes = Nodes::default();
        let (tree, root) = grown(&nodes, 40, 4).await;
        assert!(root.level() >= 2, "{}", root.level());
        let mut leaves = Vec::new();
        let mut pending = vec![(root, Key::new(), None::<Key>)];
        while let Some((node, low, high)) = pending.pop() {
            for (ptr, low, high) in node.child_ranges(&low, high.as_deref()) {
                match node.level() {
                    1 => leaves.push((ptr, low, high)),
                    _ => pending.push((nodes.load(ptr).await.expect("loads"), low, high)),
                }
            }
        }
        leaves.sort_by(|a, b| a.1.cmp(&b.1));
        let before = everything(&tree, &nodes, &[], None, 10).await.expect("pages");
        let (mut left, count) = (before, leaves.len());
        // Two that are neighbours, and one that is not.
        for (ptr, low, high) in [count / 4, count / 4 + 1, count / 2].map(|leaf| leaves[leaf].clone()) {
            let high = high.expect("it is not the last");
            nodes.bad.lock().insert(ptr.uid);
            everything(&tree, &nodes, &[], None, 10).await.expect_err("it cannot be read");
            tree.delete_range(&low, &high, &mut Vec::new());
            tree.freeze();
            // The range delete stays in the root.
            let limits = Limits { leaf_bytes: 200, buffer_bytes: 1 << 20, ..WHOLE };
            let flushed = tree.flush(&nodes, limits, Errands::default()).await.expect("flush");
            tree.install(flushed.root);
            left.retain(|(key, _)| *key < low || *key >= high);
            assert_eq!(everything(&tree, &nodes, &[], None, 10).await.expect("nobody needs it"), left);
        }
    };
    sim.run(run).expect("no deadlock");
}

#[test]
fn an_empty_range_has_nothing_also_where_nothing_can_be_read() {
    let sim = Sim::new(1, Schedule::Fifo);
    let run = async {
        let nodes = Nodes::default();
        let (tree, _) = grown(&nodes, 40, 4).await;
        // What memory says of this key needs no node.
        let key = 7u16.to_be_bytes();
        tree.apply(Key::from_slice(&key), Message::Put(pack(&BTreeMap::from([(0, 1)]))), &mut Vec::new());
        nodes.bad.lock().extend(nodes.images.lock().keys());
        let behind = 8u16.to_be_bytes();
        assert_eq!(everything(&tree, &nodes, &key, Some(&tree::behind(&key)), 10).await.expect("known").len(), 1);
        for (low, high) in [(key, key), (behind, key)] {
            assert_eq!(everything(&tree, &nodes, &low, Some(&high), 10).await.expect("nothing to read"), []);
        }
    };
    sim.run(run).expect("no deadlock");
}

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

#[test]
fn what_ranges_need_is_read_ahead_level_by_level_and_nothing_else() {
    let test = async {
        let store = Caching::default();
        let limits = WHOLE;
        let tree = Tree::open(9, None, Arc::new(Slots));
        let mut lost = Vec::new();
        for number in 0..2000u16 {
            tree.apply(key(number), Message::Put(pack(&BTreeMap::from([(0, number.into())]))), &mut lost);
        }
        tree.freeze();
        let thorough = Errands { thorough: true, ..Errands::default() };
        let root = tree.flush(&store, limits, thorough).await.expect("flushed").root;
        tree.install(root);
        let forget = || {
            store.cache.lock().clear();
            [&store.loads, &store.asked].map(|count| count.swap(0, Ordering::Relaxed))
        };
        forget();
        let ranges = [(key(100), key(140)), (key(900), key(901)), (key(1999), key(5000))];
        tree.view().read_ahead(&store, &ranges, 1 << 20).await;
        let levels = store.cache.lock().values().map(|node| node.level()).max().expect("some") + 1;
        let before = store.loads.load(Ordering::Relaxed);
        for number in (100..140).chain([900, 1999]) {
            tree.get(&store, &key(number)).await.expect("readable").expect("there");
        }
        assert_eq!(store.loads.load(Ordering::Relaxed), before, "all that was needed");
        let [loads, asked] = forget();
        // Leaves of some eight keys: six or seven for the first range, and one path for each of the others.
        assert!(levels >= 5 && asked <= u64::from(levels) + 1, "{asked} times for {levels} levels");
        assert!(loads <= 7 + 4 + 3 * u64::from(levels), "{loads} nodes of {levels} levels");
        // What there is no room for is left, and what cannot be read is no error.
        tree.view().read_ahead(&store, &[(key(0), key(2000))], 5000).await;
        let [loads, _] = forget();
        assert!((5..40).contains(&loads), "{loads} nodes");
        store.nodes.bad.lock().extend(0..1 << 16);
        tree.view().read_ahead(&store, &ranges, 1 << 20).await;
        assert!(tree.get(&store, &key(100)).await.is_err());
    };
    Sim::new(0, Schedule::Fifo).run(test).expect("no deadlock");
}

#[test]
fn runs_save_writing_and_filters_save_reading() {
    // Bytes that random inserts append, and that lookups of them load.
    let cost = |limits: Limits| {
        let test = async move {
            let store = Caching::default();
            let tree = Tree::open(9, None, Arc::new(Slots));
            let mut lost = Vec::new();
            for number in 0..20_000u32 {
                // Each number once, in an order without any.
                let key = Key::from_slice(&(number.wrapping_mul(0x9e37_79b1)).to_be_bytes());
                tree.apply(key, Message::Put(pack(&(0..20).map(|slot| (slot, number)).collect())), &mut lost);
                if number % 400 == 399 {
                    tree.freeze();
                    let flushed = tree.flush(&store, limits, Errands::default()).await.expect("flushed");
                    flushed.replaced.iter().for_each(|ptr| _ = store.nodes.images.lock().remove(&ptr.uid));
                    tree.install(flushed.root);
                    store.cache.lock().clear();
                }
            }
            let written = store.nodes.appended.load(Ordering::Relaxed);
            let before = store.nodes.loaded.load(Ordering::Relaxed);
            for number in (0..20_000u32).step_by(37) {
                store.cache.lock().clear();
                let key = number.wrapping_mul(0x9e37_79b1).to_be_bytes();
                let value = tree.get(&store, &key).await.expect("readable").expect("there");
                assert_eq!(slots(&value)[&7], number);
            }
            (written, store.nodes.loaded.load(Ordering::Relaxed) - before)
        };
        Sim::new(0, Schedule::Fifo).run(test).expect("no deadlock")
    };
    let limits = Limits { leaf_bytes: 8 << 10, buffer_bytes: 64 << 10, fanout: 16, runs: 12 };
    let (with, without) = (cost(limits), cost(Limits { runs: 0, ..limits }));
    assert!(with.0 * 10 < without.0 * 7, "written: {} with runs, {} without", with.0, without.0);
    assert!(with.1 * 10 < without.1 * 6, "read: {} with runs, {} without", with.1, without.1);
}

#[test]
fn a_run_in_the_place_of_a_node_is_refused_and_a_node_in_that_of_a_run() {
    let test = async {
        let nodes = Nodes::default();
        let tree = Tree::open(9, None, Arc::new(Slots));
        let limits = Limits { buffer_bytes: 2000, runs: 4, ..WHOLE };
        let mut lost = Vec::new();
        for number in 0..2000u16 {
            tree.apply(key(number % 400), Message::Put(pack(&BTreeMap::from([(0, number.into())]))), &mut lost);
            if number % 50 == 49 {
                tree.freeze();
                tree.install(tree.flush(&nodes, limits, Errands::default()).await.expect("flushed").root);
            }
        }
        let mut pending: Vec<Seat> = tree.root().map(Seat::root).into_iter().collect();
        let mut found = [0, 0];
        while let Some(seat) = pending.pop() {
            let node = nodes.load(seat.ptr).await.expect("there");
            node.check_seat(&seat).expect("it stands where it should");
            found[usize::from(seat.is_run)] += 1;
            // Of a root nobody says how high it is, and nobody takes it for a run.
            let other = Seat { is_run: !seat.is_run, ..seat.clone() };
            assert!(node.check_seat(&other).is_err());
            pending.extend(node.below(&seat));
        }
        assert!(found[0] > 10 && found[1] > 3, "nodes and runs: {found:?}");
    };
    Sim::new(0, Schedule::Fifo).run(test).expect("no deadlock");
}
