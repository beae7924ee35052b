//! Checking and repairing regions while the store is in use (section 6.2.4): readers go on, changes wait.
//!
//! Nothing in a region is trusted but onodes, one by one. Whether one counts, the table says; where the table has lost its
//! page, the bitmaps of the other regions say. Only the region that is damaged changes.

use crate::Regions;
use crate::bits::Bits;
use crate::format::{Entry, Extent, Head, Onode};
use crate::layout::Kind;
use crate::recover::{Recovered, Scan, install};
use crate::shared::{Shared, Writer};
use crate::write::Force;
use ashlar_block::{Error as BlockError, Kind as ErrorKind};
use ashlar_objects::{Name, Result};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Checked {
    /// Regions that were read.
    pub regions: u64,
    /// Objects whose contents were compared with their checksums.
    pub objects: u64,
    /// What is wrong, in words.
    pub problems: Vec<String>,
    /// Objects whose onode is gone: after a repair, nothing is known of them.
    pub lost: Vec<String>,
    /// Objects whose contents are damaged: what is left of them can be read.
    pub damaged: Vec<String>,
    /// Pages of the lookup table that were made anew from onodes.
    pub pages_rebuilt: u64,
    /// Whether the index of names was made anew from onodes.
    pub names_rebuilt: bool,
    /// Whether problems were mended.
    pub repaired: bool,
}

impl Checked {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty() && self.lost.is_empty() && self.damaged.is_empty()
    }
}

/// Names that are looked at together when lost objects are named.
pub const NAMES_AT_ONCE: usize = 1000;

/// Told regions done and regions in all.
pub type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

impl Regions {
    /// As [`check_telling`](Regions::check_telling), telling nobody.
    ///
    /// # Errors
    /// As there.
    pub async fn check(&self, region: Option<u32>, repair: bool) -> Result<Checked> {
        self.check_telling(region, repair, Arc::new(|_, _| {})).await
    }

    /// Checks one region, or all and the lookup table; mends what can be if `repair` is asked for.
    ///
    /// # Errors
    /// There is no such region; those of the device, where they are not damage.
    pub async fn check_telling(&self, region: Option<u32>, repair: bool, progress: Progress) -> Result<Checked> {
        let me = self.clone();
        let task = self.0.env.spawn(async move {
            let damage = if region.is_none() { me.0.check_names().await? } else { None };
            if damage.is_some() && repair {
                let _gate = me.0.gate.write().await;
                let mut writer = me.0.writer.lock().await;
                me.0.drain_all(&mut writer).await?;
                me.0.rebuild_names(&mut writer).await?;
            }
            let mut writer = me.0.writer.lock().await;
            // Nothing is under way, and nothing in quarantine.
            me.0.drain(&mut writer, Force { flush: true, log: true }).await?;
            let mut checked = me.0.check(&mut writer, region, repair, &progress).await?;
            if let Some(error) = damage {
                checked.problems.insert(0, format!("the index of names: {error}"));
                (checked.names_rebuilt, checked.repaired) = (repair, checked.repaired || repair);
            }
            Ok(checked)
        });
        let checked: Result<Checked> = task.await;
        let checked = checked?;
        if checked.repaired {
            self.checkpoint().await?;
        }
        Ok(checked)
    }
}

impl Shared {
    async fn check(
        &self,
        writer: &mut Writer,
        only: Option<u32>,
        repair: bool,
        progress: &Progress,
    ) -> Result<Checked> {
        let count = self.disk.layout.regions as u32;
        if let Some(region) = only.filter(|region| *region >= count) {
            let message = format!("there is no region {region}: there are {count}, from 0 on");
            return Err(BlockError::misuse(message).into());
        }
        let mut checked = Checked::default();
        if only.is_none() {
            self.check_table(writer, repair, &mut checked).await?;
        }
        let tallies = if only.is_none() { Some(self.tallies().await?) } else { None };
        let wanted: Vec<u32> = only.map_or_else(|| (0..count).collect(), |region| vec![region]);
        let mut missing: BTreeSet<u128> = BTreeSet::new();
        for (done, number) in (0..).zip(&wanted) {
            progress(done, wanted.len() as u64);
            let number = *number;
            let search =
                tallies.as_ref().map_or(Search::ByBitmaps, |tallies| Search::ByTally(tallies[number as usize]));
            missing.extend(self.check_region(writer, number, search, repair, &mut checked).await?);
            self.space.lock().forget(self.memory.regions(&self.config));
        }
        if !missing.is_empty() {
            self.name_lost(&missing, repair, &mut checked).await?;
        }
        checked.repaired |= repair && !checked.is_clean();
        Ok(checked)
    }

