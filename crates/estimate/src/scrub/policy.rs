//! In which order and how fast a disk is read (section 4 of the paper).

/// Bytes of a region.
pub const REGION: f64 = 128e6;
/// From this hour on a drive is no longer young.
pub const YOUNG: f64 = 60.0 * 24.0;

/// A policy. Rates are in bytes per hour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// From the first byte to the last, again and again.
    Sequential {
        /// Rate.
        rate: f64,
    },
    /// The first segment of every region, then the second of every region, and so on; nothing more.
    Staggered {
        /// Rate.
        rate: f64,
    },
    /// Staggered; where an error is found, 128 MB on either side are read at once, and the same around what is found there.
    Sweep {
        /// Rate.
        rate: f64,
    },
    /// Staggered; after an error, regions around it are read in turn, faster, for some hours; other rates before and after
    /// the first error, and for young drives.
    Adaptive(Adaptive),
}

/// Rates of [`Policy::Adaptive`], bytes per hour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adaptive {
    /// In the first 60 days.
    pub young: f64,
    /// Until the first error.
    pub before: f64,
    /// While regions around an error are read.
    pub fast: f64,
    /// After that.
    pub after: f64,
    /// For how many hours regions around an error are read.
    pub hours: f64,
}

impl Policy {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Policy::Sequential { .. } => "sequential",
            Policy::Staggered { .. } => "staggered",
            Policy::Sweep { .. } => "sweep-on-hit",
            Policy::Adaptive(_) => "adaptive",
        }
    }

    /// The rate of an ordinary pass.
    pub fn rate(&self, now: f64, found: bool) -> f64 {
        match self {
            Policy::Sequential { rate } | Policy::Staggered { rate } | Policy::Sweep { rate } => *rate,
            Policy::Adaptive(adaptive) if found => adaptive.after,
            Policy::Adaptive(adaptive) if now < YOUNG => adaptive.young,
            Policy::Adaptive(adaptive) => adaptive.before,
        }
    }
}

/// A disk with its order of reading.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Bytes.
    pub capacity: f64,
    /// Bytes of a segment.
    pub segment: f64,
}

impl Order {
    /// Which part of a pass is done when a place is read, from 0 to 1.
    pub fn part(&self, policy: &Policy, place: f64) -> f64 {
        if matches!(policy, Policy::Sequential { .. }) {
            return place / self.capacity;
        }
        let regions = (self.capacity / REGION).ceil();
        let segments = (REGION / self.segment).ceil();
        let (region, within) = ((place / REGION).floor(), place % REGION);
        let segment = (within / self.segment).floor();
        let inside = within / self.segment - segment;
        (segment * regions + region + inside) / (segments * regions)
    }
}
