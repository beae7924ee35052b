//! Asynchronous operations on host files and sockets.

use crate::BoxFuture;
use bytes::Bytes;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What to wait for; see [`FileOps::ready`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Bytes can be read, a connection accepted, or the other side is gone.
    Readable,
    /// Bytes can be written, or the other side is gone.
    Writable,
}

/// Asynchronous operations on host files. Buffers are owned by the operation until it ends, also if its future is
/// dropped.
pub trait FileOps: Send + Sync {
    /// Reads up to `len` bytes at `offset` into a fresh page-aligned buffer; short only at the end of the file.
    fn read_at(&self, file: &Arc<OwnedFd>, offset: u64, len: usize) -> BoxFuture<'static, io::Result<Bytes>>;
    /// Writes all pieces, one after another, at `offset`.
    fn write_at(&self, file: &Arc<OwnedFd>, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>>;
    /// Makes earlier completed writes durable (fdatasync).
    fn sync(&self, file: &Arc<OwnedFd>) -> BoxFuture<'static, io::Result<()>>;
    /// `fallocate(2)` with the given mode.
    fn fallocate(&self, file: &Arc<OwnedFd>, mode: i32, offset: u64, len: u64) -> BoxFuture<'static, io::Result<()>>;
    /// Whether there is data at `offset`, and where that ends: the next hole, or the next data (or the end of the file).
    /// Asks the file system at once; no data are read.
    fn data_at(&self, file: &Arc<OwnedFd>, offset: u64) -> io::Result<(bool, u64)> {
        match seek(file, SeekFrom::Data(offset)) {
            Ok(data) if data > offset => Ok((false, data)),
            Ok(_) => Ok((true, seek(file, SeekFrom::Hole(offset))?)),
            // No data up to the end of the file.
            Err(Errno::NXIO) => Ok((false, u64::MAX)),
            Err(error) => Err(error.into()),
        }
    }
    /// Waits until a socket, pipe or device is ready. Whoever wants to read from or write to a non-blocking descriptor
    /// tries, and waits here when told that it would block.
    fn ready(&self, file: &Arc<OwnedFd>, what: Readiness) -> BoxFuture<'static, io::Result<()>>;
    /// The same operations, carried out by the thread that asks: for files that lie in memory, where nothing is waited for.
    fn at_once(&self) -> &dyn FileOps;
}
