//! What a fault is, and its text. [`Fault`] prints what [`parse`](crate::parse) reads.

use ashlar_units::{BLOCK, Blocks, Bytes, Lba};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::time::Duration;

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// What.
    pub what: What,
    /// Chance that it strikes where it could: above 0, at most 1.
    pub p: f64,
    /// Only operations of this kind.
    pub on: Option<Operation>,
    /// Only in these bytes.
    pub at: Option<Range>,
    /// It strikes so often, and then no more.
    pub times: Option<u64>,
}

/// Kinds of faults. docs/faults.md describes each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// Sectors that cannot be read until they are written.
    Lse(Lse),
    /// A read fails; the next may succeed.
    ReadError,
    /// A write fails; nothing, all or a part of it is done.
    WriteError,
    /// A bit of a block turns, in what is read or in what is written.
    Flip,
    /// A write is acknowledged and not done.
    LostWrite,
    /// A write lands so many bytes further on; past the end it begins again at the front.
    Misdirect {
        /// Bytes, whole blocks, not zero.
        by: i64,
    },
    /// Of a write only the first sectors of 512 bytes are done.
    Torn {
        /// How many; by chance if not given.
        sectors: Option<u64>,
    },
    /// A read returns what a block held before its last write.
    Stale,
    /// Flushes are acknowledged and not done; forced writes wait for no medium.
    DropFlush,
    /// Operations begin later.
    Delay(Delay),
    /// Operations take longer.
    Slow(Slow),
    /// Operations hang until the fault is cleared, or for a time.
    Stuck {
        /// For how long.
        time: Option<Duration>,
    },
    /// Writes fail for want of space, once so many bytes have been written.
    Full {
        /// How many.
        after: Bytes,
    },
    /// Everything fails.
    Removed,
    /// Writes and discards fail.
    ReadOnly,
    /// What no flush covers is lost when the power is cut.
    PowerCut(Medium),
}

/// Which sectors are bad.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lse {
    /// All of the range.
    Range,
    /// Bursts of one length, anywhere with the same chance.
    Rate {
        /// Chance that a burst begins at a sector of 512 bytes.
        rate: f64,
        /// Length of a burst in sectors.
        burst: u64,
        /// Instead of the seed of the layer.
        seed: Option<u64>,
    },
    /// As many, as long and as far apart as found on a model of disks in the field.
    Model {
        /// Its name in the paper.
        name: &'static str,
        /// Instead of the seed of the layer.
        seed: Option<u64>,
    },
}

/// Kinds of operations that a fault can be confined to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Discards.
    Discard,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 4] = [Operation::Read, Operation::Write, Operation::Flush, Operation::Discard];
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Flush => "flush",
            Operation::Discard => "discard",
        }
    }
}

/// How much later an operation begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Delay {
    /// Always the same.
    Constant(Duration),
    /// Between the two.
    Uniform(Duration, Duration),
    /// With this mean.
    Exponential(Duration),
    /// With this median, and this standard deviation of the logarithm.
    Lognormal(Duration, f64),
}

/// How much longer an operation takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Slow {
    /// So many times as long.
    Factor(f64),
    /// All together move at most so many bytes in a second.
    Rate(Bytes),
}

/// What a power cut does to writes that no flush covers. It may lose any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Medium {
    /// Bytes of writes that can be lost; when there are more, the oldest are taken as durable.
    pub window: Bytes,
    /// Aligned unit that is written whole or not: 512 bytes, or a block.
    pub atomic: Bytes,
    /// No write survives an earlier one that is lost.
    pub ordered: bool,
    /// Writes survive whole or not at all.
    pub whole: bool,
    /// The power fails by itself after so many writes, discards and flushes.
    pub after: Option<u64>,
}

impl Medium {
    /// What can be lost if nothing is said.
    pub const WINDOW: Bytes = Bytes::mib(64);
    /// Largest window.
    pub const WINDOW_MAX: Bytes = Bytes::gib(1);
}

impl Default for Medium {
    fn default() -> Medium {
        Medium { window: Medium::WINDOW, atomic: BLOCK, ordered: false, whole: false, after: None }
    }
}

/// Bytes from `start` to `end`, or to the end of the device. Every block that they touch is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// The byte behind the last.
    pub end: Option<u64>,
}

impl Range {
    /// Numbers of the blocks that it touches.
    pub fn blocks(&self) -> std::ops::Range<u64> {
        self.start / BLOCK.0..self.end.map_or(u64::MAX, |end| Bytes(end).to_blocks_up().0)
    }
    /// Those of `count` blocks at `at` that it touches.
    pub fn within(&self, at: Lba, count: Blocks) -> std::ops::Range<u64> {
        let (mine, end) = (self.blocks(), at.0.saturating_add(count.0));
        let start = mine.start.clamp(at.0, end);
        start..mine.end.clamp(start, end)
    }
}

