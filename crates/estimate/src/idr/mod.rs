//! Codes inside one disk, under latent sector errors as they come.
//!
//! Schroeder, Damouras and Gill, "Understanding latent sector errors and how to protect against them", FAST '10.

mod bursts;
mod codes;
#[cfg(test)]
mod tests;

pub use bursts::{CROWDED, DRIVE_MODELS, DriveModel, Placing, pareto, pareto_mean};
pub use codes::Code;

use ashlar_models::Chance;

/// What a code leaves on disks that have latent errors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Left {
    /// Disks that were drawn.
    pub disks: u64,
    /// Of them, those with a sector that the code does not recover.
    pub disks_lost: u64,
    /// Sectors that were not recovered.
    pub sectors_lost: u64,
}

impl Left {
    /// Part of the disks with errors that lose something.
    pub fn part(&self) -> f64 {
        self.disks_lost as f64 / self.disks.max(1) as f64
    }
}

/// Draws disks with errors, and applies each code to all of them.
pub fn compare(codes: &[Code], model: DriveModel, placing: Placing, sectors: u64, disks: u64, seed: u64) -> Vec<Left> {
    let mut chance = Chance::new(seed);
    let mut left = vec![Left { disks, ..Left::default() }; codes.len()];
    for _ in 0..disks {
        let bad = model.errors(sectors, placing, &mut chance);
        for (code, left) in codes.iter().zip(&mut left) {
            let lost = unrecovered(*code, &bad);
            left.disks_lost += u64::from(lost > 0);
            left.sectors_lost += lost;
        }
    }
    left
}

/// Sectors of a disk that a code does not recover; `bad` is in order.
fn unrecovered(code: Code, bad: &[u64]) -> u64 {
    let segment = u64::from(code.segment());
    let groups = bad.chunk_by(|one, other| one / segment == other / segment);
    let places = |group: &[u64]| group.iter().map(|sector| (sector % segment) as u32).collect::<Vec<u32>>();
    groups.filter(|group| group.len() > 1).map(|group| u64::from(code.unrecovered(&places(group)))).sum()
}
