//! Contents of files: a block range of the volume, and over it pieces in the dictionary.
//!
//! A small file is only pieces. One that outgrows [`crate::Zones::inline`] gets a range, and whole blocks go there; what is less
//! than a block goes over it as a piece, and nothing is read for it. So does what differs in a block that [was read](crate::seen) a
//! short while ago.

use crate::Betr;
use crate::inode::{Inode, Placed};
use crate::keys::{self, Place, RANGE_BLOCKS};
use crate::record::{Contents, Record};
use crate::seen::Changes;
use ashlar_inodes::{BLOCK, Counted, InodeStore, blocks_of, sought, trim, visit};
use ashlar_pool::Txn;
use ashlar_pool::patches::{Piece, patch, piece, pieces};
use ashlar_units::{BLOCK_LEN, Blocks};
use ashlar_vfs::{Errno, Ino, Result, SeekWhat, WriteMode};
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use tokio::sync::RwLockReadGuard;

/// Longest file: a range.
pub(crate) const SIZE_MAX: u64 = RANGE_BLOCKS * BLOCK;
/// Longest change of a part of a block that becomes a piece, and what pieces a block may have of what was compared; with more of it the
/// block is written anew.
pub(crate) const PIECE_LEN_MAX: usize = 1024;
/// Blocks of pieces that are written into the range in one transaction.
const SETTLED_BLOCKS: usize = 32;
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// Parts of blocks in the dictionary.
type Over = BTreeMap<u64, Vec<Piece>>;

/// How the whole blocks of a write are stored.
struct Whole<'a> {
    /// In a transaction that has room in the log; `None`: in the one of the write.
    prepared: Option<Txn>,
    /// What of them differs from what is there, where that is known; of what was prepared it is not asked.
    changes: &'a Changes,
}

impl Betr {
    /// The pieces of the blocks `first..last`.
    pub(crate) async fn pieces_in(&self, place: &Place, record: &Record, first: u64, last: u64) -> Result<Over> {
        let mut over = Over::new();
        if record.contents.overlaid {
            let note = |key: &[u8], value: &Bytes| {
                over.insert(keys::last_number(key)?, pieces(value)?);
                Ok(ControlFlow::Continue(()))
            };
            let (low, high) = (keys::data(place, record.ino, first), keys::data(place, record.ino, last));
            visit(&self.volume, &low, &high, note).await?;
        }
        Ok(over)
    }

    /// The blocks `first..last` as they are, one after the other.
    pub(crate) async fn read_blocks(
        &self,
        place: &Place,
        record: &Record,
        first: u64,
        last: u64,
    ) -> Result<Vec<Bytes>> {
        let over = self.pieces_in(place, record, first, last).await?;
        self.read_below(over, record, first, last).await
    }

    /// The same with the pieces at hand. Where the file is in the tree does not matter any more.
    async fn read_below(&self, over: Over, record: &Record, first: u64, last: u64) -> Result<Vec<Bytes>> {
        let base = match record.contents.range {
            0 => Vec::new(),
            _ => self.volume.read(record.contents.base() + Blocks(first), Blocks(last - first)).await?,
        };
        if over.is_empty() && record.contents.range != 0 {
            return Ok(base);
        }
        if record.contents.range == 0 {
            return Ok((first..last).flat_map(|block| alone(over.get(&block))).collect());
        }
        let mut whole = BytesMut::with_capacity(((last - first) * BLOCK) as usize);
        base.iter().for_each(|part| whole.extend_from_slice(part));
        for (block, pieces) in over {
            let start = ((block - first) * BLOCK) as usize;
            pieces
                .iter()
                .for_each(|piece| whole[start + piece.offset..start + piece.end()].copy_from_slice(&piece.bytes));
        }
        Ok(vec![whole.freeze()])
    }

    /// One block as it is; zeros behind the end of the file.
    async fn read_block(&self, place: &Place, record: &Record, block: u64) -> Result<BytesMut> {
        let mut whole = BytesMut::with_capacity(BLOCK_LEN);
        if block < blocks_of(record.size) {
            self.read_blocks(place, record, block, block + 1)
                .await?
                .iter()
                .for_each(|part| whole.extend_from_slice(part));
        }
        whole.resize(BLOCK_LEN, 0);
        Ok(whole)
    }

