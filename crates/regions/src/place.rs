//! Bringing copies to their places: a place is chosen, the copy is written there, and if the place refuses it, it gets another.
//!
//! A write that fails is the failure of its place and of nothing else: nobody refers to the place yet, so the copy goes into
//! another region. The region is condemned (nothing new goes there until it is repaired) if the device says that it failed.
//! What the place holds now nobody knows, perhaps all of the copy; so the log retires it.

use crate::change::shape_of;
use crate::disk::{WRITE, Write};
use crate::format::{EXTENTS_MAX, Extent, Onode, Place, Record, attributes_to, crc, inline_room};
use crate::layout::Kind;
use crate::rules::Rule;
use crate::shared::{Pending, Put, Retired, Shared, What, Writer};
use crate::space::{Taken, Urgency};
use ashlar_block::{Durability, Error as BlockError, Kind as ErrorKind};
use ashlar_env::ring::AlignedBuf;
use ashlar_units::{BLOCK_LEN, Lba};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Places that a copy is offered to before the device counts as gone.
pub const PLACES_TRIED: usize = 4;

/// Copies that are written together: 4 MiB of onodes.
const PART_COPIES: usize = 1024;
/// Blocks of contents that are written together, about: 16 MiB, which is enough for a disk to work on.
const PART_BLOCKS: usize = 4096;

/// Whether a failed write may be the failure of its place alone. After others the store stops: a device that is poisoned, a
/// call that was wrong.
pub fn is_of_place(error: &BlockError) -> bool {
    matches!(error.kind(), ErrorKind::Failed | ErrorKind::Retry | ErrorKind::NoSpace)
}

/// A copy that found its place.
pub struct Placed {
    pub(crate) pending: Arc<Pending>,
    pub(crate) onode: Arc<Onode>,
    pub(crate) kind: Kind,
    payload: Payload,
}

impl Shared {
    /// Finds a place for an object and describes it. `None`: there is none.
    pub(crate) async fn place(
        &self,
        pending: &Arc<Pending>,
        put: &Put,
        urgency: Urgency,
    ) -> Result<Option<Placed>, BlockError> {
        let (wanted, blocks) = shape_of(self, &pending.name, put);
        let large_fits = u64::from(blocks) <= self.disk.layout.shape.large && blocks > 0;
        let kinds = if wanted == Kind::Large || !large_fits { [wanted, Kind::Small] } else { [wanted, Kind::Large] };
        for kind in kinds {
            let Some((place, extents)) = self.take(kind, blocks, urgency, pending.name.is_reserved()).await? else {
                continue;
            };
            if kind == Kind::Small {
                self.counts.fragments.fetch_add(extents.len().max(1) as u64, Ordering::Relaxed);
                self.counts.placed_small.fetch_add(1, Ordering::Relaxed);
            }
            let payload = Payload::of(self, pending, put, blocks);
            let birth = self.kind_of(place.region).map_or(0, |(_, birth)| birth);
            let refused = pending.refused.load(Ordering::Relaxed);
            let late = refused || pending.number <= self.frozen.load(Ordering::Relaxed);
            let onode = Onode {
                name: pending.name.clone(),
                id: pending.id,
                place,
                birth,
                version: pending.number,
                generation: if late { self.number() } else { pending.number },
                provisional: !put.ends.is_empty() && self.keeps(Rule::CommitCompose),
                size: put.size,
                modified: put.modified,
                checksum: put.checksum,
                attributes: put.attributes.clone(),
                spill: payload.spill,
                extents,
                crcs: payload.crcs.clone(),
                inline: payload.inline.clone(),
            };
            return Ok(Some(Placed { pending: pending.clone(), onode: Arc::new(onode), kind, payload }));
        }
        Ok(None)
    }

