//! What is asked of a mount, request by request, for whoever wants to know.
//!
//! A request says which inode it is about, and for which thread. Which name that has is kept from the moment when somebody
//! begins to listen: the kernel is told then that nothing it knows of names holds (Linux 6.16), so it looks up again each
//! name that is used. Costs    a look at a flag while nobody listens.

use crate::abi::{Dirent, EntryOut, FSYNC_FDATASYNC, fattr};
use crate::decode::{Operation, Request};
use crate::names::Names;
use crate::reply::Reply;
use ashlar_vfs::Ino;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zerocopy::FromBytes;

/// Requests that wait to be taken; more are lost, and counted.
const HELD_MAX: usize = 1 << 16;

/// What a request was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// A name was looked up; `error` says whether it was there.
    Lookup,
    /// Attributes were asked for.
    Stat,
    /// Cut or grown to `len`.
    Truncate,
    /// A mode was set.
    Chmod,
    /// An owner was set.
    Chown,
    /// Times were set.
    Utimes,
    /// Where a symbolic link points to.
    Readlink,
    /// A symbolic link was made, to `path2`.
    Symlink,
    /// A device node, socket or pipe was made; or a file, without being opened.
    Mknod,
    /// A directory was made.
    Mkdir,
    /// A file was made and opened.
    Create,
    /// A name was removed.
    Unlink,
    /// A directory was removed.
    Rmdir,
    /// `path` became `path2`.
    Rename,
    /// `path` got the name `path2` too.
    Link,
    /// Data was read.
    Read,
    /// Data was written.
    Write,
    /// Space was set aside, or given back.
    Fallocate,
    /// A file or directory was made durable.
    Fsync,
    /// The data of a file were made durable.
    Fdatasync,
    /// The file system was made durable.
    Sync,
    /// Free space was asked for.
    Statfs,
    /// Extended attributes were read.
    Getxattr,
    /// An extended attribute was set or removed.
    Setxattr,
    /// Entries of a directory were read.
    Readdir,
    /// Data was copied to `path` at `offset`, from `path2`.
    Copy,
}

/// A request that was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logged {
    /// What was asked.
    pub what: What,
    /// When, nanoseconds of the mount's clock.
    pub at_ns: u64,
    /// How long our code took, nanoseconds.
    pub took_ns: u64,
    /// The thread that asked, as the system calls it; 0 for the kernel itself, as when it writes back.
    pub thread: u32,
    /// The inode: that which was found or made, where there is one.
    pub ino: Ino,
    /// Its path in the mount; none if the kernel knew the name before somebody listened.
    pub path: Option<String>,
    /// The other path.
    pub path2: Option<String>,
    /// First byte.
    pub offset: u64,
    /// Bytes asked for.
    pub len: u64,
    /// Bytes done.
    pub done: u64,
    /// `errno`, 0 for success.
    pub error: i32,
    /// Flags of the call: of `open`, `fallocate` or `renameat2`.
    pub flags: u32,
    /// Mode, where one is set.
    pub mode: u32,
}

/// Requests since the last time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Heard {
    /// The requests, by the time of their replies.
    pub requests: Vec<Logged>,
    /// How many more there were.
    pub lost: u64,
    /// Nothing is served any more.
    pub over: bool,
}

#[derive(Default)]
struct Held {
    names: Names,
    requests: Vec<Logged>,
    lost: u64,
}

/// The log of a mount.
#[derive(Default)]
pub(crate) struct Log {
    on: AtomicBool,
    held: Mutex<Held>,
}

impl Log {
    /// Somebody listens from now on; false if somebody does already.
    pub(crate) fn begin(&self) -> bool {
        !self.on.swap(true, Ordering::AcqRel)
    }

