//! Predictions beside measurements: errors, ranks, and how sure a rank is (thesis, section 4.5.4.5).

use ashlar_models::normal_below;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// A workload on a system.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Outcome {
    /// The workload.
    pub workload: String,
    /// The system.
    pub system: String,
    /// Seconds that were measured.
    pub measured: f64,
    /// Seconds that were predicted.
    pub predicted: f64,
}

impl Outcome {
    /// By which part of the measured time it was missed: 0.1 is 10 % more.
    pub fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }
}

/// How good predictions were.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Accuracy {
    /// Mean of the errors without their signs; 0.1 is 10 %.
    pub mean_error: f64,
    /// Their median.
    pub median_error: f64,
    /// Root of the mean of their squares.
    pub root_mean_square: f64,
    /// Correlation of measured and predicted seconds; none of less than two, or of equal ones.
    pub correlation: Option<f64>,
    /// The same of their logarithms.
    pub correlation_log: Option<f64>,
    /// Mean error by workload.
    pub by_workload: BTreeMap<String, f64>,
    /// Mean error by system.
    pub by_system: BTreeMap<String, f64>,
    /// Pairs of systems under one workload, of all that differ.
    pub ranks: Ranks,
    /// The same of those that differ by more than 10 %.
    pub ranks_beyond_10: Ranks,
}

/// Pairs that are ranked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Ranks {
    /// Pairs.
    pub pairs: u64,
    /// Those that were ranked as they were measured.
    pub right: u64,
    /// The others: workload and the two systems.
    pub wrong: Vec<(String, String, String)>,
}

/// How good the predictions are; `None` without any, or if a time is not above zero.
pub fn accuracy(outcomes: &[Outcome]) -> Option<Accuracy> {
    if outcomes.is_empty() || outcomes.iter().any(|one| !(one.measured > 0.0 && one.predicted > 0.0)) {
        return None;
    }
    let mut errors: Vec<f64> = outcomes.iter().map(|one| one.error().abs()).collect();
    errors.sort_by(f64::total_cmp);
    let middle = (errors[(errors.len() - 1) / 2] + errors[errors.len() / 2]) / 2.0;
    let squares = errors.iter().map(|error| error * error).sum::<f64>() / errors.len() as f64;
    let by = |name: fn(&Outcome) -> &str| {
        let mut groups: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        outcomes.iter().for_each(|one| groups.entry(name(one).into()).or_default().push(one.error().abs()));
        groups.into_iter().map(|(name, errors)| (name, mean(&errors))).collect()
    };
    let pairs =
        |of: fn(f64) -> f64| outcomes.iter().map(|one| (of(one.measured), of(one.predicted))).collect::<Vec<_>>();
    Some(Accuracy {
        mean_error: mean(&errors),
        median_error: middle,
        root_mean_square: squares.sqrt(),
        correlation: correlation(&pairs(|x| x)),
        correlation_log: correlation(&pairs(f64::ln)),
        by_workload: by(|one| &one.workload),
        by_system: by(|one| &one.system),
        ranks: ranks(outcomes, 0.0),
        ranks_beyond_10: ranks(outcomes, 0.1),
    })
}

