//! Third stage: what is in memory when a call comes, by simulation.
//!
//! Two policies: [`Thesis`] has three lists by last use, as BSD and the thesis had; [`Linux`] has what the kernel has.

mod dirty;
mod linux;
mod lists;
mod readahead;
mod thesis;

pub use dirty::Limits;
pub use linux::{Counts, Linux, Memory};
pub use thesis::{Sizes, Thesis};

use super::step::Chain;

/// A simulation of caches. The caches are empty at first, but for what is held.
pub trait Cache {
    /// Annotates a chain; `now_ns` is when its call comes, on the clock of the system that is predicted.
    fn apply(&mut self, chain: &mut Chain, now_ns: u64);
}

/// Longest range of one call that is looked at, bytes: Linux does no more at once.
const IO_MAX: u64 = 0x7fff_f000;

/// Units of `unit` bytes that a range touches, first and end.
fn units(offset: u64, len: u64, unit: u64) -> std::ops::Range<u64> {
    let len = len.min(IO_MAX);
    if len == 0 { 0..0 } else { offset / unit..offset.saturating_add(len).div_ceil(unit) }
}
