//! How files lie on the device (Smith 2001, section 3.2): the share of blocks that follow their predecessor.

use crate::answer::LayoutAnswer;
use crate::sample::fast_hash;
use crate::source::{Kind, Source};
use ashlar_env::host::{Extent, extents, free_ranges};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};

/// The block of the score. It is that of ext4, xfs and btrfs by default.
const BLOCK: u64 = 4096;
/// Files that are looked at, after a full scan and after a sample.
const FILES_MAX: [u64; 2] = [20_000, 2000];
/// Extents of one file that are looked at.
const EXTENTS_MAX: usize = 100_000;

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

/// The score of a file, and in how many places it lies.
pub fn score(extents: &[Extent], size: u64) -> (Score, u64) {
    let (mut blocks, mut breaks, mut pieces) = (0u64, 0u64, 0u64);
    let mut next = None;
    for extent in extents.iter().filter(|extent| !extent.is_placeless()) {
        // What is allocated beyond the end is no part of the file.
        let len = extent.len.min(size.saturating_sub(extent.logical));
        if len == 0 {
            continue;
        }
        blocks += len.div_ceil(BLOCK);
        let follows = next == Some(extent.physical);
        breaks += u64::from(!follows && next.is_some());
        pieces += u64::from(!follows);
        next = Some(extent.physical + extent.len);
    }
    let could = blocks.saturating_sub(1);
    (Score { following: could.saturating_sub(breaks), could }, pieces)
}

/// Looks at the files of a source.
pub fn layout(source: &Source, full: bool, seed: u64, stop: &AtomicBool) -> LayoutAnswer {
    let mut answer = LayoutAnswer::default();
    if source.kind == Kind::Device || source.kind == Kind::Trace {
        answer.notes.push("a device has no files".into());
        return answer;
    }
    let entries = &source.listing.entries;
    let share = (FILES_MAX[usize::from(!full)] as f64 / entries.len().max(1) as f64).min(1.0);
    let mut total = Score::default();
    let (mut by_extents, mut by_size) = (BTreeMap::new(), BTreeMap::<u64, Score>::new());
    let mut sum = 0;
    for (index, entry) in entries.iter().enumerate() {
        if stop.load(Ordering::Acquire) {
            break;
        }
        if share < 1.0 && fast_hash(seed ^ 0x1a70, index as u64) >= share {
            continue;
        }
        let path = if source.kind == Kind::Tree { source.listing.path(entry) } else { source.path.clone() };
        let Ok(file) = File::open(&path) else { continue };
        match extents(&file, EXTENTS_MAX) {
            Ok(found) => {
                let (score, pieces) = score(&found, if source.kind == Kind::Qcow2 { u64::MAX } else { entry.size });
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
    answer.file_share = answer.files as f64 / entries.len().max(1) as f64;
    answer.score = total.value();
    answer.extents_per_file = if answer.files > 0 { sum as f64 / answer.files as f64 } else { 0.0 };
    answer.files_by_extents = by_extents.into_iter().collect();
    answer.score_by_size = by_size.into_iter().filter_map(|(size, score)| Some((size, score.value()?))).collect();
    free(source, &mut answer);
    answer
}

fn free(source: &Source, answer: &mut LayoutAnswer) {
    let Ok(file) = File::open(&source.path) else { return };
    match free_space(&file) {
        Ok(ranges) => answer.free_ranges = ranges,
        Err(note) => answer.notes.push(note.into()),
    }
}

/// Ranges of free space of the file system that holds `file`, by length: upper bound in bytes, ranges, bytes in them. The
/// error says why it is not known.
pub fn free_space(file: &File) -> Result<Vec<(u64, u64, u64)>, &'static str> {
    let mut ranges = BTreeMap::<u64, (u64, u64)>::new();
    let told = free_ranges(file, |_, len| {
        let range = ranges.entry(len.next_power_of_two()).or_default();
        *range = (range.0 + 1, range.1 + len);
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

    fn extent(logical: u64, physical: u64, blocks: u64) -> Extent {
        Extent { logical: logical * BLOCK, physical: physical * BLOCK, len: blocks * BLOCK, flags: 0 }
    }

    #[test]
    fn scores_of_extents_made_by_hand() {
        let size = u64::MAX;
        // Ten blocks in one piece: all nine follow.
        assert_eq!(score(&[extent(0, 100, 10)], size), (Score { following: 9, could: 9 }, 1));
        // In two pieces: eight of nine.
        assert_eq!(score(&[extent(0, 100, 4), extent(4, 200, 6)], size), (Score { following: 8, could: 9 }, 2));
        // Two extents that adjoin are one piece.
        assert_eq!(score(&[extent(0, 100, 4), extent(4, 104, 6)], size), (Score { following: 9, could: 9 }, 1));
        // Backwards is not following.
        assert_eq!(score(&[extent(0, 100, 1), extent(1, 99, 1)], size), (Score { following: 0, could: 1 }, 2));
        // One block has no score.
        assert_eq!(score(&[extent(0, 100, 1)], size).0.value(), None);
        // What is allocated beyond the end does not count, nor what has no place.
        assert_eq!(score(&[extent(0, 100, 10)], 2 * BLOCK).0, Score { following: 1, could: 1 });
        let waiting = Extent { flags: 0x4, ..extent(0, 0, 5) };
        assert_eq!(score(&[waiting], size).0, Score::default());
    }
}
