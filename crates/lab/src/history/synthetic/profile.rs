//! A file system in use, day after day: how full it is, what share of its bytes is replaced, and what is short-lived.
//!
//! Each day so many files are deleted, any, and so many made that the bytes follow the curve; work has its hours. Beside
//! each file that stays, others are made that are gone within the day.

use super::{Common, Sizes, World};
use crate::history::builder::Builder;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

const DAY_S: f64 = 86_400.0;

/// See the module.
#[derive(Clone, Debug)]
pub struct Profile {
    /// What all recipes have.
    pub common: Common,
    /// Days.
    pub days: u32,
    /// Share of the capacity that is in use after so many days; between two of them it follows a line.
    pub utilization: Vec<(f64, f64)>,
    /// Share of the live bytes that is replaced in a day. The thesis quotes 10 to 30 % touched.
    pub turnover: f64,
    /// Share of all files that are gone within the day, in lifetimes as HP-UX had them: 20 % of what is made is dead within a
    /// second, and 80 % within a day (thesis, section 2.2).
    pub short_lived: f64,
    /// Sizes of those files. The thesis's were larger than those that stayed: 87.3 GB in about 650,000 files, beside 19 KB of a
    /// file at the end (section 3.2.3).
    pub short_sizes: Sizes,
}

impl Profile {
    /// All parameters by name.
    pub fn described(&self) -> Vec<(String, String)> {
        let mut all = self.common.described();
        all.push(("days".into(), self.days.to_string()));
        all.push(("utilization".into(), format!("{:?}", self.utilization)));
        all.push(("turnover".into(), self.turnover.to_string()));
        all.push(("short-lived".into(), self.short_lived.to_string()));
        all.push(("short-sizes".into(), self.short_sizes.to_string()));
        all
    }

    fn wanted(&self, day: f64) -> f64 {
        let mut before = (0.0, 0.0);
        for (at, share) in &self.utilization {
            if day < *at {
                return before.1 + (share - before.1) * (day - before.0) / (at - before.0).max(1e-9);
            }
            before = (*at, *share);
        }
        before.1
    }

    /// Gives the history to `builder`. `seen` gets the number of days so far.
    pub fn run(&self, builder: &mut Builder, stop: &AtomicBool, seen: &dyn Fn(u64)) -> io::Result<()> {
        let mut world = World::new(&self.common, builder)?;
        for day in 0..self.days {
            if stop.load(Ordering::Acquire) {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
            }
            self.day(&mut world, f64::from(day))?;
            seen(u64::from(day) + 1);
        }
        Ok(())
    }

    fn day(&self, world: &mut World, day: f64) -> io::Result<()> {
        let wanted = (self.wanted(day + 1.0) * self.common.capacity as f64) as u64;
        // An hour of work between 9 and 17 is four times as busy as another.
        let time = |world: &mut World| {
            let at = world.chance.unit() * 48.0;
            let hour = if at < 32.0 { 9.0 + at / 4.0 } else { (17.0 + at - 32.0) % 24.0 };
            ((day * DAY_S + hour * 3600.0) * 1e9) as i64
        };
        let mut times = Vec::new();
        let leave = ((world.bytes as f64 * (1.0 - self.turnover)) as u64).min(wanted);
        while world.bytes > leave
            && let Some(index) = world.any()
        {
            let at_ns = time(world);
            world.remove(at_ns, index)?;
        }
        while world.bytes < wanted {
            let at_ns = time(world);
            world.create(at_ns)?;
            times.push(at_ns);
        }
        let beside = self.short_lived / (1.0 - self.short_lived).max(1e-3);
        let count = (times.len() as f64 * beside) as u64;
        for _ in 0..count {
            let at_ns = times[world.chance.below(times.len() as u64) as usize];
            // A quarter lives for less than a second, the others for up to a day, with equal shares of each doubling.
            let life_s = if world.chance.unit() < 0.25 { world.chance.unit() } else { DAY_S.powf(world.chance.unit()) };
            let size = self.short_sizes.draw(&mut world.chance);
            let file = world.make(at_ns, size)?;
            world.delete(at_ns + (life_s * 1e9) as i64, file)?;
        }
        Ok(())
    }
}
