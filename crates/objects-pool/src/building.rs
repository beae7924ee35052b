//! Contents that do not fit one transaction: built in a place of their own, which nobody sees until the last transaction.

use crate::contents::{Change, Contents};
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

impl<C: Contents> Objects<C> {
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
    pub(crate) fn built(&self, change: &mut Change, building_place: &Building) {
        self.volume.delete(&mut change.txn, &building(building_place.place));
        change.needs_appended = true;
    }

    /// Gives up what was built.
    pub(crate) async fn raze(&self, place: Place) -> Result<()> {
        self.contents.clear(self.contents.base(place), blocks_of(place.class.bytes())).await?;
        let mut txn = Txn::new().deleting();
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
            self.contents.append(self.contents.base(to.place) + Blocks(start / BLOCK), &whole).await?;
            to.len += step.len() as u64;
            to.tail = whole.slice(whole.len() - whole.len() % BLOCK_LEN..);
        }
        Ok(())
    }

    /// Appends the first `len` bytes of an object: shared, if what is there ends at a block; else copied. The caller keeps
    /// the object as it is until the end.
    pub(crate) async fn append_object(&self, to: &mut Building, record: &Record, len: u64) -> Result<()> {
        let mut shared = 0;
        if to.tail.is_empty() {
            // The last block is shared if it is whole; else it is written again, with what comes behind it.
            let (from, into) =
                (self.contents.base(record.place), self.contents.base(to.place) + Blocks(to.len / BLOCK));
            while shared < len / BLOCK {
                let part = Blocks(SHARE_BLOCKS.min(len / BLOCK - shared));
                if !self.contents.share(from + Blocks(shared), into + Blocks(shared), part).await? {
                    break;
                }
                shared += part.0;
            }
            to.len += shared * BLOCK;
        }
        let mut at = shared * BLOCK;
        while at < len {
            let end = len.min(at + STEP);
            let data = self.read(record, at..end).await?;
            self.append(to, &data).await?;
            at = end;
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
