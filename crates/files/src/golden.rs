//! Records as they lie on media: bytes that every later version must read, and write again.

use crate::keys::Record;
use ashlar_vfs::{FileKind, Time};
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

fn plain(kind: FileKind) -> Record {
    let [accessed, modified, changed, born] = TIMES;
    Record {
        kind,
        permissions: 0,
        links: 1,
        uid: 0,
        gid: 0,
        device: 0,
        size: 0,
        accessed,
        modified,
        changed,
        born,
        slot: 0,
        sparse: false,
        has_xattrs: false,
        parent: 0,
        target: Bytes::new(),
    }
}

#[test]
fn records_are_the_bytes_that_they_were() {
    let directory =
        Record { permissions: 0o1755, links: 3, uid: 1000, gid: 100, parent: 7, ..plain(FileKind::Directory) };
    let file = Record {
        permissions: 0o4644,
        links: 2,
        gid: u32::MAX,
        slot: 42,
        size: 5_000_000_000,
        sparse: true,
        ..plain(FileKind::File)
    };
    let device = Record { permissions: 0o620, uid: 5, gid: 6, device: 136 << 20 | 9, ..plain(FileKind::CharDevice) };
    let target = Bytes::from_static(b"../target");
    let link = Record { permissions: 0o777, uid: 1, gid: 2, size: 9, target, ..plain(FileKind::Symlink) };
    let all = [
        (
            Record { has_xattrs: true, ..directory },
            "0102ed4303000000e803000064000000000000000000000000000000000000000700000000000000",
            "",
        ),
        (file, "0101a4890200000000000000ffffffff000000002a00000000f2052a010000000000000000000000", ""),
        (device, "01009021010000000500000006000000090080080000000000000000000000000000000000000000", ""),
        (
            Record { has_xattrs: true, ..link },
            "0102ffa1010000000100000002000000000000000000000009000000000000000000000000000000",
            "2e2e2f746172676574",
        ),
    ];
    for (record, numbers, target) in all {
        let bytes = record.encode();
        assert_eq!(format!("{bytes:x}"), format!("{numbers}{TIMES_HEX}{target}"), "{record:?}");
        assert_eq!(Record::decode(&bytes).expect("valid"), record);
    }
}
