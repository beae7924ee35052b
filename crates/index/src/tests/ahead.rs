//! What scans and ranges read ahead, and that lookups do not.

use super::*;

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

#[test]
fn a_scan_reads_ahead_and_a_lookup_does_not() {
    simulate(async {
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
    });
}

#[test]
fn a_scan_reads_ahead_over_parents() {
    simulate(async {
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
    });
}

#[test]
fn what_ranges_need_is_read_ahead_level_by_level_and_nothing_else() {
    simulate(async {
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
    });
}
