//! Fuzz targets of histories.

use super::format::{Header, HistoryReader, HistoryWriter};
use super::record::{Act, Record, Writing};
use super::stats::Closing;
use crate::codec::Take;
use crate::frames::RAW_MAX;
use crate::sorter::Item;
use ashlar_fuzz::{bounded, config, edits, noise};
use proptest::prelude::*;

fn record() -> impl Strategy<Value = Record> {
    let how = any::<(u32, bool)>().prop_map(|(unit, sync)| Writing { unit, sync });
    let act =
        (0..5u8, any::<u64>(), 1..=255u8, any::<u64>(), how).prop_map(
            |(kind, parent, name_len, size, how)| match kind {
                0 => Act::MakeDirectory { parent, name_len },
                1 => Act::Create { parent, name_len, size, how },
                2 => Act::Modify { keep: parent, size, how },
                3 => Act::Move { parent, name_len },
                _ => Act::Delete,
            },
        );
    (0..i64::MAX / 32, 1..u64::MAX, act).prop_map(|(at_ns, id, act)| Record { at_ns, id, act })
}

fn history() -> impl Strategy<Value = Vec<Record>> {
    prop::collection::vec(record(), 0..30).prop_map(|mut records| {
        records.sort_by_key(|record| record.at_ns);
        records
    })
}

fn encode(records: &[Record]) -> Vec<u8> {
    let header = Header { source: "s".into(), models: vec![("a".into(), "b".into())], seed: 3, capacity: 1 << 40 };
    let mut writer = HistoryWriter::new(Vec::new(), &header).expect("memory");
    records.iter().for_each(|record| writer.put(record).expect("memory"));
    writer.finish(&Closing::default()).expect("memory")
}

fn decode(bytes: &[u8]) -> (Vec<Record>, bool) {
    let mut records = Vec::new();
    let Ok(mut reader) = HistoryReader::new(bytes) else { return (records, false) };
    while let Ok(Some(record)) = reader.record() {
        records.push(record);
    }
    let whole = reader.closing().is_ok();
    (records, whole)
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn histories(records in history(), edits in edits(), noise in noise(4096)) {
        let mut bytes = encode(&records);
        prop_assert_eq!(decode(&bytes), (records, true));
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        bounded(4 * RAW_MAX as u64, || drop(decode(&bytes)));
        bounded(4 * RAW_MAX as u64, || drop(decode(&noise)));
    }

    /// Behind a good checksum.
    #[test]
    fn history_records(record in record(), edits in edits(), noise in noise(100)) {
        let mut bytes = Vec::new();
        record.put(&mut bytes);
        prop_assert_eq!(Record::take(&mut Take(&bytes)), Ok(record));
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        for bytes in [bytes, noise] {
            bounded(1 << 12, || Record::take(&mut Take(&bytes)).is_ok());
        }
    }
}
