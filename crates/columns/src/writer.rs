//! Makes files of records.
//!
//! A Parquet file has its description at its end, so that one that was cut says nothing. Therefore each group of records has
//! an end as a file has it, which describes this group and says where it begins: a *part*. The next part begins behind it.
//! Readers of Parquet go by the last description, which is of all groups, and pass over what is between two of them;
//! [`read_cut`](crate::read_cut) goes from the last one that is there to the first. So a cut loses less than a group.
//!
//! Costs     the description of a group a second time, and of the columns: with 13 columns 1.6 KB, to 65,536 records of
//!           at least 10 bytes, a quarter of a percent; with the first groups, which are smaller, 10 KB for a file.

use crate::{Column, Table, is_parquet};
use bytes::Bytes;
use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{FileMetaData, KeyValue, ParquetMetaData, ParquetMetaDataWriter};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Error, Result, Write};
use std::path::Path;
use std::sync::Arc;

/// Records that a Parquet file holds back until it writes them.
pub(crate) const GROUP_LEN: usize = 1 << 16;
/// The same of its first group. Each further one is twice as long, so that a cut loses at most about half of a short file.
pub(crate) const FIRST_GROUP_LEN: usize = 1 << 12;
/// What a part calls the byte at which it begins.
pub(crate) const PART_BEGIN: &str = "ashlar.part.begin";

/// Texts that are given to the format at once: as many as it takes at once anyway.
const FEW: usize = parquet::file::properties::DEFAULT_WRITE_BATCH_SIZE;

/// A file of records that is being written. It counts only when it is finished.
pub struct Writer<R: 'static, W: Write + Send = File> {
    count: u64,
    columns: &'static [(&'static str, Column<R>)],
    form: Form<W>,
}

enum Form<W: Write + Send> {
    Lines(BufWriter<W>),
    Parquet { writer: Box<SerializedFileWriter<W>>, group: Group, part_begin: usize },
}

/// Records that are held back, by columns: each is taken apart while the processor's cache has it.
struct Group {
    records: usize,
    columns: Vec<Held>,
}

/// What a column of them has.
enum Held {
    /// Bits of unsigned numbers; the schema says so.
    Numbers(Vec<i64>),
    Flags(Vec<bool>),
    /// One after the other, and where each ends.
    Texts {
        bytes: Vec<u8>,
        ends: Vec<usize>,
    },
}

impl Group {
    fn of<R>(columns: &[(&str, Column<R>)]) -> Group {
        let held = columns.iter().map(|(_, column)| match column {
            Column::Number(_) | Column::Distinct(_) => Held::Numbers(Vec::new()),
            Column::Flag(_) => Held::Flags(Vec::new()),
            Column::Text(_) => Held::Texts { bytes: Vec::new(), ends: Vec::new() },
        });
        Group { records: 0, columns: held.collect() }
    }

