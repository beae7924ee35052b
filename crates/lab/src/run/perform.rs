//! One call, for real.

use super::files::Files;
use super::root::Root;
use super::script::{Call, Script};
use crate::noise::{Noise, PIECE_MAX};
use crate::trace::Op;
use ashlar_env::host::map_file;
use rustix::fs::{
    Access, Advice, AtFlags, FallocateFlags, FileType, Mode, OFlags, RawDir, RenameFlags, Timespec, Timestamps,
    UTIME_NOW, XattrFlags,
};
use rustix::io::{Errno, pread, pwrite, pwritev};
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// Longest read at once; longer ones are done in pieces.
const READ_MAX: u64 = 16 << 20;
/// Memory of all lanes for what is read.
const READ_ALL: u64 = 512 << 20;
/// Pieces of a write at once, by the kernel's bound.
const PIECES_MAX: usize = 1024;
/// The name of all extended attributes.
const ATTRIBUTE: &str = "user.ashlar";
/// The largest extended attribute, as the kernel has it.
const ATTRIBUTE_MAX: u64 = 64 << 10;

/// What came of a call. Times are from the beginning of the run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    pub start_ns: u64,
    pub latency_ns: u64,
    pub done: u64,
    pub error: u16,
}

/// What all lanes have in common.
pub struct Ground<'a> {
    pub script: &'a Script,
    pub root: &'a Root,
    pub files: &'a Files,
    pub noise: &'a Noise,
    pub began: Instant,
}

/// A lane's own memory.
pub struct Buffers {
    pub read: Vec<u8>,
    pub entries: Vec<u8>,
}

impl Buffers {
    pub fn new(script: &Script) -> Buffers {
        let most = READ_MAX.min(READ_ALL / script.size().1.max(1) as u64);
        Buffers { read: vec![0; script.read_max.min(most) as usize], entries: Vec::with_capacity(64 << 10) }
    }
}

/// Flags of an opening that are as in the trace. Direct I/O would need aligned memory, and is not asked for.
fn open_flags(flags: u32) -> OFlags {
    let kept = OFlags::RDONLY
        | OFlags::WRONLY
        | OFlags::RDWR
        | OFlags::CREATE
        | OFlags::EXCL
        | OFlags::TRUNC
        | OFlags::APPEND
        | OFlags::DSYNC
        | OFlags::SYNC
        | OFlags::DIRECTORY
        | OFlags::NOFOLLOW
        | OFlags::NOATIME;
    OFlags::from_bits_retain(flags) & kept
}

