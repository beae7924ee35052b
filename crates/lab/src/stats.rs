//! What repeated measurements say: mean, confidence interval, and whether they scatter too much (FAST '10, section 3).

use ashlar_models::student_quantile;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// A coefficient of variation above this is flagged, by the paper with a dagger.
pub const SCATTER: f64 = 0.4;

/// Mean and interval of some measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Interval {
    /// How many there are.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Half the width of the 95 % interval by Student's distribution; null for one measurement.
    pub half_width: Option<f64>,
    /// Standard deviation divided by the mean; null for one measurement.
    pub variation: Option<f64>,
    /// They scatter too much: the coefficient of variation is above 40 %.
    pub scattered: bool,
}

impl Interval {
    /// Of measurements; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Interval> {
        let count = values.len() as f64;
        if values.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count;
        if values.len() == 1 {
            return Some(Interval { count: 1, mean, half_width: None, variation: None, scattered: false });
        }
        let deviation = (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0)).sqrt();
        let variation = if deviation == 0.0 { 0.0 } else { deviation / mean.abs() };
        Some(Interval {
            count: values.len() as u64,
            mean,
            half_width: Some(student_quantile(0.975, count - 1.0) * deviation / count.sqrt()),
            variation: Some(variation),
            scattered: variation > SCATTER,
        })
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", ashlar_report::number(self.mean))?;
        if let Some(half) = self.half_width {
            write!(f, " ± {}", ashlar_report::number(half))?;
        }
        f.write_str(if self.scattered { " †" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The digest of FAST '10, check 10. By hand: mean 10.2, deviation sqrt(0.7) = 0.83666, 2.77645 * 0.83666 / sqrt(5).
    #[test]
    fn intervals_match_a_reference_to_four_digits() {
        let found = Interval::of(&[9.0, 10.0, 11.0, 10.5, 10.5]).expect("some");
        assert!((found.mean - 10.2).abs() < 1e-12);
        let deviation = (2.3f64 / 4.0).sqrt();
        assert!((found.half_width.expect("five") - 2.776_445 * deviation / 5f64.sqrt()).abs() < 1e-4, "{found:?}");
        assert!((found.half_width.expect("five") - 0.9415).abs() < 5e-5, "{found:?}");
        assert!((found.variation.expect("five") - 0.074_34).abs() < 1e-4 && !found.scattered, "{found:?}");
        assert_eq!(Interval::of(&[]), None);
        assert_eq!(Interval::of(&[3.0]).expect("one").half_width, None);
    }

    #[test]
    fn scattered_measurements_are_flagged() {
        let scattered = Interval::of(&[1.0, 2.0, 3.0]).expect("some");
        assert!(scattered.scattered && scattered.to_string().ends_with('†'), "{scattered}");
        // Its coefficient of variation is 0.39.
        assert!(!Interval::of(&[0.61, 1.0, 1.39]).expect("some").scattered);
        assert!(Interval::of(&[0.59, 1.0, 1.41]).expect("some").scattered);
    }

    // The digest of FAST '10, check 2.
    #[test]
    fn arithmetic_of_the_paper() {
        let near = |found: f64, expected: f64, by: f64| assert!((found - expected).abs() < by, "{found} {expected}");
        near(8160.0 / 239.0, 34.1, 0.05);
        near(70992.0 * 1.08 / 8160.0, 9.4, 0.05);
        near(1.29 / 0.96, 1.34, 0.005);
        near(1.08 / 1.25, 0.86, 0.005);
    }
}
