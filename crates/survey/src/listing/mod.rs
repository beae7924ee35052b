//! The files of a tree: each content once, in the order in which they lie.

mod directories;
mod groups;
mod holes;
mod parts;
mod walk;

pub use self::holes::{data_bytes, segments};
use self::parts::Inner;
use crate::bucket::{Bucket, BucketError, Object};
use crate::careful::Damage;
use crate::inside::Place;
use crate::sizes::Sizes;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use xxhash_rust::xxh3::xxh3_64;

/// Troubles that are named one by one; beyond that they are only counted.
pub const NAMED_MAX: usize = 1000;

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

impl Listing {
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
}
