//! Simulated I/Os per second of processor time: random, 4 KiB, 8 at a time; flash is filled first.

use ashlar_models::{Chance, ModelFile, Request, closed_loop, presets};
use rustix::time::{ClockId, clock_gettime};

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
    if file.kind() == "segments" && writes_percent > 0 {
        return Err("random writes are against the rules".into());
    }
    let mut end_ns = 0;
    if matches!(file.kind(), "flash" | "segments") {
        // A flash that holds nothing would answer reads without work, and would not clean.
        const RUN: u64 = 1 << 18;
        let mut runs = (0..model.capacity() / RUN).map(|run| Request::write(run * RUN, RUN));
        end_ns = closed_loop(model.as_mut(), 0, 8, || runs.next(), |_| {})?.end_ns;
    }
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
    let start = processor_seconds();
    let summary = closed_loop(model.as_mut(), end_ns, 8, next, |_| {})?;
    Ok((count as f64 / (processor_seconds() - start), summary.mean_ns() / 1e6))
}

/// Processor time of this thread.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
