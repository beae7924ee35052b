//! File systems inside images: which bytes of an image are of which file.
//!
//! A sample of an image sees blocks, and copies of a file lie in two images at different offsets, so at 5 % one pair in 400
//! is seen and ranges are wide. Of a raw image, a device or a qcow2 image that holds ext4, in partitions or without, it is
//! therefore looked up where files are, and its parts are sampled by the names of these as files outside are
//! ([`crate::sample`]). A large file is a part. Small ones that lie side by side are one together, for a sample of content-defined
//! chunks reads much before each part; where such a part ends depends on the names alone, so that copies of a directory
//! have the same parts. What is left, tables and free space that holds data, is a part for each unit.
//!
//! All of this is a hint: images are damaged, in use or hostile, and a wrong one costs width and not truth, since each byte
//! of data is in exactly one part whatever the tables say.

mod ext4;
#[cfg(test)]
pub(crate) mod tests;

use crate::analyse::ReadAt;
use crate::sample::mix;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Images of less are not looked into.
pub const IMAGE_MIN: u64 = 16 << 20;
/// Blocks of a file system must be those that are digested.
const BLOCK: u64 = crate::chunk::fixed::BLOCK as u64;
/// Smallest part of small files, as a share of a unit.
const PART_MIN: u64 = 4;
/// Behind one name in so many a part of small files ends.
const PART_FILES: u64 = 8;
/// Between small files so much that is of none is passed over.
const GAP: u64 = 32 << 10;
/// Partitions that are looked at.
const PARTITIONS_MAX: u32 = 128;
const SECTOR: u64 = 512;
/// Ranges that the device is told of before they are read, at least.
const AHEAD: usize = 32;

/// What may be spent on a look.
pub struct Limits<'a> {
    /// Bytes to read.
    pub read: u64,
    /// Files and their extents.
    pub files: usize,
    /// Bytes of a unit of the sample.
    pub unit: u64,
    /// Ctrl-C.
    pub stop: &'a AtomicBool,
}

/// Bytes from one offset of an image up to another.
pub type Place = (u64, u64);

/// A part of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Hash of the name of its file, or of its first one; zero of what is in no file.
    pub name: u64,
    /// Hash of the name of the directory.
    pub parent: u64,
    /// Where it lies, in the order of the file: not empty, multiples of 4 KiB but for the end of the image.
    pub places: Vec<Place>,
}

/// A regular file with blocks: hashes of its name and of that of its directory.
#[derive(Clone, Copy)]
struct File {
    name: u64,
    parent: u64,
}

/// Blocks of a file: which file, the offset in it, and where they are in the image.
struct Extent {
    file: u32,
    offset: u64,
    begin: u64,
    end: u64,
}

/// What a file system told.
#[derive(Default)]
struct Found {
    files: Vec<File>,
    extents: Vec<Extent>,
}

/// Reads an image within limits. `None` is all that who looks for hints wants to know of what is wrong.
struct Disk<'a> {
    from: &'a mut dyn ReadAt,
    /// The file system begins here, and ends there.
    begin: u64,
    end: u64,
    read: u64,
    limits: &'a Limits<'a>,
}

