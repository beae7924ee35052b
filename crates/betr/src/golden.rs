//! Entries as they lie on media: bytes that every later version must read, and write again.

use crate::record::{Entry, Record, Stored};
use ashlar_vfs::{FileKind, Ino, Time};
use bytes::Bytes;

const TIMES: [Time; 4] = [
    Time { seconds: 1_700_000_000, nanos: 123_456_789 },
    Time { seconds: -1, nanos: 999_999_999 },
    Time { seconds: 1 << 40, nanos: 1 },
    Time { seconds: 0, nanos: 0 },
];
/// [`TIMES`] as they are stored.
const TIMES_HEX: &str =
    "00f153650000000015cd5b07ffffffffffffffffffc99a3b000000000001000001000000000000000000000000000000";

fn plain(ino: Ino, kind: FileKind) -> Record {
    let [accessed, modified, changed, born] = TIMES;
    Record { links: 1, accessed, modified, changed, born, ..Record::new(ino, kind, Time::default()) }
}

fn named(name: &'static [u8], record: Record) -> Entry {
    Entry { name: Bytes::from_static(name), stored: Stored::Record(record) }
}

#[test]
fn entries_are_the_bytes_that_they_were() {
    let directory =
        Record { permissions: 0o1755, links: 3, uid: 1000, gid: 100, parent: 7, ..plain(9, FileKind::Directory) };
    let file = Record {
        permissions: 0o4644,
        links: 2,
        gid: u32::MAX,
        range: 41,
        overlaid: true,
        size: 5_000_000_000,
        sparse: true,
        ..plain(5000, FileKind::File)
    };
    let device = Record {
        permissions: 0o620,
        uid: 5,
        gid: 6,
        device: 136 << 20 | 9,
        ..plain(0xf_ffff_ffff, FileKind::CharDevice)
    };
    let target = Bytes::from_static(b"../target");
    let link = Record { permissions: 0o777, uid: 1, gid: 2, size: 9, target, ..plain(17, FileKind::Symlink) };
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
    let records = records.map(|(entry, numbers, target)| (entry, format!("{numbers}{TIMES_HEX}{target}")));
    let zone = Stored::Zone { zone: 77, ino: 78, kind: FileKind::Directory };
    let zone = Entry { name: Bytes::from_static(b"zone"), stored: zone };
    let zone = (zone, "047a6f6e65014d000000000000004e0000000000000004".to_string());
    for (entry, hex) in records.into_iter().chain([zone]) {
        let bytes = entry.encode();
        assert_eq!(format!("{bytes:x}"), hex, "{entry:?}");
        assert_eq!(Entry::decode(&bytes).expect("valid"), entry);
    }
}
