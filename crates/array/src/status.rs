//! How an array fares.

use crate::array::Array;
use crate::format::{Listed, Standing};
use crate::member::Counts;
use crate::shape::Level;
use ashlar_units::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// Has everything.
    Active,
    /// Is being made anew.
    Rebuilding,
    /// Missed a write; is not used.
    Failed,
    /// Is not there.
    Missing,
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(["active", "rebuilding", "failed", "missing"][*self as usize])
    }
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemberStatus {
    /// Its number.
    pub slot: usize,
    /// Its device, if it is there.
    pub device: Option<String>,
    /// How it stands.
    pub state: MemberState,
    /// Bytes of data, parity and checksums for which it has room.
    pub size: u64,
    /// Groups that are rebuilt, of [`groups`](MemberStatus::groups).
    pub rebuilt: u64,
    /// Groups that it has in all.
    pub groups: u64,
    /// What went there since the array was opened.
    pub counts: Counts,
}

impl MemberStatus {
    pub(crate) fn new(slot: usize, device: Option<String>, state: MemberState, listed: &Listed) -> MemberStatus {
        let rebuilt = match listed.standing {
            Standing::Active => listed.groups,
            Standing::Failed => 0,
            Standing::Rebuilding { groups } => groups,
        };
        let (size, counts) = (listed.groups * 64 * 4096, Counts::default());
        MemberStatus { slot, device, state, size, rebuilt, groups: listed.groups, counts }
    }
}

/// An array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArrayStatus {
    /// Its identity.
    pub array: String,
    /// How members are used.
    pub level: Level,
    /// Stripe unit in bytes, with checksum blocks.
    pub unit: u64,
    /// Bytes that it offers.
    pub capacity: u64,
    /// Grows with each change of its members.
    pub generation: u64,
    /// By slot.
    pub members: Vec<MemberStatus>,
}

impl fmt::Display for ArrayStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (capacity, unit) = (Bytes(self.capacity), Bytes(self.unit));
        writeln!(
            f,
            "array {}: {} of {capacity}, stripe unit {unit}",
            &self.array[..8.min(self.array.len())],
            self.level
        )?;
        for member in &self.members {
            let MemberStatus { slot, device, state, rebuilt, groups, counts, .. } = member;
            write!(f, "  {slot:<3}{state:<12}{}", device.as_deref().unwrap_or("-"))?;
            if *state == MemberState::Rebuilding {
                write!(f, "  {:.1} %", *rebuilt as f64 * 100.0 / (*groups).max(1) as f64)?;
            }
            if counts.repaired > 0 || counts.errors > 0 {
                write!(f, "  {} blocks repaired, {} errors", counts.repaired, counts.errors)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl Array {
    /// Names of the devices that are in use, as they were given.
    pub fn members_in_use(&self) -> Vec<String> {
        let roll = self.roll.read();
        roll.seats.iter().filter_map(|seat| seat.member.as_ref()).map(|member| member.name()).collect()
    }

    /// How it fares now.
    pub fn status(&self) -> ArrayStatus {
        let roll = self.roll.read();
        let members = roll.seats.iter().enumerate().map(|(slot, seat)| {
            let state = match seat.listed.standing {
                Standing::Active => MemberState::Active,
                Standing::Rebuilding { .. } => MemberState::Rebuilding,
                Standing::Failed => MemberState::Failed,
            };
            let name = seat.member.as_ref().map(|member| member.name());
            let counts = seat.member.as_ref().map_or(Counts::default(), |member| member.counts());
            MemberStatus { counts, ..MemberStatus::new(slot, name, state, &seat.listed) }
        });
        ArrayStatus {
            array: format!("{:032x}", self.id),
            level: self.shape.level,
            unit: self.unit.to_bytes().0,
            capacity: self.shape.capacity().to_bytes().0,
            generation: roll.generation,
            members: members.collect(),
        }
    }
}
