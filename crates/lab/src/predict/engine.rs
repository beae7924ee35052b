//! All stages over one trace, for several systems at once.

use super::cache::{Cache, Counts, Linux, Memory, Sizes as CacheSizes, Thesis};
use super::order::Order;
use super::parse::parse;
use super::pattern::Pattern;
use super::preprocess::{Preprocess, Sizes};
use super::price::{Price, PriceOptions};
use super::step::Chain;
use super::summary::{Class, Share, Summary, Use, causes, uses};
use super::tree::Tree;
use crate::trace::Record;
use crate::trace::after::{After, Done};
use crate::trace::lanes::Lanes;
use crate::vector::{Source, Vector};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// How much a prediction may be off by what the model leaves out, as a part of it: one standard deviation. About what
/// `cargo xtask bench prediction` showed (docs/lab.md); errors of the vector come on top.
pub const MODEL_ERROR: f64 = 0.3;
/// How often the truth should be within the range that is told: 1.645 standard deviations to each side.
pub const CONFIDENCE: f64 = 0.9;
const DEVIATIONS: f64 = 1.645;

/// How a trace is priced.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Prices.
    pub price: PriceOptions,
    /// Bytes of memory for caches, in place of what the vector says.
    pub memory: Option<u64>,
    /// Whether what was there before the trace is in memory.
    pub warm: bool,
}

/// What a workload would take on a system. Modelled.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Prediction {
    /// The system.
    pub system: String,
    /// Where its vector comes from.
    pub source: Source,
    /// Seconds of all calls together: what the file system adds.
    pub total_seconds: f64,
    /// One standard deviation of that: of the vector, and of what the model leaves out.
    pub deviation_seconds: f64,
    /// The least that is expected.
    pub low_seconds: f64,
    /// The most that is expected.
    pub high_seconds: f64,
    /// Seconds from the first call to the end of the last.
    pub elapsed_seconds: f64,
    /// Equation 4, within the total; zero but for prices of the thesis.
    pub overhead_seconds: f64,
    /// By class of call.
    pub classes: Vec<Class>,
    /// By cause.
    pub causes: Vec<Share>,
    /// Results of the vector that were used.
    pub uses: Vec<Use>,
    /// What would make it less.
    pub changes: Vec<super::report::Change>,
    /// What caches did; none of the thesis.
    pub caches: Option<Counts>,
    /// What the vector cannot price, and how often.
    pub unpriced: BTreeMap<String, u64>,
}

/// The cache stage.
#[derive(Debug)]
enum Caches {
    Thesis(Box<Thesis>),
    Linux(Box<Linux>),
}

/// The stages behind the names, for one system.
#[derive(Debug)]
pub struct System {
    order: Order,
    caches: Caches,
    pattern: Pattern,
    price: Price,
    summary: Summary,
}

impl System {
    /// Empty caches.
    pub fn new(vector: Vector, options: Options) -> System {
        let caches = match options.price.thesis {
            true => Caches::Thesis(Box::new(Thesis::new(CacheSizes::of(&vector)))),
            false => {
                let memory = Memory { warm: options.warm, ..Memory::of(&vector, options.memory) };
                Caches::Linux(Box::new(Linux::new(memory)))
            }
        };
        let price = Price::new(vector, options.price);
        System { order: Order::default(), caches, pattern: Pattern::default(), price, summary: Summary::default() }
    }

    /// Takes a chain that has its names, the next of the trace, and what must be done before. It is annotated when its turn
    /// comes.
    pub fn queue(&mut self, chain: Chain, after: &[Done]) {
        self.order.push(chain, after);
        if self.order.is_full() {
            self.next();
        }
    }

    /// The trace is over: annotates what is left.
    pub fn finish(&mut self) {
        while self.next() {}
    }

    fn next(&mut self) -> bool {
        let price = &self.price;
        let Some((mut chain, ready_ns)) = self.order.pop(|chain| price.now(chain)) else { return false };
        self.price.wait_until(ready_ns);
        self.apply(&mut chain);
        if let Some(call) = chain.last() {
            self.order.ended(call.thread, self.price.end(call.thread));
        }
        true
    }