    /// Takes a place, loading bitmaps as needed.
    pub(crate) async fn take(
        &self,
        kind: Kind,
        blocks: u32,
        urgency: Urgency,
        hidden: bool,
    ) -> Result<Option<(Place, Vec<Extent>)>, BlockError> {
        loop {
            let birth = self.number();
            let taken = self.space.lock().take(kind, blocks, birth, urgency, hidden);
            match taken {
                Taken::At(place, extents) => return Ok(Some((place, extents))),
                Taken::Full => return Ok(None),
                Taken::Load(region) => match self.load(region).await {
                    // A damaged region is condemned by now, and not asked again.
                    Err(error) if error.is_damage() => {}
                    other => other?,
                },
            }
        }
    }

    /// Writes copies to their places; those that are refused go elsewhere, or into `homeless`. Whether any was refused: then
    /// nothing was forced.
    pub(crate) async fn write_copies(
        &self,
        writer: &mut Writer,
        placed: &mut Vec<Placed>,
        homeless: &mut Vec<Arc<Pending>>,
        durability: Durability,
    ) -> Result<bool, BlockError> {
        self.log_opens(writer).await?;
        let written = self.write_in_parts(placed, durability).await;
        writer.unflushed |= !placed.is_empty() && (durability == Durability::Cached || written.is_err());
        let Err(error) = written else { return Ok(false) };
        let again = self.write_elsewhere(writer, placed, homeless, &error).await?;
        // If every place takes it now, what failed was to force it.
        if again || durability == Durability::Cached { Ok(true) } else { Err(error) }
    }

