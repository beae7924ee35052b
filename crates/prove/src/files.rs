//! Files under random histories and power cuts, compared with a model of POSIX.
//!
//! A history works on a file system over a device that can lose power, and on a model beside it; every result must agree,
//! errors included. At the cut, the tree that survives must be one that the model went through, not older than the last
//! `syncfs`; names and inodes must fit together; the pool's check must find nothing.

use crate::pool::{Failure, run_history};
use ashlar_block::Device;
use ashlar_devices::{PowerCut, Tearing};
use ashlar_env::Env;
use ashlar_files::Files;
use ashlar_pool::{Config, Creation, Pool, Rule};
use ashlar_units::{Blocks, Bytes as Size};
use ashlar_vfs::{
    Errno, FallocateMode, FileKind, FileSystem, Ino, NewNode, ROOT, RenameMode, SeekWhat, SetAttr, WriteMode, XattrMode,
};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

const CAPACITY: Blocks = Blocks(40 * 256 + 300);
const SEGMENT: Blocks = Blocks(256);
/// Names that histories use in each directory.
const NAMES: u64 = 6;
/// Directories are made down to this depth.
const DEPTH_MAX: usize = 3;
/// Files stay below this size: past the border between small and large ranges.
const SIZE_MAX: u64 = (1 << 20) + (96 << 10);

/// How to explore.
#[derive(Clone, Copy, Debug)]
pub struct FilesOptions {
    /// Power cuts in one history.
    pub lives: u64,
    /// Operations in one life, at most.
    pub steps: u64,
    /// Bits of the name hash: few provoke collisions.
    pub hash_bits: u32,
    /// A rule to break.
    pub without: Option<Rule>,
}

impl Default for FilesOptions {
    fn default() -> FilesOptions {
        FilesOptions { lives: 4, steps: 150, hash_bits: 55, without: None }
    }
}

/// What a history came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesOutcome {
    /// Power cuts.
    pub cuts: u64,
    /// Operations whose results agreed.
    pub operations: u64,
    /// Operations among them that succeeded.
    pub succeeded: u64,
    /// Fingerprint of the run: the same seed gives the same.
    pub trace: u64,
}

type Found<T> = Result<T, String>;

/// What an inode is in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Body {
    File(Vec<u8>),
    Directory(BTreeMap<u64, usize>),
    Symlink(Vec<u8>),
    Fifo,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    body: Body,
    permissions: u32,
    uid: u32,
    links: u32,
    xattrs: BTreeMap<u64, Vec<u8>>,
}

/// A POSIX file system in memory. Node 0 is the root; nodes are never reused.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Model {
    nodes: Vec<Node>,
}

type Modelled<T> = Result<T, Errno>;

