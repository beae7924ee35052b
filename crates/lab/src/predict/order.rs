//! Calls of several threads, by the clocks of the predicted system.
//!
//! In a trace they lie as they came where it was made. Where they take other times, threads come apart; who is in a call at the
//! same time as another, and so waits for it, is seen only if the thread that is least far goes first.
//!
//! Costs    at most [`HELD`] chains: a thread whose next call is further away in the trace is not waited for.

use super::step::Chain;
use std::collections::{BTreeMap, VecDeque};

/// Chains that are held back.
pub const HELD: usize = 4096;

/// Chains by thread.
#[derive(Debug, Default)]
pub struct Order {
    threads: BTreeMap<u64, VecDeque<Chain>>,
    held: usize,
}

impl Order {
    /// The next chain of the trace.
    pub fn push(&mut self, chain: Chain) {
        let Some(call) = chain.last() else { return };
        self.threads.entry(call.thread).or_default().push_back(chain);
        self.held += 1;
    }

    /// Whether one must go.
    pub fn is_full(&self) -> bool {
        self.held > HELD
    }

    /// The first chain of the thread that is least far: `clock` tells when a chain comes.
    pub fn pop(&mut self, clock: impl Fn(&Chain) -> u64) -> Option<Chain> {
        let far = |(thread, chains): (&u64, &VecDeque<Chain>)| {
            let first = chains.front()?;
            Some((clock(first), first.last()?.at_ns, *thread))
        };
        let (_, _, thread) = self.threads.iter().filter_map(far).min()?;
        let chains = self.threads.get_mut(&thread)?;
        let chain = chains.pop_front();
        if chains.is_empty() {
            self.threads.remove(&thread);
        }
        self.held -= 1;
        chain
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::step::Step;
    use std::collections::HashMap;

    #[test]
    fn the_thread_that_is_least_far_goes_first() {
        let mut order = Order::default();
        for (call, thread) in [(0, 1), (1, 2), (2, 1), (3, 2), (4, 2)] {
            order.push(vec![Step { call, thread, at_ns: call, ..Step::default() }]);
        }
        let mut clocks: HashMap<u64, u64> = HashMap::new();
        let mut calls = Vec::new();
        while let Some(chain) = order.pop(|chain| clocks.get(&chain[0].thread).copied().unwrap_or(0)) {
            // A call of thread 1 takes three times as long.
            *clocks.entry(chain[0].thread).or_default() += if chain[0].thread == 1 { 3 } else { 1 };
            calls.push(chain[0].call);
        }
        assert_eq!(calls, [0, 1, 3, 4, 2]);
    }
}
