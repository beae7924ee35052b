//! Random messages, checkpoints and damage, beside a map.

use super::*;
use ashlar_block::Kind;
use ashlar_env::Env;
use proptest::prelude::*;

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
