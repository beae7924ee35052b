//! Files of records: a line of JSON for each, or Parquet if the name ends in `.parquet`, with a column for each field.
//!
//! A [`Table`] says which columns a kind of record has. [`Writer`] makes files, [`read`] reads them, whoever made them: a
//! damaged or malicious file is an error with a place, and makes nobody allocate more than the file has.

mod claims;
#[cfg(test)]
mod fuzz;
mod parquet_reader;
mod writer;

pub use writer::Writer;

use serde::de::DeserializeOwned;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Longest line: one with two paths of 4 KiB, each byte of which is escaped.
const LINE_LEN_MAX: u64 = 64 << 10;

/// How a field becomes a column.
pub enum Column<R> {
    /// An unsigned number.
    Number(fn(&R) -> u64),
    /// One that is hardly ever twice the same, such as a time.
    Distinct(fn(&R) -> u64),
    /// True or false.
    Flag(fn(&R) -> bool),
    /// A name or other text.
    Text(fn(&R) -> &str),
}

/// What a kind of record has. The names of columns are those that its fields have in JSON.
pub struct Table<R: 'static> {
    /// What the records are, in one word.
    pub name: &'static str,
    /// All columns.
    pub columns: &'static [(&'static str, Column<R>)],
    /// Those without which a record means nothing; others may be missing in files.
    pub needed: &'static [&'static str],
    /// A record, as a line of JSON.
    pub example: &'static str,
}

/// Whether a file of this name is Parquet; or will be, when it is whole and loses its `.new`.
pub fn is_parquet(path: &Path) -> bool {
    let named = |path: &Path, extension: &str| path.extension().is_some_and(|it| it == extension);
    named(path, "parquet")
        || named(path, "new") && path.file_stem().is_some_and(|stem| named(Path::new(stem), "parquet"))
}

/// What was found of a file that was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Records that are there.
    pub records: u64,
    /// Bytes behind them, of records that are not whole.
    pub bytes_dropped: u64,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cut { records, bytes_dropped } = self;
        write!(f, "it was cut behind {records} records; {bytes_dropped} bytes of what followed are left out")
    }
}

/// Gives every record of a file to `each`, in their order, until that fails.
pub fn read<R: DeserializeOwned>(
    table: &Table<R>,
    path: &Path,
    each: impl FnMut(R) -> Result<(), String>,
) -> Result<(), String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    if is_parquet(path) { read_parquet(table, file, each) } else { read_lines(table, BufReader::new(file), each) }
}

/// The same, but the file may end anywhere, as when whoever wrote it was killed: lines of JSON behind the first, and Parquet
/// behind the first group of records, if [`Writer`] made it. What is not whole is left out. Returns what was found, if it was
/// so; a file of lines that ends between two is taken for a whole one.
pub fn read_cut<R: DeserializeOwned>(
    table: &Table<R>,
    path: &Path,
    each: impl FnMut(R) -> Result<(), String>,
) -> Result<Option<Cut>, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    match is_parquet(path) {
        true => parquet_reader::read_cut(table, &file, each),
        false => lines(table, BufReader::new(file), each, true),
    }
}

/// Reads a Parquet file. Numbers may be signed, and columns absent. Records may be read as another type than the table's.
pub fn read_parquet<R: DeserializeOwned, T>(
    table: &Table<T>,
    file: File,
    each: impl FnMut(R) -> Result<(), String>,
) -> Result<(), String> {
    parquet_reader::read(table, &file, each)
}

/// Reads lines of JSON.
pub fn read_lines<R: DeserializeOwned>(
    table: &Table<R>,
    from: impl BufRead,
    each: impl FnMut(R) -> Result<(), String>,
) -> Result<(), String> {
    lines(table, from, each, false).map(drop)
}

/// Returns what was found if the text ended within a record, and may.
fn lines<R: DeserializeOwned>(
    table: &Table<R>,
    mut lines: impl BufRead,
    mut each: impl FnMut(R) -> Result<(), String>,
    may_be_cut: bool,
) -> Result<Option<Cut>, String> {
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        let len = (&mut lines).take(LINE_LEN_MAX).read_until(b'\n', &mut line).map_err(|error| error.to_string())?;
        if len == 0 {
            break;
        }
        // What is no record from its first line on is no such file.
        let may_end = may_be_cut && number > 1 && !line.ends_with(b"\n") && (len as u64) < LINE_LEN_MAX;
        match serde_json::from_slice(&line) {
            Ok(record) => each(record)?,
            Err(error) if may_end && error.is_eof() => {
                return Ok(Some(Cut { records: number - 1, bytes_dropped: len as u64 }));
            }
            Err(error) => return Err(format!("line {number} is no record ({error}); write {}", table.example)),
        }
    }
    Ok(None)
}
