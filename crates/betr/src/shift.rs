//! Ranges of files: reserving, punching, cutting out, inserting, copying.

use crate::Betr;
use crate::data::SIZE_MAX;
use crate::inode::{Inode, Placed};
use crate::keys;
use crate::record::Record;
use ashlar_inodes::{BLOCK, COPY_BYTES, InodeStore, SHARE_BLOCKS, Shift, blocks_of, lock_all};
use ashlar_pool::Txn;
use ashlar_pool::patches::patch;
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
                return self.share(&source, from.1, &target, to.1, len).await;
            }
        }
        let data = self.read_data(None, from.0, from.1, len.min(COPY_BYTES) as usize).await?.concat();
        let copied = data.len() as u64;
        self.write_data(to.0, to.1, data.into(), WriteMode::default(), None).await?;
        Ok(copied)
    }
}

impl Betr {
    /// Copies by reference: blocks are shared, and pieces over them are copied, as many as a transaction takes. Offsets are of blocks, and
    /// `len` is of whole ones or ends both files. The caller holds both locks for writing.
    async fn share(&self, source: &Arc<Inode>, from: u64, target: &Arc<Inode>, to: u64, len: u64) -> Result<u64> {
        if target.record().contents.range == 0 {
            self.settle(target).await?;
        }
        let (source, source_place) = (source.record(), source.place());
        let (mut record, place) = (target.record(), target.place());
        let (first, to_first) = (from / BLOCK, to / BLOCK);
        let mut count = blocks_of(len);
        let mut copies = Vec::new();
        let mut held = 0;
        for (block, pieces) in self.pieces_in(&source_place, &source, first, first + count).await? {
            let (key, value) = (keys::data(&place, record.ino, to_first + (block - first)), patch(&pieces));
            held += key.len() + value.len();
            if held > self.options.part_len_max && block > first {
                count = block - first;
                break;
            }
            copies.push((key, value));
        }
        let len = len.min(count * BLOCK);
        record.modify(self.now());
        record.sparse |= source.sparse;
        record.cover(to, to + len);
        let mut txn = Txn::new();
        let (at, to_at) = (source.contents.base() + Blocks(first), record.contents.base() + Blocks(to_first));
        self.volume.share(&mut txn, at, &self.volume, to_at, Blocks(count)).await?;
        self.clear_pieces(&mut txn, &place, &record, to_first, to_first + count);
        record.contents.overlaid |= !copies.is_empty();
        for (key, value) in copies {
            self.volume.put(&mut txn, &key, value);
        }
        self.commit_record(txn, target, record).await?;
        Ok(len)
    }
}

fn extend(record: &mut Record, end: u64, keep_size: bool) {
    if !keep_size && end > record.size {
        record.sparse = true;
        record.size = end;
    }
}
