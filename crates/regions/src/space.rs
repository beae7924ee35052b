//! Regions in memory, and the choice of where something new goes.
//!
//! The map's record of every region is in memory; bitmaps are loaded when something is taken or given back, and forgotten
//! when they are as the last checkpoint has them and memory is short.

use crate::bits::Bits;
use crate::extents::FreeExtents;
use crate::format::{EXTENTS_MAX, Extent, Head, MapEntry, Place, Record};
use crate::layout::{Kind, Layout};

/// Fragments of a new small object that a region may cost before another is looked for; the thesis leaves it open.
pub const FRAGMENTS_FINE: usize = 8;
/// Regions that stay free for index nodes and cleaning: nothing of users is put there.
pub const RESERVE: u64 = 1;

/// Bitmaps of a region.
#[derive(Clone, Debug)]
pub struct State {
    /// Onodes or units in use, with those in quarantine.
    pub slots: Bits,
    /// Blocks in use, with those in quarantine.
    pub blocks: Bits,
    /// The others.
    pub free: FreeExtents,
    hint: u32,
}

impl State {
    /// Of these bitmaps.
    pub fn new(slots: Bits, blocks: Bits) -> State {
        State { free: FreeExtents::of(&blocks), slots, blocks, hint: 0 }
    }
}

/// A region in memory.
#[derive(Clone, Debug)]
pub struct Region {
    /// As it is now, but for `head` and `generation`, which are those of the last checkpoint.
    pub entry: MapEntry,
    /// The log says that it is being written.
    pub opened: bool,
    /// Differs from the last checkpoint.
    pub changed: bool,
    /// Bitmaps, if they are loaded.
    pub state: Option<Box<State>>,
    /// Places that may not be reused yet.
    pub quarantined: u32,
    /// When it was used last.
    touched: u64,
}

/// What an allocation came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Here.
    At(Place, Vec<Extent>),
    /// The bitmaps of this region must be loaded first.
    Load(u32),
    /// There is no room.
    Full,
}

/// How pressed the allocator is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// As always.
    Usual,
    /// Many wait: rather a fresh region near by than free room far away.
    Burst,
}

/// All regions.
pub struct Space {
    pub(crate) layout: Layout,
    /// Every region, and behind them the tail.
    pub(crate) regions: Vec<Region>,
    /// The region that took the last large and the last small object.
    outstanding: [u32; 2],
    /// Regions that began to be written, for the log.
    pub(crate) opens: Vec<Record>,
    /// Regions that nothing new goes to: they are being cleaned or repaired.
    pub(crate) barred: Option<u32>,
    clock: u64,
}

fn index(kind: Kind) -> usize {
    usize::from(kind == Kind::Small)
}

impl Space {
    /// Regions as a checkpoint has them.
    pub fn new(layout: Layout, entries: Vec<MapEntry>) -> Space {
        let region = |entry| Region { entry, opened: false, changed: false, state: None, quarantined: 0, touched: 0 };
        Space {
            layout,
            regions: entries.into_iter().map(region).collect(),
            outstanding: [0; 2],
            opens: Vec::new(),
            barred: None,
            clock: 0,
        }
    }

    /// A region, if there is one of this number.
    pub fn region(&self, region: u32) -> Option<&Region> {
        self.regions.get(region as usize)
    }

    /// Free regions, which take whatever kind is needed.
    pub fn free_regions(&self) -> u64 {
        let whole = self.regions.iter().take(self.layout.regions as usize);
        whole.filter(|region| region.entry.kind == Kind::Free && !region.entry.corrupt).count() as u64
    }

    /// Blocks that small objects of up to `largest` blocks surely find in small regions: as long as some region has so many
    /// free, the next one has a place, so that each may in the end keep one less of them.
    pub fn sure_blocks(&self, largest: u64) -> u64 {
        let small =
            self.regions.iter().map(|region| &region.entry).filter(|entry| entry.kind == Kind::Small && !entry.corrupt);
        let with_slots = small.filter(|entry| entry.free_slots > 0);
        with_slots.map(|entry| u64::from(entry.free_blocks).saturating_sub(largest - 1)).sum()
    }

    /// Room for large and small objects in regions of those kinds: units; onodes and blocks.
    pub fn room(&self) -> (u64, u64, u64) {
        let sum = |kind: Kind, count: fn(&MapEntry) -> u32| -> u64 {
            let of_kind = self.regions.iter().filter(|region| region.entry.kind == kind && !region.entry.corrupt);
            of_kind.map(|region| u64::from(count(&region.entry))).sum()
        };
        (
            sum(Kind::Large, |entry| entry.free_slots),
            sum(Kind::Small, |entry| entry.free_slots),
            sum(Kind::Small, |entry| entry.free_blocks),
        )
    }

