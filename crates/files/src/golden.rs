//! Records as they lie on media: bytes that every later version must read, and write again.

use crate::keys::{Contents, Record, decode_record, encode_record};
use ashlar_inodes::testing::{GOLDEN_TAIL, golden};
use ashlar_vfs::FileKind;
use bytes::Bytes;

#[test]
fn records_are_the_bytes_that_they_were() {
    let directory =
        Record { permissions: 0o1755, links: 3, uid: 1000, gid: 100, parent: 7, ..golden(9, FileKind::Directory) };
    let file = Record {
        permissions: 0o4644,
        links: 2,
        gid: u32::MAX,
        contents: Contents::Slot(41),
        size: 5_000_000_000,
        sparse: true,
        ..golden(5000, FileKind::File)
    };
    let device =
        Record { permissions: 0o620, uid: 5, gid: 6, device: 136 << 20 | 9, ..golden(1, FileKind::CharDevice) };
    let target = Bytes::from_static(b"../target");
    let link = Record { permissions: 0o777, uid: 1, gid: 2, size: 9, target, ..golden(17, FileKind::Symlink) };
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
        let bytes = encode_record(&record);
        assert_eq!(format!("{bytes:x}"), format!("{numbers}{GOLDEN_TAIL}{target}"), "{record:?}");
        assert_eq!(decode_record(record.ino, &bytes).expect("valid"), record);
    }
}