impl Model {
    fn new() -> Model {
        Model { nodes: vec![Node::new(Body::Directory(BTreeMap::new()), 0o755)] }
    }
    fn entries(&self, directory: usize) -> Modelled<&BTreeMap<u64, usize>> {
        match &self.nodes[directory].body {
            Body::Directory(_) if self.nodes[directory].links == 0 => Err(Errno::NotFound),
            Body::Directory(entries) => Ok(entries),
            _ => Err(Errno::NotDirectory),
        }
    }
    fn entries_mut(&mut self, directory: usize) -> &mut BTreeMap<u64, usize> {
        match &mut self.nodes[directory].body {
            Body::Directory(entries) => entries,
            _ => unreachable!("checked before"),
        }
    }
    fn is_directory(&self, node: usize) -> bool {
        matches!(self.nodes[node].body, Body::Directory(_))
    }
    fn make(&mut self, parent: usize, name: u64, body: Body, permissions: u32) -> Modelled<usize> {
        if self.entries(parent)?.contains_key(&name) {
            return Err(Errno::Exists);
        }
        let node = self.nodes.len();
        if matches!(body, Body::Directory(_)) {
            self.nodes[parent].links += 1;
        }
        self.nodes.push(Node::new(body, permissions));
        self.entries_mut(parent).insert(name, node);
        Ok(node)
    }
    fn link(&mut self, node: usize, parent: usize, name: u64) -> Modelled<()> {
        if self.entries(parent)?.contains_key(&name) {
            return Err(Errno::Exists);
        }
        if self.is_directory(node) {
            return Err(Errno::NotPermitted);
        }
        self.nodes[node].links += 1;
        self.entries_mut(parent).insert(name, node);
        Ok(())
    }
    fn remove(&mut self, parent: usize, name: u64, directory: bool) -> Modelled<()> {
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
    /// Entries of a directory that may have lost its own name.
    fn entries_of(&self, directory: usize) -> Modelled<&BTreeMap<u64, usize>> {
        match &self.nodes[directory].body {
            Body::Directory(entries) => Ok(entries),
            _ => Err(Errno::NotDirectory),
        }
    }
    fn drop_name(&mut self, parent: usize, node: usize) {
        if self.is_directory(node) {
            self.nodes[node].links = 0;
            self.nodes[parent].links -= 1;
        } else {
            self.nodes[node].links -= 1;
        }
    }
    fn is_above(&self, directory: usize, below: usize) -> bool {
        directory == below
            || self
                .entries_of(directory)
                .is_ok_and(|entries| entries.values().any(|child| self.is_above(*child, below)))
    }
    fn rename(&mut self, from: (usize, u64), to: (usize, u64), mode: RenameMode) -> Modelled<()> {
        let source = *self.entries_of(from.0)?.get(&from.1).ok_or(Errno::NotFound)?;
        let target = self.entries(to.0)?.get(&to.1).copied();
        if target == Some(source) && mode != RenameMode::NoReplace {
            return Ok(());
        }
        let is_directory = self.is_directory(source);
        if is_directory && from.0 != to.0 && self.is_above(source, to.0) {
            return Err(Errno::Invalid);
        }
        match (target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(Errno::Exists),
            (None, RenameMode::Exchange) => return Err(Errno::NotFound),
            (Some(target), RenameMode::Exchange) => {
                if self.is_directory(target) && from.0 != to.0 && self.is_above(target, from.0) {
                    return Err(Errno::Invalid);
                }
                for (node, old, new) in [(source, from.0, to.0), (target, to.0, from.0)] {
                    if self.is_directory(node) {
                        self.nodes[old].links -= 1;
                        self.nodes[new].links += 1;
                    }
                }
                self.entries_mut(from.0).insert(from.1, target);
                self.entries_mut(to.0).insert(to.1, source);
                return Ok(());
            }
            (Some(target), RenameMode::Replace) => {
                match (is_directory, self.is_directory(target)) {
                    (true, false) => return Err(Errno::NotDirectory),
                    (false, true) => return Err(Errno::IsDirectory),
                    (true, true) if !self.entries_of(target)?.is_empty() => return Err(Errno::NotEmpty),
                    _ => {}
                }
                self.drop_name(to.0, target);
            }
            (None, _) => {}
        }
        self.entries_mut(from.0).remove(&from.1);
        self.entries_mut(to.0).insert(to.1, source);
        if is_directory {
            self.nodes[from.0].links -= 1;
            self.nodes[to.0].links += 1;
        }
        Ok(())
    }
    fn file(&mut self, node: usize) -> Modelled<&mut Vec<u8>> {
        match &mut self.nodes[node].body {
            Body::File(bytes) => Ok(bytes),
            Body::Directory(_) => Err(Errno::IsDirectory),
            _ => Err(Errno::Invalid),
        }
    }
    fn write(&mut self, node: usize, offset: usize, data: &[u8]) -> Modelled<()> {
        let bytes = self.file(node)?;
        let end = offset + data.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset..end].copy_from_slice(data);
        Ok(())
    }
    fn fallocate(&mut self, node: usize, offset: usize, len: usize, mode: FallocateMode) -> Modelled<()> {
        let bytes = self.file(node)?;
        let (size, end) = (bytes.len(), offset + len);
        let aligned = offset.is_multiple_of(4096) && len.is_multiple_of(4096);
        match mode {
            FallocateMode::Reserve { keep_size } | FallocateMode::Zero { keep_size } => {
                if matches!(mode, FallocateMode::Zero { .. }) {
                    bytes[offset.min(size)..end.min(size)].fill(0);
                }
                if !keep_size && end > size {
                    bytes.resize(end, 0);
                }
            }
            FallocateMode::Punch => bytes[offset.min(size)..end.min(size)].fill(0),
            FallocateMode::Collapse if aligned && end < size => drop(bytes.drain(offset..end)),
            FallocateMode::Insert if aligned && offset < size => {
                bytes.splice(offset..offset, std::iter::repeat_n(0, len)).for_each(drop);
            }
            FallocateMode::Collapse | FallocateMode::Insert => return Err(Errno::Invalid),
        }
        Ok(())
    }
}

