//! Where latent sector errors lie: the generators of Schroeder, Damouras and Gill, "Understanding Latent Sector Errors and
//! How to Protect Against Them", FAST '10.
//!
//! [`Lse::Model`] draws from the distributions of their Table 1, by drive model:
//!  - how many errors there are: Pareto, "LSEs per 2 weeks"; 55-85 % of the drives had all of theirs in one such window;
//!  - how long a burst is: one sector with probability p, else Pareto from 2 on;
//!  - how many good sectors lie before the next burst: Pareto;
//!  - where the first burst lies: in the first tenth of the drive with 35 % (they say 20-50 %), on E-2 and k-3 in the last
//!    tenth with 30 and 20 %, else anywhere (their section 3.2). Bursts follow one another upwards; behind the last sector
//!    comes the first.
//!
//! The paper gives neither a smallest value nor a truncation for these Pareto distributions. With exponents as small as
//! 0.00045 almost every draw of an untruncated one lies outside any disk, so all are truncated: values from 1 (lengths: 2)
//! to the number of sectors, counts to [`COUNT_MAX`].
//!
//! [`Lse::Rate`] is what the paper argues against, and so the control: bursts of one length at independent places.
//!
//! Sectors have 512 bytes. A bad sector spoils the block of 4 KiB that it lies in, the smallest that can be read here.
//! When errors appear, and how they cluster in time, is not modelled: all are there when the fault is.

use crate::ranges::{BlockSet, RANGES_MAX};
use crate::spec::{Lse, Range};
use ashlar_units::Blocks;
use rand::RngExt;
use rand_pcg::Pcg64Mcg;

/// Sectors in a block.
pub(crate) const SECTORS: u64 = 8;
/// Most errors of a drive.
const COUNT_MAX: f64 = 1e4;
/// Chance that the first burst lies in the first tenth.
const FIRST_TENTH: f64 = 0.35;

/// A row of Table 1, read downwards.
pub(crate) struct Model {
    pub name: &'static str,
    /// Chance that a burst is one sector.
    single: f64,
    /// Exponents of the Pareto distributions of lengths, gaps and counts.
    length: f64,
    gap: f64,
    count: f64,
    /// Chance that the first burst lies in the last tenth.
    last_tenth: f64,
}

const fn model(name: &'static str, single: f64, length: f64, gap: f64, count: f64, last_tenth: f64) -> Model {
    Model { name, single, length, gap, count, last_tenth }
}

/// Table 1: nearline drives A-1 to E-2, enterprise drives k-2 to o-2.
pub(crate) const MODELS: [Model; 8] = [
    model("A-1", 0.90, 1.21, 0.008, 0.73, 0.0),
    model("D-2", 0.98, 1.79, 0.022, 0.93, 0.0),
    model("E-1", 0.98, 1.35, 0.158, 0.63, 0.0),
    model("E-2", 0.96, 1.17, 0.128, 0.82, 0.3),
    model("k-2", 0.97, 1.20, 0.017, 0.80, 0.0),
    model("k-3", 0.97, 1.15, 0.00045, 0.70, 0.2),
    model("n-3", 0.93, 1.25, 0.077, 0.45, 0.0),
    model("o-2", 0.97, 1.44, 0.050, 0.22, 0.0),
];

/// A number from 1 to `most` by a truncated Pareto distribution with exponent `alpha`, from a uniform one below 1.
fn pareto(alpha: f64, most: f64, uniform: f64) -> f64 {
    let cut = 1.0 - most.max(1.0).powf(-alpha);
    (1.0 - uniform * cut).powf(-1.0 / alpha).clamp(1.0, most.max(1.0))
}

