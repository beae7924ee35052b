//! Ageing until the ages of the files are as wanted (Kadekodi et al., *Geriatrix*, ATC '18).
//!
//! Files are made until the utilization is reached. Then a coin decides: a file is made, or one is deleted, from the class of
//! relative ages that has most too many. It ends when no class is farther than [`AgeTarget::tolerance`] from its share, or
//! when so many times the capacity was written.
//!
//! Departs  Geriatrix allocates without writing; here files are written, since places are chosen when they are.

use super::{Common, World};
use crate::history::builder::Builder;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Clone, Debug)]
pub struct AgeTarget {
    /// What all recipes have.
    pub common: Common,
    /// Share of the capacity that is to be in use.
    pub utilization: f64,
    /// Share of the files in each class of relative age: 0 is now, 1 the beginning. Classes are of equal width.
    pub ages: Vec<f64>,
    /// Largest distance of a class from its share at which it ends.
    pub tolerance: f64,
    /// Times the capacity that are written at most after filling.
    pub rounds: f64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Converged {
    /// Distance of the worst class from its share at the end.
    pub distance: f64,
    /// Bytes written after filling.
    pub written: u64,
}

/// Steps between two looks at the ages.
const LOOK: u64 = 256;
/// Seconds between two steps.
const STEP_S: f64 = 60.0;
/// Files among which one of the class to be deleted is looked for.
const TRIES: u32 = 64;

impl AgeTarget {
    /// All parameters by name.
    pub fn described(&self) -> Vec<(String, String)> {
        let mut all = self.common.described();
        all.push(("utilization".into(), self.utilization.to_string()));
        all.push(("ages".into(), format!("{:?}", self.ages)));
        all.push(("tolerance".into(), self.tolerance.to_string()));
        all.push(("rounds".into(), self.rounds.to_string()));
        all
    }

    fn class(&self, made_ns: i64, now_ns: i64) -> usize {
        let age = (now_ns - made_ns) as f64 / now_ns.max(1) as f64;
        ((age * self.ages.len() as f64) as usize).min(self.ages.len() - 1)
    }

    /// How much each class has too much.
    fn excess(&self, world: &World, now_ns: i64) -> Vec<f64> {
        let mut counts = vec![0u64; self.ages.len()];
        world.live.iter().for_each(|file| counts[self.class(file.made_ns, now_ns)] += 1);
        let (files, sum) = (world.live.len().max(1) as f64, self.ages.iter().sum::<f64>());
        counts.iter().zip(&self.ages).map(|(count, wanted)| *count as f64 / files - wanted / sum).collect()
    }

    /// Gives the history to `builder`. `seen` gets the number of steps so far.
    pub fn run(&self, builder: &mut Builder, stop: &AtomicBool, seen: &dyn Fn(u64)) -> io::Result<Converged> {
        if self.ages.is_empty()
            || self.ages.iter().any(|share| share.is_nan() || *share < 0.0)
            || self.ages.iter().sum::<f64>() <= 0.0
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the shares of ages are numbers of which one is above 0",
            ));
        }
        let mut world = World::new(&self.common, builder)?;
        let (mut at_ns, mut step) = (0i64, 0u64);
        while world.used() < self.utilization {
            at_ns += 1 + world.wait_ns(STEP_S);
            world.create(at_ns)?;
        }
        let (mut written, most) = (0u64, (self.rounds * self.common.capacity as f64) as u64);
        let mut excess = self.excess(&world, at_ns);
        loop {
            if step.is_multiple_of(LOOK) {
                if stop.load(Ordering::Acquire) {
                    return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
                }
                seen(step);
                excess = self.excess(&world, at_ns);
                let distance = excess.iter().fold(0.0, |worst: f64, excess| worst.max(excess.abs()));
                if distance <= self.tolerance || written >= most {
                    return Ok(Converged { distance, written });
                }
            }
            step += 1;
            at_ns += 1 + world.wait_ns(STEP_S);
            // A fair coin, but for what keeps the utilization.
            if world.chance.unit() < 0.5 + 10.0 * (self.utilization - world.used()) {
                written += world.create(at_ns)?;
                continue;
            }
            let worst = (0..excess.len()).max_by(|one, other| excess[*one].total_cmp(&excess[*other])).unwrap_or(0);
            for attempt in 0..TRIES {
                let Some(index) = world.any() else { break };
                if attempt + 1 == TRIES || self.class(world.live[index].made_ns, at_ns) == worst {
                    world.remove(at_ns, index)?;
                    break;
                }
            }
        }
    }
}
