//! Operations on files in memory: system calls of the thread that asks.
//!
//! tmpfs cannot say that a call would wait, so a ring gives each to a thread of the kernel, and another switch brings the
//! answer back; the call itself takes less than either. Large ones go in steps, between which other tasks run.

use super::ring::AlignedBuf;
use crate::{BoxFuture, FileOps, Readiness};
use bytes::Bytes;
use rustix::event::PollFlags;
use rustix::fs::FallocateFlags;
use rustix::io::{pread, pwritev};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes of a step: some 50 us.
const STEP: usize = 256 << 10;
/// Pieces of a step.
const PIECES_MAX: usize = 1024;

/// What is not to be done at once, another kind of operations does.
pub(super) struct CallOps<O>(pub(super) O);

pub(super) fn fallocate(file: &OwnedFd, mode: i32, offset: u64, len: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, FallocateFlags::from_bits_retain(mode.cast_unsigned()), offset, len)?)
}

/// What `poll(2)` is to wait for.
pub(super) fn events(what: Readiness) -> PollFlags {
    match what {
        Readiness::Readable => PollFlags::IN | PollFlags::RDHUP,
        Readiness::Writable => PollFlags::OUT,
    }
}

/// The next bytes of `pieces`, `done` of which are behind.
fn step(pieces: &[Bytes], done: usize) -> Vec<IoSlice<'_>> {
    let (mut skip, mut room, mut slices) = (done, STEP, Vec::new());
    for piece in pieces {
        let rest = &piece[skip.min(piece.len())..];
        skip = skip.saturating_sub(piece.len());
        let part = &rest[..rest.len().min(room)];
        room -= part.len();
        if !part.is_empty() {
            slices.push(IoSlice::new(part));
        }
        if room == 0 || slices.len() == PIECES_MAX {
            break;
        }
    }
    slices
}

impl<O: FileOps> FileOps for CallOps<O> {
    fn read_at(&self, file: &Arc<OwnedFd>, offset: u64, len: usize) -> BoxFuture<'static, io::Result<Bytes>> {
        let file = file.clone();
        Box::pin(async move {
            let (mut buffer, mut done) = (AlignedBuf::any(len), 0);
            while done < len {
                if done > 0 {
                    crate::yield_now().await;
                }
                let room = &mut buffer.as_mut()[done..len.min(done + STEP)];
                match pread(&file, room, offset + done as u64) {
                    Ok(0) => break,
                    Ok(count) => done += count,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(buffer.freeze(done))
        })
    }

    fn write_at(&self, file: &Arc<OwnedFd>, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        let file = file.clone();
        Box::pin(async move {
            let (total, mut done) = (pieces.iter().map(Bytes::len).sum::<usize>(), 0);
            while done < total {
                if done > 0 {
                    crate::yield_now().await;
                }
                match pwritev(&file, &step(&pieces, done), offset + done as u64) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(count) => done += count,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(())
        })
    }

    fn sync(&self, file: &Arc<OwnedFd>) -> BoxFuture<'static, io::Result<()>> {
        let synced = rustix::fs::fdatasync(file).map_err(Into::into);
        Box::pin(std::future::ready(synced))
    }

    // What may free gigabytes is not done at once.
    fn fallocate(&self, file: &Arc<OwnedFd>, mode: i32, offset: u64, len: u64) -> BoxFuture<'static, io::Result<()>> {
        self.0.fallocate(file, mode, offset, len)
    }

    fn ready(&self, file: &Arc<OwnedFd>, what: Readiness) -> BoxFuture<'static, io::Result<()>> {
        self.0.ready(file, what)
    }

    fn at_once(&self) -> &dyn FileOps {
        self
    }
}
