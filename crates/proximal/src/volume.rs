//! An extent as a block device: what NBD, a mounted file, or a pool can stand on.

use crate::format::{LEAF, Label};
use crate::{Config, Creation, Engine};
use ashlar_block::{Capability, Device, Durability, Error, Extent, Geometry, IoContext, Layer, Result, blocks_of};
use ashlar_env::Env;
use ashlar_units::{BLOCK, Blocks, Lba};
use bytes::Bytes;

/// The extent that is the volume of a stack.
const VOLUME: u32 = 0;

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

/// The store on a data device and a staging device as one volume of this length, as stacks have it. With `make` a store is
/// made on devices that hold nothing.
///
/// # Errors
/// `Misuse` if there is no store, one of another length, or something else; those of the devices.
pub async fn open_volume(
    env: &Env,
    (data, staging): (Device, Device),
    length: Blocks,
    config: Config,
    make: Option<Creation>,
) -> Result<ExtentDevice> {
    let head = data.read(IoContext::foreground("proximal-open"), Lba(0), Blocks(1)).await?;
    if Label::decode(&head).is_none() {
        let Some(creation) = make else {
            let message = format!("{}: holds no proximal store; say make = true to make one", data.name());
            return Err(Error::misuse(message));
        };
        Engine::create(env, &data, &staging, creation).await?;
    }
    let engine = Engine::open(env, data, staging, config).await?;
    let volume = ExtentDevice::new(engine, VOLUME, length).await?;
    if volume.length != length {
        let message = format!("the volume has {}, and not {}", volume.length.to_bytes(), length.to_bytes());
        return Err(Error::misuse(message));
    }
    Ok(volume)
}

impl Layer for ExtentDevice {
    fn name(&self) -> String {
        format!("extent {} of the store on {}", self.extent, self.engine.0.data.name())
    }
    fn geometry(&self) -> Geometry {
        Geometry { capacity: self.length, atomic: BLOCK }
    }
    fn measure(&self) -> Result<()> {
        Ok(())
    }
    fn capability(&self) -> Capability {
        Capability {
            discard: true,
            discard_zeroes: true,
            persistent: self.engine.0.persistent,
            medium: None,
            thin: false,
        }
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
    async fn provision(&self, _: IoContext, _: Lba, _: Blocks) -> Result<()> {
        Ok(())
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
