//! Threads of a trace, dealt to lanes: one takes another when the one before has ended.
//!
//! A build starts thousands of processes, few of which run at once. Who runs or prices its trace lets each of those few take
//! one after the other, instead of beginning all at once.

use std::collections::HashMap;
use std::hash::Hash;

/// Lanes for callers, who are known by what the trace calls them.
///
/// Costs    an entry for each caller.
#[derive(Clone, Debug)]
pub struct Lanes<Caller> {
    /// The last call of each.
    last: HashMap<Caller, u64>,
    seen: u64,
    lanes: HashMap<Caller, u32>,
    free: Vec<u32>,
    count: u32,
    dealt: u64,
}

impl<Caller> Default for Lanes<Caller> {
    fn default() -> Self {
        Lanes { last: HashMap::new(), seen: 0, lanes: HashMap::new(), free: Vec::new(), count: 0, dealt: 0 }
    }
}

impl<Caller: Hash + Eq> Lanes<Caller> {
    /// First pass: who makes the next call.
    pub fn see(&mut self, caller: Caller) {
        self.last.insert(caller, self.seen);
        self.seen += 1;
    }

    /// Second pass, over the same calls: the lane of the next one. Lanes are numbered from 0 on.
    pub fn deal(&mut self, caller: Caller) -> u32 {
        let ends = self.last.get(&caller) == Some(&self.dealt);
        self.dealt += 1;
        let known = if ends { self.lanes.remove(&caller) } else { self.lanes.get(&caller).copied() };
        let lane = known.or_else(|| self.free.pop()).unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        });
        if ends {
            self.free.push(lane);
        } else if known.is_none() {
            self.lanes.insert(caller, lane);
        }
        lane
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_ended_makes_room() {
        let calls = ["sh", "cc", "cc", "sh", "as", "ld", "as", "sh", "rm"];
        let mut lanes = Lanes::default();
        calls.iter().for_each(|caller| lanes.see(*caller));
        let dealt: Vec<u32> = calls.iter().map(|caller| lanes.deal(*caller)).collect();
        assert_eq!(dealt, [0, 1, 1, 0, 1, 2, 1, 0, 0]);
        assert_eq!(lanes.deal("late"), 0, "who was not seen never ends");
        assert_eq!(lanes.deal("later"), 1);
    }

    proptest::proptest! {
        /// No two share a lane while both have calls to come, and there are no more lanes than callers at once.
        #[test]
        fn a_lane_has_one_caller_at_a_time(calls in proptest::collection::vec(0..12u8, 0..200)) {
            let mut lanes = Lanes::default();
            calls.iter().for_each(|caller| lanes.see(*caller));
            let dealt: Vec<u32> = calls.iter().map(|caller| lanes.deal(*caller)).collect();
            let span = |caller: u8| (calls.iter().position(|c| *c == caller), calls.iter().rposition(|c| *c == caller));
            let spans: Vec<_> = (0..12).filter(|caller| calls.contains(caller)).map(span).collect();
            let at_once = (0..calls.len()).map(|at| spans.iter().filter(|s| s.0 <= Some(at) && Some(at) <= s.1).count());
            let most = at_once.max().unwrap_or(0) as u32;
            proptest::prop_assert_eq!(dealt.iter().max().map_or(0, |lane| lane + 1), most);
            for (first, last) in &spans {
                let (first, last) = (first.unwrap_or(0), last.unwrap_or(0));
                for at in first..=last {
                    proptest::prop_assert_eq!(dealt[at] == dealt[first], calls[at] == calls[first]);
                }
            }
        }
    }
}
