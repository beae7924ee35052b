//! Segments: where they lie, which are free, and how many live bytes each holds.
//!
//! Invariants
//!  1. A slot is Free only if the newest durable superblock, with the log after it, reaches nothing in it, and no reader
//!     that began before can still want it.
//!  2. `live` counts what the last checkpoint reaches; changes since are in the epoch's deltas ([`Usage`]).
//!  3. Of a free slot on a thin device room is set aside before it is in `free`: what is counted upon is there. Slots without
//!     room are as if they did not exist, until [`Pool::provision`](crate::Pool) had some set aside.
//!  4. A segment's number (*uid*) names its slot in the low bits, so that a place is found without a table; the high
//!     bits count segments and are never used twice.

use crate::assemble::Member;
use crate::format::{DEVICES_MAX, DeviceRecord, OpenSegment, SEGMENTS_AT, SlotRecord, Stream, segments_on};
use crate::gate::Gate;
use crate::store::{GAP_MAX, Span};
use ashlar_block::{Device, Error, Kind, Result};
use ashlar_env::Instant;
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::sync::Notify;

/// Changes of live bytes by slot.
pub(crate) type Usage = BTreeMap<u32, i64>;

/// Bits of a uid that name its slot: 64 devices of 65,536 segments.
const SLOT_BITS: u32 = 22;

/// The slot of a segment.
pub(crate) fn slot_of(uid: u64) -> u32 {
    (uid & ((1 << SLOT_BITS) - 1)) as u32
}

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
    /// Live bytes of volumes.
    pub(crate) live: i64,
    /// Live bytes of the catalog's own nodes, which no catalog can count.
    pub(crate) catalog: i64,
    /// When it was sealed, in checkpoints of this opening.
    pub(crate) sealed: u64,
    /// Live bytes that the cleaner could not move.
    stuck: i64,
}

const EMPTY: Slot = Slot { state: State::Free, uid: 0, live: 0, catalog: 0, sealed: 0, stuck: 0 };

/// A device of the pool, or a part of one.
pub(crate) struct Place {
    pub(crate) device: Device,
    /// The device, and the first block of it that lies behind.
    pub(crate) whole: Device,
    pub(crate) behind: Lba,
    /// The number of the device, if this is not its first part.
    pub(crate) part_of: Option<u32>,
    pub(crate) record: DeviceRecord,
    /// Segments on it.
    pub(crate) slots: Range<u32>,
    /// Written to since its last flush.
    pub(crate) dirty: AtomicBool,
    pub(crate) gate: Gate,
}

/// Where segments lie. A device is only ever added, behind the others, so that slots keep their numbers.
pub(crate) struct Layout {
    places: [OnceLock<Place>; DEVICES_MAX],
    pub(crate) segment: Blocks,
}

