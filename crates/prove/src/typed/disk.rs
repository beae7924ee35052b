//! The disk under a target: an image, with what was damaged in it, and what each block held before it was last written.

use ashlar_block::{Capability, Durability, Error, Extent, Geometry, IoContext, Kind, Layer, Result};
use ashlar_units::{BLOCK, BLOCK_LEN, Blocks, Lba};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Contents by block; what is not there is zeros.
pub(super) type Contents = BTreeMap<u64, Bytes>;

static ZEROS: Bytes = Bytes::from_static(&[0; BLOCK_LEN]);

/// A block of some contents.
pub(super) fn block(contents: &Contents, number: u64) -> &Bytes {
    contents.get(&number).unwrap_or(&ZEROS)
}

#[derive(Default)]
struct State {
    base: Arc<Contents>,
    overlay: Contents,
    /// What a block held before the last write to it, if `remembers`.
    previous: Contents,
    remembers: bool,
    /// Blocks that cannot be read until they are written.
    bad: BTreeSet<u64>,
    /// Damaged blocks, as long as nobody wrote them anew.
    watched: BTreeSet<u64>,
    /// Whether a damaged block was read.
    noticed: bool,
}

impl State {
    fn block(&self, number: u64) -> &Bytes {
        self.overlay.get(&number).unwrap_or_else(|| block(&self.base, number))
    }
    fn put(&mut self, number: u64, data: Bytes) {
        if self.remembers {
            let before = self.block(number).clone();
            self.previous.insert(number, before);
        }
        self.bad.remove(&number);
        self.watched.remove(&number);
        self.overlay.insert(number, data);
    }
}

/// What is wrong with a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// It holds this.
    Holds(Bytes),
    /// It cannot be read.
    Unreadable,
}

/// The disk.
pub(super) struct Disk {
    capacity: Blocks,
    state: Mutex<State>,
}

impl Disk {
    /// An empty disk that remembers what each block held before.
    pub(super) fn new(capacity: Blocks) -> Disk {
        Disk { capacity, state: Mutex::new(State { remembers: true, ..State::default() }) }
    }
    /// A disk with these contents, over which the damage lies.
    pub(super) fn with(capacity: Blocks, base: Arc<Contents>, damage: &BTreeMap<u64, Damage>) -> Disk {
        let disk = Disk { capacity, state: Mutex::new(State { base, ..State::default() }) };
        disk.damage(damage);
        disk
    }
    /// Damages blocks, whatever was damaged before.
    pub(super) fn damage(&self, damage: &BTreeMap<u64, Damage>) {
        let mut state = self.state.lock();
        state.watched = damage.keys().copied().collect();
        for (number, damage) in damage {
            match damage {
                Damage::Holds(data) => _ = state.overlay.insert(*number, data.clone()),
                Damage::Unreadable => _ = state.bad.insert(*number),
            }
        }
    }
    /// Goes back to these contents, without damage.
    pub(super) fn hold(&self, base: &Arc<Contents>) {
        *self.state.lock() = State { base: base.clone(), ..State::default() };
    }
    /// Contents now, and before the last write of each block.
    pub(super) fn contents(&self) -> (Contents, Contents) {
        let state = self.state.lock();
        let mut now = (*state.base).clone();
        now.extend(state.overlay.iter().map(|(number, data)| (*number, data.clone())));
        (now, state.previous.clone())
    }
    /// Whether a damaged block was read.
    pub(super) fn noticed(&self) -> bool {
        self.state.lock().noticed
    }
}

impl Layer for Disk {
    fn name(&self) -> String {
        "disk".into()
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
        let mut state = self.state.lock();
        let range = at.0..at.0 + count.0;
        state.noticed |= state.watched.range(range.clone()).next().is_some();
        if let Some(bad) = state.bad.range(range.clone()).next() {
            return Err(Error::new(Kind::Failed, format!("disk: unrecovered read error at block {bad}")));
        }
        let mut data = BytesMut::with_capacity(count.to_bytes().0 as usize);
        range.for_each(|number| data.extend_from_slice(state.block(number)));
        Ok(data.freeze())
    }
    async fn write(&self, _context: IoContext, at: Lba, pieces: Vec<Bytes>, _durability: Durability) -> Result<()> {
        let mut state = self.state.lock();
        let blocks = pieces.iter().flat_map(|piece| piece.chunks(BLOCK_LEN));
        (at.0..).zip(blocks).for_each(|(number, data)| state.put(number, Bytes::copy_from_slice(data)));
        Ok(())
    }
    async fn flush(&self, _context: IoContext) -> Result<()> {
        Ok(())
    }
    async fn discard(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        let mut state = self.state.lock();
        (at.0..at.0 + count.0).for_each(|number| state.put(number, ZEROS.clone()));
        Ok(())
    }
    async fn provision(&self, _: IoContext, _: Lba, _: Blocks) -> Result<()> {
        Ok(())
    }
    async fn extent(&self, _context: IoContext, _at: Lba, count: Blocks) -> Result<Extent> {
        Ok(Extent { hole: false, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_block::{Device, conformance};

    async fn empty(_env: ashlar_env::Env) -> Device {
        Arc::new(Disk::new(Blocks(300)))
    }
    conformance!(typed_disk, empty);
}
