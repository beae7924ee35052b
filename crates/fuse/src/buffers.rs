//! Buffers for requests, reused.
//!
//! The kernel writes a request at such a place that the data of a WRITE begins on a page: then it travels to the device
//! without being copied.

use crate::abi::WRITE_HEADERS_LEN;
use ashlar_env::ring::AlignedBuf;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;

/// Where a request begins in its buffer.
const START: usize = AlignedBuf::ALIGN - WRITE_HEADERS_LEN;
/// Requests up to this length are copied out, and their buffer is used again at once.
const COPY_MAX: usize = 16 << 10;
/// Free buffers that a worker keeps; what is beyond is anybody's.
const KEPT_MAX: usize = 1;

/// Buffers of one worker.
pub(crate) struct Buffers {
    len: usize,
    free: Arc<Mutex<Vec<AlignedBuf>>>,
}

/// Gives its buffer back when the last user is done.
struct Lent {
    buffer: Option<AlignedBuf>,
    home: Arc<Mutex<Vec<AlignedBuf>>>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| buffer.as_ref())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut home = self.home.lock();
        if home.len() < KEPT_MAX {
            home.extend(self.buffer.take());
        }
    }
}

impl Buffers {
    /// For requests whose data is at most `max_write` bytes.
    pub(crate) fn new(max_write: usize) -> Buffers {
        Buffers { len: AlignedBuf::ALIGN + max_write + AlignedBuf::ALIGN, free: Arc::default() }
    }

    /// Lets `fill` write a request into a buffer, and gives the bytes.
    pub(crate) fn take(&self, fill: impl FnOnce(&mut [u8]) -> std::io::Result<usize>) -> std::io::Result<Bytes> {
        let buffer = self.free.lock().pop();
        let mut buffer = buffer.unwrap_or_else(|| AlignedBuf::any(self.len));
        let filled = fill(&mut buffer.as_mut()[START..]);
        let bytes = match &filled {
            Ok(len) if *len > COPY_MAX => {
                let lent = Lent { buffer: Some(buffer), home: self.free.clone() };
                return Ok(Bytes::from_owner(lent).slice(START..START + len));
            }
            Ok(len) => Bytes::copy_from_slice(&buffer.as_ref()[START..START + len]),
            Err(_) => Bytes::new(),
        };
        self.free.lock().push(buffer);
        filled.map(|_| bytes)
    }
}
