//! What a request costs. By default a few of each, so that this cannot rot; for numbers worth reading:
//!
//! ```text
//! ASHLAR_SPEED_SECONDS=2 cargo test --release -p ashlar-fuse --test mount speed -- --nocapture
//! ```

use super::{Mounted, aligned, obstacle, processors};
use ashlar_fuse::{Counters, Options};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Seconds for each line, as a number with a fraction.
const SECONDS: &str = "ASHLAR_SPEED_SECONDS";
const LARGE: usize = 1 << 20;

struct Line<'a> {
    transport: &'a str,
    mounted: &'a Mounted,
    time: Duration,
}

impl Line<'_> {
    /// Repeats `act` on `threads` threads and prints how often it went, and what the named request took in our code.
    fn run(&self, what: &str, request: &str, threads: usize, act: impl Fn(usize, u64) + Sync) {
        let counters = || self.mounted.mount.counters();
        let before = counters();
        let began = Instant::now();
        let times: u64 = std::thread::scope(|scope| {
            let act = &act;
            let repeat = move |thread| {
                let mut times = 0;
                while times == 0 || began.elapsed() < self.time {
                    act(thread, times);
                    times += 1;
                }
                times
            };
            let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || repeat(thread))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        let seconds = began.elapsed().as_secs_f64();
        let after = counters();
        let requests = after.requests() - before.requests();
        let each = after.operation(request).expect("it was asked for");
        println!(
            "{:<16} {what:<34} {:>8.0}/s {:>8.1} µs each, {:>4.1} requests; {request} in our code: median {:?}, mean {:?}",
            self.transport,
            times as f64 / seconds,
            seconds * threads as f64 / times as f64 * 1e6,
            requests as f64 / times as f64,
            each.quantile(0.5),
            mean(&before, &after, request),
        );
    }
}

fn mean(before: &Counters, after: &Counters, request: &str) -> Duration {
    let sum = |counters: &Counters| counters.operation(request).map_or((0, 0), |of| (of.nanos, of.count));
    let ((nanos, count), (nanos_before, count_before)) = (sum(after), sum(before));
    Duration::from_nanos((nanos - nanos_before).checked_div(count - count_before).unwrap_or(0))
}

fn direct(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .unwrap()
}

#[test]
fn speed() {
    if let Some(why) = obstacle() {
        return eprintln!("SKIPPED: {why}");
    }
    let seconds = std::env::var(SECONDS).ok().and_then(|text| text.parse().ok()).unwrap_or(0.01);
    let transports =
        [("device, 1 worker", 1, false), ("device", processors(), false), ("io_uring", processors(), true)];
    for (transport, workers, over_io_uring) in transports {
        // Without timeouts every question reaches us.
        let mounted = Mounted::new(workers, Options { over_io_uring, timeout: Duration::ZERO, ..Options::default() });
        let at = &mounted.place.0;
        let line = Line { transport, mounted: &mounted, time: Duration::from_secs_f64(seconds) };

        let file = direct(&at.join("file"));
        let mut room = vec![0; LARGE + 4096];
        file.write_all_at(aligned(&mut room, LARGE), 0).unwrap();
        for threads in [1, 2] {
            let what = format!("fstat, {threads} threads");
            line.run(&what, "getattr", threads, |_, _| {
                file.metadata().unwrap();
            });
        }
        line.run("stat of an absent name", "lookup", 1, |_, _| assert!(!at.join("absent").exists()));
        line.run("make, write 1 byte, close, remove", "create", 1, |_, n| {
            let path = at.join(n.to_string());
            fs::write(&path, "x").unwrap();
            fs::remove_file(path).unwrap();
        });
        let read = |len: usize| {
            let file = &file;
            move |_, n: u64| {
                let mut room = [0; 8192];
                let mut large = if len > 4096 { vec![0; LARGE + 4096] } else { Vec::new() };
                let room = if len > 4096 { &mut large[..] } else { &mut room[..] };
                let offset = n * 4096 % (LARGE - len + 4096).max(1) as u64;
                assert_eq!(file.read_at(aligned(room, len), offset).unwrap(), len);
            }
        };
        line.run("read 4 KiB, O_DIRECT", "read", 1, read(4096));
        line.run("read 1 MiB, O_DIRECT", "read", 1, |thread, _| read(LARGE)(thread, 0));
        let data = aligned(&mut room, LARGE);
        line.run("write 1 MiB, O_DIRECT", "write", 1, |_, _| file.write_all_at(data, 0).unwrap());
    }
}
