//! From trials with several bit flips each to the probability that one flip does harm (section 6 of the paper), and from
//! rates of memory errors to harmful events.

/// Half of what lies outside of a 95% interval.
const TAIL: f64 = 0.025;
/// Halvings of an interval: more than a double can tell apart.
const HALVINGS: u32 = 200;

/// A probability and its 95% interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Best guess.
    pub value: f64,
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

impl Estimate {
    /// Of something that came `count` times in `trials`, with the exact interval (Clopper and Pearson).
    pub fn of(count: u32, trials: u32) -> Estimate {
        let value = f64::from(count) / f64::from(trials);
        // Where all or none of the trials agree, the interval has one side.
        let tail = if count == 0 || count == trials { 2.0 * TAIL } else { TAIL };
        let low = if count == 0 { 0.0 } else { solve(|p| 1.0 - at_most(count - 1, trials, p) < tail) };
        let high = if count == trials { 1.0 } else { solve(|p| at_most(count, trials, p) > tail) };
        Estimate { value, low, high }
    }

    /// If each trial had `flips` flips: the probability of harm by one, when this is that of harm by any.
    pub fn one_flip(self, flips: u32) -> Estimate {
        let one = |p: f64| 1.0 - (1.0 - p).powf(1.0 / f64::from(flips));
        Estimate { value: one(self.value), low: one(self.low), high: one(self.high) }
    }

    /// The same for no harm: all flips must have been harmless.
    pub fn one_flip_harmless(self, flips: u32) -> Estimate {
        let one = |p: f64| p.powf(1.0 / f64::from(flips));
        Estimate { value: one(self.value), low: one(self.low), high: one(self.high) }
    }
}

/// The largest probability for which `holds`, which holds up to some point.
fn solve(holds: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (0.0f64, 1.0f64);
    for _ in 0..HALVINGS {
        let middle = low.midpoint(high);
        if holds(middle) { low = middle } else { high = middle }
    }
    low
}

/// Probability of at most `count` successes.
fn at_most(count: u32, trials: u32, p: f64) -> f64 {
    let (p, q) = (p.max(f64::MIN_POSITIVE), (1.0 - p).max(f64::MIN_POSITIVE));
    let mut choose_ln = 0.0;
    let mut sum = 0.0;
    for k in 0..=count {
        let (done, left) = (f64::from(k), f64::from(trials - k));
        sum += (choose_ln + done * p.ln() + left * q.ln()).exp();
        choose_ln += (left / (done + 1.0)).ln();
    }
    sum
}

/// Memory errors in an hour, for so much memory and so many failures in 10^9 hours and megabit.
pub fn errors_per_hour(memory_mebibytes: u64, failures_per_megabit: u64) -> f64 {
    memory_mebibytes as f64 * 8.0 * failures_per_megabit as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table 6 of the paper: workload, failure, count of 100 trials, bounds, and what is printed for one flip (in percent).
    const TABLE: [(&str, char, u32, [u32; 2], f64); 16] = [
        ("varmail", 'R', 9, [4, 17], 0.6),
        ("oltp", 'R', 26, [17, 36], 1.9),
        ("webserver", 'R', 11, [5, 19], 0.7),
        ("fileserver", 'R', 69, [58, 78], 7.1),
        ("varmail", 'W', 0, [0, 3], 0.0),
        ("oltp", 'W', 2, [0, 8], 0.1),
        ("webserver", 'W', 20, [12, 30], 1.4),
        ("fileserver", 'W', 44, [34, 55], 3.6),
        ("varmail", 'C', 5, [1, 12], 0.3),
        ("oltp", 'C', 16, [9, 25], 1.1),
        ("webserver", 'C', 19, [11, 29], 1.3),
        ("fileserver", 'C', 23, [15, 33], 1.6),
        ("varmail", 'S', 86, [77, 93], 99.1),
        ("oltp", 'S', 60, [49, 70], 96.9),
        ("webserver", 'S', 61, [50, 71], 97.0),
        ("fileserver", 'S', 28, [19, 38], 92.4),
    ];
    /// The printed intervals for one flip, in percent.
    const ONE_FLIP: [(&str, char, f64, f64); 16] = [
        ("varmail", 'R', 0.2, 1.2),
        ("oltp", 'R', 1.2, 2.8),
        ("webserver", 'R', 0.3, 1.3),
        ("fileserver", 'R', 5.4, 9.0),
        ("varmail", 'W', 0.0, 0.2),
        ("oltp", 'W', 0.0, 0.5),
        ("webserver", 'W', 0.8, 2.2),
        ("fileserver", 'W', 2.5, 4.8),
        ("varmail", 'C', 0.1, 0.8),
        ("oltp", 'C', 0.6, 1.8),
        ("webserver", 'C', 0.7, 2.1),
        ("fileserver", 'C', 1.0, 2.5),
        ("varmail", 'S', 98.4, 99.5),
        ("oltp", 'S', 95.7, 97.8),
        ("webserver", 'S', 95.8, 97.9),
        ("fileserver", 'S', 90.2, 94.2),
    ];

    fn one(failure: char, estimate: Estimate) -> Estimate {
        if failure == 'S' { estimate.one_flip_harmless(16) } else { estimate.one_flip(16) }
    }

    #[test]
    fn table_6_is_what_the_rules_give() {
        for (workload, failure, count, [low, high], printed) in TABLE {
            let estimate = Estimate::of(count, 100);
            let place = format!("{workload} {failure}");
            // Bounds are rounded outward.
            assert_eq!((estimate.low * 100.0).floor() as u32, low, "{place}: {estimate:?}");
            assert_eq!((estimate.high * 100.0).ceil() as u32, high, "{place}: {estimate:?}");
            let value = one(failure, estimate).value * 100.0;
            assert_eq!((value * 10.0).round(), printed * 10.0, "{place}: {value}");
        }
    }

    #[test]
    fn intervals_for_one_flip_are_the_transformed_ones() {
        for (workload, failure, low, high) in ONE_FLIP {
            let row = TABLE.iter().find(|row| (row.0, row.1) == (workload, failure)).expect("a row");
            let estimate = one(failure, Estimate::of(row.2, 100));
            let tenths = |percent: f64| (percent * 10.0).round();
            let found = [(estimate.low * 1000.0).floor(), (estimate.high * 1000.0).ceil()];
            assert_eq!(found, [tenths(low), tenths(high)], "{workload} {failure}: {estimate:?}");
        }
    }

    #[test]
    fn expected_memory_errors_are_the_papers() {
        // 2 GiB = 16,384 megabits, at 25,000 to 70,000 failures in 10^9 hours and megabit.
        let rates = [25_000, 70_000].map(|failures| errors_per_hour(2048, failures));
        assert_eq!(rates.map(|rate| (rate * 100.0).round()), [41.0, 115.0]);
        // A day of varmail: harmful reads, at the probability for one flip.
        let harmful = rates.map(|rate| rate * 24.0 * Estimate::of(9, 100).one_flip(16).value);
        assert_eq!(harmful.map(|events| (events * 1000.0).round()), [58.0, 162.0]);
    }
}
