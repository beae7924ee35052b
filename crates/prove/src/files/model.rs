//! What POSIX says: a file system in memory that answers every operation.
//!
//! Clones share what they have in common, so that a history can keep every state that it went through. Where Linux is
//! more precise than POSIX (which of two errors comes first), the model does as Linux does.

use super::operation::{Answer, HANDLES, Op, Place, Stat, Target, attribute_of, name_of};
use ashlar_vfs::{Errno, FallocateMode, FileKind, RenameMode, Time, XattrMode};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Blocks in which ranges can be cut out and inserted, in bytes.
const BLOCK: u64 = 4096;

/// What an inode is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    File(Vec<u8>),
    Directory(BTreeMap<u8, usize>),
    Symlink(Vec<u8>),
    Fifo,
    Whiteout,
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) body: Body,
    permissions: u32,
    owner: (u32, u32),
    pub(super) links: u32,
    pub(super) xattrs: BTreeMap<u8, Vec<u8>>,
    /// As set by hand and not changed since.
    pub(super) modified: Option<Time>,
    /// It never had a name.
    pub(super) nameless: bool,
}

/// A file system. Node 0 is the root; nodes are never reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) handles: [Option<usize>; HANDLES],
    /// Who makes things.
    owner: (u32, u32),
}

type Modelled<T> = Result<T, Errno>;

impl Model {
    /// An empty file system, whose files will belong to this user and group, as its root does.
    pub fn new(uid: u32, gid: u32) -> Model {
        let owner = (uid, gid);
        let root = Node::new(Body::Directory(BTreeMap::new()), 0o755, owner);
        Model { nodes: vec![Arc::new(root)], handles: [None; HANDLES], owner }
    }

    /// The program or the machine stopped: nothing is open any more.
    pub fn forget_handles(&mut self) {
        self.handles = [None; HANDLES];
    }

    /// Times reach the medium later than the rest, unless they are synced: forgets those that are not the same in all of
    /// these states.
    pub(super) fn forget_times(&mut self, states: &[Model]) {
        for node in 0..self.nodes.len() {
            let same =
                |state: &Model| state.nodes.get(node).is_some_and(|other| other.modified == self.nodes[node].modified);
            if self.nodes[node].modified.is_some() && !states.iter().all(same) {
                self.node(node).modified = None;
            }
        }
    }

    /// Everything that has a name, and the root: places with their nodes.
    pub(super) fn tree(&self) -> Vec<(Place, usize)> {
        let mut found = vec![(Place::default(), 0)];
        let mut next = 0;
        while let Some((place, node)) = found.get(next).cloned() {
            if let Body::Directory(entries) = &self.nodes[node].body {
                found.extend(entries.iter().map(|(name, child)| (place.below(*name), *child)));
            }
            next += 1;
        }
        found
    }

