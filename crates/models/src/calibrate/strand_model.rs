//! Appendix A of the proximal I/O paper: strands as a birthday problem, in exact fractions.
//!
//! A revolution has `bins` slots; requests in one slot need a revolution each. `Q_k` is the probability that the fullest
//! of the bins holds exactly `k` of the requests, and so that the strand needs `k` revolutions. The recurrence that the
//! paper prints does not sum to one; here the arrangements are counted. The values that the paper prints (3.4 revolutions,
//! variance 9) are those of 6 bins, not of the 8 that it names.

use super::Row;

/// A fraction in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fraction {
    /// Above the line.
    pub above: u128,
    /// Below the line.
    pub below: u128,
}

impl Fraction {
    fn new(above: u128, below: u128) -> Fraction {
        let (mut a, mut b) = (above, below);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        Fraction { above: above / a.max(1), below: below / a.max(1) }
    }
    /// The nearest floating-point number.
    pub fn value(self) -> f64 {
        self.above as f64 / self.below as f64
    }
}

/// Sectors that pass during a switch of tracks, rounded down.
pub fn switch_sectors(sectors_per_track: u32, switch_ms: f64, revolution_ms: f64) -> u32 {
    (f64::from(sectors_per_track) * switch_ms / revolution_ms) as u32
}

/// Sectors within reach of the shortest seek.
pub fn reach_sectors(cylinders: u64, sectors_per_track: u64, surfaces: u64) -> u64 {
    cylinders * sectors_per_track * surfaces
}

/// Ways to put `balls` distinct balls into `bins` with at most `most` in each. `balls` is at most 16.
fn ways(balls: u32, bins: u32, most: u32) -> u128 {
    let mut counts = vec![0u128; balls as usize + 1];
    counts[0] = 1;
    for _ in 0..bins {
        let before = counts.clone();
        for (total, count) in counts.iter_mut().enumerate() {
            *count = (0..=total.min(most as usize)).map(|here| choose(total, here) * before[total - here]).sum();
        }
    }
    counts[balls as usize]
}

fn choose(from: usize, some: usize) -> u128 {
    (0..some).fold(1, |ways, i| ways * (from - i) as u128 / (i + 1) as u128)
}

/// `Q_k` for every `k` from 1 to `requests`. At most 16 requests and 64 bins.
pub fn distribution(requests: u32, bins: u32) -> Vec<Fraction> {
    let all = u128::from(bins).pow(requests);
    (1..=requests).map(|k| Fraction::new(ways(requests, bins, k) - ways(requests, bins, k - 1), all)).collect()
}

/// The mean of the fullest bin, exactly.
pub fn mean_fullest(requests: u32, bins: u32) -> Fraction {
    let all = u128::from(bins).pow(requests);
    let sum = (1..=requests).map(|k| u128::from(k) * (ways(requests, bins, k) - ways(requests, bins, k - 1))).sum();
    Fraction::new(sum, all)
}

/// Mean revolutions of a strand: half a one to begin, then one for each request of the fullest bin.
pub fn revolutions(requests: u32, bins: u32) -> f64 {
    0.5 + mean_fullest(requests, bins).value()
}

/// The appendix's numbers.
pub(super) fn rows() -> Vec<Row> {
    const TABLE: &str = "Schindler et al., FAST '11, Appendix A";
    let exact = |row: &str, unit, expected, got| Row::new(TABLE, row, unit, expected, got, 1e-4);
    vec![
        exact("H, sectors in a track switch", "sectors", 142.0, f64::from(switch_sectors(1200, 0.475, 4.0))),
        exact("C, sectors in the shortest seek", "sectors", 624_000.0, reach_sectors(65, 1200, 8) as f64),
        exact("revolutions, 8 requests, 8 bins (corrected)", "rev", 3.0972, revolutions(8, 8)),
        exact("revolutions, 8 requests, 6 bins (as printed: 3.4)", "rev", 3.4212, revolutions(8, 6)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fractions(pairs: &[(u128, u128)]) -> Vec<Fraction> {
        pairs.iter().map(|&(above, below)| Fraction { above, below }).collect()
    }

    #[test]
    fn the_distribution_is_that_of_the_enumeration() {
        let eight = fractions(&[
            (315, 131_072),
            (522_585, 1_048_576),
            (53_655, 131_072),
            (167_825, 2_097_152),
            (2401, 262_144),
        ]);
        assert_eq!(distribution(8, 8)[..5], eight);
        let six = fractions(&[(0, 1), (2275, 7776), (4585, 8748), (14_525, 93_312), (875, 34_992)]);
        assert_eq!(distribution(8, 6)[..5], six);
        assert_eq!(mean_fullest(8, 8), Fraction { above: 680_849, below: 262_144 });
        assert_eq!(mean_fullest(8, 6), Fraction { above: 204_437, below: 69_984 });
    }

    #[test]
    fn probabilities_add_up_to_one() {
        for (requests, bins) in [(1, 1), (6, 6), (8, 8), (8, 6), (16, 9)] {
            let sum: f64 = distribution(requests, bins).iter().map(|q| q.value()).sum();
            assert!((sum - 1.0).abs() < 1e-12, "{requests} into {bins}: {sum}");
        }
    }

    #[test]
    fn the_numbers_of_the_appendix() {
        assert_eq!(switch_sectors(1200, 0.475, 4.0), 142);
        assert_eq!((1200.0f64 / 142.0 * 100.0).round() / 100.0, 8.45);
        assert_eq!(reach_sectors(65, 1200, 8), 624_000);
        assert!((revolutions(8, 8) - 3.0972).abs() < 5e-5);
        assert!((revolutions(8, 6) - 3.4212).abs() < 5e-5);
        // P(no extra revolution) for 6 requests, as printed: 0.02, which is that of 6 bins.
        assert!((distribution(6, 6)[0].value() - 0.0154).abs() < 5e-5);
        assert!((distribution(6, 8)[0].value() - 0.0769).abs() < 5e-5);
        let variance = |bins: u32| {
            let (mean, qs) = (mean_fullest(8, bins).value(), distribution(8, bins));
            16.0 * qs.iter().zip(1..).map(|(q, k)| q.value() * (f64::from(k) - mean).powi(2)).sum::<f64>()
        };
        assert!((variance(8) - 7.50).abs() < 0.005 && (variance(6) - 9.07).abs() < 0.005);
        assert!((3.5 + 4.0 * revolutions(8, 8) - 15.89).abs() < 0.005);
        assert!((3.5 + 4.0 * revolutions(8, 6) - 17.185).abs() < 0.005);
    }
}
