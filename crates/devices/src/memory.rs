//! A device in memory: sparse, instant or with a delay, for tests and for measuring what our own code costs.
//!
//! Contents lie in *slabs* of 64 KiB that are made by the first write and go when all their blocks are discarded. A write is
//! one copy into the slabs and a read one out of them; nothing is allocated for a write to what was written before.

use ashlar_block::{Capability, Durability, Extent, Geometry, IoContext, Layer, Result};
use ashlar_env::Env;
use ashlar_env::ring::AlignedBuf;
use ashlar_units::{BLOCK, BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// Blocks of a slab: so many that large writes are long copies, so few that scattered small ones waste little.
const SLAB_BLOCKS: u64 = 16;
const SLAB_LEN: usize = SLAB_BLOCKS as usize * BLOCK_LEN;
/// Most shards; each has its own lock.
const SHARDS_MAX: u64 = 1 << 14;
/// Slabs looked at for one answer about holes.
const EXTENT_SLABS_MAX: u64 = 1 << 14;

/// Neighbouring blocks.
struct Slab {
    /// A bit for each block that is no hole.
    present: u16,
    /// What is in them; zeros in holes.
    data: Box<[u8]>,
}

const _: () = assert!(SLAB_BLOCKS == u16::BITS as u64, "a slab has a bit for each of its blocks");

impl Slab {
    fn new() -> Slab {
        Slab { present: 0, data: vec![0; SLAB_LEN].into_boxed_slice() }
    }
}

/// A stretch of blocks within one slab.
struct Part {
    slab: u64,
    /// Blocks of the slab.
    blocks: Range<u64>,
}

impl Part {
    fn bytes(&self) -> Range<usize> {
        self.blocks.start as usize * BLOCK_LEN..self.blocks.end as usize * BLOCK_LEN
    }
    fn len(&self) -> usize {
        self.bytes().len()
    }
    fn bits(&self) -> u16 {
        (((1u32 << self.blocks.end) - 1) & !((1u32 << self.blocks.start) - 1)) as u16
    }
}

/// The stretches of `count` blocks at `at`, slab by slab.
fn parts(at: Lba, count: Blocks) -> impl Iterator<Item = Part> {
    let (mut block, end) = (at.0, at.0 + count.0);
    std::iter::from_fn(move || {
        let (slab, first) = (block / SLAB_BLOCKS, block % SLAB_BLOCKS);
        let run = (SLAB_BLOCKS - first).min(end - block);
        block += run;
        (run > 0).then_some(Part { slab, blocks: first..first + run })
    })
}

type Shard = RwLock<BTreeMap<u64, Slab>>;

/// A device in memory.
pub struct Memory {
    capacity: Blocks,
    shards: Box<[Shard]>,
    delay: Option<(Env, Duration)>,
}

impl Memory {
    /// An empty device that answers at once.
    pub fn new(capacity: Blocks) -> Memory {
        let shards = capacity.0.div_ceil(SLAB_BLOCKS).clamp(1, SHARDS_MAX);
        Memory { capacity, shards: (0..shards).map(|_| Shard::default()).collect(), delay: None }
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
    /// Where a slab is, and under which number.
    fn shard(&self, slab: u64) -> (&Shard, u64) {
        let shards = self.shards.len() as u64;
        (&self.shards[(slab % shards) as usize], slab / shards)
    }
    /// Whether this block is a hole, and where in its slab the blocks like it end.
    fn run_in_slab(&self, block: u64) -> (bool, u64) {
        let (slab, first) = (block / SLAB_BLOCKS, block % SLAB_BLOCKS);
        let (shard, key) = self.shard(slab);
        let present = shard.read().get(&key).map_or(0, |slab| slab.present) >> first;
        let hole = present & 1 == 0;
        let run = if hole { present.trailing_zeros() } else { present.trailing_ones() };
        (hole, block + u64::from(run).min(SLAB_BLOCKS - first))
    }
    /// Bytes that contents take.
    #[cfg(test)]
    fn held(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len() * SLAB_LEN).sum()
    }
}

impl Layer for Memory {
    fn name(&self) -> String {
        "memory".into()
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
    async fn read(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        self.pause().await;
        let len = count.to_bytes().0 as usize;
        let mut pending = parts(at, count);
        let Some(first) = pending.next() else { return Ok(Bytes::new()) };
        if first.len() == len {
            let (shard, key) = self.shard(first.slab);
            let copy = shard.read().get(&key).map(|slab| AlignedBuf::copy_of(&slab.data[first.bytes()]));
            return Ok(copy.unwrap_or_else(|| AlignedBuf::zeroed(len)).freeze(len));
        }
        let mut data = AlignedBuf::any(len);
        let mut rest = data.as_mut();
        for part in std::iter::once(first).chain(pending) {
            let (into, behind) = rest.split_at_mut(part.len());
            let (shard, key) = self.shard(part.slab);
            match shard.read().get(&key) {
                Some(slab) => into.copy_from_slice(&slab.data[part.bytes()]),
                None => into.fill(0),
            }
            rest = behind;
        }
        Ok(data.freeze(len))
    }
    async fn write(&self, _context: IoContext, at: Lba, pieces: Vec<Bytes>, _durability: Durability) -> Result<()> {
        self.pause().await;
        let mut at = at;
        for piece in pieces {
            let count = Blocks((piece.len() / BLOCK_LEN) as u64);
            let mut rest = &piece[..];
            for part in parts(at, count) {
                let (data, behind) = rest.split_at(part.len());
                let (shard, key) = self.shard(part.slab);
                let mut shard = shard.write();
                let slab = shard.entry(key).or_insert_with(Slab::new);
                slab.data[part.bytes()].copy_from_slice(data);
                slab.present |= part.bits();
                rest = behind;
            }
            at += count;
        }
        Ok(())
    }
    async fn flush(&self, _context: IoContext) -> Result<()> {
        self.pause().await;
        Ok(())
    }
    async fn discard(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.pause().await;
        for part in parts(at, count) {
            let (shard, key) = self.shard(part.slab);
            let mut shard = shard.write();
            let Some(slab) = shard.get_mut(&key) else { continue };
            slab.present &= !part.bits();
            if slab.present == 0 {
                shard.remove(&key);
            } else {
                slab.data[part.bytes()].fill(0);
            }
        }
        Ok(())
    }
    async fn provision(&self, _: IoContext, _: Lba, _: Blocks) -> Result<()> {
        Ok(())
    }
    async fn extent(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        let hole = self.run_in_slab(at.0).0;
        let mut block = at.0;
        // A slab at a time, and not for ever: a hole may have a terabyte.
        for _ in 0..EXTENT_SLABS_MAX {
            let (same, end) = self.run_in_slab(block);
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
    use ashlar_env::sim::{Schedule, Sim};
    use std::sync::Arc;

    async fn delayed(env: Env) -> Device {
        Arc::new(Memory::new(Blocks(700)).with_delay(env, Duration::from_micros(5)))
    }
    conformance!(memory, delayed);

    #[test]
    fn memory_is_taken_by_what_is_there() {
        const CONTEXT: IoContext = IoContext::foreground("test");
        // A petabyte, of which next to nothing is written.
        let memory = Memory::new(Blocks(1 << 38));
        Sim::new(1, Schedule::Fifo)
            .run(async move {
                let write = |at, count: usize| {
                    let data = vec![Bytes::from(vec![1; count * BLOCK_LEN])];
                    Layer::write(&memory, CONTEXT, Lba(at), data, Durability::Cached)
                };
                let far = (1 << 38) - 40;
                write(far, 40).await.expect("written");
                write(3, 1).await.expect("written");
                assert_eq!(memory.held(), 4 * SLAB_LEN);
                let extent = |at, count| Layer::extent(&memory, CONTEXT, Lba(at), Blocks(count));
                assert_eq!(extent(0, 100).await.expect("known"), Extent { hole: true, count: Blocks(3) });
                assert_eq!(extent(3, 100).await.expect("known"), Extent { hole: false, count: Blocks(1) });
                assert_eq!(extent(far, 40).await.expect("known"), Extent { hole: false, count: Blocks(40) });
                let discard = |at, count| Layer::discard(&memory, CONTEXT, Lba(at), Blocks(count));
                discard(far + 1, 39).await.expect("discarded");
                assert_eq!(memory.held(), 2 * SLAB_LEN);
                let back = Layer::read(&memory, CONTEXT, Lba(far), Blocks(40)).await.expect("read");
                assert!(back[..BLOCK_LEN].iter().all(|byte| *byte == 1));
                assert!(back[BLOCK_LEN..].iter().all(|byte| *byte == 0));
                discard(0, 1 << 20).await.expect("discarded");
                discard(far, 1).await.expect("discarded");
                assert_eq!(memory.held(), 0);
            })
            .expect("no deadlock");
    }
}