    /// Reads. It lets go of `shape` before the blocks are read.
    pub(crate) async fn read_data(
        &self,
        shape: Option<RwLockReadGuard<'_, ()>>,
        ino: Ino,
        offset: u64,
        len: usize,
    ) -> Result<Vec<Bytes>> {
        let inode = self.inode(ino)?;
        let _shared = inode.lock.read().await;
        let record = {
            let mut state = inode.state();
            state.record.check_file()?;
            if !self.options.read_only && !self.options.no_access_times {
                state.access(self.now());
            }
            state.record.clone()
        };
        let end = offset.saturating_add(len as u64).min(record.size);
        if offset >= end {
            return Ok(Vec::new());
        }
        if offset == 0 {
            self.read_ahead(&inode).await;
        }
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        let over = self.pieces_in(&inode.place(), &record, first, last).await?;
        drop(shape);
        let pieces = lengths(&over);
        let mut parts = self.read_below(over, &record, first, last).await?;
        if record.contents.range != 0 {
            self.seen.note(&inode, first, &parts, &pieces);
        }
        trim(&mut parts, (offset - first * BLOCK) as usize, (end - offset) as usize);
        Ok(parts)
    }

    /// The whole blocks of a write, in a transaction that has room in the log, with the range that they are for. Compression,
    /// checksums and waiting for a device come before all locks, since others wait for those: the kernel sets attributes right after
    /// writing.
    pub(crate) async fn prepare(&self, ino: Ino, offset: u64, data: &Bytes) -> Result<Option<(u64, Txn)>> {
        let inode = self.inode(ino)?;
        let end = offset.saturating_add(data.len() as u64);
        // A file that outgrows the dictionary by this gets the range of its number.
        let range = match &inode.state().record {
            record if self.outgrows(record, end) => record.ino,
            record => record.contents.range,
        };
        if range == 0 || !offset.is_multiple_of(BLOCK) || end > SIZE_MAX || self.is_read_only() {
            return Ok(None);
        }
        let whole = data.len() / BLOCK_LEN * BLOCK_LEN;
        if self.seen.compares(ino, offset / BLOCK, (whole / BLOCK_LEN) as u64) {
            return Ok(None);
        }
        let mut txn = Txn::new();
        self.volume.write(&mut txn, keys::range_base(range) + Blocks(offset / BLOCK), &data.slice(..whole));
        self.pool().make_room(&mut txn).await?;
        Ok(Some((range, txn)))
    }