    /// Does `op`. How much a copy copies is the subject's choice: `copied` says it; unknown, it is everything.
    pub fn apply(&mut self, op: &Op, copied: Option<u64>) -> Modelled<Answer> {
        match op {
            Op::Create { at, kind, permissions, handle } => {
                let body = if *kind == FileKind::File { Body::File(Vec::new()) } else { Body::Fifo };
                let node = self.make(at, body, *permissions)?;
                if let Some(handle) = handle {
                    self.handles[*handle] = Some(node);
                }
            }
            Op::Mkdir { at, permissions } => {
                self.make(at, Body::Directory(BTreeMap::new()), *permissions)?;
            }
            Op::Symlink { at, target } => {
                self.make(at, Body::Symlink(target.clone()), 0o777)?;
            }
            Op::Nameless { directory, permissions, handle } => {
                let directory = self.find(directory)?;
                self.entries(directory)?;
                let node =
                    Node { links: 0, nameless: true, ..Node::new(Body::File(Vec::new()), *permissions, self.owner) };
                self.handles[*handle] = Some(self.add(node));
            }
            Op::Open { at, handle } => self.handles[*handle] = Some(self.find(at)?),
            Op::Close { handle } => {
                self.handles[*handle].take().ok_or(Errno::Stale)?;
            }
            Op::Name { handle, to } => {
                let node = self.handles[*handle].ok_or(Errno::Stale)?;
                self.link(node, to)?;
            }
            Op::Link { from, to } => {
                let node = self.find(from)?;
                self.link(node, to)?;
            }
            Op::Rename { from, to, mode } => self.rename(from, to, *mode)?,
            Op::Unlink { at } => self.remove(at, false)?,
            Op::Rmdir { at } => self.remove(at, true)?,
            Op::RemoveTree { at } => self.remove_tree(at)?,
            Op::Read { of, offset, len } => {
                let node = self.target(of)?;
                let bytes = self.file(node)?;
                let size = bytes.len() as u64;
                let range = (*offset).min(size) as usize..offset.saturating_add(*len).min(size) as usize;
                return Ok(Answer::Bytes(bytes[range].to_vec()));
            }
            Op::Write { of, offset, data } => self.write(self.target(of)?, *offset, &data.bytes())?,
            Op::Append { of, data } => {
                let node = self.target(of)?;
                let end = self.file(node)?.len() as u64;
                self.write(node, end, &data.bytes())?;
            }
            Op::Truncate { of, size } => self.file_mut(self.target(of)?)?.resize(*size as usize, 0),
            Op::Fallocate { of, offset, len, mode } => self.fallocate(self.target(of)?, *offset, *len, *mode)?,
            Op::Copy { from, from_offset, to, to_offset, len } => {
                let (from, to) = (self.target(from)?, self.target(to)?);
                let bytes = self.file(from)?;
                let start = (*from_offset as usize).min(bytes.len());
                let end = (start + *len as usize).min(bytes.len());
                let available = (end - start) as u64;
                let end = end.min(start.saturating_add(copied.unwrap_or(available) as usize));
                let data = bytes[start..end].to_vec();
                self.file(to)?;
                if !data.is_empty() {
                    self.write(to, *to_offset, &data)?;
                }
                return Ok(Answer::Count(available));
            }
            Op::Extents { of } => return Ok(Answer::Bytes(self.file(self.target(of)?)?.clone())),
            Op::SetXattr { of, name, len, mode } => {
                let node = self.target(of)?;
                let exists = self.nodes[node].xattrs.contains_key(name);
                match mode {
                    XattrMode::Create if exists => return Err(Errno::Exists),
                    XattrMode::Replace if !exists => return Err(Errno::NoData),
                    _ => self.node(node).xattrs.insert(*name, vec![*name; *len as usize]),
                };
            }
            Op::GetXattr { of, name } => {
                let value = self.nodes[self.target(of)?].xattrs.get(name);
                return value.cloned().map(Answer::Bytes).ok_or(Errno::NoData);
            }
            Op::RemoveXattr { of, name } => {
                let node = self.target(of)?;
                self.node(node).xattrs.remove(name).ok_or(Errno::NoData)?;
            }
            Op::ListXattrs { of } => {
                let names = self.nodes[self.target(of)?].xattrs.keys();
                return Ok(Answer::Names(names.map(|name| attribute_of(*name)).collect()));
            }
            Op::Chmod { of, permissions } => {
                let node = self.target(of)?;
                self.node(node).permissions = *permissions;
            }
            Op::Chown { of, uid, gid } => {
                let node = self.target(of)?;
                self.node(node).owner = (*uid, *gid);
            }
            Op::SetTimes { of, modified } => {
                let node = self.target(of)?;
                self.node(node).modified = Some(*modified);
            }
            Op::Stat { of } => return Ok(Answer::Stat(self.nodes[self.target(of)?].stat())),
            Op::Readlink { at } => match &self.nodes[self.find(at)?].body {
                Body::Symlink(target) => return Ok(Answer::Bytes(target.clone())),
                _ => return Err(Errno::Invalid),
            },
            Op::List { directory, meanwhile, .. } => {
                let node = self.find(directory)?;
                let mut names: Vec<Vec<u8>> = self.entries(node)?.keys().map(|name| name_of(*name)).collect();
                names.sort_unstable();
                if let Some(name) = meanwhile {
                    self.remove(&directory.below(*name), false)?;
                }
                return Ok(Answer::Names(names));
            }
            Op::Fsync { of, .. } => {
                self.target(of)?;
            }
            Op::Sync => {}
        }
        Ok(Answer::Done)
    }

    fn node(&mut self, node: usize) -> &mut Node {
        Arc::make_mut(&mut self.nodes[node])
    }

    fn add(&mut self, node: Node) -> usize {
        self.nodes.push(Arc::new(node));
        self.nodes.len() - 1
    }

    /// The directory that would hold a name, and the name.
    fn above(&self, place: &Place) -> Modelled<(usize, u8)> {
        let mut at = match place.base {
            None => 0,
            Some(handle) => self.handles[handle].ok_or(Errno::Stale)?,
        };
        let (last, way) = place.names.split_last().ok_or(Errno::Invalid)?;
        for name in way {
            at = *self.entries_of(at)?.get(name).ok_or(Errno::NotFound)?;
        }
        self.entries_of(at)?;
        Ok((at, *last))
    }

    pub(super) fn find(&self, place: &Place) -> Modelled<usize> {
        match (place.names.is_empty(), place.base) {
            (true, None) => Ok(0),
            (true, Some(handle)) => self.handles[handle].ok_or(Errno::Stale),
            _ => {
                let (above, name) = self.above(place)?;
                self.entries_of(above)?.get(&name).copied().ok_or(Errno::NotFound)
            }
        }
    }

