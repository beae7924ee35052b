//! What suits a workload, as a page.

use super::{Best, Scored, names};
use ashlar_report::{Axis, Origin, Plot, Series, escape, number, page as html_page};
use std::fmt::Write;

/// What the page shows.
pub struct Shown<'a> {
    /// The workload.
    pub workload: &'a str,
    /// What it was measured on.
    pub on: &'a str,
    /// Rates are those of an emulated device.
    pub emulated: bool,
    /// All options, those of a file system together, its defaults first.
    pub measured: &'a [Scored],
    /// The best for each class.
    pub best: &'a [Best],
    /// How far calls per joule go with calls per second.
    pub proportionality: Option<f64>,
    /// What was not measured, with the reason.
    pub missing: &'a [String],
}

/// The page.
pub fn page(shown: &Shown) -> String {
    let origin = if shown.emulated { Origin::Emulated } else { Origin::Measured };
    let mut body = format!("<p>{}, on {}.</p>\n", escape(shown.workload), escape(shown.on));
    let mut kinds: Vec<&str> = shown.measured.iter().map(|scored| scored.file_system).collect();
    kinds.dedup();
    for kind in kinds {
        let of_kind: Vec<&Scored> = shown.measured.iter().filter(|scored| scored.file_system == kind).collect();
        let labels = || of_kind.iter().map(|scored| names(&scored.options)).collect();
        let range = |scored: &&Scored| {
            let half = scored.rate.half_width.unwrap_or(0.0);
            (scored.rate.mean, (scored.rate.mean - half).max(0.0), scored.rate.mean + half)
        };
        let rates =
            Plot::bars(format!("{kind}: rate, 95 % intervals"), labels(), Axis::new("calls per second"), origin);
        body += &rates.with(Series::bar_ranges("calls per second", of_kind.iter().map(range).collect())).figure_html();
        let joules =
            Plot::bars(format!("{kind}: efficiency"), labels(), Axis::new("calls per joule"), Origin::Modelled);
        let values = of_kind.iter().map(|scored| scored.calls_per_j.mean).collect();
        body += &joules.with(Series::bars("calls per joule", values)).figure_html();
    }
    body += "<h2>The best, by what a crash may leave</h2>\n<ul>";
    for best in shown.best {
        let _ = write!(body, "<li>{}</li>", escape(&best.to_string()));
    }
    body += "</ul>\n";
    if let Some(found) = shown.proportionality {
        let _ = writeln!(body, "<p>Calls per joule go with calls per second: correlation {}.</p>", number(found));
    }
    shown.missing.iter().for_each(|what| body += &format!("<p>{}</p>\n", escape(what)));
    html_page("Options", &body)
}
