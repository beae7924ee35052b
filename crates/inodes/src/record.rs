//! Attributes of an inode.
//!
//! What is stored begins with a head (flags, mode, links, owner, device) and ends with a tail (times, target of a symbolic link); the
//! numbers between, which say where contents lie, are an engine's own. Numbers are little-endian.

use crate::{BLOCK, blocks_of};
use ashlar_vfs::{Attr, Errno, FileKind, Ino, NewNode, ROOT, Result, SetAttr, SetTime, Time};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::time::Duration;

/// Access times are updated at least this often, as with `relatime`.
const RELATIME: Duration = Duration::from_secs(24 * 3600);
/// Most names of one inode.
const LINKS_MAX: u32 = 65_000;
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o0010;
/// Nanoseconds of a second.
const NANOS: u32 = 1_000_000_000;
/// Flags; those of engines are above them.
const SPARSE: u8 = 1;
const HAS_XATTRS: u8 = 2;

/// What an engine notes about where the contents of an inode are; the default is that of an empty one.
pub trait Contents: Clone + Default + PartialEq + Send + Sync + 'static {}
impl<C: Clone + Default + PartialEq + Send + Sync + 'static> Contents for C {}

/// Attributes of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "most are those of `Attr`")]
pub struct Record<C> {
    pub ino: Ino,
    pub kind: FileKind,
    /// 12 bits.
    pub permissions: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub device: u32,
    pub size: u64,
    pub accessed: Time,
    pub modified: Time,
    pub changed: Time,
    pub born: Time,
    /// Where contents are.
    pub contents: C,
    /// Not every block below the size is stored.
    pub sparse: bool,
    /// There may be extended attributes.
    pub has_xattrs: bool,
    /// Where `..` of a directory leads.
    pub parent: Ino,
    /// Target of a symbolic link.
    pub target: Bytes,
}

impl<C: Contents> Record<C> {
    /// Attributes of something empty with one name, born now.
    pub fn new(ino: Ino, kind: FileKind, now: Time) -> Record<C> {
        Record {
            ino,
            kind,
            permissions: 0,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            device: 0,
            size: 0,
            accessed: now,
            modified: now,
            changed: now,
            born: now,
            contents: C::default(),
            sparse: false,
            has_xattrs: false,
            parent: 0,
            target: Bytes::new(),
        }
    }

    /// Attributes of an empty root directory.
    pub fn root(now: Time, uid: u32, gid: u32) -> Record<C> {
        Record { permissions: 0o755, uid, gid, parent: ROOT, ..Record::new(ROOT, FileKind::Directory, now) }
    }

    /// Attributes of a new inode in this directory.
    pub fn child(&self, ino: Ino, new: &NewNode, target: &[u8], now: Time) -> Record<C> {
        let inherits = self.permissions & S_ISGID != 0;
        let is_directory = new.kind == FileKind::Directory;
        Record {
            permissions: new.permissions | if inherits && is_directory { S_ISGID } else { 0 },
            uid: new.uid,
            gid: if inherits { self.gid } else { new.gid },
            device: new.device,
            size: target.len() as u64,
            parent: if is_directory { self.ino } else { 0 },
            target: Bytes::copy_from_slice(target),
            ..Record::new(ino, new.kind, now)
        }
    }

    /// Writes the head; `flags` are the engine's own.
    pub fn put_head(&self, to: &mut BytesMut, flags: u8) {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        to.put_u8(flags | flag(self.sparse, SPARSE) | flag(self.has_xattrs, HAS_XATTRS));
        to.put_u16_le((self.kind.mode_bits() | self.permissions & 0o7777) as u16);
        for number in [self.links, self.uid, self.gid, self.device] {
            to.put_u32_le(number);
        }
    }

    /// Writes the tail.
    pub fn put_tail(&self, to: &mut BytesMut) {
        for time in [self.accessed, self.modified, self.changed, self.born] {
            to.put_i64_le(time.seconds);
            to.put_u32_le(time.nanos.min(NANOS - 1));
        }
        to.put_slice(&self.target);
    }

    /// Reads a head: a record that lacks the rest, and all flags. `None` if it is cut short or of an unknown kind.
    pub fn get_head(from: &mut Bytes) -> Option<(Record<C>, u8)> {
        let flags = from.try_get_u8().ok()?;
        let mode = u32::from(from.try_get_u16_le().ok()?);
        let mut record = Record::new(0, FileKind::from_mode(mode)?, Time::default());
        record.permissions = mode & 0o7777;
        for number in [&mut record.links, &mut record.uid, &mut record.gid, &mut record.device] {
            *number = from.try_get_u32_le().ok()?;
        }
        (record.sparse, record.has_xattrs) = (flags & SPARSE != 0, flags & HAS_XATTRS != 0);
        Some((record, flags))
    }

