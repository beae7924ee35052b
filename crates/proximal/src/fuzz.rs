//! Fuzz targets of what lies on the devices; see `ashlar_fuzz`.

use crate::Shape;
use crate::format::{
    DEAD_MAX, Dead, LEAF, Label, Leaf, Pointer, Super, decode_dead, decode_extent, encode_dead, encode_extent,
    epoch_of, extent_of, get_range, leaf_of, put_range, range_of,
};
use ashlar_fuzz::{bounded, config, edits, noise};
use ashlar_units::Blocks;
use proptest::prelude::*;

const CAPACITY: Blocks = Blocks(1 << 40);

fn pointer() -> impl Strategy<Value = Pointer> {
    (1..CAPACITY.0, any::<u32>(), any::<u32>()).prop_map(|(at, crc, born)| Pointer { at, crc, born })
}

fn leaf() -> impl Strategy<Value = Leaf> {
    prop::collection::vec(prop::option::of(pointer()), LEAF as usize).prop_map(|pointers| {
        let mut leaf = Leaf::default();
        leaf.0.iter_mut().zip(pointers).for_each(|(slot, pointer)| *slot = pointer);
        leaf
    })
}

fn dead() -> impl Strategy<Value = Vec<Dead>> {
    let one = (1..CAPACITY.0, any::<u32>()).prop_map(|(at, born)| Dead { at, born });
    prop::collection::vec(one, 0..40)
}

fn record() -> impl Strategy<Value = Super> {
    let shape = prop::sample::select(&[Shape::NEARLINE, Shape::ENTERPRISE][..]);
    (any::<u64>(), 0..1u64 << 52, shape, any::<u32>(), any::<u64>()).prop_map(
        |(store, capacity, shape, epoch, dead)| Super { store, capacity: Blocks(capacity), shape, epoch, dead },
    )
}

/// Every decoder answers.
fn feed(bytes: &[u8]) {
    bounded(64 << 10, || {
        if let Ok(leaf) = Leaf::decode(bytes, CAPACITY) {
            assert!(leaf.0.iter().flatten().all(|pointer| pointer.at < CAPACITY.0));
        }
        if let Ok(dead) = decode_dead(bytes, CAPACITY) {
            assert!(dead.len() <= DEAD_MAX);
        }
        if let Ok(record) = Super::decode(bytes) {
            record.shape.check().expect("only shapes that make sense");
        }
        let _ = (Label::decode(bytes), decode_extent(bytes), extent_of(bytes), leaf_of(bytes), range_of(bytes));
        let _ = epoch_of(bytes);
        let mut bits = vec![0; (Shape::NEARLINE.area_blocks() / 64) as usize];
        let _ = put_range(&mut bits, 3, bytes, &Shape::NEARLINE);
    });
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn leaves(leaf in leaf(), edits in edits(), noise in noise(600)) {
        let mut bytes = leaf.encode();
        prop_assert_eq!(Leaf::decode(&bytes, CAPACITY).expect("what was encoded"), leaf);
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        feed(&bytes);
        feed(&noise);
    }

    #[test]
    fn records(record in record(), list in dead(), length in 0..1u64 << 32, edits in edits()) {
        let encoded = [record.encode(), encode_dead(&list), encode_extent(Blocks(length)), Label { store: record.store }.encode().to_vec()];
        prop_assert_eq!(Super::decode(&encoded[0]).expect("what was encoded"), record);
        prop_assert_eq!(decode_dead(&encoded[1], CAPACITY).expect("what was encoded"), list);
        prop_assert_eq!(decode_extent(&encoded[2]).expect("what was encoded"), Blocks(length));
        prop_assert_eq!(Label::decode(&encoded[3]), Some(Label { store: record.store }));
        for mut bytes in encoded {
            edits.iter().for_each(|edit| edit.apply(&mut bytes));
            feed(&bytes);
        }
    }

    #[test]
    fn maps(bytes in prop::collection::vec(any::<u8>(), 32), within in 0..100u64) {
        let shape = Shape::NEARLINE;
        let mut bits = vec![0; (shape.area_blocks() / 64) as usize];
        put_range(&mut bits, within, &bytes, &shape).expect("as long as a range");
        prop_assert_eq!(get_range(&bits, within, &shape), bytes);
        prop_assert!((0..100).filter(|other| *other != within).all(|other| get_range(&bits, other, &shape).iter().all(|byte| *byte == 0)));
    }
}
