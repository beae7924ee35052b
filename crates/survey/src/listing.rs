//! The files of a tree: each content once, in the order in which they lie.

use crate::bucket::{Bucket, BucketError, Object};
use crate::careful::Damage;
use crate::inside::{Part, Place};
use crate::sizes::Sizes;
use rustix::fs::{SeekFrom, seek};
use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

/// Troubles that are named one by one; beyond that they are only counted.
pub const NAMED_MAX: usize = 1000;

/// Files of this size and more have equal sizes seldom by chance.
const SIZE_TELLS: u64 = 32 << 10;
/// Threads that read directories: on a cold cache each waits for the device most of the time.
const WALKERS: usize = 8;
/// Directories that are read ahead of the one that is looked at.
const DIRECTORIES_AHEAD: usize = 64;
/// Entries of a directory that change hands at once.
const BATCH: usize = 256;
/// Batches of a directory that wait to be looked at: with those above a bound for memory, 16 MiB.
const BATCHES: usize = 4;
/// A cluster, of a unit of each file of a group, is at most one such part of all data: noise grows with clusters. With a
/// 200th instead, ranges of 9 GB of packages were 0.090 wide instead of 0.058.
const CLUSTER_PART: u64 = 2000;
/// Bytes that a cluster may have of little data.
const CLUSTER_MIN: u64 = 64 << 10;
/// Classes of groups by how many sizes they have: 1, 2, up to 4, up to 8, more.
pub const STRATA: usize = 5;

/// A file with content.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    directory: u32,
    name_at: u64,
    name_len: u16,
    /// Part of it is a hole, so its data must be looked for.
    pub sparse: bool,
    /// Its size.
    pub size: u64,
    /// Bytes of it that are not holes.
    pub data: u64,
    /// Time of its last change, in seconds since 1970.
    pub changed: i64,
    /// The file system's number, which goes along with the place on most.
    pub inode: u64,
    /// What its path below the root hashes to: the same for a tree wherever it lies.
    pub identity: u64,
    /// Files that are sampled together have equal numbers.
    pub group: u64,
    /// The first of its group with its size: others are likely to be copies of it.
    pub first: bool,
    /// By how many sizes its group has: below [`STRATA`].
    pub stratum: u8,
    /// Of a part of an image its index plus one; else zero.
    part: u32,
}

/// What is known of a part of an image beside its entry.
#[derive(Clone, Copy, Debug)]
struct Inner {
    /// Index of the image.
    image: u32,
    /// Number of its first unit in the image.
    first: u32,
    /// Index of its first place; its last is before that of the next one.
    places: u32,
    name: u64,
    parent: u64,
}

/// Something that was passed over, with the reason.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Trouble {
    /// The path, as far as it can be written as text.
    pub path: String,
    /// What was wrong.
    pub what: String,
    /// Of a part of a file: its first byte.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub offset: Option<u64>,
    /// Of a part of a file: its bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub len: Option<u64>,
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Trouble { path, what, .. } = self;
        match (self.offset, self.len) {
            (Some(offset), Some(len)) => write!(f, "{path}: {len} bytes from byte {offset} on: {what}"),
            _ => write!(f, "{path}: {what}"),
        }
    }
}

/// Troubles: all are counted, the first are named.
#[derive(Clone, Default, Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Troubles {
    /// How many.
    pub count: u64,
    /// The first of them.
    pub first: Vec<Trouble>,
}

impl Troubles {
    /// Adds one.
    pub fn add(&mut self, path: &Path, what: impl std::fmt::Display) {
        self.push(path, what.to_string(), None, None);
    }

    /// Adds a range of a file; what goes on where the last one ended is one with it.
    pub fn add_range(&mut self, path: &Path, damage: &Damage) {
        let name = path.to_string_lossy();
        if let Some(last) = self.first.last_mut()
            && last.path == name
            && last.what == damage.what
            && let (Some(offset), Some(len)) = (last.offset, &mut last.len)
            && (offset..=offset + *len).contains(&damage.offset)
        {
            *len = (*len).max(damage.offset + damage.len - offset);
            return;
        }
        self.push(path, damage.what.clone(), Some(damage.offset), Some(damage.len));
    }

