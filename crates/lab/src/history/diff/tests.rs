//! The rules of the thesis, each by hand.

use super::*;
use ashlar_env::host::Extent;
use std::sync::atomic::AtomicBool;

const ROOT_INODE: u64 = 2;

fn entry(inode: u64, parent: u64, kind: Kind, name: &str, (generation, changed, size): (u32, i64, u64)) -> Entry {
    Entry {
        inode,
        parent,
        kind,
        name: name.into(),
        links: 1,
        generation: Some(generation),
        size,
        allocated: 0,
        changed,
        modified: changed,
        born: None,
        extents: Vec::new(),
    }
}

fn root() -> Entry {
    entry(ROOT_INODE, ROOT_INODE, Kind::Directory, "", (1, 0, 0))
}

fn file(inode: u64, name: &str, generation: u32, changed: i64, size: u64) -> Entry {
    entry(inode, ROOT_INODE, Kind::File, name, (generation, changed, size))
}

/// What is found in snapshots taken at 1000, 2000 and so on.
fn found(snapshots: &[Vec<Entry>], guesses: &Guesses) -> (Vec<Record>, Found) {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let home = std::env::temp_dir().join(format!("ashlar-diff-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&home).expect("made");
    let paths: Vec<PathBuf> = (1..)
        .zip(snapshots)
        .map(|(index, entries)| {
            let path = home.join(format!("{index}"));
            std::fs::write(&path, crate::snapshot::fuzz::encode(index * 1000, entries, &[])).expect("space");
            path
        })
        .collect();
    let mut builder = Builder::new(1 << 20, &home);
    let (found, _) = compare(&paths, guesses, 1, &mut builder).expect("snapshots in order");
    let mut records = Vec::new();
    let stop = AtomicBool::new(false);
    let done = builder.ordered(&stop, |record| {
        records.push(record);
        Ok(())
    });
    done.expect("no interruption");
    std::fs::remove_dir_all(&home).expect("it is ours");
    (records, found)
}

fn thesis() -> Guesses {
    Guesses { short_lived: None, ..Guesses::THESIS }
}

#[test]
fn the_first_snapshot_is_created_in_order_of_change() {
    let entries = vec![root(), file(5, "late", 1, 900, 10), file(6, "early", 1, 100, 20)];
    let (records, found) = found(&[entries], &thesis());
    let sizes: Vec<_> = records.iter().map(|record| (record.at_ns, record.written())).collect();
    assert_eq!(sizes, [(0, 20), (800, 10)]);
    assert_eq!(found.initial, 2);
}

#[test]
fn a_directory_is_made_before_what_is_in_it() {
    let inner = entry(8, 7, Kind::File, "inner", (1, 50, 9));
    let directory = entry(7, ROOT_INODE, Kind::Directory, "d", (1, 90, 0));
    let (records, _) = found(&[vec![root(), directory.clone(), inner]], &thesis());
    assert_eq!(records.len(), 2);
    assert!(matches!(records[0].act, Act::MakeDirectory { parent: ROOT, name_len: 1 }));
    assert!(matches!(records[1].act, Act::Create { parent, .. } if parent == id(&directory)));
}

#[test]
fn new_gone_modified_and_replaced() {
    let first = vec![
        root(),
        file(5, "stays", 1, 10, 1),
        file(6, "goes", 1, 10, 2),
        file(7, "grows", 1, 10, 3),
        file(8, "x", 1, 10, 4),
    ];
    let second = vec![
        root(),
        file(5, "stays", 1, 10, 1),
        file(7, "grows", 1, 1500, 30),
        file(8, "y", 2, 1600, 40),
        file(9, "new", 1, 1700, 50),
    ];
    let (records, found) = found(&[first.clone(), second.clone()], &thesis());
    let expected = Found { snapshots: 2, initial: 4, new: 1, gone: 1, modified: 1, replaced: 1, ..Found::default() };
    assert_eq!(found, expected);
    // Times are since the first record, which is at 10.
    let of = |entry: &Entry| records.iter().filter(|record| record.id == id(entry)).collect::<Vec<_>>();
    let grows = of(&second[2]);
    assert_eq!((grows.len(), grows[1].at_ns), (2, 1490));
    assert_eq!(grows[1].act, Act::Modify { keep: 0, size: 30, how: Writing::default() });
    let (old, new) = (of(&first[4]), of(&second[3]));
    assert_eq!((old[1].at_ns, old[1].act), (1589, Act::Delete));
    assert_eq!((new[0].at_ns, new[0].written()), (1590, 40));
    let gone = of(&first[2]);
    assert_eq!(gone[1].act, Act::Delete);
    assert!((990..1990).contains(&gone[1].at_ns), "{gone:?}");
    assert_eq!(of(&first[1]).len(), 1);
}

#[test]
fn a_name_that_stands_for_a_new_file_says_when_the_old_one_went() {
    let first = vec![root(), file(5, "config", 1, 10, 1)];
    let second = vec![root(), file(6, "config", 1, 1234, 2)];
    let (records, _) = found(&[first, second], &Guesses { short_lived: None, ..Guesses::DEFAULT });
    let acts: Vec<_> = records.iter().map(|record| (record.at_ns, record.act == Act::Delete)).collect();
    assert_eq!(acts, [(0, false), (1223, true), (1224, false)]);
}

#[test]
fn without_generations_births_decide() {
    let born = |inode, born, changed| Entry { generation: None, born: Some(born), ..file(inode, "f", 0, changed, 5) };
    let guesses = thesis();
    let same = found(&[vec![root(), born(5, 1, 10)], vec![root(), born(5, 1, 1500)]], &guesses).1;
    assert_eq!((same.modified, same.replaced), (1, 0));
    let other = found(&[vec![root(), born(5, 1, 10)], vec![root(), born(5, 1400, 1500)]], &guesses).1;
    assert_eq!((other.modified, other.replaced), (0, 1));
}

#[test]
fn extents_that_stay_were_not_written_again() {
    let extent = |logical, physical, len| Extent { logical, physical, len, flags: 0 };
    let with = |changed, size, extents| Entry { extents, ..file(5, "log", 1, changed, size) };
    let first = with(10, 8192, vec![extent(0, 40960, 8192)]);
    let grown = with(1500, 20000, vec![extent(0, 40960, 12288), extent(12288, 409600, 8192)]);
    let guesses = Guesses { short_lived: None, ..Guesses::DEFAULT };
    let (records, _) = found(&[vec![root(), first.clone()], vec![root(), grown]], &guesses);
    assert_eq!(records[1].act, Act::Modify { keep: 8192, size: 20000, how: Writing::default() });
    let moved = with(1500, 20000, vec![extent(0, 81920, 20480)]);
    let (records, _) = found(&[vec![root(), first.clone()], vec![root(), moved]], &guesses);
    assert_eq!(records[1].act, Act::Modify { keep: 0, size: 20000, how: Writing::default() });
    // A change of the owner alone is none of content.
    let owned = Entry { changed: 1500, modified: 10, ..first.clone() };
    assert_eq!(found(&[vec![root(), first], vec![root(), owned]], &guesses).1.modified, 0);
}

#[test]
fn a_move_is_seen() {
    let directory = || entry(7, ROOT_INODE, Kind::Directory, "d", (1, 5, 0));
    let before = vec![root(), directory(), file(8, "f", 1, 10, 3)];
    let after = vec![root(), directory(), entry(8, 7, Kind::File, "f2", (1, 1500, 3))];
    let (records, found) = found(&[before, after], &Guesses { changes: Changes::Content, ..thesis() });
    assert_eq!(found.moved, 1);
    assert!(records.iter().any(|record| record.act == Act::Move { parent: id(&directory()), name_len: 2 }));
}

#[test]
fn short_lived_files_come_between_snapshots_where_something_happened() {
    const DAY: i64 = 24 * 3_600_000_000_000;
    let activity = HashMap::from([((3, 77), [1; 24])]);
    let mut builder = Builder::new(1 << 20, &std::env::temp_dir());
    let added = ShortLived::THESIS.add(&activity, (3 * DAY, 4 * DAY), 1_000_000_000, 5, &mut builder).expect("space");
    // 25 profiles of 120 files in the mean, some of which live beyond the second snapshot.
    assert!((1200..5000).contains(&added), "{added}");
    let (mut creates, mut deletes) = (0, 0);
    let done = builder.ordered(&AtomicBool::new(false), |record| {
        match record.act {
            Act::Create { .. } => creates += 1,
            Act::Delete => deletes += 1,
            _ => panic!("{record:?}"),
        }
        Ok(())
    });
    let (closing, _) = done.expect("no interruption");
    assert_eq!((creates, deletes, closing.live_files), (added, added, 0));
    let below_30_s: u64 = closing.lifetimes[..2].iter().map(|(_, files)| files).sum();
    let share = below_30_s as f64 / added as f64;
    assert!((0.3..0.45).contains(&share), "{share}");
}
