//! Faults as people write them: `lse at 2GiB..2GiB+64KiB`, `delay lognormal 5ms sigma 1 on read p 0.1`.
//!
//! A text is a name, what belongs to the name, and clauses in any order. [`KINDS`] says which a fault takes; it is also
//! the list that people are shown.

use crate::lse;
use crate::spec::{Delay, Fault, Lse, Medium, Operation, Range, Slow, What};
use ashlar_units::{BLOCK, Bytes};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Longest text in bytes.
const TEXT_LEN_MAX: usize = 512;
/// Longest time: a hundred years.
const TIME_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// Longest burst of bad sectors.
const BURST_MAX: u64 = 1 << 20;

/// A kind of fault as people are told of it.
pub struct Kind {
    /// The word that its text begins with.
    pub name: &'static str,
    /// How it is written, but for clauses that most faults have.
    usage: &'static str,
    /// What it does.
    pub what: &'static str,
    /// Clauses that can follow.
    clauses: &'static [&'static str],
}

impl Kind {
    /// Whether a clause (`p`, `on`, `at`, `times`) can follow.
    pub fn takes(&self, clause: &str) -> bool {
        self.clauses.contains(&clause)
    }
    /// How it is written, with all clauses.
    pub fn usage(&self) -> String {
        let more = self.clauses.iter().filter(|clause| {
            let mut words = self.usage.split([' ', '[']);
            !words.any(|word| word == **clause)
        });
        let more = more.map(|clause| match *clause {
            "p" => " [p P]",
            "on" => " [on OPERATION]",
            "at" => " [at RANGE]",
            _ => " [times N]",
        });
        format!("{}{}", self.usage, more.collect::<String>())
    }
}

/// Every kind of fault.
pub const KINDS: [Kind; 16] = [
    Kind {
        name: "lse",
        usage: "lse at RANGE | lse rate R [burst SECTORS] [seed N] [at RANGE] | lse model NAME [seed N] [at RANGE]",
        what: "latent sector errors: reads fail until the block is written",
        clauses: &["at", "times"],
    },
    Kind {
        name: "read-error",
        usage: "read-error [p P] [at RANGE]",
        what: "a read fails, and may succeed when tried again",
        clauses: &["p", "at", "times"],
    },
    Kind {
        name: "write-error",
        usage: "write-error [p P] [at RANGE]",
        what: "a write fails; nothing, all or a part of it is done",
        clauses: &["p", "at", "times"],
    },
    Kind {
        name: "flip",
        usage: "flip [p P] on read|write [at RANGE]",
        what: "one bit turns in a block that is read, or written; P is for each block",
        clauses: &["p", "on", "at", "times"],
    },
    Kind {
        name: "lost-write",
        usage: "lost-write [p P] [at RANGE]",
        what: "a write is acknowledged and not done",
        clauses: &["p", "at", "times"],
    },
    Kind {
        name: "misdirect",
        usage: "misdirect [p P] by [-]SIZE [at RANGE]",
        what: "a write lands elsewhere",
        clauses: &["p", "at", "times"],
    },
    Kind {
        name: "torn",
        usage: "torn [p P] [sectors N] [at RANGE]",
        what: "of a write only the first sectors of 512 bytes are done",
        clauses: &["p", "at", "times"],
    },
    Kind {
        name: "stale",
        usage: "stale [p P] [at RANGE]",
        what: "a read returns a block as it was before its last write; P is for each block",
        clauses: &["p", "at", "times"],
    },
    Kind {
        name: "drop-flush",
        usage: "drop-flush [p P]",
        what: "flushes are acknowledged and not done, and forced writes are not forced",
        clauses: &["p", "times"],
    },
    Kind {
        name: "delay",
        usage: "delay TIME | delay uniform TIME..TIME | delay exponential MEAN | delay lognormal MEDIAN sigma S",
        what: "operations begin later",
        clauses: &["p", "on", "at", "times"],
    },
    Kind {
        name: "slow",
        usage: "slow FACTORx | slow SIZE/s",
        what: "operations take longer by a factor, or share a bandwidth",
        clauses: &["on", "at", "times"],
    },
    Kind {
        name: "stuck",
        usage: "stuck [for TIME] [on OPERATION] [at RANGE]",
        what: "operations hang until the fault is cleared, or for a time",
        clauses: &["p", "on", "at", "times"],
    },
    Kind {
        name: "full",
        usage: "full [after SIZE]",
        what: "writes fail for want of space, at once or when so much has been written",
        clauses: &["at", "times"],
    },
    Kind { name: "removed", usage: "removed", what: "everything fails", clauses: &["times"] },
    Kind {
        name: "read-only",
        usage: "read-only [at RANGE]",
        what: "writes and discards fail",
        clauses: &["at", "times"],
    },
    Kind {
        name: "power-cut",
        usage: "power-cut [window SIZE] [atomic 512|4KiB] [ordered] [whole] [after OPERATIONS]",
        what: "writes are kept in a volatile cache until a flush; a power cut loses, reorders and tears them",
        clauses: &[],
    },
];

