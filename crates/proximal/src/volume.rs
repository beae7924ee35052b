//! An extent as a block device: what NBD, a mounted file, or a pool can stand on.

use crate::Engine;
use crate::format::LEAF;
use ashlar_block::{Capability, Durability, Extent, Geometry, IoContext, Layer, Result, blocks_of};
use ashlar_units::{BLOCK, Blocks, Lba};
use bytes::Bytes;

/// See the module.
pub struct ExtentDevice {
    engine: Engine,
    extent: u32,
    length: Blocks,
}

impl ExtentDevice {
    /// An extent of a store; it is made if it is not there.
    pub async fn new(engine: Engine, extent: u32, length: Blocks) -> Result<ExtentDevice> {
        let there = engine.extents().get(&extent).copied();
        if there.is_none() {
            engine.create_extent(extent, length).await?;
            engine.flush().await?;
        }
        Ok(ExtentDevice { engine, extent, length: there.unwrap_or(length) })
    }
    /// The store.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

impl Layer for ExtentDevice {
    fn name(&self) -> String {
        format!("extent {}", self.extent)
    }
    fn geometry(&self) -> Geometry {
        Geometry { capacity: self.length, atomic: BLOCK }
    }
    fn capability(&self) -> Capability {
        Capability { discard: true, discard_zeroes: true, persistent: self.engine.0.data.capability().persistent }
    }
    async fn read(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        self.engine.read(self.extent, at.0, count).await
    }
    async fn write(&self, _context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        if blocks_of(&pieces) == Blocks(0) {
            return Ok(());
        }
        self.engine.write(self.extent, at.0, pieces).await?;
        if durability == Durability::Forced { self.engine.flush().await } else { Ok(()) }
    }
    async fn flush(&self, _context: IoContext) -> Result<()> {
        self.engine.flush().await
    }
    async fn discard(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.engine.discard(self.extent, at.0, count).await
    }
    async fn extent(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        // A leaf at a time is enough to find out about.
        let end = (at.0 + count.0).min((at.0 / LEAF + 32) * LEAF);
        let holes = self.engine.holes(self.extent, at.0..end).await?;
        let hole = holes.first().copied().unwrap_or(true);
        let alike = holes.iter().take_while(|other| **other == hole).count();
        Ok(Extent { hole, count: Blocks(alike as u64) })
    }
}