    /// Checks a region; gives the objects that the table has there and that are not there.
    pub(crate) async fn check_region(
        &self,
        writer: &mut Writer,
        number: u32,
        search: Search,
        repair: bool,
        checked: &mut Checked,
    ) -> Result<BTreeSet<u128>, BlockError> {
        let Some((kind, birth)) = self.kind_of(number) else { return Ok(BTreeSet::new()) };
        if !matches!(kind, Kind::Large | Kind::Small) {
            return Ok(BTreeSet::new());
        }
        checked.regions += 1;
        let problems_before = checked.problems.len();
        let (slots, blocks) = self.disk.layout.shape.bits(kind);
        let mut head = Head {
            store: self.disk.store,
            region: number,
            kind,
            birth,
            generation: 0,
            commit: 0,
            slots: Bits::new(slots),
            blocks: Bits::new(blocks),
        };
        let trusted = match self.check_head(number, checked).await? {
            true => {
                let space = self.space.lock();
                let state = space.regions[number as usize].state.as_ref();
                state.map(|state| (state.slots.clone(), state.blocks.clone()))
            }
            false => None,
        };
        if let Some((slots, _)) = &trusted {
            head.slots = slots.clone();
        }
        let nothing = BTreeSet::new();
        let scan = Scan { disk: &self.disk, number, kind, birth, base: 0, head: &head, retired: &nothing };
        let mut report = Recovered::default();
        let onodes = scan.onodes(&mut report).await?;
        checked.problems.append(&mut report.damage);

        let (mut live, mut claimed) = (Vec::new(), Bits::new(blocks));
        for (onode, _) in onodes {
            if !self
                .counts(writer, &onode, trusted.is_some() && head.slots.get(onode.place.slot), repair, checked)
                .await?
            {
                continue;
            }
            checked.objects += 1;
            let twice = onode.extents.iter().any(|extent| claim(&mut claimed, extent));
            if twice {
                checked.problems.push(format!("region {number}: {} claims blocks of another object", onode.name));
            }
            if !scan.is_whole(&onode).await? {
                checked.damaged.push(onode.name.to_string());
            }
            live.push(onode);
        }
        let mut found = Bits::new(slots);
        live.iter().for_each(|onode| assert!(!found.set(onode.place.slot, true), "a slot has one onode"));
        let agrees = trusted.as_ref().is_some_and(|(slots, blocks)| *slots == found && *blocks == claimed);
        if trusted.is_some() && !agrees {
            checked.problems.push(format!("region {number}: its bitmaps are not those of its onodes"));
        }
        let here: BTreeSet<u128> = live.iter().map(|onode| onode.id).collect();
        let complete = match search {
            Search::ByTally(tally) => tally == Tally::of(&here),
            Search::ByBitmaps => agrees,
            Search::Not => true,
        };
        let missing = match complete {
            true => BTreeSet::new(),
            false => self.table_of(number).await?.into_iter().filter(|id| !here.contains(id)).collect(),
        };
        let wrong = checked.problems.len() > problems_before;
        if repair && (wrong || self.space.lock().regions[number as usize].entry.corrupt) {
            let mut space = self.space.lock();
            let region = &mut space.regions[number as usize];
            let (slots, blocks) = (Bits::new(slots), Bits::new(blocks));
            install(region, Head { slots, blocks, ..head }, &self.disk.layout.shape, live);
            region.entry.corrupt = false;
            region.quarantined = 0;
            checked.repaired = true;
        } else if wrong {
            self.condemn(number);
        }
        Ok(missing)
    }

