//! Fuzz targets: nodes, and trees of which some nodes are hostile. See `ashlar_fuzz`.

use crate::node::{Body, Child, Draft, Run};
use crate::*;
use ashlar_block::{Error, Result};
use ashlar_env::sim::{Schedule, Sim};
use ashlar_fuzz::{Edit, bounded, config, edits, noise};
use bytes::Bytes;
use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Where a node's header has its compression, its lengths, and its end.
const COMPRESSION: usize = 7;
const RAW_LEN: usize = 24;
const STORED_LEN: usize = 28;
const HEADER_LEN: usize = 64;

fn key_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![noise(12), prop::collection::vec(0..3u8, 0..30)]
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        noise(30).prop_map(|value| Message::Put(value.into())),
        Just(Message::Delete),
        noise(30).prop_map(|value| Message::Patch(value.into())),
    ]
}

fn pointer() -> impl Strategy<Value = NodePtr> {
    any::<(u64, u32, u32, u32, u32, u64)>().prop_map(|(uid, offset, len, raw_len, crc, birth)| NodePtr {
        uid,
        offset,
        len,
        raw_len,
        crc,
        birth,
    })
}

/// A node as [`Draft`] has it: level, children, runs, whether it is a run, range deletes, entries.
type Parts = (u8, Vec<Child>, Vec<Run>, bool, RangeSet, Vec<(Key, Message)>);

fn parts() -> impl Strategy<Value = Parts> {
    let children = prop::collection::btree_map(key_bytes(), pointer(), 0..6);
    let ranges = prop::collection::vec((key_bytes(), key_bytes()), 0..4);
    let entries = prop::collection::btree_map(key_bytes(), message(), 0..12);
    let runs = prop::collection::vec((pointer(), noise(20)), 0..4);
    (1..24u8, any::<bool>(), children, runs, ranges, entries).prop_map(
        |(level, run, children, runs, ranges, entries)| {
            let mut deleted = RangeSet::default();
            ranges.iter().for_each(|(low, high)| deleted.insert(low, high));
            let child = |(low, ptr): (Vec<u8>, NodePtr)| Child { low: Key::from_vec(low), ptr };
            let children: Vec<Child> = children.into_iter().map(child).collect();
            let runs: Vec<Run> = runs.into_iter().map(|(ptr, filter)| Run::new(ptr, filter.into())).collect();
            let (is_run, level) = (children.is_empty() && run, if children.is_empty() && !run { 0 } else { level });
            let runs = if children.is_empty() { Vec::new() } else { runs };
            (
                level,
                children,
                runs,
                is_run,
                deleted,
                entries.into_iter().map(|(key, message)| (Key::from_vec(key), message)).collect(),
            )
        },
    )
}

/// The image with its body as it is, so that edits reach the structure behind the compression.
fn unpacked(image: &[u8]) -> Vec<u8> {
    let word = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().expect("four bytes")) as usize;
    let stored = &image[HEADER_LEN..HEADER_LEN + word(STORED_LEN)];
    let mut plain = image[..HEADER_LEN].to_vec();
    match image[COMPRESSION] {
        0 => plain.extend_from_slice(stored),
        _ => plain.extend(lz4_flex::block::decompress(stored, word(RAW_LEN)).expect("valid")),
    }
    plain[COMPRESSION] = 0;
    with_lengths(plain)
}

fn with_lengths(mut plain: Vec<u8>) -> Vec<u8> {
    if let Some(len) = plain.len().checked_sub(HEADER_LEN) {
        plain[RAW_LEN..RAW_LEN + 4].copy_from_slice(&(len as u32).to_le_bytes());
        plain[STORED_LEN..STORED_LEN + 4].copy_from_slice(&(len as u32).to_le_bytes());
    }
    plain
}

/// Everything that can be asked of a node.
fn interrogate(node: &Node) {
    for (index, (key, message)) in node.messages().enumerate() {
        assert_eq!(node.position(key).expect("sound"), index);
        assert_eq!(node.find(key).expect("sound"), Some(message));
    }
    for key in [&[][..], &[0], &[1, 1, 1], &[0xff; 40], node.low()] {
        assert!(node.position(key).expect("sound") <= node.len());
        node.find(key).expect("sound");
        node.deleted.contains(key);
        assert_eq!(node.child_of(key).is_none(), node.children.is_empty());
        node.below(&Seat { low: Key::from_slice(key), ..Seat::root(NodePtr::default()) });
        assert!(node.runs_for(key).expect("sound").count() <= node.runs.len());
    }
    assert!(node.memory() > 0 && node.pointers().count() == node.children.len() + node.runs.len());
}

