//! Where blocks go: next to the blocks before and after them.

use crate::Placement;
use crate::engine::{Engine, PAGE, add};
use crate::format::{Pointer, put_range, range_key, range_of};
use crate::table::Home;
use ashlar_block::{Error, Kind, Result};
use std::collections::{BTreeMap, BTreeSet};

impl Engine {
    /// Brings the bits of an area into memory.
    pub(crate) async fn load(&self, area: u64) -> Result<()> {
        let inner = &*self.0;
        if inner.space.lock().is_loaded(area) {
            return Ok(());
        }
        // Held across the read, so that nobody changes the area between reading and admitting it.
        let _one = inner.loading.lock().await;
        if inner.space.lock().is_loaded(area) {
            return Ok(());
        }
        let shape = self.shape();
        let mut used = vec![0; shape.area_blocks().div_ceil(64) as usize];
        let (first, mut low) = (area * shape.area, range_key(area * shape.area).to_vec());
        loop {
            let page = inner.space_volume.page(&low, Some(&range_key(first + shape.area)), PAGE).await?;
            for (key, value) in &page.entries {
                let within = range_of(key)?.checked_sub(first).filter(|within| *within < shape.area);
                let within = within.ok_or_else(|| Error::corrupt("the map of free blocks is out of order"))?;
                put_range(&mut used, within, value, &shape)?;
            }
            match page.next {
                Some(next) => low = next.to_vec(),
                None => break,
            }
        }
        inner.space.lock().admit(area, used);
        Ok(())
    }

    /// Takes a block of the data device for each of these ascending offsets of an extent. `old` are the pointers to blocks
    /// that may be taken again.
    pub(crate) async fn place(&self, extent: u32, offsets: &[u64], old: &[(u64, Pointer)]) -> Result<Vec<u64>> {
        let mut placed = Vec::with_capacity(offsets.len());
        let done = self.place_all(extent, offsets, old, &mut placed).await;
        if done.is_err() {
            let mut space = self.0.space.lock();
            placed.iter().for_each(|at| space.release(*at));
        }
        done.map(|()| placed)
    }

    async fn place_all(
        &self,
        extent: u32,
        offsets: &[u64],
        old: &[(u64, Pointer)],
        placed: &mut Vec<u64>,
    ) -> Result<()> {
        let inner = &*self.0;
        let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else { return Ok(()) };
        let range = self.shape().range.0;
        let mut claims: BTreeSet<u64> = old.iter().map(|(_, pointer)| pointer.at).collect();
        let own: BTreeMap<u64, u64> = old.iter().map(|(offset, pointer)| (*offset, pointer.at)).collect();
        // Neighbours: of these allocation ranges, and the ones around them.
        let around = (first / range).saturating_sub(1) * range..(last / range + 2) * range;
        let mut known: BTreeMap<u64, u64> = BTreeMap::new();
        if inner.config.placement != Placement::Anywhere {
            let pointers = inner.pointers(&inner.extents, extent, around.clone()).await?;
            known.extend(pointers.into_iter().map(|(offset, pointer)| (offset, pointer.at)));
            let table = inner.table.lock();
            for (key, part) in inner.groups(extent, around) {
                for (offset, place) in table.range(key, part) {
                    match place.home {
                        Home::Fresh(pointer) => _ = known.insert(offset, pointer.at),
                        Home::Staged if inner.config.placement == Placement::Holes => _ = known.remove(&offset),
                        Home::Staged => {}
                    }
                }
            }
        }
        for part in offsets.chunk_by(|a, b| a / range == b / range) {
            let logical = part[0] / range;
            let begin = placed.len();
            self.place_range(logical, part, &mut known, &own, &mut claims, placed).await?;
            known.extend(part.iter().copied().zip(placed[begin..].iter().copied()));
        }
        Ok(())
    }

