//! Asynchronous operations on host files.

use crate::BoxFuture;
use bytes::Bytes;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

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
}
