//! Files of the records of requests.

use ashlar_columns::{Column, Table};
use ashlar_emulated::{Operation, Record};

fn name(record: &Record) -> &str {
    match record.op {
        Operation::Read => "read",
        Operation::Write => "write",
        Operation::Flush => "flush",
        Operation::Discard => "discard",
    }
}

/// Traces of devices.
pub const REQUESTS: Table<Record> = Table {
    name: "trace",
    needed: &["at_ns", "op"],
    example: r#"{"at_ns": 0, "op": "read", "offset": 0, "len": 4096}"#,
    columns: &[
        ("at_ns", Column::Distinct(|record| record.at_ns)),
        ("op", Column::Text(name)),
        ("offset", Column::Number(|record| record.offset)),
        ("len", Column::Number(|record| record.len)),
        ("fua", Column::Flag(|record| record.fua)),
        ("depth", Column::Number(|record| u64::from(record.depth))),
        ("response_ns", Column::Distinct(|record| record.response_ns)),
        ("queue_ns", Column::Number(|record| record.queue_ns)),
        ("overhead_ns", Column::Number(|record| record.overhead_ns)),
        ("seek_ns", Column::Number(|record| record.seek_ns)),
        ("rotation_ns", Column::Number(|record| record.rotation_ns)),
        ("transfer_ns", Column::Number(|record| record.transfer_ns)),
        ("late_ns", Column::Number(|record| record.late_ns)),
    ],
};
