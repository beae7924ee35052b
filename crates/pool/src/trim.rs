//! Trimming: devices are told what is free. A file gives that room back to its file system, a device of a virtual machine to others, and
//! flash need not copy it any more. It is done when it is asked for, as often as that pays: segments are written over and over, and whoever
//! told at once would tell the same again and again.
//!
//! Invariants
//!  1. What is told was free before the newest superblock. So the one before that, which is used where the newest is damaged, misses nothing.
//!  2. Nobody takes a segment while its device is told, also if who asked has gone.
//!  3. On thin devices the lowest free segments keep their room, as many as are wanted ahead: see [`Pool::provision`].

use crate::checkpoint::Chores;
use crate::space::Place;
use crate::{Pool, Rule};
use ashlar_block::{IoContext, Result};
use ashlar_units::Bytes as Size;
use std::ops::Range;

const TRIM: IoContext = IoContext::background("trim");
/// Bytes that a device is told about at once: others can have them again soon.
const ROUND_BYTES: u64 = 256 << 20;

/// What came of trimming.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Bytes of free segments of which devices were told.
    pub bytes: Size,
    /// Bytes of free segments of which none was told: they are for who writes next, were taken meanwhile, or lie on devices that cannot be told.
    pub kept: Size,
    /// Devices that cannot be told.
    pub unable: Vec<String>,
}

impl Pool {
    /// Tells the devices what is free, while the pool is in use. `progress` is told the bytes looked at and all that are free.
    ///
    /// # Errors
    /// Those of the pool, and of a device that refuses. What was told stays told.
    pub async fn trim(&self, progress: impl Fn(Size, Size) + Send + Sync) -> Result<Trimmed> {
        let shared = &self.0;
        {
            // What was deleted sinks to the leaves, and is free by then.
            let _one = shared.checkpointing.lock().await;
            let thorough = !shared.space.is_scarce();
            self.checkpoint_locked(Chores { thorough, ..Chores::default() }).await?;
        }
        let unused = shared.space.unused();
        self.checkpoint().await?;
        let segment = shared.layout.segment_bytes();
        let size = |slots: usize| Size(slots as u64 * segment);
        let all = size(unused.iter().map(|slots| slots.len()).sum());
        let (mut seen, mut trimmed) = (Size(0), Trimmed::default());
        let round = (ROUND_BYTES / segment).max(1) as u32;
        // The highest first, so that the lowest are those that have room.
        for place in shared.layout.places() {
            let is_able = place.device.capability().discard;
            if !is_able {
                trimmed.unable.push(place.device.name());
            }
            for slots in unused.iter().rev().map(|slots| within(slots, place)) {
                for end in slots.clone().rev().step_by(round as usize).map(|last| last + 1) {
                    let slots = slots.start.max(end.saturating_sub(round))..end;
                    seen = Size(seen.0 + size(slots.len()).0);
                    if is_able {
                        let pool = self.clone();
                        let told = shared.env.spawn(async move { pool.tell(slots).await });
                        trimmed.bytes = Size(trimmed.bytes.0 + size(told.await?).0);
                    }
                    progress(seen, all);
                }
            }
        }
        trimmed.kept = Size(all.0 - trimmed.bytes.0);
        Ok(trimmed)
    }

    /// Tells the device of these slots which of them are still free. How many.
    async fn tell(&self, slots: Range<u32>) -> Result<usize> {
        let shared = &self.0;
        shared.admit()?;
        let hold = shared.keeps(Rule::HoldWhileTrimming);
        let slots = shared.space.withdraw(slots, hold);
        let mut told = Ok(());
        for run in slots.chunk_by(|one, next| one + 1 == *next) {
            let (place, at, blocks) = shared.layout.stretch(run);
            told = place.device.discard(TRIM, at, blocks).await;
            if told.is_err() {
                break;
            }
        }
        if hold {
            shared.space.give_back(&slots);
        }
        told.map(|()| slots.len())
    }
}

/// Those of these slots that lie on a device.
fn within(slots: &Range<u32>, place: &Place) -> Range<u32> {
    let start = slots.start.max(place.slots.start);
    start..slots.end.min(place.slots.end).max(start)
}
