//! What the paper claims, on an emulated disk; see `benches/experiment`.

#[path = "../benches/experiment/mod.rs"]
#[allow(dead_code)]
mod experiment;

use ashlar_array::Journaling;
use ashlar_models::disk::Scheduler;
use ashlar_proximal::{Placement, Victims};
use experiment::raid::{self, TABLE_2, Way};
use experiment::{EXTENT, READ, Setup, run, strand_ms};

#[test]
fn the_arithmetic_of_serial_reads() {
    // An extent of 4,096 blocks takes five reads of at most 974, the last of 200.
    assert_eq!(EXTENT.div_ceil(READ), 5);
    assert_eq!(EXTENT as f64 / 5.0, 819.2);
    assert_eq!(EXTENT - 4 * READ, 200);
    // Table 3: 819.2 blocks of four data disks in 9.5 and 9.2 ms.
    let mb_s = |ms: f64| 819.2 * 4096.0 / ms / 4.0 / 1e3;
    // The paper counts kilobytes of 1,000 bytes with blocks of 4,000: 819.2 * 4 / 9.5 / 4.
    let printed = |ms: f64| 819.2 * 4.0 / ms / 4.0;
    assert_eq!((format!("{:.1}", printed(9.5)), format!("{:.1}", printed(9.2))), ("86.2".into(), "89.0".into()));
    assert!((mb_s(9.5) - 88.3).abs() < 0.05);
}

#[test]
fn scans_stay_serial_after_random_updates() {
    for placement in [Placement::Holes, Placement::Own] {
        let outcome = run(1, Setup { extents: 8, placement, ..Setup::default() });
        let ratio = outcome.aged.mb_s / outcome.fresh.mb_s;
        println!("{placement:?}: {ratio:.3} {outcome:?}");
        assert!(ratio >= 0.95, "{placement:?}: {ratio}");
    }
}

#[test]
fn scans_of_a_write_anywhere_layout_do_not() {
    let setup = Setup { extents: 48, staging: None, placement: Placement::Anywhere, ..Setup::default() };
    let outcome = run(1, setup);
    let ratio = outcome.aged.mb_s / outcome.fresh.mb_s;
    println!("{ratio:.3} {outcome:?}");
    assert!(ratio <= 0.05, "{ratio}");
}

#[test]
fn the_densest_groups_cost_fewer_writes_than_the_whole_log() {
    for skew in [0.1, 0.9] {
        let of = |victims| run(1, Setup { extents: 16, updates: 600, victims, skew, timed: false, ..Setup::default() });
        let (all, densest) = (of(Victims::All), of(Victims::Densest));
        let per_batch = |outcome: &experiment::Outcome| outcome.status.moved as f64 / outcome.status.batches as f64;
        println!(
            "skew {skew}: all {:.4} ({:.1}) densest {:.4} ({:.1})",
            all.writes_per_update,
            per_batch(&all),
            densest.writes_per_update,
            per_batch(&densest)
        );
        assert!(per_batch(&densest) > 1.3 * per_batch(&all), "{all:?} {densest:?}");
        assert!(densest.writes_per_update < all.writes_per_update, "{all:?} {densest:?}");
    }
}

// Figure 4 of the paper, drives that need ascending issue, is a flaw of firmware that the model does not have.
#[test]
fn the_drives_scheduler_gives_the_gain() {
    // Where a head may stay on its track for nothing, the order of arrival has some of the gain too, if it ascends.
    for (same_track_ms, gain_ascending) in [(None, 2.0), (Some(0.0), 1.5)] {
        let of = |ascending, scheduler| strand_ms(1, 48, ascending, scheduler, same_track_ms);
        let (fifo, fifo_ascending) = (of(false, Scheduler::Fifo), of(true, Scheduler::Fifo));
        let (sptf, sptf_ascending) = (of(false, Scheduler::Sptf), of(true, Scheduler::Sptf));
        println!("fifo {fifo:.1} ascending {fifo_ascending:.1}, sptf {sptf:.1} ascending {sptf_ascending:.1}");
        assert!(fifo_ascending < fifo, "{fifo_ascending} {fifo}");
        assert!(2.0 * sptf < fifo && gain_ascending * sptf_ascending < fifo_ascending, "{sptf} {fifo}");
    }
}

