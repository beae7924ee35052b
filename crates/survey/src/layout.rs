//! How files lie on the device (Smith 2001, section 3.2): the share of blocks that follow their predecessor.

use crate::answer::LayoutAnswer;
use crate::sample::Share;
use crate::scan::cluster;
use crate::source::{Kind, Reader, Source, open};
use ashlar_env::host::{Extent, extents, space_ranges};
use rustix::fs::{CWD, fstatvfs};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Files that are looked at, at most, beside a full scan and beside a sample.
const FILES_MAX: [u64; 2] = [8000, 2000];
/// Files that are looked at, if there are as many, however small the sample is.
const FILES_MIN: u64 = 500;
/// Extents of one file that are looked at.
const EXTENTS_MAX: usize = 100_000;

/// Free space is looked at if the data surveyed are at least this share of the size of their file system: going through all
/// ranges of a large one for a small directory costs more than the rest.
const SHARE_OF_SIZE: f64 = 0.02;
/// Or this share of what it holds: then all of it was to be surveyed.
const SHARE_OF_HELD: f64 = 0.5;

/// Blocks that follow their predecessor, and blocks that have one.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Score {
    /// Those that follow.
    pub following: u64,
    /// Those that could.
    pub could: u64,
}

impl Score {
    /// `Σ [b_i = b_(i-1) + 1] / (n - 1)`; none for a file of one block.
    pub fn value(self) -> Option<f64> {
        (self.could > 0).then(|| self.following as f64 / self.could as f64)
    }
    /// The score of two sets of files together.
    pub fn add(&mut self, other: Score) {
        self.following += other.following;
        self.could += other.could;
    }
}

/// The score of a file with blocks of `block` bytes, and in how many places it lies.
pub fn score(extents: &[Extent], size: u64, block: u64) -> (Score, u64) {
    let (mut blocks, mut breaks, mut pieces) = (0u64, 0u64, 0u64);
    let mut last: Option<&Extent> = None;
    for extent in extents.iter().filter(|extent| !extent.is_placeless()) {
        // What is allocated beyond the end is no part of the file.
        let len = extent.len.min(size.saturating_sub(extent.logical));
        if len == 0 {
            continue;
        }
        blocks += len.div_ceil(block);
        let follows = last.is_some_and(|last| follows(last, extent));
        breaks += u64::from(!follows && last.is_some());
        pieces += u64::from(!follows);
        last = Some(extent);
    }
    let could = blocks.saturating_sub(1);
    (Score { following: could.saturating_sub(breaks), could }, pieces)
}

/// Whether an extent lies directly behind another. What a compressed one takes is not told, only what it would at most.
fn follows(last: &Extent, extent: &Extent) -> bool {
    let end = last.physical.saturating_add(last.len);
    if last.is_encoded() { (last.physical + 1..=end).contains(&extent.physical) } else { extent.physical == end }
}

/// Bytes of extents, by what is special about them.
#[derive(Default)]
struct Kinds {
    bytes: u64,
    encoded: u64,
    shared: u64,
    unwritten: u64,
    inline_files: u64,
}

impl Kinds {
    fn add(&mut self, extents: &[Extent]) {
        self.inline_files += u64::from(extents.iter().any(Extent::is_inline));
        for extent in extents.iter().filter(|extent| !extent.is_placeless()) {
            let of = |is: bool| if is { extent.len } else { 0 };
            self.bytes += extent.len;
            self.encoded += of(extent.is_encoded());
            self.shared += of(extent.is_shared());
            self.unwritten += of(extent.is_unwritten());
        }
    }
}

/// Looks at files of a source; `sampled` is the share of the bytes that is expected to be read, none for a full scan. Of a
/// sample, first those files are chosen whose beginning is in it: they are opened anyway, and elsewhere each costs a read of
/// its inode.
pub fn layout(source: &Source, sampled: Option<f64>, seed: u64, stop: &AtomicBool) -> LayoutAnswer {
    let mut answer = LayoutAnswer::default();
    if source.kind == Kind::Device || source.kind == Kind::Trace {
        answer.notes.push("a device has no files".into());
        return answer;
    }
    if source.kind == Kind::Bucket {
        answer.notes.push("a bucket does not tell where objects lie".into());
        return answer;
    }
    let files = source.listing.files().count().max(1) as f64;
    let part = |of: u64| (of as f64 / files).min(1.0);
    let share = Share {
        from: 0.0,
        to: sampled.map_or(part(FILES_MAX[0]), |sampled| sampled.clamp(part(FILES_MIN), part(FILES_MAX[1]))),
    };
    let mut total = Score::default();
    let mut block = None;
    let (mut by_extents, mut by_size) = (BTreeMap::new(), BTreeMap::<u64, Score>::new());
    let (mut sum, mut kinds) = (0, Kinds::default());
    for entry in source.listing.files() {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let id = if sampled.is_some() { cluster(entry, 0) } else { entry.identity };
        if !share.has(seed, id) {
            continue;
        }
        let opened = match source.kind {
            Kind::Tree => source.reader(entry),
            // Of a qcow2 image the file, not what its guest sees.
            _ => open(CWD, &source.path).map(Reader::Plain),
        };
        let Ok(Reader::Plain(file)) = opened else { continue };
        match extents(&file, EXTENTS_MAX) {
            Ok(found) => {
                let size = if source.kind == Kind::Qcow2 { u64::MAX } else { entry.size };
                // All files are of one file system.
                let block = block.get_or_insert_with(|| {
                    let told = file.metadata().map_or(4096, |metadata| metadata.blksize());
                    told.clamp(512, 1 << 20)
                });
                let (score, pieces) = score(&found, size, *block);
                kinds.add(&found);
                answer.files += 1;
                sum += pieces;
                total.add(score);
                *by_extents.entry(pieces.next_power_of_two()).or_insert(0) += 1;
                by_size.entry(entry.size.max(1).next_power_of_two()).or_default().add(score);
            }
            Err(error) => {
                if error.kind() == ErrorKind::Unsupported {
                    answer.notes.push("the file system does not tell where files lie".into());
                    break;
                }
            }
        }
    }
    answer.file_share = answer.files as f64 / files;
    answer.score = total.value();
    answer.extents_per_file = if answer.files > 0 { sum as f64 / answer.files as f64 } else { 0.0 };
    let part = |bytes: u64| bytes as f64 / kinds.bytes.max(1) as f64;
    (answer.encoded_share, answer.shared_share) = (part(kinds.encoded), part(kinds.shared));
    (answer.unwritten_share, answer.inline_files) = (part(kinds.unwritten), kinds.inline_files);
    answer.files_by_extents = by_extents.into_iter().collect();
    answer.score_by_size = by_size.into_iter().filter_map(|(size, score)| Some((size, score.value()?))).collect();
    free(source, &mut answer, stop);
    answer
}

