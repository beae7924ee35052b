//! A device that loses power: a memory device that remembers which writes are not yet durable.
//!
//! Every write and discard that no flush covers is kept in a list over the durable contents. A power cut keeps a random
//! subset of that list, in random order where [`Tearing`] allows, with the last kept writes torn at block borders, and
//! gives back a device that holds what a real one might.

use ashlar_block::{Capability, Durability, Error, Extent, Geometry, IoContext, Kind, Layer, Result, blocks_of};
use ashlar_env::Env;
use ashlar_units::{BLOCK, BLOCK_LEN, Blocks, Lba};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Which liberties a medium takes with writes that no flush covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tearing {
    /// A write may be lost.
    pub lose: bool,
    /// A write may reach the medium in part, block by block.
    pub tear: bool,
    /// A later write may survive when an earlier one does not.
    pub reorder: bool,
}

impl Tearing {
    /// Everything that the contract allows.
    pub const ALL: Tearing = Tearing { lose: true, tear: true, reorder: true };

    /// What a power cut leaves of operations that no flush covers, given in the order of issue, each as the units that the
    /// medium writes whole.
    pub fn survivors<T>(self, mut pending: Vec<Vec<T>>, mut random: impl FnMut() -> u64) -> Vec<T> {
        // Often keep a prefix, sometimes everything or nothing, sometimes a scatter.
        let style = random() % 4;
        let kept = if style == 3 { pending.len() } else { (random() % (pending.len() as u64 + 1)) as usize };
        if self.lose && !self.reorder {
            pending.truncate(kept);
        }
        let last = pending.len().saturating_sub(1);
        let mut survivors = Vec::new();
        for (index, operation) in pending.into_iter().enumerate() {
            let scatters = self.lose && self.reorder && !(style == 0 && index < kept) && style != 3;
            if scatters && random().is_multiple_of(2) {
                continue;
            }
            let torn = self.tear && (self.reorder || index == last) && random().is_multiple_of(3);
            survivors.extend(operation.into_iter().filter(|_| !(torn && random().is_multiple_of(2))));
        }
        survivors
    }
}

type Contents = BTreeMap<u64, Bytes>;

#[derive(Default, Clone)]
struct State {
    durable: Contents,
    /// Block changes in the order of issue; each inner list is one operation. `None` is a discarded block.
    pending: Vec<Vec<(u64, Option<Bytes>)>>,
    /// What reads see: durable contents with all pending changes.
    current: Contents,
    /// Operations that have left `pending` because they became durable.
    drained: u64,
    flushes: u64,
}

/// What feeds a device, or several that fail at one moment.
#[derive(Clone, Default)]
pub struct Power(Arc<Mutex<Supply>>);

#[derive(Default)]
struct Supply {
    operations: u64,
    /// Operations after which the power fails.
    fuse: Option<u64>,
    dead: bool,
}

impl Power {
    fn alive(&self) -> Result<()> {
        if self.0.lock().dead { Err(Error::new(Kind::Failed, "the power is cut")) } else { Ok(()) }
    }
    fn tick(&self) -> Result<()> {
        let mut supply = self.0.lock();
        supply.dead |= supply.fuse == Some(supply.operations);
        supply.operations += 1;
        drop(supply);
        self.alive()
    }
}

/// A device in memory that can lose power.
pub struct PowerCut {
    /// In blocks: as said, and as it is.
    capacity: AtomicU64,
    real_capacity: AtomicU64,
    env: Env,
    delay: Duration,
    stumbles: Option<Stumbles>,
    power: Power,
    state: Mutex<State>,
}

/// Operations that a device tries again and again before it answers.
#[derive(Clone)]
struct Stumbles {
    one_in: u64,
    lengths: RangeInclusive<u64>,
    longest: Duration,
}

impl PowerCut {
    /// An empty device.
    pub fn new(capacity: Blocks, env: Env, delay: Duration) -> PowerCut {
        let [capacity, real_capacity] = [(); 2].map(|()| AtomicU64::new(capacity.0));
        PowerCut {
            capacity,
            real_capacity,
            env,
            delay,
            stumbles: None,
            power: Power::default(),
            state: Mutex::default(),
        }
    }

    /// The same device, on which one of so many reads of as many blocks as `lengths` has, and every discard, takes up to so long: others
    /// write much meanwhile.
    #[must_use]
    pub fn stumbling(self, one_in: u64, lengths: RangeInclusive<u64>, longest: Duration) -> PowerCut {
        PowerCut { stumbles: Some(Stumbles { one_in, lengths, longest }), ..self }
    }

