//! A device over another that keeps blocks full of one byte in a bit each, so that a simulation can write terabytes.
//!
//! What is written is told by its contents alone: a block all of whose bytes are [`FILL`] becomes a mark, and a hole below;
//! every other block is written below. Reads are exact either way.

use ashlar_block::{Capability, Device, Durability, Extent, Geometry, IoContext, Layer, Result};
use ashlar_env::ring::AlignedBuf;
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;
use parking_lot::RwLock;

/// The byte.
pub const FILL: u8 = 0xa5;

/// See the module.
pub struct Filled {
    child: Device,
    /// A bit for each block.
    marks: RwLock<Vec<u64>>,
}

impl Filled {
    /// Over a device that is empty, or holds nothing that was marked before.
    pub fn new(child: Device) -> Filled {
        // Fresh zeros take no memory until they are touched.
        let words = child.geometry().capacity.0.div_ceil(64) as usize;
        Filled { child, marks: RwLock::new(vec![0; words]) }
    }

    fn is_marked(marks: &[u64], block: u64) -> bool {
        marks.get((block / 64) as usize).is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    fn mark(&self, at: Lba, count: Blocks, marked: bool) {
        let mut marks = self.marks.write();
        for block in at.0..at.0 + count.0 {
            let Some(word) = marks.get_mut((block / 64) as usize) else { return };
            *word = *word & !(1 << (block % 64)) | u64::from(marked) << (block % 64);
        }
    }

    /// How many blocks from `at` on, of `count`, are marked as the first is, and whether that is so.
    fn alike(&self, at: Lba, count: Blocks) -> (bool, Blocks) {
        let marks = self.marks.read();
        let first = Self::is_marked(&marks, at.0);
        let end = (at.0 + 1..at.0 + count.0).find(|block| Self::is_marked(&marks, *block) != first);
        (first, Blocks(end.unwrap_or(at.0 + count.0) - at.0))
    }
}

fn is_filled(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == FILL)
}

impl Layer for Filled {
    fn name(&self) -> String {
        self.child.name()
    }
    fn geometry(&self) -> Geometry {
        self.child.geometry()
    }
    fn capability(&self) -> Capability {
        // Marks are in memory.
        Capability { persistent: false, ..self.child.capability() }
    }

    async fn read(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        let (first, alike) = self.alike(at, count);
        if !first && alike == count {
            return self.child.read(context, at, count).await;
        }
        let mut whole = AlignedBuf::any(count.0 as usize * BLOCK_LEN);
        let mut done = Blocks(0);
        while done < count {
            let (marked, part) = self.alike(at + done, count - done);
            let bytes = done.0 as usize * BLOCK_LEN..(done + part).0 as usize * BLOCK_LEN;
            if marked {
                whole.as_mut()[bytes].fill(FILL);
            } else {
                let read = self.child.read(context, at + done, part).await?;
                whole.as_mut()[bytes].copy_from_slice(&read);
            }
            done += part;
        }
        Ok(whole.freeze(count.0 as usize * BLOCK_LEN))
    }

    async fn write(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        let mut next = at;
        for piece in pieces {
            let mut rest = piece;
            while !rest.is_empty() {
                let mut blocks = rest.chunks(BLOCK_LEN).map(is_filled);
                let filled = blocks.next().unwrap_or(false);
                let count = Blocks(1 + blocks.take_while(|next| *next == filled).count() as u64);
                let part = rest.split_to(count.0 as usize * BLOCK_LEN);
                if filled {
                    self.child.discard(context, next, count).await?;
                } else {
                    self.child.write(context, next, vec![part], durability).await?;
                }
                self.mark(next, count, filled);
                next += count;
            }
        }
        Ok(())
    }

    async fn flush(&self, context: IoContext) -> Result<()> {
        self.child.flush(context).await
    }

    async fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.child.discard(context, at, count).await?;
        self.mark(at, count, false);
        Ok(())
    }

    async fn extent(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        let (marked, count) = self.alike(at, count);
        if marked { Ok(Extent { hole: false, count }) } else { self.child.extent(context, at, count).await }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use ashlar_block::conformance;
    use ashlar_env::Env;
    use ashlar_env::sim::{Schedule, Sim};
    use std::sync::Arc;

    async fn over_memory(_: Env) -> Device {
        Arc::new(Filled::new(Arc::new(Memory::new(Blocks(256)))))
    }
    conformance!(filled, over_memory);

    #[test]
    fn filled_blocks_are_holes_below_and_whole_above() {
        let child: Device = Arc::new(Memory::new(Blocks(256)));
        let filled = Filled::new(child.clone());
        let run = Sim::new(1, Schedule::Fifo).run(async move {
            const CONTEXT: IoContext = IoContext::foreground("test");
            let mut data = vec![FILL; 5 * BLOCK_LEN];
            data[2 * BLOCK_LEN + 7] = 1;
            let pieces = vec![Bytes::from(data.clone())];
            filled.write(CONTEXT, Lba(61), pieces, Durability::Cached).await.expect("space");
            for (block, hole) in [(61, true), (62, true), (63, false), (64, true), (65, true)] {
                assert_eq!(child.extent(CONTEXT, Lba(block), Blocks(1)).await.expect("it is there").hole, hole);
                assert!(!filled.extent(CONTEXT, Lba(block), Blocks(1)).await.expect("it is there").hole);
            }
            assert_eq!(filled.read(CONTEXT, Lba(61), Blocks(5)).await.expect("it is there"), data);
            filled.discard(CONTEXT, Lba(62), Blocks(1)).await.expect("it is there");
            data[BLOCK_LEN..2 * BLOCK_LEN].fill(0);
            assert_eq!(filled.read(CONTEXT, Lba(61), Blocks(5)).await.expect("it is there"), data);
        });
        run.expect("it ends");
    }
}
