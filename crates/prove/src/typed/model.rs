//! What must be read: names, bytes, blocks and keys, with all states that each may be in.

use ashlar_vfs::{Attr, Errno, FileKind, FileSystem, Ino, NewNode, ROOT, RenameMode, SetAttr, WriteMode};
use bytes::Bytes;
use std::collections::BTreeMap;

/// The file system that changes.
pub(super) const FS: &str = "main";
/// The volume that changes.
pub(super) const VOLUME: &str = "v";
/// Name of the snapshots of both.
pub(super) const SNAPSHOT: &str = "s";

/// Something with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Directory,
    File(Bytes),
    Symlink(Bytes),
}

/// States that something may be in; the last is what was last asked for.
#[derive(Clone, Debug)]
pub(super) struct States<T> {
    pub(super) allowed: Vec<T>,
    /// A change failed, and may have happened or not.
    doubtful: bool,
}

impl<T: Clone> States<T> {
    fn new(state: T) -> States<T> {
        States { allowed: vec![state], doubtful: false }
    }
    fn change(&mut self, to: T, done: bool) {
        self.allowed.push(to);
        self.doubtful |= !done;
    }
    /// Everything that was done is durable.
    fn settle(&mut self) {
        if !self.doubtful
            && let Some(last) = self.allowed.pop()
        {
            self.allowed = vec![last];
        }
    }
}

/// A change of the file system.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Mkdir(String),
    Create(String),
    Write(String, u64, Bytes),
    Cut(String, u64),
    Remove(String),
    Move(String, String),
    /// All of a file into a new one, by sharing.
    Copy(String, String),
    Symlink(String, Bytes),
}

/// What must be read.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    /// By file system or snapshot, and path.
    pub(super) files: BTreeMap<&'static str, BTreeMap<String, States<Option<Node>>>>,
    /// By volume or snapshot, and number.
    pub(super) blocks: BTreeMap<&'static str, BTreeMap<u64, States<Bytes>>>,
    /// By volume or snapshot, and key.
    pub(super) keys: BTreeMap<&'static str, BTreeMap<Vec<u8>, States<Option<Bytes>>>>,
}

impl Model {
    fn latest(&self, path: &str) -> Option<Node> {
        self.files.get(FS)?.get(path)?.allowed.last()?.clone()
    }
    fn data(&self, path: &str) -> Vec<u8> {
        match self.latest(path) {
            Some(Node::File(data)) => data.to_vec(),
            _ => Vec::new(),
        }
    }
    /// Notes a change that was done, or failed and may have been done.
    pub(super) fn change(&mut self, change: &Change, done: bool) {
        let new: Vec<(String, Option<Node>)> = match change {
            Change::Mkdir(path) => vec![(path.clone(), Some(Node::Directory))],
            Change::Create(path) => vec![(path.clone(), Some(Node::File(Bytes::new())))],
            Change::Symlink(path, target) => vec![(path.clone(), Some(Node::Symlink(target.clone())))],
            Change::Write(path, at, bytes) => {
                let mut data = self.data(path);
                let end = *at as usize + bytes.len();
                data.resize(data.len().max(end), 0);
                data[*at as usize..end].copy_from_slice(bytes);
                vec![(path.clone(), Some(Node::File(data.into())))]
            }
            Change::Cut(path, size) => {
                let mut data = self.data(path);
                data.resize(*size as usize, 0);
                vec![(path.clone(), Some(Node::File(data.into())))]
            }
            Change::Remove(path) => vec![(path.clone(), None)],
            Change::Move(from, to) => vec![(to.clone(), self.latest(from)), (from.clone(), None)],
            Change::Copy(from, to) => vec![(to.clone(), self.latest(from))],
        };
        let files = self.files.entry(FS).or_default();
        for (path, node) in new {
            files.entry(path).or_insert_with(|| States::new(None)).change(node, done);
        }
    }
    /// Notes blocks written to the volume.
    pub(super) fn write(&mut self, at: u64, blocks: &[Bytes], done: bool) {
        let known = self.blocks.entry(VOLUME).or_default();
        for (number, data) in (at..).zip(blocks) {
            let zeros = || States::new(Bytes::from_static(&[0; ashlar_units::BLOCK_LEN]));
            known.entry(number).or_insert_with(zeros).change(data.clone(), done);
        }
    }
    /// Notes a key of the volume.
    pub(super) fn put(&mut self, key: &[u8], value: Bytes, done: bool) {
        let known = self.keys.entry(VOLUME).or_default();
        known.entry(key.to_vec()).or_insert_with(|| States::new(None)).change(Some(value), done);
    }
    /// Everything that was done is durable.
    pub(super) fn settle(&mut self) {
        self.files.values_mut().flat_map(BTreeMap::values_mut).for_each(States::settle);
        self.blocks.values_mut().flat_map(BTreeMap::values_mut).for_each(States::settle);
        self.keys.values_mut().flat_map(BTreeMap::values_mut).for_each(States::settle);
    }
    /// Both are kept as they are.
    pub(super) fn snapshot(&mut self, fs: &'static str, volume: &'static str) {
        let files = self.files.get(FS).cloned().unwrap_or_default();
        self.files.insert(fs, files);
        let blocks = self.blocks.get(VOLUME).cloned().unwrap_or_default();
        self.blocks.insert(volume, blocks);
        let keys = self.keys.get(VOLUME).cloned().unwrap_or_default();
        self.keys.insert(volume, keys);
    }
}

