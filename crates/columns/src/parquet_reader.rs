//! Reads records from Parquet files, which anybody may have written.

use crate::claims::{TAIL_LEN, check_footer, check_pages, description};
use crate::writer::PART_BEGIN;
use crate::{Cut, Table};
use parquet::basic::{ConvertedType, Repetition, Type as Physical};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use serde::de::DeserializeOwned;
use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

/// Bytes that are searched for an end at once.
const SEARCHED: u64 = 64 << 10;
/// Places that look like an end and are none, until the search is given up.
const TRIES_MAX: u32 = 64;

/// Gives every record of a Parquet file to `each`, until that fails. Columns may be missing where records of JSON may leave
/// them out, and may be signed.
pub fn read<R: DeserializeOwned, T>(
    table: &Table<T>,
    file: &File,
    mut each: impl FnMut(R) -> Result<(), String>,
) -> Result<(), String> {
    let whole = Part::ending(file, length(file)?)?;
    if whole.begin.is_some() {
        return Err("it was cut: what is at its end describes only the last of its groups".into());
    }
    whole.read(table, file, 0, &mut each).map(drop)
}

/// The same, but of a file that was cut the parts are read that are whole. Returns what was not, if it was so.
pub fn read_cut<R: DeserializeOwned>(
    table: &Table<R>,
    file: &File,
    mut each: impl FnMut(R) -> Result<(), String>,
) -> Result<Option<Cut>, String> {
    let len = length(file)?;
    let why = match Part::ending(file, len) {
        Ok(part) if part.begin.is_none() => return part.read(table, file, 0, &mut each).map(|_| None),
        Ok(_) => String::new(),
        Err(why) => why,
    };
    let Some(end) = last_end(file, len)? else {
        let text = "before, there is no whole group of records as this program ends them, so nothing of it can be read";
        return Err(format!("{why}; {text}"));
    };
    let mut records = 0;
    for end in part_ends(file, end)? {
        records = Part::ending(file, end)?.read(table, file, records, &mut each)?;
    }
    Ok(Some(Cut { records, bytes_dropped: len - end }))
}

fn length(file: &File) -> Result<u64, String> {
    file.metadata().map(|metadata| metadata.len()).map_err(|error| error.to_string())
}

/// The last byte before `len` behind which the file could end.
fn last_end(file: &File, len: u64) -> Result<Option<u64>, String> {
    let (mut to, mut tries) = (len, 0);
    while to >= TAIL_LEN {
        let from = to.saturating_sub(SEARCHED);
        let mut piece = vec![0; (to - from) as usize];
        file.read_exact_at(&mut piece, from).map_err(|error| error.to_string())?;
        for (at, tail) in piece.windows(TAIL_LEN as usize).enumerate().rev() {
            let end = from + at as u64 + TAIL_LEN;
            let claimed = tail.first_chunk().is_some_and(|tail| description(*tail, end).is_ok());
            if claimed && Part::ending(file, end).is_ok() {
                return Ok(Some(end));
            }
            tries += u32::from(claimed);
            if tries == TRIES_MAX {
                return Ok(None);
            }
        }
        // An end may lie across two pieces.
        to = if from == 0 { 0 } else { from + TAIL_LEN - 1 };
    }
    Ok(None)
}

/// Ends of all parts up to the one that ends at byte `end`, in their order.
fn part_ends(file: &File, mut end: u64) -> Result<Vec<u64>, String> {
    let mut ends = Vec::new();
    while end > 0 {
        ends.push(end);
        // A part does not reach into the one before: this ends.
        let part = Part::ending(file, end).map_err(|what| format!("the part that ends at byte {end}: {what}"))?;
        end = part.begin.unwrap_or(0);
    }
    ends.reverse();
    Ok(ends)
}

/// Groups of records and their description: a whole file, or one of the parts of which [`crate::Writer`] makes it.
struct Part {
    reader: SerializedFileReader<View>,
    /// Where it begins, if it says so: it is no whole file then.
    begin: Option<u64>,
    /// Where its description begins.
    to: u64,
}

impl Part {
    /// What is described before byte `end`.
    fn ending(file: &File, end: u64) -> Result<Part, String> {
        let to = check_footer(file, end)?.start;
        let view = View { file: file.try_clone().map_err(|error| error.to_string())?, len: end };
        let reader =
            caught(|| SerializedFileReader::new(view))?.map_err(|error| format!("it is no Parquet file: {error}"))?;
        let said = reader.metadata().file_metadata().key_value_metadata();
        let begin = said.and_then(|said| said.iter().find(|pair| pair.key == PART_BEGIN));
        let begin = begin.map(|pair| pair.value.as_ref()?.parse().ok().filter(|begin| *begin < to));
        let begin = match begin {
            Some(None) => return Err("its description says that it begins behind its end".into()),
            begin => begin.flatten(),
        };
        Ok(Part { reader, begin, to })
    }