impl Layout {
    pub(crate) fn new(segment: Blocks) -> Layout {
        Layout { places: [const { OnceLock::new() }; DEVICES_MAX], segment }
    }
    /// The slots that one more device would have, if there may be one.
    pub(crate) fn admit(&self, device: &Device, record: DeviceRecord) -> Result<Range<u32>> {
        let first = self.slots_count();
        let end = u64::from(first) + segments_on(record.capacity, self.segment);
        if self.places().count() < DEVICES_MAX && end < 1 << SLOT_BITS {
            return Ok(first..end as u32);
        }
        let most = Blocks(self.segment.0 << SLOT_BITS).to_bytes();
        let message = format!(
            "{}: is too much: this pool can have {DEVICES_MAX} devices, and parts of enlarged ones, of together {most}",
            device.name()
        );
        Err(Error::misuse(message))
    }
    /// Adds a device, or a part of one.
    pub(crate) fn add(&self, member: Member, record: DeviceRecord) -> Result<&Place> {
        let slots = self.admit(&member.device, record)?;
        let Member { device, whole, from, part_of } = member;
        let free = self.places.iter().find(|place| place.get().is_none()).expect("one more is admitted");
        let (behind, dirty, gate) = (from + record.capacity, AtomicBool::new(false), Gate::default());
        let place = Place { device, whole, behind, part_of, record, slots, dirty, gate };
        free.set(place).ok().expect("devices are added one after another");
        Ok(free.get().expect("just set"))
    }
    pub(crate) fn places(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().map_while(OnceLock::get)
    }
    pub(crate) fn records(&self) -> Vec<DeviceRecord> {
        self.places().map(|place| place.record).collect()
    }
    pub(crate) fn slots_count(&self) -> u32 {
        self.places().last().map_or(0, |place| place.slots.end)
    }
    /// Whether `len` bytes at `offset` of a segment exist.
    pub(crate) fn holds(&self, uid: u64, offset: u32, len: u32) -> bool {
        slot_of(uid) < self.slots_count() && u64::from(offset) + u64::from(len) <= self.segment_bytes()
    }
    /// Bytes of a segment.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment.to_bytes().0
    }
    /// Number of a byte of a segment among those of all segments, in the order in which they lie.
    pub(crate) fn position(&self, uid: u64, offset: u32) -> u64 {
        u64::from(slot_of(uid)) * self.segment_bytes() + u64::from(offset)
    }
    /// Bytes from the beginning of `from` to a byte of a segment, which may be another one. 0: it does not lie behind.
    pub(crate) fn distance(&self, from: &Span, uid: u64, offset: u32) -> u64 {
        self.position(uid, offset).saturating_sub(self.position(from.uid, from.range.start))
    }
    /// Whether `next` lies so shortly behind that both are better read at once: they follow each other, or what lies between is little
    /// more than the lead of a batch. Where a segment ends, the next one on the same device goes on.
    pub(crate) fn is_near(&self, one: &Span, next: &Span) -> bool {
        let device = |span: &Span| self.places().position(|place| place.slots.contains(&slot_of(span.uid)));
        let follows = || slot_of(one.uid).checked_add(1) == Some(slot_of(next.uid)) && device(one) == device(next);
        let gap = self.distance(one, next.uid, next.range.start).checked_sub(one.range.len() as u64);
        gap.is_some_and(|gap| gap <= GAP_MAX) && (one.uid == next.uid || follows())
    }
    /// Device, address and length of slots that follow each other on one device. They must exist.
    pub(crate) fn stretch(&self, slots: &[u32]) -> (&Place, Lba, Blocks) {
        // A number of the slot alone names its place.
        let (place, at) = self.locate(u64::from(slots[0]), 0);
        (place, at, Blocks(slots.len() as u64 * self.segment.0))
    }
    /// Device and address of a block of a segment. The slot must exist: see [`Layout::holds`].
    pub(crate) fn locate(&self, uid: u64, block: u32) -> (&Place, Lba) {
        let slot = slot_of(uid);
        let place = self.places().find(|place| slot < place.slots.end).expect("the slot exists");
        let index = u64::from(slot - place.slots.start);
        (place, SEGMENTS_AT + Blocks(index * self.segment.0 + u64::from(block)))
    }
}

/// The segment in a slot, and its live bytes after a change. Accounts below nothing mean that metadata is wrong: on them
/// no space can be freed.
fn sum(slots: &[Slot], slot: u32, delta: i64, of: impl Fn(&Slot) -> i64) -> Result<(u64, i64)> {
    let place = slots.get(slot as usize);
    let sum = place.and_then(|place| of(place).checked_add(delta)).filter(|sum| *sum >= 0);
    let refuse = || Error::corrupt(format!("the live bytes of segment slot {slot} do not add up; run `ashlar check`"));
    place.zip(sum).map(|(place, sum)| (place.uid, sum)).ok_or_else(refuse)
}

pub(crate) struct Space {
    inner: Mutex<Inner>,
    /// Room should be set aside for more slots.
    pub(crate) wanted: Notify,
}