impl Disk<'_> {
    /// Calls `each` with the number of each range of the file system, and its bytes or none of them, for as long as it likes. The
    /// device is told of those that come next, and has them side by side then.
    fn each(
        &mut self,
        ranges: &[Range<u64>],
        mut each: impl FnMut(&Disk<'_>, usize, &[u8]) -> Option<()>,
    ) -> Option<()> {
        for (index, range) in ranges.iter().enumerate() {
            if index.is_multiple_of(AHEAD) {
                let next = if index == 0 { 0 } else { index + AHEAD };
                for range in ranges.iter().take(index + 2 * AHEAD).skip(next) {
                    self.from.announce(self.begin.saturating_add(range.start), range.end - range.start);
                }
            }
            let bytes = self.bytes(range.start, range.end - range.start).unwrap_or_default();
            each(self, index, &bytes)?;
        }
        Some(())
    }

    /// So many bytes from an offset of the file system on.
    fn bytes(&mut self, offset: u64, len: u64) -> Option<Vec<u8>> {
        let at = self.begin.checked_add(offset)?;
        let fits = at.checked_add(len)? <= self.end && self.read + len <= self.limits.read;
        if !fits || self.limits.stop.load(Ordering::Acquire) {
            return None;
        }
        self.read += len;
        let mut bytes = vec![0; len as usize];
        let mut got = 0;
        while got < bytes.len() {
            match self.from.read_at(at + got as u64, &mut bytes[got..]).ok()? {
                0 => return None,
                more => got += more,
            }
        }
        Some(bytes)
    }
}

/// The parts of an image whose data are `data`, in order and apart from each other, by where they begin. None if nothing is
/// known of it. Gives also the bytes that were read.
pub fn look(from: &mut dyn ReadAt, data: &[Place], limits: &Limits<'_>) -> (Option<Vec<Part>>, u64) {
    let Some(size) = data.last().map(|(_, end)| *end).filter(|size| *size >= IMAGE_MIN) else { return (None, 0) };
    let mut disk = Disk { from, begin: 0, end: size, read: 0, limits };
    let mut found = Found::default();
    for (begin, end) in partitions(&mut disk).unwrap_or_default() {
        (disk.begin, disk.end) = (begin, end.min(size));
        // Other file systems, and what is wrong with one, are as if there were none.
        if let Some(more) = ext4::files(&mut disk) {
            let before = found.files.len() as u32;
            found.files.extend(more.files);
            found
                .extents
                .extend(more.extents.into_iter().map(|extent| Extent { file: extent.file + before, ..extent }));
        }
    }
    let read = disk.read;
    (Some(parts(found, data, limits.unit)).filter(|parts| !parts.is_empty()), read)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)))
}
fn u32_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?)))
}
fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Where file systems may be: the whole, or the partitions of a GUID partition table (UEFI 2.10, section 5.3) or of a master
/// boot record, with sectors of 512 bytes.
fn partitions(disk: &mut Disk<'_>) -> Option<Vec<Place>> {
    let first = disk.bytes(0, BLOCK)?;
    if ext4::is(&first) {
        return Some(vec![(disk.begin, disk.end)]);
    }
    if first.get(510..512)? != [0x55, 0xaa] {
        return None;
    }
    let sectors = |first: u64, count: u64| {
        let begin = first.checked_mul(SECTOR)?;
        let end = begin.checked_add(count.checked_mul(SECTOR)?)?;
        (begin > 0 && begin.is_multiple_of(BLOCK) && end > begin).then_some((begin, end))
    };
    let mut found = Vec::new();
    if first.get(512..520)? == b"EFI PART" {
        let (at, count, size) = (u64_at(&first, 584)?, u32_at(&first, 592)?, u32_at(&first, 596)?);
        if !(128..=BLOCK).contains(&size) {
            return None;
        }
        let table = disk.bytes(at.checked_mul(SECTOR)?, count.min(PARTITIONS_MAX.into()) * size)?;
        for entry in table.chunks_exact(size as usize) {
            let (first, last) = (u64_at(entry, 32)?, u64_at(entry, 40)?);
            let used = entry[..16] != [0; 16];
            found.extend(sectors(first, last.saturating_sub(first).saturating_add(1)).filter(|_| used));
        }
    } else {
        for entry in first[446..510].chunks_exact(16) {
            found.extend(sectors(u32_at(entry, 8)?, u32_at(entry, 12)?).filter(|_| entry[4] != 0));
        }
    }
    Some(found)
}

/// Bytes of one file, or of none, in one range of data.
#[derive(Clone, Copy)]
struct Owned {
    file: u32,
    offset: u64,
    place: Place,
    /// Index of the range of data.
    range: usize,
}

