//! Region cleaning (section 6.3): what is left in the region that holds least moves into others, and the region becomes free.
//! What is moved keeps its version and gets a larger number. Small objects are joined on the way.

use crate::Regions;
use crate::disk::UPKEEP;
use crate::format::{Entry, Head, Onode};
use crate::layout::Kind;
use crate::place::{PLACES_TRIED, Payload, is_of_place};
use crate::recover::{Recovered, Scan};
use crate::shared::{Shared, Writer};
use crate::space::Urgency;

use ashlar_block::{Durability, Error as BlockError, Kind as ErrorKind};
use ashlar_objects::Result;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Units of a large region that are moved, and made durable, at once: 16 MiB of the thesis's.
const ROUND_UNITS: u64 = 32;
/// Onodes of a small region that are looked at in one round: 1 MiB of them.
const ROUND_ONODES: u64 = 256;
/// How long cleaning waits for users between two rounds, and how often: 100 ms in all.
const GIVE_WAY: Duration = Duration::from_millis(5);
const GIVE_WAY_TIMES: u32 = 20;

/// What cleaning a region came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct Cleaned {
    /// Objects that were moved.
    pub moved: u64,
    /// Objects that could not be: they are damaged, or there is no room.
    pub left: u64,
}

impl Regions {
    /// Gives a free region back by a checkpoint, or by cleaning the one that holds least. Whether anything was gained.
    pub(crate) async fn make_room(&self) -> Result<bool> {
        let before = self.0.measure();
        let gained = |shared: &Shared| {
            let after = shared.measure();
            shared.queue.lock().room = after;
            after.free_regions > before.free_regions
        };
        self.checkpoint().await?;
        if gained(&self.0) {
            return Ok(true);
        }
        let Some(victim) = self.0.victim() else { return Ok(false) };
        self.clean(victim).await?;
        Ok(gained(&self.0))
    }

    /// Moves everything out of a region, and makes it free.
    ///
    /// # Errors
    /// There is no such region; those of the device.
    pub async fn clean(&self, region: u32) -> Result<Cleaned> {
        self.clean_giving_way(region, false).await
    }

    /// The same; between two rounds it waits until users want nothing, though not for ever.
    pub(crate) async fn clean_giving_way(&self, region: u32, gives_way: bool) -> Result<Cleaned> {
        let me = self.clone();
        let task = self.0.env.spawn(async move {
            let _one = me.0.cleaning.lock().await;
            let outcome = me.0.clean(region, gives_way).await;
            me.0.space.lock().barred = None;
            if let Err(error) = &outcome
                && !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Misuse)
            {
                me.0.fail(error);
            }
            outcome
        });
        let cleaned = task.await?;
        self.checkpoint().await?;
        Ok(cleaned)
    }
}

impl Shared {
    /// The region that holds least, if what it holds has room elsewhere.
    fn victim(&self) -> Option<u32> {
        let space = self.space.lock();
        let (units, slots, blocks) = space.room();
        let shape = &self.disk.layout.shape;
        let fits = |number: &usize| {
            let entry = &space.regions[*number].entry;
            match entry.kind {
                Kind::Large => units - u64::from(entry.free_slots) >= u64::from(entry.live),
                Kind::Small => {
                    let used = shape.small - u64::from(entry.free_blocks);
                    blocks - u64::from(entry.free_blocks) >= used
                        && slots - u64::from(entry.free_slots) >= u64::from(entry.live)
                }
                _ => false,
            }
        };
        let full = |number: &usize| {
            let entry = &space.regions[*number].entry;
            entry.free_slots == 0 && (entry.kind == Kind::Large || entry.free_blocks == 0)
        };
        let corrupt = |number: &usize| space.regions[*number].entry.corrupt;
        let candidates = (0..space.regions.len()).filter(|number| !corrupt(number) && !full(number) && fits(number));
        candidates.min_by_key(|number| space.regions[*number].entry.bytes).map(|number| number as u32)
    }