struct Inner {
    slots: Vec<Slot>,
    free: BTreeSet<u32>,
    /// Slots that are free, and have no room yet: their device is thin.
    bare: BTreeSet<u32>,
    /// Slots that are free, and of which a device is just told that.
    told: BTreeSet<u32>,
    /// Slots of each thin place, and when there was no room for one of them: until there is, the place is as large as what has some.
    thin: Vec<(Range<u32>, Option<Instant>)>,
    /// Slots whose record may have changed since the catalog was last written.
    changed: BTreeSet<u32>,
    /// Segments ever begun.
    born: u64,
    /// Freezes so far.
    epoch: u64,
    /// Bytes of a segment.
    segment: u64,
    /// Bytes of the volumes' nodes, and of messages that are not in nodes yet.
    nodes: u64,
    pending: u64,
}

/// Segments that ordinary writers leave for checkpoints, the cleaner and deletions.
pub(crate) const RESERVE_MIN: usize = 6;

/// A segment is worth cleaning if this part of it is dead.
const VICTIM_LIVE_DIVISOR: u64 = 16;
/// Segments cleaned in one round.
const VICTIMS_MAX: usize = 16;

/// Bytes of room that are set aside beyond what the pool needs to go on, so that who writes does not wait for it; of a small pool a
/// sixteenth, and four segments in any case.
const ROOM_AHEAD: u64 = 128 << 20;
/// Room that there was not is asked for again after this time.
const REFUSED: Duration = Duration::from_secs(1);

/// Who asks for a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// Ordinary writes stop at the reserve.
    Ordinary,
    /// The cleaner's copies leave what the checkpoint needs that ends the round.
    Copies,
    /// Checkpoints and deletions may use all of it.
    Reserve,
}

impl Inner {
    /// Segments that the next checkpoint may write. At worst it writes every node anew, with what is pending, and none that
    /// it replaces is free before it is done. Half as much again: nodes begin at blocks, and batches and segments do not
    /// become quite full; and an eighth of that for parity. One more for each stream of nodes and log.
    fn checkpoint_need(&self, pending: u64) -> usize {
        let bytes = self.nodes.saturating_add(pending).saturating_mul(27) / 16;
        bytes.div_ceil(self.segment) as usize + 2
    }
    fn reserve_with(&self, pending: u64) -> usize {
        (self.with_room() / 32).max(RESERVE_MIN).max(self.checkpoint_need(pending) + 2)
    }
    fn reserve(&self) -> usize {
        self.reserve_with(self.pending)
    }
    /// With fewer free segments the cleaner runs.
    fn low_mark(&self) -> usize {
        self.reserve() + (self.with_room() / 16).max(4)
    }
    /// Slots that are in use or could be.
    fn with_room(&self) -> usize {
        self.slots.len() - self.bare.len() - self.told.len()
    }
    /// Slots that may get room, in ascending order within each place.
    fn growable(&self, may: impl Fn(Instant) -> bool) -> impl Iterator<Item = u32> {
        let thin = self.thin.iter().filter(move |(_, refused)| refused.is_none_or(&may));
        thin.flat_map(|(slots, _)| self.bare.range(slots.clone()).copied())
    }
    /// More slots may get room.
    fn may_grow(&self) -> bool {
        self.growable(|_| false).next().is_some()
    }
    fn is_full_below(&self) -> bool {
        !self.bare.is_empty() && !self.may_grow()
    }
    /// Nothing is left for who asks.
    fn full(&self) -> Error {
        let why = match self.is_full_below() {
            true => {
                "the file system that holds the pool's devices is full: make room there, or delete files or snapshots here"
            }
            false => "the pool is full: delete files or snapshots, or add a device",
        };
        Error::new(Kind::NoSpace, why)
    }
    fn place_of(&mut self, slot: u32) -> Option<&mut Option<Instant>> {
        self.thin.iter_mut().find(|(slots, _)| slots.contains(&slot)).map(|(_, refused)| refused)
    }
    fn room_ahead(&self) -> usize {
        ((ROOM_AHEAD / self.segment) as usize).min(self.slots.len() / 16).max(4)
    }
}

