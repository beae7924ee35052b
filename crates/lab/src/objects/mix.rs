//! The workloads: what is asked, of which objects (thesis, sections 7.1 and 8.1).

use crate::history::synthetic::Sizes;
use ashlar_models::Chance;
use std::collections::BTreeSet;

/// An object of a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub object: u64,
    pub size: u64,
}

/// A large object of the thesis.
const LARGE: u64 = 512 << 10;

/// Shares of ObjectBench: reads, new objects (the rest is written anew), reads of any object, writes that are synced.
const READ: f64 = 0.4;
const NEW: f64 = 0.36;
const RANDOM: f64 = 0.5;
const SYNCED: f64 = 0.6;
/// Shares of SynRead: of the objects that are read, and of those that come in any order.
const OBJECTS: f64 = 0.2;
const ANY: f64 = 0.6;

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mix {
    /// New objects of two sizes.
    TwoValue {
        /// Share of those of 512 KiB.
        ratio: f64,
        /// Bytes of the others.
        small: u64,
        /// Whether each is synced.
        sync: bool,
    },
    /// New objects: 80 % of 512 KiB, the others of 4 to 512 KiB evenly.
    SynWrite {
        /// Whether each is synced.
        sync: bool,
    },
    /// A fifth of all objects are read, none twice: 60 % in any order, the others in the order in which they were written.
    SynRead,
    /// 40 % reads (half of them in the order of writing), 36 % new objects, 24 % objects written anew; 60 % of the writes
    /// synced.
    ObjectBench,
}

/// There is no such workload.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no workload of objects; there are twovalue, synwrite, synread and objectbench")]
pub struct MixError(pub String);

/// What is asked. Objects are told by their place in the list of those that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// An object is read.
    Read(usize),
    /// A new object is written.
    Write {
        /// Its bytes.
        size: u64,
        /// Whether it must be durable at once.
        sync: bool,
    },
    /// An object is written anew.
    Rewrite {
        /// Which.
        index: usize,
        /// Whether it must be durable at once.
        sync: bool,
    },
}

/// A workload under way.
pub(super) struct Plan {
    mix: Mix,
    left: u64,
    /// The next object in the order of writing.
    cursor: usize,
    /// For SynRead: objects that were not read yet.
    unread: BTreeSet<usize>,
}

impl Mix {
    /// So many requests; SynRead ends by itself.
    pub(super) fn plan(&self, live: &[Held], requests: u64) -> Plan {
        let reads = self == &Mix::SynRead;
        let left = if reads { (live.len() as f64 * OBJECTS) as u64 } else { requests };
        let unread = if reads { (0..live.len()).collect() } else { BTreeSet::new() };
        Plan { mix: *self, left, cursor: 0, unread }
    }
}

impl Plan {
    /// The next request, of these objects.
    pub(super) fn next(&mut self, live: &[Held], chance: &mut Chance) -> Option<Request> {
        self.left = self.left.checked_sub(1)?;
        let write = |size, sync| Some(Request::Write { size, sync });
        match self.mix {
            Mix::TwoValue { ratio, small, sync } => write(if chance.unit() < ratio { LARGE } else { small }, sync),
            Mix::SynWrite { sync } => write(Sizes::SynWrite.draw(chance), sync),
            Mix::SynRead => self.unread(live.len(), chance).map(Request::Read),
            Mix::ObjectBench => {
                let kind = chance.unit();
                let sync = chance.unit() < SYNCED;
                if live.is_empty() || (READ..READ + NEW).contains(&kind) {
                    return write(Sizes::SynWrite.draw(chance), sync);
                }
                let any = chance.below(live.len() as u64) as usize;
                if kind >= READ {
                    return Some(Request::Rewrite { index: any, sync });
                }
                if chance.unit() < RANDOM {
                    return Some(Request::Read(any));
                }
                self.cursor = (self.cursor + 1) % live.len();
                Some(Request::Read(self.cursor))
            }
        }
    }

    /// An object that was not read yet.
    fn unread(&mut self, count: usize, chance: &mut Chance) -> Option<usize> {
        let from = if chance.unit() < ANY { chance.below(count.max(1) as u64) as usize } else { self.cursor };
        let next = self.unread.range(from..).next().or_else(|| self.unread.first()).copied()?;
        self.unread.remove(&next);
        self.cursor = next + 1;
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(mix: Mix, objects: u64, requests: u64) -> Vec<Request> {
        let live: Vec<Held> = (0..objects).map(|object| Held { object, size: 1 }).collect();
        let (mut plan, mut chance) = (mix.plan(&live, requests), Chance::new(7));
        std::iter::from_fn(|| plan.next(&live, &mut chance)).collect()
    }

    #[test]
    fn shares_are_those_of_the_thesis() {
        let all = requests(Mix::ObjectBench, 1000, 100_000);
        let share = |is: &dyn Fn(&Request) -> bool| all.iter().filter(|request| is(request)).count() as f64 / 1e5;
        let near = |one: f64, other: f64| (one - other).abs() < 0.01;
        assert!(near(share(&|request| matches!(request, Request::Read(_))), 0.4));
        assert!(near(share(&|request| matches!(request, Request::Write { .. })), 0.36));
        assert!(near(share(&|request| matches!(request, Request::Rewrite { .. })), 0.24));
        assert!(near(
            share(&|r| matches!(r, Request::Write { sync: true, .. } | Request::Rewrite { sync: true, .. })),
            0.36
        ));
        let sizes = all.iter().filter_map(|request| match request {
            Request::Write { size, .. } => Some(*size),
            _ => None,
        });
        let sizes: Vec<u64> = sizes.collect();
        let large = sizes.iter().filter(|size| **size == LARGE).count() as f64 / sizes.len() as f64;
        assert!(near(large, 0.8) && sizes.iter().all(|size| (4 << 10..=LARGE).contains(size)));
    }

    #[test]
    fn a_fifth_is_read_and_nothing_twice() {
        let all = requests(Mix::SynRead, 5000, 0);
        let distinct: BTreeSet<_> = all.iter().map(|request| format!("{request:?}")).collect();
        assert_eq!((all.len(), distinct.len()), (1000, 1000));
        assert!(requests(Mix::SynRead, 0, 10).is_empty());
    }

    #[test]
    fn two_values_are_two() {
        let all = requests(Mix::TwoValue { ratio: 0.25, small: 16 << 10, sync: true }, 0, 10_000);
        let large = all.iter().filter(|request| **request == Request::Write { size: LARGE, sync: true }).count();
        let small = all.iter().filter(|request| **request == Request::Write { size: 16 << 10, sync: true }).count();
        assert!(large + small == 10_000 && (2400..2600).contains(&large), "{large} large ones");
    }
}
