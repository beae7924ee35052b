//! A job on a stand, several times, each time from the same beginning.

use super::play::{Pace, PlayOptions, Played, play};
use super::prefill::{Content, Needed, Prefilled, bytes, prefill};
use super::root::Root;
use super::script::Script;
use super::summary::{Summary, joules};
use crate::stand::{Coldness, DeviceUse, PageUse, Stand};
use ashlar_units::Bytes;
use rustix::time::{ClockId, clock_gettime};
use schemars::JsonSchema;
use serde::Serialize;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What is measured, and what must be there before.
pub struct Job {
    /// Run before, and not measured.
    pub setup: Option<Script>,
    /// Made before.
    pub needed: Needed,
    /// Measured.
    pub script: Script,
}

/// How a job is done.
#[derive(Clone, Copy, Debug)]
pub struct BenchOptions {
    /// How calls are done.
    pub play: PlayOptions,
    /// Caches stay as the preparation leaves them.
    pub warm: bool,
    /// How often.
    pub repeats: u32,
    /// Memory for this process and what it has in the page cache.
    pub memory: Option<Bytes>,
}

/// One run of a job.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Repeat {
    /// What was made before.
    pub prefilled: Prefilled,
    /// What was in memory at the beginning; not there if that was not to be cold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coldness: Option<Coldness>,
    /// What was measured.
    #[serde(flatten)]
    pub summary: Summary,
    /// Processor time of this process, seconds, which includes its system calls but not what the kernel does later.
    pub cpu_s: f64,
    /// Processor time of servers of the stand, seconds.
    pub server_cpu_s: f64,
    /// What of the file system came into the page cache and went, as the kernel counts it; needs BPF.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages: Option<PageUse>,
    /// Why that was not counted, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages_unknown: Option<String>,
    /// With a limit on memory: bytes of it that this process had itself at the end. The rest was for caches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_memory_bytes: Option<u64>,
    /// What the device did, where the kernel tells.
    pub device: Option<DeviceUse>,
    /// Energy of the paper's machine, modelled.
    pub modelled_j: f64,
}

/// Why a job was not done.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Somebody stopped it.
    #[error("stopped")]
    Stopped,
    /// There is not enough room.
    #[error("{0} must be there before, and the file system has {1} free; take a larger one, or a smaller workload")]
    Room(Bytes, Bytes),
    /// The preparation failed.
    #[error("before the run: {0}")]
    Before(String),
    /// The file system, or what is below it, failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32)
}

impl Job {
    /// Does the job. `each` gets what came of every run, and the run itself.
    pub fn bench(
        &self,
        stand: &mut Stand,
        options: &BenchOptions,
        stop: &AtomicBool,
        mut each: impl FnMut(&Repeat, &Played),
    ) -> Result<Vec<Repeat>, BenchError> {
        let mut repeats = Vec::new();
        if let Some(memory) = options.memory {
            stand.limit(memory)?;
        }
        for number in 0..options.repeats {
            if number > 0 {
                stand.renew()?;
            }
            let (repeat, played) = self.once(stand, options, stop)?;
            each(&repeat, &played);
            repeats.push(repeat);
        }
        Ok(repeats)
    }

    fn once(
        &self,
        stand: &mut Stand,
        options: &BenchOptions,
        stop: &AtomicBool,
    ) -> Result<(Repeat, Played), BenchError> {
        let check = || if stop.load(Ordering::Acquire) { Err(BenchError::Stopped) } else { Ok(()) };
        check()?;
        let links = |content: &Content| *content == Content::Link;
        let careful = self.script.links || self.needed.values().any(links);
        let careful = careful || self.setup.as_ref().is_some_and(|setup| setup.links);
        let prefilled = self.prepare(stand, careful, options, stop)?;
        check()?;
        let coldness = if options.warm { None } else { Some(stand.cold()?) };
        check()?;
        let root = Root::new(stand.path(), careful)?;
        let counter = stand.page_counter();
        let (cpu_before, server_before, device_before) = (cpu(), stand.server_cpu(), stand.device_use());
        let played = play(&self.script, &root, &options.play, stop)?;
        if played.stopped {
            return Err(BenchError::Stopped);
        }
        let (own, server) = (cpu() - cpu_before, stand.server_cpu().saturating_sub(server_before));
        let pages = counter.and_then(|counter| counter.count());
        let device = stand.device_use().zip(device_before).map(|(now, before)| now.since(&before));
        let busy = device.map_or(0.0, |device| device.busy_s);
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let repeat = Repeat {
            prefilled,
            coldness,
            summary: Summary::of(&self.script, &played),
            cpu_s: own.as_secs_f64(),
            server_cpu_s: server.as_secs_f64(),
            pages: pages.as_ref().ok().copied(),
            own_memory_bytes: stand.own_memory().map(|bytes| bytes.0),
            pages_unknown: pages.err().map(|error| error.to_string()),
            device,
            modelled_j: joules(played.total, own + server, processors as f64, Duration::from_secs_f64(busy)),
        };
        Ok((repeat, played))
    }

    /// Makes what is needed, and does the setup.
    fn prepare(
        &self,
        stand: &Stand,
        careful: bool,
        options: &BenchOptions,
        stop: &AtomicBool,
    ) -> Result<Prefilled, BenchError> {
        let (before, free) = (bytes(&self.needed), stand.free()?);
        let setup = self.setup.as_ref().map_or(0, |setup| setup.written);
        let all = Bytes(before.saturating_add(setup));
        if all.0 > free.0 {
            return Err(BenchError::Room(all, free));
        }
        let root = Root::new(stand.path(), careful)?;
        let prefilled = prefill(&root, &self.needed, options.play.seed)?;
        let Some(setup) = &self.setup else { return Ok(prefilled) };
        let played = play(setup, &root, &PlayOptions { sync: false, pace: Pace::Closed, ..options.play }, stop)?;
        if played.stopped {
            return Err(BenchError::Stopped);
        }
        let summary = Summary::of(setup, &played);
        match summary.failed_here.count {
            0 => Ok(prefilled),
            _ => Err(BenchError::Before(format!("calls failed: {}", summary.failed_here))),
        }
    }
}
