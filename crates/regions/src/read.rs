//! Reading: from what waits, or from where the table says, checked against the onode.

use crate::disk::READ;
use crate::format::{Entry, Onode, attributes_from, crc};
use crate::layout::Kind;
use crate::shared::{Pending, Put, Shared, What, nowhere};
use ashlar_block::{Error as BlockError, Kind as ErrorKind, ResultExt};
use ashlar_objects::{Error, Name, Object, Result, Stat};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// How often a read looks again where an object is that moved meanwhile.
const TRIES: usize = 64;

/// What an onode weighs in memory.
#[derive(Clone)]
pub struct OnodeWeight;
impl quick_cache::Weighter<u128, Arc<Onode>> for OnodeWeight {
    fn weight(&self, _: &u128, onode: &Arc<Onode>) -> u64 {
        let attributes: usize = onode.attributes.iter().map(|(key, value)| key.len() + value.len() + 96).sum();
        let inline = onode.inline.as_ref().map_or(0, Bytes::len);
        (256 + onode.name.as_bytes().len() + onode.extents.len() * 8 + onode.crcs.len() * 4 + attributes + inline)
            as u64
    }
}

impl Shared {
    /// An object, and a range of its bytes.
    pub(crate) async fn read(&self, name: &Name, range: Range<u64>) -> Result<Object> {
        let id = self.id(name);
        let mut last = None;
        for _ in 0..TRIES {
            if let Some(pending) = self.waiting(id) {
                return of_pending(&pending, name, range).ok_or_else(|| Error::NotFound(name.clone()));
            }
            let cached = self.table.get_cached(&self.disk, id);
            let entry = match cached {
                Some(entry) => entry,
                None => self.table.get(&self.disk, id).await.within(|| name.to_string())?,
            };
            let Some(entry) = entry else {
                if self.waiting(id).is_some() {
                    continue;
                }
                return Err(Error::NotFound(name.clone()));
            };
            match self.read_at(id, name, entry, range.clone()).await {
                Ok(object) => return Ok(object),
                // The object may have moved, and its place been reused: then the table says so.
                Err(error) if error.kind() == ErrorKind::Corrupt && last != Some(entry) => last = Some(entry),
                Err(error) => {
                    if self.table.get(&self.disk, id).await.ok() != Some(Some(entry)) {
                        continue;
                    }
                    return Err(error.within(name.to_string()).into());
                }
            }
        }
        let message = "it is changed more often than it can be read: try again";
        Err(BlockError::new(ErrorKind::Retry, message).within(name.to_string()).into())
    }

    async fn read_at(&self, id: u128, name: &Name, entry: Entry, range: Range<u64>) -> Result<Object, BlockError> {
        let (kind, birth) = self.kind_of(entry.place.region).ok_or_else(nowhere)?;
        let whole = range.start == 0 && range.end >= self.config.large_block.0;
        let (onode, held) = match self.cached_onode(id, entry) {
            Some(onode) => (onode, None),
            None if kind == Kind::Large && whole => self.read_unit(id, entry, birth).await?,
            None => (self.onode(id, entry).await?, None),
        };
        if onode.name != *name {
            return Err(BlockError::corrupt(format!("the hash of this name is that of {}", onode.name)));
        }
        let end = range.end.min(onode.size);
        let range = range.start.min(end)..end;
        let attributes = if onode.spill > 0 {
            let blocks = self.payload(&onode, kind, 0..onode.spill_blocks(), held.as_ref()).await?;
            attributes_from(blocks.concat().get(..onode.spill as usize).unwrap_or_default())?
        } else {
            onode.attributes.clone()
        };
        let stat = Stat {
            name: name.clone(),
            size: onode.size,
            version: onode.version,
            modified: onode.modified,
            checksum: onode.checksum,
            attributes,
        };
        let data = match &onode.inline {
            Some(inline) => vec![inline.slice(range.start as usize..range.end as usize)],
            None if range.is_empty() => Vec::new(),
            None => {
                let first = range.start as usize / BLOCK_LEN;
                let last = (range.end as usize).div_ceil(BLOCK_LEN);
                let spill = onode.spill_blocks();
                let pieces = self.payload(&onode, kind, spill + first..spill + last, held.as_ref()).await?;
                cut(pieces, range.start as usize - first * BLOCK_LEN, (range.end - range.start) as usize)
            }
        };
        Ok(Object { stat, data })
    }

