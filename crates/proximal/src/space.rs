//! Which blocks of the data device are free: a bit map in parts, of which the most used are in memory.

use crate::Shape;
use crate::format::get_range;
use ashlar_units::Blocks;
use std::collections::{BTreeMap, BTreeSet};

/// Blocks of a proximal range. Bits are set for blocks that are not free.
struct Area {
    /// As the last committed transaction has it.
    used: Vec<u64>,
    /// What must not be allocated: `used`, what was allocated and is not committed, and what was dropped and is not durably so.
    taken: Vec<u64>,
    /// When it was last wanted.
    wanted: u64,
}

/// See the module.
pub(crate) struct Space {
    shape: Shape,
    capacity: Blocks,
    areas: BTreeMap<u64, Area>,
    areas_max: usize,
    tick: u64,
    /// Areas without a free block when last seen.
    full: BTreeSet<u64>,
    /// Old blocks of a batch under way: the batch alone may free them, or has written to them already.
    claimed: BTreeSet<u64>,
    /// Where the last empty range was taken.
    pub cursor: u64,
}

fn bit(bits: &[u64], at: u64) -> bool {
    bits.get((at / 64) as usize).is_none_or(|word| word >> (at % 64) & 1 == 1)
}
fn set(bits: &mut [u64], at: u64, value: bool) {
    if let Some(word) = bits.get_mut((at / 64) as usize) {
        *word = *word & !(1 << (at % 64)) | u64::from(value) << (at % 64);
    }
}

/// The first bit in `from..to` that is not set.
fn first_clear(bits: &[u64], from: u64, to: u64) -> Option<u64> {
    let mut at = from;
    while at < to {
        let word = bits.get((at / 64) as usize)? | ((1 << (at % 64)) - 1);
        match u64::from(word.trailing_ones()) {
            64 => at = (at / 64 + 1) * 64,
            clear => return Some(at / 64 * 64 + clear).filter(|found| *found < to),
        }
    }
    None
}

impl Space {
    /// Nothing is in memory yet.
    pub fn new(shape: Shape, capacity: Blocks, areas_max: usize) -> Space {
        let (areas, full, claimed) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Space { shape, capacity, areas, areas_max, tick: 0, full, claimed, cursor: 0 }
    }

    pub fn area_of(&self, at: u64) -> u64 {
        at / self.shape.area_blocks()
    }
    pub fn areas_count(&self) -> u64 {
        self.capacity.0.div_ceil(self.shape.area_blocks())
    }
    pub fn ranges_count(&self) -> u64 {
        self.capacity.0.div_ceil(self.shape.range.0)
    }
    pub fn is_loaded(&mut self, area: u64) -> bool {
        self.tick += 1;
        let tick = self.tick;
        self.areas.get_mut(&area).map(|area| area.wanted = tick).is_some()
    }
    pub fn is_full(&self, area: u64) -> bool {
        self.full.contains(&area)
    }

    /// Takes in an area's bits, and lets those go that were not wanted for longest.
    pub fn admit(&mut self, area: u64, mut used: Vec<u64>) {
        let first = area * self.shape.area_blocks();
        if area == 0 {
            set(&mut used, 0, true); // the label
        }
        for at in self.capacity.0.max(first)..first + self.shape.area_blocks() {
            set(&mut used, at - first, true);
        }
        self.tick += 1;
        self.areas.insert(area, Area { taken: used.clone(), used, wanted: self.tick });
        while self.areas.len() > self.areas_max {
            let idle = self.areas.iter().filter(|(number, held)| **number != area && held.used == held.taken);
            let Some(oldest) = idle.min_by_key(|(_, held)| held.wanted).map(|(number, _)| *number) else { break };
            self.areas.remove(&oldest);
        }
    }

    fn locate(&self, at: u64) -> (u64, u64) {
        (at / self.shape.area_blocks(), at % self.shape.area_blocks())
    }

    /// Whether a block of an area in memory may be allocated; of others nothing is known.
    fn is_free(&self, at: u64) -> bool {
        let (area, within) = self.locate(at);
        self.areas.get(&area).is_some_and(|area| !bit(&area.taken, within))
    }

    pub fn blocks_of(&self, range: u64) -> std::ops::Range<u64> {
        range * self.shape.range.0..((range + 1) * self.shape.range.0).min(self.capacity.0)
    }

