//! Files of frames: compressed, and checked before anything in them is believed.
//!
//! ```text
//! file    magic (8 bytes), version (4), frames, end frame
//! frame   kind (1), number of the frame (4), bytes raw (4), bytes packed (4), xxh3 of those 13 bytes and the packed ones (8),
//!         packed bytes (zstd)
//! ```
//!
//! All numbers are little-endian. The frame's number is in its hash, so frames that are missing, stand twice or in another
//! order are noticed; a file without its end frame (kind 255) was cut off. What is in an end frame is the writer's.

use crate::codec::{Damage, Take};
use crate::sorter::Item;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use xxhash_rust::xxh3::Xxh3;

/// Most bytes of a frame before it is packed. Writers end a frame at a quarter of it.
pub const RAW_MAX: usize = 2 << 20;
/// Bytes after which a writer ends a frame.
const RAW_GOAL: usize = RAW_MAX / 8;
/// The kind of the last frame.
const END: u8 = 255;
/// zstd's level: 1 is half as large as lz4 and faster than files can be looked at.
const LEVEL: i32 = 1;
const HEAD_LEN: usize = 13;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The file.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Another kind of file.
    #[error("it is no {0}: its first bytes are others; `ashlar lab {0}` makes one")]
    Other(&'static str),
    /// A newer one.
    #[error("it has version {found}; this program knows {known}: take a newer ashlar")]
    Version {
        /// That of the file.
        found: u32,
        /// The newest that is known.
        known: u32,
    },
    /// The file says what cannot be.
    #[error("it is damaged at byte {at}: {what}; make it again, or take a copy")]
    Damaged {
        /// Where the frame begins.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
}

/// What a kind of file is called, and how its files begin.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// As in "it is no snapshot".
    pub name: &'static str,
    /// First bytes.
    pub magic: [u8; 8],
    /// The version that is written, and the newest that is read.
    pub version: u32,
}

/// Writes frames.
pub struct FrameWriter<W: Write> {
    to: W,
    number: u32,
    kind: u8,
    raw: Vec<u8>,
}

fn hash(head: &[u8], packed: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(head);
    hasher.update(packed);
    hasher.digest()
}

impl<W: Write> FrameWriter<W> {
    /// Begins a file.
    pub fn new(mut to: W, format: &Format) -> io::Result<FrameWriter<W>> {
        to.write_all(&format.magic)?;
        to.write_all(&format.version.to_le_bytes())?;
        Ok(FrameWriter { to, number: 0, kind: 0, raw: Vec::new() })
    }

    /// Adds an entry, which never crosses frames.
    pub fn put(&mut self, kind: u8, entry: &[u8]) -> io::Result<()> {
        let full = self.raw.len() >= RAW_GOAL || self.raw.len() + entry.len() > RAW_MAX;
        if !self.raw.is_empty() && (kind != self.kind || full) {
            self.write()?;
        }
        if entry.len() > RAW_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an entry is longer than a frame"));
        }
        self.kind = kind;
        self.raw.extend_from_slice(entry);
        Ok(())
    }

    /// Adds an item.
    pub fn put_item(&mut self, kind: u8, item: &impl Item) -> io::Result<()> {
        let mut bytes = Vec::new();
        item.put(&mut bytes);
        self.put(kind, &bytes)
    }

    /// Adds a header: a value as JSON, in a frame of its own.
    pub fn put_header(&mut self, kind: u8, header: &impl Serialize) -> io::Result<()> {
        self.put(kind, &serde_json::to_vec(header)?)
    }

    /// Ends the file.
    pub fn finish(mut self, end: &[u8]) -> io::Result<W> {
        self.put(END, end)?;
        self.write()?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn write(&mut self) -> io::Result<()> {
        let packed = zstd::bulk::compress(&self.raw, LEVEL)?;
        let mut head = [0; HEAD_LEN];
        head[0] = self.kind;
        head[1..5].copy_from_slice(&self.number.to_le_bytes());
        head[5..9].copy_from_slice(&(self.raw.len() as u32).to_le_bytes());
        head[9..].copy_from_slice(&(packed.len() as u32).to_le_bytes());
        self.to.write_all(&head)?;
        self.to.write_all(&hash(&head, &packed).to_le_bytes())?;
        self.to.write_all(&packed)?;
        self.raw.clear();
        self.number = self.number.checked_add(1).ok_or_else(|| io::Error::other("a file has too many frames"))?;
        Ok(())
    }
}

/// A frame that was read.
#[derive(Debug)]
pub struct Frame {
    /// What it holds.
    pub kind: u8,
    /// Where it begins in the file.
    pub at: u64,
    /// Its entries.
    pub bytes: Vec<u8>,
}

impl Frame {
    /// The error of a frame whose entries are not what they should be.
    pub fn damaged(&self, damage: Damage) -> FrameError {
        FrameError::Damaged { at: self.at, what: damage.0 }
    }
}

