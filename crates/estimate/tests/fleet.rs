//! Simulated fleets of flash drives beside the field study (section 6 of the digest of Schroeder et al., FAST '16: checks 2
//! to 7). With `ASHLAR_SOAK` set 100,000 drives of each model, as there; otherwise fewer.

use ashlar_estimate::fit::{exponential, linear, spearman};
use ashlar_estimate::fleet::{DAYS, Fleet, Process, Reading, Tally, months, overflow, readings, simulate, uber};
use ashlar_estimate::ssd::{SSD_MODELS, SsdModel};
use ashlar_models::Chance;

const SEED: u64 = 16;

fn soak() -> bool {
    std::env::var_os("ASHLAR_SOAK").is_some()
}

/// Drives of each model.
fn drives() -> u64 {
    if soak() { 100_000 } else { 10_000 }
}

fn model(name: &str) -> &'static SsdModel {
    SsdModel::find(name).expect("a model of the study")
}

fn tally(model: &'static SsdModel) -> Tally {
    simulate(&Fleet::new(model, model.years), drives(), SEED, &mut |_| ())
}

/// Within 4 standard errors of a part of the drives, and 2 % for what calibration leaves.
#[track_caller]
fn part(what: &str, found: f64, expected: f64, count: f64) {
    let bound = 4.0 * (expected * (1.0 - expected) / count).sqrt() + 0.02 * expected;
    assert!((found - expected).abs() <= bound, "{what}: {found} and not {expected} ± {bound}");
    if soak() {
        assert!((found / expected - 1.0).abs() < 0.1, "{what}: {found} and not {expected}");
    }
}

#[test]
fn fleets_have_the_numbers_of_the_study() {
    for model in SSD_MODELS {
        let (tally, name) = (tally(model), model.name);
        let count = tally.drives as f64;
        let is = |what: &str, found: u64, expected: f64| {
            part(&format!("{name}, {what}"), tally.part(found), expected, count)
        };
        is("drives with errors", tally.with_errors, model.ue_drives);
        is("drives with bad blocks", tally.bad_blocks.len() as u64, model.bad_blocks.0 / 100.0);
        is("chips", tally.chips, model.bad_chip_percent / 100.0);
        is("repaired", tally.repaired, model.repaired_percent / 100.0);
        is("replaced", tally.replaced, model.replaced_percent / 100.0);
        // Days of a drive come together: over drives that have any, they vary by up to twice their mean.
        let days = tally.error_days as f64 / tally.months as f64 / DAYS;
        let bound = 4.0 * 2.0 / (tally.with_errors as f64).sqrt() + 0.03;
        assert!(
            (days / model.ue_days - 1.0).abs() < if soak() { 0.1 } else { bound },
            "{name}: {days} {}",
            model.ue_days
        );
        let (_, median, mean) = model.bad_blocks;
        assert_eq!(tally.median_blocks(1), Some(median), "{name}");
        let (found, error) = tally.mean_blocks();
        assert!((found - f64::from(mean)).abs() < 4.0 * error, "{name}: {found} ± {error} and not {mean}");
        assert!(!soak() || (found / f64::from(mean) - 1.0).abs() < 0.1, "{name}: {found} and not {mean}");
    }
}

#[test]
fn a_month_with_errors_is_followed_by_another_in_three_of_ten() {
    let mut common = (0.0, 0.0);
    for model in SSD_MODELS {
        let tally = tally(model);
        let (months, after) = (tally.error_months as f64 / tally.months as f64, tally.followed);
        let next = after.1 as f64 / after.0 as f64;
        assert!((0.25..0.35).contains(&next), "{}: {next}", model.name);
        // At least 2 %, and more where so many drives have errors that it must be more.
        let least = 1.0 - (1.0 - model.ue_drives).powf(1.0 / (12.0 * model.years));
        assert!(months > 0.018 && months < (0.022f64).max(1.6 * least), "{}: {months}", model.name);
        if !model.name.starts_with("eMLC") {
            common = (common.0 + months, common.1 + 1.0);
        }
    }
    let mean = common.0 / common.1;
    assert!((0.018..0.026).contains(&mean), "months with errors, MLC and SLC: {mean}");
}

