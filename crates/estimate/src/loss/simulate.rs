//! Monte Carlo of an array, with importance sampling.
//!
//! A history runs without bias from first failure to first failure; such *excursions* from a whole array are frequent
//! enough. Each excursion is also tried aside, with failures made frequent while drives are gone and a likelihood ratio as
//! the weight: its outcome estimates the probability that this excursion loses data. A history's estimate is the sum over
//! its excursions until the unbiased course itself has lost data. So rare losses are reached, and weights do not multiply
//! over the years. Latent errors count by their probability instead of being drawn.

use super::drives::{Drives, MONTH, YEAR};
use super::layout::Layout;
use super::meeting::meet;
use ashlar_models::Chance;

/// Failures that are aimed at within the time that a drive is gone.
const AIM: f64 = 1.0;
/// Histories of a round; the error is looked at between rounds.
const ROUND: u64 = 500;
/// Least rounds, so that the error itself is known: rates of batches have long tails.
const ROUNDS_MIN: u64 = 20;

/// How precise, and how long.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Relative standard error to reach.
    pub error: f64,
    /// Most histories.
    pub histories_max: u64,
    /// Decides all chance.
    pub seed: u64,
    /// Without importance sampling: to judge it by.
    pub naive: bool,
}

/// What came out. Probabilities of a loss within the mission.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Any loss.
    pub any: f64,
    /// Standard error of that.
    pub any_error: f64,
    /// More drives gone than are tolerated.
    pub drives: f64,
    /// Latent errors when no redundancy was left.
    pub sectors: f64,
    /// Latent errors of several drives that meet in a stripe while redundancy is left: at most.
    pub meeting: f64,
    /// Histories.
    pub histories: u64,
}

/// A place in the array.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Hour from which the drive is whole.
    whole_at: f64,
    /// Its batch's failure rate.
    batch: f64,
}

/// Probabilities that one excursion adds.
#[derive(Clone, Copy, Default)]
struct Loss {
    drives: f64,
    sectors: f64,
    meeting: f64,
}

impl Loss {
    fn all(&self) -> f64 {
        self.drives + self.sectors + self.meeting
    }

    fn plus(&self, other: Loss) -> Loss {
        Loss {
            drives: self.drives + other.drives,
            sectors: self.sectors + other.sectors,
            meeting: self.meeting + other.meeting,
        }
    }
}

struct Array<'a> {
    drives: &'a Drives,
    tolerance: usize,
    mission: f64,
    gone: f64,
    /// Probability that a drive has latent errors which are not seen in time.
    latent: f64,
    /// Probability that latent errors of drives that are left meet in a stripe, by how many drives are gone.
    meet: Vec<f64>,
    by_age: Vec<f64>,
    by_month: [f64; 12],
    rates: Vec<f64>,
}

/// Runs histories until the error is small enough. `progress` is told histories and the relative error, and says whether
/// to go on.
pub fn simulate(
    layout: Layout,
    drives: &Drives,
    effort: Effort,
    progress: &mut dyn FnMut(u64, f64) -> bool,
) -> Outcome {
    let gone = drives.gone_hours();
    // What waits unseen, and what comes while the drive is rebuilt.
    let latent = drives.latent.unseen(drives.unseen_hours() + gone);
    let (count, tolerance) = (layout.drives() as usize, layout.tolerance() as usize);
    let meet = meet(drives, tolerance + 1, effort.seed);
    let sharing = |gone: usize| {
        let needed = tolerance - gone + 1;
        choose(count - gone, needed) * latent.powi(needed as i32) * meet[needed]
    };
    let mut array = Array {
        drives,
        tolerance,
        mission: drives.years * YEAR,
        gone,
        latent,
        meet: (0..tolerance).map(sharing).collect(),
        by_age: drives.by_age(),
        by_month: drives.by_month(),
        rates: vec![0.0; count],
    };
    let mut chance = Chance::new(effort.seed);
    let (mut count, mut mean, mut squares, mut split) = (0u64, 0.0, 0.0, Loss::default());
    for round in 1.. {
        for _ in 0..ROUND {
            let loss = array.history(effort.naive, &mut chance);
            let any = loss.all();
            count += 1;
            let off = any - mean;
            mean += off / count as f64;
            squares += off * (any - mean);
            split = split.plus(loss);
        }
        let error = (squares / count as f64 / (count - 1) as f64).sqrt();
        let relative = if mean > 0.0 { error / mean } else { f64::INFINITY };
        let enough = round >= ROUNDS_MIN && relative <= effort.error;
        if enough || count >= effort.histories_max || !progress(count, relative) {
            let per = |sum: f64| sum / count as f64;
            let whole = while_whole(&array);
            return Outcome {
                any: 1.0 - (1.0 - mean) * (-whole).exp(),
                any_error: error,
                drives: per(split.drives),
                sectors: per(split.sectors),
                meeting: per(split.meeting) + whole,
                histories: count,
            };
        }
    }
    Outcome::default()
}