/// Table 2 through the engine and the array, by the array's own counters. The array alone, with the digest's numbers, is in
/// `crates/array/src/tests/counts.rs`.
#[test]
fn destaging_over_raid_4_costs_the_requests_of_table_2() {
    let holes = [TABLE_2[0], TABLE_2[6]].map(|paper| (Placement::Holes, paper));
    for (placement, paper) in TABLE_2.map(|paper| (Placement::Own, paper)).into_iter().chain(holes) {
        // Four drains.
        let updates = (paper.writes * 4.4) as u64;
        let way = Way::Proximal(paper.writes, placement);
        let setup = raid::Setup { extents: 8, way, updates, journal: Journaling::Off, queue: 8, timed: false };
        let seen = raid::run(1, setup);
        println!(
            "{placement:?} {} %: {:.1} writes, {:.1} I/Os of {}",
            paper.staging,
            seen.writes,
            seen.ios(),
            paper.ios
        );
        assert!(seen.batches >= 24, "{seen:?}");
        assert!((seen.writes / paper.writes - 1.0).abs() < 0.02, "{paper:?}: {seen:?}");
        assert!((seen.ios() / paper.ios - 1.0).abs() < 0.03, "{paper:?}: {seen:?}");
    }
}

/// Table 2 in time, on the model of its drive: I/Os in a revolution, and updates against those in place.
#[test]
fn destaging_over_raid_4_takes_no_more_revolutions_than_in_table_2() {
    let of = |way, updates| {
        raid::run(1, raid::Setup { extents: 4, way, updates, journal: Journaling::Off, queue: 8, timed: true })
    };
    let in_place = of(Way::InPlace, 20);
    for (paper, least, gain) in [(TABLE_2[0], 5.3, 6.2), (TABLE_2[2], 8.0, 11.0), (TABLE_2[6], 9.0, 13.8)] {
        // Two drains.
        let seen = of(Way::Proximal(paper.writes, Placement::Holes), (paper.writes * 2.2) as u64);
        let (per_revolution, gained) = (seen.per_revolution(), seen.updates_per_s / in_place.updates_per_s);
        println!("{} %: {per_revolution:.1} I/Os in a revolution, {gained:.1} times in place", paper.staging);
        assert!(seen.batches >= 8, "{seen:?}");
        assert!(per_revolution >= least && gained >= gain, "{paper:?}: {per_revolution:.1}, {gained:.1}, {seen:?}");
    }
}

/// The journal of our array writes beside these; it changes none of the paper's counts.
#[test]
fn a_journal_adds_requests_and_changes_no_count() {
    let of = |journal| {
        let way = Way::Proximal(47.5, Placement::Own);
        raid::run(1, raid::Setup { extents: 4, way, updates: 120, journal, queue: 8, timed: false })
    };
    let (off, on) = (of(Journaling::Off), of(Journaling::Members));
    assert_eq!(off.ios(), on.ios());
    assert!(off.drives.iter().all(|drive| drive.journal == 0.0), "{off:?}");
    // One for each member that a batch touches, which are all of them, and now and then a mark.
    assert!(on.drives.iter().all(|drive| (0.9..1.2).contains(&drive.journal)), "{on:?}");
}

#[test]
fn an_update_in_place_is_eight_requests() {
    let setup =
        raid::Setup { extents: 2, way: Way::InPlace, updates: 20, journal: Journaling::Off, queue: 8, timed: false };
    let seen = raid::run(1, setup);
    assert_eq!((seen.writes, seen.ios(), seen.drives[4].ios), (1.0, 8.0, 4.0));
}
