//! What became of the calls that a tracer saw.

use super::Op;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Why a call is in no record, or less is known of it than could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Left out: on a socket, a pipe, or something else that is no file.
    NoFile,
    /// Left out: in /proc, /sys or /dev.
    Virtual,
    /// Left out: not below the directory that was asked for.
    Elsewhere,
    /// Left out: the call has nothing to do with files.
    OtherCall,
    /// A call that nobody has heard of.
    UnknownCall,
    /// A descriptor of which nobody knows what it means.
    MissingDescriptor,
    /// A path that could not be read.
    UnreadablePath,
    /// It works on files as no record can say: `io_uring`, `io_submit`, reflinks, `sync_file_range`.
    NotRepresented,
    /// It was interrupted, and begun again later.
    Restarted,
    /// It had not returned when the trace ended.
    Unfinished,
    /// The file ends within a line.
    TruncatedEnd,
    /// A line that cannot be read.
    UnreadableLine,
    /// The clock went back. The record is there, with its time moved.
    ClockStep,
    /// The end of a file, where it is appended to, was not seen but asked for later or taken for zero. Records are there, with
    /// offsets that may be wrong.
    GuessedOffset,
    /// More processes, threads or descriptors than are held.
    TooMany,
    /// A tracer could not keep up.
    Lost,
}

impl Cause {
    /// It was meant to be left out.
    pub fn is_left_out(self) -> bool {
        matches!(self, Cause::NoFile | Cause::Virtual | Cause::Elsewhere | Cause::OtherCall)
    }

    /// The record is there nevertheless.
    pub fn is_remark(self) -> bool {
        matches!(self, Cause::ClockStep | Cause::GuessedOffset)
    }

    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Cause::NoFile => "on sockets, pipes and the like",
            Cause::Virtual => "in /proc, /sys or /dev",
            Cause::Elsewhere => "not below the directory",
            Cause::OtherCall => "not about files",
            Cause::UnknownCall => "unknown calls",
            Cause::MissingDescriptor => "on descriptors that nobody knows",
            Cause::UnreadablePath => "paths that could not be read",
            Cause::NotRepresented => "io_uring, reflinks and the like",
            Cause::Restarted => "interrupted and begun again",
            Cause::Unfinished => "unfinished at the end",
            Cause::TruncatedEnd => "the file ends within a line",
            Cause::UnreadableLine => "lines that cannot be read",
            Cause::ClockStep => "the clock went back",
            Cause::GuessedOffset => "ends of files guessed, for appending",
            Cause::TooMany => "too many processes, threads or descriptors",
            Cause::Lost => "lost: the tracer could not keep up",
        }
    }
}

/// Counts of records and of what is in none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Counts {
    /// Records.
    pub records: u64,
    /// Records by what was asked.
    pub by_op: BTreeMap<Op, u64>,
    /// Calls that are in no record since they were to be left out, by cause.
    pub left_out: BTreeMap<Cause, u64>,
    /// Calls that are in no record though they should be, by cause.
    pub dropped: BTreeMap<Cause, u64>,
    /// Records of which something is a guess, by cause.
    pub remarks: BTreeMap<Cause, u64>,
}

impl Counts {
    /// Counts a cause.
    pub fn count(&mut self, cause: Cause, times: u64) {
        let map = match cause {
            _ if cause.is_left_out() => &mut self.left_out,
            _ if cause.is_remark() => &mut self.remarks,
            _ => &mut self.dropped,
        };
        if times > 0 {
            *map.entry(cause).or_default() += times;
        }
    }

    /// How often a cause was counted.
    pub fn of(&self, cause: Cause) -> u64 {
        [&self.left_out, &self.dropped, &self.remarks].iter().find_map(|map| map.get(&cause)).copied().unwrap_or(0)
    }
}
