//! What cannot be read and is not needed.

use super::*;

#[test]
fn below_a_range_delete_that_waits_far_above_nothing_is_read() {
    simulate(async {
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
    });
}

#[test]
fn an_empty_range_has_nothing_also_where_nothing_can_be_read() {
    simulate(async {
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
    });
}