impl Space {
    /// Without slots. `born`: segments ever begun, or more.
    pub(crate) fn new(born: u64, segment: Blocks) -> Space {
        let (slots, free, bare, told, thin, changed) = Default::default();
        let (segment, epoch, nodes, pending) = (segment.to_bytes().0, 1, 0, 0);
        let inner = Mutex::new(Inner { slots, free, bare, told, thin, changed, born, epoch, segment, nodes, pending });
        Space { inner, wanted: Notify::new() }
    }

    /// Adds the free slots of a place behind the others.
    pub(crate) fn add(&self, place: &Place) {
        let mut inner = self.inner.lock();
        inner.slots.resize(place.slots.end as usize, EMPTY);
        if place.device.capability().thin {
            inner.thin.push((place.slots.clone(), None));
            inner.bare.extend(place.slots.clone());
        } else {
            inner.free.extend(place.slots.clone());
        }
    }

    /// Nothing is left for who asks.
    pub(crate) fn full(&self) -> Error {
        self.inner.lock().full()
    }

    /// Slots that should get room now, in ascending order. Those that ever had some come first, since the lowest are taken first:
    /// for them there is room in any case.
    pub(crate) fn lacking(&self, now: Instant) -> Vec<u32> {
        let inner = self.inner.lock();
        let wanted = (inner.low_mark() + inner.room_ahead()).saturating_sub(inner.free.len());
        inner.growable(|since| now.since(since) >= REFUSED).take(wanted).collect()
    }
    /// There is room for these now.
    pub(crate) fn provide(&self, slots: &[u32]) {
        let mut inner = self.inner.lock();
        for slot in slots {
            inner.place_of(*slot).into_iter().for_each(|refused| *refused = None);
            // Who could not wait may have taken it.
            if inner.bare.remove(slot) {
                inner.free.insert(*slot);
            }
        }
    }
    /// There is no room for this slot, nor for others of its place.
    pub(crate) fn refuse(&self, slot: u32, now: Instant) {
        self.inner.lock().place_of(slot).into_iter().for_each(|refused| *refused = Some(now));
    }
    /// Slots that hold nothing, in stretches.
    pub(crate) fn unused(&self) -> Vec<Range<u32>> {
        let inner = self.inner.lock();
        let mut stretches: Vec<Range<u32>> = Vec::new();
        for slot in (0..).zip(&inner.slots).filter(|(_, slot)| slot.state == State::Free).map(|(slot, _)| slot) {
            match stretches.last_mut().filter(|last| last.end == slot) {
                Some(last) => last.end += 1,
                None => stretches.push(slot..slot + 1),
            }
        }
        stretches
    }
    /// Those of some slots that are free and not wanted soon, in ascending order. With `hold` nobody takes them until they are given back.
    pub(crate) fn withdraw(&self, slots: Range<u32>, hold: bool) -> Vec<u32> {
        let mut inner = self.inner.lock();
        let is_thin = inner.place_of(slots.start).is_some();
        // Of a thin device the lowest are kept, of another one any.
        let kept = inner.low_mark() + if is_thin { inner.room_ahead() } else { 0 };
        let most = inner.free.len().saturating_sub(kept);
        let first = if is_thin { inner.free.iter().nth(kept).copied() } else { Some(0) };
        let first = first.unwrap_or(u32::MAX).max(slots.start);
        let mut taken: Vec<u32> = inner.bare.range(slots.clone()).copied().collect();
        if first < slots.end {
            taken.extend(inner.free.range(first..slots.end).rev().take(most));
        }
        taken.sort_unstable();
        if hold {
            for slot in &taken {
                let _ = inner.free.remove(slot) || inner.bare.remove(slot);
            }
            inner.told.extend(&taken);
        }
        taken
    }
    /// Their device was told. If it is thin, they have no room any more.
    pub(crate) fn give_back(&self, slots: &[u32]) {
        let mut inner = self.inner.lock();
        for slot in slots.iter().filter(|slot| inner.told.remove(slot)).collect::<Vec<_>>() {
            match inner.place_of(*slot) {
                Some(refused) => {
                    *refused = None;
                    inner.bare.insert(*slot);
                }
                None => _ = inner.free.insert(*slot),
            }
        }
    }
    /// Slots for which there was no room when it was asked for.
    pub(crate) fn refused(&self) -> usize {
        let inner = self.inner.lock();
        inner.bare.len() - inner.growable(|_| false).count()
    }
    /// Whether that are all that have none.
    pub(crate) fn is_full_below(&self) -> bool {
        self.inner.lock().is_full_below()
    }

