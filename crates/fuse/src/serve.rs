//! One request: from its operation to a call of the engine, and from the outcome to a reply.

use crate::abi::*;
use crate::decode::{Operation, Request};
use crate::holes::confirmed_seek;
use crate::listings::Listings;
use crate::negotiate::Agreement;
use crate::origins;
use crate::reply::{DIRENT_LEN_MAX, DIRENT_PLUS_LEN_MAX, Reply, decode_device};
use crate::sys;
use ashlar_vfs::{
    DirEntry, Errno, Error, FallocateMode, FileKind, FileSystem, Ino, NewNode, RenameMode, Result, SeekWhat, SetAttr,
    SetTime, Time, WriteMode, XattrMode,
};
use bytes::Bytes;

/// What the server asks of the kernel.
pub(crate) trait Kernel: Sync {
    /// Writes back and drops what the page cache has of an inode from `from` to `to`, or to its end.
    fn drop_pages(&self, ino: Ino, from: u64, to: Option<u64>) -> impl Future<Output = ()> + Send;
    /// Whether the page cache has the byte at this offset, below its end of the file. If nobody knows, yes.
    fn has_byte(&self, ino: Ino, offset: u64) -> impl Future<Output = bool> + Send;
    /// The answer to a question what the page cache has, of this number: so many bytes.
    fn cached(&self, unique: u64, bytes: u32);
    /// Data that the kernel had taken found no space: who writes this inode next shall know.
    fn refuse_next_write(&self, ino: Ino);
    /// Whether that was noted; it is no more.
    fn take_refusal(&self, ino: Ino) -> bool;
    /// Data that the kernel had collected came: it has an outdated number of this inode's blocks.
    fn data_came(&self, ino: Ino);
    /// It asks for the attributes, which are read only then.
    fn attributes_are_told(&self, ino: Ino);
    /// Who made data durable may ask for the blocks next.
    fn data_are_durable(&self, ino: Ino);
    /// Listings under way.
    fn listings(&self) -> &Listings;
}

