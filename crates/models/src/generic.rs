//! A device of which only latency and bandwidth are known: a network disk, a bucket.
//!
//! A request takes a latency drawn from a distribution, and then its bytes at a bandwidth drawn from another. Requests in
//! service share nothing but the limit of their number.

use crate::chance::Chance;
use crate::error::{SpecError, law, size};
use crate::io::{Counters, Kind, Refused, Request, SECTOR, Split};
use crate::served::{Served, Service, model_by_service};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// A device by distributions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenericSpec {
    /// Bytes that the host sees.
    pub capacity: String,
    /// Requests in service at once; more wait.
    pub depth: u32,
    /// Latency of a read, microseconds.
    pub read_us: Distribution,
    /// Latency of a write or a discard, microseconds.
    pub write_us: Distribution,
    /// Latency of a flush, microseconds.
    pub flush_us: Distribution,
    /// Bandwidth of one request, MB/s.
    pub mb_s: Distribution,
}

/// A distribution of positive numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Distribution {
    /// Always the same.
    Constant(f64),
    /// Evenly between two numbers.
    Uniform {
        /// The least.
        from: f64,
        /// The most.
        to: f64,
    },
    /// At least some number, and an exponential time more.
    Exponential {
        /// The least.
        from: f64,
        /// The mean of what comes on top.
        mean: f64,
    },
    /// Log-normal, by two quantiles.
    Lognormal {
        /// Half are below.
        median: f64,
        /// 99 of 100 are below.
        p99: f64,
    },
}

/// The 99th percentile of the standard normal distribution.
const NORMAL_P99: f64 = 2.326_347_874_040_841;

impl Distribution {
    fn check(&self, name: &str, least: f64) -> Result<(), SpecError> {
        let number = |value: f64| {
            law(
                value.is_finite() && (least..=1e12).contains(&value),
                name,
                value,
                &format!("a number from {least} to 1,000,000,000,000"),
            )
        };
        match *self {
            Distribution::Constant(value) => number(value),
            Distribution::Uniform { from, to } => {
                number(from)?;
                number(to)?;
                law(from <= to, name, format!("{from} to {to}"), "the least is not above the most")
            }
            Distribution::Exponential { from, mean } => {
                number(from)?;
                number(mean)
            }
            Distribution::Lognormal { median, p99 } => {
                number(median)?;
                number(p99)?;
                let rising = median > 0.0 && p99 >= median;
                law(
                    rising,
                    name,
                    format!("{median}, {p99}"),
                    "the median is positive and the 99th percentile not below it",
                )
            }
        }
    }

    fn draw(&self, chance: &mut Chance) -> f64 {
        match *self {
            Distribution::Constant(value) => value,
            Distribution::Uniform { from, to } => from + (to - from) * chance.unit(),
            Distribution::Exponential { from, mean } => from - mean * (1.0 - chance.unit()).ln(),
            Distribution::Lognormal { median, p99 } => {
                median * ((p99 / median).ln() / NORMAL_P99 * chance.normal()).exp()
            }
        }
    }
}

/// A generic device in some state.
pub struct Generic(Served<Drawn>);

struct Drawn {
    spec: GenericSpec,
    capacity: u64,
    chance: Chance,
}

impl Generic {
    /// A device whose chance has this seed.
    pub fn new(spec: &GenericSpec, seed: u64) -> Result<Generic, SpecError> {
        let capacity = size("capacity", &spec.capacity)? / SECTOR * SECTOR;
        law(capacity > 0, "capacity", &spec.capacity, "a device holds at least a sector")?;
        law((1..=1 << 16).contains(&spec.depth), "depth", spec.depth, "a device serves 1 to 65,536 requests at once")?;
        spec.read_us.check("read_us", 0.0)?;
        spec.write_us.check("write_us", 0.0)?;
        spec.flush_us.check("flush_us", 0.0)?;
        spec.mb_s.check("mb_s", 0.001)?;
        let drawn = Drawn { spec: spec.clone(), capacity, chance: Chance::new(seed) };
        Ok(Generic(Served::new(drawn, spec.depth as usize)))
    }
}

impl Service for Drawn {
    fn capacity(&self) -> u64 {
        self.capacity
    }
    fn grain(&self) -> u64 {
        SECTOR
    }

    fn serve(&mut self, _begin_ns: u64, request: &Request, _counters: &mut Counters) -> Result<Split, Refused> {
        let (latency, bytes) = match request.kind {
            Kind::Read => (&self.spec.read_us, request.len),
            Kind::Write => (&self.spec.write_us, request.len),
            Kind::Discard => (&self.spec.write_us, 0),
            Kind::Flush => (&self.spec.flush_us, 0),
        };
        let overhead_ns = (latency.draw(&mut self.chance) * 1e3).min(1e15) as u64;
        let mb_s = self.spec.mb_s.draw(&mut self.chance).max(0.001);
        let transfer_ns = (bytes as f64 * 1e3 / mb_s) as u64;
        Ok(Split { overhead_ns, transfer_ns, ..Split::default() })
    }

    /// It has no memory.
    fn save(&self, _to: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
    fn restore(&mut self, _from: &mut dyn Read) -> io::Result<()> {
        Ok(())
    }
}

model_by_service!(Generic);
