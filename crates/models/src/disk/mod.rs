//! A mechanical disk.
//!
//! One arm, one request on the medium at a time. A request passes the command processor (a fixed time, overlapped with
//! the mechanism), is held in a bounded queue, is chosen by the scheduler, and then costs: moving the arm and settling;
//! waiting for the medium to come round; passing the sectors, with a switch of track on the way where it crosses one.
//!
//! *Reads.* After a read the drive reads on until another request moves the arm or the read-ahead is full. A read of what
//! the buffer holds, or of what is being read ahead, needs no positioning.
//!
//! *Writes.* With the write-back cache a write is done when it is in the buffer. What is in the buffer goes to the medium
//! when no request waits, when the buffer is three quarters full, or when a flush waits; the scheduler picks among it
//! like among requests. Forced unit access, and writes that find the buffer full, go to the medium at once.
//!
//! *Settling* is charged also for another place on the same track, unless the description has a time for that: the
//! Cheetah of the proximal paper shows no difference (track-approximate row of its Table 1), and its nearline drive must
//! have one (Table 2). Only the sectors that follow directly on the last ones need none.
//!
//! Not modelled: errors and retries, defects and remapping, recalibration, variation of the seek between pairs of tracks,
//! read-modify-write of 512-byte writes on 4 KiB sectors, shingled tracks, a media cache, zoned recording of servo.

mod geometry;
mod medium;
mod power;
mod queue;
mod seek;
mod spec;

pub use geometry::{Geometry, Place};
pub use power::{Energy, PowerSpec, PowerState};
pub use seek::SeekCurve;
pub use spec::{CacheSpec, DiskSpec, QueueSpec, Scheduler, SeekSpec};

use crate::error::SpecError;
use crate::io::{Completion, Counters, Id, Kind, Refused, Request, SECTOR, Split, admit};
use crate::model::Model;
use medium::Ahead;
use power::Meter;
use queue::{Arm, Held, choose};
use spec::Parameters;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, Read, Write};

/// Writes that the buffer holds at most, whatever their size; bounds the work of the scheduler.
const DIRTY_WRITES_MAX: usize = 256;
/// Requests that wait outside of the queue of the drive at most.
const WAITING_MAX: usize = 1 << 16;

/// A disk in some state.
#[derive(Debug)]
pub struct Disk {
    is: Parameters,
    counters: Counters,
    meter: Meter,
    now_ns: u64,
    next_id: Id,
    /// Requests that the drive holds, in any stage.
    held: usize,
    waiting: VecDeque<(Id, u64, Request)>,
    /// Requests that pass the command processor, in order.
    arriving: VecDeque<Incoming>,
    /// Requests for the scheduler.
    queue: Vec<Held>,
    /// Writes in the buffer.
    dirty: Vec<Held>,
    dirty_bytes: u64,
    flushes: Vec<Flush>,
    /// What the mechanism does now.
    active: Option<Active>,
    arm: Arm,
    ahead: Option<Ahead>,
    segments: VecDeque<(u64, u64)>,
    /// Completions that need no mechanism.
    buffered: BinaryHeap<Reverse<Buffered>>,
}

#[derive(Debug)]
struct Incoming {
    id: Id,
    submitted_ns: u64,
    ready_ns: u64,
    request: Request,
}

/// A flush waits for the buffered writes before its turn.
#[derive(Debug)]
struct Flush {
    turn: u64,
    incoming: Incoming,
}