    /// The same device, fed by what feeds others.
    #[must_use]
    pub fn on(self, power: &Power) -> PowerCut {
        PowerCut { power: power.clone(), ..self }
    }

    /// What feeds this device.
    pub fn power(&self) -> &Power {
        &self.power
    }

    /// Lets the power fail after this many further writes, discards and flushes of all that it feeds.
    pub fn cut_after(&self, operations: u64) {
        let mut supply = self.power.0.lock();
        supply.fuse = Some(supply.operations + operations);
    }

    /// Writes, discards and flushes so far.
    pub fn operations(&self) -> u64 {
        self.power.0.lock().operations
    }

    /// Flushes so far.
    pub fn flushes(&self) -> u64 {
        self.state.lock().flushes
    }

    /// Whether the power has failed.
    pub fn is_dead(&self) -> bool {
        self.power.0.lock().dead
    }

    /// What the medium holds after a power cut now: durable contents and some of the rest, by the chance of `env`.
    #[must_use]
    pub fn after_cut(&self, tearing: Tearing, env: Env) -> PowerCut {
        let mut state = self.state.lock().clone();
        let pending = std::mem::take(&mut state.pending);
        for (block, data) in tearing.survivors(pending, || env.random()) {
            apply(&mut state.durable, block, data);
        }
        let current = state.durable.clone();
        let state = State { durable: state.durable, current, ..State::default() };
        PowerCut {
            stumbles: self.stumbles.clone(),
            state: Mutex::new(state),
            ..PowerCut::new(Blocks(self.real_capacity.load(Ordering::Acquire)), env, self.delay)
        }
    }

    /// Makes it larger by so much, which it says when it is measured, or after a power cut.
    pub fn enlarge(&self, by: Blocks) {
        self.real_capacity.fetch_add(by.0, Ordering::AcqRel);
    }

    /// Changes one stored byte, durably: damage that no one announced.
    pub fn corrupt(&self, at: Lba, offset: usize) {
        let mut state = self.state.lock();
        for contents in [true, false] {
            let contents = if contents { &mut state.durable } else { &mut state.current };
            let mut block = contents.get(&at.0).map_or_else(|| vec![0; BLOCK_LEN], |block| block.to_vec());
            block[offset % BLOCK_LEN] ^= 0x40;
            contents.insert(at.0, block.into());
        }
    }

    /// Blocks that hold data.
    pub fn written_blocks(&self) -> Vec<Lba> {
        self.state.lock().current.keys().map(|block| Lba(*block)).collect()
    }

    fn change(&self, blocks: Vec<(u64, Option<Bytes>)>, forced: bool) -> Result<()> {
        let mut state = self.state.lock();
        self.power.tick()?;
        for (block, data) in &blocks {
            apply(&mut state.current, *block, data.clone());
            if forced {
                apply(&mut state.durable, *block, data.clone());
            }
        }
        if !forced {
            state.pending.push(blocks);
        }
        Ok(())
    }

    async fn stumble(&self, stumbles: &Stumbles) {
        self.env.sleep(Duration::from_nanos(self.env.random() % stumbles.longest.as_nanos().max(1) as u64)).await;
    }

    /// Most operations are quick; one in sixteen takes up to sixty-four times as long, as on real devices.
    async fn pause(&self) {
        let longest = (self.delay.as_nanos() as u64).max(1) * if self.env.random().is_multiple_of(16) { 64 } else { 1 };
        self.env.sleep(Duration::from_nanos(self.env.random() % longest)).await;
    }
}

fn apply(contents: &mut Contents, block: u64, data: Option<Bytes>) {
    match data {
        Some(data) => contents.insert(block, data),
        None => contents.remove(&block),
    };
}