/// The blocks that are bad from the beginning, on a device of `capacity` blocks.
pub(crate) fn draw(lse: &Lse, at: Option<Range>, capacity: Blocks, dice: &mut Pcg64Mcg) -> Result<BlockSet, String> {
    let range = at.map_or(0..u64::MAX, |at| at.blocks());
    let (first, end) = (range.start.min(capacity.0), range.end.min(capacity.0));
    if first >= end {
        return Err(format!("it is past the end of the device, which has {}", capacity.to_bytes()));
    }
    let sectors = (end - first) * SECTORS;
    let mut bad = BlockSet::default();
    // Bursts that pass the end go on at the front.
    let mut spoil = |sector: u64, len: u64| {
        let (begin, len) = (sector % sectors, len.min(sectors));
        let blocks = |from: u64, to: u64| first + from / SECTORS..first + to.div_ceil(SECTORS);
        bad.insert(blocks(begin, (begin + len).min(sectors)));
        if begin + len > sectors {
            bad.insert(blocks(0, begin + len - sectors));
        }
    };
    match lse {
        Lse::Range => spoil(0, sectors),
        Lse::Rate { rate, burst, .. } => {
            let expected = rate * sectors as f64;
            if expected > RANGES_MAX as f64 / 2.0 {
                return Err(format!(
                    "a rate of {rate} makes about {expected:.0} bursts here, and at most {} are remembered; take a lower \
                     rate, longer bursts or a smaller range",
                    RANGES_MAX / 2
                ));
            }
            // From one burst to the next, as independent trials would have it.
            let mut sector = 0.0f64;
            loop {
                sector += if *rate < 1.0 { ((1.0 - dice.random::<f64>()).ln() / (-rate).ln_1p()).floor() } else { 0.0 };
                if sector >= sectors as f64 {
                    break;
                }
                spoil(sector as u64, *burst);
                sector += 1.0;
            }
        }
        Lse::Model { name, .. } => {
            let model = MODELS.iter().find(|model| model.name == *name);
            let model = model.ok_or_else(|| format!("there is no model {name}"))?;
            let all = sectors as f64;
            let count = pareto(model.count, COUNT_MAX.min(all), dice.random()) as u64;
            let tenth: f64 = dice.random();
            let within: f64 = dice.random();
            let mut sector = match tenth {
                tenth if tenth < FIRST_TENTH => within * all / 10.0,
                tenth if tenth < FIRST_TENTH + model.last_tenth => all - (1.0 - within) * all / 10.0,
                _ => within * all,
            } as u64;
            let mut done = 0;
            while done < count {
                let single = dice.random::<f64>() < model.single;
                let tail = 2.0 * pareto(model.length, all / 2.0, dice.random());
                let len = if single { 1 } else { (tail as u64).min(count - done).max(1) };
                spoil(sector, len);
                done += len;
                let gap = pareto(model.gap, all, dice.random()) as u64;
                sector = (sector + len + gap) % sectors;
            }
        }
    }
    Ok(bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    const CAPACITY: Blocks = Blocks(1 << 28);

    fn drawn(lse: &Lse, seed: u64) -> BlockSet {
        draw(lse, None, CAPACITY, &mut Pcg64Mcg::seed_from_u64(seed)).expect("it fits")
    }

    #[test]
    fn truncated_pareto_has_its_quantiles() {
        // F(x) = (1 - x^-a) / (1 - G^-a); for a to 0 that is ln x / ln G.
        for (alpha, most) in [(1.21, 1e4), (0.45, 1e6), (0.00045, 2e9)] {
            for part in [0.0, 0.1, 0.5, 0.9, 0.999] {
                let x = pareto(alpha, most, part);
                let back = (1.0 - x.powf(-alpha)) / (1.0 - most.powf(-alpha));
                assert!((back - part).abs() < 1e-6, "alpha {alpha}: {part} became {back}");
            }
        }
        let median = pareto(0.00045, 2e9, 0.5);
        assert!((median.ln() / 2e9f64.ln() - 0.5).abs() < 0.01, "{median}");
    }

    #[test]
    fn independent_bursts_have_their_rate() {
        let rate = Lse::Rate { rate: 1e-6, burst: 8, seed: None };
        let bursts: usize = (0..8).map(|seed| drawn(&rate, seed).ranges()).sum();
        // 2,147 expected in each; the standard deviation of the sum is 131.
        assert!((bursts as f64 - 8.0 * 2147.5).abs() < 5.0 * 131.0, "{bursts}");
        assert_eq!(drawn(&rate, 3), drawn(&rate, 3));
        assert_ne!(drawn(&rate, 3), drawn(&rate, 4));
        let every = Lse::Rate { rate: 1.0, burst: 1, seed: None };
        let small = draw(&every, None, Blocks(100), &mut Pcg64Mcg::seed_from_u64(1)).expect("small");
        assert_eq!(small.blocks(), 100);
        let error = draw(&every, None, CAPACITY, &mut Pcg64Mcg::seed_from_u64(1)).expect_err("too many");
        assert!(error.contains("lower rate"), "{error}");
    }

    /// What the paper says of drives in the field, of drives drawn: most errors lie near others, unlike independent ones.
    #[test]
    fn drawn_drives_cluster_as_those_in_the_field() {
        for model in &MODELS {
            let lse = Lse::Model { name: model.name, seed: None };
            let (mut first_tenth, mut drives) = (0, 0);
            for seed in 0..400 {
                let bad = drawn(&lse, seed);
                let count = bad.blocks();
                assert!((1..=COUNT_MAX as u64).contains(&count), "{} seed {seed}: {count} blocks", model.name);
                drives += 1;
                first_tenth += u64::from(bad.first_in(0..CAPACITY.0 / 10).is_some());
            }
            let part = first_tenth as f64 / f64::from(drives);
            assert!(part > 0.2, "{}: {part} of the drives have errors in the first tenth", model.name);
        }
        // Bursts of n-3: 93 % are single (Table 1); a block holds up to 8 sectors, so some more look single here.
        let lse = Lse::Model { name: "n-3", seed: None };
        let (mut bursts, mut longer) = (0usize, 0usize);
        for seed in 0..400 {
            let bad = drawn(&lse, seed);
            bursts += bad.ranges();
            longer += bad.iter().filter(|range| range.end - range.start > 1).count();
        }
        assert!(bursts > 1000 && longer > 0 && longer * 10 < bursts * 3, "{longer} of {bursts}");
    }

    #[test]
    fn ranges_are_kept_and_the_end_of_the_device_too() {
        let at = Some(Range { start: 5000, end: Some(20_000) });
        let mut dice = Pcg64Mcg::seed_from_u64(1);
        let range = draw(&Lse::Range, at, Blocks(100), &mut dice).expect("inside");
        assert!(range.iter().eq(std::iter::once(1..5)), "{range:?}");
        let open = Some(Range { start: 98 * 4096, end: None });
        assert_eq!(draw(&Lse::Range, open, Blocks(100), &mut dice).expect("inside").blocks(), 2);
        let past = Some(Range { start: 100 * 4096, end: None });
        assert!(draw(&Lse::Range, past, Blocks(100), &mut dice).expect_err("outside").contains("past the end"));
        for seed in 0..50 {
            let lse = Lse::Model { name: "A-1", seed: None };
            let bad = draw(&lse, at, Blocks(100), &mut Pcg64Mcg::seed_from_u64(seed)).expect("inside");
            assert!(bad.iter().all(|range| range.start >= 1 && range.end <= 5), "seed {seed}: {bad:?}");
        }
    }
}
