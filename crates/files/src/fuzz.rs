//! Fuzz targets of what a file system writes into its dictionary; see `ashlar_fuzz`.

use crate::keys::{
    Contents, Entry, INO_MAX, Record, SLOTS_MAX, base_of, decode_record, encode_record, entry, free_slot, ino_in,
    inode, number_in, orphan, owner_of, slot_in,
};
use ashlar_fuzz::{bounded, config, edits, hostile, noise};
use ashlar_inodes::{BLOCK, number_value, read_number, testing, testing::kind, xattr_key};
use ashlar_units::{Blocks, Lba};
use ashlar_vfs::{FileKind, NAME_LEN_MAX};
use bytes::Bytes;
use proptest::prelude::*;

fn record() -> impl Strategy<Value = Record> {
    let contents = prop_oneof![Just(Contents::Small), (0..SLOTS_MAX).prop_map(Contents::Slot)];
    testing::record(INO_MAX, contents).prop_map(|mut record| {
        if record.kind == FileKind::File {
            record.size %= record.contents.blocks_max() * BLOCK + 1;
        }
        record
    })
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn inode_records(record in record(), edits in edits(), noise in noise(200), ino in 0..=INO_MAX) {
        let value = encode_record(&record);
        prop_assert_eq!(decode_record(record.ino, &value).expect("valid"), record);
        let mut changed = value.to_vec();
        edits.iter().for_each(|edit| edit.apply(&mut changed));
        for hostile in [changed, noise].map(Bytes::from) {
            if let Ok(record) = bounded(1 << 14, || decode_record(ino, &hostile)) {
                let again = decode_record(ino, &encode_record(&record));
                prop_assert_eq!(&again.expect("what was read can be written"), &record);
                // The whole range can be named, and its end.
                let end = base_of(&record) + Blocks(record.contents.blocks_max());
                prop_assert_eq!(owner_of(Lba(end.0 - 1)).0, owner_of(base_of(&record)).0);
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
        for key in [inode(ino), orphan(ino), entry(ino, any), xattr_key(ino, b"user.a")] {
            prop_assert_eq!(ino_in(&key).expect("valid"), ino);
        }
        prop_assert_eq!(number_in(&entry(ino, any), 9), Some(any));
        prop_assert_eq!(slot_in(&free_slot(slot)).expect("valid"), slot);
        prop_assert_eq!(read_number(&number_value(any)).expect("valid"), any);
        prop_assert!(ino_in(&key).is_ok_and(|ino| ino <= INO_MAX) || ino_in(&key).is_err());
        let _ = (slot_in(&key), number_in(&key, 1), number_in(&key, 9), read_number(&key));
    }
}