    /// Nothing new goes to a region until it is repaired.
    pub fn condemn(&mut self, region: u32) {
        if let Some(region) = self.regions.get_mut(region as usize) {
            region.entry.corrupt = true;
            region.changed = true;
        }
    }

    fn usable(&self, number: u32, kind: Kind) -> bool {
        self.is(number, kind, false)
    }
    fn is(&self, number: u32, kind: Kind, condemned: bool) -> bool {
        let entry = &self.regions[number as usize].entry;
        entry.kind == kind && entry.corrupt == condemned && self.barred != Some(number)
    }

    /// Regions of a kind in the order in which they are asked (section 6.1.1): from the outstanding one on; the fullest first
    /// when free regions are few (region packing, section 6.3).
    fn candidates(&self, kind: Kind) -> Vec<u32> {
        let count = self.layout.regions as u32;
        let start = self.outstanding[index(kind)];
        let mut order: Vec<u32> =
            (0..count).map(|step| (start + step) % count).filter(|region| self.usable(*region, kind)).collect();
        if self.free_regions() <= (self.layout.regions / 20).max(RESERVE + 1) {
            order.sort_by_key(|region| {
                let entry = &self.regions[*region as usize].entry;
                if kind == Kind::Small { entry.free_blocks } else { entry.free_slots }
            });
        }
        order
    }

    /// The free region nearest to `near`; condemned, or not.
    fn nearest_free(&self, near: u32, condemned: bool) -> Option<u32> {
        let free = (0..self.layout.regions as u32).filter(|region| self.is(*region, Kind::Free, condemned));
        free.min_by_key(|region| region.abs_diff(near))
    }

    /// Gives a free region a kind, at this version.
    fn format(&mut self, number: u32, kind: Kind, birth: u64) {
        let (slots, blocks) = self.layout.shape_of(number).bits(kind);
        let region = &mut self.regions[number as usize];
        let state = State::new(Bits::new(slots), Bits::new(blocks));
        region.entry = MapEntry {
            kind,
            birth,
            free_slots: slots as u32,
            free_blocks: blocks as u32,
            live: 0,
            hidden: 0,
            bytes: 0,
            ..region.entry
        };
        region.state = Some(Box::new(state));
        region.opened = false;
        region.changed = true;
    }

    /// Notes that a region is written from now on; the log is told once between two checkpoints.
    fn open(&mut self, number: u32) {
        self.clock += 1;
        let region = &mut self.regions[number as usize];
        region.touched = self.clock;
        region.changed = true;
        if !region.opened {
            region.opened = true;
            self.opens.push(Record::Open { region: number, kind: region.entry.kind, birth: region.entry.birth });
        }
    }

    /// A place for an object of this kind with `blocks` blocks of payload. A region that takes a kind for it is born at
    /// `birth`. What is `hidden` is not counted for users.
    pub fn take(&mut self, kind: Kind, blocks: u32, birth: u64, urgency: Urgency, hidden: bool) -> Taken {
        let taken = self.find(kind, blocks, birth, urgency);
        if let Taken::At(place, _) = &taken {
            self.regions[place.region as usize].entry.hidden += u32::from(hidden);
        }
        taken
    }

    fn find(&mut self, kind: Kind, blocks: u32, birth: u64, urgency: Urgency) -> Taken {
        if let Some(taken) = self.take_outstanding(kind, blocks) {
            return taken;
        }
        let spare = self.free_regions();
        let fresh = urgency == Urgency::Burst && spare > RESERVE + self.layout.regions / 4;
        let outstanding = self.outstanding[index(kind)];
        for fine in [FRAGMENTS_FINE, EXTENTS_MAX] {
            for number in self.candidates(kind) {
                if fresh && number != outstanding {
                    break;
                }
                let entry = &self.regions[number as usize].entry;
                let blocks_fit = kind == Kind::Large || entry.free_blocks >= blocks;
                if entry.free_slots == 0 || !blocks_fit {
                    continue;
                }
                let Some(state) = &self.regions[number as usize].state else { return Taken::Load(number) };
                if kind == Kind::Large || state.free.fragments(blocks, fine).is_some() {
                    return self.take_in(number, blocks);
                }
            }
            if spare > RESERVE
                && let Some(number) = self.nearest_free(outstanding, false)
            {
                self.format(number, kind, birth);
                return self.take_in(number, blocks);
            }
        }
        Taken::Full
    }

    /// A place in the region that took the last one, if it fits well there.
    fn take_outstanding(&mut self, kind: Kind, blocks: u32) -> Option<Taken> {
        let number = self.outstanding[index(kind)];
        if !self.usable(number, kind) {
            return None;
        }
        let region = &self.regions[number as usize];
        let Some(state) = &region.state else { return Some(Taken::Load(number)) };
        let fits = kind == Kind::Large || state.free.fragments(blocks, FRAGMENTS_FINE).is_some();
        (region.entry.free_slots > 0 && fits).then(|| self.take_in(number, blocks))
    }

