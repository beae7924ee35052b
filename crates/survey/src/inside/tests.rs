use super::*;
use ashlar_models::Chance;
use xxhash_rust::xxh3::xxh3_64;

const UNIT: u64 = 4 * BLOCK;

/// A file: inode, name, and its extents: offset in blocks, length, block.
type Laid = (u32, &'static str, &'static [(u32, u16, u32)]);

/// Files of [`image`]: one in two pieces, one that is small, two that lie side by side, and one with an extent that is
/// allocated and was never written.
const LAID: [Laid; 5] = [
    (12, "large", &[(0, 3, 10), (3, 2, 16)]),
    (13, "small", &[(0, 1, 13)]),
    (14, "one", &[(0, 1, 14)]),
    (15, "other", &[(0, 1, 15)]),
    (16, "reserved", &[(0, 1, 18), (1, 32768 + 2, 19)]),
];
const BLOCKS: u64 = 24;

fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

fn node(image: &mut [u8], at: usize, depth: u16, entries: &[[u8; 12]]) {
    put(image, at, &0xf30a_u16.to_le_bytes());
    put(image, at + 2, &(entries.len() as u16).to_le_bytes());
    put(image, at + 6, &depth.to_le_bytes());
    entries.iter().enumerate().for_each(|(index, entry)| put(image, at + 12 * (index + 1), entry));
}

fn leaf((offset, len, block): (u32, u16, u32)) -> [u8; 12] {
    let mut entry = [0; 12];
    put(&mut entry, 0, &offset.to_le_bytes());
    put(&mut entry, 4, &len.to_le_bytes());
    put(&mut entry, 8, &block.to_le_bytes());
    entry
}

/// An ext4 file system of 24 blocks with the files of [`LAID`] in the directory `above`. The tree of `large` has a level
/// more, in block 7.
pub fn image() -> Vec<u8> {
    let mut image = vec![0; (BLOCKS * BLOCK) as usize];
    for (at, value) in
        [(4, BLOCKS as u32), (24, 2), (32, 32768), (40, 32), (76, 1), (88, 256), (96, 0x40), (100, 0x400)]
    {
        put(&mut image, 1024 + at, &u32::to_le_bytes(value));
    }
    put(&mut image, 1024 + 56, &0xef53_u16.to_le_bytes());
    // The table of inodes is in blocks 2 and 3; eight inodes were never used.
    put(&mut image, 4096 + 8, &2u32.to_le_bytes());
    put(&mut image, 4096 + 0x1c, &8u16.to_le_bytes());
    let inode = |number: u32| 2 * 4096 + (number as usize - 1) * 256;
    let mut is = |number: u32, mode: u16| {
        put(&mut image, inode(number), &mode.to_le_bytes());
        put(&mut image, inode(number) + 26, &1u16.to_le_bytes());
        put(&mut image, inode(number) + 32, &0x8_0000_u32.to_le_bytes());
    };
    is(2, 0x41ed);
    is(11, 0x41ed);
    LAID.iter().for_each(|(number, ..)| is(*number, 0x81a4));
    node(&mut image, inode(2) + 40, 0, &[leaf((0, 1, 5))]);
    node(&mut image, inode(11) + 40, 0, &[leaf((0, 1, 6))]);
    let names = LAID.iter().map(|(number, name, _)| (*number, *name));
    for (block, entries) in [(5, vec![(2, "."), (2, ".."), (11, "above")]), (6, names.collect::<Vec<_>>())] {
        let mut at = block * 4096;
        for (index, (number, name)) in entries.iter().enumerate() {
            let rest = (block + 1) * 4096 - at;
            let len = if index + 1 == entries.len() { rest } else { (8 + name.len()).next_multiple_of(4).max(12) };
            put(&mut image, at, &u32::to_le_bytes(*number));
            put(&mut image, at + 4, &(len as u16).to_le_bytes());
            image[at + 6] = name.len() as u8;
            put(&mut image, at + 8, name.as_bytes());
            at += len;
        }
    }
    for (number, name, extents) in LAID {
        let leaves: Vec<[u8; 12]> = extents.iter().map(|extent| leaf(*extent)).collect();
        if name == "large" {
            node(&mut image, 7 * 4096, 0, &leaves);
            node(&mut image, inode(number) + 40, 1, &[leaf((0, 7, 0))]);
        } else {
            node(&mut image, inode(number) + 40, 0, &leaves);
        }
    }
    image
}

fn limits(stop: &AtomicBool) -> Limits<'_> {
    Limits { read: 1 << 20, files: 1000, unit: UNIT, stop }
}