    fn push(&mut self, path: &Path, what: String, offset: Option<u64>, len: Option<u64>) {
        self.count += 1;
        if self.first.len() < NAMED_MAX {
            self.first.push(Trouble { path: path.to_string_lossy().into_owned(), what, offset, len });
        }
    }
}

/// The files of a tree.
#[derive(Default)]
pub struct Listing {
    /// Files with content, hard links once, by inode number.
    pub entries: Vec<Entry>,
    directories: Vec<(u32, u64, u16)>,
    names: Vec<u8>,
    root: PathBuf,
    /// Images of whose files is known where they are: their entries are here, and those of their parts among the others.
    images: Vec<Entry>,
    parts: Vec<Inner>,
    /// Offsets in a part, and where its bytes are in the image.
    places: Vec<(u64, Place)>,
    /// Names are keys of objects, which may look like paths and are none.
    keys: bool,
    /// What the walk counted.
    pub sizes: Sizes,
    /// What could not be looked at.
    pub unreadable: Troubles,
    /// Sockets, devices and pipes, mount points of other file systems, loops.
    pub passed: Troubles,
}

/// How a walk can end early.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// The root cannot be looked at.
    #[error("{0}: {1}")]
    Root(PathBuf, io::Error),
    /// The bucket.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// There are too many files.
    #[error(
        "the names of the files alone take more than {0} bytes; give more with --memory, or survey parts of the tree"
    )]
    Memory(u64),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// How a tree or a bucket is looked through.
#[derive(Clone, Copy)]
pub struct Look<'a> {
    /// The present time, seconds since 1970.
    pub now: i64,
    /// Bytes that the list may take.
    pub memory: u64,
    /// Ends it.
    pub stop: &'a AtomicBool,
    /// Gets the number of files so far.
    pub progress: &'a dyn Fn(u64),
}

struct Walk<'a> {
    listing: Listing,
    device: u64,
    look: Look<'a>,
    linked: HashSet<u64>,
    seen: HashSet<u64>,
    /// Where something is mounted below the root.
    mounts: HashSet<PathBuf>,
}

impl Listing {
    /// Walks through the tree below `root`, without following symbolic links or entering other file systems.
    pub fn walk(root: &Path, look: Look<'_>) -> Result<Listing, WalkError> {
        let fail = |error| WalkError::Root(root.to_path_buf(), error);
        let metadata = std::fs::metadata(root).map_err(fail)?;
        let listing = Listing { root: root.to_path_buf(), ..Listing::default() };
        // A mount may lead back to the root itself.
        let (linked, seen) = (HashSet::new(), HashSet::from([metadata.ino()]));
        let (device, mounts) = (metadata.dev(), mounts_below(root));
        let mut walk = Walk { listing, device, look, linked, seen, mounts };
        std::fs::read_dir(root).map_err(fail)?;
        walk.all()?;
        let mut listing = walk.listing;
        listing.entries.sort_by_key(|entry| entry.inode);
        listing.identify();
        Ok(listing)
    }

    /// The objects of a bucket.
    pub fn of_bucket(bucket: &Bucket, look: Look<'_>) -> Result<Listing, WalkError> {
        let Look { now, memory, stop, progress } = look;
        let mut listing = Listing { root: bucket.name().into(), keys: true, ..Listing::default() };
        let mut full = false;
        bucket.list(stop, &mut |Object { key, size, written }| {
            let name = OsStr::new(key.rsplit('/').next().unwrap_or(&key));
            let depth = key.matches('/').count() as u32;
            listing.sizes.file(name, size, size, size, now - written, depth);
            let (inode, name_len) = (listing.entries.len() as u64, key.len().min(u16::MAX.into()) as u16);
            if size > 0 {
                let name_at = listing.names.len() as u64;
                listing.names.extend_from_slice(&key.as_bytes()[..usize::from(name_len)]);
                let (directory, sparse, identity, group, changed) = (0, false, 0, 0, written);
                let entry = Entry {
                    directory,
                    name_at,
                    name_len,
                    sparse,
                    size,
                    data: size,
                    changed,
                    inode,
                    identity,
                    group,
                    first: true,
                    stratum: 0,
                    part: 0,
                };
                listing.entries.push(entry);
            }
            progress(listing.sizes.files);
            full = listing.entries.capacity() * size_of::<Entry>() + listing.names.capacity() > memory as usize;
            !full
        })?;
        if full {
            return Err(WalkError::Memory(memory));
        }
        listing.identify();
        Ok(listing)
    }