impl Layer for PowerCut {
    fn name(&self) -> String {
        "powercut".into()
    }
    fn geometry(&self) -> Geometry {
        Geometry { capacity: Blocks(self.capacity.load(Ordering::Acquire)), atomic: BLOCK }
    }
    fn measure(&self) -> Result<()> {
        self.power.alive()?;
        self.capacity.fetch_max(self.real_capacity.load(Ordering::Acquire), Ordering::AcqRel);
        Ok(())
    }
    fn capability(&self) -> Capability {
        Capability { discard: true, discard_zeroes: true, persistent: true, medium: None, thin: false }
    }
    async fn read(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        self.pause().await;
        if let Some(stumbles) = self.stumbles.as_ref().filter(|stumbles| stumbles.lengths.contains(&count.0))
            && self.env.random().is_multiple_of(stumbles.one_in)
        {
            self.stumble(stumbles).await;
        }
        let state = self.state.lock();
        self.power.alive()?;
        let mut data = BytesMut::with_capacity(count.to_bytes().0 as usize);
        for block in at.0..at.0 + count.0 {
            match state.current.get(&block) {
                Some(block) => data.extend_from_slice(block),
                None => data.resize(data.len() + BLOCK_LEN, 0),
            }
        }
        Ok(data.freeze())
    }
    async fn write(&self, _context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        // The medium may take the write at any moment of the call: half before the pause, half after.
        let early = self.env.random().is_multiple_of(2);
        if !early {
            self.pause().await;
        }
        let mut changes = Vec::with_capacity(blocks_of(&pieces).0 as usize);
        let mut block = at.0;
        for mut piece in pieces {
            while !piece.is_empty() {
                changes.push((block, Some(piece.split_to(BLOCK_LEN))));
                block += 1;
            }
        }
        self.change(changes, durability == Durability::Forced)?;
        if early {
            self.pause().await;
            self.power.alive()?;
        }
        Ok(())
    }
    async fn flush(&self, _context: IoContext) -> Result<()> {
        let covered = {
            let state = self.state.lock();
            self.power.tick()?;
            state.drained + state.pending.len() as u64
        };
        self.pause().await;
        let mut state = self.state.lock();
        self.power.alive()?;
        // A flush that ran beside this one may have drained part of it already.
        let mine = covered.saturating_sub(state.drained) as usize;
        let rest = state.pending.split_off(mine);
        state.drained += mine as u64;
        let done = std::mem::replace(&mut state.pending, rest);
        for (block, data) in done.into_iter().flatten() {
            apply(&mut state.durable, block, data);
        }
        state.flushes += 1;
        Ok(())
    }
    async fn discard(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.pause().await;
        if let Some(stumbles) = &self.stumbles {
            self.stumble(stumbles).await;
        }
        self.change((at.0..at.0 + count.0).map(|block| (block, None)).collect(), false)
    }
    async fn provision(&self, _: IoContext, _: Lba, _: Blocks) -> Result<()> {
        Ok(())
    }
    async fn extent(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        let state = self.state.lock();
        self.power.alive()?;
        let hole = !state.current.contains_key(&at.0);
        let alike = (at.0..at.0 + count.0).take_while(|block| hole != state.current.contains_key(block));
        Ok(Extent { hole, count: Blocks(alike.count() as u64) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_block::{Device, conformance};
    use ashlar_env::sim::{Schedule, Sim};
    use std::sync::Arc;

    async fn empty(env: Env) -> Device {
        Arc::new(PowerCut::new(Blocks(300), env, Duration::from_micros(3)))
    }
    conformance!(powercut, empty);

    #[test]
    fn flushed_writes_survive_and_others_are_lost_torn_or_reordered() {
        let (mut lost, mut torn, mut kept) = (0, 0, 0);
        for seed in 0..200 {
            let sim = Sim::new(seed, Schedule::Random);
            let env = sim.env();
            let survivors = sim
                .run(async move {
                    const CONTEXT: IoContext = IoContext::foreground("test");
                    let device = PowerCut::new(Blocks(16), env.clone(), Duration::from_nanos(10));
                    let data = |value: u8, blocks: usize| vec![Bytes::from(vec![value; blocks * BLOCK_LEN])];
                    device.write(CONTEXT, Lba(0), data(1, 4), Durability::Cached).await.expect("write");
                    device.flush(CONTEXT).await.expect("flush");
                    device.write(CONTEXT, Lba(4), data(2, 4), Durability::Cached).await.expect("write");
                    device.write(CONTEXT, Lba(8), data(3, 1), Durability::Forced).await.expect("write");
                    let after = device.after_cut(Tearing::ALL, env);
                    let back = after.read(CONTEXT, Lba(0), Blocks(9)).await.expect("read");
                    back.chunks(BLOCK_LEN).map(|block| block[0]).collect::<Vec<_>>()
                })
                .expect("no deadlock");
            assert_eq!((&survivors[..4], survivors[8]), (&[1; 4][..], 3), "seed {seed}");
            match survivors[4..8].iter().filter(|block| **block == 2).count() {
                0 => lost += 1,
                4 => kept += 1,
                _ => torn += 1,
            }
        }
        assert!(lost > 10 && torn > 10 && kept > 10, "lost {lost}, torn {torn}, kept {kept} of 200");
    }
}
