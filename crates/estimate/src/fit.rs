//! What failures of a fleet say about their causes: curves through rates, and correlations.

/// A fitted curve and how much of the variance it explains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// a of a x + b, or of a exp(b x).
    pub a: f64,
    /// b.
    pub b: f64,
    /// R squared, of the rates themselves.
    pub explained: f64,
}

/// Fits a x + b. Needs two different x.
pub fn linear(points: &[(f64, f64)]) -> Option<Fit> {
    let (x, y) = means(points);
    let (mut xx, mut xy) = (0.0, 0.0);
    points.iter().for_each(|point| {
        xx += (point.0 - x).powi(2);
        xy += (point.0 - x) * (point.1 - y);
    });
    let a = xy / xx;
    let b = y - a * x;
    a.is_finite().then(|| Fit { a, b, explained: explained(points, |x| a * x + b) })
}

/// Fits a exp(b x), by the logarithms of rates that are above zero.
pub fn exponential(points: &[(f64, f64)]) -> Option<Fit> {
    let logs: Vec<(f64, f64)> =
        points.iter().filter(|point| point.1 > 0.0).map(|point| (point.0, point.1.ln())).collect();
    let Fit { a: b, b: log, .. } = linear(&logs)?;
    let a = log.exp();
    Some(Fit { a, b, explained: explained(points, |x| a * (b * x).exp()) })
}

/// Correlation of Pearson.
pub fn pearson(points: &[(f64, f64)]) -> f64 {
    let (x, y) = means(points);
    let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
    points.iter().for_each(|point| {
        xx += (point.0 - x).powi(2);
        xy += (point.0 - x) * (point.1 - y);
        yy += (point.1 - y).powi(2);
    });
    xy / (xx * yy).sqrt()
}

/// Correlation of Spearman: that of the ranks.
pub fn spearman(points: &[(f64, f64)]) -> f64 {
    let x = ranks(points.iter().map(|point| point.0).collect());
    let y = ranks(points.iter().map(|point| point.1).collect());
    pearson(&x.into_iter().zip(y).collect::<Vec<_>>())
}

/// The rank of each value, from 0 on; equal values share the middle of theirs.
fn ranks(values: Vec<f64>) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|one, other| values[*one].total_cmp(&values[*other]));
    let mut ranks = vec![0.0; values.len()];
    let mut below = 0;
    for equal in order.chunk_by(|one, other| values[*one] == values[*other]) {
        let middle = below as f64 + (equal.len() as f64 - 1.0) / 2.0;
        equal.iter().for_each(|index| ranks[*index] = middle);
        below += equal.len();
    }
    ranks
}

fn means(points: &[(f64, f64)]) -> (f64, f64) {
    let (x, y) = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
    (x / points.len() as f64, y / points.len() as f64)
}

fn explained(points: &[(f64, f64)], curve: impl Fn(f64) -> f64) -> f64 {
    let (_, mean) = means(points);
    let (left, all) = points
        .iter()
        .fold((0.0, 0.0), |(left, all), (x, y)| (left + (y - curve(*x)).powi(2), all + (y - mean).powi(2)));
    1.0 - left / all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Parameters;
    use ashlar_models::Chance;

    #[test]
    fn curves_are_found_again() {
        let points: Vec<(f64, f64)> = (0..20).map(|x| (f64::from(x), 3.0 * f64::from(x) - 2.0)).collect();
        let fit = linear(&points).expect("a line");
        assert!((fit.a - 3.0).abs() < 1e-9 && (fit.b + 2.0).abs() < 1e-9 && fit.explained > 0.999);
        let points: Vec<(f64, f64)> = (0..20).map(|x| (f64::from(x), 0.5 * (0.1 * f64::from(x)).exp())).collect();
        let fit = exponential(&points).expect("a curve");
        assert!((fit.b - 0.1).abs() < 1e-9 && (fit.a - 0.5).abs() < 1e-9);
        assert!((spearman(&points) - 1.0).abs() < 1e-12 && pearson(&points) < 1.0);
        assert_eq!(linear(&[(1.0, 2.0), (1.0, 3.0)]), None);
    }

    /// A month of a population: means and coefficients of variation of its days, and the rate of controller failures.
    struct Month {
        temperature: f64,
        humidity: f64,
        humidity_variation: f64,
        rate: f64,
    }

    /// Months of a site like HH1, where controllers fail by formula 4 and by chance.
    fn months(disks: f64, chance: &mut Chance) -> Vec<Month> {
        let parameters = Parameters::default();
        let months = (0..24).map(|month| {
            let season = -(std::f64::consts::TAU * f64::from(month) / 12.0).cos();
            // Warmer months come a little before the humid ones.
            let warm = -(std::f64::consts::TAU * (f64::from(month) + 2.5) / 12.0).cos();
            let days: Vec<(f64, f64)> = (0..30)
                .map(|_| {
                    let humidity = 43.0 + 24.0 * season + 6.0 * chance.normal();
                    (24.5 + 2.5 * warm + chance.normal(), humidity.clamp(5.0, 95.0))
                })
                .collect();
            let mean = |of: fn(&(f64, f64)) -> f64| days.iter().map(of).sum::<f64>() / 30.0;
            let (temperature, humidity) = (mean(|day| day.0), mean(|day| day.1));
            let deviation = (days.iter().map(|day| (day.1 - humidity).powi(2)).sum::<f64>() / 30.0).sqrt();
            let expected = disks * parameters.mean(days.iter().copied()).controller / 12.0;
            let failed = (expected + expected.sqrt() * chance.normal()).max(0.0);
            Month { temperature, humidity, humidity_variation: deviation / humidity, rate: failed / disks }
        });
        months.collect()
    }

    #[test]
    fn the_fits_of_the_paper_find_humidity_and_are_misled_by_variation() {
        let mut chance = Chance::new(3);
        // The four populations of HH1.
        for part in [0.301, 0.256, 0.233, 0.196] {
            let months = months(168_000.0 * part, &mut chance);
            let by = |of: fn(&Month) -> f64| months.iter().map(|month| (of(month), month.rate)).collect::<Vec<_>>();
            let humidity = exponential(&by(|month| month.humidity)).expect("a curve");
            assert!((humidity.b / 0.0455 - 1.0).abs() < 0.2, "{humidity:?}");
            assert!(humidity.explained > 0.7, "{humidity:?}");
            let temperature = exponential(&by(|month| month.temperature)).expect("a curve");
            assert!(temperature.explained < 0.5, "{temperature:?}");
            // Nothing fails for the sake of variation; it is merely highest when it is dry.
            let variation = linear(&by(|month| month.humidity_variation)).expect("a line");
            assert!(variation.a < 0.0, "{variation:?}");
            assert!(spearman(&by(|month| month.humidity)) > 0.8);
        }
    }
}
