//! Files that come and go between two snapshots (thesis, section 3.2.1).
//!
//! A *profile* is what short-lived files did on one day in one directory. Each day gets some of them, by chance: one for
//! every 40 MB of the file system; they go to the directories in which most happened that day, and each is moved in time so
//! that its busiest hour is that of its directory.
//!
//! Departs  the thesis's 449 profiles are of an NFS trace that was not published. Here as many are made from the published
//!          numbers: lifetimes as Sprite and HP-UX had them (section 2.2), sizes by the body of Impressions (FAST '09), and
//!          so many files in a profile that 215 days of 1 GB have 1.3 million operations.

use super::builder::Builder;
use super::record::{Act, Record, Writing};
use ashlar_models::Chance;
use ashlar_survey::sample::mix;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;

/// An hour in nanoseconds.
pub(super) const HOUR_NS: i64 = 3_600_000_000_000;
/// As many as the thesis has.
const PROFILES: u64 = 449;
/// Directories that share the profiles of a day, at most.
const DIRECTORIES_MAX: usize = 32;

/// How many short-lived files there are, and how they live.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortLived {
    /// Bytes of the file system for each profile of a day.
    pub bytes_per_profile: u64,
    /// Mean number of files in a profile.
    pub files: f64,
    /// Share of the files that are deleted within 30 seconds; the others live for up to a day.
    pub within_30_s: f64,
    /// Mean and standard deviation of the logarithm of sizes in bytes.
    pub log_size: (f64, f64),
    /// The largest size in bytes.
    pub size_max: u64,
}

impl ShortLived {
    /// As in the thesis, as far as it tells.
    pub const THESIS: ShortLived = ShortLived {
        bytes_per_profile: 40_000_000,
        // 1.3 million operations, of which nearly all are of short-lived files, in 215 days of 25 profiles.
        files: 120.0,
        within_30_s: 0.35,
        log_size: (9.48, 2.46),
        size_max: 16 << 20,
    };

    /// The files of a profile: when in the day each was made, how long it lived, its size.
    fn profile(&self, number: u64) -> Vec<(i64, i64, u64)> {
        let mut chance = Chance::new(mix(number, 0x5407));
        let count = (-(1.0 - chance.unit()).ln() * self.files).ceil().clamp(1.0, 20.0 * self.files) as u64;
        // Work comes in sittings: a third of the day about a middle.
        let middle_h = 9.0 + 8.0 * chance.unit();
        let file = |_| {
            let at_h = (middle_h + 2.0 * chance.normal()).rem_euclid(24.0);
            let life_s = if chance.unit() < self.within_30_s {
                0.1 * 300f64.powf(chance.unit())
            } else {
                // From half a minute to a day, equal shares of each doubling.
                30.0 * 2880f64.powf(chance.unit())
            };
            let size = (self.log_size.0 + self.log_size.1 * chance.normal()).exp().min(self.size_max as f64);
            ((at_h * HOUR_NS as f64) as i64, (life_s * 1e9) as i64, size as u64)
        };
        (0..count).map(file).collect()
    }

    /// Adds files to the days between two times, by what else happened there: hours by day and directory. Returns how many.
    pub(super) fn add(
        &self,
        activity: &HashMap<(i64, u64), [u16; 24]>,
        (from_ns, to_ns): (i64, i64),
        capacity: u64,
        seed: u64,
        builder: &mut Builder,
    ) -> io::Result<u64> {
        let mut chance = Chance::new(mix(seed, 0x54));
        let mut days = BTreeMap::<i64, Vec<(u64, [u16; 24])>>::new();
        for ((day, directory), hours) in activity {
            days.entry(*day).or_default().push((*directory, *hours));
        }
        let profiles = (capacity / self.bytes_per_profile.max(1)).max(1);
        let mut count = 0;
        for (day, mut directories) in days {
            directories
                .sort_by_key(|(id, hours)| (u64::MAX - hours.iter().map(|hour| u64::from(*hour)).sum::<u64>(), *id));
            directories.truncate(DIRECTORIES_MAX.min(profiles as usize));
            for _ in 0..profiles {
                let (parent, hours) = directories[chance.below(directories.len() as u64) as usize];
                let profile = self.profile(chance.below(PROFILES));
                let busiest = |hours: &[u16; 24]| (0..24).rev().max_by_key(|hour| hours[*hour]).unwrap_or(0) as i64;
                let mut own = [0u16; 24];
                profile.iter().for_each(|(at_ns, ..)| own[(at_ns / HOUR_NS) as usize % 24] += 1);
                let shift_ns = (busiest(&hours) - busiest(&own)) * HOUR_NS;
                for (at_ns, life_ns, size) in profile {
                    // What is shifted out of the day comes in at its other end.
                    let at_ns = day * 24 * HOUR_NS + (at_ns + shift_ns).rem_euclid(24 * HOUR_NS);
                    if at_ns < from_ns || at_ns.saturating_add(life_ns) > to_ns {
                        continue;
                    }
                    count += 1;
                    let id = mix(mix(seed, 0x1d), count).max(1);
                    let create = Act::Create { parent, name_len: 12, size, how: Writing::default() };
                    builder.push(Record { at_ns, id, act: create })?;
                    builder.push(Record { at_ns: at_ns + life_ns, id, act: Act::Delete })?;
                }
            }
        }
        Ok(count)
    }
}

impl fmt::Display for ShortLived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ShortLived { bytes_per_profile, files, within_30_s, log_size: (mean, deviation), size_max } = self;
        write!(
            f,
            "a profile of {files} files for every {bytes_per_profile} bytes and day, {within_30_s} of them gone within 30 s, \
             sizes exp(normal({mean}, {deviation})) up to {size_max}"
        )
    }
}
