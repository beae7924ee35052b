//! A device by bytes: requests that begin or end within a block read it, change it and write it back.

use crate::ranges::Ranges;
use ashlar_block::{Device, Durability, Error, IoContext, Kind, Result};
use ashlar_env::ring::AlignedBuf;
use ashlar_units::{BLOCK, BLOCK_LEN, Blocks, Bytes as Size, Lba};
use bytes::Bytes;

/// Zeros written at a time.
const ZEROS_LEN: usize = 1 << 20;
/// Bytes discarded at a time, so that other work on the same worker goes on between.
const DISCARD_LEN: u64 = 256 << 20;

static ZEROS: [u8; ZEROS_LEN] = [0; ZEROS_LEN];

/// How to make zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Zeroing {
    /// The range must keep its space, so that a later write cannot fail for want of it.
    pub keep_space: bool,
    /// Fail, and change nothing, if it would not be faster than writing.
    pub only_fast: bool,
}

/// A device by bytes. Offsets and lengths are within its size; callers check that.
pub struct ByteDevice {
    device: Device,
    context: IoContext,
    size: Size,
    ranges: Ranges,
}

/// The blocks that a range of bytes touches.
struct Span {
    first: Lba,
    count: Blocks,
    /// Bytes before the range in its first block.
    head: usize,
    /// Bytes behind the range in its last block.
    tail: usize,
}

impl Span {
    fn new(offset: u64, len: u64) -> Span {
        let (first, end) = (offset / BLOCK.0, (offset + len).div_ceil(BLOCK.0));
        Span {
            first: Lba(first),
            count: Blocks(end - first),
            head: (offset % BLOCK.0) as usize,
            tail: (end * BLOCK.0 - offset - len) as usize,
        }
    }
    fn is_whole(&self) -> bool {
        self.head == 0 && self.tail == 0
    }
    fn blocks(&self) -> std::ops::Range<u64> {
        self.first.0..self.first.0 + self.count.0
    }
    /// The blocks that lie wholly in the range.
    fn inner(&self) -> (Lba, Blocks) {
        let skip = u64::from(self.head > 0);
        let cut = u64::from(self.tail > 0);
        (self.first + Blocks(skip), Blocks(self.count.0.saturating_sub(skip + cut)))
    }
}

impl ByteDevice {
    /// Wraps a device; `flow` names the export in what layers below measure.
    pub fn new(device: Device, flow: &'static str) -> ByteDevice {
        let size = device.geometry().capacity.to_bytes();
        ByteDevice { device, context: IoContext::foreground(flow), size, ranges: Ranges::default() }
    }
    /// Its size.
    pub fn size(&self) -> Size {
        self.size
    }
    /// Its name.
    pub fn name(&self) -> String {
        self.device.name()
    }
    /// Whether space can be given back.
    pub fn can_trim(&self) -> bool {
        self.device.capability().discard
    }

