//! Contents of files, as far as they lie in blocks.

use ashlar_pool::{Txn, Volume};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use ashlar_vfs::{Errno, Result, SeekWhat};
use bytes::Bytes;

/// Bytes of a block.
pub const BLOCK: u64 = BLOCK_LEN as u64;
/// Blocks whose references are copied in one transaction: 16,384 runs at worst, well below a transaction's limit.
pub const SHARE_BLOCKS: u64 = 8192;
/// Bytes that one copying call moves where blocks cannot be shared.
pub const COPY_BYTES: u64 = 1 << 20;

/// Blocks of a file of this size.
pub fn blocks_of(size: u64) -> u64 {
    size.div_ceil(BLOCK)
}

/// Cuts `skip` bytes off the front, and everything behind `len` bytes.
pub fn trim(parts: &mut Vec<Bytes>, mut skip: usize, mut len: usize) {
    parts.retain_mut(|part| {
        let front = skip.min(part.len());
        skip -= front;
        *part = part.slice(front..);
        let keep = len.min(part.len());
        len -= keep;
        part.truncate(keep);
        !part.is_empty()
    });
}

/// What a seek from `offset` on answers, in a file of this size, when it has found this block.
pub fn sought(found: Option<u64>, offset: u64, size: u64, what: SeekWhat) -> Result<u64> {
    match (found, what) {
        (Some(block), _) => Ok((block * BLOCK).max(offset).min(size)),
        (None, SeekWhat::Hole) => Ok(size),
        (None, SeekWhat::Data) => Err(Errno::NoSuchAddress.into()),
    }
}

/// Whole blocks that are cut out of a file, or a hole of so many that is opened there.
#[derive(Clone, Copy, Debug)]
pub struct Shift {
    at: u64,
    count: u64,
    insert: bool,
    /// How long the file is after it, in bytes.
    pub size: u64,
}

impl Shift {
    /// One of a file of this size; bytes at `offset`.
    ///
    /// # Errors
    /// `Invalid` if it is not of whole blocks, or not inside the file; `FileTooBig` if the file would be longer than `size_max`.
    pub fn new(size: u64, offset: u64, len: u64, insert: bool, size_max: u64) -> Result<Shift> {
        let aligned = offset.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK);
        let inside = if insert { offset < size } else { offset + len < size };
        if !aligned || !inside {
            return Err(Errno::Invalid.into());
        }
        let size = if insert { size + len } else { size - len };
        if size > size_max {
            return Err(Errno::FileTooBig.into());
        }
        Ok(Shift { at: offset / BLOCK, count: len / BLOCK, insert, size })
    }

    /// Builds the new layout of a file of so many blocks of shared extents in a fresh place.
    pub async fn build(&self, volume: &Volume, from: Lba, to: Lba, blocks: u64) -> Result<()> {
        let Shift { at, count, insert, .. } = *self;
        let (kept_from, kept_to) = if insert { (at, at + count) } else { (at + count, at) };
        share_blocks(volume, from, to, at).await?;
        share_blocks(volume, from + Blocks(kept_from), to + Blocks(kept_to), blocks.saturating_sub(kept_from)).await
    }
}

/// Shares `count` blocks of a volume with another place in it, in as many transactions as it takes.
async fn share_blocks(volume: &Volume, from: Lba, to: Lba, count: u64) -> Result<()> {
    let mut done = 0;
    while done < count {
        let part = SHARE_BLOCKS.min(count - done);
        let mut txn = Txn::new();
        volume.share(&mut txn, from + Blocks(done), volume, to + Blocks(done), Blocks(part)).await?;
        volume.commit(txn).await?;
        done += part;
    }
    Ok(())
}