    /// Bytes of the volumes' nodes, and of messages that are not in nodes yet. Whether a checkpoint must be now, since there
    /// is hardly room for it, and will do any good.
    pub(crate) fn note_pending(&self, nodes: u64, pending: u64) -> bool {
        let mut inner = self.inner.lock();
        (inner.nodes, inner.pending) = (nodes, pending);
        pending > inner.segment / 4 && inner.free.len() <= inner.checkpoint_need(pending)
    }
    /// Segments kept for checkpoints, the cleaner and deletions: 1/32 of all, at least [`RESERVE_MIN`], and as many as a
    /// checkpoint may need when nothing is pending.
    pub(crate) fn reserve(&self) -> usize {
        self.inner.lock().reserve_with(0)
    }
    /// Whether some of the reserve is in use. Ordinary writes must not go on then, not even into open segments.
    pub(crate) fn is_overdrawn(&self) -> bool {
        let inner = self.inner.lock();
        inner.free.len() < inner.reserve()
    }
    /// Whether no more is left than the next checkpoint may need.
    pub(crate) fn is_scarce(&self) -> bool {
        let inner = self.inner.lock();
        inner.free.len() < inner.checkpoint_need(inner.pending)
    }
    /// Bytes of segments that copies may take.
    pub(crate) fn room_for_copies(&self) -> u64 {
        let inner = self.inner.lock();
        inner.free.len().saturating_sub(inner.checkpoint_need(inner.pending)) as u64 * inner.segment
    }
    /// Free segments beyond the reserve.
    pub(crate) fn spare(&self) -> usize {
        let inner = self.inner.lock();
        inner.free.len().saturating_sub(inner.reserve())
    }
    /// Segments ever begun.
    pub(crate) fn born(&self) -> u64 {
        self.inner.lock().born
    }

    /// Registers a segment that a superblock, the catalog or the log names, and live bytes in it.
    pub(crate) fn adopt(&self, uid: u64, live: i64, catalog: i64) -> Result<()> {
        let mut inner = self.inner.lock();
        let slot = slot_of(uid);
        let (count, born) = (inner.slots.len(), inner.born);
        if uid >> SLOT_BITS >= born {
            return Err(Error::corrupt(format!("metadata names segment {uid:#x}, which is not begun yet")));
        }
        let Some(place) = inner.slots.get_mut(slot as usize) else {
            return Err(Error::corrupt(format!("metadata names segment slot {slot} of {count}")));
        };
        if place.uid != uid && place.state != State::Free {
            let other = place.uid;
            return Err(Error::corrupt(format!("segments {uid:#x} and {other:#x} claim one slot")));
        }
        (place.state, place.uid) = (State::Sealed, uid);
        place.live += live;
        place.catalog += catalog;
        inner.free.remove(&slot);
        inner.bare.remove(&slot);
        Ok(())
    }

