//! Objects on a disk with staging: contents in extents of a proximal store, names and descriptions on its staging device.
//!
//! The store is that of `ashlar-objects-pool`, whose dictionary is a volume of the staging pool and whose places are stretches of
//! extents: 2^24 objects of up to 1 MiB, or 2^8 of up to 64 GiB, share an extent, and a larger one has its own. So objects that were
//! made one after another are neighbours, and what is staged of them moves to the disk together.
//!
//! Invariants
//!  1. A small change is one transaction of the staging pool: contents, description, and the end of what it replaces.
//!  2. Larger contents go straight to the disk, into a place that is listed as being built. Their pointers are in the staging pool
//!     before the transaction that makes them an object, so that this is not durable without them.
//!
//! Needs     the staging pool's log is in commit order, and recovery yields a prefix of it.
//! Costs     a put up to [`Config::small_max`](ashlar_proximal::Config::small_max) writes nothing to the disk; a larger one is
//!           written there once, with one flush. `compose` copies: extents do not share blocks.
//! Departs   Schindler, Shete and Smith (FAST '11) have one extent for each object or volume, of 1 MiB or more.

#![warn(missing_docs)]

#[cfg(test)]
mod tests;

use ashlar_block::{Device, Error, Result};
use ashlar_env::Env;
use ashlar_objects_pool::format::{Class, Place};
use ashlar_objects_pool::{Audit, Change, Contents, Objects, Options, audit_with};
use ashlar_pool::{Seq, Volume};
use ashlar_proximal::{Config, Creation, DISCARD_MAX, EXTENT_BLOCKS_MAX, Engine};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::{Bytes, BytesMut};

/// The volume of the staging pool with the names.
const NAMES: &str = "objects";
/// Bits of a block's number in its extent.
const EXTENT_SHIFT: u32 = EXTENT_BLOCKS_MAX.0.trailing_zeros();
/// First extents of the classes of places.
const MEDIUM: u64 = 1 << 30;
const LARGE: u64 = MEDIUM + (1 << 29);

/// Extents of a proximal store as places of objects. It stays the property of one store of objects.
pub struct Extents {
    engine: Engine,
    /// Held by who makes an extent.
    making: tokio::sync::Mutex<()>,
}

fn split(at: Lba) -> (u32, u64) {
    ((at.0 >> EXTENT_SHIFT) as u32, at.0 % EXTENT_BLOCKS_MAX.0)
}

/// Whole blocks, the rest of the last one zeros.
fn padded(data: &Bytes) -> Bytes {
    if data.len().is_multiple_of(BLOCK_LEN) {
        return data.clone();
    }
    let mut whole = BytesMut::from(&data[..]);
    whole.resize(data.len().next_multiple_of(BLOCK_LEN), 0);
    whole.freeze()
}

impl Extents {
    /// The extents of an open store.
    pub fn new(engine: Engine) -> Extents {
        Extents { engine, making: tokio::sync::Mutex::default() }
    }
    /// The store.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Makes an extent if it is missing.
    async fn ensure(&self, extent: u32) -> Result<()> {
        let _one = self.making.lock().await;
        if self.engine.has_extent(extent) { Ok(()) } else { self.engine.create_extent(extent, EXTENT_BLOCKS_MAX).await }
    }
}

