//! How much a device has to write at once.
//!
//! What a device was given it does in the order that it likes, and what lies together first: a read that comes while a stream is
//! being written waits behind all of that, on a disk for seconds. So a device is given what it writes in some 25 ms, by the rate at
//! which it wrote lately, and less while somebody reads; two writes in any case, so that one is there when the other ends. While a
//! read is under way no write begins but two for each read that ends; and nothing begins when a read or a write is late, since a disk
//! whose buffer is full makes room in it first, and takes what comes next before what came earlier. What waits goes in the order of
//! its place. This is what Linux does for its own file systems (`blk-wbt`), which looks at how long reads take; here it is a product
//! of rate and time, as in BBR (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 2016): it needs no example of
//! a read that waited, and nobody needs to say what the device is made of.

use crate::rate::Rate;
use crate::turns::Turns;
use ashlar_env::{Env, Instant};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::Notify;

/// Work for so long is on its way to the device.
const ALONE: Duration = Duration::from_millis(25);
/// The same while somebody reads.
const READING: Duration = Duration::from_millis(5);
/// Who reads will read again within this time.
const AGAIN: Duration = Duration::from_millis(50);
/// After this time without the end of a read that was asked for, no write begins.
const READ_IS_LATE: Duration = Duration::from_millis(20);
/// Nor while a write takes longer than this, and than twice the least time of one.
const WRITE_IS_LATE: Duration = Duration::from_millis(100);
/// After this time it is not for other writes that one of them is late.
const LOST: Duration = Duration::from_secs(1);
/// A flush that takes longer waits for a medium that moves.
const FLUSH_IS_SLOW: Duration = Duration::from_millis(5);
/// So many writes may begin with the end of each read, while others are under way.
const WRITES_FOR_A_READ: usize = 2;
/// So many writes are on their way in any case.
const WRITES_MIN: usize = 2;
/// What a device is given of which nothing is known.
const UNKNOWN: u64 = 4 << 20;

/// What is on its way to a device, and who waits to give it more.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    turns: Turns<u64>,
    room: Notify,
}

#[derive(Default)]
struct State {
    /// Writes that are under way: when each began, and which it is.
    begun: BTreeSet<(Instant, u64)>,
    begun_ever: u64,
    /// Bytes of these.
    bytes: u64,
    rate: Rate,
    flushes: usize,
    /// What a flush took of late.
    flush_took: Duration,
    reads: usize,
    /// When the last read ended, or one began while there was none.
    read: Instant,
    /// Writes that may still begin although something is being read.
    allowance: usize,
}

/// A write that is under way, until it is dropped.
pub(crate) struct Writing<'a> {
    gate: &'a Gate,
    env: &'a Env,
    bytes: u64,
    begun: (Instant, u64),
}

/// A flush that is under way since then, until it is dropped.
pub(crate) struct Flushing<'a>(&'a Gate, &'a Env, Instant);

/// A read that is under way, until it is dropped.
pub(crate) struct Reading<'a>(&'a Gate, &'a Env);

impl State {
    /// Begins a write of so many bytes, if there is room for it.
    fn begin(&mut self, now: Instant, bytes: u64) -> Option<(Instant, u64)> {
        let waited = now.since(self.read);
        let reads_first = self.reads > 0 && waited < LOST && (waited >= READ_IS_LATE || self.allowance == 0);
        let late = WRITE_IS_LATE.max(self.rate.there_and_back())..LOST;
        let is_late = self.begun.first().is_some_and(|(begun, _)| late.contains(&now.since(*begun)));
        if self.flushes > 0 || reads_first || is_late {
            return None;
        }
        let time = if self.reads > 0 || waited < AGAIN { READING } else { ALONE };
        let most = || self.rate.worth(time.max(self.rate.there_and_back())).unwrap_or(UNKNOWN);
        if self.begun.len() >= WRITES_MIN && self.bytes + bytes > most() {
            return None;
        }
        self.rate.pass(now, !self.begun.is_empty());
        self.allowance = self.allowance.saturating_sub(1);
        self.begun_ever += 1;
        self.bytes += bytes;
        let begun = (now, self.begun_ever);
        self.begun.insert(begun);
        Some(begun)
    }