impl Ground<'_> {
    /// Does a call. What prepares it (finding its file) is not in its time.
    pub fn perform(&self, call: &Call, buffers: &mut Buffers) -> Done {
        let prepared = self.prepare(call);
        let start = Instant::now();
        let result = prepared.and_then(|file| self.call(call, file, buffers));
        let latency = start.elapsed();
        Done {
            start_ns: start.duration_since(self.began).as_nanos() as u64,
            // Zero is for what was not done.
            latency_ns: (latency.as_nanos() as u64).max(1),
            done: result.unwrap_or(0),
            error: result.err().map_or(0, |error| error.raw_os_error() as u16),
        }
    }

    fn mode(call: &Call) -> Mode {
        // Never without access for ourselves, nor with other rights than those of a file.
        Mode::from_raw_mode(call.mode & 0o777 | if call.op == Op::Mkdir { 0o700 } else { 0o600 })
    }

    /// The file that a call is on, if it is on one.
    fn prepare(&self, call: &Call) -> Result<Option<Arc<OwnedFd>>, Errno> {
        match call.op {
            Op::Open => Ok(None),
            Op::Close => self.files.close(call.file).map(Some),
            _ if call.file == 0 => Ok(None),
            _ => {
                let open = || {
                    let path = self.script.path(call.path);
                    match self.root.open(path, OFlags::RDWR, Mode::empty()) {
                        Err(Errno::ISDIR | Errno::ACCESS | Errno::ROFS) => {
                            self.root.open(path, OFlags::RDONLY, Mode::empty())
                        }
                        opened => opened,
                    }
                };
                self.files.get(call.file, open).map(Some)
            }
        }
    }

    fn call(&self, call: &Call, file: Option<Arc<OwnedFd>>, buffers: &mut Buffers) -> Result<u64, Errno> {
        match (call.op, file) {
            (Op::Close, file) => {
                drop(file);
                Ok(0)
            }
            (_, Some(file)) => self.on_file(call, &file, buffers),
            (_, None) => self.on_path(call, buffers),
        }
    }

    fn on_file(&self, call: &Call, file: &OwnedFd, buffers: &mut Buffers) -> Result<u64, Errno> {
        let nothing = |()| 0;
        match call.op {
            Op::Read => read(file, call.offset, call.len, &mut buffers.read),
            Op::Mmap => map(file, call.offset, call.len),
            Op::Write => self.write(call, file),
            Op::Fsync => rustix::fs::fsync(file).map(nothing),
            Op::Fdatasync | Op::Msync => rustix::fs::fdatasync(file).map(nothing),
            Op::Sync => rustix::fs::syncfs(file).map(nothing),
            Op::Truncate => rustix::fs::ftruncate(file, call.len).map(nothing),
            Op::Fallocate => {
                let mode = FallocateFlags::from_bits_retain(call.flags);
                rustix::fs::fallocate(file, mode, call.offset, call.len).map(nothing)
            }
            Op::Stat | Op::Access => rustix::fs::fstat(file).map(|_| 0),
            Op::Chmod => rustix::fs::fchmod(file, Ground::mode(call)).map(nothing),
            Op::Chown => rustix::fs::fchown(file, None, None).map(nothing),
            Op::Utimes => rustix::fs::futimens(file, &NOW).map(nothing),
            Op::Getdents => entries(file, call.len, &mut buffers.entries),
            Op::Getxattr => rustix::fs::fgetxattr(file, ATTRIBUTE, &mut buffers.read[..0]).map(|len| len as u64),
            Op::Setxattr => {
                let value = self.noise.piece(0, call.len, call.len.min(ATTRIBUTE_MAX) as usize);
                rustix::fs::fsetxattr(file, ATTRIBUTE, value, XattrFlags::empty()).map(nothing)
            }
            Op::Fadvise => {
                let advice = [
                    Advice::Normal,
                    Advice::Random,
                    Advice::Sequential,
                    Advice::WillNeed,
                    Advice::DontNeed,
                    Advice::NoReuse,
                ];
                let advice = advice.get(call.flags as usize).copied().ok_or(Errno::INVAL)?;
                rustix::fs::fadvise(file, call.offset, std::num::NonZeroU64::new(call.len), advice).map(nothing)
            }
            Op::Statfs => rustix::fs::fstatfs(file).map(|_| 0),
            Op::Copy => {
                let from = self.root.open(self.script.path(call.path2), OFlags::RDONLY, Mode::empty())?;
                let (mut here, len) = (call.offset, call.len as usize);
                rustix::fs::copy_file_range(&from, None, file, Some(&mut here), len).map(|done| done as u64)
            }
            // Of names.
            _ => self.on_path(call, buffers),
        }
    }

    fn on_path(&self, call: &Call, buffers: &mut Buffers) -> Result<u64, Errno> {
        let nothing = |()| 0;
        let path = self.script.path(call.path);
        let place = || self.root.place(path);
        match call.op {
            Op::Open => {
                let opened = self.root.open(path, open_flags(call.flags), Ground::mode(call));
                let error = opened.as_ref().err().copied();
                self.files.opened(call.file, opened);
                error.map_or(Ok(0), Err)
            }
            Op::Sync => rustix::fs::syncfs(self.root.directory()).map(nothing),
            Op::Statfs => rustix::fs::fstatfs(self.root.directory()).map(|_| 0),
            Op::Stat => {
                let (above, name) = place()?;
                rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW).map(|_| 0)
            }
            Op::Access => {
                let (above, name) = place()?;
                rustix::fs::accessat(above, name, Access::EXISTS, AtFlags::SYMLINK_NOFOLLOW).map(nothing)
            }
            Op::Chmod if !self.root.careful => {
                let (above, name) = place()?;
                rustix::fs::chmodat(above, name, Ground::mode(call), AtFlags::empty()).map(nothing)
            }
            Op::Chown => {
                let (above, name) = place()?;
                rustix::fs::chownat(above, name, None, None, AtFlags::SYMLINK_NOFOLLOW).map(nothing)
            }
            Op::Utimes => {
                let (above, name) = place()?;
                rustix::fs::utimensat(above, name, &NOW, AtFlags::SYMLINK_NOFOLLOW).map(nothing)
            }
            Op::Readlink => {
                let (above, name) = place()?;
                rustix::fs::readlinkat(above, name, Vec::new()).map(|target| target.as_bytes().len() as u64)
            }
            Op::Mkdir => {
                let (above, name) = place()?;
                rustix::fs::mkdirat(above, name, Ground::mode(call)).map(nothing)
            }
            Op::Rmdir | Op::Unlink => {
                let (above, name) = place()?;
                let flags = if call.op == Op::Rmdir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                rustix::fs::unlinkat(above, name, flags).map(nothing)
            }
            Op::Rename => {
                let ((above, name), (above2, name2)) = (place()?, self.root.place(self.script.path(call.path2))?);
                let flags = RenameFlags::from_bits_retain(call.flags);
                if flags.is_empty() {
                    return rustix::fs::renameat(above, name, above2, name2).map(nothing);
                }
                rustix::fs::renameat_with(above, name, above2, name2, flags).map(nothing)
            }
            Op::Link => {
                let ((above, name), (above2, name2)) = (place()?, self.root.place(self.script.path(call.path2))?);
                rustix::fs::linkat(above, name, above2, name2, AtFlags::empty()).map(nothing)
            }
            Op::Symlink => {
                let (above, name) = place()?;
                rustix::fs::symlinkat(self.script.path(call.path2), above, name).map(nothing)
            }
            Op::Mknod => {
                // No device, whatever the trace says.
                let (above, name) = place()?;
                rustix::fs::mknodat(above, name, FileType::RegularFile, Ground::mode(call), 0).map(nothing)
            }
            // The rest is by an open file; without one it is opened for the call.
            op => {
                let flags = if matches!(op, Op::Truncate | Op::Write | Op::Fallocate | Op::Setxattr | Op::Copy) {
                    OFlags::RDWR
                } else {
                    OFlags::RDONLY
                };
                let file = self.root.open(path, flags, Mode::empty())?;
                match op {
                    Op::Unlink | Op::Rmdir => Err(Errno::INVAL),
                    _ => self.on_file(call, &file, buffers),
                }
            }
        }
    }

    fn write(&self, call: &Call, file: &OwnedFd) -> Result<u64, Errno> {
        let id = u64::from(call.path);
        if call.len <= PIECE_MAX as u64 {
            return pwrite(file, self.noise.piece(id, call.offset, call.len as usize), call.offset)
                .map(|done| done as u64);
        }
        let mut done = 0;
        while done < call.len {
            let at = call.offset + done;
            let pieces: Vec<IoSlice<'_>> = (0..call.len - done)
                .step_by(PIECE_MAX)
                .take(PIECES_MAX)
                .map(|from| {
                    let len = (call.len - done - from).min(PIECE_MAX as u64) as usize;
                    IoSlice::new(self.noise.piece(id, at + from, len))
                })
                .collect();
            match pwritev(file, &pieces, at)? {
                0 => break,
                written => done += written as u64,
            }
        }
        Ok(done)
    }
}