    /// Reads a range.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        let span = Span::new(offset, len as u64);
        let data = self.device.read(self.context, span.first, span.count).await?;
        if data.len() < span.head + len {
            let message = format!("read of {} at {} returned {} bytes", span.count, span.first, data.len());
            return Err(Error::new(Kind::Failed, message));
        }
        Ok(if span.is_whole() { data } else { data.slice(span.head..span.head + len) })
    }

    /// Writes a range.
    pub async fn write(&self, offset: u64, data: Bytes, durability: Durability) -> Result<()> {
        let span = Span::new(offset, data.len() as u64);
        if span.is_whole() {
            let _guard = self.ranges.whole(span.blocks()).await;
            return self.device.write(self.context, span.first, vec![data], durability).await;
        }
        let _guard = self.ranges.part(span.blocks()).await;
        self.write_part(&span, data, durability).await
    }

    /// The caller holds the range.
    async fn write_part(&self, span: &Span, data: Bytes, durability: Durability) -> Result<()> {
        let (mut rest, mut pieces) = (data, Vec::with_capacity(3));
        if span.head > 0 || span.count == Blocks(1) {
            let taken = rest.len().min(BLOCK_LEN - span.head);
            pieces.push(self.merged(span.first, span.head, &rest.split_to(taken)).await?);
        }
        let tail = rest.split_off(rest.len() - rest.len() % BLOCK_LEN);
        pieces.push(rest);
        if !tail.is_empty() {
            let last = Lba(span.first.0 + span.count.0 - 1);
            pieces.push(self.merged(last, 0, &tail).await?);
        }
        self.device.write(self.context, span.first, pieces, durability).await
    }

    /// A block as it is, with other bytes from `at` on.
    async fn merged(&self, block: Lba, at: usize, bytes: &[u8]) -> Result<Bytes> {
        let old = self.device.read(self.context, block, Blocks(1)).await?;
        let mut new = AlignedBuf::zeroed(BLOCK_LEN);
        new.as_mut().iter_mut().zip(&old).for_each(|(new, old)| *new = *old);
        new.as_mut().iter_mut().skip(at).zip(bytes).for_each(|(new, byte)| *new = *byte);
        Ok(new.freeze(BLOCK_LEN))
    }

    /// Makes a range read as zeros.
    pub async fn zero(&self, offset: u64, len: u64, how: Zeroing) -> Result<()> {
        let can_punch = self.device.capability().discard && self.device.capability().discard_zeroes;
        let punch = can_punch && !how.keep_space;
        if how.only_fast && !punch {
            return Err(Error::new(Kind::Unsupported, "zeros would have to be written, which is not fast"));
        }
        let span = Span::new(offset, len);
        let _guard = if span.is_whole() {
            self.ranges.whole(span.blocks()).await
        } else {
            self.ranges.part(span.blocks()).await
        };
        let (first, count) = span.inner();
        if span.head > 0 || (span.count == Blocks(1) && span.tail > 0) {
            let len = (BLOCK_LEN - span.head).min(len as usize);
            let edge = Span::new(offset, len as u64);
            self.write_part(&edge, Bytes::from_static(&ZEROS).slice(..len), Durability::Cached).await?;
        }
        if span.tail > 0 && span.count > Blocks(1) {
            let len = BLOCK_LEN - span.tail;
            let edge = Span::new((first + count).to_bytes().0, len as u64);
            self.write_part(&edge, Bytes::from_static(&ZEROS).slice(..len), Durability::Cached).await?;
        }
        if punch {
            return self.discard(first, count).await;
        }
        let (mut at, end) = (first, first + count);
        while at < end {
            let part = (end - at).to_bytes().0.min(ZEROS_LEN as u64) as usize;
            let zeros = vec![Bytes::from_static(&ZEROS).slice(..part)];
            self.device.write(self.context, at, zeros, Durability::Cached).await?;
            at += Size(part as u64).to_blocks_up();
        }
        Ok(())
    }

    /// Gives up the contents of the whole blocks of a range.
    pub async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        let span = Span::new(offset, len);
        let (first, count) = span.inner();
        let _guard = self.ranges.whole(first.0..first.0 + count.0).await;
        self.discard(first, count).await
    }

    async fn discard(&self, first: Lba, count: Blocks) -> Result<()> {
        let (mut at, end) = (first, first + count);
        while at < end {
            let part = (end - at).min(Size(DISCARD_LEN).to_blocks_down());
            self.device.discard(self.context, at, part).await?;
            at += part;
        }
        Ok(())
    }

    /// Makes every write that was answered durable.
    pub async fn flush(&self) -> Result<()> {
        self.device.flush(self.context).await
    }

    /// Whether there is a hole at `offset`, and for how many of `len` bytes (at least one) that goes on.
    pub async fn extent(&self, offset: u64, len: u64) -> Result<(bool, u64)> {
        let span = Span::new(offset, len);
        let extent = self.device.extent(self.context, span.first, span.count).await?;
        let bytes = extent.count.to_bytes().0.saturating_sub(span.head as u64);
        Ok((extent.hole, bytes.clamp(1, len)))
    }
}