    fn end(&mut self, now: Instant, bytes: u64, begun: (Instant, u64)) {
        self.rate.pass(now, true);
        self.rate.wrote(now, bytes, now.since(begun.0));
        self.begun.remove(&begun);
        self.bytes -= bytes;
    }
}

impl Gate {
    /// To be called before so many bytes are written at `address`: waits until it is their turn.
    pub(crate) async fn write<'a>(&'a self, env: &'a Env, address: u64, bytes: u64) -> Writing<'a> {
        let begin = || {
            let begun = self.state.lock().begin(env.now(), bytes);
            begun.map(|begun| Writing { gate: self, env, bytes, begun })
        };
        if self.turns.is_free()
            && let Some(writing) = begin()
        {
            return writing;
        }
        let _turn = self.turns.take(address).await;
        loop {
            let mut rung = std::pin::pin!(self.room.notified());
            rung.as_mut().enable();
            if let Some(writing) = begin() {
                return writing;
            }
            // Whatever is in the way rings when it ends; but a read or a write may be lost.
            env.within(LOST, rung).await;
        }
    }

    /// To be called before the device is flushed. No write begins until that is done: a device may go on until what came meanwhile is
    /// on the medium, too, and serves nobody before.
    pub(crate) fn flush<'a>(&'a self, env: &'a Env) -> Flushing<'a> {
        self.state.lock().flushes += 1;
        Flushing(self, env, env.now())
    }

    /// Whether a flush takes long: then the device has a buffer, and what it was given is in it.
    pub(crate) fn flushes_slowly(&self) -> bool {
        self.state.lock().flush_took > FLUSH_IS_SLOW
    }

    /// To be called before something is read.
    pub(crate) fn read<'a>(&'a self, env: &'a Env) -> Reading<'a> {
        let mut state = self.state.lock();
        if state.reads == 0 {
            state.read = env.now();
        }
        state.reads += 1;
        Reading(self, env)
    }

    /// Bytes that the device writes in so much time, and in that which it needs to answer, as it did lately; `None` if nothing was
    /// written.
    pub(crate) fn worth(&self, time: Duration) -> Option<u64> {
        let state = self.state.lock();
        state.rate.worth(time + state.rate.there_and_back())
    }

