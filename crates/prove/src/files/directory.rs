//! A directory of a mounted file system, driven by system calls: a file system of the kernel as control, or ours through
//! FUSE.

use super::operation::{Answer, Op, Place, Refusal, Stat, Subject, Target, attribute_of, name_of};
use ashlar_vfs::{Errno, FallocateMode, FileKind, RenameMode, Time, XattrMode};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RawDir, RenameFlags, SeekFrom, Timespec, Timestamps,
    Uid, XattrFlags,
};
use rustix::io::Errno as Os;
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// Room for entries read at once, in bytes: some names, not all.
const LISTING_BUFFER: usize = 700;
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// Room for the names of extended attributes, in bytes.
const NAMES_BUFFER: usize = 64 << 10;

/// An empty directory, and what this program holds open below it.
pub struct Directory {
    root: Arc<OwnedFd>,
    handles: BTreeMap<usize, Arc<OwnedFd>>,
    /// Whether `st_nlink` of a directory counts its subdirectories, as it need not.
    counts_subdirectories: bool,
    may_lack: bool,
}

impl Directory {
    /// `path`, whatever is mounted there. `may_lack`: operations that it does not support are no defect.
    pub fn open(path: &Path, may_lack: bool) -> std::io::Result<Directory> {
        let root = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let links = rustix::fs::fstat(&root)?.st_nlink;
        Ok(Directory { root: Arc::new(root), handles: BTreeMap::new(), counts_subdirectories: links > 1, may_lack })
    }

    /// Closes what is open.
    pub fn close(&mut self) {
        self.handles.clear();
    }

    fn base(&self, place: &Place) -> Called<Arc<OwnedFd>> {
        match place.base {
            None => Ok(self.root.clone()),
            Some(handle) => self.handle(handle),
        }
    }

    fn handle(&self, handle: usize) -> Called<Arc<OwnedFd>> {
        Ok(self.handles.get(&handle).ok_or(Failed::Stale)?.clone())
    }

    /// Where a place begins, and the path from there.
    fn path(&self, place: &Place) -> Called<(Arc<OwnedFd>, Vec<u8>)> {
        let names: Vec<Vec<u8>> = place.names.iter().map(|name| name_of(*name)).collect();
        let path = if names.is_empty() { b".".to_vec() } else { names.join(&b'/') };
        Ok((self.base(place)?, path))
    }

    fn open_at(&self, place: &Place, flags: OFlags, permissions: u32) -> Called<Arc<OwnedFd>> {
        let (base, path) = self.path(place)?;
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(Arc::new(rustix::fs::openat(&*base, path, flags, Mode::from_bits_truncate(permissions))?))
    }

    /// A descriptor of what the operation is about: the one that is open, else a new one.
    fn target(&self, target: &Target, flags: OFlags) -> Called<Arc<OwnedFd>> {
        match target {
            Target::At(place) => self.open_at(place, flags, 0),
            Target::Open(handle) => self.handle(*handle),
        }
    }

    /// A path that leads to what the operation is about, whatever its kind; the descriptor keeps it valid.
    fn magic(&self, target: &Target) -> Called<(Arc<OwnedFd>, String)> {
        let fd = self.target(target, OFlags::PATH)?;
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        Ok((fd, path))
    }