    /// Free blocks of a range whose area is in memory, with those of `claims`.
    pub fn free_in(&self, range: u64, claims: &BTreeSet<u64>) -> u64 {
        let claimed = claims.range(self.blocks_of(range)).count();
        self.blocks_of(range).filter(|at| self.is_free(*at)).count() as u64 + claimed as u64
    }

    /// Whether all of a range is free.
    pub fn is_empty(&self, range: u64) -> bool {
        let mut blocks = self.blocks_of(range);
        blocks.end - blocks.start == self.shape.range.0 && blocks.all(|at| self.is_free(at))
    }

    /// Takes the free or claimed block of a range that is the first at or behind `near`, else the last before.
    pub fn take(&mut self, range: u64, near: u64, claims: &mut BTreeSet<u64>) -> Option<u64> {
        let blocks = self.blocks_of(range);
        let near = near.clamp(blocks.start, blocks.end);
        let usable = |at: &u64| self.is_free(*at) || claims.contains(at);
        let found = (near..blocks.end).find(usable).or_else(|| (blocks.start..near).rev().find(usable))?;
        if !claims.remove(&found) {
            self.mark(found, true);
        }
        Some(found)
    }

    /// The first free block of an area, which it takes; notes if there is none.
    pub fn take_any(&mut self, area: u64, from: u64) -> Option<u64> {
        let first = area * self.shape.area_blocks();
        let end = (first + self.shape.area_blocks()).min(self.capacity.0);
        let near = from.clamp(first, end);
        let bits = &self.areas.get(&area)?.taken;
        let free = |from: u64, to: u64| first_clear(bits, from - first, to - first).map(|at| first + at);
        let found = free(near, end).or_else(|| free(first, near));
        match found {
            Some(at) => self.mark(at, true),
            None => _ = self.full.insert(area),
        }
        found
    }

    fn mark(&mut self, at: u64, taken: bool) {
        let (area, within) = self.locate(at);
        self.areas.get_mut(&area).into_iter().for_each(|area| set(&mut area.taken, within, taken));
    }

    /// An allocation came to nothing, or what was dropped is durably so: the block is free, unless it is in use.
    pub fn release(&mut self, at: u64) {
        let (area, within) = self.locate(at);
        if let Some(area) = self.areas.get_mut(&area) {
            let used = bit(&area.used, within);
            set(&mut area.taken, within, used);
        }
        self.full.remove(&area);
    }

    /// A batch may write to its old blocks.
    pub fn claim(&mut self, blocks: impl IntoIterator<Item = u64>) {
        self.claimed.extend(blocks);
    }
    pub fn end_claims(&mut self, blocks: impl IntoIterator<Item = u64>) {
        blocks.into_iter().for_each(|at| _ = self.claimed.remove(&at));
    }
    pub fn is_claimed(&self, at: u64) -> bool {
        self.claimed.contains(&at)
    }

    /// The bits of an allocation range, whose area is in memory, with some changes, as a transaction stores them.
    pub fn changed(&self, range: u64, changes: &[(u64, bool)]) -> Option<Vec<u8>> {
        let (area, within) = (range / self.shape.area, range % self.shape.area);
        let mut bits = get_range(&self.areas.get(&area)?.used, within, &self.shape);
        for (at, used) in changes {
            let at = at % self.shape.range.0;
            let byte = bits.get_mut((at / 8) as usize)?;
            *byte = *byte & !(1 << (at % 8)) | u8::from(*used) << (at % 8);
        }
        Some(bits)
    }
    /// The transaction is committed. Blocks that are not in use stay taken until they are released.
    pub fn apply(&mut self, range: u64, changes: &[(u64, bool)]) {
        let blocks = self.shape.area_blocks();
        let Some(area) = self.areas.get_mut(&(range / self.shape.area)) else { return };
        for (at, used) in changes {
            set(&mut area.used, at % blocks, *used);
            if *used {
                set(&mut area.taken, at % blocks, true);
            }
        }
    }

    /// Blocks of an area in memory, and whether they are in use.
    pub fn uses(&self, area: u64) -> Vec<(u64, bool)> {
        let first = area * self.shape.area_blocks();
        let end = (first + self.shape.area_blocks()).min(self.capacity.0);
        let Some(area) = self.areas.get(&area) else { return Vec::new() };
        (first..end).map(|at| (at, bit(&area.used, at - first))).collect()
    }
}
