//! `ashlar lab replay`: the requests of a trace on a model, in virtual time.

use super::arguments::Replay;
use crate::device::{REQUESTS, find};
use crate::output::{Failure, Output};
use ashlar_models::{Completion, Counters, Request, closed_loop, open_loop};
use rustix::time::{ClockId, clock_gettime};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

/// Requests of a trace that are held in memory: 2.5 GiB of them.
const REQUESTS_MAX: usize = 1 << 26;

/// What came out of a replay. Times are virtual, but for `cpu_s`.
#[derive(Serialize, JsonSchema)]
struct Report {
    /// Name of the model.
    model: String,
    /// Requests.
    requests: u64,
    /// Bytes of reads, writes and discards.
    bytes: u64,
    /// From the first arrival to the last completion, seconds.
    total_s: f64,
    /// Requests per second of that time.
    requests_per_s: f64,
    /// Response times, microseconds.
    response_us: Responses,
    /// Where they went: means, microseconds.
    split_us: Means,
    /// What the device did.
    counters: Counters,
    /// Processor time that the simulation took, seconds.
    cpu_s: f64,
    /// Virtual seconds for each second of processor time.
    simulated_s_per_cpu_s: f64,
}

/// Mean, percentiles and the longest.
#[derive(Serialize, JsonSchema)]
struct Responses {
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

/// Parts of the mean response time.
#[derive(Serialize, JsonSchema)]
struct Means {
    queue: f64,
    overhead: f64,
    seek: f64,
    rotation: f64,
    transfer: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { response_us: response, split_us: split, counters, .. } = self;
        writeln!(f, "{}: {} requests, {} bytes", self.model, self.requests, self.bytes)?;
        writeln!(f, "virtual time     {:.6} s, {:.1} requests/s", self.total_s, self.requests_per_s)?;
        writeln!(
            f,
            "response, us     mean {:.1}, p50 {:.1}, p90 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1}",
            response.mean, response.p50, response.p90, response.p99, response.p999, response.max
        )?;
        writeln!(
            f,
            "mean of it, us   queue {:.1}, overhead {:.1}, seek {:.1}, rotation {:.1}, transfer {:.1}",
            split.queue, split.overhead, split.seek, split.rotation, split.transfer
        )?;
        if counters.programs > 0 {
            writeln!(
                f,
                "flash            {} programs, {} copies, {} erases",
                counters.programs, counters.copies, counters.erases
            )?;
        }
        writeln!(
            f,
            "processor time   {:.3} s; {:.0} simulated seconds per second of it",
            self.cpu_s, self.simulated_s_per_cpu_s
        )
    }
}

/// `ashlar lab replay`.
pub fn replay(replay: &Replay, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Report>() {
        return Ok(code);
    }
    let file = find(&replay.model)?;
    let requests = read(&replay.trace)?;
    let mut model = file.build(replay.seed)?;
    let first_ns = requests.first().map_or(0, |(at_ns, _)| *at_ns);
    let mut responses = Vec::with_capacity(requests.len());
    let seen = |done: &Completion| responses.push(done.response_ns());
    let began = cpu_s();
    let run = match replay.depth {
        Some(depth) => {
            let mut requests = requests.iter().map(|(_, request)| *request);
            closed_loop(model.as_mut(), 0, depth.max(1), || requests.next(), seen)
        }
        None => {
            let requests = requests.iter().map(|(at_ns, request)| (at_ns - first_ns, *request));
            open_loop(model.as_mut(), requests, seen)
        }
    };
    let cpu_s = cpu_s() - began;
    let summary = run.map_err(|error| {
        let hint = "the trace does not fit the model: take one that is larger, or faster, or give --depth N";
        Failure::new(format!("{}: {error}; {hint}", replay.trace.display()))
    })?;
    responses.sort_unstable();
    let quantile = |part: f64| {
        let index = (responses.len() as f64 * part) as usize;
        responses.get(index.min(responses.len().saturating_sub(1))).map_or(0.0, |response| *response as f64 / 1e3)
    };
    let mean = |sum_ns: u64| sum_ns as f64 / summary.count.max(1) as f64 / 1e3;
    let total_s = summary.end_ns as f64 / 1e9;
    output.print(&Report {
        model: file.name,
        requests: summary.count,
        bytes: summary.bytes,
        total_s,
        requests_per_s: if total_s > 0.0 { summary.count as f64 / total_s } else { 0.0 },
        response_us: Responses {
            mean: mean(summary.split.total_ns()),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: quantile(1.0),
        },
        split_us: Means {
            queue: mean(summary.split.queue_ns),
            overhead: mean(summary.split.overhead_ns),
            seek: mean(summary.split.seek_ns),
            rotation: mean(summary.split.rotation_ns),
            transfer: mean(summary.split.transfer_ns),
        },
        counters: model.counters(),
        cpu_s,
        simulated_s_per_cpu_s: total_s / cpu_s.max(1e-9),
    });
    Ok(ExitCode::SUCCESS)
}

/// Processor time of this process so far.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The requests of a trace, by the time of their arrival. Records stand in the order of completion.
fn read(path: &Path) -> Result<Vec<(u64, Request)>, Failure> {
    let mut requests: Vec<(u64, Request)> = Vec::new();
    let read = ashlar_columns::read(&REQUESTS, path, |record| {
        if requests.len() == REQUESTS_MAX {
            return Err(format!("more than {REQUESTS_MAX} requests; replay it in parts"));
        }
        requests.push((record.at_ns, record.request()));
        Ok(())
    });
    read.map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    requests.sort_by_key(|(at_ns, _)| *at_ns);
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_read_in_order_of_arrival() {
        let path = std::env::temp_dir().join(format!("ashlar-replay-{}.jsonl", std::process::id()));
        let text =
            "{\"at_ns\":9,\"op\":\"flush\"}\n{\"at_ns\":3,\"op\":\"write\",\"offset\":4096,\"len\":512,\"fua\":true}";
        std::fs::write(&path, text).expect("a place for files");
        let requests = read(&path).map_err(|_| "no requests");
        assert_eq!(requests, Ok(vec![(3, Request::write_fua(4096, 512)), (9, Request::flush())]));
        std::fs::write(&path, "{\"at_ns\":1,\"op\":\"erase\"}").expect("a place for files");
        let error = read(&path).map(|_| ()).expect_err("no such operation").to_string();
        assert!(error.contains("line 1") && error.contains("unknown variant"), "{error}");
        std::fs::remove_file(&path).expect("it is ours");
    }
}
