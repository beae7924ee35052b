//! Cleaning in the background (section 6.3): a small region whose free space is in pieces is emptied into others, where its
//! objects lie together again, one region at a time and not while users want something.

use crate::Regions;
use crate::layout::Kind;
use crate::shared::Shared;
use crate::space::{FRAGMENTS_FINE, RESERVE};
use ashlar_objects::Result;
use std::sync::Arc;
use std::time::Duration;

/// When regions are cleaned in the background.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tidy {
    /// A small region is cleaned if an object of the mean length of its own would lie there in more extents than this: then
    /// the test before allocation passes it over, although it has room. The thesis leaves the threshold open.
    pub extents: usize,
    /// Only regions of whose blocks at least this share is free: less is not worth moving the rest.
    pub free: f64,
    /// How often somebody looks; each time at most one region is cleaned, which bounds the work.
    pub every: Duration,
}

impl Default for Tidy {
    /// As many extents as the test before allocation allows, and a quarter is free; every ten seconds.
    fn default() -> Tidy {
        Tidy { extents: FRAGMENTS_FINE, free: 0.25, every: Duration::from_secs(10) }
    }
}

impl Regions {
    /// Cleans regions in the background from now on, as long as anybody holds the store.
    pub fn keep_tidy(&self, tidy: Tidy) {
        let (weak, env) = (Arc::downgrade(&self.0), self.0.env.clone());
        drop(self.0.env.spawn(async move {
            loop {
                env.sleep(tidy.every).await;
                let Some(shared) = weak.upgrade() else { return };
                // A store that has stopped tells its users.
                if Regions(shared).tidy(&tidy).await.is_err() {
                    return;
                }
            }
        }));
    }

    /// Cleans a region beyond the threshold, if there is one. Which one.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn tidy(&self, tidy: &Tidy) -> Result<Option<u32>> {
        self.0.alive()?;
        let Some(number) = self.0.most_fragmented(tidy) else { return Ok(None) };
        self.clean_giving_way(number, true).await?;
        Ok(Some(number))
    }
}

impl Shared {
    /// The small region with most room, of those beyond the threshold whose bitmaps are in memory: of others nothing has changed
    /// lately. What it holds must have room in others.
    fn most_fragmented(&self, tidy: &Tidy) -> Option<u32> {
        let space = self.space.lock();
        let (_, slots, blocks) = space.room();
        let (all_slots, all) = self.disk.layout.shape.bits(Kind::Small);
        let mut worst: Option<(u32, u32)> = None;
        for (number, region) in (0u32..).zip(&space.regions) {
            let entry = &region.entry;
            let Some(state) = region.state.as_ref().filter(|_| entry.kind == Kind::Small && !entry.corrupt) else {
                continue;
            };
            let used = (all_slots - u64::from(entry.free_slots), all - u64::from(entry.free_blocks));
            let elsewhere = (slots - u64::from(entry.free_slots), blocks - u64::from(entry.free_blocks));
            let fits = used.0 <= elsewhere.0 && used.1 <= elsewhere.1 || space.free_regions() > RESERVE;
            let mean = used.1.div_ceil(u64::from(entry.live).max(1)).max(1) as u32;
            let in_pieces = state.free.fragments(mean, tidy.extents).is_none();
            let beyond = in_pieces && f64::from(entry.free_blocks) >= tidy.free * all as f64;
            if fits && beyond && worst.is_none_or(|(most, _)| entry.free_blocks > most) {
                worst = Some((entry.free_blocks, number));
            }
        }
        worst.map(|(_, number)| number)
    }
}
