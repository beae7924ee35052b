//! Buffers in runs.

use super::*;

#[test]
fn runs_save_writing_and_filters_save_reading() {
    // Bytes that random inserts append, and that lookups of them load.
    let cost = |limits: Limits| {
        simulate(async move {
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
        })
    };
    let limits = Limits { leaf_bytes: 8 << 10, buffer_bytes: 64 << 10, fanout: 16, runs: 12 };
    let (with, without) = (cost(limits), cost(Limits { runs: 0, ..limits }));
    assert!(with.0 * 10 < without.0 * 7, "written: {} with runs, {} without", with.0, without.0);
    assert!(with.1 * 10 < without.1 * 6, "read: {} with runs, {} without", with.1, without.1);
}

#[test]
fn a_run_in_the_place_of_a_node_is_refused_and_a_node_in_that_of_a_run() {
    simulate(async {
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
    });
}
