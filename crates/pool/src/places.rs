//! Where on the devices things lie, for whoever wants to know how well. Addresses are bytes, of the devices one after the other.

use crate::Pool;
use crate::map::Run;
use crate::space::State;
use crate::store::place;
use std::ops::Range;

impl Pool {
    /// Where the bytes are that are read for a run; of a compressed one, the whole extent. `None`: nowhere.
    pub fn place_of(&self, run: &Run) -> Option<Range<u64>> {
        let layout = &self.0.layout;
        let within = place(run)?.range;
        if !layout.holds(run.uid, within.start, within.end - within.start) {
            return None;
        }
        let start = self.segment_at(crate::space::slot_of(run.uid))?;
        Some(start + u64::from(within.start)..start + u64::from(within.end))
    }

    /// Free segments; neighbours are one range.
    pub fn free_ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (slot, state) in (0..).zip(self.0.space.slots()) {
            let Some(start) = self.segment_at(slot).filter(|_| state.state == State::Free) else { continue };
            let end = start + self.0.layout.segment_bytes();
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        ranges
    }

    /// The first byte of a segment.
    fn segment_at(&self, slot: u32) -> Option<u64> {
        let layout = &self.0.layout;
        let mut before = 0;
        for place in layout.places() {
            if place.slots.contains(&slot) {
                let (_, address) = layout.locate(u64::from(slot), 0);
                return Some(before + address.to_bytes().0);
            }
            before += place.record.capacity.to_bytes().0;
        }
        None
    }
}