/// Reads frames.
pub struct FrameReader<R: Read> {
    from: R,
    at: u64,
    number: u32,
    end: Option<Vec<u8>>,
    /// The frame whose items are being read, and how many of its bytes were.
    open: Option<(Frame, usize)>,
}

impl<R: Read> FrameReader<R> {
    /// Begins at the magic.
    pub fn new(mut from: R, format: &Format) -> Result<FrameReader<R>, FrameError> {
        let mut head = [0; 12];
        from.read_exact(&mut head).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => FrameError::Other(format.name),
            _ => FrameError::Io(error),
        })?;
        let [magic @ .., a, b, c, d] = head;
        if magic != format.magic {
            return Err(FrameError::Other(format.name));
        }
        let found = u32::from_le_bytes([a, b, c, d]);
        if found != format.version {
            return Err(FrameError::Version { found, known: format.version });
        }
        Ok(FrameReader { from, at: 12, number: 0, end: None, open: None })
    }

    /// The next frame; `None` after the last.
    pub fn frame(&mut self) -> Result<Option<Frame>, FrameError> {
        if self.end.is_some() {
            return Ok(None);
        }
        let at = self.at;
        let damaged = |what| FrameError::Damaged { at, what };
        let cut = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => FrameError::Damaged { at, what: "it ends before its end frame" },
            _ => FrameError::Io(error),
        };
        let (mut head, mut sum) = ([0; HEAD_LEN], [0; 8]);
        self.from.read_exact(&mut head).map_err(cut)?;
        self.from.read_exact(&mut sum).map_err(cut)?;
        let [kind, a, b, c, d, e, f, g, h, i, j, k, l] = head;
        let number = u32::from_le_bytes([a, b, c, d]);
        let (raw, len) = (u32::from_le_bytes([e, f, g, h]) as usize, u32::from_le_bytes([i, j, k, l]) as usize);
        if raw > RAW_MAX || len > zstd::zstd_safe::compress_bound(RAW_MAX) {
            return Err(damaged("a frame is longer than frames are"));
        }
        let mut packed = vec![0; len];
        self.from.read_exact(&mut packed).map_err(cut)?;
        if hash(&head, &packed) != u64::from_le_bytes(sum) || number != self.number {
            return Err(damaged("a checksum is wrong"));
        }
        let bytes = zstd::bulk::decompress(&packed, raw).map_err(|_| damaged("a frame cannot be unpacked"))?;
        if bytes.len() != raw {
            return Err(damaged("a frame has another length than it says"));
        }
        self.at += (HEAD_LEN + 8 + len) as u64;
        self.number = self.number.wrapping_add(1);
        if kind == END {
            self.end = Some(bytes);
            return Ok(None);
        }
        Ok(Some(Frame { kind, at, bytes }))
    }

    /// Where the next frame begins.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Reads a header. Comes first.
    pub fn header<T: DeserializeOwned>(&mut self, kind: u8) -> Result<T, FrameError> {
        let what = "its header cannot be read";
        let frame = self.frame()?.filter(|frame| frame.kind == kind).ok_or(FrameError::Damaged { at: 12, what })?;
        serde_json::from_slice(&frame.bytes).map_err(|_| frame.damaged(Damage(what)))
    }

    /// The next item of a kind; `None` before the first of another kind, and at the end.
    pub fn item<T: Item>(&mut self, kind: u8) -> Result<Option<T>, FrameError> {
        loop {
            if self.open.as_ref().is_none_or(|(frame, used)| *used == frame.bytes.len()) {
                self.open = self.frame()?.map(|frame| (frame, 0));
            }
            let Some((frame, used)) = &mut self.open else { return Ok(None) };
            if frame.kind != kind {
                return Ok(None);
            }
            let rest = frame.bytes.get(*used..).unwrap_or_default();
            if rest.is_empty() {
                continue;
            }
            let mut take = Take(rest);
            let item = T::take(&mut take).map_err(|damage| frame.damaged(damage))?;
            *used = frame.bytes.len() - take.0.len();
            return Ok(Some(item));
        }
    }

    /// What the end frame holds, if all before it has been read.
    pub fn read_end<T>(&self, decode: impl FnOnce(&mut Take) -> Result<T, Damage>) -> Result<T, FrameError> {
        let damaged = |damage: Damage| FrameError::Damaged { at: self.at, what: damage.0 };
        let end = self.end().ok_or(Damage("frames are not in order")).map_err(damaged)?;
        decode(&mut Take(end)).map_err(damaged)
    }

    /// What the end frame holds, once [`frame`](FrameReader::frame) has returned `None`.
    pub fn end(&self) -> Option<&[u8]> {
        self.end.as_deref()
    }
}
