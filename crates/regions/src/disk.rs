//! The device, with the boundary check on every I/O.

use crate::format::{Head, Onode, Place};
use crate::layout::{Kind, Layout};
use ashlar_block::{Device, Durability, Error, IoContext, Result, ResultExt, blocks_of};
use ashlar_env::Env;
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;

/// Reads for somebody who waits.
pub const READ: IoContext = IoContext::foreground("regions-read");
/// Writes of objects.
pub const WRITE: IoContext = IoContext::foreground("regions-write");
/// Checkpoints, recovery, repair.
pub const UPKEEP: IoContext = IoContext::background("regions-upkeep");

/// A write that goes to the device.
pub struct Write {
    /// Where.
    pub at: Lba,
    /// What: whole blocks.
    pub pieces: Vec<Bytes>,
}

/// Most bytes of neighbouring writes that become one.
const MERGED_MAX: u64 = 4 << 20;

/// See the module.
pub struct Disk {
    pub(crate) env: Env,
    pub(crate) device: Device,
    pub(crate) layout: Layout,
    /// Key of checksums.
    pub(crate) key: u64,
    /// Identity of the store.
    pub(crate) store: u64,
}

impl Disk {
    /// Reads blocks of objects or tables.
    pub async fn read(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        self.layout.check(at, count)?;
        self.device.read(context, at, count).await
    }

    /// Writes them.
    pub async fn write(&self, context: IoContext, write: Write, durability: Durability) -> Result<()> {
        self.layout.check(write.at, blocks_of(&write.pieces))?;
        self.device.write(context, write.at, write.pieces, durability).await
    }

    /// Writes many, neighbours together, all at once.
    pub async fn write_all(&self, context: IoContext, writes: Vec<Write>, durability: Durability) -> Result<()> {
        let mut merged = merge(writes);
        let Some(last) = merged.pop() else { return Ok(()) };
        let tasks: Vec<_> = merged
            .into_iter()
            .map(|Write { at, pieces }| {
                let checked = self.layout.check(at, blocks_of(&pieces));
                let device = self.device.clone();
                self.env.spawn_here(async move {
                    checked?;
                    device.write(context, at, pieces, durability).await
                })
            })
            .collect();
        let mut outcome = self.write(context, last, durability).await;
        for task in tasks {
            outcome = task.await.and(outcome);
        }
        outcome
    }

    /// The onode in a place of a region of this kind and birth.
    pub async fn onode(&self, context: IoContext, kind: Kind, birth: u64, place: Place) -> Result<Onode> {
        let (slots, _) = self.layout.shape_of(place.region).bits(kind);
        if u64::from(place.region) >= self.layout.regions || u64::from(place.slot) >= slots {
            return Err(Error::corrupt(format!("there is no slot {} in region {}", place.slot, place.region)));
        }
        let at = self.layout.onode(place.region, kind, place.slot);
        let image = self.read(context, at, Blocks(1)).await?;
        Onode::decode(self.key, self.store, place, birth, &image)
            .within(|| format!("slot {} of region {}", place.slot, place.region))
    }

    /// A head of a region.
    pub async fn head(&self, region: u32, slot: u8) -> Result<Head> {
        let at = self.layout.head(region, slot);
        let image = self.device.read(UPKEEP, at, Blocks(self.layout.shape.head)).await?;
        Head::decode(self.key, self.store, region, &self.layout.shape_of(region), &image)
            .within(|| format!("region {region}"))
    }

    /// Writes a head of a region.
    pub async fn write_head(&self, head: &Head, slot: u8) -> Result<()> {
        let at = self.layout.head(head.region, slot);
        let image = head.encode(self.key, &self.layout.shape_of(head.region));
        self.device.write(UPKEEP, at, vec![image], Durability::Cached).await
    }
}

/// Neighbours as one, in ascending order.
fn merge(mut writes: Vec<Write>) -> Vec<Write> {
    writes.sort_by_key(|write| write.at);
    let mut merged: Vec<(Write, u64)> = Vec::with_capacity(writes.len());
    for write in writes {
        let blocks = blocks_of(&write.pieces).0;
        match merged.last_mut() {
            Some((last, len)) if last.at.0 + *len == write.at.0 && (*len + blocks) * BLOCK_LEN as u64 <= MERGED_MAX => {
                last.pieces.extend(write.pieces);
                *len += blocks;
            }
            _ => merged.push((write, blocks)),
        }
    }
    merged.into_iter().map(|(write, _)| write).collect()
}
