//! The values of the paper.

use super::*;

#[track_caller]
fn near(value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance, "{value} and not {expected}");
}

#[test]
fn acceleration_by_temperature() {
    let parameters = Parameters::default();
    for (celsius, expected) in [(20.0, 1.0), (24.5, 1.3168), (27.0, 1.5289), (35.0, 2.4257), (42.0, 3.5636)] {
        near(parameters.by_temperature(celsius), expected, 5e-4);
    }
}

#[test]
fn acceleration_by_humidity() {
    for (corrosion, at_50, at_80) in [(CORROSION_COPPER, 2.484, 9.728), (CORROSION_TRAINED, 3.684, 26.05)] {
        let parameters = Parameters { corrosion, ..Parameters::default() };
        near(parameters.by_humidity(50.0), at_50, 1e-3);
        near(parameters.by_humidity(80.0), at_80, 1e-2);
    }
}

#[test]
fn sites_of_table_3() {
    let afrs = [1.5, 2.1, 1.8, 2.0, 2.3, 3.1, 5.1, 5.1, 5.4];
    near(afrs.iter().sum::<f64>() / 9.0, 3.16, 0.005);
    for (afr, more) in [(3.1, 107.0), (5.1, 240.0), (5.4, 260.0)] {
        near((afr / 1.5 - 1.0) * 100.0, more, 0.5);
    }
    near(3.1 / 2.0, 1.55, 1e-9);
    near(5.4 / 2.0, 2.70, 1e-9);
}

#[test]
fn cooling_costs_what_figure_5_says() {
    let [chiller, water, free] = COOLINGS.map(|cooling| cooling.cost(Prices::default(), 20.0, 0.054));
    near(chiller.capex / free.capex, 3.57, 0.005);
    near(chiller.opex / free.opex, 8.25, 1e-9);
    near(chiller.opex / chiller.total, 0.76, 0.005);
    near(1.0 - free.total / chiller.total, 0.74, 0.01);
    // No one number of disks for each watt gives both savings exactly.
    near(1.0 - free.total / water.total, 0.45, 0.04);
}

#[test]
fn warmed_air_is_drier() {
    near(warmed(44.1, 19.9, 42.0), 12.5, 0.1);
    near(warmed(50.0, 20.0, 20.0), 50.0, 1e-9);
}

#[test]
fn the_published_averages_need_another_split_for_each_site() {
    let climate = normal(24.5, 3.2, 43.0, 20.3);
    let split = |corrosion, mechanical_afr, controller_afr| Parameters {
        corrosion,
        mechanical_afr,
        controller_afr,
        ..Parameters::default()
    };
    let back = |parameters: Parameters| parameters.hazard(42.0, 13.0).all() * 100.0;
    let (copper, trained) = (split(CORROSION_COPPER, 0.010, 0.005), split(CORROSION_TRAINED, 0.0, 0.015));
    near(copper.mean(climate.clone()).all() * 100.0, 3.16, 0.06);
    near(back(copper), 4.4, 0.1);
    near(back(trained), 1.76, 0.03);
    near(trained.mean(climate).all() * 100.0, 10.5, 0.4);
}

#[test]
fn histories_are_read_or_refused_with_their_row() {
    let good = "time,temperature,humidity\n2026-01-01,24.5,43\n\n2026-01-02, 20 , 30\n";
    assert_eq!(read(good.as_bytes()), Ok(vec![(24.5, 43.0), (20.0, 30.0)]));
    for (bad, expected) in [
        ("", "no rows"),
        ("x,y\n", "no rows"),
        ("20,x\n20,30\n", "row 1"),
        ("20,30\n20,x\n", "row 2"),
        ("20,30\n20,130\n", "row 2"),
        ("20,nan\n", "row 1"),
        ("\u{ff}20\n1,2\n3\n", "row 3"),
        (&"9".repeat(5000), "row 1"),
    ] {
        let refused = read(bad.as_bytes()).expect_err(expected);
        assert!(refused.0.contains(expected), "{refused}");
    }
}

#[test]
fn an_estimate_names_what_matters_and_holds_its_value() {
    let site = Site {
        series: seasonal(25.0, 5.0, 45.0, 30.0),
        described: Inputs::new(),
        disk_temperature: None,
        parameters: Parameters::default(),
        prices: Prices::default(),
        years: 5.0,
    };
    let done = estimate(&site).expect("estimated");
    let predicted = &done.predictions[0];
    assert!(predicted.low <= predicted.value && predicted.value <= predicted.high);
    assert!(done.answer.humid && done.answer.hot && done.answer.worst_month_ratio > 1.5);
    assert!(done.dominant_assumption.contains("humidity") || done.dominant_assumption.contains("controllers"));
    // In dry air humidity does not matter much, whatever the temperature.
    let dry = estimate(&Site { disk_temperature: Some(45.0), ..site }).expect("estimated");
    assert!(dry.answer.humidity < done.answer.humidity / 2.0);
}
