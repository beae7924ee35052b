//! What is measured within a time: each file system gets an equal part of what is left when its turn comes, and a set of options
//! begins only if the longest one so far would fit.

use std::time::{Duration, Instant};

/// See the module. Without a time, everything fits.
#[derive(Debug)]
pub struct Budget {
    end: Option<Instant>,
    /// The end of the part that is running.
    part: Option<Instant>,
    longest: Option<Duration>,
}

impl Budget {
    /// From now on.
    pub fn new(now: Instant, budget: Option<Duration>) -> Budget {
        let end = budget.and_then(|budget| now.checked_add(budget));
        Budget { end, part: end, longest: None }
    }

    /// The next of so many file systems begins.
    pub fn begin(&mut self, now: Instant, left: usize) {
        self.longest = None;
        self.part = self.end.map(|end| now + end.saturating_duration_since(now) / left.max(1) as u32);
    }

    /// Whether another set of options fits: the first does, so that there is something to compare with.
    pub fn fits(&self, now: Instant) -> bool {
        match (self.part, self.longest) {
            (Some(part), Some(longest)) => part.saturating_duration_since(now) >= longest,
            _ => true,
        }
    }

    /// A set of options took so long.
    pub fn took(&mut self, time: Duration) {
        self.longest = self.longest.max(Some(time));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_share_a_time() {
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let mut budget = Budget::new(begin, Some(Duration::from_secs(100)));
        budget.begin(begin, 2);
        assert!(budget.fits(at(1000)), "the first of a file system always does");
        budget.took(Duration::from_secs(20));
        budget.took(Duration::from_secs(5));
        assert_eq!([29, 30, 31, 50].map(|seconds| budget.fits(at(seconds))), [true, true, false, false]);
        // What the first left is the second's.
        budget.begin(at(32), 1);
        budget.took(Duration::from_secs(10));
        assert_eq!([90, 91, 200].map(|seconds| budget.fits(at(seconds))), [true, false, false]);
        let mut endless = Budget::new(begin, None);
        endless.begin(begin, 1);
        endless.took(Duration::from_secs(10));
        assert!(endless.fits(at(1 << 30)));
    }
}
