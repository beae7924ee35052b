//! The file of a snapshot: a frame with the header (JSON), frames of entries, frames of free ranges, and counts at the end.

use crate::codec::{Damage, Take, put_bytes, put_i64, put_u64};
use crate::frames::{Format, FrameError, FrameReader};
use crate::mounts::Groups;
use crate::sorter::Item;
use crate::walk::{Entry, Kind};
use ashlar_env::host::Extent;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io::Read;

pub(super) const FORMAT: Format = Format { name: "snapshot", magic: *b"ASHSNAP\x01", version: 1 };
pub(super) const HEADER: u8 = 1;
pub(super) const ENTRIES: u8 = 2;
pub(super) const FREE: u8 = 3;
/// Linux knows no longer name.
const NAME_MAX: usize = 255;

/// What a snapshot is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Header {
    /// The directory, as text.
    pub root: String,
    /// When it was begun, nanoseconds since 1970.
    pub taken_ns: i64,
    /// What the file system is called, as in `ext4`; empty if that is not known.
    pub file_system: String,
    /// Its block size in bytes.
    pub block_bytes: u64,
    /// Its size in bytes.
    pub total_bytes: u64,
    /// Bytes of that which were free.
    pub free_bytes: u64,
    /// How it divides its device, where that is known.
    pub groups: Option<Groups>,
    /// Whether names are hashes: 16 hexadecimal digits in place of each.
    pub names_hashed: bool,
}

/// What a snapshot counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Closing {
    /// Inodes.
    pub inodes: u64,
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Names beyond the first of an inode.
    pub further_names: u64,
    /// Sum of sizes of regular files, bytes.
    pub size_bytes: u64,
    /// Extents of files.
    pub extents: u64,
    /// Ranges of free space.
    pub free_ranges: u64,
    /// Bytes in them.
    pub free_range_bytes: u64,
    /// Inodes with a generation.
    pub generations: u64,
    /// Inodes with a time of birth.
    pub births: u64,
}

impl Closing {
    fn fields(&mut self) -> [&mut u64; 10] {
        [
            &mut self.inodes,
            &mut self.files,
            &mut self.directories,
            &mut self.further_names,
            &mut self.size_bytes,
            &mut self.extents,
            &mut self.free_ranges,
            &mut self.free_range_bytes,
            &mut self.generations,
            &mut self.births,
        ]
    }

    /// Counts an inode.
    pub(super) fn count(&mut self, entry: &Entry) {
        self.inodes += 1;
        self.generations += u64::from(entry.generation.is_some());
        self.births += u64::from(entry.born.is_some());
        self.directories += u64::from(entry.kind == Kind::Directory);
        if entry.kind == Kind::File {
            self.files += 1;
            self.size_bytes = self.size_bytes.saturating_add(entry.size);
            self.extents += entry.extents.len() as u64;
        }
    }

    pub(super) fn encode(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.fields().into_iter().for_each(|field| put_u64(&mut bytes, *field));
        bytes
    }

    fn decode(take: &mut Take) -> Result<Closing, Damage> {
        let mut closing = Closing::default();
        for field in closing.fields() {
            *field = take.u64()?;
        }
        Ok(closing)
    }
}

impl Item for Entry {
    type Key = (u64, u64, Vec<u8>);

    fn key(&self) -> Self::Key {
        (self.inode, self.parent, self.name.clone())
    }

    fn weight(&self) -> usize {
        self.name.capacity() + self.extents.capacity() * size_of::<Extent>()
    }

    fn put(&self, to: &mut Vec<u8>) {
        put_u64(to, self.inode);
        put_u64(to, self.parent);
        let (born, generation) = (self.born.is_some(), self.generation.is_some());
        to.push(self.kind as u8 | u8::from(born) << 4 | u8::from(generation) << 5);
        put_bytes(to, &self.name);
        put_u64(to, self.links.into());
        self.generation.into_iter().for_each(|generation| put_u64(to, generation.into()));
        put_u64(to, self.size);
        put_u64(to, self.allocated);
        put_i64(to, self.changed);
        put_i64(to, self.modified.wrapping_sub(self.changed));
        self.born.into_iter().for_each(|born| put_i64(to, born.wrapping_sub(self.changed)));
        put_u64(to, self.extents.len() as u64);
        // As distances from where the extent before ended: mostly zero, and small elsewhere.
        let (mut logical, mut physical) = (0u64, 0u64);
        for extent in &self.extents {
            put_i64(to, extent.logical.wrapping_sub(logical) as i64);
            put_i64(to, extent.physical.wrapping_sub(physical) as i64);
            put_u64(to, extent.len);
            put_u64(to, extent.flags.into());
            (logical, physical) = (extent.logical.wrapping_add(extent.len), extent.physical.wrapping_add(extent.len));
        }
    }