    fn take_in(&mut self, number: u32, blocks: u32) -> Taken {
        self.open(number);
        let region = &mut self.regions[number as usize];
        let Some(state) = &mut region.state else { return Taken::Load(number) };
        let kind = region.entry.kind;
        let Some(slot) = state.slots.first_clear(state.hint) else { return Taken::Full };
        state.slots.set(slot, true);
        state.hint = slot + 1;
        let extents = if kind == Kind::Small { state.free.allocate(blocks) } else { Vec::new() };
        extents.iter().for_each(|extent| mark(&mut state.blocks, extent, true));
        region.entry.free_slots -= 1;
        region.entry.free_blocks -= extents.iter().map(|extent| extent.count).sum::<u32>();
        region.entry.live += 1;
        region.entry.bytes += charge(kind, blocks, self.layout.shape.large);
        self.outstanding[index(kind)] = number;
        Taken::At(Place { region: number, slot }, extents)
    }

    /// A region with so many neighbouring blocks for tables: one that has tables, or else a free one; condemned, or not.
    fn table(&mut self, blocks: u32, birth: u64, condemned: bool) -> Option<u32> {
        let fits = |region: &Region| region.state.as_ref().is_some_and(|state| state.free.longest() >= blocks);
        let count = self.regions.len() as u32;
        let tables: Vec<u32> = (0..count).rev().filter(|number| self.is(*number, Kind::Table, condemned)).collect();
        let found = tables.iter().copied().find(|number| fits(&self.regions[*number as usize]));
        found.or_else(|| {
            let number = self.nearest_free(tables.first().copied().unwrap_or(0), condemned)?;
            self.format(number, Kind::Table, birth);
            Some(number)
        })
    }

    /// Blocks for an index node or a page of the lookup table: neighbours in the tail, or else in a table region. Condemned ones
    /// are taken where there is no other: a store must always be able to write a checkpoint, and the places that refused stay
    /// taken.
    pub fn take_table(&mut self, blocks: u32, birth: u64) -> Option<(u32, u32)> {
        let tail = self.layout.regions as u32;
        if self.layout.is_tail(tail) && self.usable(tail, Kind::Free) {
            self.format(tail, Kind::Table, birth);
        }
        let number = self.table(blocks, birth, false).or_else(|| self.table(blocks, birth, true))?;
        self.open(number);
        let region = &mut self.regions[number as usize];
        let state = region.state.as_mut()?;
        let [extent] = state.free.allocate(blocks)[..] else { return None };
        mark(&mut state.blocks, &extent, true);
        region.entry.free_blocks -= extent.count;
        region.entry.bytes += u64::from(extent.count) * ashlar_units::BLOCK.0;
        Some((number, extent.block))
    }

    /// Gives blocks of a table region back.
    pub fn give_table(&mut self, number: u32, extent: Extent) {
        let Some(region) = self.regions.get_mut(number as usize) else { return };
        let Some(state) = region.state.as_mut().filter(|state| state.blocks.get(extent.block)) else { return };
        mark(&mut state.blocks, &extent, false);
        state.free.insert(extent);
        region.entry.free_blocks += extent.count;
        region.entry.bytes = region.entry.bytes.saturating_sub(u64::from(extent.count) * ashlar_units::BLOCK.0);
        region.changed = true;
    }

    /// Marks a block of a table region as used, if it is not.
    pub fn claim_table(&mut self, number: u32, block: u32) {
        let Some(region) = self.regions.get_mut(number as usize) else { return };
        let Some(state) = region.state.as_mut().filter(|state| !state.blocks.get(block)) else { return };
        let extent = Extent { block, count: 1 };
        mark(&mut state.blocks, &extent, true);
        state.free.claim(extent);
        region.entry.free_blocks -= 1;
        region.changed = true;
    }

    /// The copy in this place does not count any more; it may not be reused yet.
    pub fn quarantine(&mut self, place: Place, hidden: bool) {
        self.regions[place.region as usize].quarantined += 1;
        self.uncount(place.region, hidden);
    }

    /// Counts an object less in a region, of which perhaps too little is known to give its place back.
    pub fn uncount(&mut self, region: u32, hidden: bool) {
        let region = &mut self.regions[region as usize];
        region.entry.live = region.entry.live.saturating_sub(1);
        region.entry.hidden = region.entry.hidden.saturating_sub(u32::from(hidden));
    }

    /// Whether a place can be given back at once; else its region must be loaded.
    pub fn is_loaded(&self, region: u32) -> bool {
        self.regions[region as usize].state.is_some()
    }

