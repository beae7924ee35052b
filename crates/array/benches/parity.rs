//! How fast parity is computed on one core.
//!
//! `cargo xtask bench array` runs this, several times, and prints medians beside the bars. Each line of the output is one
//! figure, as JSON: the row, its unit and its value. Rates are of data, in 10^9 bytes; parity is not counted.

#[path = "../../pool/benches/watch/mod.rs"]
mod watch;

use ashlar_array::gf;
use ashlar_units::BLOCK_LEN;
use std::hint::black_box;
use watch::Watch;

/// Bytes of data that each row is measured with.
const BYTES: usize = 4 << 30;
/// Data that the processor's second cache holds, and data that no cache holds.
const PLACES: [(&str, usize); 2] = [("in the cache", 256 << 10), ("from memory", 256 << 20)];

fn main() {
    for (place, len) in PLACES {
        for data in [4, 8, 10] {
            let stripe = data * BLOCK_LEN;
            let rows = len / stripe;
            let blocks: Vec<u8> = (0..rows * stripe).map(|at| (at * 31 + at / 251) as u8).collect();
            let rows: Vec<Vec<&[u8]>> = blocks.chunks(stripe).map(|row| row.chunks(BLOCK_LEN).collect()).collect();
            let (mut p, mut q) = (vec![0; BLOCK_LEN], vec![0; BLOCK_LEN]);
            let what = format!("{data} blocks of data, {place}");
            measure(&format!("RAID-6 P and Q, {what}"), &rows, |row| gf::p_and_q(row, &mut p, &mut q));
            measure(&format!("P alone, {what}"), &rows, |row| row.iter().for_each(|block| gf::add(&mut p, block)));
            measure(&format!("any factor, {what}"), &rows, |row| {
                row.iter().for_each(|block| gf::add_product(&mut q, block, 0x8e));
            });
            let mut copy = vec![0; blocks.len()];
            let mut into = 0;
            measure(&format!("memcpy, {what}"), &rows, |row| {
                for block in row {
                    copy[into..into + BLOCK_LEN].copy_from_slice(block);
                    into = (into + BLOCK_LEN) % blocks.len();
                }
                black_box(&mut copy);
            });
        }
    }
}

fn measure(what: &str, rows: &[Vec<&[u8]>], mut work: impl FnMut(&[&[u8]])) {
    let bytes: usize = rows.iter().flatten().map(|block| block.len()).sum();
    let rounds = (BYTES / bytes).max(1);
    let watch = Watch::start();
    for _ in 0..rounds {
        rows.iter().for_each(|row| work(black_box(row)));
    }
    watch.report(what, "GB/s", (rounds * bytes) as f64 / 1e9);
}