/// Parts of the file system in `bytes`, of which `data` are data.
pub fn parts_of(bytes: &[u8], data: &[Place]) -> Vec<Part> {
    let stop = AtomicBool::new(false);
    let (mut from, limits) = (bytes, limits(&stop));
    let end = bytes.len() as u64;
    let mut disk = Disk { from: &mut from, begin: 0, end, read: 0, limits: &limits };
    parts(ext4::files(&mut disk).unwrap_or_default(), data, UNIT)
}

/// Each byte of data is in exactly one part, if there are parts.
pub fn are_whole(parts: &[Part], data: &[Place]) {
    let mut places: Vec<Place> = parts.iter().flat_map(|part| part.places.iter().copied()).collect();
    places.sort_unstable();
    let mut joined: Vec<Place> = Vec::new();
    for (begin, end) in places {
        assert!(begin < end, "{begin} to {end}");
        match joined.last_mut() {
            Some(last) if last.1 == begin && !data.iter().any(|(from, _)| *from == begin) => last.1 = end,
            Some(last) => {
                assert!(last.1 <= begin, "{last:?} and what begins at {begin}");
                joined.push((begin, end));
            }
            None => joined.push((begin, end)),
        }
    }
    assert!(parts.is_empty() || joined == data, "{joined:?} are not {data:?}");
}

#[test]
fn parts_are_the_files_of_an_image() {
    let bytes = image();
    let data = [(0, BLOCKS * BLOCK)];
    let parts = parts_of(&bytes, &data);
    are_whole(&parts, &data);
    let find = |name: &str| parts.iter().find(|part| part.name == xxh3_64(name.as_bytes()));
    let blocks = |first: u64, len: u64| (first * BLOCK, (first + len) * BLOCK);
    let large = find("large").expect("a part of its own");
    assert_eq!(large.places, [blocks(10, 3), blocks(16, 2)]);
    assert_eq!(large.parent, xxh3_64(b"above"));
    // Small ones that lie side by side are together, up to a name that ends a part.
    let small: Vec<&Part> = ["small", "one", "other", "reserved"].into_iter().filter_map(find).collect();
    let sum: u64 = small.iter().flat_map(|part| &part.places).map(|(begin, end)| end - begin).sum();
    assert!(find("small").is_some() && sum == 4 * BLOCK, "{small:?}");
    // What was never written is in no file.
    assert!(small.iter().flat_map(|part| &part.places).all(|(_, end)| *end <= 19 * BLOCK));
    let unknown = bytes[..BLOCK as usize * 20].to_vec();
    assert_eq!(parts_of(&unknown[4096..], &[(0, 19 * BLOCK)]), []);
}

#[test]
fn data_with_holes_are_in_exactly_one_part() {
    let bytes = image();
    for seed in 0..200 {
        let (mut chance, mut at, mut data) = (Chance::new(seed), 0, Vec::new());
        while at + 1 < BLOCKS {
            let begin = at + chance.below(3);
            let end = (begin + 1 + chance.below(8)).min(BLOCKS);
            if begin < end {
                data.push((begin * BLOCK, end * BLOCK));
            }
            at = end + 1;
        }
        are_whole(&parts_of(&bytes, &data), &data);
    }
}

#[test]
fn partitions_are_found() {
    let mut bytes = vec![0; 4 << 20];
    put(&mut bytes, 510, &[0x55, 0xaa]);
    let stop = AtomicBool::new(false);
    let found = |bytes: &[u8]| {
        let (mut from, limits) = (bytes, limits(&stop));
        let mut disk = Disk { from: &mut from, begin: 0, end: bytes.len() as u64, read: 0, limits: &limits };
        partitions(&mut disk)
    };
    // Of a master boot record: of two, one does not begin with a block.
    for (at, kind, first, count) in [(446, 0x83, 2048u32, 1024u32), (462, 0x83, 63, 100), (478, 0, 4096, 8)] {
        bytes[at + 4] = kind;
        put(&mut bytes, at + 8, &first.to_le_bytes());
        put(&mut bytes, at + 12, &count.to_le_bytes());
    }
    assert_eq!(found(&bytes), Some(vec![(1 << 20, 3 << 19)]));
    put(&mut bytes, 512, b"EFI PART");
    put(&mut bytes, 584, &2u64.to_le_bytes());
    put(&mut bytes, 592, &128u32.to_le_bytes());
    put(&mut bytes, 596, &128u32.to_le_bytes());
    put(&mut bytes, 1024 + 128, &[1; 16]);
    put(&mut bytes, 1024 + 128 + 32, &4096u64.to_le_bytes());
    put(&mut bytes, 1024 + 128 + 40, &6143u64.to_le_bytes());
    assert_eq!(found(&bytes), Some(vec![(2 << 20, 3 << 20)]));
    assert_eq!(found(&vec![0; 4 << 20]), None);
}
