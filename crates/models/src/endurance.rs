//! How long flash lives, and what cleaning costs: the arithmetic beside the simulated drives.
//!
//! Boboila and Desnoyers (FAST '10): N blocks of k pages that bear h cycles, m of them free.

use crate::chance::Chance;

/// Page writes until a zone is dead, by what the drive does with an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wear {
    /// Every update erases a block; the free list rotates.
    EveryUpdate,
    /// Up to a block of updates of one place for each erase.
    LogBlock,
    /// Log blocks, and static wear levelling over all blocks.
    Levelled,
}

/// Page writes of a constant address until the device is dead, the least and the most (Table 5 of the paper).
pub fn predict(wear: Wear, free_blocks: f64, pages: f64, cycles: f64, zone_blocks: f64) -> (f64, f64) {
    match wear {
        Wear::EveryUpdate => (free_blocks * cycles, free_blocks * cycles),
        Wear::LogBlock => (free_blocks * cycles, free_blocks * pages * cycles),
        Wear::Levelled => (zone_blocks * pages * cycles, zone_blocks * pages * cycles),
    }
}

/// By what factor random wear falls short of the ideal: random blocks are worn until `free_blocks` of them have reached
/// `cycles` (section 4.1 of the paper).
pub fn random_wear(blocks: u64, free_blocks: u64, cycles: u64, chance: &mut Chance) -> f64 {
    let mut worn = vec![0u64; blocks as usize];
    let (mut writes, mut dead) = (0u64, 0);
    while dead < free_blocks {
        let block = &mut worn[chance.below(blocks) as usize];
        *block += 1;
        writes += 1;
        dead += u64::from(*block == cycles);
    }
    (blocks * cycles) as f64 / writes as f64
}

/// Pages programmed for each page written, for uniform random writes, greedy cleaning and large blocks, where the part
/// `spare` of the flash holds nothing: alpha / (alpha + W(-alpha exp(-alpha))) with alpha = 1 / (1 - spare), and W the
/// principal branch of Lambert's function.
pub fn greedy_amplification(spare: f64) -> f64 {
    let alpha = 1.0 / (1.0 - spare);
    alpha / (alpha + lambert(-alpha * (-alpha).exp()))
}

/// The same for blocks of so many pages. Of many blocks, those with more pages in use than a victim has lose one after another at a
/// rate that is the number in use, so the victim has `v` of `k` pages in use where
/// `(1 - spare) k (H(k) - H(v)) = k - v`, with harmonic numbers `H`, linear between whole ones; `k / (k - v)` are programmed for each
/// that is written. With one page in a block nothing is ever copied; with many it is [`greedy_amplification`].
pub fn greedy_amplification_of_blocks(pages: u32, spare: f64) -> f64 {
    let (last, k) = (pages.max(1) as usize, f64::from(pages.max(1)));
    let mut harmonic = vec![0.0];
    (1..=last).for_each(|page| harmonic.push(harmonic[page - 1] + 1.0 / page as f64));
    let excess = |v: f64| {
        let below = (v as usize).min(last - 1);
        let at = harmonic[below] + (v - below as f64) / (below + 1) as f64;
        (1.0 - spare) * k * (harmonic[last] - at) - (k - v)
    };
    if excess(0.0) <= 0.0 {
        return 1.0;
    }
    // It falls until it is below zero, and comes back to zero at k, which is no answer.
    let (mut low, mut high) = (0.0, k - 1.0);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if excess(middle) > 0.0 { low = middle } else { high = middle }
    }
    k / (k - low)
}

/// Principal branch of Lambert's function for -1/e < x <= 0, by Newton's method (Halley's step).
fn lambert(x: f64) -> f64 {
    let mut w = x.max(-0.36) * std::f64::consts::E / (1.0 + (2.0 * (std::f64::consts::E * x + 1.0)).max(0.0).sqrt());
    for _ in 0..100 {
        let (power, error) = (w.exp(), w * w.exp() - x);
        let step = error / (power * (w + 1.0) - (w + 2.0) * error / (2.0 * w + 2.0));
        w -= step;
        if step.abs() < 1e-14 {
            break;
        }
    }
    w
}

