//! What all threads share: processors and device, as one thing that has done so much in a time and no more.
//!
//! A call takes as long as it takes a thread alone, and meanwhile uses a part of what is shared (operational analysis: Denning
//! and Buzen 1978, the bottleneck bound). Where many calls together would use more than there is, they end later. Calls come
//! in the order of a trace, in which clocks of threads are apart; so time is cut into slots, and what an earlier call left
//! unused in one is there for a later one.
//!
//! Departs  processors and device are one; where both are near their limits they would in truth overlap.

use std::collections::VecDeque;

/// Nanoseconds of a slot: about what a thread runs before another has its turn.
const SLOT_NS: u64 = 1_000_000;
/// Slots that are remembered. What was before those is not shared any more.
const SLOTS: usize = 1 << 16;

/// The time that is used of each slot.
#[derive(Debug, Default)]
pub struct Shared {
    /// Number of the first slot that is remembered.
    first: u64,
    used_ns: VecDeque<u64>,
}

impl Shared {
    /// Takes a time of it from `at_ns` on. Returns when all of that is done; at once where there is enough.
    pub fn take(&mut self, at_ns: u64, demand_ns: u64) -> u64 {
        let slot = at_ns / SLOT_NS;
        let (mut at, mut left) = (slot, demand_ns);
        while left > 0 {
            let Some(used) = self.slot(at) else { return at_ns };
            let part = (SLOT_NS - *used).min(left);
            *used += part;
            left -= part;
            if left == 0 {
                return if at == slot { at_ns } else { at * SLOT_NS + *used };
            }
            at += 1;
        }
        at_ns
    }

    /// `None` before all that are remembered.
    fn slot(&mut self, slot: u64) -> Option<&mut u64> {
        let beyond = slot.saturating_sub(self.first) as usize;
        if beyond >= 2 * SLOTS {
            // Long nothing.
            self.used_ns.clear();
            self.first = slot;
        }
        while slot.saturating_sub(self.first) as usize >= SLOTS {
            self.used_ns.pop_front();
            self.first += 1;
        }
        let index = slot.checked_sub(self.first)? as usize;
        if index >= self.used_ns.len() {
            self.used_ns.resize(index + 1, 0);
        }
        self.used_ns.get_mut(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn what_is_used_up_comes_later() {
        let mut shared = Shared::default();
        assert_eq!(shared.take(5 * MS, 0), 5 * MS);
        assert_eq!(shared.take(5 * MS + 7, MS / 2), 5 * MS + 7, "there is enough");
        assert_eq!(shared.take(5 * MS, MS), 6 * MS + MS / 2, "half of it in the next slot");
        assert_eq!(shared.take(5 * MS, 10), 6 * MS + MS / 2 + 10);
        assert_eq!(shared.take(MS, MS), MS, "a thread that is behind finds what was left");
        assert_eq!(shared.take(3_600_000 * MS, MS), 3_600_000 * MS);
        assert_eq!(shared.take(5 * MS, MS), 5 * MS, "long ago");
    }

    proptest::proptest! {
        /// No more than there is: calls that come at once end no sooner than their demand, whatever their order.
        #[test]
        fn no_more_is_given_than_there_is(calls in proptest::collection::vec((0..50u64, 1..3_000_000u64), 1..100)) {
            let mut shared = Shared::default();
            let last = calls.iter().map(|(at, demand)| shared.take(at * MS, *demand)).max().unwrap_or(0);
            let begin = calls.iter().map(|(at, _)| at * MS).min().unwrap_or(0);
            let all: u64 = calls.iter().map(|(_, demand)| demand).sum();
            // The last may end within the slot in which it began.
            proptest::prop_assert!(last + MS >= begin + all);
        }
    }
}
