//! Which names of a listing come with attributes.
//!
//! Who lists a directory mostly asks more of each name (`find`, `du`, `ls -l`), or opens or removes it, and what the listing did not
//! tell costs a LOOKUP each. By itself (`READDIRPLUS_AUTO`) Linux wants attributes with the first answer, for some 190 names, and
//! again after a name was looked up; but programs that walk trees read up to 10,000 names before they ask for one. So Linux always
//! asks for attributes, and we choose. The first answer has them. The next ones do where attributes cost little: where the engine
//! keeps them by the names, or the inodes so far had numbers that are near each other. Who wants names alone should not fill memory
//! with inodes, so after [`UNASKED`] names there are none, until a name of that directory is looked up: then there are as many
//! again, wherever they lie.

use ashlar_vfs::Ino;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Names that get attributes unasked: Linux keeps about a KiB of each.
const UNASKED: u64 = 16_384;
/// Inodes are near each other if this part of all numbers between them is theirs: a leaf of a table of inodes then has some tens of
/// those that are wanted.
const NEAR: u64 = 16;
/// Listings that are remembered; of others each request is the first.
const LISTINGS_MAX: usize = 32;

/// Listings under way.
#[derive(Default)]
pub(crate) struct Listings {
    /// The latest last.
    known: Mutex<VecDeque<Listing>>,
    /// How many go on without attributes: only these are interested in lookups.
    bare: AtomicUsize,
}

struct Listing {
    directory: Ino,
    /// Names that got attributes, and how many may.
    told: u64,
    most: u64,
    /// Smallest and largest number among them.
    inodes: (Ino, Ino),
    /// Somebody looked up what was listed without.
    asked: bool,
    /// The last answer had none.
    bare: bool,
}

impl Listing {
    fn new(directory: Ino) -> Listing {
        Listing { directory, told: 0, most: UNASKED, inodes: (Ino::MAX, 0), asked: false, bare: false }
    }

    fn wants(&self, by_names: bool) -> bool {
        let near = || self.inodes.1.saturating_sub(self.inodes.0) <= self.told.saturating_mul(NEAR);
        self.told < self.most && (self.told == 0 || by_names || self.asked || near())
    }
}

impl Listings {
    /// Whether a request from this cookie on gets attributes. `by_names`: the engine keeps them by the names.
    pub(crate) fn begin(&self, directory: Ino, cookie: u64, by_names: bool) -> bool {
        let mut known = self.known.lock();
        let found = known.iter().position(|listing| listing.directory == directory);
        let before = found.and_then(|at| known.remove(at)).filter(|_| cookie != 0);
        let mut listing = before.unwrap_or_else(|| Listing::new(directory));
        let wants = listing.wants(by_names);
        listing.bare = !wants;
        known.push_back(listing);
        if known.len() > LISTINGS_MAX {
            known.pop_front();
        }
        self.bare.store(known.iter().filter(|listing| listing.bare).count(), Ordering::Relaxed);
        wants
    }

    /// What was told in an answer: how many names, and the smallest and largest number of their inodes.
    pub(crate) fn told(&self, directory: Ino, names: u64, inodes: (Ino, Ino)) {
        if let Some(listing) = self.known.lock().iter_mut().rev().find(|listing| listing.directory == directory) {
            listing.told += names;
            listing.inodes = (listing.inodes.0.min(inodes.0), listing.inodes.1.max(inodes.1));
        }
    }

    /// A name in this directory is looked up.
    pub(crate) fn looked_up(&self, directory: Ino) {
        if self.bare.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut known = self.known.lock();
        if let Some(listing) = known.iter_mut().find(|listing| listing.directory == directory && listing.bare) {
            (listing.asked, listing.bare) = (true, false);
            listing.most = listing.told + listing.most.max(UNASKED);
        }
        self.bare.store(known.iter().filter(|listing| listing.bare).count(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists `answers` times 100 names, with these numbers; gives which answers had attributes.
    fn list(listings: &Listings, answers: u64, by_names: bool, number: impl Fn(u64) -> Ino) -> Vec<bool> {
        let answer = |index: u64| {
            let wants = listings.begin(7, index * 100, by_names);
            if wants {
                let numbers = || (index * 100..(index + 1) * 100).map(&number);
                listings.told(7, 100, (numbers().min().unwrap(), numbers().max().unwrap()));
            }
            wants
        };
        (0..answers).map(answer).collect()
    }

    #[test]
    fn attributes_that_lie_together_are_told_up_to_a_bound() {
        let bound = UNASKED.div_ceil(100) as usize;
        for (by_names, step) in [(true, 1_000_003), (false, NEAR)] {
            let answers = list(&Listings::default(), 200, by_names, |index| 50 + index * step);
            assert_eq!(answers.iter().position(|wants| !wants), Some(bound), "{by_names} {step}");
            assert!(answers[bound..].iter().all(|wants| !wants));
        }
    }

    #[test]
    fn scattered_attributes_are_told_once_and_then_if_somebody_asks() {
        let listings = Listings::default();
        let scattered = |index: u64| index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        assert_eq!(list(&listings, 3, false, scattered), [true, false, false]);
        listings.looked_up(8);
        assert!(!listings.begin(7, 300, false), "another directory's");
        listings.looked_up(7);
        assert!(listings.begin(7, 300, false));
        assert_eq!(listings.bare.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_asks_again_gets_more_each_time() {
        let listings = Listings::default();
        let mut told = 0;
        for bound in [UNASKED, 2 * UNASKED, 5 * UNASKED] {
            assert_eq!(told < bound, listings.begin(7, told, true));
            listings.told(7, bound - told, (1, 1));
            told = bound;
            assert!(!listings.begin(7, told, true), "{told}");
            listings.looked_up(7);
        }
        assert!(listings.begin(7, 0, true), "a new listing");
    }

    #[test]
    fn memory_is_bounded_and_who_is_forgotten_begins_anew() {
        let listings = Listings::default();
        for directory in 0..100 {
            assert!(listings.begin(directory, 0, false));
            listings.told(directory, 100, (0, Ino::MAX));
            assert!(!listings.begin(directory, 100, false));
        }
        assert_eq!(listings.known.lock().len(), LISTINGS_MAX);
        assert_eq!(listings.bare.load(Ordering::Relaxed), LISTINGS_MAX);
        assert!(listings.begin(0, 200, false));
    }
}