    /// A single file or device.
    pub fn single(path: &Path, size: u64, data: u64, changed: i64) -> Listing {
        let mut listing = Listing { root: path.to_path_buf(), ..Listing::default() };
        let entry = Entry {
            directory: 0,
            name_at: 0,
            name_len: 0,
            sparse: data < size,
            size,
            data,
            changed,
            inode: 0,
            identity: 0,
            group: 0,
            first: true,
            stratum: 0,
            part: 0,
        };
        listing.entries.push(entry);
        listing
    }

    /// The path of a file.
    pub fn path(&self, entry: &Entry) -> PathBuf {
        if entry.name_len == 0 {
            return self.root.clone();
        }
        if self.keys {
            let mut path = self.root.clone().into_os_string();
            path.push("/");
            path.push(self.name(entry.name_at, entry.name_len));
            return path.into();
        }
        let mut path = self.directory(entry.directory);
        path.push(self.name(entry.name_at, entry.name_len));
        path
    }

    /// The number of the directory of a file of a tree, and its name in it.
    pub fn place(&self, entry: &Entry) -> Option<(u32, &OsStr)> {
        let found = (entry.directory, self.name(entry.name_at, entry.name_len));
        (entry.name_len > 0 && !self.keys).then_some(found)
    }

    /// The key of an object.
    pub fn key(&self, entry: &Entry) -> String {
        self.name(entry.name_at, entry.name_len).to_string_lossy().into_owned()
    }

    /// The path of a directory.
    pub fn directory(&self, number: u32) -> PathBuf {
        let (mut parts, mut number) = (Vec::new(), number);
        while number > 0 {
            let Some((parent, at, len)) = self.directories.get(number as usize - 1) else { break };
            parts.push(self.name(*at, *len));
            number = *parent;
        }
        let mut path = self.root.clone();
        path.extend(parts.iter().rev());
        path
    }

    fn name(&self, at: u64, len: u16) -> &OsStr {
        OsStr::from_bytes(self.names.get(at as usize..at as usize + usize::from(len)).unwrap_or_default())
    }

    /// The file that holds an entry: itself, or its image.
    pub fn whole<'a>(&'a self, entry: &'a Entry) -> &'a Entry {
        self.inner(entry).and_then(|inner| self.images.get(inner.image as usize)).unwrap_or(entry)
    }

    fn inner(&self, entry: &Entry) -> Option<&Inner> {
        self.parts.get((entry.part as usize).checked_sub(1)?)
    }