/// The same by a single greedy choice among blocks whose stale pages lie at random: k / E[most stale pages]. Our reading
/// of Figure 17 of the paper, whose values no steady state gives.
pub fn one_choice_amplification(blocks: u64, pages: u32, spare: f64) -> f64 {
    // E[max] = sum over s of 1 - P(all blocks have at most s stale pages).
    let mut probability = (1.0 - spare).powi(pages as i32);
    let (mut below, mut mean) = (0.0, 0.0);
    for stale in 0..pages {
        below += probability;
        mean += 1.0 - f64::min(below, 1.0).powf(blocks as f64);
        probability *= f64::from(pages - stale) / f64::from(stale + 1) * spare / (1.0 - spare);
    }
    f64::from(pages) / mean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_are_those_of_table_5() {
        assert_eq!(predict(Wear::EveryUpdate, 6.0, 32.0, 1e7, 256.0).0, 6e7);
        assert_eq!(predict(Wear::LogBlock, 30.0, 64.0, 1e6, 2048.0), (3e7, 1.92e9));
        // Printed as 6e10.
        assert_eq!(predict(Wear::Levelled, 4.0, 64.0, 1e6, 1024.0).0, 6.5536e10);
    }

    #[test]
    fn the_closed_form_has_its_published_values() {
        assert!((greedy_amplification(0.067) - 7.6).abs() < 0.1, "{}", greedy_amplification(0.067));
        assert!((greedy_amplification(0.2) - 2.69).abs() < 0.01, "{}", greedy_amplification(0.2));
        // W(x) exp(W(x)) = x
        for x in [-0.36, -0.2, -0.01, -1e-6] {
            let w = lambert(x);
            assert!((w * w.exp() - x).abs() < 1e-12 && w > -1.0, "{x}");
        }
    }

    #[test]
    fn small_blocks_are_cleaned_for_less() {
        assert_eq!(greedy_amplification_of_blocks(1, 0.07), 1.0);
        assert_eq!(greedy_amplification_of_blocks(2, 0.9), 1.0);
        for spare in [0.003, 0.067, 0.2, 0.5] {
            let all: Vec<f64> = (0..10).map(|power| greedy_amplification_of_blocks(1 << power, spare)).collect();
            assert!(all.is_sorted() && all[9] <= greedy_amplification(spare), "{all:?}");
        }
        for spare in [0.067, 0.2] {
            let large = greedy_amplification_of_blocks(100_000, spare) / greedy_amplification(spare);
            assert!((large - 1.0).abs() < 1e-3, "{large}");
        }
    }

    #[test]
    fn a_single_choice_gives_the_values_of_figure_17() {
        let between = |value: f64, least: f64, most: f64| assert!(least <= value && value <= most, "{value}");
        between(one_choice_amplification(1_000_000, 32, 0.067), 2.7, 3.2);
        between(one_choice_amplification(100_000, 128, 0.067), 4.9, 5.6);
        between(one_choice_amplification(1_000_000, 32, 0.2), 1.6, 1.9);
    }

    #[test]
    fn random_wear_comes_near_the_ideal_when_blocks_live_long() {
        let mean = |blocks, free, cycles, trials| {
            let mut chance = Chance::new(5);
            (0..trials).map(|_| random_wear(blocks, free, cycles, &mut chance)).sum::<f64>() / trials as f64
        };
        assert!((mean(20, 4, 10, 4000) - 1.41).abs() < 0.02);
        for (cycles, expected) in [(10, 2.27), (50, 1.40), (100, 1.26), (1000, 1.07)] {
            let got = mean(1024, 16, cycles, 8);
            assert!((got / expected - 1.0).abs() < 0.04, "h = {cycles}: {got} and not {expected}");
        }
        // Larger devices do worse, more free blocks better.
        assert!(mean(4096, 16, 50, 4) > mean(1024, 16, 50, 8));
        assert!(mean(1024, 64, 50, 8) < mean(1024, 16, 50, 8));
    }
}
