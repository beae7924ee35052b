//! Files of records: a line of JSON for each, or Parquet if the name ends in `.parquet`, with a column for each field.

use ashlar_emulated::{Operation, Record};
use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs::File;
use std::io::{BufWriter, Error, Result, Write};
use std::path::Path;
use std::sync::Arc;

/// Records that a Parquet file holds back until it writes them.
const GROUP_LEN: usize = 1 << 16;

/// How a field becomes a column.
pub(super) enum Column {
    Number(fn(&Record) -> u64),
    Flag(fn(&Record) -> bool),
    Name(fn(&Record) -> &'static str),
}

fn name(op: Operation) -> &'static str {
    match op {
        Operation::Read => "read",
        Operation::Write => "write",
        Operation::Flush => "flush",
        Operation::Discard => "discard",
    }
}

pub(super) const COLUMNS: [(&str, Column); 13] = [
    ("at_ns", Column::Number(|record| record.at_ns)),
    ("op", Column::Name(|record| name(record.op))),
    ("offset", Column::Number(|record| record.offset)),
    ("len", Column::Number(|record| record.len)),
    ("fua", Column::Flag(|record| record.fua)),
    ("depth", Column::Number(|record| u64::from(record.depth))),
    ("response_ns", Column::Number(|record| record.response_ns)),
    ("queue_ns", Column::Number(|record| record.queue_ns)),
    ("overhead_ns", Column::Number(|record| record.overhead_ns)),
    ("seek_ns", Column::Number(|record| record.seek_ns)),
    ("rotation_ns", Column::Number(|record| record.rotation_ns)),
    ("transfer_ns", Column::Number(|record| record.transfer_ns)),
    ("late_ns", Column::Number(|record| record.late_ns)),
];

/// Whether a file of this name is Parquet.
pub fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "parquet")
}

/// A file of records that is being written.
pub struct RecordFile {
    count: u64,
    form: Form,
}

enum Form {
    Lines(BufWriter<File>),
    Table { writer: Box<SerializedFileWriter<File>>, group: Vec<Record> },
}

fn of_parquet(error: ParquetError) -> Error {
    Error::other(error)
}

impl RecordFile {
    /// Makes the file; what it held is lost.
    pub fn create(path: &Path) -> Result<RecordFile> {
        let file = File::create(path)?;
        if !is_parquet(path) {
            return Ok(RecordFile { count: 0, form: Form::Lines(BufWriter::new(file)) });
        }
        let columns = COLUMNS.iter().map(|(name, column)| match column {
            Column::Number(_) => format!("REQUIRED INT64 {name} (INTEGER(64,false));"),
            Column::Flag(_) => format!("REQUIRED BOOLEAN {name};"),
            Column::Name(_) => format!("REQUIRED BYTE_ARRAY {name} (STRING);"),
        });
        let schema = parse_message_type(&format!("message trace {{ {} }}", columns.collect::<String>()));
        let properties = WriterProperties::builder().set_compression(Compression::LZ4_RAW).build();
        let writer = SerializedFileWriter::new(file, Arc::new(schema.map_err(of_parquet)?), Arc::new(properties));
        let writer = Box::new(writer.map_err(of_parquet)?);
        Ok(RecordFile { count: 0, form: Form::Table { writer, group: Vec::new() } })
    }

    /// Adds a record.
    pub fn put(&mut self, record: &Record) -> Result<()> {
        self.count += 1;
        match &mut self.form {
            Form::Lines(file) => {
                serde_json::to_writer(&mut *file, record)?;
                file.write_all(b"\n")
            }
            Form::Table { writer, group } => {
                group.push(*record);
                if group.len() == GROUP_LEN { write_group(writer, group).map_err(of_parquet) } else { Ok(()) }
            }
        }
    }

    /// Ends the file; returns the number of records.
    pub fn finish(self) -> Result<u64> {
        match self.form {
            Form::Lines(mut file) => file.flush()?,
            Form::Table { mut writer, mut group } => {
                write_group(&mut writer, &mut group).map_err(of_parquet)?;
                writer.close().map_err(of_parquet)?;
            }
        }
        Ok(self.count)
    }
}

/// Writes the records as a group of rows, and empties them.
fn write_group(
    file: &mut SerializedFileWriter<File>,
    records: &mut Vec<Record>,
) -> std::result::Result<(), ParquetError> {
    if records.is_empty() {
        return Ok(());
    }
    let mut group = file.next_row_group()?;
    for (_, column) in &COLUMNS {
        let Some(mut writer) = group.next_column()? else { break };
        match column {
            Column::Number(get) => {
                // Bits of an unsigned number; the schema says so.
                let values: Vec<i64> = records.iter().map(|record| get(record) as i64).collect();
                writer.typed::<Int64Type>().write_batch(&values, None, None)?;
            }
            Column::Flag(get) => {
                let values: Vec<bool> = records.iter().map(get).collect();
                writer.typed::<BoolType>().write_batch(&values, None, None)?;
            }
            Column::Name(get) => {
                let values: Vec<ByteArray> = records.iter().map(|record| ByteArray::from(get(record))).collect();
                writer.typed::<ByteArrayType>().write_batch(&values, None, None)?;
            }
        }
        writer.close()?;
    }
    group.close()?;
    records.clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::read_parquet;

    fn records(count: u64) -> Vec<Record> {
        let ops = [Operation::Read, Operation::Write, Operation::Flush, Operation::Discard];
        let record = |at: u64| Record {
            at_ns: at * 1_000_003,
            op: ops[at as usize % 4],
            offset: (at * 7919) << 12,
            len: 4096,
            fua: at.is_multiple_of(3),
            depth: at as u32 % 33,
            response_ns: u64::MAX - at,
            queue_ns: at,
            overhead_ns: 1,
            seek_ns: 2,
            rotation_ns: 3,
            transfer_ns: 4,
            late_ns: 5,
        };
        (0..count).map(record).collect()
    }

    #[test]
    fn parquet_files_hold_what_was_put_into_them() {
        let path = std::env::temp_dir().join(format!("ashlar-records-{}.parquet", std::process::id()));
        for count in [0, 1, GROUP_LEN as u64 + 10] {
            let written = records(count);
            let mut file = RecordFile::create(&path).expect("a file");
            written.iter().for_each(|record| file.put(record).expect("space"));
            assert_eq!(file.finish().expect("space"), count);
            let mut read = Vec::new();
            let took = read_parquet(File::open(&path).expect("it is there"), |record| {
                read.push(record);
                Ok(())
            });
            took.expect("records");
            assert!(read == written, "{count} records");
        }
        std::fs::write(&path, "no such thing").expect("space");
        let error = read_parquet(File::open(&path).expect("it is there"), |_| Ok(())).expect_err("text");
        assert!(error.contains("no Parquet file"), "{error}");
        std::fs::remove_file(&path).expect("it is ours");
    }
}
