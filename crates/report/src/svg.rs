//! Drawing.

use crate::axis::Scale;
use crate::{Plot, Point, escape, number};
use std::fmt::Write;

/// Size of a plot and room about it, in units of the drawing; it is scaled to the page.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 52.0;
/// Height of a line of the legend, and about how wide a letter is.
const LINE: f64 = 17.0;
const LETTER: f64 = 6.6;

/// Colours of the series in turn; each can be told on white and on black, also without red and green (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a"];
const STYLE: &str = "\
.ap{font:12px system-ui,sans-serif;--ap-ink:#1b1b1b;--ap-faint:#ccc;--ap-paper:#fff}\
@media(prefers-color-scheme:dark){.ap{--ap-ink:#e6e6e6;--ap-faint:#444;--ap-paper:#161616}}\
.ap rect.p{fill:var(--ap-paper)}.ap text{fill:var(--ap-ink)}.ap .g{stroke:var(--ap-faint)}.ap .t{font-size:14px;font-weight:600}\
.ap .a{stroke:var(--ap-ink)}.ap .l{fill:none;stroke-width:2}.ap .b{opacity:.2;stroke:none}.ap .o{font-style:italic;opacity:.75}";

impl Plot {
    /// The plot as an SVG text that needs nothing else.
    pub fn svg(&self) -> String {
        let legend = if self.series.len() > 1 { self.legend() } else { (String::new(), 0.0) };
        let drawing = Drawing::new(self, legend.1);
        let height = HEIGHT + legend.1;
        let title = escape(&self.title);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"ap\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             role=\"img\"><title>{title}</title><style>{STYLE}</style>\
             <rect class=\"p\" width=\"{WIDTH}\" height=\"{height}\"/>\
             <text class=\"t\" x=\"{LEFT}\" y=\"18\">{title}</text>\n"
        );
        svg += &legend.0;
        drawing.axes(&mut svg);
        if self.categories.is_empty() {
            drawing.lines(&mut svg)
        } else {
            drawing.bars(&mut svg)
        }
        let _ = writeln!(
            svg,
            "<text class=\"o\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text></svg>",
            WIDTH - RIGHT,
            height - 6.0,
            self.origin.word()
        );
        svg
    }

    /// Names of the series, and how much room they take.
    fn legend(&self) -> (String, f64) {
        let (mut svg, mut x, mut y) = (String::new(), LEFT, TOP);
        for (index, series) in self.series.iter().enumerate() {
            let width = 26.0 + LETTER * series.name.chars().count() as f64;
            if x > LEFT && x + width > WIDTH - RIGHT {
                (x, y) = (LEFT, y + LINE);
            }
            let _ = write!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{}\"/><text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
                y - 9.0,
                colour(index),
                x + 14.0,
                escape(&series.name)
            );
            x += width;
        }
        (svg, y - TOP + LINE)
    }
}

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// A plot with its scales.
struct Drawing<'a> {
    plot: &'a Plot,
    x: Scale,
    y: Scale,
    top: f64,
    bottom: f64,
}

