//! The smallest harness, as an example: two tasks add to a counter, and read and write it in two steps.

use super::{Bug, Harness};
use ashlar_env::sim::{Handle, Monitor, Mood};
use parking_lot::Mutex;
use std::sync::Arc;

const NO_LOCK: &str = "no-lock";
const TASKS: u64 = 2;
const ADDITIONS: u64 = 2;

pub(super) struct LostUpdate;

impl Harness for LostUpdate {
    fn name(&self) -> &'static str {
        "lost-update"
    }
    fn what(&self) -> &'static str {
        "two tasks add to a counter: tiny, for --scheduler exhaustive"
    }
    fn bugs(&self) -> &'static [Bug] {
        &[Bug { name: NO_LOCK, what: "they hold no lock between reading and writing (safety)" }]
    }
    fn steps_max(&self) -> u64 {
        1_000
    }
    fn start(&self, sim: &Handle, bug: Option<&'static str>) {
        let watch = sim.watch("everybody has added", Total::default());
        let counter = Arc::new(Mutex::new(0));
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        for number in 0..TASKS {
            let (sim, watch, counter, lock) = (sim.clone(), watch.clone(), counter.clone(), lock.clone());
            sim.clone().spawn(format!("adder {number}"), async move {
                for _ in 0..ADDITIONS {
                    let _held = if bug == Some(NO_LOCK) { None } else { Some(lock.lock().await) };
                    let seen = *counter.lock();
                    sim.env().yield_now().await;
                    *counter.lock() = seen + 1;
                    sim.note(|| format!("writes {}", seen + 1));
                    watch.tell(seen + 1);
                }
            });
        }
    }
}

/// Counts additions. Hot from the first to the last.
#[derive(Default)]
struct Total(u64);

impl Monitor for Total {
    /// What the counter is after an addition.
    type Event = u64;
    fn observe(&mut self, counter: u64) -> Result<Mood, String> {
        self.0 += 1;
        if counter != self.0 {
            return Err(format!("after {} additions the counter is {counter}", self.0));
        }
        Ok(if self.0 == TASKS * ADDITIONS { Mood::Cold } else { Mood::Hot })
    }
}
