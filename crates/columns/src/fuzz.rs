//! Fuzz target: files of records, as anybody may have written them.

use crate::writer::FIRST_GROUP_LEN;
use crate::{Column, Cut, Table, Writer, read_cut, read_lines, read_parquet};
use ashlar_fuzz::{bounded, config, hostile};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Fruit {
    number: u64,
    name: String,
    #[serde(default)]
    ripe: bool,
}

const FRUITS: Table<Fruit> = Table {
    name: "basket",
    needed: &["number", "name"],
    example: r#"{"number": 1, "name": "pear"}"#,
    columns: &[
        ("number", Column::Number(|fruit| fruit.number)),
        ("name", Column::Text(|fruit| &fruit.name)),
        ("ripe", Column::Flag(|fruit| fruit.ripe)),
    ],
};

/// A name that no other call has.
fn place(extension: &str) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("ashlar-columns-{}-{number}.{extension}", std::process::id()))
}

fn fruits(count: u64) -> Vec<Fruit> {
    (0..count)
        .map(|at| Fruit { number: u64::MAX - at, name: "ab\u{e4}".repeat(at as usize % 5), ripe: at % 3 == 0 })
        .collect()
}

/// Bytes of a file with so many records.
fn bytes(count: u64, extension: &str) -> Vec<u8> {
    let path = place(extension);
    let mut file = Writer::create(&FRUITS, &path).expect("a place for files");
    fruits(count).into_iter().for_each(|fruit| file.put(fruit).expect("space"));
    assert_eq!(file.finish().expect("space"), count);
    let bytes = std::fs::read(&path).expect("it is there");
    std::fs::remove_file(&path).expect("it is ours");
    bytes
}

/// A file without a name that holds `bytes`.
fn nameless(bytes: &[u8]) -> File {
    let path = place("parquet");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
    let mut file = file.expect("a place for files");
    std::fs::remove_file(&path).expect("it is ours");
    file.write_all(bytes).expect("space");
    file
}

fn take(parquet: bool, bytes: &[u8]) -> Result<Vec<Fruit>, String> {
    let mut taken = Vec::new();
    let each = |fruit| {
        taken.push(fruit);
        Ok(())
    };
    match parquet {
        true => read_parquet(&FRUITS, nameless(bytes), each),
        false => read_lines(&FRUITS, bytes, each),
    }
    .map(|()| taken)
}

/// As [`take`], of a file that may have been cut.
fn take_cut(bytes: &[u8]) -> Result<(Vec<Fruit>, Option<Cut>), String> {
    let (path, mut taken) = (place("parquet"), Vec::new());
    std::fs::write(&path, bytes).expect("space");
    let cut = read_cut(&FRUITS, &path, |fruit| {
        taken.push(fruit);
        Ok(())
    });
    std::fs::remove_file(&path).expect("it is ours");
    cut.map(|cut| (taken, cut))
}

/// A file, and what of it is whole once so many bytes are there: bytes, and records.
type InParts = (Vec<u8>, [(usize, usize); 4]);

/// A file of two parts and some more.
fn parts() -> &'static InParts {
    static PARTS: LazyLock<InParts> = LazyLock::new(|| {
        let records = 4 * FIRST_GROUP_LEN;
        let whole = bytes(records as u64, "parquet");
        let ends: Vec<usize> =
            whole.windows(4).enumerate().filter(|(_, word)| word == b"PAR1").map(|(at, _)| at + 4).collect();
        let [4, first, second, last] = ends[..] else { panic!("two parts and an end: {ends:?}") };
        assert_eq!(last, whole.len());
        (whole, [(0, 0), (first, FIRST_GROUP_LEN), (second, 3 * FIRST_GROUP_LEN), (last, records)])
    });
    &PARTS
}

proptest! {
    // Each case reads thousands of records.
    #![proptest_config(config(60))]

    #[test]
    fn parquet_that_was_cut(end in 0..parts().0.len(), tail in prop::collection::vec(any::<u8>(), 0..40)) {
        let (whole, ends) = parts();
        let (there, records) = *ends.iter().rfind(|(at, _)| *at <= end).expect("the first is none");
        for bytes in [whole[..end].to_vec(), [&whole[..end], &tail[..]].concat()] {
            let taken = take_cut(&bytes);
            if records == 0 {
                let error = taken.expect_err("nothing is whole");
                prop_assert!(error.contains("nothing of it can be read"), "{}", error);
                continue;
            }
            let dropped = (bytes.len() - there) as u64;
            let expected = (fruits(records as u64), Some(Cut { records: records as u64, bytes_dropped: dropped }));
            prop_assert!(taken == Ok(expected), "cut at {}: {:?}", end, take_cut(&bytes).map(|(_, cut)| cut));
        }
    }
}