    /// Reads the tail of a record that lacks it. `None` if it is cut short.
    pub fn with_tail(mut self, mut from: Bytes) -> Option<Record<C>> {
        for time in [&mut self.accessed, &mut self.modified, &mut self.changed, &mut self.born] {
            *time = Time { seconds: from.try_get_i64_le().ok()?, nanos: from.try_get_u32_le().ok()? };
        }
        // A copy: a slice would keep the whole index node in memory.
        self.target = Bytes::copy_from_slice(&from);
        Some(self)
    }

    /// Whether the times are some.
    pub fn has_valid_times(&self) -> bool {
        [self.accessed, self.modified, self.changed, self.born].iter().all(|time| time.nanos < NANOS)
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Attributes, but for the space in use, which the caller counts.
    pub fn attr(&self, allocated: u64) -> Attr {
        Attr {
            generation: 1,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            device: self.device,
            size: self.size,
            allocated,
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
            born: self.born,
            ..Attr::plain(self.ino, self.kind, self.permissions)
        }
    }

    /// A file, whose contents can be read and changed.
    pub fn check_file(&self) -> Result<()> {
        match self.kind {
            FileKind::File => Ok(()),
            FileKind::Directory => Err(Errno::IsDirectory.into()),
            _ => Err(Errno::Invalid.into()),
        }
    }

    /// A directory that still has a name, for adding to it.
    pub fn check_directory(&self) -> Result<()> {
        match (self.kind, self.links) {
            (FileKind::Directory, 0) => Err(Errno::NotFound.into()),
            (FileKind::Directory, _) => Ok(()),
            _ => Err(Errno::NotDirectory.into()),
        }
    }

    /// Counts another name, or a subdirectory; not for more than there may be.
    pub fn add_link(&mut self) -> Result<()> {
        if self.links >= LINKS_MAX {
            return Err(Errno::TooManyLinks.into());
        }
        self.links += 1;
        Ok(())
    }

    /// Target of a symbolic link.
    pub fn link_target(&self) -> Result<Bytes> {
        if self.kind == FileKind::Symlink { Ok(self.target.clone()) } else { Err(Errno::Invalid.into()) }
    }

    /// Contents, or names in a directory, changed.
    pub fn modify(&mut self, now: Time) {
        (self.modified, self.changed) = (now, now);
    }

    /// The bytes from `offset` to `end` were written.
    pub fn cover(&mut self, offset: u64, end: u64) {
        if end > self.size {
            self.sparse |= offset / BLOCK > blocks_of(self.size);
            self.size = end;
        }
    }

    /// Contents are read: whether the access time has changed, as with `relatime`.
    pub fn access(&mut self, now: Time) -> bool {
        let age = now.seconds.saturating_sub(self.accessed.seconds);
        let due = self.accessed <= self.modified || self.accessed <= self.changed || age > RELATIME.as_secs() as i64;
        if due {
            self.accessed = now;
        }
        due
    }

    /// Clears set-id bits as a write by somebody without privilege must.
    pub fn clear_setid(&mut self) {
        if !self.is_directory() {
            let setgid = if self.permissions & S_IXGRP != 0 { S_ISGID } else { 0 };
            self.permissions &= !(S_ISUID | setgid);
        }
    }

    /// Changes owner and mode.
    pub(crate) fn set_owner_and_mode(&mut self, changes: &SetAttr) {
        self.permissions = changes.permissions.unwrap_or(self.permissions);
        self.uid = changes.uid.unwrap_or(self.uid);
        self.gid = changes.gid.unwrap_or(self.gid);
        if changes.clear_setid {
            self.clear_setid();
        }
    }

    /// Changes times; a change of the size is one of the contents.
    pub(crate) fn set_times(&mut self, changes: &SetAttr, now: Time) {
        let time = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        let modified = if changes.size.is_some() { now } else { self.modified };
        self.accessed = changes.accessed.map_or(self.accessed, time);
        self.modified = changes.modified.map_or(modified, time);
        self.changed = changes.changed.unwrap_or(now);
    }

    /// The nine permission bits are now these.
    pub(crate) fn set_mode(&mut self, mode: u32) {
        self.permissions = self.permissions & !0o777 | mode;
    }
}
