//! A file system in process, driven through the trait as the kernel would: names are looked up one by one, every reference
//! is given back.

use super::operation::{Answer, Op, Place, Refusal, Stat, Subject, Target, attribute_of, name_of};
use ashlar_vfs::{
    Attr, Errno, FileKind, FileSystem, Ino, Name, NewNode, ROOT, SeekWhat, SetAttr, SetTime, WriteMode, clear,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A file system in process, and what one program holds open of it.
pub(super) struct Engine<F> {
    files: Arc<F>,
    /// Each holds one reference and one open handle.
    handles: BTreeMap<usize, Ino>,
    /// Trees are removed name by name, where they are.
    in_place: bool,
    /// Small writes are made as the kernel's page cache makes them.
    by_pages: bool,
}

/// Bytes of a page of the page cache.
const PAGE: u64 = 4096;
/// Longer writes are made as they are.
const BY_PAGES_MAX: u64 = 1000;
/// Who reads so much does not read for the sake of a few pages.
const MUCH: usize = 1 << 20;

impl<F: FileSystem> Engine<F> {
    pub(super) fn new(files: Arc<F>) -> Engine<F> {
        Engine { files, handles: BTreeMap::new(), in_place: false, by_pages: false }
    }

    /// One that removes trees name by name, where they are.
    pub(super) fn in_place(self, in_place: bool) -> Engine<F> {
        Engine { in_place, ..self }
    }

    /// One whose small writes inside a file are, now and then, what the page cache makes of them: pages are read, and written whole. Nobody
    /// else may write meanwhile.
    pub(super) fn by_pages(self, by_pages: bool) -> Engine<F> {
        Engine { by_pages, ..self }
    }

    /// Closes everything.
    pub(super) async fn close(&mut self) {
        while let Some((_, ino)) = self.handles.pop_first() {
            self.files.release(ino).await;
            self.files.forget(ino, 1).await;
        }
    }

    /// Holds an inode of which one reference and one handle are counted; lets go of what was there.
    async fn hold(&mut self, handle: usize, ino: Ino) {
        if let Some(old) = self.handles.insert(handle, ino) {
            self.files.release(old).await;
            self.files.forget(old, 1).await;
        }
    }

    /// The inode of a handle.
    fn held(&self, handle: usize) -> Done<Ino> {
        Ok(*self.handles.get(&handle).ok_or(Errno::Stale)?)
    }

    fn new_node(kind: FileKind, permissions: u32, open: bool) -> NewNode {
        NewNode { kind, permissions, uid: 0, gid: 0, device: 0, umask: 0, open }
    }
}

type Done<T> = Result<T, ashlar_vfs::Error>;

/// One operation, and the references that it took.
struct Call<'a, F> {
    engine: &'a mut Engine<F>,
    references: Vec<Ino>,
}

impl<F: FileSystem> Subject for Engine<F> {
    async fn apply(&mut self, op: &Op) -> Result<Answer, Refusal> {
        let mut call = Call { engine: self, references: Vec::new() };
        let result = call.run(op).await;
        for ino in call.references {
            self.files.forget(ino, 1).await;
        }
        result.map_err(|error| match error.errno {
            Errno::Io => Refusal::Other(error.to_string()),
            errno => Refusal::Posix(errno),
        })
    }
    fn may_lack(&self) -> bool {
        false
    }
}

