//! Fuzz targets of what a file system writes into its dictionary; see `ashlar_fuzz`.

use crate::keys::{
    Entry, INO_MAX, Record, SLOTS_MAX, entry, free_slot, ino_in, inode, number, number_in, orphan, owner_of,
    read_number, slot_in, xattr,
};
use ashlar_fuzz::{bounded, config, edits, hostile, noise};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use ashlar_vfs::{FileKind, NAME_LEN_MAX, Time};
use bytes::Bytes;
use proptest::prelude::*;

fn kind() -> impl Strategy<Value = FileKind> {
    prop::sample::select(
        &[
            FileKind::File,
            FileKind::Directory,
            FileKind::Symlink,
            FileKind::Fifo,
            FileKind::Socket,
            FileKind::CharDevice,
            FileKind::BlockDevice,
        ][..],
    )
}

fn time() -> impl Strategy<Value = Time> {
    (any::<i64>(), 0..1_000_000_000u32).prop_map(|(seconds, nanos)| Time { seconds, nanos })
}

fn record() -> impl Strategy<Value = Record> {
    let flags = any::<(bool, bool)>();
    let numbers = (any::<[u32; 4]>(), any::<u64>(), 0..=SLOTS_MAX, 0..=INO_MAX);
    (kind(), 0..0o10000u32, numbers, [time(), time(), time(), time()], flags, noise(60)).prop_map(
        |(kind, permissions, ([links, uid, gid, device], size, slot, parent), times, (sparse, has_xattrs), target)| {
            let [accessed, modified, changed, born] = times;
            let mut record = Record {
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
                slot,
                sparse,
                has_xattrs,
                parent,
                target: target.into(),
            };
            if kind == FileKind::File {
                record.size %= record.blocks_max() * BLOCK_LEN as u64 + 1;
            }
            record
        },
    )
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn inode_records(record in record(), edits in edits(), noise in noise(200), ino in 0..=INO_MAX) {
        let value = record.encode();
        prop_assert_eq!(Record::decode(&value).expect("valid"), record);
        let mut changed = value.to_vec();
        edits.iter().for_each(|edit| edit.apply(&mut changed));
        for hostile in [changed, noise].map(Bytes::from) {
            if let Ok(record) = bounded(1 << 14, || Record::decode(&hostile)) {
                prop_assert_eq!(&Record::decode(&record.encode()).expect("what was read can be written"), &record);
                // The whole range can be named, and its end.
                let end = record.base(ino) + Blocks(record.blocks_max());
                prop_assert_eq!(owner_of(Lba(end.0 - 1)).0, owner_of(record.base(ino)).0);
            }
        }
    }

    #[test]
    fn directory_entries(ino in 0..=INO_MAX, kind in kind(), more in any::<bool>(), name in noise(NAME_LEN_MAX), edits in edits()) {
        let entry = Entry { ino, kind, more, name: name.into() };
        let value = entry.encode();
        prop_assert_eq!(Entry::decode(&value).expect("valid"), entry);
        let mut changed = value.to_vec();
        edits.iter().for_each(|edit| edit.apply(&mut changed));
        let changed = Bytes::from(changed);
        if let Ok(entry) = bounded(1 << 14, || Entry::decode(&changed)) {
            prop_assert!(entry.ino <= INO_MAX && entry.name.len() <= NAME_LEN_MAX);
        }
    }

    #[test]
    fn dictionary_keys(ino in 0..=INO_MAX, slot in 0..SLOTS_MAX, any in any::<u64>(), key in hostile(noise(24))) {
        for key in [inode(ino), orphan(ino), entry(ino, any), xattr(ino, b"user.a")] {
            prop_assert_eq!(ino_in(&key).expect("valid"), ino);
        }
        prop_assert_eq!(number_in(&entry(ino, any), 9), Some(any));
        prop_assert_eq!(slot_in(&free_slot(slot)).expect("valid"), slot);
        prop_assert_eq!(read_number(&number(any)).expect("valid"), any);
        prop_assert!(ino_in(&key).is_ok_and(|ino| ino <= INO_MAX) || ino_in(&key).is_err());
        let _ = (slot_in(&key), number_in(&key, 1), number_in(&key, 9), read_number(&key));
    }
}
