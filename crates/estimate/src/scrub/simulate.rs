//! One disk, from event to event.

use super::errors::{DriveClass, LatentError, cluster};
use super::policy::{Order, Policy, REGION, YOUNG};
use ashlar_models::Chance;

/// A disk and its load.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// How reliable it is.
    pub class: DriveClass,
    /// Size and order.
    pub order: Order,
    /// Bytes that users write in an hour.
    pub written: f64,
    /// Bytes that users read in an hour. They find no errors here.
    pub read: f64,
    /// Hours to look at.
    pub hours: f64,
}

/// What one disk showed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Hours with an error that was there and not found.
    pub exposed: f64,
    /// Hours that found errors had waited, all together.
    pub waited: f64,
    /// Errors that were found.
    pub found: u64,
    /// Errors that came.
    pub came: u64,
}

/// How the disk is read just now.
#[derive(Clone, Copy, Debug)]
enum Mode {
    /// In passes: from which hour and which part of a pass on, and the rate.
    Pass { since: f64, part: f64, rate: f64 },
    /// Regions around a place, until an hour.
    Around { since: f64, center: f64, rate: f64, until: f64 },
}

/// A disk that is being looked at.
pub struct Run<'a> {
    disk: &'a Disk,
    policy: Policy,
    mode: Mode,
    now: f64,
    /// Use since the last cluster by use, bytes written.
    used: f64,
    next_use: f64,
    /// Errors that come, the latest first.
    coming: Vec<LatentError>,
    unseen: Vec<LatentError>,
    any_found: bool,
    seen: Seen,
}

/// One disk for its hours, with errors by age and use.
pub fn run(disk: &Disk, policy: Policy, chance: &mut Chance) -> Seen {
    let next_use = disk.class.next_use(chance);
    let aged = disk.class.aged_at(chance);
    let coming = aged.map(|at| cluster(at, disk.order.capacity, chance)).unwrap_or_default();
    Run::new(disk, policy, next_use, coming).finish(chance)
}

/// One disk with given errors, and no others.
pub fn with_errors(disk: &Disk, policy: Policy, errors: Vec<LatentError>) -> Seen {
    Run::new(disk, policy, f64::INFINITY, errors).finish(&mut Chance::new(0))
}

impl Run<'_> {
    fn new(disk: &Disk, policy: Policy, next_use: f64, coming: Vec<LatentError>) -> Run<'_> {
        let mode = Mode::Pass { since: 0.0, part: 0.0, rate: policy.rate(0.0, false) };
        let (unseen, seen) = (Vec::new(), Seen::default());
        let mut run = Run { disk, policy, mode, now: 0.0, used: 0.0, next_use, coming, unseen, any_found: false, seen };
        run.sort();
        run
    }

    fn sort(&mut self) {
        self.coming.sort_by(|one, other| other.at.total_cmp(&one.at));
    }

    fn finish(mut self, chance: &mut Chance) -> Seen {
        while self.now < self.disk.hours {
            // Without errors, present or coming, only use and age matter: the same loop, few steps.
            let use_rate = self.disk.written + (self.disk.read + self.rate()) / self.disk.class.read_weight;
            let by_use = self.now + (self.next_use - self.used).max(0.0) / use_rate;
            let comes = self.coming.last().map_or(f64::INFINITY, |error| error.at);
            let turns = self.turns();
            let found = self.unseen.iter().enumerate().map(|(index, error)| (self.read_at(error.place), index));
            let (found, index) = found.fold((f64::INFINITY, 0), |best, one| if one.0 < best.0 { one } else { best });
            let next = by_use.min(comes).min(turns).min(found).min(self.disk.hours);
            if !self.unseen.is_empty() {
                self.seen.exposed += next - self.now;
            }
            self.used += (next - self.now) * use_rate;
            self.now = next;
            match () {
                () if next >= self.disk.hours => break,
                () if next == found => self.find(index),
                () if next == comes => {
                    self.unseen.extend(self.coming.pop());
                    self.seen.came += 1;
                }
                () if next == turns => self.turn(),
                () => {
                    self.coming.extend(cluster(next, self.disk.order.capacity, chance));
                    self.sort();
                    (self.used, self.next_use) = (0.0, self.disk.class.next_use(chance));
                }
            }
        }
        self.seen
    }

    fn rate(&self) -> f64 {
        match self.mode {
            Mode::Pass { rate, .. } | Mode::Around { rate, .. } => rate,
        }
    }

    /// When the rate or the mode changes next.
    fn turns(&self) -> f64 {
        match self.mode {
            Mode::Around { until, .. } => until,
            Mode::Pass { .. } if self.now < YOUNG && matches!(self.policy, Policy::Adaptive(_)) => YOUNG,
            Mode::Pass { .. } => f64::INFINITY,
        }
    }

    fn turn(&mut self) {
        let rate = self.policy.rate(self.now, self.any_found);
        // After an error a pass begins anew; otherwise it goes on where it is.
        let part = match self.mode {
            Mode::Pass { since, part, rate } => (part + (self.now - since) * rate / self.disk.order.capacity).fract(),
            Mode::Around { .. } => 0.0,
        };
        self.mode = Mode::Pass { since: self.now, part, rate };
    }

    /// When a place is read next.
    fn read_at(&self, place: f64) -> f64 {
        match self.mode {
            Mode::Pass { since, part, rate } => {
                let pass = self.disk.order.capacity / rate;
                let first = since + (self.disk.order.part(&self.policy, place) - part).rem_euclid(1.0) * pass;
                if first >= self.now { first } else { first + ((self.now - first) / pass).ceil() * pass }
            }
            Mode::Around { since, center, rate, until } => {
                let distance = ((place - center).abs() / REGION).round();
                let at = since + 2.0 * distance * REGION / rate;
                if at >= self.now && at < until { at } else { f64::INFINITY }
            }
        }
    }

    fn found(&mut self, index: usize) -> LatentError {
        let error = self.unseen.swap_remove(index);
        self.seen.waited += self.now - error.at;
        self.seen.found += 1;
        self.any_found = true;
        error
    }

    fn find(&mut self, index: usize) {
        let center = self.found(index).place;
        match self.policy {
            Policy::Sequential { .. } | Policy::Staggered { .. } => {}
            Policy::Sweep { .. } => {
                // Around each error that is found the same again. It takes seconds; that it is done at once is no more than
                // that too early.
                let mut swept = vec![center];
                while let Some(place) = swept.pop() {
                    let near = |error: &LatentError| (error.place - place).abs() <= REGION;
                    while let Some(index) = self.unseen.iter().position(near) {
                        swept.push(self.found(index).place);
                    }
                }
            }
            Policy::Adaptive(adaptive) => {
                if let Mode::Pass { .. } = self.mode {
                    let until = self.now + adaptive.hours;
                    self.mode = Mode::Around { since: self.now, center, rate: adaptive.fast, until };
                }
            }
        }
    }
}