impl Node {
    fn new(body: Body, permissions: u32) -> Node {
        let links = if matches!(body, Body::Directory(_)) { 2 } else { 1 };
        Node { body, permissions, uid: 0, links, xattrs: BTreeMap::new() }
    }
}

fn name_of(number: u64) -> Vec<u8> {
    format!("name-{number}").into_bytes()
}

/// Explores one history.
pub fn explore_files(seed: u64, options: FilesOptions) -> Result<FilesOutcome, Failure> {
    let (outcome, trace) = run_history(seed, move |env| history(env, options))?;
    Ok(FilesOutcome { trace, ..outcome })
}

async fn history(env: Env, options: FilesOptions) -> Found<FilesOutcome> {
    let config =
        Config { memory: Size(2 << 20), log_bytes: Size(2 << 20), without: options.without, ..Config::default() };
    let text = |error: ashlar_block::Error| error.to_string();
    let mut device = Arc::new(PowerCut::new(CAPACITY, env.clone(), Duration::from_micros(50)));
    let devices = |device: &Arc<PowerCut>| vec![device.clone() as Device];
    Pool::create(&env, &devices(&device), Creation { segment: Some(SEGMENT), force: false }).await.map_err(text)?;
    let pool = Pool::open(&env, devices(&device), config).await.map_err(text)?;
    let volume = pool.create_volume("v").await.map_err(text)?;
    Files::format(&volume, 0, 0).await.map_err(|error| error.to_string())?;
    drop(volume);
    pool.close().await.map_err(text)?;
    let mut model = Model::new();
    let mut outcome = FilesOutcome::default();
    let open = ashlar_files::Options { hash_bits: options.hash_bits, ..ashlar_files::Options::default() };
    for life in 0..options.lives {
        let pool = Pool::open(&env, devices(&device), config).await.map_err(text)?;
        let volume = pool.volume("v").ok_or("the volume is gone")?;
        let files = Files::open(volume, open).await.map_err(|error| format!("life {life}: {error}"))?;
        compare_tree(&files, &model).await.map_err(|error| format!("life {life}, after a clean start: {error}"))?;
        device.cut_after(env.random() % (options.steps * 3));
        let mut life_of = Life {
            env: &env,
            files: &files,
            device: &device,
            numbers: HashMap::from([(0, ROOT)]),
            outcome: &mut outcome,
        };
        let (states, durable) =
            life_of.work(model.clone(), options.steps).await.map_err(|error| format!("life {life}: {error}"))?;
        drop((files, pool));
        device = Arc::new(device.after_cut(Tearing::ALL, env.clone()));
        let pool = Pool::open(&env, devices(&device), config).await;
        let pool = pool.map_err(|error| format!("life {life}, after the cut: {error}"))?;
        let volume = pool.volume("v").ok_or("the volume is gone")?;
        let files = Files::open(volume, open).await.map_err(|error| format!("life {life}: {error}"))?;
        model = survivor(&files, &states, durable).await.map_err(|error| format!("life {life}: {error}"))?;
        let audit = files.audit().await.map_err(|error| error.to_string())?;
        if !audit.wrong.is_empty() {
            return Err(format!("life {life}: the audit says {:?}", audit.wrong));
        }
        let checked = pool.check(|_, _| {}).await.map_err(text)?;
        if !checked.damaged.is_empty() || !checked.miscounted.is_empty() {
            return Err(format!("life {life}: check found {:?} {:?}", checked.damaged, checked.miscounted));
        }
        outcome.cuts += 1;
        files.close().await.map_err(|error| error.to_string())?;
        drop(files);
        pool.close().await.map_err(text)?;
    }
    Ok(outcome)
}

/// The newest state, not older than `durable`, that the file system holds; without what has no name.
async fn survivor(files: &Files, states: &[Model], durable: usize) -> Found<Model> {
    let mut story = String::new();
    for (index, state) in states.iter().enumerate().skip(durable).rev() {
        match compare_tree(files, state).await {
            Ok(()) => return Ok(state.clone()),
            Err(error) => story += &format!("\n  state {index} of {}: {error}", states.len() - 1),
        }
    }
    Err(format!("no state from {durable} (the last synced) on survived:{story}"))
}