    /// Places blocks of one logical allocation range.
    async fn place_range(
        &self,
        logical: u64,
        offsets: &[u64],
        known: &mut BTreeMap<u64, u64>,
        own: &BTreeMap<u64, u64>,
        claims: &mut BTreeSet<u64>,
        placed: &mut Vec<u64>,
    ) -> Result<()> {
        let inner = &*self.0;
        let range = self.shape().range.0;
        if inner.config.placement == Placement::Anywhere {
            for _ in offsets {
                placed.push(self.anywhere(None).await?);
            }
            return Ok(());
        }
        let mut homes: Vec<u64> =
            known.range(logical * range..(logical + 1) * range).map(|(_, at)| at / range).collect();
        homes.dedup();
        let mut room = 0;
        for home in homes.iter().collect::<BTreeSet<_>>() {
            room += self.free_in(*home, claims).await?;
        }
        // Nothing is there yet, or it is all overwritten at once: a range of its own, near the one before.
        let sparse = homes.is_empty()
            || offsets.len() as u64 == range
            || room < offsets.len() as u64 && offsets.len() as u64 > range / 2;
        let fresh = if sparse && own.len() < offsets.len() { self.empty_range(logical, known).await? } else { None };
        for offset in offsets {
            let mut found = None;
            if let Some(fresh) = fresh {
                found = inner.space.lock().take(fresh, fresh * range + offset % range, claims);
            }
            if found.is_none() && inner.config.placement == Placement::Own {
                found = own.get(offset).copied().filter(|at| claims.remove(at));
            }
            if found.is_none() {
                let before = known.range(..offset).next_back().filter(|(other, _)| *other / range == logical);
                let after = known.range(offset + 1..).next().filter(|(other, _)| *other / range == logical);
                let near = match (before, after) {
                    (Some((_, at)), _) => at + 1,
                    (None, Some((_, at))) => at.saturating_sub(1),
                    (None, None) => self.far_hint(logical, known),
                };
                found = Some(self.near(near, claims).await?);
            }
            let at = found.ok_or_else(|| Error::corrupt("no place was found and no error"))?;
            known.insert(*offset, at);
            placed.push(at);
        }
        Ok(())
    }

    /// Where the neighbours of a logical range are that has none itself.
    fn far_hint(&self, logical: u64, known: &BTreeMap<u64, u64>) -> u64 {
        let range = self.shape().range.0;
        let before = known.range(..logical * range).next_back().map(|(_, at)| at + range);
        let after = || known.range(logical * range..).next().map(|(_, at)| at.saturating_sub(range));
        before.or_else(after).unwrap_or_else(|| self.0.space.lock().cursor * range)
    }

    async fn free_in(&self, range: u64, claims: &BTreeSet<u64>) -> Result<u64> {
        add(&self.0.counts.probes, 1);
        self.load(range / self.shape().area).await?;
        Ok(self.0.space.lock().free_in(range, claims))
    }

    /// Ranges by distance from one, this one first: so many as are to be probed.
    fn ranges_from(&self, start: u64) -> impl Iterator<Item = u64> + use<> {
        let (count, probes) = (self.0.space.lock().ranges_count(), self.0.config.probes);
        let start = start.min(count.saturating_sub(1));
        let around = (0..=probes.max(1) / 2).flat_map(move |distance| {
            let after = Some(start + distance).filter(|range| *range < count);
            let before = start.checked_sub(distance).filter(|_| distance > 0);
            after.into_iter().chain(before)
        });
        around.take(probes.max(1) as usize)
    }

    /// An empty range near the neighbours of a logical range.
    async fn empty_range(&self, logical: u64, known: &BTreeMap<u64, u64>) -> Result<Option<u64>> {
        let inner = &*self.0;
        let shape = self.shape();
        let start = self.far_hint(logical, known) / shape.range.0;
        let cursor = inner.space.lock().cursor;
        for range in self.ranges_from(start).chain(self.ranges_from(cursor)) {
            add(&inner.counts.probes, 1);
            self.load(range / shape.area).await?;
            let mut space = inner.space.lock();
            if space.is_empty(range) {
                space.cursor = range + 1;
                return Ok(Some(range));
            }
        }
        Ok(None)
    }

    /// A block as near as there is one.
    async fn near(&self, near: u64, claims: &mut BTreeSet<u64>) -> Result<u64> {
        let inner = &*self.0;
        let shape = self.shape();
        for range in self.ranges_from(near / shape.range.0) {
            add(&inner.counts.probes, 1);
            self.load(range / shape.area).await?;
            if let Some(at) = inner.space.lock().take(range, near, claims) {
                return Ok(at);
            }
        }
        add(&inner.counts.far, 1);
        self.anywhere(Some(near)).await
    }

    /// A free block, from some place on, by default from where the last one was found.
    async fn anywhere(&self, from: Option<u64>) -> Result<u64> {
        let inner = &*self.0;
        let from = from.unwrap_or_else(|| inner.space.lock().cursor * self.shape().range.0);
        for round in 0..2 {
            let (start, count) = {
                let space = inner.space.lock();
                (space.area_of(from), space.areas_count())
            };
            for step in 0..count {
                let area = (start + step) % count;
                if inner.space.lock().is_full(area) {
                    continue;
                }
                self.load(area).await?;
                let mut space = inner.space.lock();
                if let Some(at) = space.take_any(area, if step == 0 { from } else { 0 }) {
                    space.cursor = at / self.shape().range.0;
                    return Ok(at);
                }
            }
            // What was dropped may be free as soon as that is durable.
            if round == 0 {
                self.settle().await?;
            }
        }
        let message = format!("{} is full: discard what is not needed, or destroy snapshots", inner.data.name());
        Err(Error::new(Kind::NoSpace, message))
    }
}