/// Pairs of systems under one workload whose measured times differ by more than a part of the lesser.
pub fn ranks(outcomes: &[Outcome], beyond: f64) -> Ranks {
    let mut ranks = Ranks::default();
    for (at, one) in outcomes.iter().enumerate() {
        for other in outcomes[at + 1..].iter().filter(|other| other.workload == one.workload) {
            let (less, more) = (one.measured.min(other.measured), one.measured.max(other.measured));
            if more <= less * (1.0 + beyond) {
                continue;
            }
            ranks.pairs += 1;
            if (one.measured < other.measured) == (one.predicted < other.predicted) {
                ranks.right += 1;
            } else {
                ranks.wrong.push((one.workload.clone(), one.system.clone(), other.system.clone()));
            }
        }
    }
    ranks
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Pearson's.
fn correlation(pairs: &[(f64, f64)]) -> Option<f64> {
    let (xs, ys): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let (mean_x, mean_y) = (mean(&xs), mean(&ys));
    let sum = |of: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>();
    let together = sum(&|(x, y)| (x - mean_x) * (y - mean_y));
    let apart = sum(&|(x, _)| (x - mean_x).powi(2)) * sum(&|(_, y)| (y - mean_y).powi(2));
    (apart > 0.0).then(|| together / apart.sqrt())
}

/// How likely it is that a system that takes `one` ± its standard deviation is truly faster than another.
pub fn faster(one: (f64, f64), other: (f64, f64)) -> f64 {
    let spread = one.1.hypot(other.1);
    match spread > 0.0 {
        true => normal_below((other.0 - one.0) / spread),
        false => f64::from(u8::from(one.0 < other.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table 4.7: measured and predicted seconds on Slow FFS, Slow FFS+SU, Fast FFS and Fast FFS+SU.
    const TABLE: [(&str, [(f64, f64); 4]); 8] = [
        ("Kernel Build", [(51.10, 58.49), (45.14, 51.73), (15.07, 12.21), (12.61, 7.76)]),
        ("SDET 1", [(19.43, 21.00), (2.60, 2.98), (11.07, 8.76), (1.43, 1.25)]),
        ("SDET 2", [(45.94, 42.02), (6.20, 8.63), (24.53, 17.50), (2.49, 4.23)]),
        ("SDET 4", [(109.04, 81.65), (13.27, 16.75), (50.06, 34.02), (4.63, 8.16)]),
        ("SDET 6", [(180.20, 116.41), (45.79, 27.26), (73.50, 47.41), (8.57, 12.27)]),
        ("SDET 8", [(250.60, 204.70), (61.44, 81.35), (97.98, 65.92), (11.56, 16.68)]),
        ("SDET 10", [(311.04, 275.65), (108.12, 124.27), (118.09, 81.33), (13.22, 20.90)]),
        ("PostMark", [(547.01, 342.86), (449.89, 154.71), (193.27, 124.62), (75.67, 52.63)]),
    ];
    const SYSTEMS: [&str; 4] = ["Slow", "Slow+SU", "Fast", "Fast+SU"];

    fn table() -> Vec<Outcome> {
        let row = |(workload, times): (&str, [(f64, f64); 4])| {
            let one = move |(system, (measured, predicted)): (&str, (f64, f64))| Outcome {
                workload: workload.to_string(),
                system: system.to_string(),
                measured,
                predicted,
            };
            SYSTEMS.into_iter().zip(times).map(one).collect::<Vec<_>>()
        };
        TABLE.into_iter().flat_map(row).collect()
    }

    /// The last column of table 4.7, percent: from times that were not rounded yet.
    const ERRORS: [[f64; 4]; 8] = [
        [14.5, 14.6, -18.9, -38.4],
        [8.1, 15.0, -20.9, -12.6],
        [-8.5, 39.2, -28.7, 69.8],
        [-25.1, 26.2, -32.1, 76.2],
        [-35.4, -40.5, -35.5, 43.4],
        [-18.3, 32.4, -32.7, 44.3],
        [-11.4, 14.9, -31.1, 58.1],
        [-37.3, -65.6, -35.5, -30.4],
    ];

    fn percent(share: f64) -> f64 {
        (share * 1000.0 + 1e-9).round() / 10.0
    }

    #[test]
    fn the_tables_of_the_thesis() {
        let outcomes = table();
        let exact = outcomes.iter().zip(ERRORS.as_flattened()).map(|(one, error)| {
            // Rounded times are within half a hundredth of a second of those that the thesis had; but SDET 6 on Fast+SU has
            // 43.4 % where its times give 43.2 %.
            let bound = 0.005 / one.measured * (1.0 + one.predicted / one.measured) + 0.0005;
            assert!((one.error() - error / 100.0).abs() <= bound + 1e-9 || *error == 43.4, "{one:?} {error}");
            Outcome { predicted: one.measured * (1.0 + error / 100.0), ..one.clone() }
        });
        let exact = accuracy(&exact.collect::<Vec<_>>()).expect("32 outcomes");
        let by_system: Vec<f64> = SYSTEMS.iter().map(|system| percent(exact.by_system[*system])).collect();
        assert_eq!(by_system, [19.8, 31.1, 29.4, 46.7], "table 4.8");
        let by_workload: Vec<f64> = TABLE.iter().map(|(name, _)| percent(exact.by_workload[*name])).collect();
        assert_eq!(by_workload, [21.6, 14.2, 36.6, 39.9, 38.7, 31.9, 28.9, 42.2], "table 4.9");
        let sdet: Vec<f64> =
            outcomes.iter().filter(|one| one.workload.starts_with("SDET")).map(|one| one.error().abs()).collect();
        assert_eq!((sdet.len(), percent(mean(&sdet))), (24, 31.7));
        // What the thesis states (30.8 %, 35.5 %, 0.966) does not follow from its table.
        let found = accuracy(&outcomes).expect("32 outcomes");
        for of in [&exact, &found] {
            assert_eq!((percent(of.mean_error), percent(of.root_mean_square)), (31.7, 36.1));
            assert_eq!(percent(of.median_error), 31.6);
        }
        let three = |value: Option<f64>| (value.expect("they differ") * 1000.0).round() / 1000.0;
        assert_eq!((three(found.correlation), three(found.correlation_log)), (0.928, 0.976));
        assert_eq!((found.ranks.right, found.ranks.pairs), (46, 48));
        let wrong: Vec<_> =
            found.ranks.wrong.iter().map(|(workload, one, other)| (&**workload, &**one, &**other)).collect();
        assert_eq!(wrong, [("SDET 8", "Slow+SU", "Fast"), ("SDET 10", "Slow+SU", "Fast")]);
    }

    #[test]
    fn errata_of_the_thesis() {
        let outcomes = table();
        let kernel =
            outcomes.iter().find(|one| one.workload == "Kernel Build" && one.system == "Slow+SU").expect("there");
        assert_eq!(((kernel.predicted - kernel.measured) * 100.0).round(), 659.0, "not 7.39 s");
        let gap = |workload| {
            let of = |system| {
                outcomes.iter().find(|one| one.workload == workload && one.system == system).expect("there").measured
            };
            (100.0 * (of("Fast") / of("Slow+SU") - 1.0f64)).round()
        };
        assert_eq!((gap("SDET 8"), gap("SDET 10")), (59.0, 9.0), "not 32 %");
    }

    #[test]
    fn how_sure_a_rank_is() {
        assert_eq!(faster((1.0, 0.0), (2.0, 0.0)), 1.0);
        assert!((faster((1.0, 3.0), (1.0, 4.0)) - 0.5).abs() < 1e-7);
        assert!((faster((0.0, 3.0), (9.8, 4.0)) - 0.975).abs() < 1e-4);
        assert!((faster((9.8, 3.0), (0.0, 4.0)) - 0.025).abs() < 1e-4);
        assert_eq!(accuracy(&[]), None);
    }
}
