//! How files lie (Smith 2001, section 3.2.3 and Table 3.2): layout score, split files, hot files, free space.
//!
//! The score of a file and the histogram of free space are those of [`ashlar_survey::layout`]; here every file counts, and
//! a snapshot serves as well as what is mounted.

use crate::frames::FrameError;
use crate::mounts::{Groups, mount_of};
use crate::snapshot::SnapshotReader;
use crate::walk::{Entry, Kind, WalkError, Walked, walk};
use ashlar_survey::layout::{Score, free_space, score};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Files that changed so recently are hot: 30 days.
pub const HOT_NS: i64 = 30 * 86_400 * 1_000_000_000;

/// How some files lie.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Files {
    /// Regular files.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Share of their blocks that follow their predecessor: the aggregate layout score. Null if no file has two blocks.
    pub score: Option<f64>,
    /// Files with an extent somewhere.
    pub placed: u64,
    /// Mean number of pieces of those.
    pub pieces_per_file: f64,
    /// Files whose first block lies in another group than their inode; null where groups are not known.
    pub split: Option<Split>,
}

/// Files whose first block and inode are apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Split {
    /// How many.
    pub files: u64,
    /// Their share of the files that have a first block.
    pub share: f64,
    /// Of them, the share that is one group away.
    pub one_away: f64,
    /// Of them, the share that is less than ten groups away.
    pub below_ten_away: f64,
}

/// Free space.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Free {
    /// Ranges.
    pub ranges: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// By length: upper bound in bytes, ranges, bytes in them.
    pub by_length: Vec<(u64, u64, u64)>,
}

impl Free {
    /// From ranges by length.
    pub fn new(by_length: Vec<(u64, u64, u64)>) -> Free {
        let sum = |of: fn(&(u64, u64, u64)) -> u64| by_length.iter().map(of).sum();
        Free { ranges: sum(|range| range.1), bytes: sum(|range| range.2), by_length }
    }

    /// The largest difference of two distributions of free bytes over lengths (Kolmogorov and Smirnov), from 0 to 1.
    pub fn distance(&self, other: &Free) -> f64 {
        let share = |of: &Free, bound: u64| {
            let below = of.by_length.iter().filter(|range| range.0 <= bound).map(|range| range.2).sum::<u64>();
            below as f64 / of.bytes.max(1) as f64
        };
        let bounds = self.by_length.iter().chain(&other.by_length).map(|range| range.0);
        bounds.map(|bound| (share(self, bound) - share(other, bound)).abs()).fold(0.0, f64::max)
    }
}

/// How the files of a file system lie.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Layout {
    /// All regular files; those with several names once.
    pub all: Files,
    /// Those that changed in the last 30 days.
    pub hot: Files,
    /// Files by number of pieces: 1, 2, up to 4, 8 and so on.
    pub files_by_pieces: Vec<(u64, u64)>,
    /// Score by size of the file: upper bound in bytes, and the score.
    pub score_by_size: Vec<(u64, f64)>,
    /// Files whose last bytes had no place yet.
    pub waiting: u64,
    /// Free space; null where the file system does not tell.
    pub free: Option<Free>,
}

/// Adds files up.
#[derive(Default)]
struct Sum {
    files: u64,
    bytes: u64,
    score: Score,
    placed: u64,
    pieces: u64,
    first: u64,
    split: u64,
    one_away: u64,
    below_ten_away: u64,
}

/// How one file lies.
pub(crate) struct Lying {
    /// Its bytes.
    pub bytes: u64,
    /// Its layout score.
    pub score: Score,
    /// Its pieces; none if it has no place.
    pub pieces: u64,
    /// Groups between its inode and its first block, if that is known.
    pub away: Option<u64>,
    /// It changed lately.
    pub hot: bool,
}

