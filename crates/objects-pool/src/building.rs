//! Contents that do not fit one transaction: built in a place of their own, which nobody sees until the last transaction.

use crate::format::{Place, Record, blocks_of, building};
use crate::{Rule, store::Objects};
use ashlar_block::Result;
use ashlar_pool::Txn;
use ashlar_units::{BLOCK_LEN, Blocks};
use bytes::{Bytes, BytesMut};

const BLOCK: u64 = BLOCK_LEN as u64;
/// Blocks that one transaction shares: its map entries must fit a batch, whatever the extents look like.
const SHARE_BLOCKS: u64 = 8192;
/// Bytes that one transaction writes.
pub(crate) const STEP: u64 = 8 << 20;

/// Contents on their way into a place, from front to back.
pub(crate) struct Building {
    pub(crate) place: Place,
    /// Bytes so far.
    pub(crate) len: u64,
    /// Those in the last block, if it is not whole.
    tail: Bytes,
}

impl Objects {
    /// Begins to build in `place`.
    pub(crate) async fn build(&self, place: Place) -> Result<Building> {
        if self.keeps(Rule::ListBuilding) {
            let mut txn = Txn::new();
            self.volume.put(&mut txn, &building(place), Bytes::new());
            self.volume.commit(txn).await?;
        }
        Ok(Building { place, len: 0, tail: Bytes::new() })
    }

    /// Ends a building: in the transaction that makes it an object.
    pub(crate) fn built(&self, txn: &mut Txn, building_place: &Building) {
        self.volume.delete(txn, &building(building_place.place));
    }

    /// Gives up what was built.
    pub(crate) async fn raze(&self, place: Place) -> Result<()> {
        let mut txn = Txn::new().deleting();
        self.volume.discard(&mut txn, place.base(), blocks_of(place.class.bytes()));
        self.volume.delete(&mut txn, &building(place));
        self.volume.commit(txn).await.map(drop)
    }

    /// Writes bytes behind those that are there.
    pub(crate) async fn append(&self, to: &mut Building, data: &[Bytes]) -> Result<()> {
        for step in steps(data) {
            let start = to.len - to.tail.len() as u64;
            let mut whole = BytesMut::with_capacity(to.tail.len() + step.len());
            whole.extend_from_slice(&to.tail);
            whole.extend_from_slice(&step);
            let whole = whole.freeze();
            let mut txn = Txn::new();
            self.volume.write(&mut txn, to.place.base() + Blocks(start / BLOCK), &whole);
            self.volume.commit(txn).await?;
            to.len += step.len() as u64;
            to.tail = whole.slice(whole.len() - whole.len() % BLOCK_LEN..);
        }
        Ok(())
    }

    /// Appends the first `len` bytes of an object: shared, if what is there ends at a block; else copied. The caller keeps
    /// the object as it is until the end.
    pub(crate) async fn append_object(&self, to: &mut Building, record: &Record, len: u64) -> Result<()> {
        if !to.tail.is_empty() {
            let mut at = 0;
            while at < len {
                let end = len.min(at + STEP);
                let data = self.read(record, at..end).await?;
                self.append(to, &data).await?;
                at = end;
            }
            return Ok(());
        }
        // The last block is shared if it is whole; else it is written again, with what comes behind it.
        let whole = len / BLOCK;
        let (from, into) = (record.place.base(), to.place.base() + Blocks(to.len / BLOCK));
        let mut done = 0;
        while done < whole {
            let part = Blocks(SHARE_BLOCKS.min(whole - done));
            let mut txn = Txn::new();
            self.volume.share(&mut txn, from + Blocks(done), &self.volume, into + Blocks(done), part).await?;
            self.volume.commit(txn).await?;
            done += part.0;
        }
        to.len += whole * BLOCK;
        if whole * BLOCK < len {
            let rest = self.read(record, whole * BLOCK..len).await?;
            self.append(to, &rest).await?;
        }
        Ok(())
    }
}

/// Pieces cut so that each fits a transaction.
fn steps(data: &[Bytes]) -> Vec<Bytes> {
    let mut steps = Vec::new();
    for piece in data {
        let mut rest = piece.clone();
        while !rest.is_empty() {
            steps.push(rest.split_to(rest.len().min(STEP as usize)));
        }
    }
    steps
}
