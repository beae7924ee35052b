//! Measures a system vector: the microbenchmarks of the thesis (section 4.4.3) and those that it lacks.
//!
//! Each measures what it is named after, on many files in many directories of a [`Stand`]. *Uncached* is behind a
//! [`Stand::cold`], and what was left in memory then is told; *cached* is behind a use of the same files. A call is timed
//! alone; of differences (a lookup is one of two paths) the errors add up. Times stay in with their tails, but what needs no
//! device counts as a hundred medians at most: hundreds of calls in a row wait for a log that is full, as few programs make it.
//! How often other threads had the processor is told.
//!
//! Costs    the time that it is given, divided among groups of benchmarks; space of at most [`SPACE_MAX`] or a quarter of
//!          what is free.
//! Departs  the thesis finds sizes of caches by measuring; the kernel tells them here. Its job for WR is shorter here.

mod bench;
mod beside;
mod busy;
mod crowd;
mod data;
mod machine;
mod many;
mod names;
mod removes;
mod syncs;
mod uncached;

use crate::stand::Stand;
use crate::vector::{Source, Vector};
use bench::Bench;
use std::io;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Most bytes that files of one benchmark take.
pub const SPACE_MAX: u64 = 256 << 20;
/// Least that must be free.
const SPACE_MIN: u64 = 64 << 20;

type Group = (&'static str, f64, fn(&mut Bench) -> io::Result<()>);

/// What is measured, and its part of the time.
const GROUPS: [Group; 11] = [
    // First: how soon btrfs makes others wait depends on how much room for metadata it has taken already.
    ("many files", 0.02, many::many),
    ("names", 0.14, names::names),
    ("lookups", 0.06, names::lookups),
    ("cached data", 0.10, data::cached),
    ("removes", 0.10, removes::cached),
    ("syncs", 0.12, syncs::syncs),
    ("uncached data", 0.08, uncached::data),
    ("uncached files", 0.06, uncached::files),
    ("uncached names", 0.08, uncached::names),
    ("many at once", 0.18, crowd::crowd),
    ("beside write-back", 0.06, beside::beside),
];

/// What came of it.
#[derive(Debug)]
pub struct Profiled {
    /// The vector.
    pub vector: Vector,
    /// How long it took, seconds.
    pub seconds: f64,
    /// Whether all that was to be cold was.
    pub cold: bool,
}

/// Measures on a stand for about `budget`. `name` says what it is of. `progress` gets what is measured, and the part that
/// is done.
pub fn profile(
    stand: &mut Stand,
    name: &str,
    source: Source,
    budget: Duration,
    seed: u64,
    stop: &AtomicBool,
    progress: &dyn Fn(&str, f64),
) -> io::Result<Profiled> {
    let free = stand.free()?.0;
    if free < SPACE_MIN {
        let text = format!("{free} bytes are free; at least {SPACE_MIN} are needed");
        return Err(io::Error::new(io::ErrorKind::StorageFull, text));
    }
    let began = Instant::now();
    let mut bench = Bench::new(stand, SPACE_MAX.min(free / 4), seed, stop);
    machine::machine(&mut bench)?;
    let mut done = 0.0;
    for (what, part, group) in GROUPS {
        progress(what, done);
        bench.begin(budget.mul_f64(part))?;
        group(&mut bench)?;
        bench.end()?;
        done += part;
    }
    progress("", 1.0);
    let cold = bench.was_cold();
    let mut vector = bench.into_vector(name, source);
    vector.notes.push(format!("measured in {:.0} s", began.elapsed().as_secs_f64()));
    Ok(Profiled { vector, seconds: began.elapsed().as_secs_f64(), cold })
}

#[cfg(test)]
mod tests;