/// Why a text is no fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError(String);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for ParseError {}

type Parsed<T> = Result<T, String>;

/// The words that are left.
struct Words<'a>(std::iter::Peekable<std::str::SplitWhitespace<'a>>);

impl<'a> Words<'a> {
    fn next(&mut self, wanted: &str) -> Parsed<&'a str> {
        self.0.next().ok_or_else(|| format!("the text ends where {wanted} should follow"))
    }
    /// Takes the next word if it is this one.
    fn take(&mut self, word: &str) -> bool {
        self.0.next_if(|next| *next == word).is_some()
    }
    /// What follows the next word, if that is this one.
    fn after<T>(&mut self, word: &str, read: impl FnOnce(&str) -> Parsed<T>) -> Parsed<Option<T>> {
        if !self.take(word) {
            return Ok(None);
        }
        let value = self.next(&format!("a value for `{word}`"))?;
        read(value).map(Some).map_err(|error| format!("`{word} {value}`: {error}"))
    }
}

impl FromStr for Fault {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Fault, ParseError> {
        if text.len() > TEXT_LEN_MAX {
            return Err(ParseError(format!(
                "a fault is described in at most {TEXT_LEN_MAX} bytes, not {}",
                text.len()
            )));
        }
        let mut words = Words(text.split_whitespace().peekable());
        let name = words.0.next().unwrap_or_default();
        let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
            let names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
            return Err(ParseError(format!("there is no fault {name:?}; there are: {}", names.join(", "))));
        };
        fault(kind, &mut words)
            .map_err(|error| ParseError(format!("fault {:?}: {error}; write {}", text.trim(), kind.usage())))
    }
}

/// Clauses of `lse`, `misdirect` and so on that come before or between those of all faults.
#[derive(Default)]
struct Own {
    rate: Option<f64>,
    burst: Option<u64>,
    model: Option<&'static str>,
    seed: Option<u64>,
    by: Option<i64>,
    sectors: Option<u64>,
    span: Option<Duration>,
    after: Option<Bytes>,
}

fn fault(kind: &Kind, words: &mut Words) -> Parsed<Fault> {
    let mut fault = Fault { what: What::Removed, p: 1.0, on: None, at: None, times: None };
    let mut own = Own::default();
    let head = match kind.name {
        "delay" => Some(What::Delay(delay(words)?)),
        "slow" => Some(What::Slow(slow(words)?)),
        "power-cut" => Some(What::PowerCut(medium(words)?)),
        _ => None,
    };
    let mut seen: Vec<&str> = Vec::new();
    while let Some(word) = words.0.peek().copied() {
        if seen.contains(&word) {
            return Err(format!("`{word}` stands there twice"));
        }
        seen.push(word);
        let general = kind.takes(word);
        match (kind.name, word) {
            (_, "p") if general => fault.p = words.after("p", chance)?.unwrap_or(1.0),
            (_, "on") if general => fault.on = words.after("on", operation)?,
            (_, "at") if general => fault.at = words.after("at", range)?,
            (_, "times") if general => fault.times = words.after("times", positive)?,
            ("lse", "rate") => own.rate = words.after("rate", chance)?,
            ("lse", "burst") => own.burst = words.after("burst", |word| within(word, BURST_MAX))?,
            ("lse", "model") => own.model = words.after("model", model)?,
            ("lse", "seed") => own.seed = words.after("seed", integer)?,
            ("misdirect", "by") => own.by = words.after("by", distance)?,
            ("torn", "sectors") => own.sectors = words.after("sectors", integer)?,
            ("stuck", "for") => own.span = words.after("for", time)?,
            ("full", "after") => own.after = words.after("after", size)?,
            _ => return Err(format!("`{word}` means nothing there")),
        }
    }
    fault.what = match head {
        Some(what) => what,
        None => what(kind.name, own, &mut fault)?,
    };
    Ok(fault)
}

