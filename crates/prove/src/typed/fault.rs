//! The ways in which a block goes wrong.

use super::disk::{Contents, Damage, block};
use super::matrix::by_name;
use crate::seeded::Dice;
use ashlar_units::BLOCK_LEN;
use bytes::{Bytes, BytesMut};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::str::FromStr;

/// Attempts to find a place where a fault changes anything.
const TRIES: u32 = 32;

/// How something is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// One bit is flipped.
    BitFlip,
    /// A block of zeros.
    Zeros,
    /// A block of random bytes.
    Random,
    /// Another block's content: a write went to a wrong place.
    Misdirected,
    /// What the block held before: a write was lost.
    Stale,
    /// The first half is new and the second half old.
    Torn,
    /// The block cannot be read: a latent sector error.
    ReadError,
    /// A bit is flipped in memory, then everything is read.
    FlipRead,
    /// A bit is flipped in memory, then time passes, then everything is read.
    FlipIdle,
    /// A bit is flipped in memory, then things are changed and a checkpoint is made.
    FlipWrite,
    /// A bit is flipped in memory, then what was committed is synced, and the machine fails.
    FlipCrash,
}

impl Fault {
    /// Those of disks.
    pub const DISK: [Fault; 7] =
        [Fault::BitFlip, Fault::Zeros, Fault::Random, Fault::Misdirected, Fault::Stale, Fault::Torn, Fault::ReadError];
    /// Those of memory.
    pub const MEMORY: [Fault; 4] = [Fault::FlipRead, Fault::FlipIdle, Fault::FlipWrite, Fault::FlipCrash];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Fault::BitFlip => "bit-flip",
            Fault::Zeros => "zeros",
            Fault::Random => "random",
            Fault::Misdirected => "misdirected",
            Fault::Stale => "stale",
            Fault::Torn => "torn",
            Fault::ReadError => "read-error",
            Fault::FlipRead => "flip-read",
            Fault::FlipIdle => "flip-idle",
            Fault::FlipWrite => "flip-write",
            Fault::FlipCrash => "flip-crash",
        }
    }
}

impl FromStr for Fault {
    type Err = String;
    fn from_str(text: &str) -> Result<Fault, String> {
        by_name("fault", Fault::DISK.into_iter().chain(Fault::MEMORY), Fault::name, text)
    }
}

/// An image to damage.
pub(super) struct Image<'a> {
    pub(super) contents: &'a Contents,
    /// What each block held before it was last written.
    pub(super) previous: &'a Contents,
}

/// Damage of one kind to one of these stretches of bytes, as the dice say; to all of them with `all`. `None`: there is no
/// place where it would change anything.
pub(super) fn damage(
    image: &Image<'_>,
    fault: Fault,
    stretches: &[Range<u64>],
    all: bool,
    dice: &mut Dice,
) -> Option<BTreeMap<u64, Damage>> {
    for _ in 0..TRIES {
        let chosen = if all { stretches.to_vec() } else { vec![dice.pick(stretches)] };
        // Copies are damaged in the same place.
        let (place, seed) = (dice.below(1 << 40), dice.below(1 << 40));
        let mut damaged = BTreeMap::new();
        for stretch in &chosen {
            damaged.extend(damage_one(image, fault, stretch, stretches, place, &mut Dice::new(seed)));
        }
        let changes = |(number, damage): (&u64, &Damage)| match damage {
            Damage::Holds(data) => data != block(image.contents, *number),
            Damage::Unreadable => true,
        };
        if !damaged.is_empty() && damaged.iter().any(changes) {
            return Some(damaged);
        }
    }
    None
}

fn damage_one(
    image: &Image<'_>,
    fault: Fault,
    stretch: &Range<u64>,
    alike: &[Range<u64>],
    place: u64,
    dice: &mut Dice,
) -> BTreeMap<u64, Damage> {
    let len = BLOCK_LEN as u64;
    let byte = stretch.start + place % (stretch.end - stretch.start);
    let number = byte / len;
    let now = block(image.contents, number);
    let before = |number: u64| block(image.previous, number).clone();
    let one = |data: Bytes| BTreeMap::from([(number, Damage::Holds(data))]);
    match fault {
        Fault::Zeros => one(Bytes::from_static(&[0; BLOCK_LEN])),
        Fault::Random => one((0..BLOCK_LEN).map(|_| dice.below(256) as u8).collect()),
        Fault::Misdirected => {
            // Every other time a block of the same type: the likeliest to be believed.
            let other = if dice.one_in(2) {
                let other = dice.pick(alike);
                other.start / len + dice.below((other.end - 1) / len - other.start / len + 1)
            } else {
                let written: Vec<u64> = image.contents.keys().copied().collect();
                dice.pick(&written)
            };
            one(block(image.contents, other).clone())
        }
        Fault::Stale => one(before(number)),
        Fault::Torn => {
            let (first, last) = (stretch.start / len, (stretch.end - 1) / len);
            if first < last {
                let middle = first + (last - first).div_ceil(2);
                return (middle..=last).map(|number| (number, Damage::Holds(before(number)))).collect();
            }
            let mut torn = BytesMut::from(&now[..BLOCK_LEN / 2]);
            torn.extend_from_slice(&before(number)[BLOCK_LEN / 2..]);
            one(torn.freeze())
        }
        Fault::ReadError => BTreeMap::from([(number, Damage::Unreadable)]),
        _ => {
            let mut flipped = BytesMut::from(&now[..]);
            flipped[(byte % len) as usize] ^= 1 << dice.below(8);
            one(flipped.freeze())
        }
    }
}
