//! Simulated I/Os per second of processor time: random 4 KiB reads, 8 at a time.

use ashlar_models::{Chance, ModelFile, Request, closed_loop, presets};
use std::time::Instant;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for file in presets() {
        if wanted.is_empty() || wanted.contains(&file.name) {
            for (what, writes) in [("reads", 0), ("writes", 100), ("70 % reads", 30)] {
                match rate(&file, writes) {
                    Ok((per_second, mean_ms)) => println!(
                        "{:<16} {what:<12} {:>10.0} I/Os per second of processor, mean response {mean_ms:.3} ms",
                        file.name, per_second
                    ),
                    Err(error) => println!("{:<16} {what:<12} {error}", file.name),
                }
            }
        }
    }
}

fn rate(file: &ModelFile, writes_percent: u64) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let mut model = file.build(1)?;
    let mut chance = Chance::new(1);
    let blocks = model.capacity() / 4096;
    let count = 3_000_000u64;
    let mut left = count;
    let next = || {
        left = left.checked_sub(1)?;
        let offset = chance.below(blocks) * 4096;
        let write = writes_percent > 0 && chance.below(100) < writes_percent;
        Some(if write { Request::write(offset, 4096) } else { Request::read(offset, 4096) })
    };
    let start = Instant::now();
    let summary = closed_loop(model.as_mut(), 0, 8, next, |_| {})?;
    Ok((count as f64 / start.elapsed().as_secs_f64(), summary.mean_ns() / 1e6))
}
