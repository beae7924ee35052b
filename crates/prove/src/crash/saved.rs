//! Failing images as files, that can be opened again anywhere.
//!
//! A line `ashlar crash 1`, then, compressed with zstd: the length of a JSON header (u32, little endian), the header, and the
//! data that the header's lists name, in their order: blocks of the base, then data of writes up to the cut.

use super::Kind;
use super::cuts::Cut;
use super::medium::{Event, Record, ZEROS};
use ashlar_units::{BLOCK, BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: &[u8; 15] = b"ashlar crash 1\n";
/// Length of the header, in bytes.
const HEADER_MAX: u32 = 256 << 20;
/// Length of a write, in bytes: no request of FUSE is longer.
const WRITE_MAX: u64 = 16 << 20;
/// Size of a disk, in bytes: larger ones are not worth their memory here.
pub(super) const DISK_MAX: u64 = 1 << 40;

/// What is needed to open the image, but for the data.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Header {
    pub subject: Subject,
    pub atomic_bytes: u64,
    pub cut: Cut,
}

/// Whose image it is.
#[derive(Clone, Serialize, Deserialize)]
pub(super) enum Subject {
    Kernel {
        kind: Kind,
        size_bytes: u64,
        mount_options: Option<String>,
        check: PathBuf,
    },
    /// The pool; its history is lived again.
    Own {
        seed: u64,
        without: Option<String>,
        drop_flushes: bool,
    },
}

impl Header {
    fn size_bytes(&self) -> u64 {
        match self.subject {
            Subject::Kernel { size_bytes, .. } => size_bytes,
            Subject::Own { .. } => crate::pool::CAPACITY.to_bytes().0,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Lists {
    header: Header,
    /// Blocks of the base.
    base: Vec<u64>,
    events: Vec<Listed>,
}

/// An event without its data.
#[derive(Serialize, Deserialize)]
enum Listed {
    Write { block: u64, len_bytes: u64, forced: bool },
    Discard { block: u64, count: u64 },
    Flush { covers: usize },
    Mark(String),
}

/// A failing image.
pub(super) struct Saved {
    pub header: Header,
    pub record: Record,
}

impl Saved {
    /// Writes the file anew.
    pub(super) fn write(self, path: &Path) -> Result<(), String> {
        self.write_to(path).map_err(|error| format!("cannot keep a failing image: {}: {error}", path.display()))
    }

    fn write_to(self, path: &Path) -> std::io::Result<()> {
        let events = || self.record.events.iter().take(self.header.cut.at);
        let base: Vec<(&u64, &Bytes)> = self.record.base.iter().filter(|(_, data)| **data != ZEROS).collect();
        let list = |event: &Event| match event {
            Event::Write { at, data, forced } => {
                Listed::Write { block: at.0, len_bytes: data.len() as u64, forced: *forced }
            }
            Event::Discard { at, count } => Listed::Discard { block: at.0, count: count.0 },
            Event::Flush { covers } => Listed::Flush { covers: *covers },
            Event::Mark(text) => Listed::Mark(text.clone()),
        };
        let lists = Lists {
            base: base.iter().map(|(block, _)| **block).collect(),
            events: events().map(list).collect(),
            header: self.header.clone(),
        };
        let json = serde_json::to_vec(&lists)?;
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(MAGIC)?;
        let mut out = zstd::Encoder::new(file, 3)?;
        out.write_all(&(json.len() as u32).to_le_bytes())?;
        out.write_all(&json)?;
        for (_, data) in base {
            out.write_all(data)?;
        }
        for event in events() {
            if let Event::Write { data, .. } = event {
                out.write_all(data)?;
            }
        }
        out.finish()?.flush()
    }

    /// Reads a file, whoever made it.
    pub(super) fn read(path: &Path) -> Result<Saved, String> {
        let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Saved::decode(BufReader::new(file)).map_err(|what| format!("{}: {what}", path.display()))
    }

    fn decode(mut file: impl Read) -> Result<Saved, String> {
        let damaged = |error: std::io::Error| format!("the file is damaged: {error}");
        let mut magic = [0; MAGIC.len()];
        if file.read_exact(&mut magic).is_err() || magic != *MAGIC {
            return Err("this is no image that `ashlar prove crash` kept".into());
        }
        let mut file = zstd::Decoder::new(file).map_err(damaged)?;
        let mut len = [0; 4];
        file.read_exact(&mut len).map_err(damaged)?;
        let len = u32::from_le_bytes(len);
        if len > HEADER_MAX {
            return Err(format!("the file is damaged: a header of {len} bytes"));
        }
        let mut json = Vec::new();
        (&mut file).take(u64::from(len)).read_to_end(&mut json).map_err(damaged)?;
        let Lists { header, base, events } =
            serde_json::from_slice(&json).map_err(|error| format!("the file is damaged: {error}"))?;
        let (size_bytes, atomic_bytes) = (header.size_bytes(), header.atomic_bytes);
        let blocks = size_bytes / BLOCK.0;
        if size_bytes > DISK_MAX || ![512, BLOCK.0].contains(&atomic_bytes) {
            return Err(format!("the file is damaged: a disk of {size_bytes} bytes with units of {atomic_bytes}"));
        }
        let within = |block: u64, count: u64| match block.checked_add(count) {
            Some(end) if end <= blocks => Ok(()),
            _ => Err(format!("the file is damaged: block {block} is past the end")),
        };
        let mut data = |len: u64| -> Result<Bytes, String> {
            let mut data = vec![0; len as usize];
            file.read_exact(&mut data).map_err(damaged)?;
            Ok(Bytes::from(data))
        };
        let mut record = Record::default();
        let mut contents = super::medium::Contents::new();
        for block in base {
            within(block, 1)?;
            contents.insert(block, data(BLOCK_LEN as u64)?);
        }
        record.base = Arc::new(contents);
        for event in events {
            record.events.push(match event {
                Listed::Write { block, len_bytes, forced } => {
                    if len_bytes > WRITE_MAX || !len_bytes.is_multiple_of(BLOCK.0) {
                        return Err(format!("the file is damaged: a write of {len_bytes} bytes"));
                    }
                    within(block, len_bytes / BLOCK.0)?;
                    Event::Write { at: Lba(block), data: data(len_bytes)?, forced }
                }
                Listed::Discard { block, count } => {
                    within(block, count)?;
                    Event::Discard { at: Lba(block), count: Blocks(count) }
                }
                Listed::Flush { covers } => Event::Flush { covers },
                Listed::Mark(text) => Event::Mark(text),
            });
        }
        Ok(Saved { header, record })
    }
}
