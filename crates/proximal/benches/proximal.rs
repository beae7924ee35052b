//! Prints the paper's Tables 2 and 3 beside what the engine does on an emulated disk. `cargo xtask bench proximal` runs this.

#[path = "experiment.rs"]
#[allow(dead_code)]
mod experiment;

use ashlar_proximal::{Placement, Victims};
use experiment::{Outcome, Scan, Setup, run};

/// Table 2 of the paper: staging in percent, response time of a batch (ms), user writes of a batch.
const TABLE_2: [(f64, f64, f64); 8] = [
    (1.0, 129.5, 47.5),
    (2.0, 155.0, 85.2),
    (3.0, 182.9, 119.7),
    (4.0, 227.6, 149.3),
    (5.0, 235.9, 179.1),
    (6.0, 278.4, 226.1),
    (7.0, 315.4, 259.5),
    (8.0, 320.9, 254.8),
];

fn main() {
    let extents = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(16);
    let setup = Setup { extents, ..Setup::default() };
    println!("emulated: one WD RE3 in virtual time, {extents} extents of 16 MiB spread over it, no array, no parity\n");
    scans(setup);
    batches(setup);
    victims(setup);
}

fn line(name: &str, scan: Scan, fresh: Scan, paper: &str) {
    let ratio = scan.mb_s / fresh.mb_s;
    println!("{name:<34}{:>8.1}{ratio:>8.3}{:>12.1}{:>10.1}   {paper}", scan.mb_s, scan.response_ms, scan.requests);
}

fn scans(setup: Setup) {
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

fn batches(setup: Setup) {
    println!("destaging (Table 2)   blocks/batch  (paper)  batch ms  (paper, RAID-4)  writes/rev  updates/s  (paper)");
    for (percent, paper_ms, paper_blocks) in TABLE_2 {
        let outcome = run(1, Setup { staging: Some(percent), ..setup });
        let rate = per_batch(&outcome) / outcome.batch_ms * 1e3;
        let paper_rate = paper_blocks / paper_ms * 1e3;
        println!(
            "staging {percent:>3} %{:>22.1}{paper_blocks:>9.1}{:>10.1}{paper_ms:>17.1}{:>12.1}{rate:>11.0}{paper_rate:>9.0}",
            per_batch(&outcome),
            outcome.batch_ms,
            outcome.writes_per_revolution,
        );
    }
    println!();
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
