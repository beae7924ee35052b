//! Reading from the front, a line at a time.

use crate::append::{CANCEL, lock, regular};
use crate::{Entry, Error, LINE_LEN_MAX};
use rustix::fs::{FlockOperation, Mode, OFlags};
use schemars::JsonSchema;
use serde::Serialize;
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;

/// Torn lines that are told one by one; of more only the number.
const TORN_TOLD_MAX: usize = 100;

/// A line that was cut when it was written; what it should have said is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Torn {
    /// Number of the line, from 1.
    pub line: u64,
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Records.
    pub records: u64,
    /// The first lines that were passed over.
    pub torn: Vec<Torn>,
    /// How many there are of them.
    pub torn_count: u64,
}

pub fn read(path: &Path, seen: impl FnMut(Entry) -> Result<(), Error>) -> Result<Read, Error> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file: File = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => file.into(),
        Err(rustix::io::Errno::NOENT) => return Ok(Read::default()),
        Err(error) => return Err(Error::file(path, "open", error)),
    };
    let file = regular(file, path)?;
    lock(&file, path, FlockOperation::NonBlockingLockShared)?;
    lines(BufReader::new(file), path, seen)
}

/// Gives every record of `input` to `seen`. `path` is for errors.
pub fn lines(
    mut input: impl BufRead,
    path: &Path,
    mut seen: impl FnMut(Entry) -> Result<(), Error>,
) -> Result<Read, Error> {
    let mut read = Read::default();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let taken = (&mut input).take(LINE_LEN_MAX as u64).read_until(b'\n', &mut line);
        taken.map_err(|error| Error::file(path, "read", error))?;
        let whole = line.pop_if(|last| *last == b'\n').is_some();
        if !whole && line.is_empty() {
            break;
        }
        let cancelled = whole && line.last() == Some(&CANCEL);
        if cancelled || !whole && at_end(&mut input, path)? {
            read.torn_count += 1;
            if read.torn.len() < TORN_TOLD_MAX {
                read.torn.push(Torn { line: number });
            }
            continue;
        }
        let error = |what: String| Error::Line { path: path.into(), line: number, what };
        if !whole {
            return Err(error(format!("it is longer than {LINE_LEN_MAX} bytes")));
        }
        seen(Entry::parse(&line).map_err(error)?)?;
        read.records += 1;
    }
    Ok(read)
}

fn at_end(input: &mut impl BufRead, path: &Path) -> Result<bool, Error> {
    input.fill_buf().map(<[u8]>::is_empty).map_err(|error| Error::file(path, "read", error))
}
