//! `ashlar device probe`: how flash translates addresses, by the latency of writes.

use super::models::find;
use crate::arguments::Probe;
use crate::output::{Failure, Output};
use ashlar_models::ModelFile;
use ashlar_models::probe::{Findings, LOG_BLOCKS_MAX, Timed, probe, probe_device};
use rustix::fs::{Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;

/// What direct writes are aligned to in memory, bytes.
const ALIGNMENT: usize = 4096;
/// Bytes of a write where nobody says how long a page of the flash is.
const PAGE: u64 = 4096;

/// What was found.
#[derive(Serialize, JsonSchema)]
struct Found {
    /// What was probed.
    target: String,
    /// `measured` on a device, or `emulated` by a model.
    origin: String,
    /// Bytes of a write, which must be those of a page of the flash.
    page_bytes: u64,
    /// Writes of one page from one slow write to the next; 1 if each takes as long as the others.
    updates_per_log: u64,
    /// Blocks that take updates at once before all writes are slow; 0 if there are no logs.
    log_blocks: u64,
    /// Slow writes from one very slow one to the next, if there are such: static wear levelling.
    static_wear_every: Option<u64>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({}), in writes of {} bytes", self.target, self.origin, self.page_bytes)?;
        match self.updates_per_log {
            1 => writeln!(f, "no period in the latency of writes: pages are mapped, or every update erases")?,
            updates => writeln!(f, "every {updates} updates of one page are slow; {} log blocks", self.log_blocks)?,
        }
        match self.static_wear_every {
            Some(every) => writeln!(f, "static wear levelling every {every} slow writes"),
            None => writeln!(f, "no sign of static wear levelling"),
        }
    }
}

/// A file or device, written past all caches.
struct Real {
    file: File,
    buffer: Vec<u8>,
}

impl Timed for Real {
    type Error = std::io::Error;
    fn latencies(&mut self, count: u64, page: u64, place: &dyn Fn(u64) -> u64) -> std::io::Result<Vec<u64>> {
        let from = self.buffer.as_ptr().align_offset(ALIGNMENT);
        let now_ns = || {
            let now = clock_gettime(ClockId::Monotonic);
            now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
        };
        let mut latencies = Vec::new();
        for index in 0..count {
            let began = now_ns();
            self.file.write_all_at(&self.buffer[from..from + page as usize], place(index))?;
            latencies.push(now_ns() - began);
        }
        Ok(latencies)
    }
}

/// `ashlar device probe TARGET`.
pub fn probe_target(arguments: &Probe, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Found>() {
        return Ok(code);
    }
    let Probe { target, stride, .. } = arguments;
    let path = Path::new(target);
    let file = if path.exists() { None } else { Some(find(target)?) };
    let known = file.as_ref().and_then(ModelFile::page_bytes);
    let page = arguments.page.map_or(known.unwrap_or(PAGE), |page| page.0);
    if !(512..=1 << 20).contains(&page)
        || !page.is_power_of_two()
        || stride.0 < page
        || stride.0 % page != 0
        || stride.0 > 1 << 40
    {
        let what = "a page is a power of two from 512 bytes to 1 MiB, and a stride is a multiple of it, at most 1 TiB";
        return Err(Failure::new(what).with_code(2));
    }
    let (findings, origin) = match file {
        None => (real(path, page, arguments)?, "measured"),
        Some(file) => {
            let mut model = file.build(0)?;
            let found = probe(model.as_mut(), page, stride.0);
            let hint = "give --page and --stride that fit the model";
            (found.map_err(|error| Failure::new(format!("{target}: {error}; {hint}")).with_code(2))?, "emulated")
        }
    };
    let Findings { updates_per_log, log_blocks, static_wear_every } = findings;
    let (target, origin) = (target.clone(), origin.into());
    output.print(&Found { target, origin, page_bytes: page, updates_per_log, log_blocks, static_wear_every });
    Ok(ExitCode::SUCCESS)
}

fn real(path: &Path, page: u64, arguments: &Probe) -> Result<Findings, Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display())).with_code(2);
    let needed = arguments.stride.0 * LOG_BLOCKS_MAX;
    if !arguments.yes {
        let what = format!("the first {needed} bytes of {} would be lost; give --yes to agree", path.display());
        return Err(Failure::new(what).with_code(2));
    }
    // A device that is mounted refuses to be opened exclusively.
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::DSYNC | OFlags::CLOEXEC | OFlags::EXCL | OFlags::NONBLOCK;
    let file: File = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?.into();
    let len = std::io::Seek::seek(&mut &file, std::io::SeekFrom::End(0)).map_err(failed)?;
    if len < needed {
        let what = format!("{} has {len} bytes; the probe needs {needed}, or a smaller --stride", path.display());
        return Err(Failure::new(what).with_code(2));
    }
    let mut real = Real { file, buffer: vec![0x5a; page as usize + ALIGNMENT] };
    probe_device(&mut real, page, arguments.stride.0, arguments.writes).map_err(failed)
}
