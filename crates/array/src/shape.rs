//! Where blocks are: level, stripe unit, zones, roles.
//!
//! A *row* is the blocks with one number on all members of a zone: data blocks, in roles `0..data`, and parity blocks, in
//! roles `data..data + parity`. A *stripe* is `unit` rows; roles move by one member from stripe to stripe (left-symmetric),
//! but for RAID-0, which has no parity to spread, and RAID-4, whose parity stays on the last member. A *group* is
//! [`GROUP`] rows, which share one checksum block on each member.
//!
//! Members of unequal size: a *zone* is a stretch of rows of those members that reach so far. The first zone ends with the
//! smallest member; what the others have more makes the next, as long as they are enough for the level.

use ashlar_block::{Error, Result};
use ashlar_units::{Blocks, Lba};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Rows of a group: their records of 64 bytes fill one block, with 64 bytes to spare.
pub const GROUP: u64 = 63;
/// Most data blocks of a row with parity: the parity's record has 40 bytes for their generations.
pub const DATA_MAX: usize = 10;
/// Most members.
pub const MEMBERS_MAX: usize = 32;

/// How members are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Stripes, no redundancy.
    Raid0,
    /// Every block on every member.
    Raid1,
    /// One parity member, the last.
    Raid4,
    /// One parity block per row, on all members in turn.
    Raid5,
    /// Two parity blocks per row, on all members in turn.
    Raid6,
}

impl Level {
    /// All levels, in order.
    pub const ALL: [Level; 5] = [Level::Raid0, Level::Raid1, Level::Raid4, Level::Raid5, Level::Raid6];

    /// Parity blocks in a row of so many members.
    pub fn parity(self, members: usize) -> usize {
        match self {
            Level::Raid0 => 0,
            Level::Raid1 => members - 1,
            Level::Raid4 | Level::Raid5 => 1,
            Level::Raid6 => 2,
        }
    }
    /// Fewest members to make one of.
    pub fn members_min(self) -> usize {
        match self {
            Level::Raid0 => 1,
            Level::Raid1 => 2,
            Level::Raid4 | Level::Raid5 => 3,
            Level::Raid6 => 4,
        }
    }
    /// Fewest members of a zone: there must be data, and all the redundancy.
    fn zone_min(self) -> usize {
        match self {
            Level::Raid0 => 1,
            Level::Raid1 | Level::Raid4 | Level::Raid5 => 2,
            Level::Raid6 => 3,
        }
    }
    /// Most members.
    pub fn members_max(self) -> usize {
        match self {
            Level::Raid0 | Level::Raid1 => MEMBERS_MAX,
            Level::Raid4 | Level::Raid5 | Level::Raid6 => DATA_MAX + self.parity(0),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["raid0", "raid1", "raid4", "raid5", "raid6"][*self as usize])
    }
}
impl FromStr for Level {
    type Err = String;
    fn from_str(text: &str) -> Result<Level, String> {
        let known = Level::ALL.into_iter().find(|level| level.to_string() == text);
        known.ok_or_else(|| format!("{text:?} is no level: write raid0, raid1, raid4, raid5 or raid6"))
    }
}

/// A stretch of rows of the same members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// First block of the array in it.
    pub at: Lba,
    /// First row.
    pub row: u64,
    /// Rows.
    pub rows: u64,
    /// Members, by slot, in ascending order.
    pub members: Vec<usize>,
    /// Data blocks of a row.
    pub data: usize,
}

impl Zone {
    /// Parity blocks of a row.
    pub fn parity(&self) -> usize {
        self.members.len() - self.data
    }
}

/// A block of the array on its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Row, over all zones.
    pub row: u64,
    /// Which of the row's data blocks.
    pub role: usize,
}

/// The layout of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How members are used.
    pub level: Level,
    /// Rows of a stripe.
    pub unit: u64,
    /// Stretches of rows, ascending.
    pub zones: Vec<Zone>,
}

/// Rows of a stripe whose unit takes `unit` blocks on a member: one of 64 blocks is a checksum block, so that 1 MiB is 252
/// blocks of data and 4 of checksums. Units below 64 blocks are all data, and share checksum blocks with their neighbours.
pub fn rows_of_unit(unit: Blocks) -> u64 {
    unit.0 - unit.0 / (GROUP + 1)
}

