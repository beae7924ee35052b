//! The trait of all models, and the two ways to drive one through virtual time.

use crate::io::{Completion, Counters, Id, Refused, Request, Split};
use std::io::{self, Read, Write};

/// A device that says when things would be done. It holds no data and knows no clock: the caller says what time it is,
/// and time never goes back.
///
/// Virtual time: jump to [`next_event`](Model::next_event). Real time: wait until then. Requests that are submitted with
/// one time are seen together by the scheduler of the device.
pub trait Model: Send {
    /// Bytes that the host sees.
    fn capacity(&self) -> u64;

    /// Takes a request, or says why not.
    fn submit(&mut self, now_ns: u64, request: Request) -> Result<Id, Refused>;

    /// When something happens next; `None` if nothing is under way. May lie in the past of the caller.
    fn next_event(&self) -> Option<u64>;

    /// Lets time pass up to `now_ns`, and appends what is done to `done`. Returns early, at the first instant at which
    /// something was done, so that the caller can submit more before the device chooses what to do next: call it again
    /// while `next_event` is not after `now_ns`.
    fn advance(&mut self, now_ns: u64, done: &mut Vec<Completion>);

    /// What the device has done so far.
    fn counters(&self) -> Counters;

    /// Writes what a restart must not change, such as wear and where pages lie; nothing where there is nothing. What is
    /// under way is not part of it.
    fn save(&self, to: &mut dyn Write) -> io::Result<()>;

    /// Takes what [`save`](Model::save) wrote for a device of the same description and seed. Comes before any request. After
    /// an error the device is of no use.
    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()>;
}

/// What came out of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Requests completed.
    pub count: u64,
    /// Bytes of reads and writes completed.
    pub bytes: u64,
    /// When the last was done.
    pub end_ns: u64,
    /// Sums of the parts of the response times.
    pub split: Split,
}

impl Summary {
    /// Mean response time.
    pub fn mean_ns(&self) -> f64 {
        self.split.total_ns() as f64 / self.count.max(1) as f64
    }

    fn add(&mut self, completion: &Completion) {
        self.count += 1;
        self.bytes += completion.request.len;
        self.end_ns = self.end_ns.max(completion.done_ns);
        self.split.add(&completion.split);
    }
}

/// Keeps `depth` requests under way from `start_ns` until `next` has no more, and waits for the last. `seen` gets every
/// completion.
pub fn closed_loop(
    model: &mut dyn Model,
    start_ns: u64,
    depth: usize,
    mut next: impl FnMut() -> Option<Request>,
    mut seen: impl FnMut(&Completion),
) -> Result<Summary, Refused> {
    let mut summary = Summary { end_ns: start_ns, ..Summary::default() };
    let mut done = Vec::with_capacity(depth.max(16));
    for _ in 0..depth {
        if let Some(request) = next() {
            model.submit(start_ns, request)?;
        }
    }
    while let Some(now_ns) = model.next_event() {
        model.advance(now_ns, &mut done);
        for completion in done.drain(..) {
            summary.add(&completion);
            seen(&completion);
            if let Some(request) = next() {
                model.submit(completion.done_ns, request)?;
            }
        }
    }
    Ok(summary)
}

/// Submits each request at its own time (times do not fall), whatever is under way, and waits for the last.
pub fn open_loop(
    model: &mut dyn Model,
    requests: impl IntoIterator<Item = (u64, Request)>,
    mut seen: impl FnMut(&Completion),
) -> Result<Summary, Refused> {
    let mut summary = Summary::default();
    let mut done = Vec::with_capacity(64);
    let mut drain = |model: &mut dyn Model, until_ns: u64| {
        while let Some(now_ns) = model.next_event().filter(|&event_ns| event_ns < until_ns) {
            model.advance(now_ns, &mut done);
            for completion in done.drain(..) {
                summary.add(&completion);
                seen(&completion);
            }
        }
    };
    for (now_ns, request) in requests {
        drain(model, now_ns);
        model.submit(now_ns, request)?;
    }
    drain(model, u64::MAX);
    Ok(summary)
}
