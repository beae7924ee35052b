//! Blocks full of zeros take no room below: for images of which nobody reads the contents, as of a file system that ages.
//!
//! A write of zeros to what is a hole below goes nowhere, and to others it is a discard. Which those are, the device below says.

use ashlar_block::{Capability, Device, Durability, Error, Extent, Geometry, IoContext, Layer, Result, blocks_of};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;

/// See the module.
pub struct Sparse(Device);

/// Neighbouring blocks of a write that go one way.
struct Run {
    at: Lba,
    zeros: bool,
    pieces: Vec<Bytes>,
}

fn is_zeros(block: &[u8]) -> bool {
    // Compared as memory, which is many times faster than byte by byte.
    static ZEROS: [u8; BLOCK_LEN] = [0; BLOCK_LEN];
    *block == ZEROS
}

impl Sparse {
    /// Over a device whose discarded blocks are zeros.
    ///
    /// # Errors
    /// `Misuse`, if they are not.
    pub fn new(child: Device) -> Result<Sparse> {
        match child.capability().discard_zeroes {
            true => Ok(Sparse(child)),
            false => Err(Error::misuse(format!(
                "{}: what is discarded there does not become zeros, so zeros take room; leave the layer out",
                child.name()
            ))),
        }
    }

    /// Makes blocks a hole, if they are not.
    async fn clear(&self, context: IoContext, mut at: Lba, mut count: Blocks) -> Result<()> {
        let extent = self.0.extent(context, at, count).await?;
        if extent.hole {
            (at, count) = (at + extent.count, Blocks(count.0.saturating_sub(extent.count.0)));
        }
        if count == Blocks(0) { Ok(()) } else { self.0.discard(context, at, count).await }
    }
}

/// The blocks of a write, in runs of zeros and of others.
fn runs(at: Lba, pieces: &[Bytes]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut next = at;
    for piece in pieces {
        let mut from = 0;
        while from < piece.len() {
            let zeros = is_zeros(&piece[from..from + BLOCK_LEN]);
            let rest = piece[from..].chunks(BLOCK_LEN);
            let len = BLOCK_LEN * rest.take_while(|block| is_zeros(block) == zeros).count();
            let part = piece.slice(from..from + len);
            match runs.last_mut() {
                Some(run) if run.zeros == zeros => run.pieces.push(part),
                _ => runs.push(Run { at: next, zeros, pieces: vec![part] }),
            }
            next += Blocks((len / BLOCK_LEN) as u64);
            from += len;
        }
    }
    runs
}

impl Layer for Sparse {
    fn name(&self) -> String {
        format!("{}, sparse", self.0.name())
    }
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn measure(&self) -> Result<()> {
        self.0.measure()
    }
    fn capability(&self) -> Capability {
        self.0.capability()
    }
    async fn read(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        self.0.read(context, at, count).await
    }
    async fn write(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        let runs = runs(at, &pieces);
        // A discard is durable with the next flush only.
        let flush = durability == Durability::Forced && runs.iter().any(|run| run.zeros);
        let durability = if flush { Durability::Cached } else { durability };
        for Run { at, zeros, pieces } in runs {
            match zeros {
                true => self.clear(context, at, blocks_of(&pieces)).await?,
                false => self.0.write(context, at, pieces, durability).await?,
            }
        }
        if flush { self.0.flush(context).await } else { Ok(()) }
    }
    async fn flush(&self, context: IoContext) -> Result<()> {
        self.0.flush(context).await
    }
    async fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.0.discard(context, at, count).await
    }
    async fn provision(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.0.provision(context, at, count).await
    }
    async fn extent(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        self.0.extent(context, at, count).await
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

    const CONTEXT: IoContext = IoContext::foreground("test");

    async fn empty(_: Env) -> Device {
        let below: Device = Arc::new(Memory::new(Blocks(256)));
        Arc::new(Sparse::new(below).expect("memory is sparse"))
    }
    conformance!(sparse, empty);

    #[test]
    fn zeros_take_no_room_and_replace_what_was_there() {
        let run = Sim::new(1, Schedule::Fifo).run(async move {
            let below: Device = Arc::new(Memory::new(Blocks(64)));
            let holds = |at| {
                let below = below.clone();
                async move { !below.extent(CONTEXT, Lba(at), Blocks(1)).await.expect("known").hole }
            };
            let ones = || Bytes::from(vec![1; BLOCK_LEN]);
            // One block was there before.
            below.write(CONTEXT, Lba(9), vec![ones()], Durability::Cached).await.expect("space");
            let sparse = Sparse::new(below.clone()).expect("memory is sparse");
            let mut data = vec![0; 12 * BLOCK_LEN];
            data[5 * BLOCK_LEN + 17] = 1;
            let pieces = vec![Bytes::from(data.clone())];
            Layer::write(&sparse, CONTEXT, Lba(2), pieces, Durability::Forced).await.expect("space");
            assert_eq!(Layer::read(&sparse, CONTEXT, Lba(2), Blocks(12)).await.expect("there"), data);
            for at in 0..64 {
                assert_eq!(holds(at).await, at == 7, "block {at}");
            }
            let zeros = vec![Bytes::from(vec![0; 3 * BLOCK_LEN])];
            Layer::write(&sparse, CONTEXT, Lba(6), zeros, Durability::Cached).await.expect("space");
            assert!(!holds(7).await);
            Layer::write(&sparse, CONTEXT, Lba(7), vec![ones()], Durability::Cached).await.expect("space");
            assert!(holds(7).await);
        });
        run.expect("it ends");
    }
}
