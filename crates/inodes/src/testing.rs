//! For tests of engines: records by chance, and records that are the same for ever.

use crate::{Contents, Record};
use ashlar_vfs::{FileKind, Ino, Time};
use proptest::prelude::*;
use std::fmt::Debug;

/// Times of every sort.
const TIMES: [Time; 4] = [
    Time { seconds: 1_700_000_000, nanos: 123_456_789 },
    Time { seconds: -1, nanos: 999_999_999 },
    Time { seconds: 1 << 40, nanos: 1 },
    Time { seconds: 0, nanos: 0 },
];
/// The tail of a [`golden`] record, as hexadecimal digits.
pub const GOLDEN_TAIL: &str =
    "00f153650000000015cd5b07ffffffffffffffffffc99a3b000000000001000001000000000000000000000000000000";

/// A record with times of every sort, for tests of what lies on media.
pub fn golden<C: Contents>(ino: Ino, kind: FileKind) -> Record<C> {
    let [accessed, modified, changed, born] = TIMES;
    Record { links: 1, accessed, modified, changed, born, ..Record::new(ino, kind, Time::default()) }
}

/// Every kind of inode.
pub fn kind() -> impl Strategy<Value = FileKind> {
    const KINDS: [FileKind; 7] = [
        FileKind::File,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::Fifo,
        FileKind::Socket,
        FileKind::CharDevice,
        FileKind::BlockDevice,
    ];
    prop::sample::select(&KINDS[..])
}

/// Records of inodes from 1 up to `ino_max`, of any size.
pub fn record<C: Contents + Debug>(
    ino_max: u64,
    contents: impl Strategy<Value = C>,
) -> impl Strategy<Value = Record<C>> {
    let time = || (any::<i64>(), 0..1_000_000_000u32).prop_map(|(seconds, nanos)| Time { seconds, nanos });
    let numbers = (any::<[u32; 4]>(), any::<u64>(), 1..=ino_max, 0..=ino_max, contents);
    let target = prop::collection::vec(any::<u8>(), 0..60);
    (kind(), 0..0o10000u32, numbers, [time(), time(), time(), time()], any::<[bool; 2]>(), target).prop_map(
        |(kind, permissions, numbers, [accessed, modified, changed, born], [sparse, has_xattrs], target)| {
            let ([links, uid, gid, device], size, ino, parent, contents) = numbers;
            let target = target.into();
            Record {
                ino,
                kind,
                permissions,
                links,
                uid,
                gid,
                device,
                size,
                accessed,
                modified,
                changed,
                born,
                contents,
                sparse,
                has_xattrs,
                parent,
                target,
            }
        },
    )
}
