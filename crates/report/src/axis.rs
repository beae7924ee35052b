//! An axis: its scale, and where its marks are.

/// An axis of a plot.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it shows, with the unit.
    pub label: String,
    /// Whether equal ratios are equally far. Values that are not positive are then left out.
    pub log: bool,
    /// The least value that must be seen, beside the points.
    pub from: Option<f64>,
}

impl Axis {
    /// A linear axis.
    pub fn new(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), log: false, from: None }
    }
    /// A logarithmic axis.
    pub fn log(label: impl Into<String>) -> Axis {
        Axis { log: true, ..Axis::new(label) }
    }
    /// An axis that shows `from` too.
    pub fn from(self, from: f64) -> Axis {
        Axis { from: Some(from), ..self }
    }

    /// Whether a value can be shown.
    pub(crate) fn shows(&self, value: f64) -> bool {
        value.is_finite() && (!self.log || value > 0.0)
    }

    /// The axis with the range of `values`.
    pub(crate) fn scale(&self, values: impl Iterator<Item = f64>) -> Scale {
        let of = |value: f64| if self.log { value.log10() } else { value };
        let all = values.chain(self.from).filter(|value| self.shows(*value)).map(of);
        let (low, high) = all.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = match () {
            () if low > high => (0.0, 1.0),
            () if high - low > 1e-9 * high.abs().max(1e-300) => (low, high),
            () if self.log => (low - 0.5, high + 0.5),
            () if high == 0.0 => (0.0, 1.0),
            () => (low.min(0.0), high.max(0.0)),
        };
        let marks = if self.log { log_marks(low, high) } else { linear_marks(low, high) };
        Scale { log: self.log, low, high, marks }
    }
}

/// An axis with its range.
#[derive(Debug)]
pub(crate) struct Scale {
    log: bool,
    low: f64,
    high: f64,
    /// Values with a mark.
    pub marks: Vec<f64>,
}

impl Scale {
    /// How far along the axis a value is, from 0 to 1.
    pub fn at(&self, value: f64) -> f64 {
        let value = if self.log { value.log10() } else { value };
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

/// Up to seven multiples of 1, 2 or 5 times a power of ten.
fn linear_marks(low: f64, high: f64) -> Vec<f64> {
    let raw = (high - low) / 5.0;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|step| *step >= raw).unwrap_or(raw);
    let first = (low / step).ceil();
    let marks = (0..8).map(|index| (first + f64::from(index)) * step);
    marks.take_while(|mark| *mark <= high + step * 1e-9).collect()
}

/// Powers of ten, at most some eight; where there are too few, also twice and five times those.
fn log_marks(low: f64, high: f64) -> Vec<f64> {
    let every = ((high - low) / 8.0).ceil().max(1.0);
    let within = |mark: &f64| (low - 1e-9..=high + 1e-9).contains(&mark.log10());
    let powers = (0..=((high - low) / every) as i32 + 1).map(|index| low.floor() + every * f64::from(index));
    let powers: Vec<f64> = powers.map(|power| 10f64.powf(power)).collect();
    let marks: Vec<f64> = powers.iter().copied().filter(within).collect();
    if marks.len() >= 3 {
        return marks;
    }
    powers.iter().flat_map(|power| [*power, 2.0 * power, 5.0 * power]).filter(within).collect()
}