/// Why frailty is needed: if every drive had errors in 2 % of its months, 62 % of the drives would have some, not 27 %.
#[test]
fn without_frailty_most_drives_would_have_errors() {
    assert!((1.0 - 0.98f64.powi(48) - 0.6208).abs() < 1e-4);
    let process = Process::of(model("MLC-A"));
    assert!(process.prone < 0.35 && (process.drives(48) - 0.266).abs() < 1e-6, "{process:?}");
    let alike = Process { prone: 1.0, onset: process.onset * process.prone, ..process };
    assert!(alike.drives(48) > 0.45, "{}", alike.drives(48));
}

#[test]
fn half_of_the_drives_with_two_bad_blocks_come_to_two_hundred() {
    for model in SSD_MODELS {
        let tally = tally(model);
        let median = tally.median_blocks(2).expect("bad blocks");
        if model.name.starts_with("MLC") {
            assert!((150..=250).contains(&median), "{}: {median}", model.name);
        }
        // A chip that is lost has many bad blocks: so those with five lose one far more often than others.
        let five = tally.bad_blocks.iter().filter(|blocks| **blocks >= 5).count() as f64;
        let (given, all) = (tally.chips as f64 / five, tally.part(tally.chips));
        assert!(given > 2.0 * all, "{}: {given} and {all}", model.name);
    }
}

/// Every twelfth month of drives of a model: its reading, days with errors, and the reading before.
fn sampled(model: &'static SsdModel) -> Vec<(Reading, u8, Reading)> {
    let fleet = Fleet::new(model, model.years);
    let mut chance = Chance::new(SEED);
    let mut all = Vec::new();
    for _ in 0..drives() {
        let drive = fleet.drive(&mut chance);
        let readings = readings(model, drive.speed, fleet.months, &mut chance);
        let first = 1 + chance.below(11) as usize;
        all.extend((first..fleet.months).step_by(12).map(|at| (readings[at], drive.error_days[at], readings[at - 1])));
    }
    all
}

#[test]
fn errors_follow_neither_reads_nor_flipped_bits() {
    for model in SSD_MODELS {
        let sampled = sampled(model);
        let by = |of: fn(&(Reading, u8, Reading)) -> (f64, f64)| spearman(&sampled.iter().map(of).collect::<Vec<_>>());
        let any = |days: u8| f64::from(u8::from(days > 0));
        // The bound of the study, and of 10,000 drives what chance adds.
        let bound = 0.02 + if soak() { 0.0 } else { 3.0 / (sampled.len() as f64).sqrt() };
        let reads = by(|(reading, days, _)| (f64::from(u8::from(*days > 0)), reading.bits_read));
        let bits = by(|(reading, days, _)| (f64::from(u8::from(*days > 0)), reading.rber));
        assert!(reads.abs() < bound && bits.abs() < bound, "{}: {reads} {bits}", model.name);
        assert!(by(|(reading, ..)| (reading.rber, reading.cycles)) > 0.02, "{}", model.name);
        assert!(by(|(reading, _, before)| (reading.rber, before.rber)) > 0.8, "{}", model.name);
        // The negative control: errors where a code of one bit overflows, as many as in the field.
        let weights: Vec<f64> = sampled.iter().map(|(reading, ..)| overflow(reading, 1)).collect();
        let months = sampled.iter().map(|(_, days, _)| any(*days)).sum::<f64>() / sampled.len() as f64;
        let mut order = weights.clone();
        order.sort_by(f64::total_cmp);
        let least = order[((1.0 - months) * order.len() as f64) as usize];
        let naive: Vec<(f64, f64)> = sampled
            .iter()
            .zip(&weights)
            .map(|((reading, ..), weight)| (f64::from(u8::from(*weight > least)), reading.rber))
            .collect();
        let naive = spearman(&naive);
        assert!(naive > 0.1, "{}: {naive}", model.name);
    }
}

