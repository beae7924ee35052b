//! Contents of files.

use crate::Files;
use crate::inode::{Inode, State};
use crate::keys::{self, Record, SLOT_BLOCKS, SMALL_BLOCKS};
use ashlar_pool::Txn;
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use ashlar_vfs::{Errno, FallocateMode, FileKind, Ino, Result, SeekWhat, WriteMode};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const BLOCK: u64 = BLOCK_LEN as u64;
/// Longest file: a slot.
const SIZE_MAX: u64 = SLOT_BLOCKS * BLOCK;
/// Blocks whose references are copied in one transaction: 16,384 runs at worst, well below a transaction's limit.
const SHARE_BLOCKS: u64 = 8192;
/// Bytes that one copying call moves where blocks cannot be shared.
const COPY_BYTES: u64 = 1 << 20;
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o0010;
/// Access times are updated at least this often, as with `relatime`.
const RELATIME: Duration = Duration::from_secs(24 * 3600);

/// Blocks of a file of this size.
pub(crate) fn blocks_of(size: u64) -> u64 {
    size.div_ceil(BLOCK)
}

/// Clears set-id bits as a write by somebody without privilege must.
pub(crate) fn clear_setid(record: &mut Record) {
    if record.kind != FileKind::Directory {
        let setgid = if record.permissions & S_IXGRP != 0 { S_ISGID } else { 0 };
        record.permissions &= !(S_ISUID | setgid);
    }
}

fn check_file(record: &Record) -> Result<()> {
    match record.kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(Errno::IsDirectory.into()),
        _ => Err(Errno::Invalid.into()),
    }
}

