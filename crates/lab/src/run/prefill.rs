//! What must be there before a trace runs: what it finds without having made it.

use super::root::{Root, below};
use crate::noise::{Noise, PIECE_MAX};
use crate::snapshot::SnapshotReader;
use crate::trace::{Op, Record};
use crate::walk::Kind;
use ashlar_survey::sample::mix;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

/// What something is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A directory.
    Directory,
    /// A file of so many bytes.
    File(u64),
    /// A symbolic link.
    Link,
}

/// What must be there, by path below the root. Directories stand before what is in them.
pub type Needed = BTreeMap<String, Content>;

/// What was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Prefilled {
    /// Files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links; those of a trace point nowhere.
    pub links: u64,
    /// Bytes in files.
    pub bytes: u64,
}

/// Finds out what a trace needs: give it all records, in their order.
#[derive(Default)]
pub struct Finder {
    needed: Needed,
    /// What is there at this time, by what it was called before, if it was there before.
    now: HashMap<String, Option<String>>,
    /// What had something in it.
    holders: HashSet<String>,
    /// Directories that were renamed: what they were called before.
    moved: HashMap<String, String>,
    /// How far an open file was written by the trace itself.
    written: HashMap<u64, u64>,
    /// The name before of open files.
    open: HashMap<u64, Option<String>>,
    /// Open files that were made unless they were there: what they are called then.
    perhaps: HashMap<u64, (String, String)>,
}

impl Finder {
    /// What is at a path, and was there before: its name then. What is not known was there.
    fn before(&mut self, path: &str, content: Content) -> Option<String> {
        if path == "." {
            return None;
        }
        if let Some(known) = self.now.get(path) {
            return known.clone();
        }
        let above = path.rsplit_once('/').map_or(".", |(above, _)| above);
        // What is in a directory that the trace made, it made too, or it was moved there.
        let parent = self.before(above, Content::Directory);
        let made_above = above != "." && parent.is_none() && !self.moved.contains_key(above);
        let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
        let old = match parent {
            Some(parent) => format!("{parent}/{name}"),
            None => path.into(),
        };
        let origin = (!made_above).then_some(old);
        if let Some(old) = &origin {
            self.needed.entry(old.clone()).or_insert(content);
        }
        self.now.insert(path.into(), origin.clone());
        origin
    }

    fn at_least(&mut self, name: &Option<String>, size: u64) {
        if let Some(name) = name
            && let Some(Content::File(found)) = self.needed.get_mut(name)
        {
            *found = size.max(*found);
        }
    }

    fn is(&mut self, name: &Option<String>, content: Content) {
        if let Some(name) = name {
            self.needed.insert(name.clone(), content);
        }
    }

