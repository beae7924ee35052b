use super::*;
use ashlar_models::ModelFile;
use proptest::prelude::*;

/// The array on which engines were measured: docs/proximal.md, "Beside others on the same disks".
fn emulated() -> Load {
    let drive = Drive::of(&ModelFile::preset("wd-re3").expect("a preset")).expect("a disk");
    let extent = 16.0 * 1048576.0;
    Load {
        drive,
        data_drives: 4.0,
        data: 8.0 * extent,
        extent,
        update: BLOCK,
        full: 0.89,
        fill: 0.5,
        staging: 0.01,
        batch: 64.0,
        // 2,000 different ones of 4,096.
        moved: 2000.0 / 4096.0,
    }
}

/// The model over what was emulated, less one.
fn error(modelled: f64, emulated: f64) -> f64 {
    modelled / emulated - 1.0
}

/// Table 2 of the paper, and the closed form that the digest of it derives: user writes of a batch, all I/Os.
#[test]
fn requests_of_a_batch_are_those_of_table_2() {
    let rows = [
        (47.5, 295.3),
        (85.2, 465.3),
        (119.7, 614.8),
        (149.3, 723.7),
        (179.1, 847.6),
        (226.1, 1014.7),
        (259.5, 1151.5),
        (254.8, 1166.7),
    ];
    for (updates, ios) in rows {
        let (data, parity) = emulated().batch_ios(updates);
        assert!(error(data + parity, ios).abs() < 0.045, "{updates}: {} and not {ios}", data + parity);
    }
    // Its own terms: 2n + 2U(65, n) and 2U(1024, n) + 2U(16.25, n).
    let (data, parity) = emulated().batch_ios(47.5);
    assert!((data - (95.0 + 2.0 * hit(4096.0 / 63.0, 47.5))).abs() < 1e-9);
    assert!((parity - 2.0 * (hit(1024.0, 47.5) + hit(1024.0 / 63.0, 47.5))).abs() < 1e-9);
}

/// Two drives that need one block each wait two thirds of a revolution for the later one; a checksum block just behind
/// changes nothing.
#[test]
fn waits_of_two_drives() {
    assert!((both_pass(0.0) - 2.0 / 3.0).abs() < 1e-3, "{}", both_pass(0.0));
    assert!(both_pass(0.3) > both_pass(0.1) && both_pass(1.0) < 1.0);
}

/// Figures of docs/proximal.md, emulated, and how far the model is off them. The bounds are the errors that were found,
/// rounded up: docs/estimators/layout.md states them.
#[test]
fn emulated_figures_are_met_within_stated_errors() {
    let load = emulated();
    let pool = |fill| Load { fill, ..load.clone() };
    let staged = |updates: f64| 1e3 * updates / load.batch_ms(updates);
    let updates = |load: &Load, layout| 1e3 / load.update_ms(layout);
    let scan = |load: &Load, layout| load.data / 1e3 / load.scan_ms(layout);
    let rows = [
        ("in place, updates/s", updates(&load, Layout::InPlace), 42.0, 0.10),
        ("proximal 1 %, updates/s", staged(47.5), 379.0, 0.10),
        ("proximal 2 %, updates/s", staged(85.1), 624.0, 0.15),
        ("proximal 3 %, updates/s", staged(119.6), 856.0, 0.15),
        ("proximal 5 %, updates/s", staged(179.0), 1203.0, 0.25),
        ("proximal 7 %, updates/s", staged(259.5), 1557.0, 0.35),
        ("proximal 1 %, beside others, updates/s", updates(&load, Layout::Proximal), 389.0, 0.10),
        ("pool half full, updates/s", updates(&pool(0.5), Layout::LogStructured), 2046.0, 0.20),
        ("pool 70 % full, updates/s", updates(&pool(0.7), Layout::LogStructured), 664.0, 0.25),
        ("fresh scan, MB/s", load.data / 1e3 / load.fresh_scan_ms(), 128.0, 0.10),
        ("proximal scan, MB/s", scan(&load, Layout::Proximal), 136.0, 0.05),
        ("pool half full, scan, MB/s", scan(&pool(0.5), Layout::LogStructured), 3.5, 0.30),
        ("pool 70 % full, scan, MB/s", scan(&pool(0.7), Layout::LogStructured), 3.1, 0.45),
    ];
    for (what, modelled, emulated, _) in rows {
        println!("{what}: {modelled:.1} and {emulated}, {:+.0} %", 100.0 * error(modelled, emulated));
    }
    for (what, modelled, emulated, bound) in rows {
        assert!(error(modelled, emulated).abs() < bound, "{what}: {modelled} and not {emulated}");
    }
}

