//! Fuzz target of snapshots.

use super::format::{Closing, ENTRIES, FORMAT, FREE, FreeRange, HEADER, Header, SnapshotReader};
use super::listing::tests::{lines, text};
use super::listing::{Line, Listed, ListingReader};
use crate::codec::Take;
use crate::frames::{FrameWriter, RAW_MAX};
use crate::predict::tree::Tree;
use crate::sorter::Item;
use crate::walk::{Entry, Kind};
use ashlar_env::host::Extent;
use ashlar_fuzz::{bounded, config, edits, noise};
use proptest::prelude::*;

fn entry() -> impl Strategy<Value = Entry> {
    let kind = prop::sample::select(vec![Kind::File, Kind::Directory, Kind::Link, Kind::Other]);
    let extent = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>())
        .prop_map(|(logical, physical, len, flags)| Extent { logical, physical, len, flags });
    let numbers = (any::<u64>(), any::<u32>(), any::<Option<u32>>(), any::<u64>(), any::<u64>());
    let times = (any::<i64>(), any::<i64>(), any::<Option<i64>>());
    (numbers, kind, noise(255), times, prop::collection::vec(extent, 0..5)).prop_map(
        |((parent, links, generation, size, allocated), kind, name, (changed, modified, born), extents)| Entry {
            inode: 0,
            parent,
            kind,
            name,
            links,
            generation,
            size,
            allocated,
            changed,
            modified,
            born,
            extents,
        },
    )
}

fn snapshot() -> impl Strategy<Value = (Vec<Entry>, Vec<(u64, u64)>)> {
    (prop::collection::vec(entry(), 0..20), prop::collection::vec(any::<(u64, u64)>(), 0..5)).prop_map(
        |(mut entries, free)| {
            (0..).zip(&mut entries).for_each(|(inode, entry)| entry.inode = inode * 3);
            (entries, free)
        },
    )
}

/// The file of a snapshot with these entries.
pub(crate) fn encode(taken_ns: i64, entries: &[Entry], free: &[(u64, u64)]) -> Vec<u8> {
    let header = Header {
        root: "/r".into(),
        taken_ns,
        file_system: "ext4".into(),
        block_bytes: 4096,
        total_bytes: 1 << 40,
        free_bytes: 1,
        groups: Some(crate::mounts::Groups::Xfs { inode_bits: 30, bytes: 1 << 30 }),
        names_hashed: false,
    };
    let mut frames = FrameWriter::new(Vec::new(), &FORMAT).expect("memory");
    frames.put_header(HEADER, &header).expect("memory");
    entries.iter().for_each(|entry| frames.put_item(ENTRIES, entry).expect("memory"));
    free.iter().for_each(|(at, len)| frames.put_item(FREE, &FreeRange(*at, *len)).expect("memory"));
    frames.finish(&Closing::default().encode()).expect("memory")
}

/// What can be read, and whether it is whole.
fn decode(bytes: &[u8]) -> (Vec<Entry>, Vec<(u64, u64)>, bool) {
    let (mut entries, mut free) = (Vec::new(), Vec::new());
    let Ok(mut reader) = SnapshotReader::new(bytes) else { return (entries, free, false) };
    while let Ok(Some(entry)) = reader.entry() {
        entries.push(entry);
    }
    while let Ok(Some(range)) = reader.free() {
        free.push(range);
    }
    let whole = reader.closing().is_ok();
    (entries, free, whole)
}

/// Lines of a listing, of which no two share a name; directories follow each other and stand in the root.
fn listing() -> impl Strategy<Value = Vec<Line>> {
    let name = "[a-c ]{0,6}";
    let kind = prop::sample::select(vec![Kind::File, Kind::Link]);
    let entry = (kind, any::<u64>(), name, "[a-c/ ]{1,6}");
    let directory = (any::<u32>(), prop::collection::vec(entry, 0..5));
    (any::<(u64, u64)>(), prop::collection::vec(directory, 0..5)).prop_map(|((inode, size), directories)| {
        let mut lines = vec![Line::Root { name: b"./".to_vec(), inode, size }];
        let listed = |inode: u64, kind, size, name: String, link| {
            Line::Entry(Listed { inode, kind, size, name: name.into_bytes(), link })
        };
        for (at, (size, _)) in directories.iter().enumerate() {
            lines.push(listed(at as u64, Kind::Directory, (*size).into(), format!("d {at}"), None));
        }
        lines.push(Line::End);
        for (at, (_, entries)) in directories.into_iter().enumerate() {
            lines.push(Line::Directory(format!("./d {at}/").into_bytes()));
            for (number, (kind, size, name, link)) in (100u64..).zip(entries) {
                let (inode, name) = (number + 100 * at as u64, format!("{number}{name}"));
                lines.push(match kind {
                    Kind::Link => listed(inode, kind, link.len() as u64, name, Some(link.into_bytes())),
                    _ => listed(inode, kind, size, name, None),
                });
            }
            lines.push(Line::End);
        }
        lines
    })
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn listings(written in listing(), edits in edits(), noise in noise(600)) {
        let mut bytes = text(&written);
        prop_assert_eq!(lines(&bytes), Ok(written));
        prop_assert!(Tree::of_listing(&mut ListingReader::new(bytes.as_slice()), None).is_ok());
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        for bytes in [bytes, noise] {
            // What is read comes back as it was.
            if let Ok(lines) = bounded(1 << 20, || lines(&bytes)) {
                prop_assert_eq!(text(&lines), bytes.as_slice());
            }
            bounded(1 << 20, || drop(Tree::of_listing(&mut ListingReader::new(bytes.as_slice()), None)));
        }
    }

    #[test]
    fn snapshots((entries, free) in snapshot(), edits in edits(), noise in noise(4096)) {
        let mut bytes = encode(-1, &entries, &free);
        prop_assert_eq!(decode(&bytes), (entries, free, true));
        let whole = bytes.clone();
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        // Every byte is under a checksum, but those of the magic and the version, which have one value.
        prop_assert!(bytes == whole || !bounded(4 * RAW_MAX as u64, || decode(&bytes)).2 || bytes.starts_with(&whole));
        bounded(4 * RAW_MAX as u64, || decode(&noise));
    }

    /// Behind a good checksum.
    #[test]
    fn snapshot_entries(entry in entry(), edits in edits(), noise in noise(300)) {
        let mut bytes = Vec::new();
        entry.put(&mut bytes);
        prop_assert_eq!(Entry::take(&mut Take(&bytes)), Ok(entry));
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        for bytes in [bytes, noise] {
            bounded(1 << 16, || drop(Entry::take(&mut Take(&bytes))));
        }
    }
}
