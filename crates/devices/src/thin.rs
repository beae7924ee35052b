//! A device whose blocks take room from somewhere when they are first written, as a file with holes does.

use ashlar_block::{
    Capability, Device, Durability, Error, Extent, Geometry, IoContext, Kind, Layer, Result, blocks_of,
};
use ashlar_units::{Blocks, Lba};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;

/// Where room is taken from. Cheap to clone; outlives the device, as a file system does.
#[derive(Clone)]
pub struct Room(Arc<Mutex<Taken>>);

struct Taken {
    /// Blocks that have room, a bit for each.
    has: Vec<u64>,
    left: u64,
}

impl Room {
    /// Room for `left` blocks of a device of this capacity.
    pub fn new(capacity: Blocks, left: Blocks) -> Room {
        Room(Arc::new(Mutex::new(Taken { has: vec![0; capacity.0.div_ceil(64) as usize], left: left.0 })))
    }
    /// So much is left now: others took some, or gave it back.
    pub fn set(&self, left: Blocks) {
        self.0.lock().left = left.0;
    }
    /// So much is left.
    pub fn left(&self) -> Blocks {
        Blocks(self.0.lock().left)
    }
    /// Takes room for the blocks that have none, if there is enough for all.
    fn take(&self, at: Lba, count: Blocks) -> Result<()> {
        let taken = &mut *self.0.lock();
        let bit = |block: u64| (block as usize / 64, 1 << (block % 64));
        let bare: Vec<u64> =
            (at.0..at.0 + count.0).filter(|block| taken.has[bit(*block).0] & bit(*block).1 == 0).collect();
        let Some(left) = taken.left.checked_sub(bare.len() as u64) else {
            return Err(Error::new(Kind::NoSpace, format!("no room for {} blocks of {count} at {at}", bare.len())));
        };
        taken.left = left;
        bare.into_iter().map(bit).for_each(|(word, bit)| taken.has[word] |= bit);
        Ok(())
    }
    /// Gives back the room of blocks that have some.
    fn give(&self, at: Lba, count: Blocks) {
        let taken = &mut *self.0.lock();
        for block in at.0..at.0 + count.0 {
            let (word, bit) = (&mut taken.has[block as usize / 64], 1 << (block % 64));
            taken.left += u64::from(*word & bit != 0);
            *word &= !bit;
        }
    }
}

/// See the module.
pub struct Thin {
    child: Device,
    room: Room,
    tells: bool,
}

impl Thin {
    /// Blocks of `child` take from `room`.
    pub fn new(child: Device, room: Room) -> Thin {
        Thin { child, room, tells: true }
    }
    /// The same, but it does not say what it is: a negative control.
    #[must_use]
    pub fn in_secret(self) -> Thin {
        Thin { tells: false, ..self }
    }
}

impl Layer for Thin {
    fn name(&self) -> String {
        self.child.name()
    }
    fn geometry(&self) -> Geometry {
        self.child.geometry()
    }
    fn measure(&self) -> Result<()> {
        Ok(())
    }
    fn capability(&self) -> Capability {
        Capability { thin: self.tells, ..self.child.capability() }
    }
    async fn read(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        self.child.read(context, at, count).await
    }
    async fn write(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        self.room.take(at, blocks_of(&pieces))?;
        self.child.write(context, at, pieces, durability).await
    }
    async fn flush(&self, context: IoContext) -> Result<()> {
        self.child.flush(context).await
    }
    async fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.child.discard(context, at, count).await?;
        self.room.give(at, count);
        Ok(())
    }
    async fn provision(&self, _: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.room.take(at, count)
    }
    async fn extent(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        self.child.extent(context, at, count).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use ashlar_block::conformance;
    use ashlar_env::Env;
    use ashlar_env::sim::simulate;
    use std::time::Duration;

    async fn roomy(env: Env) -> Device {
        let child = Arc::new(Memory::new(Blocks(700)).with_delay(env, Duration::from_micros(5)));
        Arc::new(Thin::new(child, Room::new(Blocks(700), Blocks(700))))
    }
    conformance!(thin, roomy);

    #[test]
    fn room_is_taken_once_and_refused_when_there_is_none() {
        simulate(1, |_| async {
            const TEST: IoContext = IoContext::foreground("test");
            let room = Room::new(Blocks(100), Blocks(10));
            let device = Thin::new(Arc::new(Memory::new(Blocks(100))), room.clone());
            let write = async |at, count: usize| {
                let data = Bytes::from(vec![1; count * 4096]);
                Layer::write(&device, TEST, Lba(at), vec![data], Durability::Cached).await.map_err(|error| error.kind())
            };
            let provision = async |at, count| {
                Layer::provision(&device, TEST, Lba(at), Blocks(count)).await.map_err(|error| error.kind())
            };
            assert_eq!((write(60, 4).await, room.left()), (Ok(()), Blocks(6)));
            assert_eq!((provision(62, 4).await, room.left()), (Ok(()), Blocks(4)), "two of them have room");
            assert_eq!((provision(0, 5).await, room.left()), (Err(Kind::NoSpace), Blocks(4)), "all or nothing");
            Layer::discard(&device, TEST, Lba(50), Blocks(12)).await.expect("discarded");
            assert_eq!(
                (room.left(), provision(60, 2).await, room.left()),
                (Blocks(6), Ok(()), Blocks(4)),
                "two had room"
            );
            room.set(Blocks(0));
            assert_eq!((write(60, 6).await, write(60, 7).await), (Ok(()), Err(Kind::NoSpace)));
        });
    }
}
