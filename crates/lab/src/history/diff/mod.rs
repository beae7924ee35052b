//! Successive snapshots compared (thesis, section 3.2.1).
//!
//! | seen | becomes |
//! | --- | --- |
//! | in the first snapshot | created at the time of its inode's change |
//! | new | created at that time |
//! | gone | deleted at a time that is guessed: [`Deletes`] |
//! | changed, same generation | modified at the time of the change; how much of it is guessed: [`Rewrites`] |
//! | another generation | deleted, and created at that time; the delete comes immediately before |
//!
//! What files without a generation are is told by their times of birth. [`Guesses::THESIS`] are the thesis's own guesses;
//! the default ones use what a snapshot here knows and there did not: names, times of content, and extents.
//! Short-lived files, which no snapshot sees, come from [`ShortLived`].

use super::builder::Builder;
use super::record::{Act, ROOT, Record, Writing};
use super::short::ShortLived;
use crate::frames::FrameError;
use crate::snapshot::{Header, SnapshotReader};
use crate::walk::{Entry, Kind};
use ashlar_models::Chance;
use ashlar_survey::sample::{fast_hash, mix};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// When a file that is gone was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletes {
    /// At any time between the snapshots, as the thesis has it.
    Random,
    /// If its name now stands for a new file, immediately before that was made: programs replace files so. Else at any time.
    Replaced,
}

/// What counts as a modification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Any change of the inode, as the thesis has it: also of its owner.
    Inode,
    /// A change of the time of content, or of the size.
    Content,
}

/// How much of a modified file was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewrites {
    /// All of it.
    Whole,
    /// What lies behind the extents that stayed where they were.
    Extents,
}

/// Everything that is guessed.
#[derive(Clone, Debug)]
pub struct Guesses {
    /// When files were deleted.
    pub deletes: Deletes,
    /// What a modification is.
    pub changes: Changes,
    /// How much was written.
    pub rewrites: Rewrites,
    /// Files that came and went between snapshots.
    pub short_lived: Option<ShortLived>,
    /// Share of the files that are synced after each write.
    pub sync_share: f64,
}

impl Guesses {
    /// Those of the thesis.
    pub const THESIS: Guesses = Guesses {
        deletes: Deletes::Random,
        changes: Changes::Inode,
        rewrites: Rewrites::Whole,
        short_lived: Some(ShortLived::THESIS),
        sync_share: 0.0,
    };
    /// Ours.
    pub const DEFAULT: Guesses = Guesses {
        deletes: Deletes::Replaced,
        changes: Changes::Content,
        rewrites: Rewrites::Extents,
        short_lived: Some(ShortLived::THESIS),
        sync_share: 0.0,
    };

    /// All guesses by name, for the header of the history.
    pub fn described(&self) -> Vec<(String, String)> {
        let short = self.short_lived.as_ref().map_or("none".into(), ToString::to_string);
        [
            ("deletes", format!("{:?}", self.deletes)),
            ("changes", format!("{:?}", self.changes)),
            ("rewrites", format!("{:?}", self.rewrites)),
            ("short-lived", short),
            ("sync-share", self.sync_share.to_string()),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .into()
    }
}

/// What the comparison of snapshots found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Found {
    /// Snapshots compared.
    pub snapshots: u64,
    /// Inodes of the first.
    pub initial: u64,
    /// Inodes that were new.
    pub new: u64,
    /// Inodes that were gone.
    pub gone: u64,
    /// Inodes that were changed.
    pub modified: u64,
    /// Inodes that had another generation.
    pub replaced: u64,
    /// Inodes that were in another directory.
    pub moved: u64,
    /// Short-lived files that were added.
    pub short_lived: u64,
}

/// Why snapshots cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// One of them cannot be read.
    #[error("{0}: {1}")]
    Snapshot(PathBuf, FrameError),
    /// They are not in order.
    #[error("{0} was taken before {1}: give snapshots in the order in which they were taken, oldest first")]
    Order(PathBuf, PathBuf),
    /// They cannot be compared.
    #[error("{0} has names and {1} hashes of names: take both in one way")]
    Names(PathBuf, PathBuf),
    /// The history cannot be written.
    #[error("{0}")]
    Io(#[from] io::Error),
}

type Reader = SnapshotReader<BufReader<File>>;

/// A snapshot with its directories by inode number.
struct Snapshot {
    path: PathBuf,
    taken_ns: i64,
    names_hashed: bool,
    total_bytes: u64,
    ids: HashMap<u64, u64>,
}

fn open(path: &Path) -> Result<Reader, FrameError> {
    SnapshotReader::new(BufReader::with_capacity(1 << 18, File::open(path)?))
}

