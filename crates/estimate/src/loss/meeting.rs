//! Latent errors of several drives that meet in one stripe while redundancy is left.
//!
//! With g drives gone, a layout that tolerates t loses a stripe in which t - g + 1 of the others have latent errors. How many
//! stripes a drive's errors touch is drawn as codes inside a disk have it ([`crate::idr`]: errors of a fortnight, in bursts
//! with gaps); of flash it is one for each day with errors. Then the stripes that several drives share are counted as if each
//! of theirs lay alone. That is at most too many, since stripes of a burst are neighbours and meet together.

use super::drives::Drives;
use crate::fleet::geometric;
use crate::idr::{CROWDED, DRIVE_MODELS};
use ashlar_models::Chance;

/// Bytes of a drive in a stripe: ours.
const UNIT: f64 = 524_288.0;
/// Bytes of a sector.
const SECTOR: f64 = 512.0;
/// Groups of drives that are drawn for each model.
const GROUPS: u64 = 200;

/// The probabilities that 1, 2, … drives with latent errors have some in one and the same stripe, up to `most` drives.
pub fn meet(drives: &Drives, most: usize, seed: u64) -> Vec<f64> {
    let stripes = (drives.capacity / UNIT).max(1.0);
    let sectors = ((drives.capacity / SECTOR) as u64).max(1);
    let mut chance = Chance::new(seed);
    let mut sums = vec![0.0; most + 1];
    for model in DRIVE_MODELS {
        for _ in 0..GROUPS {
            // Stripes that are expected to be shared by the first so many drives: sum over stripes of all their densities.
            let mut shared = stripes;
            for (count, sum) in sums.iter_mut().enumerate().skip(1) {
                let touched = match drives.latent.process {
                    Some(process) => geometric(process.days, &mut chance),
                    None => touched(&model.fortnight(sectors, &mut chance)),
                };
                shared *= touched / stripes;
                let crowded = if drives.latent.process.is_some() { 1.0 } else { crowded(count) };
                *sum += -(-shared * crowded).exp_m1();
            }
        }
    }
    let groups = (GROUPS * DRIVE_MODELS.len() as u64) as f64;
    sums.iter_mut().for_each(|sum| *sum /= groups);
    // One drive meets nobody: its errors are what they are.
    sums[..most.min(1) + 1].fill(1.0);
    sums
}

/// Stripes that bad sectors lie in; these are in order.
fn touched(bad: &[u64]) -> f64 {
    let stripe = |sector: &u64| sector / (UNIT / SECTOR) as u64;
    bad.chunk_by(|one, other| stripe(one) == stripe(other)).count() as f64
}

/// How much oftener so many drives meet than if errors were anywhere alike: some prefer the first tenth of the disk.
fn crowded(count: usize) -> f64 {
    let (first, rest) = ((CROWDED + 0.1 * (1.0 - CROWDED)) / 0.1, 1.0 - CROWDED);
    0.1 * first.powi(count as i32) + 0.9 * rest.powi(count as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::DriveKind;

    #[test]
    fn pairs_meet_no_oftener_than_is_said() {
        // A disk so small that meetings can be counted.
        let capacity = 20_000.0 * UNIT;
        let drives = Drives { capacity, ..Drives::new(DriveKind::Disk) };
        let sectors = (capacity / SECTOR) as u64;
        let mut chance = Chance::new(4);
        let (mut met, mut pairs) = (0.0, 0.0);
        for model in DRIVE_MODELS {
            for _ in 0..300 {
                let [one, other] = [(); 2].map(|()| {
                    let stripe = |sector: u64| sector / (UNIT / SECTOR) as u64;
                    model.fortnight(sectors, &mut chance).into_iter().map(stripe).collect::<Vec<_>>()
                });
                pairs += 1.0;
                met += f64::from(u8::from(one.iter().any(|stripe| other.binary_search(stripe).is_ok())));
            }
        }
        let (counted, said) = (met / pairs, meet(&drives, 2, 5)[2]);
        // Chance: 2400 pairs, and 1600 groups behind what is said.
        let error = (counted * (1.0 - counted) / pairs).sqrt();
        assert!(counted < said * 1.15 + 4.0 * error && counted > said / 4.0, "{counted} ± {error} and {said}");
    }

    #[test]
    fn the_first_tenth_is_crowded() {
        assert!((crowded(1) - 1.0).abs() < 1e-12);
        assert!((crowded(2) - (0.1 * 3.7f64.powi(2) + 0.9 * 0.7f64.powi(2))).abs() < 1e-12);
    }
}
