//! The map of regions for people.

use crate::Regions;
use crate::layout::Kind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;

/// Whether a region can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Nothing is known against it.
    Good,
    /// Damage was found: nothing new goes there until it is repaired.
    Damaged,
}

/// A region, for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RegionStatus {
    /// Its number.
    pub region: u32,
    /// What it holds.
    pub kind: Kind,
    /// Objects.
    pub objects: u32,
    /// Share of its room that is taken, from 0 to 1.
    pub fill: f64,
    /// Bytes that its objects take, as stored.
    pub bytes: u64,
    /// Free extents, where its bitmaps are in memory.
    pub free_extents: Option<u64>,
    /// 1 less the share of the longest free extent in what is free, where its bitmaps are in memory.
    pub fragmentation: Option<f64>,
    /// Number of the last change that a checkpoint has of it.
    pub generation: u64,
    /// Whether it is written since the last checkpoint, and will be read after a crash.
    pub dirty: bool,
    /// Whether it can be trusted.
    pub health: Health,
}

/// A store, for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The device.
    pub device: String,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Bytes of a large block.
    pub large_block_bytes: u64,
    /// Objects in the store.
    pub objects: u64,
    /// Fragments of a small object, on average of those written since the store was opened.
    pub fragments_mean: f64,
    /// Regions that were cleaned since the store was opened, and objects that were moved.
    pub cleaned: u64,
    /// Objects that were moved since the store was opened.
    pub moved: u64,
    /// Blocks of the log that are in use, of how many.
    pub log_blocks: [u64; 2],
    /// Every region.
    pub regions: Vec<RegionStatus>,
    /// What lies behind the last region and is too small to be one, where it holds tables.
    pub tail: Option<RegionStatus>,
}

impl Regions {
    /// The map of the store as it is now. Bitmaps are read where they are not in memory if `all` is asked for.
    ///
    /// # Errors
    /// Those of the device; damaged heads are none.
    pub async fn status(&self, all: bool) -> ashlar_objects::Result<Status> {
        let shared = &self.0;
        let layout = &shared.disk.layout;
        let count = layout.parts() as u32;
        let mut regions = Vec::with_capacity(count as usize);
        for number in 0..count {
            let used = shared.kind_of(number).is_some_and(|(kind, _)| kind != Kind::Free);
            if all && used {
                // A damaged head shows as the region's health.
                let _ = shared.load(number).await;
            }
            regions.push(self.region_status(number));
            shared.space.lock().forget(shared.memory.regions(&shared.config));
        }
        let tail = if layout.tail > 0 { regions.pop() } else { None };
        let (fragments, small) = (&shared.counts.fragments, &shared.counts.placed_small);
        let small = small.load(Ordering::Relaxed);
        Ok(Status {
            device: shared.disk.device.name(),
            region_bytes: shared.config.region.0,
            large_block_bytes: shared.config.large_block.0,
            objects: shared.objects.load(Ordering::Relaxed),
            fragments_mean: fragments.load(Ordering::Relaxed) as f64 / small.max(1) as f64,
            cleaned: shared.counts.cleaned.load(Ordering::Relaxed),
            moved: shared.counts.moved.load(Ordering::Relaxed),
            log_blocks: [shared.log_used.load(Ordering::Relaxed), layout.log_blocks],
            regions,
            tail,
        })
    }

    fn region_status(&self, number: u32) -> RegionStatus {
        let shared = &self.0;
        let space = shared.space.lock();
        let region = &space.regions[number as usize];
        let entry = &region.entry;
        let (slots, blocks) = shared.disk.layout.shape_of(number).bits(entry.kind);
        let share = |free: u32, all: u64| if all == 0 { 0.0 } else { 1.0 - f64::from(free) / all as f64 };
        let fill = share(entry.free_slots, slots).max(share(entry.free_blocks, blocks));
        let state = region.state.as_ref().filter(|_| blocks > 0);
        let fragmentation = state
            .filter(|_| entry.free_blocks > 0)
            .map(|state| share(state.free.longest(), u64::from(entry.free_blocks)));
        RegionStatus {
            region: number,
            kind: entry.kind,
            objects: entry.live,
            fill,
            bytes: entry.bytes,
            free_extents: state.map(|state| state.free.len() as u64),
            fragmentation,
            generation: entry.generation,
            dirty: region.opened,
            health: if entry.corrupt { Health::Damaged } else { Health::Good },
        }
    }
}