    fn run(&mut self, op: &Op) -> Called<Answer> {
        match op {
            Op::Create { at, kind: FileKind::File, permissions, handle } => {
                let fd = self.open_at(at, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, *permissions)?;
                if let Some(handle) = handle {
                    self.handles.insert(*handle, fd);
                }
            }
            Op::Create { at, permissions, .. } => {
                let (base, path) = self.path(at)?;
                rustix::fs::mknodat(&*base, path, FileType::Fifo, Mode::from_bits_truncate(*permissions), 0)?;
            }
            Op::Mkdir { at, permissions } => {
                let (base, path) = self.path(at)?;
                rustix::fs::mkdirat(&*base, path, Mode::from_bits_truncate(*permissions))?;
            }
            Op::Symlink { at, target } => {
                let (base, path) = self.path(at)?;
                rustix::fs::symlinkat(&target[..], &*base, path)?;
            }
            Op::Nameless { directory, permissions, handle } => {
                let fd = self.open_at(directory, OFlags::RDWR | OFlags::TMPFILE, *permissions)?;
                self.handles.insert(*handle, fd);
            }
            Op::Open { at, handle } => {
                let fd = match self.open_at(at, OFlags::RDWR, 0) {
                    Err(Failed::Os(Os::ISDIR)) => self.open_at(at, OFlags::RDONLY | OFlags::DIRECTORY, 0),
                    other => other,
                }?;
                self.handles.insert(*handle, fd);
            }
            Op::Close { handle } => {
                self.handles.remove(handle).ok_or(Failed::Stale)?;
            }
            Op::Name { handle, to } => {
                let (_fd, from) = self.magic(&Target::Open(*handle))?;
                let (base, path) = self.path(to)?;
                rustix::fs::linkat(CWD, from, &*base, path, AtFlags::SYMLINK_FOLLOW)?;
            }
            Op::Link { from, to } => {
                let ((from_base, from), (base, path)) = (self.path(from)?, self.path(to)?);
                rustix::fs::linkat(&*from_base, from, &*base, path, AtFlags::empty())?;
            }
            Op::Rename { from, to, mode } => {
                let ((from_base, from), (base, path)) = (self.path(from)?, self.path(to)?);
                let flags = match mode {
                    RenameMode::Replace => RenameFlags::empty(),
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                    RenameMode::Whiteout { .. } => RenameFlags::WHITEOUT,
                };
                rustix::fs::renameat_with(&*from_base, from, &*base, path, flags)?;
            }
            Op::Unlink { at } => {
                let (base, path) = self.path(at)?;
                rustix::fs::unlinkat(&*base, path, AtFlags::empty())?;
            }
            Op::Rmdir { at } => {
                let (base, path) = self.path(at)?;
                rustix::fs::unlinkat(&*base, path, AtFlags::REMOVEDIR)?;
            }
            Op::RemoveTree { at } => {
                let (base, path) = self.path(at)?;
                remove_tree(&base, &path)?;
            }
            Op::Read { of, offset, len } => {
                let fd = self.target(of, OFlags::RDONLY)?;
                return read(&fd, *offset, *len as usize).map(Answer::Bytes);
            }
            Op::Write { of, offset, data } => {
                let fd = self.target(of, OFlags::RDWR)?;
                write(&data.bytes(), |bytes, done| rustix::io::pwrite(&fd, bytes, offset + done))?;
            }
            Op::Append { of, data } => {
                let fd = match of {
                    Target::At(_) => self.target(of, OFlags::RDWR | OFlags::APPEND)?,
                    // The same file, opened again, so that its kernel and not we find the end.
                    Target::Open(_) => {
                        let (_fd, path) = self.magic(of)?;
                        Arc::new(rustix::fs::open(path, OFlags::RDWR | OFlags::APPEND, Mode::empty())?)
                    }
                };
                write(&data.bytes(), |bytes, _| rustix::io::write(&fd, bytes))?;
            }
            Op::Truncate { of, size } => rustix::fs::ftruncate(self.target(of, OFlags::RDWR)?, *size)?,
            Op::Fallocate { of, offset, len, mode } => {
                let flags = match mode {
                    FallocateMode::Reserve { keep_size: false } => FallocateFlags::empty(),
                    FallocateMode::Reserve { keep_size: true } => FallocateFlags::KEEP_SIZE,
                    FallocateMode::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    FallocateMode::Zero { keep_size: false } => FallocateFlags::ZERO_RANGE,
                    FallocateMode::Zero { keep_size: true } => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
                    FallocateMode::Collapse => FallocateFlags::COLLAPSE_RANGE,
                    FallocateMode::Insert => FallocateFlags::INSERT_RANGE,
                };
                rustix::fs::fallocate(self.target(of, OFlags::RDWR)?, flags, *offset, *len)?;
            }
            Op::Copy { from, from_offset, to, to_offset, len } => {
                let (from, to) = (self.target(from, OFlags::RDONLY)?, self.target(to, OFlags::RDWR)?);
                let (mut from_offset, mut to_offset) = (*from_offset, *to_offset);
                let copied = rustix::fs::copy_file_range(
                    &*from,
                    Some(&mut from_offset),
                    &*to,
                    Some(&mut to_offset),
                    *len as usize,
                )?;
                return Ok(Answer::Count(copied as u64));
            }
            Op::Extents { of } => {
                let fd = self.target(of, OFlags::RDONLY)?;
                return extents(&fd).map(Answer::Extents);
            }
            Op::SetXattr { of, name, len, mode } => {
                let flags = match mode {
                    XattrMode::Set => XattrFlags::empty(),
                    XattrMode::Create => XattrFlags::CREATE,
                    XattrMode::Replace => XattrFlags::REPLACE,
                };
                let (_fd, path) = self.magic(of)?;
                rustix::fs::setxattr(path, attribute_of(*name), &vec![*name; *len as usize], flags)?;
            }
            Op::GetXattr { of, name } => {
                let (_fd, path) = self.magic(of)?;
                let mut value = vec![0; 64 << 10];
                let len = rustix::fs::getxattr(path, attribute_of(*name), &mut value[..])?;
                value.truncate(len);
                return Ok(Answer::Bytes(value));
            }
            Op::RemoveXattr { of, name } => {
                let (_fd, path) = self.magic(of)?;
                rustix::fs::removexattr(path, attribute_of(*name))?;
            }
            Op::ListXattrs { of } => {
                let (_fd, path) = self.magic(of)?;
                let mut names = vec![0; NAMES_BUFFER];
                let len = rustix::fs::listxattr(path, &mut names[..])?;
                let mut names: Vec<Vec<u8>> = names[..len].split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
                // Others, such as security labels, are the system's.
                names.retain(|name| name.starts_with(b"user."));
                names.sort_unstable();
                return Ok(Answer::Names(names));
            }
            Op::Chmod { of, permissions } => {
                let (_fd, path) = self.magic(of)?;
                rustix::fs::chmod(path, Mode::from_bits_truncate(*permissions))?;
            }
            Op::Chown { of, uid, gid } => {
                let fd = self.target(of, OFlags::PATH)?;
                let (uid, gid) = (Uid::from_raw(*uid), Gid::from_raw(*gid));
                rustix::fs::chownat(&*fd, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
            }
            Op::SetTimes { of, modified } => {
                let (_fd, path) = self.magic(of)?;
                let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
                let modified = Timespec { tv_sec: modified.seconds, tv_nsec: i64::from(modified.nanos) };
                let times = Timestamps { last_access: omit, last_modification: modified };
                rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())?;
            }
            Op::Stat { of } => {
                let fd = self.target(of, OFlags::PATH)?;
                return self.stat(&fd).map(Answer::Stat);
            }
            Op::Readlink { at } => {
                let (base, path) = self.path(at)?;
                return Ok(Answer::Bytes(rustix::fs::readlinkat(&*base, path, Vec::new())?.into_bytes()));
            }
            Op::List { directory, page, meanwhile } => {
                let fd = self.open_at(directory, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
                // tmpfs of Linux 6.18 lists an entry twice if the one at the cookie was removed meanwhile.
                let is_tmpfs = rustix::fs::fstatfs(&*fd)?.f_type == TMPFS_MAGIC;
                let names = list(&fd, *page, meanwhile.filter(|_| !is_tmpfs))?;
                if let Some(name) = meanwhile.filter(|_| is_tmpfs) {
                    rustix::fs::unlinkat(&*fd, name_of(name), AtFlags::empty())?;
                }
                return Ok(Answer::Names(names));
            }
            Op::Fsync { of, data_only } => {
                let fd = self.target(of, OFlags::RDONLY)?;
                if *data_only { rustix::fs::fdatasync(&*fd) } else { rustix::fs::fsync(&*fd) }?;
            }
            Op::Sync => rustix::fs::syncfs(&*self.root)?,
        }
        Ok(Answer::Done)
    }

    fn stat(&self, fd: &OwnedFd) -> Called<Stat> {
        let stat = rustix::fs::fstat(fd)?;
        let kind = FileKind::from_mode(stat.st_mode).ok_or(Failed::Os(Os::IO))?;
        let counted = kind != FileKind::Directory || self.counts_subdirectories;
        let sized = matches!(kind, FileKind::File | FileKind::Symlink);
        Ok(Stat {
            kind,
            permissions: stat.st_mode & 0o7777,
            links: counted.then_some(stat.st_nlink as u32),
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: sized.then_some(stat.st_size as u64),
            modified: Some(Time { seconds: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 }),
        })
    }
}

/// `rm -r`.
fn remove_tree(base: &OwnedFd, path: &[u8]) -> Called<()> {
    let stat = rustix::fs::statat(base, path, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Ok(rustix::fs::unlinkat(base, path, AtFlags::empty())?);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(base, path, flags, Mode::empty())?;
    for name in list(&directory, usize::MAX, None)? {
        remove_tree(&directory, &name)?;
    }
    Ok(rustix::fs::unlinkat(base, path, AtFlags::REMOVEDIR)?)
}

/// Why a call failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failed {
    Os(Os),
    /// Nothing is open there.
    Stale,
}

type Called<T> = Result<T, Failed>;

impl From<Os> for Failed {
    fn from(error: Os) -> Failed {
        Failed::Os(error)
    }
}

impl From<Failed> for Refusal {
    fn from(failed: Failed) -> Refusal {
        Refusal::Posix(match failed {
            Failed::Stale => Errno::Stale,
            Failed::Os(Os::NOENT) => Errno::NotFound,
            Failed::Os(Os::EXIST) => Errno::Exists,
            Failed::Os(Os::NOTDIR) => Errno::NotDirectory,
            Failed::Os(Os::ISDIR) => Errno::IsDirectory,
            Failed::Os(Os::NOTEMPTY) => Errno::NotEmpty,
            Failed::Os(Os::NAMETOOLONG) => Errno::NameTooLong,
            Failed::Os(Os::MLINK) => Errno::TooManyLinks,
            Failed::Os(Os::NOSPC) => Errno::NoSpace,
            Failed::Os(Os::FBIG) => Errno::FileTooBig,
            Failed::Os(Os::INVAL) => Errno::Invalid,
            Failed::Os(Os::PERM) => Errno::NotPermitted,
            Failed::Os(Os::ROFS) => Errno::ReadOnly,
            Failed::Os(Os::NODATA) => Errno::NoData,
            Failed::Os(Os::NXIO) => Errno::NoSuchAddress,
            Failed::Os(Os::OPNOTSUPP | Os::NOSYS) => Errno::Unsupported,
            Failed::Os(other) => return Refusal::Other(other.to_string()),
        })
    }
}

impl Subject for Directory {
    async fn apply(&mut self, op: &Op) -> Result<Answer, Refusal> {
        Ok(self.run(op)?)
    }
    fn may_lack(&self) -> bool {
        self.may_lack
    }
}

fn read(fd: &OwnedFd, offset: u64, len: usize) -> Called<Vec<u8>> {
    let (mut bytes, mut done) = (vec![0; len], 0);
    while done < len {
        match rustix::io::pread(fd, &mut bytes[done..], offset + done as u64)? {
            0 => break,
            more => done += more,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

fn write(bytes: &[u8], mut part: impl FnMut(&[u8], u64) -> rustix::io::Result<usize>) -> Called<()> {
    let mut done = 0;
    while done < bytes.len() {
        done += part(&bytes[done..], done as u64)?;
    }
    Ok(())
}

fn extents(fd: &OwnedFd) -> Called<Vec<(u64, u64)>> {
    let (mut found, mut at) = (Vec::new(), 0);
    loop {
        let start = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Err(Os::NXIO) => return Ok(found),
            other => other?,
        };
        at = rustix::fs::seek(fd, SeekFrom::Hole(start))?;
        found.push((start, at));
    }
}

/// Lists a directory in pages of `page` entries, each from behind the last cookie of the one before.
fn list(fd: &OwnedFd, page: usize, meanwhile: Option<u8>) -> Called<Vec<Vec<u8>>> {
    let (mut cookie, mut found) = (0, Vec::new());
    let mut buffer = [MaybeUninit::uninit(); LISTING_BUFFER];
    loop {
        rustix::fs::seek(fd, SeekFrom::Start(cookie))?;
        let mut entries = RawDir::new(fd.as_fd(), &mut buffer);
        let (mut taken, mut next) = (0, cookie);
        while taken < page
            && let Some(entry) = entries.next()
        {
            let entry = entry?;
            taken += 1;
            next = entry.next_entry_cookie();
            found.push(entry.file_name().to_bytes().to_vec());
        }
        if taken == 0 {
            break;
        }
        if let (0, Some(name)) = (cookie, meanwhile) {
            rustix::fs::unlinkat(fd, name_of(name), AtFlags::empty())?;
        }
        cookie = next;
    }
    found.retain(|name| name != b"." && name != b"..");
    found.sort_unstable();
    Ok(found)
}