proptest! {
    #![proptest_config(config(1000))]

    #[test]
    fn nodes((level, children, runs, is_run, deleted, entries) in parts(), low in key_bytes(), edits in edits(), how in 0..4u8, noise in noise(600)) {
        let body = Body { children: &children, runs: &runs, is_run, deleted: &deleted, entries: &entries };
        let draft = Draft { tree: 9, level, birth: 3, low: &low, body };
        let (image, node) = draft.encode().expect("valid");
        let back = Node::decode(&image).expect("valid");
        for node in [&node, &back] {
            prop_assert_eq!((node.tree(), node.level(), node.birth(), node.low()), (9, level, 3, &low[..]));
            prop_assert_eq!((&node.children, &node.deleted), (&children, &deleted));
            prop_assert_eq!((&node.runs, node.is_run()), (&runs, is_run));
            let found: Vec<(Key, Message)> = node.messages().map(|(key, message)| (Key::from_slice(key), message)).collect();
            prop_assert_eq!(&found, &entries);
            interrogate(node);
        }
        let plain = unpacked(&image);
        prop_assert_eq!(&Node::decode(&plain).expect("valid").children, &children);
        let edited = |mut bytes: Vec<u8>| {
            edits.iter().for_each(|edit| edit.apply(&mut bytes));
            bytes
        };
        let hostile = match how {
            0 => edited(image.to_vec()),
            1 => edited(plain),
            2 => with_lengths(edited(plain)),
            _ => noise,
        };
        // A claim of 64 MiB is believed before decompression shows that it is wrong.
        if let Ok(node) = bounded((64 << 20) + (1 << 16), || Node::decode(&hostile)) {
            bounded(1 << 20, || interrogate(&node));
        }
    }

    #[test]
    fn pointers(pointer in pointer(), bytes in noise(40)) {
        prop_assert_eq!(NodePtr::decode(&pointer.encode()).expect("valid"), pointer);
        let _ = NodePtr::decode(&bytes);
    }
}

/// Nodes by their number; nothing is ever cached, and pointers may lead nowhere.
#[derive(Default)]
struct Nodes(Mutex<Vec<Bytes>>);

impl NodeStore for Nodes {
    type Helper = Alone;

    fn cached(&self, _ptr: &NodePtr) -> Option<Arc<Node>> {
        None
    }
    async fn load(&self, ptr: NodePtr) -> Result<Arc<Node>> {
        let image = self.0.lock().get(ptr.uid as usize).cloned();
        Ok(Arc::new(Node::decode(&image.ok_or_else(|| Error::corrupt("there is no such node"))?)?))
    }
    async fn append(&self, image: Bytes, node: Node) -> Result<NodePtr> {
        let mut images = self.0.lock();
        images.push(image.clone());
        let (uid, len, raw_len) = (images.len() as u64 - 1, image.len() as u32, node.raw_len() as u32);
        Ok(NodePtr { uid, offset: 0, len, raw_len, crc: 0, birth: 1 })
    }
    async fn height(&self, _ptr: &NodePtr) -> Result<u8> {
        Err(Error::corrupt("nobody noted it"))
    }
    fn birth(&self) -> u64 {
        1
    }
}

/// Values are bytes; a patch stands behind what is below.
struct Joining;

impl Semantics for Joining {
    type Lost = usize;
    fn overlay(&self, _key: &[u8], older: &[u8], newer: &[u8], _lost: &mut usize) -> Bytes {
        [older, newer].concat().into()
    }
    fn settle(&self, _key: &[u8], value: Bytes) -> Option<Bytes> {
        (!value.is_empty()).then_some(value)
    }
    fn lose(&self, _key: &[u8], value: &[u8], lost: &mut usize) {
        *lost += value.len();
    }
    fn gather(lost: &mut usize, elsewhere: usize) {
        *lost += elsewhere;
    }
}

const LIMITS: Limits = Limits { leaf_bytes: 256, buffer_bytes: 256, fanout: 4, runs: 0 };
/// The same with runs in buffers.
const LIMITS_OF_RUNS: Limits = Limits { buffer_bytes: 1024, runs: 4, ..LIMITS };

