//! What plots look like, by their text.

use super::*;

fn plot() -> Plot {
    Plot::lines("a < b", Axis::log("years"), Axis::new("ratio"), Origin::Sampled)
        .with(Series::ranges("one", vec![(1.0, 2.0, 1.0, 3.0), (100.0, 4.0, 3.0, 5.0), (0.0, 9.0, 9.0, 9.0)]))
        .with(Series::line("two", vec![(10.0, 1.0), (100.0, f64::NAN)]))
}

/// Whether every element that begins also ends, in order.
fn well_formed(xml: &str) -> bool {
    let mut open: Vec<&str> = Vec::new();
    for tag in xml.split('<').skip(1).map(|rest| rest.split('>').next().unwrap_or_default()) {
        let name = tag.split(' ').next().unwrap_or_default();
        match name.strip_prefix('/') {
            Some(name) if open.pop() != Some(name) => return false,
            Some(_) => {}
            None if tag.ends_with('/') => {}
            None => open.push(name),
        }
    }
    open.is_empty()
}

#[test]
fn numbers_are_short() {
    for (value, expected) in [
        (0.0, "0"),
        (1.0, "1"),
        (-0.25, "-0.25"),
        (23.671, "23.67"),
        (12345.6, "12346"),
        (1e6, "1e6"),
        (6.5536e10, "6.554e10"),
        (9.69e-5, "9.69e-5"),
    ] {
        assert_eq!(number(value), expected);
    }
}

#[test]
fn a_plot_shows_all_that_can_be_shown() {
    let svg = plot().svg();
    assert!(well_formed(&svg), "{svg}");
    assert!(svg.contains("a &lt; b") && svg.contains("prefers-color-scheme") && svg.contains("sampled"));
    // Of five points, zero is not on a logarithmic axis, and one is no number.
    assert_eq!(svg.matches("<circle").count(), 3);
    assert_eq!(svg.matches("<polygon").count(), 1);
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
    let table = plot().table_html();
    assert!(well_formed(&table) && table.contains("<td>2 (1 to 3)</td>") && table.contains("<td>NaN</td>"), "{table}");
}

#[test]
fn bars_stand_on_zero_and_long_names_are_cut() {
    let names = vec!["a very long name of a category indeed, longer than its room".into(), "b".into()];
    let plot = Plot::bars("t", names, Axis::new("y"), Origin::Modelled)
        .with(Series::bar_ranges("s", vec![(5.0, 4.0, 6.0), (10.0, 9.0, 11.0), (7.0, 7.0, 7.0)]));
    let svg = plot.svg();
    assert!(well_formed(&svg), "{svg}");
    // Two bars and the paper; the third bar has no category.
    assert_eq!(svg.matches("<rect").count(), 3);
    assert!(svg.contains('…') && svg.contains(">0</text>"));
}

#[test]
fn plots_of_nothing_and_of_one_value_are_drawn() {
    for points in [vec![], vec![(1.0, 1.0)], vec![(0.0, 0.0)], vec![(5.0, -3.0), (5.0, -3.0)]] {
        for (x, y) in [(Axis::new("x"), Axis::new("y")), (Axis::log("x"), Axis::log("y"))] {
            let svg = Plot::lines("t", x, y, Origin::Measured).with(Series::line("s", points.clone())).svg();
            assert!(well_formed(&svg) && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
    assert!(well_formed(&Plot::bars("t", vec![], Axis::new("y"), Origin::Emulated).svg()));
}

#[test]
fn marks_are_few_and_inside() {
    for (low, high) in [(0.0, 1.0), (-3.0, 17.0), (1e-9, 2e-9), (1e12, 1e15), (0.99, 1.01)] {
        for axis in [Axis::new("x"), Axis::log("x")] {
            let scale = axis.scale([low, high].into_iter());
            assert!((1..=12).contains(&scale.marks.len()), "{low}..{high} {:?}", scale);
        }
    }
    let decades = Axis::log("x").scale([1.0, 1e20].into_iter());
    assert!(decades.marks.len() <= 9, "{:?}", decades.marks);
}

#[test]
fn pages_escape_their_title() {
    let page = page("<&>\u{1}", "<p>x</p>");
    assert!(page.contains("<title>&lt;&amp;&gt;\u{fffd}</title>") && page.contains("<p>x</p>"));
    assert!(page.contains("viewport") && page.contains("color-scheme:light dark"));
}
