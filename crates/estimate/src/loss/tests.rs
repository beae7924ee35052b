//! The simulation against closed forms, and importance sampling against none.

use super::*;

fn effort(error: f64) -> Effort {
    Effort { error, histories_max: 400_000, seed: 7, naive: false }
}

fn quiet(_: u64, _: f64) -> bool {
    true
}

/// Disks without batches, ageing and latent errors.
fn plain(afr: f64, gone_hours: f64, years: f64) -> Drives {
    let latent = Latent::NONE;
    let (capacity, rebuild_rate) = (1e12, 1e12);
    Drives {
        afr,
        latent,
        batch_variance: 0.0,
        capacity,
        rebuild_rate,
        replace_hours: gone_hours,
        years,
        ..Drives::new(DriveKind::Disk)
    }
}

#[track_caller]
fn agrees(outcome: &Outcome, expected: f64, tolerance: f64) {
    let off = (outcome.any - expected).abs();
    assert!(off <= 4.0 * outcome.any_error + tolerance * expected, "{outcome:?} and not {expected}");
}

#[test]
fn a_mirror_has_the_loss_of_the_closed_form() {
    for (afr, gone) in [(0.02, 36.0), (0.3, 200.0)] {
        let drives = plain(afr, gone, 5.0);
        let rate = afr / YEAR;
        // Excursions begin at 2 rate, take `gone`, and lose with 1 - exp(-rate gone).
        let loses = -(-rate * gone).exp_m1();
        let expected = -(-5.0 * YEAR * 2.0 * rate * loses / (1.0 + 2.0 * rate * gone)).exp_m1();
        agrees(&simulate(Layout::Mirror(2), &drives, effort(0.02), &mut quiet), expected, 0.01);
    }
}

#[test]
fn a_single_drive_fails_as_often_as_it_should() {
    for shape in [1.0, 2.0] {
        let drives = Drives { shape, ..plain(0.1, 1.0, 5.0) };
        agrees(&simulate(Layout::Single(None), &drives, effort(0.02), &mut quiet), 1.0 - f64::exp(-0.5), 0.0);
    }
}

#[test]
fn latent_errors_lose_what_the_closed_form_says() {
    let latent = Latent { prone: 0.5, rate: 1e-4, process: None };
    let drives = Drives { latent, scrub_hours: 100.0, ..plain(0.02, 0.01, 5.0) };
    let unseen = 0.5 * (1.0 - f64::exp(-1e-4 * 50.01));
    let loses = 1.0 - (1.0 - unseen).powi(7);
    let expected = 1.0 - f64::exp(-8.0 * 0.02 * 5.0 * loses);
    let outcome = simulate(Layout::Raid5(8), &drives, effort(0.02), &mut quiet);
    // The closed form has no errors that meet while no drive is gone.
    agrees(&Outcome { any: outcome.any - outcome.meeting, ..outcome }, expected, 0.01);
    assert!(outcome.drives < 0.01 * outcome.sectors && outcome.meeting < 0.2 * outcome.sectors);
}

#[test]
fn importance_sampling_changes_the_error_and_not_the_mean() {
    // Rare enough to be biased, and frequent enough to be seen without.
    let drives = Drives { batch_variance: 0.5, shape: 1.5, ..plain(0.6, 400.0, 5.0) }.in_climate(25.0, 5.0, 45.0, 20.0);
    let drives = Drives { latent: Latent { prone: 0.3, rate: 1e-4, process: None }, ..drives };
    for layout in [Layout::Raid5(5), Layout::Raid6(6), Layout::Mirror(3), Layout::Rs(4, 3)] {
        let drives = Drives { afr: if layout.tolerance() == 1 { 0.1 } else { 0.6 }, ..drives.clone() };
        let weighted = simulate(layout, &drives, effort(0.02), &mut quiet);
        let naive = simulate(layout, &drives, Effort { naive: true, ..effort(0.03) }, &mut quiet);
        let error = weighted.any_error.hypot(naive.any_error);
        assert!((weighted.any - naive.any).abs() < 4.0 * error, "{layout}: {weighted:?} and {naive:?}");
        assert!(
            (weighted.drives / weighted.any - naive.drives / naive.any).abs() < 0.1,
            "{layout}: {weighted:?} and {naive:?}"
        );
    }
}

#[test]
fn rare_losses_of_a_raid_6_are_reached() {
    let outcome = simulate(Layout::Raid6(12), &Drives::new(DriveKind::Disk), effort(0.05), &mut quiet);
    assert!(outcome.any_error / outcome.any <= 0.05, "{outcome:?}");
    assert!((1e-9..1e-3).contains(&outcome.any), "{outcome:?}");
    // The same seed gives the same numbers.
    assert_eq!(outcome, simulate(Layout::Raid6(12), &Drives::new(DriveKind::Disk), effort(0.05), &mut quiet));
}