    /// Writes `data`, of which [`Betr::prepare`] may have prepared the whole blocks.
    pub(crate) async fn write_data(
        &self,
        ino: Ino,
        offset: u64,
        data: Bytes,
        how: WriteMode,
        prepared: Option<(u64, Txn)>,
    ) -> Result<()> {
        self.admit_change()?;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= SIZE_MAX).ok_or(Errno::FileTooBig)?;
        let inode = self.inode(ino)?;
        inode.state().record.check_file()?;
        if data.is_empty() {
            return Ok(());
        }
        let _exclusive = inode.lock.write().await;
        let place = inode.place();
        if self.outgrows(&inode.record(), end) && inode.record().contents.overlaid {
            // Committed by itself, for what follows may read it.
            self.settle(&inode).await?;
        }
        let (before, version) = {
            let state = inode.state();
            (state.record.clone(), state.version)
        };
        let mut record = before.clone();
        if self.outgrows(&record, end) {
            record.contents.range = record.ino;
        }
        let mut txn = Txn::new();
        let mut changes = Changes::new();
        if record.contents.range == 0 {
            self.write_pieces(&mut txn, &place, &mut record, offset, &data);
        } else {
            let prepared = prepared.filter(|(range, _)| *range == record.contents.range).map(|(_, txn)| txn);
            if prepared.is_none() {
                changes = self.changes_of(&inode, offset, &data);
            }
            let whole = Whole { prepared, changes: &changes };
            self.write_range(&mut txn, &place, &mut record, offset, &data, whole).await?;
        }
        record.cover(offset, end);
        if how.clear_setid {
            record.clear_setid();
        }
        if !how.writeback {
            record.modify(self.now());
        }
        let only_times = Record { modified: before.modified, changed: before.changed, ..record.clone() } == before;
        let written = offset / BLOCK..end.div_ceil(BLOCK);
        if only_times {
            let applied = self.volume.apply(txn).await?;
            inode.state().adopt_times(record, applied.seq);
            self.adopt_changes(&inode, written, changes, version);
            Ok(applied.settle().await.map(drop)?)
        } else {
            let applied = self.apply_record(txn, &inode, record).await?;
            self.adopt_changes(&inode, written, changes, version);
            self.settle_record(applied, &inode).await
        }
    }

    /// Whether a file with this record leaves the dictionary when it reaches to `end`.
    fn outgrows(&self, record: &Record, end: u64) -> bool {
        record.contents.range == 0 && end.max(record.size) > self.zones.inline.0
    }

    /// Puts `data` into the dictionary.
    fn write_pieces(&self, txn: &mut Txn, place: &Place, record: &mut Record, offset: u64, data: &Bytes) {
        let (mut at, mut rest) = (offset, data.clone());
        while !rest.is_empty() {
            let within = (at % BLOCK) as usize;
            let part = rest.split_to((BLOCK_LEN - within).min(rest.len()));
            let end = at + part.len() as u64;
            let key = keys::data(place, record.ino, at / BLOCK);
            // Behind the end of the file are zeros, so this is all of the block.
            if within == 0 && (part.len() == BLOCK_LEN || end >= record.size) {
                self.volume.put(txn, &key, piece(0, &part));
            } else {
                self.volume.overlay(txn, &key, piece(within, &part));
            }
            at = end;
        }
        record.contents.overlaid = true;
    }

    /// Writes to a file that has a range. What was prepared begins where the data do.
    async fn write_range(
        &self,
        txn: &mut Txn,
        place: &Place,
        record: &mut Record,
        offset: u64,
        data: &Bytes,
        whole: Whole<'_>,
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        let (first, last) = (offset.div_ceil(BLOCK), end / BLOCK);
        let slice = |from: u64, to: u64| data.slice((from - offset) as usize..(to - offset) as usize);
        if let Some(prepared) = whole.prepared.filter(|_| first < last) {
            txn.append(prepared);
            self.clear_pieces(txn, place, record, first, last);
        } else {
            let mut anew = first;
            for block in first..last {
                let Some(pieces) = whole.changes.get(&block).and_then(|change| change.pieces.as_ref()) else {
                    continue;
                };
                if anew < block {
                    self.write_blocks(txn, place, record, anew, &slice(anew * BLOCK, block * BLOCK));
                }
                if !pieces.is_empty() {
                    self.volume.overlay(txn, &keys::data(place, record.ino, block), patch(pieces));
                    record.contents.overlaid = true;
                }
                anew = block + 1;
            }
            if anew < last {
                self.write_blocks(txn, place, record, anew, &slice(anew * BLOCK, last * BLOCK));
            }
        }
        let mut edges: Vec<(u64, u64)> = Vec::new();
        if !offset.is_multiple_of(BLOCK) {
            edges.push((offset, end.min(first * BLOCK)));
        }
        if !end.is_multiple_of(BLOCK) && last >= first {
            edges.push((last * BLOCK, end));
        }
        for (from, to) in edges {
            let (block, part) = (from / BLOCK, slice(from, to));
            let within = (from % BLOCK) as usize;
            // A file that grows bit by bit shall lie in its range in the end.
            let inside = to <= record.size && part.len() <= PIECE_LEN_MAX;
            if inside {
                self.volume.overlay(txn, &keys::data(place, record.ino, block), piece(within, &part));
                record.contents.overlaid = true;
                continue;
            }
            let mut whole = match within == 0 && to >= record.size {
                true => BytesMut::new(),
                false => self.read_block(place, record, block).await?,
            };
            whole.resize(whole.len().max(within + part.len()), 0);
            whole[within..within + part.len()].copy_from_slice(&part);
            self.write_blocks(txn, place, record, block, &whole.freeze());
        }
        Ok(())
    }

    /// Writes blocks from `first` on into the file's range, with no pieces over them, in `txn`. The last may end early.
    fn write_blocks(&self, txn: &mut Txn, place: &Place, record: &Record, first: u64, data: &Bytes) {
        self.volume.write(txn, record.contents.base() + Blocks(first), data);
        self.clear_pieces(txn, place, record, first, first + blocks_of(data.len() as u64));
    }

    /// Drops the pieces of the blocks `first..last`, in `txn`.
    pub(crate) fn clear_pieces(&self, txn: &mut Txn, place: &Place, record: &Record, first: u64, last: u64) {
        if !record.contents.overlaid || first >= last {
            return;
        }
        let key = |block: u64| keys::data(place, record.ino, block);
        if last - first == 1 {
            self.volume.delete(txn, &key(first));
        } else {
            self.volume.delete_range(txn, &key(first), &key(last));
        }
    }

    /// Gives a file that is all in the dictionary a range, and brings its contents there, in `txn`.
    async fn give_range(&self, txn: &mut Txn, place: &Place, record: &mut Record) -> Result<()> {
        // All numbers come from one counter, so its own is nobody else's.
        let contents = Contents { range: record.ino, overlaid: false };
        for (block, pieces) in self.pieces_in(place, record, 0, blocks_of(record.size)).await? {
            let whole = alone(Some(&pieces)).concat();
            self.volume.write(txn, contents.base() + Blocks(block), &whole.into());
        }
        if record.contents.overlaid {
            let (low, high) = keys::contents(place, record.ino);
            self.volume.delete_range(txn, &low, &high);
        }
        record.contents = contents;
        Ok(())
    }

    /// Brings everything in the dictionary into the file's range. The caller holds the lock for writing.
    pub(crate) async fn settle(&self, inode: &Arc<Inode>) -> Result<()> {
        let (place, mut record) = (inode.place(), inode.record());
        if record.contents.range == 0 {
            let mut txn = Txn::new();
            self.give_range(&mut txn, &place, &mut record).await?;
            return self.commit_record(txn, inode, record).await;
        }
        if !record.contents.overlaid {
            return Ok(());
        }
        let blocks: Vec<u64> = self.pieces_in(&place, &record, 0, blocks_of(record.size)).await?.into_keys().collect();
        for lot in blocks.chunks(SETTLED_BLOCKS) {
            let mut txn = Txn::new();
            for block in lot {
                let whole = self.read_block(&place, &record, *block).await?;
                self.volume.write(&mut txn, record.contents.base() + Blocks(*block), &whole.freeze());
                self.clear_pieces(&mut txn, &place, &record, *block, block + 1);
            }
            let seq = self.volume.commit(txn).await?;
            inode.state().follow(seq);
        }
        let mut txn = Txn::new();
        let (low, high) = keys::contents(&place, record.ino);
        self.volume.delete_range(&mut txn, &low, &high);
        record.contents.overlaid = false;
        self.commit_record(txn, inode, record).await
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
            record.sparse |= blocks_of(size) > blocks_of(old);
        } else {
            txn = txn.deleting();
            self.zero(&mut txn, &inode.place(), &mut record, size, old);
        }
        record.size = size;
        self.commit_record(txn, inode, record).await
    }

    /// Zeros from byte `start` to `end`, which may be the end of the file, in `txn`: whole blocks become holes, parts of blocks
    /// pieces of zeros. Nothing is read. The caller holds the lock for writing.
    pub(crate) fn zero(&self, txn: &mut Txn, place: &Place, record: &mut Record, start: u64, end: u64) {
        let end = end.min(record.size);
        if start >= end || (record.contents.range == 0 && !record.contents.overlaid) {
            return;
        }
        let to_the_end = end == record.size;
        let (first, last) = (start.div_ceil(BLOCK), if to_the_end { blocks_of(end) } else { end / BLOCK });
        if first < last {
            if record.contents.range != 0 {
                self.volume.discard(txn, record.contents.base() + Blocks(first), Blocks(last - first));
            }
            self.clear_pieces(txn, place, record, first, last);
        }
        let mut edge = |block: u64, from: u64, to: u64| {
            let zeros = &ZEROS[..(to - from) as usize];
            self.volume.overlay(
                txn,
                &keys::data(place, record.ino, block),
                piece((from - block * BLOCK) as usize, zeros),
            );
            record.contents.overlaid = true;
        };
        if !start.is_multiple_of(BLOCK) {
            edge(start / BLOCK, start, end.min(first * BLOCK));
        }
        if !to_the_end && !end.is_multiple_of(BLOCK) && last >= first {
            edge(last, last * BLOCK, end);
        }
    }

    pub(crate) async fn find_data(&self, ino: Ino, offset: u64, what: SeekWhat) -> Result<u64> {
        let inode = self.inode(ino)?;
        let _shared = inode.lock.read().await;
        let record = inode.record();
        record.check_file()?;
        if offset >= record.size {
            return Err(Errno::NoSuchAddress.into());
        }
        let (place, end) = (inode.place(), blocks_of(record.size));
        let mut at = offset / BLOCK;
        let found = loop {
            match what {
                SeekWhat::Data => break self.next_data(&place, &record, at, end).await?,
                // A hole is one in the range where there are no pieces either.
                SeekWhat::Hole => {
                    let Some(hole) = self.next_hole(&record, at, end).await? else { break None };
                    let over = self.pieces_in(&place, &record, hole, (hole + 256).min(end)).await?;
                    let free = (hole..(hole + 256).min(end)).find(|block| !over.contains_key(block));
                    match free {
                        Some(block) if block == hole => break Some(block),
                        Some(block) => at = block,
                        None => at = (hole + 256).min(end),
                    }
                    if at >= end {
                        break None;
                    }
                }
            }
        };
        sought(found, offset, record.size, what)
    }

    /// The first stored block from `at` on, in the range or the dictionary.
    async fn next_data(&self, place: &Place, record: &Record, at: u64, end: u64) -> Result<Option<u64>> {
        let base = record.contents.base();
        let below = match record.contents.range {
            0 => None,
            _ => self.volume.seek(base + Blocks(at), base + Blocks(end), false).await?,
        };
        let below = below.map(|block| (block - base).0);
        let mut over = None;
        if record.contents.overlaid {
            let note = |key: &[u8], _: &Bytes| {
                over = Some(keys::last_number(key)?);
                Ok(ControlFlow::Break(()))
            };
            visit(&self.volume, &keys::data(place, record.ino, at), &keys::data(place, record.ino, end), note).await?;
        }
        Ok(below.into_iter().chain(over).min())
    }

    /// The first block from `at` on that the range does not have.
    async fn next_hole(&self, record: &Record, at: u64, end: u64) -> Result<Option<u64>> {
        if record.contents.range == 0 {
            return Ok((at < end).then_some(at));
        }
        let base = record.contents.base();
        let found = self.volume.seek(base + Blocks(at), base + Blocks(end), true).await?;
        Ok(found.map(|block| (block - base).0))
    }

    /// Counts the blocks of a sparse file that are stored: a walk over its part of the map, and its pieces.
    pub(crate) async fn count_blocks(&self, inode: &Arc<Inode>) -> Result<Counted> {
        loop {
            let (record, version) = {
                let state = inode.state();
                (state.record.clone(), state.version)
            };
            let (place, end) = (inode.place(), blocks_of(record.size));
            let (Blocks(below), keys) = match record.contents.range {
                0 => (Blocks(0), 0),
                _ => self.volume.stored_blocks(record.contents.base(), Blocks(end)).await?,
            };
            let over = if record.contents.overlaid { self.overlaid_blocks(&place, record.ino).await? } else { 0 };
            // Nobody holds its lock, so it may have moved meanwhile, and its pieces with it.
            if inode.place() != place {
                continue;
            }
            // Where both have a block it counts once or twice, but a file takes no more than its size.
            return Ok(Counted { blocks: (below + over).min(end), keys: keys + over as usize, version });
        }
    }
}

/// Bytes of pieces over each block.
fn lengths(over: &Over) -> BTreeMap<u64, usize> {
    over.iter().map(|(block, pieces)| (*block, pieces.iter().map(|piece| piece.bytes.len()).sum())).collect()
}

/// A block of pieces with nothing below.
fn alone(pieces: Option<&Vec<Piece>>) -> Vec<Bytes> {
    let mut parts = Vec::new();
    let mut at = 0;
    for piece in pieces.into_iter().flatten() {
        if piece.offset > at {
            parts.push(Bytes::from_static(&ZEROS[..piece.offset - at]));
        }
        parts.push(piece.bytes.clone());
        at = piece.end();
    }
    if at < BLOCK_LEN {
        parts.push(Bytes::from_static(&ZEROS[..BLOCK_LEN - at]));
    }
    parts
}
