//! Which files are used together: sets of files that a stream of accesses has side by side (section 3.2 of the paper, a variant
//! of Apriori).
//!
//! Accesses to files that are too rare are left out of a batch; then pairs of neighbours are counted, and windows of three and
//! more, as long as all smaller sets of a window were frequent. A set of more members takes a file before others do. So files
//! that always come in one and the same order come out in pairs: the first and the third are never neighbours.
//!
//! Departs: of sets that have a file in common and as many members, the more frequent takes it, and then the first; the paper
//! takes the newest, and its groups change from day to day.

use crate::common::Refused;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::BufRead;

/// Accesses of a batch.
const BATCH: usize = 50_000;
/// Most files of a set: windows beyond are not tried.
const SET_MAX: usize = 64;
/// Longest name, bytes.
const NAME_LEN_MAX: u64 = 4096;
/// Most different files, and bytes of all their names.
const FILES_MAX: usize = 1 << 22;
const NAMES_LEN_MAX: usize = 256 << 20;
/// Most accesses: they take 512 MiB.
const ACCESSES_MAX: usize = 1 << 27;
/// Groups that are shown by name.
const SHOWN: usize = 20;

/// Files by number, and how often a window held just them.
pub type Sets = BTreeMap<BTreeSet<u32>, u64>;

/// Sets of at least two files that come side by side at least `least` times, without such as are part of others.
pub fn frequent(stream: &[u32], least: u64) -> Sets {
    let mut counts: HashMap<u32, u64> = HashMap::new();
    stream.iter().for_each(|file| *counts.entry(*file).or_default() += 1);
    let stream: Vec<u32> = stream.iter().copied().filter(|file| counts[file] >= least).collect();
    let mut kept = Sets::new();
    let mut level: Sets = counted(&stream, 2, |_| true);
    level.retain(|_, count| *count >= least);
    for size in 3..=SET_MAX {
        let before = level;
        level = if before.is_empty() {
            Sets::new()
        } else {
            counted(&stream, size, |set| smaller(set).all(|smaller| before.contains_key(&smaller)))
        };
        level.retain(|_, count| *count >= least);
        let parts: BTreeSet<BTreeSet<u32>> = level.keys().flat_map(smaller).collect();
        kept.extend(before.into_iter().filter(|(set, _)| !parts.contains(set)));
        if level.is_empty() {
            break;
        }
    }
    kept.extend(level);
    kept
}

/// The sets that have one file less.
fn smaller(set: &BTreeSet<u32>) -> impl Iterator<Item = BTreeSet<u32>> + '_ {
    set.iter().map(|left_out| set.iter().copied().filter(|file| file != left_out).collect())
}

/// Windows of different neighbours, and how often each set of them came.
fn counted(stream: &[u32], size: usize, wanted: impl Fn(&BTreeSet<u32>) -> bool) -> Sets {
    let mut sets = Sets::new();
    for window in stream.windows(size) {
        let set: BTreeSet<u32> = window.iter().copied().collect();
        if set.len() < size {
            continue;
        }
        if let Some(count) = sets.get_mut(&set) {
            *count += 1;
        } else if wanted(&set) {
            sets.insert(set, 1);
        }
    }
    sets
}

/// Sets that have no file in common: a file goes to the set with most members, then to the most frequent. What is left of a set
/// is one if it has two files.
pub fn disjoint(sets: Sets) -> Vec<(BTreeSet<u32>, u64)> {
    let mut sets: Vec<_> = sets.into_iter().collect();
    sets.sort_by_key(|(set, count)| (std::cmp::Reverse(set.len()), std::cmp::Reverse(*count)));
    let mut taken: BTreeSet<u32> = BTreeSet::new();
    let mut groups = Vec::new();
    for (set, count) in sets {
        let left: BTreeSet<u32> = set.difference(&taken).copied().collect();
        if left.len() >= 2 {
            taken.extend(&left);
            groups.push((left, count));
        }
    }
    groups
}

/// Files that are used together.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Group {
    /// Their names, in alphabetical order.
    pub files: Vec<String>,
    /// How often all of them came side by side.
    pub accesses: u64,
}

/// How accesses group files.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Grouping {
    /// Accesses.
    pub accesses: u64,
    /// Different files.
    pub files: u64,
    /// Groups.
    pub groups: u64,
    /// Files in groups.
    pub grouped_files: u64,
    /// Part of the accesses that go to files in groups.
    pub grouped_accesses: f64,
    /// Part of the accesses that go to another file of the same group as the access before: these need no inode of their own.
    pub followed: f64,
    /// The largest groups.
    pub largest: Vec<Group>,
}

