//! Ranges of files: reserving, punching, cutting out, inserting, copying.

use crate::Betr;
use crate::data::{BLOCK, SIZE_MAX, blocks_of, check_file};
use crate::inode::{Inode, lock_all};
use crate::keys;
use crate::record::Record;
use ashlar_pool::Txn;
use ashlar_units::{Blocks, Lba};
use ashlar_vfs::{Errno, FallocateMode, Ino, Result, WriteMode};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;

/// Blocks whose references are copied in one transaction: 16,384 runs at worst, well below a transaction's limit.
const SHARE_BLOCKS: u64 = 8192;
/// Bytes that one copying call moves where blocks cannot be shared.
const COPY_BYTES: u64 = 1 << 20;

impl Betr {
    pub(crate) async fn allocate(&self, ino: Ino, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        self.admit_change()?;
        let end = offset.checked_add(len).filter(|end| *end <= SIZE_MAX).ok_or(Errno::FileTooBig)?;
        if len == 0 {
            return Err(Errno::Invalid.into());
        }
        let inode = self.inode(ino)?;
        let _exclusive = inode.lock.write().await;
        let mut record = inode.record();
        check_file(&record)?;
        let now = self.now();
        (record.modified, record.changed) = (now, now);
        let mut txn = Txn::new();
        match mode {
            // Space in a log cannot be promised to a place: overwriting takes new space anyway. The size is what
            // callers of this mode rely on.
            FallocateMode::Reserve { keep_size } => {
                if end.saturating_sub(record.size.max(offset)) > self.pool().status().free {
                    return Err(Errno::NoSpace.into());
                }
                extend(&mut record, end, keep_size);
            }
            FallocateMode::Zero { keep_size } => {
                self.zero(&mut txn, &inode.place(), &mut record, offset, end);
                record.sparse = true;
                extend(&mut record, end, keep_size);
            }
            FallocateMode::Punch => {
                self.zero(&mut txn, &inode.place(), &mut record, offset, end);
                record.sparse = true;
                txn = txn.deleting();
            }
            FallocateMode::Collapse | FallocateMode::Insert => {
                return self.shift(&inode, offset, len, mode == FallocateMode::Insert).await;
            }
        }
        self.commit_record(txn, &inode, record).await
    }

    /// Cuts a range out, or opens a hole: the new layout is built of shared extents in a fresh range, and one transaction
    /// exchanges it for the old one.
    async fn shift(&self, inode: &Arc<Inode>, offset: u64, len: u64, insert: bool) -> Result<()> {
        let size = inode.record().size;
        let aligned = offset.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK);
        let inside = if insert { offset < size } else { offset + len < size };
        if !aligned || !inside {
            return Err(Errno::Invalid.into());
        }
        let new_size = if insert { size + len } else { size - len };
        if new_size > SIZE_MAX {
            return Err(Errno::FileTooBig.into());
        }
        self.settle(inode).await?;
        let mut record = inode.record();
        let fresh = self.new_number().await?;
        let note = keys::numbered(keys::FILLING, fresh);
        let mut txn = Txn::new();
        self.volume.put(&mut txn, &note, Bytes::new());
        self.volume.commit(txn).await?;
        let (old, new) = (record.base(), keys::range_base(fresh));
        let (at, count, blocks) = (offset / BLOCK, len / BLOCK, blocks_of(size));
        let (kept_from, kept_to) = if insert { (at, at + count) } else { (at + count, at) };
        for (from, to, count) in [(0, 0, at), (kept_from, kept_to, blocks.saturating_sub(kept_from))] {
            self.share_blocks(old + Blocks(from), new + Blocks(to), count).await?;
        }
        let mut txn = Txn::new();
        self.volume.discard(&mut txn, old, Blocks(blocks));
        self.volume.delete(&mut txn, &note);
        let now = self.now();
        (record.modified, record.changed) = (now, now);
        (record.range, record.size) = (fresh, new_size);
        record.sparse |= insert;
        self.commit_record(txn, inode, record).await
    }

    /// Shares blocks in as many transactions as it takes.
    async fn share_blocks(&self, from: Lba, to: Lba, count: u64) -> Result<()> {
        let mut done = 0;
        while done < count {
            let part = SHARE_BLOCKS.min(count - done);
            let mut txn = Txn::new();
            self.volume.share(&mut txn, from + Blocks(done), &self.volume, to + Blocks(done), Blocks(part)).await?;
            self.volume.commit(txn).await?;
            done += part;
        }
        Ok(())
    }

    pub(crate) async fn copy_data(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        self.admit_change()?;
        let (source, target) = (self.inode(from.0)?, self.inode(to.0)?);
        to.1.checked_add(len).filter(|end| *end <= SIZE_MAX).ok_or(Errno::FileTooBig)?;
        {
            let _locks = lock_all(&[&source, &target]).await;
            let record = source.record();
            check_file(&record)?;
            check_file(&target.record())?;
            let len = len.min(record.size.saturating_sub(from.1)).min(SHARE_BLOCKS * BLOCK);
            if len == 0 {
                return Ok(0);
            }
            let end = to.1 + len;
            // A last block that is not whole can be shared if it ends both files: behind it there are zeros.
            let whole = len.is_multiple_of(BLOCK) || (from.1 + len == record.size && end >= target.record().size);
            let in_blocks = record.range != 0 && end > self.zones.inline.0;
            if whole && in_blocks && from.1.is_multiple_of(BLOCK) && to.1.is_multiple_of(BLOCK) {
                self.settle(&source).await?;
                self.settle(&target).await?;
                let (source, mut record) = (source.record(), target.record());
                let now = self.now();
                (record.modified, record.changed) = (now, now);
                record.sparse |= source.sparse || to.1 / BLOCK > blocks_of(record.size);
                let mut txn = Txn::new();
                let (first, to_first, count) = (Blocks(from.1 / BLOCK), Blocks(to.1 / BLOCK), Blocks(blocks_of(len)));
                let (at, to_at) = (source.base() + first, record.base() + to_first);
                self.volume.share(&mut txn, at, &self.volume, to_at, count).await?;
                record.size = record.size.max(end);
                self.commit_record(txn, &target, record).await?;
                return Ok(len);
            }
        }
        let parts = self.read_data(from.0, from.1, len.min(COPY_BYTES) as usize).await?;
        let mut data = BytesMut::new();
        parts.iter().for_each(|part| data.extend_from_slice(part));
        let copied = data.len() as u64;
        self.write_data(to.0, to.1, data.freeze(), WriteMode::default()).await?;
        Ok(copied)
    }
}

fn extend(record: &mut Record, end: u64, keep_size: bool) {
    if !keep_size && end > record.size {
        record.sparse = true;
        record.size = end;
    }
}