impl Snapshot {
    fn read(path: &Path) -> Result<Snapshot, DiffError> {
        let failed = |error| DiffError::Snapshot(path.to_path_buf(), error);
        let mut reader = open(path).map_err(failed)?;
        let header = reader.header().clone();
        let mut ids = HashMap::new();
        while let Some(entry) = reader.entry().map_err(failed)? {
            if entry.kind == Kind::Directory {
                ids.insert(entry.inode, id(&entry));
            }
        }
        let Header { taken_ns, names_hashed, total_bytes, .. } = header;
        Ok(Snapshot { path: path.into(), taken_ns, names_hashed, total_bytes, ids })
    }

    /// Calls `each` with every entry but the root, then with `None`.
    fn entries(&self) -> Result<impl FnMut() -> Result<Option<Entry>, DiffError> + use<'_>, DiffError> {
        let failed = |error| DiffError::Snapshot(self.path.clone(), error);
        let mut reader = open(&self.path).map_err(failed)?;
        Ok(move || {
            loop {
                match reader.entry().map_err(failed)? {
                    Some(entry) if entry.inode == entry.parent => {}
                    entry => return Ok(entry),
                }
            }
        })
    }

    fn parent(&self, entry: &Entry) -> u64 {
        self.ids.get(&entry.parent).copied().unwrap_or(ROOT)
    }
}

/// What an inode is called in the history. An inode number that is used again gets another name.
fn id(entry: &Entry) -> u64 {
    if entry.inode == entry.parent {
        return ROOT;
    }
    let stamp = entry.born.map(|born| born as u64).or(entry.generation.map(u64::from)).unwrap_or(0);
    mix(entry.inode, stamp).max(1)
}

/// Whether two entries with one inode number are one file.
fn is_same(old: &Entry, new: &Entry) -> bool {
    let same = match (old.generation, new.generation, old.born, new.born) {
        (Some(old), Some(new), ..) => old == new,
        (.., Some(old), Some(new)) => old == new,
        _ => true,
    };
    same && old.kind == new.kind
}

/// Bytes at the beginning of a file that lie where they lay.
fn kept(old: &Entry, new: &Entry) -> u64 {
    let mut kept = 0;
    for (one, other) in old.extents.iter().zip(&new.extents) {
        if one.is_placeless() || (one.logical, one.physical) != (other.logical, other.physical) {
            break;
        }
        kept = one.logical.saturating_add(one.len.min(other.len));
        if one.len != other.len {
            break;
        }
    }
    kept.min(old.size).min(new.size)
}

struct Differ<'a> {
    guesses: &'a Guesses,
    seed: u64,
    chance: Chance,
    builder: &'a mut Builder,
    /// Hours in which something happened, by day and directory: for short-lived files.
    activity: HashMap<(i64, u64), [u16; 24]>,
    found: Found,
}

/// Compares snapshots, oldest first, and gives what happened to `builder`.
pub fn compare(
    paths: &[PathBuf],
    guesses: &Guesses,
    seed: u64,
    builder: &mut Builder,
) -> Result<(Found, u64), DiffError> {
    let (chance, activity) = (Chance::new(seed), HashMap::new());
    let mut differ = Differ { guesses, seed, chance, builder, activity, found: Found::default() };
    let mut before: Option<Snapshot> = None;
    let (mut capacity, mut first_ns) = (0, i64::MAX);
    for path in paths {
        let snapshot = Snapshot::read(path)?;
        capacity = capacity.max(snapshot.total_bytes);
        differ.found.snapshots += 1;
        match &before {
            None => {
                differ.initial(&snapshot)?;
                first_ns = snapshot.taken_ns;
            }
            Some(before) if before.taken_ns >= snapshot.taken_ns => {
                return Err(DiffError::Order(snapshot.path, before.path.clone()));
            }
            Some(before) if before.names_hashed != snapshot.names_hashed => {
                return Err(DiffError::Names(snapshot.path, before.path.clone()));
            }
            Some(before) => differ.pair(before, &snapshot)?,
        }
        before = Some(snapshot);
    }
    let last_ns = before.map_or(first_ns, |snapshot| snapshot.taken_ns);
    if let Some(short) = &guesses.short_lived {
        let activity = std::mem::take(&mut differ.activity);
        differ.found.short_lived = short.add(&activity, (first_ns, last_ns), capacity, seed, differ.builder)?;
    }
    Ok((differ.found, capacity))
}