    /// Something ended: has who waits look again.
    fn end(&self, what: impl FnOnce(&mut State)) {
        what(&mut self.state.lock());
        self.room.notify_waiters();
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.gate.end(|state| state.end(self.env.now(), self.bytes, self.begun));
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.end(|state| {
            state.flushes -= 1;
            // Four of late, about.
            state.flush_took = (state.flush_took * 3 + self.1.now().since(self.2)) / 4;
        });
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.end(|state| {
            state.reads -= 1;
            state.read = self.1.now();
            state.allowance = WRITES_FOR_A_READ;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_env::sim::simulate;
    use std::sync::Arc;

    const BATCH: u64 = 1 << 20;

    /// Of so many writes that all want to begin at once: how many are under way at most when the first fifty are done; and how long all
    /// take.
    async fn most_at_once(
        env: Env,
        count: u64,
        takes: impl Fn(Instant) -> Duration + Send + Sync + 'static,
    ) -> (usize, Duration) {
        let (gate, takes, began) = (Arc::new(Gate::default()), Arc::new(takes), env.now());
        let writes: Vec<_> = (0..count)
            .map(|index| {
                let (gate, takes, task_env) = (gate.clone(), takes.clone(), env.clone());
                env.spawn(async move {
                    let _writing = gate.write(&task_env, index, BATCH).await;
                    let at_once = {
                        let state = gate.state.lock();
                        if state.begun_ever > 50 { state.begun.len() } else { 0 }
                    };
                    task_env.sleep(takes(task_env.now())).await;
                    at_once
                })
            })
            .collect();
        let mut most = 0;
        for write in writes {
            most = most.max(write.await);
        }
        (most, env.now().since(began))
    }

    /// A device that does one after the other.
    fn serial(each: Duration) -> impl Fn(Instant) -> Duration {
        let free = Mutex::new(Instant::default());
        move |now| {
            let mut free = free.lock();
            *free = Instant((*free).max(now).0 + each.as_nanos() as u64);
            free.since(now)
        }
    }

    #[test]
    fn a_device_is_given_what_it_does_in_a_time() {
        let (disk, flash) = (Duration::from_millis(10), Duration::from_micros(500));
        for seed in 0..20 {
            let (most, took) = simulate(seed, |env| most_at_once(env, 200, serial(disk)));
            assert_eq!((most, took), (2, disk * 200), "seed {seed}");
            let (most, took) = simulate(seed, |env| most_at_once(env, 2000, serial(flash)));
            assert!((45..=51).contains(&most) && took == flash * 2000, "seed {seed}: {most} in {took:?}");
        }
    }

    #[test]
    fn a_device_that_is_far_away_is_kept_busy() {
        for far in [80, 400, 2000].map(Duration::from_millis) {
            let (most, took) = simulate(1, move |env| most_at_once(env, 2000, move |_| far));
            assert!(most > 100 && took < far * 50, "{most} in {took:?}, where each takes {far:?}");
        }
    }

    #[test]
    fn a_late_read_goes_first_but_not_for_ever() {
        for (read_ends, write_begins) in [(300, 300), (5, 0), (5000, 1030)] {
            let waited = simulate(1, move |env| async move {
                let gate = Arc::new(Gate::default());
                let reading = {
                    let (gate, env) = (gate.clone(), env.clone());
                    env.clone().spawn(async move {
                        let _reading = gate.read(&env);
                        env.sleep(Duration::from_millis(read_ends)).await;
                    })
                };
                env.sleep(Duration::from_millis(30)).await;
                let began = env.now();
                drop(gate.write(&env, 0, BATCH).await);
                let waited = env.now().since(began);
                reading.await;
                waited.as_millis() as u64 + 30
            });
            assert_eq!(waited, write_begins.max(30), "a read that ends after {read_ends} ms");
        }
    }

    #[test]
    fn two_writes_begin_for_each_read() {
        let begun = simulate(1, |env| async move {
            let gate = Arc::new(Gate::default());
            let readers: Vec<_> = (0..2)
                .map(|reader| {
                    let (gate, env) = (gate.clone(), env.clone());
                    env.clone().spawn(async move {
                        env.sleep(Duration::from_millis(5 * reader)).await;
                        for _ in 0..20 {
                            let _reading = gate.read(&env);
                            env.sleep(Duration::from_millis(10)).await;
                        }
                    })
                })
                .collect();
            env.sleep(Duration::from_millis(51)).await;
            let over = env.now().0 + Duration::from_millis(100).as_nanos() as u64;
            let mut begun = 0;
            while env.now().0 < over {
                drop(gate.write(&env, begun, BATCH).await);
                begun += 1;
            }
            for reader in readers {
                reader.await;
            }
            begun
        });
        assert!((38..=43).contains(&begun), "{begun} writes began while 20 reads ended");
    }

    #[test]
    fn a_device_flushes_slowly_if_it_does_so_again_and_again() {
        for (millis, slowly) in [([8; 6], true), ([1; 6], false), ([1, 1, 1, 15, 1, 1], false)] {
            let found = simulate(1, move |env| async move {
                let gate = Gate::default();
                for millis in millis {
                    let _flushing = gate.flush(&env);
                    env.sleep(Duration::from_millis(millis)).await;
                }
                gate.flushes_slowly()
            });
            assert_eq!(found, slowly, "flushes of {millis:?} ms");
        }
    }

    #[test]
    fn nothing_begins_during_a_flush() {
        let waited = simulate(1, |env| async move {
            let gate = Arc::new(Gate::default());
            let flushing = {
                let (gate, env) = (gate.clone(), env.clone());
                env.clone().spawn(async move {
                    let _flushing = gate.flush(&env);
                    env.sleep(Duration::from_millis(150)).await;
                })
            };
            env.sleep(Duration::from_millis(50)).await;
            drop(gate.write(&env, 0, BATCH).await);
            flushing.await;
            env.now().since(Instant::default())
        });
        assert_eq!(waited, Duration::from_millis(150));
    }
}