impl Sum {
    fn add(&mut self, file: &Lying) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(file.bytes);
        self.score.add(file.score);
        self.placed += u64::from(file.pieces > 0);
        self.pieces += file.pieces;
        if let Some(away) = file.away {
            self.first += 1;
            self.split += u64::from(away > 0);
            self.one_away += u64::from(away == 1);
            self.below_ten_away += u64::from((1..10).contains(&away));
        }
    }

    fn files(&self, groups: bool) -> Files {
        let share = |part: u64, of: u64| part as f64 / of.max(1) as f64;
        Files {
            files: self.files,
            bytes: self.bytes,
            score: self.score.value(),
            placed: self.placed,
            pieces_per_file: share(self.pieces, self.placed),
            split: groups.then(|| Split {
                files: self.split,
                share: share(self.split, self.first),
                one_away: share(self.one_away, self.split),
                below_ten_away: share(self.below_ten_away, self.split),
            }),
        }
    }
}

/// Adds up how files lie, of whatever file system.
#[derive(Default)]
pub(crate) struct Tally {
    all: Sum,
    hot: Sum,
    by_pieces: BTreeMap<u64, u64>,
    by_size: BTreeMap<u64, Score>,
}

impl Tally {
    pub(crate) fn add(&mut self, file: &Lying) {
        self.all.add(file);
        if file.hot {
            self.hot.add(file);
        }
        if file.pieces > 0 {
            *self.by_pieces.entry(file.pieces.next_power_of_two()).or_default() += 1;
            let size = file.bytes.max(1).checked_next_power_of_two().unwrap_or(1 << 63);
            self.by_size.entry(size).or_default().add(file.score);
        }
    }

    /// The answer; `split`: the file system has groups.
    pub(crate) fn finish(self, split: bool, waiting: u64, free: Option<Free>) -> Layout {
        Layout {
            all: self.all.files(split),
            hot: self.hot.files(split),
            files_by_pieces: self.by_pieces.into_iter().collect(),
            score_by_size: self.by_size.into_iter().filter_map(|(size, score)| Some((size, score.value()?))).collect(),
            waiting,
            free,
        }
    }
}

/// Looks at files one by one.
pub struct Measure {
    groups: Option<Groups>,
    block: u64,
    hot_from: i64,
    tally: Tally,
    waiting: u64,
}

impl Measure {
    /// Begins, for a file system with blocks of `block` bytes; files that changed less than [`HOT_NS`] before `now_ns` are hot.
    pub fn new(groups: Option<Groups>, block: u64, now_ns: i64) -> Measure {
        let hot_from = now_ns.saturating_sub(HOT_NS);
        Measure { groups, block: block.max(1), hot_from, tally: Tally::default(), waiting: 0 }
    }

    /// Adds a file, by one of its names; what is no regular file does not count.
    pub fn add(&mut self, entry: &Entry) {
        if entry.kind != Kind::File {
            return;
        }
        let (score, pieces) = score(&entry.extents, entry.size, self.block);
        let first = entry.extents.first().filter(|extent| extent.logical == 0 && !extent.is_placeless());
        let away = self.groups.as_ref().zip(first);
        let away = away.map(|(groups, extent)| groups.of_inode(entry.inode).abs_diff(groups.of_byte(extent.physical)));
        let hot = entry.modified.max(entry.changed) >= self.hot_from;
        self.tally.add(&Lying { bytes: entry.size, score, pieces, away, hot });
        // FIEMAP_EXTENT_UNKNOWN or _DELALLOC.
        self.waiting += u64::from(entry.extents.iter().any(|extent| extent.flags & 0x6 != 0));
    }

    /// The answer.
    pub fn finish(self, free: Option<Free>) -> Layout {
        self.tally.finish(self.groups.is_some(), self.waiting, free)
    }
}

/// What was seen of a tree.
#[derive(Clone, Debug)]
pub struct Seen {
    /// How its files lie.
    pub layout: Layout,
    /// What the file system is called.
    pub file_system: String,
    /// What could not be looked at.
    pub walked: Walked,
    /// What is not known, and why.
    pub notes: Vec<String>,
}