/// The shortest text that reads as exactly so many bytes: one unit, or a sum.
pub(crate) fn exact(bytes: u64) -> String {
    const BINARY: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("", 0)];
    const DECIMAL: [(&str, u64); 4] =
        [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1_000)];
    let mut rest = bytes;
    let mut sum = Vec::new();
    for (unit, power) in BINARY {
        if rest >> power > 0 {
            sum.push(format!("{}{unit}", rest >> power));
            rest &= (1 << power) - 1;
        }
    }
    if sum.is_empty() {
        return "0".into();
    }
    let decimal = DECIMAL.iter().filter(|(_, size)| bytes.is_multiple_of(*size));
    let decimal = decimal.map(|(unit, size)| format!("{}{unit}", bytes / size));
    let binary = BINARY.iter().filter(|(_, power)| bytes.trailing_zeros() >= *power);
    let binary = binary.map(|(unit, power)| format!("{}{unit}", bytes >> power));
    std::iter::once(sum.join("+")).chain(binary).chain(decimal).min_by_key(String::len).unwrap_or_default()
}

/// A time as the largest unit that measures it.
pub(crate) fn time(time: Duration) -> String {
    let ns = time.as_nanos();
    let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)];
    match units.iter().find(|(_, size)| ns.is_multiple_of(*size)) {
        Some((unit, size)) => format!("{}{unit}", ns / size),
        None => format!("{ns}ns"),
    }
}

/// A number that reads as the same, without a row of zeros.
pub(crate) fn number(value: f64) -> String {
    if value < 1e-3 { format!("{value:e}") } else { value.to_string() }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", exact(self.start), self.end.map(exact).unwrap_or_default())
    }
}

impl What {
    /// The word that its text begins with.
    pub fn name(&self) -> &'static str {
        match self {
            What::Lse(_) => "lse",
            What::ReadError => "read-error",
            What::WriteError => "write-error",
            What::Flip => "flip",
            What::LostWrite => "lost-write",
            What::Misdirect { .. } => "misdirect",
            What::Torn { .. } => "torn",
            What::Stale => "stale",
            What::DropFlush => "drop-flush",
            What::Delay(_) => "delay",
            What::Slow(_) => "slow",
            What::Stuck { .. } => "stuck",
            What::Full { .. } => "full",
            What::Removed => "removed",
            What::ReadOnly => "read-only",
            What::PowerCut(_) => "power-cut",
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let seed = |seed: &Option<u64>| seed.map(|seed| format!(" seed {seed}")).unwrap_or_default();
        match self {
            What::Lse(Lse::Rate { rate, burst, seed: given }) => {
                write!(f, " rate {}", number(*rate))?;
                if *burst != 1 {
                    write!(f, " burst {burst}")?;
                }
                f.write_str(&seed(given))
            }
            What::Lse(Lse::Model { name, seed: given }) => write!(f, " model {name}{}", seed(given)),
            What::Misdirect { by } => {
                write!(f, " by {}{}", if *by < 0 { "-" } else { "" }, exact(by.unsigned_abs()))
            }
            What::Torn { sectors: Some(sectors) } => write!(f, " sectors {sectors}"),
            What::Delay(Delay::Constant(mean)) => write!(f, " {}", time(*mean)),
            What::Delay(Delay::Uniform(low, high)) => write!(f, " uniform {}..{}", time(*low), time(*high)),
            What::Delay(Delay::Exponential(mean)) => write!(f, " exponential {}", time(*mean)),
            What::Delay(Delay::Lognormal(median, sigma)) => {
                write!(f, " lognormal {} sigma {}", time(*median), number(*sigma))
            }
            What::Slow(Slow::Factor(factor)) => write!(f, " {factor}x"),
            What::Slow(Slow::Rate(rate)) => write!(f, " {}/s", exact(rate.0)),
            What::Stuck { time: Some(span) } => write!(f, " for {}", time(*span)),
            What::Full { after } if after.0 > 0 => write!(f, " after {}", exact(after.0)),
            What::PowerCut(medium) => {
                if medium.window != Medium::WINDOW {
                    write!(f, " window {}", exact(medium.window.0))?;
                }
                if medium.atomic != BLOCK {
                    write!(f, " atomic {}", exact(medium.atomic.0))?;
                }
                f.write_str(if medium.ordered { " ordered" } else { "" })?;
                f.write_str(if medium.whole { " whole" } else { "" })?;
                medium.after.map_or(Ok(()), |after| write!(f, " after {after}"))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.what.fmt(f)?;
        if self.p < 1.0 {
            write!(f, " p {}", number(self.p))?;
        }
        if let Some(on) = self.on {
            write!(f, " on {}", on.name())?;
        }
        if let Some(at) = self.at {
            write!(f, " at {at}")?;
        }
        self.times.map_or(Ok(()), |times| write!(f, " times {times}"))
    }
}

impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
impl<'de> Deserialize<'de> for Fault {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fault, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
impl JsonSchema for Fault {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Fault".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "A fault as text, as in \"lse at 2GiB..2GiB+64KiB\"; see docs/faults.md."
        })
    }
}

// Numbers come from `parse`, which lets no NaN through.
impl Eq for Fault {}
impl Eq for What {}
impl Eq for Lse {}