impl Differ<'_> {
    fn writing(&self, id: u64) -> Writing {
        Writing { unit: 0, sync: fast_hash(self.seed, id) < self.guesses.sync_share }
    }

    fn create(&mut self, entry: &Entry, parent: u64, at_ns: i64) -> io::Result<()> {
        let (id, name_len) = (id(entry), entry.name.len().clamp(1, 255) as u8);
        let act = match entry.kind {
            Kind::Directory => Act::MakeDirectory { parent, name_len },
            Kind::File => Act::Create { parent, name_len, size: entry.size, how: self.writing(id) },
            // What has no content takes an inode and a name.
            Kind::Link | Kind::Other => Act::Create { parent, name_len, size: 0, how: Writing::default() },
        };
        self.builder.push(Record { at_ns, id, act })
    }

    fn initial(&mut self, snapshot: &Snapshot) -> Result<(), DiffError> {
        let mut entries = snapshot.entries()?;
        while let Some(entry) = entries()? {
            self.found.initial += 1;
            self.create(&entry, snapshot.parent(&entry), entry.changed.min(snapshot.taken_ns))?;
        }
        Ok(())
    }

    fn pair(&mut self, before: &Snapshot, after: &Snapshot) -> Result<(), DiffError> {
        let within = |at_ns: i64| at_ns.clamp(before.taken_ns, after.taken_ns);
        let (mut old_entries, mut new_entries) = (before.entries()?, after.entries()?);
        let (mut old, mut new) = (old_entries()?, new_entries()?);
        // Names that now stand for a new file, and since when; files that are gone, with their names.
        let (mut taken, mut gone) = (HashMap::new(), Vec::new());
        loop {
            let order = match (&old, &new) {
                (None, None) => break,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(old), Some(new)) => old.inode.cmp(&new.inode),
            };
            if order.is_lt() {
                if let Some(entry) = std::mem::replace(&mut old, old_entries()?) {
                    self.found.gone += 1;
                    gone.push((id(&entry), before.parent(&entry), xxh3_64(&entry.name)));
                }
                continue;
            }
            let Some(entry) = std::mem::replace(&mut new, new_entries()?) else { break };
            let former = if order.is_eq() { std::mem::replace(&mut old, old_entries()?) } else { None };
            let (parent, at_ns) = (after.parent(&entry), within(entry.changed));
            match former {
                Some(former) if is_same(&former, &entry) => self.same(&former, &entry, before, after, at_ns)?,
                former => {
                    self.active(at_ns, parent);
                    if let Some(former) = former {
                        self.found.replaced += 1;
                        self.builder.push(Record {
                            at_ns: at_ns.saturating_sub(1),
                            id: id(&former),
                            act: Act::Delete,
                        })?;
                    } else {
                        self.found.new += 1;
                    }
                    taken.insert((parent, xxh3_64(&entry.name)), at_ns);
                    self.create(&entry, parent, at_ns)?;
                }
            }
        }
        let span = after.taken_ns.abs_diff(before.taken_ns).max(1);
        for (id, parent, name) in gone {
            let replaced = taken.get(&(parent, name)).filter(|_| self.guesses.deletes == Deletes::Replaced);
            let at_ns = match replaced {
                Some(at_ns) => at_ns.saturating_sub(1),
                None => before.taken_ns.saturating_add_unsigned(self.chance.below(span)),
            };
            self.active(at_ns, parent);
            self.builder.push(Record { at_ns, id, act: Act::Delete })?;
        }
        Ok(())
    }

    /// A file that is in both.
    fn same(&mut self, old: &Entry, new: &Entry, before: &Snapshot, after: &Snapshot, at_ns: i64) -> io::Result<()> {
        let (id, parent) = (id(old), after.parent(new));
        if before.parent(old) != parent {
            self.found.moved += 1;
            let name_len = new.name.len().clamp(1, 255) as u8;
            self.builder.push(Record { at_ns, id, act: Act::Move { parent, name_len } })?;
        }
        let changed = match self.guesses.changes {
            Changes::Inode => old.changed != new.changed,
            Changes::Content => old.modified != new.modified || old.size != new.size,
        };
        if !changed || new.kind != Kind::File {
            return Ok(());
        }
        self.found.modified += 1;
        self.active(at_ns, parent);
        let keep = if self.guesses.rewrites == Rewrites::Extents { kept(old, new) } else { 0 };
        let act = Act::Modify { keep, size: new.size, how: self.writing(id) };
        self.builder.push(Record { at_ns, id, act })
    }

    fn active(&mut self, at_ns: i64, directory: u64) {
        let hour = at_ns.div_euclid(super::short::HOUR_NS);
        let hours = self.activity.entry((hour.div_euclid(24), directory)).or_insert([0; 24]);
        let count = &mut hours[hour.rem_euclid(24) as usize];
        *count = count.saturating_add(1);
    }
}

#[cfg(test)]
mod tests;
