//! A part of a device, as a device.

use ashlar_block::{Capability, Device, Durability, Extent, Geometry, IoContext, Layer, Result, Run};
use ashlar_units::{Blocks, Lba};
use bytes::Bytes;

/// So many blocks of a device from one of them on. It stays as large if the device becomes larger.
pub struct Part {
    child: Device,
    from: Blocks,
    count: Blocks,
}

impl Part {
    /// The device must have these blocks.
    pub fn new(child: Device, from: Lba, count: Blocks) -> Part {
        Part { child, from: Blocks(from.0), count }
    }
}

impl Layer for Part {
    fn name(&self) -> String {
        format!("{} from {}", self.child.name(), self.from.to_bytes())
    }
    fn geometry(&self) -> Geometry {
        Geometry { capacity: self.count, ..self.child.geometry() }
    }
    fn measure(&self) -> Result<()> {
        Ok(())
    }
    fn capability(&self) -> Capability {
        self.child.capability()
    }
    async fn read(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        self.child.read(context, at + self.from, count).await
    }
    async fn write(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        self.child.write(context, at + self.from, pieces, durability).await
    }
    async fn write_strand(
        &self,
        context: IoContext,
        runs: Vec<Run>,
        most: usize,
        durability: Durability,
    ) -> Result<()> {
        let runs = runs.into_iter().map(|(at, pieces)| (at + self.from, pieces)).collect();
        self.child.write_strand(context, runs, most, durability).await
    }
    async fn flush(&self, context: IoContext) -> Result<()> {
        self.child.flush(context).await
    }
    async fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.child.discard(context, at + self.from, count).await
    }
    async fn provision(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.child.provision(context, at + self.from, count).await
    }
    async fn extent(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        self.child.extent(context, at + self.from, count).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use ashlar_block::{BlockDevice, conformance};
    use ashlar_env::Env;
    use ashlar_env::sim::simulate;
    use ashlar_units::BLOCK_LEN;
    use std::sync::Arc;
    use std::time::Duration;

    async fn middle(env: Env) -> Device {
        let child = Arc::new(Memory::new(Blocks(1000)).with_delay(env, Duration::from_micros(5)));
        Arc::new(Part::new(child, Lba(200), Blocks(700)))
    }
    conformance!(part, middle);

    #[test]
    fn parts_lie_side_by_side() {
        simulate(1, |_| async {
            const TEST: IoContext = IoContext::foreground("test");
            let whole: Device = Arc::new(Memory::new(Blocks(10)));
            let parts = [(0, 4), (4, 6)].map(|(from, count)| Part::new(whole.clone(), Lba(from), Blocks(count)));
            for (part, stamp) in parts.iter().zip(1..) {
                let all = Bytes::from(vec![stamp; part.count.to_bytes().0 as usize]);
                BlockDevice::write(part, TEST, Lba(0), vec![all], Durability::Cached).await.expect("room");
            }
            let read = whole.read(TEST, Lba(0), Blocks(10)).await.expect("it was written");
            let stamps: Vec<u8> = read.chunks(BLOCK_LEN).map(|block| block[0]).collect();
            assert_eq!(stamps, [1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
            BlockDevice::discard(&parts[1], TEST, Lba(0), Blocks(6)).await.expect("it can");
            let extent = whole.extent(TEST, Lba(4), Blocks(6)).await.expect("it is known");
            assert_eq!(extent, Extent { hole: true, count: Blocks(6) });
        });
    }
}