#[derive(Debug)]
struct Active {
    held: Held,
    done_ns: u64,
    split: Split,
    /// The write comes from the buffer; its request is done already.
    destage: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Buffered {
    done_ns: u64,
    id: Id,
    completion: Done,
}
#[derive(Debug, PartialEq, Eq)]
struct Done(Completion);

impl Ord for Buffered {
    fn cmp(&self, other: &Buffered) -> std::cmp::Ordering {
        (self.done_ns, self.id).cmp(&(other.done_ns, other.id))
    }
}
impl PartialOrd for Buffered {
    fn partial_cmp(&self, other: &Buffered) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Disk {
    /// A drive by its description, spinning, with the arm at the outer edge.
    pub fn new(spec: &DiskSpec) -> Result<Disk, SpecError> {
        let is = spec.check()?;
        let depth = is.depth;
        Ok(Disk {
            counters: Counters::default(),
            meter: Meter::new(spec.power.clone()),
            now_ns: 0,
            next_id: 0,
            held: 0,
            waiting: VecDeque::new(),
            arriving: VecDeque::with_capacity(depth),
            queue: Vec::with_capacity(depth),
            dirty: Vec::with_capacity(if is.write_back { DIRTY_WRITES_MAX } else { 0 }),
            dirty_bytes: 0,
            flushes: Vec::with_capacity(depth),
            active: None,
            arm: Arm { cylinder: 0, surface: 0, next_sector: u64::MAX },
            ahead: None,
            segments: VecDeque::with_capacity(is.segments + 1),
            buffered: BinaryHeap::with_capacity(depth),
            is,
        })
    }

    /// The layout of the drive.
    pub fn geometry(&self) -> &Geometry {
        &self.is.geometry
    }

    /// Cylinder that the arm is at, or moves to.
    pub fn cylinder(&self) -> u32 {
        self.arm.cylinder
    }

    /// Mean over random pairs of the seek curve for reads, and the full stroke, nanoseconds.
    pub fn seek_curve(&self, kind: Kind) -> &SeekCurve {
        if kind == Kind::Write { &self.is.write_seek } else { &self.is.read_seek }
    }

    /// Stops the spindle if the mechanism has nothing to do; the next request waits for the spin-up.
    pub fn stand_by(&mut self, now_ns: u64) {
        if self.active.is_none() && self.queue.is_empty() && self.dirty.is_empty() {
            self.end_ahead(now_ns);
            self.meter.stand_by(now_ns);
        }
    }

    /// What the spindle does.
    pub fn power_state(&mut self, now_ns: u64) -> PowerState {
        self.meter.state(now_ns)
    }

    /// Energy used until now.
    pub fn energy(&mut self, now_ns: u64) -> Energy {
        self.meter.energy(now_ns)
    }

    fn interface_ns(&self, len: u64) -> u64 {
        len / SECTOR * self.is.interface_ns_per_sector
    }

    /// A request enters the command processor.
    fn enter(&mut self, id: Id, submitted_ns: u64, now_ns: u64, request: Request) {
        self.held += 1;
        let ready_ns = now_ns + self.is.command_ns;
        self.arriving.push_back(Incoming { id, submitted_ns, ready_ns, request });
    }

    /// A request leaves the command processor: to the queue, or done from the buffer.
    fn arrive(&mut self, incoming: Incoming) {
        let request = incoming.request;
        let (sector, sectors) = (request.offset / SECTOR, request.len / SECTOR);
        match request.kind {
            Kind::Read if self.buffer_holds(sector, sectors) => {
                self.counters.cache_hits += 1;
                self.finish_from_buffer(incoming, self.interface_ns(request.len));
            }
            Kind::Write if self.takes_into_buffer(&request) => {
                let transfer_ns = self.interface_ns(request.len);
                self.dirty_bytes += request.len;
                self.forget(sector, sectors);
                let held = self.hold(&incoming);
                self.dirty.push(held);
                self.finish_from_buffer(incoming, transfer_ns);
            }
            Kind::Read | Kind::Write => {
                if request.kind == Kind::Write {
                    self.forget(sector, sectors);
                }
                let held = self.hold(&incoming);
                self.queue.push(held);
            }
            Kind::Flush => {
                self.flushes.push(Flush { turn: incoming.id, incoming });
                self.finish_flushes();
            }
            Kind::Discard => self.finish_from_buffer(incoming, 0),
        }
    }

    fn hold(&self, incoming: &Incoming) -> Held {
        let sector = incoming.request.offset / SECTOR;
        let place = self.is.geometry.place(sector);
        Held {
            id: incoming.id,
            submitted_ns: incoming.submitted_ns,
            ready_ns: incoming.ready_ns,
            request: incoming.request,
            sector,
            cylinder: place.cylinder,
            surface: place.surface,
            angle_ns: self.is.geometry.angle_ns(&place),
        }
    }

    fn takes_into_buffer(&self, request: &Request) -> bool {
        self.is.write_back
            && !request.fua
            && self.dirty.len() < DIRTY_WRITES_MAX
            && self.dirty_bytes + request.len <= self.is.write_buffer
    }

    fn buffer_holds(&self, sector: u64, sectors: u64) -> bool {
        let inside = |start: u64, end: u64| start <= sector && sector + sectors <= end;
        self.segments.iter().any(|&(start, end)| inside(start, end))
            || self
                .ahead
                .is_some_and(|ahead| sector < ahead.limit && inside(ahead.start, self.reached(&ahead, self.now_ns)))
            || self.dirty.iter().any(|held| inside(held.sector, held.sector + held.request.len / SECTOR))
    }

    /// What is written anew is not read from old segments.
    fn forget(&mut self, sector: u64, sectors: u64) {
        let end = sector + sectors;
        self.segments.retain(|&(start, stop)| stop <= sector || end <= start);
        if let Some(ahead) = self.ahead
            && sector < ahead.limit
            && ahead.start < end
        {
            self.arm.next_sector = u64::MAX;
            self.ahead = None;
        }
    }

    fn finish_from_buffer(&mut self, incoming: Incoming, transfer_ns: u64) {
        let done_ns = incoming.ready_ns.max(self.now_ns) + transfer_ns;
        let completion = Completion {
            id: incoming.id,
            request: incoming.request,
            submitted_ns: incoming.submitted_ns,
            done_ns,
            split: Split {
                queue_ns: done_ns - incoming.submitted_ns - self.is.command_ns - transfer_ns,
                overhead_ns: self.is.command_ns,
                transfer_ns,
                ..Split::default()
            },
        };
        self.buffered.push(Reverse(Buffered { done_ns, id: incoming.id, completion: Done(completion) }));
    }

    /// Flushes are done when no buffered write before them is left.
    fn finish_flushes(&mut self) {
        while let Some(flush) = self.flushes.first() {
            let earlier = |held: &Held| held.id < flush.turn;
            let moving = self.active.as_ref().is_some_and(|active| active.destage && earlier(&active.held));
            if moving || self.dirty.iter().any(earlier) {
                return;
            }
            let flush = self.flushes.remove(0);
            self.finish_from_buffer(flush.incoming, 0);
        }
    }

    /// The mechanism is free: gives it the next piece of work, if there is any.
    fn dispatch(&mut self) {
        let flushing = !self.flushes.is_empty();
        let full = self.dirty_bytes * 4 >= self.is.write_buffer * 3 || self.dirty.len() * 4 >= DIRTY_WRITES_MAX * 3;
        let destage = !self.dirty.is_empty() && (self.queue.is_empty() || flushing || full);
        let from = if destage { &self.dirty } else { &self.queue };
        if from.is_empty() {
            return;
        }
        let ahead = self.ahead.map(|ahead| ahead.start..=self.reached(&ahead, self.now_ns));
        // Nobody waits for a buffered write, so its age does not count.
        let age_weight = if destage { 0.0 } else { self.is.age_weight };
        let index = choose(from, &self.arm, self.now_ns, &self.is, age_weight, ahead);
        let held = if destage { self.dirty.swap_remove(index) } else { self.queue.swap_remove(index) };
        let spin_up_ns = self.meter.wake(self.now_ns);
        let ready_ns = held.ready_ns;
        let mut split = Split {
            queue_ns: self.now_ns.saturating_sub(ready_ns) + (ready_ns - held.submitted_ns - self.is.command_ns),
            overhead_ns: self.is.command_ns + spin_up_ns,
            ..Split::default()
        };
        let begin_ns = self.now_ns + spin_up_ns;
        let done_ns = match self.stream(&held, begin_ns, &mut split) {
            Some(done_ns) => done_ns,
            None => self.position(&held, begin_ns, &mut split),
        };
        self.active = Some(Active { held, done_ns, split, destage });
    }

    fn finish_active(&mut self, active: Active, done: &mut Vec<Completion>) {
        let held = active.held;
        if active.destage {
            self.dirty_bytes -= held.request.len;
            self.finish_flushes();
        } else {
            self.counters.count(&held.request);
            self.held -= 1;
            done.push(Completion {
                id: held.id,
                request: held.request,
                submitted_ns: held.submitted_ns,
                done_ns: active.done_ns,
                split: active.split,
            });
        }
        if self.queue.is_empty() && self.dirty.is_empty() {
            self.meter.rest(active.done_ns);
        }
    }

    /// Everything that is due at `self.now_ns`.
    fn happen(&mut self, done: &mut Vec<Completion>) {
        if let Some(active) = self.active.take_if(|active| active.done_ns <= self.now_ns) {
            self.finish_active(active, done);
        }
        while let Some(incoming) = self.arriving.pop_front_if(|incoming| incoming.ready_ns <= self.now_ns) {
            self.arrive(incoming);
        }
        while let Some(Reverse(first)) = self.buffered.peek()
            && first.done_ns <= self.now_ns
            && let Some(Reverse(buffered)) = self.buffered.pop()
        {
            let Done(completion) = buffered.completion;
            self.counters.count(&completion.request);
            self.held -= 1;
            done.push(completion);
        }
        while self.held < self.is.depth
            && let Some((id, submitted_ns, request)) = self.waiting.pop_front()
        {
            self.enter(id, submitted_ns, self.now_ns, request);
        }
    }
}

impl Model for Disk {
    fn capacity(&self) -> u64 {
        self.is.capacity
    }