    /// All files, images as a whole.
    pub fn files(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.part == 0).chain(&self.images)
    }

    /// The place of a unit in the order in which units are read.
    pub fn order(&self, entry: &Entry, number: u32) -> (u64, u32) {
        (entry.inode, self.inner(entry).map_or(0, |inner| inner.first) + number)
    }

    /// Where the bytes of an entry from one offset up to another are in its file.
    pub fn pieces(&self, entry: &Entry, from: u64, to: u64) -> Vec<Place> {
        let Some(inner) = self.inner(entry) else { return vec![(from, to)] };
        let end = self.parts.get(entry.part as usize).map_or(self.places.len(), |next| next.places as usize);
        let places = self.places.get(inner.places as usize..end).unwrap_or_default();
        let first = places.partition_point(|(offset, (begin, end))| offset + (end - begin) <= from);
        let ahead = places[first..].iter().take_while(|(offset, _)| *offset < to);
        ahead
            .map(|(offset, (begin, end))| (begin + from.saturating_sub(*offset), (*end).min(begin + (to - offset))))
            .collect()
    }

    /// Room for files inside images, each with an extent or two, in so many bytes of memory.
    pub fn room(&self, memory: u64) -> usize {
        let taken = self.entries.len() * size_of::<Entry>() + self.names.len();
        (memory as usize).saturating_sub(taken) / (size_of::<Entry>() + size_of::<Inner>() + 4 * size_of::<Place>())
    }

    /// Takes the parts of images in the place of these; `found` are indices of entries, ascending, with the parts of each.
    pub fn divide(&mut self, found: Vec<(usize, Vec<Part>)>, unit_bytes: u64) {
        use crate::sample::mix;
        let mut found = found.into_iter().peekable();
        for (index, image) in std::mem::take(&mut self.entries).into_iter().enumerate() {
            let Some((_, parts)) = found.next_if(|(of, _)| *of == index) else {
                self.entries.push(image);
                continue;
            };
            let mut first = 0;
            for Part { name, parent, places } in parts {
                let data: u64 = places.iter().map(|(begin, end)| end - begin).sum();
                let (image_index, at) = (self.images.len() as u32, self.places.len() as u32);
                let mut offset = 0;
                let identity = mix(image.identity, places.first().map_or(0, |(begin, _)| *begin));
                for place in places {
                    self.places.push((offset, place));
                    offset += place.1 - place.0;
                }
                // What is of no file is like nothing else.
                let name = if name == 0 { identity } else { name };
                self.parts.push(Inner { image: image_index, first, places: at, name, parent });
                first += data.div_ceil(unit_bytes) as u32;
                let part = self.parts.len() as u32;
                self.entries.push(Entry { sparse: false, size: data, data, identity, part, ..image });
            }
            self.images.push(image);
        }
    }

    /// Bytes of data of all files.
    pub fn data_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.data).sum()
    }

    /// Bytes of the first files of each size in their group, and of all, by stratum.
    pub fn strata(&self) -> [[u64; 2]; STRATA] {
        let mut strata = [[0; 2]; STRATA];
        for entry in &self.entries {
            let [first, all] = &mut strata[usize::from(entry.stratum).min(STRATA - 1)];
            *first += if entry.first { entry.data } else { 0 };
            *all += entry.data;
        }
        strata
    }

    /// A number that differs when files came, went or changed.
    pub fn fingerprint(&self) -> u64 {
        use crate::sample::mix;
        self.entries.iter().fold(self.entries.len() as u64, |sum, entry| {
            mix(sum, mix(entry.inode ^ entry.identity, mix(entry.size, entry.changed as u64)))
        })
    }

    /// Gives each file its identity.
    fn identify(&mut self) {
        use crate::sample::mix;
        let hash = |at, len| xxh3_64(self.name(at, len).as_bytes());
        let mut directories = vec![0];
        for (above, at, len) in &self.directories {
            // A directory comes after the one that holds it.
            let above = directories.get(*above as usize).copied().unwrap_or_default();
            directories.push(mix(above, hash(*at, *len)));
        }
        let identities = self.entries.iter().map(|entry| {
            let above = directories.get(entry.directory as usize).copied().unwrap_or_default();
            mix(above, hash(entry.name_at, entry.name_len))
        });
        let identities: Vec<u64> = identities.collect();
        self.entries.iter_mut().zip(identities).for_each(|(entry, identity)| entry.identity = identity);
    }

    /// Puts files together that probably have content in common, so that they are sampled together: see
    /// [`crate::sample`]. What is likeliest comes first, and a cluster, of a unit of each file of a group, does not grow
    /// beyond a small part of all data.
    pub fn group(&mut self, unit_bytes: u64) {
        use crate::sample::mix;
        let data = self.data_bytes();
        let whole = |entry: &Entry| self.name(entry.name_at, entry.name_len).as_bytes();
        // Keys hold the names of their directories.
        let part =
            |entry: &Entry, from_end: usize| whole(entry).rsplit(|byte| *byte == b'/').nth(from_end).map_or(0, xxh3_64);
        let name = |entry: &Entry| self.inner(entry).map_or_else(|| part(entry, 0), |inner| inner.name);
        let parent_outside = |entry: &Entry| match self.directories.get((entry.directory as usize).wrapping_sub(1)) {
            Some((_, at, len)) => xxh3_64(self.name(*at, *len).as_bytes()),
            None => part(entry, 1),
        };
        let parent = |entry: &Entry| self.inner(entry).map_or_else(|| parent_outside(entry), |inner| inner.parent);
        let mut groups = Groups::new(&self.entries, unit_bytes, data);
        groups.join(Likeness::Strong, |entry| mix(name(entry), entry.size));
        groups.join(Likeness::Weak, |entry| mix(name(entry), parent(entry)));
        groups.join(Likeness::Weak, name);
        // Small files have equal sizes by chance.
        groups.join(Likeness::Weak, |entry| if entry.size < SIZE_TELLS { entry.identity } else { entry.size });
        let roots: Vec<u32> = (0..self.entries.len() as u32).map(|index| groups.root(index)).collect();
        let mut order: Vec<u32> = (0..roots.len() as u32).collect();
        order.sort_unstable_by_key(|index| {
            let entry = &self.entries[*index as usize];
            (roots[*index as usize], entry.size, entry.identity)
        });
        let names: Vec<u64> = roots.iter().map(|root| self.entries[*root as usize].identity).collect();
        self.entries.iter_mut().zip(names).for_each(|(entry, name)| entry.group = name);
        for same in order.chunk_by(|one, other| roots[*one as usize] == roots[*other as usize]) {
            let (mut sizes, mut last) = (0usize, None);
            for index in same {
                let entry = &mut self.entries[*index as usize];
                entry.first = last != Some(entry.size);
                sizes += usize::from(entry.first);
                last = Some(entry.size);
            }
            let stratum = (sizes.next_power_of_two().ilog2() as usize).min(STRATA - 1) as u8;
            same.iter().for_each(|index| self.entries[*index as usize].stratum = stratum);
        }
    }
}