    /// Nobody listens any more.
    pub(crate) fn end(&self) {
        let mut held = self.held.lock();
        *held = Held::default();
        self.on.store(false, Ordering::Release);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> Heard {
        let mut held = self.held.lock();
        Heard { requests: std::mem::take(&mut held.requests), lost: std::mem::take(&mut held.lost), over: false }
    }

    /// A request that began then was served; its reply is not sent yet, so what it tells of names is known before anybody
    /// can ask about them.
    pub(crate) fn note(&self, request: &Request<'_>, reply: &Reply, at_ns: u64, took: Duration) {
        let mut held = self.held.lock();
        if !self.is_on() {
            return;
        }
        let logged = held.names.logged(request, reply);
        let Some(logged) = logged else { return };
        if held.requests.len() >= HELD_MAX {
            held.lost += 1;
            return;
        }
        let took_ns = took.as_nanos() as u64;
        held.requests.push(Logged { at_ns, took_ns, thread: request.header.pid, error: reply.error(), ..logged });
    }
}

/// The inode that a reply begins with; 0 if there is none.
fn entry(reply: &Reply) -> Ino {
    EntryOut::read_from_prefix(reply.body()).map_or(0, |(entry, _)| entry.nodeid)
}

impl Names {
    /// What a request was about. `None` for what is no call of anybody's.
    fn logged(&mut self, request: &Request<'_>, reply: &Reply) -> Option<Logged> {
        let (ino, done) = (request.header.nodeid, reply.error() == 0);
        let about = |what, path| Logged {
            what,
            at_ns: 0,
            took_ns: 0,
            thread: 0,
            ino,
            path,
            path2: None,
            offset: 0,
            len: 0,
            done: 0,
            error: 0,
            flags: 0,
            mode: 0,
        };
        // Something was looked for or made in the directory.
        let mut made = |what, name: &[u8]| {
            let found = if done { entry(reply) } else { 0 };
            let path = self.path_in(ino, name);
            if found != 0 {
                self.found(ino, name, found);
            }
            Logged { ino: found, ..about(what, path) }
        };
        let logged = match request.operation {
            Operation::Lookup { name } => made(What::Lookup, name),
            Operation::Symlink { name, target } => {
                Logged { path2: Some(String::from_utf8_lossy(target).into_owned()), ..made(What::Symlink, name) }
            }
            Operation::MkNod { arg, name } => Logged { mode: arg.mode, ..made(What::Mknod, name) },
            Operation::MkDir { arg, name } => Logged { mode: arg.mode, ..made(What::Mkdir, name) },
            Operation::Create { arg, name } => {
                Logged { mode: arg.mode & 0o7777, flags: arg.flags, ..made(What::Create, name) }
            }
            Operation::Link { ino: target, name } => {
                let (path, path2) = (self.path(target), self.path_in(ino, name));
                if done {
                    self.found(ino, name, target);
                }
                Logged { path2, ino: target, ..about(What::Link, path) }
            }
            Operation::Unlink { name } | Operation::RmDir { name } => {
                let path = self.path_in(ino, name);
                if done {
                    self.removed(ino, name);
                }
                let is_directory = matches!(request.operation, Operation::RmDir { .. });
                about(if is_directory { What::Rmdir } else { What::Unlink }, path)
            }
            Operation::Rename { to, flags, name, new_name } => {
                let (path, path2) = (self.path_in(ino, name), self.path_in(to, new_name));
                if done {
                    self.renamed((ino, name), (to, new_name), flags & libc::RENAME_EXCHANGE != 0);
                }
                Logged { path2, flags, ..about(What::Rename, path) }
            }
            Operation::Forget { count } => {
                self.forgotten(ino, count);
                return None;
            }
            Operation::BatchForget { items } => {
                items.iter().for_each(|item| self.forgotten(item.nodeid, item.nlookup));
                return None;
            }
            Operation::ReadDir { arg, plus } => {
                if plus {
                    self.listed(ino, reply.body());
                }
                let (len, done) = (u64::from(arg.size), reply.body_len() as u64);
                Logged { offset: arg.offset, len, done, ..about(What::Readdir, self.path(ino)) }
            }
            Operation::GetAttr(_) | Operation::Statx => about(What::Stat, self.path(ino)),
            Operation::SetAttr(arg) => {
                let has = |bits: u32| arg.valid & bits != 0;
                let what = match () {
                    () if has(fattr::SIZE) => What::Truncate,
                    () if has(fattr::MODE) => What::Chmod,
                    () if has(fattr::UID | fattr::GID) => What::Chown,
                    () => What::Utimes,
                };
                let len = if has(fattr::SIZE) { arg.size } else { 0 };
                Logged { len, mode: if has(fattr::MODE) { arg.mode } else { 0 }, ..about(what, self.path(ino)) }
            }
            Operation::ReadLink => about(What::Readlink, self.path(ino)),
            Operation::Read(arg) => Logged {
                offset: arg.offset,
                len: u64::from(arg.size),
                done: reply.data_len() as u64,
                ..about(What::Read, self.path(ino))
            },
            Operation::Write { arg, .. } => Logged {
                offset: arg.offset,
                len: u64::from(arg.size),
                done: if done { u64::from(arg.size) } else { 0 },
                ..about(What::Write, self.path(ino))
            },
            Operation::Fallocate(arg) => Logged {
                offset: arg.offset,
                len: arg.length,
                flags: arg.mode,
                ..about(What::Fallocate, self.path(ino))
            },
            Operation::Fsync { directory: false, arg } if arg.fsync_flags & FSYNC_FDATASYNC != 0 => {
                about(What::Fdatasync, self.path(ino))
            }
            Operation::Fsync { .. } => about(What::Fsync, self.path(ino)),
            Operation::SyncFs => about(What::Sync, self.path(ino)),
            Operation::StatFs => about(What::Statfs, self.path(ino)),
            Operation::GetXattr { .. } | Operation::ListXattr { .. } => about(What::Getxattr, self.path(ino)),
            Operation::SetXattr { .. } | Operation::RemoveXattr { .. } => about(What::Setxattr, self.path(ino)),
            Operation::CopyFileRange { arg, .. } => Logged {
                ino: arg.nodeid_out,
                path2: self.path(ino),
                offset: arg.off_out,
                len: arg.len,
                done: u64::read_from_prefix(reply.body()).map_or(0, |(copied, _)| copied),
                ..about(What::Copy, self.path(arg.nodeid_out))
            },
            Operation::TmpFile(_)
            | Operation::Lseek(_)
            | Operation::Open
            | Operation::Release
            | Operation::Init(_)
            | Operation::Interrupt
            | Operation::NotifyReply { .. }
            | Operation::Destroy
            | Operation::Declined => return None,
        };
        Some(logged)
    }