fn new_node(kind: FileKind) -> NewNode {
    NewNode { kind, permissions: 0o644, uid: 0, gid: 0, device: 0, umask: 0, open: false }
}

/// The inode at a path such as `/a/b`.
pub(super) async fn find(files: &impl FileSystem, path: &str) -> ashlar_vfs::Result<Ino> {
    let mut at = ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        at = files.lookup(at, name.as_bytes()).await?.ino;
    }
    Ok(at)
}

/// The directory of a path, and its last name.
async fn above<'a>(files: &impl FileSystem, path: &'a str) -> ashlar_vfs::Result<(Ino, &'a [u8])> {
    let (directory, name) = path.rsplit_once('/').ok_or(Errno::Invalid)?;
    Ok((find(files, directory).await?, name.as_bytes()))
}

/// Makes a change.
pub(super) async fn perform(files: &impl FileSystem, change: &Change) -> ashlar_vfs::Result<()> {
    match change {
        Change::Mkdir(path) => {
            let (parent, name) = above(files, path).await?;
            files.mkdir(parent, name, new_node(FileKind::Directory)).await.map(|_: Attr| ())
        }
        Change::Create(path) => {
            let (parent, name) = above(files, path).await?;
            files.create(parent, name, new_node(FileKind::File)).await.map(|_| ())
        }
        Change::Symlink(path, target) => {
            let (parent, name) = above(files, path).await?;
            files.symlink(parent, name, target, new_node(FileKind::Symlink)).await.map(|_| ())
        }
        Change::Write(path, at, data) => {
            files.write(find(files, path).await?, *at, data.clone(), WriteMode::default()).await
        }
        Change::Cut(path, size) => {
            let size = SetAttr { size: Some(*size), ..SetAttr::default() };
            files.setattr(find(files, path).await?, size).await.map(|_| ())
        }
        Change::Remove(path) => {
            let (parent, name) = above(files, path).await?;
            files.unlink(parent, name).await
        }
        Change::Move(from, to) => {
            let (from, from_name) = above(files, from).await?;
            let (to, to_name) = above(files, to).await?;
            files.rename((from, from_name), (to, to_name), RenameMode::Replace).await
        }
        Change::Copy(from, to) => {
            let from = find(files, from).await?;
            let (parent, name) = above(files, to).await?;
            let to = files.create(parent, name, new_node(FileKind::File)).await?.ino;
            let size = files.getattr(from).await?.size;
            files.copy_range((from, 0), (to, 0), size).await.map(|_| ())
        }
    }
}