#[test]
fn more_redundancy_faster_rebuilds_and_equal_batches_lose_less() {
    let drives = Drives::new(DriveKind::Disk);
    let of = |layout, drives: &Drives| simulate(layout, drives, effort(0.05), &mut quiet).any;
    let base = of(Layout::Raid6(12), &drives);
    assert!(of(Layout::Raid5(12), &drives) > 10.0 * base);
    assert!(of(Layout::Rs(9, 3), &drives) < base / 10.0);
    assert!(of(Layout::Raid6(12), &Drives { rebuild_rate: 1e9, ..drives.clone() }) < base / 2.0);
    assert!(of(Layout::Raid6(12), &Drives { batch_variance: 0.0, ..drives.clone() }) < base);
    assert!(of(Layout::Raid6(12), &drives.clone().in_climate(25.0, 5.0, 45.0, 30.0)) > 2.0 * base);
    let flash = Drives::new("ssd:MLC-B".parse().expect("a drive"));
    assert!(of(Layout::Raid5(6), &flash) > of(Layout::Raid5(6), &Drives { latent: Latent::DISK, ..flash.clone() }));
}

#[test]
fn published_parts_of_disks_with_latent_errors_come_out() {
    let (prone, rate) = (Latent::DISK.prone, Latent::DISK.rate);
    let hours = 32.0 * MONTH;
    let affected = Latent::DISK.any(hours);
    assert!((affected - 0.0345).abs() < 0.0002, "{affected}");
    let episodes = prone * rate * hours / affected;
    assert!((episodes - 1.6).abs() < 0.02, "{episodes}");
}

#[test]
fn flash_has_as_many_drives_and_days_with_errors_as_the_field_study() {
    for model in crate::ssd::SSD_MODELS {
        let latent = Latent::flash(model);
        let hours = model.years * 365.0 * 24.0;
        assert!((latent.any(hours) / model.ue_drives - 1.0).abs() < 0.1, "{}", model.name);
        assert!((latent.prone * latent.rate * 24.0 / model.ue_days - 1.0).abs() < 1e-9, "{}", model.name);
    }
}

#[test]
fn an_estimate_ranks_and_says_what_matters() {
    let layouts =
        ["raid6:8", "raid5:8", "mirror:2", "single+cdp:11", "single"].map(|text| text.parse().expect("a layout"));
    let question = Question {
        layouts: layouts.to_vec(),
        drives: Drives::new(DriveKind::Disk),
        described: Inputs::new(),
        effort: Effort { error: 0.1, histories_max: 20_000, seed: 1, naive: false },
    };
    let mut told = 0;
    let done = estimate(&question, &mut |_, _, _| {
        told += 1;
        true
    });
    let done = done.expect("estimated");
    let order: Vec<&str> = done.answer.layouts.iter().map(|one| one.layout.as_str()).collect();
    assert_eq!((order[0], order[4]), ("raid6:8", "single"));
    assert!(told > 0 && done.answer.layouts[4].times_best > 100.0);
    let predicted = &done.predictions[0];
    assert!(
        predicted.low < predicted.value && predicted.value < predicted.high && !done.dominant_assumption.is_empty()
    );
    assert!(done.assumptions.iter().any(|text| text.contains("another batch")), "{:?}", done.assumptions);
    assert!(figure(&done).svg().contains("raid6:8"));
}

#[test]
fn nonsense_is_refused() {
    for text in [
        "",
        "raid6",
        "raid6:3",
        "raid5:2",
        "mirror:1",
        "mirror:99",
        "rs:10",
        "rs:0+2",
        "rs:10+99",
        "rs:4000000000+4",
        "single+cdp:4",
        "raid7:9",
    ] {
        text.parse::<Layout>().expect_err(text);
    }
    for text in ["raid6:12", "rs:10+4", "mirror:3", "single", "single+ipc:56+7"] {
        assert_eq!(text.parse::<Layout>().expect("a layout").to_string(), text);
    }
    let good = Drives::new(DriveKind::Disk);
    for bad in [
        Drives { afr: 0.0, ..good.clone() },
        Drives { afr: f64::NAN, ..good.clone() },
        Drives { years: 1e9, ..good.clone() },
        Drives { scrub_hours: 0.0, ..good.clone() },
        Drives { rebuild_rate: 1.0, ..good.clone() },
        Drives { batches: 0, ..good },
    ] {
        bad.validate().expect_err("nonsense");
    }
    "ssd:QLC".parse::<DriveKind>().expect_err("no such model");
}
