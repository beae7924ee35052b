//! Fuzz targets of everything that a store reads from its device; see `ashlar_fuzz`.

use crate::bits::Bits;
use crate::format::{
    Batch, EXTENTS_MAX, Entry, Extent, Head, MapEntry, Onode, Page, Place, Record, Superblock, attributes_from,
    attributes_to, decode_map, encode_map,
};
use crate::layout::{Config, Kind, Shape};
use ashlar_fuzz::{Edit, bounded, config, edits, hostile, noise};
use ashlar_objects::{Attributes, Name};
use ashlar_units::{Blocks, Lba};
use bytes::Bytes;
use proptest::prelude::*;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const KEY: u64 = 0x1234_5678_9abc_def0;
const STORE: u64 = 42;
const PLACE: Place = Place { region: 3, slot: 5 };

/// Changes an image behind a checksum that holds.
fn forged(image: &[u8], key: u64, edits: &[Edit]) -> Vec<u8> {
    let mut image = image.to_vec();
    edits.iter().for_each(|edit| edit.apply_in_place(&mut image[8..]));
    let check = xxh3_64_with_seed(&image[8..], key);
    image[..8].copy_from_slice(&check.to_le_bytes());
    image
}

fn name() -> impl Strategy<Value = Name> {
    prop::collection::vec(any::<u8>(), 1..300).prop_map(|bytes| Name::new(bytes).expect("a valid name"))
}

fn attributes() -> impl Strategy<Value = Attributes> {
    prop::collection::btree_map("[a-z]{0,9}", noise(60).prop_map(Bytes::from), 0..5)
}

fn place() -> impl Strategy<Value = Place> {
    any::<(u32, u32)>().prop_map(|(region, slot)| Place { region, slot })
}

fn onode() -> impl Strategy<Value = Onode> {
    let extents = prop::collection::vec((any::<u32>(), 1..4u32), 1..EXTENTS_MAX);
    (name(), attributes(), extents, any::<(u128, u64, u64, u64, bool)>(), prop::option::of(noise(400))).prop_map(
        |(name, attributes, extents, (id, birth, version, checksum, provisional), inline)| {
            let extents: Vec<Extent> = match inline {
                Some(_) => Vec::new(),
                None => extents.into_iter().map(|(block, count)| Extent { block, count }).collect(),
            };
            let blocks: u32 = extents.iter().map(|extent| extent.count).sum();
            Onode {
                name,
                id,
                place: PLACE,
                birth,
                version,
                generation: version,
                provisional,
                size: inline.as_ref().map_or(u64::from(blocks) * 4096, |inline| inline.len() as u64),
                modified: Duration::from_nanos(checksum),
                checksum,
                attributes,
                spill: 0,
                crcs: vec![7; blocks as usize],
                extents,
                inline: inline.map(Bytes::from),
            }
        },
    )
}

fn record() -> impl Strategy<Value = Record> {
    prop_oneof![
        (any::<u32>(), 0..4u8, any::<u64>()).prop_map(|(region, kind, birth)| Record::Open {
            region,
            kind: Kind::from_byte(kind).expect("one of four"),
            birth
        }),
        (place(), any::<u64>()).prop_map(|(place, generation)| Record::Retire { place, generation }),
        (any::<u128>(), name(), any::<u64>(), prop::option::of((place(), any::<u64>())))
            .prop_map(|(id, name, at, last)| Record::Delete { id, name, at, last }),
        any::<u64>().prop_map(|generation| Record::Commit { generation }),
        any::<u64>().prop_map(|at| Record::Page { at: Lba(at) }),
    ]
}