    /// Annotates a chain that has its names.
    pub fn apply(&mut self, chain: &mut Chain) {
        self.cache(chain);
        self.pattern.apply(chain);
        self.price.apply(chain);
        self.summary.see(chain);
    }

    /// The cache stage alone.
    pub fn cache(&mut self, chain: &mut Chain) {
        let now = self.price.now(chain);
        match &mut self.caches {
            Caches::Thesis(caches) => caches.apply(chain, now),
            Caches::Linux(caches) => caches.apply(chain, now),
        }
    }

    /// The price stage alone.
    pub fn price(&mut self, chain: &mut Chain) {
        self.price.apply(chain);
        self.summary.see(chain);
    }

    /// What it came to.
    pub fn prediction(&self) -> Prediction {
        let overhead = self.price.overhead();
        let total = self.price.bill().total() / 1e3 + overhead;
        let vector = self.price.vector();
        let deviation = (self.price.bill().error(vector) / 1e3).hypot(MODEL_ERROR * total);
        Prediction {
            system: vector.name.clone(),
            source: vector.source,
            total_seconds: total,
            deviation_seconds: deviation,
            low_seconds: (total - DEVIATIONS * deviation).max(0.0),
            high_seconds: total + DEVIATIONS * deviation,
            elapsed_seconds: self.price.elapsed() + overhead,
            overhead_seconds: overhead,
            classes: self.summary.classes(),
            causes: causes(&self.price),
            uses: uses(&self.price),
            changes: Vec::new(),
            caches: match &self.caches {
                Caches::Thesis(_) => None,
                Caches::Linux(caches) => Some(caches.counts()),
            },
            unpriced: self.price.bill().unpriced.iter().map(|(name, count)| ((*name).into(), *count)).collect(),
        }
    }
}

/// What must be known of a whole trace before its calls are priced.
#[derive(Debug, Default)]
pub struct FirstPass {
    /// Sizes of files.
    pub sizes: Sizes,
    /// Calls.
    pub calls: u64,
    /// Which threads follow each other.
    lanes: Lanes<(u64, u64)>,
    /// What calls wait for.
    after: After,
}

impl FirstPass {
    /// Looks at the next call of the trace.
    pub fn see(&mut self, record: &Record) {
        self.sizes.see(record);
        self.lanes.see((record.process, record.thread));
        self.after.see(record.into());
        self.calls += 1;
    }
}

/// All stages, for several systems.
#[derive(Debug)]
pub struct Engine {
    names: Preprocess,
    lanes: Lanes<(u64, u64)>,
    after: After,
    calls: u64,
    /// The systems, in the order in which they were given.
    pub systems: Vec<System>,
}

impl Engine {
    /// Over the names of a tree, for a trace that was seen before.
    pub fn new(tree: Tree, first: FirstPass, vectors: Vec<Vector>, options: Options) -> Engine {
        let systems = vectors.into_iter().map(|vector| System::new(vector, options)).collect();
        let FirstPass { sizes, lanes, after, .. } = first;
        Engine { names: Preprocess::new(tree, sizes), lanes, after, calls: 0, systems }
    }

    /// A call before the trace: what it makes is there, and takes no time.
    pub fn before(&mut self, record: &Record) {
        self.names.apply(&mut parse(0, record));
    }

    /// The next call of the trace. A thread that begins when another has ended goes on in its place, and waits for what others
    /// do, as when the trace is run.
    pub fn call(&mut self, record: &Record) {
        let mut chain = parse(self.calls, record);
        self.calls += 1;
        let lane = self.lanes.deal((record.process, record.thread));
        chain.iter_mut().for_each(|step| step.thread = u64::from(lane));
        let after = self.after.next(lane, record.into());
        self.names.apply(&mut chain);
        for system in &mut self.systems {
            system.queue(chain.clone(), after);
        }
    }

    /// The trace is over.
    pub fn finish(&mut self) {
        self.systems.iter_mut().for_each(System::finish);
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Files that the trace used and that nobody told of.
    pub fn found(&self) -> u64 {
        self.names.tree().found
    }

    /// Whether the names at the beginning are of a listing without an end, which may have been cut.
    pub fn is_unended(&self) -> bool {
        self.names.tree().unended
    }
}

#[cfg(test)]
mod tests;
