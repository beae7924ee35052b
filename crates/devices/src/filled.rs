//! A device in memory that keeps blocks full of one byte in a bit each, so that a simulation can write terabytes.
//!
//! What is written is told by its contents alone: of a block all of whose bytes are [`FILL`] nothing is kept but a mark; every
//! other block is kept by itself. Reads are exact either way.

use ashlar_block::{Capability, Durability, Extent, Geometry, IoContext, Layer, Result};
use ashlar_env::ring::AlignedBuf;
use ashlar_units::{BLOCK, BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;
use parking_lot::RwLock;
use std::collections::HashMap;

/// The byte.
pub const FILL: u8 = 0xa5;

/// See the module.
pub struct Filled {
    capacity: Blocks,
    kept: RwLock<Kept>,
}

struct Kept {
    /// A bit for each block.
    marks: Vec<u64>,
    /// Blocks that are neither filled nor holes.
    others: HashMap<u64, Box<[u8]>>,
}

impl Kept {
    fn is_marked(&self, block: u64) -> bool {
        self.marks.get((block / 64) as usize).is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    fn mark(&mut self, block: u64, marked: bool) {
        if let Some(word) = self.marks.get_mut((block / 64) as usize) {
            *word = *word & !(1 << (block % 64)) | u64::from(marked) << (block % 64);
        }
    }

    fn is_hole(&self, block: u64) -> bool {
        !self.is_marked(block) && !self.others.contains_key(&block)
    }
}

impl Filled {
    /// An empty device.
    pub fn new(capacity: Blocks) -> Filled {
        // Fresh zeros take no memory until they are touched.
        let marks = vec![0; capacity.0.div_ceil(64) as usize];
        Filled { capacity, kept: RwLock::new(Kept { marks, others: HashMap::new() }) }
    }

    /// Blocks that are kept by themselves.
    pub fn others(&self) -> Blocks {
        Blocks(self.kept.read().others.len() as u64)
    }
}

fn is_filled(block: &[u8]) -> bool {
    // Compared as memory, which is many times faster than byte by byte.
    static FILLED: [u8; BLOCK_LEN] = [FILL; BLOCK_LEN];
    *block == FILLED
}

impl Layer for Filled {
    fn name(&self) -> String {
        "memory of filled blocks".into()
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
        let len = count.0 as usize * BLOCK_LEN;
        let mut whole = AlignedBuf::any(len);
        let kept = self.kept.read();
        for (block, to) in (at.0..).zip(whole.as_mut().chunks_exact_mut(BLOCK_LEN)) {
            match kept.others.get(&block) {
                Some(data) => to.copy_from_slice(data),
                None => to.fill(if kept.is_marked(block) { FILL } else { 0 }),
            }
        }
        drop(kept);
        Ok(whole.freeze(len))
    }

    async fn write(&self, _: IoContext, at: Lba, pieces: Vec<Bytes>, _: Durability) -> Result<()> {
        let mut kept = self.kept.write();
        for (block, data) in (at.0..).zip(pieces.iter().flat_map(|piece| piece.chunks(BLOCK_LEN))) {
            let filled = is_filled(data);
            kept.mark(block, filled);
            if filled {
                kept.others.remove(&block);
            } else {
                kept.others.insert(block, data.into());
            }
        }
        Ok(())
    }

    async fn flush(&self, _: IoContext) -> Result<()> {
        Ok(())
    }

    async fn discard(&self, _: IoContext, at: Lba, count: Blocks) -> Result<()> {
        let mut kept = self.kept.write();
        for block in at.0..at.0 + count.0 {
            kept.mark(block, false);
            kept.others.remove(&block);
        }
        Ok(())
    }

    async fn provision(&self, _: IoContext, _: Lba, _: Blocks) -> Result<()> {
        Ok(())
    }
    async fn extent(&self, _: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        let kept = self.kept.read();
        let hole = kept.is_hole(at.0);
        let end = (at.0 + 1..at.0 + count.0).find(|block| kept.is_hole(*block) != hole);
        Ok(Extent { hole, count: Blocks(end.unwrap_or(at.0 + count.0) - at.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_block::{Device, conformance};
    use ashlar_env::Env;
    use ashlar_env::sim::{Schedule, Sim};
    use std::sync::Arc;

    async fn empty(_: Env) -> Device {
        Arc::new(Filled::new(Blocks(256)))
    }
    conformance!(filled, empty);

    #[test]
    fn filled_blocks_are_exact_and_take_no_room() {
        let run = Sim::new(1, Schedule::Fifo).run(async move {
            const CONTEXT: IoContext = IoContext::foreground("test");
            let filled = Filled::new(Blocks(256));
            let mut data = vec![FILL; 5 * BLOCK_LEN];
            data[2 * BLOCK_LEN + 7] = 1;
            let pieces = vec![Bytes::from(data.clone())];
            filled.write(CONTEXT, Lba(61), pieces, Durability::Cached).await.expect("space");
            assert_eq!(filled.others(), Blocks(1));
            assert_eq!(filled.read(CONTEXT, Lba(61), Blocks(5)).await.expect("it is there"), data);
            filled.discard(CONTEXT, Lba(62), Blocks(1)).await.expect("it is there");
            data[BLOCK_LEN..2 * BLOCK_LEN].fill(0);
            assert_eq!(filled.read(CONTEXT, Lba(61), Blocks(5)).await.expect("it is there"), data);
            let filler = vec![Bytes::from(vec![FILL; BLOCK_LEN])];
            filled.write(CONTEXT, Lba(63), filler, Durability::Cached).await.expect("space");
            assert_eq!(filled.others(), Blocks(0));
        });
        run.expect("it ends");
    }
}
