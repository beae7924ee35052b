//! A file system in memory: the simplest thing that is correct enough to work on, behind one lock.
//!
//! Three names do something special when they are looked up: `panic` panics, `damaged` is a storage error, and `slow`
//! answers after a while. Writes of a file with the attribute `user.full` find no space.

use ashlar_env::Env;
use ashlar_vfs::*;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

const PAGE: u64 = 4096;
const CAPACITY: u64 = 1 << 34;
/// How long looking up `slow` takes.
pub const SLOW: Duration = Duration::from_millis(300);

enum Content {
    File(BTreeMap<u64, Box<[u8]>>),
    Directory(Directory),
    Symlink(Bytes),
    Special,
}

#[derive(Default)]
struct Directory {
    parent: Ino,
    names: BTreeMap<Vec<u8>, u64>,
    /// By cookie. `.` and `..` have cookies 1 and 2, which are never given to names.
    entries: BTreeMap<u64, (Vec<u8>, Ino)>,
    cookie_last: u64,
}

struct Node {
    attr: Attr,
    references: u64,
    content: Content,
    xattrs: BTreeMap<Vec<u8>, Bytes>,
}

struct Inner {
    nodes: HashMap<Ino, Node>,
    ino_last: Ino,
}

/// The file system.
pub struct Memory {
    env: Env,
    inner: Mutex<Inner>,
}

impl Memory {
    pub fn new(env: Env) -> Memory {
        let inner = Inner { nodes: HashMap::new(), ino_last: 0 };
        let memory = Memory { env, inner: Mutex::new(inner) };
        let content = Content::Directory(Directory { parent: ROOT, cookie_last: 2, ..Directory::default() });
        let now = memory.now();
        let root = memory.inner.lock().make(now, content, &plain(FileKind::Directory, 0o755), 2);
        assert_eq!(root.ino, ROOT);
        memory
    }

    /// Inodes that exist, those without names too.
    pub fn nodes_count(&self) -> usize {
        self.inner.lock().nodes.len()
    }

    fn now(&self) -> Time {
        self.env.wall().into()
    }
}

fn plain(kind: FileKind, permissions: u32) -> NewNode {
    NewNode { kind, permissions, uid: 0, gid: 0, device: 0, umask: 0, open: false }
}

impl Node {
    fn directory(&mut self) -> Result<&mut Directory> {
        match &mut self.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Errno::NotDirectory.into()),
        }
    }
    fn pages(&mut self) -> Result<&mut BTreeMap<u64, Box<[u8]>>> {
        match &mut self.content {
            Content::File(pages) => Ok(pages),
            Content::Directory(_) => Err(Errno::IsDirectory.into()),
            _ => Err(Errno::Invalid.into()),
        }
    }
    fn read(&mut self, offset: u64, len: u64) -> Result<Vec<u8>> {
        let end = offset.saturating_add(len).min(self.attr.size);
        let pages = self.pages()?;
        if offset >= end {
            return Ok(Vec::new());
        }
        let mut out = vec![0; (end - offset) as usize];
        for (index, page) in pages.range(offset / PAGE..end.div_ceil(PAGE)) {
            let (from, to) = ((index * PAGE).max(offset), ((index + 1) * PAGE).min(end));
            if from < to {
                out[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&page[(from - index * PAGE) as usize..(to - index * PAGE) as usize]);
            }
        }
        Ok(out)
    }
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset + data.len() as u64;
        let pages = self.pages()?;
        let mut at = offset;
        while at < end {
            let (index, within) = (at / PAGE, (at % PAGE) as usize);
            let len = (PAGE as usize - within).min((end - at) as usize);
            let page = pages.entry(index).or_insert_with(|| vec![0; PAGE as usize].into());
            page[within..within + len].copy_from_slice(&data[(at - offset) as usize..(at - offset) as usize + len]);
            at += len as u64;
        }
        self.attr.size = self.attr.size.max(end);
        Ok(())
    }
    fn punch(&mut self, offset: u64, end: u64) -> Result<()> {
        let pages = self.pages()?;
        pages.retain(|index, _| index * PAGE < offset || (index + 1) * PAGE > end);
        for (index, page) in pages.range_mut(offset / PAGE..end.div_ceil(PAGE)) {
            let (from, to) = ((index * PAGE).max(offset), ((index + 1) * PAGE).min(end));
            page[(from - index * PAGE) as usize..(to - index * PAGE) as usize].fill(0);
        }
        Ok(())
    }
    fn resize(&mut self, size: u64) -> Result<()> {
        self.punch(size, u64::MAX - PAGE)?;
        self.attr.size = size;
        Ok(())
    }
    fn attr(&self) -> Attr {
        let allocated = match &self.content {
            Content::File(pages) => pages.len() as u64 * PAGE,
            _ => 0,
        };
        Attr { allocated, ..self.attr }
    }
    fn touched(&mut self, now: Time) {
        (self.attr.modified, self.attr.changed) = (now, now);
    }
}

