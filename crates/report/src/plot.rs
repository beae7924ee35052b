//! What a plot shows.

use crate::Axis;

/// Where numbers come from; every plot says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Measured on a machine.
    Measured,
    /// From an emulated device.
    Emulated,
    /// From a model.
    Modelled,
    /// From a part of the data.
    Sampled,
}

impl Origin {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Origin::Measured => "measured",
            Origin::Emulated => "emulated",
            Origin::Modelled => "modelled",
            Origin::Sampled => "sampled",
        }
    }
}

/// A value of a series, with its range if there is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Where on the horizontal axis; of bars, the index of the category.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// The least and the most it may be.
    pub range: Option<(f64, f64)>,
}

/// Points that belong together.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<Point>,
}

impl Series {
    /// A line through points.
    pub fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        let points = points.into_iter().map(|(x, y)| Point { x, y, range: None });
        Series { name: name.into(), points: points.collect() }
    }
    /// A line with a range about it: x, value, least, most.
    pub fn ranges(name: impl Into<String>, points: Vec<(f64, f64, f64, f64)>) -> Series {
        let points = points.into_iter().map(|(x, y, low, high)| Point { x, y, range: Some((low, high)) });
        Series { name: name.into(), points: points.collect() }
    }
    /// A bar for each category.
    pub fn bars(name: impl Into<String>, values: Vec<f64>) -> Series {
        Series::line(name, values.into_iter().enumerate().map(|(index, value)| (index as f64, value)).collect())
    }
    /// A bar for each category, with its range: value, least, most.
    pub fn bar_ranges(name: impl Into<String>, values: Vec<(f64, f64, f64)>) -> Series {
        let points = values.into_iter().enumerate().map(|(index, (y, low, high))| (index as f64, y, low, high));
        Series::ranges(name, points.collect())
    }
}

/// A plot of lines or bars.
#[derive(Clone, Debug)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Names of the bars; of a plot of lines none.
    pub categories: Vec<String>,
    /// What is drawn.
    pub series: Vec<Series>,
    /// Where the numbers come from.
    pub origin: Origin,
}

impl Plot {
    /// A plot of lines.
    pub fn lines(title: impl Into<String>, x: Axis, y: Axis, origin: Origin) -> Plot {
        Plot { title: title.into(), x, y, categories: Vec::new(), series: Vec::new(), origin }
    }
    /// A plot of bars, grouped by category.
    pub fn bars(title: impl Into<String>, categories: Vec<String>, y: Axis, origin: Origin) -> Plot {
        let y = if y.log || y.from.is_some() { y } else { y.from(0.0) };
        Plot { title: title.into(), x: Axis::new(""), y, categories, series: Vec::new(), origin }
    }
    /// The plot with one more series.
    pub fn with(mut self, series: Series) -> Plot {
        self.series.push(series);
        self
    }
    /// Points that can be shown.
    pub(crate) fn shown<'a>(&'a self, series: &'a Series) -> impl Iterator<Item = &'a Point> {
        series.points.iter().filter(|point| {
            let category = self.categories.is_empty() || (point.x as usize) < self.categories.len() && point.x >= 0.0;
            self.y.shows(point.y) && if self.categories.is_empty() { self.x.shows(point.x) } else { category }
        })
    }
}
