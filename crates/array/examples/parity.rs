//! How fast parity is computed on one core: `cargo run --release -p ashlar-array --example parity`.
//!
//! Blocks of 4 KiB that lie in the processor's caches; GB/s of data (10^9 bytes), the median of nine runs.

use ashlar_array::gf;
use std::time::Instant;

const BLOCK: usize = 4096;
const ROUNDS: usize = 20_000;

fn main() {
    for data in [4, 8, 10] {
        let blocks: Vec<Vec<u8>> =
            (0..data).map(|block| (0..BLOCK).map(|at| (at * 31 + block * 7) as u8).collect()).collect();
        let blocks: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
        let (mut p, mut q) = (vec![0; BLOCK], vec![0; BLOCK]);
        let both = speed(data, || gf::p_and_q(std::hint::black_box(&blocks), &mut p, &mut q));
        let one = speed(data, || blocks.iter().for_each(|block| gf::add(std::hint::black_box(&mut p), block)));
        let product =
            speed(data, || blocks.iter().for_each(|block| gf::add_product(std::hint::black_box(&mut q), block, 0x8e)));
        println!("{data} data blocks: P and Q {both:.1} GB/s, P alone {one:.1} GB/s, any factor {product:.1} GB/s");
    }
}

fn speed(data: usize, mut work: impl FnMut()) -> f64 {
    let mut runs: Vec<f64> = (0..9)
        .map(|_| {
            let began = Instant::now();
            (0..ROUNDS).for_each(|_| work());
            (ROUNDS * data * BLOCK) as f64 / began.elapsed().as_secs_f64() / 1e9
        })
        .collect();
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 2]
}