    /// Gives a place in quarantine, and its blocks, back for reuse. Its region is loaded.
    pub fn release(&mut self, place: Place, extents: &[Extent], blocks: u32) {
        let region = &mut self.regions[place.region as usize];
        let Some(state) = &mut region.state else { return };
        region.quarantined = region.quarantined.saturating_sub(1);
        region.changed = true;
        let charged = charge(region.entry.kind, blocks, self.layout.shape.large);
        region.entry.bytes = region.entry.bytes.saturating_sub(charged);
        if state.slots.set(place.slot, false) {
            region.entry.free_slots += 1;
            state.hint = state.hint.min(place.slot);
        }
        for extent in extents {
            // What is free already, as damage may say, stays as it is.
            if (extent.block..extent.block.saturating_add(extent.count)).all(|block| state.blocks.get(block)) {
                mark(&mut state.blocks, extent, false);
                state.free.insert(*extent);
                region.entry.free_blocks += extent.count;
            }
        }
    }

    /// Keeps the bitmaps of a region that somebody loaded.
    pub fn loaded(&mut self, number: u32, head: Head) {
        self.clock += 1;
        let region = &mut self.regions[number as usize];
        if region.state.is_none() {
            region.state = Some(Box::new(State::new(head.slots, head.blocks)));
            region.touched = self.clock;
        }
    }

    /// Forgets bitmaps that the last checkpoint has, the longest unused first, until at most `most` regions have any. Those of
    /// table regions stay.
    pub fn forget(&mut self, most: usize) {
        let idle = |region: &Region| {
            region.state.is_some() && !region.changed && region.quarantined == 0 && region.entry.kind != Kind::Table
        };
        let held = self.regions.iter().filter(|region| region.state.is_some()).count();
        if held <= most {
            return;
        }
        let mut idle: Vec<(u64, usize)> = self
            .regions
            .iter()
            .enumerate()
            .filter(|(_, region)| idle(region))
            .map(|(number, region)| (region.touched, number))
            .collect();
        idle.sort_unstable();
        for (_, number) in idle.into_iter().take(held - most) {
            self.regions[number].state = None;
        }
    }

    /// Regions that hold nothing any more become free. Nothing may be in quarantine.
    pub fn free_empty(&mut self) {
        for region in &mut self.regions {
            let holds = region.entry.live > 0 || region.quarantined > 0 || region.entry.corrupt;
            if matches!(region.entry.kind, Kind::Large | Kind::Small) && !holds && region.changed {
                region.entry = MapEntry { head: region.entry.head, birth: region.entry.birth, ..MapEntry::FREE };
                region.state = None;
                region.opened = false;
            }
        }
    }
}

/// Bytes that an object takes of its region: all of a large block, or its small ones.
pub fn charge(kind: Kind, blocks: u32, large: u64) -> u64 {
    (if kind == Kind::Large { large } else { u64::from(blocks) }) * ashlar_units::BLOCK.0
}

/// Sets or clears the bits of an extent.
pub fn mark(bits: &mut Bits, extent: &Extent, value: bool) {
    for bit in extent.block..extent.block.saturating_add(extent.count) {
        bits.set(bit, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Config;
    use ashlar_units::{Blocks, Bytes};

    #[test]
    fn tables_go_into_condemned_regions_only_where_there_is_no_other() {
        let config = Config { region: Blocks(256).to_bytes(), large_block: Bytes(16 * 4096), ..Config::default() };
        let layout = Layout::new(Blocks(2100), &config).expect("a layout");
        let mut space = Space::new(layout, vec![MapEntry::FREE; layout.parts() as usize]);
        let all = space.regions.len() as u32;
        let mut taken = std::collections::BTreeSet::new();
        let mut take = |space: &mut Space| {
            let at = space.take_table(1, 1);
            assert!(at.is_none_or(|at| taken.insert(at)), "{at:?} is given twice");
            at.map(|(region, _)| region)
        };
        // One that has tables is condemned, and one that is free: neither is used while there are others.
        let first = take(&mut space).expect("room");
        let free = (0..layout.regions as u32).find(|number| *number != first).expect("several regions");
        space.condemn(first);
        space.condemn(free);
        let mut used = std::collections::BTreeSet::new();
        while used.len() + 2 < all as usize {
            used.insert(take(&mut space).expect("room"));
        }
        assert!(!used.contains(&first) && !used.contains(&free));
        // Then they are, the one with tables first, until nothing is left.
        let last: Vec<u32> = std::iter::from_fn(|| take(&mut space)).filter(|number| !used.contains(number)).collect();
        assert_eq!((last.first(), last.last()), (Some(&first), Some(&free)));
        // What is barred is not used at all.
        space.barred = Some(first);
        space.give_table(first, Extent { block: 0, count: 1 });
        assert_eq!(space.take_table(1, 1), None);
    }
}