/// Of one drive: what is corrected goes with what is read. Over all drives of a model it cannot where their rates of flipped
/// bits are two orders of magnitude apart (MLC-A: a deviation of 2.8), unless reads were further apart still.
#[test]
fn corrected_errors_of_a_drive_follow_its_reads() {
    for model in SSD_MODELS {
        let mut chance = Chance::new(SEED);
        let (mut sum, count) = (0.0, 300);
        for _ in 0..count {
            let readings = readings(model, 1.0, months(model.years), &mut chance);
            let points: Vec<_> = readings.iter().map(|reading| (reading.corrected(), reading.bits_read)).collect();
            sum += spearman(&points) / f64::from(count);
        }
        assert!(sum > 0.9, "{}: {sum}", model.name);
    }
}

#[test]
fn rates_of_flipped_bits_have_the_percentiles_of_table_3() {
    for model in SSD_MODELS {
        for (score, expected) in [(0.0, model.rber[0]), (1.644_854, model.rber[1]), (2.326_348, model.rber[2])] {
            let found = ashlar_estimate::fleet::rate(model, score);
            assert!((found / expected - 1.0).abs() < 1e-9, "{}: {found} {expected}", model.name);
        }
    }
}

/// A bin of months of drives by their cycles.
#[derive(Clone, Default)]
struct Bin {
    months: f64,
    cycles: f64,
    errors: f64,
    rates: Vec<f64>,
}

/// Months by cycles, in bins of a third of the mean up to five times of it.
fn by_cycles(model: &'static SsdModel) -> Vec<Bin> {
    let fleet = Fleet::new(model, model.years);
    let mut chance = Chance::new(SEED);
    let mut bins = vec![Bin::default(); 15];
    for _ in 0..if soak() { 300_000 } else { 60_000 } {
        let drive = fleet.drive(&mut chance);
        let readings = readings(model, drive.speed, fleet.months, &mut chance);
        for (reading, days) in readings.iter().zip(&drive.error_days) {
            let bin = (reading.cycles / f64::from(model.pe_mean) * 3.0) as usize;
            if let Some(bin) = bins.get_mut(bin) {
                bin.months += 1.0;
                bin.cycles += reading.cycles;
                bin.errors += f64::from(u8::from(*days > 0));
                bin.rates.push(reading.rber);
            }
        }
    }
    for bin in &mut bins {
        assert!(bin.months > 1000.0);
        (bin.cycles, bin.errors) = (bin.cycles / bin.months, bin.errors / bin.months);
        bin.rates.sort_by(f64::total_cmp);
    }
    bins
}

#[test]
fn wear_is_linear_and_does_not_jump_at_the_limit() {
    // Rates of flipped bits of MLC-C lie closest together, and some drives of MLC-B pass their limit.
    let bins = by_cycles(model("MLC-C"));
    let rates: Vec<(f64, f64)> = bins.iter().map(|bin| (bin.cycles, bin.rates[bin.rates.len() / 2])).collect();
    let (line, curve) = (linear(&rates).expect("a line"), exponential(&rates).expect("a curve"));
    assert!(line.a > 0.0 && line.explained > curve.explained, "flipped bits: {line:?} {curve:?}");
    let model = model("MLC-B");
    let bins = by_cycles(model);
    let errors: Vec<(f64, f64)> = bins.iter().map(|bin| (bin.cycles, bin.errors)).collect();
    let (line, curve) = (linear(&errors).expect("a line"), exponential(&errors).expect("a curve"));
    assert!(line.a > 0.0 && line.explained > curve.explained, "errors: {line:?} {curve:?}");
    // The bin of the limit and those behind it do not stand out from the line.
    let limit = (f64::from(model.pe_limit) / f64::from(model.pe_mean) * 3.0) as usize;
    for bin in &bins[limit..=limit + 2] {
        let expected = line.a * bin.cycles + line.b;
        // Months with errors come together, so their number varies twice as much as that of independent ones.
        let bound = 4.0 * (2.0 * expected / bin.months).sqrt() + 0.05 * expected;
        assert!((bin.errors - expected).abs() < bound, "{}: {} and not {expected} ± {bound}", bin.cycles, bin.errors);
    }
}

/// The paradox of the number that vendors give: ten times as much is read of one of two drives with the same errors.
#[test]
fn errors_for_each_bit_read_say_how_much_is_read() {
    let (errors, bits) = (3.0, 4e15);
    assert_eq!(uber(errors, bits), 10.0 * uber(errors, 10.0 * bits));
}
