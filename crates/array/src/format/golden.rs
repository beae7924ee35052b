//! What version 1 of the format looks like, byte by byte, and that it reads back. A change that fails here is a change of the
//! format: it needs a new version, and the old one must stay readable.

use super::*;
use ashlar_fuzz::sketch;

const ARRAY: Id = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff;
const SALT: u64 = 0x1234_5678_9abc_def0;

/// Compares an image with what it was when the version came.
fn is(image: &[u8], expected: &str) {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let found = sketch(image);
    assert!(words(&found) == words(expected), "it is not what it was:\n{found}");
}

fn row(from: u32) -> [Mark; DATA_MAX] {
    std::array::from_fn(|role| if role < 4 { from + role as u32 } else { 0 })
}

#[test]
fn superblocks_are_those_of_version_1() {
    let member = |number: u128, standing| Listed { id: ARRAY + number, groups: 77, standing };
    let superblock = Superblock {
        array: ARRAY,
        level: Level::Raid6,
        unit: Blocks(64),
        journal: Blocks(1024),
        slot: 2,
        generation: 9,
        sequence_end: (3 << 40) + 5,
        salt: SALT,
        members: vec![
            member(1, Standing::Active),
            member(2, Standing::Failed),
            member(3, Standing::Rebuilding { groups: 30 }),
            member(4, Standing::Active),
        ],
    };
    let image = superblock.encode();
    assert_eq!(Superblock::decode(&image), Ok(Some(superblock)));
    is(
        &image,
        "
        0: 4153484c415241593a3f4555bf447fc40100040204
        20: ffeeddccbbaa9988776655443322110009000000000000000500000000030000f0debc9a7856341240
        51: 0400000000000000efddccbbaa998877665544332211004d
        80: 01efddccbbaa998877665544332211004d
        a0: 010000000000000002efddccbbaa998877665544332211004d000000000000001e0000000000000002
        d0: 03efddccbbaa998877665544332211004d
        ",
    );
}

#[test]
fn records_of_blocks_are_those_of_version_1() {
    let owner = Owner { array: ARRAY, slot: 2, group: 5 };
    let mut table = Table::fresh(owner);
    let first = 5 * GROUP;
    let stored = Record { content: Content::Stored, checksum: SALT, generation: (3 << 40) + 4, row: [0; DATA_MAX] };
    table.set(first, stored);
    table.set(first + 3, Record { row: row(0xabcd_0001), ..stored });
    table.set(first + 62, Record { content: Content::Lost, row: row(u32::MAX - 3), ..stored });
    let image = table.encode();
    assert_eq!(Table::decode(&image, owner), Ok(table));
    is(
        &image,
        "
        0: f0debc9a7856341204000000000301023b01
        c0: f0debc9a7856341204000000000301023e010000000000000100cdab0200cdab0300cdab0400cdab
        f80: f0debc9a7856341204000000000302027901000000000000fcfffffffdfffffffeffffffffffffff
        fc0: 4153484b01000200ffeeddccbbaa9988776655443322110005
        ff9: 06749f4e607d9f
        ",
    );
    assert_eq!(Table::decode(&[0; BLOCK_LEN], owner), Ok(Table::fresh(owner)), "zeros are a group that nobody wrote");
}

#[test]
fn the_journal_is_that_of_version_1() {
    let head = PartHead {
        sequence: (3 << 40) + 4,
        released: (3 << 40) + 1,
        participants: 0b1_0110,
        payload: SALT,
        targets: vec![Lba(1100), Lba(1101), Lba((1 << 32) + 7)],
    };
    let image = head.encode(ARRAY, SALT, 2);
    assert_eq!(PartHead::decode(&image, ARRAY, SALT, 2), Some(head));
    is(
        &image,
        "
        0: 4153484a010002001284b5060a1ccfba040000000003000001000000000300001600000003000000f0debc9a78563412
        100: 4c040000000000004d040000000000000700000001
        ",
    );
}

#[test]
fn places_are_those_of_version_1() {
    assert_eq!((SUPERBLOCKS, groups_at(Blocks(1024)), GROUP), (Blocks(2), Lba(1026), 63));
    let groups = [1025, 1026 + 63, 1026 + 64, 1026 + 640].map(|blocks| groups_of(Blocks(blocks), Blocks(1024)));
    assert_eq!(groups, [0, 0, 1, 10]);
}
