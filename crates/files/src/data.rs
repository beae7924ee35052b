//! Contents of files.

use crate::Files;
use crate::inode::Inode;
use crate::keys::{self, Contents, Record, SLOT_BLOCKS, SMALL_BLOCKS, base_of, blocks_in_range};
use ashlar_inodes::{
    BLOCK, COPY_BYTES, Counted, InodeStore, SHARE_BLOCKS, Shift, blocks_of, lock_all, make_durable, sought, trim,
};
use ashlar_pool::Txn;
use ashlar_units::{BLOCK_LEN, Blocks};
use ashlar_vfs::{Errno, FallocateMode, Ino, Result, SeekWhat, WriteMode};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;

/// Longest file: a slot.
pub(crate) const SIZE_MAX: u64 = SLOT_BLOCKS * BLOCK;

impl Files {
    pub(crate) async fn read_data(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<Bytes>> {
        let inode = self.load(ino).await?;
        let _shared = inode.lock.read().await;
        let (size, base, range) = {
            let mut state = inode.state();
            state.record.check_file()?;
            if !self.options.read_only && !self.options.no_access_times {
                state.access(self.now());
            }
            (state.record.size, base_of(&state.record), state.record.contents.blocks_max())
        };
        let end = offset.saturating_add(len as u64).min(size);
        if offset >= end {
            return Ok(Vec::new());
        }
        if offset == 0 {
            self.read_ahead(&inode).await;
        }
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK).min(range));
        let mut pieces = self.volume.read(base + Blocks(first), Blocks(last - first)).await?;
        trim(&mut pieces, (offset - first * BLOCK) as usize, (end - offset) as usize);
        Ok(pieces)
    }

    pub(crate) async fn write_data(&self, ino: Ino, offset: u64, data: Bytes, how: WriteMode) -> Result<()> {
        self.admit_change()?;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= SIZE_MAX).ok_or(Errno::FileTooBig)?;
        let inode = self.load(ino).await?;
        inode.state().record.check_file()?;
        if data.is_empty() {
            return Ok(());
        }
        let starts_whole = offset.is_multiple_of(BLOCK);
        // Compression and checksums come before the lock, where the range can be known without it.
        let mut prepared = starts_whole.then(|| {
            let base = base_of(&inode.state().record);
            let mut txn = Txn::new();
            self.volume.write(&mut txn, base + Blocks(offset / BLOCK), &data);
            (base, txn)
        });
        if let Some((_, txn)) = &mut prepared {
            self.pool().make_room(txn).await?;
        }
        let ends_whole = end.is_multiple_of(BLOCK);
        let written = {
            let _shared = inode.lock.read().await;
            let in_place = {
                let state = inode.state();
                let record = &state.record;
                let plain = !how.clear_setid && starts_whole && (ends_whole || end == record.size);
                plain && end <= record.size && blocks_of(end) <= record.contents.blocks_max()
            };
            let base = base_of(&inode.state().record);
            let is_prepared = |prepared: &mut (_, _)| prepared.0 == base;
            if in_place && let Some((_, txn)) = prepared.take_if(is_prepared) {
                let applied = self.volume.apply(txn).await?;
                {
                    let mut state = inode.state();
                    state.follow(applied.seq);
                    state.stored_changed();
                    if !how.writeback {
                        state.record.modify(self.now());
                        state.dirty = true;
                    }
                }
                applied.settle().await?;
                true
            } else {
                false
            }
        };
        if !written {
            let _exclusive = inode.lock.write().await;
            self.fit(&inode, end).await?;
            let mut record = inode.record();
            let base = base_of(&record);
            let txn = match prepared {
                Some((prepared_base, txn)) if prepared_base == base && (ends_whole || end >= record.size) => txn,
                _ => {
                    let mut txn = Txn::new();
                    let whole = self.with_edges(&record, offset, &data).await?;
                    self.volume.write(&mut txn, base + Blocks(offset / BLOCK), &whole);
                    txn
                }
            };
            let (size, permissions) = (record.size, record.permissions);
            record.cover(offset, end);
            if how.clear_setid {
                record.clear_setid();
            }
            if !how.writeback {
                record.modify(self.now());
            }
            if record.size == size && record.permissions == permissions {
                let applied = self.volume.apply(txn).await?;
                inode.state().adopt_times(record, applied.seq);
                applied.settle().await?;
            } else {
                self.commit_record(txn, &inode, record).await?;
            }
        }
        if how.sync { make_durable(self, &inode).await } else { Ok(()) }
    }

    /// `data` with what stands before and behind it in its first and last block. The caller holds the lock.
    async fn with_edges(&self, record: &Record, offset: u64, data: &Bytes) -> Result<Bytes> {
        let end = offset + data.len() as u64;
        let (first, last) = (offset / BLOCK, (end - 1) / BLOCK);
        let head = (offset % BLOCK) as usize;
        // Behind the end of the file there are zeros, which need not be read or written.
        let tail_end = (last * BLOCK + BLOCK).min(record.size).max(end);
        let mut whole = BytesMut::with_capacity(head + data.len() + (tail_end - end) as usize);
        if head > 0 {
            let block = self.read_block(record, first).await?;
            whole.extend_from_slice(&block[..head]);
        }
        whole.extend_from_slice(data);
        if tail_end > end {
            let block = self.read_block(record, last).await?;
            whole.extend_from_slice(&block[(end - last * BLOCK) as usize..(tail_end - last * BLOCK) as usize]);
        }
        Ok(whole.freeze())
    }

    async fn read_block(&self, record: &Record, block: u64) -> Result<Bytes> {
        if block >= blocks_in_range(record) {
            return Ok(Bytes::from_static(&[0; BLOCK_LEN]));
        }
        let pieces = self.volume.read(base_of(record) + Blocks(block), Blocks(1)).await?;
        Ok(pieces.into_iter().next().unwrap_or_else(|| Bytes::from_static(&[0; BLOCK_LEN])))
    }

    /// Moves a small file to a slot if it is about to outgrow its range. The caller holds the lock for writing.
    async fn fit(&self, inode: &Arc<Inode>, end: u64) -> Result<()> {
        let mut record = inode.record();
        if blocks_of(end) <= record.contents.blocks_max() {
            return Ok(());
        }
        let mut txn = Txn::new();
        let taken = self.take_slot(&mut txn).await?;
        let blocks = blocks_of(record.size).min(SMALL_BLOCKS);
        if blocks > 0 {
            let (from, to) = (base_of(&record), keys::slot_base(taken.slot));
            self.volume.remap(&mut txn, from, to, Blocks(blocks)).await?;
        }
        record.contents = Contents::Slot(taken.slot);
        self.commit_record(txn, inode, record).await?;
        taken.keep();
        Ok(())
    }

    /// See [`InodeStore::resize`].
    pub(crate) async fn change_size(
        &self,
        mut txn: Txn,
        inode: &Arc<Inode>,
        mut record: Record,
        size: u64,
    ) -> Result<()> {
        let old = record.size;
        if size > old {
            self.fit(inode, size).await?;
            record.contents = inode.state().record.contents;
            record.sparse |= blocks_of(size) > blocks_of(old);
        } else {
            txn = txn.deleting();
            self.zero(&mut txn, &record, size, old).await?;
        }
        record.size = size;
        self.commit_record(txn, inode, record).await
    }

    /// Zeros from byte `start` to `end`, which may be the end of the file, in `txn`: whole blocks become holes. The
    /// caller holds the lock for writing.
    async fn zero(&self, txn: &mut Txn, record: &Record, start: u64, end: u64) -> Result<()> {
        let base = base_of(record);
        let end = end.min(record.size).min(record.contents.blocks_max() * BLOCK);
        if start >= end {
            return Ok(());
        }
        let to_the_end = end == record.size;
        let first_whole = start.div_ceil(BLOCK);
        let end_whole = if to_the_end { blocks_of(end) } else { end / BLOCK };
        if first_whole < end_whole {
            self.volume.discard(txn, base + Blocks(first_whole), Blocks(end_whole - first_whole));
        }
        // What is left are parts of at most two blocks.
        let mut edges: Vec<(u64, usize, usize)> = Vec::new();
        if !start.is_multiple_of(BLOCK) {
            let block = start / BLOCK;
            edges.push((block, (start - block * BLOCK) as usize, (end - block * BLOCK).min(BLOCK) as usize));
        }
        if !to_the_end && !end.is_multiple_of(BLOCK) && (end / BLOCK > start / BLOCK || start.is_multiple_of(BLOCK)) {
            edges.push((end / BLOCK, 0, (end % BLOCK) as usize));
        }
        for (block, from, to) in edges {
            let stored = self.volume.runs(base + Blocks(block), Blocks(1)).await?;
            if stored.is_empty() {
                continue;
            }
            let mut bytes = BytesMut::from(&self.read_block(record, block).await?[..]);
            bytes[from..to].fill(0);
            self.volume.write(txn, base + Blocks(block), &bytes.freeze());
        }
        Ok(())
    }

    pub(crate) async fn allocate(&self, ino: Ino, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        self.admit_change()?;
        let end = offset.checked_add(len).filter(|end| *end <= SIZE_MAX).ok_or(Errno::FileTooBig)?;
        if len == 0 {
            return Err(Errno::Invalid.into());
        }
        let inode = self.load(ino).await?;
        let _exclusive = inode.lock.write().await;
        let mut record = inode.record();
        record.check_file()?;
        record.modify(self.now());
        let mut txn = Txn::new();
        match mode {
            // Space in a log cannot be promised to a place: overwriting takes new space anyway. The size is what
            // callers of this mode rely on.
            FallocateMode::Reserve { keep_size } | FallocateMode::Zero { keep_size } => {
                if matches!(mode, FallocateMode::Reserve { .. })
                    && end.saturating_sub(record.size.max(offset)) > self.pool().status().free
                {
                    return Err(Errno::NoSpace.into());
                }
                if !keep_size && end > record.size {
                    self.fit(&inode, end).await?;
                    record.contents = inode.state().record.contents;
                }
                if matches!(mode, FallocateMode::Zero { .. }) {
                    self.zero(&mut txn, &record, offset, end).await?;
                    record.sparse = true;
                }
                if !keep_size && end > record.size {
                    record.sparse = true;
                    record.size = end;
                }
            }
            FallocateMode::Punch => {
                self.zero(&mut txn, &record, offset, end).await?;
                record.sparse = true;
                txn = txn.deleting();
            }
            FallocateMode::Collapse | FallocateMode::Insert => {
                return self.shift(&inode, record, offset, len, mode == FallocateMode::Insert).await;
            }
        }
        self.commit_record(txn, &inode, record).await
    }

    /// Cuts a range out, or opens a hole: the new layout is built of shared extents in a fresh slot, and one transaction
    /// exchanges it for the old one.
    async fn shift(&self, inode: &Arc<Inode>, mut record: Record, offset: u64, len: u64, insert: bool) -> Result<()> {
        let shift = Shift::new(record.size, offset, len, insert, SIZE_MAX)?;
        let slot = {
            let mut txn = Txn::new();
            let taken = self.take_slot(&mut txn).await?;
            self.volume.put(&mut txn, &keys::building_slot(taken.slot), Bytes::new());
            self.volume.commit(txn).await?;
            taken.keep()
        };
        shift.build(&self.volume, base_of(&record), keys::slot_base(slot), blocks_in_range(&record)).await?;
        let mut txn = Txn::new();
        self.discard_data(&mut txn, &record);
        self.volume.delete(&mut txn, &keys::building_slot(slot));
        let freed = record.contents.slot();
        if let Some(freed) = freed {
            self.volume.put(&mut txn, &keys::free_slot(freed), Bytes::new());
        }
        (record.contents, record.size) = (Contents::Slot(slot), shift.size);
        record.sparse |= insert;
        self.commit_record(txn, inode, record).await?;
        if let Some(freed) = freed {
            self.slots.lock().await.give_back(freed);
        }
        Ok(())
    }

    pub(crate) async fn find_data(&self, ino: Ino, offset: u64, what: SeekWhat) -> Result<u64> {
        let inode = self.load(ino).await?;
        let _shared = inode.lock.read().await;
        let record = inode.record();
        record.check_file()?;
        if offset >= record.size {
            return Err(Errno::NoSuchAddress.into());
        }
        let base = base_of(&record);
        let end = blocks_in_range(&record);
        let found = if offset / BLOCK < end {
            self.volume.seek(base + Blocks(offset / BLOCK), base + Blocks(end), what == SeekWhat::Hole).await?
        } else {
            None
        };
        sought(found.map(|block| (block - base).0), offset, record.size, what)
    }

    pub(crate) async fn copy_data(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        self.admit_change()?;
        let (source, target) = (self.load(from.0).await?, self.load(to.0).await?);
        to.1.checked_add(len).filter(|end| *end <= SIZE_MAX).ok_or(Errno::FileTooBig)?;
        {
            let _locks = lock_all(&[&source, &target]).await;
            let (source_record, mut record) = (source.record(), target.record());
            source_record.check_file()?;
            record.check_file()?;
            let len = len.min(source_record.size.saturating_sub(from.1)).min(SHARE_BLOCKS * BLOCK);
            if len == 0 {
                return Ok(0);
            }
            let end = to.1 + len;
            // A last block that is not whole can be shared if it ends both files: behind it there are zeros.
            let whole = len.is_multiple_of(BLOCK) || (from.1 + len == source_record.size && end >= record.size);
            if whole && from.1.is_multiple_of(BLOCK) && to.1.is_multiple_of(BLOCK) {
                self.fit(&target, end).await?;
                record.contents = target.state().record.contents;
                let source_base = base_of(&source.record());
                record.modify(self.now());
                record.sparse |= source_record.sparse;
                record.cover(to.1, end);
                let mut txn = Txn::new();
                let (first, count) = (from.1 / BLOCK, blocks_of(len));
                let target_first = base_of(&record) + Blocks(to.1 / BLOCK);
                self.volume
                    .share(&mut txn, source_base + Blocks(first), &self.volume, target_first, Blocks(count))
                    .await?;
                self.commit_record(txn, &target, record).await?;
                return Ok(len);
            }
        }
        let data = self.read_data(from.0, from.1, len.min(COPY_BYTES) as usize).await?.concat();
        let copied = data.len() as u64;
        self.write_data(to.0, to.1, data.into(), WriteMode::default()).await?;
        Ok(copied)
    }

    /// Counts the blocks of a sparse file that are stored: a walk over its part of the map.
    pub(crate) async fn count_blocks(&self, inode: &Inode) -> Result<Counted> {
        let (record, version) = {
            let state = inode.state();
            (state.record.clone(), state.version)
        };
        let (base, end) = (base_of(&record), blocks_in_range(&record));
        let (Blocks(blocks), keys) = self.volume.stored_blocks(base, Blocks(end)).await?;
        let mut state = inode.state();
        if state.version == version && blocks == blocks_of(record.size) && state.record.sparse {
            // The holes were filled, as when pages are written back in another order: it need not be counted again.
            (state.record.sparse, state.dirty) = (false, true);
        }
        Ok(Counted { blocks, keys, version })
    }
}