    /// Writes copies, not too many at a time: onodes are made while the processor's caches still have what they are made of,
    /// and the memory for them is used again.
    async fn write_in_parts(&self, placed: &[Placed], durability: Durability) -> Result<(), BlockError> {
        let mut rest = placed;
        while !rest.is_empty() {
            let (mut blocks, mut count, mut writes) = (0, 0, Vec::new());
            while let Some(placed) = rest.get(count).filter(|_| count < PART_COPIES && blocks < PART_BLOCKS) {
                self.lay_out(&placed.onode, placed.kind, &placed.payload, &mut writes);
                blocks += placed.payload.crcs.len();
                count += 1;
            }
            self.disk.write_all(WRITE, writes, durability).await?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Some of these copies could not be written: each is tried by itself, and goes elsewhere if it cannot be. Whether any did.
    async fn write_elsewhere(
        &self,
        writer: &mut Writer,
        placed: &mut Vec<Placed>,
        homeless: &mut Vec<Arc<Pending>>,
        error: &BlockError,
    ) -> Result<bool, BlockError> {
        if !is_of_place(error) {
            return Err(error.clone());
        }
        let (mut left, mut todo) = (Vec::new(), (0..placed.len()).collect::<Vec<usize>>());
        let mut any = false;
        for _ in 0..PLACES_TRIED {
            let mut refused = Vec::new();
            for index in std::mem::take(&mut todo) {
                let Placed { onode, kind, payload, .. } = &placed[index];
                let mut writes = Vec::new();
                self.lay_out(onode, *kind, payload, &mut writes);
                match self.disk.write_all(WRITE, writes, Durability::Cached).await {
                    Ok(()) => {}
                    Err(error) if is_of_place(&error) => refused.push((index, error)),
                    Err(error) => return Err(error),
                }
            }
            any |= !refused.is_empty();
            for (index, error) in refused {
                let Placed { onode, pending, .. } = &placed[index];
                self.refuse(writer, onode, &error);
                pending.refused.store(true, Ordering::Relaxed);
                let What::Put(put) = &pending.what else { continue };
                // A full device has no room elsewhere either.
                if error.kind() == ErrorKind::NoSpace {
                    left.push(index);
                    continue;
                }
                match self.place(pending, put, Urgency::Usual).await? {
                    Some(found) => {
                        placed[index] = found;
                        todo.push(index);
                    }
                    None => left.push(index),
                }
            }
            if todo.is_empty() {
                break;
            }
            self.log_opens(writer).await?;
        }
        if !todo.is_empty() {
            return Err(error.clone());
        }
        left.sort_unstable();
        homeless.extend(left.into_iter().rev().map(|index| placed.remove(index).pending));
        Ok(any)
    }

    /// The place of a copy did not take it, or not all of it.
    pub(crate) fn refuse(&self, writer: &mut Writer, onode: &Onode, error: &BlockError) {
        if error.kind() == ErrorKind::Failed {
            self.condemn(onode.place.region);
        }
        let (place, generation) = (onode.place, onode.generation);
        if self.keeps(Rule::RetireRefused) {
            writer.records.push(Record::Retire { place, generation });
        }
        self.space.lock().quarantine(place, onode.name.is_reserved());
        writer.retired.push(Retired { place, extents: onode.extents.clone(), blocks: onode.crcs.len() as u32 });
    }

    /// The writes that bring a copy to its place: one for a large object, data and onode for a small one.
    pub(crate) fn lay_out(&self, onode: &Onode, kind: Kind, payload: &Payload, writes: &mut Vec<Write>) {
        let layout = &self.disk.layout;
        let image = onode.encode(self.disk.key, self.disk.store);
        let at = layout.onode(onode.place.region, kind, onode.place.slot);
        let blocks = payload.crcs.len() as u64;
        if kind == Kind::Large {
            let pieces = payload.pieces.iter().cloned().chain([image]).collect();
            writes.push(Write { at: Lba(at.0 - blocks), pieces });
            return;
        }
        let mut pieces = payload.pieces.iter().cloned();
        let mut rest = Bytes::new();
        for extent in &onode.extents {
            let (mut wanted, mut taken) = (extent.count as usize * BLOCK_LEN, Vec::new());
            while wanted > 0 {
                if rest.is_empty() {
                    let Some(next) = pieces.next() else { break };
                    rest = next;
                    continue;
                }
                let piece = rest.split_to(wanted.min(rest.len()));
                wanted -= piece.len();
                taken.push(piece);
            }
            writes.push(Write { at: layout.data(onode.place.region, kind, extent.block), pieces: taken });
        }
        writes.push(Write { at, pieces: vec![image] });
    }
}

/// What goes into data blocks, and what into the onode.
pub struct Payload {
    /// Whole blocks.
    pub(crate) pieces: Vec<Bytes>,
    pub(crate) crcs: Vec<u32>,
    pub(crate) spill: u32,
    pub(crate) inline: Option<Bytes>,
}

impl Payload {
    fn of(shared: &Shared, pending: &Pending, put: &Put, blocks: u32) -> Payload {
        if blocks == 0 {
            let inline = Some(put.data.concat().into());
            return Payload { pieces: Vec::new(), crcs: Vec::new(), spill: 0, inline };
        }
        debug_assert!(put.size <= shared.config.large_block.0);
        let attributes = attributes_to(&put.attributes);
        let data = put.size.div_ceil(BLOCK_LEN as u64) as usize;
        let fits = attributes.len() <= inline_room(pending.name.as_bytes().len(), data, EXTENTS_MAX);
        let mut pieces = Vec::with_capacity(2);
        let spill = if fits { 0 } else { attributes.len() as u32 };
        if !fits {
            let mut image = BytesMut::from(&attributes[..]);
            image.resize(attributes.len().next_multiple_of(BLOCK_LEN), 0);
            pieces.push(image.freeze());
        }
        pieces.extend(whole_blocks(&put.data, put.size));
        let crcs = pieces.iter().flat_map(|piece| piece.chunks(BLOCK_LEN)).map(crc).collect();
        Payload { pieces, crcs, spill, inline: None }
    }
}

/// The contents filled up to whole blocks: as they are, if they are whole.
fn whole_blocks(data: &[Bytes], size: u64) -> Vec<Bytes> {
    if data.iter().all(|piece| piece.len().is_multiple_of(BLOCK_LEN)) {
        return data.iter().filter(|piece| !piece.is_empty()).cloned().collect();
    }
    let len = (size as usize).next_multiple_of(BLOCK_LEN);
    let mut whole = AlignedBuf::any(len);
    let mut at = 0;
    for piece in data {
        whole.as_mut()[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
    whole.as_mut()[at..].fill(0);
    vec![whole.freeze(len)]
}