    fn take(from: &mut Take) -> Result<Entry, Damage> {
        let (inode, parent, flags) = (from.u64()?, from.u64()?, from.u8()?);
        let kind = match flags & 0xf {
            0 => Kind::File,
            1 => Kind::Directory,
            2 => Kind::Link,
            3 => Kind::Other,
            _ => return Err(Damage("a kind of file is unknown")),
        };
        let (name, links) = (from.bytes(NAME_MAX)?.to_vec(), from.u32()?);
        let generation = if flags & 0x20 == 0 { None } else { Some(from.u32()?) };
        let (size, allocated, changed) = (from.u64()?, from.u64()?, from.i64()?);
        let modified = changed.wrapping_add(from.i64()?);
        let born = if flags & 0x10 == 0 { None } else { Some(changed.wrapping_add(from.i64()?)) };
        let count = from.u64()?;
        // Each takes at least four bytes of the frame.
        if count > from.0.len() as u64 / 4 {
            return Err(Damage("a file has more extents than the frame holds"));
        }
        let (mut logical, mut physical) = (0u64, 0u64);
        let mut extents = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let extent = Extent {
                logical: logical.wrapping_add(from.i64()? as u64),
                physical: physical.wrapping_add(from.i64()? as u64),
                len: from.u64()?,
                flags: from.u32()?,
            };
            (logical, physical) = (extent.logical.wrapping_add(extent.len), extent.physical.wrapping_add(extent.len));
            extents.push(extent);
        }
        Ok(Entry { inode, parent, kind, name, links, generation, size, allocated, changed, modified, born, extents })
    }
}

/// Reads a snapshot: entries, in order of inode number, then free ranges.
pub struct SnapshotReader<R: Read> {
    frames: FrameReader<R>,
    header: Header,
    last: Option<u64>,
}

impl<R: Read> SnapshotReader<R> {
    /// Reads the header.
    pub fn new(from: R) -> Result<SnapshotReader<R>, FrameError> {
        let mut frames = FrameReader::new(from, &FORMAT)?;
        let header = frames.header(HEADER)?;
        Ok(SnapshotReader { frames, header, last: None })
    }

    /// What it is of.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The next entry; `None` after the last. Then [`free`](SnapshotReader::free) goes on.
    pub fn entry(&mut self) -> Result<Option<Entry>, FrameError> {
        let entry: Option<Entry> = self.frames.item(ENTRIES)?;
        if let Some(entry) = &entry
            && self.last.replace(entry.inode).is_some_and(|last| last >= entry.inode)
        {
            return Err(FrameError::Damaged { at: self.frames.at(), what: "inodes are not in order" });
        }
        Ok(entry)
    }

    /// The next free range, offset and length in bytes.
    pub fn free(&mut self) -> Result<Option<(u64, u64)>, FrameError> {
        Ok(self.frames.item::<FreeRange>(FREE)?.map(|range| (range.0, range.1)))
    }

    /// The counts, after all that was not read yet.
    pub fn closing(&mut self) -> Result<Closing, FrameError> {
        while self.entry()?.is_some() {}
        while self.free()?.is_some() {}
        self.frames.read_end(Closing::decode)
    }
}

/// Offset and length of free space.
pub(super) struct FreeRange(pub u64, pub u64);

impl Item for FreeRange {
    type Key = u64;
    fn key(&self) -> u64 {
        self.0
    }
    fn weight(&self) -> usize {
        0
    }
    fn put(&self, to: &mut Vec<u8>) {
        put_u64(to, self.0);
        put_u64(to, self.1);
    }
    fn take(from: &mut Take) -> Result<FreeRange, Damage> {
        Ok(FreeRange(from.u64()?, from.u64()?))
    }
}