    /// Gives its records to `each`; `before` others came before. Returns how many there are with them.
    fn read<R: DeserializeOwned, T>(
        self,
        table: &Table<T>,
        file: &File,
        before: u64,
        each: &mut impl FnMut(R) -> Result<(), String>,
    ) -> Result<u64, String> {
        let Part { reader, begin, to } = self;
        check_pages(file, &(begin.unwrap_or(0)..to), reader.metadata())?;
        let known = known_columns(table, reader.metadata())?;
        let mut rows = caught(|| reader.get_row_iter(Some(known)))?.map_err(|error| error.to_string())?;
        let mut index = before;
        while let Some(row) = caught(|| rows.next()).map_err(|error| format!("row {index}: {error}"))? {
            let row = row.map_err(|error| format!("row {index}: {error}"))?;
            each(record(&row).map_err(|error| format!("row {index} is no record: {error}"))?)?;
            index += 1;
        }
        Ok(index)
    }
}

/// The beginning of a file, as if it were all of it.
struct View {
    file: File,
    len: u64,
}

impl Length for View {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for View {
    type T = <File as ChunkReader>::T;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        self.file.get_read(start)
    }
    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<bytes::Bytes> {
        self.file.get_bytes(start, length)
    }
}

/// The columns that a record has, as a part of the file's schema.
fn known_columns<R>(table: &Table<R>, metadata: &ParquetMetaData) -> Result<Type, String> {
    let root = metadata.file_metadata().schema();
    let is_known = |name: &str| table.columns.iter().any(|(column, _)| *column == name);
    let mut fields = Vec::new();
    for field in root.get_fields().iter().filter(|field| is_known(field.name())) {
        let info = field.get_basic_info();
        let single = field.is_primitive() && !(info.has_repetition() && info.repetition() == Repetition::REPEATED);
        if !single || !is_plain(field.get_physical_type(), info.converted_type()) {
            return Err(format!("column {} is neither of numbers, flags nor names", field.name()));
        }
        fields.push(field.clone());
    }
    for needed in table.needed {
        if !fields.iter().any(|field| field.name() == *needed) {
            let (name, all) = (table.name, table.needed.join(" and "));
            return Err(format!("it has no column {needed}; a {name} has at least {all}"));
        }
    }
    for (index, group) in metadata.row_groups().iter().enumerate() {
        let rows = group.num_rows();
        let wrong = group.columns().iter().find(|column| {
            let parts = column.column_path().parts();
            parts.len() == 1 && is_known(&parts[0]) && (rows < 0 || column.num_values() != rows)
        });
        if let Some(column) = wrong {
            let (name, has) = (column.column_path(), column.num_values());
            return Err(format!("column {name} of group {index} has {has} values for {rows} rows"));
        }
    }
    let part = Type::group_type_builder(root.name()).with_fields(fields).build();
    part.map_err(|error| error.to_string())
}

fn is_plain(physical: Physical, converted: ConvertedType) -> bool {
    use ConvertedType as C;
    match physical {
        Physical::BOOLEAN => converted == C::NONE,
        Physical::INT32 => {
            [C::NONE, C::INT_8, C::INT_16, C::INT_32, C::UINT_8, C::UINT_16, C::UINT_32].contains(&converted)
        }
        Physical::INT64 => [C::NONE, C::INT_64, C::UINT_64].contains(&converted),
        Physical::BYTE_ARRAY => [C::UTF8, C::ENUM].contains(&converted),
        _ => false,
    }
}

/// By way of JSON, so that both kinds of file have one reader of fields.
fn record<R: DeserializeOwned>(row: &Row) -> Result<R, String> {
    let mut fields = serde_json::Map::new();
    for (name, field) in row.get_column_iter() {
        let value: serde_json::Value = match field {
            Field::Null => continue,
            Field::Bool(flag) => (*flag).into(),
            Field::Byte(number) => (*number).into(),
            Field::UByte(number) => (*number).into(),
            Field::Short(number) => (*number).into(),
            Field::UShort(number) => (*number).into(),
            Field::Int(number) => (*number).into(),
            Field::UInt(number) => (*number).into(),
            Field::Long(number) => (*number).into(),
            Field::ULong(number) => (*number).into(),
            Field::Str(text) => text.as_str().into(),
            other => return Err(format!("{name} is {other}, which is neither a number, a flag nor a name")),
        };
        fields.insert(name.clone(), value);
    }
    serde_json::from_value(fields.into()).map_err(|error| error.to_string())
}

thread_local! {
    /// This thread expects a panic.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Does `work` of the `parquet` crate. Where that panics on what a file says, the file is damaged, and nothing else.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !EXPECTED.try_with(Cell::get).unwrap_or(false) {
                before(panic);
            }
        }));
    });
    EXPECTED.set(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    EXPECTED.set(false);
    done.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("for no reason");
        format!("it is damaged: the reader gave up ({})", text.chars().take(200).collect::<String>())
    })
}
