//! When in their life disks fail, if humid times wear them instead of killing them (section 5, observation 7 of the paper).
//!
//! In one site failures clustered in the second humid summer, not in the first: humidity consumes life at a rate, and what is
//! consumed decides. A rate that knows no past cannot give that. Here the same number of controllers fails by the end, but
//! with the consumed life in the place of time in a Weibull distribution.
//!
//! Departs: the paper's formula 4, which it fits and validates, has no memory; the shape is ours.

use super::Parameters;

/// Parts of the disks whose controllers fail in each month, of disks that are new in the first. Months are mean conditions:
/// degrees Celsius and percent. With a `shape` of 1 nothing is remembered.
pub fn failures_by_month(parameters: &Parameters, months: &[(f64, f64)], shape: f64) -> Vec<f64> {
    let rate = |(celsius, percent): &(f64, f64)| parameters.hazard(*celsius, *percent).controller / 12.0;
    let all: f64 = months.iter().map(rate).sum();
    // What has failed when a part of the life that all months consume together is gone.
    let failed = |consumed: f64| 1.0 - (-all * (consumed / all).powf(shape)).exp();
    let mut consumed = 0.0;
    let month = |month: &(f64, f64)| {
        let before = failed(consumed);
        consumed += rate(month);
        failed(consumed) - before
    };
    months.iter().map(month).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_remembered_clusters_in_the_second_summer() {
        // Two years from autumn on, like HH1: dry winters, humid summers.
        let months: Vec<(f64, f64)> = (0..24)
            .map(|month| {
                let season = -(std::f64::consts::TAU * (f64::from(month) + 9.0) / 12.0).cos();
                (24.5 + 3.0 * season, 43.0 + 25.0 * season)
            })
            .collect();
        let wettest = |year: usize| {
            let of_year = (12 * year..12 * year + 12).max_by(|one, other| months[*one].1.total_cmp(&months[*other].1));
            let middle = of_year.expect("months");
            middle - 1..middle + 2
        };
        let parameters = Parameters::default();
        let summers = |shape: f64| {
            let failed = failures_by_month(&parameters, &months, shape);
            let sum = |months: std::ops::Range<usize>| failed[months].iter().sum::<f64>() / 3.0;
            let all = failed.iter().sum::<f64>();
            let others = (all - 3.0 * sum(wettest(1))) / 21.0;
            (sum(wettest(1)) / sum(wettest(0)), sum(wettest(1)) / others, all)
        };
        let (between, above, all) = summers(1.0);
        assert!((between - 1.0).abs() < 0.05, "both summers are equal without memory: {between}");
        let (between_kept, above_kept, all_kept) = summers(3.0);
        // The paper has four to five times the daily rate, in the second summer only.
        assert!(between_kept > 4.0 && above_kept > 1.5 * above, "{between_kept} {above_kept} {above}");
        assert!((all_kept - all).abs() < 1e-12);
    }
}
