//! Lanes as threads.

use super::files::Files;
use super::perform::{Buffers, Done, Ground};
use super::root::Root;
use super::script::Script;
use crate::noise::Noise;
use crate::trace::{Op, Record};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Stack of a lane; its buffers are elsewhere.
const STACK: usize = 256 << 10;
/// How long a lane waits before it looks whether to stop.
const TICK: Duration = Duration::from_millis(50);

/// When a call is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// As soon as the one before is done.
    #[default]
    Closed,
    /// Not before its time in the trace.
    Times,
}

/// How a script is run.
#[derive(Clone, Copy, Debug)]
pub struct PlayOptions {
    /// When calls are done.
    pub pace: Pace,
    /// The time of a final sync counts too.
    pub sync: bool,
    /// Decides what is written.
    pub seed: u64,
}

/// What was measured of a call.
pub type Measured = Done;

/// What came of a run.
pub struct Played {
    /// For each call of the script; those that were not reached have no latency.
    pub calls: Vec<Measured>,
    /// From the first call to the last, and the final sync if it counts.
    pub total: Duration,
    /// The final sync.
    pub sync: Option<Duration>,
    /// Calls that waited for one of another thread.
    pub waits: u64,
    /// What they waited, all together.
    pub waited: Duration,
    /// Somebody stopped it.
    pub stopped: bool,
}

impl Played {
    /// The calls as records with the latencies that were measured, in order of time.
    pub fn records(&self, script: &Script) -> Vec<Record> {
        let mut order: Vec<usize> = (0..self.calls.len()).collect();
        order.sort_by_key(|index| self.calls[*index].start_ns);
        let record = |index: usize| {
            let (call, measured) = (&script.calls[index], &self.calls[index]);
            let absolute = |number| match script.path(number) {
                "." => "/".to_string(),
                path => format!("/{path}"),
            };
            let (process, thread) = script.callers[call.caller as usize];
            let path2 = match call.op {
                Op::Symlink => script.path(call.path2).to_string(),
                Op::Rename | Op::Link | Op::Copy => absolute(call.path2),
                _ => String::new(),
            };
            Record {
                at_ns: measured.start_ns,
                latency_ns: measured.latency_ns,
                process,
                thread,
                path2,
                file: call.file.checked_sub(1).map_or(0, |file| script.file_numbers[file as usize]),
                offset: call.offset,
                len: call.len,
                done: measured.done,
                error: measured.error.into(),
                flags: call.flags.into(),
                mode: call.mode.into(),
                ..Record::new(call.op, absolute(call.path))
            }
        };
        order.into_iter().map(record).collect()
    }
}

/// How far a lane is.
struct Progress {
    done: AtomicU32,
    /// The least position that somebody waits for; the largest number if nobody does.
    wanted: AtomicU32,
    lock: Mutex<()>,
    advanced: Condvar,
}

impl Default for Progress {
    fn default() -> Progress {
        let [done, wanted] = [0, u32::MAX].map(AtomicU32::new);
        Progress { done, wanted, lock: Mutex::default(), advanced: Condvar::new() }
    }
}

impl Progress {
    fn advance(&self) {
        // Sequentially consistent with what `wait` does: either we see who waits, or they see that we are done.
        let done = self.done.fetch_add(1, Ordering::SeqCst) + 1;
        // Who waits for more is not woken: that would cost more than most calls.
        if self.wanted.load(Ordering::SeqCst) <= done {
            self.wake();
        }
    }

    fn wake(&self) {
        let _held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that go on waiting say so again.
        self.wanted.store(u32::MAX, Ordering::SeqCst);
        self.advanced.notify_all();
    }

    /// Nobody waits for this lane any more.
    fn end(&self) {
        self.done.store(u32::MAX, Ordering::SeqCst);
        self.wake();
    }