/// Serves one request. `whole` is what the request's slices lie in.
pub(crate) async fn serve<F: FileSystem, K: Kernel>(
    fs: &F,
    kernel: &K,
    agreement: &Agreement,
    request: &Request<'_>,
    whole: &Bytes,
    reply: &mut Reply,
) -> Result<()> {
    let timeouts = &agreement.timeouts;
    let opened = OpenOut { open_flags: agreement.opened, ..OpenOut::default() };
    let header = &request.header;
    let ino = header.nodeid;
    let node = |kind: FileKind, mode: u32, umask: u32, device: u32| NewNode {
        kind,
        permissions: mode & 0o7777,
        uid: header.uid,
        gid: header.gid,
        device: decode_device(device),
        umask: if agreement.flags & init::DONT_MASK == 0 { 0 } else { umask },
        open: false,
    };
    match request.operation {
        Operation::Lookup { name } => {
            kernel.listings().looked_up(ino);
            match fs.lookup(ino, name).await {
                Ok(attr) => reply.put_entry(&attr, timeouts),
                Err(Error { errno: Errno::NotFound, .. }) => reply.put_absent(timeouts),
                Err(error) => return Err(error),
            }
        }
        Operation::Forget { count } => {
            reply.silence();
            fs.forget(ino, count).await;
        }
        Operation::BatchForget { items } => {
            reply.silence();
            for item in items.iter() {
                fs.forget(item.nodeid, item.nlookup).await;
            }
        }
        Operation::GetAttr(arg) if arg.getattr_flags & GETATTR_FH != 0 && kernel.take_refusal(ino) => {
            return Err(Errno::NoSpace.into());
        }
        Operation::GetAttr(_) => {
            kernel.take_refusal(ino);
            kernel.attributes_are_told(ino);
            reply.put_attr(&fs.getattr(ino).await?, timeouts);
        }
        Operation::Statx => {
            kernel.take_refusal(ino);
            kernel.attributes_are_told(ino);
            reply.put_statx(&fs.getattr(ino).await?, timeouts);
        }
        Operation::SetAttr(arg) => reply.put_attr(&fs.setattr(ino, changes(&arg)).await?, timeouts),
        Operation::ReadLink => reply.put_slice(&fs.readlink(ino).await?),
        Operation::Symlink { name, target } => {
            let node = node(FileKind::Symlink, 0o777, 0, 0);
            reply.put_entry(&fs.symlink(ino, name, target, node).await?, timeouts);
        }
        Operation::MkNod { arg, name } => {
            let kind = FileKind::from_mode(arg.mode).ok_or(Errno::Invalid)?;
            reply.put_entry(&fs.create(ino, name, node(kind, arg.mode, arg.umask, arg.rdev)).await?, timeouts);
        }
        Operation::MkDir { arg, name } => {
            reply.put_entry(&fs.mkdir(ino, name, node(FileKind::Directory, arg.mode, arg.umask, 0)).await?, timeouts);
        }
        Operation::Unlink { name } => fs.unlink(ino, name).await?,
        Operation::RmDir { name } => fs.rmdir(ino, name).await?,
        Operation::Rename { to, flags, name, new_name } => {
            let mode = match flags {
                0 => RenameMode::Replace,
                libc::RENAME_NOREPLACE => RenameMode::NoReplace,
                libc::RENAME_EXCHANGE => RenameMode::Exchange,
                // Linux holds the directories' locks and has seen that nothing is to be replaced, if that was asked, too.
                _ if flags & !libc::RENAME_NOREPLACE == libc::RENAME_WHITEOUT => {
                    RenameMode::Whiteout { uid: request.header.uid, gid: request.header.gid }
                }
                _ => return Err(Errno::Invalid.into()),
            };
            fs.rename((ino, name), (to, new_name), mode).await?;
        }
        Operation::Link { ino: target, name } => {
            reply.put_entry(&fs.link(target, ino, name).await?, timeouts);
        }
        Operation::Create { arg, name } => {
            reply.put_entry(&fs.create(ino, name, node(FileKind::File, arg.mode, arg.umask, 0)).await?, timeouts);
            reply.put(&opened);
        }
        Operation::TmpFile(arg) => {
            reply.put_entry(&fs.tmpfile(ino, node(FileKind::File, arg.mode, arg.umask, 0)).await?, timeouts);
            reply.put(&opened);
        }
        Operation::Read(arg) => reply.put_pieces(fs.read(ino, arg.offset, arg.size as usize).await?),
        Operation::Write { arg, data } => {
            let how = WriteMode {
                writeback: arg.write_flags & WRITE_CACHE != 0,
                clear_setid: arg.write_flags & WRITE_KILL_SUIDGID != 0,
                sync: arg.flags as i32 & libc::O_DSYNC != 0,
            };
            let written = fs.write(ino, arg.offset, whole.slice_ref(data), how).await;
            if how.writeback && matches!(&written, Err(error) if error.errno == Errno::NoSpace) {
                kernel.refuse_next_write(ino);
            }
            written?;
            if how.writeback {
                kernel.data_came(ino);
            }
            reply.put(&WriteOut { size: arg.size, padding: 0 });
        }
        Operation::StatFs => {
            let stat = fs.statfs().await?;
            let blocks = |bytes: u64| bytes / 4096;
            reply.put(&StatFsOut {
                blocks: blocks(stat.capacity),
                bfree: blocks(stat.free),
                bavail: blocks(stat.free),
                files: stat.files.saturating_add(stat.files_free),
                ffree: stat.files_free,
                bsize: 4096,
                namelen: ashlar_vfs::NAME_LEN_MAX as u32,
                frsize: 4096,
                ..StatFsOut::default()
            });
        }
        Operation::Fsync { directory: true, .. } | Operation::SyncFs => fs.syncfs().await?,
        Operation::Fsync { arg, .. } => {
            fs.fsync(ino, arg.fsync_flags & FSYNC_FDATASYNC != 0).await?;
            kernel.data_are_durable(ino);
        }
        Operation::SetXattr { arg, name, value } => {
            if origins::is_of_overlayfs(name) {
                let of = fs.getattr(ino).await?.kind;
                origins::refusal(name, value, of).map_or(Ok(()), Err)?;
            }
            let mode = match arg.flags as i32 {
                libc::XATTR_CREATE => XattrMode::Create,
                libc::XATTR_REPLACE => XattrMode::Replace,
                _ => XattrMode::Set,
            };
            fs.setxattr(ino, name, value, mode).await?;
            if arg.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0 {
                let permissions = fs.getattr(ino).await?.permissions & !0o2000;
                fs.setattr(ino, SetAttr { permissions: Some(permissions), ..SetAttr::default() }).await?;
            }
        }
        Operation::GetXattr { size, name } => sized(reply, size, &fs.getxattr(ino, name).await?)?,
        Operation::ListXattr { size } => {
            let names: Vec<u8> =
                fs.listxattr(ino).await?.iter().flat_map(|name| name.iter().copied().chain([0])).collect();
            sized(reply, size, &names)?;
        }
        Operation::RemoveXattr { name } => fs.removexattr(ino, name).await?,
        Operation::ReadDir { arg, plus } => {
            let room = arg.size as usize;
            let entry_max = if plus { DIRENT_PLUS_LEN_MAX } else { DIRENT_LEN_MAX };
            let attributes = plus && kernel.listings().begin(ino, arg.offset, fs.keeps_attributes_by_names());
            let (mut told, mut inodes) = (0, (Ino::MAX, Ino::MIN));
            let mut sink = |entry: DirEntry<'_>| {
                let fits = reply.body_len() + entry_max <= room;
                if fits {
                    reply.put_dirent(&entry, plus.then_some(timeouts));
                    if entry.attr.is_some() {
                        (told, inodes) = (told + 1, (inodes.0.min(entry.ino), inodes.1.max(entry.ino)));
                    }
                }
                fits
            };
            let listed = fs.readdir(ino, arg.offset, attributes, &mut sink).await;
            if attributes {
                kernel.listings().told(ino, told, inodes);
            }
            // Entries that were taken count references, so they must arrive; the error comes again behind them.
            if reply.body_len() == 0 {
                listed?;
            }
        }
        Operation::Fallocate(arg) => {
            fs.fallocate(ino, arg.offset, arg.length, fallocate_mode(arg.mode as i32)?).await?;
            if clears_setid(request) {
                let attr = fs.getattr(ino).await?;
                // As the kernel does for its own file systems: the set-gid bit goes unless the caller is in the group
                // and the bit does not stand for execution.
                let setgid = attr.permissions & 0o010 != 0 || header.gid != attr.gid;
                let kept = attr.permissions & !(0o4000 | if setgid { 0o2000 } else { 0 });
                if kept != attr.permissions && !may_keep_setid(header) {
                    fs.setattr(ino, SetAttr { permissions: Some(kept), ..SetAttr::default() }).await?;
                }
            }
        }
        Operation::Lseek(arg) => {
            let what = match arg.whence as i32 {
                libc::SEEK_DATA => SeekWhat::Data,
                libc::SEEK_HOLE => SeekWhat::Hole,
                _ => return Err(Errno::Invalid.into()),
            };
            reply.put(&LseekOut { offset: confirmed_seek(fs, kernel, ino, arg.offset, what).await? });
        }
        Operation::CopyFileRange { arg, wide } => {
            // The narrow reply has 32 bits for the length.
            let len = if wide { arg.len } else { arg.len.min(1 << 30) };
            let copied = fs.copy_range((ino, arg.off_in), (arg.nodeid_out, arg.off_out), len).await?;
            if wide {
                reply.put(&CopyFileRangeOut { bytes_copied: copied });
            } else {
                reply.put(&WriteOut { size: copied as u32, padding: 0 });
            }
        }
        Operation::Interrupt => reply.silence(),
        // Over the device nobody waits for an answer; an entry must have one to be free again.
        Operation::NotifyReply { bytes } => kernel.cached(header.unique, bytes),
        Operation::Destroy => {}
        Operation::Open if agreement.opened != 0 => {
            fs.open(ino, false).await?;
            reply.put(&opened);
        }
        Operation::Release if agreement.opened != 0 => fs.release(ino).await,
        // "Never ask again": the kernel keeps open files by itself.
        Operation::Open | Operation::Release | Operation::Init(_) | Operation::Declined => {
            reply.fail(libc::ENOSYS);
        }
    }
    Ok(())
}