    fn put<R>(&mut self, columns: &[(&str, Column<R>)], record: &R) {
        self.records += 1;
        for ((_, column), held) in columns.iter().zip(&mut self.columns) {
            match (column, held) {
                (Column::Number(get) | Column::Distinct(get), Held::Numbers(values)) => values.push(get(record) as i64),
                (Column::Flag(get), Held::Flags(values)) => values.push(get(record)),
                (Column::Text(get), Held::Texts { bytes, ends }) => {
                    bytes.extend_from_slice(get(record).as_bytes());
                    ends.push(bytes.len());
                }
                _ => unreachable!("a group is made for these columns"),
            }
        }
    }
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
            Column::Number(_) | Column::Distinct(_) => format!("REQUIRED INT64 {name} (INTEGER(64,false));"),
            Column::Flag(_) => format!("REQUIRED BOOLEAN {name};"),
            Column::Text(_) => format!("REQUIRED BYTE_ARRAY {name} (STRING);"),
        });
        let schema = parse_message_type(&format!("message {} {{ {} }}", table.name, fields.collect::<String>()));
        let properties = Arc::new(properties(columns));
        let writer = SerializedFileWriter::new(file, Arc::new(schema.map_err(of_parquet)?), properties);
        let writer = Box::new(writer.map_err(of_parquet)?);
        Ok(Writer { count: 0, columns, form: Form::Parquet { writer, group: Group::of(columns), part_begin: 0 } })
    }

    /// Adds a record.
    pub fn put(&mut self, record: R) -> Result<()> {
        self.count += 1;
        match &mut self.form {
            Form::Lines(file) => {
                serde_json::to_writer(&mut *file, &record)?;
                file.write_all(b"\n")
            }
            Form::Parquet { writer, group, part_begin } => {
                group.put(self.columns, &record);
                let doubled = writer.flushed_row_groups().len().min(GROUP_LEN.ilog2() as usize);
                if group.records < GROUP_LEN.min(FIRST_GROUP_LEN << doubled) {
                    return Ok(());
                }
                write_group(writer, group).map_err(of_parquet)?;
                end_part(writer, part_begin)
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
            Form::Parquet { mut writer, mut group, .. } => {
                write_group(&mut writer, &mut group).map_err(of_parquet)?;
                writer.into_inner().map_err(of_parquet)
            }
        }
    }

    /// How many records it has.
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// Nobody looks up numbers that are hardly ever equal, nor asks for the least of a column; both cost more than writing does.
fn properties<R>(columns: &[(&str, Column<R>)]) -> WriterProperties {
    let all = WriterProperties::builder()
        .set_compression(Compression::LZ4_RAW)
        .set_statistics_enabled(EnabledStatistics::None);
    let distinct = columns.iter().filter(|(_, column)| matches!(column, Column::Distinct(_)));
    distinct.fold(all, |all, (name, _)| all.set_column_dictionary_enabled(ColumnPath::from(*name), false)).build()
}

/// Writes the records as a group of rows, and empties them.
fn write_group<W: Write + Send>(
    file: &mut SerializedFileWriter<W>,
    held: &mut Group,
) -> std::result::Result<(), ParquetError> {
    if held.records == 0 {
        return Ok(());
    }
    let mut group = file.next_row_group()?;
    for column in &mut held.columns {
        let Some(mut writer) = group.next_column()? else { break };
        match column {
            Held::Numbers(values) => {
                writer.typed::<Int64Type>().write_batch(values, None, None)?;
                values.clear();
                writer.close()?;
            }
            Held::Flags(values) => {
                writer.typed::<BoolType>().write_batch(values, None, None)?;
                values.clear();
                writer.close()?;
            }
            Held::Texts { bytes, ends } => {
                // Texts of a group are one piece of memory; they are compared and hashed a few at a time, in the cache.
                let (all, mut from) = (Bytes::from(std::mem::take(bytes)), 0);
                for few in ends.chunks(FEW) {
                    let text = |to: &usize| ByteArray::from(all.slice(std::mem::replace(&mut from, *to)..*to));
                    let values: Vec<ByteArray> = few.iter().map(text).collect();
                    writer.typed::<ByteArrayType>().write_batch(&values, None, None)?;
                }
                writer.close()?;
                // Nobody else has it any more: the next group gets the same memory.
                *bytes = all.into();
                bytes.clear();
                ends.clear();
            }
        }
    }
    group.close()?;
    held.records = 0;
    Ok(())
}

/// Ends the part that began at byte `begin` and has the last group; the next one begins where it ends.
fn end_part<W: Write + Send>(file: &mut SerializedFileWriter<W>, begin: &mut usize) -> Result<()> {
    let Some(group) = file.flushed_row_groups().last().cloned() else { return Ok(()) };
    let said = KeyValue::new(PART_BEGIN.to_string(), begin.to_string());
    let properties = file.properties();
    let (version, by) = (properties.writer_version().as_num(), properties.created_by().to_string());
    let columns = group.schema_descr_ptr();
    let about = FileMetaData::new(version, group.num_rows(), Some(by), Some(vec![said]), columns, None);
    let mut end = Vec::new();
    let described = ParquetMetaData::new(about, vec![group]);
    ParquetMetaDataWriter::new(&mut end, &described).finish().map_err(of_parquet)?;
    file.write_all(&end)?;
    // Whoever kills this process finds it.
    file.flush()?;
    *begin = file.bytes_written();
    Ok(())
}