/// Puts together what stood in the clauses of one fault.
fn what(name: &str, own: Own, fault: &mut Fault) -> Parsed<What> {
    Ok(match name {
        "lse" => What::Lse(match (own.rate, own.model) {
            (Some(_), Some(_)) => return Err("it has a rate or a model, not both".into()),
            (Some(rate), None) => Lse::Rate { rate, burst: own.burst.unwrap_or(1), seed: own.seed },
            (None, _) if own.burst.is_some() => return Err("`burst` goes with `rate`".into()),
            (None, Some(name)) => Lse::Model { name, seed: own.seed },
            (None, None) if own.seed.is_some() => return Err("a range needs no seed".into()),
            (None, None) if fault.at.is_none() => return Err("it does not say which sectors are bad".into()),
            (None, None) => Lse::Range,
        }),
        "read-error" => What::ReadError,
        "write-error" => What::WriteError,
        "flip" => match fault.on {
            Some(Operation::Read | Operation::Write) => What::Flip,
            _ => return Err("say whether bits turn `on read` or `on write`".into()),
        },
        "lost-write" => What::LostWrite,
        "misdirect" => What::Misdirect { by: own.by.ok_or("say how far: `by 1MiB`")? },
        "torn" => What::Torn { sectors: own.sectors },
        "stale" => What::Stale,
        "drop-flush" => What::DropFlush,
        "stuck" => What::Stuck { time: own.span },
        "full" => What::Full { after: own.after.unwrap_or(Bytes(0)) },
        "read-only" => What::ReadOnly,
        _ => What::Removed,
    })
}

fn delay(words: &mut Words) -> Parsed<Delay> {
    let first = words.next("a time, as in 5ms, or a distribution")?;
    Ok(match first {
        "uniform" => {
            let span = words.next("a span, as in 1ms..5ms")?;
            let (low, high) = span.split_once("..").ok_or_else(|| format!("{span:?} is no span, as 1ms..5ms is"))?;
            let (low, high) = (time(low)?, time(high)?);
            if low > high {
                return Err(format!("{span} ends before it begins"));
            }
            Delay::Uniform(low, high)
        }
        "exponential" => Delay::Exponential(time(words.next("its mean, as in 5ms")?)?),
        "lognormal" => {
            let median = time(words.next("its median, as in 5ms")?)?;
            let sigma = words.after("sigma", |word| positive_number(word, 10.0))?;
            Delay::Lognormal(median, sigma.ok_or("a lognormal delay needs `sigma`, as in `lognormal 5ms sigma 1`")?)
        }
        word => Delay::Constant(time(word)?),
    })
}

fn slow(words: &mut Words) -> Parsed<Slow> {
    let word = words.next("a factor, as in 10x, or a rate, as in 20MB/s")?;
    if let Some(rate) = word.strip_suffix("/s") {
        let rate = size(rate)?;
        return if rate.0 == 0 { Err("nothing would ever pass".into()) } else { Ok(Slow::Rate(rate)) };
    }
    let factor =
        word.strip_suffix('x').ok_or_else(|| format!("{word:?} is neither a factor (10x) nor a rate (20MB/s)"))?;
    let factor = positive_number(factor, 1e6)?;
    if factor < 1.0 { Err("a factor below 1 would make it faster".into()) } else { Ok(Slow::Factor(factor)) }
}