/// Compares everything that has a name.
async fn compare_tree(files: &Files, model: &Model) -> Found<()> {
    let mut pending = vec![(0usize, ROOT, String::from("/"))];
    while let Some((node, ino, path)) = pending.pop() {
        let failed = |error: ashlar_vfs::Error| format!("{path}: {error}");
        let expected = &model.nodes[node];
        let attr = files.getattr(ino).await.map_err(failed)?;
        let (permissions, uid, links) = (expected.permissions, expected.uid, expected.links);
        if (attr.permissions, attr.uid, attr.links) != (permissions, uid, links) {
            return Err(format!("{path}: {attr:?} instead of {permissions:o} {uid} {links}"));
        }
        let mut names = files.listxattr(ino).await.map_err(failed)?;
        names.sort_unstable();
        let wanted: Vec<Bytes> = expected.xattrs.keys().map(|name| Bytes::from(name_of(*name))).collect();
        if names != wanted {
            return Err(format!("{path}: attributes {names:?} instead of {wanted:?}"));
        }
        for (name, value) in &expected.xattrs {
            if files.getxattr(ino, &name_of(*name)).await.map_err(failed)? != value {
                return Err(format!("{path}: attribute {name} has another value"));
            }
        }
        match &expected.body {
            Body::File(bytes) => {
                if attr.size != bytes.len() as u64 {
                    return Err(format!("{path}: {} bytes instead of {}", attr.size, bytes.len()));
                }
                let pieces = files.read(ino, 0, bytes.len() + 10).await.map_err(failed)?;
                let read = pieces.concat();
                if let Some(at) =
                    read.iter().zip(bytes).position(|(a, b)| a != b).or((read.len() != bytes.len()).then_some(0))
                {
                    return Err(format!("{path}: differs at byte {at} of {}", bytes.len()));
                }
            }
            Body::Symlink(target) => {
                if files.readlink(ino).await.map_err(failed)? != target {
                    return Err(format!("{path}: leads elsewhere"));
                }
            }
            Body::Fifo => {}
            Body::Directory(entries) => {
                let listed = list(files, ino, 3).await.map_err(failed)?;
                let wanted: BTreeMap<Vec<u8>, usize> =
                    entries.iter().map(|(name, node)| (name_of(*name), *node)).collect();
                if !listed.keys().eq(wanted.keys()) {
                    return Err(format!("{path}: lists {:?} instead of {:?}", listed.keys(), wanted.keys()));
                }
                for (name, child) in wanted {
                    pending.push((child, listed[&name], format!("{path}{}/", String::from_utf8_lossy(&name))));
                }
            }
        }
    }
    Ok(())
}

/// Lists a directory in pages of `limit` entries.
async fn list(files: &Files, ino: Ino, limit: usize) -> ashlar_vfs::Result<BTreeMap<Vec<u8>, Ino>> {
    let (mut cookie, mut found) = (0, BTreeMap::new());
    loop {
        let mut taken = 0;
        let (mut next, mut page) = (cookie, Vec::new());
        files
            .readdir(ino, cookie, false, &mut |entry| {
                if taken == limit {
                    return false;
                }
                taken += 1;
                next = entry.cookie;
                page.push((entry.name.to_vec(), entry.ino));
                true
            })
            .await?;
        if taken == 0 {
            found.retain(|name: &Vec<u8>, _| name != b"." && name != b"..");
            return Ok(found);
        }
        cookie = next;
        found.extend(page);
    }
}

/// The time from an opening to a power cut.
struct Life<'a> {
    env: &'a Env,
    files: &'a Files,
    device: &'a PowerCut,
    /// Inode of each node of the model that was met in this life.
    numbers: HashMap<usize, Ino>,
    outcome: &'a mut FilesOutcome,
}