    /// Returns since when it had to wait, if it had to.
    fn wait(&self, position: u32, stop: &AtomicBool) -> Option<Instant> {
        if self.done.load(Ordering::SeqCst) >= position {
            return None;
        }
        let began = Instant::now();
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            self.wanted.fetch_min(position, Ordering::SeqCst);
            if self.done.load(Ordering::SeqCst) >= position || stop.load(Ordering::Relaxed) {
                return Some(began);
            }
            held = self.advanced.wait_timeout(held, TICK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Frees those that wait for a lane when it ends, however that is.
struct Ended<'a>(&'a Progress);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What all lanes wait at, so that they begin at once: with a time, or not at all.
#[derive(Default)]
struct Gate(Mutex<Option<Option<Instant>>>, Condvar);

impl Gate {
    fn open(&self, began: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(began);
        self.1.notify_all();
    }

    fn pass(&self) -> Option<Instant> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *held {
                Some(began) => return began,
                None => held = self.1.wait(held).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// Does all calls of a script below `root`. `stop` ends it early.
pub fn play(script: &Script, root: &Root, options: &PlayOptions, stop: &AtomicBool) -> io::Result<Played> {
    // Each lane has files open, and the usual limit is low.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let (files, noise) = (Files::new(script.files), Noise::new(options.seed));
    let progress: Vec<Progress> = script.lanes.iter().map(|_| Progress::default()).collect();
    let gate = Gate::default();
    let first_ns = script.calls.first().map_or(0, |call| call.at_ns);
    let lane = |calls: &[u32], own: &Progress| {
        let _end = Ended(own);
        let mut buffers = Buffers::new(script);
        let mut measured = Vec::with_capacity(calls.len());
        let (mut waits, mut waited) = (0, Duration::ZERO);
        let Some(began) = gate.pass() else { return (measured, waits, waited) };
        let ground = Ground { script, root, files: &files, noise: &noise, began };
        for index in calls {
            let call = &script.calls[*index as usize];
            let since = |(lane, position): &(u32, u32)| progress[*lane as usize].wait(*position, stop);
            // All of them, one after the other.
            let since = script.waits(call).iter().fold(None, |first, wait| first.or(since(wait)));
            if let Some(since) = since {
                waits += 1;
                waited += since.elapsed();
            }
            if options.pace == Pace::Times {
                pause(began + Duration::from_nanos(call.at_ns.saturating_sub(first_ns)), stop);
            }
            if stop.load(Ordering::Relaxed) {
                break;
            }
            measured.push(ground.perform(call, &mut buffers));
            own.advance();
        }
        (measured, waits, waited)
    };
    let (mut calls, mut total) = (vec![Measured::default(); script.calls.len()], Duration::ZERO);
    let (mut waits, mut waited) = (0u64, Duration::ZERO);
    std::thread::scope(|scope| {
        let lane = &lane;
        let start =
            |(calls, own)| std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, move || lane(calls, own));
        let threads: io::Result<Vec<_>> = script.lanes.iter().map(Vec::as_slice).zip(&progress).map(start).collect();
        let began = Instant::now();
        // Without all of them, none has anything to do.
        gate.open(threads.is_ok().then_some(began));
        for (thread, indices) in threads?.into_iter().zip(&script.lanes) {
            let joined = thread.join().map_err(|_| io::Error::other("a thread of the run panicked"))?;
            let (measured, its_waits, its_waited) = joined;
            (waits, waited) = (waits + its_waits, waited + its_waited);
            indices.iter().zip(measured).for_each(|(index, measured)| calls[*index as usize] = measured);
        }
        total = began.elapsed();
        Ok::<_, io::Error>(())
    })?;
    drop(files);
    let sync = options.sync.then(|| -> io::Result<Duration> {
        let start = Instant::now();
        rustix::fs::syncfs(root.directory())?;
        Ok(start.elapsed())
    });
    let sync = sync.transpose()?;
    let (total, stopped) = (total + sync.unwrap_or_default(), stop.load(Ordering::Relaxed));
    Ok(Played { calls, total, sync, waits, waited, stopped })
}

fn pause(until: Instant, stop: &AtomicBool) {
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
        && !stop.load(Ordering::Relaxed)
    {
        std::thread::sleep(left.min(TICK));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who waits for the thousandth call sleeps through those before.
    #[test]
    fn who_waits_is_woken_once() {
        let (progress, stop) = (Progress::default(), AtomicBool::new(false));
        let wanted = || progress.wanted.load(Ordering::SeqCst);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| progress.wait(1000, &stop));
            while wanted() == u32::MAX {
                std::thread::yield_now();
            }
            for _ in 1..1000 {
                progress.advance();
                assert_eq!(wanted(), 1000, "nobody was woken");
            }
            progress.advance();
            assert!(waiter.join().is_ok_and(|since| since.is_some()));
        });
        assert!(progress.wait(1000, &stop).is_none());
        progress.end();
        assert!(progress.wait(5000, &stop).is_none(), "a lane that has ended is waited for by nobody");
    }
}