fn medium(words: &mut Words) -> Parsed<Medium> {
    let mut medium = Medium::default();
    let mut seen: Vec<&str> = Vec::new();
    while let Some(word) = words.0.peek().copied() {
        if seen.contains(&word) {
            return Err(format!("`{word}` stands there twice"));
        }
        seen.push(word);
        match word {
            "window" => {
                medium.window = words.after("window", size)?.unwrap_or(Medium::WINDOW);
                if medium.window < BLOCK || medium.window > Medium::WINDOW_MAX {
                    return Err(format!(
                        "a window is kept in memory: 4KiB to {}",
                        crate::spec::exact(Medium::WINDOW_MAX.0)
                    ));
                }
            }
            "atomic" => {
                medium.atomic = words.after("atomic", size)?.unwrap_or(BLOCK);
                if ![512, BLOCK.0].contains(&medium.atomic.0) {
                    return Err("media write 512 bytes or 4KiB at once".into());
                }
            }
            "after" => medium.after = words.after("after", integer)?,
            "ordered" => medium.ordered = words.take("ordered"),
            "whole" => medium.whole = words.take("whole"),
            _ => return Err(format!("`{word}` means nothing there")),
        }
    }
    Ok(medium)
}

fn integer(word: &str) -> Parsed<u64> {
    word.parse().map_err(|_| format!("{word:?} is no whole number"))
}

fn positive(word: &str) -> Parsed<u64> {
    within(word, u64::MAX)
}

fn within(word: &str, most: u64) -> Parsed<u64> {
    let number = integer(word)?;
    if (1..=most).contains(&number) { Ok(number) } else { Err(format!("it must be from 1 to {most}")) }
}

fn positive_number(word: &str, most: f64) -> Parsed<f64> {
    let number: f64 = word.parse().map_err(|_| format!("{word:?} is no number"))?;
    let fits = number > 0.0 && number <= most;
    if fits { Ok(number) } else { Err(format!("{word} is not above 0 and at most {most}")) }
}

fn chance(word: &str) -> Parsed<f64> {
    positive_number(word, 1.0)
        .map_err(|_| format!("{word:?} is no chance: give a number above 0, at most 1, as in 1e-3"))
}

fn operation(word: &str) -> Parsed<Operation> {
    let found = Operation::ALL.into_iter().find(|operation| operation.name() == word);
    found.ok_or_else(|| format!("{word:?} is no operation; there are read, write, flush and discard"))
}

fn model(word: &str) -> Parsed<&'static str> {
    let names: Vec<_> = lse::MODELS.iter().map(|model| model.name).collect();
    names
        .iter()
        .find(|name| **name == word)
        .copied()
        .ok_or_else(|| format!("there is no model {word:?}; there are: {}", names.join(", ")))
}

/// A size, or a sum of sizes.
fn size(word: &str) -> Parsed<Bytes> {
    let mut sum = 0u64;
    for part in word.split('+') {
        let part: Bytes = part.parse().map_err(|error: ashlar_units::ParseBytesError| error.to_string())?;
        sum = sum.checked_add(part.0).ok_or_else(|| format!("{word:?} is more than can be addressed"))?;
    }
    Ok(Bytes(sum))
}

fn distance(word: &str) -> Parsed<i64> {
    let (back, amount) = word.strip_prefix('-').map_or((false, word), |amount| (true, amount));
    let bytes = size(amount)?;
    let blocks = bytes.0 > 0 && bytes.0.is_multiple_of(BLOCK.0);
    let bytes = i64::try_from(bytes.0).ok().filter(|_| blocks);
    let bytes = bytes.ok_or("it must be a multiple of 4KiB, not 0, and less than 8EiB")?;
    Ok(if back { -bytes } else { bytes })
}

fn range(word: &str) -> Parsed<Range> {
    let help = || format!("{word:?} is no range: write FIRST..END, as in 2GiB..2GiB+64KiB, or FIRST.. to the end");
    let (start, end) = word.split_once("..").ok_or_else(help)?;
    let start = if start.is_empty() { 0 } else { size(start)?.0 };
    let end = if end.is_empty() { None } else { Some(size(end)?.0) };
    if end.is_some_and(|end| end <= start) {
        return Err("it ends where it begins, or before".into());
    }
    Ok(Range { start, end })
}