/// The layout of the files below `root`. `seen` gets the number of names so far.
pub fn of_tree(root: &Path, now_ns: i64, stop: &AtomicBool, seen: &dyn Fn(u64)) -> Result<Seen, WalkError> {
    let mount = mount_of(root).ok();
    let block = rustix::fs::statvfs(root).map_or(4096, |told| told.f_frsize);
    let mut measure = Measure::new(mount.as_ref().and_then(Groups::of), block, now_ns);
    let (mut count, mut linked) = (0, HashSet::new());
    let walked = walk(root, stop, &mut |entry: Entry, _| {
        count += 1;
        if count % 1024 == 0 {
            seen(count);
        }
        if entry.links < 2 || linked.insert(entry.inode) {
            measure.add(&entry);
        }
        Ok(())
    })?;
    let mut notes = Vec::new();
    if walked.placeless {
        notes.push("the file system does not tell where files lie".into());
    }
    let free = match File::open(root).map_err(WalkError::Io).map(|file| free_space(&file, stop))? {
        Ok(ranges) => Some(Free::new(ranges)),
        Err(note) => {
            notes.push(note.into());
            None
        }
    };
    let file_system = mount.map_or(String::new(), |mount| mount.file_system);
    Ok(Seen { layout: measure.finish(free), file_system, walked, notes })
}

/// The layout that a snapshot holds.
pub fn of_snapshot(snapshot: &mut SnapshotReader<impl Read>) -> Result<Layout, FrameError> {
    let mut measure = Measure::new(snapshot.header().groups, snapshot.header().block_bytes, snapshot.header().taken_ns);
    while let Some(entry) = snapshot.entry()? {
        measure.add(&entry);
    }
    let mut by_length = BTreeMap::<u64, (u64, u64)>::new();
    while let Some((_, len)) = snapshot.free()? {
        let range = by_length.entry(len.checked_next_power_of_two().unwrap_or(1 << 63)).or_default();
        *range = (range.0 + 1, range.1.saturating_add(len));
    }
    let by_length: Vec<_> = by_length.into_iter().map(|(bound, (count, bytes))| (bound, count, bytes)).collect();
    snapshot.closing()?;
    Ok(measure.finish((!by_length.is_empty()).then(|| Free::new(by_length))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_env::host::Extent;

    fn file(inode: u64, size: u64, modified: i64, places: &[(u64, u64)]) -> Entry {
        let mut logical = 0;
        let mut extent = |(physical, len): &(u64, u64)| {
            logical += len;
            Extent { logical: logical - len, physical: *physical, len: *len, flags: 0 }
        };
        let extents = places.iter().map(&mut extent).collect();
        let (kind, name) = (Kind::File, Vec::new());
        let rest = (1, None, size, modified, None);
        let (links, generation, allocated, changed, born) = rest;
        Entry { inode, parent: 1, kind, name, links, generation, size, allocated, changed, modified, born, extents }
    }

    #[test]
    fn files_are_split_and_hot_as_the_thesis_says() {
        const K: u64 = 4096;
        let groups = Groups::Ext4 { inodes: 10, bytes: 100 * K, first_byte: 0 };
        let mut measure = Measure::new(Some(groups), 4096, HOT_NS + 5);
        // Group 0, in place, four blocks in two pieces: two of three follow.
        measure.add(&file(1, 4 * K, 0, &[(10 * K, 2 * K), (50 * K, 2 * K)]));
        // Group 1, one away; hot.
        measure.add(&file(11, 2 * K, 5, &[(200 * K, 2 * K)]));
        // Group 0, twelve away; hot. One block has no score.
        measure.add(&file(2, K, 6, &[(1200 * K, K)]));
        let layout = measure.finish(None);
        assert_eq!(layout.all.score, Some(3.0 / 4.0));
        assert_eq!((layout.hot.files, layout.hot.score), (2, Some(1.0)));
        let expected = Split { files: 2, share: 2.0 / 3.0, one_away: 0.5, below_ten_away: 0.5 };
        assert_eq!(layout.all.split, Some(expected));
        assert_eq!(layout.files_by_pieces, [(1, 2), (2, 1)]);
    }

    #[test]
    fn distance_of_free_space() {
        let (one, other) = (Free::new(vec![(8, 2, 10), (16, 1, 10)]), Free::new(vec![(16, 1, 30), (32, 1, 10)]));
        assert_eq!(one.distance(&one), 0.0);
        assert_eq!(one.distance(&other), 0.5);
        assert_eq!(Free::default().distance(&one), 1.0);
    }
}