    /// Whether the bitmaps of a region can be had, and its head on the device is whole.
    async fn check_head(&self, number: u32, checked: &mut Checked) -> Result<bool, BlockError> {
        let entry = self.space.lock().regions[number as usize].entry;
        let head = self.disk.head(number, entry.head).await;
        // A region that was made since the last checkpoint has no head yet.
        if let Err(error) = head
            && entry.generation > 0
        {
            if !error.is_damage() {
                return Err(error);
            }
            checked.problems.push(error.to_string());
        }
        match self.load(number).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_damage() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether an onode is the copy of its object that counts. One that the bitmaps have and the table has forgotten is told
    /// to the table again.
    async fn counts(
        &self,
        writer: &mut Writer,
        onode: &Onode,
        in_bitmaps: bool,
        repair: bool,
        checked: &mut Checked,
    ) -> Result<bool, BlockError> {
        let entry = Entry { place: onode.place, generation: onode.generation, version: onode.version };
        match self.table.get(&self.disk, onode.id).await {
            Ok(Some(known)) if known == entry => {
                // Damage of the index is told of by itself.
                let listed = self.names.contains(&self.disk, &self.space, &onode.name).await;
                if !listed.or_else(|error| if error.is_damage() { Ok(true) } else { Err(error) })? {
                    checked.problems.push(format!("{} is not in the index of names", onode.name));
                    if repair {
                        self.names.add(&onode.name);
                    }
                }
                Ok(true)
            }
            Ok(None) if in_bitmaps => {
                checked.problems.push(format!("{} is not in the lookup table", onode.name));
                if repair {
                    self.publish_copy(writer, onode.id, entry, onode.name.is_reserved()).await?;
                    self.names.add(&onode.name);
                }
                Ok(true)
            }
            Ok(_) => Ok(false),
            // The page is told of in the check of the table.
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(in_bitmaps),
            Err(error) => Err(error),
        }
    }

    /// The objects that the table has in a region: reads all of the table.
    async fn table_of(&self, number: u32) -> Result<Vec<u128>, BlockError> {
        let mut ids = Vec::new();
        self.each_entry(|id, region| ids.extend((region == number).then_some(id))).await?;
        Ok(ids)
    }

    /// How many objects, and which, the table has in each region: read once, where looking for each region would read it as often
    /// as there are regions.
    async fn tallies(&self) -> Result<Vec<Tally>, BlockError> {
        let mut tallies = vec![Tally::default(); self.disk.layout.regions as usize];
        self.each_entry(|id, region| {
            if let Some(tally) = tallies.get_mut(region as usize) {
                tally.add(id);
            }
        })
        .await?;
        Ok(tallies)
    }

    /// Tells of each entry of the table the object and its region. Pages that are damaged are passed over.
    async fn each_entry(&self, mut tell: impl FnMut(u128, u32)) -> Result<(), BlockError> {
        for page in 0..self.disk.layout.pages {
            match self.table.bucket_entries(&self.disk, page).await {
                Ok(entries) => entries.iter().for_each(|(id, entry)| tell(*id, entry.place.region)),
                Err(error) if error.kind() == ErrorKind::Corrupt => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Names objects that are gone, and after a repair forgets them.
    async fn name_lost(&self, missing: &BTreeSet<u128>, repair: bool, checked: &mut Checked) -> Result<()> {
        let mut named: BTreeSet<u128> = BTreeSet::new();
        let mut low = Vec::new();
        loop {
            let (names, next) = match self.names.page(&self.disk, &self.space, &low, None, NAMES_AT_ONCE).await {
                Ok(page) => page,
                Err(error) if error.is_damage() => break,
                Err(error) => return Err(error.into()),
            };
            let lost: Vec<Name> = names.into_iter().filter(|name| missing.contains(&self.id(name))).collect();
            for name in lost {
                let id = self.id(&name);
                // A newer change may wait in memory: then nothing is lost.
                if self.waiting(id).is_some() {
                    continue;
                }
                named.insert(id);
                checked.lost.push(name.to_string());
                if repair {
                    self.names.remove(&name);
                    self.count(&name, false);
                }
            }
            match next {
                Some(next) => low = next.to_vec(),
                None => break,
            }
        }
        for id in missing.difference(&named) {
            checked.lost.push(format!("an object whose name is gone too (hash {id:032x})"));
        }
        if repair {
            for id in missing {
                self.table.remove(&self.disk, *id).await?;
                self.onodes.remove(id);
            }
        }
        Ok(())
    }
}

/// What decides whether objects that the table has in a region are looked for in all of the table.
#[derive(Clone, Copy)]
pub(crate) enum Search {
    /// Whether they are those of this tally.
    ByTally(Tally),
    /// Whether the bitmaps are right, so that a region costs the same on a disk of any size.
    ByBitmaps,
    /// They are not: opening a store must not take longer the larger it is.
    Not,
}

/// A set of objects, as far as it takes to tell two apart: their number, and the sum of their keyed hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    count: u64,
    sum: u128,
}

impl Tally {
    fn of(ids: &BTreeSet<u128>) -> Tally {
        let mut tally = Tally::default();
        ids.iter().for_each(|id| tally.add(*id));
        tally
    }
    fn add(&mut self, id: u128) {
        (self.count, self.sum) = (self.count + 1, self.sum.wrapping_add(id));
    }
}

/// Notes that blocks are taken; whether one of them was before.
fn claim(claimed: &mut Bits, extent: &Extent) -> bool {
    let range = extent.block..extent.block.saturating_add(extent.count);
    range.fold(false, |twice, block| claimed.set(block, true) | twice)
}
