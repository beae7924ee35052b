//! Entries as they lie on media: bytes that every later version must read, and write again.

use crate::record::{Contents, Entry, Record, Stored};
use ashlar_inodes::testing::{GOLDEN_TAIL, golden};
use ashlar_vfs::FileKind;
use bytes::Bytes;

fn named(name: &'static [u8], record: Record) -> Entry {
    Entry { name: Bytes::from_static(name), stored: Stored::Record(record) }
}

#[test]
fn entries_are_the_bytes_that_they_were() {
    let directory =
        Record { permissions: 0o1755, links: 3, uid: 1000, gid: 100, parent: 7, ..golden(9, FileKind::Directory) };
    let file = Record {
        permissions: 0o4644,
        links: 2,
        gid: u32::MAX,
        contents: Contents { range: 41, overlaid: true },
        size: 5_000_000_000,
        sparse: true,
        ..golden(5000, FileKind::File)
    };
    let device = Record {
        permissions: 0o620,
        uid: 5,
        gid: 6,
        device: 136 << 20 | 9,
        ..golden(0xf_ffff_ffff, FileKind::CharDevice)
    };
    let target = Bytes::from_static(b"../target");
    let link = Record { permissions: 0o777, uid: 1, gid: 2, size: 9, target, ..golden(17, FileKind::Symlink) };
    let records = [
        (
            named(b"docs", Record { has_xattrs: true, ..directory }),
            "04646f63730002ed4303000000e803000064000000000000000900000000000000000000000000000000000000000000000700000000000000",
            "",
        ),
        (
            Entry::nameless(file),
            "000005a4890200000000000000ffffffff00000000881300000000000000f2052a0100000029000000000000000000000000000000",
            "",
        ),
        (
            named(b"tty", device),
            "037474790000902101000000050000000600000009008008ffffffff0f000000000000000000000000000000000000000000000000000000",
            "",
        ),
        (
            named(b"l", Record { has_xattrs: true, ..link }),
            "016c0002ffa1010000000100000002000000000000001100000000000000090000000000000000000000000000000000000000000000",
            "2e2e2f746172676574",
        ),
    ];
    let records = records.map(|(entry, numbers, target)| (entry, format!("{numbers}{GOLDEN_TAIL}{target}")));
    let zone = Stored::Zone { zone: 77, ino: 78, kind: FileKind::Directory };
    let zone = Entry { name: Bytes::from_static(b"zone"), stored: zone };
    let zone = (zone, "047a6f6e65014d000000000000004e0000000000000004".to_string());
    for (entry, hex) in records.into_iter().chain([zone]) {
        let bytes = entry.encode();
        assert_eq!(format!("{bytes:x}"), hex, "{entry:?}");
        assert_eq!(Entry::decode(&bytes).expect("valid"), entry);
    }
}