const NOW: Timestamps = Timestamps {
    last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
    last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
};

fn read(file: &OwnedFd, offset: u64, len: u64, buffer: &mut [u8]) -> Result<u64, Errno> {
    let mut done = 0;
    loop {
        let part = (len - done).min(buffer.len() as u64) as usize;
        let read = pread(file, &mut buffer[..part], offset + done)? as u64;
        done += read;
        if done >= len || read == 0 {
            return Ok(done);
        }
    }
}

/// Maps, and has each page that the file has there; returns how many bytes these are. Who maps from within a page is refused, as
/// by the kernel.
fn map(file: &OwnedFd, offset: u64, len: u64) -> Result<u64, Errno> {
    let errno = |error: std::io::Error| error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
    let there = len.min((rustix::fs::fstat(file)?.st_size as u64).saturating_sub(offset));
    map_file(file, offset, len.max(1) as usize).and_then(|map| map.populate(there as usize)).map_err(errno)?;
    Ok(there)
}

/// One call of `getdents`; entries are not counted in bytes, so what is done is 0 at the end, else 1.
fn entries(file: &OwnedFd, len: u64, buffer: &mut Vec<u8>) -> Result<u64, Errno> {
    buffer.clear();
    let room = (len as usize).clamp(4096, buffer.capacity().max(4096));
    let spare = buffer.spare_capacity_mut();
    let room = room.min(spare.len());
    match RawDir::new(file, &mut spare[..room]).next() {
        Some(entry) => entry.map(|_| 1),
        None => Ok(0),
    }
}
