//! A device in memory for schedules: each operation waits twice, before and after it takes effect, until the schedule picks
//! its task again; so operations take effect, and are answered, in any order. Few reads, as of a disk that tries again, and
//! all discards take effect when nobody else has anything left to do. Copies share their blocks.

use super::LONG;
use ashlar_block::{Capability, Durability, Extent, Geometry, IoContext, Layer, Result};
use ashlar_env::Env;
use ashlar_units::{BLOCK, BLOCK_LEN, Blocks, Lba};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// One of so many reads is slow.
const SLOW_ONE_IN: u64 = 64;

/// What is on a device.
pub(super) type Contents = BTreeMap<u64, Bytes>;

pub(super) struct Reordering {
    env: Env,
    capacity: Blocks,
    contents: Mutex<Contents>,
}

impl Reordering {
    pub(super) fn new(env: Env, capacity: Blocks, contents: Contents) -> Reordering {
        Reordering { env, capacity, contents: Mutex::new(contents) }
    }
    pub(super) fn contents(&self) -> Contents {
        self.contents.lock().clone()
    }
}

impl Layer for Reordering {
    fn name(&self) -> String {
        "reordering memory".into()
    }
    fn geometry(&self) -> Geometry {
        Geometry { capacity: self.capacity, atomic: BLOCK }
    }
    fn measure(&self) -> Result<()> {
        Ok(())
    }
    fn capability(&self) -> Capability {
        Capability { discard: true, discard_zeroes: true, persistent: false, medium: None, thin: false }
    }
    async fn read(&self, _: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        match self.env.random().is_multiple_of(SLOW_ONE_IN) {
            true => self.env.sleep(LONG).await,
            false => self.env.yield_now().await,
        }
        let data = {
            let contents = self.contents.lock();
            let mut data = BytesMut::with_capacity(count.to_bytes().0 as usize);
            for block in at.0..at.0 + count.0 {
                match contents.get(&block) {
                    Some(block) => data.extend_from_slice(block),
                    None => data.resize(data.len() + BLOCK_LEN, 0),
                }
            }
            data.freeze()
        };
        self.env.yield_now().await;
        Ok(data)
    }
    async fn write(&self, _: IoContext, at: Lba, pieces: Vec<Bytes>, _: Durability) -> Result<()> {
        self.env.yield_now().await;
        let copies = pieces.iter().flat_map(|piece| piece.chunks(BLOCK_LEN)).map(Bytes::copy_from_slice);
        self.contents.lock().extend((at.0..).zip(copies));
        self.env.yield_now().await;
        Ok(())
    }
    async fn flush(&self, _: IoContext) -> Result<()> {
        self.env.yield_now().await;
        Ok(())
    }
    async fn discard(&self, _: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.env.sleep(LONG).await;
        self.contents.lock().retain(|block, _| !(at.0..at.0 + count.0).contains(block));
        self.env.yield_now().await;
        Ok(())
    }
    async fn provision(&self, _: IoContext, _: Lba, _: Blocks) -> Result<()> {
        Ok(())
    }
    async fn extent(&self, _: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        let contents = self.contents.lock();
        let hole = !contents.contains_key(&at.0);
        let same = (at.0..at.0 + count.0).take_while(|block| contents.contains_key(block) != hole);
        Ok(Extent { hole, count: Blocks(same.count() as u64) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_block::{Device, conformance};
    use std::sync::Arc;

    async fn empty(env: Env) -> Device {
        Arc::new(Reordering::new(env, Blocks(700), Contents::new()))
    }
    conformance!(reordering, empty);
}
