//! Plots and tables for reports.
//!
//! A [`Plot`] becomes an SVG text that stands alone, in a file or inside an HTML page, with a [`Plot::table_html`] of the
//! same numbers to put behind it. It follows the reader's light or dark scheme, scales to the width of a phone, and loads
//! nothing. Every plot says where its numbers come from ([`Origin`]).
//!
//! ```
//! use ashlar_report::{Axis, Origin, Plot, Series};
//! let plot = Plot::lines("Life", Axis::new("years"), Axis::new("drives"), Origin::Modelled)
//!     .with(Series::line("alive", vec![(0.0, 12.0), (1.0, 11.0)]));
//! assert!(plot.svg().starts_with("<svg"));
//! assert!(plot.table_html().contains("<td>11</td>"));
//! ```

mod axis;
mod html;
mod plot;
mod svg;
#[cfg(test)]
mod tests;

pub use axis::Axis;
pub use html::{STYLE, escape, page};
pub use plot::{Origin, Plot, Point, Series};

/// A number as people read it: four digits that count, no zeros at the end, powers of ten beyond six digits.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || !value.is_finite() {
        return value.abs().to_string();
    }
    if !(1e-4..1e6).contains(&size) {
        let text = format!("{value:.3e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{exponent}", trimmed(mantissa));
    }
    let digits = (3 - size.log10().floor() as i32).max(0) as usize;
    trimmed(&format!("{value:.digits$}")).into()
}

/// A decimal number without zeros at its end.
fn trimmed(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}
