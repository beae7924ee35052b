//! The seek curve.
//!
//! Three parts: constant (time to settle) up to a few cylinders, then growing with the square root of the distance, then
//! linear (Ruemmler and Wilkes 1994 for the last two; Schlosser et al., FAST '05, for the first). The square root ends at
//! a third of the stroke, where the average seek of the data sheet is reached. The slope of the linear part is not
//! published; it is solved so that the mean over uniformly random pairs of cylinders is that average as well.

/// Seek time by distance.
#[derive(Clone, Debug)]
pub struct SeekCurve {
    settle_ns: u64,
    settle_cylinders: u32,
    knee: u32,
    average_ns: f64,
    root_ns: f64,
    slope_ns: f64,
}

impl SeekCurve {
    /// A curve for a drive of `cylinders` (at least 12, more than four times the settle range), with
    /// `settle_ns` < `average_ns`.
    pub fn new(cylinders: u32, settle_cylinders: u32, settle_ns: u64, average_ns: u64) -> SeekCurve {
        let knee = cylinders / 3;
        let rise = (average_ns - settle_ns) as f64;
        let mut curve = SeekCurve {
            settle_ns,
            settle_cylinders,
            knee,
            average_ns: average_ns as f64,
            root_ns: rise / f64::from(knee - settle_cylinders).sqrt(),
            slope_ns: 0.0,
        };
        // The mean grows linearly with the slope: mean(slope) = mean(0) + slope * E[distance past the knee].
        let (flat, past_knee) = curve.moments(cylinders);
        curve.slope_ns = (average_ns as f64 - flat) / past_knee;
        curve
    }

    /// The mean over random pairs with the present slope, and the mean distance past the knee.
    fn moments(&self, cylinders: u32) -> (f64, f64) {
        let all = f64::from(cylinders);
        let (mut mean, mut past, mut weights) = (0.0, 0.0, 0.0);
        // A sample of distances is enough: the curve is smooth, and drives have hundreds of thousands of cylinders.
        let step = (cylinders / 20_000).max(1);
        for distance in (0..cylinders).step_by(step as usize) {
            let weight = all - f64::from(distance);
            mean += weight * self.raw(distance);
            past += weight * f64::from(distance.saturating_sub(self.knee));
            weights += weight;
        }
        (mean / weights, past / weights)
    }

    fn raw(&self, distance: u32) -> f64 {
        if distance <= self.settle_cylinders {
            self.settle_ns as f64
        } else if distance <= self.knee {
            self.settle_ns as f64 + self.root_ns * f64::from(distance - self.settle_cylinders).sqrt()
        } else {
            self.average_ns + self.slope_ns * f64::from(distance - self.knee)
        }
    }

    /// Time to move the arm over `distance` cylinders and to settle; over no distance, to settle on another track of
    /// the same cylinder.
    pub fn time_ns(&self, distance: u32) -> u64 {
        if distance <= self.settle_cylinders { self.settle_ns } else { self.raw(distance) as u64 }
    }

    /// Time for the whole stroke.
    pub fn full_stroke_ns(&self, cylinders: u32) -> u64 {
        self.time_ns(cylinders - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_over_random_pairs_is_the_average_of_the_data_sheet() {
        let curve = SeekCurve::new(70_000, 65, 740_000, 3_600_000);
        let (mut sum, mut weights) = (0u128, 0u128);
        for distance in 0..70_000u32 {
            let weight = u128::from(70_000 - distance);
            sum += weight * u128::from(curve.time_ns(distance));
            weights += weight;
        }
        let mean = (sum / weights) as f64;
        assert!((mean / 3_600_000.0 - 1.0).abs() < 0.002, "{mean}");
    }

    #[test]
    fn longer_seeks_take_longer() {
        let curve = SeekCurve::new(70_000, 65, 740_000, 3_600_000);
        assert_eq!(curve.time_ns(0), curve.time_ns(65));
        assert!((65..69_999).all(|d| curve.time_ns(d) <= curve.time_ns(d + 1)));
        assert!(curve.time_ns(66) > curve.time_ns(65));
        assert_eq!(curve.time_ns(70_000 / 3), 3_600_000);
    }
}