    /// Takes a free slot for a new segment.
    pub(crate) fn allocate(&self, stream: Stream, claim: Claim) -> Result<OpenSegment> {
        let mut inner = self.inner.lock();
        let reserve = match claim {
            Claim::Ordinary => inner.reserve(),
            Claim::Copies => inner.checkpoint_need(inner.pending),
            Claim::Reserve => 0,
        };
        // What must go on does so before room is set aside, unless there was none.
        let last = if reserve == 0 { inner.growable(|_| false).next() } else { None };
        let slot = if inner.free.len() > reserve { inner.free.pop_first() } else { last };
        let Some(slot) = slot else { return Err(inner.full()) };
        inner.bare.remove(&slot);
        if inner.may_grow() && inner.free.len() < inner.low_mark() + inner.room_ahead() / 2 {
            self.wanted.notify_one();
        }
        let uid = inner.born << SLOT_BITS | u64::from(slot);
        inner.born += 1;
        inner.slots[slot as usize] = Slot { state: State::Open(stream), uid, ..EMPTY };
        inner.changed.insert(slot);
        Ok(OpenSegment { uid, used: 0 })
    }

    /// A segment is full.
    pub(crate) fn seal(&self, uid: u64) {
        let mut inner = self.inner.lock();
        let epoch = inner.epoch;
        let slot = &mut inner.slots[slot_of(uid) as usize];
        (slot.state, slot.sealed) = (State::Sealed, epoch);
    }

    /// A freeze: segments that are sealed from now on may hold log that the next superblock needs.
    pub(crate) fn begin_epoch(&self) {
        self.inner.lock().epoch += 1;
    }

    /// What the catalog must say about slots that changed, once `usage` is added; `None`: nothing.
    pub(crate) fn records(&self, usage: &Usage) -> Result<Vec<(u32, Option<SlotRecord>)>> {
        let mut inner = self.inner.lock();
        let mut slots = std::mem::take(&mut inner.changed);
        slots.extend(usage.keys());
        let record = |slot: u32| {
            let delta = usage.get(&slot).copied().unwrap_or(0);
            let (uid, live) = sum(&inner.slots, slot, delta, |slot| slot.live)?;
            Ok((slot, (live > 0).then_some(SlotRecord { uid, live: live as u64 })))
        };
        slots.into_iter().map(record).collect()
    }

    /// Refuses changes of the catalog's own live bytes that cannot be.
    pub(crate) fn verify_catalog(&self, usage: &Usage) -> Result<()> {
        let inner = self.inner.lock();
        usage.iter().try_for_each(|(slot, delta)| sum(&inner.slots, *slot, *delta, |slot| slot.catalog).map(|_| ()))
    }

    /// Adds a checkpoint's changes; gives the slots that it emptied. They are Draining from now on.
    pub(crate) fn settle(&self, usage: &Usage, catalog: &Usage) -> Vec<u32> {
        let mut inner = self.inner.lock();
        for (slot, delta) in usage {
            inner.slots[*slot as usize].live += delta;
        }
        for (slot, delta) in catalog {
            inner.slots[*slot as usize].catalog += delta;
        }
        self.drain(&mut inner)
    }

    fn drain(&self, inner: &mut Inner) -> Vec<u32> {
        let mut emptied = Vec::new();
        for (index, slot) in inner.slots.iter_mut().enumerate() {
            debug_assert!(slot.live >= 0, "slot {index} holds {} live bytes", slot.live);
            debug_assert!(slot.catalog >= 0, "slot {index} holds {} live bytes of the catalog", slot.catalog);
            if slot.state == State::Sealed && slot.live == 0 && slot.catalog == 0 && slot.sealed < inner.epoch {
                slot.state = State::Draining;
                emptied.push(index as u32);
            }
        }
        emptied
    }

    /// Frees drained slots.
    pub(crate) fn release(&self, slots: &[u32]) {
        let mut inner = self.inner.lock();
        for slot in slots {
            inner.slots[*slot as usize] = EMPTY;
            inner.free.insert(*slot);
        }
    }

