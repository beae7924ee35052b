//! Prints the paper's Tables 2 and 3 beside what the engine does on an emulated disk. `cargo xtask bench proximal` runs this.
//! Arguments: how many extents (16), and which parts: `scans`, `victims`, `batches`, `peers` (all).

#[allow(dead_code)]
mod experiment;

use ashlar_array::Journaling;
use ashlar_proximal::{Placement, Victims};
use experiment::raid::{self, IN_PLACE, Measured, Paper, TABLE_2, Way};
use experiment::{Outcome, Scan, Setup, run};

/// A part of the benchmark, by name.
type Part = (&'static str, fn(Setup));

fn main() {
    let extents = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(16);
    let setup = Setup { extents, ..Setup::default() };
    let parts: [Part; 4] = [("scans", scans), ("victims", victims), ("batches", batches), ("peers", peers)];
    let asked = |part: &str| std::env::args().any(|argument| argument == part);
    let all = !parts.iter().any(|(part, _)| asked(part));
    parts.iter().filter(|(part, _)| all || asked(part)).for_each(|(_, print)| print(setup));
}

fn line(name: &str, scan: Scan, fresh: Scan, paper: &str) {
    let ratio = scan.mb_s / fresh.mb_s;
    println!("{name:<34}{:>8.1}{ratio:>8.3}{:>12.1}{:>10.1}   {paper}", scan.mb_s, scan.response_ms, scan.requests);
}

fn scans(setup: Setup) {
    println!(
        "emulated: one WD RE3 in virtual time, {} extents of 16 MiB spread over it, no array, no parity\n",
        setup.extents
    );
    println!("serial reads of 974 blocks (Table 3)  MB/s   ratio  response ms  requests   paper, per disk of an array");
    let aged = run(1, setup);
    line("fresh", aged.fresh, aged.fresh, "89.0 MB/s");
    line("aged, 1 % staging, holes", aged.aged, aged.fresh, "86.2 MB/s, 0.97");
    let own = run(1, Setup { placement: Placement::Own, ..setup });
    line("aged, own places", own.aged, own.fresh, "");
    for placement in [Placement::Holes, Placement::Own] {
        let kept = run(1, Setup { placement, snapshots: true, updates: setup.updates / 10, ..setup });
        line(&format!("aged a tenth, snapshots, {placement:?}"), kept.aged, kept.fresh, "");
    }
    let anywhere = run(1, Setup { staging: None, placement: Placement::Anywhere, ..setup });
    line("write anywhere, no staging", anywhere.aged, anywhere.fresh, "2.6 MB/s, 0.03");
    println!();
}

fn per_batch(outcome: &Outcome) -> f64 {
    outcome.status.moved as f64 / outcome.status.batches.max(1) as f64
}

fn on_raid_4(setup: Setup, way: Way, updates: u64, journal: Journaling) -> Measured {
    raid::run(1, raid::Setup { extents: setup.extents, way, updates, journal, queue: 8, timed: true })
}

/// Table 2, on RAID-4 of five disks.
fn batches(setup: Setup) {
    let of = |way, updates, journal| on_raid_4(setup, way, updates, journal);
    // Enough for each extent that the store is drained several times.
    let drains = |paper: Paper| (paper.writes * 4.4) as u64;
    println!(
        "emulated: RAID-4 (4+1) of WD RE3 in virtual time, {} extents of 16 MiB spread over them, 89 % full; Table 2. The paper's \
         array has no journal; ours has, unless it says otherwise",
        setup.extents
    );
    println!(
        "{:<30}{:>7}{:>16}{:>18}{:>14}{:>20}{:>30}{:>16}",
        "",
        "writes",
        "response ms",
        "disk I/Os",
        "I/Os/rev",
        "data I/Os, busy ms",
        "parity I/Os, requests, busy ms",
        "updates/s"
    );
    let in_place = of(Way::InPlace, 40, Journaling::Off);
    row("in place, no journal", IN_PLACE, &in_place, in_place.updates_per_s);
    for paper in TABLE_2 {
        let seen = of(Way::Proximal(paper.writes, Placement::Holes), drains(paper), Journaling::Off);
        row(&format!("{:.0} %, holes, no journal", paper.staging), paper, &seen, in_place.updates_per_s);
    }
    for paper in [TABLE_2[0], TABLE_2[2], TABLE_2[6]] {
        let (way, updates) = (Way::Proximal(paper.writes, Placement::Holes), drains(paper));
        let queued =
            raid::Setup { extents: setup.extents, way, updates, journal: Journaling::Off, queue: 32, timed: true };
        let name = format!("{:.0} %, the same, 32 queued", paper.staging);
        row(&name, paper, &raid::run(1, queued), in_place.updates_per_s);
    }
    let journaled = of(Way::InPlace, 40, Journaling::Members);
    row("in place", IN_PLACE, &journaled, journaled.updates_per_s);
    for paper in [TABLE_2[0], TABLE_2[2], TABLE_2[6]] {
        let seen = of(Way::Proximal(paper.writes, Placement::Own), drains(paper), Journaling::Members);
        row(&format!("{:.0} %, own places", paper.staging), paper, &seen, journaled.updates_per_s);
    }
    println!();
}

/// Others on the same disks.
fn peers(setup: Setup) {
    println!("the same disks                  updates/s   of it in place   serial reads MB/s: fresh, aged, ratio");
    let mut in_place = None;
    for (name, way, updates, journal) in [
        ("in place, no journal", Way::InPlace, 40, Journaling::Off),
        ("proximal, 1 %, no journal", Way::Proximal(47.5, Placement::Own), 2000, Journaling::Off),
        ("proximal, 1 %", Way::Proximal(47.5, Placement::Own), 2000, Journaling::Members),
        ("pool, half full, no journal", Way::Pool(0.5), 2000, Journaling::Off),
        ("pool, 70 % full, no journal", Way::Pool(0.7), 2000, Journaling::Off),
        ("pool, 70 % full", Way::Pool(0.7), 2000, Journaling::Members),
    ] {
        let seen = on_raid_4(setup, way, updates, journal);
        let [fresh, aged] = seen.scans;
        let in_place = *in_place.get_or_insert(seen.updates_per_s);
        println!(
            "{name:<30}{:>11.0}{:>17.1}{fresh:>13.1}{aged:>8.1}{:>8.3}",
            seen.updates_per_s,
            seen.updates_per_s / in_place,
            aged / fresh
        );
    }
    println!();
}

/// A row of Table 2 with the paper's numbers in brackets.
fn row(name: &str, paper: Paper, seen: &Measured, in_place: f64) {
    let [data, parity] = seen.data_and_parity();
    let (gain, paper_rate) = (seen.updates_per_s / in_place, paper.writes / paper.response_ms * 1e3);
    println!(
        "{name:<30}{:>7.1}{:>8.1} ({:>5.1}){:>9.1} ({:>6.1}){:>7.1} ({:>3.1}){:>11.1}, {:>6.1}{:>12.1}, {:>6.1}, {:>6.1}{:>8.0} ({:>3.0}), {gain:.1}x ({:.1}x)",
        seen.writes,
        seen.response_ms,
        paper.response_ms,
        seen.ios(),
        paper.ios,
        seen.per_revolution(),
        paper.per_revolution,
        data.ios,
        data.busy_ms,
        parity.ios,
        parity.requests,
        parity.busy_ms,
        seen.updates_per_s,
        paper_rate,
        paper_rate / (IN_PLACE.writes / IN_PLACE.response_ms * 1e3),
    );
}

fn victims(setup: Setup) {
    println!("victims, 1 % staging                       blocks/batch  disk writes/update  absorbed in staging");
    for (name, skew) in [("uniform", 0.1), ("half of the updates to a tenth", 0.5), ("nine tenths to a tenth", 0.9)] {
        for victims in [Victims::All, Victims::Densest] {
            let outcome = run(1, Setup { victims, skew, timed: false, ..setup });
            let absorbed = outcome.status.absorbed as f64 / (setup.extents * setup.updates) as f64;
            let name = format!("{name}, {victims:?}");
            println!("{name:<42}{:>13.1}{:>20.4}{absorbed:>20.4}", per_batch(&outcome), outcome.writes_per_update);
        }
    }
}
