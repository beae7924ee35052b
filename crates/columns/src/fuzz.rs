//! Fuzz target: files of records, as anybody may have written them.

use crate::{Column, Table, Writer, read_lines, read_parquet};
use ashlar_fuzz::{bounded, config, hostile};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
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

proptest! {
    #![proptest_config(config(500))]

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
fn lines_may_end_within_a_record() {
    let path = place("jsonl");
    let whole = bytes(3, "jsonl");
    let second = whole.iter().position(|byte| *byte == b'\n').expect("lines") + 1;
    let third = second + whole[second..].iter().position(|byte| *byte == b'\n').expect("lines") + 1;
    let cut = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("space");
        let mut taken = Vec::new();
        let end = crate::read_cut(&FRUITS, &path, |fruit: Fruit| {
            taken.push(fruit);
            Ok(())
        });
        end.map(|cut| (taken.len(), cut))
    };
    assert_eq!(cut(&whole), Ok((3, false)));
    for end in third + 1..whole.len() - 2 {
        assert_eq!(cut(&whole[..end]), Ok((2, true)), "cut at {end}");
    }
    assert_eq!(cut(&whole[..third]), Ok((2, false)), "between two");
    cut(&whole[..second - 3]).expect_err("not one record");
    let between = [&whole[..second], b"{\n", &whole[second..]].concat();
    cut(&between).expect_err("a line within, not at the end");
    std::fs::remove_file(&path).expect("it is ours");
}
