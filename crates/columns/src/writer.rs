//! Makes files of records.

use crate::{Column, Table, is_parquet};
use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Error, Result, Write};
use std::path::Path;
use std::sync::Arc;

/// Records that a Parquet file holds back until it writes them.
pub(crate) const GROUP_LEN: usize = 1 << 16;

/// Texts that are given to the format at once: as many as it takes at once anyway.
const FEW: usize = parquet::file::properties::DEFAULT_WRITE_BATCH_SIZE;

/// A file of records that is being written. It counts only when it is finished.
pub struct Writer<R: 'static, W: Write + Send = File> {
    count: u64,
    columns: &'static [(&'static str, Column<R>)],
    form: Form<R, W>,
}

enum Form<R, W: Write + Send> {
    Lines(BufWriter<W>),
    Parquet { writer: Box<SerializedFileWriter<W>>, group: Vec<R> },
}

/// What a place said, without what the format says about it.
fn of_parquet(error: ParquetError) -> Error {
    match error {
        ParquetError::External(error) => match error.downcast::<Error>() {
            Ok(error) => *error,
            Err(error) => Error::other(error),
        },
        error => Error::other(error),
    }
}

impl<R: Serialize> Writer<R> {
    /// Makes the file; what it held is lost.
    pub fn create(table: &Table<R>, path: &Path) -> Result<Writer<R>> {
        Writer::to(table, path, File::create(path)?)
    }
}

impl<R: Serialize, W: Write + Send> Writer<R, W> {
    /// Writes into `file`; `path` is its name, or the one that it will have.
    pub fn to(table: &Table<R>, path: &Path, file: W) -> Result<Writer<R, W>> {
        let columns = table.columns;
        if !is_parquet(path) {
            return Ok(Writer { count: 0, columns, form: Form::Lines(BufWriter::new(file)) });
        }
        let fields = columns.iter().map(|(name, column)| match column {
            Column::Number(_) => format!("REQUIRED INT64 {name} (INTEGER(64,false));"),
            Column::Flag(_) => format!("REQUIRED BOOLEAN {name};"),
            Column::Text(_) => format!("REQUIRED BYTE_ARRAY {name} (STRING);"),
        });
        let schema = parse_message_type(&format!("message {} {{ {} }}", table.name, fields.collect::<String>()));
        let properties = WriterProperties::builder().set_compression(Compression::LZ4_RAW).build();
        let writer = SerializedFileWriter::new(file, Arc::new(schema.map_err(of_parquet)?), Arc::new(properties));
        let writer = Box::new(writer.map_err(of_parquet)?);
        Ok(Writer { count: 0, columns, form: Form::Parquet { writer, group: Vec::new() } })
    }

    /// Adds a record.
    pub fn put(&mut self, record: R) -> Result<()> {
        self.count += 1;
        match &mut self.form {
            Form::Lines(file) => {
                serde_json::to_writer(&mut *file, &record)?;
                file.write_all(b"\n")
            }
            Form::Parquet { writer, group } => {
                group.push(record);
                if group.len() < GROUP_LEN {
                    return Ok(());
                }
                write_group(writer, self.columns, group).map_err(of_parquet)
            }
        }
    }

    /// Ends the file; returns the number of records.
    pub fn finish(self) -> Result<u64> {
        let count = self.count;
        self.finish_into().map(|_| count)
    }

    /// Ends the file, and gives it back.
    pub fn finish_into(self) -> Result<W> {
        match self.form {
            Form::Lines(file) => file.into_inner().map_err(std::io::IntoInnerError::into_error),
            Form::Parquet { mut writer, mut group } => {
                write_group(&mut writer, self.columns, &mut group).map_err(of_parquet)?;
                writer.into_inner().map_err(of_parquet)
            }
        }
    }

    /// How many records it has.
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// Writes the records as a group of rows, and empties them.
fn write_group<R, W: Write + Send>(
    file: &mut SerializedFileWriter<W>,
    columns: &[(&str, Column<R>)],
    records: &mut Vec<R>,
) -> std::result::Result<(), ParquetError> {
    if records.is_empty() {
        return Ok(());
    }
    let mut group = file.next_row_group()?;
    for (_, column) in columns {
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
            Column::Text(get) => {
                // Texts are compared and hashed while they are still in the processor's cache.
                for few in records.chunks(FEW) {
                    let values: Vec<ByteArray> = few.iter().map(|record| ByteArray::from(get(record))).collect();
                    writer.typed::<ByteArrayType>().write_batch(&values, None, None)?;
                }
            }
        }
        writer.close()?;
    }
    group.close()?;
    records.clear();
    Ok(())
}
