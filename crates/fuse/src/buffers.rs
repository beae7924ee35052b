//! Buffers for requests that come through the device.
//!
//! The kernel writes a request at such a place that the data of a WRITE begins on a page: then it travels to the device
//! without being copied.

use crate::abi::WRITE_HEADERS_LEN;
use ashlar_env::ring::AlignedBuf;
use bytes::Bytes;

/// Where a request begins in its buffer.
const START: usize = AlignedBuf::ALIGN - WRITE_HEADERS_LEN;
/// Longer requests are not copied out of their buffer.
const COPY_MAX: usize = 16 << 10;

/// Has `fill` write a request, whose data is at most `max_write` bytes, into a buffer, and gives the bytes.
pub(crate) fn take(max_write: usize, fill: impl FnOnce(&mut [u8]) -> std::io::Result<usize>) -> std::io::Result<Bytes> {
    let mut buffer = AlignedBuf::any(AlignedBuf::ALIGN + max_write + AlignedBuf::ALIGN);
    let len = fill(&mut buffer.as_mut()[START..])?;
    if len > COPY_MAX {
        return Ok(buffer.freeze(START + len).slice(START..));
    }
    Ok(Bytes::copy_from_slice(&buffer.as_ref()[START..START + len]))
}