fn time(word: &str) -> Parsed<Duration> {
    let help = || format!("{word:?} is no time: write a number and ns, us, ms, s, m or h, as in 5ms");
    let split = word.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(help)?;
    let (number, unit) = word.split_at(split);
    let unit_ns: u64 = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(help()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().map_err(|_| help())?;
    if fraction.len() > 9 || !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(help());
    }
    let part = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().map_err(|_| help())? };
    let part_ns = u128::from(part) * u128::from(unit_ns) / 10u128.pow(fraction.len() as u32);
    let ns = u128::from(whole) * u128::from(unit_ns) + part_ns;
    let ns = u64::try_from(ns).ok().map(Duration::from_nanos).filter(|time| *time <= TIME_MAX);
    ns.ok_or_else(|| format!("{word} is longer than a hundred years"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_manual_are_read_and_printed() {
        for text in [
            "lse at 2GiB..2GiB+64KiB",
            "lse at 4KiB.. times 3",
            "lse rate 1e-6 burst 8 seed 3",
            "lse model n-3 at 0..1TiB",
            "read-error p 0.01",
            "flip p 1e-6 on read",
            "flip on write at 8KiB..12KiB times 1",
            "lost-write p 0.001",
            "misdirect by 1MiB p 0.001",
            "misdirect by -4KiB",
            "torn p 0.01",
            "torn sectors 3",
            "stale p 0.01 at 1MiB..2MiB",
            "drop-flush",
            "delay 5ms",
            "delay uniform 1ms..5ms on read",
            "delay exponential 1500us p 0.5",
            "delay lognormal 5ms sigma 1",
            "slow 10x",
            "slow 20MB/s on write",
            "stuck",
            "stuck for 3s on flush",
            "full",
            "full after 1GiB",
            "removed",
            "read-only",
            "power-cut",
            "power-cut window 1MiB atomic 512 ordered whole after 7",
        ] {
            let fault: Fault = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(fault.to_string(), text);
        }
        let same = "misdirect p 0.001 by 1MiB".parse::<Fault>().expect("clauses have no order");
        assert_eq!(same.to_string(), "misdirect by 1MiB p 0.001");
        assert_eq!(KINDS.iter().filter(|kind| kind.usage.starts_with(kind.name)).count(), KINDS.len());
    }

    #[test]
    fn errors_teach() {
        for (text, expected) in [
            ("", "there are: lse, read-error"),
            ("lsee at 0..1", "no fault \"lsee\""),
            ("lse", "which sectors are bad"),
            ("lse at 5", "write FIRST..END"),
            ("lse at 8KiB..4KiB", "ends where it begins"),
            ("lse at 1parsec..2", "is not a size"),
            ("lse at 16EiB..", "is not a size"),
            ("lse at 9000000TiB+9000000TiB..", "more than can be addressed"),
            ("lse rate 2", "no chance"),
            ("lse rate NaN", "no chance"),
            ("lse rate 0.1 model n-3", "not both"),
            ("lse model wd", "there are: A-1, D-2"),
            ("lse burst 4 at 0..", "goes with `rate`"),
            ("lse rate 1e-3 burst 0", "from 1 to"),
            ("read-error p", "a value for `p`"),
            ("read-error p 0.1 p 0.2", "twice"),
            ("read-error on write", "`on` means nothing there; write read-error [p P] [at RANGE] [times N]"),
            ("flip", "`on read` or `on write`"),
            ("flip on flush", "`on read` or `on write`"),
            ("misdirect", "say how far"),
            ("misdirect by 100", "multiple of 4KiB"),
            ("misdirect by --4KiB", "is not a size"),
            ("delay", "a time, as in 5ms"),
            ("delay 5", "is no time"),
            ("delay 5.ms5", "is no time"),
            ("delay uniform 5ms..1ms", "ends before"),
            ("delay lognormal 5ms", "needs `sigma`"),
            ("delay 999999999h", "hundred years"),
            ("slow 0.5x", "faster"),
            ("slow 0B/s", "nothing would ever pass"),
            ("slow fast", "neither a factor"),
            ("stuck on trim", "read, write, flush and discard"),
            ("power-cut atomic 1KiB", "512 bytes or 4KiB"),
            ("power-cut window 2GiB", "4KiB to 1GiB"),
            ("power-cut whole whole", "twice"),
            ("removed at 0..4KiB", "`at` means nothing there"),
            ("read-error times 0", "from 1 to"),
        ] {
            let error = text.parse::<Fault>().expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let long = "lse ".repeat(1000).parse::<Fault>().expect_err("too long").to_string();
        assert!(long.contains("at most 512 bytes"), "{long}");
    }
}