impl Drawing<'_> {
    fn new(plot: &Plot, legend: f64) -> Drawing<'_> {
        let points = || plot.series.iter().flat_map(|series| plot.shown(series));
        let heights = points().flat_map(|point| {
            let (low, high) = point.range.unwrap_or((point.y, point.y));
            [point.y, low, high]
        });
        let x = plot.x.scale(points().map(|point| point.x));
        // Bars have no zero to stand on where the axis is logarithmic: the shortest must still be seen.
        let least = points().map(|point| point.y).fold(f64::INFINITY, f64::min) / 3.0;
        let foot = (plot.y.log && !plot.categories.is_empty() && least.is_finite()).then_some(least);
        let y = plot.y.scale(heights.chain(foot));
        Drawing { plot, x, y, top: TOP + legend, bottom: HEIGHT + legend - BOTTOM }
    }

    fn down(&self, value: f64) -> f64 {
        self.bottom - self.y.at(value) * (self.bottom - self.top)
    }

    fn right(&self, value: f64) -> f64 {
        LEFT + self.x.at(value) * (WIDTH - RIGHT - LEFT)
    }

    fn axes(&self, svg: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, self.bottom);
        for mark in &self.y.marks {
            let y = self.down(*mark);
            let _ = write!(
                svg,
                "<line class=\"g\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                number(*mark)
            );
        }
        for mark in self.x.marks.iter().filter(|_| self.plot.categories.is_empty()) {
            let x = self.right(*mark);
            let _ = write!(
                svg,
                "<line class=\"g\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{bottom:.1}\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                self.top,
                bottom + 16.0,
                number(*mark)
            );
        }
        let middle = (self.top + bottom) / 2.0;
        let _ = writeln!(
            svg,
            "<line class=\"a\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{bottom:.1}\" y2=\"{bottom:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(13 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            (LEFT + right) / 2.0,
            bottom + 34.0,
            escape(&self.plot.x.label),
            escape(&self.plot.y.label)
        );
    }

    fn lines(&self, svg: &mut String) {
        for (index, series) in self.plot.series.iter().enumerate() {
            let colour = colour(index);
            let points: Vec<&Point> = self.plot.shown(series).collect();
            let place = |x: f64, y: f64| format!("{:.1},{:.1} ", self.right(x), self.down(y));
            let ranges = || points.iter().filter_map(|point| point.range.map(|range| (point.x, range)));
            let band: String = ranges().map(|(x, (_, high))| place(x, high)).collect();
            let back: Vec<String> = ranges().map(|(x, (low, _))| place(x, low)).collect();
            let back: String = back.into_iter().rev().collect();
            if !band.is_empty() {
                let _ = write!(svg, "<polygon class=\"b\" fill=\"{colour}\" points=\"{band}{back}\"/>");
            }
            let line: String = points.iter().map(|point| place(point.x, point.y)).collect();
            let _ = write!(svg, "<polyline class=\"l\" stroke=\"{colour}\" points=\"{line}\"/>");
            for point in points.iter().filter(|_| points.len() <= 24) {
                let (x, y) = (self.right(point.x), self.down(point.y));
                let (name, told) = (escape(&series.name), (number(point.x), number(point.y)));
                let _ = write!(
                    svg,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"><title>{name}: {}, {}</title></circle>",
                    told.0, told.1
                );
            }
            svg.push('\n');
        }
    }

    fn bars(&self, svg: &mut String) {
        let group = (WIDTH - RIGHT - LEFT) / self.plot.categories.len() as f64;
        let width = 0.8 * group / self.plot.series.len().max(1) as f64;
        let letters = (group / LETTER) as usize;
        for (index, category) in self.plot.categories.iter().enumerate() {
            let x = LEFT + (index as f64 + 0.5) * group;
            let short: String = if category.chars().count() > letters.max(2) {
                category.chars().take(letters.max(2) - 1).chain(['…']).collect()
            } else {
                category.clone()
            };
            let _ = write!(
                svg,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}<title>{}</title></text>",
                self.bottom + 16.0,
                escape(&short),
                escape(category)
            );
        }
        for (index, series) in self.plot.series.iter().enumerate() {
            for point in self.plot.shown(series) {
                let x = LEFT + (point.x + 0.1) * group + index as f64 * width;
                let (y, zero) = (self.down(point.y), if self.plot.y.log { self.bottom } else { self.down(0.0) });
                let (top, height) = (y.min(zero), (y - zero).abs());
                let _ = write!(
                    svg,
                    "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{}\">\
                     <title>{}: {}</title></rect>",
                    colour(index),
                    escape(&series.name),
                    number(point.y)
                );
                if let Some((low, high)) = point.range {
                    let (x, low, high) = (x + width / 2.0, self.down(low), self.down(high));
                    let _ =
                        write!(svg, "<line class=\"a\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\"/>");
                }
            }
            svg.push('\n');
        }
    }
}