/// The extents that are data, in the order in which they lie; where tables contradict each other, the first one counts.
fn owned(mut extents: Vec<Extent>, data: &[Place]) -> Vec<Owned> {
    extents.sort_unstable_by_key(|extent| (extent.begin, extent.file, extent.offset));
    let (mut reached, mut range, mut owned) = (0, 0, Vec::new());
    for Extent { file, offset, begin, end } in extents {
        let from = begin.max(reached);
        while data.get(range).is_some_and(|(_, end)| *end <= from) {
            range += 1;
        }
        let ahead = data.iter().enumerate().skip(range).take_while(|(_, (first, _))| *first < end);
        for (range, (first, last)) in ahead {
            let place = (from.max(*first), end.min(*last));
            if place.0 < place.1 {
                owned.push(Owned { file, offset: offset + (place.0 - begin), place, range });
                reached = place.1;
            }
        }
    }
    owned
}

/// Small files side by side.
struct Run {
    name: u64,
    parent: u64,
    place: Place,
    range: usize,
}

/// Cuts the data of an image into parts.
fn parts(found: Found, data: &[Place], unit: u64) -> Vec<Part> {
    let owned = owned(found.extents, data);
    let mut sizes = vec![0u64; found.files.len()];
    owned.iter().for_each(|owned| sizes[owned.file as usize] += owned.place.1 - owned.place.0);
    let (mut large, mut runs, mut open) = (Vec::new(), Vec::<Run>::new(), false);
    for owned in &owned {
        let (begin, end) = owned.place;
        let File { name, parent } = found.files[owned.file as usize];
        if sizes[owned.file as usize] >= unit {
            large.push(*owned);
            open = false;
            continue;
        }
        let goes_on = |run: &&mut Run| {
            open && run.range == owned.range && begin - run.place.1 <= GAP && end - run.place.0 <= unit
        };
        let len = match runs.last_mut().filter(goes_on) {
            Some(run) => {
                run.place.1 = end;
                end - run.place.0
            }
            None => {
                runs.push(Run { name, parent, place: owned.place, range: owned.range });
                end - begin
            }
        };
        open = len < unit / PART_MIN || !mix(name, parent).is_multiple_of(PART_FILES);
    }
    large.sort_unstable_by_key(|owned| (owned.file, owned.offset, owned.place));
    let mut parts: Vec<Part> = runs
        .into_iter()
        .map(|Run { name, parent, place, .. }| Part { name, parent, places: vec![place] })
        .chain(large.chunk_by(|one, other| one.file == other.file).map(|of_file| {
            let File { name, parent } = found.files[of_file[0].file as usize];
            Part { name, parent, places: of_file.iter().map(|owned| owned.place).collect() }
        }))
        .collect();
    if !parts.is_empty() {
        rest(&mut parts, data, unit);
    }
    parts.sort_unstable_by_key(|part| part.places[0]);
    parts
}

/// Adds what is in no part, a part for each unit.
fn rest(parts: &mut Vec<Part>, data: &[Place], unit: u64) {
    let mut taken: Vec<Place> = parts.iter().flat_map(|part| part.places.iter().copied()).collect();
    taken.sort_unstable();
    let mut taken = taken.into_iter().peekable();
    let mut last = None;
    for (begin, end) in data {
        let mut at = *begin;
        while at < *end {
            if let Some((_, behind)) = taken.next_if(|(from, _)| *from <= at) {
                at = behind;
                continue;
            }
            let next = taken.peek().map_or(*end, |(from, _)| *from).min(*end).min((at / unit + 1) * unit);
            if last == Some(at / unit)
                && let Some(part) = parts.last_mut()
            {
                part.places.push((at, next));
            } else {
                parts.push(Part { name: 0, parent: 0, places: vec![(at, next)] });
            }
            last = Some(at / unit);
            at = next;
        }
    }
}
