//! Several devices one behind another, as one.

use ashlar_block::{Capability, Device, Durability, Extent, Geometry, IoContext, Layer, Result, blocks_of};
use ashlar_units::{Blocks, Lba};
use bytes::{Bytes, BytesMut};

/// The concatenation of its children.
pub struct Joined {
    children: Vec<Device>,
}

impl Joined {
    /// Joins at least one child.
    ///
    /// # Panics
    /// Without children.
    pub fn new(children: Vec<Device>) -> Joined {
        assert!(!children.is_empty(), "a joined device has at least one child");
        Joined { children }
    }

    /// Splits a range into (child, address in it, count).
    fn parts(&self, at: Lba, count: Blocks) -> Vec<(&Device, Lba, Blocks)> {
        let mut parts = Vec::with_capacity(1);
        let (mut skip, mut left) = (at.0, count.0);
        for child in &self.children {
            let size = child.geometry().capacity.0;
            let take = left.min(size.saturating_sub(skip));
            if take > 0 {
                parts.push((child, Lba(skip), Blocks(take)));
            }
            left -= take;
            skip = skip.saturating_sub(size);
        }
        parts
    }
}

impl Layer for Joined {
    fn name(&self) -> String {
        format!("joined({})", self.children.iter().map(|child| child.name()).collect::<Vec<_>>().join(", "))
    }
    fn geometry(&self) -> Geometry {
        let shapes = || self.children.iter().map(|child| child.geometry());
        Geometry {
            capacity: Blocks(shapes().map(|shape| shape.capacity.0).sum()),
            atomic: shapes().map(|shape| shape.atomic).min().expect("at least one child"),
        }
    }
    fn measure(&self) -> Result<()> {
        self.children.last().expect("at least one child").measure()
    }
    fn capability(&self) -> Capability {
        self.children.iter().map(|child| child.capability()).reduce(meet).expect("at least one child")
    }
    async fn read(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        let parts = self.parts(at, count);
        if let [(child, at, count)] = parts[..] {
            return child.read(context, at, count).await;
        }
        let mut data = BytesMut::with_capacity(count.to_bytes().0 as usize);
        for (child, at, count) in parts {
            data.extend_from_slice(&child.read(context, at, count).await?);
        }
        Ok(data.freeze())
    }
    async fn write(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        let parts = self.parts(at, blocks_of(&pieces));
        if let [(child, at, _)] = parts[..] {
            return child.write(context, at, pieces, durability).await;
        }
        let mut pieces = std::collections::VecDeque::from(pieces);
        for (child, at, count) in parts {
            let mut left = count.to_bytes().0 as usize;
            let mut mine = Vec::new();
            while left > 0 {
                let mut piece = pieces.pop_front().expect("parts add up to the pieces");
                if piece.len() > left {
                    pieces.push_front(piece.split_off(left));
                }
                left -= piece.len();
                mine.push(piece);
            }
            child.write(context, at, mine, durability).await?;
        }
        Ok(())
    }
    async fn flush(&self, context: IoContext) -> Result<()> {
        for child in &self.children {
            child.flush(context).await?;
        }
        Ok(())
    }
    async fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        for (child, at, count) in self.parts(at, count) {
            child.discard(context, at, count).await?;
        }
        Ok(())
    }
    async fn provision(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        for (child, at, count) in self.parts(at, count) {
            child.provision(context, at, count).await?;
        }
        Ok(())
    }
    async fn extent(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        let (child, at, count) = self.parts(at, count)[0];
        child.extent(context, at, count).await
    }
}

/// What two devices can both do.
fn meet(a: Capability, b: Capability) -> Capability {
    Capability {
        discard: a.discard && b.discard,
        discard_zeroes: a.discard_zeroes && b.discard_zeroes,
        persistent: a.persistent && b.persistent,
        medium: a.medium.filter(|_| a.medium == b.medium),
        thin: a.thin || b.thin,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use ashlar_block::conformance;
    use ashlar_env::Env;
    use std::sync::Arc;
    use std::time::Duration;

    async fn three(env: Env) -> Device {
        let child = |blocks| -> Device {
            Arc::new(Memory::new(Blocks(blocks)).with_delay(env.clone(), Duration::from_micros(5)))
        };
        Arc::new(Joined::new(vec![child(5), child(300), child(17)]))
    }
    conformance!(joined, three);
}
