//! Devices whose service times are known when a request begins: everything but disks.
//!
//! At most `depth` requests are in service, in the order of submission: a request begins when it is submitted, or when
//! the first of those in service is done. So its times are known at once, and its effects follow the order of submission.

use crate::io::{Completion, Counters, Id, Refused, Request, Split, admit};
use crate::model::Model;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::io::{self, Read, Write};

/// Requests that are under way or wait, at most.
const UNDER_WAY_MAX: usize = 1 << 17;

/// How such a device serves.
pub(crate) trait Service: Send {
    fn capacity(&self) -> u64;
    /// Bytes that requests are whole multiples of.
    fn grain(&self) -> u64;
    /// Serves a request, or says why not. The parts of the answer add up to the time from `begin_ns` on.
    fn serve(&mut self, begin_ns: u64, request: &Request, counters: &mut Counters) -> Result<Split, Refused>;
    /// See [`Model::save`].
    fn save(&self, to: &mut dyn Write) -> io::Result<()>;
    /// See [`Model::restore`].
    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()>;
}

/// A device in some state.
pub(crate) struct Served<S> {
    pub service: S,
    pub counters: Counters,
    next_id: Id,
    /// Places in service.
    depth: usize,
    /// When those of them that were not free at the last submission are free.
    places: BinaryHeap<Reverse<u64>>,
    /// Requests by the time at which they are done; the last is an index of `slots`.
    due: BinaryHeap<Reverse<(u64, Id, u32)>>,
    slots: Vec<Completion>,
    free: Vec<u32>,
}

impl<S: Service> Served<S> {
    pub fn new(service: S, depth: usize) -> Served<S> {
        Served {
            service,
            counters: Counters::default(),
            next_id: 0,
            depth,
            places: BinaryHeap::with_capacity(depth),
            due: BinaryHeap::with_capacity(depth),
            slots: Vec::with_capacity(depth),
            free: Vec::with_capacity(depth),
        }
    }
}

impl<S: Service> Model for Served<S> {
    fn capacity(&self) -> u64 {
        self.service.capacity()
    }

    fn submit(&mut self, now_ns: u64, request: Request) -> Result<Id, Refused> {
        admit(&request, self.service.capacity(), self.service.grain())?;
        if self.due.len() >= UNDER_WAY_MAX {
            return Err(Refused::Busy { waiting: self.due.len() });
        }
        // Time never goes back, so a place that is free now is as good as one that always was.
        while let Some(first) = self.places.peek_mut()
            && first.0 <= now_ns
        {
            PeekMut::pop(first);
        }
        let begin_ns = match self.places.peek() {
            Some(Reverse(place_ns)) if self.places.len() == self.depth => *place_ns,
            _ => now_ns,
        };
        let mut split = self.service.serve(begin_ns, &request, &mut self.counters)?;
        let done_ns = begin_ns + split.total_ns();
        split.queue_ns += begin_ns - now_ns;
        if begin_ns > now_ns {
            self.places.pop();
        }
        self.places.push(Reverse(done_ns));
        let id = self.next_id;
        self.next_id += 1;
        let completion = Completion { id, request, submitted_ns: now_ns, done_ns, split };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = completion;
                slot
            }
            None => {
                self.slots.push(completion);
                self.slots.len() as u32 - 1
            }
        };
        self.due.push(Reverse((done_ns, id, slot)));
        Ok(id)
    }

    fn next_event(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((done_ns, ..))| *done_ns)
    }

    fn advance(&mut self, now_ns: u64, done: &mut Vec<Completion>) {
        let Some(instant_ns) = self.next_event().filter(|&event_ns| event_ns <= now_ns) else { return };
        while let Some(first) = self.due.peek_mut()
            && first.0.0 == instant_ns
        {
            let Reverse((_, _, slot)) = PeekMut::pop(first);
            let completion = self.slots[slot as usize];
            self.counters.count(&completion.request);
            done.push(completion);
            self.free.push(slot);
        }
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn save(&self, to: &mut dyn Write) -> io::Result<()> {
        self.counters.save(to)?;
        self.service.save(to)
    }

    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        self.counters = Counters::restore(from)?;
        self.service.restore(from)
    }
}

/// Gives a public device the methods of the `Served` inside of it.
macro_rules! model_by_service {
    ($device:ty) => {
        impl std::fmt::Debug for $device {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($device)).field("counters", &self.0.counters).finish_non_exhaustive()
            }
        }

        const _: () = {
            use $crate::Model;
            impl Model for $device {
                fn capacity(&self) -> u64 {
                    self.0.capacity()
                }
                fn submit(&mut self, now_ns: u64, request: $crate::Request) -> Result<$crate::Id, $crate::Refused> {
                    self.0.submit(now_ns, request)
                }
                fn next_event(&self) -> Option<u64> {
                    self.0.next_event()
                }
                fn advance(&mut self, now_ns: u64, done: &mut Vec<$crate::Completion>) {
                    self.0.advance(now_ns, done);
                }
                fn counters(&self) -> $crate::Counters {
                    self.0.counters()
                }
                fn save(&self, to: &mut dyn std::io::Write) -> std::io::Result<()> {
                    self.0.save(to)
                }
                fn restore(&mut self, from: &mut dyn std::io::Read) -> std::io::Result<()> {
                    self.0.restore(from)
                }
            }
        };
    };
}
pub(crate) use model_by_service;