fn common_multiple(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

impl Shape {
    /// The layout for members with room for so many groups each.
    pub fn new(level: Level, unit: Blocks, groups: &[u64]) -> Result<Shape> {
        let unit = rows_of_unit(unit);
        if unit == 0 {
            return Err(Error::misuse("a stripe unit has at least one block of 4KiB"));
        }
        if groups.len() < level.members_min() || groups.len() > level.members_max() {
            let (least, most) = (level.members_min(), level.members_max());
            let message =
                format!("{level} has {least} to {most} members and not {}; several arrays can be joined", groups.len());
            return Err(Error::misuse(message));
        }
        // Zones are of whole stripes and of whole groups, so that neither has members that differ.
        let step = common_multiple(unit, GROUP);
        let rows: Vec<u64> = groups.iter().map(|groups| groups * GROUP / step * step).collect();
        let mut ends = rows.clone();
        ends.sort_unstable();
        ends.dedup();
        let (mut zones, mut row, mut at) = (Vec::new(), 0, Lba(0));
        for end in ends.into_iter().filter(|end| *end > 0) {
            let members: Vec<usize> = (0..rows.len()).filter(|slot| rows[*slot] >= end).collect();
            if members.len() < level.zone_min() {
                break;
            }
            let data = members.len() - level.parity(members.len());
            zones.push(Zone { at, row, rows: end - row, members, data });
            at += Blocks((end - row) * data as u64);
            row = end;
        }
        if zones.is_empty() {
            let message = format!(
                "the members have no room for {} KiB each, the least with this stripe unit; take larger ones, or a smaller unit",
                step.div_ceil(GROUP) * (GROUP + 1) * 4
            );
            return Err(Error::misuse(message));
        }
        Ok(Shape { level, unit, zones })
    }

    /// Blocks of the array.
    pub fn capacity(&self) -> Blocks {
        self.zones.last().map_or(Blocks(0), |zone| Blocks(zone.at.0 + zone.rows * zone.data as u64))
    }
    /// Rows of all zones.
    pub fn rows(&self) -> u64 {
        self.zones.last().map_or(0, |zone| zone.row + zone.rows)
    }
    /// Groups of all zones.
    pub fn groups(&self) -> u64 {
        self.rows() / GROUP
    }
    /// Groups that a member has.
    pub fn groups_of(&self, slot: usize) -> u64 {
        let last = self.zones.iter().rfind(|zone| zone.members.contains(&slot));
        last.map_or(0, |zone| (zone.row + zone.rows) / GROUP)
    }
    /// The zone of a row.
    pub fn zone(&self, row: u64) -> &Zone {
        let after = self.zones.partition_point(|zone| zone.row <= row);
        &self.zones[after.saturating_sub(1)]
    }
    /// Where a block of the array is.
    pub fn place(&self, at: Lba) -> Place {
        let after = self.zones.partition_point(|zone| zone.at <= at);
        let zone = &self.zones[after.saturating_sub(1)];
        let unit = (at.0 - zone.at.0) / self.unit;
        let row = zone.row + unit / zone.data as u64 * self.unit + (at.0 - zone.at.0) % self.unit;
        Place { row, role: (unit % zone.data as u64) as usize }
    }
    /// Which block of the array is at a place.
    pub fn lba(&self, place: Place) -> Lba {
        let zone = self.zone(place.row);
        let (stripe, within) = ((place.row - zone.row) / self.unit, (place.row - zone.row) % self.unit);
        Lba(zone.at.0 + (stripe * zone.data as u64 + place.role as u64) * self.unit + within)
    }
    /// The member, by slot, that has a role in a row.
    pub fn slot(&self, row: u64, role: usize) -> usize {
        let zone = self.zone(row);
        zone.members[(role + self.turn(row, zone)) % zone.members.len()]
    }
    /// The role of a member in a row; none if the zone has no such member.
    pub fn role(&self, row: u64, slot: usize) -> Option<usize> {
        let zone = self.zone(row);
        let index = zone.members.iter().position(|member| *member == slot)?;
        Some((index + zone.members.len() - self.turn(row, zone)) % zone.members.len())
    }
    fn turn(&self, row: u64, zone: &Zone) -> usize {
        match self.level {
            Level::Raid0 | Level::Raid4 => 0,
            Level::Raid1 | Level::Raid5 | Level::Raid6 => {
                let members = zone.members.len();
                (members - (row / self.unit % members as u64) as usize) % members
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_unit_of_a_mebibyte_has_four_checksum_blocks() {
        assert_eq!(rows_of_unit(Blocks(256)), 252);
        assert_eq!((rows_of_unit(Blocks(64)), rows_of_unit(Blocks(16)), rows_of_unit(Blocks(1))), (63, 16, 1));
    }

    #[test]
    fn parity_of_raid4_stays_and_that_of_raid5_moves() {
        let of = |level| Shape::new(level, Blocks(7), &[2; 4]).expect("a shape");
        let (raid4, raid5) = (of(Level::Raid4), of(Level::Raid5));
        let parity = |shape: &Shape| (0..5).map(|stripe| shape.slot(stripe * 7, 3)).collect::<Vec<_>>();
        assert_eq!(parity(&raid4), [3; 5]);
        assert_eq!(parity(&raid5), [3, 2, 1, 0, 3]);
        // Left-symmetric: sequential blocks go over all members.
        let slots = (0..8).map(|unit| {
            let place = raid5.place(Lba(unit * 7));
            raid5.slot(place.row, place.role)
        });
        assert_eq!(slots.collect::<Vec<_>>(), [0, 1, 2, 3, 0, 1, 2, 3]);
    }

    proptest! {
        #![proptest_config(ashlar_fuzz::config(300))]
        #[test]
        fn every_block_has_one_place(
            level in prop::sample::select(&Level::ALL[..]), unit in 1u64..130, groups in prop::collection::vec(0u64..12, 1..8),
        ) {
            let Ok(shape) = Shape::new(level, Blocks(unit), &groups) else { return Ok(()) };
            let mut seen = std::collections::BTreeSet::new();
            for at in 0..shape.capacity().0 {
                let place = shape.place(Lba(at));
                prop_assert_eq!(shape.lba(place), Lba(at));
                let slot = shape.slot(place.row, place.role);
                prop_assert_eq!(shape.role(place.row, slot), Some(place.role));
                prop_assert!(place.row < groups[slot] * GROUP && place.role < shape.zone(place.row).data);
                prop_assert!(seen.insert((slot, place.row)), "two blocks in one place");
            }
            for zone in &shape.zones {
                prop_assert!(zone.row % GROUP == 0 && zone.row % shape.unit == 0 && zone.rows > 0);
                prop_assert!(zone.data >= 1 && zone.parity() == level.parity(zone.members.len()));
            }
        }
    }
}