    /// Takes the next record.
    pub fn add(&mut self, record: &Record) {
        let (Some(path), true) = (below(&record.path), record.error == 0) else { return };
        if let Some((above, _)) = path.rsplit_once('/')
            && !self.holders.contains(above)
        {
            self.holders.insert(above.into());
        }
        let flags = OFlags::from_bits_retain(record.flags as u32);
        match record.op {
            Op::Open => {
                let made = flags.contains(OFlags::CREATE) && !self.now.contains_key(path);
                if made {
                    let (above, name) = path.rsplit_once('/').unwrap_or((".", path));
                    let parent = self.before(above, Content::Directory);
                    // Perhaps it was there; who reads what nobody wrote, or appends behind it, will tell.
                    if !flags.intersects(OFlags::EXCL | OFlags::TRUNC) && (above == "." || parent.is_some()) {
                        let old = parent.map_or(name.to_string(), |parent| format!("{parent}/{name}"));
                        self.perhaps.insert(record.file, (path.into(), old));
                    }
                    self.now.insert(path.into(), None);
                }
                let directory = flags.contains(OFlags::DIRECTORY);
                let content = if directory { Content::Directory } else { Content::File(0) };
                let name = self.before(path, content);
                if directory {
                    self.is(&name, Content::Directory);
                }
                if flags.contains(OFlags::TRUNC) {
                    self.written.insert(record.file, u64::MAX);
                }
                self.open.insert(record.file, name);
            }
            Op::Read | Op::Mmap | Op::Write if record.file != 0 || !record.path.is_empty() => {
                let written = self.written.get(&record.file).copied().unwrap_or(0);
                let found = match record.op {
                    Op::Write => record.offset > written,
                    _ => record.done > 0 && record.offset.saturating_add(record.done) > written,
                };
                if found && let Some((path, old)) = self.perhaps.remove(&record.file) {
                    self.needed.entry(old.clone()).or_insert(Content::File(0));
                    self.now.insert(path, Some(old.clone()));
                    self.open.insert(record.file, Some(old));
                }
                let name = match self.open.get(&record.file) {
                    Some(name) => name.clone(),
                    None => self.before(path, Content::File(0)),
                };
                let end = record.offset.saturating_add(if record.op == Op::Mmap { record.len } else { record.done });
                let written = self.written.entry(record.file).or_default();
                if record.op == Op::Write {
                    // Who appends found what lies before.
                    let start = record.offset;
                    if start <= *written {
                        *written = end.max(*written);
                    } else {
                        self.at_least(&name, start);
                    }
                } else if end > *written && record.done > 0 {
                    self.at_least(&name, end);
                }
            }
            Op::Getdents => {
                let name = self.before(path, Content::Directory);
                self.is(&name, Content::Directory);
            }
            Op::Readlink => {
                let name = self.before(path, Content::Link);
                self.is(&name, Content::Link);
            }
            Op::Mkdir | Op::Mknod | Op::Symlink => {
                if let Some((above, _)) = path.rsplit_once('/') {
                    self.before(above, Content::Directory);
                }
                self.now.insert(path.into(), None);
            }
            Op::Unlink | Op::Rmdir => {
                let name =
                    self.before(path, if record.op == Op::Rmdir { Content::Directory } else { Content::File(0) });
                if record.op == Op::Rmdir {
                    self.is(&name, Content::Directory);
                }
                self.now.insert(path.into(), None);
            }
            Op::Rename | Op::Link => {
                let Some(to) = below(&record.path2) else { return };
                let name = self.before(path, Content::File(0));
                if let Some((above, _)) = to.rsplit_once('/') {
                    self.before(above, Content::Directory);
                }
                self.now.insert(to.into(), name.clone());
                if record.op == Op::Rename {
                    self.now.insert(path.into(), None);
                    if let Some(name) = name {
                        self.moved.insert(to.into(), name);
                    }
                    if !self.holders.remove(path) {
                        return;
                    }
                    self.holders.insert(to.into());
                    let prefix = format!("{path}/");
                    let inside: Vec<String> =
                        self.now.keys().filter(|name| name.starts_with(&prefix)).cloned().collect();
                    for old in inside {
                        if let Some(origin) = self.now.remove(&old) {
                            self.now.insert(format!("{to}/{}", &old[prefix.len()..]), origin);
                        }
                    }
                }
            }
            Op::Close => {
                self.perhaps.remove(&record.file);
                self.written.remove(&record.file);
                self.open.remove(&record.file);
            }
            Op::Sync | Op::Statfs => {}
            _ if record.path.is_empty() => {}
            _ => {
                self.before(path, Content::File(0));
            }
        }
        if record.op == Op::Copy
            && let Some(from) = below(&record.path2)
        {
            let name = self.before(from, Content::File(0));
            self.at_least(&name, record.done);
        }
    }

    /// What they need to be there.
    pub fn finish(self) -> Needed {
        let mut needed = self.needed;
        // Whatever has something below it is a directory.
        let paths: Vec<String> = needed.keys().cloned().collect();
        for path in paths {
            let mut above = path.as_str();
            while let Some((directory, _)) = above.rsplit_once('/') {
                needed.insert(directory.into(), Content::Directory);
                above = directory;
            }
        }
        needed
    }
}

