//! The faults of a device: what each does to an operation. Everything here is decided at once; nobody waits.
//!
//! Every fault has dice of its own, made of the seed of the layer and the number of the fault (or a seed that its text
//! gives), and throws them once for each operation or block that it could strike. So the same operations in the same order
//! meet the same faults, whatever other faults there are.

use crate::lse;
use crate::ranges::BlockSet;
use crate::spec::{Delay, Fault, Lse, Medium, Operation, Slow, What};
use ashlar_block::{Error, Kind, Result};
use ashlar_env::Instant;
use ashlar_units::{BLOCK, BLOCK_LEN, Blocks, Lba};
use bytes::{Bytes, BytesMut};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// Most faults at once.
pub const FAULTS_MAX: usize = 256;
/// Injections that the log keeps; older ones are forgotten.
pub const LOG_MAX: usize = 4096;
/// Old versions of blocks that a stale fault keeps: 16 MiB.
pub const OLD_BLOCKS_MAX: usize = 4096;
/// Bytes in a sector.
const SECTOR_LEN: u64 = 512;

/// A fault and what it did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FaultStatus {
    /// Its number, by which it is cleared.
    pub number: u64,
    /// Its text.
    pub fault: Fault,
    /// How often it struck.
    pub injected: u64,
    /// It has struck as often as it may.
    pub spent: bool,
    /// Latent sector errors: blocks of 4 KiB that are bad now.
    pub bad_blocks: Option<u64>,
}

/// A fault that struck.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Injection {
    /// When, by the clock of the device: nanoseconds.
    pub at_ns: u64,
    /// The number of the fault.
    pub fault: u64,
    /// The name of the fault.
    pub name: String,
    /// The operation that it struck.
    pub op: Operation,
    /// First block.
    pub lba: u64,
    /// Blocks.
    pub blocks: u64,
}

struct Active {
    number: u64,
    fault: Fault,
    dice: Pcg64Mcg,
    injected: u64,
    /// Of `lse`.
    bad: BlockSet,
    /// Of `stale`: what blocks held before they were written, and in which order they came in.
    old: BTreeMap<u64, Bytes>,
    old_order: VecDeque<u64>,
    /// Of `full`, bytes written; of `power-cut`, operations.
    passed: u64,
    /// Of `slow` with a rate: when what was admitted has passed.
    free_at: Instant,
}

/// An operation as faults see it.
#[derive(Clone, Copy)]
pub(crate) struct Touch {
    pub op: Operation,
    pub at: Lba,
    pub count: Blocks,
    pub now: Instant,
}

/// What an operation must do before it goes on.
#[derive(Default)]
pub(crate) struct Admission {
    /// It fails: first, or after it has waited.
    pub refusal: Option<Error>,
    pub at_once: bool,
    /// The power fails now.
    pub cut: bool,
    /// It waits until the fault of this number is gone, or until then.
    pub waits: Vec<(u64, Option<Instant>)>,
    /// It takes so many times as long.
    pub factors: Vec<(u64, f64)>,
}

/// A block of a write: where it goes, and how much of it.
pub(crate) struct Placed {
    origin: u64,
    pub block: u64,
    pub data: Bytes,
    /// Bytes from the front that are written; the rest stays as it was.
    pub keep: usize,
}

pub(crate) struct State {
    seed: u64,
    capacity: Blocks,
    last: u64,
    faults: Vec<Active>,
    log: VecDeque<Injection>,
}

impl Active {
    fn is_spent(&self) -> bool {
        self.fault.times.is_some_and(|times| self.injected >= times)
    }
    /// The blocks of an operation that the fault could strike.
    fn reach(&self, touch: &Touch) -> Option<Range<u64>> {
        if self.is_spent() || self.fault.on.is_some_and(|on| on != touch.op) {
            return None;
        }
        let all = touch.at.0..touch.at.0 + touch.count.0;
        match &self.fault.at {
            None => Some(all),
            Some(at) => Some(at.within(touch.at, touch.count)).filter(|found| !found.is_empty()),
        }
    }
    fn dies(&mut self) -> bool {
        self.fault.p >= 1.0 || self.dice.random::<f64>() < self.fault.p
    }
    fn error(&self, kind: Kind, what: &str) -> Error {
        Error::new(kind, format!("{what} by fault {} ({})", self.number, self.fault))
    }
}

fn note(active: &mut Active, log: &mut VecDeque<Injection>, touch: &Touch, blocks: Range<u64>) {
    active.injected += 1;
    if log.len() == LOG_MAX {
        log.pop_front();
    }
    log.push_back(Injection {
        at_ns: touch.now.0,
        fault: active.number,
        name: active.fault.what.name().into(),
        op: touch.op,
        lba: blocks.start,
        blocks: blocks.end - blocks.start,
    });
}

