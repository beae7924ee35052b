//! What version 1 of the format looks like, byte by byte. A change that fails here is a change of the format: it needs a new
//! version, and arrays of the old one must stay readable.

use crate::Level;
use crate::format::{Content, Listed, Owner, PartHead, Record, Standing, Superblock, Table, checksum};
use ashlar_units::{Blocks, Lba};

const ARRAY: u128 = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff;

/// Compares a block with what it was when version 1 came.
fn is(what: &str, block: &[u8], expected: u64) {
    let found = checksum(block);
    assert_eq!(found, expected, "{what} of version 1 is not what it was: [{found:#x}]");
}

#[test]
fn superblocks_are_those_of_version_1() {
    let member = |id, standing| Listed { id, groups: 1000 + id as u64, standing };
    let superblock = Superblock {
        array: ARRAY,
        level: Level::Raid6,
        unit: Blocks(256),
        journal: Blocks(4096),
        slot: 2,
        generation: 7,
        sequence_end: 1 << 20,
        salt: 0x1234_5678_9abc_def0,
        members: vec![
            member(1, Standing::Active),
            member(2, Standing::Failed),
            member(3, Standing::Rebuilding { groups: 17 }),
            member(4, Standing::Active),
        ],
    };
    let block = superblock.encode();
    is("a superblock", &block, 0);
    assert_eq!(Superblock::decode(&block).expect("it is whole"), Some(superblock));
}

#[test]
fn checksum_blocks_are_those_of_version_1() {
    let owner = Owner { array: ARRAY, slot: 3, group: 12 };
    let mut table = Table::fresh(owner);
    for row in (12 * 63..13 * 63).step_by(5) {
        let content = if row % 2 == 0 { Content::Stored } else { Content::Lost };
        let marks = std::array::from_fn(|role| row as u32 + role as u32);
        table.set(row, Record { content, checksum: row * 0x9e37_79b9, generation: 5000 + row, row: marks });
    }
    let block = table.encode();
    is("a checksum block", &block, 0);
    assert_eq!(Table::decode(&block, owner).expect("it is whole"), table);
}

#[test]
fn heads_of_parts_of_the_journal_are_those_of_version_1() {
    let head = PartHead {
        sequence: 77,
        released: 70,
        participants: 0b1011,
        payload: 0xae8b_1486_0a79_9888,
        targets: vec![Lba(5000), Lba(5001), Lba(9000)],
    };
    let block = head.encode(ARRAY, 42, 3);
    is("the head of a part", &block, 0);
    assert_eq!(PartHead::decode(&block, ARRAY, 42, 3), Some(head));
}