impl<F: FileSystem> Call<'_, F> {
    async fn look_up(&mut self, parent: Ino, name: u8) -> Done<Attr> {
        let attr = self.engine.files.lookup(parent, &name_of(name)).await?;
        self.references.push(attr.ino);
        Ok(attr)
    }

    async fn walk(&mut self, base: Option<usize>, names: &[u8]) -> Done<Ino> {
        let mut at = base.map_or(Ok(ROOT), |handle| self.engine.held(handle))?;
        for name in names {
            at = self.look_up(at, *name).await?.ino;
        }
        Ok(at)
    }

    /// The directory that holds a name, and the name.
    async fn above(&mut self, place: &Place) -> Done<(Ino, Vec<u8>)> {
        let (last, way) = place.names.split_last().ok_or(Errno::Invalid)?;
        let parent = self.walk(place.base, way).await?;
        // The kernel asks nothing of what is no directory.
        match self.engine.files.getattr(parent).await?.kind {
            FileKind::Directory => Ok((parent, name_of(*last))),
            _ => Err(Errno::NotDirectory.into()),
        }
    }

    async fn find(&mut self, place: &Place) -> Done<Ino> {
        self.walk(place.base, &place.names).await
    }

    /// As a server of file handles does: it keeps the number alone, and asks for that later.
    async fn find_by_number(&mut self, place: &Place) -> Done<Ino> {
        loop {
            let kept = self.references.len();
            let ino = self.find(place).await?;
            for ino in self.references.drain(kept..) {
                self.engine.files.forget(ino, 1).await;
            }
            match self.engine.files.lookup(ino, b".").await {
                Ok(attr) => {
                    self.references.push(attr.ino);
                    return Ok(attr.ino);
                }
                // Another removed it meanwhile; or it has the name and is not found, and that never ends.
                Err(error) if error.errno == Errno::Stale && self.find(place).await? != ino => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn target(&mut self, target: &Target) -> Done<Ino> {
        match target {
            Target::At(place) => self.find(place).await,
            Target::Open(handle) => self.engine.held(*handle),
        }
    }

    async fn set(&mut self, of: &Target, changes: SetAttr) -> Done<Answer> {
        let ino = self.target(of).await?;
        self.engine.files.setattr(ino, changes).await.map(|_| Answer::Done)
    }

    /// A new inode was made, and one reference counted.
    async fn made(&mut self, attr: Attr, handle: Option<usize>) {
        match handle {
            Some(handle) => self.engine.hold(handle, attr.ino).await,
            None => self.references.push(attr.ino),
        }
    }

    async fn run(&mut self, op: &Op) -> Done<Answer> {
        let files = self.engine.files.clone();
        match op {
            Op::Create { at, kind, permissions, handle } => {
                let (parent, name) = self.above(at).await?;
                let new = Engine::<F>::new_node(*kind, *permissions, handle.is_some());
                let attr = files.create(parent, &name, new).await?;
                self.made(attr, *handle).await;
            }
            Op::Mkdir { at, permissions } => {
                let (parent, name) = self.above(at).await?;
                let new = Engine::<F>::new_node(FileKind::Directory, *permissions, false);
                let attr = files.mkdir(parent, &name, new).await?;
                self.made(attr, None).await;
            }
            Op::Symlink { at, target } => {
                let (parent, name) = self.above(at).await?;
                let new = Engine::<F>::new_node(FileKind::Symlink, 0o777, false);
                let attr = files.symlink(parent, &name, target, new).await?;
                self.made(attr, None).await;
            }
            Op::Nameless { directory, permissions, handle } => {
                let directory = self.find(directory).await?;
                let new = Engine::<F>::new_node(FileKind::File, *permissions, true);
                let attr = files.tmpfile(directory, new).await?;
                self.made(attr, Some(*handle)).await;
            }
            Op::Open { at, handle } => {
                let ino = self.find(at).await?;
                if at.names.is_empty() {
                    // The root, or what a handle holds: one more reference, as from a lookup of `.`.
                    files.lookup(ino, b".").await?;
                } else {
                    self.references.pop();
                }
                files.open(ino, false).await?;
                self.engine.hold(*handle, ino).await;
            }
            Op::Close { handle } => {
                let ino = self.engine.held(*handle)?;
                self.engine.handles.remove(handle);
                files.release(ino).await;
                self.references.push(ino);
            }
            Op::Name { handle, to } => {
                let ino = self.engine.held(*handle)?;
                let (parent, name) = self.above(to).await?;
                files.link(ino, parent, &name).await?;
                self.references.push(ino);
            }
            Op::Link { from, to } => {
                let ino = self.find(from).await?;
                let (parent, name) = self.above(to).await?;
                files.link(ino, parent, &name).await?;
                self.references.push(ino);
            }
            Op::Rename { from, to, mode } => {
                let (from, from_name) = self.above(from).await?;
                let (to, to_name) = self.above(to).await?;
                files.rename((from, &from_name), (to, &to_name), *mode).await?;
            }
            Op::Unlink { at } => {
                let (parent, name) = self.above(at).await?;
                files.unlink(parent, &name).await?;
            }
            Op::Rmdir { at } => {
                let (parent, name) = self.above(at).await?;
                files.rmdir(parent, &name).await?;
            }
            Op::RemoveTree { at } => {
                let (parent, name) = self.above(at).await?;
                remove_tree(&*files, parent, &name, self.engine.in_place).await?;
            }
            Op::Read { of, offset, len } => {
                let ino = self.target(of).await?;
                return Ok(Answer::Bytes(files.read(ino, *offset, *len as usize).await?.concat()));
            }
            Op::Write { of, offset, data } => {
                let ino = self.target(of).await?;
                let how = WriteMode { writeback: data.stamp.is_multiple_of(2), ..WriteMode::default() };
                let by_pages = self.engine.by_pages && data.len <= BY_PAGES_MAX && data.stamp % 8 < 5;
                let size = if by_pages { files.getattr(ino).await?.size } else { 0 };
                if offset + data.len > size {
                    files.write(ino, *offset, data.bytes().into(), how).await?;
                    return Ok(Answer::Done);
                }
                let (from, to) = (offset / PAGE * PAGE, (offset + data.len).next_multiple_of(PAGE).min(size));
                // Now and then the pages are in the cache for another reason.
                let len = if data.stamp % 8 < 2 { MUCH } else { (to - from) as usize };
                let mut pages = files.read(ino, from, len).await?.concat();
                pages.truncate((to - from) as usize);
                let within = (offset - from) as usize;
                pages[within..within + data.len as usize].copy_from_slice(&data.bytes());
                files.write(ino, from, pages.into(), how).await?;
            }
            Op::Append { of, data } => {
                let ino = self.target(of).await?;
                let end = files.getattr(ino).await?.size;
                files.write(ino, end, data.bytes().into(), WriteMode::default()).await?;
            }
            Op::Truncate { of, size } => {
                return self.set(of, SetAttr { size: Some(*size), ..SetAttr::default() }).await;
            }
            Op::Fallocate { of, offset, len, mode } => {
                let ino = self.target(of).await?;
                files.fallocate(ino, *offset, *len, *mode).await?;
            }
            Op::Copy { from, from_offset, to, to_offset, len } => {
                let (from, to) = (self.target(from).await?, self.target(to).await?);
                return files.copy_range((from, *from_offset), (to, *to_offset), *len).await.map(Answer::Count);
            }
            Op::Extents { of } => {
                let ino = self.target(of).await?;
                return extents(&*files, ino).await.map(Answer::Extents);
            }
            Op::SetXattr { of, name, len, mode } => {
                let ino = self.target(of).await?;
                files.setxattr(ino, &attribute_of(*name), &vec![*name; *len as usize], *mode).await?;
            }
            Op::GetXattr { of, name } => {
                let ino = self.target(of).await?;
                let value = files.getxattr(ino, &attribute_of(*name)).await?;
                return Ok(Answer::Bytes(value.to_vec()));
            }
            Op::RemoveXattr { of, name } => {
                let ino = self.target(of).await?;
                files.removexattr(ino, &attribute_of(*name)).await?;
            }
            Op::ListXattrs { of } => {
                let ino = self.target(of).await?;
                let mut names: Vec<Vec<u8>> =
                    files.listxattr(ino).await?.into_iter().map(|name| name.to_vec()).collect();
                names.sort_unstable();
                return Ok(Answer::Names(names));
            }
            Op::Chmod { of, permissions } => {
                return self.set(of, SetAttr { permissions: Some(*permissions), ..SetAttr::default() }).await;
            }
            Op::Chown { of, uid, gid } => {
                return self.set(of, SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() }).await;
            }
            Op::SetTimes { of, modified } => {
                let time = Some(SetTime::To(*modified));
                return self.set(of, SetAttr { modified: time, ..SetAttr::default() }).await;
            }
            Op::Stat { of } => {
                let ino = match of {
                    Target::At(place) if !place.names.is_empty() => self.find_by_number(place).await?,
                    _ => self.target(of).await?,
                };
                return Ok(Answer::Stat(stat(&files.getattr(ino).await?)));
            }
            Op::Readlink { at } => {
                let ino = self.find(at).await?;
                return Ok(Answer::Bytes(files.readlink(ino).await?.to_vec()));
            }
            Op::List { directory, page, meanwhile } => {
                let ino = self.find(directory).await?;
                return list(&*files, ino, *page, *meanwhile).await.map(Answer::Names);
            }
            Op::Fsync { of, data_only } => {
                let ino = self.target(of).await?;
                files.fsync(ino, *data_only).await?;
            }
            Op::Sync => files.syncfs().await?,
        }
        Ok(Answer::Done)
    }
}

/// Takes a tree away and clears it; or `in_place`, where everybody sees parts of it.
async fn remove_tree<F: FileSystem>(files: &F, parent: Ino, name: &Name, in_place: bool) -> Done<()> {
    let progress = clear::Progress::default();
    if in_place {
        return clear::remove_here(files, parent, name, &progress).await;
    }
    if clear::take_away(files, parent, name, &progress).await?.0 == clear::Taken::Removed {
        return Ok(());
    }
    match clear::clear_waiting(files, &progress).await? {
        (clear::Kept { why: Some(error), .. }, _) => Err(error),
        (_, true) => Ok(()),
        // Nobody else removes trees, so that nothing keeps that directory.
        (_, false) => Err(Errno::Io.into()),
    }
}

fn stat(attr: &Attr) -> Stat {
    let size = matches!(attr.kind, FileKind::File | FileKind::Symlink).then_some(attr.size);
    Stat {
        kind: attr.kind,
        permissions: attr.permissions,
        links: Some(attr.links),
        uid: attr.uid,
        gid: attr.gid,
        size,
        modified: Some(attr.modified),
    }
}

async fn extents<F: FileSystem>(files: &F, ino: Ino) -> Done<Vec<(u64, u64)>> {
    let (mut found, mut at) = (Vec::new(), 0);
    loop {
        let start = match files.seek(ino, at, SeekWhat::Data).await {
            Err(error) if error.errno == Errno::NoSuchAddress => return Ok(found),
            other => other?,
        };
        at = files.seek(ino, start, SeekWhat::Hole).await?;
        found.push((start, at));
    }
}

/// Lists a directory in pages of `page` entries, each from behind the last cookie of the one before.
async fn list<F: FileSystem>(files: &F, ino: Ino, page: usize, meanwhile: Option<u8>) -> Done<Vec<Vec<u8>>> {
    let (mut cookie, mut found) = (0, Vec::new());
    loop {
        let (mut taken, mut next) = (0, cookie);
        let mut sink = |entry: ashlar_vfs::DirEntry<'_>| {
            if taken == page {
                return false;
            }
            taken += 1;
            next = entry.cookie;
            found.push(entry.name.to_vec());
            true
        };
        files.readdir(ino, cookie, false, &mut sink).await?;
        if taken == 0 {
            break;
        }
        if let (0, Some(name)) = (cookie, meanwhile) {
            files.unlink(ino, &name_of(name)).await?;
        }
        cookie = next;
    }
    found.retain(|name| name != b"." && name != b"..");
    found.sort_unstable();
    Ok(found)
}