fn free(source: &Source, answer: &mut LayoutAnswer, stop: &AtomicBool) {
    let Ok(file) = File::open(&source.path) else { return };
    if let Ok(told) = fstatvfs(&file) {
        let (size, held) = (told.f_blocks, told.f_blocks.saturating_sub(told.f_bfree));
        let bytes = |blocks: u64, share: f64| share * blocks as f64 * told.f_frsize as f64;
        let data = source.listing.data_bytes() as f64;
        if data < bytes(size, SHARE_OF_SIZE) && data < bytes(held, SHARE_OF_HELD) {
            let what = "a small part of the file system was surveyed, so its free space was not looked at";
            answer.notes.push(format!("{what}; survey its mount point for that"));
            return;
        }
    }
    match free_space(&file, stop) {
        Ok(_) if stop.load(Ordering::Acquire) => {
            answer.notes.push("stopped before all files and free space were looked at".into());
        }
        Ok(ranges) => answer.free_ranges = ranges,
        Err(note) => answer.notes.push(note.into()),
    }
}

/// Ranges of free space of the file system that holds `file`, by length: upper bound in bytes, ranges, bytes in them; those
/// that were told before `stop`. The error says why it is not known.
pub fn free_space(file: &File, stop: &AtomicBool) -> Result<Vec<(u64, u64, u64)>, &'static str> {
    let mut ranges = BTreeMap::<u64, (u64, u64)>::new();
    let told = space_ranges(file, |_, len, free| {
        if free {
            let range = ranges.entry(len.next_power_of_two()).or_default();
            *range = (range.0 + 1, range.1 + len);
        }
        if stop.load(Ordering::Acquire) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match told {
        Ok(()) => Ok(ranges.into_iter().map(|(bound, (count, bytes))| (bound, count, bytes)).collect()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Err("ranges of free space are shown to root alone")
        }
        Err(_) => Err("the file system does not tell its free space (ext4 and xfs do)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;

    fn extent(logical: u64, physical: u64, blocks: u64) -> Extent {
        Extent { logical: logical * BLOCK, physical: physical * BLOCK, len: blocks * BLOCK, flags: 0 }
    }

    fn scored(extents: &[Extent], size: u64) -> (Score, u64) {
        score(extents, size, BLOCK)
    }

    #[test]
    fn scores_of_extents_made_by_hand() {
        let size = u64::MAX;
        // Ten blocks in one piece: all nine follow.
        assert_eq!(scored(&[extent(0, 100, 10)], size), (Score { following: 9, could: 9 }, 1));
        // In two pieces: eight of nine.
        assert_eq!(scored(&[extent(0, 100, 4), extent(4, 200, 6)], size), (Score { following: 8, could: 9 }, 2));
        // Two extents that adjoin are one piece.
        assert_eq!(scored(&[extent(0, 100, 4), extent(4, 104, 6)], size), (Score { following: 9, could: 9 }, 1));
        // Backwards is not following.
        assert_eq!(scored(&[extent(0, 100, 1), extent(1, 99, 1)], size), (Score { following: 0, could: 1 }, 2));
        // One block has no score; of smaller blocks there are more.
        assert_eq!(scored(&[extent(0, 100, 1)], size).0.value(), None);
        assert_eq!(score(&[extent(0, 100, 1)], size, 1024).0, Score { following: 3, could: 3 });
        // What is allocated beyond the end does not count, nor what has no place.
        assert_eq!(scored(&[extent(0, 100, 10)], 2 * BLOCK).0, Score { following: 1, could: 1 });
        let waiting = Extent { flags: 0x4, ..extent(0, 0, 5) };
        assert_eq!(scored(&[waiting], size).0, Score::default());
    }

    #[test]
    fn compressed_extents_side_by_side_are_one_piece() {
        let packed = |logical, physical| Extent { flags: 0x8, ..extent(logical, physical, 32) };
        // As btrfs tells them: 32 blocks each, which take 14 and 20.
        assert_eq!(scored(&[packed(0, 100), packed(32, 114), packed(64, 134)], u64::MAX).1, 1);
        assert_eq!(scored(&[packed(0, 100), packed(32, 133)], u64::MAX).1, 2);
        assert_eq!(scored(&[packed(0, 100), packed(32, 90)], u64::MAX).1, 2);
    }
}
