//! Reads records from Parquet files, which anybody may have written.

use crate::Table;
use crate::claims::{check_footer, check_pages};
use parquet::basic::{ConvertedType, Repetition, Type as Physical};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use serde::de::DeserializeOwned;
use std::cell::Cell;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

/// Gives every record of a Parquet file to `each`, until that fails. Columns may be missing where records of JSON may leave
/// them out, and may be signed.
pub fn read<R: DeserializeOwned>(
    table: &Table<R>,
    file: File,
    mut each: impl FnMut(R) -> Result<(), String>,
) -> Result<(), String> {
    check_footer(&file)?;
    let copy = file.try_clone().map_err(|error| error.to_string())?;
    let reader =
        caught(|| SerializedFileReader::new(copy))?.map_err(|error| format!("it is no Parquet file: {error}"))?;
    check_pages(&file, reader.metadata())?;
    let known = known_columns(table, reader.metadata())?;
    let mut rows = caught(|| reader.get_row_iter(Some(known)))?.map_err(|error| error.to_string())?;
    for index in 0u64.. {
        let Some(row) = caught(|| rows.next()).map_err(|error| format!("row {index}: {error}"))? else { break };
        let row = row.map_err(|error| format!("row {index}: {error}"))?;
        each(record(&row).map_err(|error| format!("row {index} is no record: {error}"))?)?;
    }
    Ok(())
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
