//! A prediction as a page.

use super::compare::Accuracy;
use super::engine::Prediction;
use super::report::{Measured, Rank};
use crate::vector::{PROBABILITIES, Source};
use ashlar_report::{Axis, Origin, Plot, Series, escape, number, page as html_page};
use std::fmt::Write;

/// Classes whose distributions are shown: those with the most time.
const CLASSES_SHOWN: usize = 6;

/// What the page shows.
pub struct Shown<'a> {
    /// The workload.
    pub workload: &'a str,
    /// By system.
    pub predictions: &'a [Prediction],
    /// Which system is faster, and how sure that is.
    pub ranks: &'a [Rank],
    /// What was measured.
    pub measured: &'a [Measured],
    /// How good the predictions were.
    pub accuracy: Option<&'a Accuracy>,
    /// What a reader should know.
    pub notes: &'a [String],
}

/// The page.
pub fn page(shown: &Shown) -> String {
    let mut body =
        format!("<p>{}: what the file system adds, by system. Predicted totals are modelled", escape(shown.workload));
    let emulated = shown.predictions.iter().filter(|one| one.source != Source::Measured).count();
    let _ = writeln!(body, "; {emulated} of the vectors are not measured on the thing itself.</p>");
    body += &totals(shown);
    body += &ranking(shown.ranks);
    body += &causes(shown.predictions);
    for prediction in shown.predictions {
        body += &distributions(prediction, shown.measured.iter().find(|one| one.system == prediction.system));
    }
    if let Some(accuracy) = shown.accuracy {
        let percent = |share: f64| number(100.0 * share);
        let _ = writeln!(
            body,
            "<h2>Against what was measured</h2>\n<p>Mean error {} %, root of the mean square {} %; {} of {} pairs that differ by \
             more than 10 % ranked right.</p>",
            percent(accuracy.mean_error),
            percent(accuracy.root_mean_square),
            accuracy.ranks_beyond_10.right,
            accuracy.ranks_beyond_10.pairs
        );
    }
    for prediction in shown.predictions {
        body += &changes(prediction);
    }
    shown.notes.iter().for_each(|note| body += &format!("<p>{}</p>\n", escape(note)));
    html_page("Prediction", &body)
}

fn totals(shown: &Shown) -> String {
    let names = shown.predictions.iter().map(|one| one.system.clone()).collect();
    let values = shown.predictions.iter().map(|one| (one.total_seconds, one.low_seconds, one.high_seconds)).collect();
    let mut plot = Plot::bars("Time in the file system", names, Axis::new("seconds"), Origin::Modelled)
        .with(Series::bar_ranges("predicted", values));
    if !shown.measured.is_empty() {
        let of = |one: &Prediction| shown.measured.iter().find(|measured| measured.system == one.system);
        let values =
            shown.predictions.iter().map(|one| of(one).map_or(0.0, |measured| measured.total_seconds)).collect();
        plot = plot.with(Series::bars("measured", values));
    }
    plot.figure_html()
}

fn ranking(ranks: &[Rank]) -> String {
    if ranks.is_empty() {
        return String::new();
    }
    let mut html = String::from(
        "<h2>Ranking</h2>\n<div class=\"scroll\"><table><tr><th>faster</th><th>than</th><th>how likely</th></tr>",
    );
    for rank in ranks {
        let (one, other) = (escape(&rank.faster), escape(&rank.slower));
        let _ = write!(html, "<tr><td>{one}</td><td>{other}</td><td>{} %</td></tr>", number(100.0 * rank.probability));
    }
    html + "</table></div>\n"
}

fn causes(predictions: &[Prediction]) -> String {
    let mut all: Vec<_> = predictions.iter().flat_map(|one| one.causes.iter().map(|share| share.cause)).collect();
    all.sort();
    all.dedup();
    let names = all.iter().map(|cause| cause.name().to_string()).collect();
    let mut plot = Plot::bars("Why", names, Axis::new("seconds"), Origin::Modelled);
    for one in predictions {
        let of = |cause| one.causes.iter().find(|share| share.cause == cause).map_or(0.0, |share| share.seconds);
        plot = plot.with(Series::bars(&one.system, all.iter().map(|cause| of(*cause)).collect()));
    }
    plot.figure_html()
}

fn distributions(prediction: &Prediction, measured: Option<&Measured>) -> String {
    let mut html = format!("<h2>{}</h2>\n<p>Times of single calls, by class.</p>\n", escape(&prediction.system));
    for class in prediction.classes.iter().take(CLASSES_SHOWN) {
        let curve = |quantiles: &[f64; PROBABILITIES.len()]| {
            quantiles.iter().copied().zip(PROBABILITIES).filter(|(time, _)| *time > 0.0).collect::<Vec<_>>()
        };
        let title = format!("{}: {} calls, {} s", class.name, class.count, number(class.seconds));
        let mut plot =
            Plot::lines(title, Axis::log("milliseconds"), Axis::new("part of the calls").from(0.0), Origin::Modelled)
                .with(Series::line("predicted", curve(&class.quantiles)));
        if let Some(found) = measured.and_then(|one| one.classes.iter().find(|found| found.name == class.name)) {
            plot = plot.with(Series::line("measured", curve(&found.quantiles)));
        }
        html += &plot.figure_html();
    }
    html
}

fn changes(prediction: &Prediction) -> String {
    let Some(first) = prediction.causes.first() else { return String::new() };
    let mut html = format!(
        "<h2>What to change on {}</h2>\n<p>Most time, {} %, goes to {}: {}.</p>\n<ul>",
        escape(&prediction.system),
        number(100.0 * first.share),
        first.cause.name(),
        escape(&first.remedy)
    );
    for change in &prediction.changes {
        let _ = write!(html, "<li>{}: {} s less</li>", escape(&change.what), number(change.seconds_less));
    }
    html + "</ul>\n"
}
