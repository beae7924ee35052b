//! What a request of the kernel costs that needs no I/O: the kernel forgets names and attributes, and asks for them again.

use crate::bench::check_interrupt;
use crate::bench::daemon::Daemon;
use crate::bench::library::Figure;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FILES: usize = 10_000;
const STORMS: usize = 5;

/// A pool in memory. It is removed at the end.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Place, String> {
        let directory = Path::new("/dev/shm").join(format!("ashlar-bench-{}", std::process::id()));
        fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        Ok(Place(directory))
    }
    fn file(&self, index: usize) -> PathBuf {
        self.0.join("mnt/files").join(format!("file-{index}"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("xtask: left something in {}: {error}", self.0.display());
        }
    }
}

/// Storms of `stat` on a server that has everything in memory.
pub fn measure(ashlar: &Path) -> Result<Vec<Figure>, String> {
    let place = Place::new()?;
    let up = || Daemon::up(ashlar, &place.0, &["--size", "1GiB"]);
    let pool = up()?;
    fs::create_dir(place.0.join("mnt/files")).map_err(|error| error.to_string())?;
    for index in 0..FILES {
        check_interrupt()?;
        fs::write(place.file(index), b"").map_err(|error| error.to_string())?;
    }
    // The counters begin anew, without the requests that made the files.
    drop(pool);
    let pool = up()?;
    storm(&place)?;
    let before = pool.status()?;
    let server = before["pid"].as_u64().ok_or("ashlar status names no process")?;
    let requests = |status: &Value| status["requests"].as_u64().unwrap_or(0);
    let cpu = cpu_time(server);
    for _ in 0..STORMS {
        storm(&place)?;
    }
    let (after, cpu) = (pool.status()?, cpu_time(server).saturating_sub(cpu));
    let count = requests(&after).saturating_sub(requests(&before));
    if count < (STORMS * FILES) as u64 {
        return Err(format!("{count} requests for {} files: the kernel remembered them", STORMS * FILES));
    }
    let operations = after["operations"].as_array().map_or(&[][..], Vec::as_slice);
    let lookup = operations.iter().find(|operation| operation["name"].as_str() == Some("lookup"));
    let time = |name: &str| lookup.and_then(|lookup| lookup[name].as_f64()).map(|nanoseconds| nanoseconds / 1e3);
    let figure = |row: &str, value: f64| Figure { row: row.into(), unit: "us".into(), value };
    let missing = "ashlar status has no times of lookups";
    Ok(vec![
        figure("cached lookup request, median", time("median_ns").ok_or(missing)?),
        figure("cached lookup request, 99th percentile", time("p99_ns").ok_or(missing)?),
        figure("the server's threads, per request", cpu.as_secs_f64() * 1e6 / count as f64),
    ])
}

/// Asks for the attributes of every file after the kernel has forgotten them.
fn storm(place: &Place) -> Result<(), String> {
    fs::write("/proc/sys/vm/drop_caches", "2").map_err(|error| format!("/proc/sys/vm/drop_caches: {error}"))?;
    for index in 0..FILES {
        check_interrupt()?;
        fs::metadata(place.file(index)).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// What the threads of a process have run, also in the kernel.
fn cpu_time(process: u64) -> Duration {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let nanoseconds = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}
