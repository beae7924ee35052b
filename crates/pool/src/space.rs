//! Segments: where they lie, which are free, and how many live bytes each holds.
//!
//! Invariants
//!  1. A slot is Free only if the newest durable superblock, with the log after it, reaches nothing in it, and no reader
//!     that began before can still want it.
//!  2. `live` counts what the last checkpoint reaches; changes since are in the epoch's deltas ([`Usage`]).

use crate::format::{OpenSegment, SEGMENTS_AT, Stream, segments_on};
use ashlar_block::{Device, Error, Kind, Result};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Changes of live bytes by slot.
pub(crate) type Usage = BTreeMap<u32, i64>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Holds nothing.
    Free,
    /// Being written.
    Open(Stream),
    /// Written; no longer appended to.
    Sealed,
    /// Empties as soon as older readers are gone.
    Draining,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) state: State,
    pub(crate) uid: u64,
    pub(crate) live: i64,
    pub(crate) used: u32,
}

/// Where segments lie.
pub(crate) struct Layout {
    pub(crate) devices: Vec<Device>,
    /// First slot of each device.
    first: Vec<u32>,
    pub(crate) segment: Blocks,
}

impl Layout {
    pub(crate) fn new(devices: Vec<Device>, segment: Blocks) -> Layout {
        let mut first = Vec::with_capacity(devices.len());
        let mut next = 0u64;
        for device in &devices {
            first.push(next as u32);
            next += segments_on(device.geometry().capacity, segment);
        }
        Layout { devices, first, segment }
    }
    pub(crate) fn slots_count(&self) -> u32 {
        let last = self.devices.last().map_or(0, |last| segments_on(last.geometry().capacity, self.segment));
        self.first.last().copied().unwrap_or(0) + last as u32
    }
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment.to_bytes().0
    }
    /// Device and address of a block of a slot.
    pub(crate) fn locate(&self, slot: u32, block: u32) -> (usize, Lba) {
        let device = self.first.partition_point(|first| *first <= slot) - 1;
        let index = u64::from(slot - self.first[device]);
        (device, SEGMENTS_AT + Blocks(index * self.segment.0 + u64::from(block)))
    }
}

pub(crate) struct Space {
    inner: Mutex<Inner>,
    places: RwLock<HashMap<u64, u32>>,
}

struct Inner {
    slots: Vec<Slot>,
    free: BTreeSet<u32>,
    next_uid: u64,
}

/// Segments that ordinary writers leave for checkpoints, the cleaner and deletions.
pub(crate) const RESERVE_MIN: usize = 6;

/// Who asks for a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// Ordinary writes stop at the reserve.
    Ordinary,
    /// Checkpoints and deletions may use it.
    Reserve,
}

impl Space {
    pub(crate) fn new(slots_count: u32, session: u64) -> Space {
        let empty = Slot { state: State::Free, uid: 0, live: 0, used: 0 };
        let inner = Inner {
            slots: vec![empty; slots_count as usize],
            free: (0..slots_count).collect(),
            next_uid: session << 32 | 1,
        };
        Space { inner: Mutex::new(inner), places: RwLock::default() }
    }

    /// Segments kept for checkpoints, the cleaner and deletions: 1/32 of all, at least [`RESERVE_MIN`].
    pub(crate) fn reserve(&self) -> usize {
        (self.inner.lock().slots.len() / 32).max(RESERVE_MIN)
    }

    /// Registers a segment that the catalog or a superblock names.
    pub(crate) fn adopt(&self, slot: u32, uid: u64, live: i64, used: u32, state: State) -> Result<()> {
        let mut inner = self.inner.lock();
        let count = inner.slots.len();
        let Some(place) = inner.slots.get_mut(slot as usize) else {
            return Err(Error::corrupt(format!("the catalog names segment slot {slot} of {count}")));
        };
        *place = Slot { state, uid, live, used };
        inner.free.remove(&slot);
        self.places.write().insert(uid, slot);
        Ok(())
    }

    /// Takes a free slot for a new segment.
    pub(crate) fn allocate(&self, stream: Stream, claim: Claim) -> Result<OpenSegment> {
        let reserve = if claim == Claim::Reserve { 0 } else { self.reserve() };
        let mut inner = self.inner.lock();
        if inner.free.len() <= reserve {
            return Err(Error::new(Kind::NoSpace, "the pool is full: delete files or snapshots, or add a device"));
        }
        let slot = inner.free.pop_first().expect("more than the reserve is free");
        let uid = inner.next_uid;
        inner.next_uid += 1;
        inner.slots[slot as usize] = Slot { state: State::Open(stream), uid, live: 0, used: 0 };
        self.places.write().insert(uid, slot);
        Ok(OpenSegment { uid, slot, used: 0 })
    }

    pub(crate) fn seal(&self, segment: OpenSegment) {
        let mut inner = self.inner.lock();
        let slot = &mut inner.slots[segment.slot as usize];
        (slot.state, slot.used) = (State::Sealed, segment.used);
    }

    /// The slot of a segment, if it still exists.
    pub(crate) fn place(&self, uid: u64) -> Option<u32> {
        self.places.read().get(&uid).copied()
    }

    /// Adds a checkpoint's changes; gives the slots that it emptied. They are Draining from now on.
    pub(crate) fn settle(&self, usage: &Usage) -> Vec<u32> {
        let mut inner = self.inner.lock();
        for (slot, delta) in usage {
            inner.slots[*slot as usize].live += delta;
        }
        let mut emptied = Vec::new();
        for (index, slot) in inner.slots.iter_mut().enumerate() {
            debug_assert!(slot.live >= 0, "slot {index} holds {} live bytes", slot.live);
            if slot.state == State::Sealed && slot.live == 0 {
                slot.state = State::Draining;
                emptied.push(index as u32);
            }
        }
        emptied
    }

    /// Frees drained slots.
    pub(crate) fn release(&self, slots: &[u32]) {
        let mut inner = self.inner.lock();
        let mut places = self.places.write();
        for slot in slots {
            let place = &mut inner.slots[*slot as usize];
            places.remove(&place.uid);
            *place = Slot { state: State::Free, uid: 0, live: 0, used: 0 };
            inner.free.insert(*slot);
        }
    }

    pub(crate) fn slot(&self, slot: u32) -> Slot {
        self.inner.lock().slots[slot as usize]
    }
    pub(crate) fn slots(&self) -> Vec<Slot> {
        self.inner.lock().slots.clone()
    }
    pub(crate) fn free_count(&self) -> usize {
        self.inner.lock().free.len()
    }
    pub(crate) fn open_segments(&self) -> Vec<(u32, Slot)> {
        let inner = self.inner.lock();
        let slots = inner.slots.iter().enumerate().filter(|(_, slot)| matches!(slot.state, State::Open(_)));
        slots.map(|(index, slot)| (index as u32, *slot)).collect()
    }
}

/// Blocks that cover `len` bytes at `offset` of a segment: first block, count, and where the bytes begin in them.
pub(crate) fn cover(offset: u32, len: u32) -> (u32, Blocks, usize) {
    let first = offset / BLOCK_LEN as u32;
    let end = (u64::from(offset) + u64::from(len)).div_ceil(BLOCK_LEN as u64);
    (first, Blocks(end - u64::from(first)), offset as usize % BLOCK_LEN)
}
