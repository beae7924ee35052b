//! Fifth stage: what each step takes, by the system vector, and what all take together.

mod bill;
mod jobs;
mod ours;
mod shared;
pub mod thesis;

pub use bill::{Bill, Cause};

use super::step::Chain;
use crate::trace::Op;
use crate::vector::{Family, Vector};
use jobs::Jobs;
use ours::{Ours, Together};
use shared::Shared;
use std::collections::{BTreeSet, HashMap};

/// What is left out of our prices, to see what it earns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Without {
    /// Blocks that are written back.
    pub block_overhead: bool,
    /// Reading blocks of which parts are written.
    pub partial_blocks: bool,
    /// Sizes of files that are removed.
    pub sized_removes: bool,
    /// What all threads share.
    pub sharing: bool,
    /// Waiting for what others sync, and for names in the same directory.
    pub crowds: bool,
    /// Bounds of dirty data and files.
    pub dirty_files: bool,
}

/// When calls come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// Each thread calls as soon as its last call has returned.
    #[default]
    Fast,
    /// Threads pause between calls as they did in the trace.
    Trace,
}

/// How prices are made.
#[derive(Clone, Copy, Debug, Default)]
pub struct PriceOptions {
    /// As the thesis does it.
    pub thesis: bool,
    /// What is left out.
    pub without: Without,
    /// When calls come.
    pub pace: Pace,
    /// Decides what is drawn from distributions.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    /// When its last call returned, here.
    end_ns: u64,
    /// When it did in the trace.
    traced_ns: u64,
    /// The directory that it used.
    directory: u64,
    /// Its last call was a sync.
    syncs: bool,
}

/// The stage.
#[derive(Debug)]
pub struct Price {
    vector: Vector,
    jobs: Jobs,
    options: PriceOptions,
    threads: HashMap<u64, Thread>,
    /// When the last call of each thread returns, and which thread.
    ends: BTreeSet<(u64, u64)>,
    bill: Bill,
    shared: Shared,
    /// The next call comes no sooner: then is done what it waits for.
    ready_ns: u64,
    written_bytes: u64,
    traced_ns: (u64, u64),
    latency_ns: u64,
    end_ns: u64,
}

impl Price {
    /// On a system.
    pub fn new(vector: Vector, options: PriceOptions) -> Price {
        let bill = Bill::new(options.seed);
        let traced_ns = (u64::MAX, 0);
        Price {
            jobs: Jobs::of(&vector),
            vector,
            options,
            threads: HashMap::new(),
            ends: BTreeSet::new(),
            bill,
            shared: Shared::default(),
            ready_ns: 0,
            written_bytes: 0,
            traced_ns,
            latency_ns: 0,
            end_ns: 0,
        }
    }

    /// What the next call waits for is done at this time.
    pub fn wait_until(&mut self, ready_ns: u64) {
        self.ready_ns = ready_ns;
    }

    /// When the last call of a thread returns.
    pub fn end(&self, thread: u64) -> u64 {
        self.threads.get(&thread).map_or(0, |thread| thread.end_ns)
    }

    /// When the call of a chain comes, on the clock of the system: when its thread is there, and what it waits for is done.
    pub fn now(&self, chain: &Chain) -> u64 {
        let Some(call) = chain.last() else { return 0 };
        let comes = match (self.options.pace, self.threads.get(&call.thread)) {
            (Pace::Fast, thread) => thread.map_or(0, |thread| thread.end_ns),
            (Pace::Trace, None) => call.at_ns,
            (Pace::Trace, Some(thread)) => thread.end_ns.saturating_add(call.at_ns.saturating_sub(thread.traced_ns)),
        };
        comes.max(self.ready_ns)
    }

