//! Sizes, ages, depths and kinds of files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Extensions that are told apart; what comes later counts as "other".
const EXTENSIONS_MAX: usize = 4096;
/// Bytes of an extension.
const EXTENSION_MAX: usize = 12;
/// Extensions that are shown.
const EXTENSIONS_SHOWN: usize = 25;
const DAY: i64 = 86_400;
/// Bounds of ages, in days.
const AGES: [i64; 7] = [1, 7, 30, 90, 365, 3 * 365, 10 * 365];

/// Files and bytes.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Amount {
    /// Files.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }
}

/// What a walk counts; bounded, whatever is there.
#[derive(Clone, Default, Debug)]
pub struct Sizes {
    /// Directories, the root included.
    pub directories: u64,
    /// Files; those with several names once.
    pub files: u64,
    /// Further names of files that were counted already.
    pub further_links: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Sockets, pipes, devices.
    pub special: u64,
    /// Files without a byte.
    pub empty: u64,
    /// Files of which a part is a hole.
    pub sparse: Amount,
    /// Sum of sizes.
    pub apparent: u64,
    /// Bytes that are not holes.
    pub data: u64,
    /// Bytes that the file system says it took.
    pub allocated: u64,
    by_size: BTreeMap<u8, Amount>,
    by_age: BTreeMap<u8, Amount>,
    future: u64,
    by_depth: BTreeMap<u32, Amount>,
    by_extension: BTreeMap<String, Amount>,
    /// How many files there are of each exact size below 1 MiB, in steps of 512 bytes.
    small: Steps,
    /// What is packed: files by their data, in steps of 512 bytes below 1 MiB, and by powers of two from there on.
    packed_small: Steps,
    packed_large: BTreeMap<u8, Amount>,
}

/// Counts of sizes below 1 MiB, in steps of 512 bytes.
#[derive(Clone, Default, Debug)]
struct Steps(Vec<u64>);

impl Steps {
    /// The first size that has no place.
    const END: u64 = 1 << 20;

    /// Counts one that is smaller than [`Steps::END`].
    fn add(&mut self, size: u64) {
        self.0.resize((Steps::END / 512 + 1) as usize, 0);
        self.0[size.div_ceil(512) as usize] += 1;
    }

    /// Upper bounds, and how many there are, if there are any.
    fn all(&self) -> impl Iterator<Item = (u32, u64)> {
        let bounds = (0..).step_by(512).zip(self.0.iter().copied());
        bounds.filter(|(_, count)| *count > 0)
    }
}

/// One bar of a histogram.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Bar {
    /// What is counted here, as text.
    pub what: String,
    /// Upper bound of it, where it has one: bytes, days or levels. It does not belong to it.
    pub below: Option<u64>,
    /// Files.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// Sizes, ages, depths and kinds of files. All are counted, none estimated.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SizesAnswer {
    /// Files; those with several names once.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Sockets, pipes and devices.
    pub special_files: u64,
    /// Names beyond the first of a file.
    pub further_links: u64,
    /// Files without a byte.
    pub empty_files: u64,
    /// Sum of sizes, holes included.
    pub apparent_bytes: u64,
    /// Bytes that are not holes: the logical bytes of all ratios.
    pub data_bytes: u64,
    /// Bytes that the file system says it took.
    pub allocated_bytes: u64,
    /// Files of which a part is a hole.
    pub sparse_files: u64,
    /// Share of the apparent bytes that is holes.
    pub sparse_share: f64,
    /// Half of the files are no larger.
    pub median_bytes_below: u64,
    /// Files whose time of change lies in the future.
    pub from_the_future: u64,
    /// By size: powers of two.
    pub by_size: Vec<Bar>,
    /// By days since the last change.
    pub by_age: Vec<Bar>,
    /// By directories above.
    pub by_depth: Vec<Bar>,
    /// By extension, those with most bytes first.
    pub by_extension: Vec<Bar>,
    /// Files below 1 MiB by size in steps of 512 bytes: upper bound and number.
    pub small_files: Vec<(u32, u64)>,
}

impl Sizes {
    /// Counts a file.
    pub fn file(&mut self, name: &OsStr, size: u64, data: u64, allocated: u64, age: i64, depth: u32) {
        self.files += 1;
        self.apparent += size;
        self.data += data;
        self.allocated += allocated;
        self.empty += u64::from(size == 0);
        if data < size {
            self.sparse.add(size - data);
        }
        let power = if size == 0 { 0 } else { size.ilog2() as u8 + 1 };
        self.by_size.entry(power).or_default().add(size);
        self.future += u64::from(age < -DAY);
        let age = AGES.iter().position(|days| age < days * DAY).unwrap_or(AGES.len());
        self.by_age.entry(age as u8).or_default().add(size);
        self.by_depth.entry(depth.min(64)).or_default().add(size);
        if size < Steps::END {
            self.small.add(size);
        }
        if data < Steps::END {
            self.packed_small.add(data);
        } else {
            self.packed_large.entry(data.ilog2() as u8).or_default().add(data);
        }
        let mut room = [0; EXTENSION_MAX];
        let extension = extension(name, &mut room);
        match self.by_extension.get_mut(extension) {
            Some(amount) => amount.add(size),
            None => {
                let known = self.by_extension.len() < EXTENSIONS_MAX;
                let extension = if known { extension } else { "(other)" };
                self.by_extension.entry(extension.into()).or_default().add(size);
            }
        }
    }