impl Inner {
    fn node(&mut self, ino: Ino) -> Result<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(Errno::Stale.into())
    }
    fn child(&mut self, parent: Ino, name: &Name) -> Result<Option<Ino>> {
        let directory = self.node(parent)?.directory()?;
        Ok(directory.names.get(name).map(|cookie| directory.entries[cookie].1))
    }
    fn existing(&mut self, parent: Ino, name: &Name) -> Result<Ino> {
        self.child(parent, name)?.ok_or(Errno::NotFound.into())
    }
    fn make(&mut self, now: Time, content: Content, new: &NewNode, links: u32) -> Attr {
        self.ino_last += 1;
        let attr = Attr {
            generation: 1,
            links,
            uid: new.uid,
            gid: new.gid,
            device: new.device,
            size: if let Content::Symlink(target) = &content { target.len() as u64 } else { 0 },
            ..Attr::plain(self.ino_last, new.kind, new.permissions).at(now)
        };
        self.nodes.insert(attr.ino, Node { attr, references: 1, content, xattrs: BTreeMap::new() });
        attr
    }
    fn add(&mut self, now: Time, parent: Ino, name: &Name, content: Content, new: &NewNode) -> Result<Attr> {
        if self.child(parent, name)?.is_some() {
            return Err(Errno::Exists.into());
        }
        let links = if new.kind == FileKind::Directory { 2 } else { 1 };
        let attr = self.make(now, content, new, links);
        self.enter(now, parent, name, attr.ino)?;
        Ok(attr)
    }
    fn enter(&mut self, now: Time, parent: Ino, name: &Name, ino: Ino) -> Result<()> {
        let is_directory = self.node(ino)?.directory().map(|directory| directory.parent = parent).is_ok();
        let node = self.node(parent)?;
        node.attr.links += u32::from(is_directory);
        node.touched(now);
        let directory = node.directory()?;
        directory.cookie_last += 1;
        directory.names.insert(name.to_vec(), directory.cookie_last);
        directory.entries.insert(directory.cookie_last, (name.to_vec(), ino));
        Ok(())
    }
    fn leave(&mut self, now: Time, parent: Ino, name: &Name) -> Result<Ino> {
        let node = self.node(parent)?;
        node.touched(now);
        let directory = node.directory()?;
        let cookie = directory.names.remove(name).ok_or(Errno::NotFound)?;
        let (_, ino) = directory.entries.remove(&cookie).expect("names and entries agree");
        if self.node(ino)?.directory().is_ok() {
            self.node(parent)?.attr.links -= 1;
        }
        Ok(ino)
    }
    /// Takes a link away from an inode whose name is gone.
    fn unlink(&mut self, now: Time, ino: Ino) -> Result<()> {
        let node = self.node(ino)?;
        node.attr.changed = now;
        node.attr.links = if node.directory().is_ok() { 0 } else { node.attr.links - 1 };
        self.reap(ino);
        Ok(())
    }
    fn reap(&mut self, ino: Ino) {
        if self.nodes.get(&ino).is_some_and(|node| node.references == 0 && node.attr.links == 0) {
            self.nodes.remove(&ino);
        }
    }
    fn replaceable(&mut self, old: Ino, new: Ino) -> Result<()> {
        let old_is_directory = self.node(old)?.directory().is_ok();
        match self.node(new)?.directory() {
            Ok(directory) if !directory.names.is_empty() => Err(Errno::NotEmpty.into()),
            Ok(_) if !old_is_directory => Err(Errno::IsDirectory.into()),
            Err(_) if old_is_directory => Err(Errno::NotDirectory.into()),
            _ => Ok(()),
        }
    }
}