    fn submit(&mut self, now_ns: u64, request: Request) -> Result<Id, Refused> {
        admit(&request, self.is.capacity, SECTOR)?;
        if self.waiting.len() >= WAITING_MAX {
            return Err(Refused::Busy { waiting: self.waiting.len() });
        }
        self.now_ns = self.now_ns.max(now_ns);
        let id = self.next_id;
        self.next_id += 1;
        if self.held < self.is.depth && self.waiting.is_empty() {
            self.enter(id, now_ns, self.now_ns, request);
        } else {
            self.waiting.push_back((id, now_ns, request));
        }
        Ok(id)
    }

    fn next_event(&self) -> Option<u64> {
        let can_start = self.active.is_none() && !(self.queue.is_empty() && self.dirty.is_empty());
        let mut event_ns = if can_start { self.now_ns } else { u64::MAX };
        if let Some(active) = &self.active {
            event_ns = event_ns.min(active.done_ns);
        }
        if let Some(incoming) = self.arriving.front() {
            event_ns = event_ns.min(incoming.ready_ns);
        }
        if let Some(Reverse(buffered)) = self.buffered.peek() {
            event_ns = event_ns.min(buffered.done_ns);
        }
        (event_ns < u64::MAX).then_some(event_ns)
    }

    fn advance(&mut self, now_ns: u64, done: &mut Vec<Completion>) {
        while let Some(event_ns) = self.next_event().filter(|&event_ns| event_ns <= now_ns) {
            self.now_ns = self.now_ns.max(event_ns);
            let before = done.len();
            self.happen(done);
            if done.len() > before {
                return;
            }
            if self.active.is_none() {
                self.dispatch();
            }
        }
        self.now_ns = self.now_ns.max(now_ns);
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    /// The disk does not wear: only the counters.
    fn save(&self, to: &mut dyn Write) -> io::Result<()> {
        self.counters.save(to)
    }
    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        self.counters = Counters::restore(from)?;
        Ok(())
    }
}