/// Whether who asks may leave set-id bits on what he changes. The kernel asks nobody but us where we said that we clear them.
fn may_keep_setid(header: &InHeader) -> bool {
    /// The capability for that.
    const FSETID: u32 = 4;
    match header.uid {
        UNKNOWN_ID => sys::has_capability(header.pid, FSETID),
        uid => uid == 0,
    }
}

/// Whether a request may make the engine clear set-id bits that the kernel keeps in its cache.
pub(crate) fn clears_setid(request: &Request<'_>) -> bool {
    match request.operation {
        Operation::Write { arg, .. } => arg.write_flags & WRITE_KILL_SUIDGID != 0,
        Operation::Fallocate(_) => request.header.uid != 0,
        _ => false,
    }
}

/// A value, or its size if that is what was asked for.
fn sized(reply: &mut Reply, room: u32, value: &[u8]) -> Result<()> {
    if room == 0 {
        reply.put(&GetXattrOut { size: value.len() as u32, padding: 0 });
    } else if value.len() > room as usize {
        reply.fail(libc::ERANGE);
    } else {
        reply.put_slice(value);
    }
    Ok(())
}

fn changes(arg: &SetAttrIn) -> SetAttr {
    let given = |flag: u32| arg.valid & flag != 0;
    let time = |now: u32, set: u32, seconds: u64, nanos: u32| {
        let exact = SetTime::To(Time { seconds: seconds as i64, nanos });
        given(set).then_some(if given(now) { SetTime::Now } else { exact })
    };
    SetAttr {
        permissions: given(fattr::MODE).then_some(arg.mode & 0o7777),
        uid: given(fattr::UID).then_some(arg.uid),
        gid: given(fattr::GID).then_some(arg.gid),
        size: given(fattr::SIZE).then_some(arg.size),
        accessed: time(fattr::ATIME_NOW, fattr::ATIME, arg.atime, arg.atimensec),
        modified: time(fattr::MTIME_NOW, fattr::MTIME, arg.mtime, arg.mtimensec),
        changed: given(fattr::CTIME).then_some(Time { seconds: arg.ctime as i64, nanos: arg.ctimensec }),
        clear_setid: given(fattr::KILL_SUIDGID),
    }
}

