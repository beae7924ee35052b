//! Taking a snapshot.

use super::format::{Closing, ENTRIES, FORMAT, FREE, FreeRange, HEADER, Header};
use super::listing::{self, Line};
use crate::frames::FrameWriter;
use crate::mounts::{Groups, mount_of};
use crate::partial::Partial;
use crate::sorter::Sorter;
use crate::walk::{Entry, Kind, WalkError, Walked, walk};
use ashlar_env::host::space_ranges;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// What becomes of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Names {
    /// They are kept.
    Kept,
    /// A hash of each with this key is kept: equal in all snapshots with the same key, and of no use to who lacks it.
    Hashed(String),
}

/// How a snapshot is taken.
#[derive(Clone, Debug)]
pub struct TakeOptions {
    /// The present time, nanoseconds since 1970.
    pub now_ns: i64,
    /// What becomes of names.
    pub names: Names,
    /// Bytes for sorting.
    pub memory: usize,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Taken {
    /// What it is of.
    pub header: Header,
    /// Counts.
    pub closing: Closing,
    /// What could not be looked at.
    pub walked: Walked,
    /// Why free space is not in it, where it is not.
    pub note: Option<String>,
}

/// Syncs the file system, and says what it is.
fn begin(root: &Path, options: &TakeOptions) -> Result<(File, Header), WalkError> {
    let handle = File::open(root).map_err(|error| WalkError::Root(root.to_path_buf(), error))?;
    // What is not written yet lies nowhere yet.
    rustix::fs::syncfs(&handle).map_err(io::Error::from)?;
    let space = rustix::fs::statvfs(root).map_err(io::Error::from)?;
    let mount = mount_of(root).ok();
    let header = Header {
        root: root.to_string_lossy().into_owned(),
        taken_ns: options.now_ns,
        groups: mount.as_ref().and_then(Groups::of),
        file_system: mount.map_or(String::new(), |mount| mount.file_system),
        block_bytes: space.f_frsize,
        total_bytes: space.f_blocks.saturating_mul(space.f_frsize),
        free_bytes: space.f_bfree.saturating_mul(space.f_frsize),
        names_hashed: options.names != Names::Kept,
    };
    Ok((handle, header))
}

/// Takes a snapshot of the tree below `root` into the file `to`, which appears when it is whole. `seen` gets the number of
/// names so far.
pub fn take(
    root: &Path,
    to: &Path,
    options: &TakeOptions,
    stop: &AtomicBool,
    seen: &dyn Fn(u64),
) -> Result<Taken, WalkError> {
    let (handle, header) = begin(root, options)?;
    // An hour of looking would be lost on a place where nothing can be written.
    let file = Partial::buffered(to)?;
    let directory = to.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut sorter = Sorter::new(options.memory, directory);
    let mut count = 0;
    let walked = walk(root, stop, &mut |mut entry: Entry, _| {
        if let Names::Hashed(key) = &options.names {
            entry.name = hashed(key, &entry.name);
        }
        count += 1;
        if count % 1024 == 0 {
            seen(count);
        }
        sorter.push(entry)
    })?;
    let mut frames = FrameWriter::new(file, &FORMAT)?;
    frames.put_header(HEADER, &header)?;
    let mut closing = Closing::default();
    let mut last = None;
    for entry in sorter.finish()? {
        let entry = entry?;
        if last.replace(entry.inode) == Some(entry.inode) {
            closing.further_names += 1;
            continue;
        }
        closing.count(&entry);
        frames.put_item(ENTRIES, &entry)?;
    }
    let note = put_free(&handle, &mut frames, &mut closing)?;
    Partial::finish_buffered(frames.finish(&closing.encode())?)?;
    Ok(Taken { header, closing, walked, note })
}

/// What came of a snapshot that is a text.
#[derive(Clone, Debug)]
pub struct Listed {
    /// What came of it. Counts are of names: a file with two is there twice.
    pub taken: Taken,
    /// Names that the text cannot have: of sockets, pipes and devices, and those with a line break.
    pub left_out: u64,
}

/// Takes a snapshot as the thesis keeps it: see [`listing`](super::listing). As [`take`], with names as they are; nothing
/// needs sorting. Directories without anything in them have no listing.
pub fn list(
    root: &Path,
    to: &Path,
    options: &TakeOptions,
    stop: &AtomicBool,
    seen: &dyn Fn(u64),
) -> Result<Listed, WalkError> {
    let (_, header) = begin(root, options)?;
    let mut file = Partial::buffered(to)?;
    let (mut closing, mut left_out, mut text, mut count) = (Closing::default(), 0, Vec::new(), 0);
    let mut listed = root.to_path_buf();
    let walked = walk(root, stop, &mut |entry: Entry, directory| {
        count += 1;
        if count % 1024 == 0 {
            seen(count);
        }
        text.clear();
        let below = directory.strip_prefix(root).unwrap_or(directory).as_os_str().as_bytes();
        if breaks(below) {
            left_out += 1;
            return Ok(());
        }
        if directory != listed {
            let path = [b"./", below, b"/"].concat();
            Line::End.put(&mut text);
            Line::Directory(path).put(&mut text);
            listed = directory.to_path_buf();
        }
        match line(&entry, directory) {
            Some(line) => {
                closing.count(&entry);
                line.put(&mut text);
            }
            None => left_out += 1,
        }
        file.write_all(&text)
    })?;
    text.clear();
    Line::End.put(&mut text);
    file.write_all(&text)?;
    Partial::finish_buffered(file)?;
    Ok(Listed { taken: Taken { header, closing, walked, note: None }, left_out })
}

fn breaks(text: &[u8]) -> bool {
    text.contains(&b'\n')
}

/// What a listing says of an entry, if it can.
fn line(entry: &Entry, directory: &Path) -> Option<Line> {
    let Entry { inode, kind, size, .. } = *entry;
    if entry.name.is_empty() {
        return Some(Line::Root { name: b"./".to_vec(), inode, size });
    }
    let link = match kind {
        // None if it went away since it was found.
        Kind::Link => Some(std::fs::read_link(directory.join(OsStr::from_bytes(&entry.name))).ok()?),
        _ => None,
    };
    let link = link.map(|link| link.into_os_string().into_vec());
    if kind == Kind::Other || breaks(&entry.name) || link.as_deref().is_some_and(breaks) {
        return None;
    }
    Some(Line::Entry(listing::Listed { inode, kind, size, name: entry.name.clone(), link }))
}

/// Writes the free ranges; what is returned says why there are none.
fn put_free<W: Write>(handle: &File, frames: &mut FrameWriter<W>, closing: &mut Closing) -> io::Result<Option<String>> {
    let mut failed = None;
    let told = space_ranges(handle, |at, len, is_free| {
        if !is_free {
            return ControlFlow::Continue(());
        }
        closing.free_ranges += 1;
        closing.free_range_bytes += len;
        if let Err(error) = frames.put_item(FREE, &FreeRange(at, len)) {
            failed = Some(error);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    match (told, failed) {
        (_, Some(error)) => Err(error),
        (Ok(()), None) => Ok(None),
        (Err(error), None) => Ok(Some(format!("where space is free is not in it: {error}"))),
    }
}

fn hashed(key: &str, name: &[u8]) -> Vec<u8> {
    if name.is_empty() {
        return Vec::new();
    }
    let mut hasher = blake3::Hasher::new_derive_key("ashlar 2026-11 names in snapshots");
    hasher.update(&(key.len() as u64).to_le_bytes());
    hasher.update(key.as_bytes());
    hasher.update(name);
    hasher.finalize().to_hex().as_bytes()[..16].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::SnapshotReader;
    use crate::walk::Kind;

    fn options(names: Names, memory: usize) -> TakeOptions {
        TakeOptions { now_ns: 7, names, memory }
    }

    fn read(path: &Path) -> (Vec<Entry>, Closing) {
        let mut reader = SnapshotReader::new(File::open(path).expect("it is there")).expect("a snapshot");
        let mut entries = Vec::new();
        while let Some(entry) = reader.entry().expect("whole") {
            entries.push(entry);
        }
        (entries, reader.closing().expect("whole"))
    }

    #[test]
    fn a_snapshot_holds_the_tree() {
        let home = std::env::temp_dir().join(format!("ashlar-snapshot-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&home);
        let tree = home.join("tree");
        std::fs::create_dir_all(tree.join("a/b")).expect("made");
        for (name, len) in [("one", 0), ("a/two", 5000), ("a/b/three", 1)] {
            std::fs::write(tree.join(name), vec![1; len]).expect("space");
        }
        std::fs::hard_link(tree.join("one"), tree.join("a/second name")).expect("same file system");
        std::os::unix::fs::symlink("nowhere", tree.join("link")).expect("made");
        let (stop, to) = (AtomicBool::new(false), home.join("snap"));
        for memory in [usize::MAX / 4, 0] {
            let taken = take(&tree, &to, &options(Names::Kept, memory), &stop, &|_| {}).expect("a tree");
            let (entries, closing) = read(&to);
            assert_eq!(closing, taken.closing);
            assert_eq!((closing.files, closing.directories, closing.inodes), (3, 3, 7));
            assert_eq!((closing.further_names, closing.size_bytes), (1, 5001));
            let root = entries.iter().find(|entry| entry.inode == entry.parent).expect("the root");
            assert_eq!((root.kind, root.name.len()), (Kind::Directory, 0));
            let two = entries.iter().find(|entry| entry.name == b"two").expect("in the tree");
            assert_eq!((two.size, two.links), (5000, 1));
            let a = entries.iter().find(|entry| entry.inode == two.parent).expect("in the tree");
            assert_eq!((a.name.as_slice(), a.parent), (&b"a"[..], root.inode));
        }
        take(&tree, &to, &options(Names::Hashed("k".into()), 0), &stop, &|_| {}).expect("a tree");
        let (entries, _) = read(&to);
        assert!(entries.iter().all(|entry| entry.name.len() == if entry.inode == entry.parent { 0 } else { 16 }));
        assert!(entries.iter().any(|entry| entry.name == hashed("k", b"two")));
        assert_ne!(hashed("k", b"two"), hashed("l", b"two"));
        stop.store(true, std::sync::atomic::Ordering::Release);
        let ended = take(&tree, &to, &options(Names::Kept, 0), &stop, &|_| {});
        assert!(matches!(ended, Err(WalkError::Interrupted)));
        std::fs::remove_dir_all(&home).expect("it is ours");
    }
}
