//! How many files may be dirty before making one more so waits for others to be written.

use super::bench::{Bench, Clock, make};
use super::names::close;
use crate::vector::{Family as F, Value};
use std::io;

/// Files at most.
const FILES: u64 = 16_384;
/// Files of which the mean time is looked at.
const GROUP: usize = 256;
const BYTES: u64 = 4096;
/// Where a group takes so many times what the quickest takes, there is a bound.
const TIMES: f64 = 2.0;

/// Makes files of 4 KiB one after the other, and syncs none.
pub fn many(bench: &mut Bench) -> io::Result<()> {
    let directories = bench.directories()?;
    let files = FILES.min(bench.space / 2 / BYTES);
    let mut times = Vec::new();
    bench.settle()?;
    for turn in 0..files {
        bench.more(1)?;
        let directory = &directories[turn as usize % directories.len()];
        let clock = Clock::start();
        close(make(directory, &format!("many{turn}"), BYTES, &bench.buffer)?)?;
        times.push(clock.stop().milliseconds);
    }
    if let Some((before, wait)) = bound(&times) {
        bench.set(F::DIRTYFILES, 0, Value { quantiles: None, ..Value::exact(before as f64) });
        bench.set(F::DIRTYWAIT, 0, wait);
    }
    Ok(())
}

/// How many files there are before the first group that takes long, and what each of the others takes beyond one of the quickest
/// group; `None` if those that follow are not slower on average.
fn bound(times: &[f64]) -> Option<(usize, Value)> {
    let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
    let groups = || times.chunks_exact(GROUP).map(mean);
    let quick = groups().min_by(f64::total_cmp)?;
    let before = groups().position(|each| each > TIMES * quick)? * GROUP;
    let after = times.get(before..)?;
    (mean(after) > TIMES * quick).then(|| {
        let value = Value::of(after.iter().map(|time| (time - quick).max(0.0)).collect());
        (before, Value { mean: mean(after) - quick, quantiles: None, ..value.unwrap_or_else(|| Value::exact(0.0)) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_where_waiting_goes_on() {
        let quick = |at: usize| 0.01 + (at % 7) as f64 * 1e-4;
        let even: Vec<f64> = (0..4096).map(quick).collect();
        assert!(bound(&even).is_none());
        let once: Vec<f64> = (0..4096).map(|at| if at == 1000 { 5.0 } else { quick(at) }).collect();
        assert!(bound(&once).is_none(), "a single wait is none");
        // From 1,024 on each hundredth waits for 5 ms.
        let often: Vec<f64> = (0..4096).map(|at| if at >= 1024 && at % 100 == 30 { 5.0 } else { quick(at) }).collect();
        let (before, wait) = bound(&often).expect("there is a bound");
        assert_eq!(before, 1024);
        assert!((wait.mean - 0.05).abs() < 0.002, "{}", wait.mean);
        assert!(bound(&[]).is_none());
    }
}