/// What equal keys say of two files.
#[derive(Clone, Copy, PartialEq)]
enum Likeness {
    /// They are copies: as many as fit into a group.
    Strong,
    /// They are copies or versions, unless so many have the key that it says nothing.
    Weak,
}

/// Disjoint groups of files.
struct Groups<'a> {
    entries: &'a [Entry],
    /// The file above in the tree of the group; of its root the root itself.
    above: Vec<u32>,
    /// Of roots: bytes of the group in one cluster of the sample.
    bytes: Vec<u64>,
    unit_bytes: u64,
    /// Bytes of all files.
    data: u64,
}

impl Groups<'_> {
    fn new(entries: &[Entry], unit_bytes: u64, data: u64) -> Groups<'_> {
        let bytes = entries.iter().map(|entry| entry.size.min(unit_bytes)).collect();
        Groups { entries, above: (0..entries.len() as u32).collect(), bytes, unit_bytes, data }
    }

    fn root(&mut self, index: u32) -> u32 {
        let mut at = index;
        while self.above[at as usize] != at {
            // Halves the way for those who come later.
            let above = self.above[at as usize];
            self.above[at as usize] = self.above[above as usize];
            at = above;
        }
        at
    }

    /// Joins groups that have a key in common, as far as they stay small.
    fn join(&mut self, likeness: Likeness, key: impl Fn(&Entry) -> u64) {
        // By identity, not by inode number: the same tree has the same groups wherever it lies.
        let mut keys: Vec<(u64, u64, u32)> =
            self.entries.iter().zip(0..).map(|(entry, index)| (key(entry), entry.identity, index)).collect();
        keys.sort_unstable();
        for same in keys.chunk_by(|one, other| one.0 == other.0) {
            if same.len() < 2 {
                continue;
            }
            let size = |(.., index): &(u64, u64, u32)| self.entries[*index as usize].size.min(self.unit_bytes);
            let most = (self.data / CLUSTER_PART).max(CLUSTER_MIN);
            if likeness != Likeness::Strong && same.iter().map(size).sum::<u64>() > most {
                continue;
            }
            same.windows(2).for_each(|pair| self.unite(pair[0].2, pair[1].2, most));
        }
    }

    /// Makes one group of those of two files, if it stays small.
    fn unite(&mut self, one: u32, other: u32, most: u64) {
        let [one, other] = [one, other].map(|index| self.root(index));
        let bytes = self.bytes[one as usize] + self.bytes[other as usize];
        if one != other && bytes <= most {
            self.above[other as usize] = one;
            self.bytes[one as usize] = bytes;
        }
    }
}

