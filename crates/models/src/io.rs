//! What goes into a model and what comes out of it.

use crate::keep::{put, take};
use schemars::JsonSchema;
use serde::Serialize;
use std::io::{self, Read, Write};

/// The grain of addresses on every model: a sector of 512 bytes.
pub const SECTOR: u64 = 512;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Read bytes.
    Read,
    /// Write bytes.
    Write,
    /// Make durable every write that has completed.
    Flush,
    /// Say that the bytes are not needed any more.
    Discard,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it asks for.
    pub kind: Kind,
    /// First byte.
    pub offset: u64,
    /// Bytes; zero for a flush.
    pub len: u64,
    /// Forced unit access: a write that completes only when it is on the medium.
    pub fua: bool,
}

impl Request {
    /// A read.
    pub const fn read(offset: u64, len: u64) -> Request {
        Request { kind: Kind::Read, offset, len, fua: false }
    }
    /// A write that a cache may hold.
    pub const fn write(offset: u64, len: u64) -> Request {
        Request { kind: Kind::Write, offset, len, fua: false }
    }
    /// A write that goes through to the medium.
    pub const fn write_fua(offset: u64, len: u64) -> Request {
        Request { kind: Kind::Write, offset, len, fua: true }
    }
    /// A flush.
    pub const fn flush() -> Request {
        Request { kind: Kind::Flush, offset: 0, len: 0, fua: false }
    }
    /// A discard.
    pub const fn discard(offset: u64, len: u64) -> Request {
        Request { kind: Kind::Discard, offset, len, fua: false }
    }
}

/// Names a request from its submission to its completion. Counts up from zero.
pub type Id = u64;

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It reaches past the end.
    #[error("bytes {offset}+{len} reach past the capacity of {capacity} bytes")]
    Range {
        /// First byte of the request.
        offset: u64,
        /// Its length.
        len: u64,
        /// Capacity of the device.
        capacity: u64,
    },
    /// It is empty, or not a whole number of sectors.
    #[error("bytes {offset}+{len} are not whole sectors of {grain} bytes")]
    Alignment {
        /// First byte of the request.
        offset: u64,
        /// Its length.
        len: u64,
        /// The grain of addresses.
        grain: u64,
    },
    /// Too much waits already.
    #[error("{waiting} requests wait already: submit more slowly")]
    Busy {
        /// Requests that wait for a place in the queue of the device.
        waiting: usize,
    },
    /// A sector of an append-once segment is written a second time, or after a later one of its block.
    #[error("sector {sector} lies behind the append point of its block; trim the segment first")]
    Rewrite {
        /// The sector.
        sector: u64,
    },
    /// A discard that is not of whole segments.
    #[error("a discard of bytes {offset}+{len} is not of whole segments of {segment} bytes")]
    PartialSegment {
        /// First byte of the request.
        offset: u64,
        /// Its length.
        len: u64,
        /// Bytes of a segment.
        segment: u64,
    },
    /// The flash at this address is worn out.
    #[error("the flash that holds byte {offset} is worn out and takes no more writes")]
    WornOut {
        /// First byte of the request.
        offset: u64,
    },
}

/// Where the time of a request went. The parts add up to the response time, exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Waiting for others, for background work of the device, or for a flush.
    pub queue_ns: u64,
    /// Command processing, and spinning up.
    pub overhead_ns: u64,
    /// Moving the arm and settling.
    pub seek_ns: u64,
    /// Waiting for the medium to come round.
    pub rotation_ns: u64,
    /// Moving data, track switches on the way included.
    pub transfer_ns: u64,
}

impl Split {
    /// The sum of the parts.
    pub const fn total_ns(&self) -> u64 {
        self.queue_ns + self.overhead_ns + self.seek_ns + self.rotation_ns + self.transfer_ns
    }
    pub(crate) fn add(&mut self, other: &Split) {
        self.queue_ns += other.queue_ns;
        self.overhead_ns += other.overhead_ns;
        self.seek_ns += other.seek_ns;
        self.rotation_ns += other.rotation_ns;
        self.transfer_ns += other.transfer_ns;
    }
}

/// A request that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The name that `submit` gave.
    pub id: Id,
    /// What was asked.
    pub request: Request,
    /// When it was submitted.
    pub submitted_ns: u64,
    /// When it was done.
    pub done_ns: u64,
    /// Where the time went.
    pub split: Split,
}

impl Completion {
    /// Time from submission to completion.
    pub const fn response_ns(&self) -> u64 {
        self.done_ns - self.submitted_ns
    }
}

/// What a device has done since it was made. Fields that a kind of device does not have stay zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Counters {
    /// Reads completed.
    pub reads: u64,
    /// Writes completed.
    pub writes: u64,
    /// Flushes completed.
    pub flushes: u64,
    /// Discards completed.
    pub discards: u64,
    /// Bytes of completed reads.
    pub read_bytes: u64,
    /// Bytes of completed writes.
    pub written_bytes: u64,
    /// Reads served from the buffer of the device.
    pub cache_hits: u64,
    /// Flash pages that the host wrote.
    pub host_pages: u64,
    /// Flash pages programmed, copies included.
    pub programs: u64,
    /// Flash pages that cleaning or merging moved.
    pub copies: u64,
    /// Flash blocks erased.
    pub erases: u64,
    /// Merges of a log block with its data block.
    pub merges: u64,
    /// Flash blocks that wore out or were bad from the start.
    pub bad_blocks: u64,
}

impl Counters {
    pub(crate) fn count(&mut self, request: &Request) {
        match request.kind {
            Kind::Read => {
                self.reads += 1;
                self.read_bytes += request.len;
            }
            Kind::Write => {
                self.writes += 1;
                self.written_bytes += request.len;
            }
            Kind::Flush => self.flushes += 1,
            Kind::Discard => self.discards += 1,
        }
    }

    pub(crate) fn save(&self, to: &mut dyn Write) -> io::Result<()> {
        let mut numbers = *self;
        numbers.all().into_iter().try_for_each(|number| put(to, *number))
    }

    pub(crate) fn restore(from: &mut dyn Read) -> io::Result<Counters> {
        let mut counters = Counters::default();
        counters.all().into_iter().try_for_each(|number| take(from).map(|taken| *number = taken))?;
        Ok(counters)
    }

    fn all(&mut self) -> [&mut u64; 13] {
        [
            &mut self.reads,
            &mut self.writes,
            &mut self.flushes,
            &mut self.discards,
            &mut self.read_bytes,
            &mut self.written_bytes,
            &mut self.cache_hits,
            &mut self.host_pages,
            &mut self.programs,
            &mut self.copies,
            &mut self.erases,
            &mut self.merges,
            &mut self.bad_blocks,
        ]
    }

    /// Pages programmed for each page that the host wrote; 1 if it wrote none.
    pub fn write_amplification(&self) -> f64 {
        if self.host_pages == 0 { 1.0 } else { self.programs as f64 / self.host_pages as f64 }
    }
}

/// Checks range and alignment of a request.
pub(crate) fn admit(request: &Request, capacity: u64, grain: u64) -> Result<(), Refused> {
    let Request { kind, offset, len, .. } = *request;
    if kind == Kind::Flush {
        return Ok(());
    }
    if len == 0 || offset % grain != 0 || len % grain != 0 {
        return Err(Refused::Alignment { offset, len, grain });
    }
    match offset.checked_add(len) {
        Some(end) if end <= capacity => Ok(()),
        _ => Err(Refused::Range { offset, len, capacity }),
    }
}
