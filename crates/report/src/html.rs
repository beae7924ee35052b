//! Text for HTML pages.

use crate::{Plot, number};
use std::fmt::Write;

/// The style of pages and of plots in them: readable on a phone, light and dark.
pub const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1b1b;--paper:#fff;--faint:#ccc;--soft:#666}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e6e6;--paper:#161616;--faint:#444;--soft:#aaa}}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:52em;margin:0 auto;padding:1em}\
h1,h2{line-height:1.2}figure{margin:1.5em 0}svg{max-width:100%;height:auto}\
details{margin:.3em 0}.scroll{overflow-x:auto}\
table{border-collapse:collapse;font-size:.9em}td,th{border-bottom:1px solid var(--faint);padding:.2em .7em;text-align:right}\
td:first-child,th:first-child{text-align:left}.origin{color:var(--soft);font-size:.85em}";

/// Text as HTML and XML show it. Control characters, which XML does not allow, become U+FFFD.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            char if char.is_control() && !matches!(char, '\n' | '\t') => escaped.push('\u{fffd}'),
            char => escaped.push(char),
        }
    }
    escaped
}

/// A whole page. `body` is HTML.
pub fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>{title}</title>\
         <style>{STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n{body}\n</body></html>\n"
    )
}

impl Plot {
    /// The plot for a page, with the table behind it.
    pub fn figure_html(&self) -> String {
        format!("<figure>{}<details><summary>numbers</summary>{}</details></figure>\n", self.svg(), self.table_html())
    }

    /// All numbers of the plot as a table.
    pub fn table_html(&self) -> String {
        let first = if self.categories.is_empty() { escape(&self.x.label) } else { String::new() };
        let mut html = format!("<div class=\"scroll\"><table><tr><th>{first}</th>");
        for series in &self.series {
            let _ = write!(html, "<th>{}</th>", escape(&series.name));
        }
        html += "</tr>";
        for row in self.rows() {
            html += "<tr>";
            for cell in row {
                let _ = write!(html, "<td>{}</td>", escape(&cell));
            }
            html += "</tr>";
        }
        html += "</table></div>";
        let _ = write!(html, "<p class=\"origin\">{}, {}</p>", escape(&self.y.label), self.origin.word());
        html
    }

    /// The numbers: a row for each place on the horizontal axis, and in it a cell for that and for each series.
    fn rows(&self) -> Vec<Vec<String>> {
        let mut places: Vec<f64> = self.series.iter().flat_map(|s| s.points.iter().map(|point| point.x)).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let name = |x: f64| match self.categories.get(x.max(0.0) as usize) {
            Some(category) => category.clone(),
            None => number(x),
        };
        let cell = |series: &crate::Series, x: f64| {
            let point = series.points.iter().find(|point| point.x == x);
            point.map_or(String::new(), |point| match point.range {
                Some((low, high)) => format!("{} ({} to {})", number(point.y), number(low), number(high)),
                None => number(point.y),
            })
        };
        let row =
            |x: f64| std::iter::once(name(x)).chain(self.series.iter().map(move |series| cell(series, x))).collect();
        places.into_iter().map(row).collect()
    }
}