impl Walk<'_> {
    /// Goes through the tree, level by level: the same tree always gives the same list, whoever reads ahead.
    fn all(&mut self) -> Result<(), WalkError> {
        let (to_readers, jobs) = channel();
        let jobs = Mutex::new(jobs);
        std::thread::scope(|scope| {
            for _ in 0..WALKERS {
                scope.spawn(|| read_directories(&jobs));
            }
            // What is left of the queue goes at the end, and the readers with it.
            self.through(to_readers)
        })
    }

    fn through(&mut self, to_readers: Sender<Job>) -> Result<(), WalkError> {
        let (mut waiting, mut ahead) = (VecDeque::from([(0u32, 0u32)]), VecDeque::new());
        loop {
            while ahead.len() < DIRECTORIES_AHEAD
                && let Some((number, depth)) = waiting.pop_front()
            {
                let path = self.listing.directory(number);
                let (to_us, batches) = sync_channel(BATCHES);
                // Readers end only after this does.
                let _ = to_readers.send(Job { path: path.clone(), to_us });
                ahead.push_back((number, depth, path, batches));
            }
            let Some((number, depth, path, batches)) = ahead.pop_front() else { return Ok(()) };
            self.listing.sizes.directories += 1;
            for found in batches.iter().flatten() {
                match found {
                    Ok((name, metadata)) if metadata.is_dir() => {
                        if let Some(number) = self.directory(number, &path, name, &metadata) {
                            waiting.push_back((number, depth + 1));
                        }
                    }
                    Ok((name, metadata)) => self.other(number, depth, &path, name, &metadata),
                    Err(error) => self.listing.unreadable.add(&path, error),
                }
            }
            if self.look.stop.load(Ordering::Acquire) {
                return Err(WalkError::Interrupted);
            }
            if self.taken() > self.look.memory {
                return Err(WalkError::Memory(self.look.memory));
            }
            (self.look.progress)(self.listing.sizes.files);
        }
    }

    /// Bytes of memory for what was found.
    fn taken(&self) -> u64 {
        let listing = &self.listing;
        let taken = listing.entries.capacity() * size_of::<Entry>()
            + listing.directories.capacity() * size_of::<(u32, u64, u16)>()
            + listing.names.capacity()
            + (self.linked.capacity() + self.seen.capacity()) * 16;
        taken as u64
    }

    /// A subdirectory, unless it is to be passed over.
    fn directory(&mut self, parent: u32, path: &Path, name: OsString, metadata: &Metadata) -> Option<u32> {
        if metadata.dev() != self.device {
            self.listing.passed.add(&path.join(name), "another file system is mounted there");
            return None;
        }
        if !self.seen.insert(metadata.ino()) {
            self.listing.passed.add(&path.join(name), "this directory is reached a second time: a loop of mounts");
            return None;
        }
        let (at, len) = self.keep(name);
        self.listing.directories.push((parent, at, len));
        Some(self.listing.directories.len() as u32)
    }

    fn keep(&mut self, name: OsString) -> (u64, u16) {
        let name = name.into_vec();
        let at = self.listing.names.len() as u64;
        self.listing.names.extend_from_slice(&name);
        (at, name.len() as u16)
    }

    fn other(&mut self, directory: u32, depth: u32, path: &Path, name: OsString, metadata: &Metadata) {
        let kind = metadata.file_type();
        if kind.is_symlink() {
            self.listing.sizes.symlinks += 1;
            return;
        }
        if !kind.is_file() {
            let what = match () {
                () if kind.is_socket() => "a socket",
                () if kind.is_fifo() => "a pipe",
                () => "a device",
            };
            self.listing.sizes.special += 1;
            self.listing.passed.add(&path.join(name), what);
            return;
        }
        if metadata.dev() != self.device || !self.mounts.is_empty() && self.mounts.contains(&path.join(&name)) {
            self.listing.passed.add(&path.join(name), "a file is mounted there");
            return;
        }
        if metadata.nlink() > 1 && !self.linked.insert(metadata.ino()) {
            self.listing.sizes.further_links += 1;
            return;
        }
        let size = metadata.size();
        let allocated = metadata.blocks().saturating_mul(512);
        // Small files may lie in their inode, and then have no blocks and no holes.
        let sparse = allocated < size && size > 4096;
        let data = if sparse { data_bytes(&path.join(&name), size).unwrap_or(size) } else { size };
        self.listing.sizes.file(&name, size, data, allocated, self.look.now - metadata.mtime(), depth);
        if data == 0 {
            return;
        }
        let (name_at, name_len) = self.keep(name);
        let (changed, inode) = (metadata.mtime(), metadata.ino());
        let entry = Entry {
            directory,
            name_at,
            name_len,
            sparse: data < size,
            size,
            data,
            changed,
            inode,
            identity: 0,
            group: 0,
            first: true,
            stratum: 0,
            part: 0,
        };
        self.listing.entries.push(entry);
    }
}