fn fallocate_mode(mode: i32) -> Result<FallocateMode> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    let keep_size = mode & KEEP != 0;
    Ok(match mode & !KEEP {
        0 => FallocateMode::Reserve { keep_size },
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => FallocateMode::Punch,
        libc::FALLOC_FL_ZERO_RANGE => FallocateMode::Zero { keep_size },
        libc::FALLOC_FL_COLLAPSE_RANGE if !keep_size => FallocateMode::Collapse,
        libc::FALLOC_FL_INSERT_RANGE if !keep_size => FallocateMode::Insert,
        _ => return Err(Errno::Unsupported.into()),
    })
}

/// The number that POSIX calls an error by.
pub(crate) fn number(errno: Errno) -> i32 {
    match errno {
        Errno::NotFound => libc::ENOENT,
        Errno::Exists => libc::EEXIST,
        Errno::NotDirectory => libc::ENOTDIR,
        Errno::IsDirectory => libc::EISDIR,
        Errno::NotEmpty => libc::ENOTEMPTY,
        Errno::NameTooLong => libc::ENAMETOOLONG,
        Errno::TooManyLinks => libc::EMLINK,
        Errno::NoSpace => libc::ENOSPC,
        Errno::FileTooBig => libc::EFBIG,
        Errno::Invalid => libc::EINVAL,
        Errno::NotPermitted => libc::EPERM,
        Errno::AccessDenied => libc::EACCES,
        Errno::ReadOnly => libc::EROFS,
        Errno::NoData => libc::ENODATA,
        Errno::NoSuchAddress => libc::ENXIO,
        Errno::TooBig => libc::E2BIG,
        Errno::Stale => libc::ESTALE,
        Errno::Unsupported => libc::EOPNOTSUPP,
        Errno::Io => libc::EIO,
    }
}
