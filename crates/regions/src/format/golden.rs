//! What the versions of the format look like, byte by byte: the checksum of each structure with fixed contents, and that it
//! reads back. A change that fails here is a change of the format: it needs a new version, and the old one must stay readable.

use super::*;
use crate::bits::Bits;
use crate::layout::{Config, Kind, Shape};
use ashlar_index::NodePtr;
use ashlar_objects::{Attributes, Name, checksum};
use ashlar_units::{Blocks, Lba};
use std::time::Duration;

const KEY: u64 = 0x1234_5678_9abc_def0;
const STORE: u64 = 0x0fed_cba9_8765_4321;
const PLACE: Place = Place { region: 5, slot: 77 };

fn shape() -> Shape {
    Shape::of(512, 16, 8)
}

fn name(name: &'static str) -> Name {
    Name::new(name).expect("a name")
}

fn onode() -> Onode {
    Onode {
        name: name("photos/2026/a picture.jpg"),
        id: 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff,
        place: PLACE,
        birth: 9,
        version: (3 << 40) + 17,
        generation: (3 << 40) + 18,
        provisional: true,
        size: 3 * 4096 + 5,
        modified: Duration::new(1_790_000_000, 123_456_789),
        checksum: 0xae8b_1486_0a79_9888,
        attributes: Attributes::from([("type".into(), Bytes::from_static(b"image/jpeg"))]),
        spill: 0,
        extents: vec![Extent { block: 40, count: 3 }, Extent { block: 9, count: 1 }],
        crcs: vec![1, 2, 3, 0xffff_ffff],
        inline: None,
    }
}

fn bits(len: u64) -> Bits {
    let mut bits = Bits::new(len);
    for bit in (0..len as u32).filter(|bit| bit % 3 == 0 || bit % 7 == 1) {
        bits.set(bit, true);
    }
    bits
}

/// Compares the checksums of images with what they were when the version came.
fn are(images: &[(&str, Bytes)], expected: &[u64]) {
    let found: Vec<u64> = images.iter().map(|(_, image)| checksum(std::slice::from_ref(image))).collect();
    let names: Vec<&str> = images.iter().map(|(name, _)| *name).collect();
    assert!(found == expected, "{names:?} are not what they were: {found:#x?}");
}

#[test]
fn onodes_are_those_of_version_1() {
    let onode = onode();
    let image = onode.encode(KEY, STORE);
    assert_eq!(Onode::decode(KEY, STORE, PLACE, 9, &image).expect("it is whole"), onode);
    let inline = Onode {
        size: 11,
        extents: Vec::new(),
        crcs: Vec::new(),
        provisional: false,
        inline: Some(Bytes::from_static(b"the content")),
        ..onode
    };
    let second = inline.encode(KEY, STORE);
    assert_eq!(Onode::decode(KEY, STORE, PLACE, 9, &second).expect("it is whole"), inline);
    let images = [("an onode", image), ("an onode with contents", second)];
    are(&images, &[0x011f_4f2f_f112_2dfd, 0x3723_b4c3_33fa_4a29]);
}

#[test]
fn heads_and_maps_are_those_of_version_1() {
    let (slots, blocks) = shape().bits(Kind::Small);
    let (slots, blocks) = (bits(slots), bits(blocks));
    let head = Head { store: STORE, region: 5, kind: Kind::Small, birth: 9, generation: 18, commit: 4, slots, blocks };
    let image = head.encode(KEY, &shape());
    assert_eq!(Head::decode(KEY, STORE, 5, &shape(), &image).expect("it is whole"), head);
    let entry = MapEntry {
        kind: Kind::Large,
        head: 1,
        corrupt: true,
        birth: 9,
        generation: 18,
        live: 30,
        hidden: 2,
        free_slots: 100,
        free_blocks: 7,
        bytes: 1 << 33,
    };
    let entries = vec![entry, MapEntry::FREE, MapEntry { kind: Kind::Table, corrupt: false, ..entry }];
    let second = encode_map(KEY, 4, STORE, &entries);
    assert_eq!(decode_map(KEY, 4, STORE, 3, &second).expect("it is whole"), entries);
    let images = [("a head", image), ("a map", second)];
    are(&images, &[0x0036_97ff_8394_5b55, 0x4389_424b_294d_a2b2]);
}

#[test]
fn the_log_and_the_table_are_those_of_version_1() {
    let records = vec![
        Record::Open { region: 5, kind: Kind::Small, birth: 9 },
        Record::Retire { place: PLACE, generation: 18 },
        Record::Delete { id: 7, name: name("gone"), at: 19, last: Some((PLACE, 18)) },
        Record::Delete { id: 8, name: name("never written"), at: 20, last: None },
        Record::Commit { generation: 21 },
        Record::Page { at: Lba(4321) },
    ];
    let batch = Batch { seq: 33, records };
    let image = batch.encode(KEY, STORE);
    assert_eq!(Batch::decode(KEY, STORE, 33, &image).expect("it is whole"), batch);
    let entry = |number: u64| Entry { place: PLACE, generation: number + 1, version: number };
    let page = Page { entries: vec![(1 << 100, entry(5)), (77, entry(6))], link: Some(Lba(4321)) };
    let second = page.encode(KEY, STORE, Lba(300));
    assert_eq!(Page::decode(KEY, STORE, Lba(300), &second).expect("it is whole"), page);
    let images = [("a batch of the log", image), ("a page of the table", second)];
    are(&images, &[0xd46a_95ae_126d_bfff, 0x36fd_17f2_5f97_0c21]);
}

#[test]
fn superblocks_are_those_of_both_versions() {
    let superblock = Superblock {
        version: 1,
        store: STORE,
        key: KEY,
        hash_key: std::array::from_fn(|at| at as u8 * 3),
        config: Config::default(),
        capacity: Blocks(1 << 22),
        commit: 4,
        epoch: 3,
        map_slot: 1,
        map_commit: 4,
        log_start: 33,
        generation: 18,
        names: Some(NodePtr { uid: 9999, offset: 0, len: 4000, raw_len: 5000, crc: 0xdead_beef, birth: 4 }),
    };
    let image = superblock.encode();
    assert_eq!(Superblock::decode(&image).expect("it is whole"), superblock);
    let newer = Superblock { version: 2, ..superblock };
    let second = newer.encode();
    assert_eq!(Superblock::decode(&second).expect("it is whole"), newer);
    let images = [("a superblock of version 1", image), ("a superblock of version 2", second)];
    are(&images, &[0x825c_9d01_fc56_0b17, 0x36c3_8645_7d85_be0c]);
    let future = Superblock { version: VERSION + 1, ..newer };
    let refused = Superblock::decode(&future.encode()).expect_err("nobody knows what it means");
    assert!(refused.to_string().contains("newer ashlar"), "{refused}");
}
