//! What a request of the kernel costs that needs no I/O: the kernel forgets names and attributes, and asks for them again.

use crate::bench::library::Figure;
use crate::bench::{check_interrupt, quiet, said};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const FILES: usize = 10_000;
const STORMS: usize = 5;

/// A pool in memory that is up. Dropping it takes it down and removes it.
struct Pool<'a> {
    ashlar: &'a Path,
    directory: PathBuf,
}

impl<'a> Pool<'a> {
    fn new(ashlar: &'a Path) -> Result<Pool<'a>, String> {
        let directory = Path::new("/dev/shm").join(format!("ashlar-bench-{}", std::process::id()));
        fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        Ok(Pool { ashlar, directory })
    }
    fn ashlar(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.ashlar);
        command.args(arguments).arg("--pool").arg(&self.directory);
        command
    }
    fn up(&self) -> Result<(), String> {
        quiet(&mut self.ashlar(&["up", "--detach", "--size", "1GiB"]))
    }
    fn down(&self) -> Result<(), String> {
        quiet(&mut self.ashlar(&["down"]))
    }
    fn status(&self) -> Result<Value, String> {
        let text = said(&mut self.ashlar(&["status", "--json"]))?;
        serde_json::from_str(&text).map_err(|error| format!("ashlar status: {error}"))
    }
    fn file(&self, index: usize) -> PathBuf {
        self.directory.join("mnt/files").join(format!("file-{index}"))
    }
}

impl Drop for Pool<'_> {
    fn drop(&mut self) {
        let down = self.down();
        let removed = down.and_then(|()| fs::remove_dir_all(&self.directory).map_err(|error| error.to_string()));
        if let Err(error) = removed {
            eprintln!("xtask: left something in {}: {error}", self.directory.display());
        }
    }
}

/// Storms of `stat` on a server that has everything in memory.
pub fn measure(ashlar: &Path) -> Result<Vec<Figure>, String> {
    let pool = Pool::new(ashlar)?;
    pool.up()?;
    fs::create_dir(pool.directory.join("mnt/files")).map_err(|error| error.to_string())?;
    for index in 0..FILES {
        check_interrupt()?;
        fs::write(pool.file(index), b"").map_err(|error| error.to_string())?;
    }
    // The counters begin anew, without the requests that made the files.
    pool.down()?;
    pool.up()?;
    storm(&pool)?;
    let before = pool.status()?;
    let server = before["pid"].as_u64().ok_or("ashlar status names no process")?;
    let requests = |status: &Value| status["requests"].as_u64().unwrap_or(0);
    let cpu = cpu_time(server);
    for _ in 0..STORMS {
        storm(&pool)?;
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
fn storm(pool: &Pool) -> Result<(), String> {
    fs::write("/proc/sys/vm/drop_caches", "2").map_err(|error| format!("/proc/sys/vm/drop_caches: {error}"))?;
    for index in 0..FILES {
        check_interrupt()?;
        fs::metadata(pool.file(index)).map_err(|error| error.to_string())?;
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