/// A directory to be read.
struct Job {
    path: PathBuf,
    to_us: SyncSender<Batch>,
}

/// A part of what a directory holds.
type Batch = Vec<io::Result<(OsString, Metadata)>>;

/// Reads directories until there are no more.
fn read_directories(jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { path, to_us }) = job else { return };
        let mut entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) => {
                // Whoever waits for it may have been stopped.
                let _ = to_us.send(vec![Err(error)]);
                continue;
            }
        };
        loop {
            let look = |entry: io::Result<DirEntry>| entry.and_then(|entry| Ok((entry.file_name(), entry.metadata()?)));
            let batch: Batch = entries.by_ref().take(BATCH).map(look).collect();
            if batch.is_empty() || to_us.send(batch).is_err() {
                break;
            }
        }
    }
}

/// Mount points below a directory, in paths that begin as its own does.
fn mounts_below(root: &Path) -> HashSet<PathBuf> {
    let (Ok(whole), Ok(mounts)) = (std::fs::canonicalize(root), std::fs::read("/proc/self/mountinfo")) else {
        return HashSet::new();
    };
    // Fields: id, parent, major:minor, root, mount point.
    let places = mounts.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    let below = |place: &[u8]| {
        let place = PathBuf::from(OsString::from_vec(unescape(place)));
        Some(root.join(place.strip_prefix(&whole).ok()?))
    };
    places.filter_map(below).collect()
}

/// Undoes the octal escapes of `/proc/self/mountinfo`, as `\040` for a space.
fn unescape(field: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), field);
    while let [first, after @ ..] = rest {
        let octal = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

/// Bytes of a file that are not holes.
fn data_bytes(path: &Path, size: u64) -> io::Result<u64> {
    let file = File::open(path)?;
    let mut sum = 0;
    segments(&file, 0, size, &mut |from, to| {
        sum += to - from;
        true
    })?;
    Ok(sum)
}

/// Calls `each` with the ranges of data in a range of a file, for as long as it likes.
pub fn segments(file: &File, from: u64, to: u64, each: &mut dyn FnMut(u64, u64) -> bool) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let begin = match seek(file, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            Err(rustix::io::Errno::NXIO) => return Ok(()),
            // The file system cannot tell: all is data.
            Err(_) => at,
        };
        if begin >= to {
            return Ok(());
        }
        let end = seek(file, SeekFrom::Hole(begin)).unwrap_or(to).clamp(begin + 1, to);
        if !each(begin.max(at), end) {
            return Ok(());
        }
        at = end;
    }
    Ok(())
}
