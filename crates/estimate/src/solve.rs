//! Roots of monotone functions.

/// Steps of Newton's method or bisection; twice what any of our functions took.
const STEPS_MAX: usize = 200;

/// The positive `x` at which an increasing function has the value `target`: Newton's method, kept in a bracket. `function`
/// gives value and derivative at `x`; `guess` is positive.
pub fn root(target: f64, guess: f64, function: impl Fn(f64) -> (f64, f64)) -> f64 {
    let (mut low, mut high) = (0.0, f64::INFINITY);
    let mut x = guess;
    for _ in 0..STEPS_MAX {
        let (value, slope) = function(x);
        if value < target {
            low = x
        } else {
            high = x
        }
        let newton = x + (target - value) / slope;
        let inside = newton.is_finite() && newton > low && newton < high;
        let next = match () {
            () if inside => newton,
            () if high.is_infinite() => 4.0 * x,
            () if low == 0.0 => x / 4.0,
            () => (low + high) / 2.0,
        };
        if (next - x).abs() <= 1e-13 * x || high.is_finite() && high - low <= 1e-15 * high {
            return next;
        }
        x = next;
    }
    x
}
