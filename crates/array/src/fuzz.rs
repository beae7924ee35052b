//! Fuzz targets of what lies on members; see `ashlar_fuzz`.

use crate::format::{Content, Listed, Owner, PART_BLOCKS_MAX, PartHead, Record, Standing, Superblock, Table, checksum};
use crate::shape::{DATA_MAX, GROUP, Level, MEMBERS_MAX, Shape};
use ashlar_fuzz::{bounded, config, edits, noise};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use proptest::prelude::*;

fn listed() -> impl Strategy<Value = Listed> {
    let standing = prop_oneof![
        Just(Standing::Active),
        Just(Standing::Failed),
        any::<u64>().prop_map(|groups| Standing::Rebuilding { groups })
    ];
    (any::<u128>(), 0..1u64 << 48, standing).prop_map(|(id, groups, standing)| Listed { id, groups, standing })
}

fn superblock() -> impl Strategy<Value = Superblock> {
    let members = prop::collection::vec(listed(), 1..=MEMBERS_MAX);
    let level = prop::sample::select(&Level::ALL[..]);
    (any::<u128>(), level, 1..1u64 << 48, 0..1u64 << 48, any::<[u64; 4]>(), members).prop_map(
        |(array, level, unit, journal, [slot, generation, sequence_end, salt], members)| {
            let (unit, journal, slot) = (Blocks(unit), Blocks(journal), slot as usize % members.len());
            Superblock { array, level, unit, journal, slot, generation, sequence_end, salt, members }
        },
    )
}

const OWNER: Owner = Owner { array: 7, slot: 3, group: 11 };

fn table() -> impl Strategy<Value = Table> {
    let content = prop::sample::select(&[Content::Fresh, Content::Stored, Content::Lost][..]);
    let record = (content, any::<u64>(), 0..1u64 << 48, any::<[u32; DATA_MAX]>()).prop_map(
        |(content, checksum, generation, row)| match content {
            Content::Fresh => Record::default(),
            content => Record { content, checksum, generation, row },
        },
    );
    prop::collection::vec(record, GROUP as usize).prop_map(|records| {
        let mut table = Table::fresh(OWNER);
        (0..).zip(records).for_each(|(row, record)| table.set(row, record));
        table
    })
}

fn part() -> impl Strategy<Value = PartHead> {
    let targets = prop::collection::vec(any::<u64>().prop_map(Lba), 0..=PART_BLOCKS_MAX);
    (any::<[u64; 3]>(), any::<u32>(), targets).prop_map(|([sequence, released, payload], participants, targets)| {
        PartHead { sequence, released, participants, payload, targets }
    })
}

/// Computes the checksum again that lies in these bytes, as whoever forges a block would.
fn reseal(block: &mut [u8], at: usize, salt: u64) {
    block[at..at + 8].fill(0);
    let sum = checksum(block) ^ salt;
    block[at..at + 8].copy_from_slice(&sum.to_le_bytes());
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn superblocks(superblock in superblock(), edits in edits(), noise in noise(BLOCK_LEN)) {
        let block = superblock.encode();
        prop_assert_eq!(Superblock::decode(&block).expect("this version"), Some(superblock));
        let mut forged = block.to_vec();
        edits.iter().for_each(|edit| edit.apply_in_place(&mut forged));
        reseal(&mut forged, 8, 0);
        for bytes in [&forged[..], &noise] {
            bounded(1 << 20, || {
                if let Ok(Some(found)) = Superblock::decode(bytes) {
                    let groups: Vec<u64> = found.members.iter().map(|member| member.groups).collect();
                    let _ = Shape::new(found.level, found.unit, &groups).map(|shape| (shape.capacity(), shape.groups()));
                }
            });
        }
    }

    #[test]
    fn tables(table in table(), edits in edits(), noise in noise(BLOCK_LEN)) {
        let block = table.encode();
        let elsewhere = Owner { group: 12, ..OWNER };
        let empty = (0..GROUP).all(|row| table.record(row) == &Record::default());
        prop_assert_eq!(Table::decode(&block, OWNER), Ok(table));
        prop_assert!(empty || Table::decode(&block, elsewhere).is_err());
        let mut forged = block.to_vec();
        edits.iter().for_each(|edit| edit.apply_in_place(&mut forged));
        reseal(&mut forged, BLOCK_LEN - 8, 0);
        for bytes in [&forged[..], &noise] {
            bounded(1 << 20, || _ = Table::decode(bytes, OWNER));
        }
    }

    #[test]
    fn parts(part in part(), edits in edits(), noise in noise(BLOCK_LEN), salt in any::<u64>()) {
        let block = part.encode(9, salt, 2);
        prop_assert_eq!(PartHead::decode(&block, 9, salt, 2), Some(part));
        prop_assert_eq!(PartHead::decode(&block, 9, salt ^ 1, 2), None);
        prop_assert_eq!(PartHead::decode(&block, 9, salt, 1), None);
        let mut forged = block.to_vec();
        edits.iter().for_each(|edit| edit.apply_in_place(&mut forged));
        let key = checksum(&[&9u128.to_le_bytes()[..], &salt.to_le_bytes()].concat());
        reseal(&mut forged, 8, key);
        for bytes in [&forged[..], &noise] {
            bounded(1 << 20, || _ = PartHead::decode(bytes, 9, salt, 2));
        }
    }
}