impl Life<'_> {
    fn random(&self, below: u64) -> u64 {
        self.env.random() % below
    }

    async fn work(&mut self, start: Model, steps: u64) -> Found<(Vec<Model>, usize)> {
        let (mut states, mut durable) = (vec![start], 0);
        for _ in 0..steps {
            if self.random(12) == 0 {
                if self.files.syncfs().await.is_err() {
                    break;
                }
                durable = states.len() - 1;
                continue;
            }
            let mut model = states.last().cloned().unwrap_or_else(Model::new);
            let (what, expected, got) = self.step(&mut model).await?;
            // Whatever happened in it, the power may have failed before it was durable, or after.
            states.push(model);
            if self.device.is_dead() {
                break;
            }
            let got = got.map_err(|error| error.errno);
            if got != expected {
                return Err(format!("{what} gave {got:?} instead of {expected:?}"));
            }
            self.outcome.operations += 1;
            self.outcome.succeeded += u64::from(got.is_ok());
        }
        Ok((states, durable))
    }

    /// A directory of the model, with its inode.
    async fn pick_directory(&mut self, model: &Model) -> Found<(usize, Ino)> {
        let mut at = 0;
        for _ in 0..DEPTH_MAX {
            let children: Vec<usize> = model.entries_of(at).map_or(Vec::new(), |entries| {
                entries.values().copied().filter(|child| model.is_directory(*child)).collect()
            });
            if children.is_empty() || self.random(3) == 0 {
                break;
            }
            at = children[self.random(children.len() as u64) as usize];
        }
        Ok((at, self.number(model, at).await?))
    }

    /// Any named node of the model, with its inode.
    async fn pick(&mut self, model: &Model) -> Found<(usize, Ino)> {
        let (directory, ino) = self.pick_directory(model).await?;
        let entries: Vec<usize> =
            model.entries_of(directory).map_or(Vec::new(), |entries| entries.values().copied().collect());
        if entries.is_empty() {
            return Ok((directory, ino));
        }
        let node = entries[self.random(entries.len() as u64) as usize];
        Ok((node, self.number(model, node).await?))
    }

    /// The inode of a node that has a name, looked up as the kernel would.
    async fn number(&mut self, model: &Model, node: usize) -> Found<Ino> {
        if let Some(ino) = self.numbers.get(&node) {
            return Ok(*ino);
        }
        let parent = model.nodes.iter().enumerate().find_map(|(parent, above)| match &above.body {
            Body::Directory(entries) if above.links > 0 => {
                entries.iter().find(|(_, child)| **child == node).map(|(name, _)| (parent, *name))
            }
            _ => None,
        });
        let (parent, name) = parent.ok_or("the model lost a node")?;
        let above = Box::pin(self.number(model, parent)).await?;
        match self.files.lookup(above, &name_of(name)).await {
            Ok(attr) => {
                self.numbers.insert(node, attr.ino);
                Ok(attr.ino)
            }
            Err(_) if self.device.is_dead() => Ok(u64::MAX),
            Err(error) => Err(format!("name {name} of node {parent} cannot be looked up: {error}")),
        }
    }

    /// Offsets near the borders where things change.
    fn offset(&self) -> u64 {
        let border = [0, 4096, 8192, 128 << 10, 1 << 20][self.random(5) as usize];
        let near = if self.random(2) == 0 { 0 } else { self.random(9000) };
        (border + near).min(SIZE_MAX - 1)
    }

    async fn step(&mut self, model: &mut Model) -> Found<(String, Modelled<()>, ashlar_vfs::Result<()>)> {
        let files = self.files;
        let (parent, above) = self.pick_directory(model).await?;
        let name = self.random(NAMES);
        let bytes = name_of(name);
        let (node, ino) = self.pick(model).await?;
        let mode = [0o644, 0o600, 0o755][self.random(3) as usize];
        let new = |kind| NewNode { kind, permissions: mode, uid: 0, gid: 0, device: 0, umask: 0, open: false };
        Ok(match self.random(20) {
            0..=2 => {
                let kind = if self.random(5) == 0 { FileKind::Fifo } else { FileKind::File };
                let body = if kind == FileKind::File { Body::File(Vec::new()) } else { Body::Fifo };
                let made = model.make(parent, name, body, mode);
                let got = files.create(above, &bytes, new(kind)).await;
                self.note(made, got, format!("create {name} in {parent}"))
            }
            3 | 4 => {
                let made = model.make(parent, name, Body::Directory(BTreeMap::new()), mode);
                let got = files.mkdir(above, &bytes, new(FileKind::Directory)).await;
                self.note(made, got, format!("mkdir {name} in {parent}"))
            }
            5 => {
                let target = vec![b'x'; 1 + self.random(300) as usize];
                let made = model.make(parent, name, Body::Symlink(target.clone()), 0o777);
                let got =
                    files.symlink(above, &bytes, &target, NewNode { permissions: 0o777, ..new(FileKind::Symlink) });
                let got = got.await;
                self.note(made, got, format!("symlink {name} in {parent}"))
            }
            6 => {
                let expected = model.link(node, parent, name);
                (format!("link {node} as {name}"), expected, files.link(ino, above, &bytes).await.map(drop))
            }
            7 | 8 => {
                let expected = model.remove(parent, name, false);
                (format!("unlink {name} in {parent}"), expected, files.unlink(above, &bytes).await)
            }
            9 => {
                let expected = model.remove(parent, name, true);
                (format!("rmdir {name} in {parent}"), expected, files.rmdir(above, &bytes).await)
            }
            10 | 11 => {
                let (to, to_ino) = self.pick_directory(model).await?;
                let to_name = self.random(NAMES);
                let mode = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange][self.random(3) as usize];
                let expected = model.rename((parent, name), (to, to_name), mode);
                let got = files.rename((above, &bytes), (to_ino, &name_of(to_name)), mode).await;
                (format!("rename {parent}/{name} to {to}/{to_name} {mode:?}"), expected, got)
            }
            12..=14 => {
                let offset = self.offset();
                let len = (1 + if self.random(2) == 0 { self.random(200) } else { self.random(70_000) })
                    .min(SIZE_MAX - offset);
                let fill = (1 + self.random(255)) as u8;
                let data: Vec<u8> = (0..len).map(|at| fill ^ (at >> 9) as u8).collect();
                let expected = model.write(node, offset as usize, &data);
                let how = WriteMode { writeback: self.random(2) == 0, ..WriteMode::default() };
                (
                    format!("write {len} at {offset} of {node}"),
                    expected,
                    files.write(ino, offset, data.into(), how).await,
                )
            }
            15 => {
                let size = self.offset();
                let expected = model.file(node).map(|bytes| bytes.resize(size as usize, 0));
                let changes = SetAttr { size: Some(size), ..SetAttr::default() };
                (format!("truncate {node} to {size}"), expected, files.setattr(ino, changes).await.map(drop))
            }
            16 => {
                let (offset, mut len) = (self.offset(), 1 + self.random(60_000));
                let mode = match self.random(5) {
                    0 => FallocateMode::Reserve { keep_size: self.random(2) == 0 },
                    1 => FallocateMode::Zero { keep_size: self.random(2) == 0 },
                    2 => FallocateMode::Punch,
                    3 => FallocateMode::Collapse,
                    _ => FallocateMode::Insert,
                };
                let offset = if self.random(2) == 0 { offset / 4096 * 4096 } else { offset };
                if self.random(3) > 0 {
                    len = len.next_multiple_of(4096);
                }
                let expected = model.fallocate(node, offset as usize, len as usize, mode);
                let got = files.fallocate(ino, offset, len, mode).await;
                (format!("fallocate {mode:?} {len} at {offset} of {node}"), expected, got)
            }
            17 => {
                let (uid, permissions) = (self.random(3) as u32, self.random(0o1000) as u32);
                (model.nodes[node].uid, model.nodes[node].permissions) = (uid, permissions);
                let changes = SetAttr { uid: Some(uid), permissions: Some(permissions), ..SetAttr::default() };
                (format!("setattr {node}"), Ok(()), files.setattr(ino, changes).await.map(drop))
            }
            18 => {
                let value = vec![name as u8; self.random(2000) as usize];
                let attributes = &mut model.nodes[node].xattrs;
                if self.random(3) == 0 {
                    let expected = attributes.remove(&name).map(drop).ok_or(Errno::NoData);
                    (format!("removexattr {name} of {node}"), expected, files.removexattr(ino, &bytes).await)
                } else {
                    attributes.insert(name, value.clone());
                    (
                        format!("setxattr {name} of {node}"),
                        Ok(()),
                        files.setxattr(ino, &bytes, &value, XattrMode::Set).await,
                    )
                }
            }
            _ => self.copy_and_seek(model, (node, ino)).await?,
        })
    }

    /// A node was made, if both agree that it was.
    fn note(
        &mut self,
        made: Modelled<usize>,
        got: ashlar_vfs::Result<ashlar_vfs::Attr>,
        what: String,
    ) -> (String, Modelled<()>, ashlar_vfs::Result<()>) {
        if let (Ok(node), Ok(attr)) = (&made, &got) {
            self.numbers.insert(*node, attr.ino);
        }
        (what, made.map(drop), got.map(drop))
    }

    /// Copies a range from one file to another; then data and holes of the source must match its contents.
    async fn copy_and_seek(
        &mut self,
        model: &mut Model,
        (node, ino): (usize, Ino),
    ) -> Found<(String, Modelled<()>, ashlar_vfs::Result<()>)> {
        let (to, to_ino) = self.pick(model).await?;
        let (mut from_offset, mut to_offset) = (self.offset(), self.offset());
        if self.random(3) > 0 {
            (from_offset, to_offset) = (from_offset / 4096 * 4096, to_offset / 4096 * 4096);
        }
        let len = (1 + self.random(100_000)).min(SIZE_MAX - from_offset.max(to_offset));
        let what = format!("copy {len} from {node} at {from_offset} to {to} at {to_offset}");
        if node == to {
            return Ok((what, Ok(()), Ok(()))); // overlapping copies are the kernel's to refuse
        }
        let got = self.files.copy_range((ino, from_offset), (to_ino, to_offset), len).await;
        let source = model.file(node).map(|bytes| {
            let start = (from_offset as usize).min(bytes.len());
            bytes[start..(start + len as usize).min(bytes.len())].to_vec()
        });
        let expected = source.and_then(|data| model.file(to).map(|_| data));
        let outcome = match (expected, got) {
            (Ok(data), Ok(copied)) => {
                let data = &data[..(copied as usize).min(data.len())];
                if copied as usize > data.len() {
                    return Err(format!("{what} copied {copied} bytes"));
                }
                if !data.is_empty() {
                    model.write(to, to_offset as usize, data).map_err(|error| format!("{error:?}"))?;
                }
                (Ok(()), Ok(()))
            }
            (expected, got) => (expected.map(drop), got.map(drop)),
        };
        if let Ok(bytes) = model.file(node).map(|bytes| bytes.clone())
            && !self.device.is_dead()
        {
            self.check_holes(ino, &bytes).await?;
        }
        Ok((what, outcome.0, outcome.1))
    }

    /// What `seek` calls a hole holds zeros, and what it calls data and holes covers the file.
    async fn check_holes(&self, ino: Ino, bytes: &[u8]) -> Found<()> {
        let mut at = 0u64;
        while at < bytes.len() as u64 {
            let data = match self.files.seek(ino, at, SeekWhat::Data).await {
                Ok(data) => data,
                Err(error) if error.errno == Errno::NoSuchAddress => bytes.len() as u64,
                Err(_) if self.device.is_dead() => return Ok(()),
                Err(error) => return Err(format!("seek: {error}")),
            };
            if bytes[at as usize..data as usize].iter().any(|byte| *byte != 0) {
                return Err(format!("inode {ino} has data between {at} and {data}, which seek calls a hole"));
            }
            if data == bytes.len() as u64 {
                break;
            }
            at = match self.files.seek(ino, data, SeekWhat::Hole).await {
                Ok(hole) if hole > data => hole,
                Err(_) if self.device.is_dead() => return Ok(()),
                other => return Err(format!("inode {ino}: seek from {data} for a hole gave {other:?}")),
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_agree_with_the_model_and_survive_power_cuts() {
        for seed in 0..30 {
            let hash_bits = if seed % 2 == 0 { 55 } else { 1 };
            let options = FilesOptions { hash_bits, ..FilesOptions::default() };
            explore_files(seed, options).unwrap_or_else(|failure| panic!("{failure:?}"));
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let run = || explore_files(7, FilesOptions { lives: 2, ..FilesOptions::default() });
        assert_eq!(run(), run());
    }

    #[test]
    fn a_broken_rule_is_noticed_through_files_too() {
        let options = FilesOptions { without: Some(Rule::FlushOnSync), ..FilesOptions::default() };
        assert!((0..50).any(|seed| explore_files(seed, options).is_err()), "nothing notices the missing flush");
    }
}