fn key(number: u16) -> Key {
    Key::from_slice(&number.to_be_bytes())
}

async fn tree_of(nodes: &Nodes, limits: Limits) -> Tree<Joining> {
    let tree = Tree::open(9, None, Arc::new(Joining));
    let mut lost = 0;
    for round in 0..3u16 {
        for number in (0..400).filter(|number| number % 3 == round) {
            let value = Bytes::from(vec![number as u8; 9]);
            tree.apply(
                key(number),
                if number % 2 == 0 { Message::Put(value) } else { Message::Patch(value) },
                &mut lost,
            );
        }
        tree.delete_range(&key(round * 40 + 10), &key(round * 40 + 25), &mut lost);
        tree.freeze();
        let root = tree.flush(nodes, limits, Errands::default()).await.expect("flush").root;
        tree.install(root);
    }
    tree
}

/// What becomes of a node.
#[derive(Clone, Debug)]
enum Attack {
    /// Its bytes change.
    Edit(Vec<Edit>),
    /// It becomes another node of the tree: pointers to it lead up, down or aside.
    Become(Index),
}

fn attacks() -> impl Strategy<Value = Vec<(Index, Attack)>> {
    let attack = prop_oneof![edits().prop_map(Attack::Edit), any::<Index>().prop_map(Attack::Become)];
    prop::collection::vec((any::<Index>(), attack), 1..4)
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn trees(attacks in attacks(), range in any::<(u16, u16)>(), runs in any::<bool>()) {
        let limits = if runs { LIMITS_OF_RUNS } else { LIMITS };
        let work = || Sim::new(0, Schedule::Fifo).run(use_attacked(attacks, range, limits)).expect("no deadlock");
        bounded(128 << 20, work);
    }
}

/// Attacks nodes of a tree, then reads, changes, flushes and empties it. Errors are fine.
async fn use_attacked(attacks: Vec<(Index, Attack)>, (low, high): (u16, u16), limits: Limits) {
    let nodes = Nodes::default();
    let tree = tree_of(&nodes, limits).await;
    let mut reached: BTreeMap<u64, Arc<Node>> = BTreeMap::new();
    let mut next: Vec<NodePtr> = tree.root().into_iter().collect();
    while let Some(ptr) = next.pop() {
        let node = nodes.load(ptr).await.expect("still sound");
        next.extend(node.pointers());
        reached.insert(ptr.uid, node);
    }
    let uids: Vec<u64> = reached.keys().copied().collect();
    for (at, attack) in attacks {
        let uid = *at.get(&uids) as usize;
        let mut images = nodes.0.lock();
        images[uid] = match attack {
            Attack::Become(other) => images[*other.get(&uids) as usize].clone(),
            Attack::Edit(edits) => {
                let mut plain = unpacked(&images[uid]);
                edits.iter().for_each(|edit| edit.apply(&mut plain));
                plain = with_lengths(plain);
                // What does not decode at all is not put in place: it would hide what lies deeper.
                if Node::decode(&plain).is_err() {
                    continue;
                }
                plain.into()
            }
        };
    }
    for number in (0..400).step_by(7) {
        let _ = tree.get(&nodes, &key(number)).await;
    }
    let (mut from, mut pages, mut seen) = (Key::new(), 0, BTreeSet::new());
    while let Ok(page) = tree.page(&nodes, &from, None, 5).await {
        pages += 1;
        assert!(pages < 10_000, "pages without end");
        page.entries.into_iter().for_each(|(key, _)| assert!(seen.insert(key), "a key came twice"));
        match page.next {
            Some(next) if next > from => from = next,
            Some(_) => panic!("a page that leads back"),
            None => break,
        }
    }
    let mut lost = 0;
    for thorough in [false, true, true] {
        tree.delete_range(&key(low % 400), &key(high % 400), &mut lost);
        (0..300)
            .step_by(11)
            .for_each(|number| tree.apply(key(number), Message::Patch(Bytes::from_static(b"+")), &mut lost));
        tree.freeze();
        let routes: BTreeMap<Key, u8> = reached.values().map(|node| (Key::from_slice(node.low()), 0)).collect();
        let errands = Errands { thorough, routes, leave: uids.iter().copied().collect(), ..Errands::default() };
        match tree.flush(&nodes, limits, errands).await {
            Ok(flushed) => tree.install(flushed.root),
            Err(_) => return,
        }
    }
}