    /// A large block and its onode, in one read.
    async fn read_unit(&self, id: u128, entry: Entry, birth: u64) -> Result<(Arc<Onode>, Option<Bytes>), BlockError> {
        let large = self.disk.layout.shape.large;
        let (slots, _) = self.disk.layout.shape.bits(Kind::Large);
        if u64::from(entry.place.slot) >= slots {
            return Err(nowhere());
        }
        let at = self.disk.layout.onode(entry.place.region, Kind::Large, entry.place.slot);
        let unit = self.disk.read(READ, Lba(at.0 - large), Blocks(large + 1)).await?;
        let image = unit.slice(large as usize * BLOCK_LEN..);
        let onode = Onode::decode(self.disk.key, self.disk.store, entry.place, birth, &image)?;
        if onode.id != id || onode.generation != entry.generation {
            return Err(nowhere());
        }
        let onode = Arc::new(onode);
        self.onodes.insert(id, onode.clone());
        Ok((onode, Some(unit)))
    }

    /// Blocks of an object's payload, compared with their checksums. `held`: its unit, if that has been read.
    pub(crate) async fn payload(
        &self,
        onode: &Onode,
        kind: Kind,
        blocks: Range<usize>,
        held: Option<&Bytes>,
    ) -> Result<Vec<Bytes>, BlockError> {
        let expected = onode.crcs.get(blocks.clone()).ok_or_else(nowhere)?;
        let pieces = match (kind, held) {
            (Kind::Large, Some(unit)) => {
                let front = self.disk.layout.shape.large as usize - onode.crcs.len();
                vec![unit.slice((front + blocks.start) * BLOCK_LEN..(front + blocks.end) * BLOCK_LEN)]
            }
            (Kind::Large, None) => {
                let at = self.disk.layout.onode(onode.place.region, kind, onode.place.slot);
                let at = Lba(at.0 - onode.crcs.len() as u64 + blocks.start as u64);
                vec![self.disk.read(READ, at, Blocks(blocks.len() as u64)).await?]
            }
            _ => self.extents(onode, kind, blocks).await?,
        };
        let whole = pieces.iter().flat_map(|piece| piece.chunks(BLOCK_LEN));
        if !whole.map(crc).eq(expected.iter().copied()) {
            let place = onode.place;
            let message = format!("slot {} of region {}: wrong checksum of contents", place.slot, place.region);
            return Err(BlockError::corrupt(message));
        }
        Ok(pieces)
    }

    async fn extents(&self, onode: &Onode, kind: Kind, blocks: Range<usize>) -> Result<Vec<Bytes>, BlockError> {
        let (mut first, mut reads) = (0, Vec::new());
        let room = self.disk.layout.shape.bits(kind).1;
        for extent in &onode.extents {
            let end = first + extent.count as usize;
            let (low, high) = (blocks.start.max(first), blocks.end.min(end));
            if u64::from(extent.block) + u64::from(extent.count) > room {
                return Err(BlockError::corrupt("an extent lies outside its region"));
            }
            if low < high {
                let block = extent.block + (low - first) as u32;
                reads.push((self.disk.layout.data(onode.place.region, kind, block), (high - low) as u64));
            }
            first = end;
        }
        if let [(at, count)] = reads[..] {
            return Ok(vec![self.disk.read(READ, at, Blocks(count)).await?]);
        }
        let mut tasks = Vec::with_capacity(reads.len());
        for (at, count) in reads {
            self.disk.layout.check(at, Blocks(count))?;
            let device = self.disk.device.clone();
            tasks.push(self.env.spawn_here(async move { device.read(READ, at, Blocks(count)).await }));
        }
        let mut pieces = Vec::with_capacity(tasks.len());
        for task in tasks {
            pieces.push(task.await?);
        }
        Ok(pieces)
    }
}

fn of_pending(pending: &Pending, name: &Name, range: Range<u64>) -> Option<Object> {
    let What::Put(put) = &pending.what else { return None };
    let end = range.end.min(put.size);
    let start = range.start.min(end);
    let data = cut(put.data.clone(), start as usize, (end - start) as usize);
    Some(Object { stat: stat_of(put, name, pending.number), data })
}

fn stat_of(put: &Put, name: &Name, version: u64) -> Stat {
    let Put { size, modified, checksum, attributes, .. } = put;
    Stat {
        name: name.clone(),
        size: *size,
        version,
        modified: *modified,
        checksum: *checksum,
        attributes: attributes.clone(),
    }
}

/// `len` bytes of pieces, from byte `skip` on.
pub(crate) fn cut(pieces: Vec<Bytes>, mut skip: usize, mut len: usize) -> Vec<Bytes> {
    let mut kept = Vec::with_capacity(pieces.len());
    for mut piece in pieces {
        let skipped = skip.min(piece.len());
        skip -= skipped;
        let piece = {
            let _ = piece.split_to(skipped);
            piece.split_to(len.min(piece.len()))
        };
        len -= piece.len();
        if !piece.is_empty() {
            kept.push(piece);
        }
    }
    kept
}