impl Array<'_> {
    /// One mission.
    fn history(&mut self, naive: bool, chance: &mut Chance) -> Loss {
        let batches: Vec<f64> = (0..self.drives.batches).map(|_| self.batch(chance)).collect();
        let slot = |index: usize| Slot { whole_at: 0.0, batch: batches[index % batches.len()] };
        let mut slots: Vec<Slot> = (0..self.rates.len()).map(slot).collect();
        let (mut now, mut all) = (0.0, Loss::default());
        while now < self.mission {
            let until = self.month_end(now).min(self.mission);
            let rate = self.rate(&slots, now);
            let wait = exponential(chance) / rate;
            if now + wait >= until {
                now = until;
                continue;
            }
            now += wait;
            let failed = self.pick(rate, chance);
            if !naive {
                let mut aside = slots.clone();
                let (loss, _) = self.excursion(&mut aside, failed, now, true, chance);
                all = all.plus(loss);
            }
            let (loss, end) = self.excursion(&mut slots, failed, now, false, chance);
            if loss.drives + loss.sectors > 0.0 {
                return if naive { Loss { meeting: 0.0, ..loss } } else { all };
            }
            now = end;
        }
        all
    }

    /// From the failure of a drive until all are whole again, a loss, or the end. Without bias the loss is 0 or 1.
    fn excursion(
        &mut self,
        slots: &mut [Slot],
        failed: usize,
        from: f64,
        biased: bool,
        chance: &mut Chance,
    ) -> (Loss, f64) {
        let (mut now, mut weight, mut loss) = (from, 1.0, Loss::default());
        let mut failed = Some(failed);
        loop {
            if let Some(index) = failed.take() {
                let gone = 1 + slots.iter().filter(|slot| slot.whole_at > now).count();
                if gone > self.tolerance {
                    loss.drives += weight;
                    return (loss, now);
                }
                slots[index] = Slot { whole_at: now + self.gone, batch: self.batch(chance) };
                // An expectation and nothing that happens: it is small beside the rest, and history goes on.
                loss.meeting += weight * self.meet.get(gone).copied().unwrap_or(0.0);
                if gone == self.tolerance {
                    let unread = 1.0 - (1.0 - self.latent).powi((slots.len() - gone) as i32);
                    if biased {
                        loss.sectors += weight * unread;
                        weight *= 1.0 - unread;
                    } else if chance.unit() < unread {
                        return (Loss { sectors: 1.0, ..loss }, now);
                    }
                }
            }
            let next = slots.iter().map(|slot| slot.whole_at).filter(|at| *at > now).fold(f64::INFINITY, f64::min);
            if next.is_infinite() || now >= self.mission {
                return (loss, now);
            }
            let until = next.min(self.month_end(now)).min(self.mission);
            let rate = self.rate(slots, now);
            let bias = if biased && rate > 0.0 { (AIM / (rate * self.gone)).max(1.0) } else { 1.0 };
            let wait = exponential(chance) / (rate * bias);
            let happens = now + wait < until;
            let passed = if happens { wait } else { until - now };
            if bias > 1.0 {
                weight *= ((bias - 1.0) * rate * passed).exp() / if happens { bias } else { 1.0 };
            }
            if happens {
                failed = Some(self.pick(rate, chance));
                now += wait;
            } else {
                now = until;
            }
        }
    }

    /// Failures in an hour of all drives that are there; each one's is kept.
    fn rate(&mut self, slots: &[Slot], now: f64) -> f64 {
        let climate = self.by_month[(now / MONTH) as usize % 12];
        let last = self.by_age.len() - 1;
        let mut sum = 0.0;
        for (slot, rate) in slots.iter().zip(&mut self.rates) {
            let age = ((now - slot.whole_at) / MONTH).max(0.0) as usize;
            *rate = if slot.whole_at > now { 0.0 } else { slot.batch * climate * self.by_age[age.min(last)] };
            sum += *rate;
        }
        sum
    }

    /// Which drive fails, by the rates that were kept.
    fn pick(&self, sum: f64, chance: &mut Chance) -> usize {
        let mut place = chance.unit() * sum;
        let hit = self.rates.iter().position(|rate| {
            place -= rate;
            place < 0.0
        });
        hit.unwrap_or_else(|| self.rates.iter().rposition(|rate| *rate > 0.0).unwrap_or(0))
    }

    /// The end of a month: rates hold until then.
    fn month_end(&self, now: f64) -> f64 {
        let next = ((now / MONTH).floor() + 1.0) * MONTH;
        // Rounding must not stop time.
        if next > now { next } else { now + MONTH }
    }

    /// A batch's failure rate: gamma distributed with mean 1.
    fn batch(&self, chance: &mut Chance) -> f64 {
        let variance = self.drives.batch_variance;
        if variance < 1e-9 { 1.0 } else { chance.gamma(1.0 / variance) * variance }
    }
}

/// Expected losses by latent errors that meet while no drive is gone: errors come to a drive, and as many others as it takes
/// have some that nobody has seen.
fn while_whole(array: &Array<'_>) -> f64 {
    let drives = array.drives;
    let waiting = drives.unseen_hours();
    // The rate of a state that lasts on average `waiting`, by the probability of the state.
    let begins = array.meet.first().copied().unwrap_or(0.0) / array.latent.max(1e-300) * drives.latent.unseen(waiting);
    array.mission * begins * (array.tolerance + 1) as f64 / waiting
}

/// Ways to take some of many.
fn choose(many: usize, some: usize) -> f64 {
    (0..some).map(|taken| (many.saturating_sub(taken)) as f64 / (some - taken) as f64).product()
}

fn exponential(chance: &mut Chance) -> f64 {
    -(1.0 - chance.unit()).ln()
}
