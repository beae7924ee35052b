//! Power states and the energy account.
//!
//! The spindle turns (*active* while the mechanism works, else *idle*) or stands (*standby*). A request that finds it
//! standing waits for the spin-up. A drive goes to standby by command, or by itself after a time without work.

use crate::error::{SpecError, law, time_ns};
use serde::{Deserialize, Serialize};

/// Power by state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerSpec {
    /// Seeking, reading or writing, watts.
    pub active_w: f64,
    /// Spinning without work, watts.
    pub idle_w: f64,
    /// Spindle stopped, watts.
    pub standby_w: f64,
    /// From standby to ready, seconds.
    pub spin_up_s: f64,
    /// Energy of a spin-up, joules.
    pub spin_up_j: f64,
    /// Idle time after which the drive stops its spindle by itself, seconds. Absent: never.
    pub standby_after_s: Option<f64>,
}

impl PowerSpec {
    pub(super) fn check(&self) -> Result<(), SpecError> {
        let watts = |name, value: f64| {
            law(value.is_finite() && (0.0..=1000.0).contains(&value), name, value, "a drive takes 0 to 1000 W")
        };
        watts("power.active_w", self.active_w)?;
        watts("power.idle_w", self.idle_w)?;
        watts("power.standby_w", self.standby_w)?;
        law(self.idle_w <= self.active_w, "power.idle_w", self.idle_w, "an idle drive takes no more than a busy one")?;
        law(
            self.standby_w <= self.idle_w,
            "power.standby_w",
            self.standby_w,
            "a standing spindle takes no more than a turning one",
        )?;
        time_ns("power.spin_up_s", self.spin_up_s, 1e9)?;
        let enough = self.spin_up_j.is_finite() && self.spin_up_j >= self.spin_up_s * self.standby_w;
        law(enough, "power.spin_up_j", self.spin_up_j, "spinning up takes at least the power of standby for its time")?;
        if let Some(after) = self.standby_after_s {
            time_ns("power.standby_after_s", after, 1e9)?;
        }
        Ok(())
    }
}

/// What the spindle does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerState {
    /// The mechanism works, or is being brought up to speed.
    Active,
    /// The spindle turns; nothing to do.
    Idle,
    /// The spindle stands.
    Standby,
}

/// Where the energy of a drive went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Energy {
    /// Time at work.
    pub active_ns: u64,
    /// Time without work, spinning.
    pub idle_ns: u64,
    /// Time with the spindle stopped.
    pub standby_ns: u64,
    /// Time of spinning up.
    pub spin_up_ns: u64,
    /// Spin-ups.
    pub spin_ups: u64,
    /// Energy in all, joules.
    pub joules: f64,
}

/// Keeps the account.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    spec: Option<PowerSpec>,
    standby_after_ns: Option<u64>,
    spin_up_ns: u64,
    state: PowerState,
    /// Time up to which the account is kept.
    since_ns: u64,
    idle_since_ns: u64,
    energy: Energy,
}

impl Meter {
    pub fn new(spec: Option<PowerSpec>) -> Meter {
        let ns = |seconds: f64| (seconds * 1e9).round() as u64;
        Meter {
            standby_after_ns: spec.as_ref().and_then(|spec| spec.standby_after_s).map(ns),
            spin_up_ns: spec.as_ref().map_or(0, |spec| ns(spec.spin_up_s)),
            spec,
            state: PowerState::Idle,
            since_ns: 0,
            idle_since_ns: 0,
            energy: Energy::default(),
        }
    }

    /// Brings the account to `now_ns`, and a drive that has idled for long to standby.
    fn settle(&mut self, now_ns: u64) {
        if self.state == PowerState::Idle
            && let Some(after) = self.standby_after_ns
            && now_ns.saturating_sub(self.idle_since_ns) > after
        {
            let stop_ns = self.idle_since_ns + after;
            self.charge(stop_ns);
            self.state = PowerState::Standby;
        }
        self.charge(now_ns);
    }

    fn charge(&mut self, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.since_ns);
        self.since_ns = self.since_ns.max(now_ns);
        let (account, watts): (_, fn(&PowerSpec) -> f64) = match self.state {
            PowerState::Active => (&mut self.energy.active_ns, |spec| spec.active_w),
            PowerState::Idle => (&mut self.energy.idle_ns, |spec| spec.idle_w),
            PowerState::Standby => (&mut self.energy.standby_ns, |spec| spec.standby_w),
        };
        *account += passed;
        if let Some(spec) = &self.spec {
            self.energy.joules += watts(spec) * passed as f64 / 1e9;
        }
    }

    /// The mechanism begins to work; the answer is the time that it needs first, to spin up.
    pub fn wake(&mut self, now_ns: u64) -> u64 {
        if self.state == PowerState::Active {
            return 0;
        }
        self.settle(now_ns);
        let stood = self.state == PowerState::Standby;
        self.state = PowerState::Active;
        if !stood {
            return 0;
        }
        self.energy.spin_ups += 1;
        self.energy.spin_up_ns += self.spin_up_ns;
        self.energy.joules += self.spec.as_ref().map_or(0.0, |spec| spec.spin_up_j);
        self.since_ns = now_ns + self.spin_up_ns;
        self.spin_up_ns
    }

    /// The mechanism has nothing to do.
    pub fn rest(&mut self, now_ns: u64) {
        if self.state == PowerState::Active {
            self.charge(now_ns);
            self.state = PowerState::Idle;
            self.idle_since_ns = now_ns;
        }
    }

    /// Stops the spindle, unless the mechanism works.
    pub fn stand_by(&mut self, now_ns: u64) {
        if self.state == PowerState::Idle {
            self.settle(now_ns);
            self.state = PowerState::Standby;
        }
    }

    pub fn state(&mut self, now_ns: u64) -> PowerState {
        self.settle(now_ns);
        self.state
    }

    pub fn energy(&mut self, now_ns: u64) -> Energy {
        self.settle(now_ns);
        self.energy
    }
}