    pub(super) fn target(&self, target: &Target) -> Modelled<usize> {
        match target {
            Target::At(place) => self.find(place),
            Target::Open(handle) => self.handles[*handle].ok_or(Errno::Stale),
        }
    }

    /// Entries of a directory, which may have lost its own name.
    fn entries_of(&self, directory: usize) -> Modelled<&BTreeMap<u8, usize>> {
        match &self.nodes[directory].body {
            Body::Directory(entries) => Ok(entries),
            _ => Err(Errno::NotDirectory),
        }
    }

    /// Entries of a directory to which something can be added.
    fn entries(&self, directory: usize) -> Modelled<&BTreeMap<u8, usize>> {
        let entries = self.entries_of(directory)?;
        if self.nodes[directory].links == 0 { Err(Errno::NotFound) } else { Ok(entries) }
    }

    /// Entries of a directory that is one.
    fn entries_mut(&mut self, directory: usize) -> &mut BTreeMap<u8, usize> {
        let node = self.node(directory);
        node.modified = None;
        match &mut node.body {
            Body::Directory(entries) => entries,
            _ => unreachable!("checked before"),
        }
    }

    pub(super) fn is_directory(&self, node: usize) -> bool {
        matches!(self.nodes[node].body, Body::Directory(_))
    }

    fn make(&mut self, at: &Place, body: Body, permissions: u32) -> Modelled<usize> {
        let (parent, name) = self.above(at)?;
        if self.entries(parent)?.contains_key(&name) {
            return Err(Errno::Exists);
        }
        if matches!(body, Body::Directory(_)) {
            self.node(parent).links += 1;
        }
        let node = self.add(Node::new(body, permissions, self.owner));
        self.entries_mut(parent).insert(name, node);
        Ok(node)
    }

    fn link(&mut self, node: usize, to: &Place) -> Modelled<()> {
        let (parent, name) = self.above(to)?;
        if self.entries(parent)?.contains_key(&name) {
            return Err(Errno::Exists);
        }
        if self.is_directory(node) {
            return Err(Errno::NotPermitted);
        }
        let linked = self.node(node);
        linked.links += 1;
        linked.nameless = false;
        self.entries_mut(parent).insert(name, node);
        Ok(())
    }

    fn remove(&mut self, at: &Place, directory: bool) -> Modelled<()> {
        let (parent, name) = self.above(at)?;
        let node = *self.entries_of(parent)?.get(&name).ok_or(Errno::NotFound)?;
        match (self.is_directory(node), directory) {
            (true, false) => return Err(Errno::IsDirectory),
            (false, true) => return Err(Errno::NotDirectory),
            (true, true) if !self.entries(node)?.is_empty() => return Err(Errno::NotEmpty),
            _ => {}
        }
        self.entries_mut(parent).remove(&name);
        self.drop_name(parent, node);
        Ok(())
    }

    fn remove_tree(&mut self, at: &Place) -> Modelled<()> {
        let (parent, name) = self.above(at)?;
        let node = *self.entries_of(parent)?.get(&name).ok_or(Errno::NotFound)?;
        let is_directory = self.is_directory(node);
        if is_directory {
            let below: Vec<u8> = self.entries_of(node)?.keys().copied().collect();
            below.into_iter().try_for_each(|name| self.remove_tree(&at.below(name)))?;
            // It may wait in the root for a while.
            self.node(0).modified = None;
        }
        self.remove(at, is_directory)
    }

    fn drop_name(&mut self, parent: usize, node: usize) {
        if self.is_directory(node) {
            self.node(node).links = 0;
            self.node(parent).links -= 1;
        } else {
            self.node(node).links -= 1;
        }
    }

    fn is_above(&self, directory: usize, below: usize) -> bool {
        directory == below
            || self
                .entries_of(directory)
                .is_ok_and(|entries| entries.values().any(|child| self.is_above(*child, below)))
    }