fn superblock() -> impl Strategy<Value = Superblock> {
    (any::<[u64; 8]>(), any::<[u8; 32]>(), 8000..1u64 << 34, 0..2u8).prop_map(
        |(words, hash_key, capacity, map_slot)| {
            let [store, key, commit, epoch, log_start, generation, map_commit, _] = words;
            let region = Blocks((capacity / 64).next_power_of_two().clamp(512, 1 << 16)).to_bytes();
            let config = Config { region, large_block: Blocks(64).to_bytes(), ..Config::default() };
            let capacity = Blocks(capacity);
            Superblock {
                version: 1 + (commit % 2) as u16,
                store,
                key,
                hash_key,
                config,
                capacity,
                commit,
                epoch,
                map_slot,
                map_commit,
                log_start,
                generation,
                names: None,
            }
        },
    )
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn superblocks(block in superblock(), edits in edits(), noise in noise(4096)) {
        let image = block.encode();
        if let Ok(read) = Superblock::decode(&image) {
            prop_assert_eq!(read, block);
        }
        for image in [forged(&image, 0x6173_686c_6172_0001, &edits), noise] {
            let _ = bounded(1 << 14, || Superblock::decode(&image));
        }
    }

    #[test]
    fn onodes(onode in onode(), edits in edits(), noise in noise(4096)) {
        let fits = crate::format::inline_room(onode.name.as_bytes().len(), onode.crcs.len(), onode.extents.len());
        let inline = onode.inline.as_ref().map_or(0, Bytes::len);
        prop_assume!(attributes_to(&onode.attributes).len() + inline <= fits);
        let image = onode.encode(KEY, STORE);
        prop_assert_eq!(Onode::decode(KEY, STORE, PLACE, onode.birth, &image), Ok(onode.clone()));
        let elsewhere = Place { slot: PLACE.slot + 1, ..PLACE };
        prop_assert!(Onode::decode(KEY, STORE, elsewhere, onode.birth, &image).is_err());
        prop_assert!(Onode::decode(KEY, STORE, PLACE, onode.birth.wrapping_add(1), &image).is_err());
        prop_assert!(Onode::decode(KEY + 1, STORE, PLACE, onode.birth, &image).is_err());
        for image in [forged(&image, KEY, &edits), noise] {
            let _ = bounded(1 << 17, || Onode::decode(KEY, STORE, PLACE, onode.birth, &image));
        }
    }

    #[test]
    fn attribute_sets(set in attributes(), noise in hostile(attributes().prop_map(|set| attributes_to(&set).to_vec()))) {
        prop_assert_eq!(attributes_from(&attributes_to(&set)), Ok(set));
        let _ = bounded(1 << 17, || attributes_from(&noise));
    }

    #[test]
    fn batches(records in prop::collection::vec(record(), 1..30), seq in any::<u64>(), edits in edits(), noise in noise(5000)) {
        let batch = Batch { seq, records };
        let image = batch.encode(KEY, STORE);
        prop_assert_eq!(Batch::blocks(STORE, seq, &image[..4096]), Some(image.len() as u64 / 4096));
        prop_assert_eq!(Batch::decode(KEY, STORE, seq, &image), Ok(batch));
        for image in [forged(&image, KEY, &edits), noise] {
            let _ = bounded(1 << 17, || Batch::decode(KEY, STORE, seq, &image));
            let _ = Batch::blocks(STORE, seq, &image);
        }
    }

    #[test]
    fn pages(entries in prop::collection::vec((any::<u128>(), place(), any::<[u64; 2]>()), 0..=101), at in 1..1u64 << 40, edits in edits(), noise in noise(4096)) {
        let entry = |(id, place, [generation, version]): (u128, Place, [u64; 2])| (id, Entry { place, generation, version });
        let page = Page { entries: entries.into_iter().map(entry).collect(), link: Some(Lba(at + 9)) };
        let image = page.encode(KEY, STORE, Lba(at));
        prop_assert_eq!(Page::decode(KEY, STORE, Lba(at), &image), Ok(page));
        prop_assert!(Page::decode(KEY, STORE, Lba(at + 1), &image).is_err());
        for image in [forged(&image, KEY, &edits), noise] {
            let _ = bounded(1 << 14, || Page::decode(KEY, STORE, Lba(at), &image));
        }
    }

    #[test]
    fn maps(kinds in prop::collection::vec((0..4u8, any::<[u32; 4]>(), any::<[u64; 3]>()), 4..90), edits in edits(), noise in noise(4096)) {
        let entry = |(kind, [live, hidden, free_slots, free_blocks], [birth, generation, bytes]): (u8, [u32; 4], [u64; 3])| MapEntry {
            kind: Kind::from_byte(kind).expect("one of four"),
            head: kind % 2,
            corrupt: kind == 3,
            birth, generation, live, hidden, free_slots, free_blocks, bytes,
        };
        let entries: Vec<MapEntry> = kinds.into_iter().map(entry).collect();
        let (image, count) = (encode_map(KEY, 9, STORE, &entries), entries.len() as u64);
        prop_assert_eq!(decode_map(KEY, 9, STORE, count, &image), Ok(entries));
        prop_assert!(decode_map(KEY, 8, STORE, count, &image).is_err());
        for image in [forged(&image, KEY, &edits), noise] {
            let _ = bounded(1 << 14, || decode_map(KEY, 9, STORE, count, &image));
        }
    }

    #[test]
    fn heads(kind in 1..4u8, set in prop::collection::vec(any::<u32>(), 0..40), edits in edits(), noise in noise(8192)) {
        let (shape, kind) = (Shape::of(512, 16, 8), Kind::from_byte(kind).expect("one of four"));
        let (slots, blocks) = shape.bits(kind);
        let mut head = Head { store: STORE, region: 3, kind, birth: 1, generation: 2, commit: 3, slots: Bits::new(slots), blocks: Bits::new(blocks) };
        for bit in set {
            head.slots.set(bit % 512, true);
            head.blocks.set(bit / 512 % 512, true);
        }
        let image = head.encode(KEY, &shape);
        prop_assert_eq!(Head::decode(KEY, STORE, 3, &shape, &image), Ok(head));
        prop_assert!(Head::decode(KEY, STORE, 4, &shape, &image).is_err());
        for image in [forged(&image, KEY, &edits), noise] {
            let _ = bounded(1 << 14, || Head::decode(KEY, STORE, 3, &shape, &image));
        }
    }
}
