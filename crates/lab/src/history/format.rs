//! The file of a history: a frame with the header (JSON), frames of records, statistics (JSON) at the end.
//!
//! The time of a record is the distance from the one before, across frames.

use super::record::Record;
use super::stats::Closing;
use crate::codec::Damage;
use crate::frames::{Format, FrameError, FrameReader, FrameWriter};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

const FORMAT: Format = Format { name: "history", magic: *b"ASHAGE\0\x01", version: 1 };
const HEADER: u8 = 1;
const RECORDS: u8 = 2;

/// Where a history comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Header {
    /// What it was made of, as text.
    pub source: String,
    /// Every model that guessed something, and every parameter.
    pub models: Vec<(String, String)>,
    /// Decides what was left to chance.
    pub seed: u64,
    /// Bytes of the file system that it is the history of; zero if it is of none.
    pub capacity: u64,
}

/// Writes a history. [`super::Builder`] sees to the order.
pub(super) struct HistoryWriter<W: Write> {
    frames: FrameWriter<W>,
    at_ns: i64,
}

impl<W: Write> HistoryWriter<W> {
    pub(super) fn new(to: W, header: &Header) -> io::Result<HistoryWriter<W>> {
        let mut frames = FrameWriter::new(to, &FORMAT)?;
        frames.put_header(HEADER, header)?;
        Ok(HistoryWriter { frames, at_ns: 0 })
    }

    /// Adds a record. Its time is since the first.
    pub(super) fn put(&mut self, record: &Record) -> io::Result<()> {
        let distance = record.at_ns - self.at_ns;
        self.at_ns = record.at_ns;
        self.frames.put_item(RECORDS, &Record { at_ns: distance, ..*record })
    }

    pub(super) fn finish(self, closing: &Closing) -> io::Result<W> {
        self.frames.finish(&serde_json::to_vec(closing)?)
    }
}

/// Reads a history.
pub struct HistoryReader<R: Read> {
    frames: FrameReader<R>,
    header: Header,
    at_ns: i64,
}

impl<R: Read> HistoryReader<R> {
    /// Reads the header.
    pub fn new(from: R) -> Result<HistoryReader<R>, FrameError> {
        let mut frames = FrameReader::new(from, &FORMAT)?;
        let header = frames.header(HEADER)?;
        Ok(HistoryReader { frames, header, at_ns: 0 })
    }

    /// Where it comes from.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The next record; `None` after the last.
    pub fn record(&mut self) -> Result<Option<Record>, FrameError> {
        let Some(mut record) = self.frames.item::<Record>(RECORDS)? else { return Ok(None) };
        let damaged = |what| FrameError::Damaged { at: self.frames.at(), what };
        if record.at_ns < 0 {
            return Err(damaged("times fall"));
        }
        if record.id == super::ROOT {
            return Err(damaged("a record is about the root"));
        }
        record.at_ns = self.at_ns.checked_add(record.at_ns).ok_or_else(|| damaged("a time is beyond all years"))?;
        self.at_ns = record.at_ns;
        Ok(Some(record))
    }

    /// The statistics, after all records that were not read yet.
    pub fn closing(&mut self) -> Result<Closing, FrameError> {
        while self.record()?.is_some() {}
        self.frames.read_end(|take| serde_json::from_slice(take.0).map_err(|_| Damage("its statistics cannot be read")))
    }
}
