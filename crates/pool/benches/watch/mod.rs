//! What benchmarks of libraries share: figures as lines of JSON, by the clock and by the processor's time.

use std::time::{Duration, Instant};

/// Writes one figure.
pub fn report(row: &str, unit: &str, value: f64) {
    println!("{}", serde_json::json!({ "row": row, "unit": unit, "value": value }));
}

/// Time of the clock and of the processor since a measurement began.
pub struct Watch {
    wall: Instant,
    cpu: Duration,
}

impl Watch {
    /// Begins now.
    pub fn start() -> Watch {
        Watch { wall: Instant::now(), cpu: cpu_time() }
    }
    /// How many of `count` per second, and per second of a core's time, which other work on the machine does not stretch.
    pub fn report(&self, row: &str, unit: &str, count: f64) {
        let (wall, cpu) = (self.wall.elapsed(), cpu_time() - self.cpu);
        report(row, unit, count / wall.as_secs_f64());
        report(row, &format!("{unit} of a core"), count / cpu.as_secs_f64());
    }
}

/// What all threads of this process have run.
fn cpu_time() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux lists threads");
    let nanoseconds = |thread: std::fs::DirEntry| -> u64 {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0)
    };
    Duration::from_nanos(threads.flatten().map(nanoseconds).sum())
}
