//! How busy processors and device are while something is measured.

use crate::stand::Stand;
use std::time::Instant;

/// Processors that are this busy are what calls wait for, and not the device.
const BUSY: f64 = 0.5;
/// Ticks of `/proc/stat` in a second.
const TICKS: f64 = 100.0;

/// Counters at a time.
pub struct Busy {
    at: Instant,
    processors: f64,
    device: f64,
}

impl Busy {
    /// Now.
    pub fn now(stand: &Stand) -> Busy {
        let device = stand.device_use().map_or(0.0, |device| device.busy_s);
        Busy { at: Instant::now(), processors: processor_seconds().unwrap_or(0.0), device }
    }

    /// Which part of the time since then what all share was used, 0 to 1: of all processors, also by threads of the kernel and by
    /// others; or, where those had little to do, the part in which the device had requests. (A device that serves many at once
    /// is used less than that.)
    pub fn part(&self, stand: &Stand) -> f64 {
        let now = Busy::now(stand);
        let seconds = now.at.duration_since(self.at).as_secs_f64().max(1e-9);
        let count = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
        let processors = (now.processors - self.processors) / seconds / count;
        let device = (now.device - self.device) / seconds;
        if processors < BUSY { processors.max(device) } else { processors }.clamp(0.0, 1.0)
    }
}

/// Seconds in which processors were not idle, of all together.
fn processor_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<f64> = text.lines().next()?.split_whitespace().skip(1).map_while(|word| word.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal: what was stolen was wanted.
    Some((ticks.iter().take(8).sum::<f64>() - ticks.get(3)? - ticks.get(4)?) / TICKS)
}