    /// Whether the cleaner should run.
    pub(crate) fn is_low(&self) -> bool {
        let inner = self.inner.lock();
        inner.free.len() < inner.low_mark() && !inner.may_grow()
    }
    /// Whether so many segments are a large part of all.
    pub(crate) fn is_much(&self, segments: usize) -> bool {
        segments > self.inner.lock().with_room() / 16
    }
    /// Whether ordinary writes can take no more than half of the segments.
    pub(crate) fn is_half_taken(&self) -> bool {
        let inner = self.inner.lock();
        let more = inner.growable(|_| false).count();
        inner.free.len() + more <= inner.reserve() + (inner.with_room() + more) / 2
    }
    /// Free segments missing to half the low mark, above the reserve; 0 while there are enough.
    pub(crate) fn shortage(&self) -> u32 {
        let inner = self.inner.lock();
        let comfortable = inner.reserve().midpoint(inner.low_mark());
        comfortable.saturating_sub(inner.free.len()) as u32
    }
    /// Segments that are free, or will be when readers are gone.
    pub(crate) fn emptying(&self) -> usize {
        let inner = self.inner.lock();
        inner.slots.iter().filter(|slot| matches!(slot.state, State::Free | State::Draining)).count()
    }

    /// Segments whose cleaning gains most for its cost, with about `bytes` live bytes together.
    pub(crate) fn victims(&self, bytes: u64, segment_bytes: u64) -> Vec<u64> {
        let inner = self.inner.lock();
        let mut candidates: Vec<(u64, u64, u64)> = Vec::new();
        for slot in inner.slots.iter().filter(|slot| slot.state == State::Sealed && slot.sealed < inner.epoch) {
            let live = (slot.live + slot.catalog).max(0) as u64;
            let stuck = slot.stuck > 0 && slot.live + slot.catalog > slot.stuck / 4 * 3;
            if live > segment_bytes / VICTIM_LIVE_DIVISOR * (VICTIM_LIVE_DIVISOR - 1) || stuck {
                continue;
            }
            // (1 - u) * age / (1 + u), in integers.
            let age = inner.born - (slot.uid >> SLOT_BITS);
            let benefit = u128::from(segment_bytes - live.min(segment_bytes)) * u128::from(age) * 1024;
            candidates.push(((benefit / u128::from(segment_bytes + live)) as u64, slot.uid, live));
        }
        candidates.sort_unstable_by_key(|candidate| std::cmp::Reverse(*candidate));
        let mut sum = 0;
        let within = |(_, _, live): &(u64, u64, u64)| {
            let first = sum == 0;
            sum = live.saturating_add(sum);
            first || sum <= bytes
        };
        candidates.into_iter().take_while(within).take(VICTIMS_MAX).map(|(_, uid, _)| uid).collect()
    }

    /// Remembers what could not be moved out of these segments.
    pub(crate) fn note_cleaned(&self, victims: &[u64]) {
        let mut inner = self.inner.lock();
        for uid in victims {
            let slot = &mut inner.slots[slot_of(*uid) as usize];
            if slot.uid == *uid && slot.state == State::Sealed {
                slot.stuck = slot.live + slot.catalog;
            }
        }
    }

    /// What could not be moved may be movable now.
    pub(crate) fn forget_stuck(&self) {
        self.inner.lock().slots.iter_mut().for_each(|slot| slot.stuck = 0);
    }

    /// Whether a segment is there and has not emptied.
    pub(crate) fn is_live(&self, uid: u64) -> bool {
        let inner = self.inner.lock();
        let slot = inner.slots.get(slot_of(uid) as usize);
        slot.is_some_and(|slot| slot.uid == uid && matches!(slot.state, State::Open(_) | State::Sealed))
    }

    pub(crate) fn slots(&self) -> Vec<Slot> {
        self.inner.lock().slots.clone()
    }
}

/// Blocks that cover `len` bytes at `offset` of a segment: first block, count, and where the bytes begin in them.
pub(crate) fn cover(offset: u32, len: u32) -> (u32, Blocks, usize) {
    let first = offset / BLOCK_LEN as u32;
    let end = (u64::from(offset) + u64::from(len)).div_ceil(BLOCK_LEN as u64);
    (first, Blocks(end - u64::from(first)), offset as usize % BLOCK_LEN)
}