    async fn clean(&self, number: u32, gives_way: bool) -> Result<Cleaned, BlockError> {
        let began = self.kind_of(number).ok_or_else(|| {
            BlockError::misuse(format!("there is no region {number}: there are {}", self.disk.layout.regions))
        })?;
        let (slots, _) = self.disk.layout.shape.bits(began.0);
        let mut cleaned = Cleaned::default();
        if !matches!(began.0, Kind::Large | Kind::Small) {
            return Ok(cleaned);
        }
        self.space.lock().barred = Some(number);
        let each = if began.0 == Kind::Large { ROUND_UNITS } else { ROUND_ONODES };
        for first in (0..slots).step_by(each as usize) {
            if gives_way {
                self.give_way().await;
            }
            let mut writer = self.writer.lock().await;
            // It may have become free meanwhile, and have taken a kind again.
            if self.kind_of(number) != Some(began) {
                break;
            }
            self.clean_slots(&mut writer, number, first..slots.min(first + each), &mut cleaned).await?;
        }
        self.counts.moved.fetch_add(cleaned.moved, Ordering::Relaxed);
        self.counts.cleaned.fetch_add(1, Ordering::Relaxed);
        Ok(cleaned)
    }

    /// Waits while changes wait to be written, for a while.
    async fn give_way(&self) {
        for _ in 0..GIVE_WAY_TIMES {
            if self.queue.lock().order.is_empty() && self.writer.try_lock().is_ok() {
                return;
            }
            self.env.sleep(GIVE_WAY).await;
        }
    }

    /// One round: what these slots hold goes elsewhere.
    async fn clean_slots(
        &self,
        writer: &mut Writer,
        number: u32,
        slots: Range<u64>,
        cleaned: &mut Cleaned,
    ) -> Result<(), BlockError> {
        self.load(number).await?;
        let head = {
            let space = self.space.lock();
            let region = &space.regions[number as usize];
            let Some(state) = &region.state else { return Ok(()) };
            let (kind, birth) = (region.entry.kind, region.entry.birth);
            let (slots, blocks) = (state.slots.clone(), state.blocks.clone());
            Head { store: self.disk.store, region: number, kind, birth, generation: 0, commit: 0, slots, blocks }
        };
        let (kind, birth) = (head.kind, head.birth);
        let nothing = BTreeSet::new();
        let scan = Scan { disk: &self.disk, number, kind, birth, base: u64::MAX, head: &head, retired: &nothing };
        let mut report = Recovered::default();
        let onodes = scan.onodes_in(slots, &mut report).await?;
        cleaned.left += report.damage.len() as u64;
        let mut round = Vec::new();
        for (onode, _) in onodes {
            let entry = Entry { place: onode.place, generation: onode.generation, version: onode.version };
            // What is in quarantine is in the bitmaps too.
            if self.table.get(&self.disk, onode.id).await? != Some(entry) {
                continue;
            }
            match self.relocate(writer, &onode, kind).await? {
                Some(moved) => round.push(moved),
                None => cleaned.left += 1,
            }
        }
        cleaned.moved += round.len() as u64;
        self.publish_moved(writer, round).await
    }

    /// Copies an object to another place. `None`: it cannot be read, or there is no room.
    pub(crate) async fn relocate(
        &self,
        writer: &mut Writer,
        onode: &Onode,
        kind: Kind,
    ) -> Result<Option<Onode>, BlockError> {
        let blocks = onode.crcs.len();
        let pieces = match self.payload(onode, kind, 0..blocks, None).await {
            Ok(pieces) => pieces,
            Err(error) if error.is_damage() => return Ok(None),
            Err(error) => return Err(error),
        };
        let payload = Payload { pieces, crcs: onode.crcs.clone(), spill: onode.spill, inline: None };
        for _ in 0..PLACES_TRIED {
            let hidden = onode.name.is_reserved();
            let Some((place, extents)) = self.take(kind, blocks as u32, Urgency::Usual, hidden).await? else {
                return Ok(None);
            };
            let birth = self.kind_of(place.region).map_or(0, |(_, birth)| birth);
            // What was composed counts by now.
            let moved = Onode { place, extents, birth, generation: self.number(), provisional: false, ..onode.clone() };
            self.log_opens(writer).await?;
            let mut writes = Vec::new();
            self.lay_out(&moved, kind, &payload, &mut writes);
            writer.unflushed = true;
            match self.disk.write_all(UPKEEP, writes, Durability::Cached).await {
                Ok(()) => return Ok(Some(moved)),
                Err(error) if is_of_place(&error) => self.refuse(writer, &moved, &error),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Makes moved copies durable, and tells the table and the log.
    pub(crate) async fn publish_moved(&self, writer: &mut Writer, moved: Vec<Onode>) -> Result<(), BlockError> {
        if moved.is_empty() {
            return Ok(());
        }
        for onode in moved {
            let entry = Entry { place: onode.place, generation: onode.generation, version: onode.version };
            self.publish_copy(writer, onode.id, entry, onode.name.is_reserved()).await?;
            self.onodes.insert(onode.id, Arc::new(onode));
        }
        self.flush_log(writer).await
    }
}