impl Files {
    pub(crate) async fn read_data(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<Bytes>> {
        let inode = self.inode(ino).await?;
        let _shared = inode.lock.read().await;
        let (size, base, range) = {
            let mut state = inode.state();
            check_file(&state.record)?;
            if !self.options.read_only {
                let now = self.now();
                let Record { accessed, modified, changed, .. } = state.record;
                if accessed <= modified
                    || accessed <= changed
                    || now.seconds.saturating_sub(accessed.seconds) > RELATIME.as_secs() as i64
                {
                    state.record.accessed = now;
                    state.dirty = true;
                }
            }
            (state.record.size, state.record.base(ino), state.record.blocks_max())
        };
        let end = offset.saturating_add(len as u64).min(size);
        if offset >= end {
            return Ok(Vec::new());
        }
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK).min(range));
        let mut pieces = self.volume.read(base + Blocks(first), Blocks(last - first)).await?;
        trim(&mut pieces, (offset - first * BLOCK) as usize, (end - offset) as usize);
        Ok(pieces)
    }

    pub(crate) async fn write_data(&self, ino: Ino, offset: u64, data: Bytes, how: WriteMode) -> Result<()> {
        self.admit_change()?;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= SIZE_MAX).ok_or(Errno::FileTooBig)?;
        let inode = self.inode(ino).await?;
        check_file(&inode.state().record)?;
        if data.is_empty() {
            return Ok(());
        }
        let starts_whole = offset.is_multiple_of(BLOCK);
        // Compression and checksums come before the lock, where the range can be known without it.
        let prepared = starts_whole.then(|| {
            let base = inode.state().record.base(ino);
            let mut txn = Txn::new();
            self.volume.write(&mut txn, base + Blocks(offset / BLOCK), &data);
            (base, txn)
        });
        let ends_whole = end.is_multiple_of(BLOCK);
        let written = {
            let _shared = inode.lock.read().await;
            let in_place = {
                let state = inode.state();
                let record = &state.record;
                let plain = !how.clear_setid && starts_whole && (ends_whole || end == record.size);
                plain && end <= record.size && blocks_of(end) <= record.blocks_max()
            };
            if in_place
                && let Some((base, txn)) = &prepared
                && *base == inode.state().record.base(ino)
            {
                let seq = self.volume.commit(txn.clone()).await?;
                {
                    let mut state = inode.state();
                    state.seq = state.seq.max(seq);
                    state.stored_changed();
                    if !how.writeback {
                        let now = self.now();
                        (state.record.modified, state.record.changed, state.dirty) = (now, now, true);
                    }
                }
                true
            } else {
                false
            }
        };
        if !written {
            let _exclusive = inode.lock.write().await;
            self.fit(&inode, end).await?;
            let mut record = inode.record();
            let base = record.base(ino);
            let mut txn = match prepared {
                Some((prepared_base, txn)) if prepared_base == base && (ends_whole || end >= record.size) => txn,
                _ => {
                    let mut txn = Txn::new();
                    let whole = self.with_edges(&record, ino, offset, &data).await?;
                    self.volume.write(&mut txn, base + Blocks(offset / BLOCK), &whole);
                    txn
                }
            };
            let before = record.clone();
            if end > record.size {
                record.sparse |= offset / BLOCK > blocks_of(record.size);
                record.size = end;
            }
            if how.clear_setid {
                clear_setid(&mut record);
            }
            if !how.writeback {
                let now = self.now();
                (record.modified, record.changed) = (now, now);
            }
            if record.size == before.size && record.permissions == before.permissions {
                // Only times changed, if anything: they are written back later.
                let seq = self.volume.commit(std::mem::take(&mut txn)).await?;
                let mut state = inode.state();
                state.dirty |= record != before;
                state.record = record;
                state.stored_changed();
                state.seq = state.seq.max(seq);
            } else {
                self.commit_record(txn, &inode, record).await?;
            }
        }
        if how.sync { self.make_durable(&inode).await } else { Ok(()) }
    }

    /// `data` with what stands before and behind it in its first and last block. The caller holds the lock.
    async fn with_edges(&self, record: &Record, ino: Ino, offset: u64, data: &Bytes) -> Result<Bytes> {
        let end = offset + data.len() as u64;
        let (first, last) = (offset / BLOCK, (end - 1) / BLOCK);
        let head = (offset % BLOCK) as usize;
        // Behind the end of the file there are zeros, which need not be read or written.
        let tail_end = (last * BLOCK + BLOCK).min(record.size).max(end);
        let mut whole = BytesMut::with_capacity(head + data.len() + (tail_end - end) as usize);
        if head > 0 {
            let block = self.read_block(record, ino, first).await?;
            whole.extend_from_slice(&block[..head]);
        }
        whole.extend_from_slice(data);
        if tail_end > end {
            let block = self.read_block(record, ino, last).await?;
            whole.extend_from_slice(&block[(end - last * BLOCK) as usize..(tail_end - last * BLOCK) as usize]);
        }
        Ok(whole.freeze())
    }

    async fn read_block(&self, record: &Record, ino: Ino, block: u64) -> Result<Bytes> {
        if block >= blocks_of(record.size).min(record.blocks_max()) {
            return Ok(Bytes::from_static(&[0; BLOCK_LEN]));
        }
        let pieces = self.volume.read(record.base(ino) + Blocks(block), Blocks(1)).await?;
        Ok(pieces.into_iter().next().unwrap_or_else(|| Bytes::from_static(&[0; BLOCK_LEN])))
    }

    /// Moves a small file to a slot if it is about to outgrow its range. The caller holds the lock for writing.
    async fn fit(&self, inode: &Inode, end: u64) -> Result<()> {
        let mut record = inode.record();
        if blocks_of(end) <= record.blocks_max() {
            return Ok(());
        }
        let mut txn = Txn::new();
        let taken = self.take_slot(&mut txn).await?;
        let blocks = blocks_of(record.size).min(SMALL_BLOCKS);
        if blocks > 0 {
            let (from, to) = (record.base(inode.ino), keys::slot_base(taken.slot));
            self.volume.remap(&mut txn, from, to, Blocks(blocks)).await?;
        }
        record.slot = taken.slot + 1;
        self.commit_record(txn, inode, record).await?;
        taken.keep();
        Ok(())
    }

    /// Changes the size; `record` is the inode's with other changes applied. The caller holds the lock for writing.
    pub(crate) async fn resize(&self, inode: &Inode, mut record: Record, size: u64) -> Result<()> {
        check_file(&record)?;
        if size > SIZE_MAX {
            return Err(Errno::FileTooBig.into());
        }
        let old = record.size;
        if size > old {
            self.fit(inode, size).await?;
            record.slot = inode.state().record.slot;
            record.sparse |= blocks_of(size) > blocks_of(old);
            record.size = size;
            return self.commit_record(Txn::new(), inode, record).await;
        }
        let mut txn = Txn::new().deleting();
        self.zero(&mut txn, &record, inode.ino, size, old).await?;
        record.size = size;
        self.commit_record(txn, inode, record).await
    }

    /// Zeros from byte `start` to `end`, which may be the end of the file, in `txn`: whole blocks become holes. The
    /// caller holds the lock for writing.
    async fn zero(&self, txn: &mut Txn, record: &Record, ino: Ino, start: u64, end: u64) -> Result<()> {
        let base = record.base(ino);
        let end = end.min(record.size).min(record.blocks_max() * BLOCK);
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
            let mut bytes = BytesMut::from(&self.read_block(record, ino, block).await?[..]);
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
        let inode = self.inode(ino).await?;
        let _exclusive = inode.lock.write().await;
        let mut record = inode.record();
        check_file(&record)?;
        let now = self.now();
        (record.modified, record.changed) = (now, now);
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
                    record.slot = inode.state().record.slot;
                }
                if matches!(mode, FallocateMode::Zero { .. }) {
                    self.zero(&mut txn, &record, ino, offset, end).await?;
                    record.sparse = true;
                }
                if !keep_size && end > record.size {
                    record.sparse = true;
                    record.size = end;
                }
            }
            FallocateMode::Punch => {
                self.zero(&mut txn, &record, ino, offset, end).await?;
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
    async fn shift(&self, inode: &Inode, mut record: Record, offset: u64, len: u64, insert: bool) -> Result<()> {
        let aligned = offset.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK);
        let inside = if insert { offset < record.size } else { offset + len < record.size };
        if !aligned || !inside {
            return Err(Errno::Invalid.into());
        }
        let new_size = if insert { record.size + len } else { record.size - len };
        if new_size > SIZE_MAX {
            return Err(Errno::FileTooBig.into());
        }
        let slot = {
            let mut txn = Txn::new();
            let taken = self.take_slot(&mut txn).await?;
            self.volume.put(&mut txn, &keys::building_slot(taken.slot), Bytes::new());
            self.volume.commit(txn).await?;
            taken.keep()
        };
        let (old, new) = (record.base(inode.ino), keys::slot_base(slot));
        let (at, count, blocks) = (offset / BLOCK, len / BLOCK, blocks_of(record.size).min(record.blocks_max()));
        let (kept_from, kept_to) = if insert { (at, at + count) } else { (at + count, at) };
        for (from, to, count) in [(0, 0, at), (kept_from, kept_to, blocks.saturating_sub(kept_from))] {
            self.share_blocks(old + Blocks(from), new + Blocks(to), count).await?;
        }
        let mut txn = Txn::new();
        self.discard_data(&mut txn, inode.ino, &record);
        self.volume.delete(&mut txn, &keys::building_slot(slot));
        let freed = (record.slot > 0).then(|| record.slot - 1);
        if let Some(freed) = freed {
            self.volume.put(&mut txn, &keys::free_slot(freed), Bytes::new());
        }
        (record.slot, record.size) = (slot + 1, new_size);
        record.sparse |= insert;
        self.commit_record(txn, inode, record).await?;
        if let Some(freed) = freed {
            self.slots.lock().await.give_back(freed);
        }
        Ok(())
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

    pub(crate) async fn find_data(&self, ino: Ino, offset: u64, what: SeekWhat) -> Result<u64> {
        let inode = self.inode(ino).await?;
        let _shared = inode.lock.read().await;
        let record = inode.record();
        check_file(&record)?;
        if offset >= record.size {
            return Err(Errno::NoSuchAddress.into());
        }
        let base = record.base(ino);
        let end = blocks_of(record.size).min(record.blocks_max());
        let found = if offset / BLOCK < end {
            self.volume.seek(base + Blocks(offset / BLOCK), base + Blocks(end), what == SeekWhat::Hole).await?
        } else {
            None
        };
        match (found, what) {
            (Some(block), _) => Ok(((block - base).0 * BLOCK).max(offset).min(record.size)),
            (None, SeekWhat::Hole) => Ok(record.size),
            (None, SeekWhat::Data) => Err(Errno::NoSuchAddress.into()),
        }
    }

    pub(crate) async fn copy_data(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        self.admit_change()?;
        let (source, target) = (self.inode(from.0).await?, self.inode(to.0).await?);
        to.1.checked_add(len).filter(|end| *end <= SIZE_MAX).ok_or(Errno::FileTooBig)?;
        {
            let _locks = crate::inode::lock_all(&[&source, &target]).await;
            let (source_record, mut record) = (source.record(), target.record());
            check_file(&source_record)?;
            check_file(&record)?;
            let len = len.min(source_record.size.saturating_sub(from.1)).min(SHARE_BLOCKS * BLOCK);
            if len == 0 {
                return Ok(0);
            }
            let end = to.1 + len;
            // A last block that is not whole can be shared if it ends both files: behind it there are zeros.
            let whole = len.is_multiple_of(BLOCK) || (from.1 + len == source_record.size && end >= record.size);
            if whole && from.1.is_multiple_of(BLOCK) && to.1.is_multiple_of(BLOCK) {
                self.fit(&target, end).await?;
                record.slot = target.state().record.slot;
                let source_base = source.state().record.base(from.0);
                let now = self.now();
                (record.modified, record.changed) = (now, now);
                record.sparse |= source_record.sparse || to.1 / BLOCK > blocks_of(record.size);
                let mut txn = Txn::new();
                let (first, count) = (from.1 / BLOCK, blocks_of(len));
                let target_first = record.base(to.0) + Blocks(to.1 / BLOCK);
                self.volume
                    .share(&mut txn, source_base + Blocks(first), &self.volume, target_first, Blocks(count))
                    .await?;
                record.size = record.size.max(end);
                self.commit_record(txn, &target, record).await?;
                return Ok(len);
            }
        }
        let pieces = self.read_data(from.0, from.1, len.min(COPY_BYTES) as usize).await?;
        let mut data = BytesMut::new();
        pieces.iter().for_each(|piece| data.extend_from_slice(piece));
        let copied = data.len() as u64;
        self.write_data(to.0, to.1, data.freeze(), WriteMode::default()).await?;
        Ok(copied)
    }

    pub(crate) async fn make_durable(&self, inode: &Arc<Inode>) -> Result<()> {
        if inode.state().dirty {
            self.write_record(inode).await?;
        }
        let seq = inode.state().seq;
        Ok(self.pool().sync(seq).await?)
    }

    /// Bytes that a file takes, holes left out, as far as that is known.
    pub(crate) fn allocated_known(state: &State) -> Option<u64> {
        let record = &state.record;
        match record.kind {
            FileKind::File if record.sparse => state.counted.map(|counted| counted * BLOCK),
            FileKind::File => Some(blocks_of(record.size) * BLOCK),
            _ => Some(0),
        }
    }

    /// Counts the bytes that a sparse file takes: a walk over its part of the map.
    pub(crate) async fn count_allocated(&self, inode: &Inode) -> Result<u64> {
        let (record, version) = {
            let state = inode.state();
            (state.record.clone(), state.version)
        };
        let (base, end) = (record.base(inode.ino), blocks_of(record.size).min(record.blocks_max()));
        let counted = self.volume.stored_blocks(base, Blocks(end)).await?.0;
        let mut state = inode.state();
        if state.version == version {
            state.counted = Some(counted);
            if counted == blocks_of(record.size) && state.record.sparse {
                // The holes were filled, as when pages are written back in another order: it need not be counted again.
                (state.record.sparse, state.dirty) = (false, true);
            }
        }
        Ok(counted * BLOCK)
    }
}

/// Cuts `skip` bytes off the front, and everything behind `len` bytes.
fn trim(pieces: &mut Vec<Bytes>, mut skip: usize, mut len: usize) {
    pieces.retain_mut(|piece| {
        let front = skip.min(piece.len());
        skip -= front;
        *piece = piece.slice(front..);
        let keep = len.min(piece.len());
        len -= keep;
        piece.truncate(keep);
        !piece.is_empty()
    });
}