    /// Annotates a chain.
    pub fn apply(&mut self, chain: &mut Chain) {
        let Some(call) = chain.last() else { return };
        let (thread, at_ns, measured_ns, directory) = (call.thread, call.at_ns, call.measured_ns, call.directory);
        let syncs = call.durable || matches!(call.op, Some(Op::Fsync | Op::Fdatasync | Op::Msync | Op::Sync));
        let written = if call.is_done() && call.op == Some(Op::Write) { call.done } else { 0 };
        let now = self.now(chain);
        if self.options.thesis {
            let fragment_bytes = self.vector.number(Family::FS).unwrap_or(4096.0);
            thesis::price(&self.vector, &mut self.bill, fragment_bytes, chain);
        } else {
            let mut together = Together { all: 1.0, here: 1.0, syncing: 1.0 };
            let others = self.ends.range((now.saturating_add(1), 0)..).filter(|(_, other)| *other != thread);
            for other in others.filter_map(|(_, other)| self.threads.get(other)) {
                together.all += 1.0;
                together.here += f64::from(u8::from(other.directory == directory));
                together.syncing += f64::from(u8::from(other.syncs));
            }
            let Price { vector, jobs, bill, options, .. } = self;
            Ours { vector, without: options.without, together, jobs }.price(bill, chain);
            if !self.options.without.sharing {
                self.share(now, together.all, chain);
            }
        }
        let sum = |of: fn(&super::step::Step) -> u64| chain.iter().map(of).fold(0, u64::saturating_add);
        let (predicted, drawn) = (sum(|step| step.predicted_ns), sum(|step| step.drawn_ns));
        if let Some(call) = chain.last_mut() {
            call.drawn_ns = drawn;
        }
        let end_ns = now.saturating_add(predicted);
        self.ready_ns = 0;
        let traced_ns = at_ns.saturating_add(measured_ns);
        if let Some(before) = self.threads.insert(thread, Thread { end_ns, traced_ns, directory, syncs }) {
            self.ends.remove(&(before.end_ns, thread));
        }
        self.ends.insert((end_ns, thread));
        self.end_ns = self.end_ns.max(end_ns);
        self.latency_ns = self.latency_ns.saturating_add(predicted);
        self.written_bytes = self.written_bytes.saturating_add(written);
        self.traced_ns = (self.traced_ns.0.min(at_ns), self.traced_ns.1.max(at_ns));
    }

    /// The call waits where others leave too little of what all share; but no longer than if each of `all` had as much of it
    /// in turn.
    fn share(&mut self, now: u64, all: f64, chain: &mut Chain) {
        let latency = chain.iter().map(|step| step.predicted_ns).fold(0, u64::saturating_add);
        let demand = self.bill.take_demand();
        let done = self.shared.take(now, demand).min(now.saturating_add((all * demand as f64) as u64));
        let wait = done.saturating_sub(now.saturating_add(latency)) as f64 / 1e6;
        if let Some(call) = chain.last_mut().filter(|_| wait > 0.0) {
            self.bill.time(call, Cause::Crowds, wait, wait);
        }
    }

    /// The system.
    pub fn vector(&self) -> &Vector {
        &self.vector
    }

    /// What all took together.
    pub fn bill(&self) -> &Bill {
        &self.bill
    }

    /// From the first call to the end of the last, seconds.
    pub fn elapsed(&self) -> f64 {
        self.end_ns as f64 / 1e9
    }

    /// Equation 4, seconds; zero but for prices as in the thesis, and where the vector has no WR.
    pub fn overhead(&self) -> f64 {
        if !self.options.thesis {
            return 0.0;
        }
        let run = self.traced_ns.1.saturating_sub(self.traced_ns.0) as f64 / 1e9;
        let latency = self.latency_ns as f64 / 1e9;
        let rate = if run > 0.0 { self.written_bytes as f64 / 1024.0 / run } else { 0.0 };
        thesis::slowdown(&self.vector, rate).map_or(0.0, |slowdown| thesis::overhead(slowdown, latency, run))
    }
}

#[cfg(test)]
mod tests;
