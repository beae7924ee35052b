//! Best rates of scrubbing beside Table 4 of Oprea and Juels (FAST '10), and the adaptive policy beside fixed passes: checks 5
//! and 7 of the digest. With `ASHLAR_SOAK` set all cells, otherwise the corners.

use ashlar_estimate::scrub::{Judged, Policy, Question, best_adaptive, judge};

/// Bytes of a gigabyte.
const GB: f64 = 1e9;
/// Rates that are tried, GB per hour.
const RATES: [f64; 9] = [0.5, 1.0, 2.0, 4.0, 6.5, 10.0, 12.5, 17.5, 20.0];

fn soak() -> bool {
    std::env::var_os("ASHLAR_SOAK").is_some()
}

fn question(error_rate: f64, weight: f64) -> Question {
    Question { disks: if soak() { 10_000 } else { 1500 }, ..Question::new(error_rate, weight) }
}

/// Sequential scrubbing at each rate, and which is best.
fn tried(error_rate: f64, weight: f64) -> (Vec<Judged>, usize) {
    let question = question(error_rate, weight);
    let all: Vec<Judged> = RATES.iter().map(|rate| judge(&question, Policy::Sequential { rate: rate * GB })).collect();
    let best = (0..all.len()).min_by(|one, other| all[*one].mlet.total_cmp(&all[*other].mlet)).expect("rates");
    (all, best)
}

#[test]
fn the_best_rate_does_not_fall_with_weight_or_reliability() {
    let weights: &[f64] = if soak() { &[1.0, 3.0, 5.0, 7.0, 9.0] } else { &[3.0, 9.0] };
    let powers: &[f64] = if soak() { &[-13.0, -13.5, -14.0, -14.5, -15.0] } else { &[-13.0, -14.0, -15.0] };
    let cells: Vec<Vec<_>> =
        powers.iter().map(|power| weights.iter().map(|weight| tried(10f64.powf(*power), *weight)).collect()).collect();
    for (power, row) in powers.iter().zip(&cells) {
        println!("1e{power}: {:?}", row.iter().map(|(_, best)| RATES[*best]).collect::<Vec<_>>());
    }
    // Not a lower rate, unless chance cannot tell the two apart: the rate that was best before is within three errors.
    let rises = |before: &(Vec<Judged>, usize), after: &(Vec<Judged>, usize)| {
        let (at, best) = (&after.0[before.1], &after.0[after.1]);
        after.1 >= before.1 || at.mlet - best.mlet < 3.0 * at.mlet_error.hypot(best.mlet_error)
    };
    for (row, power) in powers.iter().enumerate() {
        for (column, weight) in weights.iter().enumerate() {
            // At 1e-13 with weight 1 there are errors at all times whatever is done: the exception of the paper.
            let saturated = *power == -13.0 && *weight == 1.0;
            if column + 1 < weights.len() && !saturated {
                assert!(rises(&cells[row][column], &cells[row][column + 1]), "1e{power}, weight {weight} and the next");
            }
            if row + 1 < powers.len() && !saturated {
                assert!(rises(&cells[row][column], &cells[row + 1][column]), "1e{power} and the next, weight {weight}");
            }
        }
    }
}

#[test]
fn adapting_beats_monthly_passes_by_a_factor() {
    let classes: &[(f64, f64)] = if soak() { &[(1e-13, 5.0), (1e-14, 3.0), (1e-15, 1.0)] } else { &[(1e-15, 1.0)] };
    for (error_rate, weight) in classes {
        let question = question(*error_rate, *weight);
        let start = tried(*error_rate, *weight);
        let best = best_adaptive(&question, RATES[start.1] * GB, &mut |_| true).mlet;
        let of = |days: f64| {
            judge(&question, Policy::Sequential { rate: question.disk.order.capacity / days / 24.0 }).mlet / best
        };
        let (weekly, monthly) = (of(7.0), of(30.0));
        println!("{error_rate:e}, weight {weight}: weekly {weekly:.1}, monthly {monthly:.1} times the adaptive best");
        assert!(weekly > 1.0 && monthly > 1.0, "{weekly} {monthly}");
        // The factor of 2 to 20 of the paper, where use makes few errors.
        assert!(*error_rate > 5e-15 || monthly > 2.0 && monthly < 40.0, "{monthly}");
    }
}