    /// What it would save to put small files together, by the defaults of that estimator. Holes take no room, and are not packed.
    /// Files of 1 MiB of data and more count with the mean of their power of two.
    pub fn packing(&self) -> Option<ashlar_estimate::packing::Answer> {
        let mut histogram = ashlar_estimate::packing::Histogram::default();
        self.packed_small.all().for_each(|(size, count)| histogram.add(u64::from(size), count));
        self.packed_large.values().for_each(|amount| histogram.add(amount.bytes / amount.files, amount.files));
        (self.files > 1).then(|| ashlar_estimate::packing::Packing::default().pack(&histogram))
    }

    /// The answer.
    pub fn answer(&self) -> SizesAnswer {
        let bar = |what: String, below, amount: &Amount| Bar { what, below, files: amount.files, bytes: amount.bytes };
        let mut half = self.files.div_ceil(2);
        let median = self.by_size.iter().find(|(_, amount)| {
            half = half.saturating_sub(amount.files);
            half == 0
        });
        let mut extensions: Vec<_> = self.by_extension.iter().collect();
        extensions.sort_by_key(|(name, amount)| (u64::MAX - amount.bytes, u64::MAX - amount.files, (*name).clone()));
        SizesAnswer {
            files: self.files,
            directories: self.directories,
            symlinks: self.symlinks,
            special_files: self.special,
            further_links: self.further_links,
            empty_files: self.empty,
            apparent_bytes: self.apparent,
            data_bytes: self.data,
            allocated_bytes: self.allocated,
            sparse_files: self.sparse.files,
            sparse_share: if self.apparent > 0 { 1.0 - self.data as f64 / self.apparent as f64 } else { 0.0 },
            median_bytes_below: median.map_or(0, |(power, _)| bound(*power)),
            from_the_future: self.future,
            by_size: self
                .by_size
                .iter()
                .map(|(power, amount)| bar(size_name(*power), Some(bound(*power)), amount))
                .collect(),
            by_age: self
                .by_age
                .iter()
                .map(|(index, amount)| bar(age_name(*index), age_bound(*index), amount))
                .collect(),
            by_depth: self
                .by_depth
                .iter()
                .map(|(depth, amount)| bar(format!("{depth}"), Some(u64::from(*depth) + 1), amount))
                .collect(),
            by_extension: extensions
                .into_iter()
                .take(EXTENSIONS_SHOWN)
                .map(|(name, amount)| bar(name.clone(), None, amount))
                .collect(),
            small_files: self.small.all().collect(),
        }
    }
}

fn bound(power: u8) -> u64 {
    1u64.checked_shl(u32::from(power)).unwrap_or(u64::MAX)
}

fn size_name(power: u8) -> String {
    match power {
        0 => "empty".into(),
        _ => format!("below {}", ashlar_units::Bytes(bound(power))),
    }
}

fn age_bound(index: u8) -> Option<u64> {
    AGES.get(usize::from(index)).map(|days| *days as u64)
}

fn age_name(index: u8) -> String {
    match age_bound(index) {
        Some(1) => "below a day".into(),
        Some(days) if days >= 365 => format!("below {} years", days / 365),
        Some(days) => format!("below {days} days"),
        None => "older".into(),
    }
}

/// What stands after the last point, in small letters; short, and without what is no letter, digit or `+-_`.
fn extension<'a>(name: &OsStr, room: &'a mut [u8; EXTENSION_MAX]) -> &'a str {
    let name = name.as_bytes();
    let point = name.iter().rposition(|byte| *byte == b'.').filter(|point| *point > 0);
    let found = point.map_or(&[][..], |point| &name[point + 1..]);
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-_".contains(byte);
    if found.is_empty() || found.len() > EXTENSION_MAX || !found.iter().all(plain) {
        return "(none)";
    }
    let room = &mut room[..found.len()];
    room.copy_from_slice(found);
    room.make_ascii_lowercase();
    str::from_utf8(room).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_where_they_belong() {
        let mut sizes = Sizes::default();
        for (name, size, age) in [("a.TXT", 0, 10), ("b.txt", 1, DAY), ("c", 1024, -2 * DAY), (".d", 1 << 40, 1 << 40)]
        {
            sizes.file(OsStr::new(name), size, size, size, age, 3);
        }
        let answer = sizes.answer();
        assert_eq!((answer.files, answer.empty_files, answer.from_the_future), (4, 1, 1));
        let sizes: Vec<_> = answer.by_size.iter().map(|bar| (bar.what.as_str(), bar.files)).collect();
        assert_eq!(sizes, [("empty", 1), ("below 2 B", 1), ("below 2 KiB", 1), ("below 2 TiB", 1)]);
        let kinds: Vec<_> = answer.by_extension.iter().map(|bar| (bar.what.as_str(), bar.files)).collect();
        assert_eq!(kinds, [("(none)", 2), ("txt", 2)]);
        assert_eq!(answer.by_age.last().map(|bar| bar.what.as_str()), Some("older"));
        assert_eq!(answer.median_bytes_below, 2);
    }

    #[test]
    fn holes_are_not_packed() {
        let mut sizes = Sizes::default();
        sizes.file(OsStr::new("hole"), 1 << 40, 0, 0, 1, 1);
        sizes.file(OsStr::new("disk"), 1 << 40, 3 << 20, 3 << 20, 1, 1);
        sizes.file(OsStr::new("hi"), 2, 2, 4096, 1, 1);
        let packing = sizes.packing().expect("three files");
        assert_eq!((packing.files, packing.before.block_bytes), (3.0, 4096.0 + (3 << 20) as f64));
        assert_eq!(packing.before.put_requests, 3.0);
    }
}