fn throw(delay: Delay, dice: &mut Pcg64Mcg) -> Duration {
    let seconds = |value: f64| Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX);
    let mut unit = || dice.random::<f64>();
    match delay {
        Delay::Constant(time) => time,
        Delay::Uniform(low, high) => low + (high - low).mul_f64(unit()),
        Delay::Exponential(mean) => seconds(-mean.as_secs_f64() * (1.0 - unit()).ln()),
        Delay::Lognormal(median, sigma) => {
            // Box and Muller.
            let normal = (-2.0 * (1.0 - unit()).ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
            seconds(median.as_secs_f64() * (sigma * normal).exp())
        }
    }
}

fn later(now: Instant, time: Duration) -> Instant {
    Instant(now.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
}

fn flipped(data: &Bytes, bit: usize) -> Bytes {
    let mut copy = BytesMut::from(&data[..]);
    copy[bit / 8] ^= 1 << (bit % 8);
    copy.freeze()
}

impl State {
    pub fn new(seed: u64, capacity: Blocks) -> State {
        State { seed, capacity, last: 0, faults: Vec::new(), log: VecDeque::new() }
    }

    /// Adds a fault; returns its number.
    pub fn inject(&mut self, fault: Fault) -> Result<u64> {
        let refuse = |why: String| Err(Error::misuse(format!("fault {:?}: {why}", fault.to_string())));
        if self.faults.len() == FAULTS_MAX {
            return refuse(format!("there are {FAULTS_MAX} faults, and no more are possible; clear some"));
        }
        let number = self.last + 1;
        if fault.at.is_some_and(|at| at.blocks().start >= self.capacity.0) {
            return refuse(format!("it is past the end of the device, which has {}", self.capacity.to_bytes()));
        }
        if let (What::PowerCut(_), Some((other, _))) = (&fault.what, self.medium()) {
            return refuse(format!("fault {other} declares the medium already; clear it first"));
        }
        let given = match &fault.what {
            What::Lse(Lse::Rate { seed, .. } | Lse::Model { seed, .. }) => *seed,
            _ => None,
        };
        // Odd factor of the golden ratio: neighbouring seeds and numbers give dice that have nothing in common.
        let own = self.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut dice = Pcg64Mcg::seed_from_u64(given.unwrap_or(own));
        let bad = match &fault.what {
            What::Lse(lse) => match lse::draw(lse, fault.at, self.capacity, &mut dice) {
                Ok(bad) => bad,
                Err(why) => return refuse(why),
            },
            _ => BlockSet::default(),
        };
        self.last = number;
        self.faults.push(Active {
            number,
            fault,
            dice,
            injected: 0,
            bad,
            old: BTreeMap::new(),
            old_order: VecDeque::new(),
            passed: 0,
            free_at: Instant(0),
        });
        Ok(number)
    }

    /// Takes away one fault, or all; returns how many.
    pub fn clear(&mut self, number: Option<u64>) -> Result<usize> {
        let before = self.faults.len();
        self.faults.retain(|active| number.is_some_and(|number| number != active.number));
        match number {
            Some(number) if self.faults.len() == before => {
                let there: Vec<_> = self.faults.iter().map(|active| active.number.to_string()).collect();
                let there = if there.is_empty() { "none".into() } else { there.join(", ") };
                Err(Error::misuse(format!("there is no fault {number}; there are: {there}")))
            }
            _ => Ok(before - self.faults.len()),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }
    pub fn has(&self, number: u64) -> bool {
        self.faults.iter().any(|active| active.number == number)
    }
    pub fn log(&self) -> Vec<Injection> {
        self.log.iter().cloned().collect()
    }
    pub fn status(&self) -> Vec<FaultStatus> {
        let status = |active: &Active| FaultStatus {
            number: active.number,
            fault: active.fault,
            injected: active.injected,
            spent: active.is_spent(),
            bad_blocks: matches!(active.fault.what, What::Lse(_)).then(|| active.bad.blocks()),
        };
        self.faults.iter().map(status).collect()
    }

    /// The declared medium and the number of its fault.
    pub fn medium(&self) -> Option<(u64, Medium)> {
        self.faults.iter().find_map(|active| match active.fault.what {
            What::PowerCut(medium) => Some((active.number, medium)),
            _ => None,
        })
    }

    /// Dice for a power cut, which is noted.
    pub fn cut_dice(&mut self, now: Instant) -> Option<Pcg64Mcg> {
        let log = &mut self.log;
        let active = self.faults.iter_mut().find(|active| matches!(active.fault.what, What::PowerCut(_)))?;
        let touch = Touch { op: Operation::Flush, at: Lba(0), count: Blocks(0), now };
        note(active, log, &touch, 0..0);
        Some(Pcg64Mcg::seed_from_u64(active.dice.random()))
    }

    /// What an operation meets before it reaches the device.
    pub fn admit(&mut self, touch: &Touch) -> Admission {
        let mut admission = Admission::default();
        let State { faults, log, .. } = self;
        let changes = matches!(touch.op, Operation::Write | Operation::Discard);
        for active in faults {
            if let What::PowerCut(Medium { after: Some(after), .. }) = active.fault.what
                && touch.op != Operation::Read
            {
                admission.cut |= active.passed == after;
                active.passed += 1;
                continue;
            }
            let Some(blocks) = active.reach(touch) else { continue };
            let bytes = (blocks.end - blocks.start) * BLOCK.0;
            let what = active.fault.what;
            let refusal = match what {
                What::Removed => Some((Kind::Failed, "the device was removed")),
                What::ReadOnly if changes => Some((Kind::Failed, "the medium is write-protected")),
                What::Full { after } if touch.op == Operation::Write => {
                    if active.passed.saturating_add(bytes) > after.0 {
                        Some((Kind::NoSpace, "the device is full"))
                    } else {
                        active.passed += bytes;
                        None
                    }
                }
                What::ReadError if touch.op == Operation::Read && active.dies() => {
                    Some((Kind::Retry, "transient read error"))
                }
                What::Lse(_) if touch.op == Operation::Read => {
                    active.bad.first_in(blocks.clone()).map(|_| (Kind::Failed, "medium error, unrecovered read"))
                }
                What::Stuck { time } if active.dies() => {
                    admission.waits.push((active.number, time.map(|time| later(touch.now, time))));
                    note(active, log, touch, blocks);
                    continue;
                }
                What::Delay(delay) if active.dies() => {
                    let until = later(touch.now, throw(delay, &mut active.dice));
                    admission.waits.push((active.number, Some(until)));
                    note(active, log, touch, blocks);
                    continue;
                }
                What::Slow(Slow::Factor(factor)) => {
                    admission.factors.push((active.number, factor));
                    note(active, log, touch, blocks);
                    continue;
                }
                What::Slow(Slow::Rate(rate)) => {
                    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate.0);
                    let ns = Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
                    active.free_at = later(active.free_at.max(touch.now), ns);
                    admission.waits.push((active.number, Some(active.free_at)));
                    note(active, log, touch, blocks);
                    continue;
                }
                _ => None,
            };
            let Some((kind, what)) = refusal else { continue };
            let bad = active.bad.first_in(blocks.clone()).unwrap_or(blocks);
            let place = format!("{what} at {}, {}", Lba(bad.start), Blocks(bad.end - bad.start));
            let error = active.error(kind, &place);
            note(active, log, touch, bad);
            if admission.refusal.is_none() {
                admission.at_once = matches!(active.fault.what, What::Removed | What::ReadOnly);
                admission.refusal = Some(error);
            }
        }
        admission
    }

    /// Where the blocks of a write go, and what of them; and the error that it ends with.
    pub fn place(&mut self, touch: &Touch, pieces: &[Bytes]) -> (Vec<Placed>, Option<Error>) {
        let State { faults, log, capacity, .. } = self;
        let mut failed = None;
        let slices = pieces
            .iter()
            .flat_map(|piece| (0..piece.len()).step_by(BLOCK_LEN).map(|at| piece.slice(at..at + BLOCK_LEN)));
        let placed = (touch.at.0..).zip(slices);
        let mut placed: Vec<_> =
            placed.map(|(block, data)| Placed { origin: block, block, data, keep: BLOCK_LEN }).collect();
        for active in faults.iter_mut().filter(|_| touch.count > Blocks(0)) {
            let Some(blocks) = active.reach(touch) else { continue };
            let what = active.fault.what;
            match what {
                What::LostWrite if active.dies() => placed.retain(|part| !blocks.contains(&part.origin)),
                What::Misdirect { by } if active.dies() => {
                    let shift = i128::from(by / BLOCK_LEN as i64);
                    for part in placed.iter_mut().filter(|part| blocks.contains(&part.origin)) {
                        part.block = (i128::from(part.block) + shift).rem_euclid(i128::from(capacity.0)) as u64;
                    }
                }
                What::Torn { sectors } => {
                    let all = (blocks.end - blocks.start) * lse::SECTORS;
                    if sectors.is_some_and(|sectors| sectors >= all) || !active.dies() {
                        continue;
                    }
                    tear(&mut placed, &blocks, sectors.unwrap_or_else(|| active.dice.random_range(0..all)));
                }
                What::WriteError if active.dies() => {
                    let all = (blocks.end - blocks.start) * lse::SECTORS;
                    let kept = match active.dice.random_range(0..3) {
                        0 => 0,
                        1 => all,
                        _ => active.dice.random_range(0..all),
                    };
                    tear(&mut placed, &blocks, kept);
                    let place = format!("write error at {}, {}", Lba(blocks.start), Blocks(blocks.end - blocks.start));
                    failed.get_or_insert(active.error(Kind::Failed, &place));
                }
                What::Flip => {
                    for part in placed.iter_mut().filter(|part| blocks.contains(&part.origin)) {
                        if !active.is_spent() && active.dies() {
                            part.data = flipped(&part.data, active.dice.random_range(0..BLOCK_LEN * 8));
                            note(active, log, touch, part.origin..part.origin + 1);
                        }
                    }
                    continue;
                }
                _ => continue,
            }
            note(active, log, touch, blocks);
        }
        (placed, failed)
    }

    /// Whether an acknowledged flush, or the force of a write, is a lie.
    pub fn drops(&mut self, touch: &Touch) -> bool {
        let State { faults, log, .. } = self;
        let mut dropped = false;
        for active in faults.iter_mut().filter(|active| active.fault.what == What::DropFlush && !active.is_spent()) {
            if active.dies() {
                note(active, log, touch, touch.at.0..touch.at.0 + touch.count.0);
                dropped = true;
            }
        }
        dropped
    }

    /// Whether what these blocks hold must be remembered before they are written.
    pub fn wants_old(&self, blocks: &Range<u64>) -> bool {
        let at = (Lba(blocks.start), Blocks(blocks.end - blocks.start));
        self.faults.iter().any(|active| {
            let within = active.fault.at.is_none_or(|range| !range.within(at.0, at.1).is_empty());
            active.fault.what == What::Stale && within
        })
    }

    /// Remembers what blocks from `at` on held before they are written.
    pub fn remember(&mut self, at: Lba, data: &Bytes) {
        for active in self.faults.iter_mut().filter(|active| active.fault.what == What::Stale) {
            for (block, data) in (at.0..).zip(data.chunks(BLOCK_LEN)) {
                if active.fault.at.is_some_and(|range| !range.blocks().contains(&block)) {
                    continue;
                }
                if active.old.insert(block, Bytes::copy_from_slice(data)).is_none() {
                    active.old_order.push_back(block);
                }
                if active.old.len() > OLD_BLOCKS_MAX
                    && let Some(first) = active.old_order.pop_front()
                {
                    active.old.remove(&first);
                }
            }
        }
    }

    /// These blocks were written: that heals them.
    pub fn heal(&mut self, blocks: Range<u64>) {
        for active in &mut self.faults {
            active.bad.remove(blocks.clone());
        }
    }

    /// What is read instead of `data`.
    pub fn spoil(&mut self, touch: &Touch, data: Bytes) -> Bytes {
        let State { faults, log, .. } = self;
        let mut changed: Option<BytesMut> = None;
        for active in faults.iter_mut().filter(|active| matches!(active.fault.what, What::Flip | What::Stale)) {
            let Some(blocks) = active.reach(touch) else { continue };
            for block in blocks {
                let old = active.old.get(&block).cloned();
                let stale = active.fault.what == What::Stale;
                if active.is_spent() || (stale && old.is_none()) || !active.dies() {
                    continue;
                }
                let offset = (block - touch.at.0) as usize * BLOCK_LEN;
                let place = changed.get_or_insert_with(|| BytesMut::from(&data[..]));
                match old {
                    Some(old) => place[offset..offset + BLOCK_LEN].copy_from_slice(&old),
                    None => {
                        let bit = active.dice.random_range(0..BLOCK_LEN * 8);
                        place[offset + bit / 8] ^= 1 << (bit % 8);
                    }
                }
                note(active, log, touch, block..block + 1);
            }
        }
        changed.map_or(data, BytesMut::freeze)
    }

    /// The first of these blocks that must be read, not skipped as holes, for a fault to strike.
    pub fn first_watched(&self, blocks: Range<u64>) -> Option<Range<u64>> {
        let count = Blocks(blocks.end - blocks.start);
        let touch = Touch { op: Operation::Read, at: Lba(blocks.start), count, now: Instant(0) };
        let watched = |active: &Active| {
            let blocks = active.reach(&touch)?;
            match active.fault.what {
                What::Lse(_) => active.bad.first_in(blocks),
                What::ReadError | What::Flip | What::Stale | What::Removed | What::Stuck { .. } => Some(blocks),
                _ => None,
            }
        };
        self.faults.iter().filter_map(watched).min_by_key(|blocks| blocks.start)
    }
}

/// Of the blocks of a write that lie in `blocks`, only the first sectors are done.
fn tear(placed: &mut Vec<Placed>, blocks: &Range<u64>, sectors: u64) {
    for part in placed.iter_mut().filter(|part| blocks.contains(&part.origin)) {
        let before = (part.origin - blocks.start) * BLOCK.0;
        part.keep = part.keep.min((sectors * SECTOR_LEN).saturating_sub(before).min(BLOCK.0) as usize);
    }
    placed.retain(|part| part.keep > 0);
}
