//! Ranges of files: reserving, punching, cutting out, inserting, copying.

use crate::Betr;
use crate::data::SIZE_MAX;
use crate::inode::{Inode, Placed};
use crate::keys;
use crate::record::Record;
use ashlar_inodes::{BLOCK, COPY_BYTES, InodeStore, SHARE_BLOCKS, Shift, blocks_of, lock_all};
use ashlar_pool::Txn;
use ashlar_units::Blocks;
use ashlar_vfs::{Errno, FallocateMode, Ino, Result, WriteMode};
use bytes::Bytes;
use std::sync::Arc;

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
        record.check_file()?;
        record.modify(self.now());
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
        let shift = Shift::new(inode.record().size, offset, len, insert, SIZE_MAX)?;
        self.settle(inode).await?;
        let mut record = inode.record();
        let fresh = self.new_number().await?;
        let note = keys::numbered(keys::FILLING, fresh);
        let mut txn = Txn::new();
        self.volume.put(&mut txn, &note, Bytes::new());
        self.volume.commit(txn).await?;
        let (old, new) = (record.contents.base(), keys::range_base(fresh));
        let blocks = blocks_of(record.size);
        shift.build(&self.volume, old, new, blocks).await?;
        let mut txn = Txn::new();
        self.volume.discard(&mut txn, old, Blocks(blocks));
        self.volume.delete(&mut txn, &note);
        record.modify(self.now());
        (record.contents.range, record.size) = (fresh, shift.size);
        record.sparse |= insert;
        self.commit_record(txn, inode, record).await
    }

    pub(crate) async fn copy_data(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        self.admit_change()?;
        let (source, target) = (self.inode(from.0)?, self.inode(to.0)?);
        to.1.checked_add(len).filter(|end| *end <= SIZE_MAX).ok_or(Errno::FileTooBig)?;
        {
            let _locks = lock_all(&[&source, &target]).await;
            let record = source.record();
            record.check_file()?;
            target.record().check_file()?;
            let len = len.min(record.size.saturating_sub(from.1)).min(SHARE_BLOCKS * BLOCK);
            if len == 0 {
                return Ok(0);
            }
            let end = to.1 + len;
            // A last block that is not whole can be shared if it ends both files: behind it there are zeros.
            let whole = len.is_multiple_of(BLOCK) || (from.1 + len == record.size && end >= target.record().size);
            let in_blocks = record.contents.range != 0 && end > self.zones.inline.0;
            if whole && in_blocks && from.1.is_multiple_of(BLOCK) && to.1.is_multiple_of(BLOCK) {
                self.settle(&source).await?;
                self.settle(&target).await?;
                let (source, mut record) = (source.record(), target.record());
                record.modify(self.now());
                record.sparse |= source.sparse;
                record.cover(to.1, end);
                let mut txn = Txn::new();
                let (first, to_first, count) = (Blocks(from.1 / BLOCK), Blocks(to.1 / BLOCK), Blocks(blocks_of(len)));
                let (at, to_at) = (source.contents.base() + first, record.contents.base() + to_first);
                self.volume.share(&mut txn, at, &self.volume, to_at, count).await?;
                self.commit_record(txn, &target, record).await?;
                return Ok(len);
            }
        }
        let data = self.read_data(None, from.0, from.1, len.min(COPY_BYTES) as usize).await?.concat();
        let copied = data.len() as u64;
        self.write_data(to.0, to.1, data.into(), WriteMode::default(), None).await?;
        Ok(copied)
    }
}

fn extend(record: &mut Record, end: u64, keep_size: bool) {
    if !keep_size && end > record.size {
        record.sparse = true;
        record.size = end;
    }
}
