//! How many entries a processor needs.

/// The entries of one processor, of which some hold requests that wait for the kernel. There is always one that does not.
#[derive(Default)]
pub(crate) struct Standing {
    /// In use or free. Linux takes none back.
    entries: usize,
    /// Those whose requests wait.
    waiting: usize,
}

impl Standing {
    pub(crate) fn new(entries: usize) -> Standing {
        Standing { entries, waiting: 0 }
    }
    /// A request waits from now on. Whether another entry must be made.
    #[must_use]
    pub(crate) fn begin(&mut self) -> bool {
        self.waiting += 1;
        let none_left = self.waiting == self.entries;
        self.entries += usize::from(none_left);
        none_left
    }
    /// One does not wait any more.
    pub(crate) fn end(&mut self) {
        self.waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// What may be left out: then somebody waits for ever.
    #[derive(Clone, Copy, PartialEq)]
    enum Without {
        Nothing,
        Entries,
        Kicks,
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Request {
        /// Waits until its write is served.
        Seek(usize),
        Write(usize),
        /// Of which nobody wants anything.
        Kick,
    }

    /// Linux's queue of one processor, and us who serve it.
    struct Model {
        without: Without,
        standing: Standing,
        /// Entries that wait for a request.
        free: usize,
        /// Requests that wait for an entry.
        pending: VecDeque<Request>,
        /// Requests in entries that were not looked at yet.
        arrived: Vec<Request>,
        /// Seeks whose pages nobody has written back yet, in the order in which helper threads take them.
        to_write: VecDeque<usize>,
        /// Those that a helper has asked for.
        asked: Vec<usize>,
        /// New entries that had no request yet.
        unused: usize,
        done: usize,
    }

    /// Threads that wait for write-back.
    const HELPERS: usize = 2;

    impl Model {
        /// Takes a free entry at once, before those that are pending.
        fn request(&mut self, request: Request) {
            if self.free == 0 {
                return self.pending.push_back(request);
            }
            self.free -= 1;
            self.arrive(request);
        }
        /// Waits behind those that are pending; then the first of all takes a free entry.
        fn background(&mut self, request: Request) {
            self.pending.push_back(request);
            if self.free > 0
                && let Some(first) = self.pending.pop_front()
            {
                self.free -= 1;
                self.arrive(first);
            }
        }
        fn arrive(&mut self, request: Request) {
            // Perhaps an older entry has it; then there are fewer kicks here than in truth.
            self.unused = self.unused.saturating_sub(1);
            self.arrived.push(request);
        }
        /// Who answers gets what is pending.
        fn answer(&mut self) {
            match self.pending.pop_front() {
                Some(next) => self.arrived.push(next),
                None => self.free += 1,
            }
        }
        fn serve(&mut self, request: Request) {
            match request {
                Request::Seek(seek) => {
                    if self.standing.begin() && self.without != Without::Entries {
                        self.free += 1;
                        self.unused += 1;
                    }
                    self.to_write.push_back(seek);
                }
                Request::Write(seek) => {
                    self.asked.retain(|other| *other != seek);
                    self.answer();
                    self.standing.end();
                    self.done += 1;
                    self.answer();
                }
                Request::Kick => self.answer(),
            }
        }
    }

    /// Whether all of `seeks` end, by choices that the seed makes.
    fn ends(seed: u64, without: Without, entries: usize, seeks: usize) -> bool {
        let mut model = Model {
            without,
            standing: Standing::new(entries),
            free: entries,
            pending: VecDeque::new(),
            arrived: Vec::new(),
            to_write: VecDeque::new(),
            asked: Vec::new(),
            unused: 0,
            done: 0,
        };
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |limit: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as usize % limit
        };
        let (mut begun, mut kicks) = (0, 0);
        while model.done < seeks {
            let helped = !model.to_write.is_empty() && model.asked.len() < HELPERS;
            // Kicks come by time: when nothing else can be done, they do, again and again.
            let kicked = model.unused > 0 && without != Without::Kicks && kicks < 10 * seeks;
            let choices = [begun < seeks, !model.arrived.is_empty(), helped, kicked];
            let possible: Vec<usize> = (0..choices.len()).filter(|choice| choices[*choice]).collect();
            if possible.is_empty() {
                return false;
            }
            match possible[below(possible.len())] {
                0 => {
                    model.request(Request::Seek(begun));
                    begun += 1;
                }
                1 => {
                    let next = below(model.arrived.len());
                    let request = model.arrived.swap_remove(next);
                    model.serve(request);
                }
                2 => {
                    let seek = model.to_write.pop_front().expect("there is one");
                    model.asked.push(seek);
                    model.background(Request::Write(seek));
                }
                _ => {
                    model.request(Request::Kick);
                    kicks += 1;
                }
            }
        }
        true
    }

    #[test]
    fn nobody_waits_for_ever_and_would_without_either_half() {
        let all = |without| (0..4_000).filter(|seed| ends(*seed, without, 2 + *seed as usize % 4, 20)).count();
        assert_eq!(all(Without::Nothing), 4_000);
        let (entries, kicks) = (all(Without::Entries), all(Without::Kicks));
        assert!(entries < 100 && kicks < 100, "{entries} end without entries, {kicks} without kicks");
    }
}
