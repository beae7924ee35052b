//! The report of an ageing as a page.

use super::{Done, Point};
use crate::layout::Layout;
use ashlar_report::{Axis, Origin, Plot, Series, escape, number, page as html_page};
use ashlar_units::Bytes;
use std::fmt::Write;

/// Ageing as a page: the layout over time, and at the end.
pub fn page(title: &str, what: &str, done: &Done, points: &[Point], layout: &Layout, emulated: bool) -> String {
    let origin = if emulated { Origin::Emulated } else { Origin::Measured };
    let mut body = format!("<p>{}</p>\n", escape(what));
    let _ = writeln!(body, "<p>{done}.</p>");
    let line = |name: &str, of: &dyn Fn(&Point) -> Option<f64>| {
        Series::line(name, points.iter().filter_map(|point| Some((point.day, of(point)?))).collect())
    };
    let days = || Axis::new("days of the history");
    let score = Plot::lines("Layout over time", days(), Axis::new("share").from(0.0), origin)
        .with(line("layout score", &|point| point.score))
        .with(line("in use", &|point| Some(point.used)));
    let pieces = Plot::lines("Pieces of a file", days(), Axis::new("pieces per file").from(1.0), origin)
        .with(line("pieces per file", &|point| Some(point.pieces_per_file)));
    let ranges = Plot::lines("Free space", days(), Axis::log("free ranges"), origin)
        .with(line("ranges", &|point| point.free.as_ref().map(|free| free.ranges as f64)));
    for plot in [score, pieces, ranges] {
        if plot.series.iter().any(|series| !series.points.is_empty()) {
            body += &plot.figure_html();
        }
    }
    let names = layout.score_by_size.iter().map(|(bound, _)| format!("{}", Bytes(*bound))).collect();
    let values = layout.score_by_size.iter().map(|(_, score)| *score).collect();
    if !layout.score_by_size.is_empty() {
        let by_size =
            Plot::bars("Layout score by size of the file, at the end", names, Axis::new("layout score"), origin);
        body += &by_size.with(Series::bars("layout score", values)).figure_html();
    }
    if let Some(free) = &layout.free {
        let names = free.by_length.iter().map(|(bound, ..)| format!("{}", Bytes(*bound))).collect();
        let shares = free.by_length.iter().map(|range| range.2 as f64 / free.bytes.max(1) as f64).collect();
        let plot =
            Plot::bars("Free space by length of range, at the end", names, Axis::new("share of free bytes"), origin);
        body += &plot.with(Series::bars("share", shares)).figure_html();
    }
    let score = layout.all.score.map_or("none".into(), number);
    let _ = writeln!(
        body,
        "<p>At the end: layout score {score} over {} files, {} pieces per file.</p>",
        layout.all.files,
        number(layout.all.pieces_per_file)
    );
    html_page(title, &body)
}