/// Groups of the files whose names are the lines of `input`, in the order in which they were used. A set is frequent if it makes
/// up the part `support` of a batch of 50,000 accesses, and comes at least twice.
pub fn read(mut input: impl BufRead, support: f64) -> Result<Grouping, Refused> {
    crate::common::within("the support of a group", support, 0.0, 1.0)?;
    let mut numbers: HashMap<Vec<u8>, u32> = HashMap::new();
    let (mut names_len, mut stream, mut line) = (0, Vec::new(), Vec::new());
    for number in 1.. {
        line.clear();
        let refuse = |what: &str| Refused(format!("line {number}: {what}; write the name of a file in each line"));
        let taken = std::io::Read::take(&mut input, NAME_LEN_MAX + 1).read_until(b'\n', &mut line);
        if taken.map_err(|error| refuse(&error.to_string()))? == 0 {
            break;
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if line.len() as u64 > NAME_LEN_MAX {
            return Err(refuse("the name is longer than 4096 bytes"));
        }
        if line.is_empty() {
            continue;
        }
        let file = match numbers.get(&line) {
            Some(file) => *file,
            None => {
                let next = numbers.len() as u32;
                names_len += line.len();
                numbers.insert(line.clone(), next);
                next
            }
        };
        stream.push(file);
        if numbers.len() > FILES_MAX || names_len > NAMES_LEN_MAX || stream.len() > ACCESSES_MAX {
            return Err(Refused(format!(
                "there are more than {FILES_MAX} different files, {NAMES_LEN_MAX} bytes of names, or {ACCESSES_MAX} accesses: take \
                 those of a shorter time"
            )));
        }
    }
    if stream.is_empty() {
        return Err(Refused("there are no accesses; write the name of a file in each line".into()));
    }
    let mut names = vec![String::new(); numbers.len()];
    numbers.into_iter().for_each(|(name, file)| names[file as usize] = String::from_utf8_lossy(&name).into_owned());
    Ok(grouping(&stream, &names, support))
}

fn grouping(stream: &[u32], names: &[String], support: f64) -> Grouping {
    let mut sets = Sets::new();
    for batch in stream.chunks(BATCH) {
        let least = ((support * batch.len() as f64).ceil() as u64).max(2);
        frequent(batch, least).into_iter().for_each(|(set, count)| *sets.entry(set).or_default() += count);
    }
    let groups = disjoint(sets);
    let of: HashMap<u32, usize> =
        groups.iter().enumerate().flat_map(|(index, (set, _))| set.iter().map(move |file| (*file, index))).collect();
    let grouped = stream.iter().filter(|file| of.contains_key(file)).count();
    let same =
        |pair: &&[u32]| pair[0] != pair[1] && of.get(&pair[0]).is_some_and(|group| of.get(&pair[1]) == Some(group));
    let followed = stream.windows(2).filter(same).count();
    let show = |(set, accesses): &(BTreeSet<u32>, u64)| {
        let mut files: Vec<String> = set.iter().map(|file| names[*file as usize].clone()).collect();
        files.sort_unstable();
        Group { files, accesses: *accesses }
    };
    Grouping {
        accesses: stream.len() as u64,
        files: names.len() as u64,
        groups: groups.len() as u64,
        grouped_files: of.len() as u64,
        grouped_accesses: grouped as f64 / stream.len() as f64,
        followed: followed as f64 / stream.len() as f64,
        largest: groups.iter().take(SHOWN).map(show).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_models::Chance;

    /// The stream of the paper's example, and its sets with their counts.
    #[test]
    fn the_example_of_the_paper() {
        let text = "EDADADABCABCAD";
        let stream: Vec<u32> = text.bytes().map(|letter| u32::from(letter - b'A')).collect();
        let set = |text: &str| text.bytes().map(|letter| u32::from(letter - b'A')).collect::<BTreeSet<u32>>();
        let seen = |size| counted(&stream, size, |_| true);
        assert_eq!(["AD", "AB", "BC", "AC"].map(|pair| seen(2)[&set(pair)]), [6, 2, 2, 2]);
        assert_eq!(frequent(&stream, 2), Sets::from([(set("ABC"), 5), (set("AD"), 6)]));
        // A goes to the set with more members, and D is left alone.
        assert_eq!(disjoint(frequent(&stream, 2)), [(set("ABC"), 5)]);
        assert!(frequent(&stream, 7).is_empty());
    }

    #[test]
    fn groups_are_found_again_among_noise() {
        let mut chance = Chance::new(1);
        let mut text = String::new();
        for _ in 0..2000 {
            let group = chance.below(5);
            let mut members = [0, 1, 2, 3];
            (1..4).for_each(|last| members.swap(last, chance.below(last as u64 + 1) as usize));
            members.iter().for_each(|member| text += &format!("group{group}/{member}\n"));
            text += &format!("noise{}\n", chance.below(100_000));
        }
        let found = read(text.as_bytes(), 0.01).expect("accesses");
        assert_eq!((found.groups, found.grouped_files, found.accesses), (5, 20, 10_000));
        assert!(found.largest.iter().all(|group| group.files.len() == 4 && group.accesses >= 200), "{found:?}");
        assert!((found.grouped_accesses - 0.8).abs() < 1e-3 && (found.followed - 0.6).abs() < 0.05, "{found:?}");
        // Files that a crawler takes one after the other, at random, have no groups.
        let text: String = (0..10_000).map(|_| format!("file{}\n", chance.below(1000))).collect();
        assert_eq!(read(text.as_bytes(), 0.02).expect("accesses").groups, 0);
    }

    #[test]
    fn nonsense_is_refused() {
        read(&b""[..], 0.05).expect_err("nothing");
        read(&b"a\nb\n"[..], 2.0).expect_err("no such support");
        read("x".repeat(5000).as_bytes(), 0.05).expect_err("too long");
        assert_eq!(read(&b"a\n\xff\n"[..], 0.0).expect("two files").files, 2);
    }
}