impl FileSystem for Memory {
    async fn lookup(&self, parent: Ino, name: &Name) -> Result<Attr> {
        match name {
            b"panic" => panic!("somebody looked up `panic`"),
            b"damaged" => return Err(ashlar_block::Error::corrupt("a block is damaged").into()),
            b"slow" => self.env.sleep(SLOW).await,
            _ => {}
        }
        let mut inner = self.inner.lock();
        let ino = inner.existing(parent, name)?;
        let node = inner.node(ino)?;
        node.references += 1;
        Ok(node.attr())
    }
    async fn forget(&self, ino: Ino, count: u64) {
        let mut inner = self.inner.lock();
        if let Ok(node) = inner.node(ino) {
            assert!(ino == ROOT || node.references >= count, "more references come back than were given");
            node.references = node.references.saturating_sub(count);
            inner.reap(ino);
        }
    }
    async fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.inner.lock().node(ino)?.attr())
    }
    async fn setattr(&self, ino: Ino, changes: SetAttr) -> Result<Attr> {
        let now = self.now();
        let mut inner = self.inner.lock();
        let node = inner.node(ino)?;
        if let Some(size) = changes.size {
            node.resize(size)?;
            node.attr.modified = now;
        }
        let time = |time: SetTime| if let SetTime::To(time) = time { time } else { now };
        let attr = &mut node.attr;
        attr.permissions = changes.permissions.unwrap_or(attr.permissions);
        attr.uid = changes.uid.unwrap_or(attr.uid);
        attr.gid = changes.gid.unwrap_or(attr.gid);
        attr.accessed = changes.accessed.map_or(attr.accessed, time);
        attr.modified = changes.modified.map_or(attr.modified, time);
        attr.changed = changes.changed.unwrap_or(now);
        if changes.clear_setid {
            attr.permissions &= 0o1777;
        }
        Ok(node.attr())
    }
    async fn readlink(&self, ino: Ino) -> Result<Bytes> {
        match &self.inner.lock().node(ino)?.content {
            Content::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::Invalid.into()),
        }
    }
    async fn create(&self, parent: Ino, name: &Name, new: NewNode) -> Result<Attr> {
        let content = if new.kind == FileKind::File { Content::File(BTreeMap::new()) } else { Content::Special };
        self.inner.lock().add(self.now(), parent, name, content, &new)
    }
    async fn tmpfile(&self, _parent: Ino, new: NewNode) -> Result<Attr> {
        Ok(self.inner.lock().make(self.now(), Content::File(BTreeMap::new()), &new, 0))
    }
    async fn mkdir(&self, parent: Ino, name: &Name, new: NewNode) -> Result<Attr> {
        let directory = Directory { parent, cookie_last: 2, ..Directory::default() };
        self.inner.lock().add(self.now(), parent, name, Content::Directory(directory), &new)
    }
    async fn symlink(&self, parent: Ino, name: &Name, target: &[u8], new: NewNode) -> Result<Attr> {
        let content = Content::Symlink(Bytes::copy_from_slice(target));
        self.inner.lock().add(self.now(), parent, name, content, &new)
    }
    async fn link(&self, ino: Ino, parent: Ino, name: &Name) -> Result<Attr> {
        let now = self.now();
        let mut inner = self.inner.lock();
        if inner.child(parent, name)?.is_some() {
            return Err(Errno::Exists.into());
        }
        inner.enter(now, parent, name, ino)?;
        let node = inner.node(ino)?;
        node.attr.links += 1;
        node.attr.changed = now;
        node.references += 1;
        Ok(node.attr())
    }
    async fn unlink(&self, parent: Ino, name: &Name) -> Result<()> {
        let now = self.now();
        let mut inner = self.inner.lock();
        let ino = inner.existing(parent, name)?;
        if inner.node(ino)?.directory().is_ok() {
            return Err(Errno::IsDirectory.into());
        }
        inner.leave(now, parent, name)?;
        inner.unlink(now, ino)
    }
    async fn rmdir(&self, parent: Ino, name: &Name) -> Result<()> {
        let now = self.now();
        let mut inner = self.inner.lock();
        let ino = inner.existing(parent, name)?;
        if !inner.node(ino)?.directory()?.names.is_empty() {
            return Err(Errno::NotEmpty.into());
        }
        inner.leave(now, parent, name)?;
        inner.unlink(now, ino)
    }
    async fn rename(&self, from: (Ino, &Name), to: (Ino, &Name), mode: RenameMode) -> Result<()> {
        let now = self.now();
        let mut inner = self.inner.lock();
        let moved = inner.existing(from.0, from.1)?;
        let target = inner.child(to.0, to.1)?;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::Exists.into()),
            (RenameMode::Exchange, None) => return Err(Errno::NotFound.into()),
            (_, Some(target)) if target == moved => return Ok(()),
            (RenameMode::Replace | RenameMode::Whiteout { .. }, Some(target)) => inner.replaceable(moved, target)?,
            _ => {}
        }
        inner.leave(now, from.0, from.1)?;
        if let Some(target) = target {
            inner.leave(now, to.0, to.1)?;
            match mode {
                RenameMode::Exchange => inner.enter(now, from.0, from.1, target)?,
                _ => inner.unlink(now, target)?,
            }
        }
        inner.enter(now, to.0, to.1, moved)?;
        match mode.whiteout() {
            Some(new) => inner.add(now, from.0, from.1, Content::Special, &new).map(drop),
            None => Ok(()),
        }
    }
    async fn open(&self, _ino: Ino, _truncate: bool) -> Result<()> {
        panic!("the door leaves counting open files to the kernel");
    }
    async fn release(&self, _ino: Ino) {
        panic!("the door leaves counting open files to the kernel");
    }
    async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<Bytes>> {
        let mut data = Bytes::from(self.inner.lock().node(ino)?.read(offset, len as u64)?);
        // In pieces, as an engine gives them.
        let mut pieces = Vec::new();
        while !data.is_empty() {
            pieces.push(data.split_to(data.len().min(100_000)));
        }
        Ok(pieces)
    }
    async fn write(&self, ino: Ino, offset: u64, data: Bytes, how: WriteMode) -> Result<()> {
        let now = self.now();
        let mut inner = self.inner.lock();
        let node = inner.node(ino)?;
        if node.xattrs.contains_key(b"user.full".as_slice()) {
            return Err(Errno::NoSpace.into());
        }
        node.write(offset, &data)?;
        if !how.writeback {
            node.touched(now);
        }
        if how.clear_setid {
            node.attr.permissions &= 0o1777;
        }
        Ok(())
    }
    async fn fsync(&self, _ino: Ino, _data_only: bool) -> Result<()> {
        Ok(())
    }
    async fn syncfs(&self) -> Result<()> {
        Ok(())
    }
    async fn readdir(
        &self,
        ino: Ino,
        cookie: u64,
        attributes: bool,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        let mut inner = self.inner.lock();
        let directory = inner.node(ino)?.directory()?;
        let dots = [(1, (b".".to_vec(), ino)), (2, (b"..".to_vec(), directory.parent))];
        let entries = directory.entries.iter().map(|(cookie, entry)| (*cookie, entry.clone()));
        let listed: Vec<_> = dots.into_iter().chain(entries).filter(|(at, _)| *at > cookie).take(2000).collect();
        for (cookie, (name, ino)) in listed {
            let node = inner.node(ino)?;
            let attr = (attributes && cookie > 2).then(|| node.attr());
            if !sink(DirEntry { ino, cookie, kind: node.attr.kind, name: &name, attr }) {
                break;
            }
            node.references += u64::from(attr.is_some());
        }
        Ok(())
    }
    async fn getxattr(&self, ino: Ino, name: &Name) -> Result<Bytes> {
        self.inner.lock().node(ino)?.xattrs.get(name).cloned().ok_or(Errno::NoData.into())
    }
    async fn setxattr(&self, ino: Ino, name: &Name, value: &[u8], mode: XattrMode) -> Result<()> {
        let mut inner = self.inner.lock();
        let xattrs = &mut inner.node(ino)?.xattrs;
        match (mode, xattrs.contains_key(name)) {
            (XattrMode::Create, true) => Err(Errno::Exists.into()),
            (XattrMode::Replace, false) => Err(Errno::NoData.into()),
            _ => {
                xattrs.insert(name.to_vec(), Bytes::copy_from_slice(value));
                Ok(())
            }
        }
    }
    async fn listxattr(&self, ino: Ino) -> Result<Vec<Bytes>> {
        Ok(self.inner.lock().node(ino)?.xattrs.keys().map(|name| Bytes::copy_from_slice(name)).collect())
    }
    async fn removexattr(&self, ino: Ino, name: &Name) -> Result<()> {
        self.inner.lock().node(ino)?.xattrs.remove(name).map(drop).ok_or(Errno::NoData.into())
    }
    async fn fallocate(&self, ino: Ino, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        let now = self.now();
        let mut inner = self.inner.lock();
        let node = inner.node(ino)?;
        node.touched(now);
        let end = offset + len;
        let grow = |node: &mut Node, keep_size: bool| {
            if !keep_size {
                node.attr.size = node.attr.size.max(end);
            }
        };
        match mode {
            FallocateMode::Reserve { keep_size } => {
                for index in offset / PAGE..end.div_ceil(PAGE) {
                    node.pages()?.entry(index).or_insert_with(|| vec![0; PAGE as usize].into());
                }
                grow(node, keep_size);
            }
            FallocateMode::Punch => node.punch(offset, end)?,
            FallocateMode::Zero { keep_size } => {
                node.punch(offset, end)?;
                grow(node, keep_size);
            }
            // The kernel does not pass these on.
            FallocateMode::Collapse | FallocateMode::Insert => return Err(Errno::Unsupported.into()),
        }
        Ok(())
    }
    async fn seek(&self, ino: Ino, offset: u64, what: SeekWhat) -> Result<u64> {
        let mut inner = self.inner.lock();
        let node = inner.node(ino)?;
        let size = node.attr.size;
        if offset >= size {
            return Err(Errno::NoSuchAddress.into());
        }
        let pages = node.pages()?;
        let first = offset / PAGE;
        let found = match what {
            SeekWhat::Data => pages.range(first..).next().map(|(index, _)| *index).ok_or(Errno::NoSuchAddress)?,
            SeekWhat::Hole => (first..).find(|index| !pages.contains_key(index)).expect("files end"),
        };
        match what {
            SeekWhat::Data if found * PAGE >= size => Err(Errno::NoSuchAddress.into()),
            _ => Ok((found * PAGE).clamp(offset, size)),
        }
    }
    async fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        let now = self.now();
        let mut inner = self.inner.lock();
        let data = inner.node(from.0)?.read(from.1, len)?;
        let target = inner.node(to.0)?;
        target.write(to.1, &data)?;
        target.touched(now);
        Ok(data.len() as u64)
    }
    async fn statfs(&self) -> Result<StatFs> {
        let files = self.nodes_count() as u64;
        Ok(StatFs { capacity: CAPACITY, free: CAPACITY / 2, files, files_free: 1 << 20 })
    }
}
