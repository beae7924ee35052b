//! Probabilities and quantiles of distributions, by `statrs`.

use statrs::distribution::{Continuous, ContinuousCDF, Normal, StudentsT};

/// The probability that a standard normal number lies below `z`.
pub fn normal_below(z: f64) -> f64 {
    Normal::standard().cdf(z)
}

/// The number that a standard normal one lies below with a probability from 0 to 1.
///
/// # Panics
/// If the probability is not within 0 and 1.
pub fn normal_quantile(probability: f64) -> f64 {
    Normal::standard().inverse_cdf(probability)
}

/// The number that one of Student's distribution lies below with a probability from 0 to 1; `freedom` are the degrees of
/// freedom, above zero, and infinite is the normal distribution. No number if `freedom` is not above zero.
///
/// # Panics
/// If the probability is not within 0 and 1.
pub fn student_quantile(probability: f64, freedom: f64) -> f64 {
    // Beyond, the beta functions have no digits left, and the two distributions differ by less than 1e-7.
    if freedom > 1e8 {
        return normal_quantile(probability);
    }
    let Ok(student) = StudentsT::new(0.0, 1.0, freedom) else { return f64::NAN };
    let mut at = student.inverse_cdf(probability);
    // With many degrees of freedom that is right to four digits only; Newton's method finds the others.
    for _ in 0..4 {
        let step = (student.cdf(at) - probability) / student.pdf(at);
        at -= if step.is_finite() { step } else { 0.0 };
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    // Tables of Student's distribution, two-sided 95 % (as in R's `qt(0.975, freedom)`).
    #[test]
    fn quantiles_of_student_are_those_of_the_tables() {
        for (freedom, expected) in [
            (1.0, 12.7062),
            (2.0, 4.3027),
            (3.0, 3.1824),
            (4.0, 2.7764),
            (5.0, 2.5706),
            (9.0, 2.2622),
            (10.0, 2.2281),
            (29.0, 2.0452),
            (120.0, 1.9799),
            (1e6, 1.9600),
            (1e9, 1.9600),
            (f64::INFINITY, 1.9600),
        ] {
            let found = student_quantile(0.975, freedom);
            assert!((found - expected).abs() < 5e-5 * expected.max(1.0), "{freedom}: {found} {expected}");
            assert!((student_quantile(0.025, freedom) + found).abs() < 1e-9 * found, "{freedom}");
        }
        // A quarter of a turn of the arc tangent, exactly.
        assert!((student_quantile(0.75, 1.0) - 1.0).abs() < 1e-9);
        assert!(student_quantile(0.975, 0.0).is_nan() && student_quantile(0.975, f64::NAN).is_nan());
    }

    // Abramowitz and Stegun, table 26.1 and 26.5.
    #[test]
    fn the_normal_distribution_is_that_of_the_tables() {
        for (z, expected) in [(0.0, 0.5), (1.0, 0.841_344_746_1), (1.96, 0.975_002_104_9), (-3.0, 0.001_349_898_0)] {
            assert!((normal_below(z) - expected).abs() < 1e-9, "{z}: {}", normal_below(z));
            assert!((normal_quantile(expected) - z).abs() < 1e-6, "{z}: {}", normal_quantile(expected));
        }
    }
}