    /// Entries of a directory, with attributes: each counts a reference.
    fn listed(&mut self, parent: Ino, mut entries: &[u8]) {
        while let Ok((entry, rest)) = EntryOut::read_from_prefix(entries)
            && let Ok((dirent, rest)) = Dirent::read_from_prefix(rest)
        {
            let len = dirent.namelen as usize;
            let Some(name) = rest.get(..len) else { return };
            if entry.nodeid != 0 {
                self.found(parent, name, entry.nodeid);
            }
            entries = rest.get(len.next_multiple_of(8)..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::Timeouts;
    use ashlar_vfs::{Attr, DirEntry, FileKind};

    #[test]
    fn names_of_a_listing_are_known() {
        let mut reply = Reply::default();
        reply.reset();
        let attr = Attr::plain(7, FileKind::File, 0o644);
        for (name, attr) in [(&b"."[..], None), (b"a long name", Some(attr))] {
            let entry = DirEntry { ino: 7, name, kind: FileKind::File, cookie: 1, attr };
            reply.put_dirent(&entry, Some(&Timeouts::AT_ONCE));
        }
        let mut names = Names::default();
        names.listed(ashlar_vfs::ROOT, reply.body());
        assert_eq!(names.path(7).as_deref(), Some("/a long name"));
    }
}