impl Contents for Extents {
    fn places(&self, class: Class) -> u64 {
        match class {
            Class::Small => MEDIUM << (EXTENT_SHIFT - 8),
            Class::Medium => (LARGE - MEDIUM) << (EXTENT_SHIFT - 24),
            Class::Large => (1 << 31) - LARGE,
        }
    }
    fn base(&self, place: Place) -> Lba {
        base(place)
    }
    fn write_max(&self) -> u64 {
        self.engine.small_max().0
    }
    fn discard_max(&self) -> Blocks {
        Blocks(DISCARD_MAX)
    }
    async fn read(&self, at: Lba, count: Blocks) -> Result<Vec<Bytes>> {
        let (extent, at) = split(at);
        self.ensure(extent).await?;
        Ok(vec![self.engine.read(extent, at, count).await?])
    }
    fn write(&self, change: &mut Change, at: Lba, data: &Bytes) {
        change.writes.push((at, padded(data)));
    }
    fn discard(&self, change: &mut Change, at: Lba, count: Blocks) {
        change.discards.push((at, count));
    }
    async fn append(&self, at: Lba, data: &Bytes) -> Result<()> {
        let (extent, at) = split(at);
        self.ensure(extent).await?;
        self.engine.write(extent, at, vec![padded(data)]).await
    }
    async fn share(&self, _: Lba, _: Lba, _: Blocks) -> Result<bool> {
        Ok(false)
    }
    async fn clear(&self, at: Lba, count: Blocks) -> Result<()> {
        let (extent, at) = split(at);
        self.ensure(extent).await?;
        self.engine.discard(extent, at, count).await
    }
    async fn commit(&self, change: Change) -> Result<Seq> {
        if change.needs_appended {
            self.engine.install().await?;
        }
        let mut writes = Vec::with_capacity(change.writes.len());
        for (at, data) in change.writes {
            let (extent, at) = split(at);
            self.ensure(extent).await?;
            writes.push((extent, at, data));
        }
        let mut discards = Vec::with_capacity(change.discards.len());
        for (at, count) in change.discards.into_iter().filter(|(_, count)| *count > Blocks(0)) {
            let (extent, at) = split(at);
            self.ensure(extent).await?;
            discards.push((extent, at..at + count.0));
        }
        self.engine.change(change.txn, &writes, &discards).await
    }
    async fn sync(&self) -> Result<()> {
        self.engine.flush().await
    }
    fn capacity(&self) -> u64 {
        self.engine.capacity().to_bytes().0
    }
}

/// The first block of a place: its extent, and behind it 32 bits for the block there.
fn base(place: Place) -> Lba {
    Lba(match place.class {
        Class::Small => place.number << 8,
        Class::Medium => (MEDIUM << EXTENT_SHIFT) + (place.number << 24),
        Class::Large => (LARGE + place.number) << EXTENT_SHIFT,
    })
}

/// Makes an empty store of objects on a data device and a staging device. What they held is lost.
///
/// # Errors
/// Those of [`Engine::create`].
pub async fn format(env: &Env, data: &Device, staging: &Device, creation: Creation) -> Result<()> {
    Engine::create(env, data, staging, creation).await?;
    let engine = Engine::open(env, data.clone(), staging.clone(), Config::default()).await?;
    let names = engine.pool().create_volume(NAMES).await?;
    Objects::format(&names).await?;
    engine.close().await
}

/// Opens a store; `name` is for errors and metrics.
///
/// # Errors
/// Those of [`Engine::open`]; `Misuse` if the devices hold a volume, and not objects.
pub async fn open(
    env: &Env,
    (data, staging): (Device, Device),
    config: Config,
    name: String,
    options: Options,
) -> Result<Objects<Extents>> {
    let engine = Engine::open(env, data, staging, config).await?;
    let names = names(&engine)?;
    Objects::open_with(names, Extents::new(engine), name, options).await
}

fn names(engine: &Engine) -> Result<Volume> {
    let none = || Error::misuse("this proximal store holds no objects; it may be a volume, see `ashlar volume list`");
    engine.pool().volume(NAMES).ok_or_else(none)
}

/// Compares descriptions, contents, places being built and counts with each other; nothing may change meanwhile.
///
/// # Errors
/// Those of the devices, for what cannot be read.
pub async fn audit(engine: &Engine) -> Result<Audit> {
    let mut stored = Vec::new();
    for extent in engine.extents().into_keys() {
        let first = u64::from(extent) << EXTENT_SHIFT;
        stored.extend(engine.stored(extent).await?.into_iter().map(|run| first + run.start..first + run.end));
    }
    audit_with(&names(engine)?, base, stored).await
}
