//! Numbers and short strings of records and bodies.

use ashlar_block::{Error, Result};
use bytes::{BufMut, Bytes, BytesMut};

/// A string with its length before it, in two bytes.
pub(super) fn put_short(to: &mut BytesMut, bytes: &[u8]) {
    to.put_u16_le(bytes.len() as u16);
    to.put_slice(bytes);
}

/// Reads from the front; an error where too little is left.
pub(super) struct Reader {
    pub(super) rest: Bytes,
}

impl Reader {
    pub(super) fn take(&mut self, len: usize) -> Result<Bytes> {
        if len > self.rest.len() {
            return Err(Error::corrupt("a batch's body ends in the middle of an item"));
        }
        Ok(self.rest.split_to(len))
    }
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.take(N)?);
        Ok(bytes)
    }
    pub(super) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }
    pub(super) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }
    pub(super) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }
    pub(super) fn short(&mut self) -> Result<Bytes> {
        let len = u16::from_le_bytes(self.array()?) as usize;
        self.take(len)
    }
}