/// With the 0.6 ms that the paper's drive takes for each request at least, its own rates of Table 2, as the digest of it derives
/// them from responses.
#[test]
fn rates_of_the_paper_are_met() {
    let mut load = emulated();
    load.drive.floor = 0.6;
    for (updates, rate) in [(47.5, 367.0), (85.2, 550.0), (119.7, 654.0), (179.1, 759.0), (259.5, 823.0)] {
        let modelled = 1e3 * updates / load.batch_ms(updates);
        assert!(error(modelled, rate).abs() < 0.13, "{updates}: {modelled} and not {rate}");
    }
}

/// What the emulation decided, the model decides too: see docs/proximal.md, "When which wins".
#[test]
fn the_winner_is_the_one_that_was_emulated() {
    for (fill, wins_below) in [(0.5, 18_000.0), (0.7, 40_000.0)] {
        let load = Load { fill, ..emulated() };
        let [proximal, pool] = [Layout::Proximal, Layout::LogStructured];
        let at = (load.scan_ms(pool) - load.scan_ms(proximal)) / (load.update_ms(proximal) - load.update_ms(pool));
        println!("{fill}: proximal wins up to {at:.0} updates for each scan; emulated {wins_below}");
        assert!(at / wins_below > 0.5 && at / wins_below < 2.0, "{fill}: {at}");
    }
}

#[test]
fn what_is_no_disk_or_too_little_is_refused() {
    let flash = Drive::of(&ModelFile::preset("ssd-tlc").expect("a preset")).expect_err("flash");
    assert!(flash.to_string().contains("no disk"), "{flash}");
    let question = |load| Question { load, updates_per_scan: 1e4 };
    let small = Load { extent: 1048576.0, staging: 0.001, ..emulated() };
    assert!(estimate(&question(small)).expect_err("less than one").to_string().contains("more staging"));
    let wrong = Load { fill: 1.0, ..emulated() };
    assert!(estimate(&question(wrong)).is_err());
}

proptest! {
    /// Any answer has the best first, its crossings go up, and the winner between two crossings is who they say.
    #[test]
    fn answers_agree_with_themselves(
        data_drives in 1u32..16,
        extent_mib in 4u32..256,
        full in 0.3f64..0.95,
        fill in 0.1f64..0.9,
        staging in 0.005f64..0.1,
        batch in 1u32..512,
        moved in 0.0f64..1.0,
        mix in 0.0f64..9.0,
    ) {
        let extent = f64::from(extent_mib) * 1048576.0;
        let load = Load {
            data_drives: f64::from(data_drives),
            extent,
            data: extent * 4.0,
            full,
            fill,
            staging,
            batch: f64::from(batch),
            moved,
            ..emulated()
        };
        let estimate = estimate(&Question { load: load.clone(), updates_per_scan: 10f64.powf(mix) }).expect("in range");
        let answer = &estimate.answer;
        let choices = answer.ranked.iter().filter(|one| one.layout != Layout::WriteAnywhere);
        prop_assert_eq!(choices.map(|one| one.layout).next(), Some(answer.winner));
        prop_assert!(answer.ranked.is_sorted_by(|one, next| one.mixed_updates_per_s >= next.mixed_updates_per_s));
        prop_assert!(answer.crossings.is_sorted_by(|one, next| one.updates_per_scan <= next.updates_per_scan));
        for crossing in &answer.crossings {
            let (below, above) = (crossing.updates_per_scan * 0.999, crossing.updates_per_scan * 1.001);
            let time = |layout, updates| load.mixed_ms(layout, updates);
            prop_assert!(time(crossing.below, below) <= time(crossing.above, below));
            prop_assert!(time(crossing.above, above) <= time(crossing.below, above));
        }
        // With no update at all, layouts that are scanned alike are equal.
        let mut best = load.best(1e-6);
        for crossing in &answer.crossings {
            prop_assert_eq!(crossing.below, best);
            best = crossing.above;
        }
        prop_assert_eq!(best, load.best(1e30));
        prop_assert!(estimate.predictions.iter().all(|one| one.value.is_finite() && one.value > 0.0));
    }
}
