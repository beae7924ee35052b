//! How long it takes until a thread runs for which another one has done what it waited for.

use super::bench::Bench;
use crate::vector::{Family as F, Value};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Turns of which the mean is a sample: the clock is asked seldom.
const TURNS: u64 = 200;
/// Samples at most.
const SAMPLES: usize = 200;
/// Processors that are tried.
const PROCESSORS: usize = 1024;

/// Two threads wait for each other in turn, on one processor, and each on its own.
pub fn hand(bench: &mut Bench) -> io::Result<()> {
    let all = sched_getaffinity(None)?;
    let mine: Vec<usize> = (0..PROCESSORS).filter(|processor| all.is_set(*processor)).take(2).collect();
    let Some(first) = mine.first() else { return Ok(()) };
    let time = bench.part() / mine.len() as u32;
    for second in &mine {
        bench.more(1)?;
        if let Some(value) = turns([*first, *second], time)? {
            bench.set(F::HAND, if first == second { 1 } else { 2 }, value);
        }
    }
    Ok(())
}

/// Milliseconds from the end of what one thread does to the begin of what the other does.
fn turns(processors: [usize; 2], time: Duration) -> io::Result<Option<Value>> {
    let (turn, passed) = (Mutex::new(0u64), Condvar::new());
    let began = Instant::now();
    let samples = std::thread::scope(|scope| {
        let threads = [0, 1].map(|me: usize| {
            let (turn, passed) = (&turn, &passed);
            scope.spawn(move || {
                let mut only = CpuSet::new();
                only.set(processors[me]);
                let pinned = sched_setaffinity(None, &only);
                let mut samples = Vec::new();
                let mut held = turn.lock().unwrap_or_else(PoisonError::into_inner);
                // The first tells by its number of turns when both are to end, so that none is left waiting.
                let mut since = Instant::now();
                loop {
                    while *held % 2 != me as u64 && *held != u64::MAX {
                        held = passed.wait(held).unwrap_or_else(PoisonError::into_inner);
                    }
                    if *held == u64::MAX {
                        break;
                    }
                    *held += 1;
                    if me == 0 && *held % TURNS == 1 && *held > 1 {
                        samples.push(since.elapsed().as_secs_f64() * 1e3 / TURNS as f64);
                        since = Instant::now();
                        if samples.len() >= SAMPLES || began.elapsed() >= time {
                            *held = u64::MAX;
                        }
                    }
                    passed.notify_one();
                }
                pinned.map(|()| samples)
            })
        });
        let mut all = Vec::new();
        for thread in threads {
            let samples = thread.join().map_err(|_| io::Error::other("a thread panicked"))?;
            all.extend(samples?);
        }
        Ok::<_, io::Error>(all)
    })?;
    Ok(Value::of(samples))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_take_turns() {
        let all = sched_getaffinity(None).expect("Linux tells");
        let first = (0..PROCESSORS).find(|processor| all.is_set(*processor)).expect("one runs this");
        let value = turns([first, first], Duration::from_millis(20)).expect("threads").expect("at least one sample");
        assert!(value.mean > 0.0 && value.count >= 1, "{value:?}");
    }
}
