//! A volume whose store is opened by its first request: for stacks, which are built before anything can wait.

use crate::format::Label;
use crate::{Config, Creation, Engine, ExtentDevice};
use ashlar_block::{Capability, Device, Durability, Error, Extent, Geometry, IoContext, Layer, Result, ResultExt};
use ashlar_env::Env;
use ashlar_units::{BLOCK, Blocks, Lba};
use bytes::Bytes;
use tokio::sync::OnceCell;

/// The extent that is the volume.
const VOLUME: u32 = 0;

/// See the module.
pub struct ProximalVolume {
    env: Env,
    data: Device,
    staging: Device,
    length: Blocks,
    config: Config,
    make: Option<Creation>,
    opened: OnceCell<ExtentDevice>,
}

impl ProximalVolume {
    /// A volume of this length on a data device and a staging device. With `make` a store is made on devices that hold nothing.
    pub fn new(
        env: &Env,
        (data, staging): (Device, Device),
        length: Blocks,
        config: Config,
        make: Option<Creation>,
    ) -> ProximalVolume {
        ProximalVolume { env: env.clone(), data, staging, length, config, make, opened: OnceCell::new() }
    }

    async fn volume(&self) -> Result<&ExtentDevice> {
        self.opened.get_or_try_init(|| self.open()).await.within(|| Layer::name(self))
    }

    async fn open(&self) -> Result<ExtentDevice> {
        let head = self.data.read(IoContext::foreground("proximal-open"), Lba(0), Blocks(1)).await?;
        if Label::decode(&head).is_none() {
            let Some(creation) = self.make else {
                let message = format!("{}: holds no proximal store; say make = true to make one", self.data.name());
                return Err(Error::misuse(message));
            };
            if head.iter().any(|byte| *byte != 0) {
                let message = format!(
                    "{}: its first block is not empty, so no store is made on it; wipe it if nobody needs its data",
                    self.data.name()
                );
                return Err(Error::misuse(message));
            }
            Engine::create(&self.env, &self.data, &self.staging, creation).await?;
        }
        let engine = Engine::open(&self.env, self.data.clone(), self.staging.clone(), self.config).await?;
        let volume = ExtentDevice::new(engine, VOLUME, self.length).await?;
        let found = Layer::geometry(&volume).capacity;
        if found != self.length {
            let message = format!("the volume has {}, and not {}", found.to_bytes(), self.length.to_bytes());
            return Err(Error::misuse(message));
        }
        Ok(volume)
    }
}

impl Layer for ProximalVolume {
    fn name(&self) -> String {
        format!("proximal on {}", self.data.name())
    }
    fn geometry(&self) -> Geometry {
        Geometry { capacity: self.length, atomic: BLOCK }
    }
    fn capability(&self) -> Capability {
        let persistent = self.data.capability().persistent && self.staging.capability().persistent;
        Capability { discard: true, discard_zeroes: true, persistent }
    }
    async fn read(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        Layer::read(self.volume().await?, context, at, count).await
    }
    async fn write(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        Layer::write(self.volume().await?, context, at, pieces, durability).await
    }
    async fn flush(&self, context: IoContext) -> Result<()> {
        Layer::flush(self.volume().await?, context).await
    }
    async fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        Layer::discard(self.volume().await?, context, at, count).await
    }
    async fn extent(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        Layer::extent(self.volume().await?, context, at, count).await
    }
}