    fn rename(&mut self, from: &Place, to: &Place, mode: RenameMode) -> Modelled<()> {
        let ((from_dir, from_name), (to_dir, to_name)) = (self.above(from)?, self.above(to)?);
        let source = *self.entries_of(from_dir)?.get(&from_name).ok_or(Errno::NotFound)?;
        let target = self.entries(to_dir)?.get(&to_name).copied();
        match (target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(Errno::Exists),
            (None, RenameMode::Exchange) => return Err(Errno::NotFound),
            (Some(target), _) if target == source => return Ok(()),
            _ => {}
        }
        let is_directory = self.is_directory(source);
        if is_directory && self.is_above(source, to_dir) {
            return Err(Errno::Invalid);
        }
        let Some(target) = target else {
            self.carry((from_dir, from_name), (to_dir, to_name), source, mode);
            return Ok(());
        };
        let replaces_directory = self.is_directory(target);
        if replaces_directory && self.is_above(target, from_dir) {
            return Err(if mode == RenameMode::Exchange { Errno::Invalid } else { Errno::NotEmpty });
        }
        if mode == RenameMode::Exchange {
            for (node, old, new) in [(source, from_dir, to_dir), (target, to_dir, from_dir)] {
                if self.is_directory(node) {
                    self.node(old).links -= 1;
                    self.node(new).links += 1;
                }
            }
            self.entries_mut(from_dir).insert(from_name, target);
            self.entries_mut(to_dir).insert(to_name, source);
            return Ok(());
        }
        match (is_directory, replaces_directory) {
            (true, false) => return Err(Errno::NotDirectory),
            (false, true) => return Err(Errno::IsDirectory),
            (true, true) if !self.entries_of(target)?.is_empty() => return Err(Errno::NotEmpty),
            _ => {}
        }
        self.drop_name(to_dir, target);
        self.carry((from_dir, from_name), (to_dir, to_name), source, mode);
        Ok(())
    }

    /// Moves a name to where nothing is.
    fn carry(&mut self, from: (usize, u8), to: (usize, u8), node: usize, mode: RenameMode) {
        self.entries_mut(from.0).remove(&from.1);
        self.entries_mut(to.0).insert(to.1, node);
        if self.is_directory(node) {
            self.node(from.0).links -= 1;
            self.node(to.0).links += 1;
        }
        if let RenameMode::Whiteout { uid, gid } = mode {
            let left = self.add(Node::new(Body::Whiteout, 0, (uid, gid)));
            self.entries_mut(from.0).insert(from.1, left);
        }
    }

    fn file(&self, node: usize) -> Modelled<&Vec<u8>> {
        match &self.nodes[node].body {
            Body::File(bytes) => Ok(bytes),
            Body::Directory(_) => Err(Errno::IsDirectory),
            _ => Err(Errno::Invalid),
        }
    }

    fn file_mut(&mut self, node: usize) -> Modelled<&mut Vec<u8>> {
        self.file(node)?;
        let node = self.node(node);
        node.modified = None;
        match &mut node.body {
            Body::File(bytes) => Ok(bytes),
            _ => unreachable!("checked before"),
        }
    }

    fn write(&mut self, node: usize, offset: u64, data: &[u8]) -> Modelled<()> {
        let bytes = self.file_mut(node)?;
        let (start, end) = (offset as usize, offset as usize + data.len());
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(data);
        Ok(())
    }

    fn fallocate(&mut self, node: usize, offset: u64, len: u64, mode: FallocateMode) -> Modelled<()> {
        let aligned = offset.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK);
        let size = self.file(node)?.len();
        let (offset, len) = (offset as usize, len as usize);
        let end = offset + len;
        match mode {
            FallocateMode::Collapse if !aligned || end >= size => return Err(Errno::Invalid),
            FallocateMode::Insert if !aligned || offset >= size => return Err(Errno::Invalid),
            _ => {}
        }
        let bytes = self.file_mut(node)?;
        match mode {
            FallocateMode::Collapse => drop(bytes.drain(offset..end)),
            FallocateMode::Insert => drop(bytes.splice(offset..offset, std::iter::repeat_n(0, len))),
            FallocateMode::Punch | FallocateMode::Zero { .. } => bytes[offset.min(size)..end.min(size)].fill(0),
            FallocateMode::Reserve { .. } => {}
        }
        if let FallocateMode::Reserve { keep_size: false } | FallocateMode::Zero { keep_size: false } = mode
            && end > size
        {
            bytes.resize(end, 0);
        }
        Ok(())
    }
}

impl Node {
    fn new(body: Body, permissions: u32, owner: (u32, u32)) -> Node {
        let links = if matches!(body, Body::Directory(_)) { 2 } else { 1 };
        Node { body, permissions, owner, links, xattrs: BTreeMap::new(), modified: None, nameless: false }
    }

    pub(super) fn kind(&self) -> FileKind {
        match &self.body {
            Body::File(_) => FileKind::File,
            Body::Directory(_) => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Fifo => FileKind::Fifo,
            Body::Whiteout => FileKind::CharDevice,
        }
    }

    fn stat(&self) -> Stat {
        Stat {
            kind: self.kind(),
            permissions: self.permissions,
            links: Some(self.links),
            uid: self.owner.0,
            gid: self.owner.1,
            size: match &self.body {
                Body::File(bytes) | Body::Symlink(bytes) => Some(bytes.len() as u64),
                _ => None,
            },
            modified: self.modified,
        }
    }
}
