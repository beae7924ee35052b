//! Calls of several threads, by the clocks of the predicted system.
//!
//! In a trace they lie as they came where it was made. Where they take other times, threads come apart; who is in a call at the
//! same time as another, and so waits for it, is seen only if the thread that is least far goes first. Who waits for what
//! another makes ([`After`](crate::trace::after::After)) goes when that is done, as when the trace is run.
//!
//! Costs    at most [`HELD`] chains: a thread whose next call is further away in the trace is not waited for. The ends of as
//!          many calls of each thread; what waits for one before those waits for the first of them.

use super::step::Chain;
use crate::trace::after::Done;
use std::collections::{BTreeMap, VecDeque};

/// Chains that are held back.
pub const HELD: usize = 4096;

/// A chain that is held back.
#[derive(Debug)]
struct Held {
    chain: Chain,
    after: Box<[Done]>,
}

/// What a thread has done, and has to do.
#[derive(Debug, Default)]
struct Thread {
    held: VecDeque<Held>,
    done: u32,
    /// When the last of those ended.
    ends: VecDeque<u64>,
}

impl Thread {
    /// When its call at this position ended; `None` if it did not yet.
    fn ended(&self, position: u32) -> Option<u64> {
        let back = self.done.checked_sub(position)? as usize;
        let end = self.ends.len().checked_sub(1 + back).and_then(|index| self.ends.get(index));
        end.or(self.ends.front()).copied()
    }
}

/// Chains by thread.
#[derive(Debug, Default)]
pub struct Order {
    threads: BTreeMap<u64, Thread>,
    held: usize,
}

impl Order {
    /// The next chain of the trace, and what must be done before: calls of threads, each from 1 on.
    pub fn push(&mut self, chain: Chain, after: &[Done]) {
        let Some(call) = chain.last() else { return };
        self.threads.entry(call.thread).or_default().held.push_back(Held { chain, after: after.into() });
        self.held += 1;
    }

    /// Whether one must go.
    pub fn is_full(&self) -> bool {
        self.held > HELD
    }

    /// When all that a chain waits for is done; `None` if some of it is not yet.
    fn ready(&self, after: &[Done]) -> Option<u64> {
        let ended =
            |(thread, position): &Done| self.threads.get(&u64::from(*thread)).map(|thread| thread.ended(*position));
        // Who is not known has no calls.
        after.iter().filter_map(ended).try_fold(0, |latest, ended| Some(ended?.max(latest)))
    }

    /// The first chain of the thread that is least far, and when what it waits for is done: `clock` tells when a chain comes.
    /// Its end must be told before the next one is asked for.
    pub fn pop(&mut self, clock: impl Fn(&Chain) -> u64) -> Option<(Chain, u64)> {
        let far = |(number, thread): (&u64, &Thread)| {
            let first = thread.held.front()?;
            let ready = self.ready(&first.after)?;
            Some((clock(&first.chain).max(ready), first.chain.last()?.at_ns, *number, ready))
        };
        // Of what is held, the first of the trace waits for nothing that is held.
        let (_, _, number, ready) = self.threads.iter().filter_map(far).min()?;
        let held = self.threads.get_mut(&number)?.held.pop_front()?;
        self.held -= 1;
        Some((held.chain, ready))
    }

    /// The next call of a thread ended.
    pub fn ended(&mut self, thread: u64, end_ns: u64) {
        let thread = self.threads.entry(thread).or_default();
        thread.done += 1;
        thread.ends.push_back(end_ns);
        if thread.ends.len() > HELD {
            thread.ends.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::step::Step;
    use std::collections::HashMap;

    /// Calls of thread 1 take `slow`, others 1. Returns calls with when they begin.
    fn run(calls: &[(u64, &[Done])], slow: u64) -> Vec<(u64, u64)> {
        let mut order = Order::default();
        for (call, (thread, after)) in (0..).zip(calls) {
            order.push(vec![Step { call, thread: *thread, at_ns: call, ..Step::default() }], after);
        }
        let mut clocks: HashMap<u64, u64> = HashMap::new();
        let mut begins = Vec::new();
        while let Some((chain, ready)) = order.pop(|chain| clocks.get(&chain[0].thread).copied().unwrap_or(0)) {
            let Step { thread, call, .. } = chain[0];
            let clock = clocks.entry(thread).or_default();
            let begin = ready.max(*clock);
            *clock = begin + if thread == 1 { slow } else { 1 };
            order.ended(thread, *clock);
            begins.push((call, begin));
        }
        begins
    }

    #[test]
    fn the_thread_that_is_least_far_goes_first() {
        let calls: [(u64, &[Done]); 5] = [(1, &[]), (2, &[]), (1, &[]), (2, &[]), (2, &[])];
        assert_eq!(run(&calls, 3), [(0, 0), (1, 0), (3, 1), (4, 2), (2, 3)]);
    }

    #[test]
    fn what_is_waited_for_goes_before() {
        let calls: [(u64, &[Done]); 4] = [(1, &[]), (1, &[]), (2, &[(1, 2)]), (3, &[(2, 1), (1, 1)])];
        assert_eq!(run(&calls, 5), [(0, 0), (1, 5), (2, 10), (3, 11)]);
    }

    #[test]
    fn ends_of_long_ago_are_those_of_later() {
        let mut order = Order::default();
        let last = 2 * HELD as u64;
        (1..=last).for_each(|end| order.ended(7, end));
        let ready = |position| order.ready(&[(7, position)]);
        assert_eq!(ready(2 * HELD as u32), Some(last));
        assert_eq!(ready(2 * HELD as u32 - 1), Some(last - 1));
        assert_eq!(ready(1), Some(last - HELD as u64 + 1));
        assert_eq!(ready(2 * HELD as u32 + 1), None);
        assert_eq!(order.ready(&[(8, 1)]), Some(0), "nobody");
    }

    proptest::proptest! {
        /// Whoever waits for whom: every call comes, those of a thread in their order, and after all that it waits for.
        #[test]
        fn everybody_comes(
            calls in proptest::collection::vec((0..5u32, proptest::collection::vec(0..100usize, 0..4)), 1..100),
            slow in 0..5u64,
        ) {
            let (mut places, mut counts): (Vec<Done>, [u32; 5]) = (Vec::new(), [0; 5]);
            let mut asked: Vec<(u64, Vec<Done>)> = Vec::new();
            for (thread, before) in &calls {
                let after = before.iter().filter_map(|call| places.get(*call).copied()).filter(|(lane, _)| lane != thread);
                asked.push(((*thread).into(), after.collect()));
                counts[*thread as usize] += 1;
                places.push((*thread, counts[*thread as usize]));
            }
            let given: Vec<(u64, &[Done])> = asked.iter().map(|(thread, after)| (*thread, after.as_slice())).collect();
            let begins = run(&given, slow);
            proptest::prop_assert_eq!(begins.len(), calls.len());
            let took = |call: usize| if calls[call].0 == 1 { slow } else { 1 };
            let begin: HashMap<u64, u64> = begins.iter().copied().collect();
            for (call, (thread, after)) in asked.iter().enumerate() {
                for done in after {
                    let before = places.iter().position(|place| place == done).unwrap_or(0);
                    proptest::prop_assert!(begin[&(before as u64)] + took(before) <= begin[&(call as u64)]);
                }
                let next = (call + 1..calls.len()).find(|next| asked[*next].0 == *thread);
                if let Some(next) = next {
                    proptest::prop_assert!(begin[&(call as u64)] + took(call) <= begin[&(next as u64)]);
                }
            }
        }
    }
}
