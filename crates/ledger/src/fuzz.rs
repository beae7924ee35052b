//! Fuzz target of the lines.

use crate::tests::prediction;
use crate::{Entry, Read, Record, read};
use ashlar_fuzz::{bounded, config, edits, noise};
use proptest::prelude::*;
use std::path::Path;

fn file() -> impl Strategy<Value = (Vec<Entry>, Vec<u8>)> {
    let entry =
        ("[ -~]{1,20}", -1e300..1e300f64, any::<u32>(), "[0-9a-f]{12}").prop_map(|(subject, value, time, id)| {
            let range = (value - value.abs(), value + value.abs());
            let mut prediction = prediction(&subject, value);
            (prediction.low, prediction.high) = range;
            Entry { format: 1, id, time: time.into(), record: Record::Prediction(prediction) }
        });
    prop::collection::vec(entry, 0..5).prop_map(|entries| {
        let lines = entries.iter().map(|entry| format!("{}\n", serde_json::to_string(entry).expect("JSON")));
        let bytes = lines.collect::<String>().into_bytes();
        (entries, bytes)
    })
}

fn lines(bytes: &[u8]) -> (Vec<Entry>, Option<Read>) {
    let mut entries = Vec::new();
    let read = read::lines(bytes, Path::new("ledger"), |entry| {
        entries.push(entry);
        Ok(())
    });
    (entries, read.ok())
}

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn ledger_lines((entries, mut bytes) in file(), edits in edits(), noise in noise(4096)) {
        let (read, all) = lines(&bytes);
        prop_assert_eq!(read, entries);
        prop_assert_eq!(all.map(|read| read.torn_count), Some(0));
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        for bytes in [bytes, noise] {
            bounded(1 << 20, || drop(lines(&bytes)));
        }
    }
}
