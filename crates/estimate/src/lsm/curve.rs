//! The primitives from tables, for thousands of evaluations.
//!
//! Kept is ln(-ln(1 - share of keys)) by the logarithm of requests, with its derivative, and between the places a cubic.
//! For uniform keys that is a straight line, and close to one otherwise; [`Popularity`] is met to 10^-6.

use super::popularity::{Keys, Popularity};

/// Distance of places, in ln(requests).
const STEP: f64 = 0.125;
/// Where so small a share of keys is left, the table ends.
const LEFT_MIN: f64 = 1e-11;

/// A function as places with values and slopes.
#[derive(Clone, Debug)]
struct Table {
    /// (value, slope) at x = STEP * index; values increase.
    places: Vec<(f64, f64)>,
}

impl Table {
    /// The table of a function that gives -ln(1 - share) and its derivative at some requests.
    fn new(function: impl Fn(f64) -> (f64, f64)) -> Table {
        let mut places: Vec<(f64, f64)> = Vec::new();
        for index in 0..2000 {
            let x = (f64::from(index) * STEP).exp();
            let (value, slope) = function(x);
            let usable = value.is_finite() && slope.is_finite() && (-value).exp() > LEFT_MIN;
            let rises = places.last().is_none_or(|(last, _)| value.ln() > *last);
            if !(usable && rises) {
                break;
            }
            places.push((value.ln(), slope * x / value));
        }
        Table { places }
    }

    /// The value at x = ln(requests); beyond the ends as straight lines.
    fn at(&self, x: f64) -> f64 {
        let last = self.places.len() - 1;
        if x <= 0.0 {
            let (value, slope) = self.places[0];
            return value + slope * x;
        }
        let index = (x / STEP) as usize;
        if index >= last {
            let (value, slope) = self.places[last];
            return value + slope * (x - last as f64 * STEP);
        }
        self.between(index, x / STEP - index as f64)
    }

    /// The cubic from place `index`, at `t` from 0 to 1.
    fn between(&self, index: usize, t: f64) -> f64 {
        let ((from, from_slope), (to, to_slope)) = (self.places[index], self.places[index + 1]);
        let (t2, t3) = (t * t, t * t * t);
        from * (2.0 * t3 - 3.0 * t2 + 1.0)
            + STEP * from_slope * (t3 - 2.0 * t2 + t)
            + to * (3.0 * t2 - 2.0 * t3)
            + STEP * to_slope * (t3 - t2)
    }

    /// The x at which the table has a value.
    fn inverse(&self, value: f64) -> f64 {
        let last = self.places.len() - 1;
        if value <= self.places[0].0 {
            return (value - self.places[0].0) / self.places[0].1;
        }
        if value >= self.places[last].0 {
            return last as f64 * STEP + (value - self.places[last].0) / self.places[last].1;
        }
        let index = self.places.partition_point(|(place, _)| *place <= value) - 1;
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..48 {
            let middle = (low + high) / 2.0;
            if self.between(index, middle) < value { low = middle } else { high = middle }
        }
        (index as f64 + low) * STEP
    }
}

/// [`Keys`] from tables.
#[derive(Clone, Debug)]
pub struct Curve {
    keys: f64,
    unique: Table,
    filled: Table,
}

impl Curve {
    /// The tables of a popularity.
    pub fn new(popularity: &Popularity) -> Curve {
        Curve {
            keys: popularity.keys(),
            unique: Table::new(|requests| popularity.absent(requests)),
            filled: Table::new(|interval| popularity.filled(interval)),
        }
    }

    fn part(&self, table: &Table, requests: f64) -> f64 {
        if requests <= 0.0 {
            return 0.0;
        }
        -self.keys * (-table.at(requests.ln()).exp()).exp_m1()
    }

    fn inverse(&self, table: &Table, items: f64) -> f64 {
        if items >= self.keys * (1.0 - 1e-12) {
            return f64::INFINITY;
        }
        if items <= 0.0 { 0.0 } else { table.inverse((-(-items / self.keys).ln_1p()).ln()).exp() }
    }
}

impl Keys for Curve {
    fn keys(&self) -> f64 {
        self.keys
    }
    fn unique(&self, requests: f64) -> f64 {
        if requests.is_infinite() { self.keys } else { self.part(&self.unique, requests) }
    }
    fn requests(&self, unique: f64) -> f64 {
        self.inverse(&self.unique, unique)
    }
    fn dinterval(&self, size: f64) -> f64 {
        self.inverse(&self.filled, size)
    }
}