/// What a snapshot had, below the directory that it is of.
pub fn of_snapshot(path: &Path) -> Result<Needed, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut reader = SnapshotReader::new(BufReader::new(file)).map_err(|error| error.to_string())?;
    if reader.header().names_hashed {
        return Err("its names are hashes; take one without --hash-names".into());
    }
    let root = below(&reader.header().root).ok_or("its root is no plain absolute path")?.to_string();
    // Entries stand by inode number, so that a directory may come after what is in it.
    let mut all: HashMap<u64, (u64, String, Option<Content>)> = HashMap::new();
    while let Some(entry) = reader.entry().map_err(|error| error.to_string())? {
        let content = match entry.kind {
            Kind::File => Some(Content::File(entry.size)),
            Kind::Directory => Some(Content::Directory),
            Kind::Link => Some(Content::Link),
            Kind::Other => None,
        };
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        all.insert(entry.inode, (entry.parent, name, content));
    }
    let mut needed = Needed::new();
    for (parent, name, content) in all.values() {
        let (mut names, mut at) = (vec![name.as_str()], *parent);
        // A damaged one may have circles.
        while let Some((above, name, _)) = all.get(&at)
            && !name.is_empty()
            && names.len() <= all.len()
        {
            names.push(name);
            at = *above;
        }
        names.reverse();
        let inner = names.join("/");
        let path = match (root.as_str(), inner.is_empty()) {
            (".", _) => inner,
            (_, true) => root.clone(),
            _ => format!("{root}/{inner}"),
        };
        if let Some(content) = content
            && below(&path).is_some()
        {
            needed.insert(path, content.clone());
        }
    }
    Ok(needed)
}

/// Bytes in the files of what is needed.
pub fn bytes(needed: &Needed) -> u64 {
    let size = |content: &Content| if let Content::File(size) = content { *size } else { 0 };
    needed.values().map(size).fold(0, u64::saturating_add)
}

/// Makes what is needed. What is there already stays.
pub fn prefill(root: &Root, needed: &Needed, seed: u64) -> io::Result<Prefilled> {
    let (noise, mut made) = (Noise::new(seed), Prefilled::default());
    let failed = |path: &str, error: Errno| io::Error::new(io::Error::from(error).kind(), format!("/{path}: {error}"));
    let directory = |path: &str| -> Result<bool, Errno> {
        let (above, name) = root.place(path)?;
        match rustix::fs::mkdirat(above, name, Mode::from(0o755)) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error),
        }
    };
    for (path, content) in needed {
        // Parents may be missing in what a snapshot of a part has.
        let ends = path.match_indices('/').map(|(at, _)| at);
        for end in ends {
            made.directories += u64::from(directory(&path[..end]).map_err(|error| failed(path, error))?);
        }
        match content {
            Content::Directory => {
                made.directories += u64::from(directory(path).map_err(|error| failed(path, error))?);
            }
            Content::Link => {
                let (above, name) = root.place(path).map_err(|error| failed(path, error))?;
                match rustix::fs::symlinkat("nowhere", above, name) {
                    Ok(()) => made.links += 1,
                    Err(Errno::EXIST) => {}
                    Err(error) => return Err(failed(path, error)),
                }
            }
            Content::File(size) => {
                let flags = OFlags::WRONLY | OFlags::CREATE;
                let file = root.open(path, flags, Mode::from(0o644)).map_err(|error| failed(path, error))?;
                let mut at = 0;
                while at < *size {
                    let len = (*size - at).min(PIECE_MAX as u64) as usize;
                    match rustix::io::pwrite(&file, noise.piece(mix(seed, made.files), at, len), at) {
                        Ok(0) => return Err(failed(path, Errno::IO)),
                        Ok(written) => at += written as u64,
                        Err(Errno::INTR) => {}
                        Err(error) => return Err(failed(path, error)),
                    }
                }
                made.files += 1;
                made.bytes += size;
            }
        }
    }
    Ok(made)
}