proptest! {
    #![proptest_config(config(500))]

    #[test]
    fn parquet_in_parts(file in hostile(prop::sample::select(vec![parts().0.clone(), parts().0[..parts().1[2].0].to_vec()]))) {
        let _ = bounded(24 << 20, || take_cut(&file));
    }

    #[test]
    fn parquet(file in hostile(prop::sample::select(vec![bytes(0, "parquet"), bytes(3, "parquet"), bytes(300, "parquet")]))) {
        // The longest description that is read has 4 MiB.
        let _ = bounded(24 << 20, || take(true, &file));
    }

    #[test]
    fn lines(file in hostile(prop::sample::select(vec![bytes(0, "jsonl"), bytes(3, "jsonl")]))) {
        let _ = bounded(1 << 20, || take(false, &file));
    }
}

#[test]
fn what_was_put_into_a_file_comes_back() {
    for count in [0, 3, 300, crate::writer::GROUP_LEN as u64 + 10] {
        assert!(take(true, &bytes(count, "parquet")) == Ok(fruits(count)), "{count} records");
        assert!(take(false, &bytes(count, "jsonl")) == Ok(fruits(count)), "{count} records");
    }
}

#[test]
fn what_is_no_such_file_is_refused() {
    let whole = bytes(300, "parquet");
    for end in (0..whole.len()).step_by(97) {
        take(true, &whole[..end]).expect_err("cut off");
    }
    let error = take(true, b"no such thing").expect_err("text");
    assert!(error.contains("no Parquet file"), "{error}");
    let good = "{\"number\":9,\"name\":\"fig\"}\n";
    let long = "[".repeat(1 << 20);
    for (text, expected) in [
        (format!("{good}x\n"), "line 2 is no record"),
        (long, "line 1 is no record"),
        (format!("{good}{good}{{\"number\":-1,\"name\":\"\"}}\n"), "line 3"),
        ("{\"number\":1}".into(), "missing field"),
    ] {
        let error = take(false, text.as_bytes()).expect_err(expected);
        assert!(error.contains(expected) && error.contains(FRUITS.example), "{error}");
    }
}

#[test]
fn parts_are_read_where_they_are_whole_and_only_where_that_is_asked_for() {
    let (whole, ends) = parts();
    assert_eq!(take_cut(whole), Ok((fruits(ends[3].1 as u64), None)));
    for (at, records) in &ends[1..3] {
        let error = take(true, &whole[..*at]).expect_err("its last part alone is not it");
        assert!(error.contains("it was cut"), "{error}");
        let expected = Cut { records: *records as u64, bytes_dropped: 0 };
        assert_eq!(take_cut(&whole[..*at]).map(|(fruits, cut)| (fruits.len(), cut)), Ok((*records, Some(expected))));
    }
    // A file that another program made has no parts; what stands behind its end is left out.
    let small = bytes(300, "parquet");
    let longer = [&small[..], &[0; 9000]].concat();
    assert_eq!(take_cut(&longer), Ok((fruits(300), Some(Cut { records: 300, bytes_dropped: 9000 }))));
    take_cut(&small[..small.len() - 1]).expect_err("no part");
    // A part that is damaged is not passed over.
    let mut damaged = whole[..ends[2].0].to_vec();
    damaged[ends[1].0 - 9] ^= 0x40;
    let error = take_cut(&damaged).expect_err("a part in between");
    assert!(error.contains(&format!("the part that ends at byte {}", ends[1].0)), "{error}");
    // Many that look like an end.
    let looks = b"\x01\0\0\0PAR1".repeat(100_000);
    take_cut(&looks).expect_err("none is one");
}

#[test]
fn names_tell_the_form() {
    for (name, parquet) in
        [("a.parquet", true), ("a.parquet.new", true), ("a.jsonl.new", false), ("parquet", false), ("a.new", false)]
    {
        assert_eq!(crate::is_parquet(std::path::Path::new(name)), parquet, "{name}");
    }
}

#[test]
fn lines_may_end_within_a_record() {
    let path = place("jsonl");
    let whole = bytes(3, "jsonl");
    let second = whole.iter().position(|byte| *byte == b'\n').expect("lines") + 1;
    let third = second + whole[second..].iter().position(|byte| *byte == b'\n').expect("lines") + 1;
    let cut = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("space");
        let mut taken = Vec::new();
        let end = read_cut(&FRUITS, &path, |fruit: Fruit| {
            taken.push(fruit);
            Ok(())
        });
        end.map(|cut| (taken.len(), cut))
    };
    assert_eq!(cut(&whole), Ok((3, None)));
    for end in third + 1..whole.len() - 2 {
        let expected = Cut { records: 2, bytes_dropped: (end - third) as u64 };
        assert_eq!(cut(&whole[..end]), Ok((2, Some(expected))), "cut at {end}");
    }
    assert_eq!(cut(&whole[..third]), Ok((2, None)), "between two");
    cut(&whole[..second - 3]).expect_err("not one record");
    let between = [&whole[..second], b"{\n", &whole[second..]].concat();
    cut(&between).expect_err("a line within, not at the end");
    std::fs::remove_file(&path).expect("it is ours");
}
