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
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that are moved before they are made durable.
const ROUND_BYTES: usize = 16 << 20;

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
        let me = self.clone();
        let task = self.0.env.spawn(async move {
            let mut writer = me.0.writer.lock().await;
            let outcome = me.0.clean(&mut writer, region).await;
            me.0.space.lock().barred = None;
            if let Err(error) = &outcome
                && error.kind() != ErrorKind::Corrupt
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

    async fn clean(&self, writer: &mut Writer, number: u32) -> Result<Cleaned, BlockError> {
        let (kind, birth) = self.kind_of(number).ok_or_else(|| {
            BlockError::misuse(format!("there is no region {number}: there are {}", self.disk.layout.regions))
        })?;
        if !matches!(kind, Kind::Large | Kind::Small) {
            return Ok(Cleaned::default());
        }
        self.load(number).await?;
        let head = {
            let mut space = self.space.lock();
            space.barred = Some(number);
            let region = &space.regions[number as usize];
            let Some(state) = &region.state else { return Ok(Cleaned::default()) };
            let (slots, blocks) = (state.slots.clone(), state.blocks.clone());
            Head { store: self.disk.store, region: number, kind, birth, generation: 0, commit: 0, slots, blocks }
        };
        let nothing = BTreeSet::new();
        let scan = Scan { disk: &self.disk, number, kind, birth, base: u64::MAX, head: &head, retired: &nothing };
        let mut report = Recovered::default();
        let onodes = scan.onodes(&mut report).await?;
        let mut cleaned = Cleaned { left: report.damage.len() as u64, moved: 0 };
        let (mut round, mut bytes) = (Vec::new(), 0);
        for (onode, _) in onodes {
            let entry = Entry { place: onode.place, generation: onode.generation, version: onode.version };
            // What is in quarantine is in the bitmaps too.
            if self.table.get(&self.disk, onode.id).await? != Some(entry) {
                continue;
            }
            match self.relocate(writer, &onode, kind).await {
                Ok(Some(moved)) => {
                    bytes += onode.crcs.len() * ashlar_units::BLOCK_LEN;
                    round.push(moved);
                }
                Ok(None) => cleaned.left += 1,
                Err(error) => return Err(error),
            }
            if bytes > ROUND_BYTES {
                cleaned.moved += round.len() as u64;
                self.publish_moved(writer, std::mem::take(&mut round)).await?;
                bytes = 0;
            }
        }
        cleaned.moved += round.len() as u64;
        self.publish_moved(writer, round).await?;
        self.counts.moved.fetch_add(cleaned.moved, Ordering::Relaxed);
        self.counts.cleaned.fetch_add(1, Ordering::Relaxed);
        Ok(cleaned)
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
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Failed) => return Ok(None),
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
