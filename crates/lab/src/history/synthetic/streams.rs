//! Two streams at once (Wang, OBFS, section 7.2.1.2): one brings the file system to its utilization and keeps it there, the
//! other comes and goes.
//!
//! *Transformation*: SynWrite; a request creates with a probability from a table by utilization, above one half below the
//! target and below it above, the more the farther. *Temporal*: creates half of the time, even sizes, more intense, and its
//! think time changes.
//!
//! Departs  with the probability of one half alone the second stream stays small, and a file system of 8 GB at 20 % then
//!          touches 6 regions of 256 MB, where the thesis shows 20 of 29. So the second stream comes in bursts: it creates
//!          until burst and target together have filled [`Streams::burst_peak`] of the capacity (20/29), then deletes again.

use super::{Common, World};
use crate::history::builder::Builder;
use crate::history::stats::blocks;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Clone, Debug)]
pub struct Streams {
    /// What all recipes have; the sizes are those of the transformation stream.
    pub common: Common,
    /// Share of the capacity that is to be in use.
    pub target: f64,
    /// Requests of the transformation stream.
    pub transformations: u64,
    /// Requests of the temporal stream for each of the other.
    pub intensity: f64,
    /// Share of the capacity that is in use at the height of a burst.
    pub burst_peak: f64,
    /// Bursts.
    pub bursts: u32,
    /// Largest file of the temporal stream in bytes.
    pub temporal_max: u64,
}

/// Where the table of ratios has its entries: a step of utilization, from 0 to 1.
const TABLE_STEPS: usize = 101;

/// The probability that a request creates, by utilization: 0.5 at the target, 0.9 when empty, 0.1 when full.
fn table(target: f64) -> [f64; TABLE_STEPS] {
    std::array::from_fn(|index| {
        let used = index as f64 / (TABLE_STEPS - 1) as f64;
        let room = if used < target { target } else { 1.0 - target };
        0.5 + 0.4 * ((target - used) / room.max(1e-9)).clamp(-1.0, 1.0)
    })
}

impl Streams {
    /// All parameters by name.
    pub fn described(&self) -> Vec<(String, String)> {
        let mut all = self.common.described();
        all.push(("target".into(), self.target.to_string()));
        all.push(("transformations".into(), self.transformations.to_string()));
        all.push(("intensity".into(), self.intensity.to_string()));
        all.push(("burst-peak".into(), self.burst_peak.to_string()));
        all.push(("bursts".into(), self.bursts.to_string()));
        all.push(("temporal-max".into(), self.temporal_max.to_string()));
        all
    }

    /// Requests of both streams.
    pub fn requests(&self) -> u64 {
        self.transformations + (self.transformations as f64 * self.intensity) as u64
    }

    /// Gives the history to `builder`. `seen` gets the number of requests so far.
    pub fn run(&self, builder: &mut Builder, stop: &AtomicBool, seen: &dyn Fn(u64)) -> io::Result<()> {
        let mut world = World::new(&self.common, builder)?;
        let table = table(self.target);
        let total = self.requests();
        let share = self.transformations as f64 / total.max(1) as f64;
        // Each stream has its own files; the temporal one's are here.
        let (mut temporal, mut temporal_bytes) = (Vec::new(), 0u64);
        let burst_bytes = (self.burst_peak - self.target).max(0.0) * self.common.capacity as f64;
        let mut at_ns = 0i64;
        let mut bringing = true;
        for request in 0..total {
            if request % 4096 == 0 {
                if stop.load(Ordering::Acquire) {
                    return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
                }
                seen(request);
            }
            // The think time changes from one sixteenth of the run to the next.
            let pace = [1.0, 0.25, 2.0, 0.5][(request * 16 / total.max(1)) as usize % 4];
            at_ns += 1 + world.wait_ns(0.05 * pace);
            if world.chance.unit() < share {
                let step = (world.used() * (TABLE_STEPS - 1) as f64) as usize;
                let creates = world.chance.unit() < table[step.min(TABLE_STEPS - 1)];
                match world.any().filter(|_| !creates) {
                    Some(index) => drop(world.remove(at_ns, index)?),
                    None => drop(world.create(at_ns)?),
                }
                bringing &= world.used() < self.target;
                continue;
            }
            // While the target is not reached, there is nothing to come and go beside.
            let phase = (request as f64 / total as f64 * f64::from(self.bursts)).fract();
            let rising = phase < 0.5;
            let wanted = if bringing { 0.0 } else { burst_bytes * 2.0 * if rising { phase } else { 1.0 - phase } };
            let ratio = 0.5 + 0.4 * ((wanted - temporal_bytes as f64) / burst_bytes.max(1.0) * 10.0).clamp(-1.0, 1.0);
            if temporal.is_empty() || world.chance.unit() < ratio {
                let size = 1 + world.chance.below(self.temporal_max.max(1));
                temporal_bytes += blocks(size);
                temporal.push(world.make(at_ns, size)?);
            } else {
                let index = world.chance.below(temporal.len() as u64) as usize;
                let file = temporal.swap_remove(index);
                temporal_bytes -= blocks(file.size);
                world.delete(at_ns, file)?;
            }
        }
        for file in temporal {
            at_ns += 1;
            world.delete(at_ns, file)?;
        }
        Ok(())
    }
}
