//! A device in memory: sparse, instant or with a delay, for tests and for measuring what our own code costs.

use ashlar_block::{Capability, Durability, Extent, Geometry, IoContext, Layer, Result};
use ashlar_env::Env;
use ashlar_units::{BLOCK, BLOCK_LEN, Blocks, Lba};
use bytes::{Bytes, BytesMut};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::time::Duration;

/// Blocks of one shard; a shard has its own lock.
const SHARD_BLOCKS: u64 = 256;

/// Groups of [`SHARD_BLOCKS`] looked at for one answer about holes.
const EXTENT_SHARDS_MAX: u64 = 1 << 12;

/// A device in memory. Each block is its own copy: as a part of what was written it would keep all of that alive, and a
/// small device could take any amount of memory.
pub struct Memory {
    capacity: Blocks,
    shards: Box<[RwLock<BTreeMap<u32, Bytes>>]>,
    delay: Option<(Env, Duration)>,
}

impl Memory {
    /// An empty device that answers at once.
    pub fn new(capacity: Blocks) -> Memory {
        let shards = capacity.0.div_ceil(SHARD_BLOCKS).clamp(1, 1 << 16);
        Memory { capacity, shards: (0..shards).map(|_| RwLock::default()).collect(), delay: None }
    }
    /// The same, but each operation takes between nothing and `delay` of the runtime's time, by its chance.
    #[must_use]
    pub fn with_delay(mut self, env: Env, delay: Duration) -> Memory {
        self.delay = Some((env, delay));
        self
    }
    async fn pause(&self) {
        if let Some((env, delay)) = &self.delay {
            let part = env.random() % (delay.as_nanos() as u64).max(1);
            env.sleep(Duration::from_nanos(part)).await;
        }
    }
    fn shard(&self, block: u64) -> (&RwLock<BTreeMap<u32, Bytes>>, u32) {
        let (group, within) = (block / SHARD_BLOCKS, block % SHARD_BLOCKS);
        let shards = self.shards.len() as u64;
        (&self.shards[(group % shards) as usize], (group / shards * SHARD_BLOCKS + within) as u32)
    }
    /// Whether this block is a hole, and where within its group the blocks like it end.
    fn run_in_shard(&self, block: u64) -> (bool, u64) {
        let (shard, key) = self.shard(block);
        let rest = (SHARD_BLOCKS - block % SHARD_BLOCKS) as u32;
        let shard = shard.read();
        let mut present = shard.range(key..key + rest).map(|(key, _)| *key).peekable();
        let (hole, run) = match present.peek() {
            Some(first) if *first == key => (false, (key..).zip(present).take_while(|(a, b)| a == b).count() as u64),
            Some(first) => (true, u64::from(first - key)),
            None => (true, u64::from(rest)),
        };
        (hole, block + run)
    }
}

impl Layer for Memory {
    fn name(&self) -> String {
        "memory".into()
    }
    fn geometry(&self) -> Geometry {
        Geometry { capacity: self.capacity, atomic: BLOCK }
    }
    fn capability(&self) -> Capability {
        Capability { discard: true, discard_zeroes: true, persistent: false }
    }
    async fn read(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        self.pause().await;
        let get = |block| {
            let (shard, key) = self.shard(block);
            shard.read().get(&key).cloned()
        };
        if count.0 == 1 {
            return Ok(get(at.0).unwrap_or_else(|| Bytes::from_static(&[0; BLOCK_LEN])));
        }
        let mut data = BytesMut::with_capacity(count.to_bytes().0 as usize);
        for block in at.0..at.0 + count.0 {
            match get(block) {
                Some(block) => data.extend_from_slice(&block),
                None => data.resize(data.len() + BLOCK_LEN, 0),
            }
        }
        Ok(data.freeze())
    }
    async fn write(&self, _context: IoContext, at: Lba, pieces: Vec<Bytes>, _durability: Durability) -> Result<()> {
        self.pause().await;
        let mut block = at.0;
        for piece in pieces {
            for data in piece.chunks(BLOCK_LEN) {
                let (shard, key) = self.shard(block);
                let old = shard.write().insert(key, Bytes::copy_from_slice(data));
                drop(old);
                block += 1;
            }
        }
        Ok(())
    }
    async fn flush(&self, _context: IoContext) -> Result<()> {
        self.pause().await;
        Ok(())
    }
    async fn discard(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.pause().await;
        let (mut block, end) = (at.0, at.0 + count.0);
        while block < end {
            let run = (SHARD_BLOCKS - block % SHARD_BLOCKS).min(end - block);
            let (shard, key) = self.shard(block);
            let mut shard = shard.write();
            let present: Vec<u32> = shard.range(key..key + run as u32).map(|(key, _)| *key).collect();
            present.iter().for_each(|key| drop(shard.remove(key)));
            block += run;
        }
        Ok(())
    }
    async fn extent(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        let hole = self.run_in_shard(at.0).0;
        let mut block = at.0;
        // A shard at a time, and not for ever: a hole may have a terabyte.
        for _ in 0..EXTENT_SHARDS_MAX {
            let (same, end) = self.run_in_shard(block);
            if same != hole || block >= at.0 + count.0 {
                break;
            }
            block = end;
        }
        Ok(Extent { hole, count: Blocks((block - at.0).min(count.0)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_block::{Device, conformance};
    use std::sync::Arc;

    async fn delayed(env: Env) -> Device {
        Arc::new(Memory::new(Blocks(700)).with_delay(env, Duration::from_micros(5)))
    }
    conformance!(memory, delayed);
}
