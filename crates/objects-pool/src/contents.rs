//! Where the contents of objects lie, beside the dictionary with their descriptions: on the same volume, or elsewhere.

use crate::building::STEP;
use crate::format::{Class, Place};
use ashlar_block::Result;
use ashlar_pool::{Seq, Txn, Volume};
use ashlar_units::{Blocks, Lba};
use bytes::Bytes;
use std::future::Future;

/// A change: entries of the dictionary, and blocks of contents. All of it or nothing survives a crash.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Of the dictionary; for contents on the same volume, all of it.
    pub txn: Txn,
    /// Blocks to write, in places that nobody reads.
    pub writes: Vec<(Lba, Bytes)>,
    /// Blocks to give up.
    pub discards: Vec<(Lba, Blocks)>,
    /// It makes an object of what was appended before: that must not be lost when this survives.
    pub needs_appended: bool,
}

/// Blocks in places (see [`mod@crate::format`]), which change together with a dictionary. It stays the property of one store.
pub trait Contents: Send + Sync + 'static {
    /// Places of a class.
    fn places(&self, class: Class) -> u64;
    /// The first block of a place.
    fn base(&self, place: Place) -> Lba;
    /// Contents of more bytes are appended step by step, and not written in one change.
    fn write_max(&self) -> u64;
    /// Blocks that one change may give up.
    fn discard_max(&self) -> Blocks;
    /// Reads blocks.
    fn read(&self, at: Lba, count: Blocks) -> impl Future<Output = Result<Vec<Bytes>>> + Send;
    /// Adds blocks to a change.
    fn write(&self, change: &mut Change, at: Lba, data: &Bytes);
    /// Adds to a change that blocks are given up.
    fn discard(&self, change: &mut Change, at: Lba, count: Blocks);
    /// Writes blocks that are no object's yet.
    fn append(&self, at: Lba, data: &Bytes) -> impl Future<Output = Result<()>> + Send;
    /// Makes blocks that are no object's yet the same as others, without copying them; false where that cannot be.
    fn share(&self, from: Lba, to: Lba, count: Blocks) -> impl Future<Output = Result<bool>> + Send;
    /// Gives up blocks that are no object's, however many.
    fn clear(&self, at: Lba, count: Blocks) -> impl Future<Output = Result<()>> + Send;
    /// Makes a change.
    fn commit(&self, change: Change) -> impl Future<Output = Result<Seq>> + Send;
    /// Makes everything durable that returned.
    fn sync(&self) -> impl Future<Output = Result<()>> + Send;
    /// Bytes that there is room for.
    fn capacity(&self) -> u64;
}

/// Contents on the volume of the dictionary.
impl Contents for Volume {
    fn places(&self, class: Class) -> u64 {
        class.places()
    }
    fn base(&self, place: Place) -> Lba {
        place.base()
    }
    fn write_max(&self) -> u64 {
        STEP
    }
    fn discard_max(&self) -> Blocks {
        Blocks(u64::MAX)
    }
    async fn read(&self, at: Lba, count: Blocks) -> Result<Vec<Bytes>> {
        Volume::read(self, at, count).await
    }
    fn write(&self, change: &mut Change, at: Lba, data: &Bytes) {
        Volume::write(self, &mut change.txn, at, data);
    }
    fn discard(&self, change: &mut Change, at: Lba, count: Blocks) {
        Volume::discard(self, &mut change.txn, at, count);
    }
    async fn append(&self, at: Lba, data: &Bytes) -> Result<()> {
        let mut txn = Txn::new();
        Volume::write(self, &mut txn, at, data);
        Volume::commit(self, txn).await.map(drop)
    }
    async fn share(&self, from: Lba, to: Lba, count: Blocks) -> Result<bool> {
        let mut txn = Txn::new();
        Volume::share(self, &mut txn, from, self, to, count).await?;
        Volume::commit(self, txn).await.map(|_| true)
    }
    async fn clear(&self, at: Lba, count: Blocks) -> Result<()> {
        let mut txn = Txn::new().deleting();
        Volume::discard(self, &mut txn, at, count);
        Volume::commit(self, txn).await.map(drop)
    }
    async fn commit(&self, change: Change) -> Result<Seq> {
        Volume::commit(self, change.txn).await
    }
    async fn sync(&self) -> Result<()> {
        self.pool().sync_all().await
    }
    fn capacity(&self) -> u64 {
        self.pool().status().capacity
    }
}
